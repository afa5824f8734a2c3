//! Sums of terms (formula (2)): their values, their fit to medians, how sure they are.
//!
//! A line may have a *saving*, an intercept below 0: the first units of its input cost less than those that follow. deflate has little to look through before
//! its window of 32 KiB is full, then each byte takes the same (docs/models.md). Without it such a line is taken for `n log n`.

use super::cells::Cell;
use super::class::Class;
use super::linear;
use super::term::{Order, Term};
use serde::{Deserialize, Serialize};

/// Standard deviation of what no form explains (caches, allocation): medians are not trusted beyond it.
pub(super) const FLOOR: f64 = 0.02;
/// Part of the largest predicted time that a term must have to decide the class.
const TELLING: f64 = 0.1;
/// Part of the largest predicted time below which a second, faster term of an input is faint.
const FAINT: f64 = 0.2;
/// Rounds of weights by what is predicted.
const ROUNDS: usize = 2;
/// Most that a line saves, as a part of its growing time at the smallest input that was seen: with more it would look like any curve.
const MOST_SAVED: f64 = 0.5;

/// `m = sum alpha_i p_i + beta` (formula (2)), with `alpha_i >= 0`, since larger inputs take no less time, and `beta >= 0`, or of a line at least a saving
/// that leaves half of the growing time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sum {
    /// beta, ns. Below 0: what a line saves: its first units cost less than those that follow.
    pub intercept_ns: f64,
    /// p_i and alpha_i, ns per unit of the term.
    pub terms: Vec<(Term, f64)>,
    /// Covariance of beta and the alphas, row by row.
    pub covariance: Vec<Vec<f64>>,
}

impl Sum {
    /// Predicted time at the inputs `x`, ns.
    #[must_use]
    pub fn at(&self, x: &[f64]) -> f64 {
        let grown = self.terms.iter().map(|(term, alpha)| alpha * term.at(x)).sum::<f64>();
        // Inputs below those that were seen do not take less than nothing.
        (self.intercept_ns + grown).max((1.0 - MOST_SAVED) * grown)
    }

    /// Standard error of the predicted time's logarithm.
    #[must_use]
    pub fn log_error(&self, x: &[f64]) -> f64 {
        let values: Vec<f64> =
            std::iter::once(1.0).chain(self.terms.iter().map(|(term, _)| term.at(x))).collect();
        let variance: f64 =
            self.covariance.iter().zip(&values).map(|(row, v)| v * linear::dot(row, &values)).sum();
        variance.max(0.0).sqrt() / self.at(x).max(f64::MIN_POSITIVE)
    }

    /// Growing terms: what counts as m in formula (6).
    #[must_use]
    pub fn growing(&self) -> usize {
        self.terms.iter().filter(|(_, alpha)| *alpha > 0.0).count()
    }

    /// What it costs by the criterion: the intercept, each growing term, and a saving as much as a coefficient.
    pub(super) fn parameters(&self) -> usize {
        1 + self.growing() + usize::from(self.intercept_ns < 0.0)
    }

    /// Order of the fastest term that makes up at least a tenth of the time at the inputs `x`.
    #[must_use]
    pub fn order(&self, x: &[f64]) -> Order {
        let whole = self.at(x);
        let telling = self.terms.iter().filter(|(term, alpha)| alpha * term.at(x) >= TELLING * whole);
        telling.map(|(term, _)| term.order()).max().unwrap_or_default()
    }

    /// This term makes up less than [`FAINT`] of the time at the inputs `x`, and its inputs occur in others, too: what it says shows at the largest
    /// inputs alone. Where it does not grow it is faint.
    fn is_faint(&self, faint: &Term, x: &[f64]) -> bool {
        let grown = || self.terms.iter().filter(|(_, alpha)| *alpha > 0.0);
        let Some((_, alpha)) = grown().find(|(term, _)| term == faint) else { return true };
        let elsewhere = |input: u8| grown().any(|(t, _)| t != faint && t.has(usize::from(input)));
        alpha * faint.at(x) < FAINT * self.at(x) && faint.0.iter().all(|factor| elsewhere(factor.input))
    }

    /// `12.3 ns + 4.1 ns · n log2 n`; with a saving `54.2 ns · n - 507 us`.
    #[must_use]
    pub fn text(&self, names: &[String]) -> String {
        let grown = self.terms.iter().filter(|(_, alpha)| *alpha > 0.0);
        let mut parts: Vec<String> =
            grown.map(|(term, alpha)| format!("{} · {}", time(*alpha), term.text(names))).collect();
        if self.intercept_ns > 0.0 || parts.is_empty() {
            parts.insert(0, time(self.intercept_ns));
        }
        let saved =
            if self.intercept_ns < 0.0 { format!(" - {}", time(-self.intercept_ns)) } else { String::new() };
        parts.join(" + ") + &saved
    }
}

/// A time with three digits, in the unit that makes it short.
pub(super) fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    match value {
        v if v >= 100.0 => format!("{v:.0} {unit}"),
        v if v >= 10.0 => format!("{v:.1} {unit}"),
        v if v >= 0.1 || v == 0.0 => format!("{v:.2} {unit}"),
        v => format!("{v:.2e} {unit}"),
    }
}

/// Weighted least squares: columns, values, weights.
type Solve = fn(&[&[f64]], &[f64], &[f64]) -> Option<linear::Solution>;

/// Medians, and all predictors at their inputs.
#[derive(Debug, Clone)]
pub(super) struct Design {
    pub cells: Vec<Cell>,
    pub terms: Vec<Term>,
    /// Values of each term, cell by cell.
    columns: Vec<Vec<f64>>,
    ones: Vec<f64>,
    medians: Vec<f64>,
    /// Precision of each median's logarithm.
    precision: Vec<f64>,
}

impl Design {
    pub fn new(cells: Vec<Cell>, terms: Vec<Term>) -> Self {
        let columns = terms.iter().map(|t| cells.iter().map(|c| t.at(&c.x)).collect()).collect();
        let ones = vec![1.0; cells.len()];
        let medians = cells.iter().map(|c| c.median_ns).collect();
        let variance = |c: &Cell| c.log_variance + c.watching_variance + FLOOR * FLOOR;
        let precision = cells.iter().map(|c| 1.0 / variance(c)).collect();
        Self { cells, terms, columns, ones, medians, precision }
    }

    /// The cells at these indices.
    pub fn part(&self, rows: &[usize]) -> Self {
        let take = |values: &[f64]| rows.iter().filter_map(|i| values.get(*i).copied()).collect::<Vec<f64>>();
        Self {
            cells: rows.iter().filter_map(|i| self.cells.get(*i).cloned()).collect(),
            terms: self.terms.clone(),
            columns: self.columns.iter().map(|c| take(c)).collect(),
            ones: take(&self.ones),
            medians: take(&self.medians),
            precision: take(&self.precision),
        }
    }

    /// Weights of relative errors: `1 / (v_i y_i^2)`, v_i the variance of the median's logarithm.
    ///
    /// Times lie on decades and their noise grows with them; without the weights the largest input alone decides.
    pub fn weights(&self, around: &[f64]) -> Vec<f64> {
        self.precision.iter().zip(around).map(|(p, y)| p / (y * y).max(f64::MIN_POSITIVE)).collect()
    }

    /// Sets of terms that LASSO chooses, of at most `most` terms.
    pub fn lasso(&self, most: usize) -> Vec<Vec<usize>> {
        let weights = self.weights(&self.medians);
        super::lasso::Problem::new(&self.columns, &self.medians, &weights).supports(most)
    }

    /// Refit of the chosen terms by weighted least squares without negative coefficients; of a line with a saving, if that is worth a coefficient.
    pub fn fit(&self, chosen: &[usize]) -> Option<Sum> {
        let sum = self.refit(chosen, linear::not_negative)?;
        let is_line = match self.terms_of(chosen).as_slice() {
            [term] => term.is_line() && sum.intercept_ns == 0.0,
            _ => false,
        };
        let saving = if is_line { self.refit(chosen, linear::least_squares) } else { None };
        Some(saving.filter(|saving| self.is_worth(saving, &sum)).unwrap_or(sum))
    }

    /// The criterion of a line with a saving is lower than without, and it does not save too much of any call.
    fn is_worth(&self, saving: &Sum, sum: &Sum) -> bool {
        let off = |sum: &Sum| (self.misfit(self.cells.iter().map(|c| sum.at(&c.x))) + FLOOR * FLOOR).ln();
        let n = self.cells.len() as f64;
        let saved = -saving.intercept_ns;
        let grown =
            |cell: &Cell| saving.terms.iter().map(|(term, alpha)| alpha * term.at(&cell.x)).sum::<f64>();
        saved > 0.0
            && self.cells.iter().all(|cell| saved <= MOST_SAVED * grown(cell))
            && n * off(saving) + n.ln() < n * off(sum)
    }

    fn terms_of(&self, chosen: &[usize]) -> Vec<&Term> {
        chosen.iter().filter_map(|j| self.terms.get(*j)).collect()
    }

    /// Refit of the chosen terms by weighted least squares.
    ///
    /// The weights are first those of the medians, then those of what is predicted: relative to medians that are too low by
    /// chance errors look larger, which would pull the fit down.
    fn refit(&self, chosen: &[usize], solve: Solve) -> Option<Sum> {
        let mut columns: Vec<&[f64]> = vec![&self.ones];
        columns.extend(chosen.iter().filter_map(|j| self.columns.get(*j)).map(Vec::as_slice));
        let mut around = self.medians.clone();
        let mut solution = None;
        for _ in 0..=ROUNDS {
            let s = solve(&columns, &self.medians, &self.weights(&around))?;
            for (i, place) in around.iter_mut().enumerate() {
                let at = |(b, c): (&f64, &&[f64])| b * c.get(i).copied().unwrap_or(0.0);
                *place = s.coefficients.iter().zip(&columns).map(at).sum();
            }
            // An input of 0 may take nothing: its weight stays that of a tenth of its median.
            around.iter_mut().zip(&self.medians).for_each(|(f, y)| *f = f.max(0.1 * y));
            solution = Some(s);
        }
        let s = solution?;
        let (intercept, alphas) = s.coefficients.split_first()?;
        // Where residuals are larger than the medians' noise, coefficients are as much less sure.
        let free = (self.medians.len() as f64 - columns.len() as f64).max(1.0);
        let dispersion = (s.rss / free).max(1.0);
        let covariance = s.inverse.iter().map(|row| row.iter().map(|v| v * dispersion).collect()).collect();
        let terms = self.terms_of(chosen).into_iter().cloned().zip(alphas.iter().copied());
        Some(Sum { intercept_ns: *intercept, terms: terms.collect(), covariance })
    }

    /// Weighted mean square of relative errors of `predicted`, and the number of cells.
    pub fn misfit(&self, predicted: impl Iterator<Item = f64>) -> f64 {
        let errors = self.medians.iter().zip(predicted).map(|(y, f)| relative(*y, f).powi(2));
        let sum: f64 = self.precision.iter().zip(errors).map(|(p, e)| p * e).sum();
        sum / self.precision.iter().sum::<f64>().max(f64::MIN_POSITIVE)
    }

    /// Class of a sum at the cell for which it predicts most.
    pub fn class_of(&self, sum: &Sum) -> Class {
        self.top(sum).map_or(Class::Unknown, |cell| Class::of(sum.order(&cell.x)))
    }

    /// This term of a sum shows at the largest inputs alone, and little there.
    pub fn is_faint(&self, sum: &Sum, term: &Term) -> bool {
        self.top(sum).is_some_and(|cell| sum.is_faint(term, &cell.x))
    }

    /// The cell for which a sum predicts most.
    fn top(&self, sum: &Sum) -> Option<&Cell> {
        self.cells.iter().max_by(|a, b| sum.at(&a.x).total_cmp(&sum.at(&b.x)))
    }
}

/// ln(y / f), within a factor of 20.
pub(super) fn relative(y: f64, f: f64) -> f64 {
    let log = (y / f.max(f64::MIN_POSITIVE)).ln();
    log.clamp(-3.0, 3.0)
}

#[cfg(test)]
mod tests {
    use super::super::term;
    use super::*;

    fn design(f: impl Fn(f64) -> f64) -> Design {
        let cell = |i: i32| {
            let x = 1.4_f64.powi(i).round();
            Cell {
                x: vec![x],
                category: 0,
                median_ns: f(x),
                calls: 20,
                log_variance: 1e-3,
                watching_variance: 0.0,
            }
        };
        Design::new((5..30).map(cell).collect(), term::plain(0))
    }

    #[test]
    fn a_refit_finds_the_coefficients_and_lasso_the_term() {
        let design = design(|n| 120.0 + 4.0 * n * n.log2());
        // plain(): log n, sqrt n, n, n log n.
        let sum = design.fit(&[3]).unwrap();
        assert!((sum.intercept_ns - 120.0).abs() < 0.01 && (sum.terms[0].1 - 4.0).abs() < 1e-4, "{sum:?}");
        assert_eq!(sum.text(&["n".to_owned()]), "120 ns + 4.00 ns · n log2 n");
        assert!(design.lasso(4).iter().any(|set| set.contains(&3)), "{:?}", design.lasso(4));
        assert_eq!(design.class_of(&sum), Class::Linearithmic);
        assert!(sum.log_error(&[100.0]) > 0.001 && sum.log_error(&[100.0]) < 0.05);
    }

    #[test]
    fn a_term_of_less_than_a_tenth_decides_no_class() {
        let design = design(|n| 1_000.0 * n + 0.001 * n * n);
        let sum = design.fit(&[2, 5]).unwrap();
        assert!(sum.terms[1].1 > 0.0);
        assert_eq!(design.class_of(&sum), Class::Linear, "{sum:?}");
    }

    #[test]
    fn a_faster_term_that_shows_at_the_end_alone_is_faint() {
        let design = design(|n| 7.0 * n * n.log2() + 3e-8 * n.powi(3));
        // n log n, and n^3.
        let both = design.fit(&[3, 6]).unwrap();
        let [slow, fast] = [&both.terms[0], &both.terms[1]];
        assert!(slow.1 > 0.0 && fast.1 > 0.0, "{both:?}");
        assert!(design.is_faint(&both, &fast.0) && !design.is_faint(&both, &slow.0));
        let alone = design.fit(&[6]).unwrap();
        assert!(!design.is_faint(&alone, &fast.0), "alone it is all there is: {alone:?}");
    }

    #[test]
    fn times_are_short() {
        let texts = [0.0, 0.012, 4.1, 12.34, 1_234.0, 5.6e7, 2e9].map(time);
        assert_eq!(texts, ["0.00 ns", "1.20e-2 ns", "4.10 ns", "12.3 ns", "1.23 us", "56.0 ms", "2.00 s"]);
    }
}
