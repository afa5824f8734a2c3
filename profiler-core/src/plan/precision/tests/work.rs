//! The work of a plan is bounded, and what that costs is in its gap.

use super::*;
use crate::plan::precision::curve::{Curve, Prices};
use crate::plan::precision::search::{LOOKS, size};

/// `n` classes that are hard to tell apart: equal ones, ones that differ by less than a thousandth, rates over six powers of ten.
fn hard(kind: usize, n: u32, most_per_s: f64) -> Problem {
    let mut hard = problem(0.02);
    if let Some(rules) = &mut hard.windows {
        (rules.most_per_s, rules.closest_s) = (most_per_s, 0.1);
    }
    let part = |i: u32| f64::from(i) / f64::from(n);
    let rate = |i: u32| match kind {
        0 => 1e5,
        1 => 1e5 * (1.0 + 1e-3 * part(i)),
        _ => 10f64.powf(1.0 + 6.0 * (f64::from(i) * 0.618_034).fract()),
    };
    hard.classes = (0..n).map(|i| class(rate(i), 1.0 / f64::from(n))).collect();
    hard
}

#[test]
fn no_problem_takes_more_steps_than_the_limit() {
    for kind in 0..3 {
        for n in [1, 20, 100, 500, 5_000] {
            for most_per_s in [0.5, 16.0, f64::INFINITY] {
                let hard = hard(kind, n, most_per_s);
                for limit in [0, 10_000, 66_666, 200_000] {
                    let steps = Steps::new(&Options { work_limit: Some(limit), ..Options::default() });
                    let plan = planned(&hard, &steps).unwrap().remove(0);
                    // Each class is looked at some times in any case: its lengths, no price, the bound, for the plan and for that without exact counts.
                    let most = limit as usize + 10 * n as usize;
                    assert!(steps.taken() <= most, "{kind}, {n}, {limit}: {} steps", steps.taken());
                    assert!(plan.cost <= hard.budget * (1.0 + 1e-9) && plan.gap.is_finite(), "{plan:?}");
                }
            }
        }
    }
}

/// Fewer lengths, not fewer looks: the plan stays near its bound.
#[test]
fn large_problems_are_solved_nearly_as_well() {
    for kind in 0..3 {
        let hard = hard(kind, 500, 16.0);
        let plan = |work_limit| {
            plan_by(&hard, Strategy::Auto, &Options { work_limit, ..Options::default() }).unwrap()
        };
        // The first plan of a live run of 500 functions.
        let (limited, free) = (plan(Some(666_666)), plan(None));
        assert!(limited.value > free.value - 0.08, "{kind}: {} {}", limited.value, free.value);
        assert!(limited.upper_bound > free.value - 1e-6, "{kind}: {limited:?}");
        // 0.15 of equal ones: 0.06 in the plan, the rest in the bound.
        assert!(limited.gap - limited.exact_counts < 0.3, "{kind}: {} {}", limited.gap, limited.exact_counts);
    }
}

#[test]
fn lengths_are_thinned_and_the_bound_knows_all() {
    let hard = hard(1, 100, 16.0);
    let limit = 66_666;
    let steps = Steps::new(&Options { work_limit: Some(limit), ..Options::default() });
    let search = Search::new(&hard, &steps, true).unwrap();
    assert!(
        size(&search.curves) * LOOKS <= limit as usize || search.curves.iter().all(|c| c.choices.len() <= 2)
    );
    let free = Steps::new(&Options::default());
    let all = size(&Search::new(&hard, &free, true).unwrap().curves);
    assert!(size(&search.curves) < all / 2, "{} of {all}", size(&search.curves));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// What a class is offered at these prices is the best of all lengths and numbers, and no better than its outline.
    #[test]
    fn the_best_offer_is_the_best(any in any_problem(), mu in 0.0..50.0f64, nu in 0.0..0.5f64) {
        for class in &any.classes {
            let prices = Prices { mu, nu };
            let net = |o: &crate::plan::precision::curve::Offer| o.worth - mu * o.cost - nu * o.per_s;
            let curve = Curve::new(&any, class, 0.5).with_lengths(&any, class);
            let best = net(&curve.best(prices));
            for (i, choice) in curve.choices.iter().enumerate() {
                for part in 0..=40u32 {
                    let per_s = choice.most_per_s * f64::from(part) / 40.0;
                    prop_assert!(net(&curve.burst(i, per_s)) <= best + 1e-9, "{i} {per_s}");
                }
            }
            let outline = Curve::new(&any, class, 0.5).outline(&any, class);
            prop_assert!(net(&outline.best(prices)) >= best - 1e-9);
            prop_assert_eq!(outline.choices.is_empty(), curve.choices.is_empty());
        }
    }
}
