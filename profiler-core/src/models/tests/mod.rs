//! Models of calls with a known truth. The table of all truths is in lab (`examples/models.rs`, `tests/growth.rs`).

use super::*;
use crate::stats::sim::{normal, rng};

mod comparing;
mod doubts;
mod in_flight;
mod inputs;
mod saving;
mod short;
mod watching;

/// Calls of a function of one input: 40 inputs over three decades, 20 calls each, log-normal noise.
fn calls(seed: u64, noise: f64, curve: impl Fn(f64) -> f64) -> Calls {
    calls_alike(seed, noise, 0.0, curve)
}

/// The same; each call is like the one before it, with this correlation.
fn calls_alike(seed: u64, noise: f64, alike: f64, curve: impl Fn(f64) -> f64) -> Calls {
    let mut random = rng(seed);
    let mut last = 0.0;
    let mut calls = Calls::new(vec![Input::number("n")]);
    for i in 0..40 {
        let n = (10.0 * 1_000_f64.powf(f64::from(i) / 39.0)).round();
        for _ in 0..20 {
            last = alike * last + (1.0 - alike * alike).sqrt() * normal(&mut random);
            let ns = curve(n) * (noise * last).exp();
            calls.push(&[Value::Unsigned(n as u64)], Taken::ns(ns));
        }
    }
    calls
}

#[test]
fn a_model_has_formula_class_and_measures() {
    let model = fit(&calls(1, 0.1, |n| 300.0 + 4.0 * n * n.log2()), 1).unwrap();
    assert_eq!((model.class, model.form, model.doubt), (Class::Linearithmic, Class::Linearithmic, None));
    assert_eq!(model.printed, Printed::NoClass);
    let formula = model.formula();
    assert!(formula.len() == 1 && formula[0].ends_with(" ns · n log2 n"), "{formula:?}");
    let g = model.goodness;
    assert!(g.adjusted_r2 > 0.98 && g.adjusted_r2 < g.r2 && g.r2 <= 1.0 && g.ceiling > 0.98, "{g:?}");
    assert!(g.relative_error < 0.06 && g.medians == 40, "{g:?}");
    assert_eq!((model.basis.calls, model.basis.distinct), (800, 40));
    assert!(model.critical[0].name == "n" && model.critical[0].influence > 100.0);
    let (slope, low, high) = model.exponent.unwrap();
    assert!(low < slope && slope < high && (1.0..1.2).contains(&slope), "{slope}");
    assert_eq!(fit(&calls(1, 0.1, |n| 300.0 + 4.0 * n * n.log2()), 1).unwrap(), model, "the same seed");
}

/// `qsort` of Debian's libc: n log n, and 10 % more where its copy leaves a cache.
#[test]
fn what_leaves_a_cache_at_its_largest_inputs_has_no_faster_term() {
    for seed in 1..=5 {
        let cache = |n: f64| 1.0 + 0.05 * (n / 2_500.0).log2().max(0.0);
        let model = fit(&calls(seed, 0.1, |n| 100.0 + 7.0 * n * n.log2() * cache(n)), seed).unwrap();
        assert_eq!(model.class, Class::Linearithmic, "{:?}, seed {seed}", model.formula());
        assert!(model.formula()[0].ends_with(" ns · n log2 n"), "{:?}", model.formula());
    }
}

#[test]
fn a_term_that_is_no_bend_stays() {
    // A third of the time at the largest input; a jump of 30 %.
    let model = fit(&calls(1, 0.05, |n| 100.0 + 7.0 * n + 4e-4 * n * n), 1).unwrap();
    assert_eq!((model.class, model.is_simplified), (Class::Polynomial, false), "{:?}", model.formula());
    let jump = |n: f64| 100.0 + 7.0 * n * if n > 2_500.0 { 1.3 } else { 1.0 };
    let model = fit(&calls(1, 0.02, jump), 1).unwrap();
    assert_eq!(model.class, Class::TwoRegimes, "{:?}", model.formula());
    // A tenth at the largest input may be a cache's; it is not ruled out, and whether the function is linear cannot be told.
    let model = fit(&calls(1, 0.02, |n| 100.0 + 7.0 * n + 8e-5 * n * n), 1).unwrap();
    assert_eq!((model.class, model.is_simplified), (Class::Linear, true), "{:?}", model.formula());
    assert!(model.alternatives.contains(&Class::Polynomial), "{:?}", model.alternatives);
    assert_eq!(Expectation::parse("n").unwrap().verdict(&model), Verdict::CannotTell);
}

#[test]
fn a_model_survives_json() {
    let model = fit(&calls(1, 0.1, |n| 4.0 * n), 1).unwrap();
    let text = serde_json::to_string(&model).unwrap();
    assert_eq!(serde_json::from_str::<Model>(&text).unwrap(), model);
    assert!(text.len() < 60_000, "{}", text.len());
}

#[test]
fn predictions_hold_as_many_calls_as_they_say() {
    let (mut held, mut all) = (0, 0);
    for seed in 0..10 {
        let curve = |n: f64| 300.0 + 4.0 * n;
        let model = fit(&calls(seed, 0.2, curve), seed).unwrap();
        for (values, taken) in calls(100 + seed, 0.2, curve).iter() {
            let p = model.predict(values, 0.95).unwrap();
            held += u32::from(p.interval_ns.holds(taken.duration_ns));
            all += 1;
            assert!(!p.is_extrapolated && p.interval_ns.low < p.ns && p.ns < p.interval_ns.high);
        }
    }
    let share = f64::from(held) / f64::from(all);
    assert!((0.94..0.98).contains(&share), "{share}");
    let model = fit(&calls(1, 0.2, |n| 4.0 * n), 1).unwrap();
    assert!(model.predict(&[Value::Unsigned(1_000_000)], 0.95).unwrap().is_extrapolated);
    assert!(model.predict(&[Value::Missing], 0.95).is_none());
}

#[test]
fn what_watching_cost_is_not_in_the_model() {
    let mut watched = Calls::new(vec![Input::number("n")]);
    for (values, taken) in calls(3, 0.05, |n| 50.0 * n).iter() {
        let Value::Unsigned(n) = values[0] else { panic!() };
        // 2 hits of 700 ns for each element.
        let watching_ns = 1_400.0 * n as f64;
        watched.push(values, Taken { duration_ns: taken.duration_ns + watching_ns, watching_ns, ..taken });
    }
    let model = fit(&watched, 1).unwrap();
    let ns = model.predict(&[Value::Unsigned(10_000)], 0.9).unwrap().ns;
    assert!((ns / 500_000.0 - 1.0).abs() < 0.03, "{ns}");
}

#[test]
fn a_constant_is_told_and_a_noisy_one_is_doubted() {
    let model = fit(&calls(2, 0.1, |_| 5_000.0), 1).unwrap();
    assert_eq!((model.class, model.printed), (Class::Constant, Printed::Linear));
    assert!(model.critical.is_empty() && model.goodness.adjusted_r2 > 0.95);
    let noisy = fit(&calls(2, 1.2, |_| 5_000.0), 1).unwrap();
    assert_eq!(noisy.class, Class::Unknown, "{:?}", noisy.goodness);
    assert!(
        matches!(noisy.doubt, Some(Doubt::Noise { more_calls }) if more_calls >= 2.0),
        "{:?}",
        noisy.doubt
    );
}

#[test]
fn what_inputs_do_not_explain_is_unknown_and_the_shortest_call_paces_it() {
    // Three times as long for every other input, by a rule that is no form.
    let strange = calls(4, 0.05, |n| n * if (n as u64).is_multiple_of(2) { 3.0 } else { 1.0 });
    let model = fit(&strange, 1).unwrap();
    assert_eq!((model.class, model.printed), (Class::Unknown, Printed::Unknown));
    assert_eq!(model.doubt, Some(Doubt::Unexplained));
    assert!(model.goodness.ceiling > 0.97);
    assert_eq!(model.paced_ns(&[Value::Unsigned(10_000)]), model.basis.shortest_ns);
}

#[test]
fn a_power_law_is_told_where_no_sum_is() {
    // m^0.3 n^0.8: no term of formula (4), and no cross term.
    let mut random = rng(8);
    let mut calls = Calls::new(vec![Input::number("m"), Input::number("n")]);
    for i in 0..60_u32 {
        let (a, b) = (f64::from(i % 8), f64::from(i / 8));
        let (m, n) = ((10.0 * 3_f64.powf(a)).round(), (10.0 * 2.5_f64.powf(b)).round());
        for _ in 0..20 {
            let ns = 900.0 * m.powf(0.3) * n.powf(0.8) * (0.05 * normal(&mut random)).exp();
            calls.push(&[Value::Unsigned(m as u64), Value::Unsigned(n as u64)], Taken::ns(ns));
        }
    }
    let model = fit(&calls, 1).unwrap();
    // Sums that come near are as good; what is told must predict.
    assert!(model.goodness.adjusted_r2 > 0.95, "{:?} {:?}", model.goodness, model.formula());
    assert_eq!(model.critical.len(), 2);
}

#[test]
fn two_regimes_have_their_switching_point() {
    let model = fit(&calls(5, 0.1, |n| n * if n < 500.0 { 10.0 } else { 60.0 }), 1).unwrap();
    assert_eq!(model.class, Class::TwoRegimes, "{:?} {:?}", model.goodness, model.formula());
    let Shape::Regimes(split) = &model.curves[0].shape else { panic!("{:?}", model.formula()) };
    assert!((350.0..700.0).contains(&split.switch_at), "{}", split.switch_at);
    assert_eq!(model.printed, Printed::Linear, "{:?}", model.formula());
}
