//! Means of a class's measure from samples whose rate changed on the way.
//!
//! The plain mean of what was recorded is wrong as soon as rate and measure move together: a rate that falls from
//! 50 to 1 % while latency triples leaves almost only fast operations in the sample. Weights `1 / rate`
//! (Horvitz and Thompson 1952) do not mend it, because Algorithm 1's balance test accepts by history. So we
//! post-stratify: stretches of (nearly) constant rate and attach state are strata, and each weighs as much as its population,
//! which is counted completely: `|E_p| / |E_s|` per recorded operation.
//! ```text
//! mean = sum_h N_h m_h / sum_h N_h,   var = sum_h (N_h / N)^2 (1 - n_h/N_h) s_h^2 / n_h     (Cochran 1977, §5)
//! ```
//! over strata with sample; the rest is *unobserved*, reported and never filled in. The finite population
//! correction is right because the claim is about this recording's operations. Strata with one recorded operation
//! take the variance pooled over the class's other strata; where there is none, that between the single values,
//! which is too large rather than too small.

use crate::class::Source;
use crate::estimate::Estimate;
use crate::stats::moments::Moments;
use crate::stats::t_quantile;

/// Mean of one class's measure with what it rests on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanEstimate {
    /// The mean, in the measure's unit; open to both sides if a single operation was recorded.
    pub estimate: Estimate,
    /// Operations in strata with sample: what the estimate speaks of.
    pub observed: u64,
    /// Operations in strata without sample: what it does not speak of.
    pub unobserved: u64,
}

/// On-line estimator of one class; memory does not grow with stretches.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClassEstimator {
    population: u64,
    sample: Moments,
    closed: Sums,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    observed: f64,
    unobserved: u64,
    recorded: u64,
    weighted: f64,
    // Sum of N^2 (1 - f) s^2 / n over strata with two or more, and of its squares / (n - 1).
    variance: f64,
    variance_squares: f64,
    // Sum of (n - 1) s^2 and of n - 1 over the same strata: the pooled variance.
    within: f64,
    within_df: f64,
    // Sum of N^2 (1 - 1/N) over strata with one recorded operation, and these operations' values.
    single: f64,
    singles: Moments,
}

impl ClassEstimator {
    /// An operation of the population, with its measure if it was recorded.
    pub fn push(&mut self, recorded: Option<f64>) {
        self.population += 1;
        if let Some(x) = recorded {
            self.sample.push(x);
        }
    }

    /// Ends the stretch: the rate or the attach state changes.
    pub fn end_stretch(&mut self) {
        let (population, sample) = (std::mem::take(&mut self.population), std::mem::take(&mut self.sample));
        self.closed.add(population, &sample);
    }

    /// The mean with its interval, the open stretch included. `None` if nothing was recorded.
    #[must_use]
    pub fn mean(&self, level: f64) -> Option<MeanEstimate> {
        let mut sums = self.closed;
        sums.add(self.population, &self.sample);
        sums.mean(level)
    }
}

impl Sums {
    fn add(&mut self, population: u64, sample: &Moments) {
        if population == 0 {
            return;
        }
        if sample.n() == 0 {
            self.unobserved += population;
            return;
        }
        // A count of the population that lost operations (a full map) is at least the sample's.
        let (big_n, n) = (population.max(sample.n()) as f64, sample.n() as f64);
        self.observed += big_n;
        self.recorded += sample.n();
        self.weighted += big_n * sample.mean();
        match sample.variance() {
            Some(variance) => {
                let part = big_n * big_n * (1.0 - n / big_n) * variance / n;
                self.variance += part;
                self.variance_squares += part * part / (n - 1.0);
                self.within += (n - 1.0) * variance;
                self.within_df += n - 1.0;
            }
            None => {
                self.single += big_n * (big_n - 1.0);
                self.singles.push(sample.mean());
            }
        }
    }

    fn mean(&self, level: f64) -> Option<MeanEstimate> {
        if self.recorded == 0 {
            return None;
        }
        let value = self.weighted / self.observed;
        let (spread, spread_df) = if self.within_df > 0.0 {
            (Some(self.within / self.within_df), self.within_df)
        } else {
            (self.singles.variance(), self.singles.n() as f64 - 1.0)
        };
        let estimate = |low: f64, high: f64, level: f64, source: Source| Estimate {
            value,
            low,
            high,
            level,
            n: self.recorded,
            source,
            at_most: false,
        };
        let estimate = match spread {
            _ if self.recorded as f64 == self.observed => estimate(value, value, 1.0, Source::Exact),
            None => estimate(f64::NEG_INFINITY, f64::INFINITY, level, Source::Sampled),
            Some(spread) => {
                let part = self.single * spread;
                let variance = self.variance + part;
                let squares = self.variance_squares + part * part / spread_df.max(1.0);
                let df = if squares > 0.0 { variance * variance / squares } else { f64::INFINITY };
                let half = t_quantile(level, df) * variance.sqrt() / self.observed;
                estimate(value - half, value + half, level, Source::Sampled)
            }
        };
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
