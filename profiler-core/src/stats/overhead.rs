//! Overhead by comparison: the target's CPU time per unit of progress with monitoring on and off.

use super::moments::Moments;
use crate::recording::MeasuredOverhead;
use crate::stats::LEVEL;

/// One window: progress made and CPU time used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProgressWindow {
    /// Units of progress (operations).
    pub progress: u64,
    /// CPU time of the target, monitoring included, ns.
    pub cpu_ns: u64,
}

impl ProgressWindow {
    /// CPU ns per unit of progress; `None` where there was none.
    fn cost(self) -> Option<f64> {
        (self.progress > 0 && self.cpu_ns > 0).then(|| self.cpu_ns as f64 / self.progress as f64)
    }
}

/// Overhead from windows off, each between two windows on, placed at random times.
///
/// ```text
/// d_i      = ln((on_before_i + on_after_i) / 2) - ln(off_i)       CPU ns per unit of progress
/// overhead = e^mean(d) - 1,  interval e^(mean(d) +- t s / sqrt(n)) - 1
/// ```
/// Averaging the neighbours takes a linear drift of the load out. `None` below three pairs.
#[must_use]
pub fn measured(
    metric: &str,
    triples: &[(ProgressWindow, ProgressWindow, ProgressWindow)],
) -> Option<MeasuredOverhead> {
    let logs: Moments = triples
        .iter()
        .filter_map(|(before, off, after)| {
            Some((f64::midpoint(before.cost()?, after.cost()?)).ln() - off.cost()?.ln())
        })
        .collect();
    if logs.n() < 3 {
        return None;
    }
    let interval = logs.mean_interval(LEVEL)?;
    Some(MeasuredOverhead {
        metric: metric.to_owned(),
        // OK because a run has far fewer than 2^32 windows.
        pairs: u32::try_from(logs.n()).unwrap_or(u32::MAX),
        value: logs.mean().exp_m1(),
        low: interval.low.exp_m1(),
        high: interval.high.exp_m1(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::sim;

    fn windows(
        rng: &mut rand::rngs::StdRng,
        overhead: f64,
        n: usize,
    ) -> Vec<(ProgressWindow, ProgressWindow, ProgressWindow)> {
        let mut drift = 1.0;
        (0..n)
            .map(|_| {
                // Load that drifts by some percent, windows that scatter by 1 %.
                drift *= 1.0 + 0.03 * sim::normal(rng);
                let mut window = |factor: f64| {
                    let cost = 10_000.0 * drift * factor * (1.0 + 0.01 * sim::normal(rng));
                    ProgressWindow { progress: 10_000, cpu_ns: (10_000.0 * cost) as u64 }
                };
                (window(1.0 + overhead), window(1.0), window(1.0 + overhead))
            })
            .collect()
    }

    #[test]
    fn the_interval_holds_the_true_overhead_and_an_a_a_run_holds_zero() {
        let mut rng = sim::rng(7);
        for overhead in [0.0, 0.02] {
            let mut held = 0;
            for _ in 0..400 {
                let m = measured("operations", &windows(&mut rng, overhead, 20)).unwrap();
                held += usize::from(m.low <= overhead && overhead <= m.high);
                assert!((m.value - overhead).abs() < 0.02);
            }
            // 400 x 0.95 = 380, standard deviation 4.4.
            assert!((366..=394).contains(&held), "{held} of 400 at {overhead}");
        }
    }

    #[test]
    fn too_few_windows_and_windows_without_progress_measure_nothing() {
        let w = |progress, cpu_ns| ProgressWindow { progress, cpu_ns };
        let good = (w(10, 1_000), w(10, 1_000), w(10, 1_000));
        assert_eq!(measured("x", &[good, good]), None);
        assert_eq!(measured("x", &[good, good, (w(10, 1_000), w(0, 1_000), w(10, 0))]), None);
    }
}
