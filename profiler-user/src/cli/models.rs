//! `tithe models`: how the time of recorded functions grows with their inputs.

use super::{PrintFormat, outputs};
use crate::config::{DEFAULT_DATAPOINTS, InputsSpec};
use crate::failure::Failure;
use crate::models::{self, Models, ModelsError};
use crate::output::{self, FileFormat, OutputError, TextOptions, file};
use crate::terminal;
use clap::Args;
use std::path::{Path, PathBuf};

/// Exit status where a function takes longer than in the baseline, or grows faster.
const WORSE: u8 = 5;

const EXAMPLES: &str = "Examples:
  tithe models run.tithe
  tithe models run.tithe --input 'compress2:n=arg3:size,level=arg4:category'
  tithe models run.tithe --format json
  tithe models run.tithe -o models.html -o models.json
  tithe models --baseline before.tithe after.tithe

A recording says itself what is modelled if it was made with --model ('tithe record --model compress2 --input compress2:n=arg3'). A model needs calls with at least five
different inputs, ten of each. Loops of a function have models by the samples inside its recorded calls: 100 for each loop, and the program's file as it was.

Exit codes: 0 done, 1 failed, 2 wrong usage, 5 something takes longer than in the baseline, or grows faster";

/// `tithe models`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ModelsArgs {
    /// The recording
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// Names of a function's inputs and the argument registers that hold them: 'PATTERN:NAME=argK,NAME=argK:TYPE,...', TYPE one of long
    /// (default), int, size, category, category16, category8, u32, u16, u8, i16, i8 (may be repeated); instead of argK the name of a word, or of a parameter where there was debug
    /// information when it was recorded [default: those of the recording, else its parameters by debug information, else the argument registers that the
    /// function makes use of, by its code]
    #[arg(long, value_name = "INPUTS")]
    pub input: Vec<InputsSpec>,
    /// Say what changed since this recording
    #[arg(long, value_name = "RECORDING")]
    pub baseline: Option<PathBuf>,
    /// Data points that each kernel is to have, by which the frequencies of groups are told (0: they are not)
    #[arg(long, value_name = "N", default_value_t = DEFAULT_DATAPOINTS)]
    pub datapoints: u32,
    /// Write the models here (.html with plots, .json or .txt; '-' for standard output; may be repeated)
    #[arg(short, long, value_name = "FILE", conflicts_with = "baseline")]
    pub output: Vec<PathBuf>,
    /// Form on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: PrintFormat,
}

/// The format of a file, if models can be written in it.
fn format_of(path: &Path) -> Result<FileFormat, Failure> {
    let format = FileFormat::of_path(path).map_err(|error| Failure::usage(error.to_string()))?;
    match format {
        FileFormat::Text | FileFormat::Json | FileFormat::Html => Ok(format),
        _ => Err(Failure::usage(format!("{}: {}", path.display(), OutputError::NoModels))),
    }
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
    let found = Models { datapoints: args.datapoints, ..read(&args.recording)? };
    let Some(baseline) = &args.baseline else {
        let wanted = outputs(&args.output, format_of)?;
        for (path, format) in &wanted.files {
            let bytes =
                output::render_models(&found, *format, TextOptions::default()).map_err(anyhow::Error::new)?;
            file::write(path, &bytes).map_err(anyhow::Error::new)?;
            terminal::note(format_args!("wrote {}", path.display()));
        }
        if !wanted.shown {
            return Ok(0);
        }
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
