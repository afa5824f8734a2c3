//! The last steps of each thread, so that those of a slow operation are there when its row comes.

use profiler_core::recording::{OperationRow, StepRow};
use std::collections::{HashMap, VecDeque};

/// Steps of all threads that are held: 56 bytes each.
const MOST_HELD: usize = 65_536;

type Thread = (u32, u32);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct RecentSteps {
    threads: HashMap<Thread, VecDeque<StepRow>>,
    held: usize,
    /// Operations do not lie in one another: what belongs to one that has passed is of no use.
    is_single: bool,
    /// Last number of each thread's operations that have passed.
    passed: HashMap<Thread, u64>,
}

impl RecentSteps {
    /// `is_single`: one operation is followed.
    pub fn new(is_single: bool) -> Self {
        Self { threads: HashMap::new(), held: 0, is_single, passed: HashMap::new() }
    }

    /// Takes steps, in the order of their arrival. False: others had to go for them.
    pub fn push(&mut self, rows: &[StepRow]) -> bool {
        let mut all_fit = true;
        for run in rows.chunk_by(|a, b| (a.pid, a.tid) == (b.pid, b.tid)) {
            let Some(first) = run.first() else { continue };
            all_fit &= self.make_room(run.len());
            self.threads.entry((first.pid, first.tid)).or_default().extend(run);
            self.held += run.len();
        }
        all_fit
    }

    /// Room for so many: the thread with the most loses its oldest half.
    fn make_room(&mut self, wanted: usize) -> bool {
        let fits = self.held + wanted <= MOST_HELD;
        while self.held > 0 && self.held + wanted > MOST_HELD {
            let Some((thread, steps)) = self.threads.iter_mut().max_by_key(|(_, steps)| steps.len()) else {
                break;
            };
            let dropped = steps.len().div_ceil(2);
            steps.drain(..dropped);
            self.held -= dropped;
            let (thread, is_empty) = (*thread, steps.is_empty());
            if is_empty {
                self.threads.remove(&thread);
            }
        }
        fits
    }

    /// This operation is not told.
    pub fn passed(&mut self, row: &OperationRow) {
        if let (true, Some(pid), Some(after)) = (self.is_single, row.pid, row.steps_after) {
            let last = self.passed.entry((pid, row.tid)).or_default();
            *last = after;
        }
    }

    /// Steps of an operation, in the order of their numbers, if all of them are there. `numbers`: above the first, up to the second.
    pub fn find(&self, row: &OperationRow, (before, after): (u64, u64)) -> Option<Vec<StepRow>> {
        let steps = self.there_are(row);
        let mut numbers: Vec<u64> = steps.iter().map(|step| step.number).collect();
        numbers.dedup();
        (numbers.len() as u64 == after - before).then_some(steps)
    }

    /// Those that are there.
    pub fn there_are(&self, row: &OperationRow) -> Vec<StepRow> {
        let (Some(pid), Some(before), Some(after)) = (row.pid, row.steps_before, row.steps_after) else {
            return Vec::new();
        };
        let end_ns = row.begin_ns.saturating_add(row.duration_ns);
        let is_inside = |step: &&StepRow| {
            before < step.number && step.number <= after && (row.begin_ns..=end_ns).contains(&step.time_ns)
        };
        let steps = self.threads.get(&(pid, row.tid)).into_iter().flatten();
        let mut steps: Vec<StepRow> = steps.filter(is_inside).copied().collect();
        steps.sort_by_key(|step| (step.number, step.time_ns));
        steps
    }

    /// Forgets what belongs to operations that have passed, but for what lies in one of the `waiting` or after it.
    pub fn forget<'a>(&mut self, waiting: impl Iterator<Item = &'a OperationRow>) {
        let mut kept: HashMap<Thread, u64> = HashMap::new();
        for row in waiting {
            let from = row.steps_before.unwrap_or(0);
            let least = kept.entry((row.pid.unwrap_or(0), row.tid)).or_insert(from);
            *least = from.min(*least);
        }
        for (thread, last) in self.passed.drain() {
            let last = kept.get(&thread).map_or(last, |least| last.min(*least));
            let Some(steps) = self.threads.get_mut(&thread) else { continue };
            while steps.front().is_some_and(|step| step.number <= last) {
                steps.pop_front();
                self.held -= 1;
            }
            if steps.is_empty() {
                self.threads.remove(&thread);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::sample::recording;

    fn step(tid: u32, number: u64) -> StepRow {
        StepRow {
            time_ns: 1_000 * number,
            number,
            class_id: 0,
            pid: 1,
            tid,
            slot: 0x1000,
            return_address: 0x10,
            frame: 0,
        }
    }

    fn row(tid: u32, before: u64, after: u64) -> OperationRow {
        OperationRow {
            pid: Some(1),
            tid,
            begin_ns: 1_000 * before + 1,
            duration_ns: 1_000 * (after - before) + 1,
            steps_before: Some(before),
            steps_after: Some(after),
            incomplete: Some(false),
            ..recording().operations[0]
        }
    }

    fn numbers(steps: Option<Vec<StepRow>>) -> Option<Vec<u64>> {
        steps.map(|steps| steps.iter().map(|step| step.number).collect())
    }

    #[test]
    fn steps_are_found_when_all_are_there_in_their_order() {
        let mut recent = RecentSteps::new(true);
        assert!(recent.push(&[step(7, 1), step(7, 3), step(8, 1)]));
        assert_eq!(numbers(recent.find(&row(7, 0, 3), (0, 3))), None);
        recent.push(&[step(7, 2)]);
        assert_eq!(numbers(recent.find(&row(7, 0, 3), (0, 3))), Some(vec![1, 2, 3]));
        assert_eq!(numbers(recent.find(&row(7, 1, 2), (1, 2))), Some(vec![2]));
        assert_eq!(numbers(recent.find(&row(8, 1, 1), (1, 1))), Some(vec![]));
    }

    #[test]
    fn steps_of_operations_that_have_passed_go_but_for_those_of_one_that_waits() {
        let mut recent = RecentSteps::new(true);
        recent.push(&(1..=9).map(|n| step(7, n)).collect::<Vec<_>>());
        recent.passed(&row(7, 6, 9));
        let waits = row(7, 3, 6);
        recent.forget([&waits].into_iter());
        assert_eq!(recent.held, 6);
        assert_eq!(numbers(recent.find(&waits, (3, 6))), Some(vec![4, 5, 6]));
        recent.passed(&row(7, 6, 9));
        recent.forget([].into_iter());
        assert_eq!((recent.held, recent.threads.len()), (0, 0));
        // Of several operations one may lie in another.
        let mut several = RecentSteps::new(false);
        several.push(&[step(7, 1)]);
        several.passed(&row(7, 0, 1));
        several.forget([].into_iter());
        assert_eq!(several.held, 1);
    }

    #[test]
    fn no_more_are_held_than_fit() {
        let mut recent = RecentSteps::new(false);
        assert!(recent.push(&(1..=60_000).map(|n| step(7, n)).collect::<Vec<_>>()));
        assert!(!recent.push(&(1..=60_000).map(|n| step(8, n)).collect::<Vec<_>>()));
        assert!(recent.held <= MOST_HELD, "{}", recent.held);
        let counted: usize = recent.threads.values().map(VecDeque::len).sum();
        assert_eq!(counted, recent.held);
        assert!(recent.find(&row(8, 59_000, 60_000), (59_000, 60_000)).is_some(), "the newest stay");
        // More than fit at all.
        recent.push(&(1..=70_000).map(|n| step(9, n)).collect::<Vec<_>>());
        assert!(recent.held <= 70_000);
    }
}
