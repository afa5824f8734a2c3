//! What words of operations took inside the recorded calls and operations around them.
//!
//! The kernel side charges the hits of a class one price, whether their operation is recorded or not, so that what its words take is in nobody's monitoring
//! cost. Each taking says when it was read: what lies between the begin and the end of a call on its thread is charged to it before its row is
//! written.

use super::lists::taking_ns;
use crate::prober::Taking;
use profiler_core::recording::{EventRow, OperationRow};
use std::collections::{HashMap, VecDeque};

/// Takings that are remembered: 4 MiB. Of calls that began before the older ones were forgotten a part stays in their time.
const MOST: usize = 1 << 18;
/// A taking counts with so much at most, ns: the thread was preempted in the middle of one that took longer.
pub(super) const LONGEST_NS: u64 = 20_000;

/// Takings of one thread.
#[derive(Debug, Default)]
struct OfThread {
    /// Of each the time, ktime ns, and what all so far took, ns.
    takings: VecDeque<(u64, u64)>,
    /// What those took that are forgotten, ns.
    forgotten_ns: u64,
}

impl OfThread {
    /// What those before that time took, ns.
    fn before(&self, time_ns: u64) -> u64 {
        let later = self.takings.partition_point(|(at_ns, _)| *at_ns < time_ns);
        let last = later.checked_sub(1).and_then(|last| self.takings.get(last));
        last.map_or(self.forgotten_ns, |(_, sum_ns)| *sum_ns)
    }

    fn forget(&mut self, takings: usize) {
        if let Some((_, sum_ns)) = self.takings.drain(..takings).next_back() {
            self.forgotten_ns = sum_ns;
        }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(in crate::agent) struct TakenInside {
    threads: HashMap<u32, OfThread>,
    kept: usize,
}

impl TakenInside {
    /// One more taking.
    pub fn note(&mut self, taking: &Taking) {
        if taking.operation.is_none() {
            // It is in the price of the function's hits.
            return;
        }
        if self.kept >= MOST {
            self.forget_half();
        }
        let (from_ns, until_ns) = taking.read_ns;
        let read_ns = until_ns.saturating_sub(from_ns).min(LONGEST_NS);
        let thread = self.threads.entry(taking.tid).or_default();
        let sum_ns = thread.before(u64::MAX);
        // OK because it is neither negative nor large.
        thread.takings.push_back((from_ns, sum_ns + taking_ns(read_ns as f64) as u64));
        self.kept += 1;
    }

    /// Charges calls and operations what lies in them. All takings that were made before these ended were noted.
    pub fn charge(&self, calls: &mut [EventRow], operations: &mut [OperationRow]) {
        if self.kept == 0 {
            return;
        }
        for call in calls {
            if let (Some(duration_ns), Some(cost_ns)) = (call.duration_ns, &mut call.nested_cost_ns) {
                *cost_ns = cost_ns.saturating_add(self.of(call.tid, call.time_ns, duration_ns));
            }
        }
        for operation in operations {
            let inside_ns = self.of(operation.tid, operation.begin_ns, operation.duration_ns);
            operation.cost_ns = operation.cost_ns.saturating_add(inside_ns);
        }
    }

    /// What takings of that thread took, ns.
    fn of(&self, tid: u32, begin_ns: u64, duration_ns: u64) -> u64 {
        let sum = |thread: &OfThread| {
            thread.before(begin_ns.saturating_add(duration_ns)).saturating_sub(thread.before(begin_ns))
        };
        self.threads.get(&tid).map_or(0, sum)
    }

    fn forget_half(&mut self) {
        for thread in self.threads.values_mut() {
            thread.forget(thread.takings.len().div_ceil(2));
        }
        self.threads.retain(|_, thread| !thread.takings.is_empty());
        self.kept = self.threads.values().map(|thread| thread.takings.len()).sum();
    }
}

#[cfg(test)]
mod tests;
