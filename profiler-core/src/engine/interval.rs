//! Ten times a second: an interval of the ledger is closed, and the controller asked. Once a second: threads and switches.

use super::command::Command;
use super::input::{Ended, Interval, SlowLook, ThreadHits};
use super::{Phase, Run, WantedThreads};
use crate::class::ClassId;
use crate::clients::children;
use crate::clients::operations;
use crate::clients::overhead;
use crate::clients::trace::client::{Seen, Trace};
use crate::clients::trace::problem::SAMPLING_HZ;
use crate::controller::Tick;
use crate::ledger::FLOOR_CPU_PER_S;
use crate::recording::{ChangeKind, Charge, WindowKind};
use crate::run::agent_limit::{AgentLimit, percent_up};
use crate::run::arbiter::{LEAST_SAMPLING_SHARE, bystanders};
use crate::run::order::Order;
use crate::run::view::{ClassView, View};

/// Interval of the ledger and the controller, ns.
const LEDGER_NS: u64 = 100_000_000;
/// Above so many threads one event per thread is not had.
const MANY_THREADS: usize = 500;
/// Sampling rate until there is a plan, where the budget pays for it, Hz of target CPU time.
const FIRST_RATE_HZ: f64 = 99.0;

impl Run {
    /// An interval of the ledger is over.
    #[must_use]
    pub fn is_interval_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.accounts.last_ns) >= LEDGER_NS
    }

    /// An interval of the ledger has been closed.
    #[must_use]
    pub fn has_closed_interval(&self) -> bool {
        self.finding.sampling_started
    }

    /// The plan runs, no window has to end before `until_ns`, and nobody but the plan has anything to do.
    #[must_use]
    pub fn is_quiet(&self, until_ns: u64) -> bool {
        self.is_running()
            && self.finding.is_idle()
            && self.trace.is_quiet(until_ns)
            && !self.children.is_rearming()
            && self.children.is_empty()
            && self.operations.is_none()
    }

    /// How far the agent is slowed to keep to its limit.
    #[must_use]
    pub fn agent_limit(&self) -> &AgentLimit {
        &self.accounts.agent
    }

    /// What the run has learned of prices, and of the agent's limit.
    pub(super) fn warn_of_prices(&mut self) {
        let ledger = &self.accounts.ledger;
        let warnings = overhead::warnings(ledger.cut(), ledger.factor(), ledger.hit_factor());
        self.commands.extend(warnings.into_iter().map(Command::Warn));
        if let Some(told) = self.accounts.agent.overshoot() {
            let why = if told.is_mended {
                "that was until it had been slowed enough, or before its work got less".to_owned()
            } else {
                let would_do = percent_up(self.accounts.agent.would_do().max(told.used));
                format!(
                    "fewer samples and bursts did not mend that; allow more (some --agent-cpu {would_do} would do), or name fewer functions"
                )
            };
            self.commands.push(Command::Warn(format!(
                "the agent used {:.1} % of a CPU where --agent-cpu allows {:.1} %: {why}",
                told.used * 100.0,
                self.settings.agent_cpu * 100.0
            )));
        }
    }

    /// Charges the interval that ends now, closes it, and asks the controller.
    pub(super) fn close_interval(&mut self, seen: &Interval, view: &mut View) {
        let now = view.now_ns;
        let surveying = self.phase == Phase::Survey;
        let elapsed = now.saturating_sub(self.accounts.last_ns);
        // OK to read the old value when the target is gone: the interval then used nothing.
        let cpu = seen.cpu_ns.max(self.accounts.last_cpu_ns);
        let used = cpu - self.accounts.last_cpu_ns;
        let hits = self.charge_linked(view);
        let sample_cost = self.accounts.charge_interval(seen, self.settings.sample, surveying);
        self.charge_metric(elapsed, used, seen.probed);
        self.tell_operations(operations::Input::Interval { elapsed_ns: elapsed }, view);
        let look = seen.children.clone();
        let children =
            children::Input::Interval { look, elapsed_ns: elapsed, target_cpu_ns: used, hits: hits.clone() };
        self.tell_children(children, view);
        let children = self.children.take_cost();
        self.accounts.ledger.charge(Charge::Children, None, children.hits, children.cost_ns);
        self.accounts.note_misc(elapsed);
        self.follow_samples(seen, used, view);
        let rows = self.accounts.ledger.close_interval(now, used);
        let spent_ns = self.accounts.take_spent_ns();
        // Before the tick of the plan: a burst waits for a pair that is asked for, and not the other way round.
        self.tell_activities(view);
        self.close_references(view);
        let suspension = self.suspension();
        let comparable = self.is_running() && suspension.is_comparable();
        self.accounts.ledger.compare(comparable);
        let rows = self.accounts.merger.push(&rows);
        self.commands.push(Command::Ledger(rows));
        (self.accounts.last_ns, self.accounts.last_cpu_ns) = (now, cpu);
        self.accounts.note_cpu(elapsed, used);
        self.accounts.agent.note(seen.agent_cpu_ns, now.saturating_sub(self.times.start_ns));
        self.accounts.agent.bound(self.trace.most_slowdown());
        if self.suspension().is_comparable() {
            let samples = self.trace.cut_hz() * used as f64 * 1e-9;
            self.accounts.agent.cut(samples, self.trace.cut_bursts_hz() * elapsed as f64 * 1e-9);
        }
        self.complete(view);
        if !std::mem::replace(&mut self.finding.sampling_started, true) {
            self.start_sampling(view);
        }
        if matches!(self.phase, Phase::Warmup) || !suspension.may_adapt() {
            return;
        }
        let bucket = self.accounts.ledger.bucket();
        let per_s = |ns: f64| ns / elapsed.max(1) as f64;
        // Samples as they were; the rest smoothed, or every tenth tick (switches are read once a second) would look like a disaster.
        let other_cost = per_s(sample_cost) + self.claims(view).fixed();
        let tick = Tick {
            now_ns: now,
            elapsed_ns: elapsed,
            tokens_ns: bucket.available_ns() - bucket.debt_ns(),
            capacity_ns: bucket.capacity_ns(),
            reserved_ns: self.survey.reserved_ns(),
            income: bucket.rate(),
            spent: per_s(spent_ns),
            other_cost,
            sample_cost: per_s(sample_cost),
            sampling_hz: view.samples.rate_hz,
            hits: &hits,
            target_cpu: self.accounts.own_cpu,
            slowdown: self.accounts.agent.slowdown(),
        };
        let orders = self.orders_of_trace(view, |trace, seen, orders| trace.tick(&tick, seen, orders));
        self.follow(orders, view);
    }

    /// What hits cost by samples in traps. Those of the progress metric are no hits of the plan, and may be among those of which the class is not known.
    fn follow_samples(&mut self, interval: &Interval, used_ns: u64, view: &View) {
        let is_function = view.classes.iter().any(|c| self.is_metric(c.id));
        let is_ours = |id: &Option<ClassId>| id.map_or(!is_function, |id| !self.is_metric(id));
        let seen = interval.in_traps.iter().filter(|(id, _)| is_ours(id)).map(|(_, n)| n).sum();
        let before = self.accounts.ledger.hit_factor();
        let factor = self.accounts.compare_with_samples(seen, interval.samples, used_ns);
        if let Some(factor) = factor.filter(|_| self.accounts.ledger.hit_factor() != before) {
            let why = format!("hits take {factor:.2} times what was calibrated, by samples in traps");
            self.commands.push(Command::Detail(why));
            self.want_plan(None);
        }
    }

    /// Charges the hits of all classes that have links, or had them. Returns those that say something about a rate.
    fn charge_linked(&mut self, view: &View) -> Vec<(ClassId, u64)> {
        // A link that was given up while it was made, or that the kernel refused, has been hit all the same.
        let is_due = |c: &&ClassView| c.link.is_there() || c.attempted != self.accounts.attempted(c.id);
        let due: Vec<&ClassView> = view.classes.iter().filter(is_due).collect();
        let mut hits = Vec::new();
        for class in due {
            let new = self.charge_class(class, view.now_ns, None);
            // What is hit while its link is made is paid for, and says nothing about its rate.
            if class.link.is_there() && !class.is_pending() {
                hits.push((class.id, new));
            }
        }
        hits
    }

    /// What the plan's client orders, as far as `view` shows what it must know.
    pub(super) fn orders_of_trace(
        &mut self,
        view: &View,
        step: impl FnOnce(&mut Trace, &Seen<'_>, &mut Vec<Order>),
    ) -> Vec<Order> {
        let suspension = self.suspension();
        let names: Vec<&str> = view.names.iter().map(String::as_str).collect();
        let mut orders = Vec::new();
        step(&mut self.trace, &Seen { view, names: &names, suspension }, &mut orders);
        orders
    }

    /// Rows of the ledger that wait for their second to be over: at the end of the run.
    pub fn last_rows(&mut self) -> Vec<crate::recording::LedgerRow> {
        self.accounts.merger.take()
    }

    /// Closes windows whose time is over.
    pub(super) fn close_due(&mut self, view: &View) {
        let mut orders = Vec::new();
        self.trace.end_bursts(view.now_ns, |_| true, &mut orders);
        if self.phase == Phase::Survey {
            self.survey.end_windows(view.now_ns, |_| true, &mut orders);
        }
        self.follow(orders, view);
    }

    /// Sampling rate until there is a plan, Hz of target CPU time. No controller slows it yet: it takes what a plan would spend on the lowest
    /// rate at most.
    fn first_rate_hz(&self) -> f64 {
        let cpu = self.accounts.own_cpu.max(FLOOR_CPU_PER_S);
        let price_s = self.settings.sample.seconds() * self.accounts.ledger.factor();
        let wanted = self.settings.trace.fixed_rate_hz.unwrap_or(FIRST_RATE_HZ);
        wanted.min(LEAST_SAMPLING_SHARE * self.arbiter().allowed() / (cpu * price_s).max(1e-12))
    }

    /// Starts sampling, once the first interval has shown how often the target is switched: an event for each thread is paid for at every
    /// switch (simulated launched programs spent 11 times what a second may cost). A program that ends before has no samples.
    fn start_sampling(&mut self, view: &View) {
        let rate = self.first_rate_hz();
        if rate <= 0.0 || self.settings.trace.only_named {
            return;
        }
        let rate = self.choose_events(rate, view).map_or(rate, |bearable| bearable.min(rate));
        // A program that was held has a plan already, with a rate of its own.
        if self.trace.plans() == 0 {
            self.commands.push(Command::Period((1e9 / rate) as u64));
        }
        self.commands.push(Command::LookAtThreads);
    }

    /// Threads and switches, once a second.
    pub(super) fn look(&mut self, look: &SlowLook, view: &View) {
        self.threads.look(look);
        if look.tids.is_some() {
            // A target with one thread need not pay for it.
            let on = self.threads.are_many() && self.thread_limit().is_some();
            self.commands.push(Command::CountByThread(on));
        }
        if let Some((switches, elapsed_ns)) = look.switches {
            // The machine counts since it was made, and a program that was held was not switched.
            let elapsed_ns = elapsed_ns.min(view.now_ns.saturating_sub(self.accounts.switches.since_ns));
            // Two looks that follow each other at once would take the switches of a moment for a rate.
            if elapsed_ns >= LEDGER_NS {
                self.accounts.switches.per_s = switches as f64 * 1e9 / elapsed_ns as f64;
                let (elapsed_s, cpus) = (elapsed_ns as f64 * 1e-9, self.settings.cpus);
                let rests = self.accounts.note_rests(elapsed_s, (switches, &look.uses), cpus);
                self.commands.extend(rests.map(Command::Rests));
            }
            if view.samples.threads > 0 {
                self.accounts.switches.new += switches;
            }
        }
        if self.finding.sampling_started {
            let rate = view.samples.rate_hz;
            if let Some(bearable) = self.choose_events(rate, view).filter(|bearable| *bearable < rate) {
                self.commands.push(Command::Period((1e9 / bearable) as u64));
                self.want_plan(None);
            }
        }
        self.choose_references(&self.trace.present_rates(view), view);
        self.show_progress(view);
    }

    /// One event per thread, or one per CPU where `switches/s x tau_switch` would take a quarter of the budget or there are
    /// too many threads. Per CPU the *others* pay `rate x foreign CPUs x tau_s`, which is bounded and shown. Returns the highest rate that
    /// they may be made to pay for, if events go per CPU now.
    fn choose_events(&mut self, rate_hz: f64, view: &View) -> Option<f64> {
        if view.samples.per_cpu || view.samples.off {
            return None;
        }
        let threads = self.threads.count();
        let switches_per_s = self.accounts.switches.per_s;
        let switching = switches_per_s * self.accounts.prices.switch.seconds();
        let cpus = self.settings.cpus;
        let foreign = (f64::from(cpus) - self.accounts.own_cpu).max(0.0);
        // At the rate in force: at one that was asked for and is not paid for events would stay per thread, and switches alone cost the target more than the budget.
        let at = |hz: f64| hz * foreign * self.settings.sample.seconds();
        let bearable = at(rate_hz) <= bystanders(cpus);
        if threads <= MANY_THREADS && (switching <= self.arbiter().switching() || !bearable) {
            return None;
        }
        // A later plan may have a higher rate, and no higher one than others may be made to pay for.
        let most_hz = self.settings.trace.fixed_rate_hz.unwrap_or(SAMPLING_HZ.1).max(rate_hz);
        let others = at(most_hz).min(bystanders(cpus));
        self.commands.push(Command::SampleCpus(format!(
            "samples come from one event per CPU ({threads} threads, {switches_per_s:.0} switches/s): other processes pay up to \
             {:.3} % of a CPU for them",
            others * 100.0
        )));
        Some(bystanders(cpus) / at(1.0).max(1e-12))
    }

    /// It is time to judge threads, and there is more than one.
    #[must_use]
    pub fn begin_threads(&mut self, now_ns: u64) -> bool {
        let is_due = self.threads.is_due(now_ns);
        if is_due {
            self.threads.begin(now_ns);
        }
        is_due && self.threads.are_many()
    }

    /// Which counters of hits by thread are to be read now; `None`: threads need not be judged.
    pub fn wants_threads(&mut self, view: &View) -> Option<WantedThreads> {
        if self.thread_limit().is_none() || self.finding.is_held {
            return None;
        }
        let (factor, cpu) = (self.accounts.ledger.hit_factor(), self.accounts.own_cpu);
        let price = |id: ClassId, hits: u64, elapsed_s: f64| {
            view.class(id).tau_ns(cpu * elapsed_s / hits as f64) * factor
        };
        let hits = view.classes.iter().map(|c| (c.id, self.accounts.attempted(c.id)));
        Some(self.threads.ask(hits, price))
    }

    /// Which threads lose more than they may, and what the controller does about it.
    pub(super) fn judge_threads(&mut self, hits: &ThreadHits, view: &View) {
        let Some(limit) = self.thread_limit() else { return };
        let other = self.other_prices(view);
        let over = self.threads.judge(hits, view.now_ns, other, limit);
        if let Some(why) = self.threads.blindness() {
            let what = "what single threads lose".to_owned();
            self.commands.push(Command::Note(format!("{what} is not watched: {why}")));
            self.commands.push(Command::NotObserved(what, why));
        }
        if over.is_empty() {
            return;
        }
        if let Some((class, text)) = self.threads.notice(&over, limit, view.now_ns) {
            self.commands.push(Command::Change(ChangeKind::Thread, class, text));
        }
        let orders = self.orders_of_trace(view, |trace, seen, orders| trace.relieve(&over, seen, orders));
        self.follow(orders, view);
    }

    /// The breaker ended a window that was no burst of the plan.
    pub(super) fn note_trip(&mut self, ended: &Ended) {
        let row = &ended.row;
        let ms = row.end_ns.saturating_sub(row.start_ns) as f64 * 1e-6;
        let (kind, what) = if row.kind == WindowKind::Trace {
            (ChangeKind::Trip, "it was attached")
        } else {
            (ChangeKind::Trial, "its trial began")
        };
        let mut text = if row.end_ns > row.start_ns {
            format!("{} calls and {ms:.1} ms after {what} its quota was used up", row.kept)
        } else {
            "called so often while it was being attached that the breaker took it off".to_owned()
        };
        if let Some(remark) = &ended.remark {
            text = format!("{text}; {remark}");
        }
        self.commands.push(Command::Change(kind, Some(ended.class.id), text));
    }

    fn show_progress(&mut self, view: &View) {
        let elapsed = view.now_ns.saturating_sub(self.times.start_ns) / 1_000_000_000;
        let traced = view.open().count();
        let trips = self.trace.trips();
        let stopped = if trips > 0 { format!(", {trips} stopped") } else { String::new() };
        let operations = self.operations.as_ref().map_or_else(String::new, |o| o.line());
        self.commands.push(Command::Progress(format!(
            "{elapsed} s: {traced} functions traced, {:.0} samples/s, cost {:.2} % of {} allowed{stopped}{operations}",
            view.samples.rate_hz,
            self.accounts.ledger.predicted() * 100.0,
            self.settings.budget
        )));
    }
}

#[cfg(test)]
#[path = "tests/interval.rs"]
pub(super) mod tests;
