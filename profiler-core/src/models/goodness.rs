//! How good a fit is: formulas (5) and (6) on held-out medians, and the noise ceiling.

use super::cells::Cell;
use serde::{Deserialize, Serialize};

/// Measures of a model on medians that it was not fitted to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Goodness {
    /// ARS, formula (6). 0 where there are too few medians for its coefficients.
    pub adjusted_r2: f64,
    /// Formula (5).
    pub r2: f64,
    /// Formula (5) of a model that is exact: what the noise of the medians leaves. From the spread of calls with the same inputs.
    pub ceiling: f64,
    /// Root mean square of ln(median / predicted): 0.1 is 10 %.
    pub relative_error: f64,
    /// Held-out medians: x in formula (6).
    pub medians: usize,
    /// Coefficients beside the intercept: m in formula (6).
    pub parameters: usize,
}

/// What the residuals are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Baseline {
    /// The mean of the medians, as printed.
    Mean,
    /// Zero. A constant has an R^2 of 0 about the mean, however well it predicts.
    Zero,
}

impl Goodness {
    /// Of medians y and predictions f for them that were made without them.
    ///
    /// ```text
    /// R^2 = 1 - sum (y_i - f_i)^2 / sum (y_i - mean y)^2                  (5)
    /// ARS = R^2 - (1 - R^2) m / (x - m - 1)                               (6)
    /// ceiling = 1 - sum v_i y_i^2 / sum (y_i - mean y)^2,   v_i: variance of the logarithm of median i
    /// ```
    pub(super) fn new(cells: &[Cell], predicted: &[f64], parameters: usize, baseline: Baseline) -> Self {
        let x = cells.len();
        let n = (x as f64).max(1.0);
        let mean = match baseline {
            Baseline::Mean => cells.iter().map(|c| c.median_ns).sum::<f64>() / n,
            Baseline::Zero => 0.0,
        };
        let pairs = || cells.iter().map(|c| c.median_ns).zip(predicted.iter().copied());
        let total: f64 =
            cells.iter().map(|c| (c.median_ns - mean).powi(2)).sum::<f64>().max(f64::MIN_POSITIVE);
        let rest: f64 = pairs().map(|(y, f)| (y - f).powi(2)).sum();
        let noise: f64 = cells.iter().map(|c| c.log_variance * c.median_ns.powi(2)).sum();
        let logs: f64 = pairs().map(|(y, f)| super::sum::relative(y, f).powi(2)).sum();
        let r2 = 1.0 - rest / total;
        let m = parameters as f64;
        let free = n - m - 1.0;
        Self {
            adjusted_r2: if free > 0.0 { r2 - (1.0 - r2) * m / free } else { 0.0 },
            r2,
            ceiling: 1.0 - noise / total,
            relative_error: (logs / n).sqrt(),
            medians: x,
            parameters,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(values: &[f64]) -> Vec<Cell> {
        let cell = |y: &f64| Cell {
            x: vec![],
            category: 0,
            median_ns: *y,
            calls: 10,
            log_variance: 0.01,
            watching_variance: 0.0,
        };
        values.iter().map(cell).collect()
    }

    #[test]
    fn adler_formulas_5_and_6() {
        // Mean 3, total 10, residuals 4 times 0.5^2 and 0: R^2 = 0.9.
        let g =
            Goodness::new(&cells(&[1.0, 2.0, 3.0, 4.0, 5.0]), &[1.5, 2.5, 3.0, 3.5, 4.5], 1, Baseline::Mean);
        assert!((g.r2 - 0.9).abs() < 1e-12);
        assert!((g.adjusted_r2 - (0.9 - 0.1 / 3.0)).abs() < 1e-12);
        // Noise 0.01 (1 + 4 + 9 + 16 + 25) of 10.
        assert!((g.ceiling - 0.945).abs() < 1e-12);
        let few = Goodness::new(&cells(&[1.0, 2.0]), &[1.0, 2.0], 1, Baseline::Mean);
        assert_eq!(few.adjusted_r2, 0.0, "two medians say nothing of a line");
    }

    #[test]
    fn a_constant_is_held_to_zero() {
        let g = Goodness::new(&cells(&[9.0, 10.0, 11.0]), &[10.0; 3], 0, Baseline::Zero);
        assert!(g.r2 > 0.99 && g.adjusted_r2 == g.r2 && (g.ceiling - 0.99).abs() < 1e-12);
        let centred = Goodness::new(&cells(&[9.0, 10.0, 11.0]), &[10.0; 3], 0, Baseline::Mean);
        assert!(centred.r2.abs() < 1e-12);
    }
}
