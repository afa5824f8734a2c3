//! The command line: what users type, checked while it is parsed.
//!
//! Results go to standard output, progress and notes to standard error. Exit codes: 0 done, 1 failed,
//! 2 wrong usage, 3 cannot attach (permission, kernel, target), 4 target refused as unsafe; `record -- COMMAND` passes
//! the command's own on.

use crate::config::values::{
    parse_duration, parse_hz, parse_pid, parse_policy, parse_settings, parse_share, parse_size, parse_tier,
    parse_weight,
};
use crate::config::{
    CostConfig, DEFAULT_BUDGET, DEFAULT_DISCOVER, ExperimentConfig, FunctionConfig, MeasureSpec,
    OperationConfig, OperationSpec, OutputConfig, OverheadConfig, ProgressSpec, RunConfig, TargetConfig,
};
use crate::failure::Failure;
use crate::replay::{EXAMPLES as REPLAY_EXAMPLES, ReplayArgs};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use profiler_core::adapt::PolicyKind;
use profiler_core::class::Tier;
use profiler_core::units::OverheadBudget;
use std::path::PathBuf;
use std::time::Duration;

/// A profiler for running processes that keeps to a budget.
#[derive(Debug, Parser)]
#[command(
    name = "tithe",
    version,
    about = "A profiler for running processes that keeps to a budget",
    long_about = "Tithe watches a running process and keeps to a budget: you say which share of the target's CPU \
                  time the watching may cost. It traces the functions that are worth tracing, samples the rest, \
                  puts an interval on every number and ends with a receipt of what the watching really cost.",
    after_help = EXAMPLES,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "Examples:
  sudo tithe record --pid 1234 --budget 2% --duration 30s
  sudo tithe record --pid 1234 --latency 'libsqlite3.so*:sqlite3_step' -o run.tithe
  sudo tithe record --budget 1% -- ./server --port 8080
       tithe report run.tithe -o flame.svg
  sudo tithe doctor --pid 1234

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 cannot attach, 4 target refused as unsafe";

const PLAN_EXAMPLES: &str = "Examples:
  sudo tithe plan --pid 1234 --budget 2%
       tithe plan --classes run.tithe/plan-0001.toml --budget 5%
       tithe plan --classes table.toml --strategy hottest --format json

A table says what can be watched and what the watching may cost:
  budget = \"5%\"            # or max_frequency = 925: events and samples per second
  report_time_us = 0.7      # one traced event
  sample_time_us = 20       # one sample
  [[class]]
  name = \"commit\"
  rate_hz = 300
  duration_us = 40          # or share = 0.012";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch a process under a budget, then print the report and the receipt (needs root)
    Record(Box<RecordArgs>),
    /// Show a recording again, or convert it (no root)
    Report(ReportArgs),
    /// Compare policies that sample operations, over a recording that has all of them (no root)
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
    /// Decide what to trace and what to sample, and say why
    Plan(Box<PlanArgs>),
    /// Say what this machine and this target allow, and how to mend what they do not
    Doctor(DoctorArgs),
    /// Measure what watching costs on this machine (needs root; done by itself when needed)
    Calibrate(CalibrateArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// The child that calibration and the capability probe measure on
    #[command(hide = true, name = "internal-child")]
    InternalChild {
        /// What the child is for
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Take breakpoints that nobody owns out of a process and what it forked, after an agent was killed
    #[command(hide = true, name = "internal-mend")]
    InternalMend {
        /// The process
        #[arg(value_parser = parse_pid)]
        pid: u32,
        /// What was known of it: device and inode of its program, begin of its code and of its stack, its parent; 0: nothing
        #[arg(num_args = 0..=5)]
        known: Vec<u64>,
    },
}

/// Text for people or JSON for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}

/// Which process is watched.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true).args(["pid", "command"]))]
pub struct TargetArgs {
    /// Process to watch, with all its threads
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub pid: Option<u32>,
    /// Start this command and watch it from its first instruction. Its exit status becomes ours (128 + n for
    /// signal n; failures of tithe itself keep their codes). When --duration is over it gets SIGTERM; after
    /// Ctrl-C it has 10 s to end by itself
    #[arg(last = true, value_name = "COMMAND", verbatim_doc_comment)]
    pub command: Vec<String>,
    /// Start COMMAND as root, not as the user who called sudo
    #[arg(long, requires = "command", conflicts_with = "pid")]
    pub as_root: bool,
}

/// What is wanted of which functions.
#[derive(Debug, Args)]
#[command(next_help_heading = "What to watch")]
pub struct SelectArgs {
    /// Always trace these functions; an error if the budget does not allow it.
    /// PATTERN: a glob on the demangled name ('sqlite3*', 'db::*'), '/regex/', or 'module:glob'
    #[arg(long, value_name = "PATTERN", verbatim_doc_comment)]
    pub trace: Vec<String>,
    /// Never trace these functions; samples still show them
    #[arg(long, value_name = "PATTERN")]
    pub never: Vec<String>,
    /// Count the calls of these functions
    #[arg(long, value_name = "PATTERN")]
    pub count: Vec<String>,
    /// Count the calls of these functions and measure how long each takes
    #[arg(long, value_name = "PATTERN")]
    pub latency: Vec<String>,
    /// Keep a record of every call of these functions: time, thread, duration, arguments
    #[arg(long, value_name = "PATTERN")]
    pub record: Vec<String>,
    /// How much you care: information weight of these functions (default 1)
    #[arg(long, value_name = "PATTERN=WEIGHT", value_parser = parse_weight)]
    pub weight: Vec<(String, f64)>,
    /// Allow return probes on these functions although the target may not survive them
    /// (C++ exceptions, panics, coroutines)
    #[arg(long, value_name = "PATTERN", verbatim_doc_comment)]
    pub return_links: Vec<String>,
    /// How many functions that nobody named are taken from the samples
    #[arg(long, value_name = "N", default_value_t = DEFAULT_DISCOVER)]
    pub discover: usize,
}

/// Units of the target's work, and how they are sampled.
#[derive(Debug, Args)]
#[command(next_help_heading = "Operations")]
pub struct OperationArgs {
    /// Follow a unit of the target's work. SPEC: NAME=FUNCTION (from its call to its return), NAME=BEGIN..END (calls of
    /// two functions on one thread), NAME=usdt:PROVIDER:BEGIN..usdt:PROVIDER:END (two USDT probes), NAME=syscall:CALL,
    /// NAME=syscall:BEGIN..syscall:END (from return to return), NAME=tp:CATEGORY:BEGIN..tp:CATEGORY:END (two tracepoints of
    /// the kernel, passed by one thread); with ',class=argK:str' (or slice, int, long) one class for each value of that
    /// argument. All are counted and timed; a sample, chosen by --policy, is recorded in detail
    #[arg(long, value_name = "SPEC", verbatim_doc_comment)]
    pub operation: Vec<OperationSpec>,
    /// What is measured inside recorded operations: the sum of an argument of a function ('malloc:arg0'), or its calls
    /// ('malloc'). Default: the calls of the functions of --detail
    #[arg(long, value_name = "FUNCTION[:argK]", requires = "operation", verbatim_doc_comment)]
    pub measure: Option<MeasureSpec>,
    /// Functions whose calls are counted and timed inside recorded operations (default: those of --trace)
    #[arg(long, value_name = "PATTERN", requires = "operation")]
    pub detail: Vec<String>,
    /// Who decides which operations are recorded: adp (Mertz and Nunes), inv (rate inverse to throughput), uni
    /// (constant rate), full (all), none, tithe (rate by budget and response time; the same for all classes while the
    /// functions inside are attached in slices, which is usual, otherwise divided among classes by their spread)
    /// [default: tithe]
    #[arg(long, value_name = "POLICY", value_parser = parse_policy, requires = "operation", verbatim_doc_comment)]
    pub policy: Option<PolicyKind>,
    /// A setting of the policy: rate, max_rate, min_rate, revise_s, baseline_s, max_cycle_s, max_classes, … (docs/operations.md
    /// has all)
    #[arg(long, value_name = "KEY=VALUE", requires = "operation", verbatim_doc_comment)]
    pub adapt: Vec<String>,
    /// Run this shell command, as the user who called sudo, whenever a sample is complete; TITHE_* variables say what it is
    #[arg(long, value_name = "COMMAND", requires = "operation")]
    pub on_cycle: Option<String>,
}

/// `tithe record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// The process
    #[command(flatten)]
    pub target: TargetArgs,
    /// What the watching may cost: a share of the target's CPU time ('2%') or CPU time per second ('5ms/s')
    #[arg(short, long, value_name = "BUDGET", default_value_t = DEFAULT_BUDGET)]
    pub budget: OverheadBudget,
    /// Stop after this time ('30s', '5m', '500ms'); default: until Ctrl-C or the target's end. A COMMAND that
    /// was started then gets SIGTERM, and counts as done
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration, verbatim_doc_comment)]
    pub duration: Option<Duration>,
    /// What a single thread may lose of its own CPU time in a second, as a share (default: twice the budget;
    /// no limit where the budget is a CPU time). Holds for what is traced and surveyed, not for --operation
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub thread_budget: Option<f64>,
    /// Directory of the recording (default: NAME-PID.tithe)
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Replace an existing recording at the output path
    #[arg(long)]
    pub force: bool,
    /// The functions
    #[command(flatten)]
    pub select: SelectArgs,
    /// Operations
    #[command(flatten)]
    pub operations: OperationArgs,
    /// Samples per second of target CPU time (default: chosen by the plan; 0: none)
    #[arg(long, value_name = "HZ", value_parser = parse_hz)]
    pub sample_rate: Option<f64>,
    /// What counts the target's work: var:NAME (a global variable), syscall:NAME, tp:CATEGORY/NAME, fn:PATTERN, or
    /// NAME (a variable or a function). The cost of watching is measured on it, in windows with everything detached
    /// (at most 10 % of the run). Default: the steadiest system call, if there is one; none: nothing is measured
    #[arg(long, value_name = "METRIC", verbatim_doc_comment)]
    pub progress: Option<ProgressSpec>,
    /// No windows with everything detached: the overhead is predicted, not measured
    #[arg(long)]
    pub no_ab: bool,
    /// Do not switch the kernel to short grace periods (/sys/kernel/rcu_expedited, all CPUs are interrupted) for the
    /// milliseconds in which a function that exploded is taken off; calls then pay the trap for some milliseconds more
    #[arg(long, verbatim_doc_comment)]
    pub no_expedite: bool,
    /// Kernel memory that all maps together may take ('64MiB')
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    pub kernel_memory: u64,
    /// Form of the report on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
    /// Show the agent's diagnostics
    #[arg(short, long)]
    pub verbose: bool,
    /// Use this capability tier although a better one is there (tests)
    #[arg(long, hide = true, value_parser = parse_tier)]
    pub force_tier: Option<Tier>,
    /// Do not take on/off windows or discover anything: trace just the named functions (tests, exact counting)
    #[arg(long, hide = true)]
    pub only_named: bool,
}

/// `tithe report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The recording
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// Write this file; its extension says the format: .svg .html .json .pb.gz .folded .txt .speedscope.json
    /// .firefox.json .trace.json. '-' is standard output. A link, FIFO or device of another user is refused
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<PathBuf>,
    /// Form on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
}

/// `tithe plan`.
#[derive(Debug, Args)]
#[command(after_help = PLAN_EXAMPLES)]
#[command(group = ArgGroup::new("source").required(true).args(["pid", "classes"]))]
pub struct PlanArgs {
    /// Survey this process, plan, and leave nothing attached (needs root)
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub pid: Option<u32>,
    /// Plan for a table of event classes (TOML; no root)
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    pub classes: Option<PathBuf>,
    /// What the watching may cost (default: 1%, or what the table says)
    #[arg(short, long, value_name = "BUDGET")]
    pub budget: Option<OverheadBudget>,
    /// The functions
    #[command(flatten)]
    pub select: SelectArgs,
    /// Do not switch the kernel to short grace periods (/sys/kernel/rcu_expedited, all CPUs are interrupted) for the
    /// milliseconds in which a function that exploded is taken off; calls then pay the trap for some milliseconds more
    #[arg(long, verbatim_doc_comment)]
    pub no_expedite: bool,
    /// How many of the best plans are listed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = parse_top)]
    pub top: usize,
    /// What is maximised: 'information' (weighted events per second) or 'precision' (small errors of means, totals and
    /// rates; one plan is listed) (default: what the table says, or information)
    #[arg(long, value_name = "NAME", verbatim_doc_comment)]
    pub objective: Option<String>,
    /// How it is solved: auto, certified, mixed, approximation, exhaustive, continuous, frequent, hottest,
    /// by-weight or sample-all (default: auto, the best plan with its proof)
    #[arg(long, value_name = "NAME", verbatim_doc_comment)]
    pub strategy: Option<String>,
    /// Form on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// `tithe doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Also look at this process
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub pid: Option<u32>,
    /// Form on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// `tithe calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Form on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

impl From<&TargetArgs> for TargetConfig {
    fn from(args: &TargetArgs) -> Self {
        match args.pid {
            Some(pid) => Self::Process(pid),
            None => Self::Command { words: args.command.clone(), as_root: args.as_root },
        }
    }
}

impl From<&SelectArgs> for FunctionConfig {
    fn from(args: &SelectArgs) -> Self {
        Self {
            trace: args.trace.clone(),
            never: args.never.clone(),
            count: args.count.clone(),
            latency: args.latency.clone(),
            record: args.record.clone(),
            weight: args.weight.clone(),
            return_links: args.return_links.clone(),
            discover: args.discover,
        }
    }
}

impl TryFrom<&OperationArgs> for OperationConfig {
    type Error = Failure;

    fn try_from(args: &OperationArgs) -> Result<Self, Failure> {
        Ok(Self {
            operations: args.operation.clone(),
            measure: args.measure.clone(),
            detail: args.detail.clone(),
            policy: args.policy.unwrap_or(PolicyKind::Tithe),
            settings: parse_settings(&args.adapt).map_err(Failure::usage)?,
            on_cycle: args.on_cycle.clone(),
        })
    }
}

impl TryFrom<&RecordArgs> for RunConfig {
    type Error = Failure;

    fn try_from(args: &RecordArgs) -> Result<Self, Failure> {
        Ok(Self {
            target: (&args.target).into(),
            functions: (&args.select).into(),
            operations: (&args.operations).try_into()?,
            sampling_hz: args.sample_rate,
            cost: CostConfig {
                budget: args.budget,
                thread_share: args.thread_budget,
                kernel_memory_bytes: args.kernel_memory,
                expedite: !args.no_expedite,
            },
            overhead: OverheadConfig { is_measured: !args.no_ab, progress: args.progress.clone() },
            duration: args.duration,
            output: OutputConfig { path: args.output.clone(), replace: args.force, verbose: args.verbose },
            experiments: ExperimentConfig { forced_tier: args.force_tier, only_named: args.only_named },
        })
    }
}

impl TryFrom<&PlanArgs> for RunConfig {
    type Error = Failure;

    fn try_from(args: &PlanArgs) -> Result<Self, Failure> {
        let pid = args.pid.ok_or_else(|| Failure::usage("no process to survey: name it with --pid"))?;
        Ok(Self {
            functions: (&args.select).into(),
            cost: CostConfig {
                budget: args.budget.unwrap_or(DEFAULT_BUDGET),
                expedite: !args.no_expedite,
                ..CostConfig::default()
            },
            ..Self::new(TargetConfig::Process(pid))
        })
    }
}

fn parse_top(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(top) if (1..=1000).contains(&top) => Ok(top),
        _ => Err("accepted: a whole number from 1 to 1000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_target_is_a_pid_or_a_command_and_never_both() {
        assert!(Cli::try_parse_from(["tithe", "record", "--pid", "12"]).is_ok());
        assert!(Cli::try_parse_from(["tithe", "record", "--", "ls", "-l"]).is_ok());
        assert!(Cli::try_parse_from(["tithe", "record"]).is_err());
        assert!(Cli::try_parse_from(["tithe", "record", "--pid", "12", "--", "ls"]).is_err());
        assert!(Cli::try_parse_from(["tithe", "record", "--pid", "12", "--as-root"]).is_err());
    }

    #[test]
    fn values_out_of_range_are_refused_while_parsing() {
        for bad in [
            ["record", "--pid", "0"],
            ["record", "--pid", "-3"],
            ["record", "--pid", "x"],
            ["record", "--budget", "0%"],
            ["record", "--budget", "2"],
            ["record", "--duration", "30"],
            ["record", "--duration", "1ms"],
            ["record", "--sample-rate", "20000"],
            ["record", "--kernel-memory", "64"],
            ["record", "--weight", "f"],
            ["record", "--weight", "f=nan"],
        ] {
            let mut line = vec!["tithe"];
            line.extend(bad);
            if bad[1] != "--pid" {
                line.extend(["--pid", "1"]);
            }
            let error = Cli::try_parse_from(&line).expect_err(&line.join(" ")).to_string();
            assert!(error.contains(bad[2]), "the value seen is missing from: {error}");
        }
    }
}
