//! Single steps of the policy against values worked out by hand, at their thresholds too.

use super::*;

const S: u64 = 1_000_000_000;

fn controller(orders: &[ClassOrder]) -> Controller {
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, orders, 10_000_000, 5e6);
    controller
}

fn entry(controller: &mut Controller, class: u32) -> &mut Entry {
    controller.classes.get_mut(&ClassId(class)).expect("a class of the plan")
}

fn burst() -> BurstOrder {
    BurstOrder { quota: 100, window_ns: 20_000_000, every_ns: S, cost_ns: 1e5, duty: 0.02 }
}

#[test]
fn density_is_value_over_cost() {
    let mut controller = controller(&[ClassOrder { weight: 2.0, rho: 0.5, ..order(0, 1_000.0, 700.0) }]);
    let entry = entry(&mut controller, 0);
    // 2 (1000 - 100 x 0.5) / (1000 x 700 ns)
    assert!((entry.density(100.0) / (1_900.0 / 7e-4) - 1.0).abs() < 1e-12);
    entry.order.must = true;
    assert_eq!(entry.density(100.0), f64::INFINITY);
    (entry.order.must, entry.rate_hz) = (false, 0.0);
    assert!((entry.density(100.0) / (-100.0 * 1e12) - 1.0).abs() < 1e-12, "no cost is no division by zero");
}

#[test]
fn a_plan_sets_the_mode_of_each_class() {
    let stopped = Mode::Stopped { retry_ns: 9 * S };
    let trial = Mode::Trial { until_ns: 8 * S, window_ns: S, open: true };
    let in_burst = Mode::Burst { until_ns: 8 * S };
    let paused = Mode::Stopped { retry_ns: 3 * S };
    // (before, traced, tried, in bursts) -> mode, whether it is taken off
    let table = [
        (Mode::Sampled, true, false, false, Mode::Traced, false),
        (Mode::Traced, true, true, true, Mode::Traced, false),
        (Mode::Traced, false, false, false, Mode::Sampled, true),
        (Mode::Traced, false, true, false, paused, true),
        (Mode::Sampled, false, true, false, paused, false),
        (Mode::Sampled, false, false, true, Mode::Sampled, false),
        (stopped, true, true, false, stopped, false),
        (stopped, false, false, false, stopped, false),
        (stopped, false, false, true, Mode::Sampled, false),
        (stopped, true, false, true, stopped, false),
        (trial, false, false, false, trial, false),
        (trial, true, false, false, trial, false),
        (in_burst, true, false, false, in_burst, false),
        (in_burst, false, false, true, in_burst, false),
    ];
    for (i, (before, trace, trial, in_bursts, after, taken_off)) in table.into_iter().enumerate() {
        let mut controller = controller(&[order(0, 1_000.0, 700.0)]);
        entry(&mut controller, 0).mode = before;
        entry(&mut controller, 0).next_burst_ns = S;
        let order = ClassOrder { trace, trial, burst: in_bursts.then(burst), ..order(0, 2_000.0, 700.0) };
        let actions = controller.take_plan(S, &[order], 10_000_000, 5e6);
        let entry = entry(&mut controller, 0);
        assert_eq!(entry.mode, after, "row {i}");
        let detach = Action::Detach { class: ClassId(0), reason: DetachReason::Planned };
        assert_eq!(actions.contains(&detach), taken_off, "row {i}: {actions:?}");
        // The plan's rate counts, but not for one that was stopped because it ran at another.
        let is_stopped = matches!(before, Mode::Stopped { .. });
        assert_eq!(entry.rate_hz, if is_stopped { 1_000.0 } else { 2_000.0 }, "row {i}");
        // A pause holds for bursts too.
        let later = is_stopped && !trace && in_bursts;
        assert_eq!(entry.next_burst_ns, if later { 9 * S } else { S }, "row {i}");
    }
}

#[test]
fn a_plan_without_a_rate_keeps_the_one_that_was_seen() {
    let mut controller = controller(&[order(0, 1_000.0, 700.0)]);
    controller.take_plan(S, &[order(0, 0.0, 700.0)], 10_000_000, 5e6);
    assert_eq!(controller.rate_hz(ClassId(0)), Some(1_000.0));
}

#[test]
fn a_plan_forgets_what_is_neither_in_it_nor_attached() {
    let sampled = ClassOrder { trace: false, trial: false, ..order(1, 1_000.0, 700.0) };
    let mut controller = controller(&[order(0, 1_000.0, 700.0), sampled]);
    controller.take_plan(S, &[], 10_000_000, 5e6);
    assert!(controller.is_attached(ClassId(0)));
    assert_eq!(controller.rate_hz(ClassId(1)), None);
}

#[test]
fn a_plan_says_its_period_if_it_is_another_one() {
    let mut controller = Controller::new(ControllerConfig::default());
    assert_eq!(controller.take_plan(0, &[], 10_000_000, 0.0), [Action::Period { period_ns: 10_000_000 }]);
    assert_eq!(controller.take_plan(1, &[], 10_000_000, 0.0), []);
    assert!(controller.slowed().is_none());
    controller.period_ns = 10_000_001;
    assert!(controller.slowed().is_some());
    assert_eq!(controller.take_plan(2, &[], 20_000_000, 0.0), [Action::Period { period_ns: 20_000_000 }]);
    assert!(controller.slowed().is_none());
}

#[test]
fn first_quotas_leave_what_windows_were_granted() {
    let quota = |held_ns: f64| {
        let tried = ClassOrder { trace: false, trial: false, ..order(1, 10.0, 700.0) };
        let mut controller = controller(&[order(0, 1_000.0, 700.0), tried]);
        entry(&mut controller, 1).mode = Mode::Trial { until_ns: 2 * S, window_ns: S, open: true };
        entry(&mut controller, 1).reserved_ns = held_ns;
        match controller.take_plan(S, &[order(0, 1_000.0, 700.0), tried], 10_000_000, 4e6)[..] {
            [Action::Trace { class: ClassId(0), quota }] => quota,
            ref other => panic!("{other:?}"),
        }
    };
    // All of 4 ms for the only class, or what 1 ms leaves of it (nothing is known of what comes in).
    assert_eq!(quota(0.0), (4e6 / 700.0) as u64);
    assert_eq!(quota(1e6), (3e6 / 700.0) as u64);
}

#[test]
fn pauses_double_up_to_the_longest() {
    let config = ControllerConfig::default();
    let seconds = [0, 1, 2, 3, 5, 6, 30, u32::MAX].map(|stops| pause(&config, stops) / S);
    assert_eq!(seconds, [2, 2, 4, 8, 32, 60, 60, 60]);
}

#[test]
fn what_tripped_ran_at_least_as_fast_as_it_was_seen() {
    let mut controller = controller(&[order(0, 1_000.0, 700.0)]);
    controller.tripped(ClassId(0), 5 * S, 500, S / 100);
    assert_eq!(controller.rate_hz(ClassId(0)), Some(50_000.0));
    assert_eq!(entry(&mut controller, 0).mode, Mode::Stopped { retry_ns: 7 * S });
    // Slower than it was taken to be: kept. The second pause is twice as long.
    controller.tripped(ClassId(0), 5 * S, 500, S);
    assert_eq!(controller.rate_hz(ClassId(0)), Some(50_000.0));
    assert_eq!(entry(&mut controller, 0).mode, Mode::Stopped { retry_ns: 9 * S });
    // A clock that says nothing counts as a microsecond.
    controller.tripped(ClassId(0), 5 * S, 500, 0);
    let rate = controller.rate_hz(ClassId(0)).expect("a rate");
    assert!((rate / 5e8 - 1.0).abs() < 1e-12, "{rate}");
}

#[test]
fn what_is_lost_is_tried_again_if_it_was_wanted() {
    for (trace, trial, mode) in [
        (true, false, Mode::Stopped { retry_ns: 7 * S }),
        (false, true, Mode::Stopped { retry_ns: 7 * S }),
        (false, false, Mode::Sampled),
    ] {
        let mut controller =
            controller(&[ClassOrder { trace, trial, burst: Some(burst()), ..order(0, 1_000.0, 700.0) }]);
        controller.lost(ClassId(0), 5 * S);
        let entry = entry(&mut controller, 0);
        assert_eq!((entry.mode, entry.stops), (mode, 1));
        // Half to one and a half of the interval later.
        assert!((5 * S + S / 2..5 * S + 3 * S / 2).contains(&entry.next_burst_ns), "{}", entry.next_burst_ns);
    }
}

#[test]
fn what_is_held_back_is_no_stop() {
    for (before, after) in [
        (Mode::Trial { until_ns: 6 * S, window_ns: S, open: false }, Mode::Stopped { retry_ns: 7 * S }),
        (Mode::Burst { until_ns: 6 * S }, Mode::Sampled),
        (Mode::Traced, Mode::Traced),
    ] {
        let mut controller = controller(&[order(0, 1_000.0, 700.0)]);
        entry(&mut controller, 0).mode = before;
        controller.held_back(ClassId(0), 5 * S);
        let entry = entry(&mut controller, 0);
        assert_eq!((entry.mode, entry.stops), (after, 0));
        assert!((5 * S + S / 2..5 * S + 3 * S / 2).contains(&entry.next_burst_ns));
    }
}

#[test]
fn rates_rise_at_once_and_fall_slowly() {
    let half_way = 1.0 - (-0.1f64 / 0.5).exp();
    // (rate before, hits in 100 ms, rate after)
    let table = [
        (1_000.0, 90, 1_000.0 - half_way * 100.0),
        (1_000.0, 200, 1_000.0 + half_way * 1_000.0),
        (1_000.0, 201, 2_010.0),
        (50.0, 16, 50.0 + half_way * 110.0),
        (50.0, 17, 170.0),
    ];
    for (before, hits, after) in table {
        let mut controller = controller(&[order(0, before, 700.0)]);
        controller.tick(&dry(&[(ClassId(0), hits)]));
        let rate = controller.rate_hz(ClassId(0)).expect("a rate");
        assert!((rate - after).abs() < 1e-6, "{hits} after {before}: {rate}, not {after}");
    }
    // A trial starts afresh, a class that is not attached says nothing, and neither does a tick without length.
    let mut controller = controller(&[order(0, 1_000.0, 700.0)]);
    entry(&mut controller, 0).mode = Mode::Trial { until_ns: 60 * S, window_ns: S, open: true };
    let hits = [(ClassId(0), 3)];
    controller.note_rates(&Tick { elapsed_ns: 0, ..dry(&hits) });
    assert_eq!(controller.rate_hz(ClassId(0)), Some(1_000.0));
    controller.note_rates(&dry(&hits));
    assert_eq!(controller.rate_hz(ClassId(0)), Some(30.0));
    entry(&mut controller, 0).mode = Mode::Sampled;
    controller.note_rates(&dry(&[(ClassId(0), 1_000)]));
    assert_eq!(controller.rate_hz(ClassId(0)), Some(30.0));
}

/// What becomes of a trial of a class at `rate` calls/s of 1 µs, while another takes 5 of 20 ms/s and the rest 5.
fn trial_ends(rate: f64, trace: bool, now_ns: u64, open: bool) -> (Mode, Vec<Action>) {
    let tried = ClassOrder { trace, ..order(0, rate, 1_000.0) };
    let mut controller = controller(&[tried, order(1, 5_000.0, 1_000.0)]);
    entry(&mut controller, 0).mode = Mode::Trial { until_ns: 10 * S, window_ns: S, open };
    entry(&mut controller, 0).stops = 1;
    let mut actions = Vec::new();
    controller.end_trials(&Tick { now_ns, other_cost: 0.005, ..dry(&[]) }, &mut actions);
    (entry(&mut controller, 0).mode, actions)
}

#[test]
fn a_trial_that_fits_stays_and_another_waits_longer() {
    let class = ClassId(0);
    let off = Action::Detach { class, reason: DetachReason::TrialOver };
    let waits = Mode::Stopped { retry_ns: 14 * S };
    // 10 ms/s are left: four fifths of that may be kept.
    assert_eq!(trial_ends(7_999.0, true, 10 * S, true), (Mode::Traced, vec![Action::Resumed { class }]));
    assert_eq!(trial_ends(8_001.0, true, 10 * S, true), (waits, vec![off.clone()]));
    // One that was not planned with is asked for at half of it.
    let fits = Action::Replan { why: Cause::Fits { class, rate_hz: 4_999.0 } };
    assert_eq!(trial_ends(4_999.0, false, 10 * S, true), (waits, vec![off.clone(), fits]));
    assert_eq!(trial_ends(5_001.0, false, 10 * S, true), (waits, vec![off]));
    // It is not over, or has not begun.
    for (now_ns, open) in [(10 * S - 1, true), (20 * S, false)] {
        let trial = Mode::Trial { until_ns: 10 * S, window_ns: S, open };
        assert_eq!(trial_ends(1.0, true, now_ns, open), (trial, vec![]));
    }
}

#[test]
fn plans_lie_three_drift_intervals_apart() {
    let mut controller = controller(&[]);
    let why = Cause::Cpu { now: 2.0, planned: 1.0 };
    let mut asked = |now_ns| {
        let mut actions = Vec::new();
        controller.ask_for_plan(now_ns, Some(why), &mut actions);
        actions == [Action::Replan { why }]
    };
    let asked = [3 * S, 3 * S + 1, 6 * S, 6 * S + 1, 6 * S + 2].map(&mut asked);
    assert_eq!(asked, [false, true, false, false, true]);
}

/// The trial that is begun of a class with this rate and price, where so much is free.
fn trial_of(rate: f64, tau_ns: f64, tokens_ns: f64) -> Vec<Action> {
    let mut controller =
        controller(&[order(0, rate, tau_ns), order(1, rate, tau_ns), order(2, rate, tau_ns)]);
    for (class, retry_ns) in [(0, 9 * S), (1, 8 * S), (2, 11 * S)] {
        entry(&mut controller, class).mode = Mode::Stopped { retry_ns };
    }
    let mut actions = Vec::new();
    let tick = Tick { tokens_ns, ..dry(&[]) };
    controller.start_trial(&tick, &mut actions);
    if let [Action::Trial { class, quota, window_ns }] = actions[..] {
        let entry = entry(&mut controller, class.0);
        assert_eq!(entry.reserved_ns, quota as f64 * tau_ns);
        assert_eq!(entry.mode, Mode::Trial { until_ns: 10 * S + window_ns, window_ns, open: false });
        // One at a time.
        let mut more = Vec::new();
        controller.start_trial(&Tick { tokens_ns: 1e9, ..tick }, &mut more);
        assert_eq!(more, []);
        // Its time runs from when it opened.
        controller.opened(class, 12 * S);
        let mode = controller.classes[&class].mode;
        assert_eq!(mode, Mode::Trial { until_ns: 12 * S + window_ns, window_ns, open: true });
    }
    actions
}

#[test]
fn a_trial_takes_a_quarter_of_what_is_free() {
    let trial = |quota, window_ns| vec![Action::Trial { class: ClassId(1), quota, window_ns }];
    // 1 of 4 ms at 1 µs; class 1 has waited longest. 1,000 hits at 5,000/s take 0.2 s.
    assert_eq!(trial_of(5_000.0, 1_000.0, 4e6), trial(1_000, S / 5));
    assert_eq!(trial_of(100.0, 1_000.0, 4e6), trial(1_000, S), "the longest");
    assert_eq!(trial_of(0.0, 1_000.0, 4e6), trial(1_000, S), "nobody knows its rate");
    assert_eq!(trial_of(1e6, 1_000.0, 4e6), trial(1_000, S / 50), "the shortest");
    // Half of the bucket of 5 ms has to be free; 2 hits at least.
    assert_eq!(trial_of(5_000.0, 1_000.0, 2.5e6), trial(625, S / 8));
    assert_eq!(trial_of(5_000.0, 1_000.0, 2.49e6), []);
    assert_eq!(trial_of(5_000.0, 500_000.0, 4e6), trial(2, S / 50));
    assert_eq!(trial_of(5_000.0, 500_001.0, 4e6), []);
}

#[test]
fn a_trial_begins_when_its_pause_is_over() {
    let mut controller = controller(&[order(0, 5_000.0, 1_000.0)]);
    entry(&mut controller, 0).mode = Mode::Stopped { retry_ns: 10 * S };
    let begun = |controller: &mut Controller, now_ns| {
        let mut actions = Vec::new();
        controller.start_trial(&Tick { now_ns, tokens_ns: 5e6, ..dry(&[]) }, &mut actions);
        !actions.is_empty()
    };
    assert!(!begun(&mut controller, 10 * S - 1));
    assert!(begun(&mut controller, 10 * S));
}

/// Whether a plan is asked for because of a rate, after these ms of it.
fn rate_drifts(rate: f64, tau_ns: f64, ms: u64) -> bool {
    let mut controller = controller(&[order(0, 1_000.0, tau_ns)]);
    entry(&mut controller, 0).rate_hz = rate;
    let mut actions = Vec::new();
    for now_ns in [10 * S, 10 * S + ms * 1_000_000] {
        controller.watch_drift(&Tick { now_ns, ..dry(&[]) }, &mut actions);
    }
    let why = Cause::Rate { class: ClassId(0), rate_hz: rate, planned_hz: 1_000.0 };
    assert!(actions.is_empty() || actions == [Action::Replan { why }], "{actions:?}");
    !actions.is_empty()
}

#[test]
fn a_rate_outside_its_interval_drifts() {
    // The interval is 900 to 1,100/s, the factor 1.3: 692.3 to 1,430.
    let drifts = [690.0, 693.0, 1_000.0, 1_429.0, 1_431.0].map(|rate| rate_drifts(rate, 1_000.0, 1_001));
    assert_eq!(drifts, [true, false, false, false, true]);
    assert!(!rate_drifts(1_431.0, 1_000.0, 1_000), "for longer than a second");
    // 0.2 of 20 ms/s is the least that matters: 1,000/s more at 200 ns.
    assert!(!rate_drifts(2_000.0, 199.0, 2_000) && rate_drifts(2_000.0, 201.0, 2_000));
}

#[test]
fn a_rate_that_came_back_drifts_from_the_beginning() {
    let mut controller = controller(&[order(0, 1_000.0, 1_000.0)]);
    let mut actions = Vec::new();
    for (ms, rate) in [(0, 2_000.0), (900, 1_000.0), (1_100, 2_000.0), (2_100, 2_000.0), (2_101, 2_000.0)] {
        entry(&mut controller, 0).rate_hz = rate;
        let now_ns = 10 * S + ms * 1_000_000;
        assert_eq!(actions, [], "at {ms} ms");
        controller.watch_drift(&Tick { now_ns, ..dry(&[]) }, &mut actions);
    }
    assert_eq!(actions.len(), 1);
}

#[test]
fn drift_lasts_as_long_as_the_policy_says() {
    let config = ControllerConfig { drift_s: 2.0, ..ControllerConfig::default() };
    let asked = |drifts_ns: u64, last_plan_ns: u64| {
        let mut controller = Controller::new(config);
        controller.take_plan(last_plan_ns, &[order(0, 1_000.0, 1_000.0)], 10_000_000, 5e6);
        entry(&mut controller, 0).rate_hz = 2_000.0;
        let mut actions = Vec::new();
        for now_ns in [10 * S, 10 * S + drifts_ns] {
            controller.watch_drift(&Tick { now_ns, ..dry(&[]) }, &mut actions);
        }
        !actions.is_empty()
    };
    assert!(!asked(2 * S, 0) && asked(2 * S + 1, 0));
    // Plans lie three times as far apart.
    assert!(!asked(3 * S, 7 * S) && asked(3 * S + 1, 7 * S));
}

#[test]
fn cpu_time_that_is_used_drifts_by_half() {
    let drifts = |cpu: f64, ms: u64| {
        let mut controller = controller(&[]);
        let mut actions = Vec::new();
        for (now_ns, target_cpu) in [(9 * S, 1.0), (10 * S, cpu), (10 * S + ms * 1_000_000, cpu)] {
            controller.watch_drift(&Tick { now_ns, target_cpu, ..dry(&[]) }, &mut actions);
        }
        let why = Cause::Cpu { now: cpu.max(FLOOR_CPU_PER_S), planned: 1.0 };
        assert!(actions.is_empty() || actions == [Action::Replan { why }], "{actions:?}");
        !actions.is_empty()
    };
    let drifted = [0.01, 0.66, 0.67, 1.5, 1.51].map(|cpu| drifts(cpu, 1_001));
    assert_eq!(drifted, [true, true, false, false, true]);
    assert!(!drifts(2.0, 1_000));
}

#[test]
fn only_what_is_traced_costs() {
    let mut controller =
        controller(&[order(0, 1_000.0, 700.0), order(1, 2_000.0, 500.0), order(2, 9.0, 1.0)]);
    entry(&mut controller, 2).mode = Mode::Stopped { retry_ns: 0 };
    assert!((controller.traced_cost() - 1.7e-3).abs() < 1e-12);
    assert!(controller.is_attached(ClassId(0)) && !controller.is_attached(ClassId(2)));
    assert!(!controller.is_attached(ClassId(7)));
}

#[test]
fn the_agents_own_limit_lengthens_the_period_and_gives_it_back() {
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &[], 10_000_000, 5e6);
    let mut period = |slowdown: f64, now_ns: u64| {
        let actions = controller.tick(&Tick { now_ns, tokens_ns: 5e6, slowdown, ..dry(&[]) });
        let period = actions.iter().find_map(|a| match a {
            Action::Period { period_ns } => Some(*period_ns),
            _ => None,
        });
        (period, controller.slowed(), controller.cut_hz())
    };
    assert_eq!(period(1.0, S), (None, None, 0.0));
    assert_eq!(period(4.0, 2 * S), (Some(40_000_000), Some(Slowed::Agent), 75.0));
    assert_eq!(period(4.0, 3 * S), (None, Some(Slowed::Agent), 75.0));
    // No further than the longest period.
    assert_eq!(period(64.0, 4 * S), (Some(100_000_000), Some(Slowed::Agent), 90.0));
    assert_eq!(period(1.0, 5 * S), (Some(10_000_000), None, 0.0));
    // A new plan is slowed like the one before.
    assert_eq!(period(2.0, 6 * S).0, Some(20_000_000));
    let actions = controller.take_plan(7 * S, &[], 5_000_000, 5e6);
    assert_eq!(actions, [Action::Period { period_ns: 10_000_000 }]);
}

#[test]
fn a_run_that_only_counts_is_not_sampled_for_the_limits_sake() {
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &[], 0, 5e6);
    let actions = controller.tick(&Tick { now_ns: S, tokens_ns: 5e6, slowdown: 8.0, ..dry(&[]) });
    assert!(!actions.iter().any(|a| matches!(a, Action::Period { .. })), "{actions:?}");
    assert_eq!(controller.slowed(), None);
}

#[test]
fn bursts_come_more_rarely_where_the_agent_is_slow_and_sooner_when_it_is_not() {
    let burst = BurstOrder { quota: 100, window_ns: 1_000_000, every_ns: S, cost_ns: 1e5, duty: 0.001 };
    let mut controller = controller(&[ClassOrder {
        trace: false,
        trial: false,
        burst: Some(burst),
        ..order(0, 1_000.0, 700.0)
    }]);
    assert!(controller.most_slowdown().is_infinite());
    let next = |controller: &Controller| controller.classes[&ClassId(0)].next_burst_ns;
    controller.tick(&Tick { now_ns: S, slowdown: 64.0, ..dry(&[]) });
    controller.draw_burst(ClassId(0), S);
    let drawn = next(&controller);
    assert!((5 * S..=13 * S).contains(&drawn), "{drawn}");
    // 1 burst a second is planned, 1/8 begin.
    assert!((controller.cut_bursts_hz() - 0.875).abs() < 1e-9);
    controller.tick(&Tick { now_ns: 2 * S, slowdown: 4.0, ..dry(&[]) });
    assert_eq!(next(&controller), 2 * S + (drawn - 2 * S) / 4);
    let sooner = next(&controller);
    controller.tick(&Tick { now_ns: 2 * S, slowdown: 16.0, ..dry(&[]) });
    assert_eq!(next(&controller), 2 * S + (sooner - 2 * S) * 2);
    // A class that was stopped for its cost keeps its pause.
    controller.classes.get_mut(&ClassId(0)).unwrap().not_before_ns = sooner;
    controller.tick(&Tick { now_ns: 2 * S, slowdown: 1.0, ..dry(&[]) });
    assert_eq!(next(&controller), sooner);
    assert_eq!(controller.cut_bursts_hz(), 0.0);
}

#[test]
fn what_tokens_forbid_is_not_cut_by_the_agents_limit() {
    let mut controller = controller(&[]);
    controller.tick(&Tick { now_ns: S, slowdown: 2.0, tokens_ns: 5e6, ..dry(&[]) });
    assert!((controller.cut_hz() - 50.0).abs() < 1e-9, "{}", controller.cut_hz());
    controller.period_ns = 50_000_000;
    assert_eq!((controller.slowed(), controller.cut_hz()), (Some(Slowed::Tokens), 0.0));
}
