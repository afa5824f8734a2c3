//! Prices of hits against samples in traps: what hits were charged is so many samples, and so many were seen.

use crate::stats::LEVEL;
use crate::stats::always::poisson_ratio;

/// Prices are raised at most by this: samples at sites that are the target's own work would drive them up.
const LARGEST: f64 = 4.0;
/// Changes below this part are not worth a plan.
const STEP: f64 = 0.2;

/// The factor on calibrated prices of hits that samples in traps show.
///
/// ```text
/// E: sum of (what hits were charged at calibrated prices / sampling period),   X: samples in traps
/// q = X / E,   h = q - low,   [low, high]: always-valid interval of the ratio
/// factor = 1 + (q - 1) max(0, 1 - (h / (q - 1))^2)    where low > 1, else 1
/// ```
/// Samples see neither what a trap leaves behind nor what cannot be told from work, so they never say that hits are cheaper. It is found anew
/// each time from all of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InTraps {
    expected: f64,
    seen: u64,
    factor: f64,
}

impl Default for InTraps {
    fn default() -> Self {
        Self { expected: 0.0, seen: 0, factor: 1.0 }
    }
}

impl InTraps {
    /// An interval in which hits were charged `charged_ns` at calibrated prices, one sample was taken in `period_ns` of CPU time, and so many were
    /// in traps. Returns the new factor if it has changed.
    pub fn note(&mut self, charged_ns: f64, period_ns: f64, seen: u64) -> Option<f64> {
        if !(period_ns > 0.0 && period_ns.is_finite()) || charged_ns <= 0.0 && seen == 0 {
            return None;
        }
        self.expected += charged_ns.max(0.0) / period_ns;
        self.seen = self.seen.saturating_add(seen);
        let factor = self.shown();
        if (factor / self.factor - 1.0).abs() < STEP {
            return None;
        }
        self.factor = factor;
        Some(factor)
    }

    fn shown(&self) -> f64 {
        let Some(ratio) = poisson_ratio(self.seen, self.expected, LEVEL).filter(|i| i.low > 1.0) else {
            return 1.0;
        };
        let value = self.seen as f64 / self.expected;
        let trust = 1.0 - ((value - ratio.low) / (value - 1.0)).powi(2);
        (1.0 + (value - 1.0) * trust.max(0.0)).clamp(1.0, LARGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Intervals of 0.1 s at 100 Hz in which hits cost 1 % and `seen` of 1,000 samples are in traps, spread evenly.
    fn after(intervals: u64, in_thousand: u64) -> f64 {
        let mut traps = InTraps::default();
        let mut factor = 1.0;
        let mut told = 0;
        for i in 1..=intervals {
            let seen = i * 10 * in_thousand / 1_000;
            factor = traps.note(1e6, 1e7, seen - told).unwrap_or(factor);
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
    fn prices_that_are_a_third_of_what_is_seen_are_raised_the_surer_the_more() {
        let (soon, late) = (after(150, 30), after(3_000, 30));
        assert!(soon > 1.2 && late > soon && late > 2.4 && late <= 3.0, "{soon} {late}");
        let most = after(10_000, 90);
        assert!(most > LARGEST / (1.0 + STEP) && most <= LARGEST, "{most}");
    }

    #[test]
    fn without_samples_nothing_is_said() {
        let mut traps = InTraps::default();
        assert_eq!(traps.note(1e6, 0.0, 0), None);
        assert_eq!(traps.note(1e6, f64::INFINITY, 100), None);
        assert_eq!(traps, InTraps::default());
    }
}
