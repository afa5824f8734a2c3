//! `tithe report`: shows a recording again, or converts it.

use super::{Outputs, PrintFormat, outputs};
use crate::failure::Failure;
use crate::output::{self, TextOptions};
use crate::recording;
use crate::terminal;
use clap::Args;
use profiler_core::recording::Recording;
use profiler_core::report::{Distribution, Report};
use std::path::PathBuf;

const EXAMPLES: &str = "Examples:
  tithe report run.tithe
  tithe report run.tithe --rows 100
  tithe report run.tithe -o flame.svg -o page.html -o profile.pb.gz
  tithe report run.tithe --format json -o -
  tithe report run.tithe --histogram sqlite3_step";

/// `tithe report`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
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
    pub format: PrintFormat,
    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
    /// Draw how the durations of this function, or of this operation, are distributed, instead of the table; in .txt, .html and .json
    /// files, too
    #[arg(long, value_name = "FUNCTION")]
    pub histogram: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// A recording that cannot be read, an extension that names no format or one without durations where those are asked for: nothing is
/// written then. A file that cannot be written.
pub(super) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let Outputs { files, shown } = outputs(&args.output, |path| {
        let format = output::FileFormat::of_path(path).map_err(|e| Failure::usage(e.to_string()))?;
        if args.histogram.is_some() {
            format.may_have_durations().map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
        }
        Ok(format)
    })?;
    // Single calls are drawn there; all else needs their durations alone.
    let needs_calls = files.iter().any(|(_, format)| format.has_single_calls());
    let open = if needs_calls { recording::open } else { recording::open_for_report };
    let recording = open(&args.recording).map_err(|e| Failure::usage(e.to_string()))?;
    let report = Report::from_recording(&recording);
    let distributions = match &args.histogram {
        Some(name) => distributions(&recording, name)?,
        None => Vec::new(),
    };
    if shown && distributions.is_empty() {
        show(&report, args.format, args.rows)?;
    } else if shown {
        show_distributions(&distributions, args.format)?;
    }
    for (path, format) in files {
        let options = TextOptions { rows: args.rows, ..TextOptions::default() };
        let bytes = output::render_with(&report, &recording, format, options, &distributions)
            .map_err(anyhow::Error::new)?;
        output::file::write(path, &bytes).map_err(anyhow::Error::new)?;
        terminal::note(format_args!("wrote {}", path.display()));
    }
    Ok(())
}

/// The distributions that were asked for.
fn distributions(recording: &Recording, name: &str) -> Result<Vec<Distribution>, Failure> {
    /// Names in a message.
    const NAMED: usize = 8;
    let found = Distribution::of(recording, name);
    if !found.is_empty() {
        return Ok(found);
    }
    let names = Distribution::names(recording);
    let has = match names.len() {
        0 => "it has durations of nothing: record with --latency FUNCTION".to_owned(),
        n if n > NAMED => format!("it has those of {} and {} more", names[..NAMED].join(", "), n - NAMED),
        _ => format!("it has those of {}", names.join(", ")),
    };
    Err(Failure::usage(format!("the recording has no durations of '{name}'; {has}")))
}

fn show_distributions(distributions: &[Distribution], format: PrintFormat) -> Result<(), Failure> {
    match format {
        PrintFormat::Text => {
            terminal::text(&output::distribution_text(distributions, TextOptions::for_stdout()))?;
        }
        PrintFormat::Json => {
            terminal::json(&serde_json::to_string_pretty(distributions).map_err(anyhow::Error::new)?)?;
        }
    }
    Ok(())
}

/// Prints a report.
pub(super) fn show(report: &Report, format: PrintFormat, rows: usize) -> Result<(), Failure> {
    match format {
        PrintFormat::Text => {
            terminal::text(&output::text(report, TextOptions { rows, ..TextOptions::for_stdout() }))?;
        }
        PrintFormat::Json => {
            terminal::json(&serde_json::to_string_pretty(report).map_err(anyhow::Error::new)?)?;
        }
    }
    Ok(())
}
