//! The list of functions as text for a terminal.

use super::{EntryReport, FunctionList, FunctionReport};
use crate::output::{duration_ns, shorten, wrap};
use profiler_core::class::{ExitMode, SiteClass};
use profiler_core::report::names::short_names;

/// Names of a reason that are listed.
const NAMED: usize = 5;
/// Widest column of names.
const NAME_MAX: usize = 60;
/// Narrowest: what the other columns leave of 80.
const NAME_MIN: usize = 20;

const HEADINGS: [&str; 5] = ["FUNCTION", "ENTRY", "COUNT", "TIME", "TIMED"];

/// Renders the list for a terminal of `width` columns; lines end in a newline.
#[must_use]
pub fn render_functions(list: &FunctionList, width: usize) -> String {
    let list = list.printable();
    let names: Vec<&str> = list.functions.iter().map(|f| f.name.as_str()).collect();
    let names = short_names(&names);
    let cells: Vec<[String; 4]> = list.functions.iter().map(cells).collect();
    let widest = |i: usize| {
        let cells = cells.iter().map(|c| c[i].chars().count());
        cells.chain([HEADINGS[i + 1].len()]).max().unwrap_or(0)
    };
    let widths = [0, 1, 2, 3].map(widest);
    let others: usize = widths.iter().map(|w| w + 2).sum::<usize>() + 2;
    let longest = names.iter().map(|n| n.chars().count()).max().unwrap_or(0).max(HEADINGS[0].len());
    let name_width = longest.min(width.saturating_sub(others).max(NAME_MIN)).min(NAME_MAX);
    let line = |name: &str, [entry, count, time, timed]: [&str; 4]| {
        let [a, b, c, _] = widths;
        let text = format!("  {name:<name_width$}  {entry:<a$}  {count:>b$}  {time:>c$}  {timed}");
        format!("{}\n", text.trim_end())
    };
    let mut text = String::new();
    let mut module = "";
    for ((function, name), [entry, count, time, timed]) in list.functions.iter().zip(&names).zip(&cells) {
        if function.module != module {
            module = &function.module;
            text.push_str(&format!("{module}\n"));
            text.push_str(&line(HEADINGS[0], [HEADINGS[1], HEADINGS[2], HEADINGS[3], HEADINGS[4]]));
        }
        text.push_str(&line(&shorten(name, name_width), [entry, count, time, timed]));
    }
    for remark in remarks(&list, &names) {
        text.push_str(&format!("{}\n", wrap(&remark, width, "  ")));
    }
    text
}

/// Entry, price of counting and of timing a call, how it is timed.
fn cells(function: &FunctionReport) -> [String; 4] {
    let Some(entry) = &function.entry else {
        return ["refused".to_owned(), String::new(), String::new(), String::new()];
    };
    let most = if function.timed_by == Some(ExitMode::ReturnSites) { "≤ " } else { "" };
    let time =
        function.time_price.map(|price| format!("{most}{}", duration_ns(price.ns))).unwrap_or_default();
    [in_words(entry), duration_ns(entry.count_price.ns), time, way_out(function.timed_by).to_owned()]
}

fn in_words(entry: &EntryReport) -> String {
    match entry.class {
        SiteClass::Stepped => "single-stepped".to_owned(),
        class => format!("emulated {}", class.name()),
    }
}

fn way_out(mode: Option<ExitMode>) -> &'static str {
    match mode {
        Some(ExitMode::ReturnLink) => "return link",
        Some(ExitMode::ExitSites) => "exit sites",
        Some(ExitMode::ReturnSites) => "return addresses",
        Some(ExitMode::None) | None => "no",
    }
}

/// What the columns mean, and each reason once, with the functions that it is about.
fn remarks(list: &FunctionList, names: &[String]) -> Vec<String> {
    let mut all = vec![format!(
        "Prices are CPU time of the target for one call on this host ({}): COUNT to count it, TIME to time it, with its end (≤: it depends on \
         who calls). An emulated entry costs one trap, a single-stepped one two.",
        list.prices
    )];
    let timed_otherwise = |f: &FunctionReport| f.entry.is_some() && f.timed_by != Some(ExitMode::ReturnLink);
    if let Some(why) =
        list.return_links_refused.as_ref().filter(|_| list.functions.iter().any(timed_otherwise))
    {
        all.push(format!("No return links in this process: {why}."));
    }
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for (function, name) in list.functions.iter().zip(names) {
        let refused = function.refused.iter().map(|why| format!("refused: {why}"));
        let not_timed = function.not_timed.iter().map(|why| format!("not timed: {why}"));
        // Of a function that is counted cheaply.
        let stepped =
            function.timed_entry.is_some_and(|e| !e.emulated) && function.entry.is_some_and(|e| e.emulated);
        let stepped = stepped.then(|| "timing it takes a single-stepped entry".to_owned());
        for reason in refused.chain(not_timed).chain(stepped).chain(function.notes.iter().cloned()) {
            match reasons.iter_mut().find(|(text, _)| *text == reason) {
                Some((_, of)) => of.push(name),
                None => reasons.push((reason, vec![name])),
            }
        }
    }
    all.extend(reasons.iter().map(|(reason, of)| {
        let more = of.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}: {reason}", of[..of.len().min(NAMED)].join(", "))
    }));
    all
}
