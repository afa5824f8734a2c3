//! Recorded calls by function and calling context, with their inputs.

use super::parameters;
use super::plot::Plot;
use super::prices::{self, Prices};
use super::words::{self, WordValues};
use super::{FunctionModel, Key, ModelsError, Pace, SlowCall, SlowCalls};
use crate::config::{InputSpec, InputType, InputsSpec};
use crate::inspect::{ALL_ARGUMENTS, Pattern};
use crate::recording::Stream;
use profiler_core::models::{
    self, Calls, End, Input, Kind, Model, NoModel, Reason, Taken, Unusable, Used, Value,
};
use profiler_core::recording::{CallContext, ClassRow, EventRow, Meta, WordMeta};
use profiler_core::report::OwnPrice;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// Seed of the division of medians into parts: the same recording gives the same models.
pub(super) const SEED: u64 = 2023;
/// Slow calls that are told of each function.
const TOLD: usize = 3;

/// A class, and that of the timed call around it.
pub(super) type PileKey = (u32, Option<u32>);

/// The calls of a recording.
pub(super) struct Piles {
    pub meta: Meta,
    pub classes: HashMap<u32, ClassRow>,
    pub of: BTreeMap<PileKey, Pile>,
    pub damage: Vec<String>,
}

/// Calls of a function in a context.
pub(super) struct Pile {
    pub inputs: Vec<InputSpec>,
    pub calls: Calls,
    /// Of each call: when it began, where, and what it used.
    began: Vec<Began>,
    total_ns: u64,
    /// Why there can be no model of them.
    prevented: Option<Reason>,
    /// What to say where there is none: of words that could be inputs.
    advice: Option<String>,
}

/// Where a call began, and what it used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Began {
    /// Ktime ns.
    pub time_ns: u64,
    pub tid: u32,
    pub context: CallContext,
}

/// Which functions models are made of, and what their inputs are.
struct Asked {
    /// Those that were named for this reading come first.
    inputs: Vec<InputsSpec>,
    /// How many were.
    named: usize,
    /// Empty: all.
    patterns: Vec<Pattern>,
    /// Names that are words of the recording, and no parameters.
    words: HashSet<String>,
}

impl Asked {
    fn new(meta: &Meta, named: &[InputsSpec], damage: &mut Vec<String>) -> Self {
        let (mut inputs, mut patterns) = (named.to_vec(), Vec::new());
        let words = parameters::words_of(meta);
        let meta = meta.models.iter();
        for text in meta.clone().flat_map(|meta| &meta.inputs) {
            match text.parse() {
                Ok(spec) => inputs.push(spec),
                Err(why) => damage.push(format!("inputs in meta.json: {why}")),
            }
        }
        for text in meta.flat_map(|meta| &meta.patterns) {
            match Pattern::parse(text) {
                Ok(pattern) => patterns.push(pattern),
                Err(why) => damage.push(format!("functions in meta.json: {why}")),
            }
        }
        Self { inputs, named: named.len(), patterns, words }
    }

    /// There is to be a model of it.
    fn is_modelled(&self, class: &ClassRow) -> bool {
        let mut named = self.inputs.iter().take(self.named);
        self.patterns.is_empty()
            || self.patterns.iter().any(|pattern| matches(pattern, class))
            || named.any(|spec| matches(&spec.pattern, class))
    }

    /// Its inputs: those that were named for it, else its parameters, else the argument registers that are known of any call.
    fn inputs_of(&self, class: &ClassRow, known: [bool; 6]) -> Vec<InputSpec> {
        let own = self.inputs.iter().find(|spec| matches(&spec.pattern, class));
        own.map_or_else(
            || parameters::automatic(class, known),
            |spec| parameters::named(spec, class, &self.words),
        )
    }

    /// Why there can be no model of it, whatever its calls are.
    fn prevented(&self, class: &ClassRow) -> Option<Reason> {
        let is_named = self.inputs.iter().any(|spec| matches(&spec.pattern, class));
        if is_named { None } else { parameters::prevented(class) }
    }

    /// What to say of words that could be its inputs, where nobody named any.
    fn advice(&self, class: &ClassRow, words: &[WordMeta]) -> Option<String> {
        let is_named = self.inputs.iter().any(|spec| matches(&spec.pattern, class));
        if is_named { None } else { words::advice(class, words) }
    }

    /// Registers that are no parameters by the function's code, a bit for each; of a function whose inputs were named none is.
    fn unused(&self, class: &ClassRow) -> u8 {
        let is_named = self.inputs.iter().any(|spec| matches(&spec.pattern, class));
        // OK because there are six registers.
        let used = class.parameters.filter(|_| !is_named).map_or(ALL_ARGUMENTS, |used| used as u8);
        ALL_ARGUMENTS & !used
    }
}

/// Inputs that nobody named: these registers.
pub(super) fn registers(known: [bool; 6]) -> Vec<InputSpec> {
    let register =
        |k: usize| InputSpec { name: format!("arg{k}"), argument: k, word: None, kind: InputType::Long };
    known.iter().enumerate().filter(|(_, known)| **known).map(|(k, _)| register(k)).collect()
}

/// What models are told of an input; `unused`: registers that the function makes no use of.
pub(super) fn input_of(spec: &InputSpec, unused: u8) -> Input {
    match spec.register() & unused {
        0 => spec.input(),
        _ => Input { kind: Kind::Unused, ..spec.input() },
    }
}

/// Whether there is to be a model of a class of this recording.
pub(super) fn is_modelled_by(meta: &Meta, named: &[InputsSpec]) -> impl Fn(&ClassRow) -> bool + use<> {
    let asked = Asked::new(meta, named, &mut Vec::new());
    move |class| asked.is_modelled(class)
}

/// The registers of the inputs that were named for a class, a bit for each; 0: none were.
pub(super) fn registers_of(meta: &Meta, named: &[InputsSpec]) -> impl Fn(&ClassRow) -> u8 + use<> {
    let asked = Asked::new(meta, named, &mut Vec::new());
    move |class| asked.inputs_of(class, [false; 6]).iter().fold(0, |set, input| set | input.register())
}

impl Piles {
    /// Reads the recorded calls. `all`: an `--input` that names none of them is a mistake. `prices`: of what is taken off each of them.
    ///
    /// # Errors
    /// [`ModelsError`].
    pub fn read(path: &Path, named: &[InputsSpec], all: bool, prices: Prices) -> Result<Self, ModelsError> {
        let mut stream = Stream::open(path)?;
        let meta = stream.meta().clone();
        let mut damage = Vec::new();
        let asked = Asked::new(&meta, named, &mut damage);
        let classes: HashMap<u32, ClassRow> =
            stream.table::<ClassRow>()?.into_iter().map(|row| (row.class_id, row)).collect();
        // Which registers any call has.
        let mut known: HashMap<u32, [bool; 6]> = HashMap::new();
        stream.each(|row: EventRow| {
            let known = known.entry(row.class_id).or_default();
            known.iter_mut().zip(row.args).for_each(|(known, register)| *known |= register.is_some());
        })?;
        if known.is_empty() {
            return Err(ModelsError::NoCalls);
        }
        let recorded: Vec<&ClassRow> = known.keys().filter_map(|id| classes.get(id)).collect();
        if all {
            complain(named, &recorded)?;
        }
        let of_class = |(id, known): (&u32, &[bool; 6])| {
            let class = classes.get(id).filter(|class| asked.is_modelled(class))?;
            Some((*id, asked.inputs_of(class, *known)))
        };
        let inputs: HashMap<u32, Vec<InputSpec>> = known.iter().filter_map(of_class).collect();
        if inputs.is_empty() {
            let patterns: Vec<&str> = asked.patterns.iter().map(Pattern::text).collect();
            return Err(ModelsError::NoneModelled { patterns: patterns.join(", "), names: names(&recorded) });
        }
        let words = WordValues::read(&mut stream, &inputs, &classes, named)?;
        let own = prices::read(&mut stream, &classes, |id| inputs.contains_key(&id), prices)?;
        // A function with several uses has a class for each: one stands for all.
        let same = lowest_of_each_function(&classes);
        let one = |id: u32| classes.get(&id).and_then(|c| same.get(&function_of(c))).copied().unwrap_or(id);
        let mut of: BTreeMap<PileKey, Pile> = BTreeMap::new();
        stream.each(|row: EventRow| {
            let Some(inputs) = inputs.get(&row.class_id) else { return };
            let key = (one(row.class_id), row.place.outer_class.map(one));
            let class = classes.get(&row.class_id);
            let new = || Pile {
                prevented: class.and_then(|class| asked.prevented(class)),
                advice: class.and_then(|class| asked.advice(class, &meta.words)),
                ..Pile::new(inputs, class.map_or(0, |class| asked.unused(class)))
            };
            of.entry(key).or_insert_with(new).push(&row, &words, own.get(&row.class_id));
        })?;
        damage.extend_from_slice(stream.damage());
        Ok(Self { meta, classes, of, damage })
    }

    /// Name of a class, as it is told.
    pub fn name(&self, id: u32) -> String {
        self.classes.get(&id).map_or_else(|| format!("class {id}"), |class| class.name.clone())
    }

    /// What a function in a context is known by in other recordings.
    pub fn key(&self, (class, outer): PileKey) -> Key {
        let key =
            |id: u32| self.classes.get(&id).map(|c| (c.module.clone(), c.symbol.clone())).unwrap_or_default();
        (key(class), outer.map(key))
    }

    /// Build ID of a function's module; empty: it has none.
    pub fn build_id(&self, (class, _): PileKey) -> String {
        self.classes.get(&class).map(|class| class.build_id.clone()).unwrap_or_default()
    }

    /// The model of a function in a context, with what is told beside it.
    pub fn model(&self, of: PileKey, pile: &Pile) -> FunctionModel {
        let found = pile.fit();
        let model = found.as_ref().ok();
        // Where the inputs say nothing, calls are held against all, as `--expect` does.
        let of_any = found.as_ref().err().and_then(|none| pile.of_any_inputs(none));
        let slow = model.or(of_any.as_ref()).map(|model| pile.slow(model, self.meta.start_ns));
        FunctionModel {
            name: self.name(of.0),
            key: self.key(of),
            context: of.1.map(|outer| self.name(outer)),
            calls: pile.calls.len() as u64,
            total_ns: pile.total_ns,
            slow: slow.unwrap_or_default(),
            plot: model.and_then(|model| Plot::new(model, &pile.calls)),
            loops: None,
            pace: pile.pace(model),
            advice: found.as_ref().err().and_then(|none| pile.advice(none)).map(str::to_owned),
            found,
        }
    }
}

impl Pile {
    /// `unused`: registers that the function makes no use of.
    fn new(inputs: &[InputSpec], unused: u8) -> Self {
        let calls = Calls::new(inputs.iter().map(|spec| input_of(spec, unused)).collect());
        let inputs = inputs.to_vec();
        Self { inputs, calls, began: Vec::new(), total_ns: 0, prevented: None, advice: None }
    }

    /// The model of these calls.
    ///
    /// # Errors
    /// There is no model; the reason says why.
    pub fn fit(&self) -> Result<Model, NoModel> {
        let Some(reason) = self.prevented else { return models::fit(&self.calls, SEED) };
        let least_ns = self.calls.known_to_ns();
        let own = self.calls.iter().filter_map(|(_, taken)| taken.own_ns());
        let shortest_ns = own.reduce(f64::min).map(|ns| ns.max(least_ns));
        Err(NoModel { reason, inputs: Vec::new(), calls: self.calls.len() as u64, shortest_ns })
    }

    /// A model of calls that have none of their inputs, where it would not be worse than none.
    pub fn of_any_inputs(&self, none: &NoModel) -> Option<Model> {
        // Whether calls are too short is asked there.
        let has_calls = none.reason != Reason::NoCalls;
        has_calls.then(|| models::constant(&self.calls)).flatten()
    }

    /// What could give these calls a model that have none; `None`: nothing that is known.
    pub fn advice(&self, none: &NoModel) -> Option<&str> {
        self.advice.as_deref().filter(|_| none.reason != Reason::NoCalls)
    }

    /// `own`: what the function's own probes put into each of its calls, where that is not what the row says.
    fn push(&mut self, row: &EventRow, words: &WordValues, own: Option<&OwnPrice>) {
        let duration_ns = row.duration_ns.unwrap_or(0);
        self.total_ns = self.total_ns.saturating_add(duration_ns);
        let mut values = values(&self.inputs, row);
        for (value, input) in values.iter_mut().zip(&self.inputs).filter(|(_, input)| input.word.is_some()) {
            *value = words.of(row, input);
        }
        let mut taken = taken(row);
        if let Some(own) = own {
            let inner_ns = row.nested_cost_ns.map_or(0.0, |ns| ns as f64 - own.taken_ns);
            taken.watching_ns = own.median_ns + inner_ns.max(0.0);
            self.calls.watching_known_to(own.error_ns);
        }
        self.calls.push(&values, taken);
        self.began.push(Began { time_ns: row.time_ns, tid: row.tid, context: row.context });
    }

    /// Of how many decades its inputs are; how often it is called is not known here.
    pub fn pace(&self, model: Option<&Model>) -> Pace {
        let decades = model.map_or(1, |model| models::decades(model, &self.calls));
        Pace { decades, calls_per_s: None }
    }

    /// What the kernel counted in a call, by its number.
    pub fn context(&self, call: usize) -> Option<&CallContext> {
        self.began.get(call).map(|began| &began.context)
    }

    /// Of each call, in their order: where it began, and what it took.
    pub fn began(&self) -> impl Iterator<Item = (&Began, Taken)> {
        self.began.iter().zip(self.calls.iter().map(|(_, taken)| taken))
    }

    /// Calls that took longer than their inputs explain, by the model of these calls.
    fn slow(&self, model: &Model, start_ns: u64) -> SlowCalls {
        let found = models::slow_calls(model, &self.calls, TOLD, |call, own_ns, predicted_ns| {
            used(own_ns, predicted_ns, self.context(call)?)
        });
        let tell = |call: models::SlowCall| {
            let values = self.calls.iter().nth(call.call).map(|(values, _)| values).unwrap_or_default();
            SlowCall {
                at_ns: self.began.get(call.call).map_or(0, |began| began.time_ns.saturating_sub(start_ns)),
                inputs: told_inputs(model, &self.inputs, values),
                call,
            }
        };
        SlowCalls { calls: found.calls, worst: found.worst.into_iter().map(tell).collect() }
    }
}

/// Values of the inputs that the time depends on, by name; where it depends on none, of all parameters.
pub(crate) fn told_inputs(model: &Model, inputs: &[InputSpec], values: &[Value]) -> Vec<(String, Value)> {
    let matters = |name: &String| {
        model.critical.iter().any(|critical| critical.name == *name) || model.categories.contains(name)
    };
    let is_none = !inputs.iter().any(|input| matters(&input.name));
    let has_no_size = |why: &Unusable| {
        matches!(
            why,
            Unusable::NoParameter
                | Unusable::Pointer
                | Unusable::Float
                | Unusable::Structure
                | Unusable::Huge { .. }
        )
    };
    let is_unused = |name: &String| model.unusable().iter().any(|(own, why)| own == name && has_no_size(why));
    let is_told = |name: &String| is_none && !is_unused(name) || matters(name);
    let all = inputs.iter().map(|input| input.name.clone()).zip(values.iter().copied());
    all.filter(|(name, _)| is_told(name)).collect()
}

/// The values of a call's inputs; words are missing.
pub(crate) fn values(inputs: &[InputSpec], row: &EventRow) -> Vec<Value> {
    values_of(inputs, row.args)
}

/// The same of its argument registers.
pub(super) fn values_of(inputs: &[InputSpec], registers: [Option<u64>; 6]) -> Vec<Value> {
    let value = |input: &InputSpec| match registers.get(input.argument) {
        _ if input.word.is_some() => Value::Missing,
        Some(Some(register)) => input.kind.value(*register),
        _ => Value::Missing,
    };
    inputs.iter().map(value).collect()
}

/// What a call took.
pub(crate) fn taken(row: &EventRow) -> Taken {
    Taken {
        duration_ns: row.duration_ns.unwrap_or(0) as f64,
        watching_ns: row.nested_cost_ns.unwrap_or(0) as f64,
        end: if row.duration_ns.is_some() { End::Returned } else { End::Cut },
    }
}

/// What a call used; `None`: the recording does not say.
pub(crate) fn used(own_ns: f64, predicted_ns: f64, context: &CallContext) -> Option<Used> {
    let of = |ns: Option<u64>| ns.map(|ns| ns as f64);
    let off_ns = of(context.off_cpu_ns)?;
    let io_ns = of(context.io_wait_ns).unwrap_or(0.0);
    Some(Used {
        predicted_ns,
        own_ns,
        on_cpu_ns: (own_ns - off_ns).max(0.0),
        runnable_ns: of(context.runnable_ns).unwrap_or(0.0),
        io_ns,
        blocked_ns: (of(context.blocked_ns).unwrap_or(0.0) - io_ns).max(0.0),
        minor_faults: of(context.minor_faults).unwrap_or(0.0),
        major_faults: of(context.major_faults).unwrap_or(0.0),
        io_bytes: of(context.read_bytes).unwrap_or(0.0) + of(context.written_bytes).unwrap_or(0.0),
    })
}

/// What tells functions apart.
fn function_of(class: &ClassRow) -> (&str, u64) {
    (&class.module, class.address)
}

/// The lowest class of each function.
fn lowest_of_each_function(classes: &HashMap<u32, ClassRow>) -> HashMap<(&str, u64), u32> {
    let mut lowest: HashMap<(&str, u64), u32> = HashMap::new();
    for (id, class) in classes {
        let least = lowest.entry(function_of(class)).or_insert(*id);
        *least = (*least).min(*id);
    }
    lowest
}

pub(super) fn matches(pattern: &Pattern, class: &ClassRow) -> bool {
    let file = class.module.rsplit('/').next().unwrap_or(&class.module);
    let names = [&class.symbol, &class.name].into_iter().chain(&class.aliases);
    pattern.matches_module(file) && names.into_iter().any(|name| pattern.matches_symbol(name))
}

/// An `--input` that names nothing is a mistake.
fn complain(named: &[InputsSpec], recorded: &[&ClassRow]) -> Result<(), ModelsError> {
    match named.iter().find(|spec| !recorded.iter().any(|class| matches(&spec.pattern, class))) {
        None => Ok(()),
        Some(spec) => {
            Err(ModelsError::NoFunction { pattern: spec.pattern.text().to_owned(), names: names(recorded) })
        }
    }
}

/// Names of functions, each once.
fn names(classes: &[&ClassRow]) -> String {
    let mut names: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}
