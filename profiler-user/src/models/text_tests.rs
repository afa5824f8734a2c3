//! What is told of models, in words.

use super::*;
use crate::output::{FileFormat, TextOptions, changes_text, models_json, models_text, render_models};
use crate::recording::sample::meta;
use profiler_core::models::{Calls, Change, Class, Input, Taken, fit};

/// Twelve sizes from 10 to 30,000, a hundred calls of each.
fn model(curve: impl Fn(f64) -> f64) -> Model {
    let mut calls = Calls::new(vec![Input::number("n")]);
    for i in 0..1_200_u64 {
        let n = (10.0 * 2.07_f64.powi((i % 12) as i32)).floor();
        let wave = 1.0 + 0.02 * (i as f64 * 0.7).sin();
        calls.push(&[Value::Unsigned(n as u64)], Taken::ns(curve(n) * wave));
    }
    fit(&calls, 1).unwrap()
}

fn linear(each: f64) -> Model {
    model(|n| 300.0 + each * n)
}

/// Three times as long for every other size: no form has that.
fn strange(level: f64) -> Model {
    let is_odd = |n: f64| ((n / 10.0).ln() / 2.07_f64.ln()).round() % 2.0 == 1.0;
    let found = model(|n| level * n * if is_odd(n) { 3.0 } else { 1.0 });
    assert_eq!(found.class, Class::Unknown);
    found
}

fn models(all: Vec<(&str, Model)>) -> Models {
    let function = |(name, model): (&str, Model)| FunctionModel {
        name: name.to_owned(),
        key: (("/lib/libwork.so.1".to_owned(), name.to_owned()), None),
        context: None,
        calls: 1_200,
        total_ns: 1_000_000,
        found: Ok(model),
        advice: None,
        slow: SlowCalls::default(),
        plot: None,
        loops: None,
        pace: Pace { decades: 4, calls_per_s: Some(20_000.0) },
    };
    let functions = all.into_iter().map(function).collect();
    Models { meta: meta(), functions, damage: Vec::new(), notes: Vec::new(), datapoints: 200 }
}

/// Without line breaks.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn text_of(found: &Models) -> String {
    flat(&models_text(found, TextOptions::default()))
}

fn page_of(found: &Models) -> String {
    String::from_utf8(render_models(found, FileFormat::Html, TextOptions::default()).unwrap()).unwrap()
}

#[test]
fn a_fit_below_0_has_no_figure_but_in_json() {
    let mut bad = strange(10.0);
    (bad.goodness.adjusted_r2, bad.goodness.ceiling) = (-26.609, 0.997);
    let found = models(vec![("f", bad)]);
    let text = text_of(&found);
    assert!(text.contains("fit below 0 of 0.997, 1,200 calls") && !text.contains("26.6"), "{text}");
    let page = page_of(&found);
    assert!(page.contains("<td data-v=\"-26.609\">below 0</td>") && !page.contains("-26.609<"), "{page}");
    let json: serde_json::Value = serde_json::from_str(&models_json(&found).unwrap()).unwrap();
    assert_eq!(json["functions"][0]["model"]["goodness"]["adjusted_r2"], -26.609);
    assert!(text_of(&models(vec![("f", linear(5.0))])).contains("fit 1.000 of 1.000"));
}

#[test]
fn groups_are_in_the_text_only_where_functions_share_a_frequency() {
    let alone = models(vec![("f", linear(5.0)), ("far", linear(5_000.0))]);
    let grouped =
        Models { functions: models(vec![("f", linear(5.0)), ("g", linear(6.0))]).functions, ..alone.clone() };
    // As printed, two functions of one class and the same inputs are a group: with one there is none.
    let one = Models { functions: alone.functions.iter().take(1).cloned().collect(), ..alone };
    let text = text_of(&one);
    assert!(
        text.contains("No two functions or loops share a frequency; that of each alone is in the JSON"),
        "{text}"
    );
    assert!(!text.contains("Groups that share") && !text.contains("frequency: samples"), "{text}");
    assert!(page_of(&one).contains("<h2>Groups that share a frequency"));
    let json: serde_json::Value = serde_json::from_str(&models_json(&one).unwrap()).unwrap();
    assert_eq!(json["groups"]["by_time"][0]["kernels"][0]["name"], "f");
    let text = text_of(&grouped);
    assert!(text.contains("Groups that share a frequency") && text.contains("frequency: samples"), "{text}");
    assert!(!text.contains("No two functions"), "{text}");
    let none = text_of(&Models { datapoints: 0, ..one });
    assert!(!none.contains("frequency"), "{none}");
}

fn changes(before: Model, after: Model) -> (String, Vec<Changed>) {
    let changes = compare(&models(vec![("f", before)]), &models(vec![("f", after)]));
    (flat(&changes_text(&changes, TextOptions::default())), changes)
}

#[test]
fn what_takes_longer_is_worse_although_its_class_is_unknown() {
    let (text, found) = changes(strange(10.0), strange(20.0));
    assert!(found[0].is_worse(), "{found:?}");
    assert_eq!(found[0].comparison.as_ref().map(|c| c.change), Some(Change::Longer));
    let told = "f: takes longer; how it grows cannot be compared (unknown before, unknown now; at the largest common inputs 2.00 times as long";
    assert!(text.starts_with(told), "{text}");
    let (text, found) = changes(strange(10.0), strange(10.0));
    assert!(!found[0].is_worse() && text.starts_with("f: cannot be compared (unknown"), "{text}");
}

#[test]
fn a_difference_is_told_with_what_its_interval_does_not_know() {
    let line = "not how the machine's speed wanders between two runs, nor that what the time depends on beside these inputs may be another: record each side more than once";
    let (text, _) = changes(linear(5.0), linear(8.0));
    assert!(text.contains("slower by a factor") && text.ends_with(line), "{text}");
    let (text, _) = changes(linear(8.0), linear(5.0));
    assert!(text.contains("faster by a factor") && text.ends_with(line), "{text}");
    let (text, _) = changes(linear(5.0), linear(5.0));
    assert!(!text.contains("wanders"), "{text}");
}

#[test]
fn calls_that_take_longer_than_before_are_told_though_medians_are_the_same() {
    let with_slow = |slow: usize| {
        let mut found = models(vec![("f", linear(5.0))]);
        found.functions[0].slow.calls = slow;
        found
    };
    let told = |before, now| {
        let changes = compare(&with_slow(before), &with_slow(now));
        flat(&changes_text(&changes, TextOptions::default()))
    };
    let text = told(12, 400);
    let more = "Calls that took longer than their inputs explain: 12 of 1,200 before, 400 of 1,200 now";
    assert!(text.contains(more), "{text}");
    for (before, now) in [(12, 12), (400, 12), (12, 20), (0, 2), (12, 30)] {
        assert!(!told(before, now).contains("longer than their inputs"), "{before} {now}");
    }
    let json = crate::output::changes_json(&compare(&with_slow(12), &with_slow(400))).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["slow_calls"][1], &json[0]["calls"][0]), (&400.into(), &1_200.into()));
}
