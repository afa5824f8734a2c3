//! Which thread calls a function: hits slow two functions alike where one thread calls both.

use super::super::threads::{Threads, is_of_others};
use crate::recording::{Recording, WindowRow};
use std::collections::{BTreeMap, BTreeSet};

/// Samples with a function on the stack that say which thread calls it: were a tenth of them another's, so many would hide that one time in twenty.
const LEAST_SAMPLES: u64 = 30;
/// So many that most of them show another thread are no chance.
const FEW_SAMPLES: u64 = 5;
/// Part of them that must show it.
const NEARLY_ALL: f64 = 0.95;

/// The threads that call functions, as far as windows and samples show.
pub(super) struct Callers<'t> {
    threads: &'t Threads,
    /// By class: samples that have it on the stack, the thread that most of them show, and how many those are.
    sampled: BTreeMap<u32, Sampled>,
}

/// See [`Callers::sampled`].
#[derive(Debug, Clone, Copy)]
struct Sampled {
    all: u64,
    tid: u32,
    most: u64,
}

impl Sampled {
    fn is_clear(&self) -> bool {
        self.most as f64 >= NEARLY_ALL * self.all as f64
    }
}

impl<'t> Callers<'t> {
    pub(super) fn of(recording: &Recording, threads: &'t Threads) -> Self {
        Self { threads, sampled: sampled(recording) }
    }

    /// The thread that calls a class with these windows: the only one, or one that takes nearly all of the CPU time, where neither windows nor samples of the class show another; the one that its
    /// windows show; of a class without windows that could show one, which is traced, the one that samples do.
    pub(super) fn caller(&self, class: u32, windows: &[&WindowRow]) -> Option<u32> {
        let sampled = self.sampled.get(&class);
        if let Some(main) = self.threads.main() {
            let is_another = sampled.is_some_and(|of| of.all >= FEW_SAMPLES && of.tid != main);
            return (!is_another && !is_of_others(windows, main)).then_some(main);
        }
        let by_windows = self.threads.caller(windows).map(|caller| caller.tid);
        let by_samples = sampled.filter(|of| of.all >= LEAST_SAMPLES && of.is_clear()).map(|of| of.tid);
        match (by_windows, by_samples) {
            (Some(a), Some(b)) => (a == b).then_some(a),
            // Windows whose first and last hits are of several threads have none that they could show.
            (None, Some(of)) => windows.iter().all(|w| !w.tripped).then_some(of),
            (by_windows, None) => by_windows,
        }
    }

    /// One thread calls both.
    pub(super) fn have_one(&self, a: (u32, &[&WindowRow]), b: (u32, &[&WindowRow])) -> bool {
        let caller = self.caller(a.0, a.1);
        caller.is_some() && caller == self.caller(b.0, b.1)
    }
}

/// See [`Callers::sampled`].
fn sampled(recording: &Recording) -> BTreeMap<u32, Sampled> {
    let mut on_stack: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for frame in &recording.stacks {
        if let Some(class) = frame.class_id {
            on_stack.entry(frame.stack_id).or_default().insert(class);
        }
    }
    let mut samples: BTreeMap<u32, BTreeMap<u32, u64>> = BTreeMap::new();
    for sample in &recording.samples {
        for class in on_stack.get(&sample.stack_id).into_iter().flatten() {
            *samples.entry(*class).or_default().entry(sample.tid).or_default() += 1;
        }
    }
    let of = |(class, by_tid): (u32, BTreeMap<u32, u64>)| {
        let all: u64 = by_tid.values().sum();
        let (tid, most) = by_tid.into_iter().max_by_key(|(_, n)| *n)?;
        Some((class, Sampled { all, tid, most }))
    };
    samples.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::ClassId;
    use crate::recording::{FrameRow, SampleRow, WindowKind, plain_window};
    use crate::report::build::tests as run;

    fn window(tid: u32) -> WindowRow {
        WindowRow {
            tripped: true,
            ran_ns: Some(1_000),
            ran_tid: Some(tid),
            ..plain_window(ClassId(0), WindowKind::Burst, (0, 1_000), 50)
        }
    }

    fn threads(of: &[(u32, u64)]) -> Threads {
        let mut threads = Threads::default();
        of.iter().for_each(|(tid, n)| threads.add(*tid, *n, *n as f64 * 1e7));
        threads
    }

    #[test]
    fn hits_slow_both_alike_where_one_thread_calls_both() {
        let (main, other): (Vec<WindowRow>, Vec<WindowRow>) =
            ((0..9).map(|_| window(7)).collect(), (0..9).map(|_| window(8)).collect());
        let (main, other): (Vec<&WindowRow>, Vec<&WindowRow>) =
            (main.iter().collect(), other.iter().collect());
        let have_one = |a: &[&WindowRow], b: &[&WindowRow], threads: &Threads| {
            Callers::of(&run::empty(), threads).have_one((1, a), (2, b))
        };
        // The only thread, and one with a helper that does little: windows need not show it.
        assert!(have_one(&[], &[], &threads(&[(7, 100)])));
        let helped = threads(&[(7, 990), (8, 10)]);
        assert!(have_one(&main, &[], &helped) && !have_one(&main, &other, &helped));
        // Two that work: windows of both must show one.
        let two = threads(&[(7, 500), (8, 500)]);
        assert!(have_one(&main, &main, &two));
        assert!(!have_one(&main, &other, &two) && !have_one(&main, &[], &two));
        assert!(!have_one(&main, &main, &Threads::default()), "nothing was sampled");
    }

    /// Of a function that is traced all the time no window says the thread.
    #[test]
    fn samples_say_the_thread_where_windows_do_not() {
        let mut r = run::empty();
        let frame = |stack_id: u64, class_id: u32| FrameRow {
            stack_id,
            depth: 0,
            address: 0,
            module: "m".into(),
            function: "f".into(),
            file: String::new(),
            line: 0,
            inlined: false,
            class_id: Some(class_id),
        };
        // Class 1 twice on one stack: a sample counts once.
        r.stacks = vec![frame(1, 1), frame(1, 1), frame(2, 2), frame(3, 3)];
        let samples = |n: u64, tid: u32, stack: u64| {
            (0..n).map(move |i| SampleRow { tid, ..run::sample(i, stack) }).collect::<Vec<_>>()
        };
        r.samples = [samples(40, 7, 1), samples(29, 7, 2), samples(40, 8, 3), samples(3, 7, 3)].concat();
        let two = threads(&[(7, 72), (8, 40)]);
        let callers = Callers::of(&r, &two);
        assert_eq!(callers.caller(1, &[]), Some(7));
        assert_eq!(callers.caller(2, &[]), None, "too few");
        assert_eq!(callers.caller(3, &[]), None, "two threads");
        let others: Vec<WindowRow> = (0..9).map(|_| window(8)).collect();
        let others: Vec<&WindowRow> = others.iter().collect();
        assert_eq!(callers.caller(1, &others), None, "windows show another");
        let several: Vec<WindowRow> = (0..9).map(|_| WindowRow { ran_tid: None, ..window(7) }).collect();
        assert_eq!(
            callers.caller(1, &several.iter().collect::<Vec<_>>()),
            None,
            "windows of several threads"
        );
        // A helper's function beside a thread that does nearly everything.
        let helped = threads(&[(7, 9_000), (8, 43)]);
        let callers = Callers::of(&r, &helped);
        assert_eq!(
            (callers.caller(1, &[]), callers.caller(3, &[]), callers.caller(9, &[])),
            (Some(7), None, Some(7))
        );
    }
}
