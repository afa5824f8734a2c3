//! A program under the parameterised load, and the slices of its functions that are recorded one after the other.

use super::figures::Inputs;
use crate::place::Place;
use anyhow::Result;
use profiler_tests::kernels::PARAMETERS;
use std::path::Path;

/// Functions that are recorded together.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Its name.
    pub name: &'static str,
    /// The pattern of its functions.
    pub pattern: &'static str,
    /// Those of other slices that it names as well.
    pub never: &'static [&'static str],
}

/// A program.
pub trait Program {
    /// Its name in `--only`.
    fn name(&self) -> &'static str;

    /// What it is written in.
    fn language(&self) -> &'static str;

    /// Slices of its functions. No function is in two.
    fn slices(&self) -> &'static [Slice];

    /// Global variables that hold the parameters of the current run, in the order of [`PARAMETERS`]; none: it has no such variables.
    fn variables(&self) -> &'static [&'static str];

    /// What is missing, if it cannot run here.
    fn missing(&self, place: &Place) -> Option<String>;

    /// Its version.
    ///
    /// # Errors
    ///
    /// If it cannot be asked.
    fn version(&self, place: &Place) -> Result<String>;

    /// Starts it, under its load.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    fn start(&self, place: &Place, folder: &Path) -> Result<Box<dyn Running>>;
}

/// A started program.
pub trait Running {
    /// The process to watch.
    fn pid(&mut self) -> u32;

    /// How often each combination was run so far.
    ///
    /// # Errors
    ///
    /// If it does not answer, or has given a wrong result.
    fn runs(&mut self) -> Result<Vec<u64>>;

    /// Ends it.
    ///
    /// # Errors
    ///
    /// If it does not end well, or has given a wrong result.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// What stands for inputs of a program's kernels: their arguments, and the load's parameters where they can be read.
pub fn inputs(program: &dyn Program) -> Vec<Inputs> {
    let parameters = (!program.variables().is_empty()).then_some(Inputs::Parameters);
    std::iter::once(Inputs::Arguments).chain(parameters).collect()
}

/// Arguments of `tithe record` for a slice.
pub fn recording(program: &dyn Program, slice: &Slice, budget: &str, datapoints: u32) -> Vec<String> {
    let mut arguments =
        ["--budget", budget, "--agent-cpu", "20%", "--model", slice.pattern].map(str::to_owned).to_vec();
    arguments.extend(["--datapoints".to_owned(), datapoints.to_string()]);
    arguments.extend(slice.never.iter().flat_map(|pattern| ["--never".to_owned(), (*pattern).to_owned()]));
    if !program.variables().is_empty() {
        let word = |(name, variable): (&&str, &&str)| format!("{name}=&{variable}->0");
        let words: Vec<String> = PARAMETERS.iter().zip(program.variables()).map(word).collect();
        arguments.extend(["--word".to_owned(), format!("{}:{}", slice.pattern, words.join(","))]);
    }
    arguments
}

/// Arguments of `tithe models` for a kind of inputs. Without any all argument registers are candidates.
pub fn modelling(slice: &Slice, inputs: Inputs) -> Vec<String> {
    let kind = |name: &&str| if *name == "kind" { "category" } else { "size" };
    match inputs {
        Inputs::Arguments => Vec::new(),
        Inputs::Parameters => {
            let names: Vec<String> =
                PARAMETERS.iter().map(|name| format!("{name}={name}:{}", kind(name))).collect();
            vec!["--input".to_owned(), format!("{}:{}", slice.pattern, names.join(","))]
        }
    }
}
