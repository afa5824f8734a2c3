//! Which rows a table has, and what is said of those that it leaves out.

use super::TextOptions;
use super::names::shorten;
use super::units::count;
use profiler_core::class::RecordKind;
use profiler_core::report::{Report, Row};

/// Functions named in a sentence.
const SAID: usize = 5;
/// Longest name in a sentence.
const NAME: usize = 40;

/// The rows of the table: those that were named, which leave half of the places to the hottest of the others, and as many again of those whose
/// durations were asked for. Who asks for one is shown it, whether or not it is hot.
pub(super) fn shown(report: &Report, options: TextOptions) -> Vec<&Row> {
    let seen = report.rows.iter().filter(|row| !row.is_unseen());
    let (named, others): (Vec<&Row>, Vec<&Row>) = seen.partition(|row| row.named);
    let places = options.rows - others.len().min(options.rows / 2);
    let (first, rest) = named.split_at(named.len().min(places));
    let (hottest, others) = others.split_at(others.len().min(options.rows - first.len()));
    let asked = |row: &&&Row| matches!(row.kind, Some(RecordKind::Latency | RecordKind::Record));
    let more = rest.iter().chain(others).filter(asked).take(options.rows);
    let mut shown: Vec<&Row> = first.to_vec();
    // What was named stands together.
    let (named, others): (Vec<&Row>, Vec<&Row>) = more.copied().partition(|row| row.named);
    shown.extend(named.into_iter().chain(hottest.iter().copied()).chain(others));
    shown
}

/// How many rows have something to show.
pub(super) fn seen(report: &Report) -> usize {
    report.rows.iter().filter(|row| !row.is_unseen()).count()
}

/// What is said of functions of which nothing was seen: a line for those that were watched, and one for the others.
pub(super) fn unseen(report: &Report) -> Vec<String> {
    let line = |watched: bool, what: &str| {
        let rows: Vec<&Row> = report
            .rows
            .iter()
            .filter(|row| row.is_unseen() && (row.watched_share > 0.0) == watched)
            .collect();
        let (functions, were) = if rows.len() == 1 { ("function", "was") } else { ("functions", "were") };
        let named: Vec<&str> = rows.iter().filter(|row| row.named).map(|row| row.shown_name()).collect();
        let named = match named.len() {
            0 => String::new(),
            n if n == rows.len() => format!(": {}", list(&named)),
            _ => format!(", named of them: {}", list(&named)),
        };
        let line = format!("{} {functions} {were} {what}{named}", count(rows.len() as f64));
        (!rows.is_empty()).then_some(line)
    };
    [line(true, "watched and never called"), line(false, "neither watched nor sampled")]
        .into_iter()
        .flatten()
        .collect()
}

/// `a`, `a, b`, `a, b and 10 more`.
pub(super) fn list(names: &[&str]) -> String {
    let said: Vec<String> = names.iter().take(SAID).map(|name| shorten(name, NAME)).collect();
    match names.len().saturating_sub(SAID) {
        0 => said.join(", "),
        more => format!("{} and {more} more", said.join(", ")),
    }
}
