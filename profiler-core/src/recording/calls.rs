//! Rows of calls in order: entries of the functions that `--calls` names, and what is known of the code that calls them (docs/calls.md).

use serde::{Deserialize, Serialize};

/// What `meta.json` says of calls in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallsMeta {
    /// How it was asked for: the arguments of `--calls`.
    pub asked: Vec<String>,
    /// Classes whose entries are recorded.
    pub classes: Vec<u32>,
    /// Of those, the ones of which it is known where they can go by jumps: table `tails` has all of their pairs. Of others anything is possible.
    pub tails_known: Vec<u32>,
    /// Two slots of a thread that are less than this apart lie on one stack, bytes; 0: the process switches stacks, nothing follows from distances.
    pub stack_span_bytes: u64,
    /// What whoever reads calls should know of the modules that they lie in, in words. Older recordings have none.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Table `steps`: an entry of a function inside a recorded operation. There are no rows for exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRow {
    /// When, ktime ns.
    pub time_ns: u64,
    /// Running number of the thread's steps, from 1. Steps that were lost are counted: a loss is a gap.
    pub number: u64,
    /// Class of the function.
    pub class_id: u32,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Address of the word on the stack that holds the return address.
    pub slot: u64,
    /// That word; 0: it could not be read.
    pub return_address: u64,
    /// Register rbp at the entry.
    pub frame: u64,
}

/// How the caller's own slot follows from a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallerRule {
    /// The caller's frame begins `value` bytes above the stack pointer after the return: `CFA = slot + 8 + value`.
    Sp,
    /// It begins `value` bytes above what rbp holds: `CFA = frame + value`.
    Frame,
    /// The return address is that of the trampoline behind a signal handler.
    Signal,
    /// The module says nothing of it, or something else.
    Unknown,
}

/// Table `call_sites`: what is known of a return address of steps.
///
/// A class reaches a function directly if it calls it or hands over to it by a jump through any number of functions that are not watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSiteRow {
    /// The return address.
    pub return_address: u64,
    /// Process.
    pub pid: u32,
    /// Path of the module as the target sees it; empty: none.
    pub module: String,
    /// Address relative to where the module is loaded.
    pub offset: u64,
    /// Function that holds it, demangled; empty: unknown.
    pub function: String,
    /// Its class, if its entries are recorded or it bounds an operation.
    pub function_class: Option<u32>,
    /// How the caller's own slot is found.
    pub caller: CallerRule,
    /// Value of the rule, bytes.
    pub caller_value: i64,
    /// Class that the call before the return address calls directly; `None`: another function, or an indirect call.
    pub target_class: Option<u32>,
    /// It is a direct call; `None`: not known.
    pub is_direct: Option<bool>,
    /// Classes that can hand over to the function that holds it by jumps alone, through functions that are not watched; `None`: any may.
    pub jumps_from: Option<Vec<u32>>,
    /// Classes that can reach it through functions that are not watched, by calls and jumps; `None`: any may.
    pub reached_from: Option<Vec<u32>>,
    /// It holds for steps from this time on, ktime ns: before, other code was mapped there; `None`: from the beginning.
    pub since_ns: Option<u64>,
    /// It holds for steps up to this time: the module went; `None`: to the end.
    pub until_ns: Option<u64>,
}

impl CallSiteRow {
    /// It holds for a step that was taken at this time, ktime ns.
    #[must_use]
    pub fn holds_at(&self, time_ns: u64) -> bool {
        self.since_ns.is_none_or(|since| since <= time_ns)
            && self.until_ns.is_none_or(|until| time_ns <= until)
    }
}

/// Table `tails`: a class can hand over to another (or to itself) by jumps alone, through functions that are not watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailRow {
    /// Class that jumps.
    pub from_class: u32,
    /// Class that is jumped to.
    pub to_class: u32,
}
