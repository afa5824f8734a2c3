//! Why a class is unknown.

use super::*;

/// Twenty calls of each size, which take this long, up to some percent.
fn calls_of(inputs: Vec<Input>, rows: impl Iterator<Item = (Vec<Value>, f64)>) -> Calls {
    let mut random = rng(5);
    let mut calls = Calls::new(inputs);
    for (values, ns) in rows {
        for _ in 0..20 {
            calls.push(&values, Taken::ns(ns * (0.04 * normal(&mut random)).exp()));
        }
    }
    calls
}

/// PostgreSQL's `standard_join_search`, ms, for 2 to 11 tables.
const JOINS: [f64; 10] = [0.09, 0.23, 0.57, 1.11, 2.58, 5.55, 14.3, 39.9, 115.0, 311.0];

fn joins() -> impl Iterator<Item = (u64, f64)> {
    (2..).zip(JOINS).map(|(tables, ms)| (tables, 1e6 * ms))
}

#[test]
fn exponential_growth_is_told_as_such_and_has_no_class() {
    let rows = joins().map(|(tables, ns)| (vec![Value::Unsigned(tables)], ns));
    let model = fit(&calls_of(vec![Input::number("tables")], rows), 1).unwrap();
    assert_eq!((model.class, model.printed), (Class::Unknown, Printed::Unknown));
    let Some(Doubt::NoForm { factor: Some(factor) }) = model.doubt else { panic!("{:?}", model.doubt) };
    assert!((2.3..2.6).contains(&factor), "{factor}");
    let told = "no form that is tried follows these medians; they grow by a factor of 2.4 for each 1 of tables: exponential, which is no class here";
    assert_eq!(model.doubt_text().as_deref(), Some(told));
    let text = serde_json::to_string(&model.doubt).unwrap();
    assert!(text.starts_with("{\"no_form\":{\"factor\":2.4"), "{text}");
}

#[test]
fn an_exponent_of_large_inputs_is_told_by_what_doubles_the_time() {
    let text = |factor| Doubt::NoForm { factor: Some(factor) }.to_string();
    assert!(text(1.001).contains("a factor of 2 for each 693 of the input"), "{}", text(1.001));
    assert!(text(1.25).contains("a factor of 1.25 for each 1 of the input"), "{}", text(1.25));
}

#[test]
fn medians_that_follow_no_form_are_told_apart_from_what_changes_with_something_else() {
    // Up and down with the input.
    let model = fit(&calls(4, 0.05, |n| n * f64::exp(1.5 * f64::sin(2.0 * n.ln()))), 1).unwrap();
    assert_eq!((model.class, model.doubt), (Class::Unknown, Some(Doubt::NoForm { factor: None })));
    assert_eq!(model.doubt_text().as_deref(), Some("no form that is tried follows these medians"));
    // A state that the inputs do not say, which is another at each of them; the smaller one leaves larger inputs longer times.
    for (seed, spread, step) in (0..10).flat_map(|seed| [(seed, 0.9, 1.8_f64), (seed, 0.3, 2.0)]) {
        let mut random = rng(40 + seed);
        let states: Vec<f64> = (0..12).map(|_| (spread * normal(&mut random)).exp()).collect();
        let rows = states.iter().enumerate().map(|(i, state)| {
            let n = 10.0 * step.powi(i as i32);
            (vec![Value::Unsigned(n as u64)], 50.0 * n * state)
        });
        let model = fit(&calls_of(vec![Input::number("n")], rows), 1).unwrap();
        let is_told =
            model.doubt == Some(Doubt::Unexplained) || model.class != Class::Unknown && spread < 0.5;
        assert!(is_told, "seed {seed}: {:?} {:?}", model.doubt, model.formula());
    }
}

#[test]
fn of_several_inputs_nothing_is_said_of_the_medians() {
    let rows = joins().flat_map(|(tables, ns)| {
        let other = move |i: u32| (vec![Value::Unsigned(tables), Value::Unsigned(10 * 4_u64.pow(i))], ns);
        (0..5).map(other)
    });
    let inputs = vec![Input::number("tables"), Input::number("rows")];
    let model = fit(&calls_of(inputs, rows), 1).unwrap();
    assert_eq!((model.inputs.len(), model.doubt), (2, Some(Doubt::Unexplained)));
}
