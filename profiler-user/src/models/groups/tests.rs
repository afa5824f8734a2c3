use super::*;
use crate::models::{Expected, ExpectedFunction, FunctionModel, SlowCalls};
use crate::output::{FileFormat, TextOptions, models_json, models_text, render_models};
use crate::recording::sample::meta;
use profiler_core::models::{Calls, Input, Model, Taken, Value, fit};

/// Twelve sizes from 10 to 30,000, a hundred calls of each: `intercept + each * n` ns.
fn model(input: &str, intercept: f64, each: f64) -> (Model, u32) {
    let mut calls = Calls::new(vec![Input::number(input)]);
    for i in 0..1_200_u64 {
        let n = (10.0 * 2.07_f64.powi((i % 12) as i32)).floor();
        let wave = 1.0 + 0.02 * (i as f64 * 0.7).sin();
        calls.push(&[Value::Unsigned(n as u64)], Taken::ns((intercept + each * n) * wave));
    }
    let model = fit(&calls, 1).unwrap();
    let decades = profiler_core::models::decades(&model, &calls);
    (model, decades)
}

/// Its time changes with nothing that is known.
fn unknown() -> (Model, u32) {
    let mut calls = Calls::new(vec![Input::number("n")]);
    for i in 0..1_200_u64 {
        let n = (10.0 * 2.07_f64.powi((i % 12) as i32)).floor();
        calls.push(&[Value::Unsigned(n as u64)], Taken::ns(1_000.0 * 8_f64.powi((i % 5 + i % 3) as i32)));
    }
    let model = fit(&calls, 1).unwrap();
    assert_eq!(model.class, Class::Unknown);
    (model, 4)
}

fn key(symbol: &str) -> (String, String) {
    ("/lib/libwork.so.1".to_owned(), symbol.to_owned())
}

fn function(name: &str, context: Option<&str>, (model, decades): (Model, u32)) -> FunctionModel {
    FunctionModel {
        name: name.to_owned(),
        key: (key(name), context.map(key)),
        context: context.map(str::to_owned),
        calls: 1_200,
        total_ns: 1_000_000,
        found: Ok(model),
        advice: None,
        slow: SlowCalls::default(),
        plot: None,
        loops: None,
        pace: Pace { decades, calls_per_s: Some(20_000.0) },
    }
}

fn models(functions: Vec<FunctionModel>) -> Models {
    Models { meta: meta(), functions, damage: Vec::new(), notes: Vec::new(), datapoints: 200 }
}

fn names(groups: &[KernelGroup]) -> Vec<Vec<&str>> {
    groups.iter().map(|group| group.kernels.iter().map(|kernel| kernel.name.as_str()).collect()).collect()
}

/// Listing 1.1, of functions: f4, lp1 and f5 below f1; f6 below lp2, of an unknown class; lp3.
fn listing() -> Models {
    models(vec![
        function("f4", Some("f1"), model("a", 300.0, 5.0)),
        function("lp1", Some("f1"), model("a", 300.0, 50.0)),
        function("f5", Some("f1"), model("b", 1_000.0, 5.0)),
        function("f6", Some("lp2"), unknown()),
        function("lp3", None, model("a", 300.0, 5.0)),
        function("f1", None, model("a", 900.0, 60.0)),
    ])
}

#[test]
fn both_readings_group_the_kernels_of_a_caller_and_what_contains_others_is_in_one_of_them() {
    let found = listing();
    let groups = found.groups(200);
    // A class says nothing of coefficients, and another input is another time.
    assert_eq!(names(&groups.printed), [vec!["f4", "lp1"], vec!["f5"], vec!["f6"], vec!["lp3"]]);
    assert_eq!(groups.containers, ["f1"]);
    assert!(groups.printed[0].why.starts_with("one class (linear) and the same inputs (a)"), "{groups:?}");
    assert!(groups.printed[2].why.contains("shortest call"), "{groups:?}");
    let by_time = names(&groups.by_time);
    assert!(by_time.contains(&vec!["f1"]) && by_time.contains(&vec!["lp1"]), "{by_time:?}");
    // f5 has another input; at the smallest ones it takes three times as long.
    assert!(by_time.contains(&vec!["f4"]) && by_time.contains(&vec!["f5"]), "{by_time:?}");
    assert_eq!(found.groups(0), Groups::default());
    let text = models_text(&found, TextOptions::default());
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("each alone, of an unknown class, so its shortest call counts: f6 in lp2"),
        "{text}"
    );
    assert!(text.contains("because they contain others: f1"), "{text}");
}

#[test]
fn a_frequency_is_n_data_points_in_the_shortest_kernel_and_a_duty_is_n_of_each_decade() {
    let found = models(vec![
        function("f", None, model("n", 300.0, 5.0)),
        function("g", None, model("n", 400.0, 6.0)),
        function("far", None, model("n", 300_000.0, 500.0)),
    ]);
    let groups = found.groups(200);
    assert_eq!(names(&groups.by_time), [vec!["f", "g"], vec!["far"]]);
    let group = &groups.by_time[0];
    let [at_smallest, _, at_largest] = group.sampling_hz;
    // 350 ns at the smallest input: 200 data points in them are 571 MHz.
    assert!((at_smallest / (200.0 * 1e9 / 350.0) - 1.0).abs() < 0.05, "{group:?}");
    assert!(at_largest < at_smallest / 100.0);
    // 4 decades: 800 in 10 s, of 200,000 calls.
    assert_eq!(group.calls_hz, 80.0);
    assert!((group.duty(&group.kernels[0]).unwrap() - 0.004).abs() < 1e-9);
    let text = models_text(&found, TextOptions::default());
    for part in [
        "times within a factor of 1.3",
        "f: linear",
        "bursts of 0.40 % of the time",
        "80 recorded calls a second",
    ] {
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value = serde_json::from_str(&models_json(&found).unwrap()).unwrap();
    assert_eq!(json["groups"]["by_time"][0]["kernels"][1]["name"], "g");
    assert_eq!(json["groups"]["by_time"][0]["calls_hz"], 80.0);
    let page = render_models(&found, FileFormat::Html, TextOptions::default()).unwrap();
    assert!(String::from_utf8(page).unwrap().contains("<h2>Groups that share a frequency"));
    let none = Models { datapoints: 0, ..found };
    assert!(!models_text(&none, TextOptions::default()).contains("frequency"));
}

#[test]
fn a_function_inside_itself_and_two_of_one_name_are_kernels_of_their_own() {
    let times = |each: f64| model("n", 300.0, each);
    let found = models(vec![
        function("f", None, times(5.0)),
        function("f", Some("f"), times(500.0)),
        function("twin", None, times(50.0)),
        function("twin", None, times(5_000.0)),
    ])
    .groups(200);
    let told = |groups: &[KernelGroup]| {
        let mut told: Vec<(String, Option<String>, u64)> = groups
            .iter()
            .flat_map(|group| &group.kernels)
            .map(|k| (k.name.clone(), k.context.clone(), (k.ns[2] / 1e6).round() as u64))
            .collect();
        told.sort();
        told
    };
    let by_time = told(&found.by_time);
    let names: Vec<(&str, Option<&str>)> =
        by_time.iter().map(|(n, c, _)| (n.as_str(), c.as_deref())).collect();
    assert_eq!(names, [("f", None), ("f", Some("f")), ("twin", None), ("twin", None)], "{found:?}");
    assert!(by_time[3].2 > 50 * by_time[2].2.max(1), "each twin has its own times: {by_time:?}");
    // As printed f contains a kernel: itself.
    assert_eq!(found.containers, ["f"]);
    assert_eq!(told(&found.printed).len(), 3, "{found:?}");
    let inner = found.printed.iter().find(|group| group.caller.as_deref() == Some("f")).unwrap();
    assert_eq!(inner.kernels[0].context.as_deref(), Some("f"));
}

#[test]
fn what_is_called_in_a_recursive_function_makes_no_leaf_of_it() {
    let found = models(vec![
        function("f", None, model("n", 300.0, 5.0)),
        function("f", Some("f"), model("n", 300.0, 5.0)),
        function("g", Some("f"), model("n", 300.0, 5.0)),
    ])
    .groups(200);
    assert_eq!(names(&found.printed), [vec!["g"]]);
    assert_eq!(found.containers, ["f", "f in f"]);
    assert_eq!(found.by_time.iter().map(|group| group.kernels.len()).sum::<usize>(), 3);
}

#[test]
fn registers_that_nobody_named_are_their_functions_own() {
    let found = |input: &str| {
        let groups = models(vec![
            function("f", None, model(input, 300.0, 5.0)),
            function("g", None, model(input, 300.0, 50.0)),
        ]);
        groups.groups(200).printed.len()
    };
    assert_eq!((found("n"), found("arg1")), (1, 2));
}

fn expected(name: &str, context: Option<&str>, (model, decades): (Model, u32)) -> ExpectedFunction {
    ExpectedFunction {
        is_cut: false,
        mostly_waits: false,
        name: format!("{name}()"),
        key: (key(name), context.map(key)),
        addresses: (0, context.map(|_| 0)),
        names: vec![name.to_owned(), format!("{name}_alias")],
        context: context.map(str::to_owned),
        inputs: Vec::new(),
        build_id: "b1".to_owned(),
        model,
        normal: Vec::new(),
        no_inputs: None,
        pace: Pace { decades, calls_per_s: None },
    }
}

#[test]
fn two_functions_of_a_group_have_one_frequency_and_one_outside_another() {
    let narrow = (model("n", 400.0, 6.0).0, 2);
    let all = Expected {
        functions: vec![
            expected("f", None, model("n", 300.0, 5.0)),
            expected("g", None, narrow),
            expected("far", None, (model("n", 300_000.0, 500.0).0, 2)),
            expected("twice", None, model("n", 300.0, 5.0)),
            expected("twice", Some("f"), model("n", 300.0, 5.0)),
        ],
        without: Vec::new(),
    };
    let found = frequencies(&all, 200);
    let hz = |symbol: &str| found.hz.get(&("libwork".to_owned(), symbol.to_owned())).cloned();
    // g alone would have half of it: it has what the widest of the group needs.
    assert_eq!((hz("f"), hz("g")), (Some(("b1".to_owned(), 80.0)), Some(("b1".to_owned(), 80.0))));
    assert_eq!(hz("far"), Some(("b1".to_owned(), 40.0)));
    assert_eq!(hz("far_alias"), hz("far"), "another symbol of the same function");
    assert_eq!(hz("twice"), None, "its contexts are told apart");
    let told = &found.told;
    assert!(
        told.contains("f(), g(): 80 recorded calls a second each") && told.contains("far(): 40"),
        "{told}"
    );
    assert!(told.contains("of one name or in several contexts, and not bounded: twice()"), "{told}");
    assert_eq!(frequencies(&all, 0), Frequencies::default());
}
