//! Rows of any table on their way to the writer.

use super::cell::Table;
use profiler_core::recording::{
    BesideRow, CallSiteRow, ChangeRow, ClassRow, EventRow, FrameRow, HistogramRow, LedgerRow, OpenCallRow,
    OperationClassRow, OperationCycleRow, OperationHistogramRow, OperationRow, OperationWindowRow, PlanRow,
    SampleRow, StepRow, TailRow, TrapSampleRow, WindowRow, WordRow,
};

/// Rows on their way to the writer.
#[derive(Debug, Clone)]
pub enum Rows {
    /// Table `classes`. A later row for the same class replaces an earlier one.
    Classes(Vec<ClassRow>),
    /// Table `windows`.
    Windows(Vec<WindowRow>),
    /// Table `histograms`. Counts of the same bucket add up.
    Histograms(Vec<HistogramRow>),
    /// Table `events`.
    Events(Vec<EventRow>),
    /// Table `samples`.
    Samples(Vec<SampleRow>),
    /// Table `trap_samples`.
    TrapSamples(Vec<TrapSampleRow>),
    /// Table `stacks`: whole stacks.
    Stacks(Vec<FrameRow>),
    /// Table `stacks`, all of it once more (with lines and inlined calls): takes the place of what was
    /// written before.
    ReplaceStacks(Vec<FrameRow>),
    /// Table `ledger`.
    Ledger(Vec<LedgerRow>),
    /// Table `plans`.
    Plans(Vec<PlanRow>),
    /// Table `open_calls`.
    OpenCalls(Vec<OpenCallRow>),
    /// Table `beside`.
    Beside(Vec<BesideRow>),
    /// Table `operation_classes`. A later row for the same class replaces an earlier one.
    OperationClasses(Vec<OperationClassRow>),
    /// Table `operations`.
    Operations(Vec<OperationRow>),
    /// Table `operation_windows`.
    OperationWindows(Vec<OperationWindowRow>),
    /// Table `operation_histograms`.
    OperationHistograms(Vec<OperationHistogramRow>),
    /// Table `operation_cycles`.
    OperationCycles(Vec<OperationCycleRow>),
    /// Table `changes`.
    Changes(Vec<ChangeRow>),
    /// Table `steps`.
    Steps(Vec<StepRow>),
    /// Table `call_sites`. A later row for the same process and return address replaces an earlier one.
    CallSites(Vec<CallSiteRow>),
    /// Table `tails`.
    Tails(Vec<TailRow>),
    /// Table `words`.
    Words(Vec<WordRow>),
    /// A small file of its own beside the tables, e.g. `plan-0001.toml`.
    File {
        /// File name, without a path.
        name: String,
        /// Contents.
        bytes: Vec<u8>,
    },
}

macro_rules! rows_from {
    ($($row:ident => $variant:ident),*) => {
        $(impl From<Vec<$row>> for Rows {
            fn from(rows: Vec<$row>) -> Self {
                Self::$variant(rows)
            }
        })*
        impl Rows {
            /// Number of rows (a file counts as one).
            #[must_use]
            pub fn len(&self) -> u64 {
                match self {
                    $(Self::$variant(rows) => rows.len() as u64,)*
                    Self::ReplaceStacks(rows) => rows.len() as u64,
                    Self::File { .. } => 1,
                }
            }

            /// Nothing in it.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Memory, bytes.
            #[must_use]
            pub fn bytes(&self) -> usize {
                fn of<R: Table>(rows: &[R]) -> usize {
                    size_of_val(rows) + rows.iter().map(Table::heap_bytes).sum::<usize>()
                }
                match self {
                    $(Self::$variant(rows) => of(rows),)*
                    Self::ReplaceStacks(rows) => of(rows),
                    Self::File { bytes, .. } => bytes.len(),
                }
            }
        }
    };
}
rows_from!(ClassRow => Classes, WindowRow => Windows, HistogramRow => Histograms, EventRow => Events,
    SampleRow => Samples, FrameRow => Stacks, LedgerRow => Ledger, PlanRow => Plans, OpenCallRow => OpenCalls,
    OperationClassRow => OperationClasses, OperationRow => Operations, OperationWindowRow => OperationWindows,
    OperationHistogramRow => OperationHistograms, OperationCycleRow => OperationCycles, ChangeRow => Changes,
    TrapSampleRow => TrapSamples, StepRow => Steps, CallSiteRow => CallSites, TailRow => Tails, WordRow => Words,
    BesideRow => Beside);
