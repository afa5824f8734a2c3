//! What the client of operations has done beside what all clients order.

use crate::class::ClassId;
use crate::recording::{OperationCycleRow, OperationWindowRow};
use crate::run::view::operations::Screened;
use std::ops::Range;

/// One order.
#[derive(Debug, Clone, PartialEq)]
pub enum OperationOrder {
    /// Recording is on or off in the kernel.
    Monitor {
        /// Of this operation.
        operation: u32,
        /// It is on.
        on: bool,
    },
    /// What recording may cost from now on.
    RecordingQuota {
        /// This operation, ...
        operation: u32,
        /// ... ns.
        quota_ns: u64,
    },
    /// The operations of this number that are open now may have lost their ends: they are given up.
    NewGeneration(u32),
    /// A monitoring cycle begins: the counts of Algorithm 1 start at 0.
    BeginCycle {
        /// Of this operation.
        operation: u32,
        /// Its number.
        cycle: u64,
        /// Its classes.
        classes: Range<u32>,
    },
    /// Rates, prices and stretches of classes of operations.
    Rates(Vec<ClassRate>),
    /// Inner functions go: what is open and recorded is lost. What begins later is not concerned.
    DetailsEnd,
    /// Inner functions are attached and have their quotas again.
    DetailsBack {
        /// As often as was seen one had used up its quota: if that happens once more before this is executed, calls are missing all the same.
        losses: u64,
    },
    /// Inner functions are about to go: nothing is recorded until [`OperationOrder::DetailsBack`], also nothing that is open.
    DetailsLost,
    /// What is screened there bounds no operation any more.
    DropScreen(Screened),
    /// Tell the user why this class cannot be attached.
    TellRefused(ClassId),
    /// This class is not asked for again; why.
    Refuse(ClassId, String),
    /// This class may be asked for again.
    Allow(ClassId),
    /// Rows of windows for the recording.
    Windows(Vec<OperationWindowRow>),
    /// A cycle has ended.
    Cycle(EndedCycle),
}

/// What the kernel is told about one class of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassRate {
    /// Which.
    pub class: u32,
    /// It is recorded if a random 32-bit number is below.
    pub threshold: u64,
    /// Expected price of recording one, ns.
    pub price_ns: u64,
    /// Number of its stretch.
    pub stretch: u64,
}

/// A cycle that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedCycle {
    /// Name of the operation.
    pub operation: String,
    /// Its row. The names of classes are missing, which only the agent knows.
    pub row: OperationCycleRow,
    /// Classes with operations and none of them recorded: their names belong into the row.
    pub unobserved: Vec<u32>,
    /// `--on-cycle` runs for it: the run goes on.
    pub runs_command: bool,
}
