//! How much a target's rates drift between bursts, learned from all of its classes together.
//!
//! A handful of bursts of one class says little of how unlike bursts are (with four, the interval of their mean is 1.6 times as
//! wide as if that were known; with two, 6.5 times), and one burst says nothing. Other classes' bursts say more, in two ways:
//! - What all of them do *together* in time ([`Course`]) is taken off first. It is one change, not one for each class: it is known with as many degrees of freedom
//!   as there are moments, less one.
//! - What is left is each class's *own*. Its variance is moderated by those of the others, whose weight follows from how unlike they are (`moderated.rs`;
//!   Smyth 2004), unless it is an outlier, of which they do not speak (`outliers.rs`). The expectation for a class is Poisson's variance and the pooled drift: `v_g = P_g + phi m_g + B_g`.
//!
//! ```text
//! phi:  sum h_g^2 [e_g + digamma(d_0g/2) - log(d_0g/2)] = 0,   e_g of s_g^2 / v_g,   h_g = 1 - P_g / v_g
//! V(R) = v u (d_0g + d_g s^2/v) / (d_0g + d_g)  +  V_c sum_b (sum_b a_j)^2  +  A
//! ```
//! `u`: what outliers add; `a_j`: weights of the bursts; `V_c`: variance between moments; `A`: what is left of changes ([`Weighed::apart`]). t has Satterthwaite's degrees of freedom (1946).

use super::course::{Course, Point};
use super::{Burst, Cell, Stop, Weighed, usable};
use crate::stats::moderated::{self, Ratio};
use crate::stats::outliers;
use crate::stats::polygamma::trigamma;
use crate::stats::{Interval, counts, t_quantile, z_quantile};

/// Classes with several bursts from which drift can be told.
const ENOUGH_CLASSES: usize = 5;
/// Fewest hits that a burst must be expected to see, whatever it saw: where they are fewer, Poisson's variance hides it.
const ENOUGH_HITS: f64 = 20.0;
/// A class of which one burst outweighs the others tells nothing, degrees of freedom.
const LEAST_OWN_DF: f64 = 0.5;
/// Degrees of freedom of the prior where no class tells how unlike they are.
const PRIOR_DF: f64 = 4.0;
/// What the prior counts for at least where nothing but the prior is known.
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
/// The course and what is beside it are told from one another so often, and so are `phi` and the prior's degrees of freedom.
const ROUNDS: u32 = 3;

/// What one class's bursts say: with a [`Cell`] each, or none where it is not known when they were.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Its bursts, in order of time.
    pub bursts: &'a [Burst],
    /// Their cells, or none.
    pub cells: &'a [Cell],
}

/// What bursts of any class of a target differ by beyond Poisson's variance.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Drift {
    /// Variance of one burst's rate relative to the squared mean rate, beside what all classes do together (`phi`).
    pub variance: f64,
    /// Time after which the rate is another, s: a longer window is a mean of several.
    pub apart_s: f64,
    /// What is to be added for a window of T s: this over T, s.
    pub brief_s: f64,
    /// How unlike the classes are in it: variance of the logarithm of their true variances, `trigamma(d_0/2)`.
    pub(super) spread: f64,
    /// Part of the classes that the others say nothing of (`outliers.rs`).
    pub(super) outliers: f64,
    /// Degrees of freedom of all classes together: no class knows more than they do.
    pub(super) most_df: f64,
    /// What all classes do together.
    pub(super) course: Course,
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
fn brief_s(classes: &[(Vec<&Burst>, Vec<Cell>)]) -> f64 {
    let mut found = Vec::new();
    for (bursts, _) in classes.iter().filter(|(bursts, _)| bursts.len() > 1) {
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

/// What is told of one class with several bursts, of its own.
struct Told {
    spread: Spread,
    /// Degrees of freedom of its own spread.
    df: f64,
    /// The same before the course was taken off.
    balanced: f64,
    /// Bursts.
    bursts: f64,
    /// What its own variance shows of a variance that is the same of each burst, 1 where they are equally long: of weights `a` whose squares are
    /// `S` together, `m/(m-1) sum a^2 (1 - 2a + S) / S`.
    of_equal: f64,
    /// The same of one that goes with 1 / length, as Poisson's: `m/(m-1) (1 - S)`.
    of_brief: f64,
    /// Hits of a burst, in the mean.
    hits: f64,
}

impl Told {
    /// Its variance over what is expected where the drift's is `phi`.
    fn ratio(&self, drift: &Drift, phi: f64) -> Ratio {
        let s = &self.spread;
        let expected = s.poisson + drift.brief_s * s.brief + phi * s.moments;
        Ratio {
            ratio: (s.own / expected).max(least_ratio(self.hits)),
            df: self.df,
            drawn: 1.0 - s.poisson / expected,
        }
    }

    /// How much it says of `phi`.
    fn weight(&self, drift: &Drift) -> f64 {
        let s = &self.spread;
        (s.moments / (s.poisson + drift.brief_s * s.brief + drift.variance * s.moments)).powi(2)
    }
}

/// A variance over the expected one that bursts of so many hits cannot tell from none: that of rounding to whole hits.
fn least_ratio(hits: f64) -> f64 {
    /// Variance of rounding.
    const ROUNDING: f64 = 1.0 / 12.0;
    ROUNDING / hits.max(1.0)
}

/// Bursts that are expected to see hits, in which drift shows.
fn telling((bursts, cells): &(Vec<&Burst>, Vec<Cell>)) -> Option<(Vec<Burst>, Vec<Cell>)> {
    let mean = Weighed::of(bursts, cells, |b| b.time_s).mean;
    let expected = |b: &Burst| match b.stop {
        Stop::Quota => b.hits as f64,
        Stop::Window => mean * b.time_s,
    };
    let is_telling = |b: &Burst| b.events() > 0.0 && expected(b) >= ENOUGH_HITS;
    let cells: Vec<Cell> = bursts.iter().zip(cells).filter(|(b, _)| is_telling(b)).map(|(_, c)| *c).collect();
    let bursts: Vec<Burst> = bursts.iter().filter(|b| is_telling(b)).map(|b| **b).collect();
    (bursts.len() > 1).then_some((bursts, cells))
}

impl Drift {
    /// From the bursts of all classes, where enough of them have several; `apart_s`: how far apart those were begun; `moments`: of how many
    /// moments the run is made, as far as bursts have cells.
    #[must_use]
    pub fn pooled<'a>(classes: impl Iterator<Item = Seen<'a>>, apart_s: f64, moments: f64) -> Option<Self> {
        let classes: Vec<(Vec<&Burst>, Vec<Cell>)> =
            classes.map(|seen| usable(seen.bursts, seen.cells)).collect();
        let telling: Vec<(Vec<Burst>, Vec<Cell>)> = classes.iter().filter_map(telling).collect();
        let mut drift = Self { apart_s, brief_s: brief_s(&classes), ..Self::default() };
        let told = |drift: &Self| -> Vec<Told> {
            telling.iter().filter_map(|(bursts, cells)| drift.told(bursts, cells)).collect()
        };
        let enough =
            |told: &[Told]| told.iter().filter(|t| t.balanced >= LEAST_OWN_DF).count() >= ENOUGH_CLASSES;
        let first = told(&drift);
        if !enough(&first) {
            return drift.plain(&first);
        }
        let balanced = first.iter().filter(|t| t.balanced >= LEAST_OWN_DF);
        drift.variance = drift.middle(balanced.map(|t| (t, t.df, (1.0, 1.0))))?;
        for _ in 0..ROUNDS {
            drift.course = drift.common(&telling, moments);
            let told: Vec<Told> = told(&drift).into_iter().filter(|t| t.balanced >= LEAST_OWN_DF).collect();
            drift.settle(&told);
        }
        Some(drift)
    }

    /// The median over classes, each with its degrees of freedom, of what its bursts differ by beyond Poisson's variance and that of brief windows.
    /// How much its own variance shows of both kinds is told beside each.
    fn middle<'a>(&self, told: impl Iterator<Item = (&'a Told, f64, (f64, f64))>) -> Option<f64> {
        let of = |(told, df, (of_equal, of_brief)): (&Told, f64, (f64, f64))| {
            // Median of chi^2 over its degrees of freedom (Wilson and Hilferty 1931).
            let median = (1.0 - 2.0 / (9.0 * df.max(1.0))).powi(3);
            let Spread { own, poisson, moments, brief, .. } = told.spread;
            (own / median - of_brief * (poisson + self.brief_s * brief)) / (of_equal * moments)
        };
        Some(median(told.map(of).collect())?.clamp(0.0, MOST))
    }

    /// Where one window of nearly each class outweighs its others: its own variance is then no chi^2 of few degrees of freedom, so that nothing says how
    /// unlike classes are. The middle one stands for all.
    fn plain(mut self, told: &[Told]) -> Option<Self> {
        self.variance = self.middle(told.iter().map(|t| (t, t.bursts - 1.0, (t.of_equal, t.of_brief))))?;
        self.spread = trigamma(PRIOR_DF / 2.0);
        self.most_df = told.iter().map(|t| t.bursts - 1.0).sum();
        Some(self)
    }

    /// The same for rates in which the course does not show, or shows otherwise: all of it is taken for each class's own.
    #[must_use]
    pub fn without_course(&self) -> Self {
        let variance = self.variance + self.course.variance();
        let most_df = if self.course.variance() > self.variance {
            self.most_df.min(self.course.df.max(LEAST_DF))
        } else {
            self.most_df
        };
        Self { variance, most_df, course: Course::default(), ..self.clone() }
    }

    /// What all classes do together, where they differ otherwise by what this says.
    fn common(&self, classes: &[(Vec<Burst>, Vec<Cell>)], moments: f64) -> Course {
        let mut points = Vec::new();
        for (class, (bursts, cells)) in classes.iter().enumerate() {
            // Without cells there are no points.
            points.extend(bursts.iter().zip(cells).map(|(b, cell)| Point {
                class,
                at: cell.at,
                log: (b.events() / b.time_s).ln(),
                variance: 1.0 / (b.hits as f64 - 2.0).max(1.0) + self.variance_of(b),
            }));
        }
        let with_cells = classes.iter().filter(|(bursts, cells)| bursts.len() == cells.len()).count();
        if with_cells == classes.len() {
            Course::of(&points, classes.len(), moments)
        } else {
            Course::default()
        }
    }

    /// Bursts as they would be had all classes' rates stayed what they are in the mean.
    fn alone(&self, bursts: &[&Burst], cells: &[Cell]) -> Vec<Burst> {
        let mut alone: Vec<Burst> = bursts.iter().map(|b| **b).collect();
        for (burst, cell) in alone.iter_mut().zip(cells) {
            burst.time_s *= self.course.factor(cell);
        }
        alone
    }

    fn told(&self, bursts: &[Burst], cells: &[Cell]) -> Option<Told> {
        let bursts: Vec<&Burst> = bursts.iter().collect();
        let alone = self.alone(&bursts, cells);
        let alone: Vec<&Burst> = alone.iter().collect();
        let weighed = Weighed::of(&alone, cells, |b| b.time_s);
        let spread = Spread::of(&alone, &weighed, self);
        let (m, squares) = (bursts.len() as f64, weighed.weights.iter().map(|a| a * a).sum::<f64>());
        let shown: f64 = weighed.weights.iter().map(|a| a * a * (1.0 - 2.0 * a + squares)).sum();
        // Before what the course took: how balanced windows are does not depend on it.
        let balanced = spread.df;
        let df = spread.df * self.course.left;
        let hits = bursts.iter().map(|b| b.hits as f64).sum::<f64>() / bursts.len() as f64;
        (df > 0.0 && spread.poisson > 0.0 && spread.own.is_finite()).then_some(Told {
            spread,
            df,
            balanced,
            bursts: m,
            of_equal: m / (m - 1.0) * shown / squares,
            of_brief: m / (m - 1.0) * (1.0 - squares),
            hits,
        })
    }

    /// `phi` and how unlike the classes are in it.
    fn settle(&mut self, told: &[Told]) {
        /// Below it drift is nothing, and the steps of the bisection.
        const LEAST: f64 = 1e-9;
        const STEPS: u32 = 24;
        self.most_df = told.iter().map(|t| t.df).sum();
        self.outliers = outliers::before();
        let mut ordinary = vec![1.0; told.len()];
        for _ in 0..ROUNDS {
            let weights: Vec<f64> = told.iter().zip(&ordinary).map(|(t, o)| o * t.weight(self)).collect();
            // What the prior's mean logarithm is changes little with phi: it is that of the round before.
            let shifts: Vec<f64> =
                told.iter().map(|t| t.ratio(self, self.variance).shift(self.spread)).collect();
            // Falls as phi grows.
            let above = |phi: f64| {
                let of = |((t, w), shift): ((&Told, &f64), &f64)| w * (t.ratio(self, phi).ratio.ln() + shift);
                told.iter().zip(&weights).zip(&shifts).map(of).sum::<f64>()
            };
            let (mut low, mut high) = (LEAST, MOST);
            for _ in 0..STEPS {
                let middle = (low * high).sqrt();
                if above(middle) > 0.0 { low = middle } else { high = middle }
            }
            self.variance = if above(LEAST) > 0.0 { high } else { 0.0 };
            let ratios: Vec<Ratio> = told.iter().map(|t| t.ratio(self, self.variance)).collect();
            self.spread = moderated::spread(&ratios, &ordinary);
            let unlike: Vec<f64> =
                ratios.iter().map(|r| outliers::probability(r, self.spread, self.outliers)).collect();
            self.outliers = outliers::part(&unlike);
            ordinary = unlike.iter().map(|w| 1.0 - w).collect();
        }
    }

    /// How many moments a burst is the mean of.
    fn moments(&self, burst: &Burst) -> f64 {
        (burst.time_s / self.apart_s.max(1e-9)).max(1.0)
    }

    /// Of one burst's rate by itself, relative to the squared rate.
    fn variance_of(&self, burst: &Burst) -> f64 {
        (self.variance / self.moments(burst) + self.brief_s / burst.time_s.max(1e-9)).min(MOST)
    }

    /// The interval of a mean of several bursts.
    pub(super) fn interval(
        &self,
        bursts: &[&Burst],
        cells: &[Cell],
        weighed: &Weighed,
        level: f64,
    ) -> Option<Interval> {
        let value = weighed.mean;
        if value <= 0.0 {
            return None;
        }
        if cells.len() != bursts.len() && self.course != Course::default() {
            return self.without_course().interval(bursts, cells, weighed, level);
        }
        let alone = self.alone(bursts, cells);
        let alone: Vec<&Burst> = alone.iter().collect();
        let own = Spread::of(&alone, &Weighed::of(&alone, cells, |b| b.time_s), self);
        let here = Spread::of(bursts, weighed, self);
        // Weights differ between the two, so it is the ratio that is moderated.
        let expected = here.poisson + here.drift;
        let ratio = own.own / (own.poisson + own.drift).max(f64::MIN_POSITIVE);
        let drawn = here.drift / expected;
        // Bursts that are all alike tell more than bursts that are nearly so, not nothing.
        let hits = alone.iter().map(|b| b.hits as f64).sum::<f64>() / alone.len().max(1) as f64;
        let ratio = ratio.max(least_ratio(hits));
        let seen = Ratio { ratio, df: own.df * self.course.left, drawn };
        let (ratio, df) = outliers::posterior(&seen, self.spread, self.outliers, level);
        let by_itself = (ratio * expected).max(here.poisson) + here.apart;
        let df = df.min(self.most_df / (drawn * drawn).max(f64::MIN_POSITIVE));
        let parts = weighed.shares().zip(bursts).map(|(share, b)| share / self.moments(b).sqrt());
        let together = self.course.variance_of(parts, cells, weighed.change);
        let k = adjusted(level, &[(by_itself, df), (together, self.course.df)]);
        Some(counts::garwood(k, level).scaled(value / k))
    }

    /// The interval of a single burst, `poisson`, with what another moment would have shown.
    pub(super) fn widened(&self, burst: &Burst, value: f64, poisson: Interval, level: f64) -> Interval {
        // One burst does not tell whether the others speak of its class.
        let untold = Ratio { ratio: 1.0, df: 0.0, drawn: 1.0 };
        let (times, _) = outliers::posterior(&untold, self.spread, self.outliers, level);
        let by_itself = (self.variance_of(burst) * times).min(MOST);
        let together = self.course.variance() / self.moments(burst);
        let df = moderated::prior_df(self.spread, 1.0).min(self.most_df).max(LEAST_DF);
        let df = satterthwaite(&[(by_itself, df), (together, self.course.df)]).max(LEAST_DF);
        // As a lognormal: a rate that halves is as far off as one that doubles.
        let factor = (t_quantile(level, df) * (by_itself + together).min(MOST).sqrt()).exp();
        let down = (value - poisson.low).hypot(value - value / factor);
        let up = (poisson.high - value).hypot(value * factor - value);
        Interval { low: (value - down).max(0.0), high: value + up }
    }
}

/// Degrees of freedom of a sum of variances (Satterthwaite 1946); infinite of none.
fn satterthwaite(parts: &[(f64, f64)]) -> f64 {
    let sum: f64 = parts.iter().map(|(v, _)| v).sum();
    let squares: f64 = parts.iter().map(|(v, df)| v * v / df.max(f64::MIN_POSITIVE)).sum();
    if squares > 0.0 { sum * sum / squares } else { f64::INFINITY }
}

/// Shape of the gamma variable of mean 1 with the sum of these relative variances, by t.
fn adjusted(level: f64, parts: &[(f64, f64)]) -> f64 {
    let adjust = z_quantile(level) / t_quantile(level, satterthwaite(parts));
    let variance: f64 = parts.iter().map(|(v, _)| v).sum();
    adjust * adjust / variance.max(f64::MIN_POSITIVE)
}
