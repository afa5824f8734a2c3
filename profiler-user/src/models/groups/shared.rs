//! One frequency for the functions of a group while a run goes on: their models are known from the start (`--expect`), or made of what was recorded so far
//! (`--model`).

use super::super::expected::{Expected, ExpectedFunction, Name, name_of};
use super::kernel::{Found, Known};
use super::{ALIKE, Callers, Key, Node, Pace, grouped, id};
use profiler_core::models::{Model, Rule};
use std::collections::HashMap;

/// A function in a context, with its model.
#[derive(Debug, Clone, Copy)]
pub struct Modelled<'a> {
    /// What it is known by.
    pub key: &'a Key,
    /// The timed call around it; `None`: there was none.
    pub context: Option<&'a str>,
    /// Its model.
    pub model: &'a Model,
    /// Over how many decades its inputs are.
    pub pace: Pace,
}

impl<'a> From<&'a ExpectedFunction> for Modelled<'a> {
    fn from(function: &'a ExpectedFunction) -> Self {
        let ExpectedFunction { key, context, model, pace, .. } = function;
        Self { key, context: context.as_deref(), model, pace: *pace }
    }
}

/// Functions that share a frequency.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedGroup {
    /// Their places among those that were grouped.
    pub members: Vec<usize>,
    /// Recorded calls per second of each, Hz.
    pub calls_hz: f64,
    /// Why they are together.
    pub why: String,
}

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
    // The others have no inputs of which data points could be wanted.
    let known: Vec<&ExpectedFunction> =
        expected.functions.iter().filter(|function| function.no_inputs.is_none()).collect();
    let all: Vec<Modelled<'_>> = known.iter().copied().map(Modelled::from).collect();
    let (groups, several) = shared_groups(&all, datapoints);
    let mut lines = Vec::new();
    for group in &groups {
        let own: Vec<&ExpectedFunction> =
            group.members.iter().filter_map(|place| known.get(*place).copied()).collect();
        lines.push(line(group, &own));
        for function in own {
            let (module, symbol) = &function.key.0;
            for symbol in function.names.iter().chain([symbol]) {
                let own = (function.build_id.clone(), group.calls_hz);
                found.hz.insert(name_of(module, symbol), own);
            }
        }
    }
    let of = several.iter().filter_map(|place| known.get(*place));
    let mut several: Vec<&str> = of.map(|f| f.name.as_str()).collect();
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

/// Groups of these functions for so many data points, and the places of those that are in none: of one name in one module, or in several contexts.
#[must_use]
pub fn shared_groups(functions: &[Modelled<'_>], datapoints: u32) -> (Vec<SharedGroup>, Vec<usize>) {
    let mut contexts: HashMap<&(String, String), usize> = HashMap::new();
    functions.iter().for_each(|f| *contexts.entry(&f.key.0).or_default() += 1);
    let callers = Callers::new(functions.iter().map(|f| f.key));
    let (mut nodes, mut places, mut several) = (Vec::new(), HashMap::new(), Vec::new());
    for (place, f) in functions.iter().enumerate() {
        if contexts.get(&f.key.0) != Some(&1) {
            several.push(place);
            continue;
        }
        // Its number: names need not be unique.
        let name = id(&f.key.0);
        places.insert(name.clone(), place);
        nodes.push(Node {
            known: Known { of: name.clone(), found: Found::Model(f.model) },
            name,
            context: f.context.map(str::to_owned),
            path: callers.path(f.key),
            caller: f.context.map(str::to_owned),
            pace: f.pace,
        });
    }
    let (groups, _) = grouped(&nodes, Rule::Time { factor: ALIKE }, datapoints);
    let shared = groups.into_iter().map(|group| SharedGroup {
        members: group.kernels.iter().filter_map(|kernel| places.get(&kernel.name).copied()).collect(),
        calls_hz: group.calls_hz,
        why: group.why,
    });
    (shared.collect(), several)
}

fn line(group: &SharedGroup, own: &[&ExpectedFunction]) -> String {
    let names: Vec<&str> = own.iter().map(|f| f.name.as_str()).collect();
    let each = if own.len() > 1 { " each" } else { "" };
    format!("{}: {:.0} recorded calls a second{each} ({})", names.join(", "), group.calls_hz, group.why)
}
