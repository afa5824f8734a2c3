//! Mean durations of calls seen in windows: how far the calls of one window are alike.

use super::survival::Spread;
use super::{t_quantile, z_quantile};

/// Complete calls of one window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowSum {
    /// Calls.
    pub n: u64,
    /// Sum of their durations.
    pub sum: f64,
}

/// Variance of the mean of all calls, from the spread between windows (a ratio estimate, Cochran 1977, §6.3 and §9A):
/// ```text
/// Var = m/(m-1) sum_j (S_j - mean n_j)^2 / n^2
/// ```
/// over the m windows that have calls; `None` with fewer than two.
#[must_use]
pub fn between_windows(windows: &[WindowSum]) -> Option<(f64, f64)> {
    let used: Vec<&WindowSum> = windows.iter().filter(|w| w.n > 0).collect();
    let n: f64 = used.iter().map(|w| w.n as f64).sum();
    let sum: f64 = used.iter().map(|w| w.sum).sum();
    if used.len() < 2 {
        return None;
    }
    let (m, mean) = (used.len() as f64, sum / n);
    let squares: f64 = used.iter().map(|w| (w.sum - mean * w.n as f64).powi(2)).sum();
    Some((m / (m - 1.0) * squares / (n * n), m))
}

/// The sums of windows that [`between_windows`] needs, kept up as they come: a run of days has a million.
#[derive(Debug, Clone, Copy, Default)]
pub struct WindowSums {
    windows: f64,
    n: f64,
    sum: f64,
    n_squared: f64,
    sum_squared: f64,
    product: f64,
}

impl WindowSums {
    /// One more window; one without calls says nothing.
    pub fn push(&mut self, window: WindowSum) {
        if window.n == 0 {
            return;
        }
        let n = window.n as f64;
        self.windows += 1.0;
        self.n += n;
        self.sum += window.sum;
        self.n_squared += n * n;
        self.sum_squared += window.sum * window.sum;
        self.product += n * window.sum;
    }

    /// Windows with calls.
    #[must_use]
    pub fn windows(&self) -> f64 {
        self.windows
    }

    /// Mean of all calls; NaN without any.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum / self.n
    }

    /// Half-width of its interval by the spread between windows, as [`half_width`] has it; infinite with fewer than two.
    #[must_use]
    pub fn half_width(&self, level: f64) -> f64 {
        let m = self.windows;
        if m < 2.0 {
            return f64::INFINITY;
        }
        let mean = self.mean();
        let squares = self.sum_squared - 2.0 * mean * self.product + mean * mean * self.n_squared;
        let variance = m / (m - 1.0) * squares.max(0.0) / (self.n * self.n);
        t_quantile(level, m - 1.0) * variance.sqrt()
    }
}

/// Half-width of the interval of the mean of all calls, in the unit of the durations: by the spread between windows where
/// there are several. Of one window nobody knows how far its calls are alike (those of one loop are): by the spread of the calls as if they
/// were independent (Student's t), but no less than `z mean / sqrt(n)`, that of exponential durations. `within` is the variance of one call, if it is
/// known. A single call may be anything up to three times what it was.
#[must_use]
pub fn half_width(windows: &[WindowSum], within: Option<f64>, level: f64) -> f64 {
    if let Some((variance, m)) = between_windows(windows) {
        return t_quantile(level, m - 1.0) * variance.sqrt();
    }
    let n: f64 = windows.iter().map(|w| w.n as f64).sum();
    let sum: f64 = windows.iter().map(|w| w.sum).sum();
    if n <= 0.0 {
        return 0.0;
    }
    let least = z_quantile(level) * sum / n / n.sqrt();
    let by_calls = |variance: f64| t_quantile(level, n - 1.0) * (variance / n).sqrt();
    within.filter(|_| n > 1.0).map_or(least, |variance| by_calls(variance).max(least))
}

/// By what the variance of the mean exceeds that of independent calls (Kish 1965, *design effect*). Of m windows chance alone
/// makes it `1 + 1.645 sqrt(2 / (m - 1))` one time in twenty (chi-squared, m - 1 degrees of freedom): up to that the calls
/// are taken as independent, or every interval of a quantile would be wider than need be.
#[must_use]
pub fn spread(windows: &[WindowSum], within: Option<f64>) -> Spread {
    let n: f64 = windows.iter().map(|w| w.n as f64).sum();
    match (between_windows(windows), within) {
        (Some((variance, m)), Some(within)) if within > 0.0 => {
            let effect = variance * n / within;
            let chance = 1.0 + 1.645 * (2.0 / (m - 1.0)).sqrt();
            Spread { design_effect: if effect > chance { effect } else { 1.0 }, df: m - 1.0 }
        }
        _ => Spread::INDEPENDENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two calls of one loop, alike to a nanosecond, say nothing of the next loop.
    #[test]
    fn one_window_is_known_no_better_than_exponential_durations() {
        let one = |n: u64| [WindowSum { n, sum: 10_000.0 * n as f64 }];
        let half = |n, within| half_width(&one(n), within, 0.95) / 10_000.0;
        assert!((half(2, Some(1.0)) - 1.386).abs() < 0.001);
        assert!((half(100, Some(1.0)) - 0.196).abs() < 0.001);
        assert!((half(1, None) - 1.96).abs() < 0.001 && (half(100, None) - 0.196).abs() < 0.001);
        // Where they differ by more, that counts: 12.7 of one degree of freedom.
        assert!((half(2, Some(1e8)) - 8.98).abs() < 0.01);
        assert_eq!(half_width(&[], None, 0.95), 0.0);
        // Windows that agree.
        assert!(half_width(&[one(2)[0], one(2)[0], one(2)[0]], Some(1.0), 0.95) < 1.0);
    }

    #[test]
    fn sums_that_are_kept_up_give_the_half_width_of_the_windows() {
        let windows: Vec<WindowSum> =
            (0..40).map(|i| WindowSum { n: i % 7, sum: (i % 7 * 5_000 + i * i * 10) as f64 }).collect();
        let mut sums = WindowSums::default();
        assert_eq!(sums.half_width(0.95), f64::INFINITY);
        windows.iter().for_each(|w| sums.push(*w));
        let whole = half_width(&windows, None, 0.95);
        assert!(whole > 0.0 && (sums.half_width(0.95) / whole - 1.0).abs() < 1e-9, "{sums:?} {whole}");
        assert_eq!(sums.windows(), windows.iter().filter(|w| w.n > 0).count() as f64);
    }
}
