//! Models of a recording, as calls of another run are held against them.
//!
//! Two steps, since making models takes longer than attaching may wait: [`watched`] says at once which functions are to be recorded, and
//! [`Expected::read`] makes the models, on another thread.

mod words;

pub use words::{is_given, words_anew};

use super::piles::{Pile, PileKey, Piles, is_modelled_by, registers_of, used};
use super::prices::Prices;
use super::{Key, ModelsError, Pace};
use crate::config::{FunctionConfig, InputSpec, InputsSpec, RecordSpec, WordsSpec};
use crate::inspect::Pattern;
use crate::recording::Stream;
use profiler_core::class::RecordKind;
use profiler_core::models::{Model, Used};
use profiler_core::recording::{ClassRow, EventRow, OpenCallRow};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::path::Path;

/// Calls that are kept of each doubling of the predicted time, to compare slow ones with.
const NORMAL_PER_OCTAVE: usize = 128;
/// Number of an argument register that there is not ([`InputSpec::argument`]).
const NO_REGISTER: usize = 6;

/// A function's name without what changes from build to build: the module's file name up to its version, and the symbol.
pub type Name = (String, String);

/// A function that is recorded, because calls of it are to be held against a model, or because it is the context of such calls.
#[derive(Debug, Clone)]
pub struct Watched {
    /// As the earlier recording has it.
    pub class: ClassRow,
    /// There may be a model; else it is a context.
    pub is_modelled: bool,
    /// The registers of its inputs, as in [`RecordSpec::arguments`]; 0: all that can be had.
    pub arguments: u8,
}

/// A function in a context that calls are held against.
#[derive(Debug, Clone)]
pub struct ExpectedFunction {
    /// Name.
    pub name: String,
    /// Module and symbol, its own and those of the context.
    pub key: Key,
    /// Link-time addresses of both in their modules.
    pub addresses: (u64, Option<u64>),
    /// Its names in the symbol table, and the demangled one.
    pub names: Vec<String>,
    /// The timed call around it; `None`: there was none.
    pub context: Option<String>,
    /// Its inputs, in the order of the model.
    pub inputs: Vec<InputSpec>,
    /// Build ID of its module.
    pub build_id: String,
    /// Its model.
    pub model: Model,
    /// Why that knows nothing of inputs, or of one of few values only ([`profiler_core::models::constant`]); `None`: it is a model of its inputs.
    pub no_inputs: Option<String>,
    /// Over how many decades its inputs are.
    pub pace: Pace,
    /// Normal calls: what they used.
    pub normal: Vec<Used>,
    /// Half of its calls were off the CPU for most of their time.
    pub mostly_waits: bool,
    /// Calls were cut off by the ends of bursts: longer ones than its model knows are no news.
    pub is_cut: bool,
}

/// A function in a context without a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotExpected {
    /// Name.
    pub name: String,
    /// The timed call around it; `None`: there was none.
    pub context: Option<String>,
    /// Why there is no model.
    pub why: String,
}

/// The models of a recording.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Functions with a model.
    pub functions: Vec<ExpectedFunction>,
    /// Functions without.
    pub without: Vec<NotExpected>,
}

/// The name of a function by the path of its module and its symbol.
#[must_use]
pub fn name_of(module: &str, symbol: &str) -> Name {
    (stem(module).to_owned(), symbol.to_owned())
}

/// A library's file name up to `.so`, that of a program as it is.
#[must_use]
pub fn stem(module: &str) -> &str {
    let file = module.trim_end_matches(" (deleted)");
    let file = file.rsplit('/').next().unwrap_or(file);
    let is_end = |at: &usize| matches!(file.as_bytes().get(at + 3), None | Some(b'.'));
    let end = file.match_indices(".so").map(|(at, _)| at).find(is_end).filter(|at| *at > 0);
    end.and_then(|at| file.get(..at)).unwrap_or(file)
}

/// Which functions a run has to record so that their calls can be held against the models of this recording.
///
/// # Errors
/// [`ModelsError`]: none of its functions was recorded call by call.
pub fn watched(path: &Path, named: &[InputsSpec]) -> Result<Vec<Watched>, ModelsError> {
    let mut stream = Stream::open(path)?;
    let (is_modelled, inputs) = (is_modelled_by(stream.meta(), named), registers_of(stream.meta(), named));
    let classes = stream.table::<ClassRow>()?;
    // Pairs of time stamps are no functions; what samples showed was not asked for.
    let timed = classes.into_iter().filter(|class| class.stamps_of.is_none() && class.named != Some(false));
    let functions: Vec<Watched> = timed
        .filter(|class| matches!(class.kind, RecordKind::Record | RecordKind::Latency))
        .map(|class| Watched {
            is_modelled: class.kind == RecordKind::Record && is_modelled(&class),
            arguments: inputs(&class),
            class,
        })
        .collect();
    if functions.iter().any(|function| function.is_modelled) {
        Ok(functions)
    } else {
        Err(ModelsError::NoCalls)
    }
}

/// Inputs that a recording has names for. Those that cannot be read are told when models are made.
///
/// # Errors
/// [`ModelsError`].
pub fn named_inputs(path: &Path) -> Result<Vec<InputsSpec>, ModelsError> {
    let stream = Stream::open(path)?;
    let inputs = stream.meta().models.iter().flat_map(|models| &models.inputs);
    Ok(inputs.filter_map(|text| text.parse().ok()).collect())
}

impl Watched {
    /// Its pattern: in a module of the same name, whatever its version.
    #[must_use]
    pub fn pattern(&self) -> String {
        format!("{}:{}", stem(&self.class.module), self.class.symbol)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> Name {
        name_of(&self.class.module, &self.class.symbol)
    }
}

impl FunctionConfig {
    /// These functions are watched, too.
    #[must_use]
    pub fn with_watched(&self, watched: &[Watched]) -> Self {
        let mut all = self.clone();
        for function in watched {
            let pattern = function.pattern();
            if function.is_modelled {
                let arguments = function.arguments;
                all.record.push(RecordSpec { pattern, arguments, for_models: false });
            } else {
                all.latency.push(pattern);
            }
        }
        all
    }
}

impl ExpectedFunction {
    /// What is expected of a call is what all recorded calls took.
    #[must_use]
    pub fn is_of_any_inputs(&self) -> bool {
        self.no_inputs.is_some() && self.model.categories.is_empty()
    }

    /// A pattern names it.
    fn has(&self, place: &str) -> bool {
        let module = self.key.0.0.rsplit('/').next().unwrap_or_default();
        let names = |pattern: Pattern| {
            pattern.matches_module(module) && self.names.iter().any(|name| pattern.matches_symbol(name))
        };
        Pattern::parse(place).is_ok_and(names)
    }
}

impl Expected {
    /// Makes the models.
    ///
    /// # Errors
    /// [`ModelsError`].
    pub fn read(path: &Path, named: &[InputsSpec]) -> Result<Self, ModelsError> {
        // A recording need not have every function that an `--input` names.
        // Its calls are compared with those of a run, off which the host's prices are taken.
        let piles = Piles::read(path, named, false, Prices::Host)?;
        let mut expected = Self::default();
        for (of, pile) in &piles.of {
            expected.add(&piles, *of, pile);
        }
        let cut = cut_off(path, &piles.classes)?;
        for function in &mut expected.functions {
            function.is_cut = cut.contains(&(function.key.0.0.clone(), function.addresses.0));
        }
        Ok(expected)
    }

    /// Without the models of which an input is a word that a run does not take with calls of that function: `taken` are those that it takes.
    #[must_use]
    pub fn with_words(mut self, taken: &[WordsSpec]) -> Self {
        let missing = |function: &ExpectedFunction| {
            let own: Vec<&WordsSpec> = taken.iter().filter(|spec| function.has(&spec.place)).collect();
            let mut words = function.inputs.iter().filter_map(|input| input.word.clone());
            words.find(|word| !own.iter().any(|spec| spec.words.iter().any(|taken| taken.name == *word)))
        };
        let Self { functions, without } = &mut self;
        functions.retain(|function| {
            let missing = missing(function);
            without.extend(missing.iter().map(|word| NotExpected {
                name: function.name.clone(),
                context: function.context.clone(),
                why: format!(
                    "the word '{word}', which is an input, is not taken in this run: it goes on from a word of an operation, which has to be named as well \
                     (--operation, --word)"
                ),
            }));
            missing.is_none()
        });
        self
    }

    fn add(&mut self, piles: &Piles, of: PileKey, pile: &Pile) {
        let (name, context) = (piles.name(of.0), of.1.map(|outer| piles.name(outer)));
        let address = |class: u32| piles.classes.get(&class).map_or(0, |class| class.address);
        let names = |class: &ClassRow| {
            [&class.symbol, &class.name].into_iter().chain(&class.aliases).cloned().collect::<Vec<String>>()
        };
        let (model, no_inputs) = match pile.fit() {
            Ok(model) => (model, None),
            Err(none) => {
                let advice = pile.advice(&none).map_or_else(String::new, |advice| format!("; {advice}"));
                let why = format!("{none}{advice}");
                let Some(model) = pile.of_any_inputs(&none) else {
                    self.without.push(NotExpected { name, context, why });
                    return;
                };
                (model, Some(why))
            }
        };
        self.functions.push(ExpectedFunction {
            name,
            context,
            key: piles.key(of),
            addresses: (address(of.0), of.1.map(address)),
            names: piles.classes.get(&of.0).map(names).unwrap_or_default(),
            inputs: needed(&pile.inputs, &model, no_inputs.is_some()),
            build_id: piles.build_id(of),
            normal: normal(&model, pile),
            pace: pile.pace(Some(&model)),
            is_cut: false,
            mostly_waits: mostly_waits(pile),
            model,
            no_inputs,
        });
    }
}

/// Inputs of a model. A call does not wait for words of which that makes no use, and they have no value then.
fn needed(inputs: &[InputSpec], model: &Model, is_of_any: bool) -> Vec<InputSpec> {
    let is_used = |name: &String| model.categories.contains(name) || model.inputs.contains(name);
    let needed = |input: &InputSpec| match &input.word {
        Some(_) if is_of_any && !is_used(&input.name) => {
            InputSpec { word: None, argument: NO_REGISTER, ..input.clone() }
        }
        _ => input.clone(),
    };
    inputs.iter().map(needed).collect()
}

/// Half of the calls wait for most of their time.
fn mostly_waits(pile: &Pile) -> bool {
    let mut shares: Vec<f64> = Vec::new();
    for (began, taken) in pile.began() {
        let part = taken.own_ns().zip(began.context.off_cpu_ns).map(|(own, off)| off as f64 / own);
        shares.extend(part);
    }
    shares.sort_unstable_by(f64::total_cmp);
    shares.get(shares.len() / 2).is_some_and(|share| *share > 0.5)
}

/// A function: its module and address.
type Place = (String, u64);

/// Functions of which at some duration as many calls were open at ends of windows as were recorded, or more, and two at least: their models do not know how long calls take. At the
/// end of a run one may be open anyhow.
fn cut_off(path: &Path, classes: &HashMap<u32, ClassRow>) -> Result<HashSet<Place>, ModelsError> {
    let function = |id: u32| classes.get(&id).map(|class| (class.module.clone(), class.address));
    let mut stream = Stream::open(path)?;
    // Of each end the longest: those of one end count once.
    let mut open: HashMap<Place, HashMap<u64, u64>> = HashMap::new();
    stream.each(|row: OpenCallRow| {
        if let Some(function) = function(row.class_id) {
            let longest = open.entry(function).or_default().entry(row.time_ns).or_default();
            *longest = (*longest).max(row.elapsed_ns);
        }
    })?;
    if open.is_empty() {
        return Ok(HashSet::new());
    }
    // Of each function as many as could matter: the longest, one more than were open.
    let mut recorded: HashMap<Place, BinaryHeap<Reverse<u64>>> = HashMap::new();
    stream.each(|row: EventRow| {
        let Some((function, ns)) = function(row.class_id).zip(row.duration_ns) else { return };
        let Some(most) = open.get(&function).map(|open| open.len() + 1) else { return };
        let longest = recorded.entry(function).or_default();
        longest.push(Reverse(ns));
        if longest.len() > most {
            longest.pop();
        }
    })?;
    let is_cut = |(function, open): (Place, HashMap<u64, u64>)| {
        let recorded = recorded.remove(&function).unwrap_or_default();
        let recorded = recorded.into_iter().map(|Reverse(ns)| ns).collect();
        is_cut_off(open.into_values().collect(), recorded).then_some(function)
    };
    Ok(open.into_iter().filter_map(is_cut).collect())
}

/// See [`cut_off`]. `open`: how long the longest call of each end of a window had run, ns. `recorded`: durations, ns.
///
/// Shorter ones than the `open.len() + 1` longest need not be there. Of bursts of 100 ms no recorded call is longer, so that the longest of them says nothing of a function that at times takes seconds.
fn is_cut_off(mut open: Vec<u64>, mut recorded: Vec<u64>) -> bool {
    open.sort_unstable_by_key(|elapsed_ns| Reverse(*elapsed_ns));
    recorded.sort_unstable();
    open.iter().enumerate().any(|(i, elapsed_ns)| {
        let as_long = recorded.len() - recorded.partition_point(|ns| ns < elapsed_ns);
        i + 1 >= as_long.max(2)
    })
}

/// What calls used that took no longer than 95 % of those with such inputs.
fn normal(model: &Model, pile: &Pile) -> Vec<Used> {
    let mut octaves: BTreeMap<i32, Vec<Used>> = BTreeMap::new();
    for (call, (values, taken)) in pile.calls.iter().enumerate() {
        let Some(predicted) = model.predict(values, 0.95) else { continue };
        let Some(own_ns) = predicted.own_ns(taken) else { continue };
        let context = pile.context(call).filter(|_| own_ns <= predicted.interval_ns.high);
        let Some(used) = context.and_then(|context| used(own_ns, predicted.ns, context)) else { continue };
        // OK because the logarithm of a time is small.
        octaves.entry(predicted.ns.max(1.0).log2().floor() as i32).or_default().push(used);
    }
    let some = |all: Vec<Used>| {
        let step = all.len().div_ceil(NORMAL_PER_OCTAVE).max(1);
        all.into_iter().step_by(step)
    };
    octaves.into_values().flat_map(some).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_of_bursts_do_not_know_calls_that_were_cut_off_as_often_as_they_were_recorded() {
        let ms = |ms: u64| ms * 1_000_000;
        // Bursts of 100 ms: of calls of seconds one was open for 95, one for 60 and one for 20 when they ended; one of 90 ms was recorded beside the usual ones of 1.
        let usual = || vec![ms(1); 900];
        let recorded = || usual().into_iter().chain([ms(90)]).collect::<Vec<u64>>();
        assert!(is_cut_off(vec![ms(20), ms(95), ms(60)], recorded()));
        // One alone may be at the end of the run, and usual calls are open at any end.
        assert!(!is_cut_off(vec![ms(95)], recorded()));
        assert!(!is_cut_off((0..200).map(|end| end * 5_000).collect(), recorded()));
        assert!(is_cut_off(vec![ms(2), ms(2)], usual()));
        assert!(!is_cut_off(vec![], vec![]));
    }

    #[test]
    fn a_library_is_known_without_its_version_and_a_program_by_its_name() {
        for (module, name) in [
            ("/usr/lib/x86_64-linux-gnu/libz.so.1.2.13", "libz"),
            ("/opt/app (deleted)", "app"),
            ("libfoo-1.2.so", "libfoo-1.2"),
            ("/x/.so", ".so"),
            ("/x/my.solver", "my.solver"),
        ] {
            assert_eq!(stem(module), name);
        }
        assert_eq!(name_of("/a/libz.so.1", "compress2"), name_of("/b/libz.so.2", "compress2"));
    }
}
