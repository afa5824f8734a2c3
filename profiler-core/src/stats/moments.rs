//! Mean and variance on line, without keeping the values and without cancellation (Welford 1962; merging
//! after Chan, Golub and LeVeque 1979).

use super::{Interval, t_quantile};

/// Count, mean and sum of squared deviations of a stream of values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moments {
    n: u64,
    mean: f64,
    m2: f64,
    min: f64,
    max: f64,
}

impl Moments {
    /// Moments from count, sum and sum of squares, as kernel programs keep them. Least and largest value are
    /// then unknown and read as the mean.
    #[must_use]
    pub fn from_sums(n: u64, sum: f64, sum_of_squares: f64) -> Self {
        if n == 0 {
            return Self::default();
        }
        let mean = sum / n as f64;
        Self { n, mean, m2: (sum_of_squares - sum * mean).max(0.0), min: mean, max: mean }
    }

    /// Adds one value; values that are not finite are left out.
    pub fn push(&mut self, x: f64) {
        if !x.is_finite() {
            return;
        }
        self.min = if self.n == 0 { x } else { self.min.min(x) };
        self.max = if self.n == 0 { x } else { self.max.max(x) };
        self.n += 1;
        let delta = x - self.mean;
        self.mean += delta / self.n as f64;
        self.m2 += delta * (x - self.mean);
    }

    /// Adds another stream's values.
    pub fn merge(&mut self, other: &Self) {
        if other.n == 0 {
            return;
        }
        if self.n == 0 {
            *self = *other;
            return;
        }
        let (a, b) = (self.n as f64, other.n as f64);
        let delta = other.mean - self.mean;
        self.mean += delta * b / (a + b);
        self.m2 += other.m2 + delta * delta * a * b / (a + b);
        self.n += other.n;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Values seen.
    #[must_use]
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Mean; 0 without values.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Unbiased variance; `None` below two values.
    #[must_use]
    pub fn variance(&self) -> Option<f64> {
        (self.n >= 2).then(|| self.m2 / (self.n - 1) as f64)
    }

    /// Smallest value; 0 without values.
    #[must_use]
    pub fn min(&self) -> f64 {
        self.min
    }

    /// Largest value; 0 without values.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.max
    }

    /// Interval of the mean of independent values: mean +- t sqrt(s^2 / n). `None` below two values.
    #[must_use]
    pub fn mean_interval(&self, level: f64) -> Option<Interval> {
        let half = t_quantile(level, (self.n as f64) - 1.0) * (self.variance()? / self.n as f64).sqrt();
        Some(Interval { low: self.mean - half, high: self.mean + half })
    }
}

impl FromIterator<f64> for Moments {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut m = Self::default();
        values.into_iter().for_each(|x| m.push(x));
        m
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        let m: Moments = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0, f64::NAN].into_iter().collect();
        assert_eq!((m.n(), m.mean(), m.min(), m.max()), (8, 5.0, 2.0, 9.0));
        assert!((m.variance().unwrap() - 32.0 / 7.0).abs() < 1e-12);
        let sums = Moments::from_sums(8, 40.0, 232.0);
        assert!((sums.variance().unwrap() - 32.0 / 7.0).abs() < 1e-12);
        assert!(Moments::default().variance().is_none() && Moments::default().mean_interval(0.95).is_none());
    }

    proptest! {
        #[test]
        fn merging_parts_is_the_whole(a in prop::collection::vec(-1e3f64..1e3, 0..40), b in prop::collection::vec(-1e3f64..1e3, 0..40)) {
            let whole: Moments = a.iter().chain(&b).copied().collect();
            let mut parts: Moments = a.iter().copied().collect();
            parts.merge(&b.iter().copied().collect());
            prop_assert_eq!(parts.n(), whole.n());
            prop_assert!((parts.mean() - whole.mean()).abs() < 1e-9);
            prop_assert!((parts.m2 - whole.m2).abs() <= 1e-9 * whole.m2.max(1.0));
            prop_assert_eq!((parts.min(), parts.max()), (whole.min(), whole.max()));
        }
    }
}
