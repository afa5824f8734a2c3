//! Corrections of estimates: combination, loss, the probes' own cost inside durations.

use super::Interval;
use crate::class::Source;
use crate::estimate::Estimate;

/// The combination of independent unbiased estimates of one quantity with the smallest variance:
/// ```text
/// value = sum(x_i / v_i) / sum(1 / v_i),   variance = 1 / sum(1 / v_i)
/// ```
/// with each side's distance to its limit as that side's deviation, so that skewed intervals stay skewed.
/// Weights come from the whole width. An exact estimate (no width) wins outright; estimates without a finite
/// interval are left out. `None` if nothing is left.
///
/// The result is *derived* unless all parts have the same source. The weights are themselves estimated; where
/// counts are small (below ten), a Poisson-like estimate that happens to be low also looks too sure, and pulls.
#[must_use]
pub fn inverse_variance(parts: &[Estimate]) -> Option<Estimate> {
    let usable = |e: &&Estimate| e.value.is_finite() && e.low.is_finite() && e.high.is_finite();
    let parts: Vec<&Estimate> = parts.iter().filter(usable).collect();
    let first = *parts.first()?;
    if let Some(exact) = parts.iter().find(|e| e.high <= e.low) {
        return Some(**exact);
    }
    let source = if parts.iter().all(|e| e.source == first.source) { first.source } else { Source::Derived };
    let sum = |f: &dyn Fn(&Estimate) -> f64| parts.iter().map(|e| f(e)).sum::<f64>();
    let weight = |e: &Estimate| 1.0 / (e.half_width() * e.half_width());
    let total = sum(&weight);
    let value = sum(&|e| weight(e) * e.value) / total;
    // Each side: deviations weighted as the values are.
    let down = sum(&|e| (weight(e) * (e.value - e.low)).powi(2)).sqrt() / total;
    let up = sum(&|e| (weight(e) * (e.high - e.value)).powi(2)).sqrt() / total;
    Some(Estimate {
        value,
        low: value - down,
        high: value + up,
        level: parts.iter().map(|e| e.level).fold(1.0, f64::min),
        n: parts.iter().map(|e| e.n).sum(),
        source,
    })
}

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
    use super::super::sim::{Coverage, normal, rng};
    use super::*;

    fn estimate(value: f64, half: f64, source: Source) -> Estimate {
        Estimate { value, low: value - half, high: value + half, level: 0.95, n: 10, source }
    }

    #[test]
    fn the_combination_covers_and_is_narrower_than_its_parts() {
        let mut rng = rng(31);
        let mut c = Coverage::default();
        for _ in 0..4_000 {
            let burst = estimate(50.0 + 2.0 * normal(&mut rng), 1.96 * 2.0, Source::Burst);
            let sampled = estimate(50.0 + 3.0 * normal(&mut rng), 1.96 * 3.0, Source::Sampled);
            let both = inverse_variance(&[burst, sampled]).unwrap();
            assert!((both.half_width() - 1.96 * (1.0_f64 / (1.0 / 4.0 + 1.0 / 9.0)).sqrt()).abs() < 1e-9);
            assert_eq!((both.source, both.n), (Source::Derived, 20));
            c.note(Interval { low: both.low, high: both.high }, 50.0);
        }
        c.check(0.94, 0.96, "inverse variance");
    }

    #[test]
    fn exact_wins_and_the_endless_is_left_out() {
        let exact = Estimate::exact(7.0, 7);
        let rough = estimate(5.0, 3.0, Source::Sampled);
        assert_eq!(inverse_variance(&[rough, exact]), Some(exact));
        let endless = Estimate { high: f64::INFINITY, ..rough };
        let rest = inverse_variance(&[endless, rough]).unwrap();
        assert!((rest.value - 5.0).abs() + (rest.low - 2.0).abs() + (rest.high - 8.0).abs() < 1e-9);
        assert_eq!(inverse_variance(&[endless]), None);
        assert_eq!(inverse_variance(&[]), None);
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
