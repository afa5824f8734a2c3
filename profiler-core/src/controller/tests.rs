use super::*;
use crate::burst::BurstOrder;
use crate::ledger::Ledger;
use crate::recording::Charge;
use crate::units::OverheadBudget;

mod corridor;
mod decisions;
mod shares;
mod values;
mod windows;

const TICK_NS: u64 = 100_000_000;

/// A target with one CPU's worth of load whose classes run at given rates; the kernel's quota is obeyed hit by hit,
/// with a governor that lets `EXTRA` hits through after a trip.
struct Sim {
    controller: Controller,
    ledger: Ledger,
    now_ns: u64,
    tau_ns: f64,
    rates: Vec<f64>,
    /// (quota, attached) per class.
    links: Vec<(u64, bool)>,
    sample_period_ns: u64,
    actions: usize,
    attaches: usize,
    bursts: usize,
    target_cpu: f64,
}

const EXTRA: u64 = 50;
const SAMPLE_NS: f64 = 14_000.0;

impl Sim {
    fn new(budget: f64, tau_ns: f64, orders: &[ClassOrder], rates: Vec<f64>) -> Self {
        let mut controller = Controller::new(ControllerConfig::default());
        let mut ledger = Ledger::new(OverheadBudget::Share(budget), 0);
        ledger.close_interval(TICK_NS, TICK_NS);
        let links = vec![(0, false); rates.len()];
        let tokens = ledger.available_ns();
        let first = controller.take_plan(TICK_NS, orders, 10_000_000, tokens);
        let mut sim = Self {
            controller,
            ledger,
            now_ns: TICK_NS,
            tau_ns,
            rates,
            links,
            sample_period_ns: 10_000_000,
            actions: 0,
            attaches: 0,
            bursts: 0,
            target_cpu: 1.0,
        };
        sim.apply(first);
        sim
    }

    fn apply(&mut self, actions: Vec<Action>) {
        for action in actions {
            if let Action::Trial { class, .. } = action {
                self.controller.opened(class, self.now_ns);
            }
            match action {
                Action::Trace { class, quota }
                | Action::Trial { class, quota, .. }
                | Action::Burst { class, quota, .. } => {
                    let link = &mut self.links[class.0 as usize];
                    self.attaches += usize::from(!link.1);
                    *link = (quota, true);
                }
                Action::Detach { class, .. } => self.links[class.0 as usize].1 = false,
                Action::Quota { class, hits } => self.links[class.0 as usize].0 = hits,
                Action::Period { period_ns } => self.sample_period_ns = period_ns,
                Action::Replan { .. } => self.actions += 1,
                Action::Resumed { class } => assert!(self.links[class.0 as usize].1),
            }
        }
    }

    fn step(&mut self) {
        self.now_ns += TICK_NS;
        let mut hits = Vec::new();
        for (i, rate) in self.rates.iter().enumerate() {
            let class = ClassId(i as u32);
            if !self.links[i].1 {
                continue;
            }
            let mut seen = (rate * TICK_NS as f64 * 1e-9) as u64;
            if seen >= self.links[i].0 {
                let until_trip = self.links[i].0 as f64 / rate;
                seen = self.links[i].0 + EXTRA;
                self.links[i].1 = false;
                self.bursts += usize::from(self.controller.window_ended(
                    class,
                    self.now_ns,
                    seen,
                    (until_trip * 1e9) as u64,
                    true,
                ));
            } else {
                self.links[i].0 -= seen;
            }
            hits.push((class, seen));
            self.ledger.charge(Charge::Traced, Some(class), seen, seen as f64 * self.tau_ns);
        }
        let samples = TICK_NS / self.sample_period_ns.max(1);
        let sample_cost = samples as f64 * SAMPLE_NS;
        self.ledger.charge(Charge::Samples, None, samples, sample_cost);
        let charged: f64 = hits.iter().map(|h| h.1 as f64 * self.tau_ns).sum::<f64>() + sample_cost;
        self.ledger.close_interval(self.now_ns, TICK_NS + charged as u64);
        let bucket = self.ledger.bucket();
        let tick = Tick {
            now_ns: self.now_ns,
            elapsed_ns: TICK_NS,
            tokens_ns: bucket.available_ns() - bucket.debt_ns(),
            capacity_ns: bucket.capacity_ns(),
            reserved_ns: 0.0,
            income: bucket.rate(),
            spent: charged / TICK_NS as f64,
            other_cost: sample_cost / TICK_NS as f64,
            sample_cost: sample_cost / TICK_NS as f64,
            sampling_hz: 1e9 / self.sample_period_ns as f64,
            hits: &hits,
            target_cpu: self.target_cpu,
            slowdown: 1.0,
        };
        let actions = self.controller.tick(&tick);
        self.apply(actions);
    }
}

pub(super) fn order(class: u32, rate: f64, tau_ns: f64) -> ClassOrder {
    ClassOrder {
        class: ClassId(class),
        tau_ns,
        weight: 1.0,
        rate_hz: (rate * 0.9, rate, rate * 1.1),
        rho: 0.0,
        must: false,
        named: false,
        trace: true,
        trial: true,
        burst: None,
    }
}

#[test]
fn steady_classes_within_the_plan_are_never_stopped() {
    let rates = vec![10.0, 1_000.0, 10_000.0];
    let orders: Vec<_> = rates.iter().enumerate().map(|(i, r)| order(i as u32, *r, 700.0)).collect();
    let mut sim = Sim::new(0.02, 700.0, &orders, rates);
    for _ in 0..600 {
        sim.step();
        assert!(sim.links.iter().all(|l| l.1), "a steady class was stopped");
    }
    assert_eq!((sim.attaches, sim.actions), (3, 0));
    assert!(sim.ledger.predicted() < 0.02, "{}", sim.ledger.predicted());
}

#[test]
fn an_exploding_class_costs_at_most_the_bucket_and_the_budget_holds() {
    let orders = [order(0, 10.0, 700.0), order(1, 100.0, 700.0)];
    let mut sim = Sim::new(0.02, 700.0, &orders, vec![10.0, 100.0]);
    for _ in 0..20 {
        sim.step();
    }
    sim.rates[0] = 1e7;
    for _ in 0..580 {
        sim.step();
        assert!(sim.links[1].1, "the quiet class was stopped for the loud one's sake");
    }
    assert!(sim.ledger.predicted() <= 0.02, "{}", sim.ledger.predicted());
    assert!(sim.ledger.worst_second() <= 0.02 * 1.25 + 0.001, "{}", sim.ledger.worst_second());
    // Pauses double: 2, 4, 8, 16, 32 s make at most six tries in a minute.
    assert!(sim.attaches <= 2 + 6, "{} attaches", sim.attaches);
}

#[test]
fn a_class_that_calms_down_is_traced_again() {
    let orders = [order(0, 10.0, 700.0)];
    let mut sim = Sim::new(0.02, 700.0, &orders, vec![10.0]);
    sim.rates[0] = 1e7;
    for _ in 0..10 {
        sim.step();
    }
    assert!(!sim.links[0].1);
    sim.rates[0] = 10.0;
    for _ in 0..200 {
        sim.step();
    }
    assert!(sim.links[0].1, "never traced again");
}

#[test]
fn when_the_ledger_runs_dry_the_least_valuable_class_goes_first_and_must_trace_last() {
    let mut cheap = order(0, 5_000.0, 700.0);
    cheap.weight = 5.0;
    let dull = ClassOrder { weight: 0.1, ..order(1, 5_000.0, 700.0) };
    let must = ClassOrder { must: true, weight: 0.01, ..order(2, 5_000.0, 700.0) };
    let mut sim = Sim::new(0.02, 700.0, &[cheap, dull, must], vec![5_000.0; 3]);
    // The load grows slowly, below the breaker: 5,000 -> 15,000 calls/s each, 1.05 % -> 3.15 %.
    let mut gone = Vec::new();
    for _ in 0..200 {
        for rate in &mut sim.rates {
            *rate = (*rate * 1.01).min(15_000.0);
        }
        sim.step();
        for (i, link) in sim.links.iter().enumerate() {
            if !link.1 && !gone.contains(&i) {
                gone.push(i);
            }
        }
    }
    assert_eq!(gone.first(), Some(&1), "{gone:?}");
    assert!(!gone.contains(&2), "must-trace was stopped although others were left: {gone:?}");
    assert!(sim.ledger.predicted() <= 0.0205, "{}", sim.ledger.predicted());
}

#[test]
fn drift_asks_for_a_new_plan_and_not_twice_in_a_row() {
    let mut sim = Sim::new(0.02, 700.0, &[order(0, 1_000.0, 700.0)], vec![1_000.0]);
    for _ in 0..50 {
        sim.step();
    }
    assert_eq!(sim.actions, 0);
    sim.rates[0] = 1_900.0;
    for _ in 0..25 {
        sim.step();
    }
    assert_eq!(sim.actions, 1, "one re-plan in 2.5 s of drift");
}

#[test]
fn a_target_that_uses_more_cpu_time_is_planned_for_anew() {
    let mut sim = Sim::new(0.5, 700.0, &[order(0, 1_000.0, 700.0)], vec![1_000.0]);
    for _ in 0..50 {
        sim.step();
    }
    // Sixteen threads begin to work; the budget grows with them.
    sim.target_cpu = 1.4;
    for _ in 0..50 {
        sim.step();
    }
    assert_eq!(sim.actions, 0, "within the factor");
    sim.target_cpu = 16.0;
    for _ in 0..25 {
        sim.step();
    }
    assert_eq!(sim.actions, 1);
}

#[test]
fn seasonal_load_holds_the_budget() {
    let rates = vec![100.0, 2_000.0, 8_000.0];
    let orders: Vec<_> = rates.iter().enumerate().map(|(i, r)| order(i as u32, *r, 700.0)).collect();
    let mut sim = Sim::new(0.01, 700.0, &orders, rates.clone());
    for t in 0..900 {
        let swing = if (t / 30) % 2 == 0 { 1.0 } else { 100.0 };
        for (rate, base) in sim.rates.iter_mut().zip(&rates) {
            *rate = base * swing;
        }
        sim.step();
    }
    assert!(sim.ledger.predicted() <= 0.0105, "{}", sim.ledger.predicted());
}

#[test]
fn bursts_of_the_plan_come_at_random_times_and_within_the_budget() {
    let hot = ClassOrder {
        trace: false,
        trial: false,
        burst: Some(BurstOrder {
            quota: 2_000,
            window_ns: 20_000_000,
            every_ns: 1_000_000_000,
            cost_ns: 1.6e6,
            duty: 0.002,
        }),
        ..order(0, 1e6, 700.0)
    };
    let steady = order(1, 5_000.0, 700.0);
    let mut sim = Sim::new(0.02, 700.0, &[hot, steady], vec![1e6, 5_000.0]);
    for _ in 0..600 {
        sim.step();
        assert!(sim.links[1].1, "a traced class was stopped for the sake of bursts");
    }
    // One a second on average, for a minute; a burst may wait for tokens.
    assert!((45..=65).contains(&sim.bursts), "{} bursts", sim.bursts);
    // A quarter of the budget is used: that alone asks, ever more rarely.
    assert!(sim.actions <= 2, "bursts asked for {} new plans", sim.actions);
    assert!(sim.ledger.predicted() <= 0.02, "{}", sim.ledger.predicted());
}

#[test]
fn bursts_of_named_functions_are_the_last_to_come_more_rarely() {
    let burst = BurstOrder { quota: 100, window_ns: 1, every_ns: 1_000_000_000, cost_ns: 1e3, duty: 0.1 };
    let of = |class: u32, named: bool| ClassOrder {
        trace: false,
        trial: false,
        named,
        burst: Some(burst),
        ..order(class, 1e6, 700.0)
    };
    let slowed = |orders: &[ClassOrder]| {
        let mut controller = Controller::new(ControllerConfig::default());
        controller.take_plan(0, orders, 10_000_000, 0.0);
        controller.slowdown = 16.0;
        controller.planned_bursts_hz().collect::<Vec<_>>()
    };
    assert_eq!(slowed(&[of(0, false), of(1, true)]), [(1.0, 4.0), (1.0, 2.0)]);
    // Nothing else can come more rarely.
    assert_eq!(slowed(&[of(1, true)]), [(1.0, 4.0)]);
}

#[test]
fn bursts_wait_when_there_are_no_tokens_and_are_not_left_out() {
    let burst = BurstOrder { quota: 100, window_ns: 1, every_ns: 200_000_000, cost_ns: 1e6, duty: 0.1 };
    let order = ClassOrder { trace: false, trial: false, burst: Some(burst), ..order(0, 1e6, 700.0) };
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &[order], 10_000_000, 0.0);
    let mut tick = Tick { now_ns: 0, sampling_hz: 100.0, ..dry(&[]) };
    for _ in 0..20 {
        tick.now_ns += TICK_NS;
        assert_eq!(controller.tick(&tick), [], "a burst without tokens");
    }
    tick.tokens_ns = 5e6;
    tick.now_ns += TICK_NS;
    assert_eq!(controller.tick(&tick), [Action::Burst { class: ClassId(0), quota: 100, window_ns: 1 }]);
    // The breaker took its link while it was being opened: that says nothing of its rate.
    assert!(controller.window_ended(ClassId(0), tick.now_ns, 0, 0, true));
    assert_eq!(controller.rate_hz(ClassId(0)), Some(1e6));
}

#[test]
fn a_thread_that_loses_too_much_is_relieved_of_what_is_worth_least() {
    use crate::ledger::ThreadOver;
    let dull = ClassOrder { weight: 0.1, ..order(1, 5_000.0, 700.0) };
    let orders = [order(0, 5_000.0, 700.0), dull, order(2, 5_000.0, 700.0)];
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &orders, 10_000_000, 5e6);
    let classes = vec![(ClassId(0), 0.0035), (ClassId(1), 0.0035)];
    let over = ThreadOver { tid: 7, overhead: 0.07, excess: 0.003, allowed: 0.004, classes };
    let actions = controller.relieve(10_000_000_000, 100.0, std::slice::from_ref(&over));
    assert_eq!(
        actions,
        [
            Action::Detach { class: ClassId(1), reason: DetachReason::Thread },
            Action::Replan { why: Cause::Thread { overhead: 0.07 } }
        ]
    );
    assert!(!controller.is_attached(ClassId(1)) && controller.is_attached(ClassId(0)));
    // The new plan looks at it in bursts: it comes back with the first, not before its pause is over.
    let burst = BurstOrder { quota: 100, window_ns: 1, every_ns: 200_000_000, cost_ns: 1e3, duty: 0.1 };
    let narrowed = ClassOrder { trace: false, trial: false, burst: Some(burst), ..dull };
    controller.take_plan(10_100_000_000, &[orders[0], narrowed, orders[2]], 10_000_000, 5e6);
    let mut tick = Tick { now_ns: 10_100_000_000, tokens_ns: 5e6, sampling_hz: 100.0, ..dry(&[]) };
    let mut begun = Vec::new();
    while tick.now_ns < 13_000_000_000 {
        tick.now_ns += TICK_NS;
        let actions = controller.tick(&tick);
        if actions.iter().any(|a| matches!(a, Action::Burst { class: ClassId(1), .. })) {
            begun.push(tick.now_ns);
        }
    }
    assert_eq!(begun, [12_000_000_000], "the pause after the first stop is 2 s");
}

#[test]
fn quiet_classes_stay_when_the_tokens_run_out_and_ask_for_no_plan() {
    // 50 that are called once a second or so, one that matters; attaching took more than comes in.
    let mut orders: Vec<ClassOrder> = (0..50).map(|i| order(i, 1.0, 700.0)).collect();
    orders.push(order(50, 10_000.0, 700.0));
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &orders, 0, 5e6);
    let hits: Vec<(ClassId, u64)> = (0..50).map(|i| (ClassId(i), 0)).chain([(ClassId(50), 1_000)]).collect();
    let mut tick = Tick { now_ns: 0, tokens_ns: -1e6, other_cost: 0.03, ..dry(&hits) };
    let mut taken_off = Vec::new();
    // The quiet ones are not called for 8 s: their rates have left every interval.
    for _ in 0..80 {
        tick.now_ns += TICK_NS;
        for action in controller.tick(&tick) {
            match action {
                Action::Detach { class, .. } => taken_off.push(class),
                Action::Replan { why } => panic!("{why:?}"),
                _ => {}
            }
        }
    }
    assert_eq!(taken_off, [ClassId(50)]);
}

/// A tick without tokens and with nothing else to pay for; the budget is 2 % of a CPU.
pub(super) fn dry(hits: &[(ClassId, u64)]) -> Tick<'_> {
    Tick {
        now_ns: 10_000_000_000,
        elapsed_ns: TICK_NS,
        tokens_ns: 0.0,
        capacity_ns: 5e6,
        reserved_ns: 0.0,
        income: 0.02,
        spent: 0.0,
        other_cost: 0.0,
        sample_cost: 0.0,
        sampling_hz: 0.0,
        hits,
        target_cpu: 1.0,
        slowdown: 1.0,
    }
}

/// Classes that actions take off, and whether they ask for a plan.
fn taken_off(actions: &[Action]) -> (Vec<u32>, bool) {
    let class = |a: &Action| match a {
        Action::Detach { class, reason: DetachReason::OverBudget } => Some(class.0),
        _ => None,
    };
    (actions.iter().filter_map(class).collect(), actions.iter().any(|a| matches!(a, Action::Replan { .. })))
}

#[test]
fn many_small_classes_that_all_rise_are_relieved_and_ask_for_a_plan() {
    // 300 at 0.3 % of the income each rise to 0.9 %: none has drifted by 1 % of it, together they take 2.7 times of it.
    let rate = 0.003 * 0.02 / 700e-9;
    for must in [false, true] {
        let orders: Vec<_> = (0..300).map(|i| ClassOrder { must, ..order(i, rate, 700.0) }).collect();
        let mut sim = Sim::new(0.02, 700.0, &orders, vec![rate; 300]);
        for _ in 0..30 {
            sim.step();
        }
        assert_eq!(sim.links.iter().filter(|l| l.1).count(), 300, "must: {must}");
        assert_eq!(sim.actions, 0);
        sim.rates = vec![3.0 * rate; 300];
        for _ in 0..600 {
            sim.step();
        }
        assert!(sim.actions >= 1, "no plan was asked for; must: {must}");
        let predicted = sim.ledger.predicted();
        assert!(predicted <= 0.0205, "{predicted}; must: {must}");
        let traced = sim.links.iter().filter(|l| l.1).count();
        assert!(traced >= 60, "{traced} are left; must: {must}");
    }
}

#[test]
fn what_is_spent_in_sum_asks_for_a_plan_while_there_are_tokens() {
    let rate = 0.003 * 0.02 / 700e-9;
    let orders: Vec<_> = (0..300).map(|i| order(i, rate, 700.0)).collect();
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &orders, 0, 5e6);
    let hits: Vec<(ClassId, u64)> = (0..300).map(|i| (ClassId(i), (0.3 * rate) as u64)).collect();
    let mut tick = Tick { tokens_ns: 5e6, ..dry(&hits) };
    let mut asked = Vec::new();
    for _ in 0..25 {
        tick.now_ns += TICK_NS;
        asked.extend(controller.tick(&tick).into_iter().filter(|a| matches!(a, Action::Replan { .. })));
    }
    assert!(matches!(asked[..], [Action::Replan { why: Cause::Spend { .. } }]), "{asked:?}");
}

#[test]
fn what_the_user_demands_stays_while_something_else_would_do() {
    // A dear class that is demanded, and 40 optional ones of 5 % of the income each, below a tenth of the excess.
    let mut orders = vec![ClassOrder { must: true, ..order(0, 0.9 * 0.02 / 700e-9, 700.0) }];
    orders.extend((1..41).map(|i| order(i, 0.05 * 0.02 / 700e-9, 700.0)));
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &orders, 0, 5e6);
    let (gone, plan) = taken_off(&controller.tick(&dry(&[])));
    assert!(!gone.contains(&0) && (38..=39).contains(&gone.len()) && plan, "{gone:?}, plan: {plan}");
    // Alone it still costs too much: now it goes.
    let mut tick = Tick { other_cost: 0.02, ..dry(&[]) };
    tick.now_ns += TICK_NS;
    assert!(taken_off(&controller.tick(&tick)).0.contains(&0));
}

#[test]
fn nothing_is_taken_off_a_thread_for_what_switches_take() {
    use crate::ledger::ThreadOver;
    let orders = [order(0, 5_000.0, 700.0), order(1, 100.0, 700.0)];
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &orders, 10_000_000, 5e6);
    // An event loop: it may lose 4 ms/s, switches alone take 15; hits of planned classes take 2.
    let classes = vec![(ClassId(0), 0.0015), (ClassId(1), 0.0005), (ClassId(9), 0.001)];
    let mut over = ThreadOver { tid: 7, overhead: 0.18, excess: 0.014, allowed: 0.004, classes };
    assert_eq!(controller.relieve(10_000_000_000, 100.0, std::slice::from_ref(&over)), []);
    // Planned classes that are too much by themselves are held to the limit all the same.
    (over.classes[0].1, over.excess) = (0.005, 0.0175);
    let actions = controller.relieve(10_000_000_000, 100.0, std::slice::from_ref(&over));
    let gone =
        actions.iter().filter(|a| matches!(a, Action::Detach { reason: DetachReason::Thread, .. })).count();
    assert!(gone >= 1 && actions.iter().any(|a| matches!(a, Action::Replan { .. })), "{actions:?}");
}
