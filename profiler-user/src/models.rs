//! Execution-time models of the recorded calls of a recording: one for each function and calling context.
//!
//! Memory: some 350 bytes for each recorded call, and a row group. What it does not do: `profiler_core::models` fits, `output` shows.

mod expected;
mod groups;
mod live;
mod loops;
mod parameters;
mod piles;
mod plot;
mod prices;
mod uncalled;
mod words;

pub use expected::{
    Expected, ExpectedFunction, Name, NotExpected, Watched, is_given, name_of, named_inputs, stem, watched,
    words_anew,
};
pub use groups::{
    ALIKE, Frequencies, GroupedKernel, Groups, KernelGroup, Modelled, Pace, SharedGroup, frequencies,
    shared_groups,
};
pub use live::{CallSample, KeptCalls, LiveFunction};
pub use loops::{LoopModels, LoopOfFunction};
pub use parameters::with_registers;
pub(crate) use piles::{taken, told_inputs, used, values};
pub use plot::{Plot, PlotCurve};

use crate::config::{DEFAULT_DATAPOINTS, InputsSpec};
use crate::recording::OpenError;
use piles::{PileKey, Piles};
use prices::Prices;
use profiler_core::models::{self, Comparison, Model, NoModel, Value};
use profiler_core::recording::Meta;
use std::collections::HashMap;
use std::path::Path;

/// Models of a recording.
#[derive(Debug, Clone)]
pub struct Models {
    /// Description of the run.
    pub meta: Meta,
    /// Functions in contexts, most total time first.
    pub functions: Vec<FunctionModel>,
    /// What of the recording could not be read.
    pub damage: Vec<String>,
    /// Why functions have no models of loops, where it is not their samples, and which functions were watched and never called.
    pub notes: Vec<String>,
    /// Data points that each kernel is to have, by which frequencies are told; 0: none are.
    pub datapoints: u32,
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
    /// What could give it a model, where it has none.
    pub advice: Option<String>,
    /// Calls that took longer than their inputs explain; where it has no model, than is usual whatever they are.
    pub slow: SlowCalls,
    /// Some of its calls, beside the curves.
    pub plot: Option<Plot>,
    /// What samples say of its loops. `None`: it has no model itself, or its code or the samples are not there.
    pub loops: Option<LoopModels>,
    /// How often it is called, and over how many decades.
    pub pace: Pace,
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
        "the recording has no recorded calls; record some with 'tithe record --model FUNCTION --input FUNCTION:NAME=argK,...' (K: the arguments \
         that its time may depend on)"
    )]
    NoCalls,
    /// None of the functions whose calls were to be recorded was called.
    #[error("no call was recorded that a model can be made of: {names}")]
    NeverCalled {
        /// Each, with how long it was watched.
        names: String,
    },
    /// Calls were recorded, but not of what was to be modelled.
    #[error(
        "none of the functions that models are to be made of (--model {patterns}) has a recorded call; recorded are {names}"
    )]
    NoneModelled {
        /// The patterns.
        patterns: String,
        /// Functions that were recorded.
        names: String,
    },
    /// An `--input` names a word that was not taken, or a parameter that there is not.
    #[error(
        "--input: no word '{word}' was taken with calls of '{function}' (taken were {taken}), and it is no parameter: {parameters}"
    )]
    NoWord {
        /// What was asked for.
        word: String,
        /// The function.
        function: String,
        /// Words of the recording.
        taken: String,
        /// What is known of its parameters.
        parameters: String,
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
    /// Inputs have the names and types of `named`, then of the recording (`record --input`). Those that nobody named are the argument registers that
    /// were kept, as signed 64-bit numbers; those that cannot be predictors are left out with a reason. A recording that says which functions models are
    /// to be made of (`record --model`) has models of these and of `named` ones.
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
        let piles = Piles::read(path, named, all, Prices::InPlace)
            .map_err(|error| uncalled::explain(path, named, error))?;
        let mut functions: Vec<(PileKey, FunctionModel)> =
            piles.of.iter().map(|(key, pile)| (*key, piles.model(*key, pile))).collect();
        groups::add_rates(path, &piles, &mut functions)?;
        // What is compared is functions.
        let mut notes = if all { loops::add(path, &piles, &mut functions)? } else { Vec::new() };
        if all {
            notes.extend(uncalled::notes(path, named)?);
        }
        let mut functions: Vec<FunctionModel> = functions.into_iter().map(|(_, function)| function).collect();
        functions.sort_by_key(|function| std::cmp::Reverse(function.total_ns));
        Ok(Self { meta: piles.meta, functions, damage: piles.damage, notes, datapoints: DEFAULT_DATAPOINTS })
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
    /// Calls that took longer than their inputs explain, and all, before and now: what happens to few calls is in no median.
    pub slow: [(usize, u64); 2],
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
        let slow = [*before, f].map(|f| (f.slow.calls, f.calls));
        Some(Changed { name: f.name.clone(), context: f.context.clone(), comparison, slow })
    });
    both.collect()
}

impl Changed {
    /// It takes longer than before, or grows faster.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        self.comparison.as_ref().is_some_and(|found| found.change.is_worse())
    }

    /// A difference is told.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.comparison.as_ref().is_some_and(|found| found.change.is_told())
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod prices_tests;

#[cfg(test)]
mod text_tests;
