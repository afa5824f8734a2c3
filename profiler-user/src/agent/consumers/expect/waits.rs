//! In which system calls calls that took too long were seen to wait: what to look for next. Pure.
//!
//! The kernel says what a thread waits in only while it does. Calls in flight are looked at eight times a second (`flight`); of those that were seen to wait, and took too long in
//! the end, or already do, it is kept where that was. That a call waited there says not for how long.

use super::flight::Key;
use super::incidents::APART_NS;
use super::judge::{Judged, number};
use crate::target::syscalls;
use std::collections::BTreeMap;

/// Calls that are kept of a function, at most.
const MOST_KEPT: usize = 64;
/// System calls that are told, at most.
const MOST_TOLD: usize = 3;

/// What a thread was seen to wait in (the number of a system call; below 0: in none, a page fault, say), and when, ktime ns.
pub(super) type Wait = (i64, u64);

/// Begin and thread.
type Call = (u64, u32);

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Calls that were seen to wait and have ended, since the last step and in the step before it: those whose inputs are words are judged late.
    ended: [BTreeMap<Key, Wait>; 2],
    /// Of each function calls that took too long.
    of: BTreeMap<usize, BTreeMap<Call, Wait>>,
}

impl Waits {
    /// A call has ended that was seen to wait there.
    pub fn end(&mut self, call: Key, wait: Wait) {
        self.ended[0].insert(call, wait);
    }

    /// A step is over: its calls that took too long, or already do. `in_flight`: where such a one was seen to wait.
    pub fn step<'a>(
        &mut self,
        slow: impl Iterator<Item = &'a Judged>,
        in_flight: impl Fn(&Key) -> Option<Wait>,
        now_ns: u64,
    ) {
        let Self { ended: [new, old], of } = self;
        for call in slow {
            // OK because thread ids are positive.
            let key = (call.row.time_ns, call.row.tid as i32, call.row.class_id);
            let wait =
                if call.is_running { in_flight(&key) } else { new.remove(&key).or_else(|| old.remove(&key)) };
            let Some(wait) = wait else { continue };
            let own = of.entry(number(call.seen.kernel)).or_default();
            own.insert((call.row.time_ns, call.row.tid), wait);
            own.retain(|_, (_, at_ns)| now_ns.saturating_sub(*at_ns) <= APART_NS);
            while own.len() > MOST_KEPT {
                let oldest = own.iter().min_by_key(|(_, (_, at_ns))| *at_ns).map(|(call, _)| *call);
                oldest.map(|oldest| own.remove(&oldest));
            }
        }
        *old = std::mem::take(new);
    }

    /// Where calls of a function were seen to wait in the last 30 s, and how many; most calls first.
    pub fn told(&self, function: usize, now_ns: u64) -> Vec<(String, usize)> {
        let mut calls: BTreeMap<i64, usize> = BTreeMap::new();
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

fn name(waits_in: i64) -> String {
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
            waits.end((i, 7, 3), (if i == 4 { 0 } else { libc::SYS_clock_nanosleep }, S));
        }
        // The first one took no longer than others do, and the last one was not seen to wait.
        let slow: Vec<Judged> = (1..6).map(|i| judged(4, i, false)).collect();
        waits.step(slow[..2].iter(), none, S);
        // Their words came late.
        waits.step(slow[2..].iter(), none, S);
        waits.step([judged(4, 9, true)].iter(), |key| (*key == (9, 7, 3)).then_some((-1, 2 * S)), 2 * S);
        let told = waits.told(4, 3 * S);
        let texts: Vec<(&str, usize)> = told.iter().map(|(name, calls)| (name.as_str(), *calls)).collect();
        assert_eq!(texts, [("clock_nanosleep", 3), ("no system call (a page fault, say)", 1), ("read", 1)]);
        assert_eq!(waits.told(4, 32 * S).len(), 1);
        assert!(waits.told(4, 33 * S).is_empty() && waits.told(5, S).is_empty());
        // One that goes on is one call, however often it is seen; when it was seen counts.
        waits.step([judged(4, 9, true)].iter(), |_| Some((0, 40 * S)), 40 * S);
        waits.step([judged(4, 9, true)].iter(), |_| Some((1, 41 * S)), 41 * S);
        assert_eq!(waits.told(4, 41 * S), [("write".to_owned(), 1)]);
        waits.step([judged(4, 9, true)].iter(), |_| Some((1, 41 * S)), 80 * S);
        assert!(waits.told(4, 80 * S).is_empty());
    }

    /// It began before all of them, and is seen to wait after them.
    #[test]
    fn a_call_that_hangs_is_not_forgotten_among_many() {
        let mut waits = Waits::default();
        (1..10_000).for_each(|i| waits.end((i, 7, 3), (1, S)));
        waits.end((0, 7, 3), (0, 2 * S));
        let slow: Vec<Judged> = (0..10_000).map(|i| judged(0, i, false)).collect();
        waits.step(slow.iter(), |_| None, 2 * S);
        assert_eq!(waits.told(0, 2 * S), [("write".to_owned(), MOST_KEPT - 1), ("read".to_owned(), 1)]);
        waits.end((7, 7, 3), (1, S));
        (0..2).for_each(|_| waits.step([].iter(), |_| None, S));
        assert!(waits.ended.iter().all(BTreeMap::is_empty), "calls that took no longer than others do");
    }
}
