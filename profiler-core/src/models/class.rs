//! Complexity classes: those that the paper prints (§3.2, formulas (7) to (9)), and ours.

use super::term::Order;
use serde::{Deserialize, Serialize};

/// Adjusted R^2 from which a fit is good (§3.2, Unknown Class).
pub const GOOD_FIT: f64 = 0.95;

/// How the time grows: our classes, from slow to fast growth.
///
/// The paper's four have no place for constants, `n log n`, `sqrt n` or `n^1.5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// It changes by at most 5 % over the range that was seen.
    Constant,
    /// `log^l n`, formula (7).
    Logarithmic,
    /// `sqrt n`, with or without logarithms.
    Sublinear,
    /// `n`, formula (8).
    Linear,
    /// `n log^l n`.
    Linearithmic,
    /// `n^1.5`, with or without logarithms.
    ThreeHalves,
    /// `n^2`, `n^3`, `m n`, with or without logarithms, formula (9).
    Polynomial,
    /// One form up to a switching point, another above it.
    TwoRegimes,
    /// No model that is good enough.
    Unknown,
}

/// All classes, in the order of growth.
pub const CLASSES: [Class; 9] = [
    Class::Constant,
    Class::Logarithmic,
    Class::Sublinear,
    Class::Linear,
    Class::Linearithmic,
    Class::ThreeHalves,
    Class::Polynomial,
    Class::TwoRegimes,
    Class::Unknown,
];

impl Class {
    /// Class of a sum whose fastest term has this order.
    #[must_use]
    pub fn of(order: Order) -> Self {
        match (order.half_powers, order.logs) {
            (0, 0) => Self::Constant,
            (0, _) => Self::Logarithmic,
            (1, _) => Self::Sublinear,
            (2, 0) => Self::Linear,
            (2, _) => Self::Linearithmic,
            (3, _) => Self::ThreeHalves,
            _ => Self::Polynomial,
        }
    }

    /// Class of a power law `x^exponent`; a time that falls has none.
    #[must_use]
    pub fn of_exponent(exponent: f64) -> Self {
        match exponent {
            e if e < -0.02 => Self::Unknown,
            e if e < 0.02 => Self::Constant,
            e if e < 0.2 => Self::Logarithmic,
            e if e < 0.85 => Self::Sublinear,
            e if e < 1.05 => Self::Linear,
            e if e < 1.3 => Self::Linearithmic,
            e if e < 1.75 => Self::ThreeHalves,
            e if e.is_finite() => Self::Polynomial,
            _ => Self::Unknown,
        }
    }

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Logarithmic => "logarithmic",
            Self::Sublinear => "sublinear",
            Self::Linear => "linear",
            Self::Linearithmic => "linearithmic",
            Self::ThreeHalves => "n^1.5",
            Self::Polynomial => "polynomial",
            Self::TwoRegimes => "two regimes",
            Self::Unknown => "unknown",
        }
    }

    /// The paper's class. Its Table 1 has no other place for constants than *linear*.
    #[must_use]
    pub fn printed(self) -> Printed {
        match self {
            Self::Constant | Self::Linear => Printed::Linear,
            Self::Logarithmic => Printed::Logarithmic,
            Self::Polynomial => Printed::Polynomial,
            Self::Sublinear | Self::Linearithmic | Self::ThreeHalves | Self::TwoRegimes => Printed::NoClass,
            Self::Unknown => Printed::Unknown,
        }
    }
}

/// The classes of the paper, as printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Printed {
    /// Formula (7).
    Logarithmic,
    /// Formula (8); constants, too.
    Linear,
    /// Formula (9).
    Polynomial,
    /// A good fit of a form that none of the formulas (7) to (9) has.
    NoClass,
    /// The adjusted R^2 is below 0.95.
    Unknown,
}

impl Printed {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Logarithmic => "logarithmic",
            Self::Linear => "linear",
            Self::Polynomial => "polynomial",
            Self::NoClass => "in no printed class",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adler_n2_and_n2_log_n_are_one_class_and_n_log_n_is_in_none() {
        let of = |half_powers, logs| Class::of(Order { half_powers, logs });
        assert_eq!(of(4, 0), of(4, 1));
        assert_eq!(of(4, 0).printed(), Printed::Polynomial);
        assert_eq!(of(2, 1).printed(), Printed::NoClass);
        assert_eq!(of(0, 0).printed(), Printed::Linear, "Table 1 counts constants somewhere");
        assert_eq!(of(0, 2).printed(), Printed::Logarithmic);
    }

    #[test]
    fn exponents_have_the_class_of_the_form_next_to_them() {
        let cases = [(0.0, Class::Constant), (0.5, Class::Sublinear), (1.0, Class::Linear)];
        for (exponent, class) in cases {
            assert_eq!(Class::of_exponent(exponent), class);
        }
        assert_eq!(Class::of_exponent(1.5), Class::ThreeHalves);
        assert_eq!(Class::of_exponent(3.0), Class::Polynomial);
        assert_eq!(Class::of_exponent(-0.5), Class::Unknown);
        assert_eq!(Class::of_exponent(f64::NAN), Class::Unknown);
    }
}
