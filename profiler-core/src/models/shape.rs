//! Forms of a model's curve: a sum of terms, a power law, or two regimes.

use super::cells::Cell;
use super::class::Class;
use super::linear;
use super::sum::{FLOOR, Sum, time};
use crate::stats::{Interval, z_quantile};
use serde::{Deserialize, Serialize};

/// Curve of the time over the inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Formula (2).
    Sum(Sum),
    /// The paper's power law, where no sum fits.
    Power(PowerLaw),
    /// One sum up to a switching point, another one above it.
    Regimes(Box<Split>),
}

/// `scale · x_1^b_1 · x_2^b_2 …`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PowerLaw {
    /// ln of the scale (in ns), then the exponents.
    pub coefficients: Vec<f64>,
    /// Their covariance, row by row.
    pub covariance: Vec<Vec<f64>>,
}

/// Two regimes of one input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// Index of the input.
    pub input: usize,
    /// Up to here `below` holds; from here on `above`.
    pub switch_at: f64,
    /// Curve for small inputs.
    pub below: Sum,
    /// Curve for large inputs.
    pub above: Sum,
}

impl Split {
    fn side(&self, x: &[f64]) -> &Sum {
        let own = x.get(self.input).copied().unwrap_or(0.0);
        if own < self.switch_at { &self.below } else { &self.above }
    }

    /// Predicted time, ns.
    #[must_use]
    pub fn at(&self, x: &[f64]) -> f64 {
        self.side(x).at(x)
    }
}

impl PowerLaw {
    /// Least squares of logarithms, inputs counted from 1 on. `None` if the cells do not tell the exponents apart.
    pub(super) fn fit(cells: &[Cell]) -> Option<Self> {
        let inputs = cells.first()?.x.len();
        let log = |x: Option<&f64>| x.copied().unwrap_or(1.0).max(1.0).ln();
        let logs: Vec<Vec<f64>> =
            (0..inputs).map(|j| cells.iter().map(|c| log(c.x.get(j))).collect()).collect();
        let ones = vec![1.0; cells.len()];
        let columns: Vec<&[f64]> = std::iter::once(&ones).chain(&logs).map(Vec::as_slice).collect();
        Self::solve(&columns, &cells.iter().collect::<Vec<&Cell>>())
    }

    fn solve(columns: &[&[f64]], cells: &[&Cell]) -> Option<Self> {
        let y: Vec<f64> = cells.iter().map(|c| c.median_ns.ln()).collect();
        // What watching costs has no part in them: few functions are powers, and with other weights the exponent would be that of other sizes.
        let weights: Vec<f64> = cells.iter().map(|c| 1.0 / (c.log_variance + FLOOR * FLOOR)).collect();
        let s = linear::least_squares(columns, &y, &weights)?;
        let free = (cells.len() as f64 - columns.len() as f64).max(1.0);
        let dispersion = (s.rss / free).max(1.0);
        let covariance = s.inverse.iter().map(|row| row.iter().map(|v| v * dispersion).collect()).collect();
        Some(Self { coefficients: s.coefficients, covariance })
    }

    /// The exponent that curves of several categories have in common, with its interval at 95 %: each category has a scale of its own, so that
    /// which sizes were seen of which says nothing of growth. `parts`: the cells of each category.
    pub(super) fn common_exponent(
        cells: &[Cell],
        parts: &[Vec<usize>],
        input: usize,
    ) -> Option<(f64, Interval)> {
        let only = |c: &Cell| Some(Cell { x: vec![*c.x.get(input)?], ..c.clone() });
        let of_part = |rows: &Vec<usize>| rows.iter().filter_map(|i| only(cells.get(*i)?)).collect();
        let groups: Vec<Vec<Cell>> = parts.iter().map(of_part).collect();
        let at = |signs: f64| {
            // What was taken off for watching is off by the same ns in all medians: one standard error of that.
            let shifted = |c: &Cell| {
                let part = signs * c.watching_variance.max(0.0).sqrt();
                Cell { median_ns: c.median_ns * (1.0 + part).max(0.1), ..c.clone() }
            };
            let groups: Vec<Vec<Cell>> =
                groups.iter().map(|cells| cells.iter().map(shifted).collect()).collect();
            Self::within(&groups)?.exponent(groups.len().checked_sub(1)?)
        };
        let (value, interval) = at(0.0)?;
        let slopes = [at(-1.0)?.0, at(1.0)?.0];
        let of_watching = z_quantile(0.95) * (slopes[0] - slopes[1]).abs() / 2.0;
        let half = f64::hypot((interval.high - interval.low) / 2.0, of_watching);
        Some((value, Interval { low: value - half, high: value + half }))
    }

    /// Least squares of logarithms with a scale for each group: the coefficients are the groups' scales (ln), then the one exponent.
    fn within(groups: &[Vec<Cell>]) -> Option<Self> {
        let place = |(g, cells): (usize, &Vec<Cell>)| cells.iter().map(move |_| g).collect::<Vec<usize>>();
        let places: Vec<usize> = groups.iter().enumerate().flat_map(place).collect();
        let cells: Vec<&Cell> = groups.iter().flatten().collect();
        let is_of = |g: usize| places.iter().map(|p| f64::from(u8::from(*p == g))).collect::<Vec<f64>>();
        let mut columns: Vec<Vec<f64>> = (0..groups.len()).map(is_of).collect();
        columns.push(cells.iter().map(|c| c.x.first().copied().unwrap_or(1.0).max(1.0).ln()).collect());
        Self::solve(&columns.iter().map(Vec::as_slice).collect::<Vec<&[f64]>>(), &cells)
    }

    fn logs(x: &[f64]) -> impl Iterator<Item = f64> {
        std::iter::once(1.0).chain(x.iter().map(|x| x.max(1.0).ln()))
    }

    /// Predicted time, ns.
    #[must_use]
    pub fn at(&self, x: &[f64]) -> f64 {
        self.coefficients.iter().zip(Self::logs(x)).map(|(b, v)| b * v).sum::<f64>().exp()
    }

    /// Exponent of an input, with its interval at 95 %.
    #[must_use]
    pub fn exponent(&self, input: usize) -> Option<(f64, Interval)> {
        let value = *self.coefficients.get(input + 1)?;
        let variance = *self.covariance.get(input + 1)?.get(input + 1)?;
        let half = z_quantile(0.95) * variance.max(0.0).sqrt();
        Some((value, Interval { low: value - half, high: value + half }))
    }

    /// Sum of the exponents.
    #[must_use]
    pub fn degree(&self) -> f64 {
        self.coefficients.iter().skip(1).sum()
    }
}

impl Shape {
    /// Predicted time at the inputs `x`, ns.
    #[must_use]
    pub fn at(&self, x: &[f64]) -> f64 {
        match self {
            Self::Sum(sum) => sum.at(x),
            Self::Power(law) => law.at(x),
            Self::Regimes(split) => split.at(x),
        }
    }

    /// Standard error of the predicted time's logarithm.
    #[must_use]
    pub fn log_error(&self, x: &[f64]) -> f64 {
        match self {
            Self::Sum(sum) => sum.log_error(x),
            Self::Regimes(split) => split.side(x).log_error(x),
            Self::Power(law) => {
                let v: Vec<f64> = PowerLaw::logs(x).collect();
                let sums = law.covariance.iter().zip(&v).map(|(row, a)| a * linear::dot(row, &v));
                sums.sum::<f64>().max(0.0).sqrt()
            }
        }
    }

    /// Coefficients beside the intercept: m in formula (6). A switching point is one.
    #[must_use]
    pub fn parameters(&self) -> usize {
        match self {
            Self::Sum(sum) => sum.growing(),
            Self::Power(law) => law.coefficients.len().saturating_sub(1),
            // Two intercepts and the switching point, of which one intercept is not counted.
            Self::Regimes(split) => 2 + split.below.growing() + split.above.growing(),
        }
    }

    /// Class at the inputs `x`, which should be large.
    #[must_use]
    pub fn class(&self, x: &[f64]) -> Class {
        match self {
            Self::Sum(sum) => Class::of(sum.order(x)),
            Self::Power(law) => Class::of_exponent(law.degree()),
            Self::Regimes(_) => Class::TwoRegimes,
        }
    }

    /// Class of the growth that goes on beyond the inputs seen: of two regimes, the upper one's.
    #[must_use]
    pub fn growth(&self, x: &[f64]) -> Class {
        match self {
            Self::Regimes(split) => Class::of(split.above.order(x)),
            other => other.class(x),
        }
    }

    /// As people write it.
    #[must_use]
    pub fn text(&self, names: &[String]) -> String {
        match self {
            Self::Sum(sum) => sum.text(names),
            Self::Power(law) => {
                let scale = time(law.coefficients.first().copied().unwrap_or(0.0).exp());
                let powers = law.coefficients.iter().skip(1).zip(names);
                let powers: Vec<String> = powers.map(|(b, name)| format!("{name}^{b:.2}")).collect();
                format!("{scale} · {}", powers.join(" "))
            }
            Self::Regimes(split) => {
                let name = names.get(split.input).map_or("x", String::as_str);
                format!(
                    "{name} < {:.0}: {}; then {}",
                    split.switch_at.ceil(),
                    split.below.text(names),
                    split.above.text(names)
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_law_has_its_exponent_within_the_interval() {
        let mut random = crate::stats::sim::rng(5);
        let mut held = 0;
        for _ in 0..300 {
            let cells: Vec<Cell> = (0..30)
                .map(|i| {
                    let x = 10.0 * 1.25_f64.powi(i);
                    let noise = f64::exp(0.1 * crate::stats::sim::normal(&mut random));
                    let median_ns = 7.0 * x.powf(1.3) * noise;
                    Cell {
                        x: vec![x],
                        category: 0,
                        median_ns,
                        calls: 20,
                        log_variance: 0.01,
                        watching_variance: 0.0,
                    }
                })
                .collect();
            let law = PowerLaw::fit(&cells).unwrap();
            held += u32::from(law.exponent(0).unwrap().1.holds(1.3));
        }
        assert!((276..=297).contains(&held), "{held} of 300");
    }

    #[test]
    fn categories_that_saw_other_sizes_do_not_tilt_the_exponent() {
        // Level 1 is four times as fast and saw the small sizes: pooled, the slope is above 1.3.
        let cell = |category: usize, x: f64, scale: f64| Cell {
            x: vec![x],
            category,
            median_ns: scale * x,
            calls: 20,
            log_variance: 0.01,
            watching_variance: 0.0,
        };
        let small = (0..10).map(|i| cell(0, 100.0 * 1.5_f64.powi(i), 1.0));
        let large = (5..15).map(|i| cell(1, 100.0 * 1.5_f64.powi(i), 4.0));
        let cells: Vec<Cell> = small.chain(large).collect();
        let all: Vec<usize> = (0..20).collect();
        let (pooled, _) = PowerLaw::common_exponent(&cells, std::slice::from_ref(&all), 0).unwrap();
        assert!(pooled > 1.2, "{pooled}");
        let parts = [all[..10].to_vec(), all[10..].to_vec()];
        let (value, interval) = PowerLaw::common_exponent(&cells, &parts, 0).unwrap();
        assert!((value - 1.0).abs() < 1e-9 && interval.holds(1.0), "{value} {interval:?}");
        assert_eq!(PowerLaw::common_exponent(&cells, &[], 0), None);
    }

    #[test]
    fn the_switching_point_parts_the_two_curves() {
        let flat = |ns| Sum { intercept_ns: ns, terms: vec![], covariance: vec![vec![0.0]] };
        let split = Split { input: 0, switch_at: 64.0, below: flat(10.0), above: flat(30.0) };
        assert_eq!((split.at(&[63.0]), split.at(&[64.0])), (10.0, 30.0));
        let text = Shape::Regimes(Box::new(split)).text(&["n".to_owned()]);
        assert_eq!(text, "n < 64: 10.0 ns; then 30.0 ns");
    }
}
