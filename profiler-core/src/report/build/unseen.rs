//! CPU time that the kernel counted for the target and that no sample saw.
//!
//! The timer of `cpu-clock` does not fire while interrupts are off, and what comes late after a switch counts for the
//! thread that runs by then: where the target blocks, samples miss part of the kernel's work for it (docs/log.md M47:
//! 3 to 20 % of the CPU time of servers, with whose own clocks the shares agree once that part is the kernel's). What
//! a host takes away for more than a period is missed everywhere alike.
//!
//! With `S` the time that samples stand for, `U` what they missed, `p` a function's share of the samples and `k` its
//! share of those in the kernel, of which `u <= U` is missing in the kernel's work and the rest everywhere alike:
//!
//! ```text
//! s(u) = (p S + u k) / (S + u)            value s(min(U, K)), K: what samples saw in the kernel
//!                                         ends  scaled by the least and the largest of s(u) / p, 0 <= u <= U
//! ```
//!
//! `s` is monotonic in `u`, so that the least and the largest lie at `0` and at `U`. The kernel hides no more than it
//! shows: the value's `u` is not above `K`, so that a program that never enters the kernel keeps its shares.

use crate::recording::{LedgerRow, Recording, SampleRow};
use crate::stats::Interval;
use std::collections::BTreeMap;

/// Samples in the kernel that `k` begins with, divided as all samples are: a few say little.
const PRIOR: f64 = 10.0;

/// An interval with fewer samples to be had than this may have none by chance.
const FEW: f64 = 10.0;

/// What samples missed, and what they saw in the kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Unseen {
    /// `S`, ns.
    seen_ns: f64,
    /// `U`, ns.
    missed_ns: f64,
    /// `K`, ns.
    kernel_ns: f64,
    /// Samples in the kernel.
    in_kernel: f64,
}

impl Unseen {
    /// From the ledger's intervals in which samples were taken; nothing is missed where there is no ledger.
    pub(super) fn of(recording: &Recording) -> Self {
        let asked = recording.meta.sample_period_ns.max(1);
        let period = |s: &SampleRow| if s.period_ns > 0 { s.period_ns } else { asked } as f64;
        let of_kernel = || recording.samples.iter().filter(|s| s.in_kernel);
        let seen_ns: f64 = recording.samples.iter().map(period).sum();
        let work = recording.samples.iter().map(|s| (s.time_ns, period(s)));
        let traps = recording.trap_samples.iter().map(|s| (s.time_ns, s.period_ns as f64));
        Self {
            seen_ns,
            missed_ns: missed_ns(&recording.ledger, work.chain(traps), asked as f64),
            kernel_ns: of_kernel().map(period).sum(),
            in_kernel: of_kernel().count() as f64,
        }
    }

    /// Part of the target's CPU time that samples missed, 0 to 1.
    pub(super) fn part(&self) -> f64 {
        let all = self.seen_ns + self.missed_ns;
        if all > 0.0 { self.missed_ns / all } else { 0.0 }
    }

    /// Share of a function of which `value` of all samples and `in_kernel` of those in the kernel are, and its interval.
    pub(super) fn correct(&self, value: f64, in_kernel: u64, interval: Interval) -> (f64, Interval) {
        if value <= 0.0 || self.seen_ns <= 0.0 || self.missed_ns <= 0.0 {
            return (value, interval);
        }
        let k = (in_kernel as f64 + PRIOR * value) / (self.in_kernel + PRIOR);
        let factor = |u: f64| (self.seen_ns + u * k / value) / (self.seen_ns + u);
        let all = factor(self.missed_ns);
        let corrected = value * factor(self.missed_ns.min(self.kernel_ns));
        let low = (interval.low * all.min(1.0)).min(corrected);
        let high = (interval.high * all.max(1.0)).min(1.0).max(corrected);
        (corrected, Interval { low, high })
    }
}

/// `U`: CPU time of the intervals less what their samples stand for, those in traps included. Intervals without any
/// sample, in which there should have been [`FEW`], were not sampled: they say nothing.
fn missed_ns(ledger: &[LedgerRow], samples: impl Iterator<Item = (u64, f64)>, period_ns: f64) -> f64 {
    // End -> begin, CPU time, time of its samples. The rows of an interval repeat its CPU time.
    let mut intervals: BTreeMap<u64, (u64, f64, f64)> = BTreeMap::new();
    for row in ledger {
        let begin = row.time_ns.saturating_sub(row.interval_ns);
        intervals.entry(row.time_ns).or_insert((begin, row.target_cpu_ns as f64, 0.0));
    }
    for (time_ns, period) in samples {
        if let Some((_, (begin, _, seen))) = intervals.range_mut(time_ns..).next()
            && *begin <= time_ns
        {
            *seen += period;
        }
    }
    let sampled = intervals.values().filter(|(_, cpu, seen)| *seen > 0.0 || *cpu < FEW * period_ns);
    sampled.map(|(_, cpu, seen)| cpu - seen).sum::<f64>().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SURE: Interval = Interval { low: 0.09, high: 0.11 };

    #[test]
    fn work_outside_the_kernel_loses_what_the_kernel_hid() {
        // memcached beside compilers (M47): 57 % of the samples in the kernel, 20 % of the CPU time not seen.
        let unseen = Unseen { seen_ns: 80.0, missed_ns: 20.0, kernel_ns: 45.6, in_kernel: 1_500.0 };
        let (value, interval) = unseen.correct(0.1, 0, SURE);
        assert!((value - 0.08).abs() < 2e-4, "{value}");
        assert!((interval.low - 0.072).abs() < 2e-4 && interval.high == 0.11, "{interval:?}");
        assert!((unseen.part() - 0.2).abs() < 1e-12);
        // All of the kernel's work below it: it gains.
        let (value, interval) = unseen.correct(0.7, 1_500, Interval { low: 0.69, high: 0.71 });
        assert!((value - (0.7 * 80.0 + 20.0) / 100.0).abs() < 1e-3, "{value}");
        assert!(interval.low == 0.69 && interval.high > 0.76, "{interval:?}");
    }

    #[test]
    fn a_program_that_never_enters_the_kernel_keeps_its_shares() {
        let unseen = Unseen { seen_ns: 92.0, missed_ns: 8.0, kernel_ns: 0.0, in_kernel: 0.0 };
        let (value, interval) = unseen.correct(0.1, 0, SURE);
        assert!((value - 0.1).abs() < 1e-12 && interval == SURE, "{value} {interval:?}");
    }

    #[test]
    fn a_program_that_hardly_enters_it_loses_no_more_than_was_seen_there() {
        let unseen = Unseen { seen_ns: 92.0, missed_ns: 8.0, kernel_ns: 0.92, in_kernel: 60.0 };
        let (value, interval) = unseen.correct(0.1, 0, SURE);
        assert!(value > 0.099 && interval.low < 0.0845 && interval.high == 0.11, "{value} {interval:?}");
    }

    #[test]
    fn intervals_without_samples_say_nothing() {
        let row = |s: u64, cpu: u64| LedgerRow {
            time_ns: s * 1_000,
            interval_ns: 1_000,
            charge: crate::recording::Charge::Samples,
            class_id: None,
            units: 0,
            cost_ns: 0,
            target_cpu_ns: cpu,
            allowed_ns: 0,
        };
        // The second's row twice; the third was not sampled; the fourth was nearly idle.
        let ledger = [row(1, 900), row(2, 800), row(2, 800), row(3, 900), row(4, 30)];
        let samples = [(500, 700.0), (1_500, 700.0), (9_999, 700.0)];
        assert_eq!(missed_ns(&ledger, samples.into_iter(), 10.0), 200.0 + 100.0 + 30.0);
        // More seen than used, by the chance of sampling: nothing was missed.
        assert_eq!(missed_ns(&ledger[..1], [(1, 950.0)].into_iter(), 10.0), 0.0);
    }
}
