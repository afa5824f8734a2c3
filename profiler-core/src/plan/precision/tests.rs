use super::*;
use crate::burst::{self, BurstPrices};
use crate::plan::{
    ClassWindows, Objective, Strategy, WIDTH_FLOOR, WIDTH_FLOOR_OF_FIRST, WindowRules, solve as plan_by,
    table,
};
use proptest::prelude::{ProptestConfig, prop, prop_assert, prop_assert_eq, proptest};
use proptest::strategy::Strategy as Any;

const PRICES: BurstPrices =
    BurstPrices { attach_s: 60e-6, delay_s: 8e-3, fresh_delay_s: 100e-6, fresh_s: 5e-3, cpus: 4 };

/// So much of one CPU for 60 s; a sample costs 15 us.
fn problem(budget: f64) -> Problem {
    let mut problem = Problem::new(budget, 1.0, 15e-6);
    (problem.objective, problem.horizon_s) = (Objective::Precision, 60.0);
    (problem.sampling.min_hz, problem.sampling.max_hz) = (19.0, 199.0);
    let limit_s = Some(0.125 * budget);
    problem.windows =
        Some(WindowRules { prices: PRICES, limit_s, closest_s: 0.01, ..WindowRules::default() });
    problem
}

fn class(rate_hz: f64, rho: f64) -> PlanClass {
    PlanClass::new("f", rate_hz, rho, 0.7e-6)
}

fn of(problem: &Problem) -> Plan {
    plan_by(problem, Strategy::Auto, &Options::default()).unwrap()
}

#[test]
fn below_the_floor_each_class_gets_its_weight_of_the_budget_whatever_its_spread_and_price() {
    let mut problem = problem(0.01);
    // Far too hot to be traced; none reaches the floor, none its most windows.
    for (rate, rho, tau, spread) in [(1e6, 0.4, 0.7e-6, 2.0), (3e6, 0.2, 2e-6, 9.0), (5e5, 0.1, 1e-6, 5.0)] {
        let mut class = PlanClass::new("f", rate, rho, tau);
        class.windows.spread = spread;
        problem.classes.push(class);
    }
    problem.horizon_s = 200.0;
    let plan = of(&problem);
    let costs: Vec<f64> = plan.classes.iter().map(|c| c.cost).collect();
    assert!((costs[0] / costs[1] - 2.0).abs() < 0.1 && (costs[1] / costs[2] - 2.0).abs() < 0.1, "{costs:?}");
    assert!(plan.cost > 0.999 * problem.budget && plan.cost <= problem.budget, "{}", plan.cost);
    assert!(widths(&problem, &plan).iter().all(|w| *w > WIDTH_FLOOR));
    // So has the sampler, of a tenth of all weight.
    let samples = plan.sampling_hz * problem.sample_cost();
    assert!((samples / (costs.iter().sum::<f64>() / 9.0) - 1.0).abs() < 0.1, "{samples} {costs:?}");
}

#[test]
fn spread_decides_where_the_floor_is_reached_and_what_is_left_goes_to_others() {
    let mut even = problem(0.05);
    even.classes = vec![class(1e6, 0.3), class(1.1e6, 0.3)];
    even.classes[0].windows.spread = 0.05;
    even.classes[1].windows.spread = 2.0;
    let plan = of(&even);
    let widths = widths(&even, &plan);
    assert!(widths[0] < 1.1 * WIDTH_FLOOR && widths[0] > 0.95 * WIDTH_FLOOR, "{widths:?}");
    assert!(plan.classes[1].cost > 1.3 * plan.classes[0].cost, "{:?}", plan.classes);
}

#[test]
fn windows_get_longer_where_more_of_them_cannot_be_made() {
    let mut few = problem(0.05);
    few.classes = vec![class(1e5, 0.3), class(1.1e5, 0.3)];
    few.classes.iter_mut().for_each(|c| c.windows.spread = 1.0);
    let lengths = |problem: &Problem| -> f64 {
        let plan = of(problem);
        let orders = plan.classes.iter().filter_map(|c| c.burst);
        orders.map(|o| o.duty * o.every_ns as f64 * 1e-9).sum()
    };
    let many = lengths(&few);
    if let Some(rules) = &mut few.windows {
        rules.most_per_s = 1.0;
    }
    assert!(lengths(&few) > 1.5 * many, "{} {many}", lengths(&few));
}

#[test]
fn what_costs_next_to_nothing_is_counted_in_full_and_the_dear_ones_keep_half() {
    let mut problem = problem(0.02);
    problem.classes = vec![class(1e6, 0.5)];
    // 0.7 ms/s each: below 5 % of 20 ms/s.
    problem.classes.extend((0..40).map(|_| class(1e3, 0.001)));
    let plan = of(&problem);
    let traced = plan.classes[1..].iter().filter(|c| c.decision == Decision::Trace).count();
    let room = 0.02 - 19.0 * problem.sample_cost();
    assert_eq!(traced, (0.5 * room / 0.7e-3) as usize, "{:?}", plan.classes);
    assert!(plan.classes[0].cost > 0.3 * room, "{:?}", plan.classes[0]);
    // With the upper end of the rate.
    problem.classes[1].rate_hz.high = 2e3;
    problem.classes.truncate(2);
    let plan = of(&problem);
    assert!(plan.classes[1].cost > 0.0, "{:?}", plan.classes[1]);
    // What nobody wants to know is not counted.
    problem.classes[1].weight = 0.0;
    assert_eq!(of(&problem).classes[1].decision, Decision::Sample);
}

#[test]
fn what_was_named_comes_first() {
    let mut problem = problem(0.02);
    problem.classes = vec![class(1e6, 0.01), class(2e6, 0.8)];
    problem.classes[0].windows = ClassWindows { first: true, spread: 0.1, ..ClassWindows::default() };
    let plan = of(&problem);
    let (first, other) = (plan.classes[0].cost, plan.classes[1].cost);
    assert!(first > 2.0 * other && other > 0.0, "{first} {other}");
    // A call of 30 us: few of them, where others have none.
    for (first, possible) in [(false, false), (true, true)] {
        let mut dear = super::tests::problem(5e-3);
        dear.classes = vec![PlanClass::new("g", 2e4, 0.5, 30e-6)];
        dear.classes[0].windows.first = first;
        assert_eq!(of(&dear).classes[0].burst.is_some(), possible);
    }
}

#[test]
fn what_may_only_be_in_bursts_is_never_traced_all_the_time() {
    let mut problem = problem(0.02);
    problem.classes = vec![class(1e3, 0.3), class(1e3, 0.3)];
    problem.classes.iter_mut().for_each(|c| c.never_trace = true);
    problem.classes[0].windows.only = true;
    let plan = of(&problem);
    assert!(matches!(plan.classes[0].decision, Decision::Burst { .. }));
    assert_eq!(plan.classes[1].decision, Decision::Sample);
}

#[test]
fn the_least_budget_is_said_where_demands_do_not_fit() {
    let mut problem = problem(0.01);
    problem.classes = vec![PlanClass { must_trace: true, ..class(2e4, 0.1) }];
    let error = plan_by(&problem, Strategy::Auto, &Options::default()).unwrap_err();
    let PlanError::Infeasible { needed, .. } = error else { panic!("{error}") };
    problem.budget = needed * (1.0 + 1e-9);
    assert_eq!(of(&problem).classes[0].decision, Decision::Trace);
    problem.classes[0].min_rate_hz = 1.0;
    assert!(matches!(
        plan_by(&problem, Strategy::Auto, &Options::default()),
        Err(PlanError::NotApplicable { .. })
    ));
    problem.classes[0].min_rate_hz = 0.0;
    assert!(matches!(
        plan_by(&problem, Strategy::Approximation, &Options::default()),
        Err(PlanError::NotApplicable { .. })
    ));
}

#[test]
fn where_nothing_is_said_of_windows_there_are_none() {
    let mut problem = problem(0.02);
    problem.classes = vec![class(1e6, 0.5)];
    assert!(of(&problem).classes[0].burst.is_some());
    problem.windows = None;
    assert_eq!(of(&problem).classes[0].decision, Decision::Sample);
}

/// Windows are for those that can use them: 38 small functions whose calls cost 120 us have few, and short ones.
#[test]
fn windows_are_a_price_not_a_share() {
    let mut problem = problem(0.018);
    problem.horizon_s = 15.0;
    if let Some(rules) = &mut problem.windows {
        (rules.closest_s, rules.most_per_s) = (0.1, 16.0);
    }
    problem.classes = vec![class(2e5, 0.4), class(1e5, 0.3)];
    let alone = widths(&problem, &of(&problem));
    // Not one window of these is possible: 30 calls would take 3.6 ms of 2.25.
    problem.classes.extend((0..38).map(|_| PlanClass::new("g", 500.0, 0.3 / 38.0, 120e-6)));
    assert_eq!(rows_with_intervals(&problem), (2, 40));
    let plan = of(&problem);
    for (width, alone) in widths(&problem, &plan).iter().zip(alone) {
        assert!((width / alone - 1.0).abs() < 0.02, "{width} {alone}");
    }
    assert!(plan.cost > 0.95 * problem.budget, "{plan:?}");
}

/// Once all are known to the floor a longer run does not make estimates of what was counted in full, and spends no less.
#[test]
fn what_is_left_at_the_floor_is_spent() {
    let mut last = 0;
    for horizon_s in [60.0, 240.0, 2_000.0] {
        let mut problem = problem(0.018);
        problem.horizon_s = horizon_s;
        let rates = (0..15).map(|i| 10f64.powf(3.5 + 0.2 * f64::from(i)));
        problem.classes = rates.map(|rate| class(rate, 0.06)).collect();
        let plan = of(&problem);
        assert!(plan.cost > 0.97 * problem.budget, "{horizon_s}: {}", plan.cost);
        let traced = plan.classes.iter().filter(|c| c.decision == Decision::Trace).count();
        assert!(traced >= last, "{horizon_s}: {traced} after {last}");
        last = traced;
    }
    assert!(last > 1);
}

/// Bursts that are made rarer after the plan are worth less, and the bound stays.
#[test]
fn the_value_is_that_of_the_bursts_that_are_made() {
    let mut problem = problem(0.02);
    problem.classes = vec![class(1e6, 0.5), class(5e5, 0.3)];
    let plan = of(&problem);
    let mut same = plan.clone();
    crate::plan::value_anew(&problem, &mut same);
    assert!((same.value - plan.value).abs() < 1e-3, "{} {}", same.value, plan.value);
    let mut rarer = plan.clone();
    rarer.classes[0].burst = plan.classes[0].burst.map(|order| order.rarer(4.0));
    rarer.classes[0].decision = Decision::Burst { duty: rarer.classes[0].burst.unwrap().duty };
    crate::plan::value_anew(&problem, &mut rarer);
    assert!(rarer.value < plan.value - 0.2 && rarer.upper_bound == plan.upper_bound, "{rarer:?}");
    assert!((rarer.gap - (rarer.upper_bound - rarer.value)).abs() < 1e-12);
}

#[test]
fn the_paper_s_approximation_is_worth_less() {
    let mut problem = problem(0.02);
    problem.classes = vec![class(1e6, 0.5), class(1e4, 0.3)];
    let value = crate::plan::value_of_approximation(&problem).unwrap();
    assert!(value.is_finite() && value < of(&problem).value, "{value}");
    problem.objective = Objective::Information;
    assert_eq!(crate::plan::value_of_approximation(&problem), None);
}

/// What could be changed by more of the budget, by share, and also what is dearer than the room.
#[test]
fn ten_times_the_weight_is_tried_of_what_is_in_bursts() {
    let mut problem = problem(0.02);
    problem.classes = vec![class(1e6, 0.1), class(2e6, 0.8)];
    let what_if = crate::plan::what_if(&problem, &of(&problem), Strategy::Auto, &Options::default()).unwrap();
    assert_eq!(what_if.tenfold_weight.len(), 2, "{what_if:?}");
    assert_eq!(what_if.tenfold_weight[0].class, 1);
}

#[test]
fn windows_are_as_long_as_was_asked_for() {
    let shapes = burst::lengths(1e4, 1e-6, false, &PRICES, (3.0, f64::INFINITY));
    assert!(!shapes.is_empty() && shapes.iter().all(|shape| shape.length_s >= 3.0), "{shapes:?}");
}

#[test]
fn windows_that_end_by_their_hits_around_the_fresh_time_have_one_price() {
    // A window of all 8 hits is 6.4 ms long, so its links wait; its mean is 4.8 ms, within the 5 ms in which they do not.
    let mut any = problem(0.002);
    any.horizon_s = 5.0;
    let mut class = PlanClass::new("f", 1252.7, 0.001, 5.03e-6).weight(0.2);
    class.windows = ClassWindows { spread: 1.73, first: true, ..ClassWindows::default() };
    any.classes.push(class);
    let plan = of(&any);
    let order = plan.classes[0].burst.unwrap();
    let (length, mean) = (order.length_s(), order.duty * order.every_ns as f64 * 1e-9);
    assert!(length > PRICES.fresh_s && mean < PRICES.fresh_s, "{length} {mean}");
    let value = value_of(&any, &plan).unwrap();
    assert!((value - plan.value).abs() < 1e-3, "{value} {}", plan.value);
}

/// Some classes of any kind.
fn any_problem() -> impl Any<Value = Problem> {
    let one = (1.0..7.0f64, 0.001..0.6f64, 0.3..10.0f64, 0.02..2.0f64, 0.2..3.0f64, 0u8..8);
    let most = prop::option::of(0.5..40.0f64);
    let list = prop::collection::vec(one, 1..4);
    (0.002..0.1f64, list, 5.0..120.0f64, most).prop_map(|(budget, list, horizon_s, most)| {
        let mut any = problem(budget);
        any.horizon_s = horizon_s;
        if let (Some(rules), Some(most)) = (&mut any.windows, most) {
            rules.most_per_s = most;
        }
        for (log_rate, rho, us, spread, weight, kind) in list {
            let mut class = PlanClass::new("f", 10f64.powf(log_rate), rho, us * 1e-6).weight(weight);
            class.windows = ClassWindows { spread, first: kind == 0, ..ClassWindows::default() };
            class.never_trace = kind == 1;
            class.windows.only = kind == 1;
            any.classes.push(class);
        }
        any
    })
}

/// Something that can be done with a class: minus the log of its width, CPU s/s and windows/s.
type Tried = (f64, f64, f64);

/// A good part of what can be done with a class, from shapes of windows and the formulas of widths.
fn all(any: &Problem, class: &PlanClass) -> Vec<Tried> {
    let rules = any.window_rules();
    let z = crate::stats::z_quantile(crate::stats::LEVEL);
    let floor = if class.windows.first { WIDTH_FLOOR_OF_FIRST } else { WIDTH_FLOOR };
    let unknown = -(z / 0.04f64.sqrt()).ln();
    let mut tried = vec![(unknown, 0.0, 0.0)];
    if !class.never_trace {
        tried.push((-floor.ln(), class.rate_hz.value * class.tau_s, 0.0));
    }
    let (rate, limit) = (class.rate_hz.value, rules.limit_s.unwrap());
    let shapes = burst::lengths(rate, class.tau_s, class.windows.first, &rules.prices, (0.0, limit));
    // All lengths, where there are not too many combinations.
    for shape in shapes.into_iter().step_by(if any.classes.len() < 3 { 1 } else { 4 }) {
        let most = (1.0 / rules.closest_s).min(0.5 / shape.length_s);
        for part in [0.01, 0.03, 0.1, 0.2, 0.5, 1.0] {
            let (x, t) = (part * most, shape.mean_s);
            let a = class.windows.spread.powi(2) + rules.brief_s / t + 1.0 / (rate * t);
            let variance = a * (1.0 - x * t) / (x * any.horizon_s);
            let width = z / (0.04 + 1.0 / variance).sqrt();
            tried.push((-width.max(floor).ln(), x * shape.mean_cost_s, x));
        }
    }
    tried
}

/// The best value of all combinations of [`all`].
fn best_by_force(any: &Problem) -> f64 {
    let (sampler, weights) = (Sampler::new(any), weights(any));
    let mut tried = vec![(0.0, 0.0, 0.0)];
    for (class, weight) in any.classes.iter().zip(weights) {
        let weight = weight * (1.0 - sampler.weight);
        let offers = all(any, class);
        let of = |(worth, cost, windows): Tried| {
            offers.iter().map(move |o| (worth + weight * o.0, cost + o.1, windows + o.2))
        };
        let most = any.window_rules().most_per_s;
        tried = tried.into_iter().flat_map(of).filter(|t| t.1 <= any.budget && t.2 <= most).collect();
    }
    let (min, max) = sampler.range;
    let value = |(worth, cost, _): Tried| {
        let s = ((any.budget - cost) / sampler.price).min(max);
        (s >= min).then(|| worth + sampler.worth(s) - sampler.weight * unknown())
    };
    tried.into_iter().filter_map(value).fold(f64::NEG_INFINITY, f64::max)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// The plan keeps its budget.
    #[test]
    fn a_plan_keeps_its_budget(any in any_problem()) {
        let plan = of(&any);
        prop_assert!(plan.cost <= any.budget * (1.0 + 1e-9));
        let parts = plan.classes.iter().map(|c| c.cost).sum::<f64>() + plan.sampling_hz * any.sample_cost();
        prop_assert!(parts <= any.budget * (1.0 + 1e-9), "{parts} of {}", any.budget);
        prop_assert!(plan.gap >= 0.0 && (plan.upper_bound - plan.value - plan.gap).abs() < 1e-9);
    }

    /// Nothing that brute force finds is above the bound, also where the search was stopped before it saw all lengths, or any window at all.
    #[test]
    fn brute_force_finds_nothing_above_the_bound(any in any_problem(), limit in prop::option::of(0u64..20_000)) {
        let plan = plan_by(&any, Strategy::Auto, &Options { work_limit: limit, ..Options::default() }).unwrap();
        let best = best_by_force(&any);
        prop_assert!(best <= plan.upper_bound + 1e-6, "{best} above {} with {limit:?}", plan.upper_bound);
    }

    /// The value is what another reading of the plan says.
    #[test]
    fn a_plan_is_worth_what_its_decisions_are_worth(any in any_problem()) {
        let plan = of(&any);
        let value = value_of(&any, &plan).unwrap();
        prop_assert!(value > plan.value - 0.01 && value < plan.value + 0.02, "{value} {}", plan.value);
    }

    /// A table keeps everything that a plan is made from.
    #[test]
    fn a_table_gives_the_same_plan(any in any_problem()) {
        let again = table::parse(&table::to_toml(&any)).unwrap().problem;
        prop_assert_eq!(&again, &any);
    }

    /// More budget is not worth less, but for what a jump of one of so few classes to the next length leaves, and what counts in full keep from others.
    #[test]
    fn more_budget_is_not_worth_less(any in any_problem(), factor in 1.0..3.0f64) {
        let richer = Problem { budget: any.budget * factor, ..any.clone() };
        let (plan, more) = (of(&any), of(&richer));
        // A mean over more rows is another one.
        if rows_with_intervals(&any) == rows_with_intervals(&richer) {
            let least = plan.value - 0.1 - more.exact_counts;
            prop_assert!(more.value >= least, "{} {} {}", more.value, plan.value, more.gap);
        }
    }

    /// A burst is within the bucket, all of them within what links and the budget allow.
    #[test]
    fn bursts_keep_their_bounds(any in any_problem()) {
        let plan = of(&any);
        let orders: Vec<_> = plan.classes.iter().filter_map(|c| c.burst).collect();
        for order in &orders {
            prop_assert!(order.duty <= 0.5 + 1e-9, "{order:?}");
            prop_assert!(order.cost_ns <= 0.125e9 * any.budget * (1.0 + 1e-6), "{order:?}");
            prop_assert!(order.every_ns >= 9_900_000, "{order:?}");
        }
        let windows: f64 = orders.iter().map(|o| 1e9 / o.every_ns as f64).sum();
        prop_assert!(windows <= any.window_rules().most_per_s * (1.0 + 1e-6), "{windows}");
    }
}

mod work;
