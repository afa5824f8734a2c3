//! How long a call lasted at least and at most. Exits are not seen: it is no duration.

use super::nest::Nesting;
use crate::recording::StepRow;

/// What is known of when a function returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// It still ran so long after its begin, ns: a step that was called in it, or in such a one, proves it. 0: none does.
    pub at_least_ns: u64,
    /// It had returned so long after its begin, ns: a step proves it, or the operation had ended.
    pub at_most_ns: u64,
}

/// Bounds of each step of an operation that ends at `end_ns`.
#[must_use]
pub fn bounds(steps: &[StepRow], nesting: &Nesting, end_ns: u64) -> Vec<Bounds> {
    let time = |index: usize| steps.get(index).map(|step| step.time_ns);
    let of = |(index, step): (usize, &StepRow)| {
        let alive = nesting.alive_at.get(index).and_then(|at| time(*at)).unwrap_or(step.time_ns);
        let gone = nesting.gone_by.get(index).copied().flatten().and_then(time).unwrap_or(end_ns);
        let at_least_ns = alive.saturating_sub(step.time_ns);
        Bounds { at_least_ns, at_most_ns: gone.saturating_sub(step.time_ns).max(at_least_ns) }
    };
    steps.iter().enumerate().map(of).collect()
}
