//! Properties that hold for every problem.

use super::oracle::{brute_force, check};
use profiler_core::plan::{BurstRules, Options, PlanError, Problem, Strategy, solve, solve_top};
use profiler_lab::problems;
use proptest::prelude::*;

fn top5(problem: &Problem, strategy: Strategy) -> Result<Vec<f64>, PlanError> {
    let plans = solve_top(problem, strategy, &Options { top: 5, ..Options::default() })?;
    for plan in &plans {
        check(problem, plan);
    }
    Ok(plans.iter().map(|p| p.value).collect())
}

fn same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 2e-9 * a.abs().max(1e-12))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Brute force from the definition, exhaustive search and the certified optimum agree on the five best splits;
    /// the approximation is within its bound, and every bound holds.
    #[test]
    fn all_exact_methods_agree(seed: u64, n in 0usize..9, family in 0u8..10) {
        let problem = match family {
            0..4 => problems::with_rules(n, seed),
            4 => problems::identical(n),
            5 => problems::near_equal(n, seed),
            6 => problems::subset_sum(n, seed),
            _ => problems::heavy_tailed(n, seed),
        };
        let truth = brute_force(&problem);
        match top5(&problem, Strategy::Exhaustive) {
            Ok(exhaustive) => {
                let expected = &truth[..truth.len().min(5)];
                prop_assert!(same(&exhaustive, expected), "exhaustive {exhaustive:?}, truth {expected:?}");
                let certified = top5(&problem, Strategy::Certified).unwrap();
                prop_assert!(same(&certified, expected), "certified {certified:?}, truth {expected:?}");
                let proof = solve(&problem, Strategy::Certified, &Options::default()).unwrap();
                prop_assert!(proof.upper_bound >= truth[0] * (1.0 - 1e-12) && proof.gap <= 1e-9);
                // However early the search is stopped, its bound holds.
                let stopped = Options { work_limit: Some(seed % 3_000), ..Options::default() };
                let early = solve(&problem, Strategy::Certified, &stopped).unwrap();
                prop_assert!(early.upper_bound >= truth[0] * (1.0 - 1e-12), "{} below {}", early.upper_bound, truth[0]);
                for strategy in [Strategy::Approximation, Strategy::Hottest, Strategy::ByWeight, Strategy::SampleAll] {
                    let plan = solve(&problem, strategy, &Options::default()).unwrap();
                    check(&problem, &plan);
                    prop_assert!(plan.value <= truth[0] * (1.0 + 1e-9));
                    prop_assert!(plan.upper_bound >= truth[0] * (1.0 - 1e-12));
                    let bound = strategy != Strategy::Approximation || 2.0 * plan.value > truth[0] || truth[0] == 0.0;
                    prop_assert!(bound, "{} of {}", plan.value, truth[0]);
                }
            }
            Err(error) => {
                let infeasible = matches!(error, PlanError::Infeasible { .. } | PlanError::MinRate { .. });
                prop_assert!(infeasible && truth.is_empty(), "{error}, truth {truth:?}");
                prop_assert!(solve(&problem, Strategy::Certified, &Options::default()).is_err());
            }
        }
    }

    /// The mixed optimum is worth at least the binary one, and keeps the rules.
    #[test]
    fn bursts_never_make_a_plan_worse(seed: u64, n in 0usize..12, ruled: bool, charged: bool) {
        let mut problem = if ruled { problems::with_rules(n, seed) } else { problems::heavy_tailed(n, seed) };
        if charged {
            problem.burst = Some(BurstRules { min_s: 0.02, cycle_s: 1.0, attach_cost_s: 20e-6 });
        }
        let binary = solve(&problem, Strategy::Certified, &Options::default());
        let mixed = solve(&problem, Strategy::Mixed, &Options { gap: 1e-6, ..Options::default() });
        if let Ok(mixed) = &mixed {
            check(&problem, mixed);
        }
        if let Ok(binary) = binary {
            let mixed = mixed.unwrap();
            prop_assert!(mixed.value >= binary.value * (1.0 - 1e-6), "{} below {}", mixed.value, binary.value);
        }
    }
}
