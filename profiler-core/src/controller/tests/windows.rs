//! Which bursts begin, at what is there for them, worked out by hand; and what becomes of a class when its window ends.

use super::*;

const S: u64 = 1_000_000_000;

/// A burst of 1,000 hits of 1 µs, expected to cost 0.8 ms, that ends after 20 ms.
const BURST: BurstOrder =
    BurstOrder { quota: 1_000, window_ns: 20_000_000, every_ns: S, cost_ns: 0.8e6, duty: 0.02 };

/// Classes with bursts that are due, each a microsecond after the one before.
fn due(bursts: &[BurstOrder]) -> Controller {
    let orders: Vec<ClassOrder> = (0u32..)
        .zip(bursts)
        .map(|(id, burst)| ClassOrder {
            trace: false,
            trial: false,
            burst: Some(*burst),
            ..order(id, 5e4, 1_000.0)
        })
        .collect();
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &orders, 0, 0.0);
    for (i, entry) in (0u64..).zip(controller.classes.values_mut()) {
        entry.next_burst_ns = 9 * S + i * 1_000;
    }
    controller
}

/// Bursts that begin: class and quota.
fn begun(controller: &mut Controller, tick: &Tick<'_>) -> Vec<(u32, u64)> {
    let mut actions = Vec::new();
    controller.start_bursts(tick, &mut actions);
    let begin = |action| match action {
        Action::Burst { class, quota, window_ns } => {
            let entry = &controller.classes[&class];
            assert_eq!(entry.mode, Mode::Burst { until_ns: tick.now_ns + window_ns });
            (class.0, quota)
        }
        other => panic!("{other:?}"),
    };
    actions.into_iter().map(begin).collect()
}

#[test]
fn a_burst_leaves_a_quarter_of_the_bucket_and_what_a_survey_may_take() {
    // A bucket of 5 ms: 1.25 stay; all of its hits cost 1 ms.
    let one = |tokens_ns, reserved_ns| {
        begun(&mut due(&[BURST]), &Tick { tokens_ns, reserved_ns, ..dry(&[]) }).len()
    };
    assert_eq!([one(2.2499e6, 0.0), one(2.25e6, 0.0)], [0, 1]);
    assert_eq!([one(2.7499e6, 5e5), one(2.75e6, 5e5)], [0, 1]);
}

#[test]
fn what_comes_in_during_a_burst_pays_for_what_its_quota_is_more_than_is_expected() {
    let mut controller = due(&[BURST]);
    // 10 ms/s: 0.2 ms in the 20 ms of its window. What it is expected to cost has to be there.
    controller.income_left = 0.01;
    assert_eq!(begun(&mut controller, &Tick { tokens_ns: 2.0499e6, ..dry(&[]) }), []);
    assert_eq!(begun(&mut controller, &Tick { tokens_ns: 2.05e6, ..dry(&[]) }), [(0, 1_000)]);
    controller = due(&[BURST]);
    controller.income_left = 1.0;
    assert_eq!(begun(&mut controller, &Tick { tokens_ns: 2.0499e6, ..dry(&[]) }), []);
    assert_eq!(begun(&mut controller, &Tick { tokens_ns: 2.0501e6, ..dry(&[]) }), [(0, 1_000)]);
}

#[test]
fn a_burst_that_the_bucket_never_holds_is_made_smaller() {
    // Nine tenths of three quarters of 5 ms are 3.375 ms.
    let large = BurstOrder { quota: 10_000, cost_ns: 4e6, ..BURST };
    let mut controller = due(&[large]);
    assert_eq!(begun(&mut controller, &Tick { tokens_ns: 5e6, ..dry(&[]) }), [(0, 3_375)]);
    assert_eq!(controller.classes[&ClassId(0)].reserved_ns, 3.375e6);
    // Links cost more than its hits: that is divided as well.
    let dear = BurstOrder { quota: 1_000, cost_ns: 6.75e6, ..BURST };
    controller = due(&[dear]);
    assert_eq!(begun(&mut controller, &Tick { tokens_ns: 5e6, ..dry(&[]) }), [(0, 500)]);
    assert_eq!(controller.classes[&ClassId(0)].reserved_ns, 3.375e6);
    // Two hits at least.
    let mut tiny = due(&[BurstOrder { quota: 1, cost_ns: 1e3, ..BURST }]);
    assert_eq!(begun(&mut tiny, &Tick { tokens_ns: 5e6, ..dry(&[]) }), [(0, 2)]);
}

/// Each class has its own sequence, whatever other classes do; what attaching costs does not get less with the quota.
#[test]
fn the_quotas_of_a_class_differ_and_none_is_above_the_planned_one() {
    let mut controller = due(&[BURST, BURST]);
    let mut quotas = Vec::new();
    for _ in 0..50 {
        let tick = Tick { tokens_ns: 50e6, capacity_ns: 50e6, ..dry(&[]) };
        let begun = begun(&mut controller, &tick);
        quotas.extend(begun.iter().filter(|b| b.0 == 0).map(|b| b.1));
        let hits_ns = begun[0].1 as f64 * controller.classes[&ClassId(0)].order.tau_ns;
        let churn_ns = BURST.cost_ns - BURST.quota as f64 * controller.classes[&ClassId(0)].order.tau_ns;
        let reserved_ns = controller.classes[&ClassId(0)].reserved_ns;
        assert!((reserved_ns - hits_ns - churn_ns.max(0.0)).abs() < 1_000.0, "{reserved_ns} {hits_ns}");
        for id in [0, 1] {
            controller.window_ended(ClassId(id), tick.now_ns, 10, 1_000_000, true);
            controller.classes.get_mut(&ClassId(id)).expect("a class").next_burst_ns = 1;
        }
    }
    let mean = quotas.iter().sum::<u64>() as f64 / quotas.len() as f64 / BURST.quota as f64;
    assert!((mean - 0.75).abs() < 0.02 && quotas.iter().all(|q| *q <= BURST.quota), "{mean} {quotas:?}");
    // In each tenth of the range some.
    for tenth in 0..10 {
        let low = BURST.quota / 2 + tenth * BURST.quota / 20;
        assert!(quotas.iter().any(|q| (low..=low + BURST.quota / 20).contains(q)), "{low}: {quotas:?}");
    }
}

#[test]
fn the_latest_burst_comes_first_and_tokens_are_granted_once() {
    let mut controller = due(&[BURST; 6]);
    controller.classes.get_mut(&ClassId(4)).expect("a class").next_burst_ns = 8 * S;
    // Four in a tick, the one that is overdue first.
    let tick = Tick { tokens_ns: 50e6, capacity_ns: 50e6, ..dry(&[]) };
    assert_eq!(begun(&mut controller, &tick).iter().map(|b| b.0).collect::<Vec<_>>(), [4, 0, 1, 2]);
    assert_eq!(begun(&mut controller, &tick).iter().map(|b| b.0).collect::<Vec<_>>(), [3, 5]);
    // 3.75 ms pay for three of a millisecond.
    let mut controller = due(&[BURST; 6]);
    assert_eq!(begun(&mut controller, &Tick { tokens_ns: 5e6, ..dry(&[]) }).len(), 3);
    assert_eq!(begun(&mut controller, &Tick { tokens_ns: 5e6, ..dry(&[]) }).len(), 0);
}

#[test]
fn a_burst_whose_end_nobody_told_is_over_after_five_seconds() {
    let mut controller = due(&[BURST]);
    controller.classes.get_mut(&ClassId(0)).expect("a class").mode = Mode::Burst { until_ns: 5 * S };
    let tick = |now_ns| Tick { now_ns, tokens_ns: 5e6, ..dry(&[]) };
    assert_eq!(begun(&mut controller, &tick(10 * S)), []);
    assert_eq!(begun(&mut controller, &tick(10 * S + 1)), [(0, 1_000)]);
}

#[test]
fn bursts_lie_half_to_one_and_a_half_of_their_interval_apart() {
    let mut controller = due(&[BURST]);
    let mut times = Vec::new();
    for _ in 0..200 {
        controller.draw_burst(ClassId(0), 10 * S);
        times.push(controller.classes[&ClassId(0)].next_burst_ns - 10 * S);
    }
    let (least, most) = (times.iter().min().expect("some"), times.iter().max().expect("some"));
    assert!((S / 2..S / 2 + S / 10).contains(least), "{least}");
    assert!((3 * S / 2 - S / 10..3 * S / 2).contains(most), "{most}");
    // The first one at any point of its interval.
    let mut firsts = Vec::new();
    for seed in 0..100 {
        let mut controller = due(&[BURST]);
        controller.random = StdRng::seed_from_u64(seed);
        controller.classes.get_mut(&ClassId(0)).expect("a class").next_burst_ns = 0;
        assert_eq!(begun(&mut controller, &dry(&[])), []);
        firsts.push(controller.classes[&ClassId(0)].next_burst_ns - 10 * S);
    }
    let (least, most) = (firsts.iter().min().expect("some"), firsts.iter().max().expect("some"));
    assert!(*least < S / 10 && (9 * S / 10..S).contains(most), "{least} {most}");
}

#[test]
fn a_class_goes_on_as_the_present_plan_has_it_when_its_burst_ends() {
    // (traced, tried, in bursts) -> mode
    let table = [
        (true, false, false, Mode::Stopped { retry_ns: 10 * S }),
        (true, false, true, Mode::Stopped { retry_ns: 10 * S }),
        (false, true, false, Mode::Stopped { retry_ns: 10 * S }),
        (false, true, true, Mode::Sampled),
        (false, false, true, Mode::Sampled),
        (false, false, false, Mode::Sampled),
    ];
    for (trace, trial, in_bursts, mode) in table {
        let mut controller = due(&[BURST]);
        let entry = controller.classes.get_mut(&ClassId(0)).expect("a class");
        entry.mode = Mode::Burst { until_ns: 10 * S };
        (entry.order.trace, entry.order.trial) = (trace, trial);
        entry.order.burst = in_bursts.then_some(BURST);
        assert!(controller.window_ended(ClassId(0), 10 * S, 100, S / 100, false));
        assert_eq!(controller.classes[&ClassId(0)].mode, mode, "{trace} {trial} {in_bursts}");
    }
}

/// How long a window takes, and how long its link, must not make bursts rarer than planned.
#[test]
fn the_next_burst_is_drawn_from_the_begin_of_the_last() {
    let mut controller = due(&[BURST]);
    assert_eq!(begun(&mut controller, &Tick { tokens_ns: 5e6, ..dry(&[]) }).len(), 1);
    let next_ns = controller.classes[&ClassId(0)].next_burst_ns;
    assert!((10 * S + S / 2..10 * S + 3 * S / 2).contains(&next_ns), "{next_ns}");
    assert!(controller.window_ended(ClassId(0), 10 * S + S / 3, 100, S / 100, false));
    assert_eq!(controller.classes[&ClassId(0)].next_burst_ns, next_ns);
}

#[test]
fn a_burst_moves_the_rate_a_quarter_of_the_way() {
    // (hits, ns) -> rate: 1 µs of each hit is ours; the target's own time is a tenth of the window at least.
    let table = [
        (1_000, S / 100, 5e4 + 0.25 * (1_000.0 / 0.009 - 5e4)),
        (1_000, S / 1_000, 5e4 + 0.25 * (1_000.0 / 1e-4 - 5e4)),
        (1, 10, 5e4 + 0.25 * (1.0 / 1e-7 - 5e4)),
        (100, 0, 5e4),
    ];
    for (hits, elapsed_ns, rate) in table {
        let mut controller = due(&[BURST]);
        controller.classes.get_mut(&ClassId(0)).expect("a class").mode = Mode::Burst { until_ns: 10 * S };
        controller.window_ended(ClassId(0), 10 * S, hits, elapsed_ns, true);
        let seen = controller.rate_hz(ClassId(0)).expect("a rate");
        assert!((seen / rate - 1.0).abs() < 1e-9, "{hits} in {elapsed_ns}: {seen}, not {rate}");
    }
}

#[test]
fn a_window_that_is_no_burst_is_an_alarm_only_if_its_quota_ended_it() {
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &[order(0, 1_000.0, 700.0)], 0, 5e6);
    assert!(!controller.window_ended(ClassId(0), S, 500, S / 10, false));
    assert!(controller.is_attached(ClassId(0)));
    assert!(!controller.window_ended(ClassId(0), S, 500, S / 10, true));
    assert!(!controller.is_attached(ClassId(0)));
    assert!(!controller.window_ended(ClassId(9), S, 500, S / 10, true));
}
