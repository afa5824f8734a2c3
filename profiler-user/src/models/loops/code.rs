//! The loops of functions, from the files of a recording's modules.

use crate::inspect::graph::CallGraph;
use crate::inspect::{KernelRules, Module};
use profiler_core::graph::loops::Loops;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

/// Where the code of a function lies, and its loops.
#[derive(Debug, Clone, Default)]
pub struct FunctionCode {
    /// Link-time addresses.
    pub ranges: Vec<Range<u64>>,
    pub loops: Loops,
}

impl FunctionCode {
    /// Whether an address lies in the function, and the innermost loop that it lies in.
    pub fn place(&self, address: u64) -> Option<Option<u32>> {
        let holds = |ranges: &[Range<u64>]| ranges.iter().any(|range| range.contains(&address));
        if !holds(&self.ranges) {
            return None;
        }
        let around = (0..).zip(&self.loops.loops).filter(|(_, found)| holds(&found.body));
        Some(around.max_by_key(|(_, found)| found.depth).map(|(number, _)| number))
    }
}

/// Functions of a module by the link-time addresses at which they begin.
///
/// # Errors
/// Why the file says nothing of what was recorded, in words.
pub fn read(
    module: &str,
    build_id: &str,
    functions: &BTreeSet<u64>,
) -> Result<BTreeMap<u64, FunctionCode>, String> {
    if build_id.is_empty() {
        return Err(
            "the recording has no build ID of it, by which the file could be told to be the same".to_owned()
        );
    }
    let path = Path::new(module);
    let file = Module::offline(path).map_err(|why| why.to_string())?;
    match file.build_id() {
        Some(here) if here == build_id => {}
        Some(here) => {
            return Err(format!(
                "the file is another build (build ID {here} here, {build_id} in the recording)"
            ));
        }
        None => return Err(format!("the file has no build ID, and {build_id} was recorded")),
    }
    drop(file);
    let graph =
        CallGraph::with_loops_of(path, KernelRules::host(), functions).map_err(|why| why.to_string())?;
    let graph = graph.graph;
    let of = |start: &u64| {
        let id = graph.at(*start)?;
        let loops = graph.loops(id).cloned().unwrap_or_default();
        Some((*start, FunctionCode { ranges: graph.node(id)?.ranges.clone(), loops }))
    };
    Ok(functions.iter().filter_map(of).collect())
}
