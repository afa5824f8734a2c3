//! Table `classes`.

use crate::class::{ExitMode, RecordKind, SiteClass};
use serde::{Deserialize, Serialize};

/// Table `classes`: one row per event class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassRow {
    /// Class index of this recording.
    pub class_id: u32,
    /// Demangled name, as shown.
    pub name: String,
    /// Name in the symbol table.
    pub symbol: String,
    /// Other symbols at the same address.
    pub aliases: Vec<String>,
    /// Path of the module as the target sees it.
    pub module: String,
    /// GNU build ID in hex; empty if there is none.
    pub build_id: String,
    /// Virtual address of the function in the module's file.
    pub address: u64,
    /// Size of the function, bytes.
    pub size_bytes: u64,
    /// Virtual address of the entry site in the module's file.
    pub site: u64,
    /// Price class of the entry site.
    pub site_class: SiteClass,
    /// How calls end.
    pub exit_mode: ExitMode,
    /// What is kept.
    pub kind: RecordKind,
    /// Information weight `W_i`.
    pub weight: f64,
    /// Price of one call as planned, ns.
    pub tau_ns: f64,
    /// Notes: partial counts (inlined copies), iterations instead of calls, …
    pub notes: Vec<String>,
    /// What was taken to lie between the two time stamps of a call by its own probes, ns: `nested_cost_ns` of windows and events holds it
    /// once for each call. `None`: calls are not timed, or the recording is older.
    pub stamps_ns: Option<f64>,
    /// It is no function: it measures what lies between the time stamps of calls of this class, in the target. Its durations are that price.
    pub stamps_of: Option<u32>,
    /// The user named it (`--latency` and the like). `None`: the recording is older.
    pub named: Option<bool>,
    /// Which of the six integer argument registers are parameters, or may be, by the function's code: bit 0 is `rdi`, bit 5 `r9`. `None`: nobody asked, its code is
    /// not known completely, or the recording is older.
    pub parameters: Option<u32>,
    /// Its parameters by debug information: names, registers and types, as `dest=arg0:pointer,n=arg3:size,x=-:float` (`docs/formats.md`). `None`: nobody
    /// asked, there is no debug information of it, it does not say enough, or the recording is older.
    pub prototype: Option<String>,
}
