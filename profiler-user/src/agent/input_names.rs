//! Inputs that the command line names as parameters of functions (`--input 'compress2:n=sourceLen'`): their registers, looked up in debug information as
//! soon as the functions are mapped.
//!
//! From then on they are inputs by register, for the choice of sites, for data points and in the recording. What of a library is named that is loaded later is
//! looked up then; until that it has no inputs of its own.

use super::Agent;
use crate::config::{Declared, InputsSpec, RunConfig, numbered};
use crate::inspect::{Effort, Function, Inspection};
use crate::models::stem;
use std::collections::HashSet;

/// Functions that one `--input` may name by parameters: each has its own registers, and each class is compared with all.
const MOST: usize = 256;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct InputNames {
    /// As they were given, each with what became of it; `None`: it names parameters of functions that are not mapped.
    specs: Vec<(InputsSpec, Option<Vec<InputsSpec>>)>,
    /// Names that are words, and no parameters.
    words: HashSet<String>,
    /// The program runs: what is found out now comes too late to refuse the run.
    is_running: bool,
}

/// What was found.
#[derive(Debug, Default)]
struct Found {
    /// Something is known that was not.
    is_new: bool,
    notes: Vec<String>,
}

impl InputNames {
    /// Of a run.
    pub fn of(config: &RunConfig) -> Self {
        // Words of operations lie with operations, not with calls.
        let is_of_operation = |place: &str| config.operations.operations.iter().any(|o| o.name == place);
        let words = config.words.iter().filter(|of| !is_of_operation(&of.place)).flat_map(|of| &of.words);
        let words: HashSet<String> = words.map(|word| word.name.clone()).collect();
        let known = |spec: &InputsSpec| {
            let waits = spec.names_parameters(|name| words.contains(name));
            (spec.clone(), (!waits).then(|| vec![spec.clone()]))
        };
        Self { specs: config.models.inputs.iter().map(known).collect(), words, is_running: false }
    }

    /// Parameters are named that were not looked up.
    fn is_waiting(&self) -> bool {
        self.specs.iter().any(|(_, found)| found.is_none())
    }

    /// The inputs as far as they are known.
    fn all(&self) -> Vec<InputsSpec> {
        let own = |(spec, found): &(InputsSpec, Option<Vec<InputsSpec>>)| {
            found.clone().unwrap_or_else(|| vec![spec.clone()])
        };
        self.specs.iter().flat_map(own).collect()
    }

    /// Looks up the parameters of these functions, whose calls are recorded.
    ///
    /// # Errors
    /// No function that is meant has such a parameter.
    fn look_up(&mut self, inspection: &Inspection, functions: &[Function]) -> Result<Found, String> {
        let effort = if self.is_running { Effort::Little } else { Effort::Much };
        let mut all = Found::default();
        let Self { specs, words, is_running } = self;
        for (spec, found) in specs.iter_mut().filter(|(_, found)| found.is_none()) {
            let own: Vec<&Function> = functions.iter().filter(|f| spec.pattern.names(f)).collect();
            if own.is_empty() {
                continue;
            }
            let looked_up = if own.len() > MOST {
                Err(format!(
                    "--input '{spec}' names {} functions, and parameters of at most {MOST} are looked up: name fewer, or the registers",
                    own.len()
                ))
            } else {
                let declared: Vec<Declared> = own.iter().map(|f| declared(inspection, f, effort)).collect();
                numbered(spec, &declared, |name| words.contains(name))
            };
            match looked_up {
                Ok((known, notes)) => {
                    *found = Some(known);
                    all.notes.extend(notes);
                }
                // Said once.
                Err(why) if *is_running => {
                    *found = Some(vec![spec.clone()]);
                    all.notes.push(why);
                }
                Err(why) => return Err(why),
            }
            all.is_new = true;
        }
        Ok(all)
    }
}

fn declared(inspection: &Inspection, function: &Function, effort: Effort) -> Declared {
    Declared {
        pattern: format!("{}:{}", stem(&function.module_name), function.symbol),
        name: function.name.clone(),
        prototype: inspection.prototype(function, effort).map_err(|why| why.to_string()),
    }
}

impl Agent {
    /// Looks up what is named once it is mapped, before anything is attached: parameters that are inputs, then words.
    ///
    /// # Errors
    /// A function has no such parameter; there is no such variable, or a function would have two words of one name.
    pub(super) fn look_up_names(&mut self) -> Result<(), String> {
        self.name_inputs()?;
        self.catalog.inputs.is_running = true;
        self.set_words()
    }

    /// Looks up the registers of parameters that are inputs, of functions that are mapped now. Once the run has begun, what is wrong is a warning.
    ///
    /// # Errors
    /// No function that is meant has such a parameter.
    pub(super) fn name_inputs(&mut self) -> Result<(), String> {
        if !self.catalog.inputs.is_waiting() {
            return Ok(());
        }
        let functions = self.catalog.selection.recorded(&self.inspection);
        let found = self.catalog.inputs.look_up(&self.inspection, &functions)?;
        self.inspection.rest();
        for note in found.notes {
            self.journal.progress.note(&note);
            self.journal.meta.warnings.push(note);
        }
        if found.is_new {
            let all = self.catalog.inputs.all();
            self.catalog.selection.name_inputs(&all);
            if let Some(models) = &mut self.journal.meta.models {
                models.inputs = all.iter().map(ToString::to_string).collect();
            }
            self.data_points.name_inputs(all);
        }
        Ok(())
    }

    /// What of `--input` was never looked up, because no function of that name was recorded.
    pub(super) fn inputs_without_function(&self) -> Vec<(String, String)> {
        let waiting = self.catalog.inputs.specs.iter().filter(|(_, found)| found.is_none());
        let why = "no function of that name was recorded, so nobody knows the registers of its parameters";
        waiting.map(|(spec, _)| (format!("--input '{spec}'"), why.to_owned())).collect()
    }
}
