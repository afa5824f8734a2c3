//! Recorded calls beside what their models predict, a window at a time. Pure: it reads no clock.

use super::STEPS;
use super::draw::Draw;
use super::incidents::APART_NS;
use super::slowest::Slowest;
use super::waiting::Words;
use crate::models::{Expected, ExpectedFunction, Name, Watched, name_of, taken, values};
use profiler_core::models::{
    Call, Event, Interval, NOT_DRAWN, Seen, Slower, Used, Value, Watch, WatchSettings,
};
use profiler_core::recording::{ClassRow, EventRow, ExpectedFunction as Counts};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Level of the interval of single calls.
const LEVEL: f64 = 0.95;
/// Slow calls that are explained for one alarm: each takes some 50 us.
const MOST_EXPLAINED: usize = 15;
/// Calls of a function that are judged in a step, at most, and as many short ones: each takes some 300 ns. Of each step, so that none is without any.
const MOST_CALLS: usize = 1_024 / STEPS;
/// Calls of a function in a step that are not bet on and are held against what one alone may take, at most; likewise.
const MOST_ALONE: u32 = 64;

/// A call that is held against a model.
#[derive(Debug, Clone)]
pub(super) struct Judged {
    pub seen: Seen,
    /// 95 % of calls with such inputs lie in it, ns.
    pub interval_ns: Interval,
    pub values: Vec<Value>,
    pub row: EventRow,
    /// It has not ended: its time is that so far.
    pub is_running: bool,
    /// What it has used so far, of a call in flight; what one that has ended used is in its row.
    pub used: Option<Used>,
    /// Of a call in flight: it is not bet on before it ends.
    pub waits: bool,
    /// It was drawn by chance when it began. Else it may be told alone, and is not bet on.
    pub is_drawn: bool,
    /// Of a call that has ended: see [`Call::missed_ns`].
    pub missed_ns: u64,
}

impl Judged {
    fn call(&self) -> Call {
        Call {
            seen: self.seen,
            tid: self.row.tid,
            waits: self.waits || !self.is_drawn,
            missed_ns: if self.is_drawn { self.missed_ns } else { NOT_DRAWN },
        }
    }
}

/// Why a call is not held against a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotHeld {
    /// It is of a function that the models do not know, or its time is not known.
    Unknown,
    /// Its inputs or its caller are outside what the models know; with the function that it counts with.
    Outside(Option<usize>),
}

/// What is told of a window.
#[derive(Debug)]
pub(super) enum Found {
    /// A function takes longer: its number, the evidence, and calls of the window that took longer than their intervals, the one that took
    /// longest for its inputs first.
    Slower(usize, Slower, Vec<Judged>),
    /// A call of a function took longer than any that was recorded, and than any that was told before by much; its time over the predicted one. That is no alarm.
    Slowest(usize, f64, Box<Judged>),
    /// The whole machine has changed, or is back.
    Machine(Event),
}

/// A function that is held against a model, and what was seen of it.
#[derive(Debug)]
pub(super) struct Function {
    pub of: ExpectedFunction,
    pub counts: Counts,
    /// When an alarm of it was told last, ktime ns.
    pub told_ns: Option<u64>,
    pub slowest: Slowest,
    /// Of its calls, and of those that are too short to be told apart: the test has them as two functions, and neither takes the other's place.
    pub sides: [Side; 2],
}

/// Which calls are looked at, and how many of this step are.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub draw: Draw,
    /// Those that are bet on, and those that are not.
    in_step: usize,
    alone_in_step: u32,
}

/// What the test knows a function by, or its short calls.
fn kernel(number: usize, is_short: bool) -> u32 {
    // OK because there are no 2^31 functions.
    2 * number as u32 + u32::from(is_short)
}

/// The function's number.
pub(super) fn number(kernel: u32) -> usize {
    kernel as usize / 2
}

/// A function: its name, and where the earlier recording has it in its module. A module may have several of one name.
type Id = (Name, u64);

/// What a class of the run is to the models.
#[derive(Debug, Clone)]
enum Live {
    Function(Id),
    /// It is of another build.
    Refused,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Judge {
    /// Addresses and build IDs of the functions that are watched, by name.
    builds: HashMap<Name, Vec<(u64, String)>>,
    classes: HashMap<u32, Live>,
    pub functions: Vec<Function>,
    /// Each function's contexts: that, and its number.
    contexts: HashMap<Id, Vec<(Option<Id>, usize)>>,
    watch: Watch,
    /// Calls of the present step, and those of the steps before it in a window.
    window: Vec<Judged>,
    past: VecDeque<Vec<Judged>>,
    /// Calls that were not judged, because there were too many in a window.
    pub too_many: u64,
}

impl Judge {
    /// Of these functions, whose models are not there yet.
    pub fn new(watched: &[Watched]) -> Self {
        let mut builds: HashMap<Name, Vec<(u64, String)>> = HashMap::new();
        for function in watched {
            let ClassRow { address, build_id, .. } = &function.class;
            builds.entry(function.name()).or_default().push((*address, build_id.clone()));
        }
        Self {
            builds,
            classes: HashMap::new(),
            functions: Vec::new(),
            contexts: HashMap::new(),
            watch: Watch::new(WatchSettings::default()).in_steps(STEPS),
            window: Vec::new(),
            past: VecDeque::new(),
            too_many: 0,
        }
    }

    /// The models are there. Calls that ended before now are not known.
    pub fn expect(&mut self, expected: Expected, now_ns: u64) {
        for of in expected.functions {
            let number = self.functions.len();
            let (address, outer) = of.addresses;
            let name = |(module, symbol): &(String, String)| name_of(module, symbol);
            let context = of.key.1.as_ref().map(name).zip(outer);
            self.contexts.entry((name(&of.key.0), address)).or_default().push((context, number));
            self.watch.add(kernel(number, false), &of.model);
            self.watch.add_short(kernel(number, true), &of.model);
            self.miss_both(number, 0, now_ns);
            let counts = Counts {
                function: of.name.clone(),
                context: of.context.clone(),
                no_inputs: of.no_inputs.clone(),
                ..Counts::default()
            };
            let (slowest, sides) = (Slowest::default(), Default::default());
            self.functions.push(Function { of, counts, told_ns: None, slowest, sides });
        }
    }

    /// A class of this run. Of another build than the models are it is refused, with the reason.
    ///
    /// # Errors
    /// Both build IDs, in words.
    pub fn class(&mut self, class: &ClassRow) -> Result<(), String> {
        let name = name_of(&class.module, &class.symbol);
        let Some(known) = self.builds.get(&name) else { return Ok(()) };
        match address_of(class, known) {
            Ok(Some(address)) => {
                self.classes.insert(class.class_id, Live::Function((name, address)));
                Ok(())
            }
            // Another one of that name, of which the recording has no calls.
            Ok(None) => Ok(()),
            Err(build) => {
                let why = other_build(&class.name, build, &class.build_id);
                self.classes.insert(class.class_id, Live::Refused);
                Err(why)
            }
        }
    }

    /// It is recorded because of the models.
    pub fn is_watched(&self, row: &EventRow) -> bool {
        self.is_watched_class(row.class_id)
    }

    /// Its calls are.
    pub fn is_watched_class(&self, class_id: u32) -> bool {
        matches!(self.classes.get(&class_id), Some(Live::Function(_)))
    }

    /// Its calls are, and in one context at least there is a model.
    pub fn has_model(&self, class_id: u32) -> bool {
        matches!(self.classes.get(&class_id), Some(Live::Function(id)) if self.contexts.contains_key(id))
    }

    /// Calls of a class have ended and are not looked at. Their contexts are not known: each may be any of the function's.
    pub fn miss<'r>(&mut self, class_id: u32, rows: impl IntoIterator<Item = &'r EventRow>) {
        let (calls, ended_ns) =
            rows.into_iter().fold((0, 0), |(n, last), row| (n + 1, ended_ns(row).max(last)));
        let Some(Live::Function(id)) = self.classes.get(&class_id) else { return };
        let contexts = self.contexts.get(id).into_iter().flatten();
        for number in contexts.map(|(_, number)| *number).collect::<Vec<usize>>() {
            self.miss_both(number, calls, ended_ns);
        }
    }

    /// Nobody knows which of them were short.
    fn miss_both(&mut self, number: usize, calls: u64, ended_ns: u64) {
        for is_short in [false, true] {
            self.watch.missed(kernel(number, is_short), calls, ended_ns);
        }
    }

    /// Names of the words that the inputs of a call are, in any context of its function.
    pub fn words(&self, row: &EventRow) -> Vec<&str> {
        self.words_of(row.class_id).collect()
    }

    /// A word of that name is an input of calls of a class.
    pub fn is_input(&self, class_id: u32, word: &str) -> bool {
        self.words_of(class_id).any(|its| its == word)
    }

    fn words_of(&self, class_id: u32) -> impl Iterator<Item = &str> {
        let id = match self.classes.get(&class_id) {
            Some(Live::Function(id)) => Some(id),
            _ => None,
        };
        let contexts = id.and_then(|id| self.contexts.get(id)).into_iter().flatten();
        let functions = contexts.filter_map(|(_, number)| self.functions.get(*number));
        functions.flat_map(|function| &function.of.inputs).filter_map(|input| input.word.as_deref())
    }

    /// Holds a call that has ended against its model. `words`: those of its inputs that are words.
    pub fn take(&mut self, row: &EventRow, words: &Words) {
        let (number, mut judged) = match self.held(row, words) {
            Ok(held) => held,
            Err(NotHeld::Unknown) => return,
            Err(NotHeld::Outside(number)) => {
                if let Some(function) = number.and_then(|number| self.functions.get_mut(number)) {
                    function.counts.outside += 1;
                }
                return;
            }
        };
        let was_judged = self.watch.is_judged(&judged.call());
        let Some(function) = self.functions.get_mut(number) else { return };
        let kernel = judged.seen.kernel;
        let Some(side) = function.sides.get_mut(kernel as usize % 2) else { return };
        side.draw.count();
        if !judged.is_drawn || side.in_step >= MOST_CALLS {
            self.too_many += u64::from(!was_judged);
            if judged.is_drawn {
                self.watch.missed(kernel, 0, ended_ns(row));
            }
            // One that takes long may be told alone, and one that was told in flight has ended.
            let Seen { predicted_ns, own_ns, .. } = judged.seen;
            // Those alone that took longer than any that was recorded may be told.
            let is_long =
                side.alone_in_step < MOST_ALONE && function.of.model.is_beyond(predicted_ns, own_ns);
            if was_judged || is_long {
                side.alone_in_step += u32::from(!was_judged);
                judged.missed_ns = NOT_DRAWN;
                self.window.push(judged);
            } else {
                self.watch.passed_over(kernel, row.time_ns);
            }
            return;
        }
        judged.missed_ns = self.watch.missed_ns(kernel);
        side.in_step += 1;
        if !was_judged {
            function.counts.calls += 1;
            function.counts.beyond += u64::from(judged.seen.own_ns > judged.interval_ns.high);
        }
        self.window.push(judged);
    }

    /// A call beside its model, where it has one.
    pub fn hold(&self, row: &EventRow, words: &Words) -> Option<Judged> {
        self.held(row, words).ok().map(|(_, judged)| judged)
    }

    fn held(&self, row: &EventRow, words: &Words) -> Result<(usize, Judged), NotHeld> {
        let Some(Live::Function(id)) = self.classes.get(&row.class_id) else { return Err(NotHeld::Unknown) };
        let contexts = self.contexts.get(id).ok_or(NotHeld::Unknown)?;
        let number = match contexts.as_slice() {
            // A context was of no interest where there was but one.
            [(_, only)] => Some(*only),
            all => self.in_context(all, row.place.outer_class),
        };
        // Counted with the function's first context where none of them is the call's.
        let number = number.ok_or(NotHeld::Outside(contexts.first().map(|(_, first)| *first)))?;
        let function = self.functions.get(number).ok_or(NotHeld::Unknown)?;
        let taken = taken(row);
        let mut values = values(&function.of.inputs, row);
        for (value, input) in values.iter_mut().zip(&function.of.inputs) {
            if let Some(word) = input.word.as_ref().and_then(|word| words.value(word)) {
                *value = input.kind.value(word);
            }
        }
        let model = &function.of.model;
        let predicted = model.predict(&values, LEVEL).filter(|_| !model.is_outside(&values));
        let Some(predicted) = predicted else {
            // One that has no time is of no interest.
            let is_known = taken.own_ns().is_some();
            return Err(if is_known { NotHeld::Outside(Some(number)) } else { NotHeld::Unknown });
        };
        let own_ns = predicted.own_ns(taken).ok_or(NotHeld::Unknown)?;
        let kernel = kernel(number, predicted.is_short);
        let seen = Seen { kernel, time_ns: row.time_ns, predicted_ns: predicted.ns, own_ns };
        let interval_ns = predicted.interval_ns;
        let side = function.sides.get(kernel as usize % 2).ok_or(NotHeld::Unknown)?;
        let is_drawn = side.draw.is_drawn(row.time_ns, row.tid);
        let row = row.clone();
        let judged = Judged {
            seen,
            interval_ns,
            values,
            row,
            is_running: false,
            used: None,
            waits: false,
            is_drawn,
            missed_ns: 0,
        };
        Ok((number, judged))
    }

    /// The number of the model of a context. A call below a function that the models do not know is in none of theirs, and not a call without
    /// a context.
    fn in_context(&self, contexts: &[(Option<Id>, usize)], outer: Option<u32>) -> Option<usize> {
        let outer = match outer {
            None => None,
            Some(class) => match self.classes.get(&class) {
                Some(Live::Function(id)) => Some(id),
                _ => return None,
            },
        };
        contexts.iter().find(|(context, _)| context.as_ref() == outer).map(|(_, number)| *number)
    }

    /// Calls of that class were cut off in the earlier recording, in any context.
    pub fn is_cut(&self, class_id: u32) -> bool {
        let Some(Live::Function(id)) = self.classes.get(&class_id) else { return true };
        let mut contexts = self.contexts.get(id).into_iter().flatten();
        contexts.any(|(_, number)| self.functions.get(*number).is_none_or(|function| function.of.is_cut))
    }

    /// Calls of this step so far that took longer than their intervals.
    pub fn slow(&self) -> impl Iterator<Item = &Judged> {
        self.window.iter().filter(|call| call.seen.own_ns > call.interval_ns.high)
    }

    /// A step of a window is over: one of [`STEPS`]. `running`: calls in flight that take longer than they should; none of those that have ended is among them.
    pub fn step(&mut self, running: &[Judged], now_ns: u64) -> Vec<Found> {
        let mut calls = std::mem::take(&mut self.window);
        calls.sort_by_key(|call| call.seen.time_ns);
        let ended: Vec<Call> = calls.iter().map(Judged::call).collect();
        let in_flight: Vec<Call> = running.iter().map(Judged::call).collect();
        let is_new = |call: &Judged| !self.watch.is_judged(&call.call());
        let new: Vec<bool> = running.iter().map(is_new).collect();
        let mut found = Vec::new();
        for event in self.watch.step(&ended, &in_flight) {
            let Event::Slower(slower) = event else {
                found.push(Found::Machine(event));
                continue;
            };
            let number = number(slower.kernel);
            if let Some(function) = self.functions.get_mut(number) {
                function.counts.alarms += 1;
            }
            let all = calls.iter().chain(self.past.iter().flatten()).chain(running);
            let slow = slow_calls(all, &slower);
            found.push(Found::Slower(number, slower, slow));
        }
        found.extend(self.slowest_of(calls.iter().chain(running), now_ns));
        for (call, of) in
            running.iter().zip(&in_flight).zip(new).filter(|(_, new)| *new).map(|(call, _)| call)
        {
            if !self.watch.is_judged(of) {
                continue;
            }
            // When it ends it is not counted again.
            if !call.is_drawn {
                self.too_many += 1;
            } else if let Some(function) = self.functions.get_mut(number(of.seen.kernel)) {
                function.counts.calls += 1;
                function.counts.beyond += 1;
            }
        }
        self.past.push_back(calls);
        if self.past.len() >= STEPS {
            self.past.pop_front();
        }
        for function in &mut self.functions {
            for side in &mut function.sides {
                (side.in_step, side.alone_in_step) = (0, 0);
                side.draw.end_step(now_ns);
            }
        }
        found
    }

    /// Of each function the call of this step that took longest for its inputs, if it is worth a line; the longest first. None where an alarm was told of late.
    fn slowest_of<'a>(&mut self, calls: impl Iterator<Item = &'a Judged>, now_ns: u64) -> Vec<Found> {
        let mut longest: BTreeMap<usize, (f64, &Judged)> = BTreeMap::new();
        for call in calls {
            let number = number(call.seen.kernel);
            let Some(function) = self.functions.get_mut(number) else { continue };
            let news = function.slowest.note(&function.of.model, call, now_ns);
            let is_told = function.told_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) <= APART_NS);
            let Some(ratio) = news.filter(|_| !is_told) else { continue };
            let own = longest.entry(number).or_insert((ratio, call));
            if ratio > own.0 {
                *own = (ratio, call);
            }
        }
        let mut longest: Vec<(usize, (f64, &Judged))> = longest.into_iter().collect();
        longest.sort_by(|(_, a), (_, b)| b.0.total_cmp(&a.0));
        let found = |(number, (ratio, call)): (usize, (f64, &Judged))| {
            Found::Slowest(number, ratio, Box::new(call.clone()))
        };
        longest.into_iter().map(found).collect()
    }
}

/// When the call ended, ktime ns.
fn ended_ns(row: &EventRow) -> u64 {
    row.time_ns.saturating_add(row.duration_ns.unwrap_or(0))
}

/// Calls of the function that took longer than their intervals since it takes longer, [`MOST_EXPLAINED`] at most; first the one that took longest for its inputs, whatever
/// its interval is.
fn slow_calls<'a>(calls: impl Iterator<Item = &'a Judged>, slower: &Slower) -> Vec<Judged> {
    let ended_since = |call: &Judged| call.seen.time_ns as f64 + call.seen.own_ns >= slower.since_ns as f64;
    let is_slow =
        |call: &Judged| !slower.is_alone && call.seen.own_ns > call.interval_ns.high && ended_since(call);
    let own = calls.filter(|call| call.seen.kernel == slower.kernel);
    let mut slow: Vec<&Judged> = own.filter(|call| call.seen == slower.longest || is_slow(call)).collect();
    let ratio = |call: &Judged| call.seen.own_ns / call.seen.predicted_ns;
    slow.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
    let step = slow.len().div_ceil(MOST_EXPLAINED).max(1);
    slow.into_iter().step_by(step).cloned().collect()
}

/// Where the earlier recording has a class of this run, by addresses and build IDs of functions of its name; `None`: it has another function of that name.
///
/// # Errors
/// It is of another build: the build ID of the recording.
fn address_of<'a>(class: &ClassRow, known: &'a [(u64, String)]) -> Result<Option<u64>, &'a str> {
    let same = || known.iter().filter(|(_, build)| *build == class.build_id).map(|(address, _)| *address);
    match (same().next(), known.first()) {
        (None, Some((_, build))) => Err(build),
        (first, _) if class.build_id.is_empty() && same().all(|address| Some(address) == first) => {
            // Without a build ID nobody knows whether addresses are those of the same file.
            Ok(first)
        }
        _ => Ok(same().find(|address| *address == class.address)),
    }
}

/// Why a function of another build is not judged.
pub(crate) fn other_build(name: &str, expected: &str, found: &str) -> String {
    let id = |id: &str| if id.is_empty() { "none".to_owned() } else { id.to_owned() };
    format!("{name} is of another build than the models: build ID {} here, {} there", id(found), id(expected))
}
