//! The table of functions for the terminal.
//!
//! Every number carries the letter of its source and the half-width of its interval. Columns give way from
//! the right, in the order of their importance, until the table fits; the function's name takes what is left.

use super::TextOptions;
use super::names::shorten;
use super::notes::notes;
use super::rows::{seen, shown, unseen};
use super::units::{count, duration_ns, percent, plus_minus, si, source_letter};
use profiler_core::estimate::Estimate;
use profiler_core::report::{Report, Row};

/// Narrowest column of function names.
const NAME_MIN: usize = 24;
/// Widest.
const NAME_MAX: usize = 60;

pub(super) const BOLD: &str = "\x1b[1m";
pub(super) const DIM: &str = "\x1b[2m";
pub(super) const RED: &str = "\x1b[31m";
pub(super) const GREEN: &str = "\x1b[32m";
const RESET: &str = "\x1b[0m";

/// `text` in an ANSI style, if colours are on.
pub(super) fn styled(text: &str, style: &str, on: bool) -> String {
    if on && !text.is_empty() { format!("{style}{text}{RESET}") } else { text.to_owned() }
}

pub(super) const COUNTED: &str = "COUNTED";
pub(super) const HOW: &str = "HOW";

/// One column, of the terminal's table and of the page's.
pub(super) struct Column {
    pub(super) heading: &'static str,
    /// 1 goes first when room is short.
    importance: u8,
    /// What the cell shows, where that is a figure.
    pub(super) estimate: fn(&Row) -> Option<Estimate>,
    /// The text of a row's cell, made of that figure; empty: nothing is known.
    text: fn(&Row, Option<&Estimate>) -> String,
    /// A value of the figure, or an end of its interval, in the column's unit.
    pub(super) value: fn(f64) -> String,
}

impl Column {
    /// The text of a row's cell; empty: nothing is known.
    pub(super) fn cell(&self, row: &Row) -> String {
        (self.text)(row, (self.estimate)(row).as_ref())
    }
}

pub(super) const COLUMNS: &[Column] = &[
    Column { heading: "CPU", importance: 9, estimate: |r| r.share, text: |_, e| share(e), value: percent },
    Column {
        heading: "SELF",
        importance: 4,
        estimate: |r| r.self_share,
        text: |_, e| share(e),
        value: percent,
    },
    Column {
        heading: "CALLS",
        importance: 8,
        estimate: |r| r.calls,
        text: |_, e| at_least(e, exact_count),
        value: si,
    },
    Column {
        heading: COUNTED,
        importance: 3,
        estimate: |r| r.counted.map(|n| Estimate::exact(n as f64, n)),
        text: |r, _| counted(r),
        value: count,
    },
    Column {
        heading: "CALLS/S",
        importance: 2,
        estimate: |r| r.rate_hz,
        text: |_, e| at_least(e, |e| si(e.value)),
        value: per_second,
    },
    Column {
        heading: "CPU/CALL",
        importance: 5,
        estimate: |r| r.on_cpu_ns,
        text: cpu_per_call,
        value: duration_ns,
    },
    Column {
        heading: "TIME/CALL",
        importance: 7,
        estimate: |r| r.mean_ns,
        text: |_, e| number(e, |e| duration_ns(e.value)),
        value: duration_ns,
    },
    Column { heading: HOW, importance: 6, estimate: |_| None, text: |r, _| how(r), value: si },
];

fn per_second(rate: f64) -> String {
    format!("{} /s", si(rate))
}

/// A share of CPU with its interval in points: `42.1 ±2.1 %`.
pub(super) fn share(e: Option<&Estimate>) -> String {
    let Some(e) = e else { return String::new() };
    if e.low == e.high {
        return percent(e.value);
    }
    format!("{:.1} ±{:.1} %", e.value * 100.0, e.half_width() * 100.0)
}

/// A number, its interval and the letter of its source: `1.30 us ±3 % D`; `≤ 1.30 us D` of a limit, and where nothing was seen of what
/// may be.
pub(super) fn number(e: Option<&Estimate>, text: impl Fn(&Estimate) -> String) -> String {
    let Some(e) = e else { return String::new() };
    let letter = source_letter(e.source);
    if e.at_most || (e.value == 0.0 && e.low < e.high) {
        let limit = Estimate { value: e.high, ..*e };
        return if e.high.is_finite() { format!("≤ {} {letter}", text(&limit)) } else { "?".to_owned() };
    }
    let pm = plus_minus(e);
    if pm.is_empty() { format!("{} {letter}", text(e)) } else { format!("{} {pm} {letter}", text(e)) }
}

/// The same of a rate, or of what follows from it; `≥ 4.12 M B` where nothing bounds it from above.
pub(super) fn at_least(e: Option<&Estimate>, text: impl Fn(&Estimate) -> String) -> String {
    match e {
        Some(e) if e.high.is_infinite() && e.low > 0.0 => {
            format!("≥ {} {}", text(&Estimate { value: e.low, ..*e }), source_letter(e.source))
        }
        _ => number(e, text),
    }
}

/// CPU time per call; `≤ 2.30 ns D` where the rate is a lower limit.
pub(super) fn cpu_per_call(r: &Row, e: Option<&Estimate>) -> String {
    let bound = r.rate_hz.is_some_and(|rate| rate.high.is_infinite());
    match e {
        Some(e) if bound && e.high.is_finite() => {
            format!("≤ {} {}", duration_ns(e.high), source_letter(e.source))
        }
        e => number(e, |e| duration_ns(e.value)),
    }
}

/// Exact counts in full, estimates with three digits: more would claim more than is known.
pub(super) fn exact_count(e: &Estimate) -> String {
    if e.low == e.high { count(e.value) } else { si(e.value) }
}

/// `trace`, `burst 3 %`, `sample`: the plan's decision and the share of the run attached.
pub(super) fn how(row: &Row) -> String {
    match row.decision.as_str() {
        "burst" => format!("burst {}", percent(row.watched_share)),
        "trace" if row.watched_share > 0.0 && row.watched_share < 0.995 => {
            format!("trace {}", percent(row.watched_share))
        }
        other => other.to_owned(),
    }
}

/// What was counted, and in which part of the run: `369,000 in 3.0 %`. Empty where that is all of it, and the calls are that count.
fn counted(row: &Row) -> String {
    if row.watched_share > 0.9999 && row.calls.is_some_and(|calls| calls.low == calls.high) {
        return String::new();
    }
    counted_in(row)
}

/// The same, of each row that was watched.
pub(super) fn counted_in(row: &Row) -> String {
    let Some(n) = row.counted.filter(|_| row.watched_share > 0.0) else { return String::new() };
    format!("{} in {}", count(n as f64), percent(row.watched_share))
}

/// The title line.
pub(super) fn title(report: &Report) -> String {
    // Programs that write their own title leave the rest of their arguments blank.
    format!("{} (pid {}): {}", report.target.trim_end(), report.pid, run(report))
}

/// The run in words, for the title.
pub(super) fn run(report: &Report) -> String {
    let seconds = duration_ns(report.duration_s * 1e9);
    let u = &report.target_cpu;
    let cpus = match u {
        u if u.low == u.high => format!("{:.2} CPUs", u.value),
        u if u.value == 0.0 => format!("≤ {:.2} CPUs", u.high),
        u => format!("{:.2} CPUs {}", u.value, plus_minus(u)),
    };
    // Below this it is the chance of sampling.
    let seen = 1.0 - report.cpu_not_sampled;
    let of = if seen < 0.95 { format!(" of {:.0} % of the CPU time", seen * 100.0) } else { String::new() };
    format!(
        "{seconds}, {cpus}, {} samples{of}, budget {}",
        count(report.samples as f64),
        report.receipt.budget
    )
}

/// The table of the hottest functions, with its legend and notes.
pub(super) fn table_text(report: &Report, options: TextOptions) -> String {
    let colours = options.colours;
    let mut out = format!("{}\n\n", styled(&title(report), BOLD, colours));
    let rows = shown(report, options);
    if rows.is_empty() {
        out.push_str("nothing was observed: no samples and no calls\n");
        for line in unseen(report) {
            out.push_str(&format!("{}\n", wrap(&line, options.width, "  ")));
        }
        return out;
    }

    // Columns without any content are left out; then the least important go until the rest fits.
    let mut columns: Vec<(&Column, Vec<String>, usize)> = COLUMNS
        .iter()
        .map(|c| {
            let cells: Vec<String> = rows.iter().map(|r| c.cell(r)).collect();
            let width = cells.iter().map(|t| t.chars().count()).max().unwrap_or(0).max(c.heading.len());
            (c, cells, width)
        })
        .filter(|(_, cells, _)| cells.iter().any(|t| !t.is_empty()))
        .collect();
    let used = |columns: &[(&Column, Vec<String>, usize)]| columns.iter().map(|c| c.2 + 2).sum::<usize>();
    while used(&columns) + NAME_MIN > options.width {
        let Some(least) = (0..columns.len()).min_by_key(|i| columns[*i].0.importance) else { break };
        columns.remove(least);
    }
    let longest =
        rows.iter().map(|r| r.shown_name().chars().count()).max().unwrap_or(0).max("FUNCTION".len());
    let room = options.width.saturating_sub(used(&columns)).max(NAME_MIN);
    let name_width = longest.min(room).min(NAME_MAX);

    let mut heading = format!("{:<name_width$}", "FUNCTION");
    for (column, _, width) in &columns {
        heading.push_str(&format!("  {:>width$}", column.heading));
    }
    out.push_str(&styled(heading.trim_end(), BOLD, colours));
    out.push('\n');
    for (i, row) in rows.iter().enumerate() {
        let name = shorten(row.shown_name(), name_width);
        let pad = name_width - name.chars().count();
        let traced = row.decision != "sample";
        let mut line =
            format!("{}{:pad$}", styled(&name, if traced { GREEN } else { "" }, colours && traced), "");
        for (_, cells, width) in &columns {
            line.push_str(&format!("  {:>width$}", cells[i]));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    if seen(report) > rows.len() {
        out.push_str(&format!("… and {} more (--rows)\n", seen(report) - rows.len()));
    }
    for line in unseen(report) {
        out.push_str(&format!("{}\n", wrap(&line, options.width, "  ")));
    }
    let mut legend = "CPU, SELF from samples; E exact, B burst (scaled from windows), S sampled, D derived (CPU/CALL = share / rate); \
                      ± half the interval's width (95 %)"
        .to_owned();
    if columns.iter().any(|(column, ..)| column.heading == COUNTED) {
        legend.push_str("; COUNTED exact, in the part of the run that was watched");
    }
    out.push_str(&styled(&wrap(&legend, options.width, ""), DIM, colours));
    out.push('\n');
    out.push_str(&super::durations::text(report, options));
    out.push_str(&incidents(report, options));
    let notes = notes(report, &rows);
    if !notes.is_empty() {
        out.push('\n');
        for note in notes {
            out.push_str(&wrap(&note, options.width, "  "));
            out.push('\n');
        }
    }
    out.push_str(&sharper(report, options));
    out
}

/// Calls that took longer than models explain, with their heading.
fn incidents(report: &Report, options: TextOptions) -> String {
    let lines = super::incidents::lines(report);
    if lines.is_empty() {
        return String::new();
    }
    let mut out = styled("\nLONGER THAN EXPECTED\n", BOLD, options.colours);
    for line in lines {
        let indent = line.len() - line.trim_start().len();
        let text = wrap(line.trim_start(), options.width.saturating_sub(indent + 2), &" ".repeat(indent + 4));
        out.push_str(&format!("  {:indent$}{text}\n", ""));
    }
    out
}

/// What would be sharper, with its heading.
fn sharper(report: &Report, options: TextOptions) -> String {
    let lines = super::sharper::lines(report);
    if lines.is_empty() {
        return String::new();
    }
    let mut out = styled("\nCALLS/S WOULD BE SHARPER\n", BOLD, options.colours);
    for line in lines {
        out.push_str(&wrap(&format!("  {line}"), options.width, "    "));
        out.push('\n');
    }
    out
}

/// Units, which stay with their number.
const UNITS: &[&str] = &["%", "ns", "us", "ms", "s", "min", "KiB", "MiB", "GiB"];

/// Breaks `text` at spaces, not between a number and its unit; lines after the first begin with `indent`.
pub(crate) fn wrap(text: &str, width: usize, indent: &str) -> String {
    let is_unit = |word: &str| UNITS.contains(&word.trim_end_matches([',', ';', ')', ':']));
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match words.last_mut() {
            Some(last) if is_unit(word) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    let mut out = String::new();
    let mut column = 0;
    for word in &words {
        let len = word.chars().count();
        if column > 0 && column + 1 + len > width {
            out.push('\n');
            out.push_str(indent);
            column = indent.chars().count();
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += len;
    }
    out
}
