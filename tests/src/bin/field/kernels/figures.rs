//! What is kept of a run of a slice: a line of `kernels.jsonl`.

use crate::observe::Observation;
use profiler_core::models::{Class, Printed};
use serde::{Deserialize, Serialize};

/// What stands for the inputs of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inputs {
    /// Its own integer arguments.
    Arguments,
    /// The parameters of the load, as in the paper: words of the program's memory.
    Parameters,
}

impl Inputs {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Inputs::Arguments => "arguments",
            Inputs::Parameters => "parameters",
        }
    }
}

/// A finished run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The program.
    pub program: String,
    /// Its version.
    pub version: String,
    /// The functions.
    pub slice: String,
    /// Number of the run, from 0.
    pub round: u32,
    /// Length asked for, s.
    pub seconds: f64,
    /// The agent's version.
    pub agent: String,
    /// Processes that ran or waited for a CPU, average of the minute at its end.
    pub load: Option<f64>,
    /// What went wrong.
    pub trouble: Vec<String>,
    /// How the agent's run went.
    pub observation: Observation,
    /// Runs of the load while it was watched.
    pub runs: u64,
    /// Of the combination that was run least.
    pub least_runs: u64,
    /// What was told, once for each kind of inputs.
    pub told: Vec<Told>,
}

impl Record {
    /// It is a run of this program, slice and round.
    pub fn is_of(&self, program: &str, slice: &str, round: u32) -> bool {
        self.program == program && self.slice == slice && self.round == round
    }

    /// Models were told with each of these kinds of inputs: it need not be run again.
    pub fn is_complete(&self, inputs: &[Inputs]) -> bool {
        inputs.iter().all(|inputs| self.told.iter().any(|told| told.inputs == *inputs))
    }
}

/// What `tithe models` says of a recording with one kind of inputs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Told {
    /// What stands for inputs.
    pub inputs: Inputs,
    /// Functions in contexts of which a call was recorded.
    pub kernels: Vec<Kernel>,
    /// Places at which the frequency is set, by the paper's rule of grouping.
    pub switches: usize,
    /// Groups of kernels that share a frequency.
    pub groups: usize,
    /// Kernels that are leaves and have a model: those that are grouped.
    pub leaves: usize,
}

/// A function in a context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name.
    pub function: String,
    /// The timed call around it.
    pub context: Option<String>,
    /// Recorded calls.
    pub calls: u64,
    /// What is told of it.
    pub outcome: Outcome,
}

/// A model, or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// There is enough data for a model.
    Model(Growth),
    /// There is no model.
    None {
        /// The reason, as the JSON has it.
        reason: String,
        /// Why each input is no predictor, as the JSON has it.
        inputs: Vec<String>,
    },
}

/// How a kernel grows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// Our class.
    pub class: Class,
    /// The paper's; of two regimes that of the upper one.
    pub printed: Printed,
    /// Why the class is unknown, as the JSON has it.
    pub doubt: Option<String>,
    /// Inputs that the time depends on.
    pub critical: Vec<String>,
    /// Adjusted R^2.
    pub fit: f64,
    /// What an exact model would reach.
    pub ceiling: f64,
    /// Distinct inputs behind it.
    pub distinct: u64,
    /// Formula, a line for each category.
    pub formula: Vec<String>,
}

impl Kernel {
    /// Its model.
    pub fn growth(&self) -> Option<&Growth> {
        match &self.outcome {
            Outcome::Model(growth) => Some(growth),
            Outcome::None { .. } => None,
        }
    }
}
