//! Table `changes`: what the run changed of what it does, and why.

use serde::{Deserialize, Serialize};

/// What was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// A plan was made.
    Plan,
    /// A class used up its quota: the breaker took it off.
    Trip,
    /// A class was taken off because it would have cost too much.
    Stop,
    /// A class that had been taken off is tried again.
    Trial,
    /// A class that had been taken off is traced again.
    Back,
    /// A class cannot be attached.
    Refused,
    /// Modules came or went, or the target runs another program.
    Modules,
    /// The sampler was slowed, or runs as planned again, or changed what carries its events.
    Sampling,
    /// A thread lost more than its share.
    Thread,
    /// A monitoring cycle of an operation ended.
    Cycle,
    /// Forked children: nothing is traced for their sake, or it is again.
    Children,
    /// Functions that models are made of share a frequency of recorded calls.
    Group,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRow {
    /// When, ktime ns.
    pub time_ns: u64,
    /// What.
    pub kind: ChangeKind,
    /// Class, where it is about one.
    pub class_id: Option<u32>,
    /// Number of the plan, for [`ChangeKind::Plan`].
    pub plan: Option<u32>,
    /// Why, and what follows, in words.
    pub text: String,
}
