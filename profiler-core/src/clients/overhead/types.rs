//! What goes into the comparison.

use crate::class::ClassId;
use crate::run::suspension::Suspension;

/// Where progress and CPU time stood at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Units of progress so far; it may wrap.
    pub progress: u64,
    /// CPU time of the target so far, ns.
    pub cpu_ns: u64,
    /// When it was read, ktime ns.
    pub time_ns: u64,
}

/// What was read for a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// For [`Wanted::Counts`].
    Counts {
        /// CPU time of the target so far, ns.
        cpu_ns: u64,
        /// Units so far: one count, or one of each system call where one is to be found. Empty: the metric cannot be read.
        counts: Vec<u64>,
    },
    /// For [`Wanted::Mark`].
    Mark(Mark),
}

/// What the next step needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// No step.
    Nothing,
    /// A step with a view.
    View,
    /// A step with a view and [`Reading::Counts`].
    Counts,
    /// A step with a view and [`Reading::Mark`].
    Mark,
}

/// What progress is measured by.
#[derive(Debug, Clone, Default)]
pub struct Subject {
    /// In words.
    pub name: String,
    /// Counting costs something: all but variables.
    pub is_counted: bool,
    /// Classes that count: they stay attached in windows off.
    pub classes: Vec<ClassId>,
    /// Where the user named nothing: the names of the system calls, by number, of which one is to be found. `None`: its number says how
    /// long the target waited, not what it did.
    pub choices: Option<Vec<Option<String>>>,
}

impl Subject {
    /// The user named it.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.choices.is_none()
    }
}

/// What the ledger says of the run so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LedgerSummary {
    /// CPU time that the target used by itself, ns.
    pub own_cpu_ns: f64,
    /// CPU time that counting the metric took from the target, ns.
    pub metric_ns: f64,
    /// What a measured overhead is compared with, see [`crate::ledger::Ledger::compared`].
    pub compared: f64,
    /// The same at the prices that are charged now, see [`crate::ledger::Ledger::compared_at_prices`].
    pub predicted: f64,
}

/// What the client is told.
#[derive(Debug, Clone, Default)]
pub struct Input {
    /// The plan runs: neither warm-up nor survey.
    pub running: bool,
    /// What holds attaching up.
    pub suspension: Suspension,
    /// What was asked for by [`super::Overhead::wants`]. `None`: the target cannot be read, because it is ending.
    pub reading: Option<Reading>,
    /// Classes of operations that would be cut: they stay attached in windows off.
    pub staying: Vec<ClassId>,
    /// The ledger.
    pub account: LedgerSummary,
    /// When the run ends by itself, ktime ns.
    pub end_ns: Option<u64>,
    /// CPU time of attaching or detaching one link, s.
    pub attach_s: f64,
}

/// What the arbiter grants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grant {
    /// What the whole run may spend, CPU s/s.
    pub allowed: f64,
    /// What taking links off and on may cost, CPU s/s.
    pub churn: f64,
}
