//! Intervals of proportions and of Poisson means.

use super::{Interval, clamp_level, z_quantile};
use statrs::distribution::{Beta, ContinuousCDF, Gamma};
use statrs::function::erf::erfc;

/// Wilson's score interval of a proportion, `k` of `n`, with critical value `crit` (z, or t for few degrees
/// of freedom). Both may be fractions: an effective sample size. `[0, 1]` if n is not positive.
///
/// ```text
/// (p + c^2/2n +- c sqrt(p q / n + c^2/4n^2)) / (1 + c^2/n)
/// ```
/// Wilson 1927, equation for the limits of p.
#[must_use]
pub fn wilson(k: f64, n: f64, crit: f64) -> Interval {
    if n.is_nan() || n <= 0.0 {
        return Interval { low: 0.0, high: 1.0 };
    }
    let p = (k / n).clamp(0.0, 1.0);
    let c2 = crit * crit;
    let centre = p + c2 / (2.0 * n);
    let half = crit * (p * (1.0 - p) / n + c2 / (4.0 * n * n)).sqrt();
    let scale = 1.0 + c2 / n;
    // The ends are exact at k = 0 and k = n; rounding must not move them.
    let low = if p <= 0.0 { 0.0 } else { ((centre - half) / scale).max(0.0) };
    let high = if p >= 1.0 { 1.0 } else { ((centre + half) / scale).min(1.0) };
    Interval { low, high }
}

/// Jeffreys's interval of a proportion, `k` of `n`, by the same critical value as [`wilson`]: it misses above as often as below, where Wilson's misses small proportions above more than twice as often, and is
/// narrower (8 of 536: 0.0071 to 0.0280, Wilson's 0.0076 to 0.0292). Both may be fractions. `[0, 1]` if n is not positive.
///
/// ```text
/// quantiles alpha/2 and 1 - alpha/2 of Beta(k + 1/2, n - k + 1/2);   k = 0: high = 1 - (alpha/2)^(1/n),   k <= 1: low = 0,   and so at the other end
/// ```
/// Brown, Cai and DasGupta 2001, §3.2 and §4.1.2 (the modification at the ends).
#[must_use]
pub fn jeffreys(k: f64, n: f64, crit: f64) -> Interval {
    if n.is_nan() || n <= 0.0 {
        return Interval { low: 0.0, high: 1.0 };
    }
    let k = k.clamp(0.0, n);
    // Of smaller tails `statrs` finds no end.
    let tail = (0.5 * erfc(crit / std::f64::consts::SQRT_2)).max(1e-12);
    let exact = tail.powf(1.0 / n);
    let (from_end, to_end) = (k, n - k);
    // A part of an event says no less than none, and of all but a part no less than all.
    let low = match () {
        () if to_end <= 0.0 => exact,
        () if from_end <= 1.0 => 0.0,
        () => beta_quantile(k, n, tail, crit).min(exact),
    };
    let high = match () {
        () if from_end <= 0.0 => 1.0 - exact,
        () if to_end <= 1.0 => 1.0,
        () => beta_quantile(k, n, 1.0 - tail, crit).max(1.0 - exact),
    };
    Interval { low, high }
}

/// Quantile `p` (`tail` or `1 - tail` of `crit`) of Beta(k + 1/2, n - k + 1/2).
///
/// Of many trials by its limits, because `statrs` 0.19 does not come to an end from seven million on: the gamma distribution where there are few events (to half a percent of the
/// distance between the two ends), else the score interval.
fn beta_quantile(k: f64, n: f64, p: f64, crit: f64) -> f64 {
    const MANY: f64 = 1e5;
    const FEW: f64 = 1e3;
    let by_score = || if p < 0.5 { wilson(k, n, crit).low } else { wilson(k, n, crit).high };
    if n <= MANY {
        return Beta::new(k + 0.5, n - k + 0.5).map_or_else(|_| by_score(), |beta| beta.inverse_cdf(p));
    }
    match () {
        () if k <= FEW => gamma_quantile(k + 0.5, p) / n,
        () if n - k <= FEW => 1.0 - gamma_quantile(n - k + 0.5, 1.0 - p) / n,
        () => by_score(),
    }
}

/// The exact interval of a Poisson mean after `k` events (Garwood 1936); `k` may be a fraction: an effective
/// count.
///
/// ```text
/// low  = chi2(alpha/2; 2k) / 2        = gamma quantile of shape k
/// high = chi2(1 - alpha/2; 2k + 2)/2  = gamma quantile of shape k + 1
/// ```
#[must_use]
pub fn garwood(k: f64, level: f64) -> Interval {
    let alpha = 1.0 - clamp_level(level);
    let k = if k.is_finite() { k.max(0.0) } else { 0.0 };
    let low = if k == 0.0 { 0.0 } else { gamma_quantile(k, alpha / 2.0) };
    Interval { low, high: gamma_quantile(k + 1.0, 1.0 - alpha / 2.0) }
}

/// Interval of the mean count expected in the time that the `k`-th event took (inverse sampling: observe
/// until k events have come): both ends from the gamma distribution of shape k.
#[must_use]
pub fn waiting_time(k: f64, level: f64) -> Interval {
    let alpha = 1.0 - clamp_level(level);
    if k.is_nan() || k <= 0.0 {
        return Interval { low: 0.0, high: gamma_quantile(1.0, 1.0 - alpha / 2.0) };
    }
    Interval { low: gamma_quantile(k, alpha / 2.0), high: gamma_quantile(k, 1.0 - alpha / 2.0) }
}

/// Quantile `p` of the gamma distribution with the given shape and rate 1.
fn gamma_quantile(shape: f64, p: f64) -> f64 {
    // Wilson and Hilferty 1931: good to 1e-6 of the value at this size, and quick.
    if shape > 1e4 {
        let z = if p >= 0.5 { z_quantile(2.0 * p - 1.0) } else { -z_quantile(1.0 - 2.0 * p) };
        return shape * (1.0 - 1.0 / (9.0 * shape) + z / (3.0 * shape.sqrt())).powi(3);
    }
    Gamma::new(shape, 1.0).map_or(f64::NAN, |g| g.inverse_cdf(p))
}

#[cfg(test)]
mod tests {
    use super::super::sim::{Coverage, poisson, rng};
    use super::*;
    use rand::RngExt as _;

    #[test]
    fn garwood_agrees_with_the_table() {
        for (k, low, high) in
            [(0.0, 0.0, 3.6889), (1.0, 0.0253, 5.5716), (10.0, 4.7954, 18.3904), (100.0, 81.3640, 121.6272)]
        {
            let i = garwood(k, 0.95);
            assert!((i.low - low).abs() < 1e-3 && (i.high - high).abs() < 1e-3, "{k}: {i:?}");
        }
        // The switch of method at shape 10,000 leaves no step.
        let (a, b) = (garwood(9_999.0, 0.95), garwood(10_001.0, 0.95));
        assert!((b.low - a.low - 2.0).abs() < 0.05 && (b.high - a.high - 2.0).abs() < 0.05);
    }

    #[test]
    fn wilson_agrees_with_the_tables() {
        let w = wilson(10.0, 100.0, z_quantile(0.95));
        assert!((w.low - 0.05523).abs() < 1e-4 && (w.high - 0.17437).abs() < 1e-4, "{w:?}");
        assert_eq!(wilson(0.0, 50.0, 1.96).low, 0.0);
        assert_eq!(wilson(50.0, 50.0, 1.96).high, 1.0);
        assert_eq!(wilson(0.0, 0.0, 1.96), Interval { low: 0.0, high: 1.0 });
    }

    #[test]
    fn jeffreys_agrees_with_the_tables() {
        let z = z_quantile(0.95);
        for (k, n, low, high) in [
            (10.0, 100.0, 0.052585, 0.170124),
            (8.0, 536.0, 0.007081, 0.027964),
            (2.5, 40.0, 0.015742, 0.169197),
        ] {
            let i = jeffreys(k, n, z);
            assert!((i.low - low).abs() < 1e-5 && (i.high - high).abs() < 1e-5, "{k} of {n}: {i:?}");
            let other = jeffreys(n - k, n, z);
            assert!((1.0 - other.high - i.low).abs() < 1e-9 && (1.0 - other.low - i.high).abs() < 1e-9);
        }
        // As many trials as a day of samples has, and the switch of method leaves no step.
        for (k, low, high) in [(5.0, 1.9079, 10.9600), (40.5, 29.4223, 54.4686)] {
            let i = jeffreys(k, 2e7, z);
            assert!((i.low * 2e7 - low).abs() < 1e-3 && (i.high * 2e7 - high).abs() < 1e-3, "{k}: {i:?}");
        }
        for k in [2.0, 300.0, 999.0, 1_001.0, 50_000.0, 99_500.0] {
            let more = if k > 5e4 { k + 1.0 } else { k };
            let (a, b) = (jeffreys(k, 1e5, z), jeffreys(more, 1e5 + 1.0, z));
            let width = a.high - a.low;
            assert!(
                (b.low - a.low).abs() < 0.01 * width && (b.high - a.high).abs() < 0.01 * width,
                "{k}: {a:?} {b:?}"
            );
        }
        // More events never say less.
        for n in [40.0, 1_000.0, 3e5] {
            let ends: Vec<Interval> = (0..60).map(|i| jeffreys(0.05 * f64::from(i), n, z)).collect();
            assert!(ends.windows(2).all(|w| w[0].high <= w[1].high && w[0].low <= w[1].low), "{n}: {ends:?}");
        }
        // As the exact interval at the ends.
        let none = jeffreys(0.0, 50.0, z);
        assert!(none.low == 0.0 && (none.high - 0.07112).abs() < 1e-5, "{none:?}");
        assert_eq!(jeffreys(1.0, 50.0, z).low, 0.0);
        assert_eq!((jeffreys(50.0, 50.0, z).high, jeffreys(49.0, 50.0, z).high), (1.0, 1.0));
        assert_eq!(jeffreys(0.0, 0.0, z), Interval { low: 0.0, high: 1.0 });
    }

    /// By the binomial law itself, of small proportions: missed above and below, in the mean of many of them.
    #[test]
    fn jeffreys_misses_above_as_often_as_below() {
        let (n, z) = (500.0, z_quantile(0.95));
        let limits = |of: fn(f64, f64, f64) -> Interval| -> Vec<Interval> {
            (0..60).map(|k| of(f64::from(k), n, z)).collect()
        };
        let missed = |limits: &[Interval]| -> (f64, f64) {
            let (mut above, mut below) = (0.0, 0.0);
            let all: Vec<f64> = (0..200).map(|i| 0.006 + 0.024 * f64::from(i) / 200.0).collect();
            for p in &all {
                let mut mass = (1.0 - p).powf(n);
                for (k, i) in limits.iter().enumerate() {
                    above += if i.low > *p { mass } else { 0.0 };
                    below += if i.high < *p { mass } else { 0.0 };
                    let k = k as f64;
                    mass *= (n - k) / (k + 1.0) * p / (1.0 - p);
                }
            }
            (above / all.len() as f64, below / all.len() as f64)
        };
        let (by_jeffreys, by_wilson) = (missed(&limits(jeffreys)), missed(&limits(wilson)));
        assert!(by_jeffreys.0 + by_jeffreys.1 < 0.052, "{by_jeffreys:?}");
        assert!((0.7..1.4).contains(&(by_jeffreys.0 / by_jeffreys.1)), "{by_jeffreys:?}");
        assert!(by_wilson.0 > 2.0 * by_wilson.1, "{by_wilson:?}");
    }

    #[test]
    fn coverage_of_wilson_and_garwood() {
        let mut rng = rng(1);
        for p in [0.02, 0.1, 0.5] {
            let mut c = Coverage::default();
            for _ in 0..4_000 {
                let k = (0..300).filter(|_| rng.random::<f64>() < p).count();
                c.note(wilson(k as f64, 300.0, z_quantile(0.95)), p);
            }
            c.check(0.93, 0.975, "wilson");
        }
        for mean in [0.5, 3.0, 40.0] {
            let mut c = Coverage::default();
            for _ in 0..4_000 {
                c.note(garwood(poisson(&mut rng, mean), 0.95), mean);
            }
            // Exact intervals of discrete counts cover at least their level.
            c.check(0.945, 1.0, "garwood");
        }
    }
}
