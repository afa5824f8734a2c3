//! The command line: what users type, checked while it is parsed.
//!
//! Results go to standard output, progress and notes to standard error. Exit codes: 0 done, 1 failed,
//! 2 wrong usage, 3 cannot attach (permission, kernel, target), 4 target refused as unsafe; `record -- COMMAND` passes
//! the command's own on.

use crate::replay::{EXAMPLES as REPLAY_EXAMPLES, ReplayArgs};
use crate::session::{OperationArgs, ProgressSpec};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use profiler_core::class::Tier;
use profiler_core::units::OverheadBudget;
use std::path::PathBuf;
use std::time::Duration;

/// What the watching may cost if nobody says: 1 % is lost in the noise of most services.
pub const DEFAULT_BUDGET: OverheadBudget = OverheadBudget::Share(0.01);

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
#[derive(Debug, Args, Default, Clone)]
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
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub discover: usize,
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

fn parse_pid(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(pid) if (1..=4_194_304).contains(&pid) => Ok(pid),
        Ok(_) => Err("a process ID lies between 1 and 4194304".to_owned()),
        Err(_) => Err("not a process ID; 'pgrep NAME' finds one".to_owned()),
    }
}

fn parse_top(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(top) if (1..=1000).contains(&top) => Ok(top),
        _ => Err("accepted: a whole number from 1 to 1000".to_owned()),
    }
}

/// Reads `500ms`, `30s`, `5m`, `1h`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let t = text.trim();
    let (digits, unit_s) = if let Some(d) = t.strip_suffix("ms") {
        (d, 1e-3)
    } else if let Some(d) = t.strip_suffix('s') {
        (d, 1.0)
    } else if let Some(d) = t.strip_suffix('m') {
        (d, 60.0)
    } else if let Some(d) = t.strip_suffix('h') {
        (d, 3600.0)
    } else {
        return Err("write a time with its unit: '500ms', '30s', '5m', '1h'".to_owned());
    };
    let value: f64 = digits.trim().parse().map_err(|_| "not a number before the unit".to_owned())?;
    let seconds = value * unit_s;
    if !(0.1..=30.0 * 86_400.0).contains(&seconds) {
        return Err("a duration lies between 100ms and 30 days".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn parse_hz(text: &str) -> Result<f64, String> {
    let hz: f64 = text
        .trim_end_matches("Hz")
        .trim()
        .parse()
        .map_err(|_| "not a number of samples per second".to_owned())?;
    // 100 us is the shortest period that the sampler accepts: above it the timer eats the target.
    if !(hz == 0.0 || (1.0..=10_000.0).contains(&hz)) {
        return Err("a sampling rate is 0, or lies between 1 and 10000 Hz".to_owned());
    }
    Ok(hz)
}

/// Reads `4%`, `0.04`.
fn parse_share(text: &str) -> Result<f64, String> {
    let wrong = || "write a share: '4%' or '0.04'".to_owned();
    let share = match text.trim().strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map_err(|_| wrong())? / 100.0,
        None => text.trim().parse().map_err(|_| wrong())?,
    };
    if !(1e-4..=1.0).contains(&share) {
        return Err("a thread may lose between 0.01% and 100% of its CPU time".to_owned());
    }
    Ok(share)
}

fn parse_size(text: &str) -> Result<u64, String> {
    let t = text.trim();
    let (digits, unit) = if let Some(d) = t.strip_suffix("GiB") {
        (d, 1u64 << 30)
    } else if let Some(d) = t.strip_suffix("MiB") {
        (d, 1 << 20)
    } else if let Some(d) = t.strip_suffix("KiB") {
        (d, 1 << 10)
    } else {
        return Err("write a size with its unit: '64MiB'".to_owned());
    };
    let n: u64 = digits.trim().parse().map_err(|_| "not a whole number before the unit".to_owned())?;
    let bytes = n.checked_mul(unit).ok_or_else(|| "too large".to_owned())?;
    if !(4 << 20..=4 << 30).contains(&bytes) {
        return Err("kernel memory lies between 4MiB and 4GiB".to_owned());
    }
    Ok(bytes)
}

fn parse_weight(text: &str) -> Result<(String, f64), String> {
    // The last '=' separates: names hold operators ('operator==').
    let (pattern, weight) =
        text.rsplit_once('=').ok_or_else(|| "write PATTERN=WEIGHT, like 'db::*=5'".to_owned())?;
    let w: f64 = weight.trim().parse().map_err(|_| format!("'{weight}' is not a number"))?;
    if pattern.is_empty() {
        return Err("the pattern before '=' is empty".to_owned());
    }
    if !(w.is_finite() && (0.0..=1e9).contains(&w)) {
        return Err("a weight lies between 0 and 1e9".to_owned());
    }
    Ok((pattern.to_owned(), w))
}

fn parse_tier(text: &str) -> Result<Tier, String> {
    match text {
        "A" | "a" => Ok(Tier::A),
        "B" | "b" => Ok(Tier::B),
        "C" | "c" => Ok(Tier::C),
        "D" | "d" => Ok(Tier::D),
        _ => Err("tiers are A, B, C and D".to_owned()),
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

    #[test]
    fn a_weight_may_name_an_operator() {
        assert_eq!(parse_weight("A::operator===2").unwrap(), ("A::operator==".to_owned(), 2.0));
    }

    #[test]
    fn durations_and_sizes_have_units() {
        assert_eq!(parse_duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(parse_duration("5m").unwrap(), Duration::from_secs(300));
        assert_eq!(parse_size("64MiB").unwrap(), 64 << 20);
    }
}
