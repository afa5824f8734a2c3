//! Prices against the measured overhead: where the two disagree beyond the interval, what was measured counts.

use crate::recording::MeasuredOverhead;
use crate::stats::always::normal_multiple;
use crate::stats::overhead::Difference;
use crate::stats::{LEVEL, z_quantile};

/// Comparisons before which nothing is corrected.
const FEWEST_PAIRS: u32 = 8;
/// Prices are raised at most by this: a metric may mean something else than work.
const LARGEST: f64 = 5.0;
/// They are lowered at most to this: a metric may also miss work that is slowed.
const SMALLEST: f64 = 0.5;
/// Changes below this part are noise.
const STEP: f64 = 0.05;
/// A half-width below this part of the prediction says something where the prediction lies inside, too.
const SURE: f64 = 0.25;

/// The factor on calibrated prices with which prediction and measurement agree.
///
/// ```text
/// d = m - P, h = half the width of m's interval      P: Ledger::compared, m: measured, 95 % at all comparisons at once
/// factor = 1 + (d / P) max(0, 1 - (h / d)^2)
/// ```
/// 1 as long as the prediction lies within the interval; beyond it the measurement counts the more, the surer it is (the
/// positive-part shrinkage of James and Stein 1961 towards the calibrated price). It is found anew each time from all of the run, so
/// it does not run away.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    factor: f64,
    pairs: u32,
    /// The interval is narrow enough to say that prices are right, too.
    is_sure: bool,
}

impl Default for Correction {
    fn default() -> Self {
        Self { factor: 1.0, pairs: 0, is_sure: false }
    }
}

impl Correction {
    /// The factor in force.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Takes note of a measurement. `uncorrected`: [`super::Ledger::compared`], a share. Returns the
    /// factor if it has changed, or is known for the first time.
    pub fn update(&mut self, uncorrected: f64, measured: &MeasuredOverhead) -> Option<f64> {
        let usable = uncorrected > 0.0
            && uncorrected.is_finite()
            && measured.low.is_finite()
            && measured.high >= measured.low
            && measured.value.is_finite()
            && measured.pairs >= FEWEST_PAIRS
            && measured.pairs > self.pairs;
        if !usable {
            return None;
        }
        self.pairs = measured.pairs;
        let distance = measured.value - uncorrected;
        let half = always((measured.high - measured.low) / 2.0, measured.pairs);
        let trust = if distance == 0.0 { 0.0 } else { (1.0 - (half / distance).powi(2)).max(0.0) };
        let factor = (1.0 + distance / uncorrected * trust).clamp(SMALLEST, LARGEST);
        let is_sure = half < SURE * uncorrected;
        let is_news = (factor / self.factor - 1.0).abs() >= STEP || is_sure && !self.is_sure;
        self.is_sure |= is_sure;
        if !is_news {
            return None;
        }
        self.factor = factor;
        Some(factor)
    }
}

/// The half-width of an interval that may be looked at after each of the comparisons, where `half` is that of a single look at `pairs` of them.
fn always(half: f64, pairs: u32) -> f64 {
    half * normal_multiple(f64::from(pairs), LEVEL) / z_quantile(LEVEL)
}

/// How much more the target loses than its CPU time shows, because threads wait for what one of them pays inside a lock: the factor
/// by which the budget is cut.
///
/// ```text
/// e = ln(wall on / wall off) - ln(CPU on / CPU off), h = half the width of its interval      stats::overhead::waiting
/// factor = 1 + (e / P) max(0, 1 - (h / e)^2),   e > 0                                        P: predicted overhead
/// ```
/// The same shrinkage as [`Correction`]: without evidence 1. Prices stay what they are, since nobody spends that CPU time.
#[must_use]
pub fn waiting_factor(predicted: f64, excess: &Difference, comparisons: usize) -> f64 {
    // OK because a run has far fewer than 2^32 comparisons.
    let half = always((excess.high - excess.low) / 2.0, comparisons as u32);
    let usable =
        predicted > 0.0 && excess.value > 0.0 && half.is_finite() && comparisons >= FEWEST_PAIRS as usize;
    if !usable {
        return 1.0;
    }
    let trust = (1.0 - (half / excess.value).powi(2)).max(0.0);
    (1.0 + excess.value / predicted * trust).clamp(1.0, LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(low: f64, high: f64, pairs: u32) -> MeasuredOverhead {
        MeasuredOverhead {
            metric: "operations".to_owned(),
            pairs,
            value: f64::midpoint(low, high),
            low,
            high,
            method: String::new(),
            note: String::new(),
        }
    }

    /// `1 + (d / P) (1 - (k h / d)^2)`, k: [`always`].
    fn shrunk(uncorrected: f64, value: f64, half: f64, pairs: u32) -> f64 {
        let d = value - uncorrected;
        1.0 + d / uncorrected * (1.0 - (always(half, pairs) / d).powi(2))
    }

    fn assert_close(factor: Option<f64>, expected: f64) {
        let near = factor.is_some_and(|f| (f - expected).abs() < 1e-9);
        assert!(near, "{factor:?}, expected {expected}");
    }

    #[test]
    fn within_the_interval_nothing_changes() {
        let mut c = Correction::default();
        assert_eq!(c.update(0.015, &measured(0.01, 0.03, 20)), None);
        assert_eq!(c.factor(), 1.0);
    }

    #[test]
    fn a_measurement_above_raises_prices_the_surer_the_more_and_back() {
        let mut c = Correction::default();
        // 2 points above, +-1, where a single look would be three quarters of the way to 3. +-0.2: nearly all of it.
        assert_close(c.update(0.01, &measured(0.02, 0.04, 20)), shrunk(0.01, 0.03, 0.01, 20));
        assert!(c.factor() > 1.7 && c.factor() < 2.5, "{c:?}");
        assert_close(c.update(0.01, &measured(0.028, 0.032, 30)), shrunk(0.01, 0.03, 0.002, 30));
        assert!(c.factor() > 2.9, "{c:?}");
        // Later, with more evidence, from the same calibrated prices.
        assert_eq!(c.update(0.01, &measured(0.009, 0.02, 40)), Some(1.0));
    }

    #[test]
    fn that_prices_are_right_is_said_once_it_is_known() {
        let mut c = Correction::default();
        assert_eq!(c.update(0.02, &measured(0.01, 0.03, 20)), None, "it may be half or twice");
        assert_eq!(c.update(0.02, &measured(0.0195, 0.0205, 30)), Some(1.0));
        assert_eq!(c.update(0.02, &measured(0.0195, 0.0205, 31)), None);
    }

    #[test]
    fn few_pairs_old_news_and_nonsense_change_nothing() {
        let mut c = Correction::default();
        assert_eq!(c.update(0.01, &measured(0.02, 0.04, 7)), None);
        assert_eq!(c.update(0.0, &measured(0.02, 0.04, 20)), None);
        assert_eq!(c.update(0.01, &measured(f64::NAN, 0.04, 20)), None);
        assert!(c.update(0.01, &measured(0.02, 0.04, 20)).is_some());
        assert_eq!(c.update(0.01, &measured(0.03, 0.04, 20)), None, "the same pairs again");
    }

    #[test]
    fn prices_are_lowered_and_raised_with_an_end() {
        let mut c = Correction::default();
        assert_eq!(c.update(0.01, &measured(0.002, 0.008, 10)), None, "one look would lower them");
        assert_close(c.update(0.01, &measured(0.004, 0.006, 11)), shrunk(0.01, 0.005, 0.001, 11));
        assert_eq!(c.update(0.01, &measured(-0.02, -0.01, 20)), Some(SMALLEST));
        assert_eq!(c.update(0.01, &measured(0.5, 0.9, 40)), Some(LARGEST));
    }

    #[test]
    fn waiting_cuts_the_budget_where_it_is_sure() {
        let excess = |value: f64, half: f64| Difference { value, low: value - half, high: value + half };
        // 4 points more than the 2 predicted, surely: three times as much is lost.
        assert!((waiting_factor(0.02, &excess(0.04, 0.001), 20) - 3.0).abs() < 0.01);
        assert_eq!(waiting_factor(0.02, &excess(0.04, 0.05), 20), 1.0);
        assert_eq!(waiting_factor(0.02, &excess(-0.04, 0.001), 20), 1.0);
        assert_eq!(waiting_factor(0.02, &excess(0.04, 0.001), 7), 1.0);
        assert_eq!(waiting_factor(0.0, &excess(0.04, 0.001), 20), 1.0);
        assert_eq!(waiting_factor(0.001, &excess(0.4, 0.001), 20), LARGEST);
    }
}
