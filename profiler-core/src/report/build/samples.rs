//! Samples to shares: which part of the CPU time had a function on the stack.

use super::threads::Threads;
use super::unseen::{Unseen, period_ns};
use crate::class::Source;
use crate::estimate::Estimate;
use crate::ledger::LedgerSummary;
use crate::recording::{FrameRow, Recording};
use crate::stats::shares::{SampleDesign, SamplePoint, Share};
use crate::stats::{Interval, LEVEL};
use std::collections::{BTreeMap, HashMap};

/// Who a frame belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key<'r> {
    /// A class of the recording.
    Class(u32),
    /// A function without class: module and name.
    Function(&'r str, &'r str),
}

/// Shares of one function.
#[derive(Debug, Clone, Copy)]
pub(super) struct FunctionShares {
    /// Inclusive, interval of this recording; `n` is the samples inside.
    pub share: Estimate,
    /// Inclusive, interval of the long run.
    pub long_run: Estimate,
    /// Self: innermost frame. `None` if the function never was innermost.
    pub own: Option<Estimate>,
}

/// Shares of all functions that the samples show.
pub(super) struct Shares<'r> {
    functions: BTreeMap<Key<'r>, FunctionShares>,
    cpu_ns: f64,
    unseen_ns: f64,
    threads: Threads,
    missed: f64,
}

#[derive(Default)]
struct Seen {
    inclusive: Vec<usize>,
    own: Vec<usize>,
}

impl<'r> Shares<'r> {
    /// Counts a function once per sample, however deep the recursion; the innermost frame is its own time.
    pub(super) fn of(recording: &'r Recording, ledger: &LedgerSummary) -> Self {
        let stacks = stacks(recording);
        let mut seen: BTreeMap<Key<'r>, Seen> = BTreeMap::new();
        for (i, sample) in recording.samples.iter().enumerate() {
            let Some(stack) = stacks.get(&sample.stack_id) else { continue };
            for key in &stack.functions {
                seen.entry(*key).or_default().inclusive.push(i);
            }
            seen.entry(stack.innermost).or_default().own.push(i);
        }

        let points: Vec<SamplePoint> = recording
            .samples
            .iter()
            .map(|s| SamplePoint { time_ns: s.time_ns, tid: s.tid, weight: period_ns(s, recording) })
            .collect();
        let mut last_period: HashMap<u32, f64> = HashMap::new();
        for p in &points {
            last_period.insert(p.tid, p.weight);
        }
        let mut threads = Threads::default();
        points.iter().for_each(|p| threads.add(p.tid, 1, p.weight));
        // One that only traps show is a thread, too.
        recording.trap_samples.iter().for_each(|s| threads.add(s.tid, 0, 0.0));
        // Summed in the order of threads: the order of floating-point sums must not vary.
        let ordered: BTreeMap<u32, f64> = last_period.into_iter().collect();

        let left_ns: f64 = ordered.values().sum();
        let unseen = Unseen::of(recording, ledger, left_ns);
        let in_kernel_ns = |of: &[usize]| -> f64 {
            let samples = of.iter().filter_map(|&i| recording.samples.get(i)).filter(|s| s.in_kernel);
            samples.map(|s| period_ns(s, recording)).sum()
        };
        let mut design = SampleDesign::new(&points, LEVEL);
        let functions = seen
            .into_iter()
            .filter_map(|(key, seen)| {
                let all = design.share(&seen.inclusive)?;
                let own = if seen.own.is_empty() { None } else { design.share(&seen.own) };
                let estimate = |share: &Share, interval, of: &[usize]| {
                    let (value, interval) = unseen.correct(share.value, in_kernel_ns(of), interval);
                    estimate(value, share.hits, interval)
                };
                let shares = FunctionShares {
                    share: estimate(&all, all.this_recording, &seen.inclusive),
                    long_run: estimate(&all, all.long_run, &seen.inclusive),
                    own: own.map(|o| estimate(&o, o.this_recording, &seen.own)),
                };
                Some((key, shares))
            })
            .collect();
        Self { functions, cpu_ns: design.total_weight(), unseen_ns: left_ns, threads, missed: unseen.part() }
    }

    /// Shares of one function, if any sample shows it.
    pub(super) fn get(&self, key: Key<'r>) -> Option<&FunctionShares> {
        self.functions.get(&key)
    }

    /// The `n` functions without class with the largest inclusive share: module, name, shares.
    pub(super) fn top_functions(
        &self,
        n: usize,
    ) -> impl Iterator<Item = (&'r str, &'r str, &FunctionShares)> {
        let mut list: Vec<_> = self
            .functions
            .iter()
            .filter_map(|(key, shares)| match *key {
                Key::Function(module, name) => Some((module, name, shares)),
                Key::Class(_) => None,
            })
            .collect();
        // Stable: ties stay in the order of module and name.
        list.sort_by(|a, b| b.2.share.value.total_cmp(&a.2.share.value));
        list.into_iter().take(n)
    }

    /// CPU time that the samples stand for, s.
    pub(super) fn cpu_s(&self) -> f64 {
        self.cpu_ns * 1e-9
    }

    /// The most that the threads' unfinished periods can hold, s.
    pub(super) fn unseen_s(&self) -> f64 {
        self.unseen_ns * 1e-9
    }

    /// Part of the target's CPU time that samples missed, 0 to 1.
    pub(super) fn missed(&self) -> f64 {
        self.missed
    }

    /// Threads that samples show.
    pub(super) fn threads(&self) -> &Threads {
        &self.threads
    }
}

struct Stack<'r> {
    functions: Vec<Key<'r>>,
    innermost: Key<'r>,
}

/// Functions of each distinct stack, each once.
fn stacks(recording: &Recording) -> HashMap<u64, Stack<'_>> {
    // A frame that carries no class but is the class's own function (not an inlined copy of it: those are not
    // counted either) belongs to the class.
    let names: HashMap<(&str, &str), u32> =
        recording.classes.iter().map(|c| ((c.module.as_str(), c.name.as_str()), c.class_id)).collect();
    let key = |f: &'_ FrameRow| -> Option<u32> {
        f.class_id.or_else(|| {
            (!f.inlined).then(|| names.get(&(f.module.as_str(), f.function.as_str())).copied()).flatten()
        })
    };
    let mut frames: HashMap<u64, Vec<&FrameRow>> = HashMap::new();
    for f in &recording.stacks {
        frames.entry(f.stack_id).or_default().push(f);
    }
    frames
        .into_iter()
        .filter_map(|(id, mut list)| {
            list.sort_by_key(|f| f.depth);
            let keys: Vec<Key<'_>> = list
                .iter()
                .map(|f| key(f).map_or(Key::Function(&f.module, &f.function), Key::Class))
                .collect();
            let innermost = *keys.first()?;
            let mut functions = keys;
            functions.sort_unstable();
            functions.dedup();
            Some((id, Stack { functions, innermost }))
        })
        .collect()
}

fn estimate(value: f64, hits: u64, interval: Interval) -> Estimate {
    Estimate {
        value,
        low: interval.low,
        high: interval.high,
        level: LEVEL,
        n: hits,
        source: Source::Sampled,
        at_most: false,
    }
}
