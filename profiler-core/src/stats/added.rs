//! Estimates from which others are taken away: a duration less the price of timing it.

use super::Interval;

/// A value and the interval that it lies in, in the unit of the estimate that it is used for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranged {
    /// Point estimate.
    pub value: f64,
    /// Where it lies.
    pub interval: Interval,
}

impl Ranged {
    /// A value that is known.
    #[must_use]
    pub fn exact(value: f64) -> Self {
        Self { value, interval: Interval { low: value, high: value } }
    }

    /// A value between two others; ends that lie on the wrong side of it are moved to it.
    #[must_use]
    pub fn between(low: f64, value: f64, high: f64) -> Self {
        Self { value, interval: Interval { low: low.min(value), high: high.max(value) } }
    }

    /// The sum of both, where they may err the same way: the ends are added.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let low = self.interval.low + other.interval.low;
        Self::between(low, self.value + other.value, self.interval.high + other.interval.high)
    }

    /// All of it multiplied by a factor >= 0.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { value: self.value * factor, interval: self.interval.scaled(factor) }
    }
}

/// `a` less everything in `taken`, all independent of one another: value and ends may be negative.
///
/// Squared distances from the estimates to their limits are variances at the limits, which add (MOVER, the method of variance estimates
/// recovery; Zou and Donner 2008, equation 3 for a difference, more terms likewise):
/// ```text
/// L = a - sum b - sqrt((a - la)^2 + sum (ub - b)^2)
/// U = a - sum b + sqrt((ua - a)^2 + sum (b - lb)^2)
/// ```
/// Skewed limits stay skewed; an infinite one makes the end infinite.
#[must_use]
pub fn difference(a: Ranged, taken: &[Ranged]) -> Ranged {
    let value = a.value - taken.iter().map(|b| b.value).sum::<f64>();
    let squares = |of: &dyn Fn(&Ranged) -> f64| taken.iter().map(|b| of(b).powi(2)).sum::<f64>();
    let down = (a.value - a.interval.low).powi(2) + squares(&|b| b.interval.high - b.value);
    let up = (a.interval.high - a.value).powi(2) + squares(&|b| b.value - b.interval.low);
    Ranged { value, interval: Interval { low: value - down.sqrt(), high: value + up.sqrt() } }
}

#[cfg(test)]
mod tests {
    use super::super::sim::{Coverage, rng};
    use super::super::{moments::Moments, t_quantile};
    use super::*;
    use rand::RngExt as _;

    #[test]
    fn known_values() {
        let d = difference(
            Ranged::between(97.0, 100.0, 104.0),
            &[Ranged::between(26.0, 30.0, 33.0), Ranged::exact(10.0)],
        );
        assert_eq!(d.value, 60.0);
        assert!((d.interval.low - (60.0 - 18_f64.sqrt())).abs() < 1e-9, "{d:?}");
        assert!((d.interval.high - (60.0 + 32_f64.sqrt())).abs() < 1e-9, "{d:?}");
        assert_eq!(difference(Ranged::exact(5.0), &[]), Ranged::exact(5.0));
        let open = difference(Ranged::between(0.0, 5.0, f64::INFINITY), &[Ranged::exact(1.0)]);
        assert_eq!(open.interval.high, f64::INFINITY);
        let negative = difference(Ranged::exact(5.0), &[Ranged::between(4.0, 8.0, 9.0)]);
        assert_eq!((negative.value, negative.interval.low, negative.interval.high), (-3.0, -4.0, 1.0));
    }

    /// Two skewed means, the second taken from the first.
    #[test]
    fn the_difference_of_two_means_is_covered() {
        let mut rng = rng(11);
        let mut c = Coverage::default();
        for _ in 0..3_000 {
            let mut mean = |n: usize, of: f64| {
                let m: Moments = (0..n).map(|_| of * (0.5 + rng.random::<f64>())).collect();
                let half = t_quantile(0.95, n as f64 - 1.0) * (m.variance().unwrap() / n as f64).sqrt();
                Ranged::between(m.mean() - half, m.mean(), m.mean() + half)
            };
            let (a, b) = (mean(40, 1_000.0), mean(10, 600.0));
            c.note(difference(a, &[b]).interval, 400.0);
        }
        c.check(0.94, 0.97, "difference of means");
    }
}
