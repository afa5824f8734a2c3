//! The precision objective: Neyman's allocation, the bound, what samples are for.

use profiler_core::plan::{
    BurstRules, Decision, Estimand, Objective, Options, PlanClass, PlanError, Problem, Strategy,
    relative_errors, solve,
};
use profiler_lab::problems;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn precise(mut problem: Problem) -> Problem {
    problem.objective = Objective::Variance;
    problem
}

#[test]
fn means_of_independent_calls_get_neymans_allocation() {
    let mut problem = precise(Problem::new(0.0002, 1.0, 20e-6));
    // Relative errors: sigma / mean is what counts; prices differ. Far more calls than are needed, so that the
    // prior (one part in the number of calls seen) does not show.
    for (rate, v, tau, weight) in [(1e6, 1.0, 1e-6, 1.0), (2e6, 3.0, 1e-6, 1.0), (1e6, 1.0, 9e-6, 2.0)] {
        let mut class = PlanClass::new("f", rate, rate * 1e-7, tau).weight(weight);
        class.sigma_s = Some(v * 1e-7);
        problem.classes.push(class);
    }
    problem.horizon_s = 1e4;
    let plan = solve(&problem, Strategy::Auto, &Options::default()).unwrap();
    let seen: Vec<f64> =
        problem.classes.iter().zip(&plan.classes).map(|(c, p)| p.decision.duty() * c.rate_hz.value).collect();
    // d F in proportion to W v / sqrt(tau): 1 : 3 : 2 / 3.
    assert!((seen[1] / seen[0] - 3.0).abs() < 1e-3, "{seen:?}");
    assert!((seen[2] / seen[0] - 2.0 / 3.0).abs() < 1e-3, "{seen:?}");
    assert!((plan.cost - problem.budget).abs() < 1e-6 * problem.budget);
    assert_eq!(plan.sampling_hz, 0.0);
    let errors = relative_errors(&problem, &plan);
    // Standard error of a mean of n calls: v / sqrt(n).
    let n = seen[0] * problem.horizon_s;
    assert!((errors[0] - 1.0 / n.sqrt()).abs() < 0.01 * errors[0], "{errors:?} {n}");
}

#[test]
fn totals_are_left_to_samples_where_those_are_cheaper() {
    let mut problem = precise(Problem::new(0.02, 1.0, 20e-6));
    // Calls of the hot class come in waves: bursts vary far more than independent calls would.
    for (rate, rho, dispersion) in [(1e7, 0.5, 1e6), (10.0, 1e-6, 1.0)] {
        let mut class = PlanClass::new("f", rate, rho, 1e-6);
        class.dispersion = dispersion;
        class.estimand = Estimand::Total;
        problem.classes.push(class);
    }
    let plan = solve(&problem, Strategy::Auto, &Options::default()).unwrap();
    assert!(plan.sampling_hz > 100.0);
    assert_eq!(plan.classes[1].decision, Decision::Trace);
    assert!(plan.classes[0].decision.duty() < 0.02);
    assert!(plan.gap <= 1e-3, "{}", plan.gap);
}

#[test]
fn information_strategies_refuse_it() {
    let problem = precise(problems::heavy_tailed(3, 1));
    let error = solve(&problem, Strategy::Hottest, &Options::default()).unwrap_err();
    assert!(matches!(error, PlanError::NotApplicable { .. }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Plans keep budget and rules; no random plan beats the bound.
    #[test]
    fn no_random_allocation_beats_the_bound(seed: u64, n in 0usize..7, charged: bool) {
        let mut problem = precise(problems::heavy_tailed(n, seed));
        let mut rng = StdRng::seed_from_u64(seed);
        for class in &mut problem.classes {
            class.estimand = [Estimand::Mean, Estimand::Total, Estimand::Rate][rng.random_range(0..3)];
            class.sigma_s = Some(class.mean_s() * 10f64.powf(rng.random_range(-1.0..1.0)));
            class.dispersion = rng.random_range(0.5..5.0);
        }
        if charged {
            problem.burst = Some(BurstRules { min_s: 0.01, cycle_s: 1.0, attach_cost_s: 20e-6 });
        }
        let rules = problem.burst_rules();
        let plan = solve(&problem, Strategy::Auto, &Options { work_limit: Some(200_000), ..Options::default() }).unwrap();
        let cost = plan.sampling_hz * problem.sample_cost()
            + plan.classes.iter().map(|c| c.cost).sum::<f64>();
        prop_assert!(cost <= problem.budget * (1.0 + 1e-9) && plan.cost <= problem.budget);
        prop_assert!(plan.value.is_finite() && plan.upper_bound >= plan.value);
        for class in &plan.classes {
            let duty = class.decision.duty();
            prop_assert!(duty == 0.0 || duty == 1.0 || duty >= rules.min_duty());
        }
        for _ in 0..100 {
            // The plan of random decisions, valued by the same definition through the public error function.
            let mut other = plan.clone();
            let affordable = (problem.budget / problem.sample_cost()).min(problem.sampling.max_hz);
            other.sampling_hz = affordable * rng.random_range(0.0..1.0);
            let mut room = problem.budget - other.sampling_hz * problem.sample_cost();
            for (class, planned) in problem.classes.iter().zip(&mut other.classes) {
                let most = ((room - rules.charge()) / class.trace_cost()).min(1.0);
                let duty = most * rng.random_range(0.0..1.0f64).sqrt();
                planned.decision = Decision::Sample;
                if duty >= rules.min_duty() && duty > 0.0 {
                    planned.decision = Decision::Burst { duty };
                    room -= duty * class.trace_cost() + rules.charge();
                }
            }
            let errors = relative_errors(&problem, &other);
            let value: f64 =
                problem.classes.iter().zip(&errors).map(|(c, e)| c.weight * c.weight * (1.0 - e * e)).sum();
            prop_assert!(value <= plan.upper_bound * (1.0 + 1e-9) + 1e-12, "{value} above {}", plan.upper_bound);
        }
    }
}
