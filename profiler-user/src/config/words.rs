//! `--word 'WHERE[@end]:NAME=EXPRESSION[:TYPE],...'`: words of the target's memory that are taken with recorded calls and operations.
//!
//! ```text
//! WHERE       a function that --record names, or the name of an operation; @end: at its end instead of its begin
//! EXPRESSION  BASE[+N|-N|->N ...]  or  strlen(BASE...)
//! BASE        argK (0 to 5) | result (at the end of a function with a return link) | 0xADDRESS | &VARIABLE
//!             | NAME of a word of 8 bytes that this thread took before, at whatever place: an object
//! ->N         what lies N bytes behind that address; at most four
//! TYPE        u8 u16 u32 u64 i8 i16 i32 i64 int long ptr; without one: long
//! ```

use super::operation::{FUNCTION_ARGUMENTS, argument_index};
use std::fmt;
use std::str::FromStr;

/// Dereferences of a word, at most.
pub const MOST_DEREFERENCES: usize = crate::prober::word::MAX_DEREFERENCES;

/// Where the chain of a word begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WordBase {
    /// An argument register, from 0.
    Argument(u8),
    /// The result of the function.
    Result,
    /// An address.
    Address(u64),
    /// The address of a global variable.
    Variable(String),
    /// A word that the thread took before.
    Object(String),
}

/// What a word is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordKind {
    /// An integer.
    Integer {
        /// Width, bytes: 1, 2, 4 or 8.
        bytes: u8,
        /// It has a sign.
        signed: bool,
        /// It is shown as an address.
        pointer: bool,
    },
    /// The length of a string.
    Length,
}

/// What stands behind `NAME=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordExpression {
    /// Where it begins.
    pub base: WordBase,
    /// Offsets of the dereferences, bytes.
    pub dereferences: Vec<i32>,
    /// Added to what the last one gives, bytes: where a string begins.
    pub behind: i32,
    /// What is read.
    pub kind: WordKind,
}

/// A word with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedWord {
    /// Name.
    pub name: String,
    /// How it is found.
    pub expression: WordExpression,
}

/// One `--word`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordsSpec {
    /// As it was typed.
    pub text: String,
    /// A pattern of functions, or the name of an operation.
    pub place: String,
    /// Taken at the end; else at the begin.
    pub at_end: bool,
    /// The words, in the order in which they are read.
    pub words: Vec<NamedWord>,
}

/// Names of types, with width and sign.
const TYPES: [(&str, u8, bool, bool); 11] = [
    ("long", 8, true, false),
    ("int", 4, true, false),
    ("ptr", 8, false, true),
    ("u8", 1, false, false),
    ("u16", 2, false, false),
    ("u32", 4, false, false),
    ("u64", 8, false, false),
    ("i8", 1, true, false),
    ("i16", 2, true, false),
    ("i32", 4, true, false),
    ("i64", 8, true, false),
];

impl WordKind {
    /// A type by its name.
    #[must_use]
    pub fn of_type(name: &str) -> Option<Self> {
        let (_, bytes, signed, pointer) = TYPES.iter().find(|(known, ..)| *known == name)?;
        Some(Self::Integer { bytes: *bytes, signed: *signed, pointer: *pointer })
    }

    /// Its type: a name that [`WordKind::of_type`] knows, or `strlen`.
    #[must_use]
    pub fn type_name(self) -> &'static str {
        match self {
            Self::Length => "strlen",
            Self::Integer { bytes, signed, pointer } => TYPES
                .iter()
                .find(|(_, b, s, p)| (*b, *s, *p) == (bytes, signed, pointer))
                .map_or("long", |(name, ..)| name),
        }
    }
}

const EXAMPLE: &str = "like 'parse:length=strlen(arg0),kind=arg1->16:u8'";

/// Letters, digits and `_`, no digit first.
pub(super) fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl FromStr for WordsSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, list) = split(text).ok_or_else(|| {
            format!("'{text}': write WHERE:NAME=EXPRESSION[:TYPE],..., {EXAMPLE}; WHERE is a function of --record or the name of an operation")
        })?;
        let (place, at_end) = match place.rsplit_once('@') {
            Some((place, "end")) => (place, true),
            Some((place, "begin")) => (place, false),
            _ => (place, false),
        };
        if place.is_empty() {
            return Err(format!(
                "'{text}': nothing stands before the colon; name a function of --record or an operation, {EXAMPLE}"
            ));
        }
        let mut words: Vec<NamedWord> = Vec::new();
        for item in list.split(',') {
            let word = item.parse::<NamedWord>().map_err(|why| format!("'{}': {why}", item.trim()))?;
            if words.iter().any(|other| other.name == word.name) {
                return Err(format!("'{text}': two words are called '{}'", word.name));
            }
            if !at_end && word.expression.base == WordBase::Result {
                return Err(format!(
                    "'{}': the result is known at the end alone: write '{place}@end:{}'",
                    word.name,
                    item.trim()
                ));
            }
            words.push(word);
        }
        Ok(Self { text: text.to_owned(), place: place.to_owned(), at_end, words })
    }
}

/// Where, and the list: that begins behind the first colon that a name and '=' follow. Names of C++ hold `::` and `operator==`.
pub(super) fn split(text: &str) -> Option<(&str, &str)> {
    text.match_indices(':').find_map(|(at, _)| {
        let (place, list) = (&text[..at], &text[at + 1..]);
        let (name, rest) = list.split_once('=')?;
        (is_name(name.trim()) && !place.ends_with(':') && !rest.starts_with('=')).then_some((place, list))
    })
}

impl FromStr for NamedWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, expression) =
            text.split_once('=').ok_or_else(|| format!("write NAME=EXPRESSION, {EXAMPLE}"))?;
        let name = name.trim();
        if !is_name(name) {
            return Err(format!("'{name}' is no name of a word: letters, digits and '_', {EXAMPLE}"));
        }
        if is_reserved(name) {
            return Err(format!(
                "a word cannot be called '{name}', which means something else in expressions"
            ));
        }
        Ok(Self { name: name.to_owned(), expression: expression.trim().parse()? })
    }
}

/// It would not be an object where it stands as a base.
pub(super) fn is_reserved(name: &str) -> bool {
    name == "result" || name == "strlen" || argument_index(name, u32::MAX).is_some()
}

impl FromStr for WordExpression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("strlen(") {
            let Some((inside, behind)) = rest.rsplit_once(')') else {
                return Err("'strlen(' has no ')': write strlen(arg0), or strlen(arg0->8)".to_owned());
            };
            if !behind.trim().is_empty() {
                return Err(format!(
                    "'{behind}' stands behind strlen(...), which has no type: it is a number of bytes"
                ));
            }
            let (base, dereferences, behind) = chain(inside.trim())?;
            return Ok(Self { base, dereferences, behind, kind: WordKind::Length });
        }
        let (path, kind) = match text.rsplit_once(':') {
            // Names of variables may hold colons.
            Some((path, name)) if !path.ends_with(':') => {
                let kind = WordKind::of_type(name.trim()).ok_or_else(|| wrong_type(name.trim()))?;
                (path, kind)
            }
            _ => (text, WordKind::Integer { bytes: 8, signed: true, pointer: false }),
        };
        let (base, dereferences, behind) = chain(path.trim())?;
        if behind != 0 {
            return Err(format!(
                "nothing is read {behind:+} bytes behind it: write '->{behind}' for what lies there, or strlen(...) for the string there"
            ));
        }
        if dereferences.is_empty()
            && let WordBase::Address(_) | WordBase::Variable(_) = base
        {
            return Err(format!(
                "'{}' is an address, and always the same: write '{}->0' for what lies there",
                path.trim(),
                path.trim()
            ));
        }
        Ok(Self { base, dereferences, behind, kind })
    }
}

fn wrong_type(name: &str) -> String {
    let known: Vec<&str> = TYPES.iter().map(|(name, ..)| *name).collect();
    let hint = if matches!(name, "str" | "string" | "char") {
        "; of a string only the length is taken: write strlen(arg0)"
    } else {
        ""
    };
    format!("there is no type '{name}'; write one of {}{hint}", known.join(", "))
}

/// Base, offsets of the dereferences, and what is added to the last.
fn chain(text: &str) -> Result<(WordBase, Vec<i32>, i32), String> {
    let end = text.find(['+', '-']).unwrap_or(text.len());
    let (base, mut rest) = text.split_at(end);
    let base = base_of(base.trim())?;
    // Offsets that have been added since the last dereference.
    let (mut dereferences, mut behind) = (Vec::new(), 0_i64);
    while !rest.is_empty() {
        let is_dereference = rest.starts_with("->");
        let signs = if is_dereference { 2 } else { 1 };
        let (operator, after) = rest.split_at(signs);
        let after = after.trim_start();
        let (negative, digits) = match after.strip_prefix('-') {
            Some(digits) if is_dereference => (true, digits),
            _ => (operator == "-", after),
        };
        let end = digits.find(['+', '-']).unwrap_or(digits.len());
        let (number, more) = digits.split_at(end);
        let number = number.trim();
        let value = number_of(number).ok_or_else(|| {
            format!("'{number}' behind '{operator}' is no number of bytes: write 8 or 0x10, {EXAMPLE}")
        })?;
        behind += if negative { -value } else { value };
        if i32::try_from(behind).is_err() {
            return Err(format!("the offset {behind} is too far: offsets lie within 2 GiB"));
        }
        if is_dereference {
            if dereferences.len() == MOST_DEREFERENCES {
                return Err(format!(
                    "it has more than {MOST_DEREFERENCES} dereferences; name a word on the way, and go on from it: 'node=arg0->8->8->8->8,value=node->16'"
                ));
            }
            // OK because it was looked at just now.
            dereferences.push(i32::try_from(behind).unwrap_or(0));
            behind = 0;
        }
        rest = more;
    }
    Ok((base, dereferences, i32::try_from(behind).unwrap_or(0)))
}

/// `8`, `0x10`; below 2^32, so that sums cannot overflow.
fn number_of(text: &str) -> Option<i64> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?,
        None => text.parse::<u32>().ok().filter(|_| !text.starts_with('+'))?,
    };
    Some(i64::from(value))
}

fn base_of(text: &str) -> Result<WordBase, String> {
    if let Some(digits) = text.strip_prefix("0x") {
        let address = u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
        return address
            .map(WordBase::Address)
            .ok_or_else(|| format!("'{text}' is no address: write 0x and up to 16 hexadecimal digits"));
    }
    if let Some(name) = text.strip_prefix('&') {
        if name.is_empty() {
            return Err(
                "'&' without a name: write '&VARIABLE->0' for what lies in a global variable".to_owned()
            );
        }
        return Ok(WordBase::Variable(name.to_owned()));
    }
    if text == "result" {
        return Ok(WordBase::Result);
    }
    if argument_index(text, u32::MAX).is_some() {
        return argument_index(text, FUNCTION_ARGUMENTS)
            // OK because it is below 6.
            .map(|k| WordBase::Argument(k as u8))
            .ok_or_else(|| {
                format!("'{text}': arguments in registers are arg0 to arg{}", FUNCTION_ARGUMENTS - 1)
            });
    }
    if is_name(text) {
        return Ok(WordBase::Object(text.to_owned()));
    }
    Err(format!(
        "'{text}' is nothing that a word begins with: write argK, result, 0xADDRESS, &VARIABLE or the name of another word, {EXAMPLE}"
    ))
}

impl fmt::Display for WordExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == WordKind::Length {
            f.write_str("strlen(")?;
        }
        match &self.base {
            WordBase::Argument(k) => write!(f, "arg{k}")?,
            WordBase::Result => f.write_str("result")?,
            WordBase::Address(address) => write!(f, "{address:#x}")?,
            WordBase::Variable(name) => write!(f, "&{name}")?,
            WordBase::Object(name) => f.write_str(name)?,
        }
        for offset in &self.dereferences {
            write!(f, "->{offset}")?;
        }
        if self.behind != 0 {
            write!(f, "{:+}", self.behind)?;
        }
        match self.kind {
            WordKind::Length => f.write_str(")"),
            kind => write!(f, ":{}", kind.type_name()),
        }
    }
}

#[cfg(test)]
mod tests;
