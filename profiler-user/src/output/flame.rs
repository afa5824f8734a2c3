//! Flame graph (SVG) and folded stacks, from the samples.

use super::stacks::{folded as folded_stacks, one_period};
use super::units::count;
use super::{OutputError, table};
use inferno::flamegraph::{self, Options, color};
use profiler_core::recording::Recording;
use profiler_core::report::Report;

/// Folded stacks, one a line: `outer;inner weight`.
pub(super) fn folded(recording: &Recording) -> Result<Vec<u8>, OutputError> {
    if recording.samples.is_empty() {
        return Err(OutputError::NoSamples("folded stack"));
    }
    let mut out = String::new();
    for (stack, weight) in folded_stacks(recording) {
        out.push_str(&format!("{stack} {weight}\n"));
    }
    Ok(out.into_bytes())
}

/// Flame graph. The title says that it shows samples, and how many.
pub(super) fn svg(report: &Report, recording: &Recording) -> Result<Vec<u8>, OutputError> {
    if recording.samples.is_empty() {
        return Err(OutputError::NoSamples("flame graph"));
    }
    let by_count = one_period(recording);
    let mut options = Options::default();
    options.title = format!("{} (pid {}): on-CPU samples", report.target, report.pid);
    options.subtitle = Some(format!(
        "n = {} samples in {:.1} s, sampled, not counted: a frame of k samples has a relative error of about 1/sqrt(k)",
        count(recording.samples.len() as f64),
        report.duration_s
    ));
    options.count_name = if by_count { "samples" } else { "us of CPU time" }.to_owned();
    options.colors = color::Palette::Multi(color::MultiPalette::Java);
    // The same recording gives the same picture.
    options.deterministic = true;
    options.notes = table::title(report);
    let lines: Vec<String> =
        folded_stacks(recording).into_iter().map(|(stack, n)| format!("{stack} {n}")).collect();
    let mut out = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut out)
        .map_err(|e| OutputError::Encode { what: "flame graph", message: e.to_string() })?;
    Ok(out)
}
