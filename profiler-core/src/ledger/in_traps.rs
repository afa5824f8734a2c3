//! Prices of hits against samples in traps: what hits were charged is so many samples, and so many were seen.

use crate::stats::LEVEL;
use crate::stats::always::{poisson_is_more, poisson_ratio};

/// Prices are raised at most by this: samples at sites that are the target's own work would drive them up.
const LARGEST: f64 = 4.0;
/// Samples that prices are believed like.
const PRIOR: f64 = 4.0;
/// Fewer samples that prices explain say nothing: six that were booked a moment late would double the prices.
const LEAST_EXPECTED: f64 = 3.0;
/// Changes below this part are not worth a plan.
const STEP: f64 = 0.2;

/// The factor on calibrated prices of hits that samples in traps show.
///
/// ```text
/// E: sum of (samples x what hits were charged at calibrated prices / CPU time),   X: samples in traps
/// factor = (4 + X) / (4 + E)    once more came than E, of 3 at least, until high is below 1; else 1      high: of the always-valid interval of X / E
/// ```
/// Both tests hold at all times at once: that more came is not unsaid by a later look, or prices would go back and forth (simulated at 1.5: nine times in a run).
/// The 4 is the gamma prior of the report's prices, around 1 with a spread of a half. Samples are those that came: of a program that rests they are fewer
/// than the rate says. Samples see neither what a trap leaves behind nor what cannot be told from work, so they never say that hits are cheaper. It is found anew
/// each time from all of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InTraps {
    expected: f64,
    seen: u64,
    factor: f64,
    /// More came than were expected, and the interval was not below 1 since.
    is_dearer: bool,
    /// Since the last samples: charged, and CPU time, ns.
    pending: (f64, f64),
}

impl Default for InTraps {
    fn default() -> Self {
        Self { expected: 0.0, seen: 0, factor: 1.0, is_dearer: false, pending: (0.0, 0.0) }
    }
}

impl InTraps {
    /// An interval in which hits were charged `charged_ns` at calibrated prices, and in which `samples` were taken of `cpu_ns` of CPU time, `seen` of them
    /// in traps. Returns the new factor if it has changed.
    pub fn note(&mut self, charged_ns: f64, cpu_ns: f64, (samples, seen): (u64, u64)) -> Option<f64> {
        self.pending = (self.pending.0 + charged_ns.max(0.0), self.pending.1 + cpu_ns.max(0.0));
        if samples == 0 {
            return None;
        }
        let (charged_ns, cpu_ns) = std::mem::take(&mut self.pending);
        // No more than all of them.
        let part = if cpu_ns > charged_ns { charged_ns / cpu_ns } else { 1.0 };
        if part <= 0.0 && seen == 0 {
            return None;
        }
        self.expected += samples as f64 * part;
        self.seen = self.seen.saturating_add(seen);
        let factor = self.shown();
        let is_over = factor == 1.0 && self.factor != 1.0;
        if (factor / self.factor - 1.0).abs() < STEP && !is_over {
            return None;
        }
        self.factor = factor;
        Some(factor)
    }

    fn shown(&mut self) -> f64 {
        let Some(ratio) = poisson_ratio(self.seen, self.expected, LEVEL) else { return 1.0 };
        let is_more = self.expected >= LEAST_EXPECTED && poisson_is_more(self.seen, self.expected, LEVEL);
        self.is_dearer = is_more || self.is_dearer && ratio.high >= 1.0;
        if !self.is_dearer {
            return 1.0;
        }
        ((PRIOR + self.seen as f64) / (PRIOR + self.expected)).clamp(1.0, LARGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// Intervals of 0.1 s at 100 Hz in which hits cost 1 % and `seen` of 1,000 samples are in traps, spread evenly.
    fn after(intervals: u64, in_thousand: u64) -> f64 {
        let mut traps = InTraps::default();
        let mut factor = 1.0;
        let mut told = 0;
        for i in 1..=intervals {
            let seen = i * 10 * in_thousand / 1_000;
            factor = traps.note(1e6, 1e8, (10, seen - told)).unwrap_or(factor);
            told = seen;
        }
        factor
    }

    #[test]
    fn what_prices_explain_changes_nothing() {
        assert_eq!(after(1_000, 10), 1.0);
        assert_eq!(after(1_000, 11), 1.0);
        assert_eq!(after(1_000, 2), 1.0, "never cheaper");
    }

    #[test]
    fn prices_that_are_a_third_of_what_is_seen_are_raised_once_that_is_sure() {
        let (soon, late) = (after(100, 30), after(3_000, 30));
        assert!(soon > 1.2 && late > 2.4 && late <= 3.0, "{soon} {late}");
        assert_eq!(after(20, 30), 1.0, "six samples say nothing");
        let most = after(10_000, 90);
        assert!(most > LARGEST / (1.0 + STEP) && most <= LARGEST, "{most}");
    }

    #[test]
    fn six_samples_that_were_booked_late_change_no_price() {
        let mut traps = InTraps::default();
        assert_eq!(traps.note(1e4, 1e8, (10, 6)), None);
        // Later one comes for each that is explained.
        assert!((0..400).all(|i| traps.note(1e6, 1e8, (10, u64::from(i % 10 == 9))).is_none()));
    }

    #[test]
    fn prices_that_were_right_after_all_are_told_to_be_so() {
        let mut traps = InTraps::default();
        let mut factors = Vec::new();
        for i in 0..4_000 {
            // Three in a hundred at first, none later; one is expected.
            let seen = u64::from(i < 100 && i % 3 == 0);
            factors.extend(traps.note(1e6, 1e8, (10, seen)));
        }
        assert!(factors.iter().any(|factor| *factor > 1.2), "{factors:?}");
        assert_eq!(factors.last(), Some(&1.0), "{factors:?}");
    }

    /// Samples come at random: once prices are known to be too low they are not taken for right again.
    #[test]
    fn prices_do_not_go_back_and_forth() {
        for seed in 0..100 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut traps = InTraps::default();
            let mut factors = vec![1.0];
            for _ in 0..2_000 {
                // 5 % of 10 samples are expected in traps every tenth of a second, and 7.5 % are.
                let seen = (0..10).filter(|_| random.random::<f64>() < 0.075).count() as u64;
                factors.extend(traps.note(5e6, 1e8, (10, seen)));
            }
            let rises = factors.windows(2).filter(|pair| pair[1] > pair[0]).count();
            let falls_to_one = factors.iter().skip(1).filter(|factor| **factor == 1.0).count();
            assert!(rises >= 1 && factors.len() <= 6 && falls_to_one == 0, "{seed}: {factors:?}");
        }
    }

    #[test]
    fn without_samples_nothing_is_said() {
        let mut traps = InTraps::default();
        assert_eq!(traps.note(1e6, 1e7, (0, 0)), None);
        assert_eq!(traps.note(0.0, 0.0, (0, 0)), None);
        assert_eq!((traps.expected, traps.seen), (0.0, 0));
        // What came before the first sample is held against it.
        let mut together = InTraps::default();
        assert_eq!(together.note(2e6, 2e7, (1, 0)), None);
        traps.note(1e6, 1e7, (1, 0));
        assert!((traps.expected - together.expected).abs() < 1e-12, "{traps:?}");
    }
}
