//! The shared sampler as one more row: the width of a share.

use super::super::Problem;
use super::width::{NOTHING_KNOWN, knowledge_at};

/// Weight of the sampler; all classes have the rest of 1.
const SAMPLER_WEIGHT: f64 = 0.1;
/// Share whose width the sampler is planned for.
const SAMPLED_PART: f64 = 0.1;
/// Width that the sampler's share is narrowed to and no further.
const SHARE_FLOOR: f64 = 0.05;

/// The shared sampler, as a class.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sampler {
    /// CPU s/s that a rate of 1 Hz takes.
    pub price: f64,
    /// Least rate, and the one above which more is worth nothing, Hz.
    pub range: (f64, f64),
    /// Largest rate that is allowed, Hz.
    pub most_hz: f64,
    pub weight: f64,
    /// Knowledge of the usual share by one sample per second.
    per_hz: f64,
}

impl Sampler {
    pub fn new(problem: &Problem) -> Self {
        let per_hz = problem.target_cpu * problem.horizon_s * SAMPLED_PART / (1.0 - SAMPLED_PART);
        let (min, max) = (problem.sampling.min_hz, problem.sampling.max_hz);
        let enough = if per_hz > 0.0 { (knowledge_at(SHARE_FLOOR) - NOTHING_KNOWN) / per_hz } else { min };
        // Where none may be taken there is no share.
        let weight = if max > 0.0 && per_hz > 0.0 { SAMPLER_WEIGHT } else { 0.0 };
        let range = (min, max.min(enough).max(min));
        Self { price: problem.sample_cost(), range, most_hz: max, weight, per_hz }
    }

    pub fn worth(&self, s: f64) -> f64 {
        0.5 * self.weight * (1.0 + s.min(self.range.1) * self.per_hz / NOTHING_KNOWN).ln()
    }

    /// The rate at which one CPU s/s more brings `mu`.
    pub fn best(&self, mu: f64) -> f64 {
        let (min, max) = self.range;
        if self.price * mu <= 0.0 {
            return max;
        }
        (0.5 * self.weight / (mu * self.price) - NOTHING_KNOWN / self.per_hz.max(1e-300)).clamp(min, max)
    }
}
