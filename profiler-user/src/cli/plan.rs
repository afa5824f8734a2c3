//! `tithe plan`: decides what to trace and what to sample, and says why.

use super::PrintFormat;
use super::functions::SelectArgs;
use super::replay::{self, ReplayArgs};
use crate::agent;
use crate::config::values::{checked_objective, parse_any_objective, parse_duration, parse_pid};
use crate::config::{CostConfig, DEFAULT_BUDGET, DEFAULT_OBJECTIVE, RunConfig, TargetConfig};
use crate::failure::Failure;
use crate::target;
use crate::terminal;
use crate::watchdog::Watchdog;
use clap::{ArgGroup, Args, Subcommand};
use profiler_core::plan::{self, Objective, Options, Problem, Strategy, UnknownStrategy};
use profiler_core::text::make_printable;
use profiler_core::units::OverheadBudget;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PLAN_EXAMPLES: &str = "Examples:
  sudo tithe plan --pid 1234 --budget 2%
  sudo tithe plan --pid 1234 --latency 'db::*' --weight 'db::commit=5' --top 3
       tithe plan --classes run.tithe/plan-0001.toml --budget 5%
       tithe plan --classes table.toml --strategy hottest --format json
       tithe plan replay full.tithe

A table says what can be watched and what the watching may cost:
  budget = \"5%\"            # or max_frequency = 925: events and samples per second
  report_time_us = 0.7      # one traced event
  sample_time_us = 20       # one sample
  [[class]]
  name = \"commit\"
  rate_hz = 300
  duration_us = 40          # or share = 0.012";

/// What is planned other than functions.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Compare policies that sample operations, over a recording that has all of them (no root)
    #[command(after_help = replay::EXAMPLES)]
    Replay(ReplayArgs),
}

/// `tithe plan`.
#[derive(Debug, Args)]
#[command(after_help = PLAN_EXAMPLES)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
#[command(group = ArgGroup::new("source").required(true).args(["pid", "classes"]))]
pub struct PlanArgs {
    /// What else can be planned from a recording
    #[command(subcommand)]
    pub command: Option<PlanCommand>,
    /// Survey this process, plan, and leave nothing attached (needs root)
    #[arg(help_heading = "Target", short, long, value_name = "PID", value_parser = parse_pid)]
    pub pid: Option<u32>,
    /// Plan for a table of event classes (TOML; no root)
    #[arg(help_heading = "Target", long, value_name = "FILE", conflicts_with = "pid")]
    pub classes: Option<PathBuf>,
    /// What the watching may cost (default: 1%, or what the table says)
    #[arg(help_heading = "Cost", short, long, value_name = "BUDGET")]
    pub budget: Option<OverheadBudget>,
    /// The run that is planned for: 60s, 2m. With longer runs intervals are narrower (default: 60s; a table says its own)
    #[arg(help_heading = "Cost", short, long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "classes")]
    pub duration: Option<Duration>,
    /// The functions
    #[command(flatten)]
    pub select: SelectArgs,
    /// Do not switch the kernel to short grace periods (/sys/kernel/rcu_expedited, all CPUs are interrupted) for the
    /// milliseconds in which a function that exploded is taken off; calls then pay the trap for some milliseconds more
    #[arg(help_heading = "Cost", long)]
    pub no_expedite: bool,
    /// How many of the best plans are listed
    #[arg(help_heading = "Plan", long, value_name = "N", default_value_t = 5, value_parser = parse_top)]
    pub top: usize,
    /// What the plan is to bring: 'precision' (calls per second of what takes most of the CPU time in the narrowest
    /// intervals), 'information' (weighted events per second) or, for a table, 'variance' (small errors of means, totals and
    /// rates). Of precision and variance one plan is listed. Default: precision for a process, for a table what it says, or
    /// information
    #[arg(help_heading = "Plan", long, value_name = "NAME", value_parser = parse_any_objective)]
    pub objective: Option<Objective>,
    /// How it is solved: auto, certified, mixed, approximation, exhaustive, continuous, frequent, hottest,
    /// by-weight or sample-all (default: auto, the best plan with its proof)
    #[arg(help_heading = "Plan", long, value_name = "NAME")]
    pub strategy: Option<String>,
    /// Form on standard output
    #[arg(help_heading = "Plan", long, value_enum, default_value = "text")]
    pub format: PrintFormat,
}

impl TryFrom<&PlanArgs> for RunConfig {
    type Error = Failure;

    fn try_from(args: &PlanArgs) -> Result<Self, Failure> {
        let pid = args.pid.ok_or_else(|| Failure::usage("no process to survey: name it with --pid"))?;
        Ok(Self {
            functions: (&args.select).into(),
            duration: args.duration,
            objective: args
                .objective
                .map_or(Ok(DEFAULT_OBJECTIVE), checked_objective)
                .map_err(Failure::usage)?,
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

/// Runs the command.
///
/// # Errors
/// As [`agent::plan`]; a class table, an objective or a strategy that makes no sense.
pub(super) fn run(args: &PlanArgs) -> Result<(), Failure> {
    if let Some(PlanCommand::Replay(args)) = &args.command {
        return replay::run(args);
    }
    let strategy: Strategy = match &args.strategy {
        Some(name) => name.parse().map_err(|e: UnknownStrategy| Failure::usage(e))?,
        None => Strategy::Auto,
    };
    let objective = objective(args.objective, strategy)?;
    let mut problem = match &args.classes {
        Some(path) => table(path)?,
        None => {
            agent::preflight()?;
            let mut config = RunConfig::try_from(args)?;
            config.objective = objective.unwrap_or(config.objective);
            target::remember_limits();
            let watchdog = Watchdog::start().map_err(Failure::attach)?;
            agent::plan(&config, &watchdog)?
        }
    };
    if let (Some(budget), Some(path)) = (args.budget, &args.classes) {
        if !problem.priced {
            return Err(Failure::usage(format!(
                "{}: --budget {budget} needs prices, the table has max_frequency alone; accepted: report_time_us in the \
                 table, or no --budget",
                path.display()
            )));
        }
        problem = problem.scaled(budget.cpu_per_second(problem.target_cpu) / problem.budget);
    }
    if let (Some(objective), Some(_)) = (args.objective, &args.classes) {
        problem = problem.with_objective(objective);
    }
    if args.format == PrintFormat::Text {
        problem.classes.iter_mut().for_each(|class| make_printable(&mut class.name));
    }
    let options = Options { top: args.top, ..Options::default() };
    let plans = plan::solve_top(&problem, strategy, &options).map_err(|error| {
        let place = args.classes.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default();
        Failure::usage(format!("{place}{error}"))
    })?;
    // OK because there is a plan or an error.
    let outlook = plan::outlook(&problem, &plans[0], strategy);
    match args.format {
        PrintFormat::Text => terminal::text(&plan::render_text(&problem, &plans, &outlook))?,
        PrintFormat::Json => {
            let output = plan::Output::new(&problem, &plans, outlook);
            terminal::json(&serde_json::to_string_pretty(&output).map_err(anyhow::Error::new)?)?;
        }
    }
    Ok(())
}

/// What the plan is to bring, where the command line says so: strategies of the paper maximise information.
fn objective(asked: Option<Objective>, strategy: Strategy) -> Result<Option<Objective>, Failure> {
    let any = matches!(strategy, Strategy::Auto | Strategy::Mixed | Strategy::Certified);
    match asked {
        Some(other) if !any && other != Objective::Information => Err(Failure::usage(format!(
            "--strategy {strategy} maximises information, --objective {} needs its own solver; accepted: --strategy auto, or --objective \
             information",
            other.name()
        ))),
        None if !any => Ok(Some(Objective::Information)),
        asked => Ok(asked),
    }
}

/// Reads a class table; every error with file and line.
fn table(path: &Path) -> Result<Problem, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("cannot read the class table '{}': {e}", path.display())))?;
    let table = plan::table::parse(&text).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(|e| format!("{}, {e}", path.display())).collect();
        Failure::usage(lines.join("\n"))
    })?;
    Ok(table.problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_of_the_paper_maximise_information() {
        assert_eq!(objective(None, Strategy::Hottest).unwrap(), Some(Objective::Information));
        assert_eq!(objective(None, Strategy::Auto).unwrap(), None);
        let precise = Some(Objective::Precision);
        assert_eq!(objective(precise, Strategy::Certified).unwrap(), precise);
        let error = objective(precise, Strategy::Exhaustive).unwrap_err().to_string();
        assert!(error.contains("--strategy exhaustive") && error.contains("accepted"), "{error}");
    }
}
