//! The graph: what is stored, and what is looked up.

use super::build::AddressIndex;
use super::csr::Csr;
use super::loops::Loops;
use super::node::{Node, NodeId};
use super::site::{CallSite, Edge, EdgeKind, Kinds};
use std::collections::{BTreeMap, BTreeSet};

/// A place that takes the address of a function without calling it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Link-time address of the instruction.
    pub at: u64,
    /// Whose address it takes.
    pub node: NodeId,
}

/// A word of the data that holds the address of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// Link-time address of the word.
    pub at: u64,
    /// Whose address it holds.
    pub node: NodeId,
}

/// What was seen does not fit the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnknownSite {
    /// No function has this number.
    #[error("function {0} is not in the graph")]
    Node(NodeId),
    /// The caller has no call site at this address.
    #[error("function {caller} has no call site at {at:#x}")]
    Site {
        /// The caller.
        caller: NodeId,
        /// The address.
        at: u64,
    },
}

/// What a graph is made of.
pub(super) struct Parts {
    pub nodes: Vec<Node>,
    pub index: AddressIndex,
    pub sites: Csr<CallSite>,
    pub taken: Csr<Taken>,
    pub pointers: Vec<Pointer>,
    pub edges: Csr<Edge>,
}

/// The call graph of one module.
#[derive(Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    index: AddressIndex,
    sites: Csr<CallSite>,
    taken: Csr<Taken>,
    pointers: Vec<Pointer>,
    edges: Csr<Edge>,
    callers: Csr<Edge>,
    /// Edges that were seen and that no site tells, by caller, and by callee.
    extra: BTreeMap<NodeId, Vec<Edge>>,
    extra_callers: BTreeMap<NodeId, Vec<Edge>>,
    /// Callees that were seen, by caller and address of the site.
    seen: BTreeMap<(NodeId, u64), BTreeSet<NodeId>>,
    loops: BTreeMap<NodeId, Loops>,
}

impl Graph {
    pub(super) fn of(parts: Parts) -> Self {
        let Parts { nodes, index, sites, taken, pointers, edges } = parts;
        let numbers = || 0..u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let reverse: Vec<(u32, Edge)> = numbers()
            .flat_map(|from| {
                edges.of(from).iter().map(move |e| (e.node.0, Edge { node: NodeId(from), ..*e }))
            })
            .collect();
        let callers = Csr::new(nodes.len(), &reverse);
        Self {
            nodes,
            index,
            sites,
            taken,
            pointers,
            edges,
            callers,
            extra: BTreeMap::new(),
            extra_callers: BTreeMap::new(),
            seen: BTreeMap::new(),
            loops: BTreeMap::new(),
        }
    }

    /// Number of nodes, imports included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// It has no function.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All nodes, in the order of their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        (0..u32::MAX).map(NodeId).zip(&self.nodes)
    }

    /// A function or an import.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.index())
    }

    /// The function that begins at a link-time address.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<NodeId> {
        self.index.at(address)
    }

    /// The innermost function that holds a link-time address.
    #[must_use]
    pub fn covering(&self, address: u64) -> Option<NodeId> {
        self.index.covering(address)
    }

    /// The call sites of a function, by address.
    #[must_use]
    pub fn sites(&self, id: NodeId) -> &[CallSite] {
        self.sites.of(id.0)
    }

    /// All call sites.
    #[must_use]
    pub fn all_sites(&self) -> &[CallSite] {
        self.sites.items()
    }

    /// The call site of a function at an address.
    #[must_use]
    pub fn site(&self, id: NodeId, at: u64) -> Option<&CallSite> {
        let sites = self.sites(id);
        sites.get(sites.partition_point(|site| site.at < at)).filter(|site| site.at == at)
    }

    /// The call site of a function that returns to an address.
    #[must_use]
    pub fn site_before(&self, id: NodeId, return_address: u64) -> Option<&CallSite> {
        // The longest call has 15 bytes, and sites are sorted.
        let sites = self.sites(id);
        let from = sites.partition_point(|site| site.at < return_address.saturating_sub(15));
        sites.get(from..)?.iter().take(15).find(|site| site.return_address() == Some(return_address))
    }

    /// Whose addresses a function takes, by place.
    #[must_use]
    pub fn taken(&self, id: NodeId) -> &[Taken] {
        self.taken.of(id.0)
    }

    /// The words of the data that hold addresses of functions, by address.
    #[must_use]
    pub fn pointers(&self) -> &[Pointer] {
        &self.pointers
    }

    /// The edges that leave a function, in the order of its call sites; those that were seen last.
    pub fn callees(&self, id: NodeId) -> impl Iterator<Item = &Edge> {
        self.edges.of(id.0).iter().chain(self.extra.get(&id).into_iter().flatten())
    }

    /// The edges that lead to a function; [`Edge::node`] is the caller.
    pub fn callers(&self, id: NodeId) -> impl Iterator<Item = &Edge> {
        self.callers.of(id.0).iter().chain(self.extra_callers.get(&id).into_iter().flatten())
    }

    /// All edges.
    pub fn edges(&self) -> impl Iterator<Item = (NodeId, &Edge)> {
        self.nodes().flat_map(|(id, _)| self.callees(id).map(move |edge| (id, edge)))
    }

    /// Notes that a call site was seen to lead to a function; true if that is new.
    ///
    /// # Errors
    /// There is no such call site, or no such function.
    pub fn add_seen(&mut self, caller: NodeId, at: u64, callee: NodeId) -> Result<bool, UnknownSite> {
        if self.node(callee).is_none() {
            return Err(UnknownSite::Node(callee));
        }
        let site = self.site(caller, at).copied().ok_or(UnknownSite::Site { caller, at })?;
        if site.to == Some(callee) || !self.seen.entry((caller, at)).or_default().insert(callee) {
            return Ok(false);
        }
        add_seen_to(self.edges.of_mut(caller.0), self.extra.entry(caller).or_default(), callee);
        add_seen_to(self.callers.of_mut(callee.0), self.extra_callers.entry(callee).or_default(), caller);
        Ok(true)
    }

    /// The callees that were seen at a call site.
    pub fn seen(&self, caller: NodeId, at: u64) -> impl Iterator<Item = NodeId> {
        self.seen.get(&(caller, at)).into_iter().flatten().copied()
    }

    /// The loops of a function; none if it has none, or none were looked for.
    #[must_use]
    pub fn loops(&self, id: NodeId) -> Option<&Loops> {
        self.loops.get(&id)
    }

    /// All functions with loops, and theirs.
    pub fn all_loops(&self) -> impl Iterator<Item = (NodeId, &Loops)> {
        self.loops.iter().map(|(id, loops)| (*id, loops))
    }

    /// Keeps the loops of a function, if it has any.
    pub fn set_loops(&mut self, id: NodeId, loops: Loops) {
        if id.index() < self.nodes.len() && !loops.is_empty() {
            self.loops.insert(id, loops);
        }
    }
}

/// Adds a site that was seen to the edge to `node`, which may be among the extra ones, or in none of the lists.
fn add_seen_to(known: &mut [Edge], extra: &mut Vec<Edge>, node: NodeId) {
    let seen = Kinds::of(EdgeKind::Seen);
    match known.iter_mut().chain(extra.iter_mut()).find(|edge| edge.node == node) {
        Some(edge) => {
            edge.kinds = edge.kinds.or(seen);
            edge.sites += 1;
        }
        None => extra.push(Edge { node, kinds: seen, sites: 1 }),
    }
}
