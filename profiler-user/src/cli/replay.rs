//! `tithe plan replay`: what other policies would have recorded of a run in which every operation was recorded.

use super::PrintFormat;
use crate::config::values::parse_policy;
use crate::failure::Failure;
use crate::replay::{ReplayConfig, replay};
use crate::terminal;
use clap::Args;
use profiler_core::adapt::PolicyKind;
use profiler_core::adapt::replay::render_text;
use profiler_core::units::OverheadBudget;
use std::path::PathBuf;

/// Examples of `--help`.
pub(super) const EXAMPLES: &str = "Replay assumes that the functions inside operations are attached all the time while recording is on, as \
'tithe record --adapt attach_share=false' has them. By default 'tithe record' attaches them in slices of the time where that costs \
less: then policies that record less cost less than here, samples are clusters, and 'tithe' records classes alike instead of dividing \
its rate among them (docs/operations.md). attach_share changes nothing here.

Examples:
  sudo tithe record --pid 1234 --operation 'req=serve,class=arg0:str' --policy full --no-ab -o full.tithe
       tithe plan replay full.tithe
       tithe plan replay full.tithe --policy adp,tithe --adapt max_cycle_s=20 --runs 50 --format json";

/// `tithe plan replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// A recording made with --operation and --policy full
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// The operation, where the recording has several
    #[arg(long, value_name = "NAME")]
    pub operation: Option<String>,
    /// Policies to compare: adp, inv, uni, full, none, tithe
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "none,full,uni,inv,adp,tithe", value_parser = parse_policy)]
    pub policy: Vec<PolicyKind>,
    /// Runs, each with the next seed; intervals are over them
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub runs: u32,
    /// Seed of the first run: the same seed gives the same answer
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// A setting of the policies other than the recording's: rate, max_rate, min_rate, baseline_s, max_cycle_s, …
    #[arg(long, value_name = "KEY=VALUE")]
    pub adapt: Vec<String>,
    /// Operations that the target can work on at the same time (default: the CPUs of the recorded host)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub servers: Option<u32>,
    /// Keep the policies to a budget of CPU time per second ('5ms/s'); default: none
    #[arg(long, value_name = "BUDGET")]
    pub budget: Option<OverheadBudget>,
    /// Form on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: PrintFormat,
    /// Types of operations that are listed
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
}

impl From<&ReplayArgs> for ReplayConfig {
    fn from(args: &ReplayArgs) -> Self {
        Self {
            recording: args.recording.clone(),
            operation: args.operation.clone(),
            policies: args.policy.clone(),
            runs: args.runs,
            seed: args.seed,
            settings: args.adapt.clone(),
            servers: args.servers,
            budget: args.budget,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// As [`replay`].
pub(super) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let text = answer(args)?;
    match args.format {
        PrintFormat::Text => terminal::text(&text)?,
        PrintFormat::Json => terminal::json(&text)?,
    }
    Ok(())
}

fn answer(args: &ReplayArgs) -> Result<String, Failure> {
    let comparison = replay(&args.into())?;
    Ok(match args.format {
        PrintFormat::Text => render_text(&comparison, args.rows),
        PrintFormat::Json => {
            let mut json = serde_json::to_string_pretty(&comparison).map_err(anyhow::Error::new)?;
            json.push('\n');
            json
        }
    })
}

#[cfg(test)]
mod tests;
