//! The controller of traced classes and bursts. Values in, actions out.
//!
//! What it decides: hit quotas until the next tick, which class is detached when the ledger runs dry, when a class
//! that was stopped is tried again, when bursts begin, how far the sampler is slowed, when the plan has to be made anew.
//! Why here: a policy without clock, kernel or I/O can be driven by simulated targets.
//! What it does not do: it charges nothing (see [`crate::ledger`]) and attaches nothing (the agent does).

mod bursts;
mod corridor;
mod quotas;
mod reserve;
mod threads;
mod types;
mod unspent;

pub use types::{Action, Cause, ClassOrder, ControllerConfig, DetachReason, Slowed, Tick};
pub use unspent::PlanShares;

use crate::class::ClassId;
use crate::ledger::FLOOR_CPU_PER_S;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Traced,
    /// Until then, and for how long since it is open; before that, until it is open.
    Trial {
        until_ns: u64,
        window_ns: u64,
        open: bool,
    },
    Stopped {
        retry_ns: u64,
    },
    Sampled,
    /// A burst of the plan is open; it ends by its quota or by the run's clock, at the latest at this time.
    Burst {
        until_ns: u64,
    },
}

#[derive(Debug, Clone)]
struct Entry {
    order: ClassOrder,
    mode: Mode,
    rate_hz: f64,
    stops: u32,
    drift_since_ns: Option<u64>,
    /// When the next burst of the plan begins, ns; 0: not drawn yet.
    next_burst_ns: u64,
    /// It was stopped for its cost, and comes back no sooner, ns.
    not_before_ns: u64,
    /// What it took of late while it was traced, CPU s/s, smoothed.
    taken: f64,
    /// In a trial or a burst: what that may still take, ns.
    reserved_ns: f64,
    /// Bursts of the plans so far.
    bursts_begun: u64,
}

impl Entry {
    /// CPU s/s while attached.
    fn cost(&self) -> f64 {
        self.rate_hz * self.order.tau_ns * 1e-9
    }

    /// Value per cost: `W (F - s rho) / (F tau)` (Metz et al. 2005, §4.2), must-trace above all.
    fn density(&self, sampling_hz: f64) -> f64 {
        if self.order.must {
            return f64::INFINITY;
        }
        let value = self.order.weight * (self.rate_hz - sampling_hz * self.order.rho);
        value / self.cost().max(1e-12)
    }

    fn attached(&self) -> bool {
        matches!(self.mode, Mode::Traced | Mode::Trial { .. })
    }
}

/// The controller's state.
#[derive(Debug)]
pub struct Controller {
    config: ControllerConfig,
    classes: BTreeMap<ClassId, Entry>,
    /// Sampling period of the plan and in force, ns; 0: no sampling.
    planned_period_ns: u64,
    period_ns: u64,
    /// See [`Tick::slowdown`].
    slowdown: f64,
    last_plan_ns: u64,
    /// CPU s/s that the target used when the plan was taken over, and since when it has used another amount.
    planned_cpu: Option<f64>,
    cpu_drift_since_ns: Option<u64>,
    /// Since when more goes out than comes in, and that because of classes.
    overspent_since_ns: Option<u64>,
    spending: unspent::Use,
    /// Capacity of the bucket at the last tick, ns.
    capacity_ns: f64,
    /// What comes in and is taken neither by traced classes nor by anything else but windows, CPU s/s.
    income_left: f64,
    random: StdRng,
}

impl Controller {
    /// A controller with nothing under its care.
    #[must_use]
    pub fn new(config: ControllerConfig) -> Self {
        Self {
            config,
            classes: BTreeMap::new(),
            planned_period_ns: 0,
            period_ns: 0,
            slowdown: 1.0,
            last_plan_ns: 0,
            planned_cpu: None,
            cpu_drift_since_ns: None,
            overspent_since_ns: None,
            spending: unspent::Use::new(),
            capacity_ns: 0.0,
            income_left: 0.0,
            random: StdRng::seed_from_u64(config.seed),
        }
    }

    /// Takes over a new plan; returns what has to be attached and detached. Stopped classes keep their pauses.
    pub fn take_plan(
        &mut self,
        now_ns: u64,
        orders: &[ClassOrder],
        period_ns: u64,
        tokens_ns: f64,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        // What was refused since the last plan is not in this one.
        self.classes.retain(|id, entry| entry.attached() || orders.iter().any(|o| o.class == *id));
        for order in orders {
            let old = self.classes.get(&order.class).cloned();
            let mut not_before_ns = old.as_ref().map_or(0, |e| e.not_before_ns);
            let reserved_ns = old.as_ref().map_or(0.0, |e| e.reserved_ns);
            let bursts_begun = old.as_ref().map_or(0, |e| e.bursts_begun);
            let (mode, stops, rate, next_burst_ns, taken) = old
                .map_or((Mode::Sampled, 0, order.rate_hz.1, 0, 0.0), |e| {
                    (e.mode, e.stops, e.rate_hz, e.next_burst_ns, e.taken)
                });
            let stopped = matches!(mode, Mode::Stopped { .. });
            let mut next_burst_ns = next_burst_ns;
            let new_mode = match (order.trace, mode) {
                // A class that was stopped and is planned in bursts now comes back with the first of them.
                (false, Mode::Stopped { retry_ns }) if order.burst.is_some() => {
                    next_burst_ns = next_burst_ns.max(retry_ns);
                    not_before_ns = retry_ns;
                    Mode::Sampled
                }
                // A class that was stopped comes back by a trial, whatever the plan says.
                (_, Mode::Stopped { .. } | Mode::Trial { .. } | Mode::Burst { .. }) => mode,
                (true, Mode::Traced | Mode::Sampled) => Mode::Traced,
                (false, _) if order.trial => Mode::Stopped { retry_ns: now_ns + pause(&self.config, 1) },
                (false, _) => Mode::Sampled,
            };
            let rate_hz = if order.rate_hz.1 > 0.0 && !stopped { order.rate_hz.1 } else { rate };
            let entry = Entry {
                order: *order,
                mode: new_mode,
                rate_hz,
                stops,
                drift_since_ns: None,
                next_burst_ns,
                not_before_ns,
                taken,
                reserved_ns,
                bursts_begun,
            };
            if mode == Mode::Traced && new_mode != Mode::Traced {
                actions.push(Action::Detach { class: order.class, reason: DetachReason::Planned });
            }
            self.classes.insert(order.class, entry);
        }
        actions.extend(self.first_quotas(tokens_ns - self.held_ns(now_ns)));
        let before_ns = self.period_ns;
        self.planned_period_ns = period_ns;
        self.period_ns = self.fastest_ns();
        if self.period_ns != before_ns {
            actions.push(Action::Period { period_ns: self.period_ns });
        }
        self.last_plan_ns = now_ns;
        (self.planned_cpu, self.cpu_drift_since_ns, self.overspent_since_ns) = (None, None, None);
        self.spending.restart();
        actions
    }

    /// The class used up its quota and its link is being closed; `hits` in `elapsed_ns` since its last tick.
    pub fn tripped(&mut self, class: ClassId, now_ns: u64, hits: u64, elapsed_ns: u64) {
        let config = self.config;
        if let Some(entry) = self.classes.get_mut(&class) {
            let seen = hits as f64 / (elapsed_ns.max(1_000) as f64 * 1e-9);
            entry.rate_hz = entry.rate_hz.max(seen);
            entry.stops = entry.stops.saturating_add(1);
            entry.mode = Mode::Stopped { retry_ns: now_ns.saturating_add(pause(&config, entry.stops)) };
        }
    }

    /// A link could not be made, or is gone with its module: what was to be traced or tried is tried again later, a burst
    /// comes at its next time.
    pub fn lost(&mut self, class: ClassId, now_ns: u64) {
        let config = self.config;
        if let Some(entry) = self.classes.get_mut(&class) {
            entry.stops = entry.stops.saturating_add(1);
            let wanted = entry.order.trace || entry.order.trial;
            let retry_ns = now_ns.saturating_add(pause(&config, entry.stops));
            entry.mode = if wanted { Mode::Stopped { retry_ns } } else { Mode::Sampled };
        }
        self.draw_burst(class, now_ns);
    }

    /// The window of a trial opened: its time runs from here. What became of each trial must be told: this, [`Controller::lost`] or
    /// [`Controller::held_back`].
    pub fn opened(&mut self, class: ClassId, start_ns: u64) {
        if let Some(entry) = self.classes.get_mut(&class)
            && let Mode::Trial { until_ns, window_ns, open } = &mut entry.mode
        {
            (*until_ns, *open) = (start_ns.saturating_add(*window_ns), true);
        }
    }

    /// A burst or a trial must wait for something that is not the class's fault (return links that are not known to be safe yet): it
    /// comes again at its next time, and no stop is counted.
    pub fn held_back(&mut self, class: ClassId, now_ns: u64) {
        let retry_ns = now_ns.saturating_add(pause(&self.config, 1));
        if let Some(entry) = self.classes.get_mut(&class) {
            entry.mode = match entry.mode {
                Mode::Trial { .. } => Mode::Stopped { retry_ns },
                Mode::Burst { .. } => Mode::Sampled,
                other => other,
            };
        }
        self.draw_burst(class, now_ns);
    }

    /// The class is to be attached now, traced or for a trial.
    #[must_use]
    pub fn is_attached(&self, class: ClassId) -> bool {
        self.classes.get(&class).is_some_and(Entry::attached)
    }

    /// Rate of a class as last seen, events/s.
    #[must_use]
    pub fn rate_hz(&self, class: ClassId) -> Option<f64> {
        self.classes.get(&class).map(|e| e.rate_hz)
    }

    /// One tick: what has to change until the next.
    pub fn tick(&mut self, tick: &Tick<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        self.note_taken(tick);
        self.note_rates(tick);
        self.end_trials(tick, &mut actions);
        self.keep_agent_limit(tick, &mut actions);
        self.keep_corridor(tick, &mut actions);
        self.note_income(tick);
        self.start_trial(tick, &mut actions);
        self.start_bursts(tick, &mut actions);
        self.set_quotas(tick, &mut actions);
        self.watch_drift(tick, &mut actions);
        self.use_what_is_left(tick, &mut actions);
        actions
    }

    fn note_rates(&mut self, tick: &Tick<'_>) {
        let dt = tick.elapsed_ns as f64 * 1e-9;
        if dt <= 0.0 {
            return;
        }
        let weight = 1.0 - (-dt / self.config.rate_time_s).exp();
        for (class, hits) in tick.hits {
            if let Some(entry) = self.classes.get_mut(class).filter(|e| e.attached()) {
                let seen = *hits as f64 / dt;
                // Up at once, down slowly: the budget is lost on the way up. A trial starts afresh: what was seen
                // before the class was stopped says nothing about now.
                let trial = matches!(entry.mode, Mode::Trial { .. });
                entry.rate_hz = if trial || (seen > 2.0 * entry.rate_hz && *hits > 16) {
                    seen
                } else {
                    entry.rate_hz + weight * (seen - entry.rate_hz)
                };
            }
        }
    }

    fn end_trials(&mut self, tick: &Tick<'_>, actions: &mut Vec<Action>) {
        let headroom = tick.income - tick.other_cost - self.traced_cost();
        let mut fits = None;
        for entry in self.classes.values_mut() {
            let Mode::Trial { until_ns, open, .. } = entry.mode else { continue };
            if !open || tick.now_ns < until_ns {
                continue;
            }
            if entry.order.trace && entry.cost() <= 0.8 * headroom {
                // It fits again: keep the link.
                entry.mode = Mode::Traced;
                entry.stops = 0;
                actions.push(Action::Resumed { class: entry.order.class });
            } else {
                entry.stops = entry.stops.saturating_add(1);
                let retry_ns = tick.now_ns.saturating_add(pause(&self.config, entry.stops));
                entry.mode = Mode::Stopped { retry_ns };
                actions.push(Action::Detach { class: entry.order.class, reason: DetachReason::TrialOver });
                // It was not planned with, and now looks as if it would fit: ask the planner.
                if !entry.order.trace && entry.cost() <= 0.5 * headroom {
                    fits = Some(Cause::Fits { class: entry.order.class, rate_hz: entry.rate_hz });
                }
            }
        }
        self.ask_for_plan(tick.now_ns, fits, actions);
    }

    /// Asks for a new plan, at most once in three drift intervals.
    fn ask_for_plan(&mut self, now_ns: u64, why: Option<Cause>, actions: &mut Vec<Action>) {
        let Some(why) = why else { return };
        if now_ns.saturating_sub(self.last_plan_ns) as f64 > 3e9 * self.config.drift_s {
            self.last_plan_ns = now_ns;
            actions.push(Action::Replan { why });
        }
    }

    /// What the traced classes take at their present rates, CPU s/s.
    #[must_use]
    pub fn traced_cost(&self) -> f64 {
        self.classes.values().filter(|e| e.mode == Mode::Traced).map(Entry::cost).sum()
    }

    /// At most one trial at a time, of the class that has waited longest, when half of the bucket is there for nobody else.
    fn start_trial(&mut self, tick: &Tick<'_>, actions: &mut Vec<Action>) {
        let free_ns = self.free_ns(tick);
        if free_ns < 0.5 * tick.capacity_ns
            || self.classes.values().any(|e| matches!(e.mode, Mode::Trial { .. }))
        {
            return;
        }
        let due = |e: &Entry| match e.mode {
            Mode::Stopped { retry_ns } if retry_ns <= tick.now_ns => Some(retry_ns),
            _ => None,
        };
        let Some(entry) = self.classes.values_mut().filter(|e| due(e).is_some()).min_by_key(|e| due(e))
        else {
            return;
        };
        let quota = (self.config.trial_share * free_ns / entry.order.tau_ns.max(1.0)) as u64;
        if quota < 2 {
            return;
        }
        // Long enough for what the quota buys at the rate last seen, within 20 ms and 1 s.
        let window = (quota as f64 / entry.rate_hz.max(1.0)).clamp(0.02, 1.0);
        let window_ns = (window * 1e9) as u64;
        let until_ns = tick.now_ns.saturating_add(window_ns);
        entry.mode = Mode::Trial { until_ns, window_ns, open: false };
        entry.reserved_ns = quota as f64 * entry.order.tau_ns;
        actions.push(Action::Trial { class: entry.order.class, quota, window_ns });
    }

    fn watch_drift(&mut self, tick: &Tick<'_>, actions: &mut Vec<Action>) {
        let long_ago = |since: u64, s: f64| tick.now_ns.saturating_sub(since) as f64 > s * 1e9;
        let mut drifted = None;
        for entry in self.classes.values_mut().filter(|e| e.mode == Mode::Traced) {
            let (low, planned_hz, high) = entry.order.rate_hz;
            // Of a class that costs next to nothing at either rate nothing is gained by a new plan.
            let difference = (entry.rate_hz - planned_hz).abs() * entry.order.tau_ns * 1e-9;
            let out = difference > PART_OF_INCOME * tick.income
                && (entry.rate_hz > high * self.config.drift_factor
                    || entry.rate_hz < low / self.config.drift_factor);
            match (out, entry.drift_since_ns) {
                (false, _) => entry.drift_since_ns = None,
                (true, None) => entry.drift_since_ns = Some(tick.now_ns),
                (true, Some(since)) if long_ago(since, self.config.drift_s) => {
                    let (class, rate_hz) = (entry.order.class, entry.rate_hz);
                    drifted = drifted.or(Some(Cause::Rate { class, rate_hz, planned_hz }));
                }
                (true, Some(_)) => {}
            }
        }
        // The budget is a share of what the target uses.
        let now = tick.target_cpu.max(FLOOR_CPU_PER_S);
        let planned = *self.planned_cpu.get_or_insert(now);
        let factor = self.config.cpu_drift_factor;
        if now > planned * factor || now < planned / factor {
            let since = *self.cpu_drift_since_ns.get_or_insert(tick.now_ns);
            if long_ago(since, self.config.drift_s) {
                self.spending.begin_anew();
                drifted = drifted.or(Some(Cause::Cpu { now, planned }));
            }
        } else {
            self.cpu_drift_since_ns = None;
        }
        self.ask_for_plan(tick.now_ns, drifted, actions);
    }

    /// How many times as slow the agent can be made; infinite where bursts can come more rarely, or no samples are planned.
    #[must_use]
    pub fn most_slowdown(&self) -> f64 {
        if self.classes.values().any(|entry| entry.order.burst.is_some()) {
            return f64::INFINITY;
        }
        self.config.longest_period_ns as f64 / self.planned_period_ns as f64
    }

    /// Samples per second of target CPU time that the plan wants and the agent's own limit does not allow; none where tokens allow still fewer.
    #[must_use]
    pub fn cut_hz(&self) -> f64 {
        let hz = |period_ns: u64| if period_ns == 0 { 0.0 } else { 1e9 / period_ns as f64 };
        let binds = self.period_ns <= self.fastest_ns();
        if binds { hz(self.planned_period_ns) - hz(self.fastest_ns()) } else { 0.0 }
    }

    /// Why the sampler runs at a longer period than planned.
    #[must_use]
    pub fn slowed(&self) -> Option<Slowed> {
        match self.period_ns {
            p if p <= self.planned_period_ns => None,
            p if p <= self.fastest_ns() => Some(Slowed::Agent),
            _ => Some(Slowed::Tokens),
        }
    }
}

/// A class, or a part of the classes, that costs less than this part of what comes in is not worth a change.
const PART_OF_INCOME: f64 = 0.01;
/// `first 2^(stops - 1)`, at most the longest; ns.
fn pause(config: &ControllerConfig, stops: u32) -> u64 {
    let factor = 2f64.powi(i32::try_from(stops.clamp(1, 20) - 1).unwrap_or(19));
    ((config.first_pause_s * factor).min(config.longest_pause_s) * 1e9) as u64
}

#[cfg(test)]
mod tests;
