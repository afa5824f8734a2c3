//! The client: it keeps the controller, and knows which plan runs and why another one is wanted.

use super::datapoints::DataPoints;
use super::held::Held;
use super::planning::Planned;
use super::problem::Settings;
use super::rate::{Rate, Rates};
use super::spread::Spreads;
use super::timed::TimedClasses;
use super::words;
use crate::class::{ClassId, ExitMode, RecordKind};
use crate::controller::{Action, Controller, ControllerConfig, PlanShares, Slowed, Tick};
use crate::estimate::Estimate;
use crate::ledger::ThreadOver;
use crate::plan::Objective;
use crate::recording::{ChangeKind, WindowKind, WindowRow};
use crate::run::clocks::Clocks;
use crate::run::order::{Ending, Order, Purpose};
use crate::run::outcome::{NotOpened, Outcome};
use crate::run::suspension::Suspension;
use crate::run::view::{ClassView, LinkView, View};

/// What is traced all the time and in bursts.
#[derive(Debug)]
pub struct Trace {
    settings: Settings,
    controller: Controller,
    /// Plans made so far.
    plans: u32,
    /// Windows that the breaker ended, and that were no bursts of the plan.
    trips: u32,
    /// A new plan is wanted; and why, if that is known.
    is_wanted: bool,
    why: Option<String>,
    /// On the calibrated prices when the plan was made.
    factor: f64,
    /// What the plan's bursts are to take, CPU s/s.
    bursts_cost: f64,
    /// What was said last of why samples come more rarely, and whether it was ever the agent's limit.
    /// Samples are told to be slowed for want of tokens; that they are at times for the agent's limit was told.
    tokens_said: bool,
    limit_said: bool,
    /// When the open windows of bursts are to end.
    bursts: Clocks,
    timed: TimedClasses,
    spreads: Spreads,
    held: Held,
    points: DataPoints,
}

/// What orders are given by.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// What can be seen.
    pub view: &'a View,
    /// Names of the classes, by id.
    pub names: &'a [&'a str],
    /// What holds everything up.
    pub suspension: Suspension,
}

/// A window that is complete.
#[derive(Debug, Clone, Copy)]
pub struct EndedWindow<'a> {
    /// Its row.
    pub row: &'a WindowRow,
    /// The breaker ended it, through the quota of this very class.
    pub tripped_itself: bool,
    /// Its class.
    pub of: &'a ClassView,
    /// Median of the durations of all calls of its class so far, ns, not corrected, where they were asked for by name and are known.
    pub median: Option<Estimate>,
}

impl Trace {
    /// Without a plan, and with nothing under its care. `seed`: of the random times of bursts.
    #[must_use]
    pub fn new(settings: Settings, seed: u64) -> Self {
        let asked = settings.fixed_rate_hz.filter(|hz| *hz > 0.0);
        let asked_period_ns = asked.map_or(0, |hz| (1e9 / hz) as u64);
        let config = ControllerConfig { seed, asked_period_ns, ..ControllerConfig::default() };
        Self {
            settings,
            controller: Controller::new(config),
            plans: 0,
            trips: 0,
            is_wanted: false,
            why: None,
            factor: 1.0,
            bursts_cost: 0.0,
            tokens_said: false,
            limit_said: false,
            bursts: Clocks::default(),
            timed: TimedClasses::default(),
            spreads: Spreads::default(),
            held: Held::default(),
            points: DataPoints::default(),
        }
    }

    /// What the run was asked for.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The parts of the budget that the next plan may count on.
    #[must_use]
    pub fn shares(&self) -> PlanShares {
        self.controller.shares()
    }

    /// Whose durations are known well enough.
    #[must_use]
    pub fn timed(&self) -> &TimedClasses {
        &self.timed
    }

    /// How unlike windows are.
    #[must_use]
    pub fn spreads(&self) -> &Spreads {
        &self.spreads
    }

    /// A window of complete counting has ended, whoever opened it.
    pub fn note_window(&mut self, row: &WindowRow, of: &ClassView, own_cpu: f64) {
        let elapsed_s = row.end_ns.saturating_sub(row.start_ns) as f64 * 1e-9;
        let gap_s = own_cpu * elapsed_s / row.kept.max(1) as f64;
        let tau_s = of.tau_ns(gap_s) * 1e-9;
        self.spreads.note(ClassId(row.class_id), row.kept, (elapsed_s, tau_s), own_cpu, row.tripped);
    }

    /// Plans made so far: the number of the last one.
    #[must_use]
    pub fn plans(&self) -> u32 {
        self.plans
    }

    /// Windows that the breaker ended, and that were no bursts of the plan.
    #[must_use]
    pub fn trips(&self) -> u32 {
        self.trips
    }

    /// What it spends at present, as the ledger will charge it, CPU s/s.
    #[must_use]
    pub fn claim(&self) -> f64 {
        self.controller.traced_cost() + self.bursts_cost
    }

    /// See [`Controller::most_slowdown`].
    #[must_use]
    pub fn most_slowdown(&self) -> f64 {
        self.controller.most_slowdown()
    }

    /// See [`Controller::cut_bursts_hz`].
    #[must_use]
    pub fn cut_bursts_hz(&self) -> f64 {
        self.controller.cut_bursts_hz()
    }

    /// See [`Controller::cut_hz`].
    #[must_use]
    pub fn cut_hz(&self) -> f64 {
        self.controller.cut_hz()
    }

    /// So much of the bucket is spoken for by its windows, ns.
    #[must_use]
    pub fn held_ns(&self, now_ns: u64) -> f64 {
        self.controller.held_ns(now_ns)
    }

    /// The class is to be attached now, traced or for a trial.
    #[must_use]
    pub fn is_attached(&self, class: ClassId) -> bool {
        self.controller.is_attached(class)
    }

    /// No burst ends before `until_ns`.
    #[must_use]
    pub fn is_quiet(&self, until_ns: u64) -> bool {
        !self.bursts.end_before(until_ns)
    }

    /// Rates as last seen, for a new plan: known to a third.
    #[must_use]
    pub fn present_rates(&self, view: &View) -> Rates {
        view.classes
            .iter()
            // A class that was never hit is quiet if it is watched; else it is not known.
            .filter(|c| c.attempted > 0 || self.is_attached(c.id))
            .filter_map(|c| Some((c.id, Rate::seen(self.controller.rate_hz(c.id)?, c.attempted))))
            .collect()
    }

    /// A new plan is wanted. What came first is the cause; what came with it is in the plan, too.
    pub fn want(&mut self, why: Option<String>) {
        self.is_wanted = true;
        if let Some(why) = why {
            self.why.get_or_insert(why);
        }
    }

    /// A new plan is wanted.
    #[must_use]
    pub fn is_plan_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Why a new plan is wanted, if one is; it is not wanted any more then. `factor`: on the calibrated prices now.
    pub fn take_wanted(&mut self, factor: f64) -> Option<String> {
        if !std::mem::take(&mut self.is_wanted) {
            return None;
        }
        Some(self.why.take().unwrap_or_else(|| {
            if factor == self.factor {
                "the load has changed".to_owned()
            } else {
                format!("prices are taken {factor:.2} times as calibrated, by what was measured")
            }
        }))
    }

    /// Puts a plan to work that was made at `factor` times the calibrated prices, with these tokens for its first quotas, ns.
    pub fn adopt(
        &mut self,
        planned: &Planned,
        factor: f64,
        tokens_ns: f64,
        seen: &Seen<'_>,
        orders: &mut Vec<Order>,
    ) {
        self.plans += 1;
        self.factor = factor;
        self.bursts_cost = planned.bursts;
        self.spreads.planned(planned.spreads());
        let now_ns = seen.view.now_ns;
        let actions = self.controller.take_plan(now_ns, &planned.orders, planned.period_ns, tokens_ns);
        self.obey(actions, seen, orders);
    }

    /// One tick of the controller.
    pub fn tick(&mut self, tick: &Tick<'_>, seen: &Seen<'_>, orders: &mut Vec<Order>) {
        // A class that is traced all the time has a window that does not end: it is asked here.
        // `last` looks at all of them.
        let why = seen.view.classes.iter().filter_map(|class| self.points.note(class)).last();
        if let Some(why) = why.filter(|_| self.settings.may_burst()) {
            self.want(Some(why.to_owned()));
        }
        let actions = self.controller.tick(tick);
        self.obey(actions, seen, orders);
    }

    /// These threads lose more than they may.
    pub fn relieve(&mut self, over: &[ThreadOver], seen: &Seen<'_>, orders: &mut Vec<Order>) {
        let View { now_ns, samples, .. } = seen.view;
        let actions = self.controller.relieve(*now_ns, samples.rate_hz, over);
        self.obey(actions, seen, orders);
    }

    /// Closes the windows of bursts whose time is over.
    pub fn end_bursts(&mut self, now_ns: u64, is_open: impl Fn(ClassId) -> bool, orders: &mut Vec<Order>) {
        let due = self.bursts.take_due(now_ns);
        orders.extend(due.into_iter().map(|class| Order::Close(class, Ending::Drain)));
        self.bursts.keep(is_open);
    }

    /// A window of a traced class, a burst or a trial is complete. True: the breaker ended it, and that was not planned.
    pub fn window_ended(&mut self, ended: &EndedWindow<'_>, now_ns: u64) -> bool {
        let EndedWindow { row, tripped_itself, of, median } = *ended;
        debug_assert_ne!(row.kind, WindowKind::Survey);
        let is_timed = of.traits.named && of.traits.exit != ExitMode::None;
        // Where calls are recorded a plan goes on as it is.
        let ends = of.traits.kind != RecordKind::Record;
        if is_timed && self.timed.note(row, median, of.prices.stamps.ns) && ends {
            self.want(Some(
                "durations of a function are known to 10 %, as far as more calls tell".to_owned(),
            ));
        }
        let elapsed_ns = row.end_ns.saturating_sub(row.start_ns);
        let class = ClassId(row.class_id);
        // Its clock is over, too: the class may be opened again.
        self.bursts.stop(class);
        let planned = self.controller.window_ended(class, now_ns, row.kept, elapsed_ns, row.tripped);
        // The end of a burst of the plan is no alarm.
        let alarm = tripped_itself && !planned;
        if row.kind == WindowKind::Burst
            && self.settings.objective == Objective::Precision
            && self.spreads.ask()
        {
            self.want(Some("windows are more unlike than they were taken, or less".to_owned()));
        }
        self.trips += u32::from(alarm);
        alarm
    }

    /// What became of a class that it had asked for; outcomes for others are not its own.
    pub fn heed(&mut self, outcome: &Outcome, now_ns: u64) {
        let class = outcome.class;
        match (outcome.purpose, outcome.opened) {
            (Purpose::Burst(window_ns), Ok(start_ns)) => {
                self.bursts.start(class, start_ns.saturating_add(window_ns));
            }
            (Purpose::Trial, Ok(start_ns)) => self.controller.opened(class, start_ns),
            (Purpose::Trial, Err(NotOpened::Tripped)) => self.controller.opened(class, now_ns),
            // One whose link tripped meanwhile ends as any other window.
            (_, Ok(_) | Err(NotOpened::Tripped)) => {}
            (Purpose::Burst(_) | Purpose::Trial, Err(why)) if why.is_for_now() => {
                self.controller.held_back(class, now_ns);
            }
            // It is asked for again at the next tick.
            (Purpose::Trace, Err(why)) if why.is_for_now() => {}
            (Purpose::Burst(_) | Purpose::Trial | Purpose::Trace, Err(_)) => {
                self.controller.lost(class, now_ns);
            }
            (
                Purpose::Survey(_)
                | Purpose::Operation
                | Purpose::Metric
                | Purpose::Activity(_)
                | Purpose::Reference,
                Err(_),
            ) => {}
        }
    }

    /// What waited to be attached is still wanted. What was given up while it waited has no tokens any more.
    #[must_use]
    pub fn still_wants(&self, class: ClassId, quota: u64, purpose: Purpose) -> bool {
        let action = match purpose {
            Purpose::Burst(window_ns) => Action::Burst { class, quota, window_ns },
            Purpose::Trial => Action::Trial { class, quota, window_ns: 0 },
            Purpose::Trace => Action::Trace { class, quota },
            Purpose::Survey(_)
            | Purpose::Operation
            | Purpose::Metric
            | Purpose::Activity(_)
            | Purpose::Reference => return true,
        };
        self.controller.still_wants(&action)
    }

    fn waits_for_pair(&mut self, class: ClassId, view: &View) -> bool {
        let rate_hz = self.controller.rate_hz(class).unwrap_or(0.0);
        self.settings.links_wait && self.held.waits(class, rate_hz, view)
    }

    /// Turns what the controller says into orders. What is traced and bursts are asked for together, after everything else.
    fn obey(&mut self, actions: Vec<Action>, seen: &Seen<'_>, orders: &mut Vec<Order>) {
        let (mut traced, mut bursts) = (Vec::new(), Vec::new());
        let open = |class, kind, quota, purpose| Order::Open { class, kind, quota, purpose };
        let is_off = |class| seen.view.class(class).link == LinkView::Off;
        for action in actions {
            match action {
                // Asked for again at the next tick.
                Action::Trace { class, .. } | Action::Quota { class, .. }
                    if is_off(class) && self.waits_for_pair(class, seen.view) => {}
                Action::Trace { class, quota } if is_off(class) && seen.suspension.may_restore() => {
                    traced.push(open(class, WindowKind::Trace, quota, Purpose::Trace));
                }
                // A traced class whose link went with others of its group (one of them tripped or was detached)
                // comes back here. After forks all links must be closed first.
                Action::Quota { class, hits } if is_off(class) && seen.suspension.may_restore() => {
                    traced.push(open(class, WindowKind::Trace, hits, Purpose::Trace));
                }
                Action::Trace { class, quota: hits } | Action::Quota { class, hits } => {
                    orders.push(Order::Quota(class, hits));
                }
                // Its last link is still being closed: nobody would open another one, and tell.
                Action::Trial { class, .. } | Action::Burst { class, .. } if !is_off(class) => {
                    self.controller.held_back(class, seen.view.now_ns);
                }
                Action::Trial { class, quota, .. } => {
                    orders.push(open(class, WindowKind::Burst, quota, Purpose::Trial));
                }
                Action::Burst { class, quota, window_ns } => {
                    bursts.push(open(class, WindowKind::Burst, quota, Purpose::Burst(window_ns)));
                }
                Action::Detach { class, reason } => {
                    let said = words::stop(reason, self.controller.rate_hz(class).unwrap_or(0.0));
                    orders.extend(said.map(|(kind, text)| Order::Change(kind, Some(class), text)));
                    orders.push(Order::Close(class, Ending::Drain));
                }
                Action::Resumed { class } => {
                    let rate_hz = self.controller.rate_hz(class).unwrap_or(0.0);
                    let text = format!("at {rate_hz:.0} calls/s it fits again");
                    orders.push(Order::Change(ChangeKind::Back, Some(class), text));
                }
                Action::Period { period_ns } => {
                    orders.push(Order::Period(period_ns));
                    self.say_slowed(orders);
                }
                Action::Replan { why } => {
                    let why = words::cause(why, seen.names);
                    orders.push(Order::Detail(format!("new plan: {why}")));
                    self.want(Some(why));
                }
            }
        }
        orders.append(&mut traced);
        orders.append(&mut bursts);
    }

    /// The sampling period was set: slowed, or as planned again.
    fn say_slowed(&mut self, orders: &mut Vec<Order>) {
        // How often the agent's limit slows samples, and when it does not, is no news.
        let text = match self.controller.slowed() {
            Some(Slowed::Tokens) if !self.tokens_said => {
                self.tokens_said = true;
                "slowed, because the tokens ran out"
            }
            Some(Slowed::Agent) if !self.limit_said => {
                self.limit_said = true;
                "slowed at times, because the agent used more than --agent-cpu allows"
            }
            None if self.tokens_said => {
                self.tokens_said = false;
                "as often as planned again"
            }
            _ => return,
        };
        orders.push(Order::Change(ChangeKind::Sampling, None, text.to_owned()));
    }
}
