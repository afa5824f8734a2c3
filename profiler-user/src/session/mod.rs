//! The run: warm up, survey, plan, trace and sample, record, report.
//!
//! ```text
//! Warmup ── samples ──► classes ──► Survey ── rates ──► plan ──► Run ── controller ──► end
//! ```
//! It joins the parts and moves time and data between them. Decisions are made in `profiler-core` (survey, planner,
//! controller); the kernel is reached through [`crate::prober`] only.

mod attach;
mod catalog;
mod changes;
mod children_io;
mod claims;
mod class;
mod command;
mod finish;
mod host;
mod launching;
mod losses;
mod metric;
mod opening;
mod operations;
mod orders;
mod overhead;
mod planning;
mod progress;
mod reading;
mod sampling;
mod select;
mod setup;
mod shares;
mod surveying;
mod threads;
mod tick;
mod view;
mod window;

pub use select::{Selection, SelectionError};
pub(crate) use setup::preflight;
pub use setup::{plan, record};

use crate::inspect::Inspection;
use crate::prober::{CallReader, KernelLog, LifecycleReader};
use crate::recording::WriterHandle;
use crate::target::Target;
use attach::Attachments;
use children_io::ChildProcesses;
use profiler_core::clients::children::Children;
use profiler_core::clients::survey::SurveyClient;
use profiler_core::clients::trace::client::Trace;
use profiler_core::cost::CostModel;
use profiler_core::ledger::{Ledger, Merger};
use profiler_core::recording::Meta;
use profiler_core::units::OverheadBudget;
use progress::Progress;
use sampling::Sampling;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Where the run stands.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Sampling only, to find where time goes.
    Warmup {
        /// End, ktime ns.
        until_ns: u64,
    },
    /// Windows that only count, to learn rates.
    Survey,
    /// The plan runs.
    Run,
}

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

/// A run.
struct Session {
    target: Target,
    inspection: Inspection,
    selection: Selection,
    attach: Attachments,
    sampling: Sampling,
    calls: CallReader,
    lifecycle: LifecycleReader,
    children: Children,
    processes: ChildProcesses,
    ledger: Ledger,
    /// Rows of the ledger on their way to the recording.
    merger: Merger,
    /// The plan, its bursts and its controller.
    trace: Trace,
    /// The survey that runs, and its windows.
    survey: SurveyClient,
    cost: CostModel,
    writer: WriterHandle,
    meta: Meta,
    progress: Progress,
    phase: Phase,
    verbose: bool,
    /// What the kernel programs log, with `--verbose`.
    log: Option<KernelLog>,
    /// `tithe plan --pid`: end when there is a plan, attach nothing for it.
    plan_only: bool,
    /// The problem of `plan_only`.
    problem: Option<profiler_core::plan::Problem>,
    /// A launched program that does not run yet.
    loading: Option<launching::Loading>,
    /// Functions that operations will be made of; until then nothing else takes them.
    for_operations: BTreeSet<shares::FunctionKey>,
    /// `--only-named`: no survey, no discovery, everything named is traced.
    only_named: bool,
    /// `--sample-rate`.
    fixed_rate_hz: Option<f64>,
    budget: OverheadBudget,
    output: PathBuf,
    /// End by `--duration`, ktime ns.
    end_ns: Option<u64>,
    last_ledger_ns: u64,
    last_slow_ns: u64,
    last_cpu_ns: u64,
    /// Charged until the last tick, ns.
    last_charged_ns: f64,
    /// Context switches not yet charged.
    new_switches: u64,
    switches: Option<crate::target::SwitchMeter>,
    /// `U`: CPU s per wall s that the target uses by itself, smoothed.
    own_cpu: f64,
    switches_per_s: f64,
    last_switches_ns: u64,
    sampling_started: bool,
    loss_watch: profiler_core::losses::LossWatch,
    /// Samples that fell on other processes, as last read.
    foreign_samples: u64,
    /// What single threads lose, and what they may (`--thread-budget`).
    threads: threads::Threads,
    thread_budget: Option<f64>,
    /// From when on the samples are asked for functions that nobody named, ktime ns.
    discover_ns: u64,
    discovered: bool,
    /// Reads modules ahead.
    reader: reading::Reader,
    /// `--only-named`: the run begins when what was named, so many functions, is attached.
    tracing_all: Option<usize>,
    /// Modules came or went and have not been looked at.
    modules_dirty: bool,
    /// Cost of the last interval that is neither hits nor samples nor switches nor children (attaching), ns.
    misc_ns: f64,
    /// The same, smoothed over some seconds, CPU s/s.
    misc_cost: f64,
    /// The measurement of the overhead, while there is a progress metric.
    comparison: Option<overhead::Measuring>,
    /// Operations that are followed.
    operations: Option<Box<operations::Operations>>,
    /// A program that we launched, to be waited for.
    child: Option<std::process::Child>,
}

impl Session {
    fn warn_verbose(&self, text: &str) {
        if self.verbose {
            self.progress.note(text);
        }
    }

    /// What may be spent while the target uses `cpu` CPU s/s by itself, CPU s/s: the budget over what waiting has cut it by. The one
    /// place where the session turns its budget into a rate.
    fn allowed(&self, cpu: f64) -> f64 {
        self.ledger.allowed(cpu)
    }

    /// Smooths `U` over about two seconds. `used_ns` of CPU time in `elapsed_ns`, monitoring included.
    fn note_cpu(&mut self, elapsed_ns: u64, used_ns: u64) {
        let charged = self.ledger.predicted();
        let own = used_ns as f64 / elapsed_ns.max(1) as f64 / (1.0 + charged);
        let weight = (elapsed_ns as f64 * 1e-9 / 2.0).min(1.0);
        self.own_cpu = if self.own_cpu == 0.0 { own } else { self.own_cpu + weight * (own - self.own_cpu) };
    }
}
