//! Corrections of estimates for losses.

use super::Interval;
use crate::estimate::Estimate;

/// Widens the interval of a mean for a share `lost` (0 to 1) of the values that were never seen: their mean
/// may have been anywhere in `range`.
///
/// ```text
/// mean = (1 - l) m + l m_lost,   m_lost in [range.low, range.high]
/// ```
/// The value stays (lost values are taken to be like the others); the ends move by l x their distance.
#[must_use]
pub fn widen_mean_for_loss(mean: Estimate, lost: f64, range: Interval) -> Estimate {
    let l = if lost.is_finite() { lost.clamp(0.0, 1.0) } else { 0.0 };
    if l == 0.0 {
        return mean;
    }
    Estimate {
        low: ((1.0 - l) * mean.low + l * range.low).min(mean.low),
        high: ((1.0 - l) * mean.high + l * range.high).max(mean.high),
        ..mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Source;

    fn estimate(value: f64, half: f64, source: Source) -> Estimate {
        Estimate { value, low: value - half, high: value + half, level: 0.95, n: 10, source, at_most: false }
    }

    #[test]
    fn loss_widens_and_never_narrows() {
        let mean = estimate(100.0, 5.0, Source::Exact);
        let range = Interval { low: 10.0, high: 1_000.0 };
        assert_eq!(widen_mean_for_loss(mean, 0.0, range), mean);
        let wide = widen_mean_for_loss(mean, 0.1, range);
        assert!((wide.low - 86.5).abs() < 1e-9 && (wide.high - 194.5).abs() < 1e-9, "{wide:?}");
        let all = widen_mean_for_loss(mean, 1.0, range);
        assert_eq!((all.low, all.high), (10.0, 1_000.0));
    }
}
