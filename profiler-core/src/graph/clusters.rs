//! Clusters: a function and what it reaches, in pieces that a number of probes can hold.
//!
//! Diep, Cohen and Elbaum, "Probe Distribution Techniques to Profile Events in Deployed Software" (ISSRE 2006), give instances of a program
//! sets of units that are observed together. A cluster is a root and everything that it reaches. One that is larger than the probes of an
//! instance is cut into subtrees of the breadth-first tree that overlap in their roots: each piece is connected, each function is in one of
//! them at least, and each call of the tree lies within one piece.

use super::call_graph::Graph;
use super::node::NodeId;
use super::site::Kinds;
use std::collections::VecDeque;

/// How clusters are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterLimits {
    /// Functions of one cluster, at most; 2 at least, as one alone has no call.
    pub functions: usize,
    /// Functions that are reached in all, at most.
    pub reached: usize,
}

/// Functions that are observed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// From where the others are reached within the cluster.
    pub root: NodeId,
    /// The root first, then in the order of calls.
    pub nodes: Vec<NodeId>,
}

/// A root and what it reaches, in one piece or several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clusters {
    /// The pieces, the one with the root first.
    pub clusters: Vec<Cluster>,
    /// Functions in all, each counted once.
    pub functions: usize,
    /// More are reached: the limit was met.
    pub cut: bool,
}

impl Graph {
    /// The cluster of a function by edges of these kinds, cut into pieces of at most [`ClusterLimits::functions`].
    #[must_use]
    pub fn clusters(&self, root: NodeId, kinds: Kinds, limits: ClusterLimits) -> Clusters {
        if self.node(root).is_none() {
            return Clusters::default();
        }
        let most = limits.functions.max(2);
        let reached = self.reachable(&[root], kinds, limits.reached.max(1));
        let mut open: Vec<bool> = vec![false; self.len()];
        let mut children: Vec<VecDeque<NodeId>> = vec![VecDeque::new(); self.len()];
        for (id, _) in &reached.nodes {
            if let Some(open) = open.get_mut(id.index()) {
                *open = *id != root;
            }
        }
        // The breadth-first tree: each function belongs to the first of the nearest ones that call it.
        for (id, _) in &reached.nodes {
            for edge in self.callees(*id).filter(|edge| edge.kinds.meets(kinds)) {
                let Some(open) = open.get_mut(edge.node.index()).filter(|open| **open) else { continue };
                *open = false;
                if let Some(children) = children.get_mut(id.index()) {
                    children.push_back(edge.node);
                }
            }
        }
        let mut clusters = Vec::new();
        let mut roots = VecDeque::from([root]);
        while let Some(root) = roots.pop_front() {
            let nodes = piece(root, most, &mut children);
            for id in &nodes {
                if children.get(id.index()).is_some_and(|left| !left.is_empty()) {
                    roots.push_back(*id);
                }
            }
            clusters.push(Cluster { root, nodes });
        }
        Clusters { clusters, functions: reached.nodes.len(), cut: reached.cut }
    }
}

/// Takes the children of a root, theirs, and so on, breadth first, until `most` are together. What is left of children stays.
fn piece(root: NodeId, most: usize, children: &mut [VecDeque<NodeId>]) -> Vec<NodeId> {
    let mut nodes = vec![root];
    let mut at = 0;
    while let Some(id) = nodes.get(at).copied() {
        at += 1;
        let Some(children) = children.get_mut(id.index()) else { continue };
        while nodes.len() < most {
            let Some(child) = children.pop_front() else { break };
            nodes.push(child);
        }
    }
    nodes
}
