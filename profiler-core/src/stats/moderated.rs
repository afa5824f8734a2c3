//! Variances that learn from one another: empirical Bayes (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3, art. 3, §6.2).
//!
//! Each class g has a variance `s_g^2` with `d_g` degrees of freedom around a true one, and the true ones are drawn from `s_0^2 d_0 / chi^2(d_0)`:
//! ```text
//! e_g = log s_g^2 - digamma(d_g/2) + log(d_g/2)
//! trigamma(d_0/2) = mean { (e_g - mean e)^2 n/(n-1) - trigamma(d_g/2) }
//! log s_0^2 = mean e + digamma(d_0/2) - log(d_0/2)
//! s~_g^2 = (d_0 s_0^2 + d_g s_g^2) / (d_0 + d_g),   t with d_0 + d_g degrees of freedom
//! ```
//! Where the mean is not above 0 the true variances are all alike: `d_0` is infinite. Nothing is tested before: how far a class may be from the
//! others is told by how far apart all of them are.
//!
//! Here a part `1 - h_g` of each variance is known (Poisson's). Only the rest, `h_g`, is drawn, so that the logarithm of the whole varies `h_g` times
//! as much (to first order): `trigamma(d_0g/2) = h_g^2 trigamma(d_0/2)`, and the mean becomes the least-squares fit through 0 of the braces on
//! `h_g^2`. With all `h_g` = 1 it is Smyth's. Without it functions that are called seldom, whose variance is all but known, would lend those that
//! are called often a certainty that is not theirs.

use super::polygamma::{trigamma, trigamma_inverse};
use statrs::function::gamma::digamma;

/// One class's variance over what is expected of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ratio {
    /// `s_g^2` over its expectation, above 0.
    pub ratio: f64,
    /// `d_g`, above 0.
    pub df: f64,
    /// `h_g`: the part of the expectation that is not known beforehand, 0 to 1.
    pub drawn: f64,
}

/// Mean of `log(chi^2_d / d)`.
fn mean_log(df: f64) -> f64 {
    if df.is_finite() { digamma(df / 2.0) - (df / 2.0).ln() } else { 0.0 }
}

impl Ratio {
    /// `e_g`.
    fn log(&self) -> f64 {
        self.ratio.ln() - mean_log(self.df)
    }

    /// What is to be added to the logarithm of the ratio for the `log s_0^2` that it alone would tell, where true variances are drawn from a prior of this spread.
    pub(super) fn shift(&self, spread: f64) -> f64 {
        mean_log(prior_df(spread, self.drawn)) - mean_log(self.df)
    }
}

/// `trigamma(d_0/2)`: the variance of the logarithms of true variances; 0 where they are all alike, or of fewer than two classes. Each class
/// counts for its `weight`, 0 to 1.
#[must_use]
pub(super) fn spread(ratios: &[Ratio], weight: &[f64]) -> f64 {
    let n = weight.iter().sum::<f64>();
    if ratios.len() < 2 || n <= 1.0 {
        return 0.0;
    }
    let mean = ratios.iter().zip(weight).map(|(r, w)| w * r.log()).sum::<f64>() / n;
    let (mut sum, mut weights) = (0.0, 0.0);
    for (r, weight) in ratios.iter().zip(weight) {
        let drawn = r.drawn * r.drawn;
        sum += weight * drawn * ((r.log() - mean).powi(2) * n / (n - 1.0) - trigamma(r.df / 2.0));
        weights += weight * drawn * drawn;
    }
    if weights > 0.0 { (sum / weights).max(0.0) } else { 0.0 }
}

/// `d_0g`: what a prior of this spread counts for beside a class of whose variance the part `drawn` is drawn from it; may be infinite.
#[must_use]
pub(super) fn prior_df(spread: f64, drawn: f64) -> f64 {
    2.0 * trigamma_inverse((drawn * drawn * spread).max(0.0))
}

/// `s~_g^2` and its degrees of freedom, from the prior's (variance, degrees of freedom) and the class's own.
#[must_use]
pub(super) fn posterior(prior: (f64, f64), own: (f64, f64)) -> (f64, f64) {
    let df = prior.1 + own.1;
    if df.is_infinite() { (prior.0, df) } else { ((prior.1 * prior.0 + own.1 * own.0) / df, df) }
}

#[cfg(test)]
mod tests {
    use super::super::sim::{Coverage, normal, rng};
    use super::super::{Interval, LEVEL, t_quantile};
    use super::*;
    use rand::rngs::StdRng;

    fn chi_square(rng: &mut StdRng, df: u32) -> f64 {
        (0..df).map(|_| normal(rng).powi(2)).sum()
    }

    /// 2,000 classes of 3 degrees of freedom whose true variances come from a prior of 6, of which a part is known.
    fn classes(rng: &mut StdRng, prior: Option<u32>, drawn: f64) -> Vec<(Ratio, f64)> {
        let mut class = || {
            let of = prior.map_or(1.0, |d0| f64::from(d0) / chi_square(rng, d0));
            let variance = 1.0 - drawn + drawn * of;
            (Ratio { ratio: variance * chi_square(rng, 3) / 3.0, df: 3.0, drawn }, variance)
        };
        (0..2_000).map(|_| class()).collect()
    }

    #[test]
    fn the_prior_is_found_again() {
        let mut rng = rng(81);
        let of = |all: &[(Ratio, f64)]| {
            let ratios: Vec<Ratio> = all.iter().map(|(r, _)| *r).collect();
            // A class that counts for nothing tells nothing.
            let far = Ratio { ratio: 1e6, ..ratios[0] };
            let weight = [vec![1.0; ratios.len()], vec![0.0]].concat();
            let with_far = spread(&[&ratios[..], &[far]].concat(), &weight);
            assert_eq!(spread(&ratios, &weight[..ratios.len()]), with_far);
            with_far
        };
        let six = of(&classes(&mut rng, Some(6), 1.0));
        assert!((5.0..7.2).contains(&prior_df(six, 1.0)), "{}", prior_df(six, 1.0));
        let alike = of(&classes(&mut rng, None, 1.0));
        assert!(prior_df(alike, 1.0) > 60.0, "{}", prior_df(alike, 1.0));
        // Where a third is drawn the same prior is found, and counts for more.
        let third = of(&classes(&mut rng, Some(6), 0.3));
        assert!((3.0..14.0).contains(&prior_df(third, 1.0)), "{}", prior_df(third, 1.0));
        assert!(prior_df(third, 0.3) > 5.0 * prior_df(third, 1.0));
        assert!(prior_df(0.0, 1.0).is_infinite() && prior_df(six, 0.0).is_infinite());
        assert_eq!(
            (spread(&[], &[]), posterior((2.0, f64::INFINITY), (9.0, 3.0))),
            (0.0, (2.0, f64::INFINITY))
        );
        assert_eq!(posterior((2.0, 3.0), (4.0, 1.0)), (2.5, 4.0));
    }

    #[test]
    fn moderated_t_covers_and_is_narrower_than_its_own() {
        let mut rng = rng(82);
        let (mut moderated, mut pooled) = (Coverage::default(), Coverage::default());
        let (mut with, mut without) = (0.0, 0.0);
        let all = classes(&mut rng, Some(6), 1.0);
        let spread = spread(&all.iter().map(|(r, _)| *r).collect::<Vec<_>>(), &vec![1.0; all.len()]);
        let scale =
            (all.iter().map(|(r, _)| r.ratio.ln() + r.shift(spread)).sum::<f64>() / all.len() as f64).exp();
        // Its standard error is 0.045: 0.026 of 2,000 logarithms, the rest of d_0.
        assert!((0.87..1.14).contains(&scale), "{scale}");
        for (r, variance) in &all {
            let error = variance.sqrt() * normal(&mut rng);
            let (s2, df) = posterior((scale, prior_df(spread, r.drawn)), (r.ratio, r.df));
            let half = t_quantile(LEVEL, df) * s2.sqrt();
            moderated.note(Interval { low: -half, high: half }, error);
            with += half;
            without += t_quantile(LEVEL, r.df) * r.ratio.sqrt();
            // The pooled value for all, as if it were known.
            let half = 1.96 * scale.sqrt();
            pooled.note(Interval { low: -half, high: half }, error);
        }
        moderated.check(0.935, 0.965, "moderated");
        assert!(pooled.share() < 0.925 && with < 0.85 * without, "{} {with} {without}", pooled.share());
    }
}
