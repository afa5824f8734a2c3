//! `--input PATTERN:NAME=argK,NAME=argK:TYPE,...`: what the inputs of a function are called, and how their registers are read. Instead of `argK` the name
//! of a word that was taken with its calls (`--word`) may stand.

use super::operation::{FUNCTION_ARGUMENTS, argument_index};
use super::words::{is_name, is_reserved, split};
use crate::inspect::Pattern;
use profiler_core::models::{Input, Value};
use std::fmt;
use std::str::FromStr;

/// How a register is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputType {
    /// All 64 bits, signed.
    Long,
    /// The low 32 bits, signed.
    Int,
    /// All 64 bits, unsigned.
    Size,
    /// The low 32 bits as the name of one of several ways.
    Category,
}

impl InputType {
    /// As it is written.
    fn name(self) -> &'static str {
        match self {
            Self::Long => "long",
            Self::Int => "int",
            Self::Size => "size",
            Self::Category => "category",
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
        }
    }
}

/// One input of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputSpec {
    /// Name in formulas.
    pub name: String,
    /// Argument register, from 0; of a word it means nothing.
    pub argument: usize,
    /// Name of the word that is the input; `None`: the register is.
    pub word: Option<String>,
    /// How it is read.
    pub kind: InputType,
}

impl InputSpec {
    /// The argument register that it is, as a bit; 0: it is a word.
    #[must_use]
    pub fn register(&self) -> u8 {
        // OK because the number of a register is below 6.
        if self.word.is_some() { 0 } else { 1 << self.argument }
    }

    /// What models are told of it.
    #[must_use]
    pub fn input(&self) -> Input {
        match self.kind {
            InputType::Category => Input::category(&self.name),
            InputType::Long | InputType::Int | InputType::Size => Input::number(&self.name),
        }
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

    /// `compress2:n=arg3,level=arg4:category`, `libz*:compress2:n=arg3:size`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}': write PATTERN:NAME=argK[:TYPE],NAME=argK[:TYPE],... with K from 0 to {} and TYPE one of long (default), int, size, \
                 category; instead of argK the name of a word of --word",
                FUNCTION_ARGUMENTS - 1
            )
        };
        let (pattern, list) = split(text).filter(|(pattern, _)| !pattern.is_empty()).ok_or_else(wrong)?;
        let mut inputs: Vec<InputSpec> = Vec::new();
        for one in list.split(',') {
            let (name, register) = one.split_once('=').ok_or_else(wrong)?;
            let (register, kind) = register.split_once(':').unwrap_or((register, "long"));
            let name = name.trim();
            let is_word = name.chars().all(|c| c.is_alphanumeric() || c == '_') && !name.is_empty();
            let kind = match kind.trim() {
                "long" => InputType::Long,
                "int" => InputType::Int,
                "size" => InputType::Size,
                "category" => InputType::Category,
                _ => return Err(wrong()),
            };
            let register = register.trim();
            let word = (is_name(register) && !is_reserved(register)).then(|| register.to_owned());
            let argument = argument_index(register, FUNCTION_ARGUMENTS)
                .or(word.as_ref().map(|_| 0))
                .filter(|_| is_word)
                .ok_or_else(wrong)?;
            if inputs.iter().any(|other| other.name == name) {
                return Err(format!("'{text}': two inputs are called '{name}'"));
            }
            // OK because it is below 6.
            inputs.push(InputSpec { name: name.to_owned(), argument: argument as usize, word, kind });
        }
        let pattern = Pattern::parse(pattern).map_err(|error| error.to_string())?;
        Ok(Self { pattern, inputs })
    }
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
        for text in
            ["compress2:n=arg3,level=arg4:category", "libz*:f:a=arg0:size,b=length:int", "db::put:n=arg1"]
        {
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
    fn what_is_wrong_is_said_with_the_form() {
        for wrong in [
            "f",
            "f:n",
            "f:n=3",
            "n=arg1",
            "f:n=arg6",
            "f:n=arg1:float",
            "f:=arg1",
            "f:a b=arg1",
            "f:n=arg1,m",
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
    }
}
