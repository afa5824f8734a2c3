//! From decoded functions to a graph.
//!
//! Functions come one at a time and in any order; addresses are resolved at the end, when all functions are known.

use super::call_graph::{Graph, Parts, Pointer, Taken};
use super::csr::Csr;
use super::node::{Facts, Node, NodeId};
use super::site::{CallSite, Edge, EdgeKind, Kinds, Transfer, Way};
use crate::class::SiteClass;
use std::collections::HashMap;
use std::ops::Range;

/// Where a call site leads, or what address is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// To a link-time address of the module.
    Address(u64),
    /// To a node, most often an import.
    Node(NodeId),
    /// That is chosen while the program runs.
    Unknown,
}

/// A call site as decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawSite {
    /// Link-time address of the instruction.
    pub at: u64,
    /// Its bytes.
    pub len: u8,
    /// How control passes.
    pub transfer: Transfer,
    /// By what it says where.
    pub way: Way,
    /// Where.
    pub to: Target,
    /// Price class of a probe at the instruction; none where it may not be probed.
    pub class: Option<SiteClass>,
    /// The same at the return address.
    pub return_class: Option<SiteClass>,
}

/// One function, decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Its split-off parts.
    pub parts: Vec<Range<u64>>,
    /// Where control leaves it for other functions.
    pub sites: Vec<RawSite>,
    /// Addresses of instructions, and whose address they take.
    pub taken: Vec<(u64, Target)>,
    /// What else was found.
    pub facts: Facts,
}

/// Collects what a graph is made of.
#[derive(Debug, Default)]
pub struct Builder {
    nodes: Vec<Node>,
    sites: Vec<(u32, RawSite)>,
    taken: Vec<(u32, (u64, Target))>,
    pointers: Vec<(u64, Target)>,
}

impl Builder {
    /// Adds a function or an import; two at one address are one too many: the first one counts.
    pub fn node(&mut self, node: Node) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(node);
        id
    }

    /// Adds what a function was decoded to.
    pub fn code(&mut self, id: NodeId, decoded: Decoded) {
        let Some(node) = self.nodes.get_mut(id.index()) else { return };
        node.ranges.extend(decoded.parts);
        node.facts = decoded.facts;
        self.sites.extend(decoded.sites.into_iter().map(|site| (id.0, site)));
        self.taken.extend(decoded.taken.into_iter().map(|taken| (id.0, taken)));
    }

    /// Adds a word of the data that holds an address; words that hold none of a function are left out.
    pub fn pointer(&mut self, at: u64, to: Target) {
        self.pointers.push((at, to));
    }

    /// Makes the graph.
    #[must_use]
    pub fn finish(mut self) -> Graph {
        let index = AddressIndex::of(&self.nodes);
        let n = self.nodes.len();
        let mut pointers: Vec<Pointer> = Vec::new();
        for (at, to) in std::mem::take(&mut self.pointers) {
            let Some((node, false)) = index.resolve(to, n) else { continue };
            self.nodes[node.index()].held = true;
            pointers.push(Pointer { at, node });
        }
        pointers.sort_unstable_by_key(|pointer| (pointer.at, pointer.node));
        pointers.dedup();
        let mut sites = Vec::with_capacity(self.sites.len());
        for (caller, raw) in std::mem::take(&mut self.sites) {
            match site(&self.nodes, &index, NodeId(caller), raw) {
                Some(site) => sites.push((caller, site)),
                // A jump of its own is none to another function.
                None if index.is_own(caller, raw.to) => {}
                None => self.nodes[caller as usize].stray_branches += 1,
            }
        }
        sites.sort_unstable_by_key(|(caller, site)| (*caller, site.at, site.to));
        sites.dedup();
        let mut taken = Vec::new();
        for (caller, (at, to)) in std::mem::take(&mut self.taken) {
            if let Some((node, false)) = index.resolve(to, n) {
                taken.push((caller, Taken { at, node }));
            }
        }
        taken.sort_unstable_by_key(|(caller, taken)| (*caller, taken.at, taken.node));
        taken.dedup();
        let (sites, taken) = (Csr::new(n, &sites), Csr::new(n, &taken));
        let edges = edges(n, &sites, &taken);
        Graph::of(Parts { nodes: self.nodes, index, sites, taken, pointers, edges })
    }
}

/// A site with its callee; none of one that leads to no code.
fn site(nodes: &[Node], index: &AddressIndex, caller: NodeId, raw: RawSite) -> Option<CallSite> {
    let unresolved = CallSite {
        at: raw.at,
        to: None,
        len: raw.len,
        transfer: raw.transfer,
        way: raw.way,
        inside: false,
        class: raw.class,
        return_class: raw.return_class,
    };
    if raw.to == Target::Unknown {
        return Some(unresolved);
    }
    let (to, inside) = index.resolve(raw.to, nodes.len())?;
    let own_jump = matches!(raw.transfer, Transfer::Jump | Transfer::Branch) && raw.way == Way::Direct;
    if own_jump && to == caller {
        return None;
    }
    if nodes[to.index()].is_indirect_thunk() {
        return Some(CallSite { way: Way::Register, ..unresolved });
    }
    Some(CallSite { to: Some(to), inside, ..unresolved })
}

/// One edge for each pair of functions, callers' edges in the order of their first sites.
fn edges(n: usize, sites: &Csr<CallSite>, taken: &Csr<Taken>) -> Csr<Edge> {
    let mut all: Vec<(u32, Edge)> = Vec::new();
    let mut of_caller: HashMap<NodeId, usize> = HashMap::new();
    for caller in 0..u32::try_from(n).unwrap_or(u32::MAX) {
        of_caller.clear();
        let called = sites.of(caller).iter().filter_map(|site| Some((site.to?, Kinds::of(site.kind()))));
        let takes = taken.of(caller).iter().map(|t| (t.node, Kinds::of(EdgeKind::Taken)));
        for (node, kinds) in called.chain(takes) {
            let at = *of_caller.entry(node).or_insert(all.len());
            match all.get_mut(at) {
                Some((_, edge)) => {
                    edge.kinds = edge.kinds.or(kinds);
                    edge.sites += 1;
                }
                None => all.push((caller, Edge { node, kinds, sites: 1 })),
            }
        }
    }
    Csr::new(n, &all)
}

/// Functions by address.
#[derive(Debug, Default)]
pub(super) struct AddressIndex {
    /// Starts of functions, in order.
    starts: Vec<(u64, NodeId)>,
    /// Begin, end and function of every range, by begin.
    ranges: Vec<(u64, u64, NodeId)>,
}

/// A range may hold the starts of others; so many are looked at before an address.
const NESTED: usize = 16;

impl AddressIndex {
    fn of(nodes: &[Node]) -> Self {
        let ids = || (0..u32::MAX).map(NodeId).zip(nodes);
        let mut starts: Vec<_> = ids().filter_map(|(id, node)| Some((node.address()?, id))).collect();
        let mut ranges: Vec<_> =
            ids().flat_map(|(id, node)| node.ranges.iter().map(move |r| (r.start, r.end, id))).collect();
        starts.sort_unstable();
        starts.dedup_by_key(|(start, _)| *start);
        ranges.sort_unstable();
        Self { starts, ranges }
    }

    /// The function that begins at an address.
    pub fn at(&self, address: u64) -> Option<NodeId> {
        let i = self.starts.binary_search_by_key(&address, |(start, _)| *start).ok()?;
        self.starts.get(i).map(|(_, id)| *id)
    }

    /// The innermost function that holds an address.
    pub fn covering(&self, address: u64) -> Option<NodeId> {
        let end = self.ranges.partition_point(|(start, ..)| *start <= address);
        let before = self.ranges.get(..end)?;
        before.iter().rev().take(NESTED).find(|(_, end, _)| address < *end).map(|(.., id)| *id)
    }

    /// A node, and whether an address lies behind its start.
    fn resolve(&self, to: Target, n: usize) -> Option<(NodeId, bool)> {
        match to {
            Target::Node(id) => (id.index() < n).then_some((id, false)),
            Target::Address(address) => match self.at(address) {
                Some(id) => Some((id, false)),
                None => self.covering(address).map(|id| (id, true)),
            },
            Target::Unknown => None,
        }
    }

    /// A target is the caller's own code.
    fn is_own(&self, caller: u32, to: Target) -> bool {
        matches!(to, Target::Address(address)
            if self.at(address).or_else(|| self.covering(address)) == Some(NodeId(caller)))
    }
}
