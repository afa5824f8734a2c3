//! CPU time that the kernel counted for the target and that no sample saw.
//!
//! The timer of `cpu-clock` does not fire while interrupts are off, and what comes late after a switch counts for the
//! thread that runs by then: where the target blocks, samples miss part of the kernel's work for it (docs/log.md M47:
//! 4 to 20 % of the CPU time of servers, with whose own clocks the shares agree once that part is the kernel's). What
//! a host takes away for more than a period is missed everywhere alike.
//!
//! `U` is the target's CPU time while it was sampled, less what its samples stand for (those in traps included), less what samples, switches
//! and attaching cost, less half a period of each thread, which its last sample leaves over, less a mean period for each sample that was taken and lost: any may be lost. With `S` the time that samples stand for, `p` a function's
//! share of it and `k` its share of those in the kernel, of which `u <= U` is missing in the kernel's work and the rest everywhere alike:
//!
//! ```text
//! s(u, k) = (p S + u k) / (S + u)         value  s(min(U, K), k), K: what samples saw in the kernel
//!                                         ends   scaled by the least and the largest of s(u, k) / p, 0 <= u <= min(U, 2 K), k in its interval
//! ```
//!
//! `s` is monotonic in `u` and in `k`, so that the least and the largest lie at the ends. The kernel hides about as much as it shows at most (in M47 0.25 to
//! 0.6 of it), so that a program that never enters the kernel keeps its shares.

use crate::ledger::LedgerSummary;
use crate::recording::{Recording, SampleRow};
use crate::stats::counts::wilson;
use crate::stats::{Interval, LEVEL, z_quantile};

/// Samples in the kernel that `k` begins with, divided as all samples are: a few say little.
const PRIOR: f64 = 10.0;

/// What samples missed, and what they saw in the kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Unseen {
    /// `S`, ns.
    seen_ns: f64,
    /// `U`, ns.
    missed_ns: f64,
    /// `K`, ns.
    kernel_ns: f64,
    /// All samples.
    samples: f64,
}

impl Unseen {
    /// Nothing is missed where the recording does not say for how much of its CPU time the target was sampled. `left_ns`: the threads' last
    /// periods.
    pub(super) fn of(recording: &Recording, ledger: &LedgerSummary, left_ns: f64) -> Self {
        let samples = &recording.samples;
        let seen_ns: f64 = samples.iter().map(|s| period_ns(s, recording)).sum();
        let in_traps: f64 = recording.trap_samples.iter().map(|s| s.period_ns as f64).sum();
        let own = ledger.interrupts_s() * 1e9;
        let sampled = recording.meta.agent.sampled_cpu_ns.map_or(0.0, |ns| ns as f64);
        let losses = &recording.meta.losses;
        let taken = (samples.len() + recording.trap_samples.len()).max(1) as f64;
        let lost = (losses.samples_ring_full + losses.samples_missed) as f64 * (seen_ns + in_traps) / taken;
        Self {
            seen_ns,
            missed_ns: (sampled - seen_ns - in_traps - lost - own - left_ns / 2.0).max(0.0),
            kernel_ns: samples.iter().filter(|s| s.in_kernel).map(|s| period_ns(s, recording)).sum(),
            samples: samples.len() as f64,
        }
    }

    /// Part of the target's CPU time that samples missed, 0 to 1; 0 where it is no more than chance: twice `S / sqrt n`.
    pub(super) fn part(&self) -> f64 {
        let chance = 2.0 * self.seen_ns / self.samples.max(1.0).sqrt();
        if self.missed_ns > chance { self.missed_ns / (self.seen_ns + self.missed_ns) } else { 0.0 }
    }

    /// Share of a function of which `value` of all samples' time is, and `in_kernel_ns` of that of those in the kernel; and its interval.
    pub(super) fn correct(&self, value: f64, in_kernel_ns: f64, interval: Interval) -> (f64, Interval) {
        if value <= 0.0 || self.seen_ns <= 0.0 || self.missed_ns <= 0.0 {
            return (value, interval);
        }
        let period_ns = self.seen_ns / self.samples.max(1.0);
        let n = self.kernel_ns / period_ns;
        let k = (in_kernel_ns / period_ns + PRIOR * value) / (n + PRIOR);
        // The prior's samples are not there, but where there are few others they are what is known.
        let near = wilson(k * (n + PRIOR), n + PRIOR, z_quantile(LEVEL));
        let factor = |u: f64, k: f64| (self.seen_ns + u * k / value) / (self.seen_ns + u);
        let most = self.missed_ns.min(2.0 * self.kernel_ns);
        let corrected = value * factor(self.missed_ns.min(self.kernel_ns), k);
        let low = (interval.low * factor(most, near.low).min(1.0)).min(corrected);
        let high = (interval.high * factor(most, near.high).max(1.0)).min(1.0).max(corrected);
        (corrected, Interval { low, high })
    }
}

/// CPU time that a sample stands for, ns: one without a period stands for the one asked for at the start.
pub(super) fn period_ns(sample: &SampleRow, recording: &Recording) -> f64 {
    (if sample.period_ns > 0 { sample.period_ns } else { recording.meta.sample_period_ns.max(1) }) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SURE: Interval = Interval { low: 0.09, high: 0.11 };

    #[test]
    fn work_outside_the_kernel_loses_what_the_kernel_hid() {
        // memcached beside compilers (M47): 57 % of the samples in the kernel, 20 % of the CPU time not seen.
        let unseen = Unseen { seen_ns: 80.0, missed_ns: 20.0, kernel_ns: 45.6, samples: 2_600.0 };
        let (value, interval) = unseen.correct(0.1, 0.0, SURE);
        assert!((value - 0.08).abs() < 2e-4, "{value}");
        assert!((interval.low - 0.072).abs() < 2e-4 && interval.high == 0.11, "{interval:?}");
        assert!((unseen.part() - 0.2).abs() < 1e-12);
        // All of the kernel's work below it: it gains.
        let (value, interval) = unseen.correct(0.7, 45.6, Interval { low: 0.69, high: 0.71 });
        assert!((value - (0.7 * 80.0 + 20.0) / 100.0).abs() < 1e-3, "{value}");
        assert!(interval.low == 0.69 && interval.high > 0.76, "{interval:?}");
    }

    #[test]
    fn the_kernel_hides_about_as_much_as_it_shows() {
        // 1 % of the samples in the kernel, none of them in the function.
        let unseen = Unseen { seen_ns: 92.0, missed_ns: 8.0, kernel_ns: 0.92, samples: 6_000.0 };
        let (value, interval) = unseen.correct(0.1, 0.0, SURE);
        assert!((0.099..0.0992).contains(&value), "{value}");
        assert!((0.088..0.0885).contains(&interval.low) && interval.high == 0.11, "{interval:?}");
        let never = Unseen { kernel_ns: 0.0, ..unseen };
        assert_eq!(never.correct(0.1, 0.0, SURE), (0.1, SURE));
    }

    #[test]
    fn few_samples_in_the_kernel_say_little_of_whose_they_are() {
        let unseen = Unseen { seen_ns: 80.0, missed_ns: 20.0, kernel_ns: 10.0, samples: 96.0 };
        // Two of twelve.
        let (value, interval) = unseen.correct(0.1, 10.0 / 6.0, SURE);
        assert!((0.102..0.106).contains(&value), "{value}");
        assert!(interval.high > 0.145 && interval.low < 0.083, "{interval:?}");
    }

    #[test]
    fn what_is_less_than_chance_is_not_told() {
        let unseen = Unseen { seen_ns: 94.0, missed_ns: 6.0, kernel_ns: 10.0, samples: 400.0 };
        assert_eq!(unseen.part(), 0.0);
        assert!(Unseen { samples: 1_600.0, ..unseen }.part() > 0.05);
    }
}
