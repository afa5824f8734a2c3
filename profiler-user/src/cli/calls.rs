//! `tithe calls`: the calls of single operations, in order.

use super::{Outputs, PrintFormat, outputs};
use crate::calls::{Calls, CallsError, Wanted, Which};
use crate::config::values::parse_moment_ns;
use crate::failure::Failure;
use crate::output::{self, CallsOptions, TextOptions};
use crate::terminal;
use clap::Args;
use profiler_core::calls::Layout;
use std::path::PathBuf;

const EXAMPLES: &str = "Examples:
  tithe calls run.tithe
  tithe calls run.tithe --operation request --slowest 5 --depth 3
  tithe calls run.tithe --operation request --class 'GET /cart' --unfold
  tithe calls run.tithe --operation request --at 12.25s --format json
  tithe calls run.tithe --operation request --slowest 20 -o slow.trace.json

A recording has calls in order if it was made with --operation and --calls ('tithe record --help')";

/// `tithe calls`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CallsArgs {
    /// The recording
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// Operation whose calls are shown, by the name that --operation gave it [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub operation: Option<String>,
    /// The slowest N of those that are not known to be incomplete [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "at", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub slowest: Option<u32>,
    /// Those that were open so long after the recording's start: '3.25s', '850ms'
    #[arg(long, value_name = "TIME", value_parser = parse_moment_ns)]
    pub at: Option<u64>,
    /// Only operations of this class
    #[arg(long, value_name = "NAME")]
    pub class: Option<String>,
    /// Levels of calls that are shown
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
    /// Show each call by itself, also where the same calls follow one another
    #[arg(long)]
    pub unfold: bool,
    /// Say of each call between which times it returned, as far as the calls after it prove it (with --unfold of each)
    #[arg(long)]
    pub bounds: bool,
    /// Write this file; its extension says the format: .txt .json .trace.json (for Perfetto). '-' is standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<PathBuf>,
    /// Form on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: PrintFormat,
}

/// Runs the command.
///
/// # Errors
/// A recording that cannot be read or has no calls in order, no such operation or class, an extension that names no format that has a
/// place for calls: nothing is written then. A file that cannot be written.
pub(super) fn run(args: &CallsArgs) -> Result<(), Failure> {
    let Outputs { files, shown } = outputs(&args.output, |path| {
        let format = output::FileFormat::of_path(path).map_err(|e| Failure::usage(e.to_string()))?;
        format.may_have_calls().map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
        Ok(format)
    })?;
    let which = args.at.map_or(Which::Slowest(args.slowest.unwrap_or(1) as usize), Which::At);
    let wanted = Wanted { operation: args.operation.clone(), class: args.class.clone(), which };
    let calls =
        Calls::read(&args.recording, &wanted).map_err(|e: CallsError| Failure::usage(e.to_string()))?;
    let levels = args.depth.map_or(usize::MAX, |depth| depth as usize);
    let options = CallsOptions { layout: Layout { levels, folds: !args.unfold }, bounds: args.bounds };
    if shown {
        match args.format {
            PrintFormat::Text => {
                terminal::text(&output::calls_text(&calls, options, TextOptions::for_stdout()))?;
            }
            PrintFormat::Json => {
                terminal::json(&output::calls_json(&calls).map_err(anyhow::Error::new)?)?;
            }
        }
    }
    for (path, format) in files {
        let bytes = output::render_calls(&calls, format, options, TextOptions::default())
            .map_err(anyhow::Error::new)?;
        output::file::write(path, &bytes).map_err(anyhow::Error::new)?;
        terminal::note(format_args!("wrote {}", path.display()));
    }
    Ok(())
}
