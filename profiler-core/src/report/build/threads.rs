//! The target's threads: their CPU time, and which of them makes a function's calls.

use crate::recording::WindowRow;
use crate::stats::{LEVEL, z_quantile};
use std::collections::BTreeMap;

/// CPU time of the target's threads, as samples saw it.
#[derive(Debug, Clone, Default)]
pub(super) struct Threads {
    /// Samples outside traps of each thread that any sample shows, and the CPU time that they stand for, ns.
    of: BTreeMap<u32, (u64, f64)>,
}

/// One thread that makes all calls of a function, as far as windows show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Caller {
    pub tid: u32,
    /// Part of the target's CPU time that it uses, above 0, at most 1.
    pub part: f64,
    /// Half of that part's interval, over it.
    pub error: f64,
    /// The target has no other thread.
    pub is_sole: bool,
}

impl Threads {
    /// A sample of a thread: the CPU time that it stands for, ns; 0 for one that a trap's sample shows.
    pub(super) fn add(&mut self, tid: u32, n: u64, cpu_ns: f64) {
        let (samples, sum_ns) = self.of.entry(tid).or_default();
        *samples += n;
        *sum_ns += cpu_ns;
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        // OK because a recording has fewer threads.
        self.of.len() as u32
    }

    /// The only one.
    pub(super) fn sole(&self) -> Option<Caller> {
        let tid = *self.of.keys().next().filter(|_| self.of.len() == 1)?;
        Some(Caller { tid, part: 1.0, error: 0.0, is_sole: true })
    }

    /// The one that takes nearly all of the CPU time, as far as samples show.
    pub(super) fn main(&self) -> Option<u32> {
        const NEARLY_ALL: f64 = 0.95;
        let all_ns: f64 = self.of.values().map(|(_, ns)| ns).sum();
        let (tid, (_, ns)) = self.of.iter().max_by(|a, b| a.1.1.total_cmp(&b.1.1))?;
        (*ns > 0.0 && *ns >= NEARLY_ALL * all_ns).then_some(*tid)
    }

    /// The one that took the first and the last hit of nearly all windows that their quota ended. A function that several threads call has windows that begin
    /// and end in different ones, or now in one and now in another.
    pub(super) fn caller(&self, windows: &[&WindowRow]) -> Option<Caller> {
        /// Fewer samples do not say its part, to some 20 %.
        const LEAST_SAMPLES: u64 = 100;
        if let Some(sole) = self.sole() {
            return Some(sole);
        }
        let tid = shown(windows)?;
        let (samples, cpu_ns) = *self.of.get(&tid)?;
        let n: u64 = self.of.values().map(|(n, _)| n).sum();
        if samples < LEAST_SAMPLES || cpu_ns <= 0.0 {
            return None;
        }
        let part = self.part_of(tid);
        let error = z_quantile(LEVEL) * ((1.0 - part) / (part * n as f64)).sqrt();
        Some(Caller { tid, part, error, is_sole: false })
    }

    /// Part of the target's CPU time of the thread that makes the calls of these windows, however few samples say it; where they show none, of the one that takes nearly all, or of all others together, whichever may. `None`: nobody knows.
    pub(super) fn part_where_called(&self, windows: &[&WindowRow]) -> Option<f64> {
        if self.sole().is_some() {
            return Some(1.0);
        }
        if let Some(tid) = shown(windows) {
            return Some(self.part_of(tid));
        }
        let main = self.main()?;
        // Windows that begin and end in different threads are of a pool of them; a few may be of one that changed its CPU.
        let ended = || windows.iter().filter(|w| is_ended(w));
        let is_of_pool = ended().count() >= LEAST_WINDOWS && !ended().any(|w| w.ran_tid.is_some());
        let is_mains = !is_of_pool && !is_of_others(windows, main);
        Some(if is_mains { self.part_of(main) } else { 1.0 - self.part_of(main) })
    }

    /// Part of the target's CPU time that a thread uses; 0 of one that no sample shows.
    fn part_of(&self, tid: u32) -> f64 {
        let all_ns: f64 = self.of.values().map(|(_, ns)| ns).sum();
        let own_ns = self.of.get(&tid).map_or(0.0, |(_, ns)| *ns);
        if all_ns > 0.0 { own_ns / all_ns } else { 0.0 }
    }
}

/// Fewer windows show no thread by chance more often than that: 2^-7.
const LEAST_WINDOWS: usize = 8;

/// Its quota ended it, after enough hits to have a first and a last one.
fn is_ended(w: &WindowRow) -> bool {
    w.tripped && w.kept > 2
}

/// The thread that took the first and the last hit of nearly all windows that their quota ended.
fn shown(windows: &[&WindowRow]) -> Option<u32> {
    /// Part of the windows that must show it.
    const MOST: f64 = 0.95;
    /// Part of the windows of which the kernel says the thread: the first and the last hit are one's, on one CPU. Of one that makes 0.89 of the calls it is
    /// as much, if no thread changes its CPU.
    const KNOWN: f64 = 0.8;
    let ended = windows.iter().filter(|w| is_ended(w));
    let mut by_tid: BTreeMap<u32, usize> = BTreeMap::new();
    let mut all = 0_u32;
    for window in ended {
        all += 1;
        if let (Some(tid), Some(_)) = (window.ran_tid, window.ran_ns) {
            *by_tid.entry(tid).or_default() += 1;
        }
    }
    let known: usize = by_tid.values().sum();
    let (tid, own) = by_tid.into_iter().max_by_key(|(_, n)| *n)?;
    let is_clear =
        known >= LEAST_WINDOWS && own as f64 >= MOST * known as f64 && known as f64 >= KNOWN * f64::from(all);
    is_clear.then_some(tid)
}

/// More than a tenth of the windows of which the kernel says the thread are another's.
pub(super) fn is_of_others(windows: &[&WindowRow], tid: u32) -> bool {
    let known = || windows.iter().filter_map(|w| w.ran_tid.filter(|_| w.tripped));
    10 * known().filter(|own| *own != tid).count() > known().count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::ClassId;
    use crate::recording::{WindowKind, plain_window};

    fn threads(samples: &[(u32, u64)]) -> Threads {
        let mut threads = Threads::default();
        samples.iter().for_each(|(tid, n)| threads.add(*tid, *n, *n as f64 * 1e7));
        threads
    }

    fn window(ran_tid: Option<u32>) -> WindowRow {
        let plain = plain_window(ClassId(0), WindowKind::Burst, (0, 1_000), 50);
        WindowRow { tripped: true, ran_ns: ran_tid.map(|_| 1_000), ran_tid, ..plain }
    }

    fn caller(threads: &Threads, tids: &[Option<u32>]) -> Option<Caller> {
        let windows: Vec<WindowRow> = tids.iter().map(|tid| window(*tid)).collect();
        threads.caller(&windows.iter().collect::<Vec<_>>())
    }

    #[test]
    fn the_only_thread_is_the_caller_whatever_windows_say() {
        let sole = caller(&threads(&[(7, 3)]), &[]).unwrap();
        assert_eq!((sole.tid, sole.part, sole.is_sole), (7, 1.0, true));
    }

    /// Which part of the CPU time may be the callers': of the one that windows show, else of the main thread, else of all others.
    #[test]
    fn who_may_call_uses_a_part_of_the_time() {
        let part = |threads: &Threads, tids: &[Option<u32>]| {
            let windows: Vec<WindowRow> = tids.iter().map(|tid| window(*tid)).collect();
            threads.part_where_called(&windows.iter().collect::<Vec<_>>())
        };
        let is = |of: Option<f64>, expected: f64| of.is_some_and(|of| (of - expected).abs() < 1e-12);
        let helped = threads(&[(7, 960), (8, 20), (9, 20)]);
        assert!(is(part(&helped, &[Some(7); 20]), 0.96) && is(part(&helped, &[Some(8); 20]), 0.02));
        // Seven windows show none: the main thread, if they are its.
        assert!(is(part(&helped, &[Some(7); 7]), 0.96) && is(part(&helped, &[Some(8); 7]), 0.04));
        assert!(is(part(&helped, &[None; 20]), 0.04), "a pool of helpers");
        assert!(is(part(&helped, &[None; 7]), 0.96), "the main thread, on another CPU at its end");
        assert!(is(part(&helped, &[]), 0.96), "traced all the time");
        // Beside two that work a helper rests, however few samples say so.
        let two = threads(&[(7, 490), (8, 490), (9, 20)]);
        assert!(is(part(&two, &[Some(9); 20]), 0.02));
        assert_eq!(part(&two, &[Some(7), Some(8)].repeat(10)), None);
        assert!(is(part(&threads(&[(7, 3)]), &[]), 1.0));
    }

    #[test]
    fn one_of_several_threads_calls_if_nearly_all_windows_show_it() {
        // memcached: a worker, and a thread that maintains lists.
        let two = threads(&[(7, 900), (8, 100)]);
        let mut tids = vec![Some(7); 20];
        tids.extend([None; 5]);
        let worker = caller(&two, &tids).unwrap();
        assert!(worker.tid == 7 && !worker.is_sole && (worker.part - 0.9).abs() < 1e-12, "{worker:?}");
        assert!((0.02..0.03).contains(&worker.error), "{worker:?}");
        // Two workers in turns, too few windows, mostly windows that nobody knows the thread of, a thread that samples hardly show.
        assert_eq!(caller(&two, &[Some(7), Some(8)].repeat(10)), None);
        assert_eq!(caller(&two, &[Some(7); 7]), None);
        assert_eq!(caller(&two, &[vec![Some(7); 10], vec![None; 3]].concat()), None);
        assert_eq!(caller(&threads(&[(7, 99), (8, 900)]), &[Some(7); 20]), None);
        assert_eq!(caller(&threads(&[(8, 900), (9, 1)]), &[Some(7); 20]), None);
    }
}
