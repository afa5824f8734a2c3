//! A target that works all the time on one CPU, with links that take turns to come and go, and the checks that hold in every turn.

use super::super::*;
use crate::recording::WindowKind;
use crate::run::view::{ClassTraits, ClassView, LinkView, plain_class};
use crate::stats::sim;
use rand::rngs::StdRng;
use std::collections::BTreeMap;

/// A turn of the loop, ns.
pub const TURN_NS: u64 = 10_000_000;
/// Turns that a link takes to be made or closed.
const LINK_TURNS: u64 = 3;
/// CPU time of a unit of work, ns.
const UNIT_NS: f64 = 100_000.0;
/// What each class and what samples cost, as a share.
pub const EACH: f64 = 0.005;
/// Classes of the plan; the metric's comes after them, and then one of operations.
pub const PLANNED: u32 = 3;
pub const METRIC: ClassId = ClassId(PLANNED);
pub const BOUND: ClassId = ClassId(PLANNED + 1);

/// Links of a class.
struct Link {
    state: LinkView,
    since: u64,
    quota: u64,
}

/// What holds up a comparison.
#[derive(Default)]
pub struct Trouble {
    pub survey: bool,
    pub storm: bool,
    pub rearm: bool,
    /// The opener has other work: no link is made.
    pub busy: bool,
    /// Links do not go.
    pub stuck: bool,
    /// The target cannot be read.
    pub unread: bool,
    /// The metric makes no progress.
    pub stands: bool,
}

/// The target and the comparison of it.
pub struct Sim {
    pub client: Overhead,
    pub now: u64,
    pub turns: u64,
    pub trouble: Trouble,
    /// What the agent predicts.
    pub compared: f64,
    /// What threads wait more for each other while something is attached.
    pub prices: f64,
    pub waits: f64,
    pub paused: bool,
    pub orders: Vec<Order>,
    /// Closed for a window off, with their quotas.
    pub closed: BTreeMap<ClassId, u64>,
    links: Vec<Link>,
    progress: f64,
    cpu_ns: f64,
    random: StdRng,
}

pub fn subject() -> Subject {
    Subject { name: "calls of step".to_owned(), is_counted: true, classes: vec![METRIC], choices: None }
}

impl Sim {
    pub fn new(seed: u64) -> Self {
        let now = 3_600_000_000_000;
        let link =
            |id| Link { state: LinkView::Open(WindowKind::Trace), since: 0, quota: 1_000 + u64::from(id) };
        Self {
            client: Overhead::new(subject(), now, seed),
            now,
            turns: 0,
            trouble: Trouble::default(),
            compared: 0.02,
            prices: 1.0,
            waits: 0.0,
            paused: false,
            orders: Vec::new(),
            closed: BTreeMap::new(),
            links: (0..=BOUND.0).map(link).collect(),
            progress: 0.0,
            cpu_ns: 0.0,
            random: sim::rng(seed + 1),
        }
    }

    /// What is attached costs time; the metric and the bound of operations cost it in windows of both kinds.
    fn work(&mut self) {
        let costs = |link: &Link| matches!(link.state, LinkView::Open(_) | LinkView::Closing(_));
        let open = self.links[..PLANNED as usize].iter().filter(|link| costs(link)).count();
        let overhead = EACH * (open as f64 + f64::from(u8::from(!self.paused)));
        let waits = if open > 0 { self.waits } else { 0.0 };
        let cpu_ns = TURN_NS as f64 / (1.0 + waits);
        let noise = (0.01 * sim::normal(&mut self.random)).exp();
        self.cpu_ns += cpu_ns;
        if !self.trouble.stands {
            self.progress += cpu_ns / (UNIT_NS * (1.0 + overhead) * noise);
        }
    }

    fn links_move(&mut self) {
        let may_attach = !self.client.is_off();
        let Trouble { busy, stuck, .. } = self.trouble;
        for link in &mut self.links {
            let old = self.turns >= link.since + LINK_TURNS;
            let next = match link.state {
                LinkView::Waiting if may_attach => LinkView::Opening,
                LinkView::Opening if old && !busy => LinkView::Open(WindowKind::Trace),
                LinkView::Closing(_) if old && !stuck => LinkView::Off,
                _ => continue,
            };
            (link.state, link.since) = (next, self.turns);
        }
    }

    pub fn close(&mut self, id: ClassId) -> bool {
        let link = &mut self.links[id.0 as usize];
        let LinkView::Open(kind) = link.state else { return false };
        (link.state, link.since) = (LinkView::Closing(kind), self.turns);
        true
    }

    /// As far as it is off.
    pub fn open(&mut self, id: ClassId, quota: u64) {
        let link = &mut self.links[id.0 as usize];
        if link.state == LinkView::Off {
            *link = Link { state: LinkView::Waiting, since: self.turns, quota };
        }
    }

    /// Everything is attached, or on its way.
    pub fn open_all(&mut self) {
        for id in 0..=BOUND.0 {
            self.open(ClassId(id), 1_000 + u64::from(id));
        }
    }

    /// All links are made anew, as the agent does it.
    pub fn close_all(&mut self) {
        self.client.void(self.now);
        for id in 0..=BOUND.0 {
            self.close(ClassId(id));
        }
    }

    pub fn is_off(&self, id: ClassId) -> bool {
        self.links[id.0 as usize].state == LinkView::Off
    }

    pub fn is_open(&self, id: ClassId) -> bool {
        matches!(self.links[id.0 as usize].state, LinkView::Open(_))
    }

    fn view(&self) -> View {
        let class = |(id, link): (u32, &Link)| {
            let class = plain_class(id, 1_000.0);
            ClassView {
                link: link.state,
                quota: if link.state.is_there() { link.quota } else { 0 },
                traits: ClassTraits { named: true, apart: id >= PLANNED, ..class.traits },
                ..class
            }
        };
        let mut view = View {
            now_ns: self.now,
            classes: (0..).zip(&self.links).map(class).collect(),
            ..View::default()
        };
        view.target.own_cpu = 1.0;
        view
    }

    fn suspension(&self) -> Suspension {
        Suspension::NONE
            .with(Reason::Comparison, self.client.is_off())
            .with(Reason::ForkStorm, self.trouble.storm)
            .with(Reason::Rearm, self.trouble.rearm)
    }

    pub fn account(&self) -> LedgerSummary {
        LedgerSummary {
            own_cpu_ns: self.cpu_ns,
            metric_ns: 0.001 * self.cpu_ns,
            compared: self.compared,
            predicted: self.compared * self.prices,
        }
    }

    fn read(&self, wanted: Wanted) -> Option<Reading> {
        let (progress, cpu_ns) = (self.progress as u64, self.cpu_ns as u64);
        match wanted {
            _ if self.trouble.unread => None,
            Wanted::Nothing | Wanted::View => None,
            Wanted::Counts => Some(Reading::Counts { cpu_ns, counts: vec![progress] }),
            Wanted::Mark => Some(Reading::Mark(Mark { progress, cpu_ns, time_ns: self.now })),
        }
    }

    /// One turn of the loop.
    pub fn turn(&mut self) {
        self.turns += 1;
        self.now += TURN_NS;
        self.work();
        self.links_move();
        let suspension = self.suspension();
        let wanted = self.client.wants(self.now, !self.trouble.survey, suspension);
        let input = Input {
            running: !self.trouble.survey,
            suspension,
            reading: self.read(wanted),
            staying: vec![BOUND],
            account: self.account(),
            end_ns: None,
            attach_s: 50e-6,
        };
        let mut orders = Vec::new();
        let before = self.client.comparisons.len();
        self.client.step(input, &Grant { allowed: 0.02, churn: 0.002 }, &self.view(), &mut orders);
        if wanted == Wanted::Nothing {
            assert!(orders.is_empty() && self.client.comparisons.len() == before);
        }
        self.execute(orders);
        self.check();
    }

    pub fn execute(&mut self, orders: Vec<Order>) {
        for order in &orders {
            match order {
                Order::Close(METRIC, _) => {
                    assert!(self.client.is_over());
                    self.close(METRIC);
                }
                Order::Close(id, ending) => {
                    assert_eq!(*ending, Ending::Drain);
                    let quota = self.links[id.0 as usize].quota;
                    assert!(*id != BOUND && self.close(*id), "{id:?}");
                    assert_eq!(self.closed.insert(*id, quota), None);
                }
                Order::Restore(quotas) => {
                    assert!(!self.client.is_off(), "opened while everything is to be off");
                    let all: BTreeMap<_, _> = quotas.iter().copied().collect();
                    assert_eq!(all, std::mem::take(&mut self.closed), "all that was closed, with its quota");
                    quotas.iter().for_each(|(id, quota)| self.open(*id, *quota));
                }
                Order::PauseSampling => assert!(!std::mem::replace(&mut self.paused, true)),
                Order::ResumeSampling => assert!(std::mem::replace(&mut self.paused, false)),
                Order::HoldOperations
                | Order::Prices(_)
                | Order::CutBudget(_)
                | Order::Replan(_)
                | Order::Note(_)
                | Order::Detail(_)
                | Order::NotObserved(..) => {}
                other => panic!("{other:?}"),
            }
        }
        self.orders.extend(orders);
    }

    /// Samples pause and classes wait to come back while everything is off, and at no other time; then nothing is attached.
    fn check(&self) {
        assert_eq!(self.paused, self.client.is_off(), "{:?}", self.client.state);
        if self.client.is_off() {
            let open = self.links[..PLANNED as usize]
                .iter()
                .filter(|l| matches!(l.state, LinkView::Open(_) | LinkView::Opening | LinkView::Waiting));
            assert_eq!(open.count(), 0, "{:?}", self.client.state);
        } else {
            assert!(self.closed.is_empty());
        }
    }

    pub fn run_s(&mut self, s: f64) {
        (0..(s * 1e9 / TURN_NS as f64) as u64).for_each(|_| self.turn());
    }

    /// Until the comparison is in this state; the pilot takes 2 s.
    pub fn until(&mut self, state: &str) {
        for _ in 0..20_000 {
            if self.state() == state {
                return;
            }
            self.turn();
        }
        panic!("never {state}, but {:?}", self.client.state);
    }

    /// Name of the state.
    pub fn state(&self) -> String {
        let text = format!("{:?}", self.client.state);
        text.split(' ').next().unwrap_or_default().to_owned()
    }

    pub fn comparisons(&self) -> usize {
        self.client.comparisons.len()
    }
}
