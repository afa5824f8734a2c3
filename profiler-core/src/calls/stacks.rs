//! The frames that may be open, while steps are looked at in order.
//!
//! A frame leaves for one of two reasons. *Proof*: its memory belongs to another frame now. *Distance*: it lies below the stack pointer of what is taken to
//! be the same stack, or it is younger than one that runs. Both hold unless the process switches stacks, and `span = 0` keeps from both.

use super::code::DEFAULT_SPAN_BYTES;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Index of a step in its operation.
pub(super) type Index = usize;

/// Frames by slot and by age.
#[derive(Debug)]
pub(super) struct Stacks {
    /// Slots less than this apart lie on one stack, bytes; 0: nothing follows from distances.
    span: u64,
    /// The latest entry at each slot, open or not.
    latest: HashMap<u64, Index>,
    /// Frames that may be open, one at a slot.
    open: BTreeMap<u64, Index>,
    /// The same by age, and some that have gone.
    ages: Vec<(Index, u64)>,
    /// The step at which a frame was known to be gone.
    pub(super) gone_by: Vec<Option<Index>>,
}

impl Stacks {
    pub(super) fn new(span: u64) -> Self {
        Self { span, latest: HashMap::new(), open: BTreeMap::new(), ages: Vec::new(), gone_by: Vec::new() }
    }

    /// The latest entry at a slot.
    pub(super) fn latest(&self, slot: u64) -> Option<Index> {
        self.latest.get(&slot).copied()
    }

    /// The frame at a slot that may be open.
    pub(super) fn at(&self, slot: u64) -> Option<Index> {
        self.open.get(&slot).copied()
    }

    pub(super) fn is_open(&self, index: Index) -> bool {
        self.gone_by.get(index).is_some_and(Option::is_none)
    }

    pub(super) fn nothing_is_open(&self) -> bool {
        self.open.is_empty()
    }

    /// The frame at `slot` has gone.
    pub(super) fn close(&mut self, slot: u64, by: Index) {
        if let Some(index) = self.open.remove(&slot)
            && let Some(gone) = self.gone_by.get_mut(index)
        {
            *gone = Some(by);
        }
    }

    /// Frames in this memory have gone.
    pub(super) fn close_in(&mut self, slots: Range<u64>, by: Index) {
        if slots.is_empty() {
            return;
        }
        while let Some((&slot, _)) = self.open.range(slots.clone()).next() {
            self.close(slot, by);
        }
    }

    /// Frames below `slot` on its stack have gone, by distance.
    pub(super) fn close_below(&mut self, slot: u64, by: Index) {
        self.close_in(slot.saturating_sub(self.span.saturating_sub(1))..slot, by);
    }

    /// Frames that are younger than `index` have gone, on all stacks: it runs, and the process does not switch stacks.
    pub(super) fn close_younger(&mut self, index: Index, by: Index) {
        if self.span == 0 {
            return;
        }
        let younger = self.ages.partition_point(|(age, _)| *age <= index);
        for (age, slot) in self.ages.split_off(younger) {
            if self.at(slot) == Some(age) {
                self.close(slot, by);
            }
        }
    }

    /// The lowest frame that may be open above `slot`, on its stack.
    pub(super) fn next_above(&self, slot: u64) -> Option<Index> {
        let span = if self.span == 0 { DEFAULT_SPAN_BYTES } else { self.span };
        let mut above = self.open.range(slot..).skip_while(|(at, _)| **at == slot);
        above.next().filter(|(at, _)| **at - slot < span).map(|(_, index)| *index)
    }

    /// Frames that may be open, the youngest first.
    pub(super) fn youngest_first(&self) -> impl Iterator<Item = (Index, u64)> + '_ {
        self.ages.iter().rev().copied().filter(|(age, slot)| self.at(*slot) == Some(*age))
    }

    /// A frame begins. What was at its slot has gone.
    pub(super) fn enter(&mut self, slot: u64) {
        let index = self.gone_by.len();
        self.close(slot, index);
        self.gone_by.push(None);
        self.latest.insert(slot, index);
        self.open.insert(slot, index);
        while self.ages.last().is_some_and(|(age, slot)| self.at(*slot) != Some(*age)) {
            self.ages.pop();
        }
        self.ages.push((index, slot));
    }

    /// Nothing follows from distances.
    pub(super) fn ignores_distances(&self) -> bool {
        self.span == 0
    }
}
