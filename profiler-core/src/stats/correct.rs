//! Corrections of estimates: loss, the probes' own cost inside durations.

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

/// A mean duration with the probe cost nested inside it taken out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Corrected {
    /// Mean duration as measured, ns.
    pub raw_ns: f64,
    /// Probe cost taken out, ns per call.
    pub correction_ns: f64,
    /// Mean duration without it, ns; not below 0.
    pub mean_ns: f64,
    /// Half-width that the price's own uncertainty adds, ns.
    pub uncertainty_ns: f64,
}

/// Takes the cost of probes nested inside calls out of their mean duration.
///
/// ```text
/// mean = (sum - nested) / returns;   uncertainty = nested / returns x (price's relative uncertainty)
/// ```
/// `sum_ns`: durations of the calls that returned; `nested_ns`: hits inside them x tau; `uncertainty`: relative,
/// as [`crate::cost::Price::uncertainty`]. `None` if no call returned.
#[must_use]
pub fn nested_cost(sum_ns: f64, nested_ns: f64, returns: u64, uncertainty: f64) -> Option<Corrected> {
    if returns == 0 {
        return None;
    }
    let n = returns as f64;
    let raw_ns = sum_ns / n;
    let correction_ns = (nested_ns / n).clamp(0.0, raw_ns.max(0.0));
    let uncertainty_ns = correction_ns * uncertainty.max(0.0);
    Some(Corrected { raw_ns, correction_ns, mean_ns: raw_ns - correction_ns, uncertainty_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Source;

    fn estimate(value: f64, half: f64, source: Source) -> Estimate {
        Estimate { value, low: value - half, high: value + half, level: 0.95, n: 10, source }
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

    #[test]
    fn nested_cost_is_taken_out_and_never_turns_time_negative() {
        let c = nested_cost(1_000_000.0, 140_000.0, 100, 0.1).unwrap();
        assert_eq!((c.raw_ns, c.correction_ns, c.mean_ns), (10_000.0, 1_400.0, 8_600.0));
        assert!((c.uncertainty_ns - 140.0).abs() < 1e-9);
        assert_eq!(nested_cost(100.0, 500.0, 1, 0.0).unwrap().mean_ns, 0.0);
        assert!(nested_cost(0.0, 0.0, 0, 0.0).is_none());
    }
}
