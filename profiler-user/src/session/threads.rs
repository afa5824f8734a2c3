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
use profiler_core::ledger::{Load, Notices, Slice, Spread, ThreadBounds, ThreadBudget};
use profiler_core::plan::{Decision, Plan, PlanClass, Problem};
use profiler_core::recording::{ChangeKind, NotObserved};
use profiler_core::run::arbiter::THREAD_PLAN_SHARE;
use profiler_core::units::OverheadBudget;
use std::collections::{BTreeMap, HashMap};

/// Threads are judged so often, ns.
const CHECK_NS: u64 = 250_000_000;
/// Counters read in one check at most; of more, those of the classes that cost most.
const MOST_CELLS: usize = 100_000;
/// Without `--thread-budget`: this times the budget.
const DEFAULT_FACTOR: f64 = 2.0;

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

/// Threads that may run at once, of so many (0: not known) on so many CPUs.
fn at_once(threads: usize, cpus: u32) -> u32 {
    let cpus = cpus.max(1);
    if threads == 0 { cpus } else { u32::try_from(threads).map_or(cpus, |threads| threads.min(cpus)) }
}

/// Threads that work at once: as many as `cpu` CPU s/s take, of those that may run. Of a service that is nearly idle most sleep for ever.
fn working(cpu: f64, threads: usize, cpus: u32) -> u32 {
    // Casts saturate, and what is not a number is 0.
    (cpu.ceil() as u32).clamp(1, at_once(threads, cpus))
}

/// The limit of a thread: the one that is named; else, of a budget that is a share, a multiple of what a whole CPU is `allowed`.
fn default_or(named: Option<f64>, budget: OverheadBudget, allowed: f64) -> Option<f64> {
    named.or(match budget {
        OverheadBudget::CpuPerSecond(_) => None,
        _ => Some(DEFAULT_FACTOR * allowed),
    })
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
        working(self.own_cpu, self.thread_count(), self.meta.cpus)
    }

    /// CPU s/s that the target uses if all of its threads work, as far as there are CPUs for them.
    pub(super) fn most_cpu(&self) -> f64 {
        f64::from(at_once(self.thread_count(), self.meta.cpus))
    }

    /// Share of its own CPU time that a thread may lose. Who names a budget in CPU time has said nothing of shares: then there
    /// is no limit unless one is named, too. The limit that follows from the budget is cut as that is, one that is named holds.
    fn thread_limit(&self) -> Option<f64> {
        default_or(self.thread_budget, self.budget, self.allowed(1.0))
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
        let actions = self.controller.relieve(now, self.sampling.rate_hz(), &over);
        self.obey(actions, false);
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

/// The class of a plan, by its index in the problem, that one thread could not bear, and the thread.
pub(super) fn too_much(
    bounds: &ThreadBounds<'_>,
    problem: &Problem,
    plan: &Plan,
    ids: &[ClassId],
    must: impl Fn(ClassId) -> bool,
) -> Option<(usize, u32)> {
    let mut loads = traced(problem, plan, ids);
    // What the user demands is traced all the same.
    for load in loads.iter_mut().filter(|l| must(l.class)) {
        load.density = f64::INFINITY;
    }
    let (class, tid) = bounds.give_up(&loads)?;
    let index = ids.iter().position(|id| *id == class)?;
    (!must(class)).then_some((index, tid))
}

/// What a plan traces all the time, as loads.
pub(super) fn traced(problem: &Problem, plan: &Plan, ids: &[ClassId]) -> Vec<Load> {
    let is_traced = |i: &usize| !matches!(plan.classes[*i].decision, Decision::Sample);
    (0..ids.len())
        .filter(is_traced)
        .map(|i| load(ids[i], &problem.classes[i], plan.classes[i].cost))
        .collect()
}

/// One class as a load.
pub(super) fn load(id: ClassId, class: &PlanClass, cost: f64) -> Load {
    Load { class: id, cost, density: class.weight / class.tau_s.max(1e-12) }
}

#[cfg(test)]
mod tests {
    use super::{at_once, default_or, working};
    use profiler_core::ledger::Ledger;
    use profiler_core::units::OverheadBudget;

    #[test]
    fn the_limit_of_a_thread_is_cut_with_the_budget() {
        let share = OverheadBudget::Share(0.02);
        let mut ledger = Ledger::new(share, 0);
        assert_eq!(default_or(None, share, ledger.allowed(1.0)), Some(0.04));
        ledger.cut_budget(4.0);
        assert_eq!(default_or(None, share, ledger.allowed(1.0)), Some(0.01));
        assert_eq!(default_or(Some(0.03), share, ledger.allowed(1.0)), Some(0.03));
        assert_eq!(default_or(None, OverheadBudget::CpuPerSecond(0.02), 0.005), None);
    }

    #[test]
    fn threads_that_work_are_those_that_cpu_time_shows() {
        // An idle service with 200 threads; one that keeps a CPU and a bit busy; one that wants more than there is.
        assert_eq!((working(0.0, 200, 8), working(0.02, 200, 8), working(1.02, 200, 8)), (1, 1, 2));
        assert_eq!((working(2.0, 200, 8), working(9.0, 200, 8), working(2.1, 2, 8)), (2, 8, 2));
        // Before anybody has looked, and what is no number.
        assert_eq!((working(3.0, 0, 8), working(f64::NAN, 4, 8), at_once(0, 8)), (3, 1, 8));
        assert_eq!((at_once(3, 8), at_once(200, 8), at_once(1, 0)), (3, 8, 1));
    }
}
