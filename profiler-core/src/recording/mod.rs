//! The recording as data: one row type per Parquet table, in the units that `docs/formats.md` states.
//!
//! The agent writes these rows, `tithe report` and replay read them; a report is computed from them and
//! from nothing else, so that a report made live and one made a year later are the same.
//! Times are `CLOCK_MONOTONIC` nanoseconds of the recorded host (`ktime`), unless a name says otherwise.

mod beside;
mod calls;
mod change;
mod class;
mod durations;
mod event;
mod models;
mod surroundings;
mod watching;

pub use beside::BesideRow;
pub use calls::{CallSiteRow, CallerRule, CallsMeta, StepRow, TailRow};
pub use change::{ChangeKind, ChangeRow};
pub use class::ClassRow;
pub use durations::{Binned, CallDurations, without_nested_ns};
pub use event::{CallContext, CallPlace, EventRow};
pub use models::{ExpectedFunction, ExpectedMeta, Incident, ModelsMeta};
pub use surroundings::{ForksHeld, PrivateMemory};
pub use watching::{AgentUse, PricesAtEnd, TrapSampleRow};

use crate::class::Tier;
use crate::cost::CostModel;
use crate::units::OverheadBudget;
use serde::{Deserialize, Serialize};

mod operation;
#[cfg(test)]
mod plain;
mod words;

pub use operation::{
    OperationClassRow, OperationCycleEnd, OperationCycleRow, OperationHistogramRow, OperationMeta,
    OperationRow, OperationWindowRow,
};
#[cfg(test)]
pub(crate) use plain::plain_window;
pub use words::{WordMeta, WordRow, WordStatus, WordTally};

/// Version of the recording format; a reader refuses a higher one.
pub const FORMAT_VERSION: u32 = 1;

/// `meta.json`: what was recorded, where, and how it ended. Rewritten at the end of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u32,
    /// Version of `tithe`.
    pub tithe_version: String,
    /// Host name.
    pub host: String,
    /// `uname -r`.
    pub kernel: String,
    /// CPUs online.
    pub cpus: u32,
    /// The target's PID in the agent's PID namespace.
    pub pid: u32,
    /// The target's executable, as the target sees it.
    pub exe: String,
    /// The target's command line.
    pub cmdline: Vec<String>,
    /// Start of the recording, ns since the Unix epoch.
    pub start_unix_ns: u64,
    /// Start of the recording, ktime ns.
    pub start_ns: u64,
    /// End of the recording, ktime ns; `None` if the agent died.
    pub end_ns: Option<u64>,
    /// Why it ended: `"duration"`, `"interrupted"`, `"target exited"`, …; `None` if the agent died.
    pub end_reason: Option<String>,
    /// The budget asked for.
    pub budget: OverheadBudget,
    /// Capability tier used.
    pub tier: Tier,
    /// Prices used.
    pub cost: CostModel,
    /// Sampling period asked of the kernel at the start, ns of target CPU time (0: no sampling).
    pub sample_period_ns: u64,
    /// Kernel memory of all maps, bytes.
    pub kernel_memory_bytes: u64,
    /// The agent's own use at the end.
    pub agent: AgentUse,
    /// Measured overhead by on/off windows, if a progress metric was there.
    pub measured: Option<MeasuredOverhead>,
    /// Losses that belong to no class.
    pub losses: Losses,
    /// Things that were not observed, each with its reason (shown in the receipt).
    pub not_observed: Vec<NotObserved>,
    /// Warnings for the reader of the report.
    pub warnings: Vec<String>,
    /// Operations that were asked for.
    #[serde(default)]
    pub operations: Vec<OperationMeta>,
    /// The breaker's slowest answer; `None`: no quota was used up, or the agent died.
    #[serde(default)]
    pub slowest_answer: Option<SlowestAnswer>,
    /// Pages of the target's text that probes made private; `None`: nothing was attached, or the agent died.
    #[serde(default)]
    pub private_memory: Option<PrivateMemory>,
    /// What other processes paid for attaching; `None`: nobody else maps what was attached to, or the agent died.
    #[serde(default)]
    pub forks_held: Option<ForksHeld>,
    /// Calls in order; `None`: `--calls` was not given.
    #[serde(default)]
    pub calls: Option<CallsMeta>,
    /// Functions that models are to be made of, and what became of those that were held against models; `None`: nothing of it was asked for.
    #[serde(default)]
    pub models: Option<ModelsMeta>,
    /// Words that were taken; empty: `--word` was not given.
    #[serde(default)]
    pub words: Vec<WordMeta>,
}

/// The breaker's slowest answer to a quota that was used up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowestAnswer {
    /// Answers of the run, those that ended bursts and looks of the survey included.
    pub answers: u64,
    /// From the hit that used the quota up until the governor ran, ns.
    pub governor_ns: u64,
    /// From that hit until its link began to be closed, ns: about then hits stop.
    pub closing_ns: u64,
    /// What the hypervisor took from all CPUs around it, ns; 0 where that was not asked for (an answer within 1 ms).
    pub stolen_ns: u64,
    /// In what time it took that, ns.
    pub stolen_over_ns: u64,
}

/// Overhead measured by randomised on/off windows on a progress metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredOverhead {
    /// The metric, in words.
    pub metric: String,
    /// Pairs of windows.
    pub pairs: u32,
    /// Slowdown: 0.02 is 2 %.
    pub value: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
    /// How value and interval were had, in words.
    #[serde(default)]
    pub method: String,
    /// What must be known of the metric: the cost that it has itself, why it ended early. Empty: nothing.
    #[serde(default)]
    pub note: String,
}

/// Losses that belong to no class. Losses of a class are in its windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Samples whose record found the ring full.
    pub samples_ring_full: u64,
    /// Samples whose stack could not be copied at all.
    pub samples_no_stack: u64,
    /// Samples with less stack than was asked for: the stack ends there, or its next page was not in memory.
    #[serde(default)]
    pub samples_short_stack: u64,
    /// Samples that the kernel throttled or missed by its own account.
    pub samples_missed: u64,
    /// Hits that the kernel counted as missed before our program ran (`recursion_misses`).
    pub kernel_missed: u64,
    /// Timed calls and begins of operations for whose thread the kernel had no memory: the calls are among the hits that
    /// their classes lost, the operations are missing.
    #[serde(default)]
    pub no_thread_state: u64,
    /// Alarms of used-up quotas that found the ring full: all quotas were looked at then.
    #[serde(default)]
    pub alarms_dropped: u64,
    /// Births and deaths of the target's threads and children whose record found the ring full or could not be read:
    /// threads and children were looked for again.
    #[serde(default)]
    pub lifecycle_dropped: u64,
    /// Takings of words (all of one place and moment) whose record found the ring full: the calls are recorded without them.
    #[serde(default)]
    pub takings_dropped: u64,
    /// Rows that could not be written (disk full).
    pub rows_not_written: u64,
}

/// Something that was asked for or hot, and was not observed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NotObserved {
    /// The function, pattern or event.
    pub what: String,
    /// Why, in words a user can act upon.
    pub why: String,
}

/// Why a window of a class was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowKind {
    /// Count-only burst of the survey.
    Survey,
    /// Burst of the plan.
    Burst,
    /// Traced for as long as the plan holds.
    Trace,
}

/// Table `windows`: one stretch of time in which a class was attached, with everything counted in it.
/// `attempted = kept + gated + dropped` holds row by row (I4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowRow {
    /// Class.
    pub class_id: u32,
    /// Why it was opened.
    pub kind: WindowKind,
    /// First instant at which a hit was possible everywhere, ktime ns.
    pub start_ns: u64,
    /// Last instant at which a hit was possible, ktime ns; if the quota ended the window, the hit that used it up
    /// (hits between that and the detach are `gated`).
    pub end_ns: u64,
    /// CPU time that the target used in the window, monitoring included, ns.
    pub target_cpu_ns: u64,
    /// Hits of the entry site that reached our program, or that the kernel counted as missed.
    pub attempted: u64,
    /// Hits counted or recorded.
    pub kept: u64,
    /// Hits turned away by a gate (quota used up, thread not in the target set).
    pub gated: u64,
    /// Hits lost (ring full, thread stack of open calls full, missed by the kernel).
    pub dropped: u64,
    /// Calls whose return was seen.
    pub returns: u64,
    /// Calls that ended by unwinding past their exits.
    pub unwound: u64,
    /// Calls whose return was left out (nesting limit; a caller that has no return-address site).
    pub omitted: u64,
    /// Calls still open when the last link of the window was closed, but for the one that used up the quota (which one that is does
    /// not depend on how long it takes); those whose elapsed time is known are in table
    /// `open_calls`.
    pub open: u64,
    /// Sum of the durations of the calls that returned, ns, uncorrected.
    pub sum_ns: u64,
    /// Monitoring cost inside those durations (nested hits), ns; to be subtracted.
    pub nested_cost_ns: u64,
    /// Largest duration, ns (0: none).
    pub max_ns: u64,
    /// The quota ended the window (the breaker fired).
    pub tripped: bool,
    /// Price of one hit used for this window, ns.
    pub tau_ns: f64,
    /// How long the thread that took the first hit that was kept and the one that used up the quota was on a CPU between them, ns. `None`:
    /// different threads took them, or on different CPUs, the quota did not end the window, or the kernel did not say.
    pub ran_ns: Option<u64>,
    /// The thread that this is about. `None`: see there.
    pub ran_tid: Option<u32>,
    /// The window is one of a reference, on the link of this class, whose burst it ended with. `None`: it is not, or the recording is older.
    pub link: Option<u32>,
}

/// Table `histograms`: durations of a class, in buckets of at most 3.2 % width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistogramRow {
    /// Class.
    pub class_id: u32,
    /// Lowest duration of the bucket, ns.
    pub low_ns: u64,
    /// Lowest duration above the bucket, ns.
    pub high_ns: u64,
    /// Calls.
    pub count: u64,
}

/// Table `open_calls`: a timed call that began in a window and had not ended when watching it ended. It took at least
/// `elapsed_ns`: right-censored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCallRow {
    /// Up to when it was watched, ktime ns.
    pub time_ns: u64,
    /// Class.
    pub class_id: u32,
    /// Thread.
    pub tid: u32,
    /// How long it had taken until then, ns, uncorrected.
    pub elapsed_ns: u64,
}

/// Table `samples`: one periodic observation of a running thread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SampleRow {
    /// When, ktime ns.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// CPU.
    pub cpu: u32,
    /// Stack, in table `stacks`; 0: none could be had.
    pub stack_id: u64,
    /// The thread was in the kernel.
    pub in_kernel: bool,
    /// CPU time that this sample stands for, ns (the period then in force).
    pub period_ns: u64,
    /// The stack was cut off (copy too short, unwinding failed).
    pub truncated: bool,
}

/// Table `stacks`: one frame of a distinct stack; depth 0 is the innermost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FrameRow {
    /// Stack.
    pub stack_id: u64,
    /// Position, 0 the innermost; inlined frames have positions of their own.
    pub depth: u32,
    /// Virtual address in the module's file (the PC; return address - 1 for callers).
    pub address: u64,
    /// Module path as the target sees it; `[kernel]`; empty if unknown.
    pub module: String,
    /// Demangled function name; `module+0xaddr` where there is no symbol.
    pub function: String,
    /// Source file; empty if unknown.
    pub file: String,
    /// Source line; 0 if unknown.
    pub line: u32,
    /// The frame is an inlined call.
    pub inlined: bool,
    /// Class of this function, if it has one.
    pub class_id: Option<u32>,
}

/// What a ledger row charges for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Charge {
    /// Hits of traced classes.
    Traced,
    /// Hits in bursts of the plan.
    Burst,
    /// Hits in the survey.
    Survey,
    /// Samples.
    Samples,
    /// Context switches with per-task events.
    Switches,
    /// Attaching and detaching.
    Attach,
    /// Hits of forked children.
    Children,
    /// Counting the progress metric, which goes on in windows off.
    Progress,
    /// System calls and tracepoints that are screened for operations, which goes on in windows off.
    Screening,
    /// Cost to other processes (not part of the budget, bounded and shown).
    Bystanders,
}

/// Table `ledger`: what an interval cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LedgerRow {
    /// End of the interval, ktime ns.
    pub time_ns: u64,
    /// Length of the interval, ns.
    pub interval_ns: u64,
    /// What was charged.
    pub charge: Charge,
    /// Class, where the charge has one.
    pub class_id: Option<u32>,
    /// Hits, samples, switches or operations.
    pub units: u64,
    /// Cost, ns of CPU time.
    pub cost_ns: u64,
    /// CPU time that the target used in the interval, monitoring included, ns.
    pub target_cpu_ns: u64,
    /// What the budget allowed in the interval, ns.
    pub allowed_ns: u64,
}

/// Table `plans`: the decision on one class in one plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRow {
    /// When, ktime ns.
    pub time_ns: u64,
    /// Number of the plan in this recording, from 1.
    pub plan: u32,
    /// Class.
    pub class_id: u32,
    /// `trace`, `burst`, `sample`, `derived`.
    pub decision: String,
    /// Share of time attached, 0 to 1.
    pub duty: f64,
    /// Rate `F_i` the plan was made with, events/s.
    pub rate_hz: f64,
    /// Lower end of the rate's interval.
    pub rate_low_hz: f64,
    /// Upper end of the rate's interval.
    pub rate_high_hz: f64,
    /// `rho_i` the plan was made with, on-CPU s/s.
    pub rho: f64,
    /// Information weight.
    pub weight: f64,
    /// Price of one hit, s.
    pub tau_s: f64,
    /// Predicted cost, CPU s/s.
    pub cost: f64,
    /// The reason, in words.
    pub reason: String,
    /// Sampling rate of the plan, samples per second of target CPU time.
    pub sampling_hz: f64,
    /// The plan's value by its objective.
    pub value: f64,
    /// Upper bound on the value of any plan.
    pub upper_bound: f64,
    /// The objective is *precision*: both are minus the mean log of the widths of intervals. Else they are weighted events per second. `None`: an older
    /// recording, where they are events.
    #[serde(default)]
    pub of_widths: Option<bool>,
}

/// A whole recording in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// `meta.json`.
    pub meta: Meta,
    /// Table `classes`.
    pub classes: Vec<ClassRow>,
    /// Table `windows`.
    pub windows: Vec<WindowRow>,
    /// Table `histograms`.
    pub histograms: Vec<HistogramRow>,
    /// Table `open_calls`.
    pub open_calls: Vec<OpenCallRow>,
    /// Table `beside`.
    pub beside: Vec<BesideRow>,
    /// Table `events`; empty where it was read for `event_durations` alone.
    pub events: Vec<EventRow>,
    /// Durations of the calls in `events`, where those are not held.
    pub event_durations: CallDurations,
    /// Table `samples`.
    pub samples: Vec<SampleRow>,
    /// Table `trap_samples`.
    pub trap_samples: Vec<TrapSampleRow>,
    /// Table `stacks`.
    pub stacks: Vec<FrameRow>,
    /// Table `ledger`.
    pub ledger: Vec<LedgerRow>,
    /// Table `plans`.
    pub plans: Vec<PlanRow>,
    /// Table `words`, counted by word.
    pub words: Vec<WordTally>,
    /// Table `operation_classes`.
    pub operation_classes: Vec<OperationClassRow>,
    /// Table `operations`.
    pub operations: Vec<OperationRow>,
    /// Table `operation_windows`.
    pub operation_windows: Vec<OperationWindowRow>,
    /// Table `operation_histograms`.
    pub operation_histograms: Vec<OperationHistogramRow>,
    /// Table `operation_cycles`.
    pub operation_cycles: Vec<OperationCycleRow>,
    /// Table `changes`.
    pub changes: Vec<ChangeRow>,
    /// What could not be read, in words (truncated last segment, …).
    pub damage: Vec<String>,
}

impl Recording {
    /// What a recording says of calls, and nothing else of it.
    #[must_use]
    pub fn of_calls(
        meta: Meta,
        classes: Vec<ClassRow>,
        windows: Vec<WindowRow>,
        histograms: Vec<HistogramRow>,
        event_durations: CallDurations,
    ) -> Self {
        Self {
            meta,
            classes,
            windows,
            histograms,
            event_durations,
            open_calls: Vec::new(),
            beside: Vec::new(),
            events: Vec::new(),
            samples: Vec::new(),
            trap_samples: Vec::new(),
            stacks: Vec::new(),
            ledger: Vec::new(),
            plans: Vec::new(),
            words: Vec::new(),
            operation_classes: Vec::new(),
            operations: Vec::new(),
            operation_windows: Vec::new(),
            operation_histograms: Vec::new(),
            operation_cycles: Vec::new(),
            changes: Vec::new(),
            damage: Vec::new(),
        }
    }
}
