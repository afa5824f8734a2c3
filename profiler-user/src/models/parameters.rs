//! The parameters of recorded functions, as debug information told of them when they were recorded.

use super::piles::{matches, registers};
use crate::config::{Declared, InputSpec, InputType, InputsSpec, Reach, WordsSpec, numbered};
use crate::inspect::{ParameterKind, Prototype};
use crate::recording::Stream;
use profiler_core::class::RecordKind;
use profiler_core::models::Reason;
use profiler_core::recording::{ClassRow, Meta};
use std::collections::HashSet;
use std::path::Path;

/// No argument register.
const NO_REGISTER: usize = 6;

/// The parameters of a function; `None`: the recording does not know them.
fn prototype(class: &ClassRow) -> Option<Prototype> {
    class.prototype.as_ref().and_then(|text| text.parse().ok())
}

/// Words that are taken with calls.
pub(super) fn words_of(meta: &Meta) -> HashSet<String> {
    meta.words.iter().filter(|word| word.operation.is_none()).map(|word| word.name.clone()).collect()
}

/// The inputs that were named for a function, with registers in place of the names of parameters. Names that are neither words nor parameters stay.
pub(super) fn named(spec: &InputsSpec, class: &ClassRow, words: &HashSet<String>) -> Vec<InputSpec> {
    let one = [declared(class)];
    let found = numbered(spec, &one, Reach::Pattern, |name| words.contains(name));
    let own = found.ok().and_then(|(specs, _)| specs.into_iter().next());
    own.map_or_else(|| spec.inputs.clone(), |own| own.inputs)
}

/// A function, as one for which inputs are named.
fn declared(class: &ClassRow) -> Declared {
    let why = || {
        "the recording does not have the names of its parameters (there was no debug information, or the recording is older)".to_owned()
    };
    Declared {
        module: class.module.rsplit('/').next().unwrap_or(&class.module).to_owned(),
        symbol: class.symbol.clone(),
        aliases: class.aliases.clone(),
        name: class.name.clone(),
        prototype: prototype(class).ok_or_else(why),
    }
}

/// Inputs of a function for which nobody named any: its parameters, else the registers that are `known` of any call.
pub(super) fn automatic(class: &ClassRow, known: [bool; 6]) -> Vec<InputSpec> {
    of_parameters(prototype(class).as_ref(), known)
}

/// The same of a function with these parameters; `None`: they are not known.
pub(super) fn of_parameters(prototype: Option<&Prototype>, known: [bool; 6]) -> Vec<InputSpec> {
    prototype.map_or_else(|| registers(known), |prototype| of_prototype(prototype, known))
}

/// Parameters whose registers are known of any call, and those that no register holds because of their type. Of registers of which the prototype knows
/// nothing each is one.
fn of_prototype(prototype: &Prototype, known: [bool; 6]) -> Vec<InputSpec> {
    let is_known = |register: u8| known.get(usize::from(register)).copied().unwrap_or(false);
    let mut inputs: Vec<InputSpec> = Vec::new();
    for (i, parameter) in prototype.parameters.iter().enumerate() {
        let argument = match (parameter.register, parameter.kind) {
            (Some(register), _) if is_known(register) => usize::from(register),
            (None, ParameterKind::Float | ParameterKind::Structure) => NO_REGISTER,
            _ => continue,
        };
        let own = match parameter.register {
            _ if !parameter.name.is_empty() => parameter.name.clone(),
            Some(register) => format!("arg{register}"),
            None => format!("parameter {}", i + 1),
        };
        let is_taken = inputs.iter().any(|input| input.name == own);
        let name = if is_taken { format!("{own} ({})", i + 1) } else { own };
        inputs.push(InputSpec { name, argument, word: None, kind: InputType::from(parameter.kind) });
    }
    let unknown = prototype.unknown();
    inputs.extend(registers(std::array::from_fn(|k| unknown & 1 << k != 0 && known[k])));
    inputs
}

/// Why there can be no model of a function whose inputs nobody named.
pub(super) fn prevented(class: &ClassRow) -> Option<Reason> {
    prevented_by(prototype(class).as_ref())
}

/// The same of a function with these parameters; `None`: they are not known.
pub(super) fn prevented_by(prototype: Option<&Prototype>) -> Option<Reason> {
    prototype.filter(|prototype| prototype.is_variadic).map(|_| Reason::Variadic)
}

/// What to say of a name that is neither a word nor a parameter.
pub(super) fn known_parameters(class: &ClassRow) -> String {
    prototype(class).map_or_else(
        || "the recording does not have the names of its parameters".to_owned(),
        |prototype| format!("its parameters are {}", prototype.list()),
    )
}

/// Inputs for a run that is held against an earlier recording: with registers in place of names of parameters, as that recording knows them. `typed`: so
/// many, the first ones, were named on the command line; where the earlier recording has none of their functions, they stay as they are. `given`: words of
/// the command line.
///
/// # Errors
/// A function of the recording has no such parameter, in words; or the recording cannot be opened.
pub fn with_registers(
    path: &Path,
    inputs: Vec<InputsSpec>,
    typed: usize,
    given: &[WordsSpec],
) -> Result<Vec<InputsSpec>, String> {
    let mut stream = Stream::open(path).map_err(|error| error.to_string())?;
    let mut words = words_of(stream.meta());
    words.extend(given.iter().flat_map(|spec| &spec.words).map(|word| word.name.clone()));
    let is_word = |name: &str| words.contains(name);
    if !inputs.iter().any(|spec| spec.names_parameters(is_word)) {
        return Ok(inputs);
    }
    let classes = stream.table::<ClassRow>().map_err(|error| error.to_string())?;
    let recorded: Vec<&ClassRow> = classes.iter().filter(|class| class.kind == RecordKind::Record).collect();
    let mut all = Vec::new();
    for (i, spec) in inputs.into_iter().enumerate() {
        let own = recorded.iter().filter(|class| matches(&spec.pattern, class));
        let functions: Vec<Declared> = own.map(|class| declared(class)).collect();
        if functions.is_empty() || !spec.names_parameters(is_word) {
            all.push(spec);
            continue;
        }
        match numbered(&spec, &functions, Reach::Pattern, is_word) {
            Ok((known, _)) => all.extend(known),
            Err(why) if i < typed => return Err(why),
            // Its models have none of them, and that is said.
            Err(_) => {}
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_inputs_by_their_names_and_types() {
        let of = |text: &str, known: u8| {
            let known = std::array::from_fn(|k| known & 1 << k != 0);
            let all = of_prototype(&text.parse().unwrap(), known);
            all.iter().map(|i| format!("{}@{}:{:?}", i.name, i.argument, i.input().kind)).collect::<Vec<_>>()
        };
        assert_eq!(
            of("p=arg0:pointer,n=arg1:size,m=arg2:category,x=-:float,s=-:structure,far=-:long", 0b11_1011),
            ["p@0:Pointer", "n@1:Number", "x@6:Float", "s@6:Structure"],
            "arg2 was not kept, and nothing is passed behind it"
        );
        assert_eq!(of("=arg0:long,=-:float", 1), ["arg0@0:Number", "parameter 2@6:Float"]);
        assert_eq!(of("n=arg0:long,arg2?", 0b1111), ["n@0:Number", "arg2@2:Number", "arg3@3:Number"]);
        assert_eq!(of("", 0b11_1111), [""; 0]);
    }
}
