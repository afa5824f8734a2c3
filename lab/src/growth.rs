//! Calls of functions whose time grows in a known way: the ground truth of execution-time models.
//!
//! 30 to 60 distinct inputs over three decades, 10 to 40 calls of each, noise of 5 to 30 % (log-normal), one call in fifty 2 to 10 times as
//! long, an intercept of up to the growing part's time in the middle of the range.

use profiler_core::models::{Calls, Class, Input, Taken, Value};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// How the time grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Truth {
    /// Not at all.
    Constant,
    /// `log n`.
    Log,
    /// `sqrt n`.
    Root,
    /// `n`.
    Linear,
    /// `n log n`.
    Linearithmic,
    /// `n^1.5`.
    ThreeHalves,
    /// `n^2`.
    Square,
    /// `n^3`.
    Cube,
    /// `m n`.
    Product,
    /// Two linear pieces, the second 3 to 10 times as steep: data leave the cache.
    Cliff,
    /// Constant, then linear.
    Hinge,
    /// `n^2`, then `n log n`: another algorithm takes over.
    Switch,
    /// `n + n^2`: both are seen.
    Mixed,
    /// `n + m log m`: two inputs.
    TwoInputs,
    /// `sqrt n log n`: a form that our prior calls rare.
    RareRoot,
    /// `n log^2 n`, rare.
    RareLogs,
    /// `n^2 log n`.
    SquareLog,
}

/// Those of the evaluation; the others are told beside it.
pub const TRUTHS: [Truth; 12] = [
    Truth::Constant,
    Truth::Log,
    Truth::Root,
    Truth::Linear,
    Truth::Linearithmic,
    Truth::ThreeHalves,
    Truth::Square,
    Truth::Cube,
    Truth::Product,
    Truth::Cliff,
    Truth::Hinge,
    Truth::Switch,
];

/// Harder ones.
pub const OTHERS: [Truth; 5] =
    [Truth::Mixed, Truth::TwoInputs, Truth::RareRoot, Truth::RareLogs, Truth::SquareLog];

impl Truth {
    /// Its class.
    #[must_use]
    pub fn class(self) -> Class {
        match self {
            Self::Constant => Class::Constant,
            Self::Log => Class::Logarithmic,
            Self::Root | Self::RareRoot => Class::Sublinear,
            Self::Linear => Class::Linear,
            Self::Linearithmic | Self::TwoInputs | Self::RareLogs => Class::Linearithmic,
            Self::ThreeHalves => Class::ThreeHalves,
            Self::Square | Self::Cube | Self::Product | Self::Mixed | Self::SquareLog => Class::Polynomial,
            Self::Cliff | Self::Hinge | Self::Switch => Class::TwoRegimes,
        }
    }

    /// As it is told in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Constant => "1",
            Self::Log => "log n",
            Self::Root => "sqrt n",
            Self::Linear => "n",
            Self::Linearithmic => "n log n",
            Self::ThreeHalves => "n^1.5",
            Self::Square => "n^2",
            Self::Cube => "n^3",
            Self::Product => "m n",
            Self::Cliff => "n, then steeper",
            Self::Hinge => "1, then n",
            Self::Switch => "n^2, then n log n",
            Self::Mixed => "n + n^2",
            Self::TwoInputs => "n + m log m",
            Self::RareRoot => "sqrt n log n",
            Self::RareLogs => "n log^2 n",
            Self::SquareLog => "n^2 log n",
        }
    }

    fn inputs(self) -> usize {
        if matches!(self, Self::Product | Self::TwoInputs) { 2 } else { 1 }
    }

    fn parameters(self) -> usize {
        match self {
            Self::Constant => 0,
            Self::Mixed | Self::TwoInputs => 2,
            Self::Cliff | Self::Hinge | Self::Switch => 3,
            _ => 1,
        }
    }
}

/// One function.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its calls.
    pub calls: Calls,
    /// Adjusted R^2 of the true function on the medians of the calls: no model is better. Of a constant: about zero.
    pub ceiling: f64,
    /// Standard deviation of the noise's logarithm.
    pub noise: f64,
    /// Where the regimes part, if there are two.
    pub switch_at: f64,
    /// Inputs and true medians, ns.
    pub truth: Vec<(Vec<u64>, f64)>,
}

/// Draws what is random of a function, and its calls.
#[must_use]
pub fn case(truth: Truth, seed: u64) -> Case {
    case_of(truth, seed, None)
}

/// The same with `calls` of each input, instead of 10 to 40.
#[must_use]
pub fn case_of(truth: Truth, seed: u64, calls_each: Option<usize>) -> Case {
    let mut random = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003) ^ truth as u64);
    let noise = random.random_range(0.05..0.3);
    let inputs = distinct(truth, &mut random);
    let low = inputs.iter().map(|x| x[0]).min().unwrap_or(1) as f64;
    let part = random.random_range(0.25..0.75);
    let switch_at = low * 1_000_f64.powf(part);
    let curve = curve(truth, switch_at, random.random_range(3.0..10.0));
    let middle = low * 1_000_f64.sqrt();
    let at_middle = curve(middle, middle);
    let scale = 10_f64.powf(random.random_range(3.0..6.0)) / at_middle;
    // A switch has its intercept in its pieces.
    let is_piecewise = truth.class() == Class::TwoRegimes;
    let none = is_piecewise || truth == Truth::Constant || random.random::<f64>() < 0.25;
    let intercept = if none { 0.0 } else { random.random::<f64>() * at_middle };
    let names = ["n", "m"];
    let mut calls = Calls::new(names.iter().take(truth.inputs()).map(|name| Input::number(name)).collect());
    let (mut medians, mut known) = (Vec::new(), Vec::new());
    for x in inputs {
        let time = scale * (intercept + curve(x[0] as f64, x[x.len() - 1] as f64));
        let values: Vec<Value> = x.iter().map(|x| Value::Unsigned(*x)).collect();
        let count = calls_each.unwrap_or_else(|| random.random_range(10..=40));
        let mut own: Vec<f64> = (0..count).map(|_| time * scatter(noise, &mut random)).collect();
        own.iter().for_each(|ns| calls.push(&values, Taken::ns(*ns)));
        own.sort_by(f64::total_cmp);
        medians.push(f64::midpoint(own[(count - 1) / 2], own[count / 2]));
        known.push((x, time));
    }
    let ceiling = ceiling(&medians, &known, truth);
    Case { calls, ceiling, noise, switch_at, truth: known }
}

/// Formulas (5) and (6) for the true function.
fn ceiling(medians: &[f64], known: &[(Vec<u64>, f64)], truth: Truth) -> f64 {
    let n = medians.len() as f64;
    let mean = if truth == Truth::Constant { 0.0 } else { medians.iter().sum::<f64>() / n };
    let rest: f64 = medians.iter().zip(known).map(|(y, (_, f))| (y - f).powi(2)).sum();
    let total: f64 = medians.iter().map(|y| (y - mean).powi(2)).sum();
    let m = truth.parameters() as f64;
    1.0 - rest / total * (1.0 + m / (n - m - 1.0))
}

/// Log-normal, and now and then much longer.
fn scatter(noise: f64, random: &mut StdRng) -> f64 {
    let (u, v) = (1.0 - random.random::<f64>(), random.random::<f64>());
    let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    let longer = if random.random::<f64>() < 0.02 { random.random_range(2.0..10.0) } else { 1.0 };
    (noise * normal).exp() * longer
}

/// Distinct inputs over three decades, ends included.
fn distinct(truth: Truth, random: &mut StdRng) -> Vec<Vec<u64>> {
    let count = random.random_range(30..=60);
    let low = 4.0 * 25_f64.powf(random.random::<f64>());
    let mut inputs: Vec<Vec<u64>> = vec![vec![low as u64; truth.inputs()]];
    inputs.push(vec![(low as u64) * 1_000; truth.inputs()]);
    while inputs.len() < count {
        let one = |_| (low * 1_000_f64.powf(random.random::<f64>())).round() as u64;
        let x: Vec<u64> = (0..truth.inputs()).map(one).collect();
        if !inputs.contains(&x) {
            inputs.push(x);
        }
    }
    inputs
}

/// The growing part.
fn curve(truth: Truth, switch_at: f64, steeper: f64) -> impl Fn(f64, f64) -> f64 {
    move |n, m| match truth {
        Truth::Constant => 1.0,
        Truth::Log => n.log2(),
        Truth::Root => n.sqrt(),
        Truth::Linear => n,
        Truth::Linearithmic => n * n.log2(),
        Truth::ThreeHalves => n.powf(1.5),
        Truth::Square => n * n,
        Truth::Cube => n.powi(3),
        Truth::Product => n * m,
        Truth::Cliff => n * if n < switch_at { 1.0 } else { steeper },
        Truth::Hinge => switch_at.max(n),
        Truth::Switch if n < switch_at => n * n,
        // It takes over where it is twice as fast.
        Truth::Switch => 0.5 * n * n.log2() * switch_at / switch_at.log2(),
        Truth::Mixed => n + n * n / switch_at,
        Truth::TwoInputs => n + 0.2 * m * m.log2(),
        Truth::RareRoot => n.sqrt() * n.log2(),
        Truth::RareLogs => n * n.log2().powi(2),
        Truth::SquareLog => n * n * n.log2(),
    }
}
