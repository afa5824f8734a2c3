//! Tests of hypotheses: are two means different?

use super::moments::Moments;
use super::{Interval, t_quantile};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Outcome of a t-test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TTest {
    /// The statistic; infinite if the values do not vary and the means differ.
    pub t: f64,
    /// Degrees of freedom.
    pub df: f64,
    /// Two-sided probability of a statistic at least as large if the means are equal.
    pub p: f64,
    /// Difference of the means (first less second).
    pub difference: f64,
    /// Interval of the difference at the level asked for.
    pub interval: Interval,
}

impl TTest {
    /// The means differ at significance `alpha`.
    #[must_use]
    pub fn differs(&self, alpha: f64) -> bool {
        self.p < alpha
    }

    fn new(difference: f64, standard_error: f64, df: f64, level: f64) -> Self {
        let half = t_quantile(level, df) * standard_error;
        let interval = Interval { low: difference - half, high: difference + half };
        if standard_error <= 0.0 {
            let (t, p) = if difference == 0.0 { (0.0, 1.0) } else { (difference * f64::INFINITY, 0.0) };
            return Self { t, df, p, difference, interval };
        }
        let t = difference / standard_error;
        // OK because df >= 1 here: the distribution exists.
        let p = StudentsT::new(0.0, 1.0, df).map_or(1.0, |d| (2.0 * d.sf(t.abs())).min(1.0));
        Self { t, df, p, difference, interval }
    }
}

/// Welch's test (1947) of two independent groups with unequal variances; degrees of freedom by Satterthwaite
/// (1946). `None` if a group has fewer than two values.
#[must_use]
pub fn welch(a: &Moments, b: &Moments, level: f64) -> Option<TTest> {
    let (va, vb) = (a.variance()? / a.n() as f64, b.variance()? / b.n() as f64);
    let denominator = va * va / (a.n() as f64 - 1.0) + vb * vb / (b.n() as f64 - 1.0);
    let df = if denominator > 0.0 { (va + vb).powi(2) / denominator } else { (a.n() + b.n() - 2) as f64 };
    Some(TTest::new(a.mean() - b.mean(), (va + vb).sqrt(), df.max(1.0), level))
}

/// Test of a difference whose variance is a sum of independent parts, each a pair (variance, degrees of freedom);
/// degrees of freedom of the sum by Satterthwaite (1946). With two parts it is Welch's test. `None` without parts.
#[must_use]
pub fn of_parts(difference: f64, parts: &[(f64, f64)], level: f64) -> Option<TTest> {
    let variance: f64 = parts.iter().map(|(v, _)| v).sum();
    let denominator: f64 = parts.iter().map(|(v, df)| v * v / df.max(1.0)).sum();
    let smallest = parts.iter().map(|(_, df)| df.max(1.0)).reduce(f64::min)?;
    let df = if denominator > 0.0 { variance * variance / denominator } else { smallest };
    Some(TTest::new(difference, variance.max(0.0).sqrt(), df.max(1.0), level))
}

/// Paired t-test: the mean of `a[i] - b[i]` against 0. `None` if the lengths differ or are below two.
#[must_use]
pub fn paired(a: &[f64], b: &[f64], level: f64) -> Option<TTest> {
    if a.len() != b.len() {
        return None;
    }
    let differences: Moments = a.iter().zip(b).map(|(x, y)| x - y).collect();
    one_sample(&differences, 0.0, level)
}

/// One-sample t-test of a mean against `expected`. `None` below two values.
#[must_use]
pub fn one_sample(values: &Moments, expected: f64, level: f64) -> Option<TTest> {
    let standard_error = (values.variance()? / values.n() as f64).sqrt();
    Some(TTest::new(values.mean() - expected, standard_error, values.n() as f64 - 1.0, level))
}

#[cfg(test)]
mod tests {
    use super::super::sim::{Coverage, normal, rng};
    use super::*;

    #[test]
    fn welch_agrees_with_a_worked_example() {
        // Two small groups; t and df from the definitions, p by integrating the density.
        let a: Moments = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9].into_iter().collect();
        let b: Moments = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0].into_iter().collect();
        let w = welch(&a, &b, 0.95).unwrap();
        assert!((w.t - -1.406_93).abs() < 1e-4, "{w:?}");
        assert!((w.df - 7.046_87).abs() < 1e-4, "{w:?}");
        assert!((w.p - 0.201_99).abs() < 1e-4, "{w:?}");
        assert!(!w.differs(0.05) && w.interval.holds(0.0));
        let parts = [a, b].map(|m| (m.variance().unwrap() / m.n() as f64, m.n() as f64 - 1.0));
        let same = of_parts(a.mean() - b.mean(), &parts, 0.95).unwrap();
        assert!((same.t - w.t).abs() < 1e-12 && (same.df - w.df).abs() < 1e-9, "{same:?}");
        assert!(of_parts(1.0, &[], 0.95).is_none());
    }

    #[test]
    fn paired_sees_what_welch_cannot() {
        let a = [10.0, 20.0, 30.0, 40.0];
        let b = [9.0, 19.1, 28.8, 38.9];
        let p = paired(&a, &b, 0.95).unwrap();
        assert!(p.differs(0.01) && p.df == 3.0 && (p.difference - 1.05).abs() < 1e-9, "{p:?}");
        let w = welch(&a.iter().copied().collect(), &b.iter().copied().collect(), 0.95).unwrap();
        assert!(!w.differs(0.05));
        assert!(paired(&a, &b[..3], 0.95).is_none() && paired(&[1.0], &[2.0], 0.95).is_none());
    }

    #[test]
    fn values_that_do_not_vary_give_no_nan() {
        let same = paired(&[1.0, 1.0, 1.0], &[1.0, 1.0, 1.0], 0.95).unwrap();
        assert_eq!((same.t, same.p), (0.0, 1.0));
        let apart = paired(&[2.0, 2.0, 2.0], &[1.0, 1.0, 1.0], 0.95).unwrap();
        assert_eq!((apart.t, apart.p), (f64::INFINITY, 0.0));
    }

    #[test]
    fn false_alarms_come_as_often_as_promised() {
        let mut rng = rng(41);
        let (mut c, mut alarms) = (Coverage::default(), 0);
        for _ in 0..4_000 {
            let a: Moments = (0..8).map(|_| normal(&mut rng)).collect();
            let b: Moments = (0..12).map(|_| 3.0 * normal(&mut rng)).collect();
            let w = welch(&a, &b, 0.95).unwrap();
            c.note(w.interval, 0.0);
            alarms += u32::from(w.differs(0.05));
        }
        c.check(0.94, 0.96, "welch");
        assert!((160..=240).contains(&alarms), "{alarms}");
    }
}
