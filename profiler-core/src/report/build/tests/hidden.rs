//! Rates of functions that are called so often that the price of a hit hides them.

use super::*;

/// Ten bursts of 500 hits on a trap that takes `trap_ns`, in a function that is called every 100 ns; by calibration a trap takes 830 ns.
fn called_every_100_ns(trap_ns: f64) -> Recording {
    let mut r = empty();
    for p in r.meta.cost.hit.values_mut() {
        *p = Price { ns: 830.0, min_ns: 825.0, max_ns: 848.0, n: 7 };
    }
    r.classes.push(class(1, "f"));
    for i in 0..10 {
        let from = f64::from(i);
        let length_s = 500.0 * (trap_ns + 100.0 + f64::from(i)) * 1e-9;
        let w = window(WindowKind::Burst, from, from + length_s, 500);
        r.windows.push(WindowRow { tripped: true, tau_ns: 830.0, ..w });
    }
    r
}

#[test]
fn the_report_says_at_least_and_the_limit_holds() {
    // As calibrated; dearer, as on a busy machine; cheaper, so that the whole time from hit to hit is less than the price.
    for trap_ns in [830.0, 980.0, 700.0] {
        let report = Report::from_recording(&called_every_100_ns(trap_ns));
        let f = row(&report, "f");
        let rate = f.rate_hz.unwrap();
        assert!(rate.high.is_infinite() && rate.low < 1e7, "{trap_ns}: {rate:?}");
        // More than hits over time say.
        assert!(rate.low > 1e9 / (trap_ns + 100.0), "{trap_ns}: {rate:?}");
        let calls = f.calls.unwrap();
        assert!(calls.high.is_infinite() && calls.low < 1e8, "{calls:?}");
        assert!(f.notes.iter().any(|n| n.contains("at least")), "{:?}", f.notes);
    }
}

#[test]
fn a_slower_function_keeps_its_value() {
    let mut r = called_every_100_ns(830.0);
    for w in &mut r.windows {
        // Every 10 us.
        w.end_ns = w.start_ns + 500 * 10_830;
    }
    let report = Report::from_recording(&r);
    let rate = row(&report, "f").rate_hz.unwrap();
    assert!((rate.value / 1e5 - 1.0).abs() < 0.01, "{rate:?}");
    assert!(rate.low < 1e5 && rate.high > 1e5 && rate.high < 1.2e5, "{rate:?}");
}
