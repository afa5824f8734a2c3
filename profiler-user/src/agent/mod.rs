//! The agent: what a run needs of a real process. It reads, attaches and records, and decides nothing.
//!
//! ```text
//! event_loop ── turn ──► engine::Driver ── Input, View ──► engine::Run
//!      ▲                     │  ▲                              │
//!   signals,                 ▼  └── machine: fill, read ◄──────┤
//!   target's end          execute ◄────── Command ─────────────┘
//! ```
//! Decisions are made in `profiler-core` ([`profiler_core::engine`]); the kernel is reached through [`crate::prober`] only.
//!
//! | file | what it does |
//! |---|---|
//! | `prepare`, `launch` | make an agent, for a process that runs or one that is started |
//! | `event_loop` | waits for time, signals, reports of the opener and the target's end |
//! | `machine` | gives the run what it asks for |
//! | `execute` | does what it commands |
//! | `attach/` | sole owner of links and windows, of one target or several; `attach/opener.rs` makes links on a thread of its own |
//! | `catalog`, `class_of`, `select`, `reading` | from functions to classes |
//! | `stamps` | pairs of sites that measure what lies between two time stamps |
//! | `modules` | libraries that come and go |
//! | `callers`, `known_callers` | who calls functions that are timed at return addresses |
//! | `sampling`, `shares` | samples |
//! | `meters`, `metric`, `children_io` | CPU time, counters, children |
//! | `clock` | the clock of kernel records, and the turns of the loop |
//! | `operations/`, `operation_io`, `operation_steps`, `steps`, `cycle_hook` | operations: classes made of what was named; the kernel's counts and orders |
//! | `data_points` | recorded calls of functions that models are made of |
//! | `live_groups` | functions of `--model` that share a frequency from some time on |
//! | `shared_points` | how often functions of a group are recorded, where models are known from the start |
//! | `expected` | functions that are recorded because of `--expect`, and whether they are of the same build |
//! | `words` | words of the target: lists for the kernel, rows of what was taken |
//! | `in_flight` | calls that have not ended, as consumers look at them |
//! | `consumers/`, `call_code`, `code_history` | who reads rows while they are recorded, what the code says of return addresses, and what was mapped when |
//! | `journal`, `host` | what is recorded and said |
//! | `finish`, `command` | the end |

pub mod attach;
mod call_code;
mod callers;
mod catalog;
mod children_io;
pub mod class;
mod class_of;
mod class_words;
mod clock;
mod code_history;
mod command;
mod consumers;
mod cycle_hook;
mod data_points;
mod event_loop;
mod event_row;
mod execute;
mod expected;
mod finish;
mod host;
mod in_flight;
mod input_names;
mod journal;
mod known_callers;
mod launch;
mod live_groups;
mod lost_arguments;
mod machine;
mod meters;
mod metric;
mod modules;
mod operation_io;
mod operation_steps;
mod operations;
mod prepare;
mod reading;
mod ring_rows;
mod sampling;
mod select;
mod shared_points;
mod shares;
mod stamps;
mod steps;
mod view;
mod window;
mod words;

pub use event_loop::{plan, record};
pub(crate) use prepare::preflight;
pub use select::{Selection, SelectionError};

use crate::inspect::Inspection;
use crate::prober::{CallReader, KernelLog, LifecycleReader};
use crate::target::Target;
use attach::Attachments;
use call_code::CallCode;
use callers::CallerWatch;
use catalog::Catalog;
use children_io::ChildProcesses;
use data_points::DataPoints;
use journal::Journal;
use meters::Meters;
use operation_io::OperationIo;
use profiler_core::cost::CostModel;
use profiler_core::engine::Driver;
use sampling::Sampling;
use words::Words;

/// How the run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// `--duration` is over.
    Duration,
    /// Ctrl-C.
    Interrupted,
    /// SIGTERM.
    Terminated,
    /// The target ended.
    TargetExited,
}

impl EndReason {
    /// For `meta.json`.
    fn text(self) -> &'static str {
        match self {
            Self::Duration => "duration",
            Self::Interrupted | Self::Terminated => "interrupted",
            Self::TargetExited => "target exited",
        }
    }
}

/// Rings of the kernel programs that are no samples.
struct Rings {
    calls: CallReader,
    lifecycle: LifecycleReader,
    /// What the kernel programs log, with `--verbose`.
    log: Option<KernelLog>,
}

/// Everything that a run needs of the machine.
struct Agent {
    target: Target,
    inspection: Inspection,
    catalog: Catalog,
    attach: Attachments,
    callers: CallerWatch,
    call_code: CallCode,
    sampling: Sampling,
    rings: Rings,
    processes: ChildProcesses,
    meters: Meters,
    /// What operations are read from and written to, while they are followed.
    operation_io: Option<Box<OperationIo>>,
    /// Words of the target.
    words: Words,
    prices: CostModel,
    journal: Journal,
    data_points: DataPoints,
    /// A program that we launched, to be waited for.
    child: Option<std::process::Child>,
}

/// An agent and its run.
struct Session {
    agent: Agent,
    driver: Driver,
}

impl Session {
    /// Tells the run something.
    fn tell(&mut self, input: profiler_core::engine::Input) {
        self.driver.tell(&mut self.agent, input);
    }
}
