//! One report, many faces: the terminal's table with the budget receipt, JSON, and the profile formats of
//! other tools.
//!
//! What: [`render`] turns a [`Report`] and the [`Recording`] that it was made from into the bytes of one
//! [`FileFormat`]; the format follows the file's extension. Why both: the table, JSON and HTML show estimates
//! with intervals (the report); flame graphs and profiles show single samples and calls (the recording).
//!
//! Texts for people (table, HTML, SVG, folded stacks) have hidden characters of names written out; files for programs keep names as
//! they were recorded, in JSON escaped.
//!
//! It computes no statistics: every number comes from the report, with its interval and source.

mod calls;
mod calls_json;
mod chrome;
mod chrome_calls;
mod durations;
mod expected;
pub mod file;
mod firefox;
mod flame;
pub mod graph;
mod groups;
mod html;
mod incidents;
mod log;
mod loops;
mod models;
mod names;
mod notes;
mod operations;
mod pprof;
mod precision;
mod receipt;
mod rows;
mod sharper;
mod speedscope;
mod stacks;
mod table;
mod units;
mod words;

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;

pub(crate) use calls::slow_operation_text;
pub use calls::{CallsOptions, calls_text};
pub use calls_json::calls_json;
pub use durations::distribution_text;
pub(crate) use expected::{InIncident, SlowerCall, machine_text, slower_call_text, slowest_call_text};
pub use incidents::judged_text;
pub use models::{changes_json, changes_text, models_json, models_text, render_models};
pub(crate) use names::shorten;
pub use receipt::receipt_text;
pub(crate) use table::wrap;
pub use units::{RunStart, count, duration_ns, memory, percent};

use crate::calls::Calls;
use crate::terminal::SEQUENCES;
use profiler_core::recording::Recording;
use profiler_core::report::{Distribution, Report};
use profiler_core::text::{printable_json, printable_text};
use std::io::IsTerminal;
use std::path::Path;

/// A format that a report can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// Table and receipt, for people.
    Text,
    /// The report as JSON.
    Json,
    /// Flame graph of the samples.
    Svg,
    /// Folded stacks: `outer;inner count`.
    Folded,
    /// pprof profile, gzip-compressed.
    Pprof,
    /// speedscope.
    Speedscope,
    /// Firefox Profiler, processed profile.
    Firefox,
    /// Chrome trace events, for Perfetto.
    Chrome,
    /// One self-contained page.
    Html,
}

/// Endings of file names and what they mean; the first match counts, so longer endings come first.
const ENDINGS: &[(&str, FileFormat)] = &[
    (".speedscope.json", FileFormat::Speedscope),
    (".firefox.json", FileFormat::Firefox),
    (".trace.json", FileFormat::Chrome),
    (".json", FileFormat::Json),
    (".txt", FileFormat::Text),
    (".svg", FileFormat::Svg),
    (".folded", FileFormat::Folded),
    (".pb.gz", FileFormat::Pprof),
    (".pprof", FileFormat::Pprof),
    (".html", FileFormat::Html),
    (".htm", FileFormat::Html),
];

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The file name ends in nothing that we know.
    #[error(
        "cannot tell the format of '{0}': the name must end in one of .txt .json .html .svg .folded .pb.gz .pprof \
         .speedscope.json .firefox.json .trace.json"
    )]
    UnknownExtension(String),
    /// A flame graph of nothing.
    #[error(
        "the recording has no samples, so there is no {0} to draw; record with sampling on (--sample-rate) or for \
         longer"
    )]
    NoSamples(&'static str),
    /// A distribution in a format that has none.
    #[error("--histogram can be drawn in .txt, .html and .json files, and on standard output")]
    NoHistogram,
    /// Calls in order in a format that has none.
    #[error("calls in order can be written in .txt, .json and .trace.json files, and to standard output")]
    NoCalls,
    /// Models in a format that has none.
    #[error("models can be written in .txt, .html and .json files, and to standard output")]
    NoModels,
    /// A library refused.
    #[error("cannot write the {what}: {message}")]
    Encode {
        /// What was written.
        what: &'static str,
        /// The library's answer.
        message: String,
    },
}

impl FileFormat {
    /// Durations can be drawn in it.
    ///
    /// # Errors
    /// [`OutputError::NoHistogram`].
    pub fn may_have_durations(self) -> Result<(), OutputError> {
        match self {
            Self::Text | Self::Json | Self::Html => Ok(()),
            Self::Svg | Self::Folded | Self::Pprof | Self::Speedscope | Self::Firefox | Self::Chrome => {
                Err(OutputError::NoHistogram)
            }
        }
    }

    /// Calls in order can be written in it.
    ///
    /// # Errors
    /// [`OutputError::NoCalls`].
    pub fn may_have_calls(self) -> Result<(), OutputError> {
        match self {
            Self::Text | Self::Json | Self::Chrome => Ok(()),
            Self::Html | Self::Svg | Self::Folded | Self::Pprof | Self::Speedscope | Self::Firefox => {
                Err(OutputError::NoCalls)
            }
        }
    }

    /// Each recorded call is in it, so that all of them must be held in memory.
    #[must_use]
    pub fn has_single_calls(self) -> bool {
        matches!(self, Self::Chrome | Self::Firefox)
    }

    /// The format of a file by its name.
    ///
    /// # Errors
    /// [`OutputError::UnknownExtension`], which lists the names accepted.
    pub fn of_path(path: &Path) -> Result<Self, OutputError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        ENDINGS
            .iter()
            .find(|(ending, _)| name.ends_with(ending))
            .map(|(_, format)| *format)
            .ok_or_else(|| OutputError::UnknownExtension(path.display().to_string()))
    }
}

/// How text is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextOptions {
    /// Columns.
    pub width: usize,
    /// ANSI colours.
    pub colours: bool,
    /// Functions shown.
    pub rows: usize,
}

impl Default for TextOptions {
    /// 100 columns, no colours, 30 functions: for files and pipes.
    fn default() -> Self {
        Self { width: 100, colours: false, rows: 30 }
    }
}

impl TextOptions {
    /// What suits standard output: the terminal's width and colours (unless `NO_COLOR` is set), or the
    /// default for a pipe.
    #[must_use]
    pub fn for_stdout() -> Self {
        let stdout = std::io::stdout();
        if !stdout.is_terminal() {
            return Self::default();
        }
        let width = terminal_width().unwrap_or(100).clamp(80, 160);
        Self { width, colours: std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()), ..Self::default() }
    }
}

fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Writes `report`, made from `recording`, in `format`.
///
/// # Errors
/// There is nothing to draw, or a library refuses.
pub fn render(
    report: &Report,
    recording: &Recording,
    format: FileFormat,
    options: TextOptions,
) -> Result<Vec<u8>, OutputError> {
    render_with(report, recording, format, options, &[])
}

/// The same, with distributions of durations: a page has them after the table; text and JSON are of them alone.
///
/// # Errors
/// As [`render`], and [`OutputError::NoHistogram`] where the format has no place for them.
pub fn render_with(
    report: &Report,
    recording: &Recording,
    format: FileFormat,
    options: TextOptions,
    distributions: &[Distribution],
) -> Result<Vec<u8>, OutputError> {
    if !distributions.is_empty() {
        return match format {
            FileFormat::Text => {
                let ours: &[&str] = if options.colours { &SEQUENCES } else { &[] };
                let text = distribution_text(distributions, options);
                Ok(printable_text(&text, ours).into_owned().into_bytes())
            }
            FileFormat::Json => json("distributions", distributions),
            FileFormat::Html => {
                Ok(html::page(&report.printable(), recording, options, distributions).into_bytes())
            }
            _ => Err(OutputError::NoHistogram),
        };
    }
    match format {
        FileFormat::Text => {
            // The report's texts are printable already; a text that was forgotten there is caught here.
            let ours: &[&str] = if options.colours { &SEQUENCES } else { &[] };
            Ok(printable_text(&text(report, options), ours).into_owned().into_bytes())
        }
        FileFormat::Json => json("report", report),
        FileFormat::Svg => flame::svg(&report.printable(), recording),
        FileFormat::Folded => flame::folded(recording),
        FileFormat::Pprof => pprof::profile(recording),
        FileFormat::Speedscope => json("speedscope profile", &speedscope::profile(recording)),
        FileFormat::Firefox => json("Firefox profile", &firefox::profile(recording)),
        FileFormat::Chrome => json("trace", &chrome::trace(recording)),
        FileFormat::Html => Ok(html::page(&report.printable(), recording, options, &[]).into_bytes()),
    }
}

/// Calls in order of single operations in `format`.
///
/// # Errors
/// The format is none that has a place for them.
pub fn render_calls(
    calls: &Calls,
    format: FileFormat,
    shown: CallsOptions,
    options: TextOptions,
) -> Result<Vec<u8>, OutputError> {
    match format {
        FileFormat::Text => {
            Ok(printable_text(&calls_text(calls, shown, options), &[]).into_owned().into_bytes())
        }
        FileFormat::Json => {
            let text = calls_json(calls)
                .map_err(|e| OutputError::Encode { what: "calls", message: e.to_string() })?;
            Ok((printable_json(&text).into_owned() + "\n").into_bytes())
        }
        FileFormat::Chrome => json("trace", &chrome_calls::trace(calls)),
        _ => Err(OutputError::NoCalls),
    }
}

/// The table and the receipt.
#[must_use]
pub fn text(report: &Report, options: TextOptions) -> String {
    let report = &report.printable();
    let mut out = table::table_text(report, options);
    out.push_str(&operations::text(report, options));
    out.push_str(&words::text(report, options));
    out.push('\n');
    out.push_str(&receipt_text(report, options));
    out
}

fn json<T: serde::Serialize + ?Sized>(what: &'static str, value: &T) -> Result<Vec<u8>, OutputError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| OutputError::Encode { what, message: e.to_string() })?;
    let mut bytes = printable_json(&text).into_owned().into_bytes();
    bytes.push(b'\n');
    Ok(bytes)
}
