//! Quantiles of a histogram, with intervals by order statistics.

use super::{Interval, z_quantile};
use crate::class::Source;
use crate::estimate::Estimate;

/// One bucket: values in `[low, high)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// Lowest value.
    pub low: f64,
    /// Lowest value above.
    pub high: f64,
    /// Values.
    pub count: u64,
}

/// The `p` quantile of the values in `buckets`, in their unit; `None` if they are empty.
///
/// The interval is between the order statistics of rank r and s with
/// `P(r <= Bin(n, p) < s) >= level` (Conover, Practical Nonparametric Statistics, ch. 3), widened to the
/// outer ends of the buckets in which these lie, so the bucket's width is in it. A share `lost` of the values
/// that were never seen can lie anywhere, so the ranks run from the quantile (p - lost)/(1 - lost) to
/// p/(1 - lost) of what was seen.
///
/// Where no order statistic bounds it the lower end is 0 (values are not negative) and the upper end infinite: of
/// 50 calls the largest says nothing about how large the 99th percentile can be.
#[must_use]
pub fn quantile(buckets: &[Bucket], p: f64, level: f64, lost: f64) -> Option<Estimate> {
    clustered(buckets, p, level, lost, 1.0)
}

/// The same where the values of a burst are alike: `n` of them then say as much as `n / design_effect` independent ones
/// (Kish 1965), and the ranks lie as much further apart.
#[must_use]
pub fn clustered(buckets: &[Bucket], p: f64, level: f64, lost: f64, design_effect: f64) -> Option<Estimate> {
    let mut sorted: Vec<Bucket> = buckets.iter().copied().filter(|b| b.count > 0).collect();
    sorted.sort_by(|a, b| a.low.total_cmp(&b.low));
    let n: u64 = sorted.iter().map(|b| b.count).sum();
    if n == 0 || !(0.0..=1.0).contains(&p) {
        return None;
    }
    let lost = if lost.is_finite() { lost.clamp(0.0, 0.999) } else { 0.0 };
    let (from, to) = ((p - lost) / (1.0 - lost), p / (1.0 - lost));
    let independent = (n as f64 / design_effect.max(1.0)).round().max(1.0);
    // Ranks among the independent ones, spread over all.
    let each = n as f64 / independent;
    let (low_rank, _) = ranks(independent as u64, from.clamp(0.0, 1.0), level);
    let (_, high_rank) = ranks(independent as u64, to.clamp(0.0, 1.0), level);
    let low_rank = if low_rank == 0 { 0 } else { (((low_rank - 1) as f64 * each) as u64 + 1).min(n) };
    let high_rank =
        if high_rank as f64 > independent { n + 1 } else { (high_rank as f64 * each).ceil() as u64 };
    // Of values that were all seen (level 0) the ends are those of the values.
    let sampled = level > 0.0 || lost > 0.0;
    let low = match low_rank {
        0 if sampled => 0.0,
        rank => bucket_of(&sorted, rank).low,
    };
    let high =
        if high_rank > n && sampled { f64::INFINITY } else { bucket_of(&sorted, high_rank.min(n)).high };
    let value = interpolate(&sorted, p * n as f64);
    let interval = Interval { low: low.min(value), high: high.max(value) };
    Some(Estimate {
        value,
        low: interval.low,
        high: interval.high,
        level,
        n,
        source: Source::Exact,
        at_most: false,
    })
}

/// Ranks (1-based) of the order statistics that enclose the p quantile; 0 and n + 1 where no value does.
fn ranks(n: u64, p: f64, level: f64) -> (u64, u64) {
    let alpha = 1.0 - level;
    let nf = n as f64;
    if n > 500 {
        // The normal limit, rounded outwards; Bin(n, p) has this mean and variance.
        let half = z_quantile(level) * (nf * p * (1.0 - p)).sqrt();
        let low = (nf * p - half).floor().max(0.0);
        return (low as u64, (nf * p + half).ceil() as u64 + 1);
    }
    // r: largest with P(Bin < r) <= alpha/2; s: smallest with P(Bin < s) >= 1 - alpha/2.
    let mut below = 0.0;
    let (mut r, mut s) = (0, n + 1);
    for k in 0..=n {
        if below <= alpha / 2.0 {
            r = k;
        }
        if below >= 1.0 - alpha / 2.0 {
            s = k;
            break;
        }
        below += binomial_pmf(n, k, p);
    }
    (r, s)
}

fn binomial_pmf(n: u64, k: u64, p: f64) -> f64 {
    use statrs::function::factorial::ln_binomial;
    if p <= 0.0 || p >= 1.0 {
        let sure = if p >= 1.0 { n } else { 0 };
        return f64::from(u8::from(k == sure));
    }
    (ln_binomial(n, k) + k as f64 * p.ln() + (n - k) as f64 * (-p).ln_1p()).exp()
}

/// The bucket of the value of 1-based rank `rank`.
fn bucket_of(sorted: &[Bucket], rank: u64) -> Bucket {
    let mut seen = 0;
    for b in sorted {
        seen += b.count;
        if seen >= rank {
            return *b;
        }
    }
    // OK because callers ask only with at least one bucket.
    sorted[sorted.len() - 1]
}

/// The value below which `mass` of the values lie, values spread evenly in their bucket.
fn interpolate(sorted: &[Bucket], mass: f64) -> f64 {
    let mut seen = 0.0;
    for b in sorted {
        let count = b.count as f64;
        if seen + count >= mass {
            let within = if count > 0.0 { ((mass - seen) / count).clamp(0.0, 1.0) } else { 0.0 };
            return b.low + within * (b.high - b.low);
        }
        seen += count;
    }
    sorted[sorted.len() - 1].high
}

#[cfg(test)]
mod tests {
    use super::super::sim::{Coverage, exponential, rng};
    use super::*;

    /// Buckets of 3.2 % width, as the kernel keeps them.
    fn histogram(values: &[f64]) -> Vec<Bucket> {
        let mut counts = std::collections::BTreeMap::new();
        for v in values {
            *counts.entry((v.ln() / 1.032_f64.ln()).floor() as i64).or_insert(0) += 1;
        }
        let edge = |k: i64| 1.032_f64.powi(k as i32);
        counts.into_iter().map(|(k, count)| Bucket { low: edge(k), high: edge(k + 1), count }).collect()
    }

    #[test]
    fn order_statistic_intervals_cover_median_and_tail() {
        let mut rng = rng(21);
        for (n, p) in [(40, 0.5_f64), (300, 0.9), (3_000, 0.99)] {
            let truth = -1_000.0 * (1.0 - p).ln();
            let mut c = Coverage::default();
            let mut bias = 0.0;
            for _ in 0..2_000 {
                let values: Vec<f64> = (0..n).map(|_| exponential(&mut rng, 1_000.0)).collect();
                let q = quantile(&histogram(&values), p, 0.95, 0.0).unwrap();
                bias += (q.value / truth - 1.0) / 2_000.0;
                c.note(Interval { low: q.low, high: q.high }, truth);
            }
            // Ranks are whole and buckets have a width: never below the level, a little above it.
            c.check(0.94, 0.99, "quantile");
            assert!(bias.abs() < 0.02, "n {n}, p {p}: {bias}");
        }
    }

    #[test]
    fn lost_values_can_lie_anywhere() {
        let buckets: Vec<Bucket> =
            (0..1_000).map(|i| Bucket { low: f64::from(i), high: f64::from(i + 1), count: 10 }).collect();
        let whole = quantile(&buckets, 0.5, 0.95, 0.0).unwrap();
        let lossy = quantile(&buckets, 0.5, 0.95, 0.1).unwrap();
        // The true median lies between the quantiles 0.4/0.9 and 0.5/0.9 of what was seen.
        assert!(lossy.low <= 445.0 && lossy.high >= 555.0, "{lossy:?}");
        assert!(whole.high - whole.low < 25.0);
        assert_eq!(quantile(&buckets, 0.95, 0.95, 0.1).unwrap().high, f64::INFINITY);
    }

    #[test]
    fn edges() {
        assert!(quantile(&[], 0.5, 0.95, 0.0).is_none());
        let one = [Bucket { low: 100.0, high: 103.0, count: 1 }];
        let q = quantile(&one, 0.5, 0.95, 0.0).unwrap();
        assert_eq!((q.low, q.high, q.n), (0.0, f64::INFINITY, 1), "one value bounds nothing");
        let whole = quantile(&one, 0.5, 0.0, 0.0).unwrap();
        assert_eq!((whole.low, whole.high), (100.0, 103.0), "all values were seen");
        assert!(quantile(&one, f64::NAN, 0.95, 0.0).is_none());
        assert!(quantile(&one, 1.0, 0.95, 0.0).unwrap().high >= 103.0);
        // The largest of 50 is below the 99th percentile six times in ten.
        let fifty = [Bucket { low: 100.0, high: 103.0, count: 50 }];
        assert_eq!(quantile(&fifty, 0.99, 0.95, 0.0).unwrap().high, f64::INFINITY);
        assert_eq!(quantile(&fifty, 0.5, 0.95, 0.0).unwrap().high, 103.0);
        // Buckets out of order give the same.
        let two =
            [Bucket { low: 200.0, high: 206.0, count: 50 }, Bucket { low: 100.0, high: 103.0, count: 50 }];
        let q = quantile(&two, 0.25, 0.95, 0.0).unwrap();
        assert!((100.0..103.0).contains(&q.value));
    }
}
