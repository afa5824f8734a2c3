//! What monitoring takes from calls, or leaves behind, where no probe of theirs sees it.

use super::durations::pair;
use super::*;
use crate::cost::Stamps;
use crate::estimate::Estimate;

/// `f` is traced for `length_s` of the 10 s run: 1,000 calls of 1 ms there, and samples that take `rest_ns` of each second.
fn traced(length_s: f64, rest_ns: u64) -> Recording {
    let mut r = empty();
    r.meta.agent.cpu_ns = S / 5;
    let stamps = Stamps::guessed(Price::fixed(600.0));
    r.meta.cost.stamps.insert("push/return_link".into(), stamps);
    r.meta.cost.cold = Price::fixed(0.0);
    r.classes.push(ClassRow { stamps_ns: Some(600.0), ..class(1, "f") });
    let mut w = window(WindowKind::Trace, 0.0, length_s, 1_000);
    (w.returns, w.sum_ns, w.max_ns) = (1_000, 1_000 * 1_000_600, 1_000_700);
    w.nested_cost_ns = 1_000 * 600;
    r.windows = vec![w];
    r.histograms = vec![HistogramRow { class_id: 1, low_ns: 1_000_500, high_ns: 1_000_700, count: 1_000 }];
    for second in 0..10 {
        r.ledger.push(LedgerRow { target_cpu_ns: S, ..ledger(second + 1, Charge::Samples, None, rest_ns) });
    }
    r
}

fn f_of(r: &Recording) -> Row {
    row(&Report::from_recording(r), "f").clone()
}

fn holds(e: Estimate, truth: f64) -> bool {
    e.low <= truth && truth <= e.high
}

/// Samples take a hundredth beside it, and the agent has 2 % of a CPU, which may be that of the thread that calls.
#[test]
fn long_calls_hold_what_samples_and_the_agent_take_inside_them() {
    let alone = f_of(&traced(10.0, 0)).mean_ns.unwrap();
    assert!((alone.value - 1e6).abs() < 1.0 && alone.high - alone.value < 1.0, "{alone:?}");
    // The agent may have been elsewhere.
    assert!(holds(alone, 1e6) && holds(alone, 1e6 / 1.019) && !holds(alone, 1e6 / 1.03), "{alone:?}");
    let f = f_of(&traced(10.0, S / 100));
    let mean = f.mean_ns.unwrap();
    assert!((mean.value - 0.99e6).abs() < 10.0, "{mean:?}");
    assert!(holds(mean, 1e6) && holds(mean, 1e6 / 1.039) && !holds(mean, 1e6 / 1.05), "{mean:?}");
    let (_, median) = f.quantiles_ns[0];
    assert!(holds(median, 1e6) && holds(median, 1e6 / 1.02), "{median:?}");
}

/// Traced for half of the run, a thread of which monitoring takes a tenth: of the other half 4.5 s are left for calls.
#[test]
fn calls_leave_out_what_monitoring_took_in_the_time_that_was_not_watched() {
    let calls = |rest_ns| f_of(&traced(5.0, rest_ns)).calls.unwrap();
    let (alone, beside) = (calls(0), calls(S / 10));
    assert!((alone.value - 2_000.0).abs() < 2.0, "{alone:?}");
    let rate = f_of(&traced(5.0, S / 10)).rate_hz.unwrap();
    let expected = 1_000.0 + rate.value * (5.0 - 0.5);
    assert!((beside.value - expected).abs() < 5.0, "{beside:?} {expected}");
    // A target that rests for nine tenths may have given rest for it.
    let mut resting = traced(5.0, S / 10);
    resting.ledger.iter_mut().for_each(|row| row.target_cpu_ns = S / 5);
    let resting = f_of(&resting).calls.unwrap();
    assert!(resting.high - resting.value > 40.0, "{resting:?}");
}

/// Bursts of 500 hits, one every `gap_ns` beside the trap, of a function with a pair; a trap leaves up to 400 ns behind.
fn bursts(gap_ns: f64, site: SiteClass) -> Estimate {
    bursts_of(gap_ns, site, 0)
}

/// The same of a target that runs for so long in each second.
fn bursts_of(gap_ns: f64, site: SiteClass, runs_ns: u64) -> Estimate {
    let mut r = empty();
    for second in 0..10 {
        r.ledger.push(LedgerRow { target_cpu_ns: runs_ns, ..ledger(second + 1, Charge::Samples, None, 0) });
    }
    for p in r.meta.cost.hit.values_mut() {
        *p = Price { ns: 830.0, min_ns: 825.0, max_ns: 848.0, n: 7 };
    }
    r.meta.cost.cold = Price { ns: 400.0, min_ns: 400.0, max_ns: 400.0, n: 7 };
    r.meta.cost.stamps.insert("push/exit".into(), Stamps::guessed(Price::fixed(800.0)));
    r.classes.push(ClassRow { exit_mode: ExitMode::None, site_class: site, ..class(1, "f") });
    for i in 0..10 {
        let length_s = 500.0 * (830.0 + gap_ns + f64::from(i)) * 1e-9;
        let w = window(WindowKind::Burst, f64::from(i), f64::from(i) + length_s, 500);
        r.windows.push(WindowRow { tripped: true, tau_ns: 830.0, ..w });
    }
    r.meta.cost.stamps.insert("stepped/exit".into(), Stamps::guessed(Price::fixed(800.0)));
    pair(&mut r, 6, 50, 800.0);
    r.classes[1].site_class = site;
    f_of(&r).rate_hz.unwrap()
}

/// A pair does not see what the trap leaves behind, in a loop neither.
#[test]
fn the_largest_rate_holds_what_hits_leave_behind_also_in_a_loop() {
    let spread = |gap_ns: f64| {
        // Over what it would be if traps cost what calibration says.
        bursts(gap_ns, SiteClass::Push).high * 1e-9 * gap_ns - 1.0
    };
    // Every 100 us the caches are cold, and 400 ns of that belong to the trap.
    let cold = spread(100_000.0);
    assert!(cold > 0.004, "{cold}");
    // Just slower than a loop, and just as fast as one: 400 ns of 1.9 us.
    let (slower, looping) = (spread(2_100.0), spread(1_900.0));
    assert!(slower > 0.2 && looping > 0.25, "{slower} {looping}");
}

/// Others use the caches while it rests. Likely are 0.8 us of 8, of a busy one 0.96 at most, and of one that rests 1.92.
#[test]
fn a_target_that_rests_may_pay_twice_as_much_for_what_hits_leave_behind() {
    let above = |runs_ns| {
        let rate = bursts_of(8_000.0, SiteClass::Push, runs_ns);
        rate.high / rate.value - 1.0
    };
    let (busy, rests) = (above(S - S / 50), above(S / 2));
    assert!(busy > 0.02 && busy < 0.04 && rests > 0.15 && rests < 0.22, "{busy} {rests}");
}

#[test]
fn stepping_leaves_more_behind_than_a_pair_sees() {
    let above = |site| {
        let rate = bursts(8_000.0, site);
        rate.high / rate.value
    };
    let (stepped, push) = (above(SiteClass::Stepped), above(SiteClass::Push));
    assert!(stepped > 1.1 * push, "{stepped} {push}");
}

/// Of a call of 1 ms that begins with a single-stepped hit of 10 us: 1.5 us are taken out, and up to 6.25 may be.
#[test]
fn a_stepped_entry_leaves_a_part_of_its_price_in_the_call() {
    let of_calls = |site, length_ns: u64| {
        let mut r = traced(10.0, 0);
        r.meta.agent.cpu_ns = 0;
        (r.windows[0].sum_ns, r.windows[0].max_ns) = (1_000 * (length_ns + 600), length_ns + 700);
        (r.histograms[0].low_ns, r.histograms[0].high_ns) = (length_ns + 500, length_ns + 700);
        for p in r.meta.cost.hit.values_mut() {
            *p = Price { ns: 10_000.0, min_ns: 9_000.0, max_ns: 11_000.0, n: 7 };
        }
        let stamps = Stamps::guessed(Price { ns: 600.0, min_ns: 599.0, max_ns: 601.0, n: 7 });
        for key in ["push/return_link", "stepped/return_link"] {
            r.meta.cost.stamps.insert(key.into(), stamps);
        }
        r.classes[0].site_class = site;
        f_of(&r).mean_ns.unwrap()
    };
    let of = |site| of_calls(site, 1_000_000);
    let (push, stepped) = (of(SiteClass::Push), of(SiteClass::Stepped));
    let short = of_calls(SiteClass::Stepped, 1_000);
    assert!(short.value > 50.0 && short.low < 1.0, "something is left of 1 us: {short:?}");
    assert!((push.value - stepped.value - 1_500.0).abs() < 10.0, "{push:?} {stepped:?}");
    assert!(stepped.low < push.low - 5_000.0 && stepped.high > push.value - 10.0, "{push:?} {stepped:?}");
}
