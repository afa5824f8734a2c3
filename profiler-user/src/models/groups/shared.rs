//! One frequency for the functions of a group while a run goes on that is held against models: these are known from the start.

use super::super::expected::{Expected, ExpectedFunction, Name, name_of};
use super::kernel::{Found, Known};
use super::{ALIKE, Callers, KernelGroup, Node, grouped, id};
use profiler_core::models::Rule;
use std::collections::HashMap;

/// How often functions are recorded at most.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Frequencies {
    /// Recorded calls per second of a function, with the build ID that its model is of.
    pub hz: HashMap<Name, (String, f64)>,
    /// The same in words; empty if there are none.
    pub told: String,
}

/// Frequencies of the functions of `expected`, those of a group in common, for so many data points. 0: none.
///
/// Functions with models in several contexts have none: calls of outer and inner function must be recorded at the same time, and rare bursts
/// seldom meet. Nor have functions of one name in one module: a name says not which of them is meant.
#[must_use]
pub fn frequencies(expected: &Expected, datapoints: u32) -> Frequencies {
    let mut found = Frequencies::default();
    if datapoints == 0 {
        return found;
    }
    let mut contexts: HashMap<&(String, String), usize> = HashMap::new();
    expected.functions.iter().for_each(|f| *contexts.entry(&f.key.0).or_default() += 1);
    let is_one = |f: &&ExpectedFunction| contexts.get(&f.key.0) == Some(&1);
    let callers = Callers::new(expected.functions.iter().map(|f| &f.key));
    let nodes: Vec<Node<'_>> = expected
        .functions
        .iter()
        .filter(is_one)
        .map(|f| Node {
            // Its number: names need not be unique.
            name: id(&f.key.0),
            context: f.context.clone(),
            path: callers.path(&f.key),
            caller: f.context.clone(),
            known: Known { of: id(&f.key.0), found: Found::Model(&f.model) },
            pace: f.pace,
        })
        .collect();
    let by_id: HashMap<String, &ExpectedFunction> =
        expected.functions.iter().map(|f| (id(&f.key.0), f)).collect();
    let (groups, _) = grouped(&nodes, Rule::Time { factor: ALIKE }, datapoints);
    let mut lines = Vec::new();
    for group in &groups {
        let own: Vec<&ExpectedFunction> =
            group.kernels.iter().filter_map(|kernel| by_id.get(&kernel.name).copied()).collect();
        lines.push(line(group, &own));
        for function in own {
            let (module, symbol) = &function.key.0;
            for symbol in function.names.iter().chain([symbol]) {
                let own = (function.build_id.clone(), group.calls_hz);
                found.hz.insert(name_of(module, symbol), own);
            }
        }
    }
    let mut several: Vec<&str> =
        expected.functions.iter().filter(|f| !is_one(f)).map(|f| f.name.as_str()).collect();
    several.sort_unstable();
    several.dedup();
    if !several.is_empty() {
        lines.push(format!("of one name or in several contexts, and not bounded: {}", several.join(", ")));
    }
    if !lines.is_empty() {
        found.told = format!(
            "--datapoints {datapoints}: functions of a group are recorded at one frequency, as far as budget and plan allow\n{}",
            lines.join("\n")
        );
    }
    found
}

fn line(group: &KernelGroup, own: &[&ExpectedFunction]) -> String {
    let names: Vec<&str> = own.iter().map(|f| f.name.as_str()).collect();
    let each = if own.len() > 1 { " each" } else { "" };
    format!("{}: {:.0} recorded calls a second{each} ({})", names.join(", "), group.calls_hz, group.why)
}
