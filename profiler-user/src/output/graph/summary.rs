//! What a graph has in all, for people.

use super::super::{TextOptions, count, wrap};
use super::{Labels, plural};
use crate::inspect::graph::CallGraph;
use profiler_core::graph::{EdgeKind, Kinds, NodeId};
use profiler_core::text::printable;

/// Names in a line.
const NAMED: usize = 5;
/// Columns before the text of a line.
const INDENT: usize = 16;

/// The summary.
pub(super) fn summary(call_graph: &CallGraph, options: TextOptions) -> String {
    let graph = &call_graph.graph;
    let totals = graph.totals();
    let mut out = format!("{}: call graph from machine code\n\n", printable(&call_graph.module));
    let mut line = |name: &str, text: String| {
        let indent = " ".repeat(INDENT);
        let text = wrap(&text, options.width.saturating_sub(INDENT), &indent);
        out.push_str(&format!("  {name:<14}{text}\n"));
    };
    let unnamed = match totals.unnamed {
        0 => String::new(),
        n => format!(", {} of them without a symbol", count(n as f64)),
    };
    line(
        "functions",
        format!("{}{unnamed}; {}", count(totals.functions as f64), plural(totals.imports, "import")),
    );
    let edges: Vec<String> =
        totals.edges.iter().filter(|(_, n)| *n > 0).map(|(k, n)| words(*k, *n)).collect();
    line("edges", if edges.is_empty() { "none".to_owned() } else { edges.join(", ") });
    let seen = match totals.indirect_seen {
        0 => String::new(),
        n => format!("; of {} callees were seen", count(n as f64)),
    };
    line(
        "call sites",
        format!(
            "{}, of which {} and {} lead where the program chooses{seen}",
            count(totals.sites as f64),
            plural(totals.indirect_calls, "indirect call"),
            plural(totals.indirect_jumps, "indirect jump")
        ),
    );
    line("in data", format!("addresses of {}", plural(totals.held, "function")));
    let looping = graph.all_loops().filter(|(_, loops)| !loops.loops.is_empty()).count();
    let irreducible = match totals.irreducible {
        0 => String::new(),
        n => {
            format!("; {} with code that goes round without one header (irreducible)", plural(n, "function"))
        }
    };
    line(
        "loops",
        format!(
            "{} in {}, at most {} deep{irreducible}",
            count(totals.loops as f64),
            plural(looping, "function"),
            totals.loop_depth
        ),
    );
    line("recursion", recursion(call_graph));
    line("unreachable", unreachable(call_graph));
    line("most callers", most_callers(call_graph));
    for doubt in doubts(call_graph) {
        line("not certain", doubt);
    }
    for note in &call_graph.notes {
        line("note", printable(note).into_owned());
    }
    out
}

/// How many pairs have edges of a kind.
pub(super) fn words(kind: EdgeKind, n: usize) -> String {
    let n = count(n as f64);
    match kind {
        EdgeKind::Call => format!("{n} by direct calls"),
        EdgeKind::Plt => format!("{n} by calls through the PLT"),
        EdgeKind::Got => format!("{n} by calls through the GOT"),
        EdgeKind::Tail => format!("{n} by tail jumps"),
        EdgeKind::Fall => format!("{n} by running on"),
        EdgeKind::Seen => format!("{n} by indirect calls that were seen"),
        EdgeKind::Taken => format!("{n} by addresses taken"),
    }
}

fn recursion(call_graph: &CallGraph) -> String {
    let components = call_graph.graph.components(Kinds::CALLS).recursive;
    let Some(largest) = components.first() else { return "none".to_owned() };
    format!(
        "{}, the largest of {}: {}",
        plural(components.len(), "group"),
        plural(largest.len(), "function"),
        some(call_graph, largest)
    )
}

fn unreachable(call_graph: &CallGraph) -> String {
    let unreachable = call_graph.graph.unreachable();
    if unreachable.is_empty() {
        return "none: exports, entries, what data hold, and what those call or take the address of"
            .to_owned();
    }
    let names = some(call_graph, &unreachable);
    format!(
        "{} that no export, entry, address in data or reachable code leads to: {names}",
        plural(unreachable.len(), "function")
    )
}

fn most_callers(call_graph: &CallGraph) -> String {
    let graph = &call_graph.graph;
    let callers = |id| graph.callers(id).filter(|edge| edge.kinds.meets(Kinds::CALLS)).count();
    let mut called: Vec<(usize, NodeId)> = graph.nodes().map(|(id, _)| (callers(id), id)).collect();
    called.sort_unstable_by_key(|(n, id)| (std::cmp::Reverse(*n), *id));
    called.truncate(NAMED);
    called.retain(|(n, _)| *n > 0);
    if called.is_empty() {
        return "none".to_owned();
    }
    let labels = Labels::of(call_graph, called.iter().map(|(_, id)| *id));
    let named = called.iter().map(|(n, id)| format!("{} ({})", labels.get(*id), count(*n as f64)));
    named.collect::<Vec<_>>().join(", ")
}

/// Some names, and how many more there are.
fn some(call_graph: &CallGraph, ids: &[NodeId]) -> String {
    let shown = ids.get(..NAMED.min(ids.len())).unwrap_or(ids);
    let labels = Labels::of(call_graph, shown.iter().copied());
    let names: Vec<&str> = shown.iter().map(|id| labels.get(*id)).collect();
    let more = match ids.len() - shown.len() {
        0 => String::new(),
        n => format!(" and {} more", count(n as f64)),
    };
    format!("{}{more}", names.join(", "))
}

/// What may be wrong or missing, a line each.
pub(super) fn doubts(call_graph: &CallGraph) -> Vec<String> {
    let doubts = call_graph.graph.doubts();
    let mut lines = Vec::new();
    let mut say = |n: usize, text: String| {
        if n > 0 {
            lines.push(text);
        }
    };
    let (functions, bytes) = doubts.undecoded;
    say(
        functions,
        format!(
            "{} with {} that are no instructions (data in the code?): edges from there may be missing or wrong",
            plural(functions, "function"),
            plural(bytes as usize, "byte")
        ),
    );
    let (functions, jumps) = doubts.unresolved;
    say(
        functions,
        format!(
            "{} with {} whose targets are not known: they may stay inside or leave",
            plural(functions, "function"),
            plural(jumps as usize, "computed jump")
        ),
    );
    let (functions, branches) = doubts.stray;
    say(
        functions,
        format!(
            "{} with {} to where no code is",
            plural(functions, "function"),
            plural(branches as usize, "branch")
        ),
    );
    say(
        doubts.guessed_size,
        format!("{} without a size, taken to reach to the next one", plural(doubts.guessed_size, "function")),
    );
    say(
        doubts.loops,
        format!("loops of {}: not all ways through them are known", plural(doubts.loops, "function")),
    );
    lines
}
