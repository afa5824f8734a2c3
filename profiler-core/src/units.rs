//! Quantities with their units. A bare `f64` never crosses a module boundary as an overhead.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What watching may cost the target.
///
/// Users say `2%` or `5ms/s`. Metz et al. (ESEC/FSE 2005, §4) write `MaxAllowedOverhead`, a ratio of run times
/// that is 1 + the share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum OverheadBudget {
    /// Monitoring CPU time / CPU time that the target uses by itself; 0.02 is `2%`. In (0, 1].
    Share(f64),
    /// Monitoring CPU seconds per wall second, whatever the target uses; 0.005 is `5ms/s`. In (0, 1] per CPU.
    CpuPerSecond(f64),
}

impl OverheadBudget {
    /// Monitoring CPU seconds per wall second that are allowed while the target uses `target_cpu_per_s`
    /// CPU seconds per wall second by itself.
    ///
    /// `b = B U` (share) or the fixed figure. The floor for idle targets is the token bucket's business.
    #[must_use]
    pub fn cpu_per_second(self, target_cpu_per_s: f64) -> f64 {
        match self {
            Self::Share(share) => share * target_cpu_per_s.max(0.0),
            Self::CpuPerSecond(cpu) => cpu,
        }
    }

    /// A budget of the same kind that is at least `times` this one, in two digits; `None` where that is above 1.
    #[must_use]
    pub fn times(self, times: f64) -> Option<Self> {
        let up = |x: f64| {
            let x = x * times;
            let step = 10f64.powf(x.log10().floor() - 1.0);
            (x / step - 1e-9).ceil() * step
        };
        let (Self::Share(x) | Self::CpuPerSecond(x)) = self;
        let x = up(x);
        let of = if matches!(self, Self::Share(_)) { Self::Share } else { Self::CpuPerSecond };
        (x <= 1.0).then(|| of(x))
    }
}

impl fmt::Display for OverheadBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) => write!(f, "{}%", trim(share * 100.0)),
            Self::CpuPerSecond(cpu) => write!(f, "{}ms/s", trim(cpu * 1e3)),
        }
    }
}

fn trim(x: f64) -> String {
    // Enough digits for any budget that a person types, without the tail of binary fractions.
    let text = format!("{x:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Why a budget could not be read; says what was seen and what is accepted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BudgetError {
    /// Not a number followed by `%`, `ms/s` or `us/s`.
    #[error("cannot read the budget '{0}': write a share like '2%' or CPU time per second like '5ms/s'")]
    Syntax(String),
    /// A number outside the accepted range.
    #[error(
        "the budget '{0}' is out of range: a share lies above 0% and at most 100%, CPU time above 0 and at most 1000ms/s"
    )]
    Range(String),
}

impl FromStr for OverheadBudget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let t = text.trim();
        let number = |digits: &str| -> Result<f64, BudgetError> {
            digits.trim().parse::<f64>().map_err(|_| BudgetError::Syntax(text.to_owned()))
        };
        let budget = if let Some(d) = t.strip_suffix('%') {
            Self::Share(number(d)? / 100.0)
        } else if let Some(d) = t.strip_suffix("ms/s") {
            Self::CpuPerSecond(number(d)? / 1e3)
        } else if let Some(d) = t.strip_suffix("us/s") {
            Self::CpuPerSecond(number(d)? / 1e6)
        } else {
            return Err(BudgetError::Syntax(text.to_owned()));
        };
        let (Self::Share(x) | Self::CpuPerSecond(x)) = budget;
        if !(x.is_finite() && x > 0.0 && x <= 1.0) {
            return Err(BudgetError::Range(text.to_owned()));
        }
        Ok(budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_round_trip() {
        for text in ["2%", "0.5%", "100%", "5ms/s", "0.25ms/s"] {
            assert_eq!(text.parse::<OverheadBudget>().unwrap().to_string(), text);
        }
        assert_eq!("500us/s".parse::<OverheadBudget>().unwrap().to_string(), "0.5ms/s");
    }

    #[test]
    fn a_larger_budget_has_two_digits_and_is_no_smaller_than_asked() {
        let times =
            |text: &str, times| text.parse::<OverheadBudget>().unwrap().times(times).map(|b| b.to_string());
        assert_eq!(times("5%", 1.1).as_deref(), Some("5.5%"));
        assert_eq!(times("2%", 1.63).as_deref(), Some("3.3%"));
        assert_eq!(times("5ms/s", 2.01).as_deref(), Some("11ms/s"));
        assert_eq!(times("60%", 1.7), None);
    }

    #[test]
    fn bad_budgets_are_refused_with_the_value_seen() {
        for text in ["", "2", "%", "0%", "-1%", "101%", "nan%", "inf%", "2 percent"] {
            let error = text.parse::<OverheadBudget>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{text}'")), "{error}");
        }
    }
}
