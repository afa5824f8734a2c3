//! Durations for the terminal: the quantiles of each function, and the distribution of one.
//!
//! The quantiles stand in a table of their own, so that no width of a terminal takes them away.

use super::TextOptions;
use super::names::shorten;
use super::rows::shown;
use super::table::{BOLD, DIM, styled, wrap};
use super::units::{count, duration, duration_alone, duration_ns, percent};
use profiler_core::report::{Bin, Counted, Distribution, Report, Row};

/// Columns: heading, and the quantile.
pub(super) const QUANTILES: [(&str, f64); 4] = [("P50", 0.5), ("P90", 0.9), ("P99", 0.99), ("MAX", 1.0)];
const HEADING: &str = "TIME OF A CALL";
/// Narrowest and widest column of names.
const NAMES: (usize, usize) = (16, 60);
/// Widest bar of a distribution.
const BAR: usize = 60;

pub(super) const LEGEND: &str = "what probes cost is taken out; MAX is the longest call that was timed; ≤: shorter than what that cost is known to; \
                      ≥, ?: calls that were not timed may have taken any time";

/// The table of quantiles; empty where nothing was timed.
pub(super) fn text(report: &Report, options: TextOptions) -> String {
    let rows = timed(shown(report, options));
    if rows.is_empty() {
        return String::new();
    }
    let longest = rows.iter().map(|r| r.shown_name().chars().count()).max().unwrap_or(0).max(HEADING.len());
    // Intervals give way from the right.
    let mut with = (0..=QUANTILES.len()).rev().map(|n| columns(&rows, n));
    let fits = |c: &Vec<Vec<String>>| width(c) + longest.min(NAMES.0.max(24)) <= options.width;
    let columns = with.find(fits).unwrap_or_else(|| columns(&rows, 0));
    let room = options.width.saturating_sub(width(&columns)).max(NAMES.0);
    let name_width = longest.min(room).min(NAMES.1);
    let mut out = String::from("\n");
    for i in 0..=rows.len() {
        let name = if i == 0 { HEADING.to_owned() } else { shorten(rows[i - 1].shown_name(), name_width) };
        let mut line = format!("{name:<name_width$}");
        for column in &columns {
            line.push_str(&format!("  {:>w$}", column[i], w = widest(column)));
        }
        out.push_str(&styled(line.trim_end(), BOLD, options.colours && i == 0));
        out.push('\n');
    }
    out.push_str(&styled(&wrap(LEGEND, options.width, ""), DIM, options.colours));
    out.push('\n');
    out
}

/// Those of the table's rows whose calls were timed.
pub(super) fn timed(mut rows: Vec<&Row>) -> Vec<&Row> {
    rows.retain(|r| !r.quantiles_ns.is_empty());
    rows
}

/// Heading and cells of each column, the first `intervals` of them with intervals.
pub(super) fn columns(rows: &[&Row], intervals: usize) -> Vec<Vec<String>> {
    let quantile = |(i, (heading, p)): (usize, &(&str, f64))| {
        let cell = |r: &&Row| {
            let found = r.quantiles_ns.iter().find(|(q, _)| (q - p).abs() < 1e-9);
            found
                .map(|(_, e)| if i < intervals { duration(e) } else { duration_alone(e) })
                .unwrap_or_default()
        };
        std::iter::once((*heading).to_owned()).chain(rows.iter().map(cell)).collect()
    };
    let timed = |r: &&Row| {
        let n = r.quantiles_ns.iter().map(|(_, e)| e.n).max();
        n.map(|n| count(n as f64)).unwrap_or_default()
    };
    let timed = std::iter::once("TIMED".to_owned()).chain(rows.iter().map(timed)).collect();
    QUANTILES.iter().enumerate().map(quantile).chain([timed]).collect()
}

fn widest(column: &[String]) -> usize {
    column.iter().map(|t| t.chars().count()).max().unwrap_or(0)
}

fn width(columns: &[Vec<String>]) -> usize {
    columns.iter().map(|c| widest(c) + 2).sum()
}

/// Title of a distribution.
pub(super) fn title(d: &Distribution) -> String {
    let what = match d.unit {
        Counted::Calls => "calls",
        Counted::Operations if d.sampled => "recorded operations",
        Counted::Operations => "operations",
    };
    let taken = if d.taken_ns > 0.0 {
        format!("; {} of probe cost taken out of each on average", duration_ns(d.taken_ns))
    } else {
        String::new()
    };
    format!("{}: {} {what}{taken}", d.name, count(d.n as f64))
}

/// From what to what a bin reaches.
pub(super) fn range(bin: &Bin) -> String {
    if bin.low_ns <= 0.0 {
        return format!("≤ {}", duration_ns(bin.high_ns));
    }
    format!("{} to {}", duration_ns(bin.low_ns), duration_ns(bin.high_ns))
}

/// Count of a bin, its share, and the share of it and all before it.
pub(super) fn shares(d: &Distribution) -> Vec<(f64, f64, f64)> {
    let all: f64 = d.bins.iter().map(|b| b.count).sum::<f64>().max(f64::MIN_POSITIVE);
    let mut until = 0.0;
    let of = |b: &Bin| {
        until += b.count;
        (b.count, b.count / all, (until / all).min(1.0))
    };
    d.bins.iter().map(of).collect()
}

/// The distribution of a function's or an operation's durations, a bar for each bin.
#[must_use]
pub fn distribution_text(distributions: &[Distribution], options: TextOptions) -> String {
    let mut out = String::new();
    for d in distributions {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&styled(&wrap(&title(d), options.width, "  "), BOLD, options.colours));
        out.push('\n');
        let shares = shares(d);
        let cells: Vec<[String; 4]> =
            std::iter::once(["TIME", "COUNT", "SHARE", "UP TO"].map(String::from))
                .chain(d.bins.iter().zip(&shares).map(|(bin, (n, share, until))| {
                    [range(bin), count(*n), percent(*share), percent(*until)]
                }))
                .collect();
        let widths = [0, 1, 2, 3].map(|i| cells.iter().map(|c| c[i].chars().count()).max().unwrap_or(0));
        let used = widths.iter().map(|w| w + 2).sum::<usize>();
        let room = options.width.saturating_sub(used).clamp(8, BAR);
        let most = shares.iter().map(|s| s.0).fold(f64::MIN_POSITIVE, f64::max);
        for (i, row) in cells.iter().enumerate() {
            let n = if i == 0 { 0.0 } else { shares[i - 1].0 };
            let [time, n_text, share, until] = row;
            let line = format!(
                "{time:>a$}  {n_text:>b$}  {share:>c$}  {until:>d$}  {}",
                bar(n / most, room),
                a = widths[0],
                b = widths[1],
                c = widths[2],
                d = widths[3]
            );
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
    out
}

/// A bar of a share of `room` characters, in eighths; what is not nothing has at least one.
fn bar(share: f64, room: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if share <= 0.0 {
        return String::new();
    }
    // OK because the share is at most 1 and a terminal is narrow.
    let eighths = ((share.min(1.0) * room as f64 * 8.0).round() as usize).max(1);
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}
