//! Rates of functions that are called so often that the price of a hit hides them.

use super::durations::pair;
use super::*;
use crate::cost::Stamps;
use crate::recording::TrapSampleRow;

/// Ten bursts of 500 hits on a trap that takes `trap_ns`, in a function that is called every 100 ns; by calibration a trap takes 830 ns.
fn called_every_100_ns(trap_ns: f64) -> Recording {
    called(trap_ns, 100.0)
}

/// The same, called every `gap_ns`.
fn called(trap_ns: f64, gap_ns: f64) -> Recording {
    let mut r = empty();
    for p in r.meta.cost.hit.values_mut() {
        *p = Price { ns: 830.0, min_ns: 825.0, max_ns: 848.0, n: 7 };
    }
    r.classes.push(class(1, "f"));
    for i in 0..10 {
        let from = f64::from(i);
        let length_s = 500.0 * (trap_ns + gap_ns + f64::from(i)) * 1e-9;
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

/// Calibration ran beside other work: in one window of eleven the hits took less than the smallest price, or just more. Before, that window stood for a call a
/// nanosecond.
#[test]
fn a_window_as_short_as_its_hits_prices_is_no_rate_of_a_call_a_nanosecond() {
    let mut r = called(830.0, 10_000.0);
    r.meta.cost.cold = Price::fixed(0.0);
    // Of several threads nobody knows how many hit side by side, so the window's own length does not bound the price.
    r.samples = (0..100).map(|i| SampleRow { tid: 42 + (i % 2) as u32, ..sample(i, 1) }).collect();
    r.meta.cpus = 2;
    let rate = |r: &Recording| row(&Report::from_recording(r), "f").rate_hz.unwrap();
    let without = rate(&r);
    assert!((without.value / 1e5 - 1.0).abs() < 0.05, "{without:?}");
    // The smallest price is 825 ns less a quarter.
    let cheap_ns = 825.0 * (1.0 - crate::cost::PRICE_DRIFT);
    for left_ns in [-200.0, -10.0, -1.0, 0.5, 1.5, 5.0, 15.0] {
        let mut r = r.clone();
        let length_s = 5_000.0 * (cheap_ns + left_ns) * 1e-9;
        let w = window(WindowKind::Burst, 9.5, 9.5 + length_s, 5_000);
        r.windows.push(WindowRow { tripped: true, tau_ns: 830.0, ..w });
        let with = rate(&r);
        // What is certain: 5,000 calls in some 2 to 3 ms of one window of eleven.
        assert!(with.high.is_infinite() && with.low < 3e5, "{left_ns}: {with:?}");
        assert!(with.value < 4e6, "{left_ns}: {with:?}");
    }
}

#[test]
fn a_slower_function_keeps_its_value() {
    let mut r = called(830.0, 10_000.0);
    // It leaves the caches alone, as calibration's own load does here.
    r.meta.cost.cold = Price::fixed(0.0);
    let report = Report::from_recording(&r);
    let rate = row(&report, "f").rate_hz.unwrap();
    assert!((rate.value / 1e5 - 1.0).abs() < 0.01, "{rate:?}");
    assert!(rate.low < 1e5 && rate.high > 1e5 && rate.high < 1.4e5, "{rate:?}");
}

/// Every call was seen: more of the budget or a longer run tells no more.
#[test]
fn of_what_was_counted_in_full_only_the_price_is_unknown() {
    let mut r = called_every_100_ns(830.0);
    for p in r.meta.cost.hit.values_mut() {
        *p = Price { ns: 830.0, min_ns: 600.0, max_ns: 950.0, n: 7 };
    }
    // 2.5 s of 10 are hits.
    r.windows = vec![WindowRow { tau_ns: 830.0, ..window(WindowKind::Trace, 0.0, 10.0, 3_000_000) }];
    let report = Report::from_recording(&r);
    let rate = row(&report, "f").rate_hz.unwrap();
    assert!(rate.high.is_finite() && rate.high > 1.1 * rate.value, "{rate:?}");
    assert_eq!(report.sharper[0].limit, crate::report::sharper::Limit::Price, "{:?}", report.sharper);
}

/// A trap costs a quarter more here than by calibration, and a pair of sites has seen it.
#[test]
fn a_pair_shows_the_rate_that_the_price_of_the_host_hides() {
    let dear = 1.25;
    let (mut alone, trap_ns) = (called(dear * 830.0, 1_000.0), 800.0);
    alone.meta.cost.stamps.insert("push/exit".into(), Stamps::guessed(Price::fixed(trap_ns)));
    let rate = |r: &Recording| row(&Report::from_recording(r), "f").rate_hz.unwrap();
    let mut paired = alone.clone();
    pair(&mut paired, 6, 50, dear * trap_ns);
    // What hits leave behind no pair sees: where that may be as long as the function's own time, there is a limit only.
    assert!(rate(&paired).low < 1e6 && rate(&paired).high.is_infinite(), "{:?}", rate(&paired));
    for r in [&mut alone, &mut paired] {
        r.meta.cost.cold = Price::fixed(0.0);
    }
    let (without, with) = (rate(&alone), rate(&paired));
    assert!((with.value / 1e6 - 1.0).abs() < 0.05, "{with:?}");
    assert!(with.low < 1e6 && with.high > 1e6 && with.high - with.low < 0.2e6, "{with:?}");
    assert!(without.value < 0.9 * with.value && without.high - without.low > 0.3e6, "{without:?}");

    // At ten million a second the same price is known well enough for a limit only.
    let mut fast = called(dear * 830.0, 100.0);
    fast.meta.cost = alone.meta.cost.clone();
    pair(&mut fast, 6, 50, dear * trap_ns);
    let limit = rate(&fast);
    assert!(limit.low < 1e7 && limit.high > 1e7, "{limit:?}");
    let mut without = fast.clone();
    without.classes.retain(|c| c.stamps_of.is_none());
    without.windows.retain(|w| w.class_id == 1);
    assert!(limit.low > 1.3 * rate(&without).low, "{limit:?} {:?}", rate(&without));

    // Its second site is single-stepped: longer between two hits, colder caches, so the hit may cost less.
    for w in paired.windows.iter_mut().filter(|w| w.class_id == 2) {
        w.tau_ns = 9_000.0;
    }
    let slower = rate(&paired);
    assert!(
        slower.low < with.low && slower.low > 0.8 * with.low && (slower.high / with.high - 1.0).abs() < 1e-6,
        "{slower:?}"
    );
}

/// Cold caches add 230 ns to a trap in calibration's own load, and twice that in most programs. A timed call has two traps.
#[test]
fn a_trap_is_likely_to_cost_more_than_in_a_loop() {
    let mut r = called(830.0 + 2.0 * 460.0, 10_000.0);
    r.meta.cost.cold = Price { ns: 230.0, min_ns: 0.0, max_ns: 470.0, n: 7 };
    let rate = row(&Report::from_recording(&r), "f").rate_hz.unwrap();
    assert!((rate.value / 1e5 - 1.0).abs() < 0.01, "{rate:?}");
    assert!(rate.low < 0.97e5 && rate.high > 1e5, "{rate:?}");
}

/// Traps take 3 us each, as beside other work; by their price 0.83. Two functions are watched in the same windows, so that each pays for the other's
/// hits, too. Of `n` samples in 10 s `k` fell into traps.
fn dear(n: u64, k: u64) -> Estimate {
    let mut r = called(3_000.0 * 2.0, 10_000.0);
    r.meta.cost.cold = Price::fixed(0.0);
    r.meta.agent.until_begin_ns = Some(0);
    r.classes.push(class(2, "g"));
    let neighbours: Vec<WindowRow> =
        r.windows.iter().map(|w| WindowRow { class_id: 2, ..w.clone() }).collect();
    r.windows.extend(neighbours);
    let period_ns = 10 * S / n;
    let time_ns = |i: u64| START + i * period_ns;
    r.samples.extend((0..n - k).map(|i| SampleRow { time_ns: time_ns(i), period_ns, ..sample(0, 0) }));
    r.trap_samples.extend((0..k).map(|i| TrapSampleRow {
        time_ns: time_ns(n - k + i),
        tid: 42,
        cpu: 0,
        class_id: Some(1),
        in_kernel: true,
        is_sure: true,
        period_ns,
    }));
    row(&Report::from_recording(&r), "f").rate_hz.unwrap()
}

#[test]
fn samples_in_traps_correct_rates_for_dear_traps() {
    // 10,000 traps are 30 ms, three samples of 10 ms or three hundred of 100 us. No sample is no evidence against the price.
    let (blind, few, many) = (dear(1_000, 0), dear(1_000, 3), dear(100_000, 300));
    assert!(blind.value > 0.6e5 && blind.value < 0.75e5, "{blind:?}");
    assert!(few.value > blind.value && few.value < 0.95e5, "{few:?}");
    assert!((many.value / 1e5 - 1.0).abs() < 0.05, "{many:?}");
}
