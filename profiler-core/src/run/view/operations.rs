//! What the client of operations sees: its own classes and what the kernel counted of operations. Nothing else is filled for its steps.

use super::{ClassPrices, LinkView};
use crate::class::{ClassId, ExitMode};
use profiler_common::operation::OperationCounters;

/// The snapshot. Its buffers are reused.
#[derive(Debug, Clone, Default)]
pub struct OperationsView {
    /// Functions inside operations, in the client's order.
    pub inner: Vec<OperationClassView>,
    /// Functions and probes that bound operations, in the client's order.
    pub bounds: Vec<OperationClassView>,
    /// [`OperationClassView::hits`] were read.
    pub has_hits: bool,
    /// An inner function has used up its quota, or they are about to go: the kernel records nothing.
    pub lacks_details: bool,
    /// How often one has used up its quota so far, read before where classes stand.
    pub losses: u64,
    /// What screens have counted so far, where a step asks for it.
    pub screens: Vec<ScreenView>,
    /// What the words of a recorded operation cost, ns, by its number, as far as is known now; those beyond take none.
    pub words_ns: Vec<f64>,
    /// Counters of classes of operations, where a step asks for them: for each operation those of its own class, of `(other)`, and of the
    /// names that it has met.
    pub counts: Vec<Vec<OperationCounters>>,
}

/// What is screened for operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Screened {
    /// All system calls, for all operations that they bound.
    Syscalls,
    /// The tracepoints of this operation.
    Tracepoints(u32),
}

/// What a screen has counted so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScreenView {
    /// Which.
    pub what: Screened,
    /// Hits of the target.
    pub own: u64,
    /// Hits of other processes, which pay.
    pub others: u64,
}

/// Hits of a class so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hits {
    /// At its entry.
    pub begins: u64,
    /// At its ends, where these are seen.
    pub ends: u64,
}

impl Hits {
    /// Those since `earlier`: begins and ends.
    #[must_use]
    pub fn since(self, earlier: Self) -> (f64, f64) {
        (self.begins.wrapping_sub(earlier.begins) as f64, self.ends.wrapping_sub(earlier.ends) as f64)
    }
}

/// One class of operations.
#[derive(Debug, Clone, Copy)]
pub struct OperationClassView {
    /// Which.
    pub id: ClassId,
    /// Where its links stand.
    pub link: LinkView,
    /// Its window is over, and calls in flight are still watched to their end.
    pub is_draining: bool,
    /// Why it may not be attached.
    pub obstacle: Obstacle,
    /// From when to when its last window was watched, ktime ns; to now if it is open.
    pub span_ns: (u64, u64),
    /// Hits that its quota leaves, where it is a bound and open; negative by the hits that came after the last.
    pub left: i64,
    /// Hits so far, where [`OperationsView::has_hits`].
    pub hits: Hits,
    /// How its end is seen.
    pub exit: ExitMode,
    /// What a hit costs.
    pub prices: ClassPrices,
}

/// Why a class may not be attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Obstacle {
    /// Something is known against it.
    pub refused: bool,
    /// Forks of others have been held up enough for now.
    pub postponed: bool,
    /// Return links are not known to be safe now.
    pub held: bool,
}

impl OperationClassView {
    /// It can be asked for.
    #[must_use]
    pub fn may_open(&self) -> bool {
        self.link == LinkView::Off && !self.obstacle.refused
    }

    /// Price of a whole call where the target runs for `gap_s` s of CPU time from one call to the next, ns.
    #[must_use]
    pub fn tau_ns(&self, gap_s: f64) -> f64 {
        let traps = if self.exit == ExitMode::None { 1.0 } else { 2.0 };
        let ClassPrices { hit, exit, .. } = self.prices;
        hit.plus(exit).ns + traps * self.prices.cold_ns(gap_s)
    }
}
