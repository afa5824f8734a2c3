//! Models of loops (§3.1: loops are kernels, too). A loop has no probe, so its time is regressed from samples.
//!
//! Samples fall into a loop inside recorded calls of its function, whose inputs are known. At s samples per second of CPU time, a call that
//! spends g(x) in the loop has Poisson-many of them, with the mean s g(x):
//!
//! ```text
//! K_i ~ Poisson(E_i g(x_i)),   g = sum alpha_j p_j + beta >= 0,   E_i = s · calls with the inputs x_i
//! ```
//! The link is the identity, because times add up. Samples are taken at even distances of CPU time, so counts scatter no more than Poisson's.

use super::class::Class;
use super::linear;
use super::search::RULED_OUT;
use super::sum::{FLOOR, Sum};
use super::term::{self, Term};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Fewest samples in a loop.
pub const LEAST_SAMPLES: u64 = 100;
/// Fewest distinct inputs.
const LEAST_INPUTS: usize = 5;
/// Rounds of reweighting.
const ROUNDS: usize = 12;
/// Single terms that are tried together with each other one.
const PAIRED: usize = 5;
/// Part of the deviance beyond chance that must be explained.
const GOOD_FIT: f64 = 0.95;
/// Mean count from which on the expected deviance is taken from its expansion: 5e-4 beside the sum there.
const MANY: f64 = 20.0;

/// Samples in a loop, in all recorded calls of its function with the same inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopCell {
    /// Values of the inputs.
    pub x: Vec<f64>,
    /// Recorded calls.
    pub calls: u64,
    /// Samples that fell into the loop inside of them.
    pub samples: u64,
    /// Samples per second of CPU time while they ran.
    pub samples_per_s: f64,
}

/// How the time in a loop grows, per call of its function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoopModel {
    /// The curve, ns.
    pub sum: Sum,
    /// Class; unknown where the fit is not good.
    pub class: Class,
    /// Classes that the samples do not rule out, beside the curve's.
    pub alternatives: Vec<Class>,
    /// Part of the deviance that chance does not explain, explained by the curve.
    pub explained: f64,
    /// Pearson's chi^2 over its degrees of freedom: 1 if counts scatter as Poisson's.
    pub dispersion: f64,
    /// Samples behind it.
    pub samples: u64,
    /// Distinct inputs behind it.
    pub distinct: usize,
}

/// Why there is no model of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoLoopModel {
    /// Fewer than 100 samples.
    FewSamples {
        /// How many there are.
        samples: u64,
    },
    /// Fewer than 5 distinct inputs.
    FewInputs {
        /// How many there are.
        distinct: usize,
    },
    /// Samples and inputs allow no fit.
    NoFit,
}

/// Counts, exposures, and all predictors.
struct Counts {
    terms: Vec<Term>,
    columns: Vec<Vec<f64>>,
    ones: Vec<f64>,
    counts: Vec<f64>,
    /// Samples that a nanosecond in the loop, in each of the calls, would have.
    exposure: Vec<f64>,
}

struct Fitted {
    solution: linear::Solution,
    /// Mean counts.
    means: Vec<f64>,
    deviance: f64,
}

/// Fits a model to the samples in a loop.
///
/// # Errors
/// There is none; the reason says why.
pub fn fit_loop(cells: &[LoopCell]) -> Result<LoopModel, NoLoopModel> {
    let used: Vec<&LoopCell> = cells.iter().filter(|c| c.calls > 0 && c.samples_per_s > 0.0).collect();
    let samples: u64 = used.iter().map(|c| c.samples).sum();
    if samples < LEAST_SAMPLES {
        return Err(NoLoopModel::FewSamples { samples });
    }
    if used.len() < LEAST_INPUTS {
        return Err(NoLoopModel::FewInputs { distinct: used.len() });
    }
    let counts = Counts::new(&used);
    let (set, fitted, by_class) = counts.search().ok_or(NoLoopModel::NoFit)?;
    let null = counts.fit(&[]).ok_or(NoLoopModel::NoFit)?;
    let n = used.len() as f64;
    let free = (n - 1.0 - set.len() as f64).max(1.0);
    // Each coefficient takes one of it. The null model has no chance of its own: the counts scatter as those about the curve.
    let chance: f64 = fitted.means.iter().map(|m| expected_deviance(*m)).sum();
    let beyond = (null.deviance - (chance - 1.0).max(0.0)).max(0.0);
    let unexplained = (fitted.deviance - (chance - 1.0 - set.len() as f64).max(0.0)).max(0.0);
    let is_constant = set.is_empty();
    let explained = if is_constant || beyond <= 0.0 { 1.0 } else { 1.0 - unexplained / beyond };
    let pearson: f64 = counts.counts.iter().zip(&fitted.means).map(|(k, m)| (k - m) * (k - m) / m).sum();
    let dispersion = pearson / free;
    let sum = counts.sum(&set, &fitted, dispersion.max(1.0));
    let form = class_at_top(&sum, &used);
    let best = by_class.get(&form).copied().unwrap_or(f64::INFINITY);
    let near = |(class, c): (&Class, &f64)| (*class != form && *c <= best + RULED_OUT).then_some(*class);
    let alternatives = by_class.iter().filter_map(near).collect();
    // Counts of a constant that scatter by more than 20 % beside chance are no constant's.
    let beside = ((dispersion - 1.0).max(0.0) * n / samples as f64).sqrt();
    let is_good = if is_constant { beside <= 0.2 } else { explained >= GOOD_FIT };
    let class = if is_good { form } else { Class::Unknown };
    Ok(LoopModel { sum, class, alternatives, explained, dispersion, samples, distinct: used.len() })
}

/// What chance leaves of a cell's deviance: the mean of `2 (K ln(K / mu) - (K - mu))` over counts `K ~ Poisson(mu)`. About 1 from a mean of 1 on, and
/// far less where hardly any cell has a sample: there degrees of freedom are not what is left. The 2 % of [`Counts::deviance`] are granted: a curve that is
/// off by as much leaves this, too.
fn expected_deviance(mean: f64) -> f64 {
    if mean > MANY {
        return 1.0 + 1.0 / (6.0 * mean);
    }
    let last = mean + 10.0 * mean.sqrt() + 20.0;
    let (mut k, mut probability) = (0.0, (-mean).exp());
    // Of no sample: 2 mu.
    let mut sum = probability * 2.0 * mean;
    while k < last {
        k += 1.0;
        probability *= mean / k;
        sum += probability * 2.0 * (k * (k / mean).ln() - (k - mean));
    }
    sum
}

fn class_at_top(sum: &Sum, cells: &[&LoopCell]) -> Class {
    let top = cells.iter().max_by(|a, b| sum.at(&a.x).total_cmp(&sum.at(&b.x)));
    top.map_or(Class::Unknown, |cell| Class::of(sum.order(&cell.x)))
}

impl Counts {
    fn new(cells: &[&LoopCell]) -> Self {
        let inputs = cells.first().map_or(0, |c| c.x.len());
        let terms = term::all(inputs);
        Self {
            columns: terms.iter().map(|t| cells.iter().map(|c| t.at(&c.x)).collect()).collect(),
            terms,
            ones: vec![1.0; cells.len()],
            counts: cells.iter().map(|c| c.samples as f64).collect(),
            exposure: cells.iter().map(|c| c.calls as f64 * c.samples_per_s / 1e9).collect(),
        }
    }

    /// Iteratively reweighted least squares with coefficients >= 0: weights `E / g`, the inverse variance of K / E.
    fn fit(&self, set: &[usize]) -> Option<Fitted> {
        let mut columns: Vec<&[f64]> = vec![&self.ones];
        columns.extend(set.iter().filter_map(|j| self.columns.get(*j)).map(Vec::as_slice));
        let rates: Vec<f64> = self.counts.iter().zip(&self.exposure).map(|(k, e)| k / e).collect();
        let total = self.counts.iter().sum::<f64>() / self.exposure.iter().sum::<f64>();
        // Half a sample keeps empty cells from having all the weight.
        let mut curve: Vec<f64> =
            self.counts.iter().zip(&self.exposure).map(|(k, e)| (k + 0.5) / e).collect();
        let mut best: Option<Fitted> = None;
        for _ in 0..ROUNDS {
            let least = 1e-6 * total;
            let weights: Vec<f64> = curve
                .iter()
                .zip(&self.exposure)
                .map(|(g, e)| 1.0 / (g.max(least) / e + (FLOOR * g).powi(2)))
                .collect();
            let solution = linear::not_negative(&columns, &rates, &weights)?;
            for (i, place) in curve.iter_mut().enumerate() {
                let at = |(b, c): (&f64, &&[f64])| b * c.get(i).copied().unwrap_or(0.0);
                *place = solution.coefficients.iter().zip(&columns).map(at).sum();
            }
            let means: Vec<f64> = curve.iter().zip(&self.exposure).map(|(g, e)| (g * e).max(1e-9)).collect();
            let deviance = self.deviance(&means);
            let gain = best.as_ref().map_or(f64::INFINITY, |b| b.deviance - deviance);
            if gain > 0.0 {
                best = Some(Fitted { solution, means, deviance });
            }
            if gain.abs() < 1e-8 {
                break;
            }
        }
        best.filter(|b| b.deviance.is_finite())
    }

    /// `D = 2 sum (K ln(K / mu) - (K - mu))`, each over `1 + 0.02^2 mu`: no loop keeps to a form more closely than 2 %.
    fn deviance(&self, means: &[f64]) -> f64 {
        let one = |(k, m): (&f64, &f64)| {
            let log = if *k > 0.0 { k * (k / m).ln() } else { 0.0 };
            2.0 * (log - (k - m)) / (1.0 + FLOOR * FLOOR * m)
        };
        self.counts.iter().zip(means).map(one).sum()
    }

    /// The best set of at most two terms by `D + p ln N + t ln T + prior`, and the best criterion of each class.
    fn search(&self) -> Option<(Vec<usize>, Fitted, BTreeMap<Class, f64>)> {
        let count = self.terms.len();
        let mut by_class = BTreeMap::new();
        let mut best: Option<(f64, Vec<usize>, Fitted)> = None;
        let mut take = |set: Vec<usize>| -> Option<f64> {
            let fitted = self.fit(&set)?;
            let chosen = set.iter().zip(fitted.solution.coefficients.iter().skip(1));
            let set: Vec<usize> = chosen.filter(|(_, b)| **b > 0.0).map(|(j, _)| *j).collect();
            let prior: f64 = set.iter().filter_map(|j| self.terms.get(*j)).map(Term::prior).sum();
            let each = (self.counts.len() as f64).ln() + (count.max(1) as f64).ln();
            let c = fitted.deviance + set.len() as f64 * each + prior;
            let fitted = self.fit(&set)?;
            let class = self.class(&set, &fitted);
            let least = by_class.entry(class).or_insert(c);
            *least = f64::min(*least, c);
            if best.as_ref().is_none_or(|(least, _, _)| c < *least) {
                best = Some((c, set, fitted));
            }
            Some(c)
        };
        take(Vec::new());
        let mut singles: Vec<(f64, usize)> = (0..count).filter_map(|j| Some((take(vec![j])?, j))).collect();
        singles.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (place, (_, a)) in singles.iter().take(PAIRED).enumerate() {
            for (_, b) in singles.iter().skip(place + 1) {
                take(vec![*a, *b]);
            }
        }
        best.map(|(_, set, fitted)| (set, fitted, by_class))
    }

    fn class(&self, set: &[usize], fitted: &Fitted) -> Class {
        let sum = self.sum(set, fitted, 1.0);
        let place = |i: usize| self.rate_at(&fitted.means, i);
        let top = (0..self.counts.len()).max_by(|a, b| place(*a).total_cmp(&place(*b))).unwrap_or(0);
        // A term's value at the top, from its column.
        let whole = place(top);
        let telling = set.iter().zip(&sum.terms).filter(|(j, (_, alpha))| {
            let value = self.columns.get(**j).and_then(|c| c.get(top)).copied().unwrap_or(0.0);
            alpha * value >= 0.1 * whole
        });
        Class::of(telling.map(|(_, (term, _))| term.order()).max().unwrap_or_default())
    }

    fn rate_at(&self, means: &[f64], i: usize) -> f64 {
        match (means.get(i), self.exposure.get(i)) {
            (Some(m), Some(e)) => m / e,
            _ => 0.0,
        }
    }

    fn sum(&self, set: &[usize], fitted: &Fitted, dispersion: f64) -> Sum {
        let (intercept, alphas) = fitted.solution.coefficients.split_first().unwrap_or((&0.0, &[]));
        let terms = set.iter().filter_map(|j| self.terms.get(*j).cloned()).zip(alphas.iter().copied());
        let row = |row: &Vec<f64>| row.iter().map(|v| v * dispersion).collect();
        Sum {
            intercept_ns: *intercept,
            terms: terms.collect(),
            covariance: fitted.solution.inverse.iter().map(row).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::sim::{poisson, rng};

    /// 40 inputs over three decades, 50 calls each, 1,000 samples per second.
    fn cells(seed: u64, curve: impl Fn(f64) -> f64) -> Vec<LoopCell> {
        let mut random = rng(seed);
        let cell = |i: i32| {
            let x = (10.0 * 1_000_f64.powf(f64::from(i) / 39.0)).round();
            let mean = 50.0 * 1_000.0 * curve(x) / 1e9;
            let samples = poisson(&mut random, mean) as u64;
            LoopCell { x: vec![x], calls: 50, samples, samples_per_s: 1_000.0 }
        };
        (0..40).map(cell).collect()
    }

    #[test]
    fn the_class_of_a_loop_is_told_from_few_samples() {
        type Curve = fn(f64) -> f64;
        let truths: [(Class, Curve); 5] = [
            (Class::Constant, |_| 400_000.0),
            (Class::Linear, |n| 200.0 * n),
            (Class::Linearithmic, |n| 20.0 * n * n.log2()),
            (Class::ThreeHalves, |n| 5.0 * n.powf(1.5)),
            (Class::Polynomial, |n| 0.3 * n * n),
        ];
        for (class, curve) in truths {
            let (mut right, mut kept) = (0, 0);
            for seed in 0..60 {
                let model = fit_loop(&cells(seed, curve)).unwrap();
                right += u32::from(model.class == class);
                kept += u32::from(model.class == class || model.alternatives.contains(&class));
            }
            assert!(right >= 45 && kept >= 57, "{class:?}: {right} right, {kept} not ruled out, of 60");
        }
    }

    #[test]
    fn the_coefficient_lies_within_its_error() {
        let mut held = 0;
        for seed in 0..100 {
            let model = fit_loop(&cells(seed, |n| 200.0 * n)).unwrap();
            let (x, truth) = ([3_000.0], 600_000.0_f64);
            let error = (model.sum.at(&x) / truth).ln();
            held += u32::from(error.abs() <= 1.96 * model.sum.log_error(&x));
        }
        assert!(held >= 88, "{held} of 100");
    }

    #[test]
    fn chance_leaves_less_of_the_deviance_where_cells_are_nearly_empty() {
        let mut random = rng(5);
        for mean in [0.02, 0.5, 3.0, 19.0, 30.0] {
            let rounds = 40_000;
            let counts: Vec<f64> = (0..rounds).map(|_| poisson(&mut random, mean)).collect();
            let seen = |k: &f64| {
                let log = if *k > 0.0 { k * (k / mean).ln() } else { 0.0 };
                2.0 * (log - (k - mean))
            };
            let seen = counts.iter().map(seen).sum::<f64>() / f64::from(rounds);
            let expected = expected_deviance(mean);
            assert!((seen / expected - 1.0).abs() < 0.1, "{mean}: {seen}, {expected}");
        }
        assert!(expected_deviance(0.01) < 0.1);
        assert!((expected_deviance(MANY) - expected_deviance(MANY + 1e-9)).abs() < 1e-3);
    }

    /// 500 inputs over three decades with 1.2 samples each: something that is no input changes the time by a factor of 3.
    #[test]
    fn sparse_cells_do_not_hide_what_inputs_do_not_explain() {
        let sparse = |seed: u64, hidden: [f64; 2]| {
            let mut random = rng(seed);
            let x: Vec<f64> =
                (0..500).map(|i| (10.0 * 1_000_f64.powf(f64::from(i) / 499.0)).round()).collect();
            let each = 600.0 / x.iter().sum::<f64>();
            let cell = |x: &f64| {
                let at = usize::from(poisson(&mut random, 0.5_f64.ln().abs()) > 0.0);
                let samples = poisson(&mut random, each * x * hidden[at]) as u64;
                LoopCell { x: vec![*x], calls: 1, samples, samples_per_s: 1_000.0 }
            };
            fit_loop(&x.iter().map(cell).collect::<Vec<_>>()).unwrap()
        };
        let (mut unknown, mut told) = (0, 0);
        for seed in 0..12 {
            let other = sparse(seed, [0.5, 1.5]);
            unknown += u32::from(other.class == Class::Unknown && other.explained < 0.97);
            let own = sparse(seed, [1.0, 1.0]);
            told += u32::from(own.class != Class::Unknown && own.explained >= GOOD_FIT);
        }
        assert!(unknown >= 10 && told >= 10, "{unknown} unknown, {told} told, of 12");
    }

    #[test]
    fn few_samples_and_what_inputs_do_not_explain_are_told() {
        let few = fit_loop(&cells(1, |_| 10.0));
        assert!(matches!(few, Err(NoLoopModel::FewSamples { .. })), "{few:?}");
        assert_eq!(fit_loop(&cells(1, |_| 4e6)[..4]), Err(NoLoopModel::FewInputs { distinct: 4 }));
        // Up and down by a factor of 5 with something that is no input.
        let mut other = cells(1, |_| 400_000.0);
        other.iter_mut().step_by(2).for_each(|c| c.samples *= 5);
        let model = fit_loop(&other).unwrap();
        assert_eq!(model.class, Class::Unknown, "{model:?}");
        assert!(model.dispersion > 3.0);
    }
}
