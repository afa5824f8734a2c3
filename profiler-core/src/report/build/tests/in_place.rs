//! The overhead by samples that fell into traps.

use super::*;
use crate::recording::{LedgerRow, PricesAtEnd, TrapSampleRow};
use crate::report::InPlace;
use crate::stats::sim::{Coverage, rng};
use rand::RngExt as _;

/// 10 s of a thread that runs all the time, 100 samples a second, of which these lay in traps of class 1.
fn sampled(in_trap: impl Fn(u64) -> bool) -> Recording {
    let mut r = empty();
    r.meta.cost.cold = Price::fixed(0.0);
    r.meta.agent.until_begin_ns = Some(0);
    for i in 0..1_000 {
        let (time_ns, period_ns) = (START + i * S / 100, 10_000_000);
        if in_trap(i) {
            let row = TrapSampleRow {
                time_ns,
                tid: 42,
                cpu: 0,
                class_id: Some(1),
                in_kernel: true,
                is_sure: true,
                period_ns,
            };
            r.trap_samples.push(row);
        } else {
            let row = SampleRow {
                time_ns,
                pid: 42,
                tid: 42,
                cpu: 0,
                stack_id: 1,
                in_kernel: false,
                period_ns,
                truncated: false,
            };
            r.samples.push(row);
        }
    }
    r.stacks.push(frame(1, 0, "f", None));
    r.ledger = (0..10).map(|s| ledger(s + 1, Charge::Traced, Some(1), S / 100)).collect();
    r
}

fn in_place(r: &Recording) -> InPlace {
    Report::from_recording(r).receipt.in_place.unwrap()
}

/// One sample of 51: a fiftieth of what is left.
#[test]
fn samples_in_traps_over_the_others_are_the_overhead() {
    let m = in_place(&sampled(|i| i % 51 == 0));
    assert_eq!((m.samples, m.in_traps, m.by_class.clone()), (1_000, 20, vec![(Some(1), 20)]));
    assert!((m.overhead.value - 20.0 / 980.0).abs() < 1e-12, "{m:?}");
    assert!(m.overhead.low < 0.02 && m.overhead.high > 0.02 && m.overhead.high < 0.04, "{m:?}");
    // No share is taken of them.
    let report = Report::from_recording(&sampled(|i| i % 51 == 0));
    assert_eq!(row(&report, "f").share.unwrap().value, 1.0);
}

/// Eight of a thousand: limits that miss both ways alike.
#[test]
fn few_samples_in_traps_have_the_limits_of_jeffreys() {
    use crate::stats::counts::jeffreys;
    use crate::stats::z_quantile;
    let traps = in_place(&sampled(|i| i % 125 == 60)).traps;
    let of = jeffreys(8.0, 1_000.0, z_quantile(0.95));
    let over = |f: f64| f / (1.0 - f);
    assert!((traps.low / over(of.low) - 1.0).abs() < 0.015, "{traps:?} {of:?}");
    assert!((traps.high / over(of.high) - 1.0).abs() < 0.015, "{traps:?} {of:?}");
}

/// Prices that are wrong by a factor of two move what the ledger predicts, and not what was measured.
#[test]
fn wrong_prices_do_not_move_it() {
    let mut r = sampled(|i| i % 51 == 0);
    // 1,000 samples of 14 us, 2,000 switches of 500 ns.
    r.ledger.push(LedgerRow { units: 1_000, ..ledger(3, Charge::Samples, None, 14_000_000) });
    r.ledger.push(LedgerRow { units: 2_000, ..ledger(3, Charge::Switches, None, 1_000_000) });
    r.ledger.push(ledger(3, Charge::Attach, None, 500_000));
    let by_ledger = in_place(&r);
    r.meta.agent.prices_at_end =
        Some(PricesAtEnd { sample: Price::fixed(15_000.0), switch: Price::fixed(400.0) });
    let right = in_place(&r);
    let moved_s = (right.beside.value - by_ledger.beside.value) * right.own_s;
    assert!((moved_s - (1_000.0 * 1e-6 - 2_000.0 * 1e-7)).abs() < 1e-9, "{right:?} {by_ledger:?}");
    assert!(right.priced_at_end && !by_ledger.priced_at_end);
    // Rounds that differ a lot: each could be the price.
    let mut apart = r.clone();
    apart.meta.agent.prices_at_end = Some(PricesAtEnd {
        sample: Price { ns: 15_000.0, min_ns: 5_000.0, max_ns: 45_000.0, n: 7 },
        switch: Price::fixed(400.0),
    });
    let wide = in_place(&apart).beside;
    assert!((wide.value - right.beside.value).abs() < 1e-12);
    assert!((wide.high - wide.value - 1_000.0 * 30e-6 / right.own_s).abs() < 1e-9, "{wide:?}");
    assert!((wide.value - wide.low - 1_000.0 * 10e-6 / right.own_s).abs() < 1e-9, "{wide:?}");
    let priced = [Charge::Traced, Charge::Samples, Charge::Switches];
    let rows = r.ledger.iter_mut().filter(|row| priced.contains(&row.charge));
    rows.for_each(|row| row.cost_ns *= 2);
    let wrong = in_place(&r);
    assert_eq!((right.traps, right.overhead), (wrong.traps, wrong.overhead));
}

#[test]
fn what_no_sample_shows_is_added_by_its_price() {
    let mut r = sampled(|_| false);
    let none = in_place(&r);
    assert!(none.overhead.value == 0.0 && none.overhead.high > 0.001, "none of 1,000 is no proof: {none:?}");
    r.ledger.push(ledger(3, Charge::Samples, None, S / 20));
    r.meta.cost.cold = Price { ns: 200.0, min_ns: 150.0, max_ns: 250.0, n: 7 };
    r.classes.push(class(1, "f"));
    // Each of 10,000 calls has two traps.
    r.windows.push(window(WindowKind::Trace, 0.0, 10.0, 10_000));
    let m = in_place(&r);
    let own_s = 10.0;
    assert!((m.beside.value - 0.05 / own_s).abs() < 1e-9, "{m:?}");
    assert!((m.behind.value - 20_000.0 * 200e-9 / own_s).abs() < 1e-6 && m.behind.low == 0.0, "{m:?}");
    assert!((m.behind.high - 20_000.0 * 1_200e-9 / own_s).abs() < 1e-6, "4.8 times the most: {m:?}");
    let sum = m.traps.value + m.beside.value + m.behind.value;
    assert!((m.overhead.value - sum).abs() < 1e-12, "{m:?}");
    r.samples.clear();
    assert_eq!(Report::from_recording(&r).receipt.in_place, None, "without samples nothing is measured");
}

/// Most of what cold caches cost is in the trap, where samples see it.
#[test]
fn what_traps_leave_behind_is_the_part_that_comes_after_them() {
    let mut r = sampled(|_| false);
    r.meta.cost.cold = Price { ns: 200.0, min_ns: 150.0, max_ns: 250.0, n: 7 };
    r.meta.cost.behind = Some(Price { ns: 40.0, min_ns: 0.0, max_ns: 60.0, n: 7 });
    r.meta.cost.hit =
        [(CostModel::key(SiteClass::Stepped, RecordKind::Count), Price::fixed(10_000.0))].into();
    r.classes.push(ClassRow { exit_mode: ExitMode::None, ..class(1, "f") });
    r.windows.push(window(WindowKind::Trace, 0.0, 10.0, 10_000));
    let behind_ns = |r: &Recording| {
        let behind = in_place(r).behind;
        [behind.low, behind.value, behind.high].map(|part| (part * 10.0 / 10_000.0 * 1e9).round())
    };
    r.classes[0].site_class = SiteClass::Push;
    assert_eq!(behind_ns(&r), [0.0, 40.0, 500.0]);
    r.classes[0].site_class = SiteClass::Stepped;
    assert_eq!(behind_ns(&r), [0.0, 40.0, 3_500.0]);
    r.meta.cost.behind = Some(Price { ns: 900.0, min_ns: 0.0, max_ns: 1_200.0, n: 7 });
    r.classes[0].site_class = SiteClass::Push;
    assert_eq!(behind_ns(&r), [0.0, 900.0, 1_200.0]);
}

/// A recording from before such samples were kept apart has them among the others: nothing was measured.
#[test]
fn an_older_recording_has_no_such_figure() {
    let mut r = sampled(|i| i % 51 == 0);
    r.meta.agent.until_begin_ns = None;
    assert_eq!(Report::from_recording(&r).receipt.in_place, None);
}

/// Half of them may have been something else: the lower end does without them.
#[test]
fn what_may_be_no_trap_widens_the_interval_downwards() {
    let mut r = sampled(|i| i % 10 == 0);
    let all = in_place(&r).traps;
    r.trap_samples.iter_mut().step_by(2).for_each(|s| s.is_sure = false);
    let half = in_place(&r).traps;
    assert_eq!((half.value, half.high), (all.value, all.high));
    assert!(half.low < 0.06 && all.low > 0.08, "{half:?} {all:?}");
}

/// A function that counts the progress metric is trapped as others are; a system call is not.
#[test]
fn a_function_that_counts_progress_is_in_the_traps_already() {
    let mut r = sampled(|i| i % 51 == 0);
    r.ledger.push(ledger(3, Charge::Progress, Some(1), S / 20));
    assert_eq!(in_place(&r).beside.value, 0.0);
    r.ledger.push(ledger(3, Charge::Progress, None, S / 20));
    assert!(in_place(&r).beside.value > 0.004);
}

/// Traps take 2 % of the thread's own time, at random.
#[test]
fn the_interval_holds_the_truth() {
    let (mut rng, truth) = (rng(5), 0.02);
    let mut c = Coverage::default();
    for _ in 0..400 {
        let in_traps: Vec<bool> = (0..1_000).map(|_| rng.random::<f64>() < truth / (1.0 + truth)).collect();
        let e = in_place(&sampled(|i| in_traps[i as usize])).overhead;
        c.note(crate::stats::Interval { low: e.low, high: e.high }, truth);
    }
    c.check(0.93, 0.99, "overhead in place");
}
