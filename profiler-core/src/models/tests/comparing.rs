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

#[test]
fn unknown_models_are_not_compared() {
    let old = model(1, |n| 30.0 * n);
    let strange = model(2, |n| n * if (n as u64).is_multiple_of(2) { 3.0 } else { 1.0 });
    assert_eq!(compare(&old, &strange).change, Change::Unknown);
    assert_eq!(compare(&old, &strange).classes, (Class::Linear, Class::Unknown));
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
