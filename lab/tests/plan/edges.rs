//! Zeros, infinities, duplicates, impossible rules: a plan or an error that says what to do, never a NaN or a panic.

use super::oracle::check;
use expect_test::expect;
use profiler_core::plan::{
    BurstRules, Decision, Objective, Options, PlanClass, PlanError, Problem, SamplingRules, Strategy, solve,
    solve_top,
};
use profiler_lab::problems;
use proptest::prelude::*;

fn one(class: PlanClass) -> Problem {
    let mut problem = Problem::new(0.02, 1.0, 20e-6);
    problem.classes.push(class);
    problem
}

#[test]
fn no_class_at_all() {
    for strategy in Strategy::ALL {
        let problem = Problem::new(0.02, 1.0, 20e-6);
        let plan = solve(&problem, strategy, &Options::default()).unwrap();
        assert_eq!((plan.classes.len(), plan.value, plan.gap), (0, 0.0, 0.0), "{strategy}");
    }
}

#[test]
fn zeros_are_sampled_for_nothing() {
    let mut problem = Problem::new(0.02, 1.0, 20e-6);
    problem.classes = vec![PlanClass::new("idle", 0.0, 0.0, 0.0); 3];
    problem.classes.push(PlanClass::new("main", 0.0, 1.0, 1e-6));
    problem.classes.push(PlanClass::new("weightless", 1e9, 0.5, 1e-6).weight(0.0));
    for strategy in [Strategy::Certified, Strategy::Mixed, Strategy::Approximation, Strategy::Exhaustive] {
        let plan = solve(&problem, strategy, &Options::default()).unwrap();
        check(&problem, &plan);
        assert!((plan.value - 1000.0).abs() < 1e-9, "{strategy} {}", plan.value);
    }
}

#[test]
fn an_event_that_costs_nothing_is_traced() {
    let problem = one(PlanClass::new("free", 1e5, 0.0, 0.0));
    for strategy in [Strategy::Certified, Strategy::Mixed, Strategy::Approximation, Strategy::Continuous] {
        let plan = solve(&problem, strategy, &Options::default()).unwrap();
        assert_eq!(plan.classes[0].decision, Decision::Trace, "{strategy}");
    }
}

#[test]
fn an_idle_target_and_free_samples_need_a_largest_rate() {
    for (cpu, price) in [(0.0, 20e-6), (1.0, 0.0)] {
        let mut problem = Problem::new(0.001, cpu, price);
        problem.classes.push(PlanClass::new("f", 10.0, 0.5, 1e-6));
        for strategy in [Strategy::Certified, Strategy::Approximation, Strategy::Mixed] {
            let error = solve(&problem, strategy, &Options::default()).unwrap_err();
            assert_eq!(error, PlanError::Unbounded, "{strategy}");
        }
        problem.sampling.max_hz = 100.0;
        let plan = solve(&problem, Strategy::Certified, &Options::default()).unwrap();
        assert_eq!((plan.sampling_hz, plan.value), (100.0, 50.0));
        assert!(plan.overhead.is_finite());
    }
}

#[test]
fn impossible_numbers_are_named() {
    let class = || PlanClass::new("f", 10.0, 0.5, 1e-6);
    let bad: [(Problem, &str); 8] = [
        (Problem { budget: 0.0, ..one(class()) }, "budget"),
        (Problem { budget: f64::NAN, ..one(class()) }, "budget"),
        (Problem { target_cpu: f64::INFINITY, ..one(class()) }, "target_cpu"),
        (one(PlanClass::new("f", f64::INFINITY, 0.5, 1e-6)), "rate_hz"),
        (one(PlanClass::new("f", -1.0, 0.5, 1e-6)), "rate_hz"),
        (one(PlanClass { tau_s: f64::NAN, ..class() }), "cost"),
        (one(PlanClass { must_trace: true, never_trace: true, ..class() }), "must_trace"),
        (one(PlanClass { derived_from: Some(7), ..class() }), "derived_from"),
    ];
    for (problem, expected) in bad {
        for strategy in Strategy::ALL {
            match solve(&problem, strategy, &Options::default()) {
                Err(PlanError::Invalid { field, .. }) => assert_eq!(field, expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
    }
}

#[test]
fn infeasible_rules_say_what_would_do() {
    let mut problem = one(PlanClass { must_trace: true, ..PlanClass::new("hot", 30_000.0, 0.5, 1e-6) });
    problem.sampling.min_hz = 100.0;
    let error = solve(&problem, Strategy::Certified, &Options::default()).unwrap_err();
    expect!["the rules cost more than the budget: the must-trace classes and the least sampling rate take 3.200e-2 CPU s/s, the budget is 2.000e-2 CPU s/s, 1.200e-2 CPU s/s short; the least budget that would do is 3.2000% of the target's CPU time"]
    .assert_eq(&error.to_string());
    let PlanError::Infeasible { needed, .. } = error else { panic!("{error}") };
    for strategy in [Strategy::Certified, Strategy::Mixed, Strategy::Approximation, Strategy::Exhaustive] {
        let enough = Problem { budget: needed, ..problem.clone() };
        assert!(solve(&enough, strategy, &Options::default()).is_ok(), "{strategy}");
        let short = Problem { budget: needed * 0.999, ..problem.clone() };
        assert!(matches!(solve(&short, strategy, &Options::default()), Err(PlanError::Infeasible { .. })));
    }
}

#[test]
fn a_minimum_rate_that_cannot_be_had() {
    let unseen =
        PlanClass { never_trace: true, min_rate_hz: 1.0, ..PlanClass::new("off-cpu", 10.0, 0.0, 1e-6) };
    let error = solve(&one(unseen), Strategy::Certified, &Options::default()).unwrap_err();
    assert!(matches!(&error, PlanError::MinRate { class, .. } if class == "off-cpu"), "{error}");
    // Binary: sampling sees 1000 of the 2000 wanted, so the class is traced, or the budget named that would do.
    let hot = PlanClass { min_rate_hz: 2_000.0, ..PlanClass::new("hot", 30_000.0, 1.0, 1e-6) };
    let error = solve(&one(hot.clone()), Strategy::Certified, &Options::default()).unwrap_err();
    let PlanError::Infeasible { needed, .. } = error else { panic!("{error}") };
    assert!((needed - 0.03).abs() < 1e-12);
    // With bursts it can be had.
    let plan = solve(&one(hot.clone()), Strategy::Mixed, &Options::default()).unwrap();
    check(&one(hot), &plan);
    assert!(matches!(plan.classes[0].decision, Decision::Burst { .. }));
}

/// The least budget is the truth: with it there is a plan, below it there is none.
fn the_least_budget_holds(problem: &Problem, strategy: Strategy) {
    let work = Options { work_limit: Some(200_000), gap: 1e-3, ..Options::default() };
    let Err(error) = solve(problem, strategy, &work) else { return };
    let PlanError::Infeasible { needed, .. } = &error else {
        assert!(matches!(error, PlanError::MinRate { .. } | PlanError::Unbounded), "{error}");
        return;
    };
    assert!(needed.is_finite() && *needed > problem.budget, "{error}");
    assert!(!error.to_string().contains("NaN") && !error.to_string().contains("inf"), "{error}");
    let enough = Problem { budget: needed * (1.0 + 1e-9), ..problem.clone() };
    let plan = solve(&enough, strategy, &work);
    assert!(plan.is_ok(), "{strategy}: {error}, but with it: {plan:?}");
    let short = Problem { budget: needed * 0.999, ..problem.clone() };
    assert!(
        matches!(solve(&short, strategy, &work), Err(PlanError::Infeasible { .. })),
        "{strategy}: {error}"
    );
}

#[test]
fn bursts_that_do_not_fit_say_what_would_do() {
    let hot = PlanClass { min_rate_hz: 5_000.0, ..PlanClass::new("hot", 1e6, 0.5, 1e-6) };
    let mut problem = one(hot);
    problem.budget = 0.001;
    problem.burst = Some(BurstRules { min_s: 0.001, cycle_s: 1.0, attach_cost_s: 10e-6 });
    let error = solve(&problem, Strategy::Auto, &Options::default()).unwrap_err();
    expect!["the rules cost more than the budget: the minimum rates take 5.010e-3 CPU s/s, the budget is 1.000e-3 CPU s/s, 4.010e-3 CPU s/s short; the least budget that would do is 0.5010% of the target's CPU time"].assert_eq(&error.to_string());
    the_least_budget_holds(&problem, Strategy::Auto);
    the_least_budget_holds(&problem, Strategy::Certified);
    // An idle target has no CPU time that the budget could be a share of.
    let idle = Problem { target_cpu: 0.0, ..problem };
    let error = solve(&idle, Strategy::Approximation, &Options::default()).unwrap_err();
    assert_eq!(error, PlanError::Unbounded);
    let limited = Problem { sampling: SamplingRules { max_hz: 100.0, ..idle.sampling }, ..idle };
    let error = solve(&limited, Strategy::Approximation, &Options::default()).unwrap_err();
    expect!["the rules cost more than the budget: the minimum rates take 1.000e0 CPU s/s, the budget is 1.000e-3 CPU s/s, 9.990e-1 CPU s/s short; the least budget that would do is 1.000e0 CPU s/s"].assert_eq(&error.to_string());
}

#[test]
fn too_many_classes_for_exhaustive_search() {
    let error = solve(&problems::heavy_tailed(21, 1), Strategy::Exhaustive, &Options::default()).unwrap_err();
    assert!(matches!(error, PlanError::NotApplicable { .. }), "{error}");
}

#[test]
fn a_stopped_search_still_has_a_plan_and_a_bound() {
    let problem = problems::near_equal(40, 3);
    let stopped = Options { work_limit: Some(10_000), ..Options::default() };
    let plan = solve(&problem, Strategy::Certified, &stopped).unwrap();
    check(&problem, &plan);
    assert!(plan.gap > 1e-9);
    let longer = Options { work_limit: Some(3_000_000), ..Options::default() };
    let better = solve(&problem, Strategy::Certified, &longer).unwrap();
    assert!(better.value >= plan.value && better.upper_bound <= plan.upper_bound);
    assert!(better.value <= plan.upper_bound && plan.value <= better.upper_bound);
}

#[test]
fn many_minimum_rates_leave_the_approximation_a_valid_bound() {
    // A hundred thresholds: more cases than the approximation looks at.
    for seed in 0..20 {
        let mut problem = problems::heavy_tailed(100, seed);
        problem.sampling.max_hz = f64::INFINITY;
        for (i, class) in problem.classes.iter_mut().enumerate() {
            class.min_rate_hz = class.rho.value * (1.0 + i as f64);
        }
        let plan = solve(&problem, Strategy::Approximation, &Options::default()).unwrap();
        check(&problem, &plan);
        let best = solve(&problem, Strategy::Certified, &Options::default()).unwrap();
        assert!(plan.upper_bound >= best.value, "seed {seed}: {} below {}", plan.upper_bound, best.value);
    }
}

#[test]
fn identical_classes_are_counted_not_tried_out() {
    let problem = problems::identical(300);
    let work = Options { work_limit: Some(400_000), top: 3, ..Options::default() };
    let plans = solve_top(&problem, Strategy::Certified, &work).unwrap();
    assert!(plans[0].gap <= 1e-9, "{}", plans[0].gap);
    let counts: Vec<usize> = plans
        .iter()
        .map(|plan| plan.classes.iter().filter(|c| c.decision == Decision::Trace).count())
        .collect();
    assert_eq!(counts, [96, 95, 94]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// A refusal names the least budget, whatever the rules.
    #[test]
    fn the_least_budget_is_the_least(seed: u64, n in 1usize..8, share in 0.0..1.0f64, charged: bool) {
        let mut problem = problems::with_rules(n, seed);
        problem.budget *= 0.05 * share + 1e-6;
        problem.sampling.max_hz = problem.sampling.max_hz.max(problem.sampling.min_hz);
        for (i, class) in problem.classes.iter_mut().enumerate().filter(|(_, c)| !c.never_trace) {
            class.min_rate_hz = class.rate_hz.value * (0.37 * i as f64 + share).fract();
        }
        for strategy in [Strategy::Certified, Strategy::Approximation, Strategy::Exhaustive, Strategy::SampleAll] {
            the_least_budget_holds(&problem, strategy);
        }
        if charged {
            problem.burst = Some(BurstRules { min_s: 0.02, cycle_s: 1.0, attach_cost_s: 20e-6 });
        }
        the_least_budget_holds(&problem, Strategy::Mixed);
        problem.objective = Objective::Variance;
        the_least_budget_holds(&problem, Strategy::Auto);
    }

    /// More budget is never worth less, and plans do not depend on the unit of the weights.
    #[test]
    fn value_grows_with_the_budget_and_scales_with_the_weights(seed: u64, n in 0usize..25, ruled: bool) {
        let problem = if ruled { problems::with_rules(n, seed) } else { problems::heavy_tailed(n, seed) };
        let options = Options::default();
        if let Ok(plan) = solve(&problem, Strategy::Certified, &options) {
            for factor in [1.001, 1.3, 4.0] {
                let more = Problem { budget: problem.budget * factor, ..problem.clone() };
                let richer = solve(&more, Strategy::Certified, &options).unwrap();
                prop_assert!(richer.value >= plan.value * (1.0 - 2e-9));
            }
            let mut heavier = problem.clone();
            heavier.classes.iter_mut().for_each(|c| c.weight *= 1024.0);
            let scaled = solve(&heavier, Strategy::Certified, &options).unwrap();
            let decisions = |p: &profiler_core::plan::Plan| p.classes.iter().map(|c| c.decision).collect::<Vec<_>>();
            prop_assert_eq!(decisions(&scaled), decisions(&plan));
            prop_assert!((scaled.value / 1024.0 - plan.value).abs() <= 1e-12 * plan.value);
        }
    }

    /// Any numbers at all: an error or a plan that keeps its rules.
    #[test]
    fn any_numbers(seed: u64, wild in proptest::collection::vec(
        prop_oneof![Just(0.0), Just(1.0), Just(1e-300), Just(1e30), Just(f64::INFINITY), Just(f64::NAN), Just(-1.0),
                    any::<f64>(), 1e-9..1e9f64], 40)) {
        let mut numbers = wild.iter().copied().cycle();
        let mut next = || numbers.next().unwrap();
        let mut problem = Problem::new(next(), next(), next());
        problem.sampling.max_hz = next();
        for i in 0..(seed % 6) {
            let mut class = PlanClass::new(format!("f{i}"), next(), next(), next()).weight(next());
            class.must_trace = seed >> i & 64 != 0;
            class.min_rate_hz = next();
            problem.classes.push(class);
        }
        for strategy in Strategy::ALL {
            if let Ok(plan) = solve(&problem, strategy, &Options { top: 2, work_limit: Some(100_000), ..Options::default() }) {
                prop_assert!(plan.value.is_finite() && plan.upper_bound >= plan.value && plan.cost <= problem.budget);
                prop_assert!(plan.sampling_hz.is_finite() && plan.sampling_hz >= 0.0);
                let _ = plan.explain(&problem);
            }
        }
    }
}
