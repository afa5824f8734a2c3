//! How far single calls lie from what is predicted: intervals and p-values that assume no distribution.
//!
//! Split conformal prediction (Vovk, Gammerman and Shafer 2005; Lei et al. 2018) of the residuals `r = ln(t / f)`, where f was predicted
//! for the call's inputs by a model fitted without them. Calls with like predicted times share a table, since short calls scatter more.

mod grants;
mod residuals;

use super::cells::{MAD, median};
use super::linear::dot;
use crate::stats::Interval;
pub(super) use grants::Grants;
use residuals::Residuals;
use serde::{Deserialize, Serialize};
use statrs::distribution::{Beta, ContinuousCDF as _};

/// Fewest calls of a table, if there are several.
const LEAST: usize = 200;
/// Most tables.
const MOST_TABLES: usize = 8;
/// Probability that the bounds of [`Calibration::tail_bound`] are all right.
const SURE: f64 = 0.99;
/// Fewest calls from which dependence is told.
const LEAST_LAGS: usize = 40;
/// Parts of the calls, the slowest for their inputs, of which is told whether they follow each other. Bets are made on these ([`super::bets`]).
const PARTS: [f64; 5] = [0.5, 0.2, 0.05, 0.02, 0.005];
/// Fewest calls in such a part: of fewer the next larger part tells.
const LEAST_IN_PART: f64 = 10.0;
/// What calls that are too short to be told apart may take longer, ln: as much again. What is taken off them may be off the other way in another run.
const AT_FLOOR: f64 = std::f64::consts::LN_2;
/// So many times as long as the longest call one that was not recorded is taken to be ([`Calibration::mean_square`]).
const LONGER: f64 = 5.0;
/// Numbers of larger residuals at which there are bounds: each is about this times the one before.
const STEP: f64 = 1.3;

/// Residuals of the calls that a model was made from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    tables: Vec<Residuals>,
    /// Of all calls, each residual less its table's median, over its table's spread.
    pooled: Option<Residuals>,
    /// Bounds of the part of calls that lie as high as any but k of the pooled residuals: k, and the bound.
    bounds: Vec<(u64, f64)>,
    /// Calls in a row that say as much as one: 1 if each is independent of the one before.
    dependence: f64,
    /// The same of a call's being among the slowest, for each of [`PARTS`].
    tails: Vec<f64>,
    /// What the cost of watching a call is known to, ns.
    #[serde(default)]
    known_to_ns: f64,
    /// All its calls are too short to be told apart.
    #[serde(default)]
    is_at_floor: bool,
    /// Nobody knows which inputs they had.
    #[serde(default)]
    is_of_any_inputs: bool,
    /// Beside these calls: those that are.
    #[serde(default)]
    short: Option<Box<ShortCalls>>,
}

/// Calls that are predicted to take less than [can be told](super::Basis::floor_ns), and are held against that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShortCalls {
    /// How far they lie from it.
    pub calibration: Calibration,
    /// Smallest and largest value of each input among them.
    pub(super) inputs: Vec<(f64, f64)>,
}

impl Calibration {
    /// From the predicted time (ns) and the residual of each call, in the order of the calls.
    #[must_use]
    pub fn new(calls: Vec<(f64, f64)>) -> Self {
        Self::of(calls, false)
    }

    /// The same of calls that are too short to be told apart: all are predicted to take `floor_ns`, and most residuals are 0.
    pub(super) fn at_floor(floor_ns: f64, residuals: Vec<f64>) -> Self {
        Self::of(residuals.into_iter().map(|r| (floor_ns, r)).collect(), true)
    }

    /// What the cost of watching these calls is known to, and those that are too short beside that.
    pub(super) fn watched(self, known_to_ns: f64, short: Option<ShortCalls>) -> Self {
        Self { known_to_ns, short: short.map(Box::new), ..self }
    }

    /// Nobody knows which inputs these calls had: with others [many calls may be longer](Grants::says_nothing_together).
    pub(super) fn of_any_inputs(self) -> Self {
        Self { is_of_any_inputs: true, ..self }
    }

    /// Calls that are too short to be told apart, if there were any.
    #[must_use]
    pub fn short(&self) -> Option<&ShortCalls> {
        self.short.as_deref()
    }

    fn of(mut calls: Vec<(f64, f64)>, is_at_floor: bool) -> Self {
        calls.retain(|(predicted, r)| predicted.is_finite() && r.is_finite());
        let dependence = dependence(&calls);
        let in_order = calls.clone();
        calls.sort_by(|a, b| a.0.total_cmp(&b.0));
        let count = (calls.len() / LEAST).clamp(1, MOST_TABLES);
        let size = calls.len().div_ceil(count).max(1);
        let mut tables = Vec::new();
        let mut rest = calls.as_slice();
        while let Some(last) = rest.get(size.min(rest.len()).saturating_sub(1)) {
            // Calls with one predicted time stay together, and too few are no table.
            let mut end = rest.partition_point(|c| c.0 <= last.0);
            if rest.len() - end < LEAST / 2 {
                end = rest.len();
            }
            let (own, others) = rest.split_at(end);
            tables.push(Residuals::new(own));
            rest = others;
        }
        let pooled = pooled(&calls, &tables);
        let mut all = Self { tables, pooled, dependence, is_at_floor, ..Self::default() };
        all.tails = all.tails_of(&in_order);
        all.bounds =
            all.pooled.as_ref().map(|p| bounds(p.n, |part| all.dependence_at(part))).unwrap_or_default();
        all
    }

    fn table(&self, predicted_ns: f64) -> Option<&Residuals> {
        self.tables.iter().find(|t| predicted_ns <= t.up_to_ns).or(self.tables.last())
    }

    /// Calls behind it.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.tables.iter().map(|t| t.n).sum()
    }

    /// Half of what the middle 68 % of the residuals of calls with this predicted time span.
    #[must_use]
    pub fn spread(&self, predicted_ns: f64) -> f64 {
        self.table(predicted_ns).map_or(1.0, Residuals::spread)
    }

    /// Calls in a row that say as much as one.
    ///
    /// ```text
    /// 1 + 4 sum rho_k
    /// ```
    /// Autocorrelations rho_k of the residuals in the order of the calls, up to the first pair that is not above chance (Geyer 1992). Twice the
    /// integrated autocorrelation time, less 1: calls that are further apart are nearly independent.
    #[must_use]
    pub fn dependence(&self) -> f64 {
        self.dependence.max(1.0)
    }

    /// Calls in a row that say as much as one of whether a call is among this part, the slowest. What is slow by a little comes in phases (the clock of a
    /// CPU, other programs); calls that are slow by much need not.
    #[must_use]
    pub fn dependence_at(&self, part: f64) -> f64 {
        let above = PARTS.iter().position(|p| *p <= part * (1.0 + 1e-9)).unwrap_or(PARTS.len());
        // Between two parts the larger of both; above the largest all that is known.
        let of = |i: Option<usize>| i.and_then(|i| self.tails.get(i)).copied();
        let is_one = PARTS.get(above).is_some_and(|p| (p - part).abs() <= 1e-9);
        let (here, larger) = (of(Some(above)), of(above.checked_sub(1)));
        let known = match (here, larger) {
            (Some(here), _) if is_one => here,
            (Some(here), Some(larger)) => here.max(larger),
            (None, Some(least)) => least,
            _ => self.dependence,
        };
        known.max(1.0)
    }

    /// See [`Calibration::dependence_at`]. `calls`: predicted time and residual, in their order.
    fn tails_of(&self, calls: &[(f64, f64)]) -> Vec<f64> {
        let Some(pooled) = &self.pooled else { return Vec::new() };
        let standard = |(predicted, r): &(f64, f64)| {
            self.table(*predicted).map_or(0.0, |table| (r - table.median()) / table.spread())
        };
        let standard: Vec<f64> = calls.iter().map(standard).collect();
        let mut tails: Vec<f64> = Vec::new();
        for part in PARTS {
            let slowest = part * calls.len() as f64;
            let last = tails.last().copied().unwrap_or(self.dependence);
            tails.push(if slowest < LEAST_IN_PART {
                last
            } else {
                // Of equal ones that are too many none is. OK because it is at most the number of calls.
                let from = pooled.nth_largest(slowest as u64);
                let is_slow = |z: &f64| f64::from(u8::from(*z >= from && (!self.is_at_floor || *z > 0.0)));
                let share = standard.iter().map(is_slow).sum::<f64>() / standard.len() as f64;
                in_row(&standard.iter().map(|z| is_slow(z) - share).collect::<Vec<f64>>())
            });
        }
        tails
    }

    /// Residuals of a new call with this predicted time (ns), at this level.
    ///
    /// ```text
    /// [r_(floor((n + 1) a / 2)), r_(ceil((n + 1)(1 - a / 2)))],   a = 1 - level
    /// ```
    /// Of calls that are like those before, at least `level` lie in it, whatever their distribution. An end that no residual
    /// bounds is infinite. Of calls that are too short to be told apart the lower one is, and the upper one is no lower than twice what they are predicted to take.
    #[must_use]
    pub fn interval(&self, predicted_ns: f64, level: f64) -> Interval {
        let everything = Interval { low: f64::NEG_INFINITY, high: f64::INFINITY };
        let Some(table) = self.table(predicted_ns) else { return everything };
        let half = (1.0 - level.clamp(0.0, 1.0)) / 2.0;
        // Residuals that may lie beyond each end. OK because it is at most n.
        let beyond = ((table.n + 1) as f64 * half).floor() as u64;
        let high = table.nth_largest(beyond);
        if self.is_at_floor {
            return Interval { low: f64::NEG_INFINITY, high: high.max(AT_FLOOR) };
        }
        Interval { low: table.nth_smallest(beyond), high }
    }

    /// Conformal p-value of a residual: the part of calls that would take as long or longer.
    ///
    /// ```text
    /// p = (1 + #{r_i >= r}) / (n + 1)
    /// ```
    #[must_use]
    pub fn p_value(&self, predicted_ns: f64, residual: f64) -> f64 {
        self.table(predicted_ns).map_or(1.0, |t| (t.at_least(residual) + 1) as f64 / (t.n + 1) as f64)
    }

    /// An upper bound of the part of calls that take as long or longer, which holds at all residuals at once with 99 %.
    ///
    /// A long run is held against few residuals, whose own chance would add up. Residuals of all tables are pooled, each less its table's
    /// median and over its table's spread; with k of n as large or larger (Clopper and Pearson 1934, and a union bound over the k of a
    /// grid, to the next of which k is rounded up):
    /// ```text
    /// P(Bin(n / d, q) <= k / d) = 0.01 / levels,   d: calls that say as much as one of whether they are among the k slowest
    /// ```
    #[must_use]
    pub fn tail_bound(&self, predicted_ns: f64, residual: f64) -> f64 {
        let (Some(table), Some(pooled)) = (self.table(predicted_ns), &self.pooled) else { return 1.0 };
        let k = pooled.at_least((residual - table.median()) / table.spread());
        let place = self.bounds.partition_point(|(level, _)| *level < k);
        self.bounds.get(place).map_or(1.0, |(_, bound)| *bound)
    }

    /// The residual is larger than that of any call behind it, each in its table: [`Calibration::tail_bound`] can fall no further.
    pub(super) fn is_beyond(&self, predicted_ns: f64, residual: f64) -> bool {
        let (Some(table), Some(pooled)) = (self.table(predicted_ns), &self.pooled) else { return false };
        pooled.at_least((residual - table.median()) / table.spread()) == 0
    }

    /// A bound of the mean of `(t / f)^2` of calls with this predicted time f.
    ///
    /// ```text
    /// m = mean of e^2r + (5 L / f)^2 / (n + 1)
    /// ```
    /// The mean is that of the table, those between two that are kept counted as the larger one. L is the longest time of any of all n calls: what makes single calls long (a CPU
    /// that others have, a disk) adds a time, and does not multiply one. One call more is taken to have been five times as long as that. Infinite where there are no calls.
    pub(super) fn mean_square(&self, predicted_ns: f64) -> f64 {
        let Some(table) = self.table(predicted_ns) else { return f64::INFINITY };
        let longest = |t: &Residuals| t.marks.first().map_or(0.0, |(r, _)| t.up_to_ns * r.exp());
        let longest_ns = self.tables.iter().map(longest).fold(0.0, f64::max);
        let more = LONGER * longest_ns / predicted_ns;
        table.mean_square() + more * more / (self.calls() + 1) as f64
    }

    /// What calls may take longer.
    pub(super) fn grants(&self) -> Grants {
        Grants {
            known_to_ns: self.known_to_ns,
            is_at_floor: self.is_at_floor,
            is_of_any_inputs: self.is_of_any_inputs,
        }
    }

    /// Median of the residuals of calls with this predicted time.
    #[must_use]
    pub fn median(&self, predicted_ns: f64) -> f64 {
        self.table(predicted_ns).map_or(0.0, Residuals::median)
    }
}

/// Residuals of all calls, standardised by their tables.
fn pooled(calls: &[(f64, f64)], tables: &[Residuals]) -> Option<Residuals> {
    let mut all = Vec::with_capacity(calls.len());
    let mut rest = calls;
    for table in tables {
        // OK because a table has as many calls as were taken for it.
        let (own, others) = rest.split_at_checked(table.n as usize)?;
        let (middle, spread) = (table.median(), table.spread());
        all.extend(own.iter().map(|(_, r)| (*r - middle) / spread));
        rest = others;
    }
    (!all.is_empty()).then(|| Residuals::of(all, f64::MAX))
}

/// Upper bounds at the numbers of a grid, all right at once with 99 %. `dependence`: calls that say as much as one, of a part of them.
fn bounds(n: u64, dependence: impl Fn(f64) -> f64) -> Vec<(u64, f64)> {
    let mut levels = vec![0_u64];
    while let Some(last) = levels.last().copied().filter(|last| *last < n) {
        // OK because it is at most 1.3 n + 1.
        levels.push((last + 1).max((last as f64 * STEP) as u64).min(n));
    }
    let each = (1.0 - SURE) / levels.len() as f64;
    let bound = |k: u64| {
        let dependence = dependence(k as f64 / n.max(1) as f64);
        let (k, rest) = (k as f64 / dependence, n.saturating_sub(k) as f64 / dependence);
        Some(Beta::new(k + 1.0, rest).ok()?.inverse_cdf(1.0 - each).min(1.0))
    };
    // More calls that are as slow are no smaller a part.
    let mut most = 0.0_f64;
    let rising = |k: u64| {
        most = most.max(bound(k).unwrap_or(1.0));
        (k, most)
    };
    levels.into_iter().map(rising).collect()
}

/// See [`Calibration::dependence`].
fn dependence(calls: &[(f64, f64)]) -> f64 {
    let mut residuals: Vec<f64> = calls.iter().map(|(_, r)| *r).collect();
    let middle = median(&mut residuals.clone());
    residuals.iter_mut().for_each(|r| *r -= middle);
    let spread = MAD * median(&mut residuals.iter().map(|r| r.abs()).collect::<Vec<f64>>());
    // One call of a hundred times its time must not hide what the others do.
    residuals.iter_mut().for_each(|r| *r = r.clamp(-3.0 * spread, 3.0 * spread));
    in_row(&residuals)
}

/// Calls in a row that say as much as one, by the autocorrelation of values with a mean of 0.
fn in_row(values: &[f64]) -> f64 {
    let n = values.len();
    let square = dot(values, values);
    if n < LEAST_LAGS || square <= 0.0 {
        return 1.0;
    }
    let correlation = |lag: usize| dot(values, values.get(lag..).unwrap_or_default()) / square;
    let chance = 2.0 / (n as f64).sqrt();
    let mut sum = 0.0;
    for lag in (1..n / 4).step_by(2) {
        let pair = correlation(lag) + correlation(lag + 1);
        if pair <= chance {
            break;
        }
        sum += pair;
    }
    (1.0 + 4.0 * sum).min(n as f64 / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::sim::{exponential, normal, rng};

    /// Skewed noise that is three times as large for short calls.
    fn calls(n: usize, seed: u64) -> Vec<(f64, f64)> {
        let mut random = rng(seed);
        let one = |_| {
            let predicted = 100.0 * exponential(&mut random, 10.0).max(0.1);
            let scale = if predicted < 700.0 { 0.3 } else { 0.1 };
            (predicted, scale * (exponential(&mut random, 1.0) - 0.7 + 0.2 * normal(&mut random)))
        };
        (0..n).map(one).collect()
    }

    #[test]
    fn intervals_hold_as_many_new_calls_as_they_say_short_and_long_ones() {
        let (mut short, mut long) = ([0_u32; 2], [0_u32; 2]);
        for seed in 0..40 {
            let calibration = Calibration::new(calls(2_000, seed));
            for (predicted, r) in calls(500, 1_000 + seed) {
                let held = calibration.interval(predicted, 0.9).holds(r);
                let of = if predicted < 700.0 { &mut short } else { &mut long };
                of[usize::from(held)] += 1;
            }
        }
        for [out, held] in [short, long] {
            let share = f64::from(held) / f64::from(out + held);
            assert!((0.885..0.925).contains(&share), "{share}");
        }
    }

    #[test]
    fn p_values_are_uniform_or_larger_and_bounds_are_never_too_low() {
        let mut low = 0;
        let mut broken = 0;
        for seed in 0..100 {
            let calibration = Calibration::new(calls(600, seed));
            let fresh = calls(4_000, 5_000 + seed);
            for (predicted, r) in &fresh {
                low += u32::from(calibration.p_value(*predicted, *r) <= 0.05);
            }
            // Each bound against the part of the fresh calls that have it or less, three standard errors aside.
            let mut bounds: Vec<f64> = fresh.iter().map(|(p, r)| calibration.tail_bound(*p, *r)).collect();
            bounds.sort_by(f64::total_cmp);
            let n = bounds.len() as f64;
            broken += u32::from(bounds.iter().enumerate().any(|(i, bound)| {
                let seen = (i as f64 + 1.0) / n;
                *bound < seen - 3.0 * (seen / n).sqrt()
            }));
        }
        let share = f64::from(low) / 400_000.0;
        assert!((0.03..0.052).contains(&share), "{share}");
        assert!(broken <= 2, "{broken} of 100");
    }

    /// Correlation a from call to call: the integrated time is (1 + a) / (1 - a).
    #[test]
    fn dependence_is_told_from_the_order_of_the_calls() {
        for (a, least, most) in [(0.0, 1.0, 1.3), (0.5, 3.5, 7.0), (0.9, 18.0, 60.0)] {
            let mut random = rng(4);
            let mut told: Vec<f64> = (0..20)
                .map(|_| {
                    let mut last = 0.0;
                    let one = |_| {
                        last = a * last + f64::sqrt(1.0 - a * a) * normal(&mut random);
                        (1.0, last)
                    };
                    Calibration::new((0..2_000).map(one).collect()).dependence()
                })
                .collect();
            let middle = median(&mut told);
            assert!((least..=most).contains(&middle), "{a}: {middle} {told:?}");
        }
    }

    /// Calls come in phases that are a tenth slower, and one in fifty is twenty times as slow, independent of others.
    #[test]
    fn phases_that_are_slow_by_a_little_do_not_hide_calls_that_are_slow_by_much() {
        let mut random = rng(12);
        let mut phase = 0.0;
        let one = |i: u32| {
            phase = 0.98 * phase + 0.2 * normal(&mut random);
            let slow = if i.wrapping_mul(2_654_435_761).is_multiple_of(50) { 3.0 } else { 0.0 };
            (1_000.0, 0.1 * phase + slow + 0.01 * normal(&mut random))
        };
        let calibration = Calibration::new((0..4_000).map(one).collect());
        assert!(calibration.dependence() > 30.0 && calibration.dependence_at(0.5) > 30.0);
        for part in [0.005, 0.01, 0.001] {
            assert!(calibration.dependence_at(part) < 3.0, "{part}: {}", calibration.dependence_at(part));
        }
        assert_eq!(calibration.dependence_at(0.9), calibration.dependence());
        // A call that is slower than any of 4,000.
        assert!(calibration.tail_bound(1_000.0, 9.0) < 0.01, "{}", calibration.tail_bound(1_000.0, 9.0));
        // Slow calls that follow each other are dependent at each part.
        let phases = (0..4_000).map(|i| (1.0, if i % 400 < 8 { 3.0 } else { 0.1 * normal(&mut random) }));
        let phases = Calibration::new(phases.collect());
        assert!(phases.dependence_at(0.02) > 4.0, "{}", phases.dependence_at(0.02));
    }

    #[test]
    fn the_mean_of_squares_is_no_lower_than_that_of_the_calls() {
        for n in [300, 5_000, 40_000] {
            let own: Vec<(f64, f64)> = calls(n, 3).into_iter().map(|(_, r)| (1.0, r)).collect();
            let calibration = Calibration::new(own.clone());
            let longest = own.iter().map(|(_, r)| *r).fold(f64::MIN, f64::max);
            let one_more = (LONGER * longest.exp()).powi(2) / (own.len() + 1) as f64;
            let mean = own.iter().map(|(_, r)| (2.0 * r).exp()).sum::<f64>() / own.len() as f64 + one_more;
            let told = calibration.mean_square(1.0);
            assert!(told >= mean * 0.999_999 && told < 1.3 * mean, "{n}: {told} {mean}");
            assert!(
                calibration.is_beyond(1.0, longest + 1e-9) && !calibration.is_beyond(1.0, longest - 1e-9)
            );
        }
        assert!(Calibration::default().mean_square(1.0).is_infinite());
        assert!(!Calibration::default().is_beyond(1.0, 99.0));
    }

    #[test]
    fn few_calls_bound_nothing_and_many_are_kept_in_little() {
        let few = Calibration::new((0..10).map(|i| (1.0, f64::from(i))).collect());
        assert_eq!(few.interval(1.0, 0.95), Interval { low: f64::NEG_INFINITY, high: f64::INFINITY });
        assert!((few.p_value(1.0, 100.0) - 1.0 / 11.0).abs() < 1e-12);
        assert_eq!(few.p_value(1.0, -1.0), 1.0);
        assert_eq!(few.interval(1.0, 0.8), Interval { low: 0.0, high: 9.0 });
        let many = Calibration::new((0..100_000).map(|i| (1.0, f64::from(i % 1_000))).collect());
        assert!(many.tables[0].marks.len() < 600 && many.calls() == 100_000);
        assert!((many.p_value(1.0, 900.0) - 0.1).abs() < 0.01);
        assert!(Calibration::default().interval(1.0, 0.9).high.is_infinite());
        assert_eq!(Calibration::default().p_value(1.0, 9.0), 1.0);
    }
}
