//! Budget that is left, and threads that lose too much, at values worked out by hand.

use super::*;
use crate::ledger::ThreadOver;

const S: u64 = 1_000_000_000;

/// Class 0 is traced; class 1 is not, and would take `rate` calls a second of 1 µs.
fn with_candidate(rate: f64, change: impl Fn(&mut ClassOrder)) -> Controller {
    let mut candidate = ClassOrder { trace: false, trial: false, ..order(1, rate, 1_000.0) };
    change(&mut candidate);
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &[order(0, 1e3, 1_000.0), candidate], 0, 5e6);
    controller
}

/// Whether a plan is asked for after `seconds` in which so much of 20 ms/s was spent, with so many tokens.
fn asked(controller: &mut Controller, seconds: u64, spent: f64, tokens_ns: f64) -> bool {
    let mut actions = Vec::new();
    for i in 1..=seconds {
        let tick = Tick { now_ns: (100 + i) * S, elapsed_ns: S, spent, tokens_ns, ..dry(&[]) };
        controller.use_what_is_left(&tick, &mut actions);
    }
    matches!(actions[..], [Action::Replan { why: Cause::Unspent { .. } }])
}

#[test]
fn what_is_left_is_judged_after_four_seconds() {
    let judge =
        |seconds, spent, tokens_ns| asked(&mut with_candidate(1e3, |_| {}), seconds, spent, tokens_ns);
    assert!(!judge(3, 0.01, 5e6) && judge(4, 0.01, 5e6));
    // 88 % of what came in is enough.
    assert!(judge(4, 0.0175, 5e6) && !judge(4, 0.0177, 5e6));
    // A bucket that is less than half full has nothing to give.
    assert!(judge(4, 0.01, 2.5e6) && !judge(4, 0.01, 2.49e6));
}

#[test]
fn only_what_could_be_bought_is_worth_a_plan() {
    let buys =
        |rate: f64, change: fn(&mut ClassOrder)| asked(&mut with_candidate(rate, change), 4, 0.01, 5e6);
    // 10 of 20 ms/s are left.
    assert!(buys(9_999.0, |_| {}) && !buys(10_001.0, |_| {}));
    assert!(!buys(0.0, |_| {}), "it is never called");
    assert!(!buys(1e3, |order| order.trace = true), "it is traced");
    // Sampling says more of it than its calls would.
    let mut sampled = with_candidate(1e3, |order| order.rho = 11.0);
    let mut actions = Vec::new();
    for i in 1..=4 {
        let now_ns = (100 + i) * S;
        let tick =
            Tick { now_ns, elapsed_ns: S, spent: 0.01, tokens_ns: 5e6, sampling_hz: 100.0, ..dry(&[]) };
        sampled.use_what_is_left(&tick, &mut actions);
    }
    assert_eq!(actions, []);
    // In a trial, or a burst, it is being bought.
    let mut tried = with_candidate(1e3, |_| {});
    let mode = Mode::Trial { until_ns: 900 * S, window_ns: S, open: true };
    tried.classes.get_mut(&ClassId(1)).expect("a class").mode = mode;
    assert!(!asked(&mut tried, 4, 0.01, 5e6));
    let mut stopped = with_candidate(1e3, |_| {});
    stopped.classes.get_mut(&ClassId(1)).expect("a class").mode = Mode::Stopped { retry_ns: 900 * S };
    assert!(asked(&mut stopped, 4, 0.01, 5e6));
}

#[test]
fn a_plan_that_was_made_in_vain_is_judged_half_as_often() {
    let mut controller = with_candidate(1e3, |_| {});
    let mut times = Vec::new();
    for i in 1..=300 {
        let tick = Tick { now_ns: (100 + i) * S, elapsed_ns: S, spent: 0.01, tokens_ns: 5e6, ..dry(&[]) };
        let mut actions = Vec::new();
        controller.use_what_is_left(&tick, &mut actions);
        if !actions.is_empty() {
            times.push(i);
        }
    }
    assert_eq!(times, [4, 12, 28, 60, 124, 188, 252]);
    assert_eq!(controller.shares(), PlanShares::MOST);
    controller.spending.overspent();
    assert_eq!(controller.shares(), PlanShares::FIRST);
    // The target is another one: as at the beginning, once what runs was judged anew.
    controller.spending.begin_anew();
    controller.spending.restart();
    controller.last_plan_ns = 0;
    assert!(asked(&mut controller, 4, 0.01, 5e6));
}

/// A thread of which classes 0, 1, ... take so much, and which loses `excess` more than the `allowed`.
fn over(excess: f64, allowed: f64, costs: &[f64]) -> ThreadOver {
    let classes = (0u32..).map(ClassId).zip(costs.iter().copied()).collect();
    ThreadOver { tid: 7, overhead: 0.1, excess, allowed, classes }
}

/// What is taken off of three traced classes, of which the last gives least, for such a thread; and whether a plan is asked for.
fn relieved(over: &[ThreadOver], change: impl Fn(&mut Controller)) -> (Vec<u32>, bool) {
    let orders: Vec<ClassOrder> = [3.0, 2.0, 1.0]
        .into_iter()
        .zip(0u32..)
        .map(|(weight, id)| ClassOrder { weight, ..order(id, 1e3, 1_000.0) })
        .collect();
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &orders, 0, 5e6);
    change(&mut controller);
    let actions = controller.relieve(10 * S, 0.0, over);
    let off = |action: &Action| match action {
        Action::Detach { class, reason: DetachReason::Thread } => {
            assert_eq!(controller.classes[class].mode, Mode::Stopped { retry_ns: 12 * S });
            Some(class.0)
        }
        _ => None,
    };
    (actions.iter().filter_map(off).collect(), actions.iter().any(|a| matches!(a, Action::Replan { .. })))
}

#[test]
fn what_gives_least_is_taken_off_a_thread_until_the_rest_fits() {
    let of = |excess, allowed, costs: &[f64]| relieved(&[over(excess, allowed, costs)], |_| {});
    let costs = [0.004, 0.003, 0.002];
    assert_eq!(of(0.0019, 0.001, &costs), (vec![2], true));
    assert_eq!(of(0.0021, 0.001, &costs), (vec![2, 1], true));
    assert_eq!(of(0.0051, 0.001, &costs), (vec![2, 1, 0], true));
    // More than all of them take: they are held to the limit by themselves.
    assert_eq!(of(0.0091, 0.0071, &costs), (vec![2], true));
    assert_eq!(of(0.0091, 0.0069, &costs), (vec![2, 1], true));
    assert_eq!(of(0.0091, 0.0091, &costs), (vec![], false));
    assert_eq!(of(0.0, 0.001, &costs), (vec![], false));
}

#[test]
fn what_is_not_attached_takes_nothing_from_a_thread() {
    let thread = [over(0.0021, 0.001, &[0.004, 0.003, 0.002])];
    let stop = |controller: &mut Controller| {
        controller.classes.get_mut(&ClassId(2)).expect("a class").mode = Mode::Sampled;
    };
    assert_eq!(relieved(&thread, stop), (vec![1], true));
}

#[test]
fn bursts_wait_a_second_where_a_thread_lost_too_much() {
    let burst = BurstOrder { quota: 100, window_ns: 1, every_ns: S, cost_ns: 1e3, duty: 0.1 };
    for (next_ns, after_ns) in [(10 * S, 11 * S), (12 * S, 12 * S)] {
        let sampled = ClassOrder { trace: false, trial: false, burst: Some(burst), ..order(0, 1e3, 1_000.0) };
        let mut controller = Controller::new(ControllerConfig::default());
        controller.take_plan(0, &[sampled], 0, 5e6);
        controller.classes.get_mut(&ClassId(0)).expect("a class").next_burst_ns = next_ns;
        let actions = controller.relieve(10 * S, 0.0, &[over(0.01, 0.001, &[0.011])]);
        assert_eq!(actions, [Action::Replan { why: Cause::Thread { overhead: 0.1 } }]);
        assert_eq!(controller.classes[&ClassId(0)].next_burst_ns, after_ns);
    }
}
