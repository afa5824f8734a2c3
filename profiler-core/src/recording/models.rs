//! What a recording says of execution-time models.

use serde::{Deserialize, Serialize};

/// Functions that models are to be made of (`record --model`), and what became of those that were held against models (`record --expect`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModelsMeta {
    /// Patterns of the functions that models are to be made of; empty: of all that were recorded.
    #[serde(default)]
    pub patterns: Vec<String>,
    /// Names and types of inputs, each as `PATTERN:NAME=argK[:TYPE],...`.
    #[serde(default)]
    pub inputs: Vec<String>,
    /// Calls that were held against models. `None`: none were, or the agent died.
    #[serde(default)]
    pub expected: Option<ExpectedMeta>,
}

/// Calls that were held against the models of another recording while the run went on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExpectedMeta {
    /// That recording.
    pub recording: String,
    /// Each function, in each context.
    pub functions: Vec<ExpectedFunction>,
    /// Recorded calls that were not looked at, to keep to the agent's CPU time or because models were still being made.
    pub not_looked_at: u64,
    /// Times that the whole machine was told to have changed.
    pub machine_changes: u64,
    /// Alarms of all functions, those at most 30 s apart counted as one.
    #[serde(default)]
    pub incidents: u64,
    /// The first of these, each with what was told of it.
    #[serde(default)]
    pub told: Vec<Incident>,
}

/// Alarms of which each came at most 30 s after the one before.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Incident {
    /// When its first alarm was, ns after the start of the run.
    pub from_ns: u64,
    /// When its last one was, ns after the start.
    pub to_ns: u64,
    /// Alarms, told or not.
    pub alarms: u64,
    /// The first alarm that was told of each function, line by line; of the first functions.
    pub lines: Vec<String>,
}

/// A function that was held against its model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExpectedFunction {
    /// Name.
    pub function: String,
    /// The timed call around it; `None`: there was none.
    pub context: Option<String>,
    /// Why it was not held against a model; `None`: it was.
    pub not_judged: Option<String>,
    /// Why it has no model of its inputs, so that single calls were held against all recorded ones, whatever their inputs; `None`: it has one, or was not judged.
    #[serde(default)]
    pub no_inputs: Option<String>,
    /// Calls that were held against the model.
    pub calls: u64,
    /// Of these: calls that took longer than the interval of 95 % allows. One in 40 does by chance.
    pub beyond: u64,
    /// Calls with inputs outside the range that the model was made from: they are not judged.
    pub outside: u64,
    /// Alarms: there was evidence, over several calls, that it takes longer.
    pub alarms: u64,
    /// Alarms that were told while the run went on.
    pub told: u64,
}
