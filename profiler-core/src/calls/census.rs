//! Which steps lie in which operations, and whether all of them are there.
//!
//! Each operation says which numbers of its thread's steps lie in it. They are all there if each of them is found once. The census holds some
//! 60 bytes for each operation and nothing for a step, so that a recording can be read once from beginning to end.

use crate::recording::{OperationRow, StepRow};
use std::collections::HashMap;

/// Whether an operation has all of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// Each number is there once.
    Complete,
    /// The kernel side says that steps are missing: a quota was used up, functions were attached or detached meanwhile, or the ring was full.
    Marked,
    /// So many numbers are missing.
    Missing(u64),
    /// A number is there more than once.
    Doubled,
    /// It had not ended when the run did.
    Open,
    /// Its steps have no numbers: calls in order were not recorded.
    Unnumbered,
}

/// How many operations have all of their steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Operations.
    pub operations: u64,
    /// Of those, complete.
    pub complete: u64,
    /// Of those, incomplete as the kernel side says.
    pub marked: u64,
    /// Of those, with numbers that are missing or there more than once.
    pub missing: u64,
    /// Of those, not ended when the run did.
    pub open: u64,
    /// Of those, without numbers.
    pub unnumbered: u64,
}

impl Account {
    /// One more operation.
    pub fn note(&mut self, completeness: Completeness) {
        self.operations += 1;
        *match completeness {
            Completeness::Complete => &mut self.complete,
            Completeness::Marked => &mut self.marked,
            Completeness::Missing(_) | Completeness::Doubled => &mut self.missing,
            Completeness::Open => &mut self.open,
            Completeness::Unnumbered => &mut self.unnumbered,
        } += 1;
    }
}

/// All operations of a recording, and what is found of their steps.
#[derive(Debug, Clone, Default)]
pub struct Census {
    entries: Vec<Entry>,
    threads: HashMap<(u32, u32), Layers>,
    outside: u64,
    steps: u64,
}

/// An operation, and the steps that were found in it.
#[derive(Debug, Clone, Copy)]
struct Entry {
    begin_ns: u64,
    end_ns: u64,
    /// Numbers of its steps: above the first, up to the second.
    numbers: (u64, u64),
    found: u64,
    /// Sum of [`mark`] of their numbers.
    marks: u64,
    operation: u32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Numbered,
    Marked,
    Open,
    Unnumbered,
}

/// Operations of a thread, by begin. Those of a layer do not overlap; there are as many layers as operations inside one another.
#[derive(Debug, Clone, Default)]
struct Layers(Vec<Vec<usize>>);

/// A number that no other number is likely to have (splitmix64): a sum of marks tells sets apart.
fn mark(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Entry {
    fn new(row: &OperationRow) -> Self {
        let numbers = row.steps_before.zip(row.steps_after).filter(|(before, after)| before <= after);
        let state = match numbers {
            _ if row.censored => State::Open,
            Some(_) if row.pid.is_none() => State::Unnumbered,
            Some(_) if row.incomplete == Some(true) => State::Marked,
            Some(_) => State::Numbered,
            None => State::Unnumbered,
        };
        Self {
            begin_ns: row.begin_ns,
            end_ns: row.begin_ns.saturating_add(row.duration_ns),
            numbers: numbers.unwrap_or((0, 0)),
            found: 0,
            marks: 0,
            operation: row.operation,
            state,
        }
    }

    fn holds(&self, step: &StepRow) -> bool {
        let (before, after) = self.numbers;
        (self.begin_ns..=self.end_ns).contains(&step.time_ns) && before < step.number && step.number <= after
    }

    fn completeness(&self) -> Completeness {
        let (before, after) = self.numbers;
        let expected = after - before;
        match self.state {
            State::Open => Completeness::Open,
            State::Unnumbered => Completeness::Unnumbered,
            State::Marked => Completeness::Marked,
            State::Numbered if self.found < expected => Completeness::Missing(expected - self.found),
            State::Numbered if self.found > expected => Completeness::Doubled,
            State::Numbered => {
                let marks = (before..after).fold(0_u64, |sum, n| sum.wrapping_add(mark(n + 1)));
                if marks == self.marks { Completeness::Complete } else { Completeness::Doubled }
            }
        }
    }
}

impl Census {
    /// Of these operations, which are known by their places from then on. A thread's number may be used again, and its steps are counted from the start then:
    /// a step belongs to an operation by time and by number.
    #[must_use]
    pub fn new<'a>(rows: impl IntoIterator<Item = &'a OperationRow>) -> Self {
        let mut census = Self::default();
        rows.into_iter().for_each(|row| census.add(row));
        census.sort();
        census
    }

    /// One more operation. [`Census::sort`] must be called before the first step.
    pub fn add(&mut self, row: &OperationRow) {
        let entry = Entry::new(row);
        if let (true, Some(pid)) = (entry.numbers.0 < entry.numbers.1, row.pid) {
            let layers = self.threads.entry((pid, row.tid)).or_default();
            if layers.0.is_empty() {
                layers.0.push(Vec::new());
            }
            layers.0.iter_mut().take(1).for_each(|layer| layer.push(self.entries.len()));
        }
        self.entries.push(entry);
    }

    /// Makes the operations ready for steps.
    pub fn sort(&mut self) {
        for layers in self.threads.values_mut() {
            let mut all: Vec<usize> = layers.0.drain(..).flatten().collect();
            all.sort_by_key(|index| self.entries.get(*index).map(|entry| (entry.begin_ns, entry.end_ns)));
            let mut ends: Vec<u64> = Vec::new();
            for index in all {
                let Some(entry) = self.entries.get(index) else { continue };
                // An end and a begin at the same time overlap: the step between them may have that time, too.
                let free = ends.iter().position(|end| *end < entry.begin_ns);
                let layer = free.unwrap_or(ends.len());
                if layer == ends.len() {
                    ends.push(0);
                    layers.0.push(Vec::new());
                }
                if let (Some(end), Some(layer)) = (ends.get_mut(layer), layers.0.get_mut(layer)) {
                    *end = entry.end_ns;
                    layer.push(index);
                }
            }
        }
    }

    /// A step: `inside` is called with the place of each operation that it lies in.
    pub fn count(&mut self, step: &StepRow, mut inside: impl FnMut(usize)) {
        self.steps += 1;
        let mut is_inside = false;
        for layer in self.threads.get(&(step.pid, step.tid)).into_iter().flat_map(|layers| &layers.0) {
            let begun = |index: &usize| self.entries.get(*index).is_some_and(|e| e.begin_ns <= step.time_ns);
            let last = layer.partition_point(begun).checked_sub(1).and_then(|last| layer.get(last));
            if let Some(index) = last
                && let Some(entry) = self.entries.get_mut(*index)
                && entry.holds(step)
            {
                entry.found += 1;
                entry.marks = entry.marks.wrapping_add(mark(step.number));
                is_inside = true;
                inside(*index);
            }
        }
        self.outside += u64::from(!is_inside);
    }

    /// Of the operation at a place, after all steps.
    #[must_use]
    pub fn completeness(&self, place: usize) -> Option<Completeness> {
        self.entries.get(place).map(Entry::completeness)
    }

    /// Of all operations with this number, after all steps.
    #[must_use]
    pub fn account(&self, operation: u32) -> Account {
        let mut account = Account::default();
        let entries = self.entries.iter().filter(|entry| entry.operation == operation);
        entries.for_each(|entry| account.note(entry.completeness()));
        account
    }

    /// Steps that were counted.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Of those, steps that lie in no operation.
    #[must_use]
    pub fn outside(&self) -> u64 {
        self.outside
    }
}
