//! Inputs that are named as parameters of a function: their registers, by the function's [`Prototype`].
//!
//! A pattern may name several functions, of which a parameter lies in another register in each. So one `--input` may become several. No I/O here: who asks
//! reads the prototypes.

use super::inputs::{InputSpec, InputType, InputsSpec};
use crate::inspect::{ParameterKind, Pattern, Prototype};

/// A function that a pattern names, as debug information knows it.
#[derive(Debug, Clone)]
pub struct Declared {
    /// Module, by its file's name.
    pub module: String,
    /// Symbol.
    pub symbol: String,
    /// Other symbols of it.
    pub aliases: Vec<String>,
    /// Its name, for people.
    pub name: String,
    /// Its parameters, or why nobody knows them.
    pub prototype: Result<Prototype, String>,
}

impl Declared {
    fn names(&self) -> impl Iterator<Item = &String> {
        [&self.symbol].into_iter().chain(&self.aliases)
    }

    /// Its symbol, or the alias by which a pattern names it: functions that have it as well the pattern names, too.
    fn named_by(&self, pattern: &Pattern) -> &str {
        self.names().find(|name| pattern.matches_symbol(name)).unwrap_or(&self.symbol)
    }

    /// A function that has this symbol in this module.
    fn has(&self, module: &str, symbol: &str) -> bool {
        self.module == module && self.names().any(|own| own == symbol)
    }
}

impl InputsSpec {
    /// It names parameters: names that are no words.
    #[must_use]
    pub fn names_parameters(&self, is_word: impl Fn(&str) -> bool) -> bool {
        self.inputs.iter().filter_map(|input| input.word.as_deref()).any(|name| !is_word(name))
    }
}

/// A pattern of the functions that have this symbol in this module, and of no clone of them; `None`: no pattern can say that.
fn of_symbol(module: &str, symbol: &str) -> Option<Pattern> {
    // The first colon ends a module's name (`memfd:jit`).
    let module_pattern = module.replace(':', "?");
    let pattern = Pattern::parse(&format!("{module_pattern}:={symbol}")).ok()?;
    (pattern.matches_module(module) && pattern.matches_symbol(symbol)).then_some(pattern)
}

/// Which functions inputs may go on to name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All that the pattern names, if those that are known agree: there are no others.
    Pattern,
    /// Those that are known: others may come.
    Known,
}

/// The same inputs with registers in place of parameters, and remarks on functions that do not have them. `functions`: those that its pattern names, at least
/// one. Each function gets its own; where all have the same registers and no others may come it stays one.
///
/// # Errors
/// None of the functions has these parameters; in words, with those that it has.
pub fn numbered(
    spec: &InputsSpec,
    functions: &[Declared],
    reach: Reach,
    is_word: impl Fn(&str) -> bool,
) -> Result<(Vec<InputsSpec>, Vec<String>), String> {
    let mut found: Vec<(&Declared, Vec<InputSpec>)> = Vec::new();
    let mut missing = Vec::new();
    for function in functions {
        match of_function(spec, function, &is_word) {
            Ok(inputs) => found.push((function, inputs)),
            Err(why) => missing.push(why),
        }
    }
    let Some((_, first)) = found.first() else {
        let why = missing
            .into_iter()
            .next()
            .unwrap_or_else(|| format!("--input '{spec}': no function has that name"));
        return Err(why);
    };
    if reach == Reach::Pattern && missing.is_empty() && found.iter().all(|(_, inputs)| inputs == first) {
        let spec = InputsSpec { pattern: spec.pattern.clone(), inputs: first.clone() };
        return Ok((vec![spec], Vec::new()));
    }
    let mut specs: Vec<InputsSpec> = Vec::new();
    let mut done: Vec<(&str, &str)> = Vec::new();
    for (function, inputs) in &found {
        let (module, symbol) = (function.module.as_str(), function.named_by(&spec.pattern));
        // Static functions of two files: by name nobody tells them apart.
        let agrees =
            |other: &Declared| found.iter().any(|(known, its)| std::ptr::eq(*known, other) && its == inputs);
        if functions.iter().any(|other| other.has(module, symbol) && !agrees(other)) {
            missing.push(format!(
                "--input '{spec}': {module} has several functions called {}, of which the parameters do not all lie in the same registers: name these by their numbers (arg0 to arg5)",
                function.name
            ));
            continue;
        }
        if done.contains(&(module, symbol)) {
            continue;
        }
        done.push((module, symbol));
        match of_symbol(module, symbol) {
            Some(pattern) => specs.push(InputsSpec { pattern, inputs: inputs.clone() }),
            None => missing.push(format!(
                "--input '{spec}': no pattern can name {} in {module} alone: name its registers by their numbers (arg0 to arg5)",
                function.name
            )),
        }
    }
    missing.dedup();
    if specs.is_empty() {
        return Err(missing.remove(0));
    }
    Ok((specs, missing))
}

fn of_function(
    spec: &InputsSpec,
    function: &Declared,
    is_word: &impl Fn(&str) -> bool,
) -> Result<Vec<InputSpec>, String> {
    let one = |input: &InputSpec| match input.word.as_deref().filter(|name| !is_word(name)) {
        None => Ok(input.clone()),
        Some(name) => of_parameter(input, name, function).map_err(|why| format!("--input '{spec}': {why}")),
    };
    spec.inputs.iter().map(one).collect()
}

fn of_parameter(input: &InputSpec, name: &str, function: &Declared) -> Result<InputSpec, String> {
    let Declared { name: own, prototype, .. } = function;
    let prototype = prototype.as_ref().map_err(|why| {
        format!(
            "the register of '{name}' in {own} is not known: {why}; name it by its number (arg0 to arg5), and a word of the target's memory with --word"
        )
    })?;
    let Some(parameter) = prototype.parameter(name) else {
        // Of a slice both halves are called after it.
        let half = format!("{name}.");
        let meant =
            prototype.parameters.iter().find(|p| p.name.starts_with(&half) && p.name.ends_with(".len"));
        let hint = meant.map_or_else(String::new, |p| format!("; it is a slice: its length is '{}'", p.name));
        return Err(format!(
            "{own} has no parameter '{name}', nor is there a --word of that name; its parameters are {}{hint}",
            prototype.list()
        ));
    };
    let Some(register) = parameter.register else {
        let why = match parameter.kind {
            ParameterKind::Float => "a floating-point number, which is not recorded",
            ParameterKind::Structure => "a structure passed by value, which is not recorded",
            _ => "in no argument register that is known",
        };
        return Err(format!("'{name}' of {own} is {why}; its parameters are {}", prototype.list()));
    };
    // Who writes a type knows better. An address by its name is a number, as one by its register is.
    let kind = match (input.kind, InputType::from(parameter.kind)) {
        (InputType::Long, InputType::Declared(ParameterKind::Pointer)) => InputType::Long,
        (InputType::Long, declared) => declared,
        (given, _) => given,
    };
    Ok(InputSpec { argument: usize::from(register), word: None, kind, ..input.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, prototype: &str) -> Declared {
        let prototype = if prototype == "?" {
            Err("libz.so.1 has no debug information".to_owned())
        } else {
            prototype.parse()
        };
        Declared {
            module: "libz.so.1".to_owned(),
            symbol: name.to_owned(),
            aliases: Vec::new(),
            name: name.to_owned(),
            prototype,
        }
    }

    fn of(spec: &str, functions: &[Declared]) -> Result<(Vec<String>, Vec<String>), String> {
        let (specs, notes) =
            numbered(&spec.parse().unwrap(), functions, Reach::Pattern, |name| name == "word")?;
        Ok((specs.iter().map(ToString::to_string).collect(), notes))
    }

    const COMPRESS: &str = "dest=arg0:pointer,source=arg2:pointer,sourceLen=arg3:size,level=arg4:int";

    #[test]
    fn names_become_registers_with_the_types_that_are_declared() {
        let compress2 = [function("compress2", COMPRESS)];
        let same = |spec: &str| of(spec, &compress2).unwrap().0;
        assert_eq!(same("compress2:n=sourceLen,level"), ["compress2:n=arg3:size,level=arg4:int"]);
        assert_eq!(
            same("compress2:n=sourceLen,level=level:category"),
            ["compress2:n=arg3:size,level=arg4:category"]
        );
        assert_eq!(same("compress2:dest,x=word,y=arg5"), ["compress2:dest=arg0,x=word,y=arg5"]);
    }

    #[test]
    fn a_wrong_name_is_told_with_those_that_there_are() {
        let error = of("compress2:len", &[function("compress2", COMPRESS)]).unwrap_err();
        for part in [
            "compress2 has no parameter 'len'",
            "sourceLen (arg3, size), level (arg4, int)",
            "--input 'compress2:len=len'",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let error = of("f:n", &[function("f", "?")]).unwrap_err();
        assert!(
            error.contains("libz.so.1 has no debug information; name it by its number (arg0 to arg5)"),
            "{error}"
        );
        let error = of("f:x", &[function("f", "x=-:float")]).unwrap_err();
        assert!(error.contains("'x' of f is a floating-point number, which is not recorded"), "{error}");
        let error = of("f:data", &[function("f", "data.ptr=arg0:pointer,data.len=arg1:size")]).unwrap_err();
        assert!(error.contains("its length is 'data.len'"), "{error}");
        assert!(of("f:n", &[]).unwrap_err().contains("no function has that name"));
    }

    #[test]
    fn each_function_of_a_pattern_has_its_own_registers() {
        let [one, other, none] = [
            function("one", "n=arg0:long"),
            function("two", "p=arg0:pointer,n=arg1:u32"),
            function("three", "?"),
        ];
        assert_eq!(of("*:n", &[one.clone(), one.clone()]).unwrap().0, ["*:n=arg0"]);
        let (specs, notes) = of("*:n", &[one.clone(), other, none]).unwrap();
        assert_eq!(specs, ["libz.so.1:=one:n=arg0", "libz.so.1:=two:n=arg1:u32"]);
        assert!(matches!(&notes[..], [note] if note.contains("'n' in three is not known")), "{notes:?}");
    }

    #[test]
    fn functions_of_one_symbol_must_agree() {
        let [first, second] =
            [function("parse", "n=arg0:long"), function("parse", "ctx=arg0:pointer,n=arg1:u32")];
        let other = function("other", "n=arg2:long");
        let (specs, notes) = of("*:n", &[first.clone(), second.clone(), other.clone()]).unwrap();
        assert_eq!(specs, ["libz.so.1:=other:n=arg2"], "the second of them would be modelled by its context");
        assert!(matches!(&notes[..], [note] if note.contains("several functions called parse")), "{notes:?}");
        assert!(
            of("parse:n", &[first.clone(), second]).unwrap_err().contains("several functions called parse")
        );
        // Of one of them nothing is known.
        assert!(of("parse:n", &[first.clone(), function("parse", "?")]).is_err());
        assert_eq!(of("*:n", &[first.clone(), first, other]).unwrap().0.len(), 2);
    }

    #[test]
    fn a_function_that_has_the_name_of_another_as_an_alias_must_agree_with_it() {
        let one = function("digest", "n=arg0:long");
        let other = function("digest_v2", "ctx=arg0:pointer,n=arg1:long");
        let alias = Declared { aliases: vec!["digest".to_owned()], ..other.clone() };
        assert_eq!(of("*:n", &[one.clone(), other]).unwrap().0.len(), 2);
        let (specs, notes) = of("*:n", &[one.clone(), alias]).unwrap();
        assert_eq!(specs, ["libz.so.1:=digest_v2:n=arg1"]);
        assert!(
            matches!(&notes[..], [note] if note.contains("several functions called digest")),
            "{notes:?}"
        );
        // In another module it is another one.
        let elsewhere = Declared { module: "libz.so".to_owned(), ..function("digest", "n=arg3:long") };
        assert_eq!(
            of("*:n", &[one, elsewhere]).unwrap().0,
            ["libz.so.1:=digest:n=arg0", "libz.so:=digest:n=arg3"]
        );
    }

    #[test]
    fn where_others_may_come_each_has_its_own() {
        let compress2 = [function("compress2", COMPRESS)];
        let (specs, _) = where_others_may_come("comp*:n=sourceLen", &compress2);
        assert_eq!(
            specs.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["libz.so.1:=compress2:n=arg3:size"]
        );
    }

    fn where_others_may_come(spec: &str, functions: &[Declared]) -> (Vec<InputsSpec>, Vec<String>) {
        numbered(&spec.parse().unwrap(), functions, Reach::Known, |_| false).unwrap()
    }

    #[test]
    fn a_function_keeps_the_name_by_which_it_was_named() {
        let aliases = ["start".to_owned(), "init_plugin".to_owned()].to_vec();
        let plugin = [Declared { aliases, ..function("init", "n=arg0:long") }];
        // Another file may have a static function called `init`, of which nothing is known here.
        for (spec, expected) in [
            ("init_plugin:n", "libz.so.1:=init_plugin:n=arg0"),
            ("st*:n", "libz.so.1:=start:n=arg0"),
            ("init*:n", "libz.so.1:=init:n=arg0"),
        ] {
            assert_eq!(where_others_may_come(spec, &plugin).0[0].to_string(), expected);
        }
        // What has that name as well must agree.
        let other = function("init_plugin", "ctx=arg0:pointer,n=arg1:long");
        let both = [plugin[0].clone(), other];
        assert!(numbered(&"init_plugin:n".parse().unwrap(), &both, Reach::Known, |_| false).is_err());
    }

    #[test]
    fn a_module_may_have_a_colon_in_its_name() {
        for module in ["memfd:jit", "a::b", "memfd:jit (deleted)", "lib=z.so"] {
            let f = [Declared { module: module.to_owned(), ..function("f", "p=arg0:pointer,n=arg1:long") }];
            let (specs, notes) = where_others_may_come("f:n", &f);
            let pattern = &specs[0].pattern;
            assert!(pattern.matches_module(module) && pattern.matches_symbol("f"), "{module}: {pattern}");
            assert!(!pattern.matches_module("libz.so.1") && notes.is_empty(), "{module}: {pattern}");
            assert_eq!(specs[0].to_string().parse::<InputsSpec>().as_ref(), Ok(&specs[0]), "{module}");
        }
        // Where no pattern says it, that is told.
        let odd = Declared { module: " z".to_owned(), ..function("f", "n=arg0:long") };
        let (specs, notes) = where_others_may_come("*:n", &[odd, function("g", "n=arg2:long")]);
        assert_eq!(specs[0].to_string(), "libz.so.1:=g:n=arg2");
        assert!(matches!(&notes[..], [note] if note.contains("no pattern can name f in  z")), "{notes:?}");
    }

    #[test]
    fn a_type_that_is_written_holds() {
        let mode = [function("f", "mode=arg0:category")];
        assert_eq!(of("f:mode", &mode).unwrap().0, ["f:mode=arg0:category"]);
        assert_eq!(of("f:mode=mode:long", &mode).unwrap().0, ["f:mode=arg0:long"]);
    }
}
