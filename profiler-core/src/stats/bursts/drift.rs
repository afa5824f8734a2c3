//! How much a target's rates drift between bursts, learned from all of its classes together.
//!
//! A handful of bursts of one class says little of how unlike bursts are (with four, the interval of their mean is 1.6 times as
//! wide as if that were known; with two, 6.5 times), and one burst says nothing. But what makes bursts unlike is mostly the same for all classes: the
//! host's speed, the target's phases. So the variance between bursts beyond Poisson's is pooled over the classes, and each
//! class's own spread is weighed against it, as in moderated t statistics (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3, art. 3).
//!
//! A class whose bursts are far more unlike than that (its calls come in clusters) keeps its own spread.

use super::{Burst, Stop, Weighed};
use crate::stats::{Interval, counts, t_quantile, z_quantile};

/// Classes with several bursts from which drift can be told.
const ENOUGH_CLASSES: usize = 5;
/// Fewest hits of a burst: of fewer, Poisson's variance hides it.
const ENOUGH_HITS: f64 = 20.0;
/// What the pooled variance counts for beside a class's own at most, degrees of freedom.
const PRIOR_DF: f64 = 4.0;
/// ... and at least: a run of few moments.
const LEAST_DF: f64 = 2.0;
/// Windows shorter than that are brief ones, s: they see or miss single long calls, stalls, turns of the scheduler.
const BRIEF_S: f64 = 0.05;
/// Hits that a brief window must be expected to see, whatever it saw.
const EXPECTED: f64 = 5.0;
/// A class that was watched for so many times as long as a brief window tells what that should have shown.
const KNOWN_BETTER: f64 = 10.0;
/// Largest variance of one burst relative to the squared rate: as a lognormal, 7 times more or less.
const MOST: f64 = 1.0;
/// Median of chi^2 with one degree of freedom.
const MEDIAN_OF_ONE: f64 = 0.455;
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
    /// What is to be added for a window of T s: this over T, s.
    pub brief_s: f64,
    /// Degrees of freedom of the variance.
    pub df: f64,
    /// The same together with a class's own, at most: classes that were watched in the same moments say the same of them.
    pub most_df: f64,
}

/// Variance of a burst's rate by Poisson alone, relative to the squared rate.
fn poisson(burst: &Burst, rate: f64) -> f64 {
    match burst.stop {
        Stop::Quota => 1.0 / (burst.hits as f64 - 2.0).max(1.0),
        Stop::Window => 1.0 / (rate * burst.time_s).max(f64::MIN_POSITIVE),
    }
}

/// A class's bursts, relative to the squared mean rate. All sums are weighted with squared weights.
struct Spread {
    /// What the drift's variance is multiplied by: one over how many moments a burst is the mean of.
    moments: f64,
    /// What [`Drift::brief_s`] is multiplied by.
    brief: f64,
    /// Drift's variance.
    drift: f64,
    /// Variance between the bursts.
    own: f64,
    /// Poisson's.
    poisson: f64,
    /// What no spread shows: see [`Weighed::apart`].
    apart: f64,
    /// Degrees of freedom of `own`: `(sum w)^2 / sum w^2 - 1`, for what one burst outweighs does not show.
    df: f64,
}

impl Spread {
    fn of(bursts: &[&Burst], weighed: &Weighed, drift: &Drift) -> Self {
        let mean = weighed.mean.max(f64::MIN_POSITIVE);
        // All relative to the squared mean rate; where a stratum's rate is higher, so is what its bursts drift by.
        let of = |f: &dyn Fn(&Burst) -> f64| weighed.squares(bursts, |b, rate| (rate / mean).powi(2) * f(b));
        Self {
            moments: of(&|b| 1.0 / drift.moments(b)),
            brief: of(&|b| 1.0 / b.time_s),
            drift: of(&|b| drift.variance_of(b)),
            own: weighed.spread / (mean * mean),
            poisson: weighed.squares(bursts, |b, rate| (rate / mean).powi(2) * poisson(b, rate)),
            apart: weighed.apart / (mean * mean),
            df: weighed.df,
        }
    }
}

/// The middle one.
fn median(mut of: Vec<f64>) -> Option<f64> {
    of.retain(|x| x.is_finite());
    of.sort_by(f64::total_cmp);
    (of.len() >= ENOUGH_CLASSES).then(|| of[of.len() / 2])
}

/// What brief windows are off by beyond Poisson's variance, times their length, s: the median over those of classes that are known better.
fn brief_s(classes: &[Vec<&Burst>]) -> f64 {
    let mut found = Vec::new();
    for bursts in classes.iter().filter(|bursts| bursts.len() > 1) {
        let mean = Weighed::of(bursts, &[], |b| b.time_s).mean;
        let time_s: f64 = bursts.iter().map(|b| b.time_s).sum();
        let known = |b: &&&Burst| time_s > KNOWN_BETTER * b.time_s && mean * b.time_s >= EXPECTED;
        let brief = bursts.iter().filter(|b| b.time_s < BRIEF_S).filter(known);
        found.extend(brief.map(|b| {
            let off = (b.events() / b.time_s / mean.max(f64::MIN_POSITIVE) - 1.0).powi(2);
            b.time_s * (off / MEDIAN_OF_ONE - poisson(b, mean))
        }));
    }
    median(found).map_or(0.0, |s| s.max(0.0))
}

impl Drift {
    /// From the bursts of all classes, where enough of them have several; `apart_s`: how far apart those were begun; `moments`: in how many
    /// moments of the target all of them together lie.
    ///
    /// The median over classes of (variance between bursts / the median of chi^2_m-1 / (m-1)) less Poisson's and that of brief windows: a few
    /// whose calls come in clusters do not count for all.
    #[must_use]
    pub fn pooled<'a>(
        classes: impl Iterator<Item = &'a [Burst]>,
        apart_s: f64,
        moments: f64,
    ) -> Option<Self> {
        let classes: Vec<Vec<&Burst>> =
            classes.map(|bursts| bursts.iter().filter(|b| b.time_s > 0.0).collect()).collect();
        let most_df = (moments - 1.0).max(LEAST_DF);
        let df = most_df.min(PRIOR_DF);
        let none = Self { variance: 0.0, apart_s, brief_s: brief_s(&classes), df, most_df };
        let excess = classes.iter().filter_map(|bursts| {
            let bursts: Vec<&Burst> =
                bursts.iter().filter(|b| b.hits as f64 >= ENOUGH_HITS).copied().collect();
            if bursts.len() < 2 {
                return None;
            }
            let spread = Spread::of(&bursts, &Weighed::of(&bursts, &[], |b| b.time_s), &none);
            // Median of chi^2 over its degrees of freedom (Wilson and Hilferty 1931).
            let df = bursts.len() as f64 - 1.0;
            let median = (1.0 - 2.0 / (9.0 * df)).powi(3);
            Some((spread.own / median - spread.poisson - none.brief_s * spread.brief) / spread.moments)
        });
        Some(Self { variance: median(excess.collect())?.max(0.0), ..none })
    }

    /// How many moments a burst is the mean of.
    fn moments(&self, burst: &Burst) -> f64 {
        (burst.time_s / self.apart_s.max(1e-9)).max(1.0)
    }

    /// Of one burst's rate, relative to the squared rate.
    fn variance_of(&self, burst: &Burst) -> f64 {
        (self.variance / self.moments(burst) + self.brief_s / burst.time_s.max(1e-9)).min(MOST)
    }

    /// The interval of a mean of several bursts.
    pub(super) fn interval(&self, bursts: &[&Burst], weighed: &Weighed, level: f64) -> Option<Interval> {
        let spread = Spread::of(bursts, weighed, self);
        let value = weighed.mean;
        let common = spread.poisson + spread.drift;
        if spread.own > UNLIKE * common || value <= 0.0 {
            return None;
        }
        let df = spread.df + self.df;
        let variance = ((self.df * common + spread.df * spread.own) / df).max(spread.poisson) + spread.apart;
        let adjust = z_quantile(level) / t_quantile(level, df.min(self.most_df));
        let k = adjust * adjust / variance;
        Some(counts::garwood(k, level).scaled(value / k))
    }

    /// The interval of a single burst, `poisson`, with what another moment would have shown.
    pub(super) fn widened(&self, burst: &Burst, value: f64, poisson: Interval, level: f64) -> Interval {
        // As a lognormal: a rate that halves is as far off as one that doubles.
        let factor = (t_quantile(level, self.df) * self.variance_of(burst).sqrt()).exp();
        let down = (value - poisson.low).hypot(value - value / factor);
        let up = (poisson.high - value).hypot(value * factor - value);
        Interval { low: (value - down).max(0.0), high: value + up }
    }
}
