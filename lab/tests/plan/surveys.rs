//! The planner on surveys of real programs: the class tables in `lab/surveys`.

use super::oracle::check;
use profiler_core::plan::table::parse;
use profiler_core::plan::{Options, Problem, Strategy, solve, solve_top};
use profiler_lab::problems;

const SURVEYS: [(&str, &str); 8] = [
    ("node", include_str!("../../surveys/node.toml")),
    ("openssl", include_str!("../../surveys/openssl.toml")),
    ("perl", include_str!("../../surveys/perl.toml")),
    ("python", include_str!("../../surveys/python.toml")),
    ("redis", include_str!("../../surveys/redis.toml")),
    ("rg", include_str!("../../surveys/rg.toml")),
    ("sqlite", include_str!("../../surveys/sqlite.toml")),
    ("xz", include_str!("../../surveys/xz.toml")),
];

/// Each survey as it is, and with other budgets and rates from its own intervals.
pub(super) fn problems() -> Vec<(String, Problem)> {
    let mut all = Vec::new();
    for (name, text) in SURVEYS {
        let survey = parse(text).unwrap_or_else(|errors| panic!("{name}: {}", errors[0])).problem;
        all.extend((0..20).map(|seed| (format!("{name} {seed}"), problems::within_intervals(&survey, seed))));
        all.push((name.to_owned(), survey));
    }
    all
}

#[test]
fn the_certified_plan_is_proven_and_no_simpler_rule_beats_it() {
    for (name, problem) in problems() {
        let best = solve(&problem, Strategy::Certified, &Options::default()).unwrap();
        check(&problem, &best);
        assert!(best.gap <= 1e-9, "{name}: {}", best.gap);
        for strategy in [Strategy::Approximation, Strategy::Hottest, Strategy::ByWeight, Strategy::SampleAll]
        {
            let plan = solve(&problem, strategy, &Options::default()).unwrap();
            check(&problem, &plan);
            assert!(
                plan.value <= best.value * (1.0 + 1e-9) && plan.upper_bound >= best.value,
                "{name} {strategy}"
            );
            assert!(strategy != Strategy::Approximation || 2.0 * plan.value > best.value, "{name}");
        }
    }
}

#[test]
fn the_five_best_are_those_of_exhaustive_search() {
    let top = Options { top: 5, ..Options::default() };
    let small = problems().into_iter().filter(|(_, p)| p.classes.len() <= 16);
    for (name, problem) in small {
        let values = |strategy| -> Vec<f64> {
            solve_top(&problem, strategy, &top).unwrap().iter().map(|plan| plan.value).collect()
        };
        let (certified, exhaustive) = (values(Strategy::Certified), values(Strategy::Exhaustive));
        assert_eq!(certified.len(), exhaustive.len(), "{name}");
        for (a, b) in certified.iter().zip(&exhaustive) {
            assert!((a - b).abs() <= 2e-9 * b, "{name}: {certified:?} {exhaustive:?}");
        }
    }
}
