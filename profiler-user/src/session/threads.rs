//! What single threads lose: hits by thread and class against the thread's own CPU time.
//!
//! The kernel counts hits by thread and class in one array of counters (`profiler_common::thread::thread_cell`); prices, samples
//! and switches are added here, CPU time comes from the meter that reads every thread's account once a second anyway. Where
//! a thread loses more than its limit, the controller takes off what is worth least on it, and the next plan is made with what
//! each thread can bear (`profiler_core::ledger::ThreadBounds`).

use super::Session;
use super::attach::Attachments;
use profiler_common::thread::{THREAD_CELLS, thread_cell};
use profiler_core::class::ClassId;
use profiler_core::ledger::{Notices, Slice, Spread, ThreadBounds, ThreadBudget};
use profiler_core::recording::{ChangeKind, NotObserved};
use profiler_core::run::arbiter::THREAD_PLAN_SHARE;
use profiler_core::run::threads;
use std::collections::{BTreeMap, HashMap};

/// Threads are judged so often, ns.
const CHECK_NS: u64 = 250_000_000;
/// Counters read in one check at most; of more, those of the classes that cost most.
const MOST_CELLS: usize = 100_000;

/// What is known of the target's threads.
#[derive(Debug, Default)]
pub(super) struct Threads {
    budget: ThreadBudget,
    spread: Spread,
    /// Threads alive at the last look.
    tids: Vec<u32>,
    /// Counters as last read.
    cells: HashMap<u32, u64>,
    /// Hits of each class when the counters were last read.
    attempted: BTreeMap<ClassId, u64>,
    last_ns: u64,
    notices: Notices,
    /// Too many pairs of thread and class share counters: nothing is judged. And whether that was said.
    blind: bool,
    blind_said: bool,
}

/// Stands for the threads on shared counters.
const NOBODY: u32 = 0;
/// With a larger part of the pairs of thread and class on shared counters, threads are not judged.
const MOST_SHARED: f64 = 0.5;

/// What hits of some classes took from one thread in an interval.
type Taken = BTreeMap<u32, Vec<(ClassId, f64)>>;

impl Threads {
    /// These threads are alive.
    pub fn keep(&mut self, tids: &[i32]) {
        self.tids = tids.iter().filter_map(|t| u32::try_from(*t).ok()).collect();
        self.tids.sort_unstable();
        let Self { tids, spread, .. } = self;
        spread.keep_threads(|tid| tid == NOBODY || tids.binary_search(&tid).is_ok());
    }

    /// There is more than one thread: else none can lose more than all of them.
    pub fn are_many(&self) -> bool {
        self.tids.len() > 1
    }

    /// Classes that have been hit since the last look, with their hits and the price of one, the dearest first.
    fn hit(&mut self, attach: &Attachments, price: impl Fn(ClassId, u64) -> f64) -> Vec<(ClassId, u64, f64)> {
        let mut hit = Vec::new();
        for class in attach.classes() {
            let now = class.charged.attempted;
            let before = self.attempted.insert(class.id, now).unwrap_or(0);
            let new = now.wrapping_sub(before);
            if new > 0 {
                hit.push((class.id, new, price(class.id, new)));
            }
        }
        let cost = |(_, new, price): &(ClassId, u64, f64)| *new as f64 * price;
        hit.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
        hit.truncate(MOST_CELLS / self.tids.len().max(1));
        hit
    }

    /// Reads the counters of these classes; returns what the hits took from each thread.
    fn read(&mut self, attach: &Attachments, hit: &[(ClassId, u64, f64)], elapsed_s: f64) -> Taken {
        let Self { tids, cells, spread, blind, .. } = self;
        let table = attach.kernel().classes();
        // Of a counter that several pairs share nobody knows who was hit: it counts for none.
        let mut pairs: HashMap<u32, u32> = HashMap::new();
        for (class, ..) in hit {
            for tid in tids.iter() {
                *pairs.entry(thread_cell(*tid, class.0)).or_default() += 1;
            }
        }
        let all = hit.len() * tids.len();
        let alone = pairs.values().filter(|n| **n == 1).count();
        *blind = (all - alone) as f64 > MOST_SHARED * all as f64;
        let mut taken = Taken::new();
        for (class, most, price) in hit {
            let mut of_class = Vec::new();
            let mut shared = false;
            for tid in tids.iter() {
                let (cell, now) = table.thread_hits(*tid, *class);
                let new = now.wrapping_sub(cells.insert(cell, now).unwrap_or(0));
                if pairs.get(&cell).is_some_and(|n| *n > 1) {
                    shared = true;
                    continue;
                }
                // What a thread that has ended, or another class, left in a counter cannot be more than this one had.
                let new = new.min(*most);
                if new > 0 {
                    of_class.push((*tid, new));
                    taken.entry(*tid).or_default().push((*class, new as f64 * price));
                }
            }
            // Hits on shared counters are nobody's, and yet part of the class's.
            let known: u64 = of_class.iter().map(|(_, n)| n).sum();
            if shared && known < *most {
                of_class.push((NOBODY, most - known));
            }
            if !*blind {
                spread.note(*class, elapsed_s, &of_class);
            }
        }
        if *blind {
            taken.clear();
        }
        taken
    }
}

impl Session {
    /// Threads of the target at the last look; 0: nobody can tell. Not those that are sampled: with events per CPU, with named functions
    /// only or without sampling none is.
    pub(super) fn thread_count(&self) -> usize {
        match self.threads.tids.len() {
            0 => self.target.threads().map_or(0, |tids| tids.len()),
            known => known,
        }
    }

    /// Threads of the target that work at once.
    pub(super) fn working_threads(&self) -> u32 {
        threads::working(self.own_cpu, self.thread_count(), self.meta.cpus)
    }

    /// CPU s/s that the target uses if all of its threads work, as far as there are CPUs for them.
    pub(super) fn most_cpu(&self) -> f64 {
        f64::from(threads::at_once(self.thread_count(), self.meta.cpus))
    }

    /// Share of its own CPU time that a thread may lose. The limit that follows from the budget is cut as that is, one that is named holds.
    fn thread_limit(&self) -> Option<f64> {
        threads::limit(self.thread_budget, self.budget, self.allowed(1.0))
    }

    /// Hits are counted by thread where that is of use: a target with one thread need not pay for it.
    pub(super) fn count_by_thread(&mut self) {
        let on = self.threads.are_many() && self.thread_limit().is_some();
        self.attach.count_by_thread(on);
    }

    /// Four times a second: which threads lose more than they may, and what the controller does about it.
    pub(super) fn watch_threads(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.threads.last_ns);
        if elapsed < CHECK_NS {
            return;
        }
        self.threads.last_ns = now;
        let Some(limit) = self.thread_limit().filter(|_| self.threads.are_many() && self.loading.is_none())
        else {
            return;
        };
        let elapsed_s = elapsed as f64 * 1e-9;
        let factor = self.ledger.factor();
        let Self { threads, attach, own_cpu, .. } = self;
        let cpu = *own_cpu;
        let price = |id: ClassId, hits: u64| attach.class(id).tau_ns(cpu * elapsed_s / hits as f64) * factor;
        let hit = threads.hit(attach, price);
        let taken = threads.read(attach, &hit, elapsed_s);
        if self.threads.blind {
            self.say_blind(hit.len());
        }
        let (sample_s, switch_s) = self.other_prices_s();
        for (tid, classes) in taken {
            // Of a thread that was born since the meter last looked nothing is known yet.
            let Some(used) = self.switches.as_ref().and_then(|meter| meter.use_of(tid)) else { continue };
            let other_s = used.cpu_per_s * sample_s + used.switches_per_s * switch_s;
            let slice = Slice {
                end_ns: now,
                length_ns: elapsed,
                cpu_ns: used.cpu_per_s * elapsed as f64,
                other_ns: other_s * elapsed as f64,
                classes,
            };
            self.threads.budget.note(tid, slice);
        }
        let over = self.threads.budget.over(now, limit);
        if over.is_empty() {
            return;
        }
        // Once, not four times a second for as long as it lasts.
        if self.threads.notices.due(now)
            && let Some(thread) = over.first()
        {
            let most = thread.classes.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(class, _)| *class);
            let text = format!(
                "a thread lost {:.1} % of its CPU time in a second, {:.1} % are allowed",
                thread.overhead * 100.0,
                limit * 100.0
            );
            self.note_change(ChangeKind::Thread, most, text);
        }
        let view = self.view();
        let orders = self.orders_of_trace(&view, |trace, seen, orders| trace.relieve(&over, seen, orders));
        self.execute(orders, false);
    }

    /// What samples take, s per s of CPU time, and a context switch, s.
    fn other_prices_s(&self) -> (f64, f64) {
        let factor = self.ledger.factor();
        let sample_s = self.sampling.rate_hz() * self.sampling.price(&self.cost).seconds() * factor;
        let switch_s = if self.sampling.is_per_cpu() { 0.0 } else { self.cost.switch.ns * factor * 1e-9 };
        (sample_s, switch_s)
    }

    fn say_blind(&mut self, classes: usize) {
        if std::mem::replace(&mut self.threads.blind_said, true) {
            return;
        }
        let why = format!(
            "{} threads and {classes} functions share {THREAD_CELLS} counters: of more than half of the pairs nobody knows which \
             thread was hit; the budget of single threads was not watched while that was so",
            self.threads.tids.len()
        );
        self.progress.note(&format!("what single threads lose is not watched: {why}"));
        self.meta.not_observed.push(NotObserved { what: "what single threads lose".to_owned(), why });
    }

    /// What each thread may lose to hits, for a plan. `None`: there is one thread, or nothing is known of them.
    pub(super) fn thread_bounds(&self) -> Option<ThreadBounds<'_>> {
        let limit = self.thread_limit().filter(|_| self.threads.are_many() && !self.threads.blind)?;
        let meter = self.switches.as_ref()?;
        let (sample_s, switch_s) = self.other_prices_s();
        let known = |tid: &u32| {
            let used = meter.use_of(*tid)?;
            Some((*tid, used.cpu_per_s, used.cpu_per_s * sample_s + used.switches_per_s * switch_s))
        };
        let own: Vec<(u32, f64, f64)> = self.threads.tids.iter().filter_map(known).collect();
        Some(ThreadBounds::new(&self.threads.spread, &own, THREAD_PLAN_SHARE * limit))
    }

    /// CPU s that a round of the survey may take, so that no thread loses more in it than in a second it may: by the spread of
    /// what has been seen so far.
    pub(super) fn survey_limit_s(&self) -> f64 {
        let Some(bounds) = self.thread_bounds() else { return f64::INFINITY };
        let limits = self.attach.classes().iter().map(|class| bounds.burst_limit_s(class.id));
        limits.fold(f64::INFINITY, f64::min)
    }
}
