//! When the breakpoint was there that sees operations begin, and which operations the target made while it was not.

use super::{Made, Span};
use profiler_core::recording::WindowRow;

/// A stretch of time in which that breakpoint was there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attached {
    pub start_ns: u64,
    pub end_ns: u64,
    /// Begins that were let through, and the others.
    pub kept: u64,
    pub away: u64,
    /// Of those, turned away by the gate: before the stretch began, or since it was over.
    pub gated: u64,
}

impl Attached {
    pub fn of(row: &WindowRow) -> Attached {
        let WindowRow { start_ns, end_ns, kept, gated, dropped, .. } = *row;
        Attached { start_ns, end_ns, kept, away: gated + dropped, gated }
    }
}

/// A time in which the target was followed and the breakpoint was not there, with both ends, ktime ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    from_ns: u64,
    until_ns: u64,
}

impl Gap {
    pub fn length_ns(&self) -> u64 {
        self.until_ns - self.from_ns
    }

    pub fn is_over_by(&self, time_ns: u64) -> bool {
        self.until_ns < time_ns
    }

    pub fn holds(&self, time_ns: u64) -> bool {
        (self.from_ns..=self.until_ns).contains(&time_ns)
    }
}

/// The times in which it was not there, in order. None: it was there all the time.
pub(super) fn gaps(attached: &[Attached], made: &Made) -> Vec<Gap> {
    let mut stretches: Vec<(u64, u64)> = attached.iter().map(|at| (at.start_ns, at.end_ns)).collect();
    stretches.sort_unstable();
    stretches.push((made.until_ns, made.until_ns));
    let (mut gaps, mut covered_ns) = (Vec::new(), made.from_ns);
    for (start_ns, end_ns) in stretches {
        let start_ns = start_ns.min(made.until_ns);
        if start_ns > covered_ns {
            gaps.push(Gap { from_ns: covered_ns, until_ns: start_ns });
        }
        covered_ns = covered_ns.max(end_ns);
    }
    gaps
}

/// The gate before a gap is shut for less than this before the time at which the gap begins by its row, ns: what it turns away then belongs to no gap.
const SHUT_BEFORE_NS: u64 = 100_000;

/// What the target made in gaps, by its own log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InGaps {
    /// Operations without a row that began in a gap: nobody saw that, unless a gate turned them away.
    pub begun: u64,
    /// Operations without a row that were being made when a gap began. Their begin was seen, unless it came later than the target logged it.
    pub before: u64,
    /// Operations without a row that did not begin in a gap, and that the gate before one may have turned away: the last ones, and some that were over just before.
    pub at_gate: u64,
    /// Operations that were being made when a gap began, each of them once: so many ends may have been missed.
    pub in_flight: u64,
}

impl InGaps {
    pub fn of(spans: &[Span], gaps: &[Gap], has_row: impl Fn(u64) -> bool) -> InGaps {
        let mut in_gaps = InGaps::default();
        for span in spans {
            // The first gap that is not over when it begins, and the first one that begins after it has begun.
            let not_over = gaps.get(gaps.partition_point(|gap| gap.is_over_by(span.from_ns)));
            let next = gaps.get(gaps.partition_point(|gap| gap.from_ns < span.from_ns));
            let is_begun = not_over.is_some_and(|gap| gap.holds(span.from_ns));
            // An operation has one end, however many gaps begin in it.
            let is_cut = next.is_some_and(|gap| gap.from_ns <= span.until_ns);
            let is_at_gate = next.is_some_and(|gap| gap.from_ns <= span.until_ns + SHUT_BEFORE_NS);
            in_gaps.in_flight += u64::from(is_cut);
            if has_row(span.operation) {
                continue;
            }
            in_gaps.begun += u64::from(is_begun);
            in_gaps.before += u64::from(is_cut && !is_begun);
            in_gaps.at_gate += u64::from(is_at_gate && !is_begun);
        }
        in_gaps
    }
}
