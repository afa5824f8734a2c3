//! Where the samples fell: on-CPU time per function, inclusive and self.
//!
//! Inputs: stacks with the CPU time that each sample stands for; a resolver from frame to
//! function. Outputs: per function the samples and CPU time with it on the stack (each sample counts a function
//! once, however deep) and at its top. It keeps no stacks.

use crate::unwind::Frame;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Names a function across the run: index of the module in the inspection, virtual address in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionKey {
    /// Module.
    pub module: usize,
    /// Virtual address in the module's file.
    pub address: u64,
}

/// Time of one function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FunctionTime {
    /// Samples with the function on the stack.
    pub samples: u64,
    /// CPU time that those samples stand for, ns.
    pub cpu_ns: u64,
    /// Samples with the function at the top.
    pub self_samples: u64,
    /// CPU time of those, ns.
    pub self_cpu_ns: u64,
    /// Samples of those of which the stack is known down to the thread's start.
    pub whole: u64,
    /// Frames below it, towards the thread's start, in those together.
    pub below: u64,
}

impl FunctionTime {
    /// Frames below it in a sample, on average; infinite where no stack is whole.
    fn depth(&self) -> f64 {
        if self.whole == 0 { f64::INFINITY } else { self.below as f64 / self.whole as f64 }
    }
}

/// Addresses remembered at most: 16 MiB of them.
const CACHE_LIMIT: usize = 1 << 20;

/// The accumulator.
#[derive(Debug, Default)]
pub struct Shares {
    functions: HashMap<FunctionKey, FunctionTime>,
    resolved: HashMap<Frame, Option<FunctionKey>>,
    samples: u64,
    cpu_ns: u64,
}

impl Shares {
    /// Adds a sample that stands for `period_ns` of CPU time; `frames`: innermost first, `is_whole`: down to the thread's start.
    pub fn add(
        &mut self,
        period_ns: u64,
        (frames, is_whole): (&[Frame], bool),
        mut resolve: impl FnMut(Frame) -> Option<FunctionKey>,
    ) {
        self.samples += 1;
        self.cpu_ns += period_ns;
        let mut seen = HashSet::new();
        for (depth, frame) in frames.iter().enumerate() {
            if self.resolved.len() >= CACHE_LIMIT {
                self.resolved.clear();
            }
            let Some(key) = *self.resolved.entry(*frame).or_insert_with(|| resolve(*frame)) else { continue };
            let first = seen.insert(key);
            let time = self.functions.entry(key).or_default();
            if first {
                time.samples += 1;
                time.cpu_ns += period_ns;
                if is_whole {
                    time.whole += 1;
                    time.below += (frames.len() - 1 - depth) as u64;
                }
            }
            if depth == 0 {
                time.self_samples += 1;
                time.self_cpu_ns += period_ns;
            }
        }
    }

    /// Forgets how addresses resolve (modules came or went), not the times.
    pub fn forget_addresses(&mut self) {
        self.resolved.clear();
    }

    /// Time of one function.
    #[must_use]
    pub fn of(&self, key: FunctionKey) -> FunctionTime {
        self.functions.get(&key).copied().unwrap_or_default()
    }

    /// All samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// CPU time that all samples stand for, ns.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.cpu_ns
    }

    /// Functions by inclusive time, hottest first; ties by address, so that the order is the same each time.
    #[must_use]
    pub fn hottest(&self) -> Vec<(FunctionKey, FunctionTime)> {
        let mut all: Vec<_> = self.functions.iter().map(|(k, t)| (*k, *t)).collect();
        all.sort_by(|a, b| b.1.cpu_ns.cmp(&a.1.cpu_ns).then(a.0.cmp(&b.0)));
        all
    }

    /// The functions to look at, `n` with those already `found` of those that `may_be`: the hottest, and for a fifth of the places those nearest to the thread's start that are not among them and take a two-hundredth of the time, which come first. Such are called
    /// rarely as a rule, so that all of their calls can be counted, and where they are traced they tell how often others are called (core `report/build/windows/counted.rs`).
    #[must_use]
    pub fn worth_a_look(
        &self,
        n: usize,
        found: &BTreeSet<FunctionKey>,
        may_be: impl Fn(FunctionKey, &FunctionTime) -> bool,
    ) -> Vec<FunctionKey> {
        const PART: usize = 5;
        let mut hottest = self.hottest();
        hottest.retain(|(key, time)| may_be(*key, time));
        let mut others = hottest.split_off((n - n / PART).min(hottest.len()));
        others.retain(|(_, time)| 200 * time.cpu_ns >= self.cpu_ns);
        others.sort_by(|a, b| a.1.depth().total_cmp(&b.1.depth()));
        let asked_for = others.into_iter().take(n / PART).chain(hottest).map(|(key, _)| key);
        asked_for.filter(|key| !found.contains(key)).take(n.saturating_sub(found.len())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(address: u64) -> FunctionKey {
        FunctionKey { module: 0, address }
    }

    #[test]
    fn a_recursive_function_counts_once_per_sample() {
        let mut shares = Shares::default();
        // f (0x10) calls itself twice below main (0x20); 0x99 has no symbol.
        let frame = |address| Frame { module: crate::unwind::ModuleId(2), address };
        let stack = [0x11, 0x12, 0x11, 0x21, 0x99].map(frame);
        shares.add(1_000, (&stack, true), |f| (f.address != 0x99).then(|| key(f.address & !0xf)));
        shares.add(1_000, (&[frame(0x21)], false), |f| Some(key(f.address & !0xf)));
        assert_eq!(
            shares.of(key(0x10)),
            FunctionTime {
                samples: 1,
                cpu_ns: 1_000,
                self_samples: 1,
                self_cpu_ns: 1_000,
                whole: 1,
                below: 4
            }
        );
        assert_eq!(
            shares.of(key(0x20)),
            FunctionTime {
                samples: 2,
                cpu_ns: 2_000,
                self_samples: 1,
                self_cpu_ns: 1_000,
                whole: 1,
                below: 1
            }
        );
        assert_eq!((shares.samples(), shares.cpu_ns()), (2, 2_000));
        assert_eq!(shares.hottest()[0].0, key(0x20));
    }

    /// Ten functions in a chain, each of which takes less time than the one before, with one beside them that is called by the first and takes less than all; of eleven, the places of two are those
    /// of the nearest to the start.
    #[test]
    fn a_fifth_of_the_places_are_for_what_is_near_the_start() {
        let mut shares = Shares::default();
        let frame = |address| Frame { module: crate::unwind::ModuleId(2), address };
        let resolve = |f: Frame| Some(key(f.address));
        for depth in 1..=10 {
            let stack: Vec<Frame> = (1..=depth).rev().map(frame).collect();
            shares.add(1_000, (&stack, true), resolve);
        }
        shares.add(100, (&[frame(20), frame(1)], true), resolve);
        shares.add(1, (&[frame(30), frame(1)], true), resolve);
        // Nobody knows how far it is from the start.
        shares.add(200, (&[frame(40)], false), resolve);
        let looked_beside = |n: usize, found: &[u64]| -> Vec<u64> {
            let found = found.iter().map(|address| key(*address)).collect();
            shares.worth_a_look(n, &found, |key, _| key.address != 1).iter().map(|key| key.address).collect()
        };
        let looked = |n: usize| looked_beside(n, &[]);
        // 20 is called by the first one; 30, too, and takes next to nothing.
        assert_eq!(looked(5), [20, 2, 3, 4, 5]);
        assert_eq!(looked(10), [20, 10, 2, 3, 4, 5, 6, 7, 8, 9]);
        // No more than were asked for, whether those that were found are among the hottest or not; those near the start have their places.
        assert_eq!(looked_beside(5, &[2, 3, 4]), [20, 5]);
        assert_eq!(looked_beside(5, &[2, 8, 9, 10]), [20]);
        assert!(looked_beside(5, &[2, 6, 7, 8, 9, 10]).is_empty());
        assert_eq!(looked(3), [2, 3, 4]);
        assert_eq!((looked(0), looked(50).len()), (vec![], 12));
    }
}
