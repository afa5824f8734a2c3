//! One broken rule at one place.

use std::fmt;

/// One broken rule at one place, printed as `path:line: what, the value, the limit, what to do`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule's name, as in the exceptions.
    pub rule: &'static str,
    /// The file, from the root of the checkout.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// What an exception names: a file, or `FILE: NAME`; without lines, which change.
    pub place: String,
    /// What is wrong, without numbers.
    pub what: String,
    /// The number that is compared with the limit.
    pub value: usize,
    /// The largest number that is allowed.
    pub limit: usize,
    /// What the number counts.
    pub unit: &'static str,
    /// How to mend it.
    pub advice: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, what, value, limit, unit, advice, .. } = self;
        write!(f, "{path}:{line}: {what}, {value} {unit}, limit {limit}, {advice}")
    }
}
