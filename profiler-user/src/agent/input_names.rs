//! Inputs that the command line names as parameters of functions (`--input 'compress2:n=sourceLen'`): their registers, looked up in debug information as
//! soon as the functions are mapped.
//!
//! From then on they are inputs by register, for the choice of sites, for data points and in the recording. What of a library is named that is loaded later is
//! looked up then, also where functions of that name were known before: until that it has no inputs of its own.

use super::Agent;
use super::shares::FunctionKey;
use crate::config::{Declared, InputsSpec, Reach, RunConfig, numbered};
use crate::inspect::{Effort, Function, Inspection, Pattern};
use std::collections::HashSet;

/// Functions that one `--input` may name by parameters: each has its own registers, and each class is compared with all.
const MOST: usize = 256;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct InputNames {
    /// As they were given.
    specs: Vec<Named>,
    /// Names that are words, and no parameters.
    words: HashSet<String>,
    /// The program runs: what is found out now comes too late to refuse the run.
    is_running: bool,
    /// What was found before something else was refused: nobody was told.
    untold: Found,
}

/// Inputs as they were given.
#[derive(Debug)]
struct Named {
    spec: InputsSpec,
    /// It names parameters.
    by_parameter: bool,
    /// The functions that were looked up.
    functions: Vec<(FunctionKey, Declared)>,
    /// What became of it; `None`: it names parameters of functions that are not mapped.
    known: Option<Vec<InputsSpec>>,
    /// What was said of it.
    notes: Vec<String>,
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
        let named = |spec: &InputsSpec| {
            let by_parameter = spec.names_parameters(|name| words.contains(name));
            let known = (!by_parameter).then(|| vec![spec.clone()]);
            Named { spec: spec.clone(), by_parameter, functions: Vec::new(), known, notes: Vec::new() }
        };
        Self { specs: config.models.inputs.iter().map(named).collect(), words, ..Self::default() }
    }

    /// Parameters are named: functions that come may have them.
    fn by_parameter(&self) -> bool {
        self.specs.iter().any(|named| named.by_parameter)
    }

    /// The inputs as far as they are known.
    fn all(&self) -> Vec<InputsSpec> {
        let own = |named: &Named| named.known.clone().unwrap_or_else(|| vec![named.spec.clone()]);
        self.specs.iter().flat_map(own).collect()
    }

    /// Looks up the parameters of these functions, whose calls are recorded, as far as that was not done. `declared`: what debug information says of one.
    ///
    /// # Errors
    /// No function that is meant has such a parameter.
    fn look_up(
        &mut self,
        functions: &[Function],
        declared: impl Fn(&Function, Effort) -> Declared,
    ) -> Result<Found, String> {
        let effort = if self.is_running { Effort::Little } else { Effort::Much };
        let Self { specs, words, is_running, untold: all } = self;
        // Inputs that are named by register come first where they stand first: what they name is not looked up.
        let mut by_register: Vec<Pattern> = Vec::new();
        for named in specs {
            if !named.by_parameter {
                by_register.push(named.spec.pattern.clone());
                continue;
            }
            let is_own = |f: &&Function| named.spec.pattern.names(f);
            let (others, own): (Vec<&Function>, Vec<&Function>) =
                functions.iter().filter(is_own).partition(|f| by_register.iter().any(|of| of.names(f)));
            let is_new = |f: &&Function| named.functions.iter().all(|(known, _)| *known != key(f));
            let new: Vec<&Function> = own.into_iter().filter(is_new).collect();
            if new.is_empty() {
                // It names functions, and has none of its own.
                if named.known.is_none() && !others.is_empty() {
                    named.known = Some(Vec::new());
                    all.is_new = true;
                }
                continue;
            }
            let before = named.functions.len();
            let looked_up = if before + new.len() > MOST {
                Err(format!(
                    "--input '{}' names {} functions, and parameters of at most {MOST} are looked up: name fewer, or the registers",
                    named.spec,
                    before + new.len()
                ))
            } else {
                named.functions.extend(new.iter().map(|f| (key(f), declared(f, effort))));
                let declared: Vec<Declared> = named.functions.iter().map(|(_, of)| of.clone()).collect();
                numbered(&named.spec, &declared, Reach::Known, |name| words.contains(name))
            };
            let (known, notes) = match looked_up {
                Ok(found) => found,
                // The names stay names: no register is taken for a parameter. Of those that were not looked up nothing is known, and the others keep theirs.
                Err(why) if *is_running => {
                    let is_looked_up = named.functions.len() > before;
                    let before = named.known.clone().filter(|_| !is_looked_up);
                    (before.unwrap_or_else(|| vec![named.spec.clone()]), vec![why])
                }
                Err(why) => {
                    // It is asked once more before the run, which it refuses.
                    named.functions.truncate(before);
                    return Err(why);
                }
            };
            all.is_new |= named.known.as_ref() != Some(&known);
            named.known = Some(known);
            // Said once.
            let new = notes.into_iter().filter(|note| !named.notes.contains(note));
            let new: Vec<String> = new.collect();
            named.notes.extend(new.iter().cloned());
            all.notes.extend(new);
        }
        Ok(std::mem::take(all))
    }
}

fn key(function: &Function) -> FunctionKey {
    FunctionKey { module: function.module, address: function.vaddr }
}

fn declared(inspection: &Inspection, function: &Function, effort: Effort) -> Declared {
    Declared {
        module: function.module_name.clone(),
        symbol: function.symbol.clone(),
        aliases: function.aliases.clone(),
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
        if !self.catalog.inputs.by_parameter() {
            return Ok(());
        }
        let functions = self.catalog.selection.recorded(&self.inspection);
        // What was unpacked for it the search that follows needs, too, and gives back.
        let found =
            self.catalog.inputs.look_up(&functions, |f, effort| declared(&self.inspection, f, effort))?;
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
            self.data_points.name_inputs(all, self.attach.classes());
        }
        Ok(())
    }

    /// What of `--input` was never looked up, because no function of that name was recorded.
    pub(super) fn inputs_without_function(&self) -> Vec<(String, String)> {
        let waiting = self.catalog.inputs.specs.iter().filter(|named| named.known.is_none());
        let why = "no function of that name was recorded, so nobody knows the registers of its parameters";
        waiting.map(|named| (format!("--input '{}'", named.spec), why.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TargetConfig;

    /// Functions of this program, called so; and inputs of a run that names them.
    fn functions(names: &[&str]) -> Vec<Function> {
        let inspection = Inspection::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        let any = inspection.resolve(&[Pattern::parse("main").unwrap()]).functions.remove(0);
        let of = |(i, name): (usize, &&str)| Function {
            symbol: (*name).to_owned(),
            name: (*name).to_owned(),
            aliases: Vec::new(),
            module_name: "app".to_owned(),
            vaddr: i as u64,
            ..any.clone()
        };
        names.iter().enumerate().map(of).collect()
    }

    fn inputs(texts: &[&str]) -> InputNames {
        let mut config = RunConfig::new(TargetConfig::Process(1));
        config.models.inputs = texts.iter().map(|text| text.parse().unwrap()).collect();
        InputNames::of(&config)
    }

    /// Each has `n` in the register that its name ends with.
    fn declared(function: &Function, _: Effort) -> Declared {
        let register = function.symbol.chars().next_back().filter(char::is_ascii_digit);
        let prototype = register.ok_or_else(|| "there is no debug information".to_owned());
        Declared {
            module: function.module_name.clone(),
            symbol: function.symbol.clone(),
            aliases: function.aliases.clone(),
            name: function.name.clone(),
            prototype: prototype.and_then(|register| format!("n=arg{register}:long").parse()),
        }
    }

    fn texts(inputs: &InputNames) -> Vec<String> {
        inputs.all().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_was_found_before_something_was_refused_is_told_later() {
        let mut inputs = inputs(&["f*:n", "g:n"]);
        let all = functions(&["f1", "fx", "g"]);
        assert!(inputs.look_up(&all, declared).unwrap_err().contains("'n' in g is not known"));
        let found = inputs.look_up(&all[..2], declared).unwrap();
        assert!(matches!(&found.notes[..], [note] if note.contains("'n' in fx is not known")), "{found:?}");
        assert!(found.is_new, "the register of f1 was not passed on");
        let found = inputs.look_up(&all[..2], declared).unwrap();
        assert!(found.notes.is_empty() && !found.is_new, "{found:?}");
    }

    #[test]
    fn what_inputs_by_register_name_is_not_looked_up_again() {
        let all = functions(&["f", "f2"]);
        // `f`, of which there is no debug information any more, is known from an earlier recording.
        let mut inputs = inputs(&["app:=f:n=arg1", "f*:n", "*:n=arg5"]);
        let found = inputs.look_up(&all[..1], declared).unwrap();
        assert!(found.notes.is_empty(), "{found:?}");
        assert_eq!(texts(&inputs), ["app:=f:n=arg1", "*:n=arg5"]);
        assert!(
            inputs.specs.iter().all(|named| named.known.is_some()),
            "it is not told that nobody has that name"
        );
        inputs.look_up(&all, declared).unwrap();
        assert_eq!(texts(&inputs), ["app:=f:n=arg1", "app:=f2:n=arg2", "*:n=arg5"]);
    }
}
