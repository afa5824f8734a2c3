//! Operations of a simulated target: what the kernel side decides and counts of them, and what their client sees.
//!
//! ```text
//! hits of begins, ends, inner functions ─► ran_operations ─► counters ─► View ─► client ─► OperationOrder ─► operate
//! ```
//! An operation begins and ends in one slice. It is counted where all of its bounds are attached and have quotas. It is recorded where
//! recording is on, no inner function has used up its quota, its class is drawn, and the quota pays for it.

use super::state::{Class, LinkState, Links, State};
use super::target::{Attachable, Part};
use super::world::{START_NS, World};
use profiler_common::operation::{OperationCounters, Sums};
use profiler_core::adapt::decision::threshold;
use profiler_core::adapt::spending::record_own_ns;
use profiler_core::adapt::{AdaptConfig, Adapter};
use profiler_core::class::{ClassId, ExitMode, RecordKind, SiteClass};
use profiler_core::clients::operations::{
    BoundBy, Followed, OperationClass, Operations as Client, Role, Settings,
};
use profiler_core::cost::CostModel;
use profiler_core::engine::OperationsLook;
use profiler_core::run::links;
use profiler_core::run::order::operations::OperationOrder;
use profiler_core::run::view::operations::{Hits, Obstacle, OperationClassView};
use profiler_core::run::view::{ClassPrices, View};
use std::collections::BTreeMap;

/// Classes of each operation: its own, and `(other)`.
const CLASSES: u32 = 2;
/// Response time of an operation, ns: from, to.
const DURATION_NS: (f64, f64) = (0.5e6, 1.5e6);
/// Something is missing for so long at most while all inner functions are attached and recording is on, ns.
const LACKING_NS: u64 = 4_000_000_000;
/// Bounds of one operation are all attached or none by then, ns.
const PAIRED_NS: u64 = 3_000_000_000;

/// What the kernel is told of one operation.
#[derive(Debug, Clone, Default)]
struct One {
    is_on: bool,
    /// It is recorded if a random 32-bit number is below; expected price of recording, ns.
    threshold: u64,
    price_ns: u64,
    /// What recording may still cost, ns.
    quota_ns: u64,
    counts: OperationCounters,
    /// Since when some of its bounds are attached and some are off, ktime ns.
    torn_since_ns: Option<u64>,
}

/// The kernel's side of operations.
#[derive(Debug, Clone, Default)]
pub struct Operations {
    list: Vec<One>,
    /// So often inner functions have used up quotas, and so many of these losses are mended; `None`: inner functions are about to go. Nothing is
    /// recorded while the two differ.
    losses: u64,
    mended: Option<u64>,
    /// Since when something is missing although all inner functions are attached and recording is on, ktime ns.
    lacking_since_ns: Option<u64>,
    /// Price of recording one beside its inner calls, ns.
    own_ns: f64,
    /// Windows of classes that are over, ktime ns.
    pub spans: BTreeMap<ClassId, (u64, u64)>,
    /// Recorded so far.
    pub recorded: u64,
}

impl Operations {
    fn lacks_details(&self) -> bool {
        self.mended != Some(self.losses)
    }
}

/// Hits of a class in a slice.
#[derive(Debug, Clone, Copy)]
pub struct SliceHits {
    /// Its part.
    pub part: Part,
    /// Those that were let in.
    pub kept: u64,
    /// Those that were turned away.
    pub away: u64,
    /// The last of the quota was taken.
    pub is_used_up: bool,
}

fn sums(n: u64, ns: u64) -> Sums {
    let square = u128::from(ns) * u128::from(ns);
    let low = (square & 0xFFFF_FFFF) as u64;
    Sums { n, sum: n * ns, squares_low: n * low, squares_high: n * (square >> 32) as u64 }
}

impl World {
    /// Classes for what operations need, and their client; `None`: none is followed.
    #[must_use]
    pub fn follow_operations(&mut self) -> Option<Client> {
        let policy = self.scenario.watch.policy?;
        let functions = &self.scenario.target.functions;
        let parts: Vec<(usize, Part)> =
            functions.iter().enumerate().filter_map(|(i, f)| Some((i, f.part?))).collect();
        let numbers = parts.iter().filter_map(|(_, part)| part.operation()).max()? + 1;
        let own_ns = record_own_ns(self.prices.hit_price(SiteClass::Push, RecordKind::Count).ns);
        let config = AdaptConfig { attach_share: !self.scenario.watch.slow_links, ..AdaptConfig::default() };
        let mut client = Client::new(self.operation_settings(&config, own_ns), START_NS);
        let mut classes = Vec::new();
        for (function, part) in parts {
            let id = ClassId(self.classes.len() as u32);
            let credit = self.chance.exponential();
            self.classes.push(Class::new(function, credit));
            classes.push((id, part, function));
        }
        let functions = &self.scenario.target.functions;
        let named = |id: ClassId, role: Role| OperationClass { id, name: format!("f{}", id.0), role };
        for operation in 0..numbers {
            let mut bounds: Vec<(bool, OperationClass, f64)> = Vec::new();
            for (id, part, function) in &classes {
                let ends = *part == Part::End(operation);
                if ends || *part == Part::Begin(operation) {
                    let f = &functions[*function];
                    let class = named(*id, Role::Bound { operation, ends });
                    bounds.push((ends, class, f.hit_ns + f.exit_ns));
                }
            }
            bounds.sort_by_key(|(ends, ..)| *ends);
            let Ok(adapter) = Adapter::new(policy, config.clone(), None) else { continue };
            // As the agent begins: nobody knows what recording costs.
            let threshold = threshold(adapter.orders().default.rate);
            self.operations.list.push(One { threshold, ..One::default() });
            let followed = Followed {
                name: format!("op{operation}"),
                bound_by: BoundBy::Functions,
                classes: operation * CLASSES..(operation + 1) * CLASSES,
                screen_ns: bounds.iter().map(|(.., ns)| ns).sum(),
                adapter,
            };
            client.follow(followed, bounds.into_iter().map(|(_, class, _)| class).collect(), START_NS);
        }
        let inner = classes.iter().filter(|(_, part, _)| *part == Part::Inner);
        client.look_inside(inner.map(|(id, ..)| named(*id, Role::Inner { measures: false })).collect());
        self.operations.mended = Some(0);
        self.operations.own_ns = own_ns;
        Some(client)
    }

    fn operation_settings(&self, config: &AdaptConfig, record_own_ns: f64) -> Settings {
        let prices: &CostModel = &self.prices;
        Settings {
            config: config.clone(),
            policy: self.scenario.watch.policy.unwrap_or(profiler_core::adapt::PolicyKind::None),
            budget: self.scenario.watch.budget,
            tracepoint_ns: prices.tracepoint.ns,
            attach_s: prices.attach.seconds(),
            record_own_ns,
            has_steps: false,
        }
    }

    /// What a class is to operations.
    #[must_use]
    pub fn role_of(&self, class: &Class) -> links::Role {
        if self.operations.list.is_empty() {
            return links::Role::None;
        }
        match self.scenario.target.functions[class.function].part {
            None => links::Role::None,
            Some(Part::Begin(_)) => links::Role::Begin,
            Some(Part::End(_)) => links::Role::End,
            Some(Part::Inner) => links::Role::Inner,
        }
    }

    /// Operations of a slice, by the hits of their classes. Returns what recording them costs beside hits, ns at calibrated prices.
    pub fn ran_operations(&mut self, hits: &[SliceHits]) -> f64 {
        if self.operations.list.is_empty() {
            return 0.0;
        }
        let used_up = |h: &SliceHits| h.part == Part::Inner && h.is_used_up;
        self.operations.losses += u64::from(hits.iter().any(used_up));
        let off = self.inner_off();
        let is_away = hits.iter().any(|h| h.part == Part::Inner && h.away > 0);
        self.judge_lack(off.is_none());
        let mut own_ns = 0.0;
        for number in 0..self.operations.list.len() {
            let of = |wanted: Part| {
                let kept = hits.iter().filter(|h| h.part == wanted).map(|h| h.kept);
                kept.sum::<u64>()
            };
            let n = of(Part::Begin(number as u32));
            let is_paired =
                self.scenario.target.functions.iter().any(|f| f.part == Some(Part::End(number as u32)));
            let ended = if is_paired { n.min(of(Part::End(number as u32))) } else { n };
            if n == 0 {
                continue;
            }
            let ns = self.chance.between(DURATION_NS) as u64;
            let inner: u64 = hits.iter().filter(|h| h.part == Part::Inner).map(|h| h.kept).sum();
            let recorded = self.record(number, n);
            let lacks = self.operations.lacks_details();
            let one = &mut self.operations.list[number];
            one.counts.unmatched += n - ended;
            let sample = recorded.min(ended);
            add(&mut one.counts.population, sums(ended, ns));
            add(&mut one.counts.sample, sums(if lacks { 0 } else { sample }, ns));
            one.counts.dropped += recorded - sample;
            // All calls inside are those of the operations that began.
            let calls = inner * recorded / n.max(1);
            one.counts.calls += calls;
            one.counts.cost_ns += recorded * one.price_ns.max(self.operations.own_ns as u64);
            own_ns += recorded as f64 * self.operations.own_ns;
            self.operations.recorded += recorded;
            if recorded > 0
                && let Some(id) = off
            {
                self.fault(|| {
                    format!("{recorded} of operation {number} were recorded, class {id} inside is off")
                });
            }
            if recorded > 0 && !lacks && is_away {
                self.fault(|| {
                    format!("{recorded} of operation {number} were recorded, calls were turned away")
                });
            }
        }
        own_ns
    }

    /// Recording comes back: not for ever is something missing while all inner functions are attached and recording is on.
    fn judge_lack(&mut self, is_whole: bool) {
        let now_ns = self.now_ns;
        let operations = &mut self.operations;
        let is_on = operations.list.iter().any(|one| one.is_on);
        if !(is_whole && is_on && operations.lacks_details()) {
            operations.lacking_since_ns = None;
            return;
        }
        let since_ns = *operations.lacking_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) > LACKING_NS {
            operations.lacking_since_ns = None;
            self.fault(|| "nothing is recorded, although all inner functions are attached".to_owned());
        }
    }

    /// Decides on `n` operations that begin.
    fn record(&mut self, number: usize, n: u64) -> u64 {
        let lacks = self.operations.lacks_details();
        let share = self.operations.list[number].threshold as f64 / 4_294_967_296.0;
        let drawn = (n as f64 * share.min(1.0) + self.chance.unit()) as u64;
        let one = &mut self.operations.list[number];
        if !one.is_on || lacks {
            one.counts.off += n;
            return 0;
        }
        let drawn = drawn.min(n);
        let paid = one.quota_ns.checked_div(one.price_ns).map_or(drawn, |most| drawn.min(most));
        one.quota_ns -= paid * one.price_ns;
        one.counts.recorded += paid;
        one.counts.no_quota += drawn - paid;
        one.counts.not_drawn += n - drawn;
        paid
    }

    /// A function inside operations that is not attached and could be. One whose quota has taken its links off is not, whatever the agent knows.
    fn inner_off(&self) -> Option<ClassId> {
        let s = self.seconds();
        let could_be = |class: &Class| {
            let function = &self.scenario.target.functions[class.function];
            function.part == Some(Part::Inner)
                && function.is_mapped(s)
                && class.refused.is_none()
                && function.attachable == Attachable::Yes
        };
        let is_there = |id: ClassId| {
            let goes = |links: &Links| matches!(links.state, LinkState::Closing(..) | LinkState::Gone(..));
            let is_open = matches!(self.classes[id.0 as usize].state, State::Open(_));
            is_open && !self.links.iter().any(|links| links.members.contains(&id) && goes(links))
        };
        let mut ids = (0..self.classes.len()).map(|i| ClassId(i as u32));
        ids.find(|id| could_be(&self.classes[id.0 as usize]) && !is_there(*id))
    }

    /// Executes what only operations order.
    pub fn operate(&mut self, order: OperationOrder) {
        let all = &mut self.operations;
        match order {
            OperationOrder::Monitor { operation, on } => all.list[operation as usize].is_on = on,
            OperationOrder::RecordingQuota { operation, quota_ns } => {
                all.list[operation as usize].quota_ns = quota_ns;
            }
            OperationOrder::Rates(rates) => {
                for rate in rates.iter().filter(|rate| rate.class % CLASSES == 0) {
                    let one = &mut all.list[(rate.class / CLASSES) as usize];
                    (one.threshold, one.price_ns) = (rate.threshold, rate.price_ns);
                }
            }
            OperationOrder::DetailsBack { losses } => all.mended = Some(losses),
            OperationOrder::DetailsLost => all.mended = None,
            OperationOrder::Refuse(id, why) => self.classes[id.0 as usize].refused = Some(why),
            OperationOrder::Allow(id) => self.classes[id.0 as usize].refused = None,
            OperationOrder::NewGeneration(_)
            | OperationOrder::BeginCycle { .. }
            | OperationOrder::DetailsEnd
            | OperationOrder::DropScreen(_)
            | OperationOrder::TellRefused(_)
            | OperationOrder::Windows(_)
            | OperationOrder::Cycle(_) => {}
        }
    }

    /// Fills what the client sees, as the agent does.
    pub fn show_operations(&mut self, look: OperationsLook, client: &Client, view: &mut View) {
        let mut counts = matches!(look, OperationsLook::Counts | OperationsLook::Revision);
        if matches!(look, OperationsLook::Turn | OperationsLook::Revision | OperationsLook::Classes) {
            view.operations.inner = client.inner_classes().map(|id| self.operation_class(id)).collect();
            view.operations.bounds = client.bound_classes().map(|id| self.operation_class(id)).collect();
            view.operations.lacks_details = self.operations.lacks_details();
            view.operations.losses = self.operations.losses;
            view.operations.has_hits = false;
        }
        if matches!(look, OperationsLook::Turn | OperationsLook::Revision) {
            let wants = client.wants(view);
            counts |= wants.counts;
            if wants.hits || look == OperationsLook::Revision {
                let seen = &mut view.operations;
                for class in seen.inner.iter_mut().chain(&mut seen.bounds) {
                    let counters = self.classes[class.id.0 as usize].counters;
                    class.hits = Hits { begins: counters.attempted, ends: counters.ends };
                }
                seen.has_hits = true;
            }
        }
        view.operations.counts.clear();
        if counts {
            let of = |one: &One| vec![one.counts, OperationCounters::default()];
            view.operations.counts = self.operations.list.iter().map(of).collect();
        }
    }

    fn operation_class(&self, id: ClassId) -> OperationClassView {
        let seen = self.class_view(id);
        let class = &self.classes[id.0 as usize];
        let is_bound = self.scenario.target.functions[class.function].part != Some(Part::Inner);
        let (span_ns, is_open) = match class.state {
            State::Open(window) => ((window.start_ns, self.now_ns), true),
            State::Closing(window, ends) => ((window.start_ns, ends.end_ns), false),
            _ => (self.operations.spans.get(&id).copied().unwrap_or_default(), false),
        };
        let drains = |l: &super::state::Links| {
            class.state.leader() == Some(l.leader) && matches!(l.state, LinkState::Draining(_))
        };
        OperationClassView {
            id,
            link: seen.link,
            is_draining: self.links.iter().any(drains),
            obstacle: Obstacle { refused: class.refused.is_some(), ..Obstacle::default() },
            span_ns,
            left: if is_bound && is_open { class.gate as i64 } else { i64::MAX },
            hits: Hits::default(),
            exit: if seen.prices.exit.ns > 0.0 { seen.traits.exit } else { ExitMode::None },
            prices: ClassPrices { ..seen.prices },
        }
    }

    /// The bounds of each operation are all attached, or none is, after a while.
    pub fn look_at_bounds(&mut self, may: bool) {
        let (now, s) = (self.now_ns, self.seconds());
        let mut torn = None;
        for (number, one) in self.operations.list.iter_mut().enumerate() {
            let functions = &self.scenario.target.functions;
            let is_bound = |class: &&Class| {
                let function = &functions[class.function];
                function.part.and_then(Part::operation) == Some(number as u32)
            };
            let can = |class: &&Class| class.refused.is_none() && functions[class.function].is_mapped(s);
            let bounds = || self.classes.iter().filter(is_bound);
            let open = bounds().any(|class| matches!(class.state, State::Open(_)));
            let off = bounds().any(|class| class.state == State::Off);
            if !may || !open || !off || !bounds().all(|class| can(&class)) {
                one.torn_since_ns = None;
            } else if now - *one.torn_since_ns.get_or_insert(now) > PAIRED_NS {
                one.torn_since_ns = Some(now);
                torn = Some(number);
            }
        }
        if let Some(number) = torn {
            self.fault(|| format!("some bounds of operation {number} are attached, some are off"));
        }
    }
}

fn add(to: &mut Sums, more: Sums) {
    to.n += more.n;
    to.sum += more.sum;
    to.squares_low += more.squares_low;
    to.squares_high += more.squares_high;
}
