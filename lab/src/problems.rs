//! Random problems, for tests and benchmarks: published so that the figures can be made again.
//!
//! [`heavy_tailed`] looks like surveys of real programs: rates over eight decades, most CPU time in few classes,
//! prices by site class. The hard families are those on which branch and bound is known to suffer.

use profiler_core::plan::{PlanClass, Problem};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Prices of a hit, s: as measured on one virtual machine for optimised nop, `push`, and single-stepped sites.
const TAUS: [f64; 3] = [0.46e-6, 0.70e-6, 9.3e-6];

/// The paper's form: `U = 1`, one price for events and samples, and at most `max_f` of both per second
/// (`MaxF`, Metz et al. §4.1). Classes are `(name, EventTime/EventPeriod, F, W)`.
#[must_use]
pub fn from_max_frequency(max_f: f64, report_time_s: f64, classes: &[(&str, f64, f64, f64)]) -> Problem {
    let mut problem = Problem::new(max_f * report_time_s, 1.0, report_time_s);
    problem.classes = classes
        .iter()
        .map(|&(name, rho, f, w)| PlanClass::new(name, f, rho, report_time_s).weight(w))
        .collect();
    problem
}

/// Rates from 0.1 to 10^7 events/s, times per call from 10 ns to 0.1 s, weights mostly 1, budget 0.5 to 5 % of 1 to
/// 8 CPUs, samples at 20 us.
#[must_use]
pub fn heavy_tailed(n: usize, seed: u64) -> Problem {
    let mut rng = StdRng::seed_from_u64(seed);
    let cpus = f64::from(rng.random_range(1u32..=8));
    let mut problem = Problem::new(rng.random_range(0.005..0.05) * cpus, cpus, 20e-6);
    problem.sampling.max_hz = 10_000.0;
    for index in 0..n {
        let rate = 10f64.powf(rng.random_range(-1.0..7.0));
        let time = 10f64.powf(rng.random_range(-8.0..-1.0));
        let rho = (rate * time).min(cpus * rng.random_range(0.01..1.0));
        let tau = TAUS[rng.random_range(0..TAUS.len())];
        let weight = if rng.random_bool(0.8) { 1.0 } else { 10f64.powf(rng.random_range(-1.0..1.0)) };
        problem.classes.push(PlanClass::new(format!("f{index}"), rate, rho, tau).weight(weight));
    }
    problem
}

/// [`heavy_tailed`] with every rule in use: must-trace, never-trace, detection costs, interruptions, minimum rates,
/// derived counts, sampling bounds. Not every one is feasible.
#[must_use]
pub fn with_rules(n: usize, seed: u64) -> Problem {
    let mut problem = heavy_tailed(n, seed);
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed);
    let affordable = problem.budget / problem.sample_cost();
    problem.sampling.min_hz =
        if rng.random_bool(0.5) { affordable * rng.random_range(0.0..0.5) } else { 0.0 };
    problem.sampling.max_hz = match rng.random_range(0..3) {
        0 => f64::INFINITY,
        1 => affordable * 0.7,
        _ => affordable * 2.0,
    };
    for index in 0..n {
        let (budget, others) = (problem.budget, n);
        let source = rng.random_range(0..others);
        let source_rate = problem.classes[source].rate_hz.value;
        let class = &mut problem.classes[index];
        match rng.random_range(0..12) {
            0 if class.trace_cost() < 0.2 * budget => class.must_trace = true,
            1 => class.never_trace = true,
            2 => class.detect_s = 0.3e-6,
            3 => class.interruptions_hz = class.rate_hz.value * 0.3,
            4 | 5 => class.min_rate_hz = class.rate_hz.value * rng.random_range(0.0..0.2),
            6 if source != index => {
                class.derived_from = Some(source);
                class.rate_hz = source_rate.into();
            }
            7 => *class = PlanClass::new("idle", 0.0, 0.0, 1e-6),
            8 => class.weight = 0.0,
            _ => {}
        }
    }
    problem
}

/// A survey with other numbers that it allows: rates and shares anywhere within their intervals, a budget of 0.5 to 5 %
/// of the target's CPU time.
#[must_use]
pub fn within_intervals(survey: &Problem, seed: u64) -> Problem {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut problem = survey.clone();
    problem.budget = rng.random_range(0.005..0.05) * problem.target_cpu;
    for class in &mut problem.classes {
        for range in [&mut class.rate_hz, &mut class.rho] {
            range.value = range.low + (range.high - range.low) * rng.random_range(0.0..1.0);
            range.value = range.value.clamp(range.low, range.high);
        }
    }
    problem.sampling.min_hz = problem.sampling.min_hz.min(0.5 * problem.budget / problem.sample_cost());
    problem
}

/// `n` copies of one class, and a budget that holds a third of them and a bit.
#[must_use]
pub fn identical(n: usize) -> Problem {
    let mut problem = Problem::new(0.02, 1.0, 20e-6);
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let rate = 0.02 / 1e-6 / n as f64 * 3.1;
    problem.classes =
        (0..n).map(|i| PlanClass::new(format!("f{i}"), rate, 0.2 * rate * 1e-6, 1e-6)).collect();
    problem
}

/// Classes that differ by a thousandth: nothing tells them apart, everything must be tried.
#[must_use]
pub fn near_equal(n: usize, seed: u64) -> Problem {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut problem = identical(n);
    for class in &mut problem.classes {
        class.rate_hz = (class.rate_hz.value * rng.random_range(0.9995..1.0005)).into();
        class.rho = (class.rho.value * rng.random_range(0.9995..1.0005)).into();
    }
    problem
}

/// Even rates, equal weights, an odd budget, nothing to sample: subset sum that no set fills (the reduction in
/// Metz et al., Theorem 1).
#[must_use]
pub fn subset_sum(n: usize, seed: u64) -> Problem {
    let mut rng = StdRng::seed_from_u64(seed);
    let rates: Vec<u32> = (0..n).map(|_| 2 * rng.random_range(500u32..1000)).collect();
    let odd = rates.iter().sum::<u32>() / 4 * 2 + 1;
    let classes: Vec<(String, u32)> =
        rates.iter().enumerate().map(|(i, &rate)| (format!("f{i}"), rate)).collect();
    let classes: Vec<(&str, f64, f64, f64)> =
        classes.iter().map(|(name, rate)| (name.as_str(), 0.0, f64::from(*rate), 1.0)).collect();
    // A report time that is a power of two keeps the sums exact.
    from_max_frequency(f64::from(odd), 1.0 / 1_048_576.0, &classes)
}
