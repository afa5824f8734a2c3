//! What single threads lose: hits by thread and class against the thread's own CPU time.
//!
//! The kernel counts hits by thread and class in one array of counters (`profiler_common::thread::thread_cell`); prices, samples
//! and switches are added here. CPU time comes from the meter that reads every thread's account once a second anyway. Where
//! a thread loses more than its limit, the controller takes off what is worth least on it, and the next plan is made with what
//! each thread can bear ([`crate::ledger::ThreadBounds`]).

use super::input::{SlowLook, ThreadHits};
use crate::class::ClassId;
use crate::ledger::{Notices, Slice, Spread, ThreadBounds, ThreadBudget, ThreadOver};
use crate::run::arbiter::THREAD_PLAN_SHARE;
use crate::run::threads::ThreadUse;
use profiler_common::thread::{THREAD_CELLS, thread_cell};
use std::collections::{BTreeMap, HashMap};

/// Threads are judged so often, ns.
const CHECK_NS: u64 = 250_000_000;
/// Counters read in one check at most; of more, those of the classes that cost most.
const MOST_CELLS: usize = 100_000;
/// Stands for the threads on shared counters.
const NOBODY: u32 = 0;
/// With a larger part of the pairs of thread and class on shared counters, threads are not judged.
const MOST_SHARED: f64 = 0.5;

/// What hits of some classes took from one thread in an interval.
type TakenByThread = BTreeMap<u32, Vec<(ClassId, f64)>>;

/// What is asked for to judge threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedThreads {
    /// The threads, ascending.
    pub tids: Vec<u32>,
    /// Classes that were hit since the last look, the dearest first.
    pub classes: Vec<ClassId>,
}

/// What a hit and what runs beside hits takes of a thread's CPU time.
#[derive(Debug, Clone, Copy)]
pub(super) struct OtherPrices {
    /// Samples, s per s of CPU time.
    pub sample_s: f64,
    /// A context switch, s.
    pub switch_s: f64,
}

/// A class that was hit: the hits since the last look, and what one of them takes, ns.
#[derive(Debug, Clone, Copy)]
struct Hit {
    class: ClassId,
    new: u64,
    price_ns: f64,
}

/// What is known of the target's threads.
#[derive(Debug, Default)]
pub(super) struct Threads {
    budget: ThreadBudget,
    spread: Spread,
    /// Threads alive at the last look.
    tids: Vec<u32>,
    uses: BTreeMap<u32, ThreadUse>,
    /// Counters as last read.
    cells: HashMap<u32, u64>,
    /// Hits of each class when the counters were last read.
    attempted: BTreeMap<ClassId, u64>,
    asked: Vec<Hit>,
    /// When threads were judged last, ktime ns, and how long before that the time before, ns.
    last_ns: u64,
    elapsed_ns: u64,
    notices: Notices,
    /// Too many pairs of thread and class share counters: nothing is judged. And whether that was said.
    blind: bool,
    blind_said: bool,
}

impl Threads {
    /// Takes in who is alive, and what each thread used of late.
    pub fn look(&mut self, look: &SlowLook) {
        if let Some(tids) = &look.tids {
            self.tids.clone_from(tids);
            self.tids.sort_unstable();
            let Self { tids, spread, .. } = self;
            spread.keep_threads(|tid| tid == NOBODY || tids.binary_search(&tid).is_ok());
        }
        if look.switches.is_some() {
            self.uses = look.uses.iter().map(|used| (used.tid, *used)).collect();
        }
    }

    /// Threads at the last look.
    pub fn count(&self) -> usize {
        self.tids.len()
    }

    /// There is more than one thread: else none can lose more than all of them.
    pub fn are_many(&self) -> bool {
        self.tids.len() > 1
    }

    /// It is time to judge them.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_ns) >= CHECK_NS
    }

    /// They are judged now, or would be if there were a limit.
    pub fn begin(&mut self, now_ns: u64) {
        self.elapsed_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
    }

    /// Which counters are to be read: of the classes that have been hit since the last look. `hits`: all classes with their hits so far;
    /// `price`: of one of so many hits in so many seconds, ns.
    pub fn ask(
        &mut self,
        hits: impl Iterator<Item = (ClassId, u64)>,
        price: impl Fn(ClassId, u64, f64) -> f64,
    ) -> WantedThreads {
        let elapsed_s = self.elapsed_ns as f64 * 1e-9;
        let mut hit = Vec::new();
        for (class, now) in hits {
            let before = self.attempted.insert(class, now).unwrap_or(0);
            let new = now.wrapping_sub(before);
            if new > 0 {
                hit.push(Hit { class, new, price_ns: price(class, new, elapsed_s) });
            }
        }
        let cost = |hit: &Hit| hit.new as f64 * hit.price_ns;
        hit.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
        hit.truncate(MOST_CELLS / self.tids.len().max(1));
        let classes = hit.iter().map(|hit| hit.class).collect();
        self.asked = hit;
        WantedThreads { tids: self.tids.clone(), classes }
    }

    /// Takes the counters; returns what the hits took from each thread.
    fn read(&mut self, seen: &ThreadHits) -> TakenByThread {
        let Self { tids, cells, spread, blind, asked, elapsed_ns, .. } = self;
        let elapsed_s = *elapsed_ns as f64 * 1e-9;
        // Of a counter that several pairs share nobody knows who was hit: it counts for none.
        let mut pairs: HashMap<u32, u32> = HashMap::new();
        for class in &seen.classes {
            for tid in tids.iter() {
                *pairs.entry(thread_cell(*tid, class.0)).or_default() += 1;
            }
        }
        let all = seen.classes.len() * tids.len();
        let alone = pairs.values().filter(|n| **n == 1).count();
        *blind = (all - alone) as f64 > MOST_SHARED * all as f64;
        let mut taken = TakenByThread::new();
        let counts = seen.counts.chunks(tids.len().max(1));
        for (hit, counts) in asked.iter().zip(counts) {
            let mut of_class = Vec::new();
            let mut shared = false;
            for (tid, now) in tids.iter().zip(counts) {
                let cell = thread_cell(*tid, hit.class.0);
                let new = now.wrapping_sub(cells.insert(cell, *now).unwrap_or(0));
                if pairs.get(&cell).is_some_and(|n| *n > 1) {
                    shared = true;
                    continue;
                }
                // What a thread that has ended, or another class, left in a counter cannot be more than this one had.
                let new = new.min(hit.new);
                if new > 0 {
                    of_class.push((*tid, new));
                    taken.entry(*tid).or_default().push((hit.class, new as f64 * hit.price_ns));
                }
            }
            // Hits on shared counters are nobody's, and yet part of the class's.
            let known: u64 = of_class.iter().map(|(_, n)| n).sum();
            if shared && known < hit.new {
                of_class.push((NOBODY, hit.new - known));
            }
            if !*blind {
                spread.note(hit.class, elapsed_s, &of_class);
            }
        }
        if *blind {
            taken.clear();
        }
        taken
    }

    /// Takes the counters that were asked for. The threads that lose more than `limit`, worst first.
    pub fn judge(
        &mut self,
        seen: &ThreadHits,
        now_ns: u64,
        other: OtherPrices,
        limit: f64,
    ) -> Vec<ThreadOver> {
        let taken = self.read(seen);
        let length_ns = self.elapsed_ns;
        for (tid, classes) in taken {
            // Of a thread that was born since the meter last looked nothing is known yet.
            let Some(used) = self.uses.get(&tid) else { continue };
            let other_s = used.cpu_per_s * other.sample_s + used.switches_per_s * other.switch_s;
            let slice = Slice {
                end_ns: now_ns,
                length_ns,
                cpu_ns: used.cpu_per_s * length_ns as f64,
                other_ns: other_s * length_ns as f64,
                classes,
            };
            self.budget.note(tid, slice);
        }
        self.budget.over(now_ns, limit)
    }

    /// What is said of the worst: once, not four times a second for as long as it lasts. With the class that takes most.
    pub fn notice(
        &mut self,
        over: &[ThreadOver],
        limit: f64,
        now_ns: u64,
    ) -> Option<(Option<ClassId>, String)> {
        let thread = over.first().filter(|_| self.notices.due(now_ns))?;
        let most = thread.classes.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(class, _)| *class);
        let text = format!(
            "a thread lost {:.1} % of its CPU time in a second, {:.1} % are allowed",
            thread.overhead * 100.0,
            limit * 100.0
        );
        Some((most, text))
    }

    /// What is said, once, where nothing is judged.
    pub fn blindness(&mut self) -> Option<String> {
        if !self.blind || std::mem::replace(&mut self.blind_said, true) {
            return None;
        }
        Some(format!(
            "{} threads and {} functions share {THREAD_CELLS} counters: of more than half of the pairs nobody knows which \
             thread was hit; the budget of single threads was not watched while that was so",
            self.tids.len(),
            self.asked.len()
        ))
    }

    /// What each thread may lose to hits, for a plan. `None`: there is one thread, or nothing is known of them.
    pub fn bounds(&self, other: OtherPrices, limit: Option<f64>) -> Option<ThreadBounds<'_>> {
        let limit = limit.filter(|_| self.are_many() && !self.blind)?;
        let known = |tid: &u32| {
            let used = self.uses.get(tid)?;
            let other_s = used.cpu_per_s * other.sample_s + used.switches_per_s * other.switch_s;
            Some((*tid, used.cpu_per_s, other_s))
        };
        let own: Vec<(u32, f64, f64)> = self.tids.iter().filter_map(known).collect();
        Some(ThreadBounds::new(&self.spread, &own, THREAD_PLAN_SHARE * limit))
    }
}
