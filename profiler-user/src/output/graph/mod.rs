//! The faces of a call graph: text for people, DOT for drawing, JSON for programs.
//!
//! It computes no graph: [`Query`] says what is shown, and the core's functions answer.

mod dot;
mod json;
mod summary;
#[cfg(test)]
mod tests;
mod text;

pub use dot::dot;
pub use json::json;
pub use text::text;

use crate::inspect::graph::CallGraph;
use crate::inspect::names;
use profiler_core::graph::{Graph, Kinds, Node, NodeId};
use profiler_core::report::names::short_names;
use profiler_core::text::printable;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What of a graph is shown.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// What is called from these; empty: not asked for.
    pub from: Vec<NodeId>,
    /// What calls these; with `from`: the chains between the two.
    pub to: Vec<NodeId>,
    /// Calls away, at most; in a chain, calls at most. None: as suits what is shown.
    pub depth: Option<usize>,
    /// Lines, at most.
    pub rows: usize,
    /// Who takes the address of a function counts as its caller.
    pub addresses_taken: bool,
}

impl Query {
    /// The edges that are followed.
    #[must_use]
    pub fn kinds(&self) -> Kinds {
        if self.addresses_taken { Kinds::ALL } else { Kinds::CALLS }
    }

    /// The functions that files have: all, what is reached from some, what reaches some, or what lies between. By number.
    #[must_use]
    pub fn nodes(&self, graph: &Graph) -> BTreeSet<NodeId> {
        let near = |reached: profiler_core::graph::Reached| -> BTreeSet<NodeId> {
            let near = |depth: u32| self.depth.is_none_or(|most| depth as usize <= most);
            reached.nodes.into_iter().filter(|(_, depth)| near(*depth)).map(|(id, _)| id).collect()
        };
        let from = || near(graph.reachable(&self.from, self.kinds(), usize::MAX));
        let to = || near(graph.reaching(&self.to, self.kinds(), usize::MAX));
        match (self.from.is_empty(), self.to.is_empty()) {
            (true, true) => graph.nodes().map(|(id, _)| id).collect(),
            (false, true) => from(),
            (true, false) => to(),
            (false, false) => from().intersection(&to()).copied().collect(),
        }
    }
}

/// Names of functions: short ones that tell those that are shown apart. Where two have the same whole name (instances of a generic function,
/// static functions of two source files), each has its address behind it.
#[derive(Debug, Default)]
struct Labels(BTreeMap<NodeId, String>);

impl Labels {
    fn of(graph: &CallGraph, ids: impl IntoIterator<Item = NodeId>) -> Self {
        let ids: BTreeSet<NodeId> = ids.into_iter().collect();
        let full: Vec<String> = ids.iter().map(|id| full_name(&graph.graph, *id)).collect();
        let short = short_names(&full.iter().map(String::as_str).collect::<Vec<_>>());
        let mut times: HashMap<&str, usize> = HashMap::new();
        for name in &short {
            *times.entry(name).or_default() += 1;
        }
        let apart = |id: NodeId, name: &str| {
            let address = graph.graph.node(id).and_then(Node::address);
            match address.filter(|_| times.get(name).is_some_and(|n| *n > 1)) {
                Some(address) => format!("{} ({address:#x})", printable(name)),
                None => printable(name).into_owned(),
            }
        };
        Self(ids.into_iter().zip(&short).map(|(id, name)| (id, apart(id, name))).collect())
    }

    /// The short name, made printable.
    fn get(&self, id: NodeId) -> &str {
        self.0.get(&id).map_or("?", String::as_str)
    }
}

/// The whole name, demangled.
fn full_name(graph: &Graph, id: NodeId) -> String {
    graph.node(id).map_or_else(String::new, |node| names::demangle(&node.symbol))
}

/// `n thing` or `n things`.
fn plural(n: usize, one: &str) -> String {
    let number = super::count(n as f64);
    let ending = match n {
        1 => "",
        _ if one.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {one}{ending}")
}
