//! Which of some functions can have led to another one, by calls or jumps through functions that are none of them.
//!
//! What is asked: a call was made in a function that is not watched. Which of the watched ones can be around it? Those from which a way leads there that passes no
//! watched function. The answer is of use only if it is complete: where somebody may have come that the graph does not show (a function whose address is
//! taken is called through a pointer by anybody, a signal handler by the kernel, an exported one by another module), there is none.

use super::call_graph::Graph;
use super::node::{Node, NodeId};
use super::site::{EdgeKind, Kinds};
use std::collections::{BTreeSet, HashSet};

/// Functions that are looked at for one answer, at most.
const MOST_VISITED: usize = 20_000;

/// Answers who can have led to a function of a graph.
#[derive(Debug)]
pub struct Sources<'a> {
    graph: &'a Graph,
    /// By number: it has callers that the graph does not show.
    is_open: Vec<bool>,
    /// Parts of the code are no instructions to us: calls in there would be missed.
    has_holes: bool,
}

impl<'a> Sources<'a> {
    /// `from_elsewhere`: another module may call this function by its name.
    #[must_use]
    pub fn new(graph: &'a Graph, from_elsewhere: impl Fn(&Node) -> bool) -> Self {
        let is_entry = |id: NodeId| graph.node(id).is_some_and(|node| node.entry);
        let is_open = |(id, node): (NodeId, &Node)| {
            if node.is_import() {
                return false;
            }
            let (mut is_taken, mut is_begun, mut is_called) = (false, false, false);
            for edge in graph.callers(id) {
                is_called |= edge.kinds.meets(Kinds::CALLS);
                match edge.kinds.has(EdgeKind::Taken) {
                    // What the program begins with: nothing watched is around it.
                    true if is_entry(edge.node) => is_begun = true,
                    true => is_taken = true,
                    false => {}
                }
            }
            // Nobody has to call what a program begins with, but somebody who holds its address may.
            let is_met = is_called || is_begun || node.entry;
            let is_named = from_elsewhere(node) && !node.entry;
            is_taken || node.held || node.ifunc || node.lone_part || is_named || !is_met
        };
        Self {
            graph,
            is_open: graph.nodes().map(is_open).collect(),
            has_holes: graph.nodes().any(|(_, node)| node.facts.undecoded_bytes > 0),
        }
    }

    /// The functions among the `watched` from which a way of edges of these kinds leads to `to` that passes none of them, by number. `None`: there may be others. A way
    /// has at least one edge: `to` itself is among them if it can get back to itself.
    #[must_use]
    pub fn of(&self, to: NodeId, kinds: Kinds, watched: impl Fn(NodeId) -> bool) -> Option<Vec<NodeId>> {
        if self.has_holes || self.graph.node(to).is_none_or(Node::is_import) {
            return None;
        }
        let mut met = HashSet::from([to]);
        let mut waiting = vec![to];
        let mut found = BTreeSet::new();
        while let Some(id) = waiting.pop() {
            if self.is_open.get(id.index()).copied().unwrap_or(true) || met.len() > MOST_VISITED {
                return None;
            }
            for edge in self.graph.callers(id).filter(|edge| edge.kinds.meets(kinds)) {
                if watched(edge.node) {
                    found.insert(edge.node);
                } else if met.insert(edge.node) {
                    waiting.push(edge.node);
                }
            }
        }
        Some(found.into_iter().collect())
    }
}
