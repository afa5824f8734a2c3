//! An independent oracle: the exact mixed-integer program, solved by a general solver.
//!
//! `max sum W F x + sum W rho u` with `u_i <= s`, `u_i <= S (1 - x_i)`, `tau_s U s + sum c x <= b`,
//! `s_min <= s <= S`, `x` binary.

use good_lp::{Expression, Solution, SolverModel, Variable, constraint, microlp, variable, variables};
use profiler_core::plan::{Options, PlanClass, Problem, Strategy, solve};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn milp(problem: &Problem) -> f64 {
    // In units in which the budget is 1: general solvers have absolute tolerances.
    let unit = problem.budget;
    let price = problem.sample_cost() / unit;
    let largest = problem.sampling.max_hz.min(1.0 / price);
    let mut vars = variables!();
    // The rate too is scaled: s = largest * r.
    let r = vars.add(variable().min(problem.sampling.min_hz / largest).max(1.0));
    let x: Vec<Variable> = problem.classes.iter().map(|_| vars.add(variable().binary())).collect();
    let u: Vec<Variable> = problem.classes.iter().map(|_| vars.add(variable().min(0.0).max(1.0))).collect();
    let scale: f64 = problem.classes.iter().map(|c| c.weight * c.rate_hz.value).sum();
    let mut value = Expression::default();
    let mut cost = price * largest * r;
    for ((class, &x), &u) in problem.classes.iter().zip(&x).zip(&u) {
        value += class.weight * class.rate_hz.value / scale * x;
        value += class.weight * class.rho.value * largest / scale * u;
        cost += class.trace_cost() / unit * x;
    }
    let mut model = vars.maximise(value.clone()).using(microlp).with(constraint!(cost <= 1.0));
    for ((class, &x), &u) in problem.classes.iter().zip(&x).zip(&u) {
        model = model.with(constraint!(u <= r)).with(constraint!(u + x <= 1.0));
        if class.must_trace {
            model = model.with(constraint!(x >= 1.0));
        }
        if class.never_trace {
            model = model.with(constraint!(x <= 0.0));
        }
    }
    model.solve().unwrap().eval(&value) * scale
}

fn instance(seed: u64) -> Problem {
    let mut rng = StdRng::seed_from_u64(seed);
    let n = rng.random_range(2..9);
    let cpus = f64::from(rng.random_range(1u32..4));
    let mut problem = Problem::new(0.02 * cpus, cpus, rng.random_range(1.0..30.0) * 1e-6);
    let affordable = problem.budget / problem.sample_cost();
    if rng.random_bool(0.5) {
        problem.sampling.min_hz = 0.2 * affordable;
        problem.sampling.max_hz = 0.8 * affordable;
    }
    for i in 0..n {
        let rate = 10f64.powf(rng.random_range(2.5..4.7));
        let class = PlanClass::new(format!("f{i}"), rate, rng.random_range(0.0..cpus), 1e-6);
        problem.classes.push(class.weight(rng.random_range(0.5..4.0)));
    }
    problem.classes[0].never_trace = rng.random_bool(0.2);
    problem.classes[1].must_trace =
        rng.random_bool(0.2) && problem.classes[1].trace_cost() < 0.3 * problem.budget;
    problem
}

#[test]
fn the_exact_program_agrees() {
    for seed in 0..150 {
        let problem = instance(seed);
        let expected = milp(&problem);
        for strategy in [Strategy::Certified, Strategy::Exhaustive] {
            let plan = solve(&problem, strategy, &Options::default()).unwrap();
            let error = (plan.value - expected).abs() / expected;
            assert!(error < 1e-6, "seed {seed}, {strategy}: {} against {expected}", plan.value);
        }
    }
}
