//! `--input PATTERN:NAME=argK,NAME=argK:TYPE,...`: what the inputs of a function are called, and how their registers are read. Instead of `argK` the name
//! of a word that was taken with its calls (`--word`) may stand, or that of a parameter, whose register debug information tells ([`super::parameters`]).
//! `PARAMETER` alone stands for `PARAMETER=PARAMETER`.

use super::operation::{FUNCTION_ARGUMENTS, argument_index};
use super::words::is_reserved;
use crate::inspect::{ALL_ARGUMENTS, ParameterKind, Pattern};
use profiler_core::models::{Input, Kind, Value};
use std::fmt;
use std::str::FromStr;

/// How a register is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputType {
    /// All 64 bits, signed: nobody wrote a type. Who writes `long` gets what is declared so.
    Long,
    /// The low 32 bits, signed.
    Int,
    /// All 64 bits, unsigned.
    Size,
    /// The low 32 bits as the name of one of several ways.
    Category,
    /// As a parameter of that type is declared, of those that have no word of their own here.
    Declared(ParameterKind),
}

/// `long` as somebody wrote it.
const LONG: InputType = InputType::Declared(ParameterKind::Signed(8));

/// Types that a command line may name.
const TYPES: [InputType; 11] = [
    LONG,
    InputType::Int,
    InputType::Size,
    InputType::Category,
    InputType::Declared(ParameterKind::Enumeration(2)),
    InputType::Declared(ParameterKind::Enumeration(1)),
    InputType::Declared(ParameterKind::Unsigned(4)),
    InputType::Declared(ParameterKind::Unsigned(2)),
    InputType::Declared(ParameterKind::Unsigned(1)),
    InputType::Declared(ParameterKind::Signed(2)),
    InputType::Declared(ParameterKind::Signed(1)),
];

impl From<ParameterKind> for InputType {
    fn from(kind: ParameterKind) -> Self {
        match kind {
            ParameterKind::Signed(8) => Self::Long,
            ParameterKind::Signed(4) => Self::Int,
            ParameterKind::Unsigned(8) => Self::Size,
            ParameterKind::Enumeration(4) => Self::Category,
            other => Self::Declared(other),
        }
    }
}

impl InputType {
    /// As it is written.
    fn name(self) -> &'static str {
        match self {
            Self::Long => "long",
            Self::Int => "int",
            Self::Size => "size",
            Self::Category => "category",
            Self::Declared(kind) => kind.name(),
        }
    }

    /// The value of a register.
    #[must_use]
    pub fn value(self, register: u64) -> Value {
        // OK because `int` means the low half.
        let low = register as u32;
        match self {
            Self::Long => Value::Signed(register.cast_signed()),
            Self::Int => Value::Signed(i64::from(low.cast_signed())),
            Self::Size => Value::Unsigned(register),
            Self::Category => Value::Category(u64::from(low)),
            Self::Declared(kind) => declared(kind, register),
        }
    }

    /// What models are told of such an input.
    fn kind(self) -> Kind {
        match self {
            Self::Category | Self::Declared(ParameterKind::Enumeration(_)) => Kind::Category,
            Self::Declared(ParameterKind::Pointer) => Kind::Pointer,
            Self::Declared(ParameterKind::Float) => Kind::Float,
            Self::Declared(ParameterKind::Structure) => Kind::Structure,
            Self::Long | Self::Int | Self::Size | Self::Declared(_) => Kind::Number,
        }
    }
}

/// The value of a register that holds such a parameter. A caller leaves anything in the bits above it.
fn declared(kind: ParameterKind, register: u64) -> Value {
    // OK because the low bits are meant.
    match kind {
        ParameterKind::Signed(1) => Value::Signed(i64::from((register as u8).cast_signed())),
        ParameterKind::Signed(2) => Value::Signed(i64::from((register as u16).cast_signed())),
        ParameterKind::Unsigned(1) => Value::Unsigned(u64::from(register as u8)),
        ParameterKind::Unsigned(2) => Value::Unsigned(u64::from(register as u16)),
        ParameterKind::Unsigned(4) => Value::Unsigned(u64::from(register as u32)),
        ParameterKind::Signed(8) => Value::Signed(register.cast_signed()),
        ParameterKind::Enumeration(1) => Value::Category(u64::from(register as u8)),
        ParameterKind::Enumeration(2) => Value::Category(u64::from(register as u16)),
        ParameterKind::Float | ParameterKind::Structure => Value::Missing,
        _ => Value::Unsigned(register),
    }
}

/// One input of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputSpec {
    /// Name in formulas.
    pub name: String,
    /// Argument register, from 0; of a word it means nothing, and from 6 on there is none (a floating-point number).
    pub argument: usize,
    /// Name of the word that is the input, or of a parameter whose register is not known yet; `None`: the register is.
    pub word: Option<String>,
    /// How it is read.
    pub kind: InputType,
}

impl InputSpec {
    /// The argument register that it is, as a bit; 0: it is a word.
    #[must_use]
    pub fn register(&self) -> u8 {
        let has_none = self.word.is_some() || self.argument >= 6;
        if has_none { 0 } else { ALL_ARGUMENTS & 1 << self.argument }
    }

    /// What models are told of it.
    #[must_use]
    pub fn input(&self) -> Input {
        Input { name: self.name.clone(), kind: self.kind.kind() }
    }
}

/// One `--input`: the inputs of the functions that a pattern names.
#[derive(Debug, Clone)]
pub struct InputsSpec {
    /// Which functions.
    pub pattern: Pattern,
    /// Their inputs.
    pub inputs: Vec<InputSpec>,
}

/// The same functions and inputs, as they are written.
impl PartialEq for InputsSpec {
    fn eq(&self, other: &Self) -> bool {
        (self.pattern.text(), &self.inputs) == (other.pattern.text(), &other.inputs)
    }
}

/// As it is written on a command line.
impl fmt::Display for InputsSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.pattern.text())?;
        for (i, input) in self.inputs.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}=", input.name)?;
            match &input.word {
                Some(word) => write!(f, "{word}")?,
                None => write!(f, "arg{}", input.argument)?,
            }
            if input.kind != InputType::Long {
                write!(f, ":{}", input.kind.name())?;
            }
        }
        Ok(())
    }
}

impl FromStr for InputsSpec {
    type Err = String;

    /// `compress2:n=arg3,level=arg4:category`, `libz*:compress2:n=arg3:size`, `compress2:sourceLen`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}': write PATTERN:NAME=argK[:TYPE],NAME=argK[:TYPE],... with K from 0 to {} and TYPE one of {}; instead of argK the name of a \
                 parameter (by debug information) or of a word of --word; a parameter's name may stand alone",
                FUNCTION_ARGUMENTS - 1,
                TYPES.map(|kind| if kind == LONG { "long (default)" } else { kind.name() }).join(", ")
            )
        };
        let (pattern, list) = split(text).ok_or_else(wrong)?;
        let mut inputs: Vec<InputSpec> = Vec::new();
        for one in list.split(',') {
            let input = input(one).ok_or_else(wrong)?;
            if inputs.iter().any(|other| other.name == input.name) {
                return Err(format!("'{text}': two inputs are called '{}'", input.name));
            }
            inputs.push(input);
        }
        let pattern = Pattern::parse(pattern).map_err(|error| error.to_string())?;
        Ok(Self { pattern, inputs })
    }
}

/// The pattern and the inputs: parted at the first colon behind which inputs can stand, since patterns may have colons.
fn split(text: &str) -> Option<(&str, &str)> {
    text.match_indices(':').find_map(|(at, _)| {
        let (pattern, list) = (&text[..at], &text[at + 1..]);
        let first = list.split(',').next().unwrap_or(list);
        let name = first.split_once('=').map_or(first, |(name, _)| name);
        let is_list = is_name_of_input(name.trim())
            && !list.split_once('=').is_some_and(|(_, rest)| rest.starts_with('='));
        (is_list && !pattern.is_empty() && !pattern.ends_with(':')).then_some((pattern, list))
    })
}

/// One input: `n=arg3:size`, `n=sourceLen`, `sourceLen`.
fn input(text: &str) -> Option<InputSpec> {
    let (name, register) = text.split_once('=').unwrap_or((text, text));
    let (register, kind) = match register.split_once(':') {
        Some((register, kind)) => (register.trim(), *TYPES.iter().find(|own| own.name() == kind.trim())?),
        None => (register.trim(), InputType::Long),
    };
    let name = name.trim();
    let is_number = register.starts_with(|c: char| c.is_ascii_digit());
    let is_word = is_name_of_input(register) && !is_number && !is_reserved(register);
    let word = is_word.then(|| register.to_owned());
    // OK because it is below 6.
    let argument = argument_index(register, FUNCTION_ARGUMENTS).map(|argument| argument as usize);
    let argument = argument.or(word.as_ref().map(|_| 0)).filter(|_| is_name_of_input(name))?;
    (text.contains('=') || word.is_some()).then(|| InputSpec { name: name.to_owned(), argument, word, kind })
}

/// A name: letters, digits, `_`; `data.len` is the length of a slice.
fn is_name_of_input(text: &str) -> bool {
    let is_word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_word(text) || text.split_once('.').is_some_and(|(data, part)| is_word(data) && is_word(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<(String, usize, InputType)>, String> {
        let spec: InputsSpec = text.parse()?;
        Ok(spec.inputs.into_iter().map(|i| (i.name, i.argument, i.kind)).collect())
    }

    #[test]
    fn inputs_stand_behind_the_pattern() {
        let expected =
            vec![("n".to_owned(), 3, InputType::Long), ("level".to_owned(), 4, InputType::Category)];
        assert_eq!(parse("compress2:n=arg3,level=arg4:category"), Ok(expected));
        assert_eq!(parse("libz*:compress2:n=arg3:size"), Ok(vec![("n".to_owned(), 3, InputType::Size)]));
        let spec: InputsSpec = "db::put:n=arg1:int".parse().unwrap();
        assert_eq!((spec.pattern.text(), spec.inputs[0].kind), ("db::put", InputType::Int));
    }

    #[test]
    fn inputs_are_written_as_they_are_read() {
        for text in [
            "compress2:n=arg3,level=arg4:category",
            "libz*:f:a=arg0:size,b=length:int",
            "db::put:n=arg1:u32",
            "libz.so.1:=f:n=arg1:long",
        ] {
            let spec: InputsSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
    }

    #[test]
    fn a_word_may_be_an_input() {
        let spec: InputsSpec = "db::put:n=length:size,k=arg1".parse().unwrap();
        let words: Vec<Option<&str>> = spec.inputs.iter().map(|input| input.word.as_deref()).collect();
        assert_eq!((words, spec.inputs[0].kind), (vec![Some("length"), None], InputType::Size));
    }

    #[test]
    fn a_parameter_may_be_an_input_by_its_name() {
        let of = |text: &str| {
            let spec: InputsSpec = text.parse().unwrap();
            let inputs =
                spec.inputs.iter().map(|i| (i.name.clone(), i.word.clone().unwrap_or_default(), i.kind));
            (spec.pattern.text().to_owned(), inputs.collect::<Vec<_>>())
        };
        let one = |pattern: &str, name: &str, word: &str, kind| {
            (pattern.to_owned(), vec![(name.to_owned(), word.to_owned(), kind)])
        };
        assert_eq!(of("compress2:sourceLen"), one("compress2", "sourceLen", "sourceLen", InputType::Long));
        assert_eq!(of("libz*:f:n=len:size"), one("libz*:f", "n", "len", InputType::Size));
        assert_eq!(of("db::put:n"), one("db::put", "n", "n", InputType::Long));
        assert_eq!(of("f:n=data.len"), one("f", "n", "data.len", InputType::Long));
        assert_eq!(of("f:n=arg1,m").1.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_said_with_the_form() {
        for wrong in [
            "f",
            "f:",
            "db::put",
            "f:n=3",
            "n=arg1",
            "f:n=arg6",
            "f:arg1",
            "f:n=arg1:float",
            "f:n=arg1:pointer",
            "f:=arg1",
            "f:a b=arg1",
            "f:a.b.c",
        ] {
            assert!(parse(wrong).unwrap_err().contains("PATTERN:NAME=argK"), "{wrong}: {:?}", parse(wrong));
        }
        assert!(parse("f:n=arg1,n=arg2").unwrap_err().contains("two inputs"));
    }

    #[test]
    fn registers_are_read_by_their_type() {
        let register = 0xdead_beef_ffff_fffe;
        assert_eq!(InputType::Int.value(register), Value::Signed(-2));
        assert_eq!(InputType::Category.value(register), Value::Category(0xffff_fffe));
        assert_eq!(InputType::Size.value(register), Value::Unsigned(register));
        assert_eq!(InputType::Long.value(5), Value::Signed(5));
        let of = |kind| InputType::from(kind).value(register);
        assert_eq!(of(ParameterKind::Signed(1)), Value::Signed(-2));
        assert_eq!(of(ParameterKind::Unsigned(2)), Value::Unsigned(0xfffe));
        let ways = [1, 2, 4].map(|bytes| of(ParameterKind::Enumeration(bytes)));
        assert_eq!(ways, [0xfe, 0xfffe, 0xffff_fffe].map(Value::Category), "Rust leaves anything above");
        assert_eq!(InputType::from(ParameterKind::Enumeration(1)).kind(), Kind::Category);
        assert_eq!(of(ParameterKind::Unsigned(4)), Value::Unsigned(0xffff_fffe));
        assert_eq!(
            (of(ParameterKind::Signed(4)), of(ParameterKind::Float)),
            (Value::Signed(-2), Value::Missing)
        );
    }
}
