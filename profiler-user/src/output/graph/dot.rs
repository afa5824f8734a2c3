//! DOT, the language of Graphviz.

use super::{Labels, Query};
use crate::inspect::graph::CallGraph;
use profiler_core::graph::{Edge, EdgeKind, Node, NodeId};
use profiler_core::text::printable;
use std::fmt::Write as _;

/// The functions that a query names, and the edges between them.
#[must_use]
pub fn dot(call_graph: &CallGraph, query: &Query) -> String {
    let graph = &call_graph.graph;
    let nodes = query.nodes(graph);
    let labels = Labels::of(call_graph, nodes.iter().copied());
    let mut out = String::from("digraph calls {\n");
    let _ = writeln!(out, "  label=\"{}\";", quoted(&printable(&call_graph.module)));
    out.push_str("  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\", fontsize=10];\n");
    for id in &nodes {
        let Some(node) = graph.node(*id) else { continue };
        let mut label = quoted(labels.get(*id));
        if let Some(loops) = graph.loops(*id).filter(|loops| !loops.loops.is_empty()) {
            let _ = write!(label, "\\n{}", super::plural(loops.loops.len(), "loop"));
        }
        let _ = writeln!(out, "  n{id} [label=\"{label}\"{}];", style(node, query.from.contains(id)));
        let indirect =
            graph.sites(*id).iter().filter(|s| s.is_indirect() && graph.seen(*id, s.at).next().is_none());
        let indirect = indirect.count();
        if indirect > 0 {
            let _ = writeln!(out, "  i{id} [label=\"?\", shape=circle, style=dotted];");
            let _ = writeln!(out, "  n{id} -> i{id} [style=dotted, label=\"{indirect}\"];");
        }
    }
    let kinds = query.kinds();
    for from in &nodes {
        for edge in graph.callees(*from).filter(|edge| edge.kinds.meets(kinds) && nodes.contains(&edge.node))
        {
            out.push_str(&line(*from, edge));
        }
    }
    out.push_str("}\n");
    out
}

fn style(node: &Node, asked: bool) -> &'static str {
    match node {
        _ if asked => ", style=bold",
        node if node.is_import() => ", style=dashed",
        node if node.is_root() => ", style=filled, fillcolor=\"#eeeeee\"",
        _ => "",
    }
}

fn line(from: NodeId, edge: &Edge) -> String {
    let mut attributes = Vec::new();
    let called = [EdgeKind::Call, EdgeKind::Plt, EdgeKind::Got].iter().any(|kind| edge.kinds.has(*kind));
    let style = match () {
        () if called => "",
        () if edge.kinds.has(EdgeKind::Tail) => "style=dashed",
        () if edge.kinds.has(EdgeKind::Fall) => "style=dashed, arrowhead=none",
        () if edge.kinds.has(EdgeKind::Seen) => "color=blue",
        () => "style=dotted, arrowhead=empty",
    };
    if !style.is_empty() {
        attributes.push(style.to_owned());
    }
    if edge.sites > 1 {
        attributes.push(format!("label=\"{}\"", edge.sites));
    }
    let attributes =
        if attributes.is_empty() { String::new() } else { format!(" [{}]", attributes.join(", ")) };
    format!("  n{from} -> n{}{attributes};\n", edge.node)
}

/// A text between quotes.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
