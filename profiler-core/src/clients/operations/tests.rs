//! Operations whose functions are hit, trip, go and come back in a world that executes orders as the agent would.

use super::*;
use crate::adapt::Adapter;
use crate::adapt::attach::Slices;
use crate::cost::{Price, Rests};
use crate::recording::ChangeKind;
use crate::recording::WindowKind;
use crate::run::order::Ending;
use crate::run::order::operations::OperationOrder;
use crate::run::suspension::Reason;
use crate::run::view::operations::{Hits, Obstacle, ScreenView};
use crate::run::view::{ClassPrices, LinkView};
use profiler_common::operation::{OperationCounters, Sums};

mod held;
mod paid;

const MS: u64 = 1_000_000;
/// Length of a turn, ns.
const TURN_NS: u64 = 10 * MS;
/// Classes of an operation.
const CLASSES: u32 = 4;
const OPEN: LinkView = LinkView::Open(WindowKind::Trace);
/// 10 ms of CPU time a second.
const GRANT: Grant = Grant {
    factor: 1.0,
    allowed: 0.01,
    allowed_in_second: 0.01,
    left_of_second_ns: f64::INFINITY,
    screened_ns: 0.0,
    bystanders: 0.01,
    suspension: Suspension::NONE,
    may_begin: true,
    agent: (1.0, 0.02),
};

/// A class in the world.
#[derive(Debug, Clone, Copy)]
struct Thing {
    link: LinkView,
    /// Its quota, and hits so far.
    quota: u64,
    hits: u64,
    /// Hits in a turn while it is open.
    hz: u64,
    /// Its library is mapped.
    is_here: bool,
    is_refused: bool,
    span_ns: (u64, u64),
}

/// A world with one operation, or several, each with a begin and an end, and functions inside.
struct World {
    client: Operations,
    view: View,
    grant: Grant,
    inner: Vec<Thing>,
    bounds: Vec<Thing>,
    /// Recording is on in the kernel, by operation.
    recording: Vec<bool>,
    /// Inner functions have used up quotas so often, and so many of these are mended; `None`: something is missing.
    losses: u64,
    mended: Option<u64>,
    counts: Vec<Vec<OperationCounters>>,
    screens: Vec<ScreenView>,
    /// Of the last turn.
    orders: Vec<Order>,
    wants: Wants,
    said: Vec<String>,
}

fn settings(policy: PolicyKind) -> Settings {
    Settings {
        config: AdaptConfig::default(),
        policy,
        budget: OverheadBudget::Share(0.0125),
        tracepoint_ns: 100.0,
        attach_s: 10e-6,
        record_own_ns: 500.0,
        has_steps: false,
    }
}

fn followed(name: &str, number: u32, bound_by: BoundBy, policy: PolicyKind) -> Followed {
    let adapter = Adapter::new(policy, AdaptConfig::default(), None).unwrap();
    let classes = number * CLASSES..(number + 1) * CLASSES;
    Followed { name: name.to_owned(), bound_by, classes, adapter, screen_ns: 2_000.0 }
}

fn thing() -> Thing {
    Thing { link: LinkView::Off, quota: 0, hits: 0, hz: 0, is_here: true, is_refused: false, span_ns: (0, 0) }
}

impl World {
    /// So many operations with a begin and an end each, and so many functions inside. The last of these makes a measure.
    fn new(operations: u32, inner: u32) -> Self {
        let mut client = Operations::new(settings(PolicyKind::Full), 0);
        let named = |id: u32, role: Role| OperationClass { id: ClassId(id), name: format!("f{id}"), role };
        for number in 0..operations {
            let bounds = [false, true]
                .map(|ends| named(2 * number + u32::from(ends), Role::Bound { operation: number, ends }));
            let name = format!("op{number}");
            let followed = followed(&name, number, BoundBy::Functions, PolicyKind::Full);
            client.follow(followed, bounds.to_vec(), 0);
        }
        let role = |i| Role::Inner { measures: i + 1 == inner };
        client.look_inside((0..inner).map(|i| named(100 + i, role(i))).collect());
        Self {
            client,
            view: View::default(),
            grant: GRANT,
            inner: vec![thing(); inner as usize],
            bounds: vec![thing(); 2 * operations as usize],
            recording: vec![false; operations as usize],
            losses: 0,
            mended: Some(0),
            counts: vec![vec![OperationCounters::default(); 2]; operations as usize],
            screens: Vec::new(),
            orders: Vec::new(),
            wants: Wants::default(),
            said: Vec::new(),
        }
    }

    /// The same, of which everything is attached.
    fn begun(operations: u32, inner: u32) -> Self {
        let mut world = Self::new(operations, inner);
        world.turns(5);
        assert!(world.client.begun && world.is_recorded(), "{:?}", world.orders);
        world
    }

    fn now(&self) -> u64 {
        self.view.now_ns
    }

    fn is_recorded(&self) -> bool {
        self.recording.iter().all(|on| *on)
    }

    fn thing(&mut self, id: ClassId) -> &mut Thing {
        match id.0.checked_sub(100) {
            Some(i) => &mut self.inner[i as usize],
            None => &mut self.bounds[id.0 as usize],
        }
    }

    fn turns(&mut self, n: usize) {
        for _ in 0..n {
            self.turn();
        }
    }

    /// Links are made, classes are hit and trip; then the client has its turn, and its orders are executed.
    fn turn(&mut self) {
        self.view.now_ns += TURN_NS;
        self.make_links();
        self.hit();
        self.see();
        self.wants = self.client.wants(&self.view);
        self.see_more();
        self.tell(Input::Turn);
        if self.client.is_revision_due(self.now()) {
            let mut orders = std::mem::take(&mut self.orders);
            self.wants = Wants { hits: true, counts: true };
            for input in [Input::Revise, Input::Turn] {
                self.see();
                self.see_more();
                self.tell(input);
                orders.append(&mut self.orders);
            }
            self.orders = orders;
        }
    }

    fn tell(&mut self, input: Input) {
        let mut orders = Vec::new();
        self.client.step(input, &self.grant, &self.view, &mut orders);
        for order in &orders {
            self.execute(order);
        }
        self.orders = orders;
    }

    fn make_links(&mut self) {
        let now = self.now();
        let mut missed = Vec::new();
        let ids = (0..self.bounds.len() as u32).chain(100..100 + self.inner.len() as u32).map(ClassId);
        for id in ids {
            let thing = self.thing(id);
            match thing.link {
                LinkView::Waiting if thing.is_here => (thing.link, thing.span_ns) = (OPEN, (now, now)),
                LinkView::Waiting => {
                    thing.link = LinkView::Off;
                    missed.push(id);
                }
                _ => {}
            }
        }
        for class in missed {
            let opened = Err(NotOpened::Unmapped);
            self.tell(Input::Outcome(Outcome { number: 0, class, purpose: Purpose::Operation, opened }));
        }
    }

    /// An inner function that uses up its quota also makes the kernel record nothing.
    fn hit(&mut self) {
        let now = self.now();
        let mut tripped = Vec::new();
        let first_inner = self.bounds.len();
        for (i, thing) in self.bounds.iter_mut().chain(&mut self.inner).enumerate() {
            if thing.link != OPEN {
                continue;
            }
            let taken = thing.hz.min(thing.quota);
            thing.hits += taken;
            thing.quota -= taken;
            thing.span_ns.1 = now;
            if taken < thing.hz {
                thing.link = LinkView::Off;
                let inner = i.checked_sub(first_inner);
                self.losses += u64::from(inner.is_some());
                tripped.push(inner.map_or(ClassId(i as u32), |i| ClassId(100 + i as u32)));
            }
        }
        for id in tripped {
            self.tell(Input::Tripped(id));
        }
    }

    /// The kernel records nothing.
    fn lacks_details(&self) -> bool {
        self.mended != Some(self.losses)
    }

    /// What is cheap to see.
    fn see(&mut self) {
        let see = |id: u32, thing: &Thing| OperationClassView {
            id: ClassId(id),
            link: thing.link,
            is_draining: false,
            obstacle: Obstacle { refused: thing.is_refused, ..Obstacle::default() },
            span_ns: thing.span_ns,
            left: i64::try_from(thing.quota).unwrap(),
            hits: Hits::default(),
            exit: crate::class::ExitMode::None,
            prices: ClassPrices {
                hit: Price::fixed(1_000.0),
                exit: Price::fixed(0.0),
                cold: Price::fixed(0.0),
                stamps: Price::fixed(0.0),
                rests: Rests::default(),
            },
        };
        let seen = &mut self.view.operations;
        seen.bounds = (0..).zip(&self.bounds).map(|(id, thing)| see(id, thing)).collect();
        seen.inner = (100..).zip(&self.inner).map(|(id, thing)| see(id, thing)).collect();
        seen.lacks_details = self.mended != Some(self.losses);
        seen.losses = self.losses;
        seen.has_hits = false;
        seen.counts.clear();
        seen.screens.clone_from(&self.screens);
        self.view.target.own_cpu = 1.0;
    }

    /// What the client asks for.
    fn see_more(&mut self) {
        let seen = &mut self.view.operations;
        if self.wants.hits {
            let things = self.bounds.iter().chain(&self.inner);
            for (class, thing) in seen.bounds.iter_mut().chain(&mut seen.inner).zip(things) {
                class.hits.begins = thing.hits;
            }
            seen.has_hits = true;
        }
        if self.wants.counts {
            seen.counts.clone_from(&self.counts);
        }
    }

    fn execute(&mut self, order: &Order) {
        match order {
            Order::Open { class, quota, .. } => {
                let (class, quota) = (*class, *quota);
                assert_eq!(self.thing(class).link, LinkView::Off);
                *self.thing(class) = Thing { link: LinkView::Waiting, quota, ..*self.thing(class) };
            }
            Order::Close(class, _) => self.thing(*class).link = LinkView::Off,
            Order::Quota(class, hits) => {
                assert!(self.thing(*class).link.is_there() || self.thing(*class).link == LinkView::Waiting);
                self.thing(*class).quota = *hits;
            }
            Order::Note(text) => self.said.push(text.clone()),
            Order::Operation(OperationOrder::Monitor { operation, on }) => {
                self.recording[*operation as usize] = *on;
            }
            Order::Operation(OperationOrder::DetailsBack { losses }) => self.mended = Some(*losses),
            Order::Operation(OperationOrder::DetailsLost) => self.mended = None,
            Order::Operation(OperationOrder::Refuse(id, _)) => self.thing(*id).is_refused = true,
            Order::Operation(OperationOrder::Allow(id)) => self.thing(*id).is_refused = false,
            _ => {}
        }
    }

    /// Classes that the last turn asked for.
    fn asked(&self) -> Vec<u32> {
        let id = |order: &Order| match order {
            Order::Open { class, .. } => Some(class.0),
            _ => None,
        };
        self.orders.iter().filter_map(id).collect()
    }

    /// What the classes may take by their quotas, ns.
    fn granted_ns(&self) -> f64 {
        let things = self.bounds.iter().chain(&self.inner);
        things.filter(|t| t.link != LinkView::Off).map(|t| t.quota as f64 * 1e3).sum()
    }
}

/// `n` operations of 1 ms each, of which `recorded` were recorded at 2 us each.
fn counted(n: u64, recorded: u64) -> OperationCounters {
    let sums = |n: u64| Sums { n, sum: n * MS, squares_low: 0, squares_high: n * ((MS * MS) >> 32) };
    OperationCounters {
        recorded,
        not_drawn: n - recorded,
        population: sums(n),
        sample: sums(recorded),
        cost_ns: 2_000 * recorded,
        ..OperationCounters::default()
    }
}
