use super::*;
use crate::ledger::Ledger;
use crate::run::suspension::Reason;
use crate::run::view::{ClassTraits, LinkView, plain_class};
use crate::units::OverheadBudget;

/// A turn of the loop, ns.
const TURN_NS: u64 = 10_000_000;
/// Turns in an interval of the ledger.
const INTERVAL: u64 = 10;
/// Price of a hit, ns.
const HIT_NS: f64 = 1_000.0;

/// A target on two CPUs whose metric is a function that is called `rate_hz` times a second; its quota is obeyed hit by hit.
struct Sim {
    counting: Counting,
    ledger: Ledger,
    view: View,
    suspension: Suspension,
    refused: Vec<(ClassId, String)>,
    rate_hz: f64,
    own_cpu: f64,
    admitted: u64,
    turns: u64,
    opened: Vec<u64>,
    failure: Option<String>,
}

const ID: ClassId = ClassId(0);

fn class() -> ClassView {
    let class = plain_class(ID.0, HIT_NS);
    ClassView { traits: ClassTraits { named: true, apart: true, ..class.traits }, ..class }
}

impl Sim {
    fn new(rate_hz: f64, own_cpu: f64) -> Self {
        let mut view = View { now_ns: 1_000_000_000, classes: vec![class()], ..View::default() };
        view.target.own_cpu = own_cpu;
        Self {
            counting: Counting::new("calls of step".to_owned(), vec![ID], None),
            ledger: Ledger::new(OverheadBudget::Share(0.02), view.now_ns),
            view,
            suspension: Suspension::NONE,
            refused: Vec::new(),
            rate_hz,
            own_cpu,
            admitted: 0,
            turns: 0,
            opened: Vec::new(),
            failure: None,
        }
    }

    /// Hits of one turn: as many as the quota lets in.
    fn hit(&mut self) {
        let class = &mut self.view.classes[0];
        if !class.is_open() {
            return;
        }
        let wanted = (self.rate_hz * TURN_NS as f64 * 1e-9) as u64;
        let hits = wanted.min(class.quota);
        class.quota -= hits;
        self.admitted += hits;
        self.counting.note_cost(hits as f64 * HIT_NS);
        self.ledger.charge(crate::recording::Charge::Progress, None, hits, hits as f64 * HIT_NS);
        if class.quota == 0 {
            class.link = LinkView::Off;
            self.counting.note_trip(ID);
        }
    }

    fn turn(&mut self) {
        self.turns += 1;
        self.view.now_ns += TURN_NS;
        self.hit();
        if self.turns.is_multiple_of(INTERVAL) {
            let elapsed_ns = INTERVAL * TURN_NS;
            let used_ns = self.own_cpu * elapsed_ns as f64;
            self.counting.close_interval(elapsed_ns, used_ns, None, 0.0);
            self.ledger.close_interval(self.view.now_ns, used_ns as u64);
        }
        let reads = self.counting.reads_classes(&self.view);
        let input = Input {
            suspension: self.suspension,
            most_cpu: 2.0,
            admitted: reads.into_iter().map(|id| (id, self.admitted)).collect(),
            refused: self.refused.clone(),
            ..Input::default()
        };
        let left_ns = self.ledger.left_of_second_ns(self.ledger.allowed(self.own_cpu));
        let grant = Grant { bucket: self.ledger.bucket().clone(), left_ns, bystanders: 0.02 };
        let mut orders = Vec::new();
        self.counting.step(input, &grant, &self.view, &mut orders);
        for order in orders {
            match order {
                Order::Open { class: ID, kind: WindowKind::Trace, quota, purpose: Purpose::Metric } => {
                    assert!(self.view.class(ID).may_open());
                    assert!(self.suspension.may_ask() && self.suspension.may_restore());
                    self.view.classes[0].link = LinkView::Open(WindowKind::Trace);
                    self.view.classes[0].quota = quota;
                    self.opened.push(quota);
                }
                Order::Quota(ID, quota) => {
                    assert!(self.view.class(ID).is_open());
                    self.view.classes[0].quota = quota;
                }
                other => panic!("{other:?}"),
            }
        }
        self.failure = self.counting.take_failure();
    }

    /// Until it is given up, for so many turns at most.
    fn run(&mut self, turns: usize) -> Option<&str> {
        for _ in 0..turns {
            self.turn();
            if self.failure.is_some() {
                break;
            }
        }
        self.failure.as_deref()
    }
}

#[test]
fn a_metric_within_its_share_goes_on_and_claims_what_it_costs() {
    // 1,000 calls of 1 us: half of a tenth of 2 % of a CPU.
    let mut sim = Sim::new(1_000.0, 1.0);
    assert_eq!(sim.run(1_000), None);
    assert_eq!(sim.opened.len(), 1);
    assert!((sim.counting.claim() - 0.001).abs() < 1e-5, "{}", sim.counting.claim());
    assert!((sim.counting.own_ns() - 10e6).abs() < 0.1e6, "{}", sim.counting.own_ns());
}

#[test]
fn a_metric_that_becomes_too_expensive_is_given_up_in_words() {
    let mut sim = Sim::new(1_000.0, 1.0);
    assert_eq!(sim.run(500), None);
    // Twice its share: at first the quiet past counts.
    sim.rate_hz = 4_000.0;
    let begun = sim.turns;
    let why = sim.run(1_000).unwrap().to_owned();
    assert!(why.starts_with("counting calls of step costs 0.2"), "{why}");
    assert!(why.contains("more than a tenth of the budget; name a rarer event"), "{why}");
    assert!((50..200).contains(&(sim.turns - begun)), "{}", sim.turns - begun);
}

#[test]
fn a_cut_budget_cuts_the_metrics_share() {
    let mut sim = Sim::new(1_000.0, 1.0);
    assert_eq!(sim.run(500), None);
    sim.ledger.cut_budget(3.0);
    let why = sim.run(100).unwrap();
    assert!(why.contains("more than a tenth of the budget (cut 3.0 times)"), "{why}");
}

#[test]
fn the_breaker_ends_a_metric_that_explodes() {
    let mut sim = Sim::new(1_000.0, 1.0);
    assert_eq!(sim.run(500), None);
    sim.rate_hz = 1e7;
    let why = sim.run(10).unwrap().to_owned();
    assert!(why.contains("calls of step"), "{why}");
    assert!(
        why.starts_with("the breaker stopped") || why.starts_with("counting calls of step costs"),
        "{why}"
    );
    // A full quota and no more: 2,000 hits.
    assert!(sim.admitted <= 5_000 + 2_000, "{}", sim.admitted);
}

#[test]
fn what_others_close_is_opened_again_with_what_is_left_of_its_quota() {
    let mut sim = Sim::new(1_000.0, 1.0);
    assert_eq!(sim.run(500), None);
    let full = sim.opened[0];
    sim.view.classes[0].link = LinkView::Closing(WindowKind::Trace);
    assert_eq!(sim.run(5), None);
    assert_eq!(sim.opened.len(), 1, "links are still there");
    sim.view.classes[0].link = LinkView::Off;
    sim.suspension = Suspension::NONE.with(Reason::Rearm, true);
    assert_eq!(sim.run(5), None);
    sim.suspension = Suspension::NONE.with(Reason::ForkStorm, true);
    assert_eq!(sim.run(5), None);
    assert_eq!(sim.opened.len(), 1, "nothing is asked for");
    sim.suspension = Suspension::NONE;
    assert_eq!(sim.run(1), None);
    assert_eq!(sim.opened.len(), 2);
    assert!(sim.opened[1] <= full, "{:?}", sim.opened);
}

#[test]
fn a_target_that_has_not_run_gets_no_quota() {
    let mut sim = Sim::new(0.0, 0.0);
    assert_eq!(sim.run(10), None);
    assert!(sim.opened.is_empty());
}

#[test]
fn what_cannot_be_attached_cannot_be_counted() {
    let mut sim = Sim::new(1_000.0, 1.0);
    sim.view.classes[0].traits.refused = true;
    sim.refused = vec![(ID, "its code was patched".to_owned())];
    assert_eq!(sim.run(1), Some("calls of step cannot be counted: its code was patched"));
    assert!(sim.opened.is_empty());
}

#[test]
fn quotas_are_renewed_every_tenth_of_a_second_and_after_a_clock_that_went_back() {
    let mut sim = Sim::new(1_000.0, 1.0);
    let mut renewed = 0;
    for _ in 0..100 {
        sim.view.classes[0].quota = sim.view.classes[0].quota.min(1_999);
        let before = sim.view.classes[0].quota;
        sim.turn();
        renewed += usize::from(sim.view.classes[0].quota > before);
    }
    assert!((8..=12).contains(&renewed), "{renewed}");
    sim.view.now_ns -= 900_000_000;
    sim.view.classes[0].quota = 1;
    sim.rate_hz = 0.0;
    sim.turn();
    assert!(sim.view.classes[0].quota > 100, "{}", sim.view.classes[0].quota);
}

/// Steps with a probe of the kernel that has counted so much for the target.
fn probe_step(counting: &mut Counting, counted: u64, left_ns: f64) -> Option<String> {
    let mut ledger = Ledger::new(OverheadBudget::Share(0.02), 0);
    ledger.close_interval(TURN_NS, TURN_NS);
    let probed = counting.reads_probe().then_some(counted);
    let input = Input { most_cpu: 1.0, probed, probe_ns: 70.0, ..Input::default() };
    let grant = Grant { bucket: ledger.bucket().clone(), left_ns, bystanders: 0.02 };
    let mut orders = Vec::new();
    counting.step(input, &grant, &View::default(), &mut orders);
    assert!(orders.is_empty());
    counting.take_failure()
}

#[test]
fn the_probe_is_charged_for_what_is_new_and_a_trial_that_spends_the_second_ends() {
    let mut counting =
        Counting::new("system calls".to_owned(), Vec::new(), Some(ProbeHits { own: 5, others: 7 }));
    let now = ProbeHits { own: 105, others: 57 };
    let new = counting.close_interval(100_000_000, 1e8, Some(now), 70.0);
    assert_eq!(new, ProbeHits { own: 100, others: 50 });
    assert!((counting.own_ns() - 7_000.0).abs() < 1e-6);
    assert_eq!(counting.close_interval(100_000_000, 1e8, Some(now), 70.0), ProbeHits::default());
    counting.rename("the system call read");
    // 10 ms within an interval.
    assert_eq!(probe_step(&mut counting, 105 + 142_857, 20e6), None);
    let why = probe_step(&mut counting, 105 + 142_857, 8e6).unwrap();
    assert!(why.starts_with("counting the system call read took 10.0 ms within 0.3 s"), "{why}");
    // Once it is judged by its cost, nothing is read between.
    for _ in 0..5 {
        counting.close_interval(100_000_000, 1e8, Some(now), 70.0);
    }
    assert!(!counting.reads_probe());
    assert_eq!(probe_step(&mut counting, u64::MAX, 0.0), None);
}

#[test]
fn other_processes_pay_little_or_it_ends() {
    let mut counting =
        Counting::new("the tracepoint tick".to_owned(), Vec::new(), Some(ProbeHits::default()));
    let mut others = 0;
    let failed = (0..10).find_map(|_| {
        others += 50_000;
        counting.close_interval(100_000_000, 1e8, Some(ProbeHits { own: 0, others }), 70.0);
        probe_step(&mut counting, 0, 20e6)
    });
    let why = failed.unwrap();
    assert_eq!(
        why,
        "counting the tracepoint tick takes 3.5 % of a CPU from other processes; name a variable or a function with --progress"
    );
    assert_eq!(counting.claim(), 0.0, "the target pays nothing");
}
