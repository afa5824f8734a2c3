//! How much work a plan may take: the core has no clock, and an event loop waits for it.
//!
//! A step is one choice of one class that is looked at. Whoever looks asks before whether what is left of its part is enough, so all of them together are
//! never more than the limit, but for what has to be done once whatever the limit: each class is looked at some times.

use super::super::Options;
use std::cell::Cell;

/// Parts of the limit, in thousandths: for prices, once for the plan and once for the bound of plans that need count nothing in full; ...
pub(super) const PRICES: usize = 200;
/// ... for giving away what prices leave, twice; ...
pub(super) const GIVING: usize = 100;
/// ... and for splits. The rest is for lengths and bounds over all of them.
pub(super) const ALL_SPLITS: usize = 200;

/// Steps taken, and how many there may be.
#[derive(Debug)]
pub(super) struct Steps {
    /// In all.
    pub limit: usize,
    taken: Cell<usize>,
    /// Those of the present part end here.
    until: Cell<usize>,
}

impl Steps {
    pub fn new(options: &Options) -> Self {
        let limit = options.work_limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX));
        Self { limit, taken: Cell::new(0), until: Cell::new(usize::MAX) }
    }

    /// So many steps are so many thousandths of the limit.
    pub fn part(&self, thousandths: usize) -> usize {
        if self.limit == usize::MAX { usize::MAX } else { self.limit.saturating_mul(thousandths) / 1_000 }
    }

    /// What comes now may take so many thousandths of the limit.
    pub fn allow(&self, thousandths: usize) {
        self.until.set(self.taken.get().saturating_add(self.part(thousandths)));
    }

    /// Steps that the present part may still take.
    pub fn left(&self) -> usize {
        self.until.get().saturating_sub(self.taken.get())
    }

    /// So many were taken.
    pub fn take(&self, steps: usize) {
        self.taken.set(self.taken.get().saturating_add(steps));
    }

    /// Taken so far.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.taken.get()
    }
}
