//! Whether the graph has an edge that was seen to be executed.

use super::call_graph::Graph;
use super::node::NodeId;
use super::site::{EdgeKind, Kinds};
use serde::Serialize;
use std::collections::{BTreeSet, VecDeque};

/// Tail jumps in a row that are followed.
const MOST_TAILS: usize = 4096;

/// What the graph says of a call that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Explanation {
    /// It has the edge. A callee that another one jumped to is [`EdgeKind::Tail`].
    Edge(EdgeKind),
    /// The call site, or a jump on the way from it, leads where the program chooses at run time.
    Indirect,
    /// Neither: the graph lacks an edge, or the call did not come from the caller's code.
    Unknown,
}

impl Graph {
    /// Explains the beginning of a call of `callee` that will return to `return_address` in `caller`.
    ///
    /// The return address names the call site. What the site calls may have jumped on: so tail jumps are followed. Where the site, or a
    /// function that was jumped through, is indirect, or the loader chooses the callee (IFUNC), the answer is
    /// [`Explanation::Indirect`].
    #[must_use]
    pub fn explains(&self, caller: NodeId, return_address: u64, callee: NodeId) -> Explanation {
        let Some(site) = self.site_before(caller, return_address) else { return Explanation::Unknown };
        if site.to == Some(callee) {
            return Explanation::Edge(site.kind());
        }
        let mut first: Vec<NodeId> = site.to.into_iter().collect();
        for seen in self.seen(caller, site.at) {
            if seen == callee {
                return Explanation::Edge(EdgeKind::Seen);
            }
            first.push(seen);
        }
        let chosen = |id: NodeId| {
            let indirect_jump = |s: &super::site::CallSite| s.is_indirect() && s.return_address().is_none();
            self.node(id).is_some_and(|node| node.ifunc) || self.sites(id).iter().any(indirect_jump)
        };
        let mut indirect = site.is_indirect();
        let mut met: BTreeSet<NodeId> = first.iter().copied().collect();
        let mut queue: VecDeque<NodeId> = first.into();
        while let Some(id) = queue.pop_front() {
            indirect |= chosen(id);
            let tails = self.callees(id).filter(|edge| edge.kinds.meets(Kinds::TAILS)).map(|edge| edge.node);
            let jumps = self.sites(id).iter().filter(|site| site.return_address().is_none());
            let seen = jumps.flat_map(|site| self.seen(id, site.at));
            for next in tails.chain(seen) {
                if next == callee {
                    return Explanation::Edge(EdgeKind::Tail);
                }
                if met.len() < MOST_TAILS && met.insert(next) {
                    queue.push_back(next);
                }
            }
        }
        if indirect { Explanation::Indirect } else { Explanation::Unknown }
    }
}
