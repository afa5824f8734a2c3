//! Once a revision: what was seen goes into rows and to the policy, its orders go to the kernel.

use super::super::Session;
use super::super::attach::now_ns;
use super::{Operation, Operations};
use crate::prober::operation::OPERATION_MONITORING;
use crate::prober::{OPERATION_RECORDED, OperationCounters, OperationTable, Sums};
use profiler_core::adapt::attach::Slices;
use profiler_core::adapt::budget::OperationBudget;
use profiler_core::adapt::decision::threshold;
use profiler_core::adapt::spending::{SPAN_S, record_own_ns, slice_most_s};
use profiler_core::adapt::{ClassWindow, OperationClassId, WindowSummary};
use profiler_core::class::{RecordKind, SiteClass};
use profiler_core::clients::operations::slices::{InnerAllowed, SLICE_PART, longest_ns};
use profiler_core::cost::cold_ns;
use profiler_core::recording::{
    ChangeKind, Charge, OperationCycleEnd, OperationCycleRow, OperationRow, OperationWindowRow,
};
use profiler_core::stats::moments::Moments;

/// Inner functions stay attached for so long after recording was switched off, so that operations in flight end with all
/// their calls, ns.
const LINGER_NS: u64 = 50_000_000;
/// Operations are taken to be watched for this part of the time at least.
const LEAST_WATCHED: f64 = 0.01;
/// Of a window's longest response time that much is kept in the next.
const KEPT: f64 = 0.8;

/// What one operation did in a window.
pub(super) struct Cut {
    rows: Vec<OperationWindowRow>,
    pub(super) summary: WindowSummary,
    pub(super) begun: u64,
    recorded: u64,
    cost_ns: u64,
    ended_recorded: u64,
    pub(super) screened: u64,
}

fn moments(sums: &Sums) -> Moments {
    Moments::from_sums(sums.n, sums.sum as f64, sums.squares())
}

impl Operation {
    /// Reads what happened since the last cut. The next window begins here.
    fn cut(&mut self, table: &OperationTable, now: u64) -> Cut {
        let orders = self.adapter.orders().clone();
        let watched_ns = self.watched_ns.min(now.saturating_sub(self.since_ns));
        let used = u64::from(self.classes.end).min(table.next_class(self.number));
        let mut cut = Cut {
            rows: Vec::new(),
            summary: WindowSummary {
                length_s: watched_ns as f64 * 1e-9,
                monitoring: self.monitoring,
                classes: Vec::new(),
            },
            begun: 0,
            recorded: 0,
            cost_ns: 0,
            ended_recorded: 0,
            screened: 0,
        };
        let mut seen_s = 0.0_f64;
        // OK because class numbers are below 2^16.
        for class in self.classes.start..used as u32 {
            let counters = table.counters(class);
            let last = &mut self.last[(class - self.classes.start) as usize];
            let new = counters.since(last);
            *last = counters;
            // The row of the operation's own class also says that it was watched.
            let silent = class != self.classes.start || watched_ns == 0;
            if new == OperationCounters::default() && silent {
                continue;
            }
            let of_class = orders.of(OperationClassId(class));
            cut.rows.push(self.row(class, &new, (now, watched_ns), (of_class.rate, of_class.stretch)));
            cut.begun += new.begun();
            cut.recorded += new.recorded;
            cut.cost_ns += new.cost_ns;
            cut.ended_recorded += new.sample.n;
            cut.screened += new.screened;
            if new.population.n > 0 {
                let population = moments(&new.population);
                seen_s = seen_s.max(longest_ns(&population) * 1e-9);
                cut.summary.classes.push(ClassWindow {
                    class: OperationClassId(class),
                    population,
                    sample: moments(&new.sample),
                    measure: moments(&new.measure),
                    cost_s: new.cost_ns as f64 * 1e-9,
                });
            }
        }
        if seen_s > 0.0 {
            self.longest_s = seen_s.max(KEPT * self.longest_s);
        }
        self.rate_hz = if watched_ns > 0 { cut.begun as f64 / (watched_ns as f64 * 1e-9) } else { 0.0 };
        self.recorded_share = cut.recorded as f64 / cut.begun.max(1) as f64;
        self.population += cut.begun;
        self.sample += cut.recorded;
        (self.since_ns, self.watched_ns) = (now, 0);
        cut
    }

    fn row(
        &self,
        class: u32,
        new: &OperationCounters,
        (now, watched_ns): (u64, u64),
        orders: (f64, u64),
    ) -> OperationWindowRow {
        OperationWindowRow {
            operation: self.number,
            class_id: class,
            start_ns: self.since_ns,
            end_ns: now,
            watched_ns,
            monitoring: self.monitoring,
            rate: if self.monitoring { orders.0 } else { 0.0 },
            stretch: orders.1,
            cycle: self.cycle,
            population: new.population.n,
            population_sum_ns: new.population.sum as f64,
            population_squares_ns2: new.population.squares(),
            sample: new.sample.n,
            sample_sum_ns: new.sample.sum as f64,
            sample_squares_ns2: new.sample.squares(),
            measure_sum: new.measure.sum as f64,
            measure_squares: new.measure.squares(),
            cost_ns: new.cost_ns,
            begun: new.begun(),
            recorded: new.recorded,
            off: new.off,
            not_drawn: new.not_drawn,
            balanced: new.balanced,
            no_quota: new.no_quota,
            unmatched: new.unmatched,
            dropped: new.dropped,
        }
    }

    /// Writes rates (of what is attached), prices and stretches.
    fn order(&self, table: &OperationTable, slices: &Slices) {
        let orders = self.adapter.orders();
        for class in self.classes.clone() {
            let of_class = orders.of(OperationClassId(class));
            // OK because the cast saturates.
            let price_ns = (of_class.price_s * 1e9) as u64;
            table.order(class, threshold(slices.draw(of_class.rate)), price_ns, of_class.stretch);
        }
    }
}

/// Recording on or off in the kernel.
pub(super) fn switch(table: &OperationTable, number: u32, on: bool) {
    table.adjust(number, |c| {
        c.flags = c.flags & !OPERATION_MONITORING | if on { OPERATION_MONITORING } else { 0 }
    });
}

impl Session {
    /// One revision of all operations.
    pub(super) fn revise_operations(&mut self, now: u64) {
        let allowed = self.operations_budget();
        let (inner_ns, inner_cold) = self.inner_cost_ns();
        let syscalls_ns = self.screened_syscalls_ns();
        let factor = self.ledger.factor();
        let own_ns = record_own_ns(self.cost.hit_price(SiteClass::Push, RecordKind::Count).ns);
        let table = self.attach.kernel().operations().clone();
        let Some(mut operations) = self.operations.take() else { return };
        let given: u64 = operations.list.iter().map(|o| table.next_class(o.number)).sum();
        if given != std::mem::replace(&mut operations.names_given, given) {
            let names = operations.new_classes();
            self.writer.send(names);
        }
        let attach_s = self.cost.attach.seconds();
        let mut said = Vec::new();
        let mut quotas = Vec::new();
        let mut rows = Vec::new();
        let mut cycles = Vec::new();
        let elapsed_s =
            operations.list.first().map_or(1.0, |o| now.saturating_sub(o.since_ns) as f64 * 1e-9).max(1e-3);
        let cuts: Vec<Cut> = operations.list.iter_mut().map(|o| o.cut(&table, now)).collect();
        let recorded_ns: u64 = cuts.iter().map(|c| c.cost_ns).sum();
        let recorded: u64 = cuts.iter().map(|c| c.recorded).sum();
        let begun_hz = cuts.iter().map(|c| c.begun).sum::<u64>() as f64 / elapsed_s;
        let writing_ns = recorded as f64 * own_ns;
        self.ledger.charge(Charge::Traced, None, recorded, writing_ns);
        let by_syscalls: u64 =
            operations.list.iter().zip(&cuts).filter(|(o, _)| o.by_syscalls()).map(|(_, c)| c.begun).sum();
        // The kernel adds up warm prices.
        let outside = (inner_ns - recorded_ns as f64 * inner_cold).max(0.0) * 1e-9 / elapsed_s * factor;
        let mut screening = 0.0;
        for (o, cut) in operations.list.iter_mut().zip(&cuts) {
            if o.by_syscalls() && by_syscalls > 0 {
                o.screen_ns = syscalls_ns / by_syscalls as f64;
            } else if o.by_tracepoints && cut.begun > 0 {
                o.screen_ns = cut.screened as f64 * self.cost.tracepoint.ns / cut.begun as f64;
            }
            if !o.bounds.is_empty() {
                o.screen_cold_ns = self.screen_cold_ns(o, cut);
            }
            screening += cut.begun as f64 * o.screened_ns() * 1e-9 / elapsed_s * o.screen_factor(factor);
            if cut.ended_recorded > 0 {
                // Half of the screening lies between the time stamps, and is not recording.
                let mean = cut.cost_ns as f64 / cut.ended_recorded as f64 - 0.5 * o.screen_ns;
                let mean = mean.max(0.0) + own_ns;
                o.record_ns = if o.record_ns == 0.0 { mean } else { 0.5 * (o.record_ns + mean) };
            }
        }
        operations.cost = (inner_ns + writing_ns) * 1e-9 / elapsed_s * factor + screening;
        let unmixed = !std::mem::take(&mut operations.mixed);
        let complete = operations.complete;
        let lacks = complete && unmixed && table.lacks_details();
        // Twice in a row it was no trip of which nobody has heard yet.
        if std::mem::replace(&mut operations.lacked, lacks) && lacks {
            // An alarm that was lost: the link has never gone.
            table.details_end();
            table.details_are_back();
            operations.lacked = false;
        }
        let times = cuts.iter().flat_map(|cut| cut.summary.classes.iter().map(|c| &c.population));
        operations.slices.learn(inner_ns * 1e-9, times);
        operations.learn_demands(&cuts, elapsed_s, factor, syscalls_ns, self.cost.tracepoint.ns);
        // What screening costs does not depend on what is left for recording.
        let portions = operations.portions(allowed);
        let screens: f64 = portions.iter().map(|p| p.screening).sum();
        // Slices are cut from the time in which operations are watched.
        let watched_s = cuts.iter().map(|cut| cut.summary.length_s).fold(0.0, f64::max);
        let watched = (watched_s / elapsed_s).clamp(LEAST_WATCHED, 1.0);
        // Those that pause come back when a slice has room.
        let pausing = portions.iter().any(|p| p.is_dear);
        let inner_allowed = InnerAllowed {
            inner: (allowed - screens).max(0.0),
            all: allowed,
            slice_s: if pausing { f64::INFINITY } else { slice_most_s(screens, allowed) },
        };
        let inner = operations.inner_cost(factor, attach_s, inner_allowed, watched);
        // In slices all that is attached records, unless not all could be attached.
        let gave_up = operations.slices.take_gave_up();
        let outside_fixed = if inner.is_some() && !gave_up { 0.0 } else { outside };
        let attached = operations.slices.attached() * factor;
        let dear = std::mem::take(&mut operations.inner_tripped) && attached > allowed;
        if dear && !std::mem::replace(&mut operations.said_inner, true) {
            said.push(format!(
                "inner functions cost {:.2} % of a CPU while they are attached, where operations may cost {:.2} %: they are \
                 attached for a part of the time, and nothing is recorded meanwhile; name fewer or rarer ones with --detail",
                attached * 100.0,
                allowed * 100.0
            ));
        }
        let mut given = operations.portions(allowed - outside_fixed).into_iter();
        for (o, cut) in operations.list.iter_mut().zip(cuts) {
            rows.extend(cut.rows);
            let Some(portion) = (!o.lost).then(|| given.next()).flatten() else {
                o.monitoring = false;
                continue;
            };
            // Its rate is that of the watched time, and nothing costs anything in the rest.
            let watched = (cut.summary.length_s / elapsed_s).clamp(0.0, 1.0);
            let record_ns = (o.record_ns * inner_cold).max(own_ns) * factor;
            // In a slice all operations pay, and what is hit outside operations, too.
            let of_slice_ns = inner.map_or(0.0, |i| i.attached / begun_hz.max(1.0) * 1e9 + own_ns * factor);
            let screen_s = o.screened_ns() * 1e-9 * o.screen_factor(factor) * watched;
            let screening = screen_s * cut.summary.throughput_hz();
            let budget = OperationBudget {
                cpu_per_s: portion.recording + screening,
                record_s: record_ns.max(of_slice_ns) * 1e-9 * watched,
                screen_s,
            };
            let left_s = portion.recording * operations.config.revise_s;
            let quota_s = left_s * operations.slices.crowding(operations.config.revise_s);
            said.extend(o.note_quota(operations.policy, &cut.summary, quota_s, record_ns * 1e-9));
            o.most_screening = portion.most_screening;
            // Only `adp` compares windows on with windows off; to the others, and to the cycle, a window in which less was recorded is a
            // window with a smaller sample.
            let comparable = unmixed && complete;
            o.adapter.set_inner(inner);
            let step = if comparable {
                o.adapter.step(&cut.summary, Some(&budget))
            } else {
                o.adapter.step_apart(&cut.summary, Some(&budget))
            };
            if let Some(row) = o.follow(&step, &table, now) {
                cycles.push((o.name.clone(), row));
            }
            if portion.is_dear && !std::mem::replace(&mut o.said_dear, true) {
                said.push(o.dear_in_words(&portion, cut.summary.throughput_hz()));
            }
            let quota_s = o.adapter.orders().quota_s.unwrap_or(left_s);
            quotas.push((o.number, quota_s));
            let wanted = o.adapter.orders().monitoring;
            if !wanted && o.monitoring {
                switch(&table, o.number, false);
                operations.linger_ns = operations.linger_ns.max(now + LINGER_NS);
            }
            o.monitoring = wanted;
        }
        // All share their inner functions: the one that wants most of the time says.
        let plans = operations.list.iter().filter(|o| o.monitoring && !o.lost);
        let plans = plans.map(|o| o.adapter.orders().slices);
        let slices = plans.max_by(|a, b| a.share.total_cmp(&b.share)).unwrap_or(operations.slices.plan());
        if operations.slices.plan().are_always()
            && !slices.are_always()
            && !std::mem::replace(&mut operations.said_slices, true)
        {
            said.push(format!(
                "functions inside operations are attached for {:.0} % of the time, in slices at random, and operations are recorded in these: \
                 those that are not recorded do not pay for them (--adapt attach_share=false keeps them attached)",
                slices.share * 100.0
            ));
        }
        operations.slices.follow(slices);
        let crowding = operations.slices.crowding(operations.config.revise_s);
        // All of a slice is recorded: it is paid for, and the quotas of inner functions end what is too dear.
        let slice_s = if operations.slices.plan().are_always() { 0.0 } else { SLICE_PART * SPAN_S * allowed };
        for (number, quota_s) in quotas {
            // OK because the cast saturates.
            table.set_quota(number, ((quota_s * crowding).max(slice_s) * 1e9) as u64);
        }
        for o in &operations.list {
            o.order(&table, &slices);
        }
        said.extend(self.say_starving(&mut operations));
        for (name, row) in &cycles {
            if let Some(note) = operations.hook.as_mut().and_then(|hook| hook.run(name, row)) {
                said.push(note);
            }
        }
        self.operations = Some(operations);
        self.writer.send(rows);
        for text in said {
            self.progress.note(&text);
        }
        for (name, row) in cycles {
            self.say_cycle(&name, &row);
            self.writer.send(vec![row]);
        }
        // Inner functions first: an operation is recorded with all its calls or not at all.
        self.keep_bounds(now_ns());
        let Some(operations) = &mut self.operations else { return };
        // Attaching them for this window is no change within it.
        operations.mixed = false;
        self.record_operations();
    }

    /// What cold caches add to screening one operation at its rate in this window, ns.
    fn screen_cold_ns(&self, o: &Operation, cut: &Cut) -> f64 {
        let gap_s = self.own_cpu * cut.summary.length_s / cut.begun as f64;
        let colds = o.bounds.iter().map(|id| cold_ns(self.attach.class(*id).cold, gap_s));
        // A begin and an end.
        2.0 * colds.fold(0.0, f64::max)
    }

    /// Cost of the hits of inner functions since the last call, ns, as the ledger charges it, and over that with warm caches.
    fn inner_cost_ns(&mut self) -> (f64, f64) {
        let Some(operations) = &mut self.operations else { return (0.0, 1.0) };
        let (mut warm_ns, mut more_ns) = (0.0, 0.0);
        let cpu_s = self.own_cpu * operations.slices.attached_s();
        for kept in &operations.inner {
            let class = self.attach.class(kept.class);
            let c = self.attach.kernel().classes().counters(kept.class);
            let now = (c.attempted, c.returns.wrapping_add(c.orphans));
            let last = operations.inner_last.insert(kept.class, now).unwrap_or_default();
            let (hits, ends) = (now.0.wrapping_sub(last.0) as f64, now.1.wrapping_sub(last.1) as f64);
            warm_ns += hits * class.hit_price.ns + ends * class.exit_price.ns;
            more_ns += (hits + ends) * cold_ns(class.cold, cpu_s / hits);
        }
        let over = if warm_ns > 0.0 { 1.0 + more_ns / warm_ns } else { 1.0 };
        (warm_ns + more_ns, over)
    }

    /// Cost of the tracepoints of system calls since the last call, ns.
    fn screened_syscalls_ns(&mut self) -> f64 {
        let own = self.attach.kernel().classes().global_counters().operation_syscalls;
        let Some(screen) = self.operations.as_deref_mut().and_then(Operations::syscall_screen) else {
            return 0.0;
        };
        let new = own - std::mem::replace(&mut screen.seen, own);
        new as f64 * self.cost.tracepoint.ns
    }

    fn say_cycle(&self, name: &str, row: &OperationCycleRow) {
        let end = match row.end {
            OperationCycleEnd::Representative => "representative",
            OperationCycleEnd::Timeout => "timeout",
            OperationCycleEnd::RunEnd => "run end",
        };
        let unobserved = match row.unobserved.as_slice() {
            [] => String::new(),
            list => format!("; {} classes without a recorded one", list.len()),
        };
        let text = format!(
            "cycle {} of {name} after {:.1} s: {end} (z {:.2}), {} of {} recorded{unobserved}",
            row.number,
            row.end_ns.saturating_sub(row.start_ns) as f64 * 1e-9,
            row.z,
            row.sample,
            row.population
        );
        self.warn_verbose(&text);
        self.note_change(ChangeKind::Cycle, None, text);
    }

    /// The end of the run: everything is detached.
    pub(in crate::session) fn end_operations(&mut self, end_ns: u64) {
        self.drain_operations();
        let open = self.open_operations_at(end_ns);
        let table = self.attach.kernel().operations().clone();
        let Some(mut operations) = self.operations.take() else { return };
        let names = operations.new_classes();
        self.writer.send(names);
        self.writer.send(open);
        let mut rows = Vec::new();
        let mut cycles = Vec::new();
        let now = now_ns();
        let begun = operations.begun;
        for o in &mut operations.list {
            switch(&table, o.number, false);
            if !begun {
                continue;
            }
            let cut = o.cut(&table, now.min(end_ns).max(o.since_ns));
            rows.extend(cut.rows);
            let step = o.adapter.step(&cut.summary, None);
            if let Some(row) = o.follow(&step, &table, end_ns) {
                cycles.push((o.name.clone(), row));
            }
            let cycle = o.adapter.cycle();
            let (population, sample) = cycle.totals();
            if population.n() > 0 {
                let counts = (population.n(), sample.n());
                let (share, unobserved) = (cycle.largest_share_difference(), cycle.unobserved());
                let end = OperationCycleEnd::RunEnd;
                cycles.push((
                    o.name.clone(),
                    o.cycle_row(end_ns, end, &step.evaluation, counts, share, &unobserved),
                ));
            }
        }
        self.writer.send(rows);
        for (name, row) in cycles {
            self.say_cycle(&name, &row);
            self.writer.send(vec![row]);
        }
        self.note_operation_losses(&operations, &table);
        self.note_starving(&operations);
    }

    /// Operations that have not ended: recorded ones get a row.
    fn open_operations_at(&self, end_ns: u64) -> Vec<OperationRow> {
        /// Threads that are asked at most: two system calls each.
        const ASKED_THREADS: usize = 2_000;
        if self.operations.is_none() {
            return Vec::new();
        }
        // A target that has ended has no threads to ask.
        let Ok(threads) = self.target.threads() else { return Vec::new() };
        let open = self.attach.kernel().open_operations(&threads[..threads.len().min(ASKED_THREADS)]);
        open.into_iter()
            .filter(|(_, o)| o.flags & OPERATION_RECORDED != 0)
            .map(|(tid, o)| OperationRow {
                operation: o.operation,
                class_id: o.class,
                // OK because thread ids are positive.
                tid: tid as u32,
                begin_ns: o.begin_ns,
                duration_ns: end_ns.saturating_sub(o.begin_ns),
                calls: 0,
                inner_ns: 0,
                measure: 0,
                cost_ns: 0,
                off_cpu_ns: None,
                cycle: o.cycle,
                stretch: o.stretch,
                censored: true,
            })
            .collect()
    }
}
