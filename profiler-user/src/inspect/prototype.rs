//! The parameters of a function as its declaration tells, and the registers in which they are passed.
//!
//! As a text it is the column `prototype` of table `classes`: `dest=arg0:pointer,n=arg1:size,x=-:float,...`. Each parameter has its name (nothing: it has
//! none), where it is passed (`arg0` to `arg5`; `-`: in none of these registers) and its type. `...` at the end: there are variable arguments.
//! `arg2?` at the end: of that register and of those behind it nothing is known. No I/O here.

use super::arguments::ALL_ARGUMENTS;
use std::fmt;
use std::str::FromStr;

/// What a parameter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// A signed integer of so many bytes: 1, 2, 4 or 8.
    Signed(u8),
    /// An unsigned one, a character or a truth value.
    Unsigned(u8),
    /// An enumeration of so many bytes, 1, 2 or 4: the name of one of several ways.
    Enumeration(u8),
    /// An address.
    Pointer,
    /// A floating-point number.
    Float,
    /// A structure that is passed by value.
    Structure,
}

/// Types as they are written.
const KINDS: [(ParameterKind, &str); 14] = [
    (ParameterKind::Signed(1), "i8"),
    (ParameterKind::Signed(2), "i16"),
    (ParameterKind::Signed(4), "int"),
    (ParameterKind::Signed(8), "long"),
    (ParameterKind::Unsigned(1), "u8"),
    (ParameterKind::Unsigned(2), "u16"),
    (ParameterKind::Unsigned(4), "u32"),
    (ParameterKind::Unsigned(8), "size"),
    (ParameterKind::Enumeration(1), "category8"),
    (ParameterKind::Enumeration(2), "category16"),
    (ParameterKind::Enumeration(4), "category"),
    (ParameterKind::Pointer, "pointer"),
    (ParameterKind::Float, "float"),
    (ParameterKind::Structure, "structure"),
];

impl ParameterKind {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or("long", |(_, name)| name)
    }
}

/// One parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name; of a Rust slice `data.ptr` and `data.len`. Empty: it has none.
    pub name: String,
    /// What it is.
    pub kind: ParameterKind,
    /// The argument register that holds it, from 0; `None`: none does, or that is not known.
    pub register: Option<u8>,
}

/// The parameters of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prototype {
    /// In their order.
    pub parameters: Vec<Parameter>,
    /// There are variable arguments behind them.
    pub is_variadic: bool,
    /// The first register of which nothing is known; `None`: all parameters are known.
    pub unknown_from: Option<u8>,
}

impl Prototype {
    /// The parameter of that name.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name && !name.is_empty())
    }

    /// Registers of which nothing is known, as [`super::Site::arguments`].
    #[must_use]
    pub fn unknown(&self) -> u8 {
        self.unknown_from.map_or(0, |from| ALL_ARGUMENTS & !((1_u8 << from.min(6)) - 1))
    }

    /// Registers that hold a number or the name of a way, or may.
    #[must_use]
    pub fn numbers(&self) -> u8 {
        let numbers = self.parameters.iter().filter(|parameter| parameter.kind != ParameterKind::Pointer);
        let known = numbers.filter_map(|parameter| parameter.register);
        known.fold(self.unknown(), |set, register| set | 1 << register.min(5))
    }

    /// Its parameters, for people: `dest, n (arg1), x (a floating-point number)`.
    #[must_use]
    pub fn list(&self) -> String {
        let one = |parameter: &Parameter| match (parameter.kind, parameter.register) {
            (_, Some(register)) => format!("{} (arg{register}, {})", parameter.name, parameter.kind.name()),
            (ParameterKind::Float, None) => format!("{} (floating-point: not recorded)", parameter.name),
            (ParameterKind::Structure, None) => format!("{} (a structure: not recorded)", parameter.name),
            (_, None) => format!("{} (not in a register that is known)", parameter.name),
        };
        let named = self.parameters.iter().filter(|parameter| !parameter.name.is_empty());
        let all: Vec<String> = named.map(one).collect();
        if all.is_empty() { "none with a name".to_owned() } else { all.join(", ") }
    }
}

impl fmt::Display for Prototype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for Parameter { name, kind, register } in &self.parameters {
            let place = register.map_or_else(|| "-".to_owned(), |register| format!("arg{register}"));
            write!(f, "{comma}{name}={place}:{}", kind.name())?;
            comma = ",";
        }
        if let Some(from) = self.unknown_from {
            write!(f, "{comma}arg{from}?")?;
            comma = ",";
        }
        if self.is_variadic { write!(f, "{comma}...") } else { Ok(()) }
    }
}

impl FromStr for Prototype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut prototype = Self::default();
        let wrong = |item: &str| format!("'{item}' in '{text}' is no parameter");
        let register = |place: &str| {
            let number = place.strip_prefix("arg")?.parse::<u8>().ok()?;
            (number < 6).then_some(number)
        };
        for item in text.split(',').filter(|item| !item.is_empty()) {
            if item == "..." {
                prototype.is_variadic = true;
            } else if let Some(from) = item.strip_suffix('?') {
                prototype.unknown_from = Some(register(from).ok_or_else(|| wrong(item))?);
            } else {
                let (name, rest) = item.split_once('=').ok_or_else(|| wrong(item))?;
                let (place, kind) = rest.split_once(':').ok_or_else(|| wrong(item))?;
                let (kind, _) = KINDS.iter().find(|(_, name)| *name == kind).ok_or_else(|| wrong(item))?;
                let register =
                    if place == "-" { None } else { Some(register(place).ok_or_else(|| wrong(item))?) };
                prototype.parameters.push(Parameter { name: name.to_owned(), kind: *kind, register });
            }
        }
        Ok(prototype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prototype_is_read_as_it_is_written() {
        for text in [
            "dest=arg0:pointer,destLen=arg1:pointer,source=arg2:pointer,sourceLen=arg3:size,level=arg4:int",
            "x=-:float,n=arg0:u32,...",
            "s=-:structure,arg2?",
            "=arg0:long,mode=arg1:category",
            "data.ptr=arg0:pointer,data.len=arg1:size",
            "",
        ] {
            assert_eq!(text.parse::<Prototype>().unwrap().to_string(), text);
        }
        for wrong in ["n", "n=arg6:long", "n=arg0", "n=arg0:word", "arg7?", "n=:long"] {
            assert!(wrong.parse::<Prototype>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn registers_of_which_nothing_is_known_may_hold_parameters() {
        let of = |text: &str| text.parse::<Prototype>().unwrap();
        assert_eq!(
            (of("p=arg0:pointer,a=arg1:long,x=-:float").numbers(), of("a=arg0:long").unknown()),
            (2, 0)
        );
        let cut = of("a=arg0:long,s=-:structure,arg1?");
        assert_eq!((cut.numbers(), cut.unknown()), (0b11_1111, 0b11_1110));
        assert_eq!(cut.parameter("a").unwrap().register, Some(0));
        assert_eq!((cut.parameter("b"), of("=arg0:long").parameter("")), (None, None));
    }
}
