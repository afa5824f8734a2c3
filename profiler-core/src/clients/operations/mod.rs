//! Operations: requests, queries and other units of work that are followed beside the plan: which functions bound them, which of them are
//! recorded, what is told about them.
//!
//! | module | what it decides |
//! |---|---|
//! | `operation`, `kept`, `inside` | state: of one operation, of one class, of functions inside |
//! | `moment` | what a step sees, and what it has changed |
//! | `keep` | which classes are attached, and when those come back that have used up a quota |
//! | `quotas` | hits that each class may take, from what a second leaves |
//! | `asked`, `missing` | what becomes of classes that were asked for together |
//! | `details` | whether operations are recorded: with all their calls or not at all |
//! | `window`, `revise`, `learned`, `rates` | once a revision: what was counted, what it says, what the policy orders |
//! | `share` | what each operation may cost |
//! | `cycles` | cycles of the policy, as rows |
//! | `screens`, `brake` | which screens of system calls and tracepoints are too expensive |
//! | `losses` | what is said of losses at the end |
//! | `slices` | when functions inside operations are attached, where that is for a part of the time only |
//! | `complete` | whether they can all be attached |
//! | `starvation` | what is said where they never are |
//! | `starved` | what is said where nothing can be recorded |
//!
//! Why apart from planner and controller: bounds stay attached for every operation, recorded or not, and inner functions follow the policy
//! ([`crate::adapt`]). Both keep to a share of the budget that the plan leaves alone.
//!
//! The budget of operations: screening (the bounds) comes first, then hits of inner functions outside recorded operations, which pay their
//! traps all the same; what is left records. What is too expensive is attached for a part of each second: quotas come from what a second
//! leaves ([`crate::adapt::spending`]).
//!
//! Nothing is read here: [`Operations::wants`] says what the view of the next step must hold, and what was ordered is done after the step.

mod asked;
mod brake;
mod complete;
mod cycles;
mod details;
mod inside;
mod keep;
mod kept;
mod learned;
mod losses;
mod missing;
mod moment;
mod operation;
mod quotas;
mod rates;
mod revise;
mod screens;
mod share;
mod slices;
mod starvation;
mod starved;
#[cfg(test)]
mod tests;
mod window;

pub use kept::{OperationClass, Role};
pub use operation::Followed;

use super::Client;
use crate::adapt::{AdaptConfig, PolicyKind};
use crate::class::ClassId;
use crate::recording::Charge;
use crate::run::order::{Order, Purpose};
use crate::run::outcome::{NotOpened, Outcome};
use crate::run::suspension::Suspension;
use crate::run::view::View;
use crate::run::view::operations::{OperationClassView, OperationsView, Screened};
use crate::units::OverheadBudget;
use asked::Asked;
use inside::Inside;
use kept::{KeptClass, Slot};
use moment::Moment;
use operation::Operation;
use quotas::Quotas;
use screens::Screen;

/// Operations that nearly all take less, s, are cut while the overhead is compared: about one in a hundred is lost.
const LONG_S: f64 = 0.01;

/// What bounds an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundBy {
    /// Functions and probes, which are classes.
    Functions,
    /// System calls, which one screen watches for all operations.
    Syscalls,
    /// Tracepoints, with a screen of their own.
    Tracepoints,
}

/// What holds for the whole run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The policy's.
    pub config: AdaptConfig,
    /// Which policy.
    pub policy: PolicyKind,
    /// The budget, as the user named it.
    pub budget: OverheadBudget,
    /// Price of a hit of a tracepoint, ns.
    pub tracepoint_ns: f64,
    /// Price of making or closing a link, CPU s.
    pub attach_s: f64,
    /// Price of recording an operation beside its inner calls and its words ([`OperationsView::words_ns`]), ns.
    pub record_own_ns: f64,
    /// Inner calls are recorded one by one: what is recorded costs the agent as well.
    pub has_steps: bool,
}

/// What the client is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// A turn of the loop: slices, quotas, what is attached.
    Turn,
    /// [`Operations::is_revision_due`]: the policy is asked. A turn with a view of its own comes next, so that quotas never come from hits
    /// that were read before.
    Revise,
    /// An interval of the ledger is over, of this length, ns: screens are charged and judged.
    Interval {
        /// Ns.
        elapsed_ns: u64,
    },
    /// The quota of this class has ended its window.
    Tripped(ClassId),
    /// What became of a class that was asked for.
    Outcome(Outcome),
    /// What is inside operations is about to be detached, or is: no operation is recorded, also none of those that are open.
    Hold,
    /// Modules came or went: what was left out may be there again.
    ModulesCame,
    /// The run is over; everything is detached.
    End {
        /// When, ktime ns.
        end_ns: u64,
    },
}

/// What the arbiter grants, and what holds things up.
#[derive(Debug, Clone, Copy)]
pub struct Grant {
    /// What is charged is so many times what the calibrated prices say.
    pub factor: f64,
    /// What operations may cost, CPU s/s.
    pub allowed: f64,
    /// The same at the CPU time of the last second.
    pub allowed_in_second: f64,
    /// What the budget leaves of the present second, ns.
    pub left_of_second_ns: f64,
    /// What screens have taken so far, as the ledger has charged it, ns.
    pub screened_ns: f64,
    /// What may be taken from processes that are not watched, CPU s/s.
    pub bystanders: f64,
    /// Why nothing may be attached now.
    pub suspension: Suspension,
    /// Classes may be attached: sampling has begun, or a launched program is still held.
    pub may_begin: bool,
    /// How many times as little as planned the agent is to do, at least 1, and a limit that would let it do all, CPU s/s
    /// ([`AgentLimit`](crate::run::agent_limit::AgentLimit)).
    pub agent: (f64, f64),
}

/// What the view of the next step must hold beside where classes stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wants {
    /// Hits of the classes.
    pub hits: bool,
    /// Counters of classes of operations, and of screens.
    pub counts: bool,
}

/// What the ledger has to be told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Charged {
    /// What was spent on.
    pub charge: Charge,
    /// Hits or operations.
    pub units: u64,
    /// What they cost at calibrated prices, ns.
    pub cost_ns: f64,
}

/// What was told once.
#[derive(Debug, Default)]
struct Said {
    /// Slices begin.
    slices: bool,
    /// Inner functions are too expensive.
    inner: bool,
    /// Slices wait for ever.
    starving: bool,
    /// The agent's limit lets less be recorded.
    agent: bool,
    /// By what factor at most.
    slowest: f64,
}

/// All operations.
#[derive(Debug)]
pub struct Operations {
    list: Vec<Operation>,
    settings: Settings,
    bounds: Vec<KeptClass>,
    inner: Inside,
    /// Those that are being attached.
    asked: Option<Asked>,
    /// System calls and tracepoints that bound operations.
    screens: Vec<Screen>,
    quotas: Quotas,
    /// CPU s/s that operations cost: of the last window, or the most that they have taken in a second since it ended, if that is more.
    cost: f64,
    /// The first window is over.
    is_revised: bool,
    /// Everything was attached, and recording has begun.
    begun: bool,
    said: Said,
    charges: Vec<Charged>,
}

impl Operations {
    /// None yet. `now_ns`: ktime.
    #[must_use]
    pub fn new(settings: Settings, now_ns: u64) -> Self {
        Self {
            list: Vec::new(),
            settings,
            bounds: Vec::new(),
            inner: Inside::new(now_ns),
            asked: None,
            screens: Vec::new(),
            quotas: Quotas::default(),
            cost: 0.0,
            is_revised: false,
            begun: false,
            said: Said::default(),
            charges: Vec::new(),
        }
    }

    /// Follows one more operation, from `now_ns` on, ktime: its number is how many there were. `bounds`: begins, then ends.
    pub fn follow(&mut self, asked: Followed, bounds: Vec<OperationClass>, now_ns: u64) {
        // OK because they are at most 16.
        let number = self.list.len() as u32;
        self.list.push(Operation::new(number, asked, now_ns));
        self.bounds.extend(bounds.into_iter().map(KeptClass::new));
    }

    /// Looks at these functions inside recorded operations.
    pub fn look_inside(&mut self, inner: Vec<OperationClass>) {
        self.inner.kept = inner.into_iter().map(KeptClass::new).collect();
    }

    /// Charges a screen of operations, and judges it.
    pub fn screen(&mut self, what: Screened) {
        self.screens.push(Screen::new(what));
    }

    /// The functions inside operations, in the order of [`inner`](crate::run::view::operations::OperationsView::inner).
    pub fn inner_classes(&self) -> impl ExactSizeIterator<Item = ClassId> + '_ {
        self.inner.kept.iter().map(|kept| kept.class.id)
    }

    /// The functions and probes that bound operations, in the order of [`bounds`](crate::run::view::operations::OperationsView::bounds).
    pub fn bound_classes(&self) -> impl ExactSizeIterator<Item = ClassId> + '_ {
        self.bounds.iter().map(|kept| kept.class.id)
    }

    /// What a turn at `view`, of which all but hits, screens and counters is filled, needs of these. Reading them takes time, and most
    /// turns need none.
    #[must_use]
    pub fn wants(&self, view: &View) -> Wants {
        let now = view.now_ns;
        let counts = !self.begun;
        let is_off =
            |kept: &KeptClass| self.operation_of(kept).is_some_and(|o| o.watch.lost || o.is_paused());
        let asks = |list: &[KeptClass], seen: &[OperationClassView]| {
            list.iter()
                .zip(seen)
                .any(|(kept, class)| class.may_open() && now >= kept.next_ns && !is_off(kept))
        };
        let hits = counts
            || self.quotas.lack_hits
            || self.is_renewal_due(now)
            || self.asked.is_none()
                && (asks(&self.bounds, &view.operations.bounds)
                    || self.is_inner_wanted() && asks(&self.inner.kept, &view.operations.inner));
        Wants { hits, counts }
    }

    /// What the ledger has to be told of the last step.
    #[must_use]
    pub fn take_charges(&mut self) -> Vec<Charged> {
        std::mem::take(&mut self.charges)
    }

    /// Functions inside operations are to be attached now.
    fn is_inner_wanted(&self) -> bool {
        !self.inner.is_paused() && self.inner.slices.are_wanted()
    }

    /// Functions that stay attached while the overhead is compared, because operations in flight would be lost, and the long ones most
    /// often: those of operations that take long, or of which none has ended yet, unless they are so many that what they cost matters: more
    /// than `limit` CPU s/s.
    #[must_use]
    pub fn staying(&self, limit: f64) -> Vec<ClassId> {
        let mut left = limit;
        let long = self.list.iter().filter(|o| o.tally.longest_s == 0.0 || o.tally.longest_s > LONG_S);
        let mut by_cost: Vec<_> =
            long.map(|o| (o.tally.rate_hz * o.screened_ns() * 1e-9, o.number)).collect();
        by_cost.sort_by(|a, b| a.0.total_cmp(&b.0));
        let fits = |(cost, _): &(f64, u32)| {
            left -= cost;
            left >= 0.0
        };
        by_cost.into_iter().take_while(fits).flat_map(|(_, number)| self.bounds_of(number)).collect()
    }

    /// Bounds and inner functions that are off and will be attached again.
    #[must_use]
    pub fn waiting(&self, view: &View) -> Vec<ClassId> {
        let seen = &view.operations;
        let is_lost = |kept: &KeptClass| self.operation_of(kept).is_some_and(|o| o.watch.lost);
        let bounds = self.bounds.iter().zip(&seen.bounds).filter(|(kept, _)| !is_lost(kept));
        let is_recorded = self.settings.policy != PolicyKind::None;
        let inner = self.inner.kept.iter().zip(&seen.inner).filter(|_| is_recorded);
        bounds.chain(inner).filter(|(_, class)| class.may_open()).map(|(kept, _)| kept.class.id).collect()
    }

    /// For the live line.
    #[must_use]
    pub fn line(&self) -> String {
        self.list.iter().map(|o| o.line(self.inner.is_paused())).collect()
    }

    /// Price of recording an operation beside its inner calls, ns.
    fn record_own_ns(&self, seen: &OperationsView, number: u32) -> f64 {
        self.settings.record_own_ns + seen.words_ns.get(number as usize).copied().unwrap_or(0.0)
    }

    fn bounds_of(&self, number: u32) -> impl Iterator<Item = ClassId> + '_ {
        self.bounds.iter().filter(move |kept| kept.bounds(number)).map(|kept| kept.class.id)
    }

    /// It is time for [`Input::Revise`], at `now`, ktime ns. Its view must hold everything.
    #[must_use]
    pub fn is_revision_due(&self, now: u64) -> bool {
        // OK because `revise_s` was checked.
        let revise_ns = (self.settings.config.revise_s * 1e9) as u64;
        self.begun && self.list.iter().any(|o| now.saturating_sub(o.watch.since_ns) >= revise_ns)
    }

    /// Some operation is watched, so that inner functions are worth their cost.
    fn is_watched(&self) -> bool {
        self.list.iter().any(|o| !o.watch.lost && !o.is_paused())
    }

    /// The operation that a class bounds.
    fn operation_of(&self, kept: &KeptClass) -> Option<&Operation> {
        self.list.get(kept.operation()? as usize)
    }

    fn all_kept_mut(&mut self) -> impl Iterator<Item = &mut KeptClass> {
        self.inner.kept.iter_mut().chain(&mut self.bounds)
    }

    fn kept(&self, slot: Slot) -> &KeptClass {
        match slot {
            Slot::Inner(i) => &self.inner.kept[i],
            Slot::Bound(i) => &self.bounds[i],
        }
    }

    fn kept_mut(&mut self, slot: Slot) -> &mut KeptClass {
        match slot {
            Slot::Inner(i) => &mut self.inner.kept[i],
            Slot::Bound(i) => &mut self.bounds[i],
        }
    }

    /// A turn: keeps functions attached.
    fn turn(&mut self, at: &mut Moment<'_>) {
        if !at.grant.may_begin {
            return;
        }
        self.turn_slices(at);
        self.keep(at);
        if std::mem::take(&mut self.inner.revised) {
            // Attaching them for this window is no change within it.
            self.inner.mixed = false;
            self.record(at);
        }
        self.look_at_inner(at);
        self.look_at_time(at);
    }

    fn note_trip(&mut self, id: ClassId) {
        for kept in self.all_kept_mut().filter(|kept| kept.class.id == id) {
            kept.tripped = true;
        }
    }

    /// A class that was asked for is not attached.
    fn note_outcome(&mut self, outcome: &Outcome) {
        // One whose link tripped meanwhile ends as any other window; whoever closed it knows.
        let told = [NotOpened::Tripped, NotOpened::Closed];
        let Err(why) = outcome.opened else { return };
        if outcome.purpose != Purpose::Operation || told.contains(&why) {
            return;
        }
        if let Some(asked) = &mut self.asked {
            let is_it = |kept: &KeptClass| kept.class.id == outcome.class;
            let inner = self.inner.kept.iter().position(is_it).map(Slot::Inner);
            asked.missed.extend(inner.or_else(|| self.bounds.iter().position(is_it).map(Slot::Bound)));
        }
    }
}

impl Client for Operations {
    type Input = Input;
    type Grant = Grant;

    fn claim(&self) -> f64 {
        self.cost
    }

    fn step(&mut self, input: Input, grant: &Grant, view: &View, orders: &mut Vec<Order>) {
        match input {
            Input::Turn => self.turn(&mut Moment::new(grant, view, orders)),
            Input::Revise => self.revise(&mut Moment::new(grant, view, orders)),
            Input::Interval { elapsed_ns } => {
                self.charge_screens(elapsed_ns, &mut Moment::new(grant, view, orders));
            }
            Input::Tripped(id) => self.note_trip(id),
            Input::Outcome(outcome) => self.note_outcome(&outcome),
            Input::Hold => self.hold(orders),
            Input::ModulesCame => self.try_left_out(orders),
            Input::End { end_ns } => self.end(end_ns, &mut Moment::new(grant, view, orders)),
        }
    }
}
