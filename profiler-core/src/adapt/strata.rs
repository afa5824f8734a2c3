//! Means of a class's measure from samples whose rate changed on the way.
//!
//! The plain mean of what was recorded is wrong as soon as rate and measure move together: a rate that falls from
//! 50 to 1 % while latency triples leaves almost only fast operations in the sample. Weights `1 / rate`
//! (Horvitz and Thompson 1952) do not mend it, because Algorithm 1's balance test accepts by history. So we
//! post-stratify: stretches of (nearly) constant rate and attach state are strata, and each weighs as much as its population,
//! which is counted completely: `|E_p| / |E_s|` per recorded operation.
//!
//! Within a stratum the sampling unit is the *slice*: a stretch of time at a random place, in which all or a share of the operations are
//! recorded ([`super::attach`]). Requests of one moment are alike (bursts, caches), so that operations that were taken together say less than
//! as many drawn one by one.
//! ```text
//! mean  = sum_h N_h m_h / sum_h N_h                                  N_h operations of stratum h, m_h mean of its recorded ones
//! var   = sum_h (N_h / N)^2 (B_h + W_h)
//! B     = (1 - f) sum_i (w_i (m_i - m))^2 / (1 - w_i)      between slices; w_i: part of the recorded ones that slice i has, m_i: their mean
//! W     = f (1 - g) s^2 / k                                k recorded ones, their variance s^2
//! ```
//! with f the part of the stratum's operations that began in slices, g the recorded part of those. That is the ratio estimator over slice
//! totals in two stages (Cochran 1977, eq. 11.30), with two changes. Linearised residuals `w_i (m_i - m)` are divided by one less the slice's weight, because
//! the mean leans to heavy slices (Bell and McCaffrey 2002); with equal weights that is n / (n - 1). And s^2 is that of all recorded ones: operations are drawn one by one in all
//! slices together, so that chance also says how many each slice has. Where there are no slices f is 1, B is 0, and W is that of a sample drawn one by
//! one (Cochran 1977, §5). Degrees of freedom: slices less one, and of W recorded ones less one (Satterthwaite 1946).
//!
//! Strata with a single slice are collapsed with their neighbours in time (`between`). Where a class has a single slice in all, nothing bounds
//! its mean. Strata without sample are *unobserved*, reported and never filled in. The finite population corrections are right because the
//! claim is about this recording's operations. In W, strata with one recorded operation take the variance pooled over the class's other strata; where
//! there is none, that between the single values, which is too large rather than too small.

mod between;
#[cfg(test)]
mod slices_tests;

use crate::class::Source;
use crate::estimate::Estimate;
use crate::stats::moments::Moments;
use crate::stats::t_quantile;
use between::{Part, Slice};

/// Mean of one class's measure with what it rests on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanEstimate {
    /// The mean, in the measure's unit; open to both sides if a single operation was recorded, or all of them in a single slice.
    pub estimate: Estimate,
    /// Operations in strata with sample: what the estimate speaks of.
    pub observed: u64,
    /// Operations in strata without sample: what it does not speak of.
    pub unobserved: u64,
}

/// Estimator of one class. Its memory grows with slices that recorded something.
#[derive(Debug, Clone, Default)]
pub struct ClassEstimator {
    closed: Vec<Stratum>,
    open: Stratum,
    slice: Moments,
}

#[derive(Debug, Clone, Default)]
struct Stratum {
    /// Operations that began in slices, and between them.
    inside: u64,
    outside: u64,
    /// Recorded ones of each slice.
    slices: Vec<Moments>,
}

impl ClassEstimator {
    /// An operation that began in a slice, with its measure if it was recorded.
    pub fn push(&mut self, recorded: Option<f64>) {
        self.open.inside += 1;
        if let Some(x) = recorded {
            self.slice.push(x);
        }
    }

    /// So many operations began outside slices, at moments that this stretch's slices stand for.
    pub fn pass(&mut self, operations: u64) {
        self.open.outside += operations;
    }

    /// Ends the slice. Without this a stretch is one slice.
    pub fn end_slice(&mut self) {
        let slice = std::mem::take(&mut self.slice);
        if slice.n() > 0 {
            self.open.slices.push(slice);
        }
    }

    /// Ends the stretch, and its slice: the rate or the attach state changes.
    pub fn end_stretch(&mut self) {
        self.end_slice();
        let stratum = std::mem::take(&mut self.open);
        if stratum.inside + stratum.outside > 0 {
            self.closed.push(stratum);
        }
    }

    /// The mean with its interval, the open stretch included. `None` if nothing was recorded.
    #[must_use]
    pub fn mean(&self, level: f64) -> Option<MeanEstimate> {
        let mut all = self.clone();
        all.end_stretch();
        Sums::of(&all.closed).mean(level)
    }
}

/// Sums over the strata of a class.
#[derive(Debug, Default)]
struct Sums {
    observed: f64,
    unobserved: u64,
    recorded: u64,
    weighted: f64,
    /// Squared error of the class's total by the draw in slices, of strata with two recorded operations or more.
    within: Part,
    /// The same over the variance, of those with one; their values.
    single: f64,
    singles: Moments,
    /// Sum of (k - 1) s^2 and of k - 1: the pooled variance.
    pooled: f64,
    pooled_df: f64,
    /// Between slices; `None`: a single one cannot say.
    between: Option<Part>,
}

impl Sums {
    fn of(strata: &[Stratum]) -> Self {
        let mut sums = Self::default();
        let mut sliced = Vec::new();
        for stratum in strata {
            sums.add(stratum, &mut sliced);
        }
        sums.between = between::squared_error(&sliced);
        sums
    }

    /// Adds a stratum. Where it has operations outside its slices, these come to `sliced`.
    fn add(&mut self, stratum: &Stratum, sliced: &mut Vec<Vec<Slice>>) {
        let mut sample = Moments::default();
        stratum.slices.iter().for_each(|slice| sample.merge(slice));
        if sample.n() == 0 {
            self.unobserved += stratum.inside + stratum.outside;
            return;
        }
        // A count of the population that lost operations (a full map) is at least the sample's.
        let (inside, k) = (stratum.inside.max(sample.n()) as f64, sample.n() as f64);
        let all = inside + stratum.outside as f64;
        let (first, second) = (inside / all, k / inside);
        self.observed += all;
        self.recorded += sample.n();
        self.weighted += all * sample.mean();
        let times = all * all * first * (1.0 - second) / k;
        match sample.variance() {
            Some(variance) => {
                self.within.add(times * variance, k - 1.0);
                self.pooled += (k - 1.0) * variance;
                self.pooled_df += k - 1.0;
            }
            None => {
                self.single += times;
                self.singles.push(sample.mean());
            }
        }
        if stratum.outside > 0 {
            let slice =
                |s: &Moments| Slice { weight: all * s.n() as f64 / k, mean: s.mean(), unseen: 1.0 - first };
            sliced.push(stratum.slices.iter().map(slice).collect());
        }
    }

    /// Squared error of the class's total; `None`: what was recorded does not bound it.
    fn squared_error(&self) -> Option<Part> {
        let mut all = self.between?;
        all.merge(self.within);
        if self.single > 0.0 {
            let (spread, df) = if self.pooled_df > 0.0 {
                (self.pooled / self.pooled_df, self.pooled_df)
            } else {
                (self.singles.variance()?, self.singles.n() as f64 - 1.0)
            };
            all.add(self.single * spread, df);
        }
        Some(all)
    }

    fn mean(&self, level: f64) -> Option<MeanEstimate> {
        if self.recorded == 0 {
            return None;
        }
        let value = self.weighted / self.observed;
        let (low, high, level, source) = match self.squared_error() {
            _ if self.recorded as f64 == self.observed => (value, value, 1.0, Source::Exact),
            None => (f64::NEG_INFINITY, f64::INFINITY, level, Source::Sampled),
            Some(error) => {
                let half = t_quantile(level, error.df()) * error.sum.sqrt() / self.observed;
                (value - half, value + half, level, Source::Sampled)
            }
        };
        let estimate = Estimate { value, low, high, level, n: self.recorded, source, at_most: false };
        // OK because counts of operations are far below 2^53.
        Some(MeanEstimate { estimate, observed: self.observed as u64, unobserved: self.unobserved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Interval;
    use crate::stats::sim::{Coverage, exponential, rng};
    use proptest::prelude::*;

    /// The case of the module's head: 50 % at 1 ms, then 1 % at 3 ms.
    fn falling_rate(seed: u64) -> (f64, f64, MeanEstimate) {
        let (mut rng, mut ours) = (rng(seed), ClassEstimator::default());
        let (mut truth, mut naive) = (Moments::default(), Moments::default());
        for (rate, mean) in [(0.5, 1.0), (0.2, 1.5), (0.05, 2.2), (0.01, 3.0)] {
            for _ in 0..5_000 {
                let x = 0.5 * mean + exponential(&mut rng, 0.5 * mean);
                let recorded = rng.random::<f64>() < rate;
                truth.push(x);
                if recorded {
                    naive.push(x);
                }
                ours.push(recorded.then_some(x));
            }
            ours.end_stretch();
        }
        (truth.mean(), naive.mean(), ours.mean(0.95).unwrap())
    }

    #[test]
    fn rate_falls_while_latency_triples_the_plain_mean_is_wrong_and_ours_covers() {
        let mut coverage = Coverage::default();
        for seed in 0..1_000 {
            let (truth, naive, ours) = falling_rate(seed);
            assert!(naive < 0.7 * truth, "{naive} {truth}");
            assert!((ours.estimate.value / truth - 1.0).abs() < 0.25);
            assert_eq!((ours.observed, ours.unobserved), (20_000, 0));
            coverage.note(Interval { low: ours.estimate.low, high: ours.estimate.high }, truth);
        }
        coverage.check(0.93, 0.97, "post-stratified mean");
    }

    #[test]
    fn strata_without_sample_are_unobserved_and_not_filled_in() {
        let mut e = ClassEstimator::default();
        (0..100).for_each(|i| e.push((i % 2 == 0).then_some(1.0)));
        e.end_stretch();
        (0..900).for_each(|_| e.push(None));
        e.end_stretch();
        let m = e.mean(0.95).unwrap();
        assert_eq!((m.estimate.value, m.observed, m.unobserved), (1.0, 100, 900));
        assert!(ClassEstimator::default().mean(0.95).is_none());
        let mut nothing = ClassEstimator::default();
        nothing.push(None);
        assert!(nothing.mean(0.95).is_none());
    }

    #[test]
    fn complete_strata_are_exact_and_a_single_operation_bounds_nothing() {
        let mut e = ClassEstimator::default();
        for x in [1.0, 2.0, 6.0] {
            e.push(Some(x));
            e.end_stretch();
        }
        let m = e.mean(0.95).unwrap().estimate;
        assert_eq!((m.value, m.low, m.high, m.source), (3.0, 3.0, 3.0, Source::Exact));
        e.push(None);
        e.push(Some(3.0));
        let m = e.mean(0.95).unwrap().estimate;
        assert!(m.low < 3.0 && m.high > 3.0 && m.source == Source::Sampled && m.n == 4, "{m:?}");
        let mut one = ClassEstimator::default();
        one.push(None);
        one.push(Some(5.0));
        let m = one.mean(0.95).unwrap().estimate;
        assert_eq!((m.value, m.low, m.high), (5.0, f64::NEG_INFINITY, f64::INFINITY));
    }

    #[test]
    fn intervals_cover_with_many_short_stretches() {
        // A second each: 1 to 40 operations, rates from 2 to 50 %, so that many strata hold one or none.
        let mut coverage = Coverage::default();
        for seed in 0..600 {
            let (mut rng, mut e, mut truth) =
                (rng(1_000 + seed), ClassEstimator::default(), Moments::default());
            for _ in 0..200 {
                let (n, rate): (u32, f64) = (rng.random_range(1..=40), rng.random_range(0.02..0.5));
                let mut held = Moments::default();
                let mut recorded_any = false;
                for _ in 0..n {
                    let x = exponential(&mut rng, 2.0);
                    let recorded = rng.random::<f64>() < rate;
                    recorded_any |= recorded;
                    held.push(x);
                    e.push(recorded.then_some(x));
                }
                // The claim is about observed strata only.
                if recorded_any {
                    truth.merge(&held);
                }
                e.end_stretch();
            }
            let m = e.mean(0.95).unwrap();
            assert_eq!(m.observed, truth.n());
            coverage.note(Interval { low: m.estimate.low, high: m.estimate.high }, truth.mean());
        }
        coverage.check(0.92, 0.98, "short stretches");
    }

    proptest! {
        #[test]
        fn no_nan_and_the_mean_lies_among_the_values(
            stretches in prop::collection::vec(prop::collection::vec(prop::option::of(-1e6f64..1e6), 0..8), 0..12),
        ) {
            let mut e = ClassEstimator::default();
            let mut values = Moments::default();
            for stretch in &stretches {
                for x in stretch {
                    e.push(*x);
                    if let Some(x) = x { values.push(*x); }
                }
                e.end_stretch();
            }
            prop_assert_eq!(e.mean(0.95).is_none(), values.n() == 0);
            if let Some(m) = e.mean(0.95) {
                let x = m.estimate;
                prop_assert!(!x.value.is_nan() && x.low <= x.value && x.value <= x.high, "{x:?}");
                prop_assert!(values.min() - 1e-6 <= x.value && x.value <= values.max() + 1e-6);
                prop_assert_eq!(m.observed + m.unobserved, stretches.iter().map(|s| s.len() as u64).sum::<u64>());
            }
        }
    }
}
