//! The worked example of Metz et al. §5 (Table 1), each scenario by name, and the paper's three problems.

use super::oracle::{brute_force, check};
use profiler_core::plan::{
    Decision, Options, Plan, PlanClass, PlanError, Problem, Strategy, solve, solve_top,
};
use profiler_lab::problems;

/// Weights in the order of Table 1: file, window, kernel, font, others.
fn table1(max_f: f64, weights: [f64; 5]) -> Problem {
    let [file, window, kernel, font, others] = weights;
    let classes = [
        ("file", 0.30, 359.0, file),
        ("window", 0.23, 189.0, window),
        ("kernel", 0.09, 153.0, kernel),
        ("font", 0.11, 334.0, font),
        ("others", 0.27, 630.0, others),
    ];
    // 5 % overhead at MaxF = 925: one report takes 54 us.
    problems::from_max_frequency(max_f, 0.05 / max_f, &classes)
}

fn traced(problem: &Problem, plan: &Plan) -> Vec<String> {
    let pairs = problem.classes.iter().zip(&plan.classes);
    pairs.filter(|(_, p)| p.decision == Decision::Trace).map(|(c, _)| c.name.clone()).collect()
}

/// The optimum by both exact methods, their five best alike, and the approximation within its bound.
fn scenario(max_f: f64, weights: [f64; 5], split: &[&str], value: f64, sampling_hz: f64) {
    let problem = table1(max_f, weights);
    for strategy in [Strategy::Exhaustive, Strategy::Certified, Strategy::Auto] {
        let plan = solve(&problem, strategy, &Options::default()).unwrap();
        check(&problem, &plan);
        assert_eq!(traced(&problem, &plan), split, "{strategy}");
        assert!((plan.value - value).abs() < 0.006, "{strategy}: {}", plan.value);
        assert!((plan.sampling_hz - sampling_hz).abs() < 1e-6, "{strategy}: {}", plan.sampling_hz);
        assert!(plan.gap <= 1e-9);
    }
    let top = Options { top: 5, ..Options::default() };
    let exhaustive = solve_top(&problem, Strategy::Exhaustive, &top).unwrap();
    let certified = solve_top(&problem, Strategy::Certified, &top).unwrap();
    assert_eq!((exhaustive.len(), certified.len()), (5, 5));
    for ((a, b), truth) in exhaustive.iter().zip(&certified).zip(brute_force(&problem)) {
        assert_eq!(traced(&problem, a), traced(&problem, b));
        assert!((a.value - truth).abs() < 1e-9 * truth && (b.value - truth).abs() < 1e-9 * truth);
    }
    let approximation = solve(&problem, Strategy::Approximation, &Options::default()).unwrap();
    check(&problem, &approximation);
    assert!(approximation.value > 0.5 * value && approximation.upper_bound >= value - 0.006);
}

#[test]
fn metz2005_equal_weights_sample_everything() {
    scenario(925.0, [1.0; 5], &[], 925.0, 925.0);
}

#[test]
fn metz2005_file_server_matters_twice() {
    scenario(925.0, [2.0, 1.0, 1.0, 1.0, 1.0], &["file", "window", "font"], 1256.48, 43.0);
}

#[test]
fn metz2005_four_servers_matter_twice() {
    // 2 (359 + 189 + 334) + 43 (2 0.09 + 0.27)
    scenario(925.0, [2.0, 2.0, 2.0, 2.0, 1.0], &["file", "window", "font"], 1783.35, 43.0);
}

#[test]
fn metz2005_kernel_server_raised() {
    scenario(925.0, [2.0, 2.0, 3.0, 2.0, 1.0], &["file", "kernel", "font"], 1902.67, 79.0);
}

#[test]
fn metz2005_dearer_reports() {
    scenario(641.0, [2.0, 1.0, 1.0, 1.0, 1.0], &["file", "window"], 950.71, 93.0);
}

#[test]
fn everything_is_traced_when_it_fits() {
    let problem = table1(1665.0, [1.0; 5]);
    let plan = solve(&problem, Strategy::Certified, &Options::default()).unwrap();
    // Sampling everything at 1665 Hz brings as much.
    assert!((plan.value - 1665.0).abs() < 1e-6);
    let problem = table1(1665.0, [1.0, 1.0, 1.0, 1.0, 1.01]);
    let plan = solve(&problem, Strategy::Certified, &Options::default()).unwrap();
    assert!(plan.value >= 1665.0 + 0.01 * 630.0 - 1e-6, "{}", plan.value);
}

#[test]
fn problem1_fills_the_budget_in_order_of_weight() {
    let problem = table1(925.0, [2.0, 1.5, 1.2, 1.1, 1.0]);
    let plan = solve(&problem, Strategy::Continuous, &Options::default()).unwrap();
    // File, window, kernel whole: 701 of 925; the rest, 224 of 334, goes to font.
    assert_eq!(traced(&problem, &plan), ["file", "window", "kernel"]);
    assert!((plan.classes[3].decision.duty() - 224.0 / 334.0).abs() < 1e-12);
    assert_eq!(plan.classes[4].decision, Decision::Sample);
    let expected = 2.0 * 359.0 + 1.5 * 189.0 + 1.2 * 153.0 + 1.1 * 224.0;
    assert!((plan.value - expected).abs() < 1e-9 && plan.gap == 0.0 && plan.sampling_hz == 0.0);
    assert!((plan.cost - problem.budget).abs() < 1e-15);
}

#[test]
fn problem1_pays_for_detection_and_keeps_minimum_rates() {
    let mut problem = table1(925.0, [2.0, 1.5, 1.2, 1.1, 1.0]);
    let report = problem.classes[0].tau_s;
    for class in &mut problem.classes {
        class.detect_s = 0.1 * report;
    }
    problem.classes[4].min_rate_hz = 63.0;
    let plan = solve(&problem, Strategy::Continuous, &Options::default()).unwrap();
    // 925 - 166.5 for detecting all 1665, - 63 for others; 359 + 189 = 548 leave 147.5 of kernel's 153.
    assert_eq!(traced(&problem, &plan), ["file", "window"]);
    assert!((plan.classes[2].decision.duty() - 147.5 / 153.0).abs() < 1e-9);
    assert!((plan.classes[4].decision.duty() - 0.1).abs() < 1e-12);
    assert!(plan.cost <= problem.budget);
    let dear = Problem { budget: 166.0 * report, ..problem };
    let error = solve(&dear, Strategy::Continuous, &Options::default()).unwrap_err();
    assert!(matches!(error, PlanError::Infeasible { .. }), "{error}");
}

#[test]
fn problem3_samples_everything_where_events_last() {
    let mut problem = table1(925.0, [1.0, 2.0, 3.0, 4.0, 5.0]);
    for class in &mut problem.classes {
        class.rho = 1.0.into();
    }
    let plan = solve(&problem, Strategy::Frequent, &Options::default()).unwrap();
    assert!((plan.value - 15.0 * 925.0).abs() < 1e-9 && plan.gap == 0.0);
    let best = solve(&problem, Strategy::Exhaustive, &Options::default()).unwrap();
    assert!((plan.value - best.value).abs() < 1e-9);
}

#[test]
fn problem3_needs_its_condition() {
    // rho = 1 for both, but a sample costs twenty hits: tracing wins, and the strategy must not claim otherwise.
    let mut problem = Problem::new(0.01, 1.0, 20e-6);
    problem.classes = (0..2).map(|i| PlanClass::new(format!("f{i}"), 4_000.0, 1.0, 1e-6)).collect();
    let error = solve(&problem, Strategy::Frequent, &Options::default()).unwrap_err();
    assert!(matches!(error, PlanError::NotApplicable { .. }));
    let sampled = solve(&problem, Strategy::SampleAll, &Options::default()).unwrap();
    let best = solve(&problem, Strategy::Certified, &Options::default()).unwrap();
    assert!((sampled.value - 1_000.0).abs() < 1e-9 && (best.value - 8_000.0).abs() < 1e-9);
    // A largest sampling rate that binds breaks it as well.
    let mut bounded = problems::from_max_frequency(100.0, 1e-3, &[("a", 1.0, 50.0, 1.0)]);
    bounded.sampling.max_hz = 10.0;
    assert!(solve(&bounded, Strategy::Frequent, &Options::default()).is_err());
    assert_eq!(solve(&bounded, Strategy::Certified, &Options::default()).unwrap().value, 50.0);
}

#[test]
fn interruptions_raise_what_is_traced_not_what_is_sampled() {
    let mut problem = table1(925.0, [1.0; 5]);
    problem.classes[0].interruptions_hz = 41.0;
    problem.classes[0].must_trace = true;
    let plan = solve(&problem, Strategy::Certified, &Options::default()).unwrap();
    let report = problem.classes[0].tau_s;
    assert!((plan.classes[0].cost - 400.0 * report).abs() < 1e-15 && plan.classes[0].value == 400.0);
    assert!((plan.sampling_hz - 525.0).abs() < 1e-6 || plan.sampling_hz < 525.0);
}

#[test]
fn a_deducible_class_is_derived_from_the_cheaper_one() {
    let mut problem = table1(925.0, [3.0, 1.0, 1.0, 1.0, 1.0]);
    // Every window event is followed by a file event, and tracing window is cheaper.
    problem.classes[0].derived_from = Some(1);
    problem.classes[0].rate_hz = 189.0.into();
    problem.classes[0].tau_s *= 2.0;
    problem.classes[0].rho = 0.05.into();
    let plan = solve(&problem, Strategy::Certified, &Options::default()).unwrap();
    check(&problem, &plan);
    assert_eq!(plan.classes[1].decision, Decision::Trace);
    assert_eq!(plan.classes[0].decision, Decision::Derived { from: 1 });
    assert_eq!(plan.classes[0].value, 3.0 * 189.0);
    assert_eq!(plan.classes[0].cost, 0.0);
}

#[test]
fn problem1_by_selection_is_the_sorted_greedy() {
    for seed in 0..40 {
        let mut problem = problems::heavy_tailed(300, seed);
        for (i, class) in problem.classes.iter_mut().enumerate() {
            class.weight = 1.0 + ((i * 7919) % 300) as f64 / 300.0;
            class.rate_hz = (class.rate_hz.value.powf(0.2) * 100.0).into();
        }
        let mut classes: Vec<&PlanClass> = problem.classes.iter().collect();
        classes.sort_by(|a, b| (b.weight / b.tau_s).total_cmp(&(a.weight / a.tau_s)));
        let (mut room, mut expected) = (problem.budget, 0.0);
        for class in classes {
            let part = (room / class.trace_cost()).min(1.0);
            room -= part * class.trace_cost();
            expected += part * class.weight * class.rate_hz.value;
        }
        let plan = solve(&problem, Strategy::Continuous, &Options::default()).unwrap();
        check(&problem, &plan);
        assert!((plan.value - expected).abs() < 1e-9 * expected, "{} against {expected}", plan.value);
    }
}
