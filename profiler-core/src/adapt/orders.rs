//! Names of the policies, and what a policy tells the kernel program.

use super::attach::Slices;
use super::decision::{Switch, slack_q16};
use super::{AdaptConfig, OperationClassId};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Who sets the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyKind {
    /// Mertz and Nunes: Algorithms 1, 2 and 3.
    Adp,
    /// A rate inversely proportional to the throughput (Hauswirth and Chilimbi 2004; Brönink and Rosenblum 2016).
    Inv,
    /// A constant rate.
    Uni,
    /// Every operation.
    Full,
    /// No operation; the population is still counted.
    None,
    /// Ours: a rate that follows response times without baselines; its cost shared among classes by their deviation;
    /// equivalence instead of Algorithm 3's t-test.
    Tithe,
}

impl PolicyKind {
    /// All policies.
    pub const ALL: [Self; 6] = [Self::Adp, Self::Inv, Self::Uni, Self::Full, Self::None, Self::Tithe];

    /// The name users type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Adp => "adp",
            Self::Inv => "inv",
            Self::Uni => "uni",
            Self::Full => "full",
            Self::None => "none",
            Self::Tithe => "tithe",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy '{0}': choose from adp, inv, uni, full, none, tithe")]
pub struct UnknownPolicy(pub String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|k| k.name() == text).ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

/// What the kernel program is told about one class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassOrders {
    /// Recorded / all operations.
    pub rate: f64,
    /// Number of the stretch of (nearly) constant rate and attach state: the class's stratum.
    pub stretch: u64,
    /// Expected price of recording one operation, CPU s.
    pub price_s: f64,
}

/// What the kernel program is told for the next window.
#[derive(Debug, Clone, PartialEq)]
pub struct Orders {
    /// Recording is on.
    pub monitoring: bool,
    /// The balance test is made.
    pub balance: bool,
    /// For classes that are not listed.
    pub default: ClassOrders,
    /// For the others, sorted.
    pub classes: BTreeMap<OperationClassId, ClassOrders>,
    /// CPU time that recording may cost in the window, s; `None` without a budget.
    pub quota_s: Option<f64>,
    /// When the functions inside are attached. In a slice an operation is drawn with [`Slices::draw`] of its class's rate.
    pub slices: Slices,
}

impl Orders {
    /// Orders for a class.
    #[must_use]
    pub fn of(&self, class: OperationClassId) -> ClassOrders {
        self.classes.get(&class).copied().unwrap_or(self.default)
    }

    /// The numbers for all classes, as the kernel program reads them.
    #[must_use]
    pub fn switch(&self, config: &AdaptConfig) -> Switch {
        // OK because the cast saturates.
        let quota_ns = self.quota_s.map_or(u64::MAX, |s| (s * 1e9) as u64);
        Switch {
            monitoring: self.monitoring,
            balance: self.balance,
            slack_q16: slack_q16(config.balance_slack),
            quota_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_a_wrong_one_lists_the_right_ones() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse::<PolicyKind>().unwrap(), kind);
        }
        let error = "ADP".parse::<PolicyKind>().unwrap_err().to_string();
        assert_eq!(error, "unknown policy 'ADP': choose from adp, inv, uni, full, none, tithe");
    }
}
