//! LASSO by coordinate descent: which few of many predictors tell the time (Tibshirani 1996; ADLER §3.1, Model Fitting).

use super::linear::dot;

/// Penalties of a path, from the one at which nothing is chosen down to a thousandth of it.
const STEPS: u32 = 30;
const SMALLEST: f64 = 1e-3;
/// Sweeps over all coefficients at each step of a path. It gives candidates, which are refitted: the last digits do not matter.
const SWEEPS: usize = 200;

/// Columns, centred and scaled to variance 1 under the weights, and what they have of each other and of y.
#[derive(Debug)]
pub(super) struct Problem {
    means: Vec<f64>,
    scales: Vec<f64>,
    mean_y: f64,
    scale_y: f64,
    /// `(1/W) sum w x_j x_k`.
    gram: Vec<Vec<f64>>,
    /// `(1/W) sum w x_j y`.
    with_y: Vec<f64>,
}

/// What is demanded of the coefficients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// None is below 0: time grows with the inputs.
    NotNegative,
    /// Nothing.
    #[cfg(test)]
    Any,
}

impl Problem {
    /// The weighted problem with an intercept that is not penalised.
    pub fn new(columns: &[Vec<f64>], y: &[f64], weights: &[f64]) -> Self {
        let total: f64 = weights.iter().sum();
        let shares: Vec<f64> = weights.iter().map(|w| w / total).collect();
        let (mean_y, scale_y, y) = standard(y, &shares);
        let mut problem =
            Self { means: vec![], scales: vec![], mean_y, scale_y, gram: vec![], with_y: vec![] };
        let mut standardised = Vec::with_capacity(columns.len());
        for column in columns {
            let (mean, scale, column) = standard(column, &shares);
            problem.means.push(mean);
            problem.scales.push(scale);
            standardised.push(column);
        }
        problem.gram =
            standardised.iter().map(|a| standardised.iter().map(|b| dot(a, b)).collect()).collect();
        problem.with_y = standardised.iter().map(|a| dot(a, &y)).collect();
        problem
    }

    /// Smallest penalty at which nothing is chosen.
    pub fn largest(&self, sign: Sign) -> f64 {
        let size = |v: &f64| if sign == Sign::NotNegative { *v } else { v.abs() };
        self.with_y.iter().map(size).fold(0.0, f64::max)
    }

    /// Minimises, for standardised columns and y,
    ///
    /// ```text
    /// 1 / (2 W) sum w_i (y_i - sum_j b_j x_ij)^2 + alpha sum |b_j|
    /// b_j <- S(c_j - sum_{k != j} g_jk b_k, alpha) / g_jj,   S(v, alpha) = sign(v) max(|v| - alpha, 0)
    /// ```
    /// from `b` on, until no coefficient moves by more than `tolerance`, or for `sweeps` sweeps.
    pub fn descend(&self, b: &mut [f64], alpha: f64, sign: Sign, tolerance: f64, sweeps: usize) {
        for _ in 0..sweeps {
            let mut moved = 0.0_f64;
            for (j, (row, c)) in self.gram.iter().zip(&self.with_y).enumerate() {
                let (Some(own), Some(before)) = (row.get(j).copied(), b.get(j).copied()) else { continue };
                if own <= 0.0 {
                    continue;
                }
                let slope = c - dot(row, b) + own * before;
                let shrunk = (slope.abs() - alpha).max(0.0).copysign(slope);
                let value = if sign == Sign::NotNegative { shrunk.max(0.0) } else { shrunk } / own;
                if let Some(place) = b.get_mut(j) {
                    *place = value;
                }
                moved = moved.max((value - before).abs());
            }
            if moved <= tolerance {
                break;
            }
        }
    }

    /// Intercept and coefficients in the units of y and the columns.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the refit makes the coefficients; the oracle compares these")
    )]
    pub fn in_units(&self, b: &[f64]) -> (f64, Vec<f64>) {
        let coefficients: Vec<f64> = b.iter().zip(&self.scales).map(|(b, s)| b * self.scale_y / s).collect();
        (self.mean_y - dot(&coefficients, &self.means), coefficients)
    }

    /// The sets of at most `most` columns that are chosen along the path, each once, in the order in which they come.
    pub fn supports(&self, most: usize) -> Vec<Vec<usize>> {
        let largest = self.largest(Sign::NotNegative);
        let mut b = vec![0.0; self.with_y.len()];
        let mut found: Vec<Vec<usize>> = Vec::new();
        for step in 1..=STEPS {
            let alpha = largest * SMALLEST.powf(f64::from(step) / f64::from(STEPS));
            self.descend(&mut b, alpha, Sign::NotNegative, 1e-5, SWEEPS);
            let chosen: Vec<usize> =
                b.iter().enumerate().filter(|(_, b)| **b > 1e-6).map(|(j, _)| j).collect();
            if chosen.len() > 2 * most {
                break;
            }
            if !chosen.is_empty() && chosen.len() <= most && !found.contains(&chosen) {
                found.push(chosen);
            }
        }
        found
    }
}

/// Mean, standard deviation, and `sqrt(w / W) (v - mean) / deviation`. A column that does not vary is 0.
fn standard(values: &[f64], shares: &[f64]) -> (f64, f64, Vec<f64>) {
    let mean = dot(values, shares);
    let variance: f64 = values.iter().zip(shares).map(|(v, s)| s * (v - mean) * (v - mean)).sum();
    let deviation = variance.sqrt();
    if deviation.is_nan() || deviation <= 1e-12 * mean.abs() {
        return (mean, 1.0, vec![0.0; values.len()]);
    }
    let scaled = values.iter().zip(shares).map(|(v, s)| s.sqrt() * (v - mean) / deviation);
    (mean, deviation, scaled.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Case {
        name: String,
        columns: Vec<Vec<f64>>,
        y: Vec<f64>,
        weights: Vec<f64>,
        solutions: Vec<Theirs>,
    }

    #[derive(Deserialize)]
    struct Theirs {
        positive: bool,
        alpha: f64,
        intercept: f64,
        coefficients: Vec<f64>,
    }

    /// testdata/lasso.py made the file with scikit-learn. Its problems are standardised as ours, its tolerance is 1e-12; coefficients
    /// agree to a millionth of what would change y by one standard deviation.
    #[test]
    fn coefficients_are_scikit_learns() {
        let cases: Vec<Case> = serde_json::from_str(include_str!("testdata/lasso.json")).unwrap();
        let (mut solutions, mut chosen) = (0, 0);
        for case in cases {
            let problem = Problem::new(&case.columns, &case.y, &case.weights);
            for theirs in case.solutions {
                let sign = if theirs.positive { Sign::NotNegative } else { Sign::Any };
                let mut b = vec![0.0; case.columns.len()];
                problem.descend(&mut b, theirs.alpha, sign, 1e-13, 2_000_000);
                let (intercept, coefficients) = problem.in_units(&b);
                for (j, (own, theirs)) in coefficients.iter().zip(&theirs.coefficients).enumerate() {
                    let scale = problem.scale_y / problem.scales[j];
                    assert!((own - theirs).abs() <= 1e-6 * scale, "{} {j}: {own} {theirs}", case.name);
                    chosen += u32::from(*theirs != 0.0);
                }
                let scale = problem.mean_y.abs() + problem.scale_y;
                assert!((intercept - theirs.intercept).abs() <= 1e-6 * scale, "{}", case.name);
                solutions += 1;
            }
        }
        assert!(solutions == 36 && chosen > 60, "{solutions} {chosen}");
    }

    #[test]
    fn nothing_is_chosen_at_the_largest_penalty_and_something_just_below() {
        let columns = vec![vec![1.0, 2.0, 3.0, 4.0, 5.0], vec![1.0, 4.0, 9.0, 16.0, 25.0]];
        let problem = Problem::new(&columns, &[1.0, 2.1, 2.9, 4.2, 5.0], &[1.0; 5]);
        let largest = problem.largest(Sign::NotNegative);
        for (factor, none) in [(1.0001, true), (0.99, false)] {
            let mut b = vec![0.0; 2];
            problem.descend(&mut b, factor * largest, Sign::NotNegative, 1e-12, 1_000);
            assert_eq!(b.iter().all(|b| *b == 0.0), none);
        }
        assert_eq!(problem.supports(4).first(), Some(&vec![0]));
    }
}
