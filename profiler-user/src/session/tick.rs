//! One turn of the loop: drain, collect, charge, obey the controller.
//!
//! Every 10 ms the rings are drained and closed links collected; every 100 ms the ledger is closed and the controller
//! asked; every second threads and modules are looked at.

use super::attach::{Ended, now_ns};
use super::{Phase, Session};
use crate::prober::ClassCounters;
use crate::session::class::LinkState;
use profiler_core::burst::{FRESH_DELAY_NS, FRESH_NS};
use profiler_core::class::{ClassId, RecordKind};
use profiler_core::clients::children::Input;
use profiler_core::controller::Tick;
use profiler_core::cost;
use profiler_core::recording::{Charge, EventRow, WindowKind};

/// Interval of the ledger and the controller, ns.
const LEDGER_NS: u64 = 100_000_000;
/// Time constant of the cost of attaching, ns.
const MISC_TIME_NS: f64 = 5e9;
/// Interval of the slow looks, ns.
const SLOW_NS: u64 = 1_000_000_000;
/// Time for which a breakpoint outlives the trip while grace periods are short, ns: 0.36 ms (0.24 to 4.9; n = 7) on an idle
/// machine, 0.24 (0 to 0.35) on a busy one.
const EXPEDITED_DELAY_NS: f64 = 400_000.0;
/// Records taken from a ring in one turn, so that a flood does not hold up the rest.
const DRAIN_LIMIT: usize = 100_000;

impl Session {
    /// One turn. `Ok(false)`: the run is over.
    ///
    /// # Errors
    /// Nothing that a run survives.
    pub(super) fn turn(&mut self) -> anyhow::Result<bool> {
        let now = now_ns();
        self.pulse();
        self.attach_next()?;
        self.end_bursts(now);
        self.drain();
        self.collect();
        self.follow_children();
        if let Some(named) = self.tracing_all.filter(|_| self.attach.is_settled()) {
            self.tracing_all = None;
            self.begin_counting(named);
        }
        if self.reader.poll() {
            self.sampling.symbols_came();
            // What waited for them is looked at now.
            self.last_slow_ns = 0;
        }
        if now.saturating_sub(self.last_ledger_ns) >= LEDGER_NS {
            self.ledger_tick(now);
        }
        self.watch_threads(now);
        if now.saturating_sub(self.last_slow_ns) >= SLOW_NS {
            self.last_slow_ns = now;
            let begun = now_ns();
            self.slow_tick(now);
            // It may be a part of the look after lost births.
            self.loss_watch.turn_took(now_ns().saturating_sub(begun));
        }
        self.advance(now)?;
        self.compare();
        self.follow_operations(now);
        // A run that has not begun does not end.
        let goes_on = self.tracing_all.is_some() || self.end_ns.is_none_or(|end| now < end);
        Ok(goes_on && self.problem.is_none())
    }

    /// The plan runs, no window has to end before `until_ns`, no link is being closed, no ring fills with records.
    pub(super) fn is_quiet(&self, until_ns: u64) -> bool {
        matches!(self.phase, Phase::Run)
            && self.trace.is_quiet(until_ns)
            && !self.children.is_rearming()
            && self.children.is_empty()
            && self.operations.is_none()
            && self.attach.is_settled()
            && !self.attach.classes().iter().any(|c| c.is_open() && c.kind == RecordKind::Record)
            && !self.attach.closing()
    }

    /// Takes note of closed links and of the windows that ended with them.
    fn collect(&mut self) {
        for ended in self.attach.collect(&self.target) {
            self.window_ended(ended);
        }
    }

    /// In the middle of long work (looking at hundreds of functions): what a turn does for the classes that run, so that no quota
    /// runs out. Nothing is opened here.
    pub(super) fn breathe(&mut self) {
        let now = now_ns();
        self.pulse();
        self.note_opened();
        // Their quotas hold in any case; their ends are on time, too.
        self.end_bursts(now);
        if now.saturating_sub(self.last_ledger_ns) < LEDGER_NS || self.loading.is_some() {
            return;
        }
        self.drain();
        for ended in self.attach.collect(&self.target) {
            self.window_ended(ended);
        }
        self.ledger_tick(now);
    }

    /// At the end: drain and collect, without controller and plan.
    pub(super) fn settle(&mut self) {
        self.pulse();
        // What is still being made is closed when it is there; where the opener is gone, it was given up.
        let _ = self.attach.take_reports(&self.target);
        self.drain();
        self.collect();
    }

    /// The last interval of the ledger.
    pub(super) fn close_ledger(&mut self) {
        self.phase = Phase::Warmup { until_ns: u64::MAX };
        self.ledger_tick(now_ns());
        self.writer.send(self.merger.take());
    }

    /// Takes everything out of the rings.
    pub(super) fn drain(&mut self) {
        let ahead = if self.may_wait() { None } else { Some(&mut self.reader) };
        self.sampling.drain(DRAIN_LIMIT, &self.inspection, ahead);
        self.heed_switched_stacks();
        let mut rows = Vec::new();
        self.calls.drain(DRAIN_LIMIT, |call| {
            rows.push(EventRow {
                time_ns: call.time_ns,
                class_id: call.class.0,
                pid: call.pid,
                tid: call.tid,
                duration_ns: call.duration_ns,
                args: call.args,
            });
        });
        if !rows.is_empty() {
            self.writer.send(rows);
        }
        self.drain_operations();
        let mut told = Vec::new();
        while let Some(event) = self.lifecycle.try_next() {
            // A record that we do not know is a record of a newer object: counted by the reader, nothing to do.
            if let Ok(event) = event {
                told.extend(self.processes.note(&event, &mut self.sampling, self.meta.pid));
            }
        }
        if !told.is_empty() {
            self.tell_children(Input::Told { events: told, linked: self.attach.busy() });
        }
    }

    /// A window is complete: record it, tell survey and controller.
    fn window_ended(&mut self, ended: Ended) {
        let class = ClassId(ended.row.class_id);
        self.charge_hits(class, Some((ended.row.kind, ended.row.start_ns)));
        let elapsed = ended.row.end_ns.saturating_sub(ended.row.start_ns);
        // One that saw nothing has no length, its links had.
        let paid_ns = if elapsed > 0 {
            elapsed
        } else {
            ended.watched_ns.saturating_sub(ended.row.start_ns).max(FRESH_NS)
        };
        let delay_ns = tail_ns(ended.age_ns, ended.expedited, self.cost.detach_delay.ns);
        self.charge_tail(class, ended.row.attempted, paid_ns, delay_ns);
        match ended.row.kind {
            WindowKind::Survey => self.survey_window(&ended),
            WindowKind::Trace | WindowKind::Burst => {
                if self.trace.window_ended(&ended.row, ended.tripped_itself, now_ns()) {
                    self.note_metric_trip(class);
                    self.note_operation_trip(class);
                    self.note_trip(&ended);
                }
            }
        }
        if !ended.open_calls.is_empty() {
            self.writer.send(ended.open_calls);
        }
        self.writer.send(vec![ended.row]);
    }

    /// The breakpoint outlives the program: until the kernel has taken it out of the text, calls pay the trap and nobody
    /// counts them. They are taken to pay what they paid in the window:
    ///
    /// `cost = hits x tau / window x delay`
    ///
    /// The delay is a grace period of the kernel's `dup_mmap_sem`, which is not waited for again shortly after an attach
    /// (kernel/rcu/sync.c): a class that is hot from the start is off within 0.1 ms. It is short where the governor made it so
    /// ([`tail_ns`]).
    fn charge_tail(&mut self, id: ClassId, hits: u64, elapsed_ns: u64, delay_ns: f64) {
        let tau = self.attach.class(id).hit_price.ns;
        let busy = hits as f64 * tau / elapsed_ns.max(1) as f64;
        let cost_ns = busy.min(f64::from(self.meta.cpus)) * delay_ns;
        self.ledger.charge(Charge::Attach, Some(id), 0, cost_ns);
        self.note_recurring(cost_ns);
    }

    /// A cost that is to be expected again: not that of a survey, which ends.
    fn note_recurring(&mut self, cost_ns: f64) {
        if !matches!(self.phase, Phase::Survey) {
            self.misc_ns += cost_ns;
        }
    }

    /// Smooths what recurs beside hits, samples, switches and children: links that are made anew after forks. It comes
    /// in lumps, so that a single one must not look like a flood.
    fn note_misc(&mut self, elapsed_ns: u64) {
        let cost = std::mem::take(&mut self.misc_ns) / elapsed_ns.max(1) as f64;
        let weight = 1.0 - (-(elapsed_ns as f64) / MISC_TIME_NS).exp();
        self.misc_cost += weight * (cost - self.misc_cost);
    }

    /// Charges what a class has been hit since the last time.
    pub(super) fn charge_class(&mut self, id: ClassId) -> u64 {
        self.charge_hits(id, None)
    }

    /// The same; `ended`: kind and start, ktime ns, of the window that has just ended, of which the class itself knows nothing any more.
    fn charge_hits(&mut self, id: ClassId, ended: Option<(WindowKind, u64)>) -> u64 {
        let counters = self.attach.kernel().classes().counters(id);
        let now = now_ns();
        let class = self.attach.class_mut(id);
        let new = counters.since(&class.charged);
        class.charged = counters;
        let since_ns = std::mem::replace(&mut class.charged_ns, now);
        let window = match &class.state {
            LinkState::Open(w) | LinkState::Closing(w, _) => Some((w.kind, w.start_ns)),
            LinkState::Off | LinkState::Waiting(_) | LinkState::Opening(..) => ended,
        };
        let (kind, opened_ns) = (window.map(|w| w.0), window.map_or(since_ns, |w| w.1));
        let metric = self.is_metric(id);
        let class = self.attach.class(id);
        let charge = match kind {
            _ if metric => Charge::Progress,
            Some(WindowKind::Survey) => Charge::Survey,
            Some(WindowKind::Burst) => Charge::Burst,
            // The last hits of a window that has just ended belong to the phase that we are in.
            Some(WindowKind::Trace) => Charge::Traced,
            None if matches!(self.phase, Phase::Survey) => Charge::Survey,
            None => Charge::Traced,
        };
        let own = new.attempted.saturating_sub(new.bystanders);
        let elapsed_s = now.saturating_sub(since_ns.max(opened_ns)) as f64 * 1e-9;
        let cold_ns = cost::cold_ns(class.cold, self.own_cpu * elapsed_s / own as f64);
        let ends = exits(&new);
        let cost = own as f64 * class.hit_price.ns
            + ends as f64 * class.exit_price.ns
            + own.saturating_add(ends) as f64 * cold_ns;
        let bystanders = new.bystanders as f64 * class.hit_price.ns;
        if metric {
            self.note_metric_cost(cost);
        }
        if self.comparison.as_ref().is_some_and(|c| c.leaves(id)) {
            self.ledger.charge_staying(charge, id, own, cost);
        } else {
            self.ledger.charge(charge, Some(id), own, cost);
        }
        self.ledger.charge(Charge::Bystanders, Some(id), new.bystanders, bystanders);
        new.attempted
    }

    fn ledger_tick(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.last_ledger_ns);
        // OK to read the old value when the target is gone: the interval then used nothing.
        let cpu = self.attach.cpu_ns(&self.target).max(self.last_cpu_ns);
        let used = cpu.saturating_sub(self.last_cpu_ns);
        let linked: Vec<ClassId> =
            self.attach.classes().iter().filter(|c| c.is_linked()).map(|c| c.id).collect();
        let mut hits: Vec<(ClassId, u64)> = linked.iter().map(|id| (*id, self.charge_class(*id))).collect();
        // What is hit while its link is made is paid for, and says nothing about its rate.
        hits.retain(|(id, _)| !self.attach.class(*id).is_pending());
        let factor = self.ledger.factor();
        let sample_cost = self.sampling.charge(&mut self.ledger, &self.cost) * factor;
        self.ledger.charge_units(Charge::Switches, None, self.new_switches, self.cost.switch);
        self.new_switches = 0;
        // Per-CPU events interrupt whatever runs there.
        let global = self.attach.kernel().classes().global_counters();
        self.note_kernel_losses(&global);
        let others = global.samples_other;
        let foreign = others.saturating_sub(self.foreign_samples);
        self.foreign_samples = others;
        self.ledger.charge_units(Charge::Bystanders, None, foreign, self.sampling.price(&self.cost));
        self.charge_metric(elapsed, used);
        self.charge_operations(elapsed);
        let operations = self.attach.take_operations();
        self.ledger.charge_units(Charge::Attach, None, operations, self.cost.attach);
        self.note_recurring(operations as f64 * self.cost.attach.ns);
        // Links made for a plan say nothing about what is to come.
        let once = self.attach.take_links_once();
        self.ledger.charge_units(Charge::Attach, None, once, self.cost.attach);
        let children = self.children_cost(elapsed, used, &hits);
        self.ledger.charge(Charge::Children, None, children.hits, children.cost_ns);
        self.note_misc(elapsed);
        let rows = self.ledger.close_interval(now, used);
        let charged_ns = self.ledger.charged_ns();
        let spent_ns = charged_ns - std::mem::replace(&mut self.last_charged_ns, charged_ns);
        let suspension = self.suspension();
        self.ledger.compare(matches!(self.phase, Phase::Run) && suspension.is_comparable());
        self.sampling.flush(&self.writer);
        self.writer.send(self.merger.push(&rows));
        self.last_ledger_ns = now;
        self.last_cpu_ns = cpu;
        self.note_cpu(elapsed, used);
        if !std::mem::replace(&mut self.sampling_started, true) {
            self.start_sampling();
        }
        if matches!(self.phase, Phase::Warmup { .. }) || !suspension.may_adapt() {
            return;
        }
        let bucket = self.ledger.bucket();
        let per_s = |ns: f64| ns / elapsed.max(1) as f64;
        // Samples as they were; the rest smoothed, or every tenth tick (switches are read once a second) would look like a disaster.
        let other = per_s(sample_cost) + self.claims().fixed();
        let tick = Tick {
            now_ns: now,
            elapsed_ns: elapsed,
            tokens_ns: bucket.available_ns() - bucket.debt_ns(),
            capacity_ns: bucket.capacity_ns(),
            reserved_ns: self.survey.reserved_ns(),
            income: bucket.rate(),
            spent: per_s(spent_ns),
            other_cost: other,
            sample_cost: per_s(sample_cost),
            sampling_hz: self.sampling.rate_hz(),
            hits: &hits,
            target_cpu: self.own_cpu,
        };
        let view = self.view();
        let orders = self.orders_of_trace(&view, |trace, seen, orders| trace.tick(&tick, seen, orders));
        self.execute(orders, false);
    }
}

/// Hits of exit sites or returns.
fn exits(counters: &ClassCounters) -> u64 {
    counters.returns.wrapping_add(counters.orphans)
}

/// For how long calls pay a breakpoint after its link was closed, ns: it was attached `age_ns` before, however short its window was, and a
/// grace period of the kernel takes `grace_ns` where it is not made short.
fn tail_ns(age_ns: u64, expedited: bool, grace_ns: f64) -> f64 {
    match (expedited, age_ns < FRESH_NS) {
        (true, _) => EXPEDITED_DELAY_NS,
        (false, true) => FRESH_DELAY_NS,
        (false, false) => grace_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_pay_for_as_long_as_the_grace_period_takes() {
        assert_eq!(tail_ns(FRESH_NS, false, 17e6), 17e6);
        assert_eq!(tail_ns(FRESH_NS, true, 17e6), EXPEDITED_DELAY_NS);
        assert_eq!(tail_ns(FRESH_NS - 1, false, 17e6), FRESH_DELAY_NS);
    }
}
