//! The objective *precision* on surveys of real programs.

use super::surveys::problems;
use profiler_core::plan::{Decision, Objective, Options, Strategy, solve, widths};
use profiler_lab::widths::{of_run, told};

#[test]
fn surveys_are_planned_within_the_budget_and_nearly_at_the_bound() {
    for (name, survey) in problems() {
        for (share, seconds) in [(0.01, 15.0), (0.05, 60.0)] {
            let problem = of_run(&survey, Objective::Precision, share, seconds);
            let plan = solve(&problem, Strategy::Auto, &Options::default()).unwrap();
            let cost =
                plan.classes.iter().map(|c| c.cost).sum::<f64>() + plan.sampling_hz * problem.sample_cost();
            assert!(cost <= problem.budget * (1.0 + 1e-9), "{name}: {cost}");
            assert!((0.0..0.02).contains(&(plan.gap - plan.exact_counts)), "{name}: {}", plan.gap);
            assert!((0.0..0.1).contains(&plan.exact_counts), "{name}: {}", plan.exact_counts);
            // Of each class a row, counted whole or with a width.
            for (planned, width) in plan.classes.iter().zip(widths(&problem, &plan)) {
                assert!(
                    width.is_finite() && (width == 0.0) == (planned.decision == Decision::Trace),
                    "{name}"
                );
            }
        }
    }
}

/// By the objective's own measure: the median of rows may be wider where a few rows take most of the time.
#[test]
fn rows_are_known_better_than_with_the_objective_information() {
    let (mut better, mut all) = (0, 0);
    for (name, survey) in problems().into_iter().filter(|(_, p)| p.classes.len() > 5) {
        let of = |objective| told(&of_run(&survey, objective, 0.02, 60.0)).unwrap();
        let (information, precision) = (of(Objective::Information), of(Objective::Precision));
        assert!(precision.mean <= 1.05 * information.mean, "{name}: {information:?} {precision:?}");
        all += 1;
        better += usize::from(precision.mean < 0.8 * information.mean);
    }
    assert!(better > all / 2, "{better} of {all}");
}
