//! Which of the named functions can have led to a call site in a function that is not named, by the call graph of its module.
//!
//! Why: without it, every named function that may still be open may have led there, and a link is marked. A graph tells that most of them cannot have. It shows
//! direct calls and jumps only, so the answer is "any may" where somebody could have come in another way ([`Sources`]): through a pointer, from another
//! module, from the kernel.
//!
//! What it costs: some 0.1 us for each byte of code once, and 1.5 times the code in memory, for the modules of such call sites. Larger modules are left out.

use super::super::ElfInfo;
use super::super::graph::{CallGraph, imported_names};
use super::context::{CallContext, CodeSnapshot, FunctionAt};
use profiler_core::graph::{Graph, Kinds, Node, NodeId, Sources};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

/// Bytes of code of a module whose graph is made, and of all of them.
const MOST_CODE_BYTES: u64 = 24 << 20;

/// Named functions that can have led to a function; `None`: any may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedFrom {
    /// By jumps alone.
    pub by_jumps: Option<Vec<FunctionAt>>,
    /// By calls and jumps.
    pub by_calls: Option<Vec<FunctionAt>>,
}

impl CodeSnapshot {
    /// For each return address, which of the `named` functions can have led to the function that holds it through functions that are not named. Nothing is known of
    /// what is not looked at before `deadline`, and of addresses in named functions nothing is asked.
    #[must_use]
    pub fn led_from(
        &self,
        contexts: &[CallContext],
        named: &HashSet<FunctionAt>,
        deadline: Instant,
    ) -> Vec<LedFrom> {
        let mut found = vec![LedFrom::default(); contexts.len()];
        let mut by_module: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (position, context) in contexts.iter().enumerate() {
            let is_named = context.function.as_ref().is_some_and(|(at, _)| named.contains(at));
            if let Some(module) = context.module.filter(|_| !is_named) {
                by_module.entry(module).or_default().push(position);
            }
        }
        let mut left = MOST_CODE_BYTES;
        for (index, positions) in by_module {
            // What is named in other modules comes here by calls from elsewhere, of which nothing is known.
            let has_named = named.iter().any(|(module, _)| *module == index);
            let Some(module) = self.modules().get(index).filter(|_| has_named) else { continue };
            let code_bytes = module.elf().map_or(u64::MAX, |elf| code_bytes(elf));
            if Instant::now() > deadline || code_bytes > left {
                continue;
            }
            left -= code_bytes;
            let Ok(graph) = CallGraph::without_loops(module, self.rules()) else { continue };
            let mut asked = Asked::new(index, &graph, self.called_by_name(index), named);
            for position in positions {
                if let (Some(context), Some(found)) = (contexts.get(position), found.get_mut(position))
                    && Instant::now() < deadline
                {
                    *found = asked.of(context.vaddr);
                }
            }
        }
        found
    }

    /// Names by which other modules may call functions of this one; `None`: any that it exports. A program's own functions are called by the modules
    /// that import them; a library may be looked into by name (`dlsym`).
    fn called_by_name(&self, index: usize) -> Option<HashSet<String>> {
        let module = self.modules().get(index).filter(|module| module.main)?;
        let others = self.modules().iter().filter(|other| other.path != module.path);
        let mapped = others.filter(|other| !other.mappings.is_empty());
        let mut names = HashSet::new();
        for other in mapped {
            names.extend(imported_names(other.elf().ok()?));
        }
        Some(names)
    }
}

/// Questions about one module.
struct Asked<'a> {
    graph: &'a Graph,
    sources: Sources<'a>,
    named: HashMap<NodeId, FunctionAt>,
    /// All named functions of the module are in the graph: one that is not could be around a call unseen.
    is_whole: bool,
    known: HashMap<NodeId, LedFrom>,
}

impl<'a> Asked<'a> {
    fn new(
        index: usize,
        graph: &'a Graph,
        by_name: Option<HashSet<String>>,
        named: &HashSet<FunctionAt>,
    ) -> Self {
        let from_elsewhere = |node: &Node| {
            let mut names = std::iter::once(&node.symbol).chain(&node.aliases);
            let is_called =
                |name: &String| by_name.as_ref().is_none_or(|by_name| by_name.contains(plain(name)));
            node.exported && names.any(is_called)
        };
        let here = named.iter().filter(|(module, _)| *module == index);
        let nodes: Vec<Option<(NodeId, FunctionAt)>> = here.map(|at| Some((graph.at(at.1)?, *at))).collect();
        Self {
            graph,
            sources: Sources::new(graph, from_elsewhere),
            is_whole: nodes.iter().all(Option::is_some),
            named: nodes.into_iter().flatten().collect(),
            known: HashMap::new(),
        }
    }

    /// Of the function that holds the call before a link-time address.
    fn of(&mut self, return_address: u64) -> LedFrom {
        let Some(node) = self.graph.covering(return_address.wrapping_sub(1)) else {
            return LedFrom::default();
        };
        if let Some(known) = self.known.get(&node) {
            return known.clone();
        }
        let is_asked = self.is_whole && !self.named.contains_key(&node);
        let led = |kinds: Kinds| {
            let from =
                self.sources.of(node, kinds, |id| self.named.contains_key(&id)).filter(|_| is_asked)?;
            Some(from.iter().filter_map(|id| self.named.get(id).copied()).collect())
        };
        let found = LedFrom { by_jumps: led(Kinds::TAILS), by_calls: led(Kinds::CALLS) };
        self.known.insert(node, found.clone());
        found
    }
}

/// A symbol without its version.
fn plain(name: &str) -> &str {
    name.split_once('@').map_or(name, |(name, _)| name)
}

fn code_bytes(elf: &ElfInfo) -> u64 {
    elf.sections.iter().filter(|section| section.exec && !section.nobits).map(|section| section.size).sum()
}
