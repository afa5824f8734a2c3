//! Classes that are unlike all others: what the others tell of a variance holds for most classes, and for some it does not.
//!
//! Of classes whose bursts are alike, one whose calls come in clusters has a variance far above what the prior of `moderated.rs` allows; drawn
//! towards the others, its interval would be a quarter of what it must be. So a class is one of the others, or an outlier with probability `p`,
//! whose variance is `k` times as large, `log k` uniform (as Phipson et al. 2016, Ann. Appl. Stat. 10, take hypervariable genes apart; theirs is a
//! test, this is a mixture). With `r = s^2 / v`, its degrees of freedom `d`, and the part `h` of `v` that is drawn:
//! ```text
//! f_0: density of log r for r ~ F(d, d_0);   f_1: mean over k in [1, 1 + h (K - 1)] of the density of log(r/k) for r/k ~ chi^2_d / d
//! w = p f_1 / (p f_1 + (1 - p) f_0)
//! (1 - w) P(|t_{d_0 + d}| > q / s~) + w E_k P(|N| > q / sqrt k) = 1 - level       gives q
//! p = (2 + sum of w over classes) / (10 + classes)
//! ```
//! The standard error told is the one with which t of `d_0 + d` degrees of freedom reaches `q`.

use super::moderated::{self, Ratio};
use super::t_quantile;
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};
use statrs::function::gamma::ln_gamma;

/// `K`: an outlier's variance is so many times as large at most. Calls in clusters of 100 are.
const MOST_TIMES: f64 = 100.0;
/// Points at which `log k` is looked at.
const STEPS: u32 = 24;
/// What is thought of outliers before any class is seen: two among ten, the more honest error.
const SEEN_BEFORE: (f64, f64) = (2.0, 10.0);
/// Beyond these, chi^2 and F, t and normal agree to 4 digits.
const MANY_DF: f64 = 1e4;

/// The outliers' part before any class is seen.
pub(super) fn before() -> f64 {
    SEEN_BEFORE.0 / SEEN_BEFORE.1
}

/// The outliers' part, from the probabilities that each class is one.
pub(super) fn part(probabilities: &[f64]) -> f64 {
    let (sum, n) = (probabilities.iter().sum::<f64>(), probabilities.len() as f64);
    (SEEN_BEFORE.0 + sum) / (SEEN_BEFORE.1 + n)
}

/// Log density of `log r`, where `r d ~ chi^2_d`.
fn ln_chi_square(r: f64, df: f64) -> f64 {
    let half = df / 2.0;
    half * (half * r).ln() - half * r - ln_gamma(half)
}

/// The same where `r ~ F(d, d_0)`.
fn ln_f(r: f64, df: f64, prior_df: f64) -> f64 {
    if prior_df > MANY_DF {
        return ln_chi_square(r, df);
    }
    let (a, b) = (df / 2.0, prior_df / 2.0);
    a * (a * r / b).ln() - (a + b) * (a * r / b).ln_1p() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b)
}

/// Factors `k` of an outlier's variance, equally likely.
fn factors(drawn: f64) -> impl Iterator<Item = f64> {
    let most = (1.0 + drawn.clamp(0.0, 1.0) * (MOST_TIMES - 1.0)).ln();
    (0..STEPS).map(move |i| (most * (f64::from(i) + 0.5) / f64::from(STEPS)).exp())
}

/// Of a class seen: the probability that it is an outlier, and the likelihoods of its factors in that case, which add up to 1.
fn weighed(seen: &Ratio, prior_df: f64, part: f64) -> (f64, Vec<f64>) {
    let alike = Vec::from_iter(factors(seen.drawn).map(|_| 1.0 / f64::from(STEPS)));
    // Nothing of its own tells.
    if !(seen.df > 0.0 && seen.ratio > 0.0) {
        return (part, alike);
    }
    let ln_other = ln_f(seen.ratio, seen.df, prior_df);
    let times: Vec<f64> = factors(seen.drawn)
        .map(|k| (ln_chi_square(seen.ratio / k, seen.df) - ln_other).min(500.0).exp())
        .collect();
    let sum: f64 = times.iter().sum();
    if sum.is_nan() || sum <= 0.0 {
        return (0.0, alike);
    }
    let odds = part * sum / f64::from(STEPS) / (1.0 - part);
    (odds / (1.0 + odds), times.into_iter().map(|t| t / sum).collect())
}

/// The probability that a class is an outlier among those of this spread (`moderated.rs`).
pub(super) fn probability(seen: &Ratio, spread: f64, part: f64) -> f64 {
    weighed(seen, moderated::prior_df(spread, seen.drawn), part).0
}

/// `P(|t_df| > x)`, x >= 0.
fn beyond(x: f64, df: f64) -> f64 {
    let normal = || 2.0 * Normal::standard().sf(x);
    if df > MANY_DF {
        return normal();
    }
    StudentsT::new(0.0, 1.0, df.max(1.0)).map_or_else(|_| normal(), |t| 2.0 * t.sf(x))
}

/// The variance of a class over what is expected of it, and its degrees of freedom, for an interval of this level: what it says itself, what the
/// others say, and what holds if they do not speak of it.
pub(super) fn posterior(seen: &Ratio, spread: f64, part: f64, level: f64) -> (f64, f64) {
    /// Of the bisection: to 2^-20 of the widest.
    const HALVINGS: u32 = 20;
    /// Below it an outlier's tail is nothing beside what an interval may miss.
    const LEAST_WEIGHT: f64 = 1e-5;
    let prior_df = moderated::prior_df(spread, seen.drawn);
    let (variance, df) = moderated::posterior((1.0, prior_df), (seen.ratio, seen.df));
    let (weight, likely) = weighed(seen, prior_df, part);
    let t = t_quantile(level, df);
    if weight < LEAST_WEIGHT || variance <= 0.0 || !variance.is_finite() {
        return (variance, df);
    }
    let widest = factors(seen.drawn).fold(variance, f64::max);
    let missed = |q: f64| {
        let outlier = factors(seen.drawn).zip(&likely).map(|(k, l)| l * beyond(q / k.sqrt(), f64::INFINITY));
        (1.0 - weight) * beyond(q / variance.sqrt(), df) + weight * outlier.sum::<f64>()
    };
    let (mut low, mut high) = (t * variance.sqrt(), t * widest.sqrt());
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if missed(middle) > 1.0 - level { low = middle } else { high = middle }
    }
    ((low / t).powi(2), df)
}

#[cfg(test)]
mod tests {
    use super::super::sim::{Coverage, normal, rng};
    use super::super::{Interval, LEVEL};
    use super::*;
    use rand::rngs::StdRng;

    /// `s^2` of true variance `times` by so many degrees of freedom, and a mean's error.
    fn seen(rng: &mut StdRng, df: u32, times: f64) -> (Ratio, f64) {
        let squares: f64 = (0..df).map(|_| normal(rng).powi(2)).sum();
        let ratio = Ratio { ratio: times * squares / f64::from(df), df: f64::from(df), drawn: 1.0 };
        (ratio, times.sqrt() * normal(rng))
    }

    /// Densities are those of statrs, and add up to 1.
    #[test]
    fn densities_of_logarithms_are_those_of_the_distributions() {
        use statrs::distribution::{ChiSquared, Continuous as _, FisherSnedecor};
        for (r, df, prior_df) in [(0.3, 3.0, 4.0), (2.5, 1.0, 12.0), (9.0, 11.0, 2.5)] {
            let f = FisherSnedecor::new(df, prior_df).unwrap().pdf(r) * r;
            assert!((ln_f(r, df, prior_df).exp() / f - 1.0).abs() < 1e-9, "{r} {df} {prior_df}");
            let chi = ChiSquared::new(df).unwrap().pdf(r * df) * r * df;
            assert!((ln_chi_square(r, df).exp() / chi - 1.0).abs() < 1e-9, "{r} {df}");
        }
        assert!((ln_f(2.0, 3.0, 9_999.0) - ln_f(2.0, 3.0, f64::INFINITY)).abs() < 1e-3);
    }

    /// A class that is 40 times as unlike as the others: by the others alone its interval holds the truth in a quarter of the runs.
    #[test]
    fn an_outlier_keeps_its_own_variance_and_the_others_theirs() {
        let mut rng = rng(83);
        let (mut own, mut drawn_in, mut others) =
            (Coverage::default(), Coverage::default(), Coverage::default());
        let (mut with, mut without) = (0.0, 0.0);
        let part = part(&[vec![1.0], vec![0.0; 20]].concat());
        let half = |r: &Ratio, part: f64| {
            let (variance, df) = posterior(r, 0.0, part, LEVEL);
            variance.sqrt() * t_quantile(LEVEL, df)
        };
        let interval = |half: f64| Interval { low: -half, high: half };
        for _ in 0..4_000 {
            let (far, error) = seen(&mut rng, 3, 40.0);
            own.note(interval(half(&far, part)), error);
            drawn_in.note(interval(half(&far, 0.0)), error);
            let (near, error) = seen(&mut rng, 3, 1.0);
            others.note(interval(half(&near, part)), error);
            with += half(&near, part);
            without += half(&near, 0.0);
        }
        own.check(0.88, 0.97, "outlier");
        others.check(0.945, 0.985, "others");
        assert!(drawn_in.share() < 0.3 && with < 1.15 * without, "{} {with} {without}", drawn_in.share());
    }

    #[test]
    fn the_part_of_outliers_is_found() {
        let mut rng = rng(84);
        let mut all: Vec<Ratio> = (0..200).map(|_| seen(&mut rng, 5, 1.0).0).collect();
        let of = |all: &[Ratio]| {
            (0..20)
                .fold(before(), |p, _| part(&all.iter().map(|r| probability(r, 0.0, p)).collect::<Vec<_>>()))
        };
        assert!(of(&all) < 0.04, "{}", of(&all));
        all.iter_mut().take(60).for_each(|r| r.ratio *= 50.0);
        assert!((0.25..0.40).contains(&of(&all)), "{}", of(&all));
        assert!(part(&[]) == before());
    }

    #[test]
    fn what_is_not_seen_or_not_drawn_is_as_before() {
        let plain = Ratio { ratio: 1.7, df: 3.0, drawn: 1.0 };
        let expected = moderated::posterior((1.0, moderated::prior_df(0.5, 1.0)), (1.7, 3.0));
        assert_eq!(posterior(&plain, 0.5, 0.0, LEVEL), expected, "there are no outliers");
        // All of the variance is known: nobody is an outlier in it.
        let (variance, df) = posterior(&Ratio { drawn: 0.0, ..plain }, 0.5, 0.2, LEVEL);
        assert!((variance - 1.0).abs() < 1e-6 && df.is_infinite(), "{variance} {df}");
        // Of one that was seen once, the part of outliers is all that is known.
        let (variance, _) = posterior(&Ratio { ratio: 1.0, df: 0.0, drawn: 1.0 }, 0.0, 0.1, LEVEL);
        assert!((1.5..8.0).contains(&variance), "{variance}");
        for ratio in [0.0, 1e-300, 1e300, f64::INFINITY] {
            let (variance, df) = posterior(&Ratio { ratio, ..plain }, 0.5, 0.1, LEVEL);
            assert!(variance > 0.0 && !df.is_nan(), "{ratio}: {variance} {df}");
        }
    }
}
