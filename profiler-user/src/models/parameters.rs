//! The parameters of recorded functions, as debug information told of them when they were recorded.

use super::expected::stem;
use super::piles::{matches, registers};
use crate::config::{Declared, InputSpec, InputType, InputsSpec, Reach, WordsSpec, numbered};
use crate::inspect::{ParameterKind, Pattern, Prototype};
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
/// many, the first ones, were named on the command line; what they name beside the functions of the earlier recording is looked up in the run. `given`: words
/// of the command line.
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
    let classes = stream.table::<ClassRow>().map_err(|error| error.to_string())?;
    let recorded: Vec<&ClassRow> = classes.iter().filter(|class| class.kind == RecordKind::Record).collect();
    let mut all = Vec::new();
    for (i, spec) in inputs.into_iter().enumerate() {
        let is_typed = i < typed;
        let own = recorded.iter().filter(|class| matches(&spec.pattern, class));
        let functions: Vec<Declared> = own.map(|class| declared(class)).collect();
        let known = if functions.is_empty() || !spec.names_parameters(is_word) {
            vec![spec]
        } else {
            // Functions of that name in the run may be others than those of the recording.
            match numbered(&spec, &functions, Reach::Known, is_word) {
                Ok((mut known, notes)) => {
                    // Behind them it names other functions alone. A function of the recording without such a parameter it would name, too.
                    known.extend((is_typed && notes.is_empty()).then_some(spec));
                    known
                }
                Err(why) if is_typed => return Err(why),
                // Its models have none of them, and that is said.
                Err(_) => Vec::new(),
            }
        };
        // In this run the library may have another file's name. What is typed names it as it is.
        all.extend(
            known.into_iter().map(|spec| if is_typed { spec } else { of_any_version(spec, &recorded) }),
        );
    }
    Ok(all)
}

/// Inputs of a symbol in a library of a very name (`libz.so.1.2.13:=f`): whatever the version in the name is, if the recording has it, and no other version of it.
fn of_any_version(spec: InputsSpec, recorded: &[&ClassRow]) -> InputsSpec {
    let text = spec.pattern.text();
    let pattern = text.split_once(":=").and_then(|(module, symbol)| {
        let stem = stem(module);
        let is_library = stem != module && !module.contains(['*', '/']);
        is_library.then(|| Pattern::parse(&format!("{stem}.so*:={symbol}")).ok()).flatten()
    });
    let Some(pattern) = pattern else { return spec };
    let mut named = recorded.iter().filter(|class| matches(&pattern, class)).peekable();
    let is_same = named.peek().is_some() && named.all(|class| matches(&spec.pattern, class));
    if is_same { InputsSpec { pattern, ..spec } } else { spec }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{Overwrite, Writer, sample};
    use profiler_core::recording::ModelsMeta;

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

    /// Inputs of a run that is held against a recording of these functions: module, symbol, parameters. The first ones are `typed`, the others those of the
    /// recording.
    fn against(
        functions: &[(&str, &str, &str)],
        typed: &[&str],
        stored: &[&str],
    ) -> Result<Vec<String>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("old.tithe");
        let row = |(module, symbol, prototype): &(&str, &str, &str)| ClassRow {
            module: format!("/usr/lib/{module}"),
            symbol: (*symbol).to_owned(),
            name: (*symbol).to_owned(),
            aliases: Vec::new(),
            kind: RecordKind::Record,
            prototype: Some((*prototype).to_owned()),
            ..sample::classes().remove(0)
        };
        let models = ModelsMeta {
            patterns: Vec::new(),
            inputs: stored.iter().map(ToString::to_string).collect(),
            expected: None,
        };
        let meta = Meta { models: Some(models), ..sample::meta() };
        let mut writer = Writer::create(&path, None, Overwrite::Recording, &meta).unwrap();
        writer.push(&functions.iter().map(row).collect::<Vec<_>>());
        writer.finish(&meta).unwrap();
        let inputs = typed.iter().chain(stored).map(|text| text.parse().unwrap()).collect();
        let found = with_registers(&path, inputs, typed.len(), &[])?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    const F: (&str, &str, &str) = ("liba.so", "f", "ctx=arg0:pointer,n=arg1:size");

    #[test]
    fn what_a_run_names_beside_the_functions_of_an_earlier_one_is_looked_up_in_the_run() {
        // `libb.so`, which the run may load, has an `f` as well, and the compiler may clone this one.
        assert_eq!(against(&[F], &["f:n"], &[]).unwrap(), ["liba.so:=f:n=arg1:size", "f:n=n"]);
        // Who names registers means them.
        assert_eq!(against(&[F], &["f:n=arg0", "g:m"], &[]).unwrap(), ["f:n=arg0", "g:m=m"]);
        // A function of the recording that has none: its models are made without inputs by that name.
        let g = ("liba.so", "g", "m=arg0:long");
        assert_eq!(against(&[F, g], &["*:n"], &[]).unwrap(), ["liba.so:=f:n=arg1:size"]);
        assert!(against(&[g], &["*:n"], &[]).unwrap_err().contains("g has no parameter 'n'"));
        // The recording's own are those of its functions.
        assert_eq!(against(&[F, g], &[], &["f:n", "g:n"]).unwrap(), ["liba.so*:=f:n=arg1:size"]);
    }

    #[test]
    fn inputs_of_a_recording_hold_for_the_library_under_another_files_name() {
        let versioned = |module| (module, "compress2", "n=arg3:size");
        let stored = ["libz.so.1.2.13:=compress2:n=arg3:size"];
        let other = ["libz.so*:=compress2:n=arg3:size"];
        assert_eq!(against(&[versioned("libz.so.1.2.13")], &[], &stored).unwrap(), other);
        assert_eq!(against(&[versioned("libz.so.1.2.13"), F], &[], &other).unwrap(), other, "once more");
        let pattern = Pattern::parse("libz.so*:=compress2").unwrap();
        assert!(["libz.so", "libz.so.1"].iter().all(|file| pattern.matches_module(file)));
        // Two versions at once are two functions.
        let both = [versioned("libz.so.1.2.13"), versioned("libz.so.1.3")];
        assert_eq!(against(&both, &[], &stored).unwrap(), stored);
        for others in
            ["app:=f:n=arg1", "libm.so.6:=f:n=arg1", "compress2:n=arg3", "libz.so.1.2.13:compress2:n=arg3"]
        {
            assert_eq!(against(&[versioned("libz.so.1.2.13")], &[], &[others]).unwrap(), [others]);
        }
    }
}
