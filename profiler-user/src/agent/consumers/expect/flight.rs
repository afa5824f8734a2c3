//! Calls in flight: those that are seen at two looks, with what they have used in between. Pure: it reads no clock.
//!
//! Why two looks: what is read of a thread that runs may be half of one call and half of another, and the time of a call whose links have just gone stands still. Neither is there
//! a second time. And what a thread has used between two looks says what it does: on a CPU, waiting for one, blocked.

use super::super::Threads;
use super::judge::Judged;
use crate::prober::OpenCall;
use crate::target::ThreadLook;
use profiler_core::models::{Seen, Used};
use profiler_core::recording::{CallContext, EventRow};
use std::collections::{BTreeMap, BTreeSet};

/// Threads that are asked at a look, at most.
const MOST_THREADS: u64 = 2_000;
/// What asking a thread takes, ns: three system calls and a copy of 4 KB.
const THREAD_NS: u64 = 6_000;
/// What a look at a call takes, over what asking a thread does.
const OF_CALL: usize = 5;
/// Calls that are kept until they are seen again.
const MOST_CALLS: usize = 4_096;

/// Begin, thread, class: the first of all is the oldest.
type Key = (u64, i32, u32);

/// A call that was seen.
#[derive(Debug, Clone, Copy)]
struct Sight {
    first: ThreadLook,
    /// What 97.5 % of calls like it do not take, ns; 0: nobody has looked.
    above_ns: f64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Flights {
    tids: Vec<i32>,
    /// Where the next look goes on, if there are too many threads for one.
    next: usize,
    sights: BTreeMap<Key, Sight>,
    /// Calls that take longer than they should, at the last look.
    running: Vec<Judged>,
}

fn key(call: &OpenCall) -> Key {
    (call.begin_ns, call.tid, call.class.0)
}

impl Flights {
    /// Calls that take longer than 97.5 % of calls with such inputs, as they were at the last look; once: what was open then may have ended since.
    pub fn take_running(&mut self) -> Vec<Judged> {
        std::mem::take(&mut self.running)
    }

    /// Nothing is in flight any more.
    pub fn clear(&mut self) {
        self.sights.clear();
        self.running.clear();
    }

    /// Looks at the threads, for so long. `is_watched`: calls of that class are held against a model; `hold`: the call beside its model, where it has one.
    pub fn look(
        &mut self,
        threads: &dyn Threads,
        most_ns: u64,
        is_watched: impl Fn(u32) -> bool,
        hold: impl Fn(&EventRow) -> Option<Judged>,
    ) {
        // OK because it is at most 2,000.
        let mut left = (most_ns / THREAD_NS).clamp(1, MOST_THREADS) as usize;
        let asked = self.asked(threads, left);
        let mut open = threads.open_calls(&asked);
        open.retain(|call| is_watched(call.class.0));
        // What has run for longest comes first.
        open.sort_by_key(key);
        let here: BTreeSet<Key> = open.iter().map(key).collect();
        let asked: BTreeSet<i32> = asked.into_iter().collect();
        self.sights.retain(|key, _| here.contains(key) || !asked.contains(&key.1));
        self.running.clear();
        for call in &open {
            if left == 0 {
                break;
            }
            let has_room = self.sights.len() < MOST_CALLS;
            let Some(sight) = self.sights.get_mut(&key(call)) else {
                left = left.saturating_sub(1);
                if let Some(first) = threads.look(call.tid).filter(|_| has_room) {
                    self.sights.insert(key(call), Sight { first, above_ns: 0.0 });
                }
                continue;
            };
            let Some(look) = threads.look(call.tid) else { continue };
            if look.at_ns.saturating_sub(call.begin_ns) as f64 <= sight.above_ns {
                continue;
            }
            left = left.saturating_sub(OF_CALL);
            let row = threads.row(call, &look);
            let Some(held) = row.as_ref().and_then(&hold) else { continue };
            let Seen { predicted_ns, own_ns, .. } = held.seen;
            let high_ns = held.interval_ns.high;
            sight.above_ns = if high_ns.is_finite() { high_ns } else { predicted_ns };
            if own_ns > sight.above_ns {
                let used = used(&held.seen, &held.row.context, &sight.first, &look);
                self.running.push(Judged { is_running: true, used: Some(used), ..held });
            }
        }
    }

    /// The threads of this look: all, or the half whose calls are known, oldest first, and some of the others in turn.
    fn asked(&mut self, threads: &dyn Threads, most: usize) -> Vec<i32> {
        if self.next >= self.tids.len() || self.tids.len() <= most {
            self.tids = threads.tids();
            self.next = 0;
        }
        if self.tids.len() <= most {
            return self.tids.clone();
        }
        let mut asked: Vec<i32> = Vec::new();
        for (_, tid, _) in self.sights.keys() {
            if asked.len() < most / 2 && !asked.contains(tid) {
                asked.push(*tid);
            }
        }
        let others: Vec<i32> = self.tids.iter().skip(self.next).take(most - asked.len()).copied().collect();
        self.next += others.len();
        let others = others.into_iter().filter(|tid| !asked.contains(tid)).collect::<Vec<i32>>();
        asked.extend(others);
        asked
    }
}

/// What a call in flight has used, as far as that is known: since it was first seen, but for what the kernel said at its begin. What is not known is no part's.
/// A thread that could run may be waiting for a CPU, which the kernel adds up only when it has one.
fn used(seen: &Seen, context: &CallContext, first: &ThreadLook, now: &ThreadLook) -> Used {
    let ns = |now: u64, first: u64| now.saturating_sub(first) as f64;
    let (all_ns, cpu_ns) = (ns(now.at_ns, first.at_ns), ns(now.cpu_ns, first.cpu_ns));
    let waited_ns = ns(now.waited_ns, first.waited_ns);
    let rest_ns = (all_ns - cpu_ns - waited_ns).max(0.0);
    let stayed = now.is_runnable && first.is_runnable && now.arrivals == first.arrivals;
    let (mut on_cpu_ns, mut runnable_ns, mut blocked_ns) = (cpu_ns, waited_ns, 0.0);
    if !now.is_runnable {
        blocked_ns = rest_ns;
    } else if stayed && cpu_ns > 0.0 {
        // Ticks add up what it runs.
        on_cpu_ns += rest_ns;
    } else if stayed {
        runnable_ns += rest_ns;
    }
    let before_ns = context.runnable_ns.map_or(0.0, |since_begin| since_begin as f64 - waited_ns);
    let io_ns = ns(now.io_ns, first.io_ns).min(blocked_ns);
    Used {
        predicted_ns: seen.predicted_ns,
        own_ns: seen.own_ns,
        on_cpu_ns,
        runnable_ns: runnable_ns + before_ns.max(0.0),
        io_ns,
        blocked_ns: blocked_ns - io_ns,
        minor_faults: context.minor_faults.unwrap_or(0) as f64,
        major_faults: context.major_faults.unwrap_or(0) as f64,
        io_bytes: 0.0,
    }
}
