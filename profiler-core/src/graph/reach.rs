//! What is reached.

use super::call_graph::Graph;
use super::node::NodeId;
use super::site::Kinds;

/// What is reached from some functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    /// The functions, the nearest first, those that were begun with included; each with the number of calls to it.
    pub nodes: Vec<(NodeId, u32)>,
    /// There are more: the limit was reached.
    pub cut: bool,
}

impl Graph {
    /// All functions that can be reached from some by edges of these kinds, at most `limit`. Breadth first.
    #[must_use]
    pub fn reachable(&self, from: &[NodeId], kinds: Kinds, limit: usize) -> Reached {
        self.search(from, limit, |id| {
            self.callees(id).filter(|edge| edge.kinds.meets(kinds)).map(|edge| edge.node).collect()
        })
    }

    /// All functions that can reach one of some, the same way.
    #[must_use]
    pub fn reaching(&self, to: &[NodeId], kinds: Kinds, limit: usize) -> Reached {
        self.search(to, limit, |id| {
            self.callers(id).filter(|edge| edge.kinds.meets(kinds)).map(|edge| edge.node).collect()
        })
    }

    fn search(&self, from: &[NodeId], limit: usize, next: impl Fn(NodeId) -> Vec<NodeId>) -> Reached {
        let mut met = vec![false; self.len()];
        let mut nodes: Vec<(NodeId, u32)> = Vec::new();
        let mut cut = false;
        let mut meet = |nodes: &mut Vec<(NodeId, u32)>, id: NodeId, depth: u32| match met.get_mut(id.index())
        {
            Some(met) if !*met && nodes.len() < limit => {
                *met = true;
                nodes.push((id, depth));
            }
            Some(met) => cut |= !*met,
            None => {}
        };
        for id in from {
            meet(&mut nodes, *id, 0);
        }
        let mut at = 0;
        while let Some((id, depth)) = nodes.get(at).copied() {
            at += 1;
            for callee in next(id) {
                meet(&mut nodes, callee, depth.saturating_add(1));
            }
        }
        Reached { nodes, cut }
    }

    /// Functions of the module that nothing reaches: neither what may be called from outside (exports, entries, addresses held in
    /// data) nor an address that reachable code takes.
    #[must_use]
    pub fn unreachable(&self) -> Vec<NodeId> {
        let roots: Vec<NodeId> = self.nodes().filter(|(_, node)| node.is_root()).map(|(id, _)| id).collect();
        let mut met = vec![false; self.len()];
        for (id, _) in self.reachable(&roots, Kinds::ALL, usize::MAX).nodes {
            if let Some(met) = met.get_mut(id.index()) {
                *met = true;
            }
        }
        let unmet = |(id, _): &(NodeId, &super::node::Node)| !met.get(id.index()).is_some_and(|met| *met);
        self.nodes().filter(|(_, node)| !node.is_import()).filter(unmet).map(|(id, _)| id).collect()
    }
}
