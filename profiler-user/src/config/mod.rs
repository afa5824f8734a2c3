//! What a run does: which process, which functions and operations, at which cost, written where.
//!
//! What: plain data, as `tithe record` and `tithe plan` make it from their command lines, and as another program or a test makes
//! it by hand. Why here: [`crate::agent`] reads it and knows no command line; [`crate::cli`] makes it and knows no agent.
//! Texts become values by pure functions: [`values`], and `FromStr` of [`ProgressSpec`], [`OperationSpec`] and [`MeasureSpec`].
//! What depends on the target (does the function exist?) is checked by the agent.
//!
//! ```
//! use profiler_user::config::{RunConfig, TargetConfig};
//! use std::time::Duration;
//!
//! let mut config = RunConfig::new(TargetConfig::Process(1234));
//! config.cost.budget = "2%".parse().unwrap();
//! config.functions.latency.push("libsqlite3.so*:sqlite3_step".to_owned());
//! config.duration = Some(Duration::from_secs(30));
//! ```

mod inputs;
mod models;
mod operation;
mod parameters;
mod progress;
mod recorded;
mod tracepoints;
pub mod values;
mod words;

pub use inputs::{InputSpec, InputType, InputsSpec};
pub use models::{DEFAULT_DATAPOINTS, ModelConfig};
pub(crate) use operation::DIFFERENT;
pub use operation::{Bound, Bounds, ClassArgument, MeasureSpec, OperationSpec};
pub use parameters::{Declared, Reach, numbered};
pub use progress::ProgressSpec;
pub use recorded::RecordSpec;
pub use words::{MOST_DEREFERENCES, NamedWord, WordBase, WordExpression, WordKind, WordsSpec};

use profiler_core::adapt::{AdaptConfig, PolicyKind};
use profiler_core::class::Tier;
use profiler_core::plan::Objective;
use profiler_core::units::OverheadBudget;
use std::path::PathBuf;
use std::time::Duration;

/// What the watching may cost if nobody says: 1 % is lost in the noise of most services.
pub const DEFAULT_BUDGET: OverheadBudget = OverheadBudget::Share(0.01);
/// What plans of runs are to bring if nobody says: narrow intervals of what takes most of the CPU time.
pub const DEFAULT_OBJECTIVE: Objective = Objective::Precision;
/// Functions that are taken from the samples if nobody says.
pub const DEFAULT_DISCOVER: usize = 40;
/// What the agent itself may use of one CPU if nobody says.
pub const DEFAULT_AGENT_CPU: f64 = 0.02;
/// Kernel memory of all maps together if nobody says, bytes.
pub const DEFAULT_KERNEL_MEMORY_BYTES: u64 = 64 << 20;

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunConfig {
    /// The process.
    pub target: TargetConfig,
    /// Which functions are watched, and how.
    pub functions: FunctionConfig,
    /// Which operations are followed, and which of them are recorded.
    pub operations: OperationConfig,
    /// Of which functions there are to be models, and which are held against them.
    pub models: ModelConfig,
    /// Words of the target's memory that are taken with recorded calls and operations.
    pub words: Vec<WordsSpec>,
    /// Samples per second of target CPU time, Hz: 0, or 1 to 10,000; 0: none. `None`: the plan chooses.
    pub sampling_hz: Option<f64>,
    /// What plans are to bring.
    pub objective: Objective,
    /// What the run may cost.
    pub cost: CostConfig,
    /// How the overhead is measured.
    pub overhead: OverheadConfig,
    /// The run ends after this time. `None`: with the target, or by a signal.
    pub duration: Option<Duration>,
    /// Where the recording is written.
    pub output: OutputConfig,
    /// What only tests and experiments change.
    pub experiments: ExperimentConfig,
}

impl RunConfig {
    /// A run that watches this process as the command line does without further options.
    #[must_use]
    pub fn new(target: TargetConfig) -> Self {
        Self {
            target,
            functions: FunctionConfig::default(),
            operations: OperationConfig::default(),
            models: ModelConfig::default(),
            words: Vec::new(),
            sampling_hz: None,
            objective: DEFAULT_OBJECTIVE,
            cost: CostConfig::default(),
            overhead: OverheadConfig::default(),
            duration: None,
            output: OutputConfig::default(),
            experiments: ExperimentConfig::default(),
        }
    }

    /// Checks what the readers of text check, for whoever made the values without them.
    ///
    /// # Errors
    /// The first value that is out of its range, in words.
    pub fn check(&self) -> Result<(), String> {
        let (OverheadBudget::Share(budget) | OverheadBudget::CpuPerSecond(budget)) = self.cost.budget;
        if !(budget > 0.0 && budget <= 1.0) {
            return Err(format!("the budget is {budget}: it lies above 0 and is at most 1"));
        }
        self.cost.thread_share.map(values::checked_share).transpose()?;
        values::checked_agent_cpu(self.cost.agent_cpu)?;
        values::checked_size(self.cost.kernel_memory_bytes)?;
        self.sampling_hz.map(values::checked_hz).transpose()?;
        self.duration.map(|duration| values::checked_duration_s(duration.as_secs_f64())).transpose()?;
        for (_, weight) in &self.functions.weight {
            values::checked_weight(*weight)?;
        }
        if !self.models.inputs.is_empty() && self.models.is_empty() && self.functions.record.is_empty() {
            return Err(
                "--input names inputs of functions whose calls are recorded: name those with --model"
                    .to_owned(),
            );
        }
        for operation in &self.operations.operations {
            // So a bound that the kernel could not stand is refused, whoever made it.
            if operation.text.parse().as_ref() != Ok(operation) {
                return Err(format!("the operation '{}' is not what its text says", operation.text));
            }
        }
        for words in &self.words {
            if words.text.parse().as_ref() != Ok(words) {
                return Err(format!("the words '{}' are not what their text says", words.text));
            }
        }
        self.operations.slower_ns.map(values::checked_slower_ns).transpose()?;
        self.operations.settings.check().map_err(|error| error.to_string())
    }
}

/// The process that is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetConfig {
    /// It is running: its process ID.
    Process(u32),
    /// It is started and held before its first instruction.
    Command {
        /// The program and its arguments.
        words: Vec<String>,
        /// It runs as root. Otherwise it runs as the user who called sudo.
        as_root: bool,
    },
}

/// What is wanted of which functions. A pattern is a glob on the demangled name, `/regex/`, or `module:glob`.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionConfig {
    /// Patterns of functions that are always traced; an error if the budget does not allow it.
    pub trace: Vec<String>,
    /// Patterns of functions that are never traced.
    pub never: Vec<String>,
    /// Patterns of functions whose calls are counted.
    pub count: Vec<String>,
    /// Patterns of functions whose calls are counted and timed.
    pub latency: Vec<String>,
    /// Functions whose calls are recorded one by one.
    pub record: Vec<RecordSpec>,
    /// Argument registers that must be true in the records of these functions, where calls of theirs are recorded.
    pub arguments: Vec<RecordSpec>,
    /// Patterns and the information weight of their functions, 0 to 1e9; 1 without. The last pattern that matches counts.
    pub weight: Vec<(String, f64)>,
    /// Patterns of functions that may have return probes although the target may not survive them.
    pub return_links: Vec<String>,
    /// How many functions that nobody named are taken from the samples.
    pub discover: usize,
}

impl Default for FunctionConfig {
    fn default() -> Self {
        Self {
            trace: Vec::new(),
            never: Vec::new(),
            count: Vec::new(),
            latency: Vec::new(),
            record: Vec::new(),
            arguments: Vec::new(),
            weight: Vec::new(),
            return_links: Vec::new(),
            discover: DEFAULT_DISCOVER,
        }
    }
}

/// Units of the target's work, and how they are sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct OperationConfig {
    /// What is followed. The rest means nothing without any.
    pub operations: Vec<OperationSpec>,
    /// What is measured inside recorded operations. `None`: the calls of the functions of `detail`.
    pub measure: Option<MeasureSpec>,
    /// Patterns of functions that are counted and timed inside recorded operations. Empty: those that are always traced.
    pub detail: Vec<String>,
    /// Patterns of functions whose entries are recorded inside recorded operations, each as a step.
    pub calls: Vec<String>,
    /// Recorded operations that take longer than so many ns, without the monitoring in them, are told while the run goes on.
    pub slower_ns: Option<u64>,
    /// Who decides which operations are recorded.
    pub policy: PolicyKind,
    /// Settings of the policy.
    pub settings: AdaptConfig,
    /// Shell command that runs whenever a sample is complete.
    pub on_cycle: Option<String>,
}

impl Default for OperationConfig {
    fn default() -> Self {
        Self {
            operations: Vec::new(),
            measure: None,
            detail: Vec::new(),
            calls: Vec::new(),
            slower_ns: None,
            policy: PolicyKind::Tithe,
            settings: AdaptConfig::default(),
            on_cycle: None,
        }
    }
}

/// What the run may cost, the target and the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct CostConfig {
    /// CPU time of the watching.
    pub budget: OverheadBudget,
    /// What a single thread may lose of its own CPU time in a second, as a share, 0.0001 to 1. `None`: twice the budget where that
    /// is a share, and no limit where it is a CPU time.
    pub thread_share: Option<f64>,
    /// What the agent itself may use from the fifth second on, as a share of one CPU, 0.001 to 64: it samples, and bursts, more rarely for that.
    pub agent_cpu: f64,
    /// Kernel memory of all maps together, bytes, 4 MiB to 4 GiB.
    pub kernel_memory_bytes: u64,
    /// The kernel may be switched to short grace periods, which interrupt all CPUs, for the milliseconds in which a function
    /// that exploded is taken off.
    pub expedite: bool,
}

impl Default for CostConfig {
    fn default() -> Self {
        Self {
            budget: DEFAULT_BUDGET,
            thread_share: None,
            agent_cpu: DEFAULT_AGENT_CPU,
            kernel_memory_bytes: DEFAULT_KERNEL_MEMORY_BYTES,
            expedite: true,
        }
    }
}

/// How the overhead is measured: on the target's work, in windows with everything detached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverheadConfig {
    /// There are such windows. Without them the overhead is predicted.
    pub is_measured: bool,
    /// What counts the target's work. `None`: the steadiest system call, if there is one.
    pub progress: Option<ProgressSpec>,
}

impl Default for OverheadConfig {
    fn default() -> Self {
        Self { is_measured: true, progress: None }
    }
}

/// What the run writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutputConfig {
    /// Directory of the recording. `None`: `NAME-PID.tithe` in the working directory, with a number where that exists.
    pub path: Option<PathBuf>,
    /// A recording that is there may be replaced.
    pub replace: bool,
    /// The agent's diagnostics go to standard error.
    pub verbose: bool,
}

/// What only tests and experiments change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExperimentConfig {
    /// This capability tier is used although a better one is there.
    pub forced_tier: Option<Tier>,
    /// Just the named functions are traced: no samples, no discovery, no windows with everything detached.
    pub only_named: bool,
}

#[cfg(test)]
mod tests;
