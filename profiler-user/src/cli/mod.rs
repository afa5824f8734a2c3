//! The command line: what users type, checked while it is parsed.
//!
//! Results go to standard output, progress and notes to standard error. Exit codes: 0 done, 1 failed,
//! 2 wrong usage, 3 cannot attach (permission, kernel, target), 4 target refused as unsafe; `record -- COMMAND` passes
//! the command's own on.
//!
//! One file per command: its arguments as clap reads them, and what it does. `functions` and `operations` hold
//! groups of options. What a run does goes on as [`crate::config::RunConfig`], made here by `TryFrom`: nothing below knows clap.

mod calibrate;
mod calls;
mod completions;
mod doctor;
mod functions;
mod graph;
mod internal_mend;
mod list;
mod modelled;
mod models;
mod operations;
mod plan;
mod record;
mod replay;
mod report;

pub use calibrate::CalibrateArgs;
pub use calls::CallsArgs;
pub use completions::CompletionsArgs;
pub use doctor::DoctorArgs;
pub use functions::SelectArgs;
pub use graph::GraphArgs;
pub use internal_mend::MendArgs;
pub use list::ListArgs;
pub use modelled::ModelledArgs;
pub use models::ModelsArgs;
pub use operations::OperationArgs;
pub use plan::{PlanArgs, PlanCommand};
pub use record::{RecordArgs, TargetArgs};
pub use replay::ReplayArgs;
pub use report::ReportArgs;

use crate::failure::Failure;
use clap::{Parser, Subcommand, ValueEnum};
use std::path::{Path, PathBuf};

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
  sudo tithe list --pid 1234 'sqlite3_*'
       tithe graph ./server --from 'handle*'
  sudo tithe doctor --pid 1234

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 cannot attach, 4 target refused as unsafe";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch a process under a budget, then print the report and the receipt (needs root)
    Record(Box<RecordArgs>),
    /// Show a recording again, or convert it (no root)
    Report(ReportArgs),
    /// Show the calls of single operations, in order (no root)
    Calls(CallsArgs),
    /// Say how the time of recorded functions grows with their inputs (no root)
    Models(ModelsArgs),
    /// Decide what to trace and what to sample, and say why
    Plan(Box<PlanArgs>),
    /// List functions of a process: where they can be probed, what a hit costs, whether they can be timed (needs root)
    List(ListArgs),
    /// Show who calls whom in a program or library, its loops and its indirect calls, from machine code (no root)
    Graph(GraphArgs),
    /// Say what this machine and this target allow, and how to mend what they do not
    Doctor(DoctorArgs),
    /// Measure what watching costs on this machine (needs root; done by itself when needed)
    Calibrate(CalibrateArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// The child that calibration and the capability probe measure on
    #[command(hide = true, name = "internal-child")]
    InternalChild {
        /// What the child is for
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Take breakpoints that nobody owns out of a process and what it forked, after an agent was killed
    #[command(hide = true, name = "internal-mend")]
    InternalMend(MendArgs),
}

/// Text for people or JSON for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PrintFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

/// Runs the command and returns the exit status: 0, or that of the program that `record` launched. To be called first thing in
/// `main`: the watchdog must be forked before there are threads.
///
/// # Errors
/// A [`Failure`] with its exit code.
pub fn run(cli: Cli) -> Result<u8, Failure> {
    match cli.command {
        Command::Record(args) => return record::run(&args),
        Command::Report(args) => report::run(&args)?,
        Command::Calls(args) => calls::run(&args)?,
        Command::Models(args) => return models::run(&args),
        Command::Plan(args) => plan::run(&args)?,
        Command::List(args) => list::run(&args)?,
        Command::Graph(args) => graph::run(&args)?,
        Command::Doctor(args) => doctor::run(&args)?,
        Command::Calibrate(args) => calibrate::run(&args)?,
        Command::Completions(args) => completions::run(&args),
        Command::InternalChild { .. } => {
            crate::calibrate::child_main().map_err(|e| Failure::from(anyhow::Error::new(e)))?;
        }
        Command::InternalMend(args) => internal_mend::run(&args)?,
    }
    Ok(0)
}

/// What `-o` asks for.
struct Outputs<'a, F> {
    /// Files that are to be written, each with its format.
    files: Vec<(&'a PathBuf, F)>,
    /// Standard output is wanted: by `-`, or since no file is.
    shown: bool,
}

/// From the paths of `-o`.
///
/// # Errors
/// Those of `format_of`.
fn outputs<F>(
    paths: &[PathBuf],
    format_of: impl Fn(&Path) -> Result<F, Failure>,
) -> Result<Outputs<'_, F>, Failure> {
    let mut outputs = Outputs { files: Vec::new(), shown: paths.is_empty() };
    for path in paths {
        if ["-", "/dev/stdout"].iter().any(|stdout| path == Path::new(stdout)) {
            outputs.shown = true;
        } else {
            outputs.files.push((path, format_of(path)?));
        }
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use expect_test::expect;

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
            ["record", "--progress", "tp:sys_exit"],
            ["record", "--slower", "50"],
            ["record", "--input", "f:n=arg9"],
            ["record", "--slower", "0ms"],
            ["record", "--slower", "xms"],
            ["record", "--slower", "61m"],
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

    /// What each heading of a command's help has, in order.
    fn headings(command: &str) -> String {
        let mut cli = Cli::command();
        cli.build();
        let command = cli.find_subcommand(command).unwrap();
        let mut headings: Vec<(String, Vec<String>)> = Vec::new();
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let heading = arg.get_help_heading().unwrap_or("-").to_owned();
            let name = arg.get_long().map_or_else(|| arg.get_id().to_string(), |long| format!("--{long}"));
            match headings.iter_mut().find(|(h, _)| *h == heading) {
                Some((_, names)) => names.push(name),
                None => headings.push((heading, vec![name])),
            }
        }
        headings.iter().map(|(heading, names)| format!("{heading}: {}\n", names.join(" "))).collect()
    }

    #[test]
    fn each_option_stands_under_its_own_heading() {
        expect![[r#"
            Target: --pid command --as-root
            Cost: --budget --thread-budget --agent-cpu --sample-rate --objective --no-expedite --kernel-memory
            What to watch: --trace --never --count --latency --record --weight --return-links --discover
            Operations: --operation --measure --detail --calls --slower --policy --adapt --on-cycle
            Execution-time models: --model --input --datapoints --expect
            Words of the target: --word
            Check of the overhead: --progress --no-ab
            Recording: --duration --output --force --verbose
            Report: --format --rows
            -: --help
        "#]]
        .assert_eq(&headings("record"));
        expect![[r#"
            Target: --pid --classes
            Cost: --budget --duration --no-expedite
            What to watch: --trace --never --count --latency --record --weight --return-links --discover
            Plan: --top --objective --strategy --format
            -: --help
        "#]]
        .assert_eq(&headings("plan"));
        expect![[r#"
            -: file --help
            What to show: --from --to --depth --addresses-taken
            Output: --output --format --rows
        "#]]
        .assert_eq(&headings("graph"));
    }

    #[test]
    fn replay_is_a_part_of_planning() {
        let command = Cli::try_parse_from(["tithe", "plan", "replay", "full.tithe"]).unwrap().command;
        let Command::Plan(plan) = &command else { panic!("{command:?}") };
        let Some(PlanCommand::Replay(args)) = &plan.command else { panic!("{plan:?}") };
        assert_eq!(args.recording.to_str(), Some("full.tithe"));
        assert!(Cli::try_parse_from(["tithe", "replay", "full.tithe"]).is_err());
        assert!(Cli::try_parse_from(["tithe", "plan"]).is_err(), "a plan needs a process or a table");
        assert!(Cli::try_parse_from(["tithe", "plan", "--pid", "1", "replay", "full.tithe"]).is_err());
    }

    /// Lines of source are longer than those of a terminal: texts that kept them would be broken twice.
    #[test]
    fn help_is_broken_by_the_terminal_alone() {
        let mut cli = Cli::command();
        cli.build();
        let mut commands = vec![&cli];
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands());
            for argument in command.get_arguments() {
                let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
                let help = help.unwrap_or_default();
                assert!(!help.contains('\n'), "{} {}: {help}", command.get_name(), argument.get_id());
            }
        }
    }

    /// The words of a line as a shell has them, quotes taken off.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
        for c in line.chars().chain([' ']) {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
                c => word.push(c),
            }
        }
        words
    }

    #[test]
    fn each_command_has_examples_and_they_are_accepted() {
        let mut cli = Cli::command();
        cli.build();
        let shown = |c: &&clap::Command| !c.is_hide_set() && c.get_name() != "help";
        let commands: Vec<&clap::Command> = cli.get_subcommands().filter(shown).collect();
        let inner: Vec<&clap::Command> =
            commands.iter().flat_map(|c| c.get_subcommands().filter(shown)).collect();
        assert_eq!(inner.iter().map(|c| c.get_name()).collect::<Vec<_>>(), ["replay"]);
        for command in std::iter::once(&cli).chain(commands).chain(inner) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines = help.lines().map(|line| line.trim().trim_start_matches("sudo "));
            let examples: Vec<&str> = lines.filter(|line| line.starts_with("tithe ")).collect();
            assert!(!examples.is_empty(), "{} has no example", command.get_name());
            for example in examples {
                let parsed = Cli::try_parse_from(words(example));
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
            }
        }
    }
}
