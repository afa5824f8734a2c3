//! Why no form fits medians that are known well: their time changes with something else, or it follows the input in a way that no form has.

use super::super::cells::Cell;
use super::super::model::Doubt;
use super::super::screen::LEAST_VALUES;

/// Medians are smooth if their neighbours predict them with less than this part of the form's error. Of medians that scatter without an order, 3 in 100
/// runs of five look so, and none of twelve.
const FAR_BETTER: f64 = 0.4;
/// R^2 of ln(time) over the input from which it is exponential.
const EXPONENTIAL: f64 = 0.98;

/// A median.
#[derive(Debug, Clone, Copy)]
struct Point {
    x: f64,
    /// ln(median).
    log: f64,
    /// ln(median / what the form predicted without it).
    error: f64,
}

/// The doubt where the medians of one number follow it. `None`: something else changes their time, too. `held_out`: what the form predicted for each.
pub(super) fn follows(cells: &[Cell], held_out: &[f64]) -> Option<Doubt> {
    let point = |(cell, predicted): (&Cell, &f64)| {
        let log = cell.median_ns.max(f64::MIN_POSITIVE).ln();
        let error = super::super::sum::relative(cell.median_ns, *predicted);
        Some(Point { x: *cell.x.first()?, log, error })
    };
    let mut points: Vec<Point> = cells.iter().zip(held_out).filter_map(point).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    if points.len() < LEAST_VALUES {
        return None;
    }
    let factor = exponential(&points);
    let is_function = factor.is_some() || is_smooth(&points);
    is_function.then_some(Doubt::NoForm { factor })
}

/// Neighbours predict a median far better than the form does: by a line between them over the input, or over its logarithm.
fn is_smooth(points: &[Point]) -> bool {
    let over = |scale: fn(f64) -> f64| {
        let mut sums = (0.0, 0.0);
        for neighbours in points.windows(3) {
            let [before, own, after] = neighbours else { continue };
            let width = scale(after.x) - scale(before.x);
            if width > 0.0 {
                let part = (scale(own.x) - scale(before.x)) / width;
                sums.0 += (own.log - before.log - part * (after.log - before.log)).powi(2);
                sums.1 += own.error.powi(2);
            }
        }
        sums.1 > 0.0 && sums.0 <= FAR_BETTER * FAR_BETTER * sums.1
    };
    over(|x| x) || over(f64::ln_1p)
}

/// Factor for each 1 of the input, if ln(time) is a line over the input itself, and neither the form nor a power of it comes as near.
fn exponential(points: &[Point]) -> Option<f64> {
    let (slope, rest) = line(points, |x| x)?;
    let (_, of_power) = line(points, f64::ln_1p)?;
    let n = points.len() as f64;
    let mean = points.iter().map(|p| p.log).sum::<f64>() / n;
    let total: f64 = points.iter().map(|p| (p.log - mean).powi(2)).sum();
    let of_form: f64 = points.iter().map(|p| p.error.powi(2)).sum();
    let is_line = rest <= (1.0 - EXPONENTIAL) * total && rest < of_power && rest < of_form;
    (is_line && slope > 0.0).then(|| slope.exp())
}

/// Slope of ln(time) over the input in this scale, and the sum of the squares that are left.
fn line(points: &[Point], scale: impl Fn(f64) -> f64) -> Option<(f64, f64)> {
    let n = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), p| (x + scale(p.x) / n, y + p.log / n));
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for point in points {
        let (dx, dy) = (scale(point.x) - x, point.log - y);
        (xx, xy, yy) = (xx + dx * dx, xy + dx * dy, yy + dy * dy);
    }
    (xx > 0.0).then(|| (xy / xx, (yy - xy * xy / xx).max(0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Medians at 10, 20, 30, ..., each known to 1 %; the form is wrong by a factor of 2.
    fn points(times: &[f64]) -> Vec<Point> {
        let point = |(i, ns): (usize, &f64)| Point { x: 10.0 * (i + 1) as f64, log: ns.ln(), error: 0.7 };
        times.iter().enumerate().map(point).collect()
    }

    #[test]
    fn medians_that_their_neighbours_predict_are_smooth() {
        let wave: Vec<f64> = (0..20).map(|i| f64::exp(2.0 + f64::sin(0.4 * f64::from(i)))).collect();
        assert!(is_smooth(&points(&wave)));
        let rough: Vec<f64> = (0..20_u32).map(|i| if i % 3 == 0 { 3.0 } else { 1.0 }).collect();
        assert!(!is_smooth(&points(&rough)));
    }

    #[test]
    fn what_a_power_follows_as_well_is_not_exponential() {
        let doubling: Vec<f64> = (1..=8).map(|i| 2_f64.powi(i)).collect();
        let factor = exponential(&points(&doubling)).unwrap();
        assert!((factor - 2_f64.powf(0.1)).abs() < 1e-9, "a factor of 2 for each 10: {factor}");
        let power: Vec<f64> = (1..=8).map(|i| f64::from(i).powi(4)).collect();
        assert_eq!(exponential(&points(&power)), None);
        let falling: Vec<f64> = (1..=8).map(|i| 0.5_f64.powi(i)).collect();
        assert_eq!(exponential(&points(&falling)), None, "it does not grow");
    }
}
