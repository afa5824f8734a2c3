//! A kernel's times in runs: sets of values of the inputs.
//!
//! The paper's runs have the program's inputs, the same for all kernels. Recorded calls have arguments: inputs of one name (`--input`) are one input,
//! registers that nobody named are their function's own. A run has each input at the same place of its range, that is common to all kernels
//! with it.

use profiler_core::models::{self, Class, LoopModel, Model, Printed, Rule};
use std::collections::{BTreeSet, HashMap};

/// Places of the inputs' ranges at which times are compared.
const PLACES: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

/// Smallest and largest value of an input.
type Range = (f64, f64);

/// What is known of a kernel's time.
pub(super) enum Found<'a> {
    Model(&'a Model),
    /// There is no model: the shortest call, ns.
    Nothing {
        shortest_ns: f64,
    },
    /// A loop, the names of its inputs, and its function's model.
    Loop(&'a LoopModel, &'a [String], &'a Model),
}

/// A kernel's time, and which function it is or lies in.
pub(super) struct Known<'a> {
    pub of: String,
    pub found: Found<'a>,
}

/// Ranges that all kernels have which have the input, by its key; where they have none in common the first lies above the second.
pub(super) fn common_ranges<'a>(kernels: impl Iterator<Item = &'a Known<'a>>) -> HashMap<String, Range> {
    let mut common: HashMap<String, Range> = HashMap::new();
    for (key, (low, high)) in kernels.flat_map(Known::ranges) {
        let range = common.entry(key).or_insert((low, high));
        *range = (range.0.max(low), range.1.min(high));
    }
    common
}

impl Known<'_> {
    /// Inputs of one key are one input.
    fn key(&self, name: &str) -> String {
        let number = name.strip_prefix("arg").and_then(|number| number.parse::<u8>().ok());
        if number.is_some() { format!("{}: {name}", self.of) } else { name.to_owned() }
    }

    /// Its inputs in the order of the model.
    fn names(&self) -> &[String] {
        match &self.found {
            Found::Model(model) => &model.inputs,
            Found::Loop(_, inputs, _) => inputs,
            Found::Nothing { .. } => &[],
        }
    }

    fn ranges(&self) -> Vec<(String, Range)> {
        let model = match &self.found {
            Found::Model(model) | Found::Loop(_, _, model) => model,
            Found::Nothing { .. } => return Vec::new(),
        };
        let of = |name: &String| {
            let at = model.inputs.iter().position(|input| input == name);
            at.and_then(|at| model.range.get(at)).copied().unwrap_or((1.0, 1.0))
        };
        self.names().iter().map(|name| (self.key(name), of(name))).collect()
    }

    /// Names of the inputs that its time depends on.
    pub fn critical(&self) -> Vec<String> {
        match &self.found {
            Found::Model(model) => model.critical.iter().map(|critical| critical.name.clone()).collect(),
            Found::Loop(found, inputs, _) => {
                let factors = found.sum.terms.iter().flat_map(|(term, _)| &term.0);
                let used: BTreeSet<usize> = factors.map(|factor| usize::from(factor.input)).collect();
                used.iter().filter_map(|at| inputs.get(*at).cloned()).collect()
            }
            Found::Nothing { .. } => Vec::new(),
        }
    }

    /// Its class: the paper's, where the rule is the paper's and it has one.
    pub fn class(&self, rule: Rule) -> Class {
        let (own, printed) = match &self.found {
            Found::Model(model) => (model.class, model.printed),
            Found::Loop(found, ..) => (found.class, found.class.printed()),
            Found::Nothing { .. } => return Class::Unknown,
        };
        match printed {
            _ if rule != Rule::Printed => own,
            Printed::Logarithmic => Class::Logarithmic,
            Printed::Linear => Class::Linear,
            Printed::Polynomial => Class::Polynomial,
            Printed::Unknown => Class::Unknown,
            Printed::NoClass => own,
        }
    }

    /// Time of a call at these inputs, ns; of several categories the geometric mean.
    fn at(&self, x: &[f64]) -> Option<f64> {
        match &self.found {
            Found::Model(model) => {
                let logs: Vec<f64> =
                    model.curves.iter().map(|curve| curve.shape.at(x).max(1.0).ln()).collect();
                let n = logs.len() as f64;
                (n > 0.0).then(|| (logs.iter().sum::<f64>() / n).exp())
            }
            Found::Loop(found, ..) => Some(found.sum.at(x).max(1.0)),
            Found::Nothing { .. } => None,
        }
    }

    fn times(&self, ranges: &[Range], places: &[f64]) -> Vec<f64> {
        let value = |(low, high): &Range, place: f64| {
            let (low, high) = (low.max(1.0), high.max(1.0));
            low * (high / low).powf(place)
        };
        let at = |place: &f64| self.at(&ranges.iter().map(|range| value(range, *place)).collect::<Vec<_>>());
        places.iter().map(at).collect::<Option<_>>().unwrap_or_default()
    }

    /// Shortest call, ns; of a loop what it takes at its smallest inputs.
    fn shortest_ns(&self) -> f64 {
        match &self.found {
            Found::Model(model) => model.basis.shortest_ns,
            Found::Nothing { shortest_ns } => *shortest_ns,
            Found::Loop(..) => self.own_times().first().copied().unwrap_or(f64::INFINITY),
        }
    }

    fn own_times(&self) -> Vec<f64> {
        let ranges: Vec<Range> = self.ranges().into_iter().map(|(_, range)| range).collect();
        self.times(&ranges, &[0.0, 0.5, 1.0])
    }

    /// Predicted times at the smallest, middle and largest inputs that were seen, ns; of an unknown class the shortest call's (§3.2).
    pub fn own_ns(&self) -> [f64; 3] {
        let shortest = self.shortest_ns();
        let is_known = self.class(Rule::Time { factor: 1.0 }) != Class::Unknown;
        let times = if is_known { self.own_times() } else { Vec::new() };
        times.try_into().unwrap_or([shortest; 3])
    }

    /// What grouping needs of it. `runs`: ranges of the inputs, by key.
    pub fn kernel(&self, rule: Rule, runs: &HashMap<String, Range>) -> models::Kernel {
        let class = self.class(rule);
        let ranges: Vec<Range> =
            self.names().iter().filter_map(|name| runs.get(&self.key(name))).copied().collect();
        let has_runs = class != Class::Unknown && ranges.iter().all(|(low, high)| low <= high);
        models::Kernel {
            class,
            inputs: self.critical().iter().map(|name| self.key(name)).collect(),
            trend_ns: if has_runs { self.times(&ranges, &PLACES) } else { Vec::new() },
            shortest_ns: self.shortest_ns(),
        }
    }
}
