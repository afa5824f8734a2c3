//! The approximation's fine print: two plausible variants that break its bound, as the proof says they must.

use profiler_core::plan::{Options, PlanClass, Problem, Strategy, solve};

#[derive(Clone, Copy, PartialEq)]
enum Order {
    ByDensity,
    ByWeight,
}

/// The paper's algorithm with one step changed; classes without samples (`rho = 0`), so the value is the traced one.
fn variant(problem: &Problem, order: Order, stop_at_misfit: bool) -> f64 {
    let mut classes: Vec<&PlanClass> = problem.classes.iter().collect();
    let key = |c: &PlanClass| match order {
        Order::ByDensity => c.weight / c.tau_s,
        Order::ByWeight => c.weight,
    };
    classes.sort_by(|a, b| key(b).total_cmp(&key(a)));
    let worth = |c: &PlanClass| c.weight * c.rate_hz.value;
    let singles = classes.iter().filter(|c| c.trace_cost() <= problem.budget).map(|c| worth(c));
    let best_single = singles.fold(0.0, f64::max);
    let (mut cost, mut value) = (0.0, 0.0);
    for class in classes {
        if cost + class.trace_cost() <= problem.budget {
            cost += class.trace_cost();
            value += worth(class);
        } else if stop_at_misfit {
            break;
        }
    }
    best_single.max(value)
}

fn values(problem: &Problem) -> (f64, f64) {
    let of = |strategy| solve(problem, strategy, &Options::default()).unwrap().value;
    (of(Strategy::Approximation), of(Strategy::Certified))
}

#[test]
fn stopping_at_the_first_misfit_breaks_the_bound() {
    let mut problem = Problem::new(100e-6, 1.0, 1e-6);
    problem.classes.push(PlanClass::new("dense", 1.0, 0.0, 1e-6).weight(10.0));
    problem.classes.push(PlanClass::new("misfit", 101.0, 0.0, 1e-6).weight(9.0));
    problem.classes.extend((0..49).map(|i| PlanClass::new(format!("small {i}"), 2.0, 0.0, 1e-6)));
    let (approximation, optimum) = values(&problem);
    assert_eq!(optimum, 108.0);
    assert!(approximation > 0.5 * optimum);
    assert_eq!(variant(&problem, Order::ByDensity, false), approximation);
    assert!(variant(&problem, Order::ByDensity, true) < 0.1 * optimum);
}

/// A minimum rate splits the problem into cases, in which nothing is set aside before sorting: skipping does the work.
#[test]
fn stopping_at_the_first_misfit_breaks_the_bound_with_minimum_rates() {
    let mut problem = Problem::new(100e-6, 1.0, 1e-6);
    problem.classes.push(PlanClass::new("dense", 1.0, 0.0, 1e-6).weight(10.0));
    problem.classes.push(PlanClass::new("misfit", 101.0, 0.0, 1e-6).weight(9.0));
    problem.classes.extend((0..49).map(|i| PlanClass::new(format!("small {i}"), 2.0, 0.0, 1e-6)));
    let seen = PlanClass::new("seen", 1e-3, 1e-6, 1e-6);
    problem.classes.push(PlanClass { min_rate_hz: 1e-9, ..seen });
    let (approximation, optimum) = values(&problem);
    assert!(optimum > 107.0 && approximation > 0.9 * optimum, "{approximation} of {optimum}");
    assert!(variant(&problem, Order::ByDensity, true) < 0.1 * optimum);
}

#[test]
fn sorting_by_weight_alone_breaks_the_bound_with_unequal_prices() {
    let mut problem = Problem::new(100e-6, 1.0, 1e-6);
    problem.classes.push(PlanClass::new("dear", 10.0, 0.0, 10e-6).weight(2.0));
    problem.classes.extend((0..100).map(|i| PlanClass::new(format!("cheap {i}"), 100.0, 0.0, 0.01e-6)));
    let (approximation, optimum) = values(&problem);
    assert!((optimum - 10_000.0).abs() < 1e-6);
    assert!(approximation > 0.5 * optimum);
    assert_eq!(variant(&problem, Order::ByDensity, false), approximation);
    assert!(variant(&problem, Order::ByWeight, false) < 0.02 * optimum);
    // The strategy of that name does just that.
    let by_weight = solve(&problem, Strategy::ByWeight, &Options::default()).unwrap();
    assert!(by_weight.value < 0.02 * optimum && by_weight.upper_bound >= optimum * (1.0 - 1e-12));
}
