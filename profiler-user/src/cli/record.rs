//! `tithe record`: watches a process under a budget, then prints the report and the receipt.

use super::PrintFormat;
use super::functions::SelectArgs;
use super::modelled::ModelledArgs;
use super::operations::OperationArgs;
use super::report::show;
use crate::agent;
use crate::config::values::{
    parse_agent_cpu, parse_duration, parse_hz, parse_objective, parse_pid, parse_share, parse_size,
    parse_tier,
};
use crate::config::{
    CostConfig, DEFAULT_BUDGET, ExperimentConfig, OutputConfig, OverheadConfig, ProgressSpec, RunConfig,
    TargetConfig,
};
use crate::failure::Failure;
use crate::target;
use crate::terminal;
use crate::watchdog::Watchdog;
use clap::{ArgGroup, Args};
use profiler_core::class::Tier;
use profiler_core::plan::Objective;
use profiler_core::units::OverheadBudget;
use std::path::PathBuf;
use std::time::Duration;
use words::WordArgs;

/// Which process is watched.
#[derive(Debug, Args)]
#[command(next_help_heading = "Target")]
#[command(group = ArgGroup::new("target").required(true).args(["pid", "command"]))]
pub struct TargetArgs {
    /// Process to watch, with all its threads
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub pid: Option<u32>,
    /// Start this command and watch it from its first instruction. Its exit status becomes ours (128 + n for
    /// signal n; failures of tithe itself keep their codes). When --duration is over it gets SIGTERM; after
    /// Ctrl-C it has 10 s to end by itself
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Start COMMAND as root, not as the user who called sudo
    #[arg(long, requires = "command", conflicts_with = "pid")]
    pub as_root: bool,
}

/// How the measured overhead is checked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Check of the overhead")]
pub struct OverheadArgs {
    /// What counts the target's work: var:NAME (a global variable), syscall:NAME, tp:CATEGORY:NAME, fn:PATTERN, or
    /// NAME (a variable or a function). The measured cost of watching is checked on it, in windows with everything detached
    /// (at most 10 % of the run). Default: the steadiest system call, if there is one; none: there is no check
    #[arg(long, value_name = "METRIC")]
    pub progress: Option<ProgressSpec>,
    /// No windows with everything detached: the overhead is measured, by samples in our own traps, and not checked
    #[arg(long)]
    pub no_ab: bool,
}

/// How the report is shown.
#[derive(Debug, Args)]
#[command(next_help_heading = "Report")]
pub struct ShowArgs {
    /// Form of the report on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: PrintFormat,
    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
}

/// What only tests and experiments change.
#[derive(Debug, Args)]
pub struct ExperimentArgs {
    /// Use this capability tier although a better one is there (tests)
    #[arg(long, hide = true, value_parser = parse_tier)]
    pub force_tier: Option<Tier>,
    /// Do not take on/off windows or discover anything: trace just the named functions (tests, exact counting)
    #[arg(long, hide = true)]
    pub only_named: bool,
}

/// What the watching may cost.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cost")]
pub struct CostArgs {
    /// What the watching may cost: a share of the target's CPU time ('2%') or CPU time per second ('5ms/s')
    #[arg(short, long, value_name = "BUDGET", default_value_t = DEFAULT_BUDGET)]
    pub budget: OverheadBudget,
    /// What a single thread may lose of its own CPU time in a second, as a share (default: twice the budget;
    /// no limit where the budget is a CPU time). Holds for what is traced and surveyed, not for --operation
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub thread_budget: Option<f64>,
    /// What the agent itself may use of one CPU from the fifth second on: it samples more rarely, and opens windows more rarely,
    /// to keep to that (never slower: what takes off a function that explodes)
    #[arg(long, value_name = "SHARE", default_value = "2%", value_parser = parse_agent_cpu)]
    pub agent_cpu: f64,
    /// Samples per second of target CPU time, fewer where the budget does not pay for them (default: chosen by the plan; 0: none)
    #[arg(long, value_name = "HZ", value_parser = parse_hz)]
    pub sample_rate: Option<f64>,
    /// What plans are to bring: 'precision' (calls per second of what takes most of the CPU time in the narrowest
    /// intervals) or 'information' (as many weighted calls and samples per second as can be)
    #[arg(long, value_name = "NAME", default_value = "precision", value_parser = parse_objective)]
    pub objective: Objective,
    /// Do not switch the kernel to short grace periods (/sys/kernel/rcu_expedited, all CPUs are interrupted) for the
    /// milliseconds in which a function that exploded is taken off; calls then pay the trap for some milliseconds more
    #[arg(long)]
    pub no_expedite: bool,
    /// Kernel memory that all maps together may take ('64MiB')
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    pub kernel_memory: u64,
}

/// How long is recorded, and where to.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recording")]
pub struct RecordingArgs {
    /// Stop after this time ('30s', '5m', '500ms'); default: until Ctrl-C or the target's end. A COMMAND that
    /// was started then gets SIGTERM, and counts as done
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Directory of the recording (default: NAME-PID.tithe)
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Replace an existing recording at the output path
    #[arg(long)]
    pub force: bool,
    /// Show the agent's diagnostics
    #[arg(short, long)]
    pub verbose: bool,
}

const EXAMPLES: &str = "Examples:
  sudo tithe record --pid 1234 --budget 2% --duration 30s -o run.tithe
  sudo tithe record --pid 1234 --latency 'libsqlite3.so*:sqlite3_step' --count 'db::*'
  sudo tithe record --pid 1234 --record parse --weight 'db::*=5' --never '*alloc*' --format json
  sudo tithe record --budget 1% -- ./server --port 8080
  sudo tithe record --pid 1234 --budget 5% --operation 'req=handle,class=arg0:str' --detail 'db::*'
  sudo tithe record --pid 1234 --budget 5% --operation 'req=handle' --calls 'db::*' -o run.tithe
  sudo tithe record --pid 1234 --budget 5% --operation 'req=handle' --calls 'db::*' --slower 50ms
  sudo tithe record --pid 1234 --budget 2% --model 'libz*:compress2' --input 'compress2:n=arg3,level=arg4:category' -o a.tithe
  sudo tithe record --pid 1234 --budget 2% --model 'db::*' --input 'db::put:length' -o a.tithe
  sudo tithe record --pid 1234 --budget 2% --expect a.tithe
  sudo tithe record --pid 1234 --record parse --word 'parse:length=strlen(arg0),kind=arg1->16:u8'
  sudo tithe record --pid 1234 --progress tp:net:net_dev_xmit";

/// `tithe record`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RecordArgs {
    /// The process
    #[command(flatten)]
    pub target: TargetArgs,
    /// The budget
    #[command(flatten)]
    pub cost: CostArgs,
    /// The functions
    #[command(flatten)]
    pub select: SelectArgs,
    /// Operations
    #[command(flatten)]
    pub operations: OperationArgs,
    /// Execution-time models
    #[command(flatten)]
    pub models: ModelledArgs,
    /// Words of the target's memory
    #[command(flatten)]
    pub words: WordArgs,
    /// How the measured overhead is checked
    #[command(flatten)]
    pub overhead: OverheadArgs,
    /// The recording
    #[command(flatten)]
    pub recording: RecordingArgs,
    /// How the report is shown
    #[command(flatten)]
    pub shown: ShowArgs,
    /// Experiments
    #[command(flatten)]
    pub experiments: ExperimentArgs,
}

impl From<&TargetArgs> for TargetConfig {
    fn from(args: &TargetArgs) -> Self {
        match args.pid {
            Some(pid) => Self::Process(pid),
            None => Self::Command { words: args.command.clone(), as_root: args.as_root },
        }
    }
}

impl TryFrom<&RecordArgs> for RunConfig {
    type Error = Failure;

    fn try_from(args: &RecordArgs) -> Result<Self, Failure> {
        Ok(Self {
            target: (&args.target).into(),
            functions: (&args.select).into(),
            operations: (&args.operations).try_into()?,
            models: (&args.models).into(),
            words: args.words.word.clone(),
            sampling_hz: args.cost.sample_rate,
            objective: args.cost.objective,
            cost: CostConfig {
                budget: args.cost.budget,
                thread_share: args.cost.thread_budget,
                agent_cpu: args.cost.agent_cpu,
                kernel_memory_bytes: args.cost.kernel_memory,
                expedite: !args.cost.no_expedite,
            },
            overhead: OverheadConfig {
                is_measured: !args.overhead.no_ab,
                progress: args.overhead.progress.clone(),
            },
            duration: args.recording.duration,
            output: OutputConfig {
                path: args.recording.output.clone(),
                replace: args.recording.force,
                verbose: args.recording.verbose,
            },
            experiments: ExperimentConfig {
                forced_tier: args.experiments.force_tier,
                only_named: args.experiments.only_named,
            },
        })
    }
}

/// Runs the command and returns the exit status of the program that it launched, or 0.
///
/// # Errors
/// As [`agent::record`]; settings of the policy that make no sense.
pub(super) fn run(args: &RecordArgs) -> Result<u8, Failure> {
    agent::preflight()?;
    let config = RunConfig::try_from(args)?;
    target::remember_limits();
    let watchdog = Watchdog::start().map_err(Failure::attach)?;
    let finished = agent::record(&config, &watchdog)?;
    show(&finished.report, args.shown.format, args.shown.rows)?;
    let path = finished.path.display();
    if args.shown.format == PrintFormat::Text {
        terminal::note(format_args!("recording in {path}; 'tithe report {path} -o flame.svg' draws it"));
    }
    Ok(finished.status.unwrap_or(0))
}

#[cfg(test)]
mod tests;
mod words;
