//! Prices against the measured overhead: where the two disagree beyond the interval, what was measured counts.

use crate::recording::MeasuredOverhead;

/// Comparisons before which nothing is corrected.
const FEWEST_PAIRS: u32 = 8;
/// Prices are raised at most by this: a metric may mean something else than work.
const LARGEST: f64 = 5.0;
/// They are lowered at most to this: a metric may also miss work that is slowed.
const SMALLEST: f64 = 0.5;
/// Changes below this part are noise.
const STEP: f64 = 0.05;

/// The factor on calibrated prices with which prediction and measurement agree.
///
/// ```text
/// factor = clamp(P, low, high) / P        P: Ledger::compared, [low, high]: measured, 95 %
/// ```
/// 1 as long as the prediction lies within the interval; else the nearest end of the interval, which is the smallest change
/// that the evidence asks for. It is found anew each time from all of the run, so it does not run away.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    factor: f64,
    pairs: u32,
}

impl Default for Correction {
    fn default() -> Self {
        Self { factor: 1.0, pairs: 0 }
    }
}

impl Correction {
    /// The factor in force.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Takes note of a measurement. `uncorrected`: [`super::Ledger::compared`], a share. Returns the new
    /// factor if it has changed.
    pub fn update(&mut self, uncorrected: f64, measured: &MeasuredOverhead) -> Option<f64> {
        let usable = uncorrected > 0.0
            && uncorrected.is_finite()
            && measured.low.is_finite()
            && measured.high >= measured.low
            && measured.pairs >= FEWEST_PAIRS
            && measured.pairs > self.pairs;
        if !usable {
            return None;
        }
        self.pairs = measured.pairs;
        let agreed = uncorrected.clamp(measured.low, measured.high);
        let factor = (agreed / uncorrected).clamp(SMALLEST, LARGEST);
        if (factor / self.factor - 1.0).abs() < STEP {
            return None;
        }
        self.factor = factor;
        Some(factor)
    }
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

    #[test]
    fn within_the_interval_nothing_changes() {
        let mut c = Correction::default();
        assert_eq!(c.update(0.015, &measured(0.01, 0.03, 20)), None);
        assert_eq!(c.factor(), 1.0);
    }

    #[test]
    fn a_measurement_above_raises_prices_to_the_end_of_its_interval_and_back() {
        let mut c = Correction::default();
        assert_eq!(c.update(0.01, &measured(0.02, 0.04, 20)), Some(2.0));
        // Later, with more evidence, from the same calibrated prices.
        assert_eq!(c.update(0.01, &measured(0.009, 0.02, 40)), Some(1.0));
    }

    #[test]
    fn few_pairs_old_news_and_nonsense_change_nothing() {
        let mut c = Correction::default();
        assert_eq!(c.update(0.01, &measured(0.02, 0.04, 7)), None);
        assert_eq!(c.update(0.0, &measured(0.02, 0.04, 20)), None);
        assert_eq!(c.update(0.01, &measured(f64::NAN, 0.04, 20)), None);
        assert_eq!(c.update(0.01, &measured(0.02, 0.04, 20)), Some(2.0));
        assert_eq!(c.update(0.01, &measured(0.03, 0.04, 20)), None, "the same pairs again");
    }

    #[test]
    fn prices_are_lowered_and_raised_with_an_end() {
        let mut c = Correction::default();
        assert_eq!(c.update(0.01, &measured(0.002, 0.008, 10)), Some(0.8));
        assert_eq!(c.update(0.01, &measured(-0.02, -0.01, 20)), Some(SMALLEST));
        assert_eq!(c.update(0.01, &measured(0.5, 0.9, 40)), Some(LARGEST));
    }
}
