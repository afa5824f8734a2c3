//! Simulation helpers of the statistics tests: fixed seeds, coverage counters, simple processes.

use super::Interval;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

/// A generator with a fixed seed.
pub fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Exponential time with the given mean.
pub fn exponential(rng: &mut StdRng, mean: f64) -> f64 {
    -mean * (1.0 - rng.random::<f64>()).ln()
}

/// Standard normal (Box and Muller 1958).
pub fn normal(rng: &mut StdRng) -> f64 {
    let (u, v) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Gamma with integer shape and mean 1: squared coefficient of variation 1 / shape.
pub fn unit_gamma(rng: &mut StdRng, shape: u32) -> f64 {
    (0..shape).map(|_| exponential(rng, 1.0)).sum::<f64>() / f64::from(shape)
}

/// Poisson count (by waiting times; normal above 1,000, where the difference is far below what tests see).
pub fn poisson(rng: &mut StdRng, mean: f64) -> f64 {
    if mean > 1_000.0 {
        return (mean + mean.sqrt() * normal(rng)).round().max(0.0);
    }
    let (mut k, mut t) = (0.0, exponential(rng, 1.0));
    while t < mean {
        k += 1.0;
        t += exponential(rng, 1.0);
    }
    k
}

/// How often intervals held the truth.
#[derive(Debug, Default)]
pub struct Coverage {
    runs: u32,
    held: u32,
}

impl Coverage {
    pub fn note(&mut self, interval: Interval, truth: f64) {
        assert!(interval.low <= interval.high, "{interval:?}");
        self.runs += 1;
        self.held += u32::from(interval.holds(truth));
    }

    pub fn share(&self) -> f64 {
        f64::from(self.held) / f64::from(self.runs)
    }

    #[track_caller]
    pub fn check(&self, least: f64, most: f64, what: &str) {
        let share = self.share();
        assert!(
            (least..=most).contains(&share),
            "{what}: {:.1} % of {} intervals held the truth",
            share * 100.0,
            self.runs
        );
    }
}
