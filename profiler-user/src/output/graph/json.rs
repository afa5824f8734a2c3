//! JSON: the whole graph, or the part that a query names.

use super::{Query, full_name, summary};
use crate::inspect::SymbolSource;
use crate::inspect::graph::CallGraph;
use crate::inspect::names;
use profiler_core::class::SiteClass;
use profiler_core::graph::loops::Loop;
use profiler_core::graph::{Node, NodeId, Origin, Totals, Transfer, Way};
use profiler_core::text::printable_json;
use serde::Serialize;
use std::collections::BTreeSet;
use std::ops::Range;

/// Version of the format.
const VERSION: u32 = 1;

/// The document. Addresses are link-time addresses.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    module: &'a str,
    path: String,
    build_id: Option<&'a str>,
    symbols: &'static str,
    /// Of the whole module, whatever part of it is below.
    totals: Totals,
    notes: Vec<String>,
    functions: Vec<Function<'a>>,
}

#[derive(Serialize)]
struct Function<'a> {
    id: NodeId,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    short_name: Option<String>,
    symbol: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    aliases: &'a [String],
    origin: Origin,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranges: Vec<[u64; 2]>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    marks: Vec<&'static str>,
    #[serde(skip_serializing_if = "is_zero")]
    undecoded_bytes: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sites: Vec<Site>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    taken: Vec<Taken>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    loops: Vec<LoopOf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    irreducible: Vec<Vec<[u64; 2]>>,
}

#[derive(Serialize)]
struct Site {
    at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    returns_to: Option<u64>,
    transfer: Transfer,
    way: Way,
    to: Option<NodeId>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    inside: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    seen: Vec<NodeId>,
    class: Option<SiteClass>,
    #[serde(skip_serializing_if = "Option::is_none")]
    return_class: Option<SiteClass>,
}

#[derive(Serialize)]
struct Taken {
    at: u64,
    of: NodeId,
}

#[derive(Serialize)]
struct LoopOf {
    header: u64,
    back_edges: Vec<u64>,
    body: Vec<[u64; 2]>,
    depth: u32,
    parent: Option<u32>,
}

/// The part of the graph that a query names, as JSON.
///
/// # Errors
/// It cannot be written as JSON.
pub fn json(call_graph: &CallGraph, query: &Query) -> Result<String, serde_json::Error> {
    let graph = &call_graph.graph;
    let nodes = query.nodes(graph);
    let mut notes = call_graph.notes.clone();
    notes.extend(summary::doubts(call_graph));
    let document = Document {
        version: VERSION,
        module: &call_graph.module,
        path: call_graph.path.to_string_lossy().into_owned(),
        build_id: call_graph.build_id.as_deref(),
        symbols: match call_graph.symbols {
            SymbolSource::Full => "full",
            SymbolSource::DebugFile => "debug_file",
            SymbolSource::ExportsOnly => "exports_only",
            SymbolSource::None => "none",
        },
        totals: graph.totals(),
        notes,
        functions: nodes.iter().filter_map(|id| function(call_graph, *id, &nodes)).collect(),
    };
    let text = serde_json::to_string(&document)?;
    Ok(printable_json(&text).into_owned())
}

fn function<'a>(call_graph: &'a CallGraph, id: NodeId, nodes: &BTreeSet<NodeId>) -> Option<Function<'a>> {
    let graph = &call_graph.graph;
    let node = graph.node(id)?;
    let loops = graph.loops(id);
    let taken = graph.taken(id).iter().filter(|taken| nodes.contains(&taken.node));
    Some(Function {
        id,
        name: full_name(graph, id),
        short_name: names::without_parameters(&node.symbol),
        symbol: &node.symbol,
        aliases: &node.aliases,
        origin: node.origin,
        address: node.address(),
        ranges: pairs(&node.ranges),
        marks: marks(node, loops.is_some_and(|loops| loops.uncertain), loops.is_some_and(|loops| loops.cut)),
        undecoded_bytes: node.facts.undecoded_bytes,
        sites: graph.sites(id).iter().map(|site| site_of(call_graph, id, site)).collect(),
        taken: taken.map(|taken| Taken { at: taken.at, of: taken.node }).collect(),
        loops: loops.map(|loops| loops.loops.iter().map(loop_of).collect()).unwrap_or_default(),
        irreducible: loops
            .map(|loops| loops.irreducible.iter().map(|ranges| pairs(ranges)).collect())
            .unwrap_or_default(),
    })
}

fn site_of(call_graph: &CallGraph, id: NodeId, site: &profiler_core::graph::CallSite) -> Site {
    Site {
        at: site.at,
        returns_to: site.return_address(),
        transfer: site.transfer,
        way: site.way,
        to: site.to,
        inside: site.inside,
        seen: call_graph.graph.seen(id, site.at).collect(),
        class: site.class,
        return_class: site.return_class,
    }
}

fn loop_of(natural: &Loop) -> LoopOf {
    LoopOf {
        header: natural.header,
        back_edges: natural.back_edges.clone(),
        body: pairs(&natural.body),
        depth: natural.depth,
        parent: natural.parent,
    }
}

fn marks(node: &Node, uncertain_loops: bool, cut_loops: bool) -> Vec<&'static str> {
    let marks = [
        (node.exported, "exported"),
        (node.entry, "entry"),
        (node.held, "held_in_data"),
        (node.ifunc, "ifunc"),
        (node.lone_part, "lone_part"),
        (node.guessed_size, "guessed_size"),
        (node.facts.unresolved_jumps > 0, "unresolved_jumps"),
        (node.stray_branches > 0, "stray_branches"),
        (uncertain_loops, "uncertain_loops"),
        (cut_loops, "cut_loops"),
    ];
    marks.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect()
}

fn pairs(ranges: &[Range<u64>]) -> Vec<[u64; 2]> {
    ranges.iter().map(|range| [range.start, range.end]).collect()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}
