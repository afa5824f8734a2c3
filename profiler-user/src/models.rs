//! Execution-time models of the recorded calls of a recording: one for each function and calling context.
//!
//! Memory: some 350 bytes for each recorded call, and a row group. What it does not do: `profiler_core::models` fits, `output` shows.

use crate::config::{InputSpec, InputType, InputsSpec};
use crate::recording::{OpenError, Stream};
use profiler_core::models::{self, Calls, Comparison, End, Model, NoModel, Taken, Used, Value};
use profiler_core::recording::{CallContext, ClassRow, EventRow, Meta};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use words::WordValues;

/// Seed of the division of medians into parts: the same recording gives the same models.
const SEED: u64 = 2023;

/// Slow calls that are told of each function.
const TOLD: usize = 3;
/// Models of a recording.
#[derive(Debug, Clone)]
pub struct Models {
    /// Description of the run.
    pub meta: Meta,
    /// Functions in contexts, most total time first.
    pub functions: Vec<FunctionModel>,
    /// What of the recording could not be read.
    pub damage: Vec<String>,
}

/// A function in a context: module and symbol of both.
pub type Key = ((String, String), Option<(String, String)>);

/// What is told of one function in one calling context.
#[derive(Debug, Clone)]
pub struct FunctionModel {
    /// Name of the function.
    pub name: String,
    /// What it is known by in other recordings: module and symbol, its own and those of the context.
    pub key: Key,
    /// The timed call around it: the context (Definition 31 of the paper, as far as it was recorded). `None`: there was none.
    pub context: Option<String>,
    /// Recorded calls.
    pub calls: u64,
    /// Time in them, ns, with what watching cost.
    pub total_ns: u64,
    /// The model, or why there is none.
    pub found: Result<Model, NoModel>,
    /// Calls that took longer than their inputs explain.
    pub slow: SlowCalls,
}

/// Calls that took longer than their inputs explain.
#[derive(Debug, Clone, Default)]
pub struct SlowCalls {
    /// How many.
    pub calls: usize,
    /// Those with the largest excess, the largest first.
    pub worst: Vec<SlowCall>,
}

/// One of them, with what the recording says of it.
#[derive(Debug, Clone)]
pub struct SlowCall {
    /// Begin, ns since the recording's start.
    pub at_ns: u64,
    /// Values of the inputs that its time depends on, by name.
    pub inputs: Vec<(String, Value)>,
    /// What is told of it.
    pub call: models::SlowCall,
}

/// Why there are no models.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The recording cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No call was recorded.
    #[error(
        "the recording has no recorded calls; record some with 'tithe record --record FUNCTION:argK,...' (K: the arguments that its time may depend \
         on)"
    )]
    NoCalls,
    /// An `--input` names a word that was not taken.
    #[error("--input: no word '{word}' was taken with calls of '{function}'; taken were {taken}")]
    NoWord {
        /// What was asked for.
        word: String,
        /// The function.
        function: String,
        /// Words of the recording.
        taken: String,
    },
    /// An `--input` names no recorded function.
    #[error("--input '{pattern}': no recorded function has that name; recorded are {names}")]
    NoFunction {
        /// The pattern.
        pattern: String,
        /// Functions that were recorded.
        names: String,
    },
}

impl Models {
    /// Reads the recorded calls of a recording and fits a model to each function in each context.
    ///
    /// Inputs that nobody named are the argument registers that were kept, as signed 64-bit numbers; those that cannot be predictors are left out with
    /// a reason.
    ///
    /// # Errors
    /// [`ModelsError`]. Damage is no error: see [`Models::damage`].
    pub fn read(path: &Path, named: &[InputsSpec]) -> Result<Self, ModelsError> {
        Self::load(path, named, true)
    }

    /// The same of an earlier recording, which need not have every function that an `--input` names.
    ///
    /// # Errors
    /// As [`Models::read`].
    pub fn read_baseline(path: &Path, named: &[InputsSpec]) -> Result<Self, ModelsError> {
        Self::load(path, named, false)
    }

    fn load(path: &Path, named: &[InputsSpec], all: bool) -> Result<Self, ModelsError> {
        let mut stream = Stream::open(path)?;
        let classes: HashMap<u32, ClassRow> =
            stream.table::<ClassRow>()?.into_iter().map(|row| (row.class_id, row)).collect();
        // Which registers any call has.
        let mut known: HashMap<u32, [bool; 6]> = HashMap::new();
        stream.each(|row: EventRow| {
            let known = known.entry(row.class_id).or_default();
            known.iter_mut().zip(row.args).for_each(|(known, register)| *known |= register.is_some());
        })?;
        let inputs: HashMap<u32, Vec<InputSpec>> = known
            .into_iter()
            .filter_map(|(id, known)| Some((id, inputs_of(classes.get(&id)?, named, known))))
            .collect();
        let words = WordValues::read(&mut stream, &inputs, &classes)?;
        // A function with several uses has a class for each: one stands for all.
        let one = |id: u32| classes.get(&id).map_or(id, |class| same_function(&classes, class));
        let mut piles: BTreeMap<(u32, Option<u32>), Pile> = BTreeMap::new();
        stream.each(|row: EventRow| {
            let Some(inputs) = inputs.get(&row.class_id) else { return };
            let pile = piles
                .entry((one(row.class_id), row.place.outer_class.map(one)))
                .or_insert_with(|| Pile::new(inputs));
            pile.push(inputs, &row, &words);
        })?;
        if piles.is_empty() {
            return Err(ModelsError::NoCalls);
        }
        if all {
            complain(named, &classes, &piles)?;
        }
        let name =
            |id: u32| classes.get(&id).map_or_else(|| format!("class {id}"), |class| class.name.clone());
        let key =
            |id: u32| classes.get(&id).map(|c| (c.module.clone(), c.symbol.clone())).unwrap_or_default();
        let start_ns = stream.meta().start_ns;
        let mut functions: Vec<FunctionModel> = piles
            .into_iter()
            .map(|((class, outer), pile)| {
                let found = models::fit(&pile.calls, SEED);
                let slow = found.as_ref().map(|model| pile.slow(model, start_ns)).unwrap_or_default();
                let (calls, total_ns) = (pile.calls.len() as u64, pile.total_ns);
                let key = (key(class), outer.map(key));
                FunctionModel {
                    name: name(class),
                    key,
                    context: outer.map(name),
                    calls,
                    total_ns,
                    found,
                    slow,
                }
            })
            .collect();
        functions.sort_by_key(|function| std::cmp::Reverse(function.total_ns));
        Ok(Self { meta: stream.meta().clone(), functions, damage: stream.damage().to_vec() })
    }
}

/// Calls of a function in a context.
struct Pile {
    calls: Calls,
    /// Of each call: when it began, ktime ns, and what it used.
    used: Vec<(u64, CallContext)>,
    total_ns: u64,
}

impl Pile {
    fn new(inputs: &[InputSpec]) -> Self {
        let calls = Calls::new(inputs.iter().map(InputSpec::input).collect());
        Self { calls, used: Vec::new(), total_ns: 0 }
    }

    fn push(&mut self, inputs: &[InputSpec], row: &EventRow, words: &WordValues) {
        let value = |input: &InputSpec| match row.args.get(input.argument) {
            _ if input.word.is_some() => words.of(row, input),
            Some(Some(register)) => input.kind.value(*register),
            _ => Value::Missing,
        };
        let values: Vec<Value> = inputs.iter().map(value).collect();
        let duration_ns = row.duration_ns.unwrap_or(0);
        self.total_ns = self.total_ns.saturating_add(duration_ns);
        let taken = Taken {
            duration_ns: duration_ns as f64,
            watching_ns: row.nested_cost_ns.unwrap_or(0) as f64,
            end: if row.duration_ns.is_some() { End::Returned } else { End::Cut },
        };
        self.calls.push(&values, taken);
        self.used.push((row.time_ns, row.context));
    }

    /// Calls that took longer than their inputs explain, by the model of these calls.
    fn slow(&self, model: &Model, start_ns: u64) -> SlowCalls {
        let context = |call: usize| self.used.get(call).map(|(_, context)| context);
        let found = models::slow_calls(model, &self.calls, TOLD, |call, own_ns, predicted_ns| {
            used(own_ns, predicted_ns, context(call)?)
        });
        let tell = |call: models::SlowCall| {
            let inputs = self.calls.inputs().iter().map(|input| input.name.clone());
            let values = self.calls.iter().nth(call.call).map(|(values, _)| values).unwrap_or_default();
            let is_critical = |name: &String| model.critical.iter().any(|critical| critical.name == *name);
            let is_told = |name: &String| is_critical(name) || model.categories.contains(name);
            SlowCall {
                at_ns: self.used.get(call.call).map_or(0, |(time_ns, _)| time_ns.saturating_sub(start_ns)),
                inputs: inputs.zip(values.iter().copied()).filter(|(name, _)| is_told(name)).collect(),
                call,
            }
        };
        SlowCalls { calls: found.calls, worst: found.worst.into_iter().map(tell).collect() }
    }
}

/// What a call used; `None`: the recording does not say.
fn used(own_ns: f64, predicted_ns: f64, context: &CallContext) -> Option<Used> {
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

/// The lowest class of the same function.
fn same_function(classes: &HashMap<u32, ClassRow>, class: &ClassRow) -> u32 {
    let is_same = |other: &&ClassRow| (&other.module, other.address) == (&class.module, class.address);
    classes.values().filter(is_same).map(|other| other.class_id).min().unwrap_or(class.class_id)
}

/// The inputs of a class: those that were named for it, else the argument registers that are known of any call.
fn inputs_of(class: &ClassRow, named: &[InputsSpec], known: [bool; 6]) -> Vec<InputSpec> {
    let own = named.iter().find(|spec| matches(spec, class));
    own.map_or_else(
        || {
            let register = |k: usize| InputSpec {
                name: format!("arg{k}"),
                argument: k,
                word: None,
                kind: InputType::Long,
            };
            known.iter().enumerate().filter(|(_, known)| **known).map(|(k, _)| register(k)).collect()
        },
        |spec| spec.inputs.clone(),
    )
}

fn matches(spec: &InputsSpec, class: &ClassRow) -> bool {
    let file = class.module.rsplit('/').next().unwrap_or(&class.module);
    let names = [&class.symbol, &class.name].into_iter().chain(&class.aliases);
    spec.pattern.matches_module(file) && names.into_iter().any(|name| spec.pattern.matches_symbol(name))
}

/// An `--input` that names nothing is a mistake.
fn complain(
    named: &[InputsSpec],
    classes: &HashMap<u32, ClassRow>,
    piles: &BTreeMap<(u32, Option<u32>), Pile>,
) -> Result<(), ModelsError> {
    let mut recorded: Vec<&ClassRow> = piles.keys().filter_map(|(id, _)| classes.get(id)).collect();
    recorded.dedup_by_key(|class| class.class_id);
    match named.iter().find(|spec| !recorded.iter().any(|class| matches(spec, class))) {
        None => Ok(()),
        Some(spec) => {
            let names: Vec<&str> = recorded.iter().map(|class| class.name.as_str()).collect();
            Err(ModelsError::NoFunction { pattern: spec.pattern.text().to_owned(), names: names.join(", ") })
        }
    }
}

/// A function of two recordings.
#[derive(Debug, Clone)]
pub struct Changed {
    /// Name.
    pub name: String,
    /// Context, as [`FunctionModel::context`].
    pub context: Option<String>,
    /// What changed; `None`: one of the recordings has no model of it.
    pub comparison: Option<Comparison>,
}

/// Compares the functions that both recordings have, in the order of the later one.
#[must_use]
pub fn compare(old: &Models, new: &Models) -> Vec<Changed> {
    let of_old: HashMap<&Key, &FunctionModel> = old.functions.iter().map(|f| (&f.key, f)).collect();
    let both = new.functions.iter().filter_map(|f| {
        let before = of_old.get(&f.key)?;
        let comparison = match (&before.found, &f.found) {
            (Ok(before), Ok(after)) => Some(models::compare(before, after)),
            _ => None,
        };
        Some(Changed { name: f.name.clone(), context: f.context.clone(), comparison })
    });
    both.collect()
}

impl Changed {
    /// It takes longer than before, or grows faster.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        use profiler_core::models::Change;
        self.comparison
            .as_ref()
            .is_some_and(|found| matches!(found.change, Change::GrowsFaster | Change::Slower))
    }
}

#[cfg(test)]
mod tests;
mod words;
