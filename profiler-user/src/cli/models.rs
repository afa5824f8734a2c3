//! `tithe models`: how the time of recorded functions grows with their inputs.

use super::PrintFormat;
use crate::config::InputsSpec;
use crate::failure::Failure;
use crate::models::{self, Models, ModelsError};
use crate::output::{self, TextOptions};
use crate::terminal;
use clap::Args;
use std::path::PathBuf;

/// Exit status where a function takes longer than in the baseline, or grows faster.
const WORSE: u8 = 5;

const EXAMPLES: &str = "Examples:
  tithe models run.tithe
  tithe models run.tithe --input 'compress2:n=arg3:size,level=arg4:category'
  tithe models run.tithe --format json
  tithe models --baseline before.tithe after.tithe

A recording has recorded calls if it was made with --record ('tithe record --record compress2:arg3,arg4'). A model needs calls with at least five
different inputs, ten of each.

Exit codes: 0 done, 1 failed, 2 wrong usage, 5 something takes longer than in the baseline, or grows faster";

/// `tithe models`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ModelsArgs {
    /// The recording
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// Names of a function's inputs and the argument registers that hold them: 'PATTERN:NAME=argK,NAME=argK:TYPE,...', TYPE one of long
    /// (default), int, size, category (may be repeated) [default: all argument registers]
    #[arg(long, value_name = "INPUTS")]
    pub input: Vec<InputsSpec>,
    /// Say what changed since this recording
    #[arg(long, value_name = "RECORDING")]
    pub baseline: Option<PathBuf>,
    /// Form on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: PrintFormat,
}

/// Runs the command. The status is 5 where something takes longer than in the baseline, or grows faster.
///
/// # Errors
/// A recording that cannot be read or has no recorded calls, an `--input` that names none of them.
pub(super) fn run(args: &ModelsArgs) -> Result<u8, Failure> {
    let read = |path: &PathBuf| {
        Models::read(path, &args.input)
            .map_err(|error: ModelsError| Failure::usage(format!("{}: {error}", path.display())))
    };
    let found = read(&args.recording)?;
    let Some(baseline) = &args.baseline else {
        match args.format {
            PrintFormat::Text => terminal::text(&output::models_text(&found, TextOptions::for_stdout()))?,
            PrintFormat::Json => {
                terminal::json(&output::models_json(&found).map_err(anyhow::Error::new)?)?;
            }
        }
        return Ok(0);
    };
    let before = Models::read_baseline(baseline, &args.input)
        .map_err(|error| Failure::usage(format!("{}: {error}", baseline.display())))?;
    let changes = models::compare(&before, &found);
    match args.format {
        PrintFormat::Text => terminal::text(&output::changes_text(&changes, TextOptions::for_stdout()))?,
        PrintFormat::Json => terminal::json(&output::changes_json(&changes).map_err(anyhow::Error::new)?)?,
    }
    Ok(if changes.iter().any(models::Changed::is_worse) { WORSE } else { 0 })
}
