//! Rows of operations: the units of the target's work that `--operation` names (docs/operations.md).
//!
//! Classes of operations have numbers of their own, apart from those of functions (table `classes`). Each operation
//! has a class for what has no name of its own and one for names beyond the bound; its counters that belong to no
//! class stand in the rows of the former.

use crate::adapt::AdaptConfig;
use serde::{Deserialize, Serialize};

/// What `meta.json` says of an operation that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationMeta {
    /// Number of the operation in this recording.
    pub operation: u32,
    /// Its name.
    pub name: String,
    /// How it was asked for: the argument of `--operation`.
    pub bounds: String,
    /// Policy: `adp`, `inv`, `uni`, `full`, `none`, `tithe`.
    pub policy: String,
    /// Settings of the policy.
    pub config: AdaptConfig,
    /// What the measure is, in words.
    pub measure: String,
    /// CPU time of screening one operation, recorded or not, ns.
    pub screen_ns: f64,
    /// Its bounds are traps in the target's code (functions, USDT probes), whose price is that of a tight loop: with caches in use they are dearer. A recording
    /// made before this was written says `false`.
    #[serde(default)]
    pub by_functions: bool,
    /// CPU time of one hit of an inner function outside recorded operations, ns; 0 without inner functions.
    pub inner_hit_ns: f64,
    /// Classes of functions whose hits are kept only inside recorded operations: `kept` in their windows are those, and `gated`
    /// are their other calls.
    #[serde(default)]
    pub inner_classes: Vec<u32>,
    /// Operations, recorded or not, that had begun and had not ended when the run did. `None`: the recording is older, was cut off, or the target had too many
    /// threads to ask all of them.
    #[serde(default)]
    pub open_at_end: Option<u64>,
}

/// Table `operation_classes`: the name of a class of operations. A later row for a class replaces an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationClassRow {
    /// Operation.
    pub operation: u32,
    /// Class; its number says nothing about the operation.
    pub class_id: u32,
    /// Name of the operation.
    pub operation_name: String,
    /// Name of the class: the operation's own where it has no argument, `(other)` beyond the bound, `(unnamed)` where
    /// the argument could not be read.
    pub class_name: String,
}

/// Table `operations`: one recorded operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationRow {
    /// Operation.
    pub operation: u32,
    /// Class.
    pub class_id: u32,
    /// Thread.
    pub tid: u32,
    /// Begin, ktime ns.
    pub begin_ns: u64,
    /// Response time, ns, uncorrected; of a censored operation, the time that it had taken.
    pub duration_ns: u64,
    /// Calls of inner functions inside it.
    pub calls: u64,
    /// Time in inner functions that are timed, ns: of calls inside one another the outer one counts.
    pub inner_ns: u64,
    /// The measure: the sum of the measure function's argument, or its calls where none is given; without a measure
    /// function the calls of inner functions.
    pub measure: u64,
    /// Monitoring cost inside the operation, ns.
    pub cost_ns: u64,
    /// Time off CPU inside the operation (waiting, and ready without a CPU), ns; `None`: the kernel does not say.
    pub off_cpu_ns: Option<u64>,
    /// Monitoring cycle in which it began.
    pub cycle: u64,
    /// Stretch of constant rate of its class in which it began: its stratum.
    pub stretch: u64,
    /// It had not ended when the run did.
    pub censored: bool,
    /// Process. `None`: a recording from before this column, or the operation is censored.
    #[serde(default)]
    pub pid: Option<u32>,
    /// Steps that its thread had taken when it began. `None`: calls in order were not recorded, or the operation is censored.
    #[serde(default)]
    pub steps_before: Option<u64>,
    /// Steps that its thread had taken when it ended: those inside have the numbers from `steps_before + 1` to `steps_after`.
    #[serde(default)]
    pub steps_after: Option<u64>,
    /// Steps inside it are missing: a quota was used up, functions were attached or detached meanwhile, or the ring was full.
    #[serde(default)]
    pub incomplete: Option<bool>,
}

impl OperationRow {
    /// It belongs to the sample: it has ended, and nothing inside it is missing.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        !self.censored && self.incomplete != Some(true)
    }
}

/// Table `operation_windows`: what the operations of a class did between two revisions of the rate. Operations count as
/// begun where they begin and otherwise where they end. `begun = recorded + off + not_drawn + balanced + no_quota`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationWindowRow {
    /// Operation.
    pub operation: u32,
    /// Class.
    pub class_id: u32,
    /// Start, ktime ns.
    pub start_ns: u64,
    /// End, ktime ns.
    pub end_ns: u64,
    /// Part of that time in which its bounds were attached, ns.
    pub watched_ns: u64,
    /// Recording was on.
    pub monitoring: bool,
    /// Rate in force, recorded / all operations.
    pub rate: f64,
    /// Stretch of constant rate.
    pub stretch: u64,
    /// Monitoring cycle.
    pub cycle: u64,
    /// Operations that ended.
    pub population: u64,
    /// Sum of their response times, ns.
    pub population_sum_ns: f64,
    /// Sum of the squares of their response times, ns^2.
    pub population_squares_ns2: f64,
    /// Recorded operations that ended.
    pub sample: u64,
    /// Sum of their response times, ns.
    pub sample_sum_ns: f64,
    /// Sum of the squares of their response times, ns^2.
    pub sample_squares_ns2: f64,
    /// Sum of the recorded operations' measure.
    pub measure_sum: f64,
    /// Sum of the squares of the recorded operations' measure.
    pub measure_squares: f64,
    /// Monitoring cost inside the recorded operations, ns.
    pub cost_ns: u64,
    /// Operations that began.
    pub begun: u64,
    /// Of those, decided to be recorded.
    pub recorded: u64,
    /// Of those, begun while recording was off.
    pub off: u64,
    /// Of those, not drawn.
    pub not_drawn: u64,
    /// Of those, drawn, but the sample had enough of the class.
    pub balanced: u64,
    /// Of those, drawn, but the window's quota was used up.
    pub no_quota: u64,
    /// Ends without a begin, begins that found the thread's stack of open operations full, and operations that were given up because something showed that
    /// their end will not be seen. They stand in the row of the operation's class of unnamed ones. (What the last part is: [`begun`](Self::begun) less
    /// [`population`](Self::population) and [`OperationMeta::open_at_end`], over the whole run, is all that had no end: that part, and what threads left open that
    /// ended.)
    pub unmatched: u64,
    /// Recorded operations that were lost: the ring was full, or an inner function used up its quota meanwhile.
    pub dropped: u64,
    /// Functions inside were attached in slices: of `off`, those that began between slices are what the slices of the stretch stand for.
    /// `None`: a recording from before this column.
    pub sliced: Option<bool>,
}

/// Table `operation_histograms`: response times of all operations of a class that ended, in buckets of at most 3.2 % width. Classes that
/// came when the kernel side had given all its histograms have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationHistogramRow {
    /// Operation.
    pub operation: u32,
    /// Class.
    pub class_id: u32,
    /// Shortest response time of the bucket, ns, uncorrected.
    pub low_ns: u64,
    /// Shortest response time above the bucket, ns.
    pub high_ns: u64,
    /// Operations.
    pub count: u64,
}

/// Why a cycle ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationCycleEnd {
    /// The sample is representative.
    Representative,
    /// The time limit came first.
    Timeout,
    /// The run ended.
    RunEnd,
}

/// Table `operation_cycles`: one monitoring cycle, and what is said of its sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationCycleRow {
    /// Operation.
    pub operation: u32,
    /// Number of the cycle, from 0.
    pub number: u64,
    /// Start, ktime ns.
    pub start_ns: u64,
    /// End, ktime ns.
    pub end_ns: u64,
    /// Why it ended.
    pub end: OperationCycleEnd,
    /// Operations that ended in it.
    pub population: u64,
    /// Of those, recorded.
    pub sample: u64,
    /// Level required at the end, in (0, 1].
    pub z: f64,
    /// Operations that the sample had to exceed.
    pub needed: f64,
    /// The sample is larger.
    pub large_enough: bool,
    /// Response times of sample and population agree.
    pub same_times: bool,
    /// Mean response time of the sample less the population's, less what recording adds, ns.
    pub difference_ns: f64,
    /// Every class has its share.
    pub same_shares: bool,
    /// Largest difference of a class's shares in sample and population.
    pub largest_share_difference: f64,
    /// Names of classes with operations and none of them recorded.
    pub unobserved: Vec<String>,
}
