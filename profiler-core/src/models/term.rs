//! Predictors: products of powers and logarithms of inputs (ADLER, formulas (3) and (4)).

use serde::{Deserialize, Serialize};

/// `x^k log2^l x` of one input.
///
/// log2 x is taken as 0 for x < 1, and x^0 as 1, so that an input of 0 has a value everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Factor {
    /// Index of the input in [`super::Model::inputs`].
    pub input: u8,
    /// Twice the power k: 0, 1, 2, 3, 4 or 6.
    pub half_powers: u8,
    /// The power l of the logarithm: 0, 1 or 2.
    pub logs: u8,
}

/// Twice the powers k of formula (4): 0, 1/2, 1, 3/2, 2, 3.
pub const HALF_POWERS: [u8; 6] = [0, 1, 2, 3, 4, 6];
/// Largest power l of the logarithm in formula (4).
pub const MOST_LOGS: u8 = 2;

impl Factor {
    /// Its value at `x` >= 0.
    #[must_use]
    pub fn at(self, x: f64) -> f64 {
        let root = x.max(0.0).sqrt();
        let power = root.powi(i32::from(self.half_powers));
        power * x.max(1.0).log2().powi(i32::from(self.logs))
    }

    fn text(self, name: &str) -> String {
        let power = match self.half_powers {
            0 => String::new(),
            1 => format!("sqrt {name}"),
            2 => name.to_owned(),
            k if k % 2 == 0 => format!("{name}^{}", k / 2),
            k => format!("{name}^{}.5", k / 2),
        };
        let logs = match self.logs {
            0 => String::new(),
            1 => format!("log2 {name}"),
            l => format!("log2^{l} {name}"),
        };
        if power.is_empty() || logs.is_empty() { power + &logs } else { format!("{power} {logs}") }
    }
}

/// A predictor: a factor, or the product of two factors of different inputs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Term(pub Vec<Factor>);

impl Term {
    /// Its value at the inputs `x`; inputs that are missing count as 0.
    #[must_use]
    pub fn at(&self, x: &[f64]) -> f64 {
        self.0.iter().map(|f| f.at(x.get(usize::from(f.input)).copied().unwrap_or(0.0))).product()
    }

    /// Twice the sum of its powers, and the sum of its logarithms' powers: what grows faster compares as greater.
    #[must_use]
    pub fn order(&self) -> Order {
        Order {
            half_powers: self.0.iter().map(|f| f.half_powers).sum(),
            logs: self.0.iter().map(|f| f.logs).sum(),
        }
    }

    /// As people write it: `n^1.5 log2 n`, `m n`.
    #[must_use]
    pub fn text(&self, names: &[String]) -> String {
        let name = |f: &Factor| names.get(usize::from(f.input)).map_or("x", String::as_str).to_owned();
        self.0.iter().map(|f| f.text(&name(f))).collect::<Vec<_>>().join(" ")
    }

    /// The input occurs in it.
    #[must_use]
    pub fn has(&self, input: usize) -> bool {
        self.0.iter().any(|f| usize::from(f.input) == input)
    }

    /// It is one input, as it is.
    pub(super) fn is_line(&self) -> bool {
        matches!(self.0.as_slice(), [Factor { half_powers: 2, logs: 0, .. }])
    }

    /// What choosing it costs beside its coefficient, in units of the criterion (-2 ln of the prior odds against `n`).
    ///
    /// Our choice, not the paper's: over three decades `n log2^2 n` and `n^1.5` are within a few percent of each other, and programs
    /// have the second far more often. A rare form must be e^(5/2) = 12 times as likely as a common one.
    #[must_use]
    pub fn prior(&self) -> f64 {
        let rare = self.0.iter().any(|f| f.logs > 1 || (f.logs == 1 && ![0, 2].contains(&f.half_powers)));
        let crossed = self.0.len() > 1 && self.0.iter().any(|f| f.half_powers % 2 == 1);
        if rare || crossed { 5.0 } else { 0.0 }
    }
}

/// Degree of growth: powers first, logarithms second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Order {
    /// Twice the degree.
    pub half_powers: u8,
    /// Power of the logarithm.
    pub logs: u8,
}

/// Most inputs that a model is searched in.
pub const MOST_INPUTS: usize = 4;

/// All predictors of `inputs` inputs: formula (4) for each, and cross terms of each pair.
///
/// Cross terms are products of `log x, sqrt x, x, x^2` of the two inputs: `m n`, `m log n`, `m^2 n`.
#[must_use]
pub fn all(inputs: usize) -> Vec<Term> {
    let count = inputs.min(MOST_INPUTS) as u8;
    let mut terms = Vec::new();
    for input in 0..count {
        for half_powers in HALF_POWERS {
            for logs in 0..=MOST_LOGS {
                if half_powers > 0 || logs > 0 {
                    terms.push(Term(vec![Factor { input, half_powers, logs }]));
                }
            }
        }
    }
    let crossed = |input| {
        [(0, 1), (1, 0), (2, 0), (4, 0)].map(|(half_powers, logs)| Factor { input, half_powers, logs })
    };
    for first in 0..count {
        for second in first + 1..count {
            for a in crossed(first) {
                terms.extend(crossed(second).map(|b| Term(vec![a, b])));
            }
        }
    }
    terms
}

/// The pure forms of one input, without rare ones: for pieces of a function, which have few cells.
#[must_use]
pub fn plain(input: usize) -> Vec<Term> {
    let pairs = [(0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (6, 0)];
    pairs.map(|(half_powers, logs)| Term(vec![Factor { input: input as u8, half_powers, logs }])).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adler_formula_4_has_17_forms_of_one_input_and_16_cross_terms_of_two() {
        assert_eq!(all(1).len(), 17);
        assert_eq!(all(2).len(), 2 * 17 + 16);
        assert_eq!(all(9).len(), all(MOST_INPUTS).len());
    }

    #[test]
    fn values_are_finite_at_zero_and_at_the_largest_number_that_is_an_input() {
        for term in all(2) {
            for x in [0.0, 1.0, 2.0_f64.powi(47)] {
                assert!(term.at(&[x, x]).is_finite() && term.at(&[x, x]) >= 0.0, "{term:?}");
            }
        }
        let term = Term(vec![Factor { input: 0, half_powers: 3, logs: 1 }]);
        assert!((term.at(&[16.0]) - 256.0).abs() < 1e-9);
    }

    #[test]
    fn terms_are_written_as_people_write_them() {
        let names = ["n".to_owned(), "m".to_owned()];
        let text = |factors: &[(u8, u8, u8)]| {
            let factor = |&(input, half_powers, logs)| Factor { input, half_powers, logs };
            Term(factors.iter().map(factor).collect()).text(&names)
        };
        assert_eq!(text(&[(0, 2, 1)]), "n log2 n");
        assert_eq!(text(&[(0, 3, 0)]), "n^1.5");
        assert_eq!(text(&[(0, 1, 2)]), "sqrt n log2^2 n");
        assert_eq!(text(&[(0, 2, 0), (1, 2, 0)]), "n m");
    }

    #[test]
    fn orders_compare_as_growth_does() {
        let order = |half_powers, logs| Order { half_powers, logs };
        assert!(order(2, 0) < order(2, 1) && order(2, 1) < order(3, 0) && order(0, 2) < order(1, 0));
    }
}
