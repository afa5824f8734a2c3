//! The queue that monitoring's extra work makes; see the module above.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A time that orders; times are finite here.
#[derive(Debug, Clone, Copy, PartialEq)]
struct At(f64, usize);

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

/// Backlog of extra work, and the operations in flight.
pub(super) struct Queue {
    servers: f64,
    /// Work waiting, CPU s, at `now_s`.
    backlog_s: f64,
    now_s: f64,
    last_end_s: f64,
    /// Ends in the run without monitoring: what keeps servers busy.
    bare_ends: BinaryHeap<Reverse<At>>,
    /// Ends with monitoring, by the model.
    ends: BinaryHeap<Reverse<At>>,
    begins: std::collections::HashMap<usize, f64>,
}

impl Queue {
    pub(super) fn new(now_s: f64, servers: u32) -> Self {
        Self {
            servers: f64::from(servers),
            backlog_s: 0.0,
            now_s,
            last_end_s: now_s,
            bare_ends: BinaryHeap::new(),
            ends: BinaryHeap::new(),
            begins: std::collections::HashMap::new(),
        }
    }

    /// An operation begins: it waits for the backlog, runs, and adds its extra work.
    pub(super) fn begin(&mut self, index: usize, begin_s: f64, bare_s: f64, extra_s: f64) {
        self.drain(begin_s);
        let end_s = begin_s + self.backlog_s / self.servers + bare_s + extra_s;
        self.backlog_s += extra_s;
        self.bare_ends.push(Reverse(At(begin_s + bare_s, index)));
        self.ends.push(Reverse(At(end_s, index)));
        self.begins.insert(index, begin_s);
    }

    /// The backlog shrinks by the capacity that the run without monitoring left idle.
    fn drain(&mut self, until_s: f64) {
        while let Some(&Reverse(At(end_s, _))) = self.bare_ends.peek() {
            if end_s > until_s {
                break;
            }
            self.idle(end_s);
            self.bare_ends.pop();
        }
        self.idle(until_s);
    }

    fn idle(&mut self, until_s: f64) {
        let free = (self.servers - self.bare_ends.len() as f64).max(0.0);
        self.backlog_s = (self.backlog_s - free * (until_s - self.now_s).max(0.0)).max(0.0);
        self.now_s = self.now_s.max(until_s);
    }

    pub(super) fn next_end_s(&self) -> Option<f64> {
        self.ends.peek().map(|Reverse(At(end_s, _))| *end_s)
    }

    /// The operation that ends next, with its response time.
    pub(super) fn pop_end(&mut self) -> Option<(usize, f64)> {
        let Reverse(At(end_s, index)) = self.ends.pop()?;
        self.last_end_s = self.last_end_s.max(end_s);
        let begin_s = self.begins.remove(&index)?;
        Some((index, end_s - begin_s))
    }

    pub(super) fn last_end_s(&self) -> f64 {
        self.last_end_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Response times of a single server that serves in order of arrival.
    fn fifo(arrivals: &[(f64, f64)]) -> Vec<f64> {
        let mut free_at = 0.0f64;
        arrivals
            .iter()
            .map(|&(begin, service)| {
                free_at = free_at.max(begin) + service;
                free_at - begin
            })
            .collect()
    }

    #[test]
    fn one_server_is_exact() {
        // Durations of the run without monitoring are its response times; with 30 % extra work the model must give the
        // response times of a queue with services 30 % longer.
        let mut state = 12_345u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / f64::from(1u32 << 31)
        };
        let mut begin = 0.0;
        let arrivals: Vec<(f64, f64)> = (0..2_000)
            .map(|_| {
                begin += -0.010 * (1.0 - next()).ln();
                (begin, 0.006 * 2.0 * next())
            })
            .collect();
        let bare = fifo(&arrivals);
        let slow = fifo(&arrivals.iter().map(|&(b, s)| (b, 1.3 * s)).collect::<Vec<_>>());
        let mut queue = Queue::new(0.0, 1);
        let mut got = vec![0.0; arrivals.len()];
        for (i, &(b, s)) in arrivals.iter().enumerate() {
            queue.begin(i, b, bare[i], 0.3 * s);
        }
        while let Some((i, response)) = queue.pop_end() {
            got[i] = response;
        }
        for i in 0..arrivals.len() {
            assert!((got[i] - slow[i]).abs() < 1e-9, "operation {i}: {} against {}", got[i], slow[i]);
        }
    }

    #[test]
    fn without_extra_work_nothing_changes() {
        let mut queue = Queue::new(0.0, 2);
        queue.begin(0, 0.0, 1.0, 0.0);
        queue.begin(1, 0.5, 0.1, 0.0);
        assert_eq!(queue.pop_end().map(|(i, r)| (i, (r * 1e9).round())), Some((1, 1e8)));
        assert_eq!(queue.pop_end(), Some((0, 1.0)));
        assert_eq!((queue.pop_end(), queue.last_end_s()), (None, 1.0));
    }
}
