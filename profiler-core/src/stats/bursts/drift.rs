//! How much a target's rates drift between bursts, learned from all of its classes together.
//!
//! A handful of bursts of one class says little of how unlike bursts are (with four, the interval of their mean is 1.6 times as
//! wide as if that were known; with two, 6.5 times), and one burst says nothing. But what makes bursts unlike is mostly the same for all classes: the
//! host's speed, the target's phases. So the variance between bursts beyond Poisson's is pooled over the classes, and each
//! class's own spread is weighed against it, as in moderated t statistics (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3, art. 3).
//!
//! A class whose bursts are far more unlike than that (its calls come in clusters) keeps its own spread.

use super::{Burst, Stop};
use crate::stats::{Interval, counts, t_quantile, z_quantile};

/// Classes with several bursts from which drift can be told.
const ENOUGH_CLASSES: usize = 5;
/// Fewest hits of a burst: of fewer, Poisson's variance hides it.
const ENOUGH_HITS: f64 = 20.0;
/// What the pooled variance counts for beside a class's own, degrees of freedom.
const PRIOR_DF: f64 = 4.0;
/// A class whose own variance is larger than the pooled one by this factor keeps its own (95 % point of F at 3 and many
/// degrees of freedom).
const UNLIKE: f64 = 2.6;

/// What bursts of any class of a target differ by beyond Poisson's variance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drift {
    /// Variance of one burst's rate relative to the squared mean rate.
    pub variance: f64,
    /// Time after which the rate is another, s: a longer window is a mean of several.
    pub apart_s: f64,
}

/// Variance of a burst's rate by Poisson alone, relative to the squared rate.
fn poisson(burst: &Burst, rate: f64) -> f64 {
    match burst.stop {
        Stop::Quota => 1.0 / (burst.hits as f64 - 2.0).max(1.0),
        Stop::Window => 1.0 / (rate * burst.time_s).max(f64::MIN_POSITIVE),
    }
}

/// Of a class's bursts, relative to the squared mean rate: squares of the weights, summed; the variance between the bursts times that; Poisson's.
fn spread(bursts: &[&Burst]) -> (f64, f64, f64) {
    let m = bursts.len() as f64;
    let (mean, w) = super::weighted(bursts, |b| b.time_s);
    let of = |f: &dyn Fn(&Burst) -> f64| bursts.iter().zip(&w).map(|(b, w)| w * w * f(b)).sum::<f64>();
    let mean = mean.max(f64::MIN_POSITIVE);
    let between = m / (m - 1.0).max(1.0) * of(&|b| (b.events() / b.time_s / mean - 1.0).powi(2));
    (of(&|_| 1.0), between, of(&|b| poisson(b, mean)))
}

impl Drift {
    /// From the bursts of all classes, where enough of them have several; `apart_s`: how far apart those were begun.
    ///
    /// The median over classes of (variance between bursts / the median of chi^2_m-1 / (m-1)) - Poisson's: a few whose calls
    /// come in clusters do not count for all.
    #[must_use]
    pub fn pooled<'a>(classes: impl Iterator<Item = &'a [Burst]>, apart_s: f64) -> Option<Self> {
        let mut excess: Vec<f64> = classes
            .filter_map(|bursts| {
                let bursts: Vec<&Burst> =
                    bursts.iter().filter(|b| b.time_s > 0.0 && b.hits as f64 >= ENOUGH_HITS).collect();
                if bursts.len() < 2 {
                    return None;
                }
                let (squares, between, poisson) = spread(&bursts);
                // Median of chi^2 over its degrees of freedom (Wilson and Hilferty 1931).
                let df = bursts.len() as f64 - 1.0;
                let median = (1.0 - 2.0 / (9.0 * df)).powi(3);
                Some((between / median - poisson) / squares)
            })
            .filter(|x| x.is_finite())
            .collect();
        if excess.len() < ENOUGH_CLASSES {
            return None;
        }
        excess.sort_by(f64::total_cmp);
        Some(Self { variance: excess[excess.len() / 2].max(0.0), apart_s })
    }

    /// The interval of a mean of several bursts.
    pub(super) fn interval(&self, bursts: &[&Burst], value: f64, level: f64) -> Option<Interval> {
        let (squares, own, poisson) = spread(bursts);
        let common = poisson + self.variance * squares;
        if own > UNLIKE * common || value <= 0.0 {
            return None;
        }
        let own_df = bursts.len() as f64 - 1.0;
        let df = own_df + PRIOR_DF;
        let sum: f64 = super::weighted(bursts, |b| b.time_s).1.iter().sum();
        let variance = ((PRIOR_DF * common + own_df * own) / df).max(poisson) / (sum * sum);
        let adjust = z_quantile(level) / t_quantile(level, df);
        let k = adjust * adjust / variance;
        Some(counts::garwood(k, level).scaled(value / k))
    }

    /// The interval of a single burst, `poisson`, with what another moment would have shown.
    pub(super) fn widened(&self, burst: &Burst, value: f64, poisson: Interval, level: f64) -> Interval {
        let moments = (burst.time_s / self.apart_s.max(1e-9)).max(1.0);
        // As a lognormal: a rate that halves is as far off as one that doubles.
        let factor = (z_quantile(level) * (self.variance / moments).sqrt()).exp();
        let down = (value - poisson.low).hypot(value - value / factor);
        let up = (poisson.high - value).hypot(value * factor - value);
        Interval { low: (value - down).max(0.0), high: value + up }
    }
}
