//! Builds against builds, and models against expectations.

use super::*;

fn model(seed: u64, curve: impl Fn(f64) -> f64) -> Model {
    fit(&calls(seed, 0.15, curve), seed).unwrap()
}

#[test]
fn what_grew_is_told_and_chance_is_not() {
    let (mut same, mut grew, mut slower) = (0, 0, 0);
    for seed in 0..30 {
        let old = model(seed, |n| 100.0 + 30.0 * n);
        same += u32::from(compare(&old, &model(100 + seed, |n| 100.0 + 30.0 * n)).change == Change::Same);
        let quadratic = compare(&old, &model(200 + seed, |n| 100.0 + 0.3 * n * n));
        grew += u32::from(quadratic.change == Change::GrowsFaster);
        let factor = compare(&old, &model(300 + seed, |n| 150.0 + 45.0 * n));
        slower += u32::from(factor.change == Change::Slower);
        let (ratio, interval) = factor.at_top().unwrap();
        assert!(interval.low < ratio && ratio < interval.high);
    }
    assert!(same >= 29 && grew == 30 && slower >= 28, "{same} {grew} {slower}");
}

/// 4 us more are taken off each call than in the baseline, where that is known to 2.4 us: a pair of sites was there in the one run alone.
#[test]
fn what_watching_costs_is_no_change_where_it_is_not_known_better() {
    let (mut told, mut chance) = (0, 0);
    for seed in 0..20 {
        let old = model(seed, |n| 12_000.0 + 30.0 * n);
        let new = |known_ns: f64| {
            let mut calls = calls(100 + seed, 0.15, |n| 8_000.0 + 30.0 * n);
            (0..calls.len()).for_each(|_| calls.watching_known_to(known_ns));
            fit(&calls, seed).unwrap()
        };
        told += u32::from(compare(&old, &new(0.0)).change.is_told());
        chance += u32::from(compare(&old, &new(2_400.0)).change.is_told());
    }
    assert!(told >= 19 && chance <= 1, "{told} {chance}");
}

/// Three times as long for every other input: no form has that.
fn strange(seed: u64, level: f64) -> Model {
    let model = model(seed, |n| level * n * if (n as u64).is_multiple_of(2) { 3.0 } else { 1.0 });
    assert_eq!(model.class, Class::Unknown);
    model
}

#[test]
fn what_takes_longer_is_told_although_a_class_is_unknown() {
    let (mut longer, mut shorter, mut chance) = (0, 0, 0);
    // By the rule for models that fit, 3 of these 30 differ by chance: a curve that fits badly bends otherwise in each recording.
    for seed in 0..30 {
        let old = strange(seed, 10.0);
        let found = compare(&old, &strange(100 + seed, 30.0));
        longer += u32::from(found.change == Change::Longer && found.change.is_worse());
        let back = compare(&strange(200 + seed, 30.0), &old).change;
        shorter += u32::from(back == Change::Shorter && !back.is_worse());
        chance += u32::from(compare(&old, &strange(300 + seed, 10.0)).change != Change::Unknown);
    }
    assert!(longer >= 28 && shorter >= 28 && chance == 0, "{longer} {shorter} {chance}");
    // One side alone is unknown.
    let found = compare(&model(1, |n| 5.0 * n), &strange(2, 10.0));
    assert_eq!((found.change, found.classes), (Change::Longer, (Class::Linear, Class::Unknown)));
    assert_eq!(found.change.to_string(), "takes longer; how it grows cannot be compared");
}

#[test]
fn unknown_models_of_other_inputs_are_not_compared() {
    let old = strange(1, 10.0);
    let renamed = Model { inputs: vec!["m".to_owned()], ..strange(2, 1_000.0) };
    let found = compare(&old, &renamed);
    assert_eq!((found.change, found.at_top()), (Change::Unknown, None));
    assert!(!found.change.is_told() && !found.change.is_worse());
}

#[test]
fn expectations_are_read_and_held() {
    let parse = |text: &str| Expectation::parse(text).unwrap();
    assert_eq!(parse("O(n log n)"), parse("n log2 n"));
    assert_eq!(parse("n^2"), parse("n2"));
    assert_eq!(parse("m n"), parse("O(m*n)"));
    assert_eq!(parse("n^1.5").0, Order { half_powers: 3, logs: 0 });
    assert_eq!(parse("1").0, Order::default());
    for bad in ["", "O()", "fast", "n^x", "log", "n^0.3", "n^-1"] {
        assert!(Expectation::parse(bad).is_err(), "{bad}");
    }
    let quadratic = model(3, |n| 0.3 * n * n);
    assert_eq!(parse("n log n").verdict(&quadratic), Verdict::Broken { class: Class::Polynomial });
    assert_eq!(parse("n^2").verdict(&quadratic), Verdict::Holds);
    assert_eq!(parse("n^3").verdict(&quadratic), Verdict::Holds);
    let cubic = model(3, |n| 0.001 * n * n * n);
    assert_eq!(parse("n^2").verdict(&cubic), Verdict::Broken { class: Class::Polynomial });
    let strange = model(2, |n| n * if (n as u64).is_multiple_of(2) { 3.0 } else { 1.0 });
    assert_eq!(parse("n").verdict(&strange), Verdict::CannotTell);
    let constant = model(4, |_| 5_000.0);
    assert_eq!(parse("1").verdict(&constant), Verdict::Holds);
}
