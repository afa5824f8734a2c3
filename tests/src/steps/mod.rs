//! Calls in order against what the program `tree` logs of itself: which functions were entered, in which order, and in which call.
//!
//! Both the kernel tests and `cargo xtask field --steps` compare with this. Steps are read a row group at a time. What is held is 16 bytes for each logged call, the rows of operations,
//! and the steps of operations whose last one was not read yet: in a recording of an agent that keeps up these are few.

mod comparison;
mod log;
#[cfg(test)]
mod tests;

pub use comparison::{Compared, Comparison};
pub use log::{Entry, Log};

use anyhow::{Context, Result, ensure};
use profiler_core::calls::Code;
use profiler_core::recording::ClassRow;
use profiler_user::recording::Stream;
use std::collections::HashMap;
use std::path::Path;

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

/// Compares a recording with the target's log. What differs is in the result.
///
/// # Errors
///
/// If the recording cannot be read whole, or was made without `--calls`.
pub fn compare(recording: &Path, log: Log) -> Result<Compared> {
    let mut stream = Stream::open(recording).with_context(|| recording.display().to_string())?;
    let meta = stream.meta().calls.clone().context("calls in order were not recorded")?;
    let sites = stream.table()?;
    let tails = stream.table()?;
    let number = |class: ClassRow| {
        FUNCTIONS.iter().position(|name| *name == class.symbol).map(|function| (class.class_id, function))
    };
    let functions: HashMap<u32, usize> = stream.table()?.into_iter().filter_map(number).collect();
    let operations = stream.table()?;
    let mut comparison = Comparison::new(Code::new(&meta, sites, &tails), functions, &operations, log);
    drop(operations);
    stream.each(|step| comparison.step(step))?;
    ensure!(stream.damage().is_empty(), "{}: {:?}", recording.display(), stream.damage());
    Ok(comparison.finish())
}
