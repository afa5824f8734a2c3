//! The pilot: which metric, windows of which length, and how narrow the interval can get.

use super::Subject;
use crate::stats::overhead::{ProgressWindow, reachable, windows_to_join};

/// Parts of the longest window.
const MOST_PARTS: usize = 8;
/// Windows of the pilot: the last so many count.
const LENGTH: std::ops::RangeInclusive<usize> = 15..=60;
/// What the half-width is foretold for where the run has no end, ns.
pub(super) const HORIZON_NS: u64 = 60_000_000_000;

/// What was seen in one part of a window.
#[derive(Debug)]
struct Piece {
    cpu_ns: u64,
    /// One count, or that of each system call.
    counts: Vec<u64>,
}

impl Piece {
    /// The window as one count saw it.
    fn window(&self, slot: usize) -> ProgressWindow {
        let progress = self.counts.get(slot).copied().unwrap_or(0);
        // Only CPU time is asked for of the pilot.
        ProgressWindow { progress, cpu_ns: self.cpu_ns, wall_ns: 0 }
    }
}

/// What the pilot found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    /// Half the width of the interval that can be reached.
    pub(super) half: f64,
    /// Which of the counts.
    pub(super) slot: usize,
    /// Parts of a window.
    pub(super) parts: usize,
}

/// What the pilot saw.
#[derive(Debug, Default)]
pub(super) struct Pilot {
    pieces: Vec<Piece>,
    last: Option<(u64, Vec<u64>)>,
}

impl Pilot {
    /// A part of a window ends: CPU time so far, ns, and counts so far.
    pub(super) fn add(&mut self, cpu_ns: u64, counts: &[u64]) {
        if let Some((last_cpu_ns, last)) = self.last.replace((cpu_ns, counts.to_vec())) {
            let counts = counts.iter().zip(&last).map(|(now, last)| now.wrapping_sub(*last)).collect();
            self.pieces.push(Piece { cpu_ns: cpu_ns.saturating_sub(last_cpu_ns), counts });
        }
        if self.pieces.len() > *LENGTH.end() {
            self.pieces.remove(0);
        }
    }

    /// A choice can be made.
    pub(super) fn is_long_enough(&self) -> bool {
        self.pieces.len() >= *LENGTH.start()
    }

    /// Counts that progress may be measured by.
    fn slots(&self, subject: &Subject) -> Vec<usize> {
        let Some(choices) = &subject.choices else { return vec![0] };
        let counted = |n: usize| self.pieces.iter().any(|piece| piece.counts.get(n).is_some_and(|c| *c > 0));
        (0..choices.len()).filter(|n| choices[*n].is_some() && counted(*n)).collect()
    }

    /// Chooses metric and window length. `planned`: windows off of so many parts in what is left of the run; `share`: the budget as a
    /// share of the target's CPU time. `Ok(None)`: the pilot goes on. The error says why nothing can be measured.
    pub(super) fn judge(
        &self,
        subject: &Subject,
        planned: impl Fn(usize) -> u32,
        share: f64,
    ) -> Result<Option<Choice>, String> {
        let mut best: Option<Choice> = None;
        let mut slow = false;
        for slot in self.slots(subject) {
            let windows: Vec<_> = self.pieces.iter().map(|piece| piece.window(slot)).collect();
            let Some(parts) = windows_to_join(&windows, MOST_PARTS) else {
                slow = true;
                continue;
            };
            let Some(half) = reachable(&windows, parts, planned(parts)) else { continue };
            if best.is_none_or(|best| half < best.half) {
                best = Some(Choice { half, slot, parts });
            }
        }
        let Some(best) = best else {
            // A slow metric may need a longer pilot.
            if self.pieces.len() < *LENGTH.end() && (slow || subject.is_named()) {
                return Ok(None);
            }
            return Err(if subject.is_named() {
                format!("{} makes too little progress for windows of 0.8 s", subject.name)
            } else {
                "no progress metric: the target makes no steady system calls; name one with --progress"
                    .to_owned()
            });
        };
        if let Some(choices) = &subject.choices
            && best.half > share
        {
            return Err(format!(
                "no progress metric: the steadiest system call, {}, would give +-{:.2} points, more than the budget; \
                 name a metric with --progress",
                choices[best.slot].as_deref().unwrap_or_default(),
                best.half * 100.0
            ));
        }
        Ok(Some(best))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::sim;

    /// A pilot of `n` windows with 50 ms of CPU time each, in which the counts grow as `grow(window)` says.
    fn pilot(n: usize, mut grow: impl FnMut(usize) -> Vec<u64>) -> Pilot {
        let mut pilot = Pilot::default();
        let mut counts = vec![0; grow(0).len()];
        for i in 0..=n {
            pilot.add(i as u64 * 50_000_000, &counts);
            counts.iter_mut().zip(grow(i)).for_each(|(count, more)| *count += more);
        }
        pilot
    }

    fn found(names: [Option<&str>; 3]) -> Subject {
        let choices = names.map(|name| name.map(str::to_owned)).to_vec();
        Subject { name: "system calls".to_owned(), choices: Some(choices), ..Subject::default() }
    }

    #[test]
    fn the_steadiest_call_is_chosen_that_does_not_wait() {
        let mut rng = sim::rng(7);
        let mut near = |mean: f64, sd: f64| (mean * (1.0 + sd * sim::normal(&mut rng))).round() as u64;
        let pilot = pilot(30, |_| vec![near(1000.0, 0.05), 1_000, near(1000.0, 0.01)]);
        let subject = found([Some("read"), None, Some("write")]);
        let choice = pilot.judge(&subject, |_| 40, 0.02).unwrap().unwrap();
        assert_eq!((choice.slot, choice.parts), (2, 1));
        // The call that waits is the steadiest.
        let all = found([Some("read"), Some("poll"), Some("write")]);
        assert_eq!(pilot.judge(&all, |_| 40, 0.02).unwrap().unwrap().slot, 1);
        let why = pilot.judge(&subject, |_| 40, choice.half / 2.0).unwrap_err();
        assert!(why.contains("the steadiest system call, write, would give +-"), "{why}");
    }

    #[test]
    fn a_target_that_calls_nothing_has_no_metric() {
        let subject = found([Some("read"), None, Some("write")]);
        let why = pilot(15, |_| vec![0, 100, 0]).judge(&subject, |_| 40, 0.02).unwrap_err();
        assert!(why.contains("makes no steady system calls"), "{why}");
        assert!(!pilot(14, |_| vec![1, 1, 1]).is_long_enough());
    }

    #[test]
    fn a_slow_metric_gets_long_windows_and_one_that_stands_is_given_up() {
        let named = Subject { name: "the variable done".to_owned(), ..Subject::default() };
        let choice = pilot(40, |_| vec![6]).judge(&named, |_| 40, 0.02).unwrap().unwrap();
        assert_eq!(choice.parts, 4);
        // What is named is not judged by the budget.
        let wild = pilot(40, |i| vec![20 + 40 * (i as u64 % 2)]);
        assert!(wild.judge(&named, |_| 40, 1e-6).unwrap().is_some());
        assert_eq!(pilot(59, |_| vec![0]).judge(&named, |_| 40, 0.02), Ok(None));
        let why = pilot(60, |_| vec![0]).judge(&named, |_| 40, 0.02).unwrap_err();
        assert_eq!(why, "the variable done makes too little progress for windows of 0.8 s");
        // The last 60 windows count.
        let late = pilot(200, |i| vec![if i < 150 { 0 } else { 100 }]);
        assert_eq!(late.pieces.len(), 60);
    }

    #[test]
    fn a_metric_that_cannot_be_read_is_none() {
        let named = Subject { name: "the variable done".to_owned(), ..Subject::default() };
        let pilot = pilot(60, |_| Vec::new());
        assert!(pilot.judge(&named, |_| 40, 0.02).is_err());
    }
}
