//! Recorded calls of functions that models are made of (`--model`), by the decade of each input: what the run is told of them.

use super::Agent;
use super::class::LiveClass;
use super::live_groups::{Formed, LiveGroups, Named};
use super::shared_points::SharedPoints;
use crate::config::{InputSpec, InputsSpec, RunConfig};
use crate::inspect::{ALL_ARGUMENTS, Pattern, Prototype};
use crate::models::LiveFunction;
use profiler_core::class::ClassId;
use profiler_core::recording::EventRow;
use profiler_core::run::view::PointsView;
use std::collections::{BTreeMap, HashMap};

/// A decade that holds less than this part of the calls is of rare inputs: waiting for it would have all calls recorded.
const LEAST_PART: f64 = 0.01;
/// Combinations of decades that are told apart.
const MOST: usize = 64;
/// Of a register that is not an input, or could not be read.
const NOT_READ: u8 = u8::MAX;

/// The decade of each argument register.
type Decades = [u8; 6];

/// Calls of one class.
#[derive(Debug, Default)]
struct Counted {
    /// Which registers are inputs.
    inputs: [bool; 6],
    calls: u64,
    by_decades: HashMap<Decades, u64>,
}

/// See the [module](self).
pub(super) struct DataPoints {
    /// Of each decade; 0: as many as can be had.
    wanted: u32,
    patterns: Vec<Pattern>,
    inputs: Vec<InputsSpec>,
    /// `None`: no model is made of it.
    classes: BTreeMap<ClassId, Option<Counted>>,
    /// Of functions that are held against models.
    pub shared: SharedPoints,
    /// Of functions that models are made of.
    groups: LiveGroups,
}

impl DataPoints {
    /// Of the functions that were named. Patterns that make no sense were refused before.
    pub fn new(config: &RunConfig, now_ns: u64) -> Self {
        let models = &config.models;
        let pattern = |text: &String| Pattern::parse(text).ok();
        Self {
            wanted: models.wanted(),
            patterns: models.patterns.iter().filter_map(pattern).collect(),
            inputs: models.inputs.clone(),
            classes: BTreeMap::new(),
            shared: SharedPoints::default(),
            groups: LiveGroups::new(config, now_ns),
        }
    }

    /// Inputs are these from now on: registers were found of those that were named as parameters.
    pub fn name_inputs(&mut self, inputs: Vec<InputsSpec>) {
        self.inputs = inputs;
        // What was counted by other inputs counts no more.
        self.classes.clear();
        self.groups.forget();
    }

    /// Whether anything is to be counted.
    pub fn is_idle(&self) -> bool {
        self.wanted == 0 || self.patterns.is_empty()
    }

    /// A call was recorded.
    fn note(&mut self, row: &EventRow, class: &LiveClass) {
        let Self { patterns, inputs, classes, groups, .. } = self;
        let named = || inputs.iter().find(|spec| is_named(&spec.pattern, class)).map(|spec| &spec.inputs);
        let counted = classes.entry(class.id).or_insert_with(|| {
            let is_modelled = patterns.iter().any(|pattern| is_named(pattern, class));
            let own = || named().map_or_else(|| registers(used_by(class)), |inputs| registers_of(inputs));
            is_modelled.then(|| Counted { inputs: own(), ..Counted::default() })
        });
        if let Some(counted) = counted {
            counted.note(row.args);
            groups.note(class.id, row, || live_function(named(), class));
        }
    }

    /// What the run is told of a class.
    pub fn of(&self, class: ClassId) -> PointsView {
        let own = self.own(class);
        // Until it has its data points a frequency that others have would keep them from it.
        let group_hz = if own.is_enough() { self.groups.hz(class) } else { 0.0 };
        PointsView { shared_hz: self.shared.of(class).max(group_hz), ..own }
    }

    /// Its data points.
    fn own(&self, class: ClassId) -> PointsView {
        let counted = self.classes.get(&class).and_then(Option::as_ref);
        counted.map(|counted| counted.points(self.wanted)).unwrap_or_default()
    }

    /// Groups functions that have their data points. Returned are groups that are new.
    pub fn group(&mut self, now_ns: u64, named: impl Fn(ClassId) -> Option<Named>) -> Vec<Formed> {
        let Self { classes, groups, wanted, .. } = self;
        let points = |class: ClassId| classes.get(&class)?.as_ref().map(|counted| counted.points(*wanted));
        groups.turn(now_ns, |class| points(class).is_some_and(|points| points.is_enough()), named)
    }
}

/// A pattern names the function of a class.
fn is_named(pattern: &Pattern, class: &LiveClass) -> bool {
    let candidate = &class.candidate;
    let file = candidate.module.rsplit('/').next().unwrap_or(&candidate.module);
    let mut names = [&candidate.symbol, &candidate.name].into_iter().chain(&candidate.aliases);
    pattern.matches_module(file) && names.any(|name| pattern.matches_symbol(name))
}

/// The registers among these inputs.
fn registers_of(inputs: &[InputSpec]) -> [bool; 6] {
    registers(inputs.iter().fold(0, |set, input| set | input.register()))
}

fn registers(set: u8) -> [bool; 6] {
    std::array::from_fn(|register| set & 1 << register != 0)
}

/// The function as its model is made while the run goes on; `None`: an input is a word, which comes apart from its call.
fn live_function(named: Option<&Vec<InputSpec>>, class: &LiveClass) -> Option<LiveFunction> {
    if named.is_some_and(|inputs| inputs.iter().any(|input| input.word.is_some())) {
        return None;
    }
    let used = if named.is_none() { used_by(class) } else { ALL_ARGUMENTS };
    Some(LiveFunction { inputs: named.cloned(), unused: ALL_ARGUMENTS & !used })
}

/// The registers that are parameters of a function, or may be.
fn used_by(class: &LiveClass) -> u8 {
    let declared = class.code.prototype.as_ref().map_or(ALL_ARGUMENTS, Prototype::numbers);
    class.code.parameters.unwrap_or(ALL_ARGUMENTS) & declared
}

impl Counted {
    fn note(&mut self, args: [Option<u64>; 6]) {
        let mut decades = [NOT_READ; 6];
        for ((decade, is_input), value) in decades.iter_mut().zip(self.inputs).zip(args) {
            if let Some(value) = value.filter(|_| is_input) {
                // OK because it is at most 20.
                *decade = value.checked_ilog10().map_or(0, |power| power as u8 + 1);
            }
        }
        self.calls += 1;
        let is_full = self.by_decades.len() >= MOST;
        if !is_full || self.by_decades.contains_key(&decades) {
            *self.by_decades.entry(decades).or_default() += 1;
        }
    }

    fn points(&self, wanted: u32) -> PointsView {
        let least_calls = LEAST_PART * self.calls as f64;
        let usual = self.by_decades.values().filter(|calls| **calls as f64 >= least_calls);
        let (decades, least) = usual.fold((0, u64::MAX), |(n, least), calls| (n + 1, least.min(*calls)));
        PointsView { wanted, decades, least: if decades == 0 { 0 } else { least }, shared_hz: 0.0 }
    }
}

impl Agent {
    /// These calls were recorded.
    pub(super) fn note_data_points(&mut self, rows: &[EventRow]) {
        if self.data_points.is_idle() {
            return;
        }
        let classes = self.attach.classes();
        for row in rows {
            if let Some(class) = classes.get(row.class_id as usize) {
                self.data_points.note(row, class);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sparsest_decade_counts_and_rare_inputs_do_not() {
        let mut counted = Counted { inputs: [false, true, false, false, false, false], ..Counted::default() };
        let call = |n: u64| [Some(0x7fff_0000_0000 + n * n), Some(n), None, None, None, None];
        // 1,000 calls of 10 to 99, 100 of 1,000 to 1,099, one of a million.
        (0..1_000).for_each(|i| counted.note(call(10 + i % 90)));
        (0..100).for_each(|i| counted.note(call(1_000 + i)));
        counted.note(call(1_000_000));
        assert_eq!(counted.points(200), PointsView { wanted: 200, decades: 2, least: 100, shared_hz: 0.0 });
        assert_eq!(
            Counted::default().points(200),
            PointsView { wanted: 200, decades: 0, least: 0, shared_hz: 0.0 }
        );
        // Registers that take any value are bounded.
        let mut wild = Counted { inputs: [true; 6], ..Counted::default() };
        (0..10_000_u64).for_each(|i| wild.note([1, 3, 7, 11, 13, 17].map(|k| Some(1 << (i * k % 60)))));
        assert!(wild.by_decades.len() <= MOST && wild.calls == 10_000);
    }
}
