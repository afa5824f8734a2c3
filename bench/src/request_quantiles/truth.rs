//! True quantiles of response times, by the twin: each request that may have been watched has one of the same type that asked for the
//! same and was not.
//!
//! Inputs: the program's list of requests. Output: quantiles of the twins with intervals. What it does not do: know what was told.

use crate::durations::Truth;
use profiler_tests::requests::Call;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Standard errors of a 95 % interval.
const Z: f64 = 1.96;

/// Response times of a request and its twin, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Both {
    /// Number of the type.
    pub kind: u8,
    /// Through the function that is named to the agent, by the program's own clock.
    pub named_ns: f64,
    /// Through its twin.
    pub twin_ns: f64,
}

/// A true quantile and its own 95 % interval, ns; `None` where no request bounds it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bounded {
    /// The quantile.
    pub value: f64,
    /// Lower end.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
}

impl Bounded {
    /// The figure with its uncertainty on the side of what was told; `None`: too few requests bound it.
    pub fn towards(&self, told: f64) -> Option<Truth> {
        let (low, high) = (self.low?, self.high?);
        let half = if told > self.value { high - self.value } else { self.value - low };
        Some(Truth { value: self.value, half })
    }

    /// The value is in the interval; `None`: too few requests bound it.
    pub fn holds(&self, value: f64) -> Option<bool> {
        Some((self.low?..=self.high?).contains(&value))
    }

    /// Half of the interval over the value.
    pub fn relative(&self) -> Option<f64> {
        Some((self.high? - self.low?) / 2.0 / self.value)
    }
}

/// Pairs that lie in a span as a whole, without what reading the clock took.
pub fn pairs(calls: &[Call], (from_ns, to_ns): (u64, u64), clock_ns: f64) -> Vec<Both> {
    let mut halves: HashMap<(u16, u32), Call> = HashMap::new();
    let mut found = Vec::new();
    for call in calls {
        if call.begin_ns < from_ns || call.begin_ns + u64::from(call.took_ns) > to_ns {
            continue;
        }
        let Some(first) = halves.remove(&(call.user, call.pair)) else {
            halves.insert((call.user, call.pair), *call);
            continue;
        };
        let (named, twin) = if call.is_twin { (first, *call) } else { (*call, first) };
        let ns = |call: Call| (f64::from(call.took_ns) - clock_ns).max(0.0);
        found.push(Both { kind: call.kind, named_ns: ns(named), twin_ns: ns(twin) });
    }
    found
}

/// The order statistic that is the `p` quantile: 1-based rank, of at least one.
fn rank(n: usize, p: f64) -> usize {
    ((n as f64 * p - 1e-9).ceil() as usize).clamp(1, n)
}

/// The `p` quantile of values; `None` of none.
pub fn quantile(values: impl Iterator<Item = f64>, p: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    (!sorted.is_empty()).then(|| sorted[rank(sorted.len(), p) - 1])
}

/// The `p` quantile that requests would have had unobserved, by their twins; `None` of none.
///
/// It is one of these very requests, not of all that might have been made: what a request asks for is the same in its twin, so only what
/// differs between the two is uncertain. Let d be the pairs of which one is above its quantile and the other is not. The share of
/// the one list below a time less that of the other's has the standard error sqrt(d) / n (McNemar 1947), which is at most that of two
/// independent samples, sqrt(2 n p (1 - p)) / n. The interval is between the order statistics at `np -/+ (1.96 sqrt(d + 1) + 1)`: one pair more
/// because few are apart by chance, too (Agresti and Min 2005), and the step of the ranks.
pub fn of_twins(pairs: &[Both], p: f64) -> Option<Bounded> {
    let value = quantile(pairs.iter().map(|b| b.twin_ns), p)?;
    let named = quantile(pairs.iter().map(|b| b.named_ns), p)?;
    let apart = pairs.iter().filter(|b| (b.twin_ns <= value) != (b.named_ns <= named)).count();
    let mut sorted: Vec<f64> = pairs.iter().map(|b| b.twin_ns).collect();
    sorted.sort_by(f64::total_cmp);
    let offset = (Z * (apart as f64 + 1.0).sqrt() + 1.0).ceil() as usize;
    let at = rank(sorted.len(), p);
    let low = at.checked_sub(offset).filter(|rank| *rank > 0).map(|rank| sorted[rank - 1]);
    Some(Bounded { value, low, high: sorted.get(at + offset - 1).copied() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(begin_ns: u64, took_ns: u32, pair: u32, is_twin: bool) -> Call {
        Call { begin_ns, took_ns, pair, user: 3, kind: 1, is_twin }
    }

    #[test]
    fn pairs_lie_in_the_span_as_a_whole() {
        let calls = [
            call(100, 20, 0, true),
            call(200, 30, 0, false),
            call(300, 50, 1, false),
            call(400, 60, 1, true),
            call(1_000, 9, 2, true),
            // Its twin is of another user.
            Call { user: 4, ..call(500, 9, 2, false) },
        ];
        let both = |named_ns, twin_ns| Both { kind: 1, named_ns, twin_ns };
        assert_eq!(pairs(&calls, (0, 2_000), 10.0), [both(20.0, 10.0), both(40.0, 50.0)]);
        assert_eq!(pairs(&calls, (101, 2_000), 10.0), [both(40.0, 50.0)]);
        assert_eq!(pairs(&calls, (0, 459), 10.0), [both(20.0, 10.0)]);
    }

    /// `n` pairs with the twin's times 1 to n.
    fn many(n: u32, named: impl Fn(u32) -> u32) -> Vec<Both> {
        let both = |i| Both { kind: 0, named_ns: f64::from(named(i)), twin_ns: f64::from(i) };
        (1..=n).map(both).collect()
    }

    #[test]
    fn a_quantile_is_an_order_statistic() {
        let values = || (1..=1000).map(f64::from);
        assert_eq!(
            [0.5, 0.99, 0.999, 1.0].map(|p| quantile(values(), p)),
            [500.0, 990.0, 999.0, 1000.0].map(Some)
        );
        assert_eq!(quantile([7.0].into_iter(), 0.5), Some(7.0));
        assert_eq!(quantile(std::iter::empty(), 0.5), None);
    }

    #[test]
    fn pairs_that_differ_by_a_constant_leave_three_ranks() {
        let of = |p| of_twins(&many(1000, |i| i + 50), p).unwrap();
        assert_eq!(of(0.5), Bounded { value: 500.0, low: Some(497.0), high: Some(503.0) });
        assert_eq!(of(0.99), Bounded { value: 990.0, low: Some(987.0), high: Some(993.0) });
        // Of 1,000 the largest is the last order statistic there is.
        assert_eq!(of(0.999), Bounded { value: 999.0, low: Some(996.0), high: None });
        assert_eq!(of_twins(&[], 0.5), None);
    }

    #[test]
    fn pairs_that_have_nothing_in_common_are_as_uncertain_as_two_samples() {
        // 617 is prime to 1,000: half of the pairs are apart at the median.
        let of = of_twins(&many(1000, |i| 1 + i * 617 % 1000), 0.5).unwrap();
        let expected = 1.96 * (2.0 * 1000.0 * 0.25_f64).sqrt();
        let half = (of.high.unwrap() - of.low.unwrap()) / 2.0;
        assert!((half / expected - 1.0).abs() < 0.1, "{half} {expected}");
    }

    #[test]
    fn the_side_of_what_was_told_counts() {
        let truth = Bounded { value: 100.0, low: Some(95.0), high: Some(130.0) };
        assert_eq!(truth.towards(101.0), Some(Truth { value: 100.0, half: 30.0 }));
        assert_eq!(truth.towards(99.0), Some(Truth { value: 100.0, half: 5.0 }));
        assert_eq!(truth.relative(), Some(0.175));
        assert_eq!(
            [94.0, 95.0, 130.0, 131.0].map(|ns| truth.holds(ns) == Some(true)),
            [false, true, true, false]
        );
        assert_eq!(Bounded { high: None, ..truth }.towards(99.0), None);
    }
}
