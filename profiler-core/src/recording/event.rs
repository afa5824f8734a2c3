//! Rows of single calls that were recorded.

use serde::{Deserialize, Serialize};

/// Table `events`: one recorded call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventRow {
    /// Begin of the call, ktime ns.
    pub time_ns: u64,
    /// Class.
    pub class_id: u32,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Duration, ns, uncorrected; `None` if the end was not seen.
    pub duration_ns: Option<u64>,
    /// Argument registers as the caller left them (rdi, rsi, rdx, rcx, r8, r9); `None`: overwritten before the site. Recordings from
    /// before that was told apart hold what was in the register.
    pub args: [Option<u64>; 6],
    /// Monitoring cost inside the duration, ns; `None`: the end was not seen, or the recording is older.
    pub nested_cost_ns: Option<u64>,
    /// Where in the run of its thread it stood.
    pub place: CallPlace,
    /// What the kernel counted for its thread inside it.
    pub context: CallContext,
}

/// What the kernel counted for the thread of a recorded call inside it, monitoring's own part included. All of it is `None` where the end
/// was not seen, and in recordings from before these columns; single ones where the kernel does not keep them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallContext {
    /// Time off CPU, ns.
    pub off_cpu_ns: Option<u64>,
    /// Part of it: ready, without a CPU, ns.
    pub runnable_ns: Option<u64>,
    /// The other part, ns: waiting for something.
    pub blocked_ns: Option<u64>,
    /// Part of that: waiting for I/O of files and block devices, ns.
    pub io_wait_ns: Option<u64>,
    /// Page faults served without I/O.
    pub minor_faults: Option<u64>,
    /// Page faults that waited for I/O.
    pub major_faults: Option<u64>,
    /// Bytes that system calls read.
    pub read_bytes: Option<u64>,
    /// Bytes that system calls wrote.
    pub written_bytes: Option<u64>,
}

/// Where a recorded call stood. All of it is `None` in recordings from before these columns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallPlace {
    /// Class of the innermost timed call of the thread around it; `None`: there was none, or its end was not seen.
    pub outer_class: Option<u32>,
    /// Timed calls of the thread around it; `None`: its end was not seen.
    pub depth: Option<u32>,
    /// Address that it returns to; `None`: not known.
    pub return_address: Option<u64>,
    /// Register rax as it returned: the result, of functions that return an integer or pointer. `None`: the end was not seen by a return link.
    pub result: Option<u64>,
}
