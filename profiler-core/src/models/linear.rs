//! Weighted least squares with coefficients that are not negative, by a QR decomposition.

/// Columns that are so close to a combination of the others (relative length of what is left) have no coefficient of their own.
const DEPENDENT: f64 = 1e-9;

/// Coefficients and what they are worth.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Solution {
    /// One for each column; 0 for those that were dropped.
    pub coefficients: Vec<f64>,
    /// `(X^T W X)^-1`, row by row, over all columns; rows and columns of dropped ones are 0.
    pub inverse: Vec<Vec<f64>>,
    /// Weighted sum of squared residuals.
    pub rss: f64,
}

/// Minimises `sum w_i (y_i - sum_j b_j x_ij)^2` by modified Gram-Schmidt, y taken along as a last column (Björck 1967: as stable as
/// Householder's method for least squares). `None` if columns depend on each other, or a value is not finite.
pub(super) fn least_squares(columns: &[&[f64]], y: &[f64], weights: &[f64]) -> Option<Solution> {
    let root: Vec<f64> = weights.iter().map(|w| w.sqrt()).collect();
    let scaled = |values: &[f64]| values.iter().zip(&root).map(|(v, w)| v * w).collect::<Vec<f64>>();
    let mut q: Vec<Vec<f64>> = columns.iter().map(|c| scaled(c)).collect();
    let mut rest = scaled(y);
    let count = q.len();
    let lengths: Vec<f64> = q.iter().map(|c| dot(c, c).sqrt()).collect();
    // Row j of R: what the columns from j on have of direction j; z: what y has of it.
    let (mut r, mut z) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (j, whole) in lengths.iter().enumerate() {
        let (done, open) = q.split_at_mut(j);
        debug_assert_eq!(done.len(), j);
        let (own, others) = open.split_first_mut()?;
        let length = dot(own, own).sqrt();
        if !length.is_finite() || length <= DEPENDENT * whole {
            return None;
        }
        own.iter_mut().for_each(|v| *v /= length);
        let mut row = vec![0.0; j];
        row.push(length);
        for other in others {
            row.push(take_out(other, own));
        }
        z.push(take_out(&mut rest, own));
        r.push(row);
    }
    let coefficients = back(&r, &z)?;
    let units = (0..count).map(|i| {
        let unit: Vec<f64> = (0..count).map(|j| f64::from(u8::from(i == j))).collect();
        back(&r, &unit)
    });
    // Columns of R^-1.
    let inverse_r: Vec<Vec<f64>> = units.collect::<Option<_>>()?;
    let row = |i: usize| inverse_r.iter().map(move |c| c.get(i).copied().unwrap_or(0.0)).collect::<Vec<_>>();
    let rows: Vec<Vec<f64>> = (0..count).map(row).collect();
    let inverse = rows.iter().map(|a| rows.iter().map(|b| dot(a, b)).collect()).collect();
    Some(Solution { coefficients, inverse, rss: dot(&rest, &rest) })
}

/// The same with no coefficient below 0: columns whose coefficient would be are left out, by the way that leaves the least residual.
pub(super) fn not_negative(columns: &[&[f64]], y: &[f64], weights: &[f64]) -> Option<Solution> {
    let all: Vec<usize> = (0..columns.len()).collect();
    let best = best_of(columns, y, weights, &all)?;
    let (used, solution) = best;
    let mut coefficients = vec![0.0; columns.len()];
    let mut inverse = vec![vec![0.0; columns.len()]; columns.len()];
    for ((index, value), row) in used.iter().zip(&solution.coefficients).zip(&solution.inverse) {
        if let Some(place) = coefficients.get_mut(*index) {
            *place = *value;
        }
        for (other, value) in used.iter().zip(row) {
            if let Some(place) = inverse.get_mut(*index).and_then(|r| r.get_mut(*other)) {
                *place = *value;
            }
        }
    }
    Some(Solution { coefficients, inverse, rss: solution.rss })
}

type Part = (Vec<usize>, Solution);

fn best_of(columns: &[&[f64]], y: &[f64], weights: &[f64], used: &[usize]) -> Option<Part> {
    if used.is_empty() {
        let rss = y.iter().zip(weights).map(|(y, w)| w * y * y).sum();
        return Some((Vec::new(), Solution { coefficients: Vec::new(), inverse: Vec::new(), rss }));
    }
    let chosen: Vec<&[f64]> = used.iter().filter_map(|i| columns.get(*i).copied()).collect();
    let solution = least_squares(&chosen, y, weights)?;
    let negative: Vec<usize> =
        used.iter().zip(&solution.coefficients).filter(|(_, b)| **b < 0.0).map(|(i, _)| *i).collect();
    if negative.is_empty() {
        return Some((used.to_vec(), solution));
    }
    // At least one of those that want to be negative is 0 in the optimum (columns are few: at most 6).
    let without = negative.iter().filter_map(|gone| {
        let rest: Vec<usize> = used.iter().copied().filter(|i| i != gone).collect();
        best_of(columns, y, weights, &rest)
    });
    without.min_by(|a, b| a.1.rss.total_cmp(&b.1.rss))
}

/// Solves `R x = z` for an upper triangle whose row j begins with j zeros.
fn back(r: &[Vec<f64>], z: &[f64]) -> Option<Vec<f64>> {
    let mut x = vec![0.0; r.len()];
    for (j, (row, z)) in r.iter().zip(z).enumerate().rev() {
        let known: f64 = row.iter().zip(&x).skip(j + 1).map(|(r, x)| r * x).sum();
        let value = (z - known) / row.get(j)?;
        *x.get_mut(j)? = value.is_finite().then_some(value)?;
    }
    Some(x)
}

/// Takes direction `unit` out of `values`; returns how much of it there was.
fn take_out(values: &mut [f64], unit: &[f64]) -> f64 {
    let much = dot(values, unit);
    values.iter_mut().zip(unit).for_each(|(v, u)| *v -= much * u);
    much
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::sim::{normal, rng};

    #[test]
    fn a_known_line_and_its_covariance() {
        // y = 2 + 3 x at x = 0, 1, 2, 3.
        let (ones, x) = ([1.0; 4], [0.0, 1.0, 2.0, 3.0]);
        let s = least_squares(&[&ones, &x], &[2.0, 5.0, 8.0, 11.0], &[1.0; 4]).unwrap();
        assert!((s.coefficients[0] - 2.0).abs() < 1e-12 && (s.coefficients[1] - 3.0).abs() < 1e-12);
        // (X^T X)^-1 = [[0.7, -0.3], [-0.3, 0.2]].
        for (row, truth) in s.inverse.iter().zip([[0.7, -0.3], [-0.3, 0.2]]) {
            assert!(row.iter().zip(truth).all(|(a, b)| (a - b).abs() < 1e-12), "{:?}", s.inverse);
        }
        assert!(s.rss < 1e-20);
        assert!(least_squares(&[&ones, &ones], &[1.0; 4], &[1.0; 4]).is_none(), "dependent");
        assert!(least_squares(&[&ones], &[f64::NAN; 4], &[1.0; 4]).is_none());
    }

    #[test]
    fn residuals_are_orthogonal_to_the_columns_over_twelve_decades() {
        let mut random = rng(3);
        let x: Vec<f64> = (0..40).map(|i| f64::exp(f64::from(i) * 0.17)).collect();
        let cube: Vec<f64> = x.iter().map(|x| x.powi(3)).collect();
        let ones = vec![1.0; 40];
        let y: Vec<f64> =
            x.iter().map(|x| (50.0 + x + 0.01 * x.powi(3)) * (1.0 + 0.1 * normal(&mut random))).collect();
        let w: Vec<f64> = y.iter().map(|y| 1.0 / (y * y)).collect();
        let s = least_squares(&[&ones, &x, &cube], &y, &w).unwrap();
        for column in [&ones, &x, &cube] {
            let mut sums = (0.0, 0.0);
            for i in 0..40 {
                let fitted = s.coefficients[0] + s.coefficients[1] * x[i] + s.coefficients[2] * cube[i];
                sums.0 += w[i] * column[i] * (y[i] - fitted);
                sums.1 += w[i] * column[i] * y[i];
            }
            assert!((sums.0 / sums.1).abs() < 1e-9, "{sums:?}");
        }
    }

    /// The optimum under constraints: no coefficient is negative, and no column that is left out would lower the residual (Karush-Kuhn-Tucker).
    #[test]
    fn no_coefficient_is_negative_and_the_optimum_is_kept() {
        for seed in 0..200 {
            let mut random = rng(seed);
            let columns: Vec<Vec<f64>> =
                (0..4).map(|_| (0..12).map(|_| normal(&mut random)).collect()).collect();
            let y: Vec<f64> = (0..12).map(|_| normal(&mut random)).collect();
            let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
            let s = not_negative(&views, &y, &[1.0; 12]).unwrap();
            let rest: Vec<f64> = (0..12)
                .map(|i| y[i] - s.coefficients.iter().zip(&columns).map(|(b, c)| b * c[i]).sum::<f64>())
                .collect();
            assert!((dot(&rest, &rest) - s.rss).abs() < 1e-9);
            for (b, column) in s.coefficients.iter().zip(&columns) {
                let slope = dot(column, &rest);
                assert!(*b >= 0.0 && slope < 1e-9 && (*b == 0.0 || slope > -1e-9), "seed {seed}");
            }
        }
    }
}
