//! What a reader must know of single rows, below the table: each remark once, with the rows that it is about.
//!
//! Remarks that differ in their figures alone are one remark. Where we know the figure, it stands behind the name of its row; else the
//! first row's figures stand in the remark, which says so.

use super::names::shorten;
use super::precision;
use super::rows::list;
use super::units::{count, duration_ns};
use profiler_core::report::{Report, Row};

/// Figures that a remark has, each with its rows.
const FIGURES: usize = 5;
/// Longest name beside a figure.
const NAME: usize = 40;

/// A remark on one row.
struct Remark {
    /// Words; those of another row may differ in their numbers.
    text: String,
    /// What the words say of this row; empty: they say all.
    figure: String,
}

/// The remarks on `rows`, and on functions that the user named and that have no row.
pub(super) fn notes(report: &Report, rows: &[&Row]) -> Vec<String> {
    let mut groups: Vec<(String, Vec<(&str, Remark)>)> = Vec::new();
    let unseen = report.rows.iter().filter(|row| row.named && row.is_unseen());
    for row in rows.iter().copied().chain(unseen) {
        for remark in remarks(row, report) {
            let alike = without_numbers(&remark.text);
            match groups.iter_mut().find(|(key, _)| *key == alike) {
                Some((_, of)) => of.push((row.shown_name(), remark)),
                None => groups.push((alike, vec![(row.shown_name(), remark)])),
            }
        }
    }
    groups.iter().map(|(_, of)| line(of)).collect()
}

/// One remark on several rows.
fn line(of: &[(&str, Remark)]) -> String {
    // OK because a group has a row.
    let (first, Remark { text, figure }) = &of[0];
    if !figure.is_empty() {
        let mut figures: Vec<(&str, Vec<&str>)> = Vec::new();
        for (name, remark) in of {
            match figures.iter_mut().find(|(figure, _)| *figure == remark.figure) {
                Some((_, names)) => names.push(name),
                None => figures.push((&remark.figure, vec![name])),
            }
        }
        let said = figures.iter().take(FIGURES).map(|(figure, names)| format!("{} {figure}", list(names)));
        let said: Vec<String> = said.collect();
        let more = match figures.iter().skip(FIGURES).map(|(_, names)| names.len()).sum::<usize>() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        return format!("{text}: {}{more}", said.join(", "));
    }
    let names: Vec<&str> = of.iter().map(|(name, _)| *name).collect();
    let differ = of.iter().any(|(_, remark)| remark.text != *text);
    let whose =
        if differ { format!(" (figures of {}; others differ)", shorten(first, NAME)) } else { String::new() };
    format!("{}: {text}{whose}", list(&names))
}

/// What is to be said of a row, in the order in which it matters.
fn remarks(row: &Row, report: &Report) -> Vec<Remark> {
    let lost = format!("{} of {} hits lost", row.dropped, row.attempted);
    // Said with its figure, below.
    let is_lost = |note: &&String| row.dropped > 0 && note.starts_with(&lost);
    let notes = row.notes.iter().filter(|note| !is_lost(note));
    let mut all: Vec<Remark> =
        notes.map(|note| Remark { text: note.clone(), figure: String::new() }).collect();
    if row.dropped > 0 {
        let why = row.notes.iter().find_map(|note| note.strip_prefix(&lost)).unwrap_or_default();
        let figure = format!("{} of {}", count(row.dropped as f64), count(row.attempted as f64));
        all.push(Remark { text: format!("hits lost{why}"), figure });
    }
    if row.correction_ns > 0.0 {
        let text = "probe cost taken out of TIME/CALL".to_owned();
        all.push(Remark { text, figure: duration_ns(row.correction_ns) });
    }
    if let Some(precision) = &row.precision {
        let (text, figure) = precision::words(precision, row.watched_share, report);
        all.push(Remark { text, figure });
    }
    all
}

/// Words with `0` for each number: what two remarks have in common that differ in their figures alone.
fn without_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '0'..='9' if out.ends_with('0') => {}
            '0'..='9' => out.push('0'),
            c => out.push(c),
        }
    }
    out
}
