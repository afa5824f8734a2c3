//! The budget of single threads: one event loop must not pay for the observation of 64 cores.

use std::collections::{BTreeMap, VecDeque};

/// A thread that lost more than its share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThreadOver {
    /// Thread.
    pub tid: u32,
    /// Monitoring CPU / own CPU of the thread over the last second.
    pub overhead: f64,
}

/// Keeps each thread's own CPU time and what it lost, over a sliding second.
///
/// No thread may lose more than `limit` (2 B by default) of its own CPU time in a second.
#[derive(Debug, Clone)]
pub struct ThreadBudget {
    limit: f64,
    threads: BTreeMap<u32, VecDeque<Slice>>,
}

#[derive(Debug, Clone, Copy)]
struct Slice {
    end_ns: u64,
    cpu_ns: f64,
    cost_ns: f64,
}

/// A thread with less own CPU time in the second than this is judged as if it had used so much (10 ms): below
/// it, single samples and hits would decide.
const LEAST_CPU_NS: f64 = 10e6;
const WINDOW_NS: u64 = 1_000_000_000;

impl ThreadBudget {
    /// `limit`: largest share of a thread's own CPU time, 0.04 for 2 B at B = 2 %.
    #[must_use]
    pub fn new(limit: f64) -> Self {
        Self { limit, threads: BTreeMap::new() }
    }

    /// Notes an interval of one thread that ended at `end_ns`: CPU time used (monitoring included) and the
    /// part of it that monitoring took, ns.
    pub fn note(&mut self, tid: u32, end_ns: u64, cpu_ns: u64, cost_ns: f64) {
        let slices = self.threads.entry(tid).or_default();
        slices.push_back(Slice { end_ns, cpu_ns: cpu_ns as f64, cost_ns: cost_ns.max(0.0) });
    }

    /// Forgets what is older than a second before `now_ns`, and threads with nothing left.
    pub fn expire(&mut self, now_ns: u64) {
        let oldest = now_ns.saturating_sub(WINDOW_NS);
        self.threads.retain(|_, slices| {
            while slices.front().is_some_and(|s| s.end_ns <= oldest) {
                slices.pop_front();
            }
            !slices.is_empty()
        });
    }

    /// Threads over the limit in the second before `now_ns`, worst first.
    #[must_use]
    pub fn over(&mut self, now_ns: u64) -> Vec<ThreadOver> {
        self.expire(now_ns);
        let mut over: Vec<ThreadOver> = self
            .threads
            .iter()
            .map(|(&tid, slices)| {
                let cost: f64 = slices.iter().map(|s| s.cost_ns).sum();
                let cpu: f64 = slices.iter().map(|s| s.cpu_ns).sum();
                ThreadOver { tid, overhead: cost / (cpu - cost).max(LEAST_CPU_NS) }
            })
            .filter(|t| t.overhead > self.limit)
            .collect();
        over.sort_by(|a, b| b.overhead.total_cmp(&a.overhead).then(a.tid.cmp(&b.tid)));
        over
    }
}
