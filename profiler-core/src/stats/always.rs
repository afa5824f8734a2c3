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
/// Ratios between which [`poisson_is_more`] looks for more events, and how many of them, evenly by their logarithms.
const MORE: (f64, f64) = (1.2, 2.5);
const STEPS: u32 = 12;
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

/// More than `expected` events come, whatever their (Poisson) number so far: of runs in which no more do this is said at any time in a part of `1 - level` at most.
///
/// ```text
/// M = mean over 12 ratios r of r^X e^(-(r - 1) E) >= 1 / alpha,   r: from 1.2 to 2.5
/// ```
/// Who asks for one side only need not pay for the other: that twice as many come is seen from some 10 expected ones where [`poisson_ratio`] takes 14, and of 1.66 times from 15 where it takes 22 (medians, simulated).
#[must_use]
pub fn poisson_is_more(seen: u64, expected: f64, level: f64) -> bool {
    if !(expected > 0.0 && expected.is_finite()) {
        return false;
    }
    let alpha = 1.0 - level.clamp(0.5, 0.999_999);
    let (least, most) = (MORE.0.ln(), MORE.1.ln());
    let terms: Vec<f64> = (0..STEPS)
        .map(|i| least + (most - least) * f64::from(i) / f64::from(STEPS - 1))
        .map(|log| log * seen as f64 - log.exp_m1() * expected)
        .collect();
    // The logarithm of the mean, from the largest: a long run's terms are beyond any number.
    let largest = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = terms.iter().map(|term| (term - largest).exp()).sum();
    largest + (sum / f64::from(STEPS)).ln() >= -alpha.ln()
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

    /// Looks at every tick at samples in traps, of which `ratio` times as many come as are expected: whether the sequence and the one side said so at any time, and from how many expected ones on the latter did.
    fn looks(random: &mut StdRng, ratio: f64) -> ([bool; 2], Option<f64>) {
        let (mut seen, mut expected, mut said, mut first) = (0, 0.0, [false; 2], None);
        for _ in 0..600 {
            // Uneven: bursts come and go.
            let mean = random.random_range(0.0..0.3);
            expected += mean;
            // Knuth's product of uniform numbers.
            let (mut product, limit) = (random.random::<f64>(), f64::exp(-mean * ratio));
            while product > limit {
                product *= random.random::<f64>();
                seen += 1;
            }
            said[0] |= poisson_ratio(seen, expected, 0.95).is_some_and(|i| i.low > 1.0 || i.high < 1.0);
            if poisson_is_more(seen, expected, 0.95) {
                said[1] = true;
                first = first.or(Some(expected));
            }
        }
        (said, first)
    }

    #[test]
    fn looks_at_every_tick_at_samples_in_traps_miss_in_less_than_5_percent_of_the_runs() {
        let [both, one] = missed(1_000, |random| looks(random, 1.0).0);
        assert!(both < 0.05 && one < 0.05, "{both} {one}");
        let [_, fewer] = missed(200, |random| looks(random, 0.8).0);
        assert_eq!(fewer, 0.0);
    }

    #[test]
    fn that_more_come_is_seen_soon() {
        for (ratio, least, most) in [(1.35, 35.0, 60.0), (1.66, 11.0, 19.0), (2.0, 5.0, 11.0)] {
            let mut first: Vec<f64> = (0..200)
                .map(|seed| looks(&mut StdRng::seed_from_u64(seed), ratio).1.unwrap_or(f64::INFINITY))
                .collect();
            first.sort_by(f64::total_cmp);
            assert!((least..most).contains(&first[100]), "{ratio}: {}", first[100]);
        }
        assert!(poisson_is_more(20, 10.0, 0.95) && !poisson_is_more(6, 2.0, 0.95));
        assert!(poisson_is_more(2_000_000, 1e6, 0.95) && !poisson_is_more(999_000, 1e6, 0.95));
        assert!(!poisson_is_more(3, 0.0, 0.95));
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
