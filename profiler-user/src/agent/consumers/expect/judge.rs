//! Recorded calls beside what their models predict, a window at a time. Pure: it reads no clock.

use super::waiting::Words;
use crate::models::{Expected, ExpectedFunction, Name, Watched, name_of, taken, values};
use profiler_core::models::{Event, Seen, Slower, Value, Watch, WatchSettings};
use profiler_core::recording::{ClassRow, EventRow, ExpectedFunction as Counts};
use std::collections::HashMap;

/// Level of the interval of single calls.
const LEVEL: f64 = 0.95;
/// Inputs beyond the range that a model was made from by less than this factor are in it: a cell of neighbours is 9 % wide.
const AT_THE_EDGE: f64 = 1.1;
/// Calls of a function that are judged in a window, at most: each takes some 300 ns.
const MOST_CALLS: usize = 1_024;

/// A call that is held against a model.
#[derive(Debug, Clone)]
pub(super) struct Judged {
    pub seen: Seen,
    pub values: Vec<Value>,
    pub row: EventRow,
}

/// What is told of a window.
#[derive(Debug)]
pub(super) enum Found {
    /// A function takes longer: its number, the evidence, and the call that took longest for its inputs.
    Slower(usize, Slower, Option<Box<Judged>>),
    /// The whole machine has changed, or is back.
    Machine(Event),
}

/// A function that is held against a model, and what was seen of it.
#[derive(Debug)]
pub(super) struct Function {
    pub of: ExpectedFunction,
    pub counts: Counts,
    /// Its calls in this window.
    in_window: usize,
}

/// What a class of the run is to the models.
#[derive(Debug, Clone)]
enum Live {
    Function(Name),
    /// It is of another build.
    Refused,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Judge {
    /// Build IDs of the functions that are watched.
    builds: HashMap<Name, String>,
    classes: HashMap<u32, Live>,
    pub functions: Vec<Function>,
    /// Each function's contexts: that, and its number.
    contexts: HashMap<Name, Vec<(Option<Name>, usize)>>,
    watch: Watch,
    window: Vec<Judged>,
    /// Calls that were not judged, because there were too many in a window.
    pub too_many: u64,
}

impl Judge {
    /// Of these functions, whose models are not there yet.
    pub fn new(watched: &[Watched]) -> Self {
        let build = |function: &Watched| (function.name(), function.class.build_id.clone());
        Self {
            builds: watched.iter().map(build).collect(),
            classes: HashMap::new(),
            functions: Vec::new(),
            contexts: HashMap::new(),
            watch: Watch::new(WatchSettings::default()),
            window: Vec::new(),
            too_many: 0,
        }
    }

    /// The models are there.
    pub fn expect(&mut self, expected: Expected) {
        for of in expected.functions {
            let number = self.functions.len();
            let name = |(module, symbol): &(String, String)| name_of(module, symbol);
            let context = of.key.1.as_ref().map(name);
            self.contexts.entry(name(&of.key.0)).or_default().push((context, number));
            // OK because there are no 2^32 functions.
            self.watch.add(number as u32, &of.model);
            let counts =
                Counts { function: of.name.clone(), context: of.context.clone(), ..Counts::default() };
            self.functions.push(Function { of, counts, in_window: 0 });
        }
    }

    /// A class of this run. Of another build than the models are it is refused, with the reason.
    ///
    /// # Errors
    /// Both build IDs, in words.
    pub fn class(&mut self, class: &ClassRow) -> Result<(), String> {
        let name = name_of(&class.module, &class.symbol);
        let Some(build) = self.builds.get(&name) else { return Ok(()) };
        let is_same = *build == class.build_id;
        self.classes.insert(class.class_id, if is_same { Live::Function(name) } else { Live::Refused });
        if is_same { Ok(()) } else { Err(other_build(&class.name, build, &class.build_id)) }
    }

    /// It is recorded because of the models.
    pub fn is_watched(&self, row: &EventRow) -> bool {
        self.is_watched_class(row.class_id)
    }

    /// Its calls are.
    pub fn is_watched_class(&self, class_id: u32) -> bool {
        matches!(self.classes.get(&class_id), Some(Live::Function(_)))
    }

    /// Names of the words that the inputs of a call are, in any context of its function.
    pub fn words(&self, row: &EventRow) -> Vec<&str> {
        let Some(Live::Function(name)) = self.classes.get(&row.class_id) else { return Vec::new() };
        let contexts = self.contexts.get(name).into_iter().flatten();
        let functions = contexts.filter_map(|(_, number)| self.functions.get(*number));
        functions.flat_map(|function| &function.of.inputs).filter_map(|input| input.word.as_deref()).collect()
    }

    /// Holds a call against its model. `words`: those of its inputs that are words.
    pub fn take(&mut self, row: &EventRow, words: &Words) {
        let Some(Live::Function(name)) = self.classes.get(&row.class_id) else { return };
        let Some(contexts) = self.contexts.get(name) else { return };
        let number = match contexts.as_slice() {
            // A context was of no interest where there was but one.
            [(_, only)] => Some(*only),
            all => self.in_context(all, row.place.outer_class),
        };
        let Some(number) = number else {
            // Counted with the function's first context: none of them is the call's.
            if let Some(function) = contexts.first().and_then(|(_, first)| self.functions.get_mut(*first)) {
                function.counts.outside += 1;
            }
            return;
        };
        let Some(function) = self.functions.get_mut(number) else { return };
        let Some(own_ns) = taken(row).own_ns() else { return };
        let mut values = values(&function.of.inputs, row);
        for (value, input) in values.iter_mut().zip(&function.of.inputs) {
            if let Some(word) = input.word.as_ref().and_then(|word| words.value(word)) {
                *value = input.kind.value(word);
            }
        }
        let Some(predicted) = function.of.model.predict(&values, LEVEL) else {
            function.counts.outside += 1;
            return;
        };
        if is_outside(&function.of, &values) {
            function.counts.outside += 1;
            return;
        }
        if function.in_window >= MOST_CALLS {
            self.too_many += 1;
            return;
        }
        function.in_window += 1;
        function.counts.calls += 1;
        function.counts.beyond += u64::from(own_ns > predicted.interval_ns.high);
        // OK because there are no 2^32 functions.
        let seen = Seen { kernel: number as u32, time_ns: row.time_ns, predicted_ns: predicted.ns, own_ns };
        self.window.push(Judged { seen, values, row: row.clone() });
    }

    /// The number of the model of a context. A call below a function that the models do not know is in none of theirs, and not a call without
    /// a context.
    fn in_context(&self, contexts: &[(Option<Name>, usize)], outer: Option<u32>) -> Option<usize> {
        let outer = match outer {
            None => None,
            Some(class) => match self.classes.get(&class) {
                Some(Live::Function(name)) => Some(name),
                _ => return None,
            },
        };
        contexts.iter().find(|(context, _)| context.as_ref() == outer).map(|(_, number)| *number)
    }

    /// A window is over.
    pub fn window(&mut self) -> Vec<Found> {
        let mut calls = std::mem::take(&mut self.window);
        self.functions.iter_mut().for_each(|function| function.in_window = 0);
        calls.sort_by_key(|call| call.seen.time_ns);
        let seen: Vec<Seen> = calls.iter().map(|call| call.seen).collect();
        let mut found = Vec::new();
        for event in self.watch.window(&seen) {
            let Event::Slower(slower) = event else {
                found.push(Found::Machine(event));
                continue;
            };
            let number = slower.kernel as usize;
            if let Some(function) = self.functions.get_mut(number) {
                function.counts.alarms += 1;
            }
            let longest = calls.iter().find(|call| call.seen == slower.longest).cloned();
            found.push(Found::Slower(number, slower, longest.map(Box::new)));
        }
        found
    }
}

/// An input is outside the range that the model was made from.
fn is_outside(of: &ExpectedFunction, values: &[Value]) -> bool {
    let Some((x, _)) = of.model.x(values) else { return true };
    let is_out = |(x, (low, high)): (&f64, &(f64, f64))| *x < low / AT_THE_EDGE || *x > high * AT_THE_EDGE;
    x.iter().zip(&of.model.range).any(is_out)
}

/// Why a function of another build is not judged.
pub(crate) fn other_build(name: &str, expected: &str, found: &str) -> String {
    let id = |id: &str| if id.is_empty() { "none".to_owned() } else { id.to_owned() };
    format!("{name} is of another build than the models: build ID {} here, {} there", id(found), id(expected))
}
