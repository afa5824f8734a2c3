//! Recorded calls of functions that models are made of (`--model`), by the decade of each input: what the run is told of them.

use super::Agent;
use super::class::LiveClass;
use super::shared_points::SharedPoints;
use crate::config::ModelConfig;
use crate::inspect::{ALL_ARGUMENTS, Pattern};
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
#[derive(Debug, Default)]
pub(super) struct DataPoints {
    /// Of each decade; 0: as many as can be had.
    wanted: u32,
    patterns: Vec<Pattern>,
    /// Registers that are inputs, by pattern.
    inputs: Vec<(Pattern, [bool; 6])>,
    /// `None`: no model is made of it.
    classes: BTreeMap<ClassId, Option<Counted>>,
    /// Of functions that are held against models.
    pub shared: SharedPoints,
}

impl DataPoints {
    /// Of the functions that were named. Patterns that make no sense were refused before.
    pub fn new(models: &ModelConfig) -> Self {
        let pattern = |text: &String| Pattern::parse(text).ok();
        let inputs = models.inputs.iter().map(|spec| {
            let mut registers = [false; 6];
            for input in spec.inputs.iter().filter(|input| input.word.is_none()) {
                registers.iter_mut().skip(input.argument).take(1).for_each(|register| *register = true);
            }
            (spec.pattern.clone(), registers)
        });
        Self {
            wanted: models.wanted(),
            patterns: models.patterns.iter().filter_map(pattern).collect(),
            inputs: inputs.collect(),
            classes: BTreeMap::new(),
            shared: SharedPoints::default(),
        }
    }

    /// Whether anything is to be counted.
    pub fn is_idle(&self) -> bool {
        self.wanted == 0 || self.patterns.is_empty()
    }

    /// A call was recorded.
    fn note(&mut self, row: &EventRow, class: &LiveClass) {
        let Self { patterns, inputs, classes, .. } = self;
        let counted = classes.entry(class.id).or_insert_with(|| {
            let candidate = &class.candidate;
            let file = candidate.module.rsplit('/').next().unwrap_or(&candidate.module);
            let names = || [&candidate.symbol, &candidate.name].into_iter().chain(&candidate.aliases);
            let is = |pattern: &Pattern| {
                pattern.matches_module(file) && names().any(|name| pattern.matches_symbol(name))
            };
            let own = inputs
                .iter()
                .find(|(pattern, _)| is(pattern))
                .map_or_else(|| used_by(class), |(_, own)| *own);
            patterns.iter().any(is).then(|| Counted { inputs: own, ..Counted::default() })
        });
        if let Some(counted) = counted {
            counted.note(row.args);
        }
    }

    /// What the run is told of a class.
    pub fn of(&self, class: ClassId) -> PointsView {
        let counted = self.classes.get(&class).and_then(Option::as_ref);
        let own = counted.map(|counted| counted.points(self.wanted)).unwrap_or_default();
        PointsView { shared_hz: self.shared.of(class), ..own }
    }
}

/// The registers that are parameters of a function, or may be.
fn used_by(class: &LiveClass) -> [bool; 6] {
    let used = class.code.parameters.unwrap_or(ALL_ARGUMENTS);
    std::array::from_fn(|register| used & 1 << register != 0)
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
