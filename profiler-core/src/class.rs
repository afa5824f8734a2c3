//! Event classes: what can be observed, and the words for how.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Index of an event class (the papers' `C_i`) in every table and kernel map of one run; it travels as
/// the cookie of the attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClassId(pub u32);

impl fmt::Display for ClassId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The price class of a site: what the kernel must do with the instruction under the breakpoint.
/// Ordered from cheap to dear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SiteClass {
    /// A 5-byte nop, which the kernel may replace by a call (optimised uprobe, Linux 6.18).
    Nop5,
    /// Any other nop; emulated.
    Nop,
    /// `push reg`; emulated.
    Push,
    /// `jmp`, `jcc`, `call` relative; emulated.
    Branch,
    /// Anything else: single-stepped out of line. Ten times as dear on virtual machines.
    Stepped,
}

impl SiteClass {
    /// All classes, cheapest first.
    pub const ALL: [Self; 5] = [Self::Nop5, Self::Nop, Self::Push, Self::Branch, Self::Stepped];

    /// The name shown to people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nop5 => "nop5",
            Self::Nop => "nop",
            Self::Push => "push",
            Self::Branch => "branch",
            Self::Stepped => "stepped",
        }
    }
}

/// What is kept of a hit. The cheapest that answers the question is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// A counter in the kernel.
    Count,
    /// A counter, the sum of durations and a histogram of them, in the kernel.
    Latency,
    /// One record per entry through the ring buffer, inside recorded operations: time, thread, return slot, return address.
    Step,
    /// One record per call through the ring buffer: time, thread, duration, arguments.
    Record,
}

impl RecordKind {
    /// The name shown to people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Latency => "latency",
            Self::Step => "step",
            Self::Record => "record",
        }
    }
}

/// How the end of a call is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitMode {
    /// Not at all: entries only.
    None,
    /// The kernel replaces the return address (uretprobe, session). Refused where it can kill the target.
    ReturnLink,
    /// A breakpoint on every way out of the function.
    ExitSites,
    /// A breakpoint behind each of its calls, in the callers, which are learned while it is watched.
    ReturnSites,
}

/// Where a number of the report comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Every event while attached was seen.
    Exact,
    /// Every event of some windows was seen; scaled to the run.
    Burst,
    /// Estimated from periodic samples.
    Sampled,
    /// Computed from other estimates (rho / F, a class that always runs with another).
    Derived,
}

impl Source {
    /// The name shown to people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Burst => "burst",
            Self::Sampled => "sampled",
            Self::Derived => "derived",
        }
    }
}

/// Capability tier of the kernel that we run on, found by behaviour, not by version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tier {
    /// uprobe.session links: entry and return in one program.
    A,
    /// uprobe.multi links with a PID filter that works (6.10 and later).
    B,
    /// uprobe.multi links without it (6.6 to 6.9): bystanders are filtered in BPF and charged.
    C,
    /// perf-event uprobes only: at most 8 classes, slow detach, no short bursts.
    D,
}
