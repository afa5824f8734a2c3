//! One self-contained page: table, receipt, flame graph. No network, no fonts, no libraries; a few lines of
//! script sort the table.

use super::durations;
use super::notes::notes;
use super::receipt::lines;
use super::rows::{shown, unseen};
use super::table::{at_least, counted_in, cpu_per_call, exact_count, how, number, share, title};
use super::units::{count, duration, duration_ns, memory, percent, si, source_letter};
use super::{TextOptions, flame};
use profiler_core::estimate::Estimate;
use profiler_core::recording::Recording;
use profiler_core::report::{Distribution, Report, Row};
use profiler_core::text::printable;

const STYLE: &str = "
:root{color-scheme:light dark;--line:#8884;--dim:#888;--bar:#e07a1f55}
body{font:14px/1.45 system-ui,sans-serif;max-width:1200px;margin:2em auto;padding:0 1em}
h1{font-size:1.3em}h2{font-size:1.05em;margin-top:2em}
table{border-collapse:collapse;width:100%}th,td{padding:.25em .6em;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th{cursor:pointer;position:sticky;top:0;background:Canvas}td:first-child,th:first-child{text-align:left;white-space:normal;overflow-wrap:anywhere}
td small{color:var(--dim)}td.share{background:linear-gradient(to left,var(--bar) var(--w),transparent var(--w))}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2em 1.2em}dt{color:var(--dim)}dd{margin:0}
table.bins{width:auto}table.bins td:last-child{width:30em;background:linear-gradient(to right,var(--bar) var(--w,0%),transparent var(--w,0%))}
iframe{width:100%;height:700px;border:1px solid var(--line)}";

const SCRIPT: &str = "
document.querySelectorAll('th').forEach((th,i)=>th.onclick=()=>{const b=document.querySelector('tbody'),d=th.dataset.d=th.dataset.d==='1'?'-1':'1';
const key=r=>{const v=r.cells[i].dataset.v;return v===undefined?r.cells[i].textContent:+v};
[...b.rows].sort((x,y)=>{const p=key(x),q=key(y);return(p>q?-1:p<q?1:0)*d}).forEach(r=>b.append(r))});";

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

/// A cell that sorts by its value; the interval and n are in the tooltip.
fn cell(e: Option<&Estimate>, unit: &str, text: String) -> String {
    let Some(e) = e else { return "<td data-v=\"-1\"></td>".to_owned() };
    let tip = format!(
        "{} ({} to {}{unit}, {:.0} %), n = {}, {}",
        si(e.value),
        si(e.low),
        si(e.high),
        e.level * 100.0,
        count(e.n as f64),
        e.source.name()
    );
    format!("<td data-v=\"{}\" title=\"{}\">{}</td>", e.value, escape(&tip), escape(&text))
}

fn row(r: &Row) -> String {
    let width = r.share.as_ref().map_or(0.0, |e| (e.value * 100.0).clamp(0.0, 100.0));
    let p = |p: f64| r.quantiles_ns.iter().find(|(q, _)| (q - p).abs() < 1e-9).map(|(_, e)| e);
    let ns = |e: Option<&Estimate>| cell(e, " ns", number(e, |e| duration_ns(e.value)));
    let quantile = |e: Option<&Estimate>| {
        cell(e, " ns", e.map(|e| format!("{} {}", duration(e), source_letter(e.source))).unwrap_or_default())
    };
    let cpu = cell(r.share.as_ref(), "", share(r.share.as_ref())).replacen(
        "<td",
        &format!("<td class=\"share\" style=\"--w:{width:.1}%\""),
        1,
    );
    [
        format!(
            "<tr><td title=\"{}\">{}<br><small>{}</small></td>",
            escape(&r.name),
            escape(r.shown_name()),
            escape(&r.module)
        ),
        cpu,
        cell(r.self_share.as_ref(), "", share(r.self_share.as_ref())),
        cell(r.calls.as_ref(), "", at_least(r.calls.as_ref(), exact_count)),
        match r.counted {
            Some(n) => format!("<td data-v=\"{n}\">{}</td>", escape(&counted_in(r))),
            None => cell(None, "", String::new()),
        },
        cell(r.rate_hz.as_ref(), " /s", at_least(r.rate_hz.as_ref(), |e| si(e.value))),
        cell(r.on_cpu_ns.as_ref(), " ns", cpu_per_call(r)),
        ns(r.mean_ns.as_ref()),
        quantile(p(0.5)),
        quantile(p(0.9)),
        quantile(p(0.99)),
        quantile(p(1.0)),
        format!("<td>{}</td></tr>\n", escape(&how(r))),
    ]
    .concat()
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

/// The page. Without samples it has no flame graph.
pub(super) fn page(
    report: &Report,
    recording: &Recording,
    options: TextOptions,
    of_durations: &[Distribution],
) -> String {
    // A page scrolls: ten times what a terminal shows.
    let rows = shown(report, TextOptions { rows: options.rows.saturating_mul(10), ..options });
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{t}</title><style>{STYLE}</style>\n<h1>{t}</h1>\n\
         <table><thead><tr><th>Function<th>CPU<th>Self<th>Calls<th>Counted<th>Calls/s<th>CPU/call<th>Time/call<th>P50<th>P90<th>P99<th>Max<th>How</thead>\n<tbody>\n",
        t = escape(&title(report))
    );
    for r in &rows {
        out.push_str(&row(r));
    }
    out.push_str("</tbody></table>\n");
    for line in unseen(report) {
        out.push_str(&format!("<p>{}</p>\n", escape(&line)));
    }
    out.push_str(
        "<p><small>E exact, B burst (scaled from windows), S sampled, D derived (CPU/call = share / rate); \
         ± half the interval's width, ≤ and ≥ limits; Counted: exact, in the part of the run that was watched; P50 to Max of the time of a call, Max the longest that was timed; hover for the interval, n and source.</small></p>\n",
    );
    out.push_str(&distributions(of_durations));
    let list = |out: &mut String, heading: &str, items: &[String]| {
        if !items.is_empty() {
            out.push_str(&format!("<h2>{heading}</h2>\n<ul>\n"));
            for item in items {
                out.push_str(&format!("<li>{}</li>\n", escape(item)));
            }
            out.push_str("</ul>\n");
        }
    };
    list(&mut out, "Notes", &notes(report, &rows));
    for operation in &report.operations {
        list(
            &mut out,
            &escape(&super::operations::title(operation)),
            &super::operations::html_lines(operation),
        );
    }
    out.push_str("<h2>Budget receipt</h2>\n<dl>\n");
    for (label, text) in lines(report) {
        out.push_str(&format!("<dt>{label}</dt><dd>{}</dd>\n", escape(&text)));
    }
    out.push_str("</dl>\n");
    list(&mut out, "What changed", &super::log::lines(report));
    let not: Vec<String> =
        report.receipt.not_observed.iter().map(|n| format!("{}: {}", n.what, n.why)).collect();
    list(&mut out, "Not observed", &not);
    list(&mut out, "Warnings", &report.warnings);
    // In a frame of its own: the graph's script expects to own its document.
    if let Ok(svg) = flame::svg(report, recording) {
        let svg = String::from_utf8_lossy(&svg);
        out.push_str(&format!(
            "<h2>Flame graph of the samples</h2>\n<iframe title=\"flame graph\" src=\"data:image/svg+xml;charset=utf-8,{}\"></iframe>\n",
            percent_encode(&svg)
        ));
    }
    let meta = &recording.meta;
    out.push_str(&format!(
        "<p><small>tithe {}, {} Linux {}, {} CPUs, kernel maps {}</small></p>\n<script>{SCRIPT}</script>\n",
        escape(&meta.tithe_version),
        escape(&meta.host),
        escape(&meta.kernel),
        meta.cpus,
        memory(meta.kernel_memory_bytes)
    ));
    out
}

/// For a data URL inside a quoted attribute.
fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 3 / 2);
    for b in text.bytes() {
        match b {
            b'A'..=b'Z'
            | b'a'..=b'z'
            | b'0'..=b'9'
            | b'-'
            | b'_'
            | b'.'
            | b'~'
            | b'/'
            | b':'
            | b'='
            | b';'
            | b','
            | b'('
            | b')' => {
                out.push(char::from(b));
            }
            b => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}
