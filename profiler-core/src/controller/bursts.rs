//! Bursts of the plan: when each begins, and what its end tells.

use super::types::{Action, ClassOrder, Tick};
use super::{Controller, Entry, Mode};
use crate::burst::quota_part;
use crate::class::ClassId;
use rand::RngExt;
use rand::rngs::StdRng;

/// Bursts that begin in one tick at most: attaching takes some ms each.
const PER_TICK: usize = 4;
/// Part of the bucket that bursts leave for what is traced.
const KEEP: f64 = 0.25;
/// A burst that nobody has ended so long after its time is over, ns.
const LOST_NS: u64 = 5_000_000_000;

/// How many times as rarely bursts begin: samples are what the agent spends most on, and come more rarely in proportion; but a link costs it, too, and
/// bursts may be all that it has.
///
/// ```text
/// others: slowdown^(1/2)      named functions: slowdown^(1/4) where others have as many bursts a second or more, else the same
/// ```
/// What was named comes first; but where the agent works for its bursts above all, it must still become slower, or its limit takes slowing for useless.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rarer {
    pub others: f64,
    pub named: f64,
}

impl Rarer {
    pub fn of(&self, order: &ClassOrder) -> f64 {
        if order.named { self.named } else { self.others }
    }
}

impl Controller {
    /// At that slowdown.
    pub(super) fn rarer(&self, slowdown: f64) -> Rarer {
        let bursts = |named: bool| {
            let own = self.classes.values().filter(move |entry| entry.order.named == named);
            own.filter_map(|entry| entry.order.burst)
                .map(|burst| 1e9 / burst.every_ns.max(1) as f64)
                .sum::<f64>()
        };
        let has_others = bursts(false) >= bursts(true);
        let others = slowdown.max(1.0).sqrt();
        Rarer { others, named: if has_others { others.sqrt() } else { others } }
    }

    /// Bursts per second of each class that the plan wants, and how many times as rarely they begin.
    pub(super) fn planned_bursts_hz(&self) -> impl Iterator<Item = (f64, f64)> {
        let rarer = self.rarer(self.slowdown);
        let waits = |e: &&Entry| matches!(e.mode, Mode::Sampled | Mode::Burst { .. });
        let hz = move |e: &Entry| {
            e.order.burst.map(|burst| (1e9 / burst.every_ns.max(1) as f64, rarer.of(&e.order)))
        };
        self.classes.values().filter(waits).filter_map(hz)
    }

    /// Begins the bursts that are due, the latest first, as far as the tokens reach that nobody else was granted. One that has
    /// to wait is not left out: it begins later.
    pub(super) fn start_bursts(&mut self, tick: &Tick<'_>, actions: &mut Vec<Action>) {
        let mut due = Vec::new();
        let Self { classes, random, .. } = self;
        for (id, entry) in classes.iter_mut() {
            if matches!(entry.mode, Mode::Burst { until_ns } if tick.now_ns > until_ns.saturating_add(LOST_NS))
            {
                entry.mode = Mode::Sampled;
            }
            let Some(order) = entry.order.burst.filter(|_| entry.mode == Mode::Sampled) else { continue };
            if entry.next_burst_ns == 0 {
                // The first at a random point of its interval: all at once would be one burst.
                let wait_ns = (random.random::<f64>() * order.every_ns as f64) as u64;
                entry.next_burst_ns = tick.now_ns.saturating_add(wait_ns);
            }
            if entry.next_burst_ns <= tick.now_ns {
                due.push((entry.next_burst_ns, *id, order));
            }
        }
        due.sort_by_key(|(when, id, _)| (*when, *id));
        let mut reserved = self.reserved();
        let tokens_ns = tick.tokens_ns - tick.reserved_ns - KEEP * tick.capacity_ns;
        let (income, rarer) = (self.income_left, self.rarer(self.slowdown));
        let Self { classes, random, .. } = self;
        for (_, class, order) in due.into_iter().take(PER_TICK) {
            let Some(entry) = classes.get_mut(&class) else { continue };
            let tau_ns = entry.order.tau_ns;
            // Planned when the target used more, the bucket may never hold it now: then as many hits as it does hold.
            let most_ns = 0.9 * (1.0 - KEEP) * tick.capacity_ns;
            let whole_ns = order.cost_ns.max(order.quota as f64 * tau_ns);
            let most = (most_ns / whole_ns.max(1.0)).min(1.0);
            let part = if order.ends_by_quota() { most * quota_part(entry.bursts_begun) } else { most };
            let quota = ((order.quota as f64 * part) as u64).max(2);
            // All of its hits, or what it is expected to cost with attaching and detaching, which do not get less with a smaller quota.
            let cost_ns = most * order.cost_ns - (most - part) * order.quota as f64 * tau_ns;
            let need_ns = cost_ns.max(quota as f64 * tau_ns);
            let until_ns = tick.now_ns.saturating_add(order.window_ns);
            // It begins with tokens, a debt comes first; what its quota is more than is expected may come in meanwhile.
            let there_ns = tokens_ns - reserved.held_ns(income, tick.now_ns);
            if cost_ns > there_ns || need_ns > reserved.room_ns(tokens_ns, income, tick.now_ns, until_ns) {
                continue;
            }
            reserved.add(until_ns, need_ns);
            entry.mode = Mode::Burst { until_ns };
            entry.reserved_ns = need_ns;
            entry.bursts_begun += 1;
            let every_ns = rarer.of(&entry.order) * order.every_ns as f64;
            // From when it was due: else each tick would delay all that follow. What waited for long is not made up for.
            let from_ns = entry.next_burst_ns.max(tick.now_ns.saturating_sub((0.5 * every_ns) as u64));
            entry.next_burst_ns = next_burst_ns(random, from_ns, every_ns);
            actions.push(Action::Burst { class, quota, window_ns: order.window_ns });
        }
    }

    /// Draws when the next burst of a class may begin, whose last one came to nothing.
    pub(super) fn draw_burst(&mut self, class: ClassId, now_ns: u64) {
        let rarer = self.rarer(self.slowdown);
        if let Some(entry) = self.classes.get_mut(&class) {
            let every_ns = entry.order.burst.map_or(1e9, |b| b.every_ns as f64);
            let every_ns = rarer.of(&entry.order) * every_ns;
            entry.next_burst_ns = next_burst_ns(&mut self.random, now_ns, every_ns);
        }
    }

    /// The agent may be faster, or is to be slower: what is left until each burst changes in proportion. A class that was stopped for its cost
    /// keeps its pause.
    pub(super) fn move_bursts(&mut self, now_ns: u64, slowdown: f64) {
        let (then, now) = (self.rarer(slowdown), self.rarer(self.slowdown));
        for entry in self.classes.values_mut().filter(|e| e.next_burst_ns > now_ns) {
            // OK because a float beyond the type's range becomes its end.
            let part = then.of(&entry.order) / now.of(&entry.order);
            let left_ns = ((entry.next_burst_ns - now_ns) as f64 * part) as u64;
            entry.next_burst_ns = now_ns.saturating_add(left_ns).max(entry.not_before_ns);
        }
    }

    /// Bursts per second that the plan wants and the agent's own limit does not allow.
    #[must_use]
    pub fn cut_bursts_hz(&self) -> f64 {
        self.planned_bursts_hz().map(|(hz, rarer)| hz * (1.0 - 1.0 / rarer)).sum()
    }

    /// The window of a class has ended, with `hits` in `elapsed_ns`; `tripped`: its quota ended it. True: it was a burst
    /// of the plan, where that is no alarm.
    pub fn window_ended(
        &mut self,
        class: ClassId,
        now_ns: u64,
        hits: u64,
        elapsed_ns: u64,
        tripped: bool,
    ) -> bool {
        let Some(entry) = self.classes.get_mut(&class) else { return false };
        if !matches!(entry.mode, Mode::Burst { .. }) {
            if tripped {
                self.tripped(class, now_ns, hits, elapsed_ns);
            }
            return false;
        }
        // A new plan traces it by now: by way of a trial, which needs tokens of its own.
        let trial = entry.order.trace || (entry.order.trial && entry.order.burst.is_none());
        entry.mode = if trial { Mode::Stopped { retry_ns: now_ns } } else { Mode::Sampled };
        // One that the breaker ended while it was being opened has no length, and says nothing.
        if elapsed_ns > 0 {
            let dilated_s = elapsed_ns.max(1_000) as f64 * 1e-9;
            let cost_s = hits as f64 * entry.order.tau_ns * 1e-9;
            // One burst says little about the mean: a quarter of the way.
            let seen = hits as f64 / (dilated_s - cost_s).max(0.1 * dilated_s);
            entry.rate_hz += 0.25 * (seen - entry.rate_hz);
        }
        true
    }
}

/// When the next burst may begin after one that began or was to begin at `now_ns`: uniform within half and one and a half of its interval, so that
/// no period of the target falls in step.
fn next_burst_ns(random: &mut StdRng, now_ns: u64, every_ns: f64) -> u64 {
    // OK because the cast saturates: an interval may be longer than any run.
    now_ns.saturating_add((every_ns * random.random_range(0.5..1.5)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn a_burst_that_is_rarer_than_any_run_is_long_never_comes() {
        let mut random = StdRng::seed_from_u64(1);
        assert_eq!(next_burst_ns(&mut random, 1_000, 1e30), u64::MAX);
        assert!((1_500..=2_500).contains(&next_burst_ns(&mut random, 1_000, 1_000.0)));
    }
}
