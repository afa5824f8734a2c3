//! Residuals of calls whose predicted times are alike, of which the highest and lowest are kept, and some between.

use serde::{Deserialize, Serialize};

/// Residuals that are kept of a table: all of the highest and lowest ones, and as many between.
const EDGE: usize = 128;
/// The spread of residuals is no smaller.
const LEAST_SPREAD: f64 = 1e-3;

/// Residuals of calls whose predicted times are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Residuals {
    /// Largest predicted time of its calls, ns.
    pub up_to_ns: f64,
    /// Calls.
    pub n: u64,
    /// Residuals in falling order, with the number of residuals that are at least as large.
    pub marks: Vec<(f64, u64)>,
}

impl Residuals {
    pub fn new(calls: &[(f64, f64)]) -> Self {
        Self::of(calls.iter().map(|(_, r)| *r).collect(), calls.last().map_or(0.0, |c| c.0))
    }

    pub fn of(mut residuals: Vec<f64>, up_to_ns: f64) -> Self {
        residuals.sort_by(|a, b| b.total_cmp(a));
        let n = residuals.len();
        let step = (n / (2 * EDGE)).max(1);
        let is_kept = |i: usize| i < EDGE || i + EDGE >= n || i.is_multiple_of(step);
        let kept = residuals.iter().enumerate().filter(|(i, _)| is_kept(*i));
        let marks = kept.map(|(i, r)| (*r, i as u64 + 1)).collect();
        Self { up_to_ns, n: n as u64, marks }
    }

    pub fn median(&self) -> f64 {
        self.nth_largest(self.n.div_ceil(2))
    }

    /// Half of what the middle 68 % of the residuals span; a tenth of a percent at least.
    pub fn spread(&self) -> f64 {
        let part = |p: f64| self.nth_largest(((self.n as f64 * p) as u64).max(1));
        ((part(0.16) - part(0.84)) / 2.0).max(LEAST_SPREAD)
    }

    /// Mean of e^2r, or more: those between two that are kept count as the larger one.
    pub fn mean_square(&self) -> f64 {
        let square = |r: f64| (2.0 * r).exp();
        let (mut sum, mut above) = (0.0, (0.0, 0));
        for (r, rank) in &self.marks {
            let between = rank.saturating_sub(above.1 + 1) as f64;
            sum += between * square(above.0) + square(*r);
            above = (*r, *rank);
        }
        sum / self.n.max(1) as f64
    }

    /// Residuals that are at least as large; at most as many too many as lie between two marks.
    pub fn at_least(&self, residual: f64) -> u64 {
        let above = self.marks.partition_point(|(r, _)| *r >= residual);
        match self.marks.get(above) {
            // All up to the next mark may be as large; that mark itself is not.
            Some((_, rank)) => rank - 1,
            None => self.n,
        }
    }

    /// The largest residual that has `count - 1` larger ones; infinite for 0.
    pub fn nth_largest(&self, count: u64) -> f64 {
        // A mark with at most `count` residuals that are as large: no lower than the one asked for.
        let place = self.marks.partition_point(|(_, rank)| *rank <= count);
        place.checked_sub(1).and_then(|i| self.marks.get(i)).map_or(f64::INFINITY, |(r, _)| *r)
    }

    /// The same from below.
    pub fn nth_smallest(&self, count: u64) -> f64 {
        if count == 0 {
            return f64::NEG_INFINITY;
        }
        let least = (self.n + 1).saturating_sub(count);
        let place = self.marks.partition_point(|(_, rank)| *rank < least);
        self.marks.get(place).map_or(f64::NEG_INFINITY, |(r, _)| *r)
    }
}
