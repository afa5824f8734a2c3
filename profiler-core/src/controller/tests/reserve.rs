use super::*;
use crate::burst::BurstOrder;
use crate::class::ClassId;
use crate::controller::tests::{dry, order};
use crate::controller::{ClassOrder, ControllerConfig};
use crate::ledger::TokenBucket;
use crate::units::OverheadBudget;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const TICK_NS: u64 = 100_000_000;
const TAU_NS: f64 = 700.0;

/// A window that was granted, and what it has left.
struct Window {
    action: Action,
    class: ClassId,
    left: u64,
    opens_ns: u64,
    length_ns: u64,
}

/// A target on one CPU under a budget of 2 %. Windows are opened late, and take as much of their quotas as they like.
struct Sim {
    controller: Controller,
    bucket: TokenBucket,
    windows: Vec<Window>,
    now_ns: u64,
    random: StdRng,
    ended: usize,
}

impl Sim {
    fn new(orders: &[ClassOrder], seed: u64) -> Self {
        let mut bucket = TokenBucket::new(OverheadBudget::Share(0.02));
        for _ in 0..10 {
            bucket.accrue(TICK_NS as f64, TICK_NS as f64, 0.0);
        }
        let mut controller = Controller::new(ControllerConfig { seed, ..ControllerConfig::default() });
        controller.take_plan(TICK_NS, orders, 0, bucket.available_ns());
        let random = StdRng::seed_from_u64(seed);
        Self { controller, bucket, windows: Vec::new(), now_ns: TICK_NS, random, ended: 0 }
    }

    /// One tick. `late`: how long a window waits for its link, ns. `part`: what an open one takes of what it has left, by which part of its
    /// time is over in this tick.
    fn step(&mut self, late: impl Fn(&mut StdRng) -> u64, part: impl Fn(&mut StdRng, f64) -> f64) {
        self.now_ns += TICK_NS;
        let now_ns = self.now_ns;
        let Self { controller, bucket, windows, random, ended, .. } = self;
        windows.retain(|w| w.opens_ns < now_ns || controller.still_wants(&w.action));
        let mut hits = Vec::new();
        for w in windows.iter_mut().filter(|w| w.opens_ns < now_ns) {
            let (from, end) = (w.opens_ns.max(now_ns - TICK_NS), w.opens_ns + w.length_ns);
            let share = (now_ns.min(end) - from) as f64 / (end - from) as f64;
            let new = ((w.left as f64 * part(random, share)).round() as u64).min(w.left);
            w.left -= new;
            bucket.spend(new as f64 * TAU_NS);
            if w.left == 0 || end <= now_ns {
                controller.window_ended(w.class, now_ns, new, w.length_ns, w.left == 0);
                (w.length_ns, *ended) = (0, *ended + 1);
            } else {
                hits.push((w.class, new));
            }
        }
        windows.retain(|w| w.length_ns > 0);
        bucket.accrue(TICK_NS as f64, TICK_NS as f64, 0.0);
        let tick = Tick {
            now_ns,
            tokens_ns: bucket.available_ns() - bucket.debt_ns(),
            capacity_ns: bucket.capacity_ns(),
            income: bucket.rate(),
            ..dry(&hits)
        };
        for action in controller.tick(&tick) {
            match action {
                Action::Trial { class, quota, window_ns } | Action::Burst { class, quota, window_ns } => {
                    let opens_ns = now_ns + late(random);
                    controller.opened(class, opens_ns);
                    windows.push(Window { action, class, left: quota, opens_ns, length_ns: window_ns });
                }
                Action::Detach { class, .. } => windows.retain(|w| w.class != class),
                _ => {}
            }
        }
    }

    fn granted_ns(&self) -> f64 {
        self.windows.iter().map(|w| w.left as f64 * TAU_NS).sum()
    }
}

/// A class that is looked at in bursts that take all of their quota.
fn bursts(class: u32, quota: u64, window_ns: u64, every_ns: u64) -> ClassOrder {
    let burst = BurstOrder { quota, window_ns, every_ns, cost_ns: quota as f64 * TAU_NS, duty: 0.01 };
    ClassOrder { trace: false, trial: false, burst: Some(burst), ..order(class, 1e6, TAU_NS) }
}

#[test]
fn bursts_that_are_due_at_once_share_one_bucket() {
    // 24 of 0.92 ms each after a debt, and nothing is charged for a while: their links are being made.
    let orders: Vec<_> = (0..24).map(|i| bursts(i, 1_300, 20_000_000, 1_000_000_000)).collect();
    let mut sim = Sim::new(&orders, 1);
    sim.bucket.spend(55e6);
    for _ in 0..60 {
        sim.step(|_| u64::MAX / 2, |_, _| 1.0);
    }
    let granted = sim.granted_ns();
    // A quarter of the bucket is for what is traced; a window of 20 ms may count on 0.4 ms that come in.
    assert!(granted <= 0.75 * 5e6 + 0.4e6 && granted > 2.5e6, "{granted}");
    // Their links are there: they take all at once, and the others get their turn.
    sim.windows.iter_mut().for_each(|w| w.opens_ns = sim.now_ns);
    for _ in 0..30 {
        sim.step(|_| 0, |_, _| 1.0);
        assert_eq!(sim.bucket.debt_ns(), 0.0);
    }
    assert!(sim.ended >= 24, "{}", sim.ended);
}

/// What the other may still take is not there for one that needs tokens to begin with, however much comes in until it ends.
#[test]
fn a_long_burst_begins_with_tokens_that_no_other_was_granted() {
    let mut controller = Controller::new(ControllerConfig::default());
    let orders = [bursts(0, 2_000, 20_000_000, 1_000_000), bursts(1, 4_400, 1_000_000_000, 9_000_000)];
    controller.take_plan(0, &orders, 0, 5e6);
    let begun = |controller: &mut Controller, from: u64| -> Vec<u32> {
        let tick = |i: u64| Tick { now_ns: i * TICK_NS, tokens_ns: 5e6, ..dry(&[]) };
        let actions = (from..from + 20).flat_map(|i| controller.tick(&tick(i))).collect::<Vec<_>>();
        let class = |action: &Action| match action {
            Action::Burst { class, .. } => Some(class.0),
            _ => None,
        };
        actions.iter().filter_map(class).collect()
    };
    // 3.08 of the 3.75 ms that bursts may use, of which 1.4 are the other's; within a second 20 ms come in.
    assert_eq!(begun(&mut controller, 1), [0]);
    controller.window_ended(ClassId(0), 21 * TICK_NS, 0, 20_000_000, false);
    assert!(begun(&mut controller, 21).contains(&1));
}

#[test]
fn long_bursts_do_not_wait_for_each_other() {
    // Bursts of a second that take some 1.1 ms evenly, each 3.3 s or so: 13 of 20 ms/s, of which the bucket holds 5 ms at most.
    let orders: Vec<_> = (0..40).map(|i| bursts(i, 1_663, 1_000_000_000, 3_300_000_000)).collect();
    let mut sim = Sim::new(&orders, 2);
    for _ in 0..600 {
        sim.step(|_| 20_000_000, |_, share| 0.95 * share);
        assert_eq!(sim.bucket.debt_ns(), 0.0);
    }
    // 3.3 s and the rest of a tick, 40 of them, for 60 s.
    assert!((650..=760).contains(&sim.ended), "{}", sim.ended);
}

#[test]
fn a_trial_takes_a_quarter_of_what_bursts_have_left() {
    let mut controller = Controller::new(ControllerConfig::default());
    let trial = ClassOrder { trace: false, ..order(1, 1e6, TAU_NS) };
    controller.take_plan(0, &[bursts(0, 2_000, 20_000_000, 1_000_000), trial], 0, 5e6);
    // The burst is drawn first; the trial's pause is 2 s.
    let mut quotas = Vec::new();
    for i in 1..=30 {
        let tick = Tick { now_ns: i * TICK_NS, tokens_ns: 5e6, ..dry(&[]) };
        quotas.extend(controller.tick(&tick).into_iter().filter_map(|a| match a {
            Action::Trial { quota, .. } | Action::Burst { quota, .. } => Some(quota),
            _ => None,
        }));
    }
    // 1.4 of 5 ms are spoken for, now that the burst should be over.
    assert_eq!(quotas, [2_000, (0.25 * 3.6e6 / TAU_NS) as u64]);
}

#[test]
fn traced_classes_have_no_slack_from_what_a_burst_may_take() {
    let hits = [(ClassId(1), 100)];
    let quota_of = |reserved_ns: f64, with_burst: bool| {
        let mut controller = Controller::new(ControllerConfig::default());
        let orders = [bursts(0, 4_000, 20_000_000, 1_000_000), order(1, 1_000.0, TAU_NS)];
        controller.take_plan(0, &orders[usize::from(!with_burst)..], 0, 5e6);
        let tick = |now_ns| Tick { now_ns, tokens_ns: 5e6, reserved_ns, ..dry(&hits) };
        controller.tick(&tick(TICK_NS));
        let last = controller.tick(&tick(2 * TICK_NS));
        let quota = |a: &Action| if let Action::Quota { hits, .. } = a { Some(*hits as f64) } else { None };
        last.iter().find_map(quota).unwrap() * TAU_NS
    };
    // One class is traced: its slack is what is left of the bucket, and that of a survey's windows is not.
    let (all, less, survey) = (quota_of(0.0, false), quota_of(0.0, true), quota_of(2.8e6, false));
    assert!(all - less >= 2.8e6 - 1e3, "{all} {less}");
    assert!((less - survey).abs() < 1e5, "{less} {survey}");
}

#[test]
fn what_waited_too_long_is_not_opened_any_more() {
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &[bursts(0, 2_000, 20_000_000, 1_000_000)], 0, 5e6);
    let mut tick = Tick { now_ns: TICK_NS, tokens_ns: 5e6, ..dry(&[]) };
    let mut actions = controller.tick(&tick);
    tick.now_ns += TICK_NS;
    actions.extend(controller.tick(&tick));
    assert!(matches!(actions[..], [Action::Burst { .. }]), "{actions:?}");
    assert!(controller.still_wants(&actions[0]) && controller.held_ns(tick.now_ns) > 0.0);
    controller.lost(ClassId(0), tick.now_ns);
    assert!(!controller.still_wants(&actions[0]));
    assert_eq!(controller.held_ns(tick.now_ns), 0.0);
}

#[test]
fn a_trial_is_judged_by_what_it_saw_while_it_was_open() {
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &[order(1, 1e3, TAU_NS)], 0, 5e6);
    controller.tripped(ClassId(1), TICK_NS, 100, TICK_NS);
    let mut granted = None;
    let mut ended = None;
    for i in 2..=100 {
        let now_ns = i * TICK_NS;
        // Its link is made for half a second, in which it is not told of.
        let open = granted.is_some_and(|at| now_ns > at + 500_000_000);
        let hits = [(ClassId(1), 10)];
        let tick = Tick { now_ns, tokens_ns: 5e6, ..dry(if open { &hits } else { &[] }) };
        for action in controller.tick(&tick) {
            match action {
                Action::Trial { .. } => granted = granted.or(Some(now_ns)),
                Action::Resumed { .. } | Action::Detach { .. } => ended = ended.or(Some(now_ns)),
                _ => {}
            }
        }
        if granted.is_some_and(|at| at + 500_000_000 == now_ns) {
            controller.opened(ClassId(1), now_ns);
        }
    }
    let granted = granted.expect("it is tried after its pause");
    assert!(ended.is_some_and(|at| at > granted + 500_000_000), "granted {granted}, ended {ended:?}");
}

#[test]
fn what_is_held_back_for_other_reasons_is_not_paused_longer_and_longer() {
    // A minute; the trial's pause is 2 s at first.
    let trials = |put_off: fn(&mut Controller, ClassId, u64)| {
        let mut controller = Controller::new(ControllerConfig::default());
        controller.take_plan(0, &[ClassOrder { trace: false, ..order(1, 1e3, TAU_NS) }], 0, 5e6);
        let mut trials = 0;
        for i in 1..=600 {
            let tick = Tick { now_ns: i * TICK_NS, tokens_ns: 5e6, ..dry(&[]) };
            for action in controller.tick(&tick) {
                if let Action::Trial { class, .. } = action {
                    trials += 1;
                    put_off(&mut controller, class, tick.now_ns);
                }
            }
        }
        trials
    };
    assert!(trials(Controller::lost) <= 6);
    assert!((27..=30).contains(&trials(Controller::held_back)));
}

#[test]
fn income_backs_what_is_due_later_and_only_that() {
    let mut reserved = Reserved::default();
    reserved.add(1_000_000_000, 15e6);
    reserved.add(100_000_000, 1e6);
    // 20 ms/s come in. 4 ms of tokens: 2 + 4 - 1 at 0.1 s; at 1 s 20 + 4 - 16; at once only the tokens, less what is missing then.
    let room = |until_ns| reserved.room_ns(4e6, 0.02, 0, until_ns);
    assert_eq!((room(0), room(100_000_000), room(1_000_000_000)), (4e6, 5e6, 8e6));
    assert_eq!(reserved.held_ns(0.02, 0), 0.0);
    // 0.9 s later neither has taken anything: the first may do so at any moment, and the income of 0.1 s does not pay for the second.
    assert_eq!(reserved.held_ns(0.02, 900_000_000), 14e6);
    assert_eq!(reserved.held_ns(0.0, 0), 16e6);
    assert_eq!(reserved.within_ns(0, 5e8), 1e6 + 7.5e6);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever windows do (open late, take nothing for long and then all at once), they never take more than the tokens and what comes in
    /// until the longest of them would have been over.
    #[test]
    fn windows_never_take_more_than_was_there_for_them(
        list in prop::collection::vec((2..5_000u64, 50..3_000u64, any::<bool>()), 1..40),
        longest_ms in prop_oneof![Just(20u64), 20..1_000u64],
        late_ms in prop_oneof![Just(0u64), 0..4_000u64],
        seed in any::<u64>(),
    ) {
        let window_ns = longest_ms * 1_000_000;
        let orders: Vec<ClassOrder> = (0..)
            .zip(&list)
            .map(|(i, &(quota, every_ms, trial))| {
                let bursts = bursts(i, quota, window_ns, every_ms * 1_000_000);
                if trial { ClassOrder { trial, burst: None, ..bursts } } else { bursts }
            })
            .collect();
        let mut sim = Sim::new(&orders, seed);
        // A trial of a class that was not called lasts for a second.
        let longest_ns = if list.iter().any(|(_, _, trial)| *trial) { 1_000_000_000 } else { window_ns };
        let bound = 0.02 * longest_ns as f64 + 1.0;
        for _ in 0..150 {
            sim.step(
                |random| (random.random::<f64>() * late_ms as f64 * 1e6) as u64,
                |random, share| [0.0, share, random.random::<f64>(), 1.0][random.random_range(0..4)],
            );
            prop_assert!(sim.bucket.debt_ns() <= bound, "{} of {bound}", sim.bucket.debt_ns());
            let there = sim.bucket.available_ns() - sim.bucket.debt_ns() + bound;
            prop_assert!(sim.granted_ns() <= there, "{} of {there}", sim.granted_ns());
        }
    }
}

#[test]
fn what_windows_leave_by_hand() {
    const S: u64 = 1_000_000_000;
    let mut reserved = Reserved::default();
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a}, not {b}");
    near(reserved.room_ns(3e6, 0.001, S, 2 * S), 4e6);
    near(reserved.held_ns(0.001, S), 0.0);
    near(reserved.within_ns(S, 5e8), 0.0);
    // At 1 s: a window of 2 ms until 2 s, one of 1 ms until 4 s, one that is overdue of 0.5 ms.
    reserved.add(4 * S, 1e6);
    reserved.add(2 * S, 2e6);
    reserved.add(S / 2, 5e5);
    reserved.add(3 * S, -1.0);
    assert_eq!(reserved.0, [(S / 2, 5e5), (2 * S, 2e6), (3 * S, 0.0), (4 * S, 1e6)]);
    // With 3 ms and 1 ms/s. Until 1.5 s: 3.5 less what is overdue, but 1.5 are left at 2 s.
    near(reserved.room_ns(3e6, 0.001, S, 3 * S / 2), 1.5e6);
    // Until 2 s: the same, the window that ends with it comes first. Until 3.5 s: 5.5 - 2.5, but 2.5 at 4 s.
    near(reserved.room_ns(3e6, 0.001, S, 2 * S), 1.5e6);
    near(reserved.room_ns(3e6, 0.001, S, 7 * S / 2), 2.5e6);
    near(reserved.room_ns(3e6, 0.001, S, 5 * S), 3.5e6);
    near(reserved.room_ns(0.0, 0.001, S, 2 * S), -1.5e6);
    // So much of the bucket is spoken for.
    near(reserved.held_ns(0.001, S), 1.5e6);
    near(reserved.held_ns(0.0, S), 3.5e6);
    near(reserved.held_ns(0.003, S), 0.5e6);
    // Within half a second: half of 2 ms, a sixth of 1, all that is overdue.
    near(reserved.within_ns(S, 5e8), 1e6 + 1e6 / 6.0 + 5e5);
    near(reserved.within_ns(S, 5e9), 3.5e6);
}

#[test]
fn what_comes_in_for_windows_is_what_nobody_else_takes() {
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &[order(0, 5_000.0, 1_000.0)], 0, 0.0);
    controller.note_income(&Tick { other_cost: 0.004, ..dry(&[]) });
    assert!((controller.income_left - 0.011).abs() < 1e-12);
    controller.note_income(&Tick { other_cost: 0.019, ..dry(&[]) });
    assert_eq!(controller.income_left, 0.0);
    // Nothing is held here: tokens less what a survey may take.
    assert_eq!(controller.free_ns(&Tick { tokens_ns: 3e6, reserved_ns: 1e6, ..dry(&[]) }), 2e6);
    let entry = controller.classes.get_mut(&ClassId(0)).expect("a class");
    (entry.mode, entry.reserved_ns) = (Mode::Burst { until_ns: 0 }, 5e5);
    assert_eq!(controller.free_ns(&Tick { tokens_ns: 3e6, reserved_ns: 1e6, ..dry(&[]) }), 1.5e6);
}

#[test]
fn what_waits_is_obeyed_as_long_as_the_class_is_meant_for_it() {
    let class = ClassId(0);
    let trial = Mode::Trial { until_ns: 1, window_ns: 1, open: false };
    let actions = [
        Action::Trace { class, quota: 1 },
        Action::Trial { class, quota: 1, window_ns: 1 },
        Action::Burst { class, quota: 1, window_ns: 1 },
        Action::Quota { class, hits: 1 },
    ];
    for (mode, wanted) in [
        (Mode::Traced, [true, false, false, true]),
        (trial, [true, true, false, true]),
        (Mode::Burst { until_ns: 1 }, [false, false, true, true]),
        (Mode::Sampled, [false, false, false, true]),
        (Mode::Stopped { retry_ns: 1 }, [false, false, false, true]),
    ] {
        let mut controller = Controller::new(ControllerConfig::default());
        controller.take_plan(0, &[order(0, 1.0, 1.0)], 0, 0.0);
        controller.classes.get_mut(&class).expect("a class").mode = mode;
        assert_eq!(actions.each_ref().map(|action| controller.still_wants(action)), wanted, "{mode:?}");
    }
}
