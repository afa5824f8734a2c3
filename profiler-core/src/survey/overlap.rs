//! Bursts of one batch slow each other: what one class's hits cost is not the other's time.

use super::{BurstOutcome, BurstRequest};
use crate::class::ClassId;

/// For each burst, what the other bursts of its batch cost the target while it ran, CPU s.
///
/// Hits of a neighbour are taken as evenly spread over its own burst, those after its end over the time until it
/// was off:
/// ```text
/// sum_{j != i} tau_j (N_j |i and j| / |j| + extra_j |i and off_j| / |off_j|)
/// ```
pub(super) fn neighbour_costs_s(
    landed: &[(BurstRequest, BurstOutcome)],
    tau_s: impl Fn(ClassId) -> f64,
) -> Vec<f64> {
    let cost = |own: (f64, f64), other: &BurstOutcome| {
        let begin = other.start_ns as f64;
        let end = begin + other.elapsed_ns as f64;
        let off = (end, end + other.off_ns as f64);
        let part = |span: (f64, f64)| overlap(own, span) / (span.1 - span.0).max(1.0);
        tau_s(other.class) * (other.hits as f64 * part((begin, end)) + other.extra_hits as f64 * part(off))
    };
    landed
        .iter()
        .enumerate()
        .map(|(i, (_, own))| {
            let begin = own.start_ns as f64;
            let span = (begin, begin + own.elapsed_ns as f64);
            landed.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, (_, other))| cost(span, other)).sum()
        })
        .collect()
}

fn overlap(a: (f64, f64), b: (f64, f64)) -> f64 {
    (a.1.min(b.1) - a.0.max(b.0)).max(0.0)
}
