//! One frequency for the functions of a group, where models are known from the start (`--expect` with `--datapoints`): which class has which.
//!
//! Models are made on another thread; until they are there functions are recorded as the plan decides alone.

use super::Agent;
use super::class::LiveClass;
use crate::models::{Frequencies, name_of};
use profiler_core::class::{ClassId, RecordKind};
use std::sync::mpsc::{Receiver, TryRecvError};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct SharedPoints {
    making: Option<Receiver<Frequencies>>,
    known: Frequencies,
    /// Of each class, Hz; those that came after the last look are missing.
    of_class: Vec<f64>,
}

impl SharedPoints {
    /// Frequencies will come from there.
    pub fn await_frequencies(&mut self, making: Receiver<Frequencies>) {
        self.making = Some(making);
    }

    /// Recorded calls per second that a class shares with its group, Hz; 0: it is in none.
    pub fn of(&self, class: ClassId) -> f64 {
        self.of_class.get(class.0 as usize).copied().unwrap_or(0.0)
    }

    /// Takes the frequencies, if they have come. Returned is what is to be said of them.
    fn take(&mut self) -> Option<String> {
        match self.making.as_ref()?.try_recv() {
            Ok(known) => {
                self.making = None;
                self.known = known;
                self.of_class.clear();
                Some(self.known.told.clone()).filter(|told| !told.is_empty())
            }
            Err(TryRecvError::Empty) => None,
            // There are no models; who waits for them says why.
            Err(TryRecvError::Disconnected) => {
                self.making = None;
                None
            }
        }
    }

    /// Looks at classes that are new.
    fn look_at(&mut self, classes: &[LiveClass]) {
        if self.known.hz.is_empty() {
            return;
        }
        let seen = self.of_class.len();
        let known = &self.known;
        self.of_class.extend(classes.iter().skip(seen).map(|class| {
            let candidate = &class.candidate;
            let is_recorded = class.kind == RecordKind::Record;
            known
                .of(&candidate.module, &candidate.symbol, &candidate.build_id)
                .filter(|_| is_recorded)
                .unwrap_or(0.0)
        }));
    }
}

impl Frequencies {
    /// Of a function of this build, Hz.
    fn of(&self, module: &str, symbol: &str, build_id: &str) -> Option<f64> {
        let (build, hz) = self.hz.get(&name_of(module, symbol))?;
        (build == build_id).then_some(*hz)
    }
}

impl Agent {
    /// Takes what groups are recorded at, if it has come, and gives it to the classes.
    pub(super) fn take_frequencies(&mut self) {
        if let Some(told) = self.data_points.shared.take() {
            told.lines().for_each(|line| self.journal.progress.note(line));
        }
        self.data_points.shared.look_at(self.attach.classes());
        self.group_functions();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn frequencies_are_said_once_and_hold_for_one_build() {
        let mut shared = SharedPoints::default();
        assert_eq!(shared.take(), None, "nothing was asked for");
        let (sender, making) = channel();
        shared.await_frequencies(making);
        assert_eq!(shared.take(), None, "they are being made");
        let hz = [(name_of("/lib/libz.so.1", "crc32"), ("b1".to_owned(), 60.0))].into();
        sender.send(Frequencies { hz, told: "crc32: 60".to_owned() }).unwrap();
        assert_eq!(shared.take().as_deref(), Some("crc32: 60"));
        assert_eq!(shared.take(), None, "it is said once");
        let of = |build| shared.known.of("/usr/lib/libz.so.1.2.13", "crc32", build);
        assert_eq!((of("b1"), of("b2")), (Some(60.0), None));
        assert_eq!(shared.known.of("/lib/libz.so.1", "adler32", "b1"), None);
    }
}
