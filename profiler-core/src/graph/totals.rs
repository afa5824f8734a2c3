//! What a graph has in all.

use super::call_graph::Graph;
use super::node::{NodeId, Origin};
use super::site::{EdgeKind, Kinds, Transfer};
use serde::Serialize;

/// Numbers of a graph.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Functions of the module.
    pub functions: usize,
    /// Of those: without a symbol.
    pub unnamed: usize,
    /// Functions of other modules that it calls or whose addresses it takes.
    pub imports: usize,
    /// Call sites, jumps to other functions included.
    pub sites: usize,
    /// Pairs of caller and callee, by why there is an edge; a pair counts for each of its kinds.
    pub edges: Vec<(EdgeKind, usize)>,
    /// Call sites whose callee is chosen while the program runs.
    pub indirect_calls: usize,
    /// The same of jumps.
    pub indirect_jumps: usize,
    /// Of the indirect ones: a callee was seen.
    pub indirect_seen: usize,
    /// Functions whose addresses are held in data.
    pub held: usize,
    /// Natural loops.
    pub loops: usize,
    /// The deepest nesting.
    pub loop_depth: u32,
    /// Functions with code that goes round without a header.
    pub irreducible: usize,
    /// Functions that nothing reaches ([`Graph::unreachable`]).
    pub unreachable: usize,
    /// Functions of the largest recursive component, by what is executed; 0 without recursion.
    pub largest_component: usize,
    /// Components that are recursive.
    pub components: usize,
}

/// What of a graph is not certain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Doubts {
    /// Functions with bytes that are no instructions, and how many bytes.
    pub undecoded: (usize, u64),
    /// Functions with indirect jumps that may stay inside or leave, and how many jumps.
    pub unresolved: (usize, u64),
    /// Functions with branches to where no code is, and how many.
    pub stray: (usize, u64),
    /// Functions that state no size.
    pub guessed_size: usize,
    /// Functions whose loops are uncertain or were not all looked for.
    pub loops: usize,
}

impl Graph {
    /// Counts.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let code = || self.nodes().filter(|(_, node)| !node.is_import());
        let indirect = |call: bool| {
            let sites = self.all_sites().iter().filter(|site| site.is_indirect());
            sites.filter(|site| (site.transfer == Transfer::Call) == call).count()
        };
        let seen =
            |id: NodeId| self.sites(id).iter().filter(|s| self.seen(id, s.at).next().is_some()).count();
        let edges = |kind| (kind, self.edges().filter(|(_, edge)| edge.kinds.has(kind)).count());
        let components = self.components(Kinds::CALLS).recursive;
        Totals {
            functions: code().count(),
            unnamed: code().filter(|(_, node)| node.origin != Origin::Symbol).count(),
            imports: self.len() - code().count(),
            sites: self.all_sites().len(),
            edges: EdgeKind::ALL.into_iter().map(edges).collect(),
            indirect_calls: indirect(true),
            indirect_jumps: indirect(false),
            indirect_seen: self.nodes().map(|(id, _)| seen(id)).sum(),
            held: code().filter(|(_, node)| node.held).count(),
            loops: self.all_loops().map(|(_, loops)| loops.loops.len()).sum(),
            loop_depth: self.all_loops().map(|(_, loops)| loops.deepest()).max().unwrap_or(0),
            irreducible: self.all_loops().filter(|(_, loops)| !loops.irreducible.is_empty()).count(),
            unreachable: self.unreachable().len(),
            largest_component: components.first().map_or(0, Vec::len),
            components: components.len(),
        }
    }

    /// What is not certain.
    #[must_use]
    pub fn doubts(&self) -> Doubts {
        let mut doubts = Doubts::default();
        let add = |pair: &mut (usize, u64), n: u64| {
            pair.0 += usize::from(n > 0);
            pair.1 += n;
        };
        for (_, node) in self.nodes() {
            add(&mut doubts.undecoded, node.facts.undecoded_bytes);
            add(&mut doubts.unresolved, u64::from(node.facts.unresolved_jumps));
            add(&mut doubts.stray, u64::from(node.stray_branches));
            doubts.guessed_size += usize::from(node.guessed_size);
        }
        doubts.loops = self.all_loops().filter(|(_, loops)| loops.uncertain || loops.cut).count();
        doubts
    }
}
