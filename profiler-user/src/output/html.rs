//! One self-contained page: table, receipt, flame graph. No network, no fonts, no libraries; a script of its own sorts, searches and zooms, and
//! without it the page is a plain table.
//!
//! Rows, their order, names and figures are those of the terminal ([`super::table`], [`super::rows`], [`super::durations`]). Where the terminal
//! has a letter, a word says whether a figure is exact or an estimate, and from what.

mod flame;
mod models;

pub(super) use models::models_page;

use super::notes::notes;
use super::receipt::lines;
use super::rows::{seen, shown, unseen};
use super::table::{COLUMNS, COUNTED, HOW, counted_in, run, title};
use super::units::{count, duration_ns, memory, percent, source_letter};
use super::{TextOptions, durations, operations};
use profiler_core::class::Source;
use profiler_core::estimate::Estimate;
use profiler_core::recording::Recording;
use profiler_core::report::{Distribution, OperationReport, Report, Row};
use profiler_core::text::printable;

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");

/// SHA-256 of [`SCRIPT`], as a page's policy has it: the one script that a browser runs, whatever a name may hold.
const SCRIPT_SHA256: &str = "ykSKCHdNxGop0Myyt2zHYi7I25bIKSsF5XDiF2gcm4U=";

/// Text that cannot become markup, on one line.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A figure as a page shows it.
struct Figure {
    /// As in the terminal; empty: nothing is known.
    text: String,
    estimate: Option<Estimate>,
    /// A value of the estimate, or an end of its interval, as people read it.
    value: fn(f64) -> String,
    /// What rows are sorted by where that is not the estimate.
    order: Option<f64>,
}

impl Figure {
    fn is_exact(&self) -> bool {
        self.estimate.is_some_and(|e| e.low == e.high)
    }

    fn is_limit(&self) -> bool {
        ['≤', '≥'].iter().any(|sign| self.text.starts_with(*sign))
    }

    /// Exact, an estimate or a limit, and from what, or unknown; empty where there is no figure.
    fn word(&self) -> &'static str {
        let Some(e) = self.estimate.filter(|_| !self.text.is_empty()) else { return "" };
        match (e.source, self.is_limit()) {
            _ if self.is_exact() => "exact",
            _ if self.text.starts_with('?') => "unknown",
            (Source::Exact, true) => "limit, all calls",
            (Source::Exact, false) => "estimate, all calls",
            (Source::Burst, true) => "limit, bursts",
            (Source::Burst, false) => "estimate, bursts",
            (Source::Sampled, true) => "limit, samples",
            (Source::Sampled, false) => "estimate, samples",
            (Source::Derived, true) => "limit, derived",
            (Source::Derived, false) => "estimate, derived",
        }
    }

    /// What rows are sorted by: the number that is shown.
    fn key(&self) -> Option<f64> {
        if self.order.is_some() && !self.text.is_empty() {
            return self.order;
        }
        let e = self.estimate.filter(|_| !self.text.is_empty())?;
        let key = match self.text.chars().next()? {
            '≥' => e.low,
            '≤' => e.high,
            '?' => return None,
            _ => e.value,
        };
        key.is_finite().then_some(key)
    }

    /// The cell. `said`: the heading says the word already. `bar`: the share that is drawn behind the figure.
    fn cell(&self, said: bool, bar: Option<f64>) -> String {
        if self.text.is_empty() {
            return "<td></td>".to_owned();
        }
        let key = self.key().map(|key| key.to_string()).unwrap_or_default();
        let Some(e) = &self.estimate else {
            let key = self.order.map(|_| format!(" data-v=\"{key}\"")).unwrap_or_default();
            return format!("<td{key}>{}</td>", escape(&self.text));
        };
        // The letter's place is taken by the word.
        let text = self.text.strip_suffix(source_letter(e.source)).map_or(self.text.as_str(), str::trim_end);
        let tip = format!(
            "{} ({} to {}, {:.0} %), n = {}, {}",
            (self.value)(e.value),
            (self.value)(e.low),
            (self.value)(e.high),
            e.level * 100.0,
            count(e.n as f64),
            e.source.name()
        );
        let tip = if self.is_exact() { "exact".to_owned() } else { tip };
        let class = match (self.is_exact(), bar.is_some()) {
            (true, true) => " class=\"exact share\"",
            (true, false) => " class=\"exact\"",
            (false, true) => " class=\"share\"",
            (false, false) => "",
        };
        let bar = bar.map(|share| format!(" style=\"--w:{:.1}%\"", (share * 100.0).clamp(0.0, 100.0)));
        let bar = bar.unwrap_or_default();
        let word = if said { String::new() } else { format!("<small>{}</small>", self.word()) };
        format!("<td{class}{bar} data-v=\"{key}\" title=\"{}\">{}{word}</td>", escape(&tip), escape(text))
    }
}

/// Heading and one figure a row; columns without content are left out.
type Column = (String, Vec<Figure>);

/// A table that the script sorts and searches: names of functions, then columns.
fn rows_table(id: &str, heading: &str, rows: &[&Row], columns: &[Column]) -> String {
    let columns: Vec<&Column> =
        columns.iter().filter(|(_, cells)| cells.iter().any(|c| !c.text.is_empty())).collect();
    // A word that all figures of a column share stands in its heading.
    let common: Vec<Option<&str>> = columns
        .iter()
        .map(|(_, cells)| {
            let mut words = cells.iter().map(Figure::word).filter(|word| !word.is_empty());
            let first = words.next()?;
            words.all(|word| word == first).then_some(first)
        })
        .collect();
    let mut out =
        format!("<div class=\"wide\"><table class=\"rows\" id=\"{id}\"><thead><tr><th>{heading}</th>");
    for ((heading, _), word) in columns.iter().zip(&common) {
        let class = if *word == Some("exact") { " class=\"exact\"" } else { "" };
        let word = word.map(|word| format!("<small{class}>{word}</small>")).unwrap_or_default();
        out.push_str(&format!("<th>{}{word}</th>", escape(heading)));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for (i, r) in rows.iter().enumerate() {
        let named = if r.named { " class=\"named\"" } else { "" };
        out.push_str(&format!(
            "<tr{named}><td title=\"{}\">{}<small>{}</small></td>",
            escape(&r.name),
            escape(r.shown_name()),
            escape(&r.module)
        ));
        for ((heading, cells), word) in columns.iter().zip(&common) {
            let bar = r.share.filter(|_| heading == "CPU").map(|share| share.value);
            out.push_str(&cells[i].cell(word.is_some(), bar));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// The columns of the terminal's table, all of them. What was counted is shown of every row that was watched.
fn columns(rows: &[&Row]) -> Vec<Column> {
    let column = |c: &super::table::Column| {
        let figure = |r: &&Row| Figure {
            text: if c.heading == COUNTED { counted_in(r) } else { c.cell(r) },
            estimate: (c.estimate)(r),
            value: c.value,
            order: (c.heading == HOW).then_some(r.watched_share),
        };
        (c.heading.to_owned(), rows.iter().map(figure).collect())
    };
    COLUMNS.iter().map(column).collect()
}

/// The columns of the terminal's table of durations, with all intervals.
fn duration_columns(rows: &[&Row]) -> Vec<Column> {
    let texts = durations::columns(rows, durations::QUANTILES.len());
    let column = |(i, texts): (usize, &Vec<String>)| {
        let figure = |(r, text): (&&Row, &String)| {
            let quantile = durations::QUANTILES.get(i).map(|(_, p)| *p);
            let found = |p: f64| r.quantiles_ns.iter().find(|(q, _)| (q - p).abs() < 1e-9).map(|(_, e)| *e);
            let timed =
                || r.quantiles_ns.iter().map(|(_, e)| e.n).max().map(|n| Estimate::exact(n as f64, n));
            let value = if quantile.is_some() { duration_ns } else { count };
            Figure { text: text.clone(), estimate: quantile.map_or_else(timed, found), value, order: None }
        };
        (texts[0].clone(), rows.iter().zip(&texts[1..]).map(figure).collect())
    };
    texts.iter().enumerate().map(column).collect()
}

/// Distributions of durations, a bar for each bin.
fn distributions(distributions: &[Distribution]) -> String {
    let mut out = String::new();
    for d in distributions {
        out.push_str(&format!(
            "<h2>{}</h2>\n<table class=\"bins\"><tr><td>Time<td>Count<td>Share<td>Up to<td></tr>\n",
            escape(&durations::title(d))
        ));
        let shares = durations::shares(d);
        let most = shares.iter().map(|s| s.1).fold(f64::MIN_POSITIVE, f64::max);
        for (bin, (n, share, until)) in d.bins.iter().zip(&shares) {
            out.push_str(&format!(
                "<tr><td>{}<td>{}<td>{}<td>{}<td class=\"bar\" style=\"--w:{:.1}%\"></tr>\n",
                escape(&durations::range(bin)),
                count(*n),
                percent(*share),
                percent(*until),
                100.0 * share / most
            ));
        }
        out.push_str("</table>\n");
    }
    out
}

/// An operation: its table of classes as in the terminal, and what is said of the sample.
fn operation(o: &OperationReport, rows: usize) -> String {
    let mut out = format!("<h2>{}</h2>\n<div class=\"wide\"><table>", escape(&operations::title(o)));
    for (i, row) in operations::cells(o, rows).iter().enumerate() {
        let tag = if i == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        out.push_str(&format!("<tr>{cells}</tr>\n"));
    }
    out.push_str("</table></div>\n");
    if o.classes.len() > rows {
        out.push_str(&format!("<p>… and {} more (--rows)</p>\n", o.classes.len() - rows));
    }
    out.push_str(&items(&operations::lines(o)));
    out
}

/// A list; empty without items.
fn items(items: &[String]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items: String = items.iter().map(|item| format!("<li>{}</li>\n", escape(item))).collect();
    format!("<ul>\n{items}</ul>\n")
}

/// A list with a heading; empty without items.
fn section(heading: &str, lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!("<h2>{heading}</h2>\n{}", items(lines)) }
}

/// What the words and signs of the tables mean.
const LEGEND: &str = "<b class=\"exact\">exact</b>: counted, one by one, with no interval. <b>estimate</b>: ± is half the width of its 95 % interval; from \
    <i>bursts</i> (all calls of parts of the run, scaled), from <i>samples</i>, or <i>derived</i> (CPU/CALL = share / rate); <i>all calls</i>: each was \
    timed, and what probes cost was taken out. <b>limit</b>: the figure is at least (≥) or at most (≤) that. <b>unknown</b> (?): nothing bounds it. COUNTED is exact, in the part of the run that \
    was watched. Point at a figure for its interval, n and source. Functions that you named are bold and come first.";

/// Head of the page up to the first table.
fn head(report: &Report, has_samples: bool) -> String {
    let stacks = if has_samples { "<a href=\"#stacks\">Flame graph</a> " } else { "" };
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{SCRIPT_SHA256}'; \
         base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{}</title>\n<style>{STYLE}</style></head>\n<body>\n\
         <h1>{}</h1>\n<p class=\"run\">pid {}: {}</p>\n\
         <nav><a href=\"#functions\">Functions</a> {stacks}<a href=\"#receipt\">Budget receipt</a></nav>\n\
         <div id=\"find\" hidden><input type=\"search\" placeholder=\"Search functions and modules\" aria-label=\"Search functions and modules\">\
         <output class=\"dim\"></output></div>\n",
        escape(&title(report)),
        escape(report.target.trim_end()),
        report.pid,
        escape(&run(report))
    )
}

/// The page. Without samples it has no flame graph.
pub(super) fn page(
    report: &Report,
    recording: &Recording,
    options: TextOptions,
    of_durations: &[Distribution],
) -> String {
    // A page scrolls: ten times what a terminal shows.
    let rows = shown(report, TextOptions { rows: options.rows.saturating_mul(10), ..options });
    let mut out = head(report, !recording.samples.is_empty());
    if rows.is_empty() {
        out.push_str("<p>nothing was observed: no samples and no calls</p>\n");
    }
    out.push_str(&rows_table("functions", "FUNCTION", &rows, &columns(&rows)));
    if seen(report) > rows.len() {
        out.push_str(&format!("<p>… and {} more (--rows)</p>\n", seen(report) - rows.len()));
    }
    for line in unseen(report) {
        out.push_str(&format!("<p>{}</p>\n", escape(&line)));
    }
    out.push_str(&format!("<p class=\"dim\">{LEGEND}</p>\n"));
    let timed = durations::timed(rows.clone());
    if !timed.is_empty() {
        out.push_str("<h2 id=\"durations\">Time of a call</h2>\n");
        out.push_str(&rows_table("times", "FUNCTION", &timed, &duration_columns(&timed)));
        out.push_str(&format!("<p class=\"dim\">{}</p>\n", escape(durations::LEGEND)));
    }
    out.push_str(&distributions(of_durations));
    out.push_str(&section("Longer than expected", &super::incidents::lines(report)));
    out.push_str(&section("Notes", &notes(report, &rows)));
    out.push_str(&section("What would make calls per second sharper", &super::sharper::lines(report)));
    out.push_str(&flame::graph(report, recording));
    for o in &report.operations {
        out.push_str(&operation(o, options.rows));
    }
    out.push_str("<h2 id=\"receipt\">Budget receipt</h2>\n<dl>\n");
    for (label, text) in lines(report) {
        out.push_str(&format!("<dt>{label}</dt><dd>{}</dd>\n", escape(&text)));
    }
    out.push_str("</dl>\n");
    out.push_str(&section("What changed", &super::log::lines(report)));
    let not: Vec<String> =
        report.receipt.not_observed.iter().map(|n| format!("{}: {}", n.what, n.why)).collect();
    out.push_str(&section("Not observed", &not));
    out.push_str(&section("Warnings", &report.warnings));
    let meta = &recording.meta;
    out.push_str(&format!(
        "<p class=\"dim\"><small>tithe {}, {} Linux {}, {} CPUs, kernel maps {}</small></p>\n<script>{SCRIPT}</script>\n</body></html>\n",
        escape(&meta.tithe_version),
        escape(&meta.host),
        escape(&meta.kernel),
        meta.cpus,
        memory(meta.kernel_memory_bytes)
    ));
    out
}

#[cfg(test)]
mod tests;
