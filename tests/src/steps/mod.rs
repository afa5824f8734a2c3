//! Calls in order against what the program `tree` logs of itself: which functions were entered, in which order, and in which call. Operations
//! without a row are accounted for.
//!
//! Both the kernel tests and `cargo xtask field --steps` compare with this. Steps are read a row group at a time. What is held is 16 bytes for each logged call, 24 for each operation, the rows of operations,
//! and the steps of operations whose last one was not read yet: in a recording of an agent that keeps up these are few.

mod account;
mod comparison;
mod log;
#[cfg(test)]
mod tests;
mod watched;
mod writer;

pub use account::{Account, Made};
pub use comparison::{Compared, Comparison};
pub use log::{Entry, Log, Span};
pub use writer::stop_writer;

use account::{Counts, account};
use anyhow::{Context, Result, ensure};
use profiler_core::calls::Code;
use profiler_core::recording::{ClassRow, OperationWindowRow, WindowRow};
use profiler_user::recording::Stream;
use std::collections::HashMap;
use std::path::Path;
use watched::Attached;

/// Functions of the target by the numbers of its log.
pub const FUNCTIONS: [&str; 11] = [
    "small",
    "middle",
    "large",
    "many",
    "leaf",
    "deep",
    "hop",
    "leaves",
    "interrupted",
    "handler",
    "carries",
];
/// Each call of it is an operation.
const BOUND: &str = "handle";
/// Operations, their number as the measure.
const OPERATION: [&str; 4] = ["--operation", "req=handle", "--measure", "tree:mark:arg0"];
/// Every operation is recorded, from begin to end of the run.
pub const RICH: [&str; 4] = ["--policy", "full", "--adapt", "attach_share=false"];

/// Arguments of `tithe record` for the operations of the target, their numbers, and the calls in them.
#[must_use]
pub fn arguments() -> Vec<String> {
    let calls = FUNCTIONS.iter().map(|name| format!("--calls=tree:{name}"));
    OPERATION.map(str::to_owned).into_iter().chain(calls).collect()
}

/// Compares a recording with the target's log, and with how many operations it made. What differs is in the result.
///
/// # Errors
///
/// If the recording cannot be read whole or was made without `--calls`, or the log does not say when each operation was made.
pub fn compare(recording: &Path, mut log: Log, made: &Made) -> Result<Compared> {
    let mut stream = Stream::open(recording).with_context(|| recording.display().to_string())?;
    let meta = stream.meta().clone();
    let calls = meta.calls.as_ref().context("calls in order were not recorded")?;
    let sites = stream.table()?;
    let tails = stream.table()?;
    let classes: Vec<ClassRow> = stream.table()?;
    let number = |class: &ClassRow| {
        FUNCTIONS.iter().position(|name| *name == class.symbol).map(|function| (class.class_id, function))
    };
    let functions: HashMap<u32, usize> = classes.iter().filter_map(number).collect();
    let bound = classes.iter().find(|class| class.symbol == BOUND).context("no class of the operations")?;
    let mut attached = Vec::new();
    stream.each(|row: WindowRow| {
        attached.extend((row.class_id == bound.class_id).then(|| Attached::of(&row)));
    })?;
    let windows: Vec<OperationWindowRow> = stream.table()?;
    let operations = stream.table()?;
    let spans = log.take_spans(made.operations)?;
    let (account, fault) = account(made, &spans, &operations, &attached, &Counts::of(&windows, &meta));
    drop(spans);
    let mut comparison = Comparison::new(Code::new(calls, sites, &tails), functions, &operations, log);
    drop(operations);
    stream.each(|step| comparison.step(step))?;
    ensure!(stream.damage().is_empty(), "{}: {:?}", recording.display(), stream.damage());
    Ok(comparison.finish().accounted(account, fault))
}
