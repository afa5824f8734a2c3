//! Decades of words that are inputs, until the row of their call is there. Pure: it reads no clock.
//!
//! Words at the begin of a call come before its row or with it, those at its end with it or a turn later. A call waits a turn: what has not come by then was
//! lost. A call may take minutes, and of some no row comes at all: words that no call has used are kept up to a number, and then those of the calls that
//! began first are forgotten.

use super::{NOT_READ, OfRegisters, OfWords, WORDS};
use profiler_core::class::ClassId;
use std::collections::{BTreeMap, BTreeSet};

/// Calls that wait. Of more in a turn some say as much as all.
const MOST_WAITING: usize = 8_192;
/// Calls whose words are kept beyond a turn: some 1 MiB.
const MOST_KEPT: usize = 16_384;

/// A call: begin, thread, class. So the first of all is the oldest.
pub(super) type Key = (u64, u32, u32);

/// Decades of words by call, and calls that wait for theirs.
#[derive(Debug, Default)]
pub(super) struct TakenWords {
    /// `None`: that word has not come.
    of: BTreeMap<Key, [Option<u8>; WORDS]>,
    waiting: Vec<(Key, OfRegisters)>,
}

impl TakenWords {
    /// The i-th word of a call has come.
    pub fn put(&mut self, call: Key, i: usize, decade: u8) {
        if let Some(own) = self.of.entry(call).or_default().get_mut(i) {
            *own = Some(decade);
        }
    }

    /// All of the first words of a call have come, so many.
    pub fn has(&self, call: &Key, words: usize) -> bool {
        self.of.get(call).is_some_and(|own| own.iter().take(words).all(Option::is_some))
    }

    /// The words of a call are used, or come too late.
    pub fn remove(&mut self, call: &Key) -> OfWords {
        let own = self.of.remove(call).unwrap_or_default();
        own.map(|decade| decade.unwrap_or(NOT_READ))
    }

    /// The call's words have not all come.
    pub fn wait(&mut self, call: Key, registers: OfRegisters) {
        if self.waiting.len() < MOST_WAITING {
            self.waiting.push((call, registers));
        } else {
            self.of.remove(&call);
        }
    }

    /// The calls that have waited a turn.
    pub fn waiting(&mut self) -> Vec<(Key, OfRegisters)> {
        std::mem::take(&mut self.waiting)
    }

    /// These classes have other inputs from now on.
    pub fn forget(&mut self, classes: &BTreeSet<ClassId>) {
        let is_other = |call: &Key| classes.contains(&ClassId(call.2));
        self.of.retain(|call, _| !is_other(call));
        self.waiting.retain(|(call, _)| !is_other(call));
    }

    /// A turn is over.
    pub fn prune(&mut self) {
        while self.of.len() > MOST_KEPT {
            self.of.pop_first();
        }
    }

    /// Calls whose words are kept.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.of.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_and_what_waits_is_bounded() {
        let mut taken = TakenWords::default();
        let calls = MOST_KEPT as u64 + 10;
        for begin_ns in 0..calls {
            let call = (begin_ns, 1, 0);
            taken.put(call, 1, 4);
            assert!(!taken.has(&call, 2));
            taken.put(call, 0, 3);
            assert!(taken.has(&call, 2));
        }
        taken.prune();
        assert_eq!(taken.kept(), MOST_KEPT);
        let none = [NOT_READ; WORDS];
        assert_eq!(taken.remove(&(9, 1, 0)), none, "the oldest are forgotten");
        assert_eq!(taken.remove(&(10, 1, 0))[..3], [3, 4, NOT_READ]);
        (0..calls).for_each(|begin_ns| taken.wait((begin_ns, 1, 0), [NOT_READ; 6]));
        assert_eq!((taken.waiting().len(), taken.waiting().len()), (MOST_WAITING, 0));
        assert_eq!(taken.kept(), MOST_WAITING - 11, "nobody waits for them");
    }
}
