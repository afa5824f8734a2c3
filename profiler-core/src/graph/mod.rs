//! The call graph of one module: who may call whom, at which call sites, and which loops a function has.
//!
//! What: [`Builder`] takes functions as decoded values, one at a time, and makes a [`Graph`] of them. The graph answers what is reached
//! ([`Graph::reachable`]), by which chains of calls ([`Graph::chains`]), cut into pieces for a number of probes ([`Graph::clusters`]), with
//! which recursion ([`Graph::components`]), who can have led to a function ([`Sources`]), and whether it has an edge that was seen to be executed ([`Graph::explains`]).
//! [`loops`](loops::loops) finds the natural loops of a function from its basic blocks.
//!
//! Inputs: addresses, names, call sites, blocks. Who decodes machine code stands elsewhere, so that nothing here knows an instruction set,
//! a file or a demangler.
//!
//! What it is not: complete. A call through a pointer is a call site without a callee ([`CallSite::is_indirect`]) until somebody says what was
//! seen there ([`Graph::add_seen`]). Calls into other modules end at a node that stands for the import.
//!
//! Every answer has a limit, and says when the limit cut it.

mod build;
mod call_graph;
pub mod cfg;
mod chains;
mod clusters;
mod components;
mod csr;
mod dominators;
mod explain;
pub mod loops;
mod node;
mod reach;
mod returns;
mod site;
mod sources;
mod totals;

#[cfg(test)]
mod tests;

pub use build::{Builder, Decoded, RawSite, Target};
pub use call_graph::{Graph, Pointer, Taken, UnknownSite};
pub use chains::{ChainLimits, Chains};
pub use clusters::{Cluster, ClusterLimits, Clusters};
pub use components::Components;
pub use explain::Explanation;
pub use node::{Facts, Node, NodeId, Origin};
pub use reach::Reached;
pub use returns::never_returns_by_name;
pub use site::{CallSite, Edge, EdgeKind, Kinds, Transfer, Way};
pub use sources::Sources;
pub use totals::{Doubts, Totals};
