//! Runs whose rate changes while the plan answers to it.

use super::*;
use crate::stats::sim::{poisson, rng, unit_gamma};

/// Bursts of 100 hits, every half second up to 5 s, of 1 ms; then every 1.25 s, of 0.1 ms: 1e5 and 1e6 calls a second.
fn rises() -> Recording {
    let mut r = empty();
    for p in r.meta.cost.hit.values_mut() {
        *p = Price::fixed(0.0);
    }
    r.classes.push(class(1, "f"));
    let first = (0..10).map(|i| (0.25 + 0.5 * f64::from(i), 1e-3));
    let then = (0..4).map(|i| (5.6 + 1.25 * f64::from(i), 1e-4));
    for (from, length_s) in first.chain(then) {
        let w = window(WindowKind::Burst, from, from + length_s, 101);
        r.windows.push(WindowRow { tripped: true, tau_ns: 0.0, ..w });
    }
    r
}

#[test]
fn the_rate_before_it_rose_is_not_laid_over_the_time_after() {
    let report = Report::from_recording(&rises());
    let calls = row(&report, "f").calls.unwrap();
    let truth = 5.0 * 1e5 + 5.0 * 1e6;
    // By the number of bursts it would be 0.65 of that.
    assert!((calls.value / truth - 1.0).abs() < 0.05, "{calls:?}");
    assert!(calls.low < truth && truth < calls.high && calls.half_width() < 0.3 * truth, "{calls:?}");
    assert_no_nan(&report);
}

/// What monitoring takes is missing from the run, not from what the target does in a second of its own: by its CPU time a thread that never rests
/// calls as often as by the wall clock, and as often as its samples say.
#[test]
fn rates_are_per_second_that_monitoring_left_whichever_clock_measured_them() {
    let mut r = empty();
    for p in r.meta.cost.hit.values_mut() {
        *p = Price::fixed(1_000.0);
    }
    r.classes.push(class(1, "f"));
    r.stacks.push(frame(0, 0, "f", Some(1)));
    r.samples.extend((0..800).map(|i| sample(i, 0)));
    // A call every 5 us of its own, a hit takes 1 us; something else takes a fifth of all of its time.
    for i in 0..20 {
        let own_s = 500.0 * 6e-6 / 0.8;
        let from = 0.25 + 0.5 * f64::from(i);
        let w = window(WindowKind::Burst, from, from + own_s, 501);
        let ran_ns = Some((own_s * 1e9) as u64);
        r.windows.push(WindowRow { tripped: true, tau_ns: 1_000.0, ran_ns, ran_tid: Some(42), ..w });
    }
    for second in 1..=10 {
        r.ledger.push(ledger(second, Charge::Samples, None, S / 5));
        r.ledger.push(ledger(second, Charge::Burst, Some(1), 1_000_000));
    }
    let f = row(&Report::from_recording(&r), "f").clone();
    let rate = f.rate_hz.unwrap();
    assert!((rate.value / 200_000.0 - 1.0).abs() < 0.01 && rate.half_width() < 4_000.0, "{rate:?}");
    let calls = f.calls.unwrap();
    assert!((calls.value / 1_600_000.0 - 1.0).abs() < 0.01, "{calls:?}");
    let on_cpu = f.on_cpu_ns.unwrap();
    assert!((on_cpu.value / 5_000.0 - 1.0).abs() < 0.01, "{on_cpu:?}");
}

#[test]
fn an_assumption_on_a_time_that_nobody_watched_is_told() {
    let told = |r: &Recording| row(&Report::from_recording(r), "f").notes.join("; ");
    assert!(!told(&rises()).contains("not watched"), "{}", told(&rises()));
    let mut late = rises();
    late.windows.retain(|w| w.start_ns > START + 4 * S);
    assert!(told(&late).contains("not watched in the first 4.2 s: taken to be"), "{}", told(&late));
    let mut r = rises();
    r.windows.retain(|w| w.start_ns < START + 5 * S && w.start_ns > START + 3 * S);
    assert!(told(&r).contains("not watched in the first 3.2 s and the last 5.2 s"), "{}", told(&r));
}

/// 30 s: traced for 0.9 s of each second up to `until`, then in bursts of `quota` hits, evenly; calls at random, and the truth.
fn traced_then_burst(seed: u64, until: u32, hz: (f64, f64), n: u32, quota: u32) -> (Recording, f64) {
    const RUN_S: f64 = 30.0;
    let mut rng = rng(seed);
    let mut r = empty();
    r.meta.end_ns = Some(START + 30 * S);
    for p in r.meta.cost.hit.values_mut() {
        *p = Price::fixed(0.0);
    }
    r.classes.push(class(1, "f"));
    let mut truth = (RUN_S - f64::from(until)) * hz.1;
    for i in 0..until {
        let hits = poisson(&mut rng, 0.9 * hz.0) as u64;
        truth += hits as f64 + 0.1 * hz.0;
        let from = f64::from(i) + 0.05;
        let w = window(WindowKind::Trace, from, from + 0.9, hits);
        r.windows.push(WindowRow { tau_ns: 0.0, ..w });
    }
    let apart_s = (RUN_S - f64::from(until)) / f64::from(n);
    for i in 0..n {
        let from = f64::from(until) + (f64::from(i) + 0.5) * apart_s;
        let length_s = f64::from(quota) * unit_gamma(&mut rng, quota) / hz.1;
        let w = window(WindowKind::Burst, from, from + length_s, u64::from(quota) + 1);
        r.windows.push(WindowRow { tripped: true, tau_ns: 0.0, ..w });
    }
    (r, truth)
}

/// What was traced is counted, so the rate is wanted of the time that nobody watched; and no window counts by how much it saw.
#[test]
fn totals_of_what_was_traced_and_then_burst_are_near() {
    for (name, until, hz, n, quota) in [
        ("rises", 21, (1e4, 1e5), 12, 100),
        ("falls", 20, (1e5, 1e4), 20, 200),
        ("steady", 20, (1e4, 1e4), 20, 200),
    ] {
        let (mut off, mut held) = (0.0, 0);
        for seed in 0..20 {
            let (r, truth) = traced_then_burst(seed, until, hz, n, quota);
            let calls = row(&Report::from_recording(&r), "f").calls.unwrap();
            off += (calls.value / truth - 1.0) / 20.0;
            held += u32::from((calls.low..=calls.high).contains(&truth));
        }
        assert!(f64::abs(off) < 0.04 && held >= 17, "{name}: {off}, {held} of 20");
    }
}
