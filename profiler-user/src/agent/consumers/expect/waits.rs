//! In which system calls calls that took too long were seen to wait: what to look for next. Pure.
//!
//! The kernel says what a thread waits in only while it does. Calls in flight are looked at eight times a second (`flight`); of those that were seen to wait, and took too long in
//! the end, or already do, it is kept where that was. That a call waited there says not for how long.

use super::flight::Key;
use super::incidents::APART_NS;
use super::judge::{Judged, number};
use crate::target::syscalls;
use std::collections::BTreeMap;

/// Calls that have ended and are judged with the next steps, at most.
const MOST_ENDED: usize = 256;
/// Calls that are kept of a function, at most.
const MOST_KEPT: usize = 64;
/// System calls that are told, at most.
const MOST_TOLD: usize = 3;

/// What a thread waits in: the number of a system call; below 0: in none (a page fault, say).
pub(super) type WaitsIn = i64;

/// Begin and thread.
type Call = (u64, u32);

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Calls that were seen to wait and have ended.
    ended: BTreeMap<Key, WaitsIn>,
    /// Of each function calls that took too long, and when that was said, ktime ns.
    of: BTreeMap<usize, BTreeMap<Call, (WaitsIn, u64)>>,
}

impl Waits {
    /// A call has ended that was seen to wait there.
    pub fn end(&mut self, call: Key, waits_in: WaitsIn) {
        self.ended.insert(call, waits_in);
        while self.ended.len() > MOST_ENDED {
            self.ended.pop_first();
        }
    }

    /// Calls that took too long, or already do: `in_flight` says where such a one was seen to wait.
    pub fn slow<'a>(
        &mut self,
        calls: impl Iterator<Item = &'a Judged>,
        in_flight: impl Fn(&Key) -> Option<WaitsIn>,
        now_ns: u64,
    ) {
        for call in calls {
            // OK because thread ids are positive.
            let key = (call.row.time_ns, call.row.tid as i32, call.row.class_id);
            let waits_in = if call.is_running { in_flight(&key) } else { self.ended.remove(&key) };
            let Some(waits_in) = waits_in else { continue };
            let own = self.of.entry(number(call.seen.kernel)).or_default();
            own.insert((call.row.time_ns, call.row.tid), (waits_in, now_ns));
            own.retain(|_, (_, at_ns)| now_ns.saturating_sub(*at_ns) <= APART_NS);
            while own.len() > MOST_KEPT {
                own.pop_first();
            }
        }
    }

    /// Where calls of a function were seen to wait in the last 30 s, and how many; most calls first.
    pub fn told(&self, function: usize, now_ns: u64) -> Vec<(String, usize)> {
        let mut calls: BTreeMap<WaitsIn, usize> = BTreeMap::new();
        for (waits_in, at_ns) in self.of.get(&function).into_iter().flat_map(BTreeMap::values) {
            if now_ns.saturating_sub(*at_ns) <= APART_NS {
                *calls.entry(*waits_in).or_default() += 1;
            }
        }
        let mut told: Vec<(String, usize)> = calls.into_iter().map(|(n, calls)| (name(n), calls)).collect();
        told.sort_by_key(|(_, calls)| std::cmp::Reverse(*calls));
        told.truncate(MOST_TOLD);
        told
    }
}

fn name(waits_in: WaitsIn) -> String {
    usize::try_from(waits_in).map_or_else(|_| "no system call (a page fault, say)".to_owned(), syscalls::name)
}

#[cfg(test)]
mod tests {
    use super::super::tests::call;
    use super::*;
    use profiler_core::models::{Interval, Seen};

    const S: u64 = 1_000_000_000;

    /// A call of a function that begins then.
    fn judged(function: u32, begin_ns: u64, is_running: bool) -> Judged {
        Judged {
            seen: Seen { kernel: 2 * function, time_ns: begin_ns, predicted_ns: 1.0, own_ns: 9.0 },
            interval_ns: Interval { low: 0.0, high: 2.0 },
            values: Vec::new(),
            row: profiler_core::recording::EventRow { time_ns: begin_ns, ..call(3, 0, 0, 0) },
            is_running,
            used: None,
            waits: false,
            is_drawn: true,
            missed_ns: 0,
        }
    }

    #[test]
    fn what_slow_calls_were_seen_to_wait_in_is_told_for_half_a_minute() {
        let mut waits = Waits::default();
        let none = |_: &Key| None;
        for i in 0..5 {
            waits.end((i, 7, 3), if i == 4 { 0 } else { libc::SYS_clock_nanosleep });
        }
        // The first one took no longer than others do, and the last one was not seen to wait.
        let slow: Vec<Judged> = (1..6).map(|i| judged(4, i, false)).collect();
        waits.slow(slow.iter(), none, S);
        waits.slow([judged(4, 9, true)].iter(), |key| (*key == (9, 7, 3)).then_some(-1), 2 * S);
        let told = waits.told(4, 3 * S);
        let texts: Vec<(&str, usize)> = told.iter().map(|(name, calls)| (name.as_str(), *calls)).collect();
        assert_eq!(texts, [("clock_nanosleep", 3), ("no system call (a page fault, say)", 1), ("read", 1)]);
        assert_eq!(waits.told(4, 32 * S).len(), 1);
        assert!(waits.told(4, 33 * S).is_empty() && waits.told(5, S).is_empty());
        // One that goes on is one call, however often it is seen.
        waits.slow([judged(4, 9, true)].iter(), |_| Some(0), 40 * S);
        waits.slow([judged(4, 9, true)].iter(), |_| Some(1), 41 * S);
        assert_eq!(waits.told(4, 41 * S), [("write".to_owned(), 1)]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut waits = Waits::default();
        (0..10_000).for_each(|i| waits.end((i, 7, 3), 1));
        assert_eq!(waits.ended.len(), MOST_ENDED);
        let slow: Vec<Judged> = (0..10_000).map(|i| judged(0, i, false)).collect();
        waits.slow(slow.iter(), |_| None, S);
        assert_eq!((waits.ended.len(), waits.told(0, S)), (0, vec![("write".to_owned(), MOST_KEPT)]));
    }
}
