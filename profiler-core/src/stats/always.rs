//! Intervals that hold at all times at once, however often somebody looks and whenever he stops.
//!
//! A 95 % interval that is looked at after each of 100 comparisons misses the truth at some time in far more than 5 % of the runs. Prices are corrected in the
//! first look that says so, so they need a *confidence sequence*: `P(the truth is in all of them) >= level`. Both come from a martingale that
//! is a mixture over the alternatives, by Ville's inequality (`P(sup M >= 1/alpha) <= alpha`).
//!
//! Sources: Robbins 1970, "Statistical methods related to the law of the iterated logarithm"; Howard, Ramdas, McAuliffe and Sekhon 2021, "Time-uniform,
//! nonparametric, nonasymptotic confidence sequences"; Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, "Time-uniform central limit theory".

use super::Interval;
use statrs::function::gamma::ln_gamma;

/// Number of observations at which the normal sequence is tightest.
const TIGHTEST: f64 = 40.0;
/// Shape and rate of the gamma mixture over the ratio, whose mean is 1: alternatives of half and of one and a half times are meant.
const MIXTURE: f64 = 4.0;

/// Half-width over the standard error of a mean of `n` observations, at all n at once: the asymptotic confidence sequence of a normal mixture.
///
/// ```text
/// k(n) = sqrt(2 (n r + 1) / (n r) ln(sqrt(n r + 1) / alpha)),   r = (-2 ln alpha + ln(1 - 2 ln alpha)) / 40
/// ```
/// 3.0 at n = 40 and 95 %, where a single look has 1.96.
#[must_use]
pub fn normal_multiple(n: f64, level: f64) -> f64 {
    let alpha = 1.0 - level.clamp(0.5, 0.999_999);
    let r = (-2.0 * alpha.ln() + (1.0 - 2.0 * alpha.ln()).ln()) / TIGHTEST;
    let nr = (n * r).max(f64::MIN_POSITIVE);
    (2.0 * (nr + 1.0) / nr * ((nr + 1.0).sqrt() / alpha).ln()).sqrt()
}

/// The ratio r of which `seen` events came where `r expected` would be the mean of their (Poisson) number, at all times at once.
///
/// ```text
/// M(r) = a^a Γ(a + X) / (Γ(a) (a + E)^(a + X)) r^-X e^(r E),   the interval is where M(r) < 1 / alpha
/// ```
/// `None` if nothing is expected.
#[must_use]
pub fn poisson_ratio(seen: u64, expected: f64, level: f64) -> Option<Interval> {
    if !(expected > 0.0 && expected.is_finite()) {
        return None;
    }
    let x = seen as f64;
    let alpha = 1.0 - level.clamp(0.5, 0.999_999);
    let a = MIXTURE;
    let constant = a * a.ln() + ln_gamma(a + x) - ln_gamma(a) - (a + x) * (a + expected).ln();
    let is_in = |r: f64| constant - x * r.ln() + r * expected < -alpha.ln();
    let middle = (x / expected).max(1e-12);
    // M falls up to X / E and rises after it.
    let edge = |mut inside: f64, factor: f64| {
        let mut outside = inside * factor;
        while is_in(outside) && outside > 1e-12 && outside < 1e12 {
            outside *= factor;
        }
        for _ in 0..60 {
            let half = f64::midpoint(inside, outside);
            if is_in(half) { inside = half } else { outside = half }
        }
        inside
    };
    let low = if seen == 0 { 0.0 } else { edge(middle, 0.5) };
    Some(Interval { low, high: edge(middle, 2.0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn the_normal_sequence_is_half_as_wide_again_as_one_look_where_it_is_tightest() {
        let at = |n: f64| normal_multiple(n, 0.95);
        assert!((2.8..3.2).contains(&at(40.0)), "{}", at(40.0));
        assert!(at(8.0) > at(40.0) && at(1e4) > at(40.0) && at(1e4) < 4.5, "{} {}", at(8.0), at(1e4));
    }

    /// How many of `runs` miss the truth at any of their looks: by the sequence, and by the interval for one look.
    fn missed(runs: u64, one: impl Fn(&mut StdRng) -> [bool; 2]) -> [f64; 2] {
        let mut missed = [0.0; 2];
        for seed in 0..runs {
            let now = one(&mut StdRng::seed_from_u64(seed));
            (0..2).for_each(|i| missed[i] += f64::from(u8::from(now[i])));
        }
        missed.map(|m| m / runs as f64)
    }

    #[test]
    fn looks_after_each_of_200_comparisons_miss_in_less_than_5_percent_of_the_runs() {
        // The sum of 12 uniform numbers less 6: variance 1, and normal to three standard deviations.
        let normal = |random: &mut StdRng| (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
        let [always, each] = missed(1_000, |random| {
            let (mut sum, mut missed) = (0.0, [false; 2]);
            for n in 1..=200_u32 {
                sum += normal(random);
                let z = (sum / f64::from(n).sqrt()).abs();
                if n >= 8 {
                    missed[0] |= z > normal_multiple(f64::from(n), 0.95);
                    missed[1] |= z > 1.96;
                }
            }
            missed
        });
        assert!(always < 0.05, "{always}");
        assert!(each > 0.2, "what it is for: {each}");
    }

    #[test]
    fn looks_at_every_tick_at_samples_in_traps_miss_in_less_than_5_percent_of_the_runs() {
        let [always, _] = missed(1_000, |random| {
            let (mut seen, mut expected, mut missed) = (0, 0.0, false);
            for _ in 0..600 {
                // Uneven: bursts come and go.
                let mean = random.random_range(0.0..0.3);
                expected += mean;
                // Knuth's product of uniform numbers.
                let (mut product, limit) = (random.random::<f64>(), f64::exp(-mean));
                while product > limit {
                    product *= random.random::<f64>();
                    seen += 1;
                }
                missed |= poisson_ratio(seen, expected, 0.95).is_some_and(|i| i.low > 1.0 || i.high < 1.0);
            }
            [missed, false]
        });
        assert!(always < 0.05, "{always}");
    }

    #[test]
    fn a_price_that_is_twice_too_low_is_seen_within_some_thirty_samples() {
        // 40 were seen where 20 are explained.
        let two = poisson_ratio(40, 20.0, 0.95).unwrap();
        assert!(two.low > 1.05 && two.low < 1.4 && two.high < 3.5, "{two:?}");
        let none = poisson_ratio(0, 0.1, 0.95).unwrap();
        assert!(none.low == 0.0 && none.high > 20.0, "{none:?}");
        assert!(poisson_ratio(3, 0.0, 0.95).is_none());
        let sure = poisson_ratio(100_000, 100_000.0, 0.95).unwrap();
        assert!(sure.low > 0.98 && sure.high < 1.02, "{sure:?}");
    }
}
