//! Calls in order of single operations, for people: a tree for each.

use super::TextOptions;
use super::names::shorten;
use super::table::{BOLD, DIM, styled, wrap};
use super::units::{count, duration_ns};
use crate::calls::{Body, Calls, Chosen, FunctionNames, short_name};
use profiler_core::calls::{Account, CallTree, Completeness, Kind, Layout, Line, Link};
use profiler_core::recording::StepRow;
use profiler_core::text::printable;

/// What of a tree is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallsOptions {
    /// Levels and folding.
    pub layout: Layout,
    /// Say when calls returned, as far as that is known.
    pub bounds: bool,
}

/// Levels that are shifted to the right; deeper ones have a number.
const SHIFTED: usize = 20;
/// Least room for a name.
const NAME: usize = 24;

/// The text.
#[must_use]
pub fn calls_text(calls: &Calls, shown: CallsOptions, options: TextOptions) -> String {
    let operation = &calls.operation;
    let title = format!("Calls in order of operation {} ({})", operation.name, operation.bounds);
    let mut out = styled(&printable(&title), BOLD, options.colours);
    out.push('\n');
    let mut marks = Marks::default();
    for chosen in &calls.chosen {
        out.push('\n');
        let head = wrap(&printable(&head(calls.meta.start_ns, chosen)), options.width, "  ");
        out.push_str(&styled(&head, BOLD, options.colours));
        out.push('\n');
        for line in words(calls, chosen) {
            out.push_str(&wrap(&printable(&line), options.width, "    "));
            out.push('\n');
        }
        for line in body(&calls.names, chosen, shown, options, &mut marks) {
            out.push_str(&line);
            out.push('\n');
        }
    }
    out.push('\n');
    for line in foot(calls, &marks) {
        out.push_str(&wrap(&printable(&line), options.width, "  "));
        out.push('\n');
    }
    out
}

/// What is said of an operation above its calls.
fn head(start_ns: u64, chosen: &Chosen) -> String {
    let row = &chosen.row;
    let begin_s = row.begin_ns.saturating_sub(start_ns) as f64 / 1e9;
    let off_cpu =
        row.off_cpu_ns.map_or_else(String::new, |ns| format!("{} off CPU, ", duration_ns(ns as f64)));
    let took = if row.censored { "open for" } else { "took" };
    format!(
        "{}, thread {}: began at {begin_s:.6} s, {took} {} ({off_cpu}{} of it monitoring), {}",
        chosen.class,
        row.tid,
        duration_ns(row.duration_ns as f64),
        duration_ns(row.cost_ns as f64),
        state(chosen),
    )
}

/// Words of the target that were taken at its begin and at its end: a line each.
fn words(calls: &Calls, chosen: &Chosen) -> Vec<String> {
    let at = |end: bool| {
        let own = chosen.words.iter().filter(|row| row.at_end == end);
        let all: Vec<String> = own.map(|row| super::words::taken(&calls.meta.words, row)).collect();
        let when = if end { "end" } else { "begin" };
        (!all.is_empty()).then(|| format!("  at its {when}: {}", all.join(", ")))
    };
    [false, true].into_iter().filter_map(at).collect()
}

/// Complete, or why not.
fn state(chosen: &Chosen) -> String {
    let steps = plural(chosen.steps, "call");
    let ambiguous = match &chosen.body {
        Body::Tree(tree) if tree.ambiguous() > 0 => {
            format!(", of {} it is not sure where they belong", count(tree.ambiguous() as f64))
        }
        Body::Tree(_) | Body::Steps(_) => String::new(),
        Body::TooMany => ": too many to be drawn".to_owned(),
    };
    match chosen.completeness {
        Completeness::Complete => format!("complete, {steps}{ambiguous}"),
        other => format!("incomplete ({}), {steps} recorded{ambiguous}", why(other)),
    }
}

pub(super) fn why(completeness: Completeness) -> String {
    match completeness {
        Completeness::Complete => "no".to_owned(),
        Completeness::Marked => {
            "calls were lost, or functions were attached or detached meanwhile".to_owned()
        }
        Completeness::Missing(n) => format!("{} missing", plural(n, "call")),
        Completeness::Doubled => "a call is there twice".to_owned(),
        Completeness::Open => "it had not ended when the run did".to_owned(),
        Completeness::Unnumbered => "its calls are not numbered".to_owned(),
    }
}

/// An operation that is told while the run goes on: what is said of it, and of its tree so many lines.
#[must_use]
pub(crate) fn slow_operation_text(
    chosen: &Chosen,
    names: &FunctionNames,
    start_ns: u64,
    lines: usize,
) -> String {
    let mut out = format!("slow: {}", printable(&head(start_ns, chosen)));
    let Body::Tree(tree) = &chosen.body else { return out };
    let shown = CallsOptions { layout: Layout { levels: usize::MAX, folds: true }, bounds: false };
    let all = tree.lines(shown.layout);
    let hidden = all.len().saturating_sub(lines);
    // Better one line too many than one that says that one is missing.
    let cut = if hidden > 1 { lines } else { all.len() };
    for line in all.iter().take(cut) {
        let text = tree_line(
            names,
            tree,
            *line,
            chosen.row.begin_ns,
            shown,
            TextOptions::default(),
            &mut Marks::default(),
        );
        out.push('\n');
        out.push_str(&text);
    }
    if cut < all.len() {
        out.push_str(&format!(
            "\n{:>OFFSET$}  {} more; 'tithe calls' shows them",
            "…",
            plural(hidden as u64, "line")
        ));
    }
    out
}

/// Which marks occur.
#[derive(Debug, Default)]
struct Marks {
    tail: bool,
    signal: bool,
    ambiguous: bool,
    folded: bool,
    unnested: bool,
}

/// `tail, ambiguous`; empty without marks.
fn marked(link: &Link, marks: &mut Marks) -> String {
    let mut words = Vec::new();
    match link.kind {
        Kind::Call => {}
        Kind::Tail => {
            marks.tail = true;
            words.push("tail");
        }
        Kind::Signal => {
            marks.signal = true;
            words.push("signal");
        }
    }
    if link.is_ambiguous {
        marks.ambiguous = true;
        words.push("ambiguous");
    }
    words.join(", ")
}

fn body(
    names: &FunctionNames,
    chosen: &Chosen,
    shown: CallsOptions,
    options: TextOptions,
    marks: &mut Marks,
) -> Vec<String> {
    let begin_ns = chosen.row.begin_ns;
    match &chosen.body {
        Body::Tree(tree) => {
            let line = |line: Line| tree_line(names, tree, line, begin_ns, shown, options, marks);
            tree.lines(shown.layout).into_iter().map(line).collect()
        }
        Body::Steps(steps) => {
            marks.unnested |= !steps.is_empty();
            let line = |step: &StepRow| {
                let name = shorten(
                    &printable(short_name(names, step.class_id)),
                    options.width.saturating_sub(OFFSET + 2),
                );
                format!("{}  {name}", offset(step.time_ns, begin_ns))
            };
            steps.iter().map(line).collect()
        }
        Body::TooMany => Vec::new(),
    }
}

fn tree_line(
    names: &FunctionNames,
    tree: &CallTree,
    line: Line,
    begin_ns: u64,
    shown: CallsOptions,
    options: TextOptions,
    marks: &mut Marks,
) -> String {
    let Some(node) = tree.nodes.get(line.node) else { return String::new() };
    let shift = "  ".repeat(node.depth.min(SHIFTED));
    let deep = if node.depth > SHIFTED { format!("({}) ", node.depth) } else { String::new() };
    let mut end = String::new();
    if line.times > 1 {
        marks.folded = true;
        end.push_str(&format!("  x {}", count(line.times as f64)));
    }
    let words = marked(&node.link, marks);
    if !words.is_empty() {
        end.push_str(&format!("  [{words}]"));
    }
    if line.hidden > 0 {
        end.push_str(&format!("  … {} in it", plural(line.hidden as u64, "call")));
    }
    if shown.bounds && line.times == 1 {
        let after = |ns: u64| offset(node.time_ns.saturating_add(ns), begin_ns).trim_start().to_owned();
        end.push_str(&format!(
            "  returned between {} and {}",
            after(node.bounds.at_least_ns),
            after(node.bounds.at_most_ns)
        ));
    }
    let used = OFFSET + 2 + shift.len() + deep.len() + end.chars().count();
    let name =
        shorten(&printable(short_name(names, node.class_id)), options.width.saturating_sub(used).max(NAME));
    format!(
        "{}  {shift}{deep}{name}{}",
        offset(node.time_ns, begin_ns),
        styled(&end, DIM, options.colours && !end.is_empty())
    )
}

/// Width of an offset.
const OFFSET: usize = 16;

/// Time since the operation's begin: `    +1,234.5 us`.
fn offset(time_ns: u64, begin_ns: u64) -> String {
    let tenths = time_ns.saturating_sub(begin_ns).saturating_add(50) / 100;
    let text = format!("+{}.{} us", count((tenths / 10) as f64), tenths % 10);
    format!("{text:>OFFSET$}")
}

/// `1 call`, `2 calls`.
fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n as f64), if n == 1 { "" } else { "s" })
}

/// The account, and what marks mean.
fn foot(calls: &Calls, marks: &Marks) -> Vec<String> {
    let mut lines = Vec::new();
    if calls.chosen.is_empty() {
        lines.push(nothing(calls));
    }
    if calls.slower_incomplete > 0 {
        let n = calls.slower_incomplete as u64;
        lines.push(format!(
            "{} that took longer {} incomplete",
            plural(n, "operation"),
            if n == 1 { "is" } else { "are" }
        ));
    }
    lines.push(account(&calls.account));
    lines.push(format!(
        "{} in the recording, {} outside recorded operations",
        plural(calls.steps, "call"),
        count(calls.outside as f64)
    ));
    let notes = calls.meta.calls.iter().flat_map(|meta| &meta.notes);
    lines.extend(notes.cloned());
    if calls.meta.end_ns.is_none() {
        lines.push("the recording has no end: the agent was killed".to_owned());
    }
    let meanings = [
        (
            marks.folded,
            "x N: N calls in a row with the same calls in them (--unfold shows each); the time is that of the first",
        ),
        (marks.tail, "tail: the function above handed over to it by a jump, and has left"),
        (marks.signal, "signal: a handler that interrupted the function above"),
        (marks.ambiguous, "ambiguous: it may belong to another call: exits are not recorded (docs/calls.md)"),
        (marks.unnested, "calls of incomplete operations are in order, but how they nest cannot be told"),
    ];
    lines.extend(meanings.iter().filter(|(occurs, _)| *occurs).map(|(_, text)| (*text).to_owned()));
    lines.extend(calls.damage.iter().map(|line| format!("damage: {line}")));
    lines
}

/// Why no operation is shown.
fn nothing(calls: &Calls) -> String {
    if calls.account.operations == 0 {
        return "no operation of that name was recorded in detail".to_owned();
    }
    "none of the recorded operations is the one asked for".to_owned()
}

fn account(account: &Account) -> String {
    let reasons = [
        (account.marked, "with calls lost, or functions attached or detached meanwhile"),
        (account.missing, "with calls missing from the recording or there twice"),
        (account.open, "not ended when the run did"),
        (account.unnumbered, "without numbers of calls"),
    ];
    let incomplete =
        reasons.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{} {why}", count(*n as f64)));
    let parts: Vec<String> =
        std::iter::once(format!("{} complete", count(account.complete as f64))).chain(incomplete).collect();
    format!("{} recorded: {}", plural(account.operations, "operation"), parts.join(", "))
}
