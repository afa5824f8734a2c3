//! The mixed problem against all ways to combine off, shortest burst and on, and against random plans.

use super::oracle::check;
use profiler_core::plan::{BurstRules, Decision, Options, PlanClass, Problem, Strategy, solve};
use profiler_lab::problems;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The value of duties at `s`; `None` if they break the budget.
fn value(problem: &Problem, duties: &[f64], s: f64) -> Option<f64> {
    let mut cost = s * problem.sample_cost();
    let mut value = 0.0;
    for (class, &d) in problem.classes.iter().zip(duties) {
        cost += d * class.trace_cost();
        if d > 0.0 && d < 1.0 {
            cost += problem.burst_rules().charge();
        }
        value += class.weight * (d * class.traced_hz() + (1.0 - d) * s * class.rho.value);
    }
    (cost <= problem.budget * (1.0 + 1e-12)).then_some(value)
}

/// All `3^n` combinations with `s` as large as fits; and with `s` at either end, the last burst as long as fits.
fn brute_force(problem: &Problem) -> f64 {
    let n = problem.classes.len();
    let floor = problem.burst_rules().min_duty();
    let price = problem.sample_cost();
    let mut best = 0.0;
    for code in 0..3usize.pow(u32::try_from(n).unwrap()) {
        let status = |i: usize| code / 3usize.pow(u32::try_from(i).unwrap()) % 3;
        let mut duties: Vec<f64> = (0..n).map(|i| [0.0, floor, 1.0][status(i)]).collect();
        let charge = (0..n).filter(|&i| status(i) == 1).count() as f64 * problem.burst_rules().charge();
        let spent: f64 =
            charge + problem.classes.iter().zip(&duties).map(|(c, d)| d * c.trace_cost()).sum::<f64>();
        let s = ((problem.budget - spent) / price).min(problem.sampling.max_hz);
        if s >= problem.sampling.min_hz {
            best = f64::max(best, value(problem, &duties, s).unwrap_or(0.0));
        }
        for s in [problem.sampling.min_hz, problem.sampling.max_hz] {
            let room = problem.budget - spent - s * price;
            for i in (0..n).filter(|&i| status(i) == 1 && room > 0.0) {
                let before = duties[i];
                duties[i] = (before + room / problem.classes[i].trace_cost()).min(1.0);
                best = f64::max(best, value(problem, &duties, s).unwrap_or(0.0));
                duties[i] = before;
            }
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_mixed_optimum_is_the_best_combination(seed: u64, n in 1usize..6, charge in 0.0..200e-6f64, min_s in 0.0..0.1f64) {
        let mut problem = problems::heavy_tailed(n, seed);
        problem.burst = Some(BurstRules { min_s, cycle_s: 1.0, attach_cost_s: charge });
        problem.sampling.min_hz = if seed % 2 == 0 { 0.0 } else { 0.1 * problem.budget / problem.sample_cost() };
        problem.sampling.max_hz = 0.9 * problem.budget / problem.sample_cost();
        let expected = brute_force(&problem);
        let plan = solve(&problem, Strategy::Auto, &Options::default()).unwrap();
        check(&problem, &plan);
        prop_assert!(plan.value >= expected * (1.0 - 2e-9), "{} below {expected}", plan.value);
        prop_assert!(plan.upper_bound >= expected * (1.0 - 1e-12) && plan.gap <= 2e-9, "{}", plan.gap);
    }

    /// No plan at all beats the bound: random duties, random rates, minimum rates or not.
    #[test]
    fn no_random_plan_beats_the_bound(seed: u64, n in 1usize..8, ruled: bool) {
        let mut problem = problems::heavy_tailed(n, seed);
        problem.burst = Some(BurstRules { min_s: 0.01, cycle_s: 1.0, attach_cost_s: 10e-6 });
        let mut rng = StdRng::seed_from_u64(seed);
        if ruled {
            for class in &mut problem.classes {
                class.min_rate_hz = rng.random_range(0.0..0.01) * class.rate_hz.value;
            }
        }
        let options = Options { gap: 1e-4, work_limit: Some(300_000), ..Options::default() };
        let plan = solve(&problem, Strategy::Mixed, &options);
        if let Ok(plan) = &plan {
            check(&problem, plan);
        }
        let affordable = (problem.budget / problem.sample_cost()).min(problem.sampling.max_hz);
        for _ in 0..300 {
            let s = affordable * rng.random_range(0.0..1.0);
            let mut room = problem.budget - s * problem.sample_cost();
            let mut duties = vec![0.0; n];
            for _ in 0..n {
                let i = rng.random_range(0..n);
                let class = &problem.classes[i];
                let most = ((room - 10e-6) / class.trace_cost()).min(1.0);
                let needed = (class.min_rate_hz - s * class.rho.value) / (class.traced_hz() - s * class.rho.value);
                let least = if class.min_rate_hz > s * class.rho.value { needed.max(0.01) } else { 0.01 };
                if duties[i] == 0.0 && most >= least {
                    duties[i] = if rng.random_bool(0.5) { most } else { least };
                    room -= duties[i] * class.trace_cost() + 10e-6;
                }
            }
            let met = problem.classes.iter().zip(&duties).all(|(c, d)| {
                d * c.traced_hz() + (1.0 - d) * s * c.rho.value >= c.min_rate_hz
            });
            if let Some(value) = value(&problem, &duties, s).filter(|_| met) {
                let plan = plan.as_ref();
                let plan = plan.map_err(|error| TestCaseError::fail(format!("{error}, but {duties:?} at {s} does")))?;
                prop_assert!(plan.upper_bound >= value * (1.0 - 1e-9), "{value} above {}", plan.upper_bound);
            }
        }
    }
}

#[test]
fn minimum_rates_make_many_bursts() {
    let mut problem = Problem::new(0.02, 1.0, 20e-6);
    problem.burst = Some(BurstRules { min_s: 0.001, cycle_s: 1.0, attach_cost_s: 10e-6 });
    for i in 0..10 {
        let class = PlanClass::new(format!("hot {i}"), 1e6, 0.05, 1e-6);
        problem.classes.push(PlanClass { min_rate_hz: 1_000.0, ..class });
    }
    let plan = solve(&problem, Strategy::Auto, &Options::default()).unwrap();
    check(&problem, &plan);
    let bursts = plan.classes.iter().filter(|c| matches!(c.decision, Decision::Burst { .. })).count();
    assert_eq!(bursts, 10);
}

#[test]
fn one_hot_class_fills_the_budget_with_a_burst() {
    let mut problem = Problem::new(0.02, 1.0, 20e-6);
    problem.burst = Some(BurstRules::default());
    problem.classes.push(PlanClass::new("hot", 1e6, 0.01, 1e-6));
    let plan = solve(&problem, Strategy::Auto, &Options::default()).unwrap();
    // 2 % of the time at 100 % cost.
    assert!((plan.classes[0].decision.duty() - 0.02).abs() < 1e-12, "{:?}", plan.classes[0]);
    assert!((plan.value - 20_000.0).abs() < 1e-6 && plan.gap <= 1e-9);
}
