//! What is done where more goes out than comes in.

use super::types::{Action, Cause, DetachReason, Tick};
use super::{Controller, Entry, Mode, PART_OF_INCOME, pause};
use crate::class::ClassId;

/// Classes that cost less than this part of what is spent too much are not taken off for their worth: all together may be taken
/// off, if they cost more than this part.
const PART_OF_EXCESS: f64 = 0.1;

impl Controller {
    /// Shortest sampling period that the plan and the agent's own limit allow, ns; 0: no sampling.
    pub(super) fn fastest_ns(&self) -> u64 {
        // OK because a float beyond the type's range becomes its end.
        let slowed_ns = (self.planned_period_ns as f64 * self.slowdown) as u64;
        slowed_ns.min(self.config.longest_period_ns).max(self.planned_period_ns)
    }

    /// Samples are what the agent spends most on: they come as rarely as its limit demands, and again as often as planned.
    pub(super) fn keep_agent_limit(&mut self, tick: &Tick<'_>, actions: &mut Vec<Action>) {
        let was_fastest = self.period_ns <= self.fastest_ns();
        let slowdown = tick.slowdown.max(1.0);
        if slowdown.to_bits() != self.slowdown.to_bits() {
            self.move_bursts(tick.now_ns, slowdown);
        }
        self.slowdown = slowdown;
        let fastest_ns = self.fastest_ns();
        let changed = self.period_ns < fastest_ns || was_fastest && self.period_ns > fastest_ns;
        if self.period_ns > 0 && changed {
            self.period_ns = fastest_ns;
            actions.push(Action::Period { period_ns: fastest_ns });
        }
    }

    /// Over the corridor: the bucket is nearly empty and more goes out than comes in. The sampler is slowed first as
    /// far as it brings something, then classes are detached. What goes on for longer, or takes many classes, asks for a plan.
    pub(super) fn keep_corridor(&mut self, tick: &Tick<'_>, actions: &mut Vec<Action>) {
        let traced = self.traced_cost();
        let mut spend = tick.other_cost + traced;
        let overspent = self.overspent(tick, spend, traced);
        let low = tick.tokens_ns < self.config.low_water * tick.capacity_ns;
        if !(low && spend > tick.income) {
            // Back to the planned rate when there is room, slowly.
            let full = tick.tokens_ns > 0.8 * tick.capacity_ns;
            if full && self.period_ns > self.fastest_ns() {
                self.period_ns = (self.period_ns * 4 / 5).max(self.fastest_ns());
                actions.push(Action::Period { period_ns: self.period_ns });
            }
            self.ask_for_plan(tick.now_ns, overspent, actions);
            return;
        }
        if self.period_ns > 0 && self.period_ns < self.config.longest_period_ns && tick.sample_cost > 0.0 {
            let excess = spend - tick.income;
            let kept = 1.0 - excess / tick.sample_cost;
            let slower = (self.period_ns as f64 / kept.clamp(0.25, 0.9)).ceil() as u64;
            let period_ns = slower.min(self.config.longest_period_ns);
            // Where that is enough, no class goes because sums are rounded.
            let is_enough = kept >= 0.25 && slower == period_ns;
            spend = if is_enough {
                tick.income
            } else {
                spend - tick.sample_cost * (1.0 - self.period_ns as f64 / period_ns as f64)
            };
            self.period_ns = period_ns;
            actions.push(Action::Period { period_ns });
        }
        let before = spend;
        self.spending.overspent();
        let mut many = false;
        // What the user demands goes last, however little it is worth.
        for must in [false, true] {
            while spend > tick.income
                && let Some(id) = self.least_worth(must, spend - tick.income, tick)
            {
                spend -= self.take_off(id, tick.now_ns, actions);
            }
            many |= self.take_off_small(must, &mut spend, tick, actions);
        }
        // Of many small ones no single one has left its interval, and yet the plan no longer holds.
        let why = Cause::Spend { spend: before, income: tick.income };
        self.ask_for_plan(tick.now_ns, overspent.or(many.then_some(why)), actions);
    }

    /// More has gone out than comes in for as long as drift must last, and classes are a part of it that matters.
    fn overspent(&mut self, tick: &Tick<'_>, spend: f64, traced: f64) -> Option<Cause> {
        let excess = spend - tick.income;
        if excess <= PART_OF_INCOME * tick.income || traced < least_part(excess, tick) {
            self.overspent_since_ns = None;
            return None;
        }
        let since = *self.overspent_since_ns.get_or_insert(tick.now_ns);
        let long = tick.now_ns.saturating_sub(since) as f64 > self.config.drift_s * 1e9;
        long.then_some(Cause::Spend { spend, income: tick.income })
    }

    /// Stops a class that is traced; returns what it cost, CPU s/s.
    fn take_off(&mut self, id: ClassId, now_ns: u64, actions: &mut Vec<Action>) -> f64 {
        let config = self.config;
        let Some(entry) = self.classes.get_mut(&id) else { return 0.0 };
        let cost = entry.cost();
        entry.stops = entry.stops.saturating_add(1);
        entry.mode = Mode::Stopped { retry_ns: now_ns.saturating_add(pause(&config, entry.stops)) };
        actions.push(Action::Detach { class: id, reason: DetachReason::OverBudget });
        cost
    }

    fn traced(&self, must: bool) -> impl Iterator<Item = &Entry> {
        let paid = move |e: &&Entry| e.mode == Mode::Traced && e.order.must == must && e.cost() > 0.0;
        self.classes.values().filter(paid)
    }

    /// The traced class that gives least for its cost, of those that cost a tenth of the excess at least.
    fn least_worth(&self, must: bool, excess: f64, tick: &Tick<'_>) -> Option<ClassId> {
        let density = |e: &Entry| e.density(tick.sampling_hz);
        self.traced(must)
            .filter(|e| e.cost() >= PART_OF_EXCESS * excess)
            .min_by(|a, b| density(a).total_cmp(&density(b)))
            .map(|e| e.order.class)
    }

    /// Takes off the dearest of those that are each too small to matter, for as long as the rest together matters. Quiet classes
    /// stay: taking them off and attaching them again costs more than they do. Returns whether any went.
    fn take_off_small(
        &mut self,
        must: bool,
        spend: &mut f64,
        tick: &Tick<'_>,
        actions: &mut Vec<Action>,
    ) -> bool {
        if *spend <= tick.income {
            return false;
        }
        let mut small: Vec<(ClassId, f64)> = self.traced(must).map(|e| (e.order.class, e.cost())).collect();
        small.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut rest: f64 = small.iter().map(|(_, cost)| cost).sum();
        let mut any = false;
        for (id, cost) in small {
            let optional = !must && cost >= PART_OF_INCOME * tick.income;
            if *spend <= tick.income || !optional && rest < least_part(*spend - tick.income, tick) {
                break;
            }
            rest -= cost;
            *spend -= self.take_off(id, tick.now_ns, actions);
            any = true;
        }
        any
    }
}

/// Classes that cost less than this together, CPU s/s, are not why more goes out than comes in.
pub(super) fn least_part(excess: f64, tick: &Tick<'_>) -> f64 {
    (PART_OF_EXCESS * excess).max(PART_OF_INCOME * tick.income)
}
