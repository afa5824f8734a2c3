//! Adaptive sampling of operations: which requests are recorded in detail, and when a sample stands for the whole.
//!
//! What it is: the three algorithms of Mertz and Nunes (JSS 2023), the strategies they compare with, and one of
//! our own, as pure functions over windows of a second. Why here: the same code runs live (the kernel program
//! evaluates [`decision`] on numbers computed here) and in [`replay`] over a recorded trace.
//! Inputs: per window and class, count, mean and variance of response times of all operations (*population*) and of
//! those recorded (*sample*); outputs: rates, monitoring on or off, samples released.
//! What it does not do: no probe, no clock, no class names beyond [`classes`].
//!
//! | module | question | in the paper |
//! |---|---|---|
//! | [`decision`] | is this operation recorded? | Algorithm 1 |
//! | [`mod@reference`], [`rate`] | is the target slower than normal; which rate follows? | Algorithm 2, Table 2 |
//! | [`evaluate`], [`cycle`] | does the sample stand for the population? | Algorithm 3 |
//! | [`policy`] | `adp`, `inv`, `uni`, `full`, `none`, `tithe`, one step a window | §4.1.2 |
//! | [`allocate`], [`tithe`] | which class gets how much of what may be recorded | ours |
//! | [`budget`] | what is affordable | ours |
//! | [`portions`] | what each of several operations may take of it | ours |
//! | [`spending`] | what they may take in one second | ours |
//! | [`attach`] | for which share of the time the functions inside are attached | ours |
//! | [`strata`] | means with intervals from samples of changing rates | ours |
//! | [`replay`] | what a policy would have recorded of a trace | ours |
//!
//! How we read the paper where it contradicts itself is in `docs/design.md`.

pub mod allocate;
pub mod attach;
pub mod budget;
pub mod classes;
pub mod config;
pub mod cycle;
pub mod decision;
pub mod evaluate;
pub mod orders;
pub mod policy;
pub mod portions;
pub mod rate;
pub mod reference;
pub mod replay;
pub mod spending;
pub mod strata;
pub mod tithe;

#[cfg(test)]
mod tests;

pub use classes::{OperationClassId, OperationClassNames};
pub use config::AdaptConfig;
pub use orders::{Orders, PolicyKind};
pub use policy::{Adapter, Step};

use crate::stats::moments::Moments;

/// What one operation class did in a window; operations count in the window in which they end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassWindow {
    /// The class.
    pub class: OperationClassId,
    /// Response times of all operations, ns.
    pub population: Moments,
    /// Response times of the recorded operations, ns.
    pub sample: Moments,
    /// The measure of the recorded operations (calls, bytes, rows: whatever the user records), in its own unit.
    /// Empty where nothing but time is recorded.
    pub measure: Moments,
    /// CPU time that recording the class's sample took from the target, s.
    pub cost_s: f64,
}

/// What all classes did in a window: the input of [`Adapter::step`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WindowSummary {
    /// Length, s.
    pub length_s: f64,
    /// Recording was on throughout (true) or off throughout (false). A window that straddles a switch must be cut.
    pub monitoring: bool,
    /// Classes with operations, sorted by class, each once.
    pub classes: Vec<ClassWindow>,
}

impl WindowSummary {
    /// Operations that ended.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.classes.iter().map(|c| c.population.n()).sum()
    }

    /// Operations per second; 0 for a window without length.
    #[must_use]
    pub fn throughput_hz(&self) -> f64 {
        if self.length_s > 0.0 { self.operations() as f64 / self.length_s } else { 0.0 }
    }

    /// A length that a clock can have given: above 0 and finite.
    fn is_usable(&self) -> bool {
        self.length_s.is_finite() && self.length_s > 0.0
    }
}
