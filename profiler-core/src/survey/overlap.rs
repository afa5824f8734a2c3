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
///
/// A survey may have thousands of bursts in a batch, so the sum is not taken pair by pair: `F(t)` is what all of them together have
/// cost by the time `t`, and a burst's neighbours cost `F(end) - F(begin)` less its own part.
pub(super) fn neighbour_costs_s(
    landed: &[(BurstRequest, BurstOutcome)],
    tau_s: impl Fn(ClassId) -> f64,
) -> Vec<f64> {
    let first_ns = landed.iter().map(|(_, outcome)| outcome.start_ns).min().unwrap_or(0);
    let span = |outcome: &BurstOutcome| {
        let begin = outcome.start_ns.saturating_sub(first_ns) as f64;
        (begin, begin + outcome.elapsed_ns as f64)
    };
    let mut spent = Spent::default();
    let mut own = Vec::with_capacity(landed.len());
    for (_, outcome) in landed {
        let tau_s = tau_s(outcome.class);
        let (begin, end) = span(outcome);
        own.push(spent.add(begin, end, outcome.hits as f64 * tau_s));
        spent.add(end, end + outcome.off_ns as f64, outcome.extra_hits as f64 * tau_s);
    }
    let spent = spent.sorted();
    let others = |((_, outcome), own_s): (&(BurstRequest, BurstOutcome), f64)| {
        let (begin, end) = span(outcome);
        (spent.by(end) - spent.by(begin) - own_s).max(0.0)
    };
    landed.iter().zip(own).map(others).collect()
}

/// What was spent, by when: begins and ends of even spending.
#[derive(Default)]
struct Spent {
    /// Time, ns, and by how much the rate changes there, s/ns.
    changes: Vec<(f64, f64)>,
}

impl Spent {
    /// Adds what is spent evenly over some time; returns how much that is: nothing over no time.
    fn add(&mut self, begin: f64, end: f64, cost_s: f64) -> f64 {
        if end <= begin || cost_s == 0.0 {
            return 0.0;
        }
        let rate = cost_s / (end - begin);
        self.changes.extend([(begin, rate), (end, -rate)]);
        cost_s
    }

    fn sorted(mut self) -> SpentBy {
        self.changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut time, mut rate, mut spent_s) = (0.0, 0.0, 0.0);
        let knots = self.changes.into_iter().map(|(at, change)| {
            spent_s += rate * (at - time);
            (time, rate) = (at, rate + change);
            (time, spent_s, rate)
        });
        SpentBy { knots: knots.collect() }
    }
}

/// `F(t)`: by time, ns, what was spent by then, s, and at which rate it goes on, s/ns.
struct SpentBy {
    knots: Vec<(f64, f64, f64)>,
}

impl SpentBy {
    fn by(&self, time: f64) -> f64 {
        let after = self.knots.partition_point(|knot| knot.0 <= time);
        after.checked_sub(1).map_or(0.0, |i| {
            let (at, spent_s, rate) = self.knots[i];
            spent_s + rate * (time - at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Link, StoppedBy};
    use super::*;
    use proptest::prelude::*;

    fn burst(class: u32, start_ns: u64, elapsed_ns: u64, hits: u64) -> (BurstRequest, BurstOutcome) {
        let class = ClassId(class);
        let request = BurstRequest { class, quota_hits: hits, window_ns: elapsed_ns, link: Link::Own };
        let outcome = BurstOutcome {
            class,
            start_ns,
            elapsed_ns,
            hits,
            extra_hits: hits / 3,
            off_ns: elapsed_ns / 2,
            target_cpu_ns: 0,
            threads: 1,
            other_cost_ns: 0,
            stopped_by: StoppedBy::Quota,
        };
        (request, outcome)
    }

    /// Pair by pair, as the formula says.
    fn by_pairs(landed: &[(BurstRequest, BurstOutcome)], tau_s: impl Fn(ClassId) -> f64) -> Vec<f64> {
        let shared = |a: (f64, f64), b: (f64, f64)| (a.1.min(b.1) - a.0.max(b.0)).max(0.0);
        let cost = |own: (f64, f64), other: &BurstOutcome| {
            let (begin, end) = (other.start_ns as f64, (other.start_ns + other.elapsed_ns) as f64);
            let part = |span: (f64, f64)| shared(own, span) / (span.1 - span.0).max(1.0);
            let off = part((end, end + other.off_ns as f64));
            tau_s(other.class) * (other.hits as f64 * part((begin, end)) + other.extra_hits as f64 * off)
        };
        let of = |i: usize, own: &BurstOutcome| {
            let span = (own.start_ns as f64, (own.start_ns + own.elapsed_ns) as f64);
            landed.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, (_, other))| cost(span, other)).sum()
        };
        landed.iter().enumerate().map(|(i, (_, own))| of(i, own)).collect()
    }

    proptest! {
        #[test]
        fn the_sum_is_that_over_all_pairs(
            bursts in prop::collection::vec((0u64..1_000_000, 0u64..500_000, 0u64..10_000), 0..40),
        ) {
            // Years after the start of the clock, as on a machine that has been up for so long.
            let begin = |at| 100_000_000_000_000_000 + at;
            let landed: Vec<_> =
                (0..).zip(&bursts).map(|(i, (at, long, hits))| burst(i, begin(*at), *long, *hits)).collect();
            let tau_s = |class: ClassId| f64::from(class.0 + 1) * 1e-7;
            let shifted: Vec<_> =
                (0..).zip(&bursts).map(|(i, (at, long, hits))| burst(i, *at, *long, *hits)).collect();
            for (fast, slow) in neighbour_costs_s(&landed, tau_s).into_iter().zip(by_pairs(&shifted, tau_s)) {
                prop_assert!((fast - slow).abs() <= 1e-9 * (1.0 + slow), "{fast} {slow}");
            }
        }
    }
}
