//! `--record PATTERN[:argK,argK,...]`: whose calls are recorded one by one, and which arguments must be true.

use super::operation::{FUNCTION_ARGUMENTS, argument_index};
use std::str::FromStr;

/// One `--record`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordSpec {
    /// Which functions.
    pub pattern: String,
    /// The argument registers that were asked for by number, as [`crate::inspect::Site::arguments`]; 0: none was.
    pub arguments: u8,
    /// It is recorded for models: where inputs are named, their registers are all that is wanted. Else what is named otherwise comes on top.
    pub for_models: bool,
}

impl FromStr for RecordSpec {
    type Err = String;

    /// `f:arg0,arg2`. What is no list of arguments belongs to the pattern: `libc.so.6:malloc`, `db::arg0`.
    fn from_str(text: &str) -> Result<Self, String> {
        let whole = || Self { pattern: text.to_owned(), arguments: 0, for_models: false };
        let Some((pattern, list)) = text.rsplit_once(':') else { return Ok(whole()) };
        if pattern.is_empty() || pattern.ends_with(':') || !list.starts_with("arg") {
            return Ok(whole());
        }
        let words: Vec<&str> = list.split(',').collect();
        let indices: Option<Vec<u32>> =
            words.iter().map(|word| argument_index(word, FUNCTION_ARGUMENTS)).collect();
        match indices {
            Some(indices) => Ok(Self {
                pattern: pattern.to_owned(),
                arguments: indices.into_iter().fold(0, |set, k| set | 1 << k),
                for_models: false,
            }),
            // `arg9`, or `arg0,x`; no signature that has a comma: `lib.so:argue(int, char)`.
            None if words.iter().any(|word| is_numbered(word)) => Err(format!(
                "'{list}': write PATTERN:argK, or PATTERN:argK,argK for several, with K from 0 to {}",
                FUNCTION_ARGUMENTS - 1
            )),
            None => Ok(whole()),
        }
    }
}

/// It is meant as an argument: nobody has functions of such a name.
fn is_numbered(word: &str) -> bool {
    let number = word.trim().strip_prefix("arg").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_stand_behind_the_last_colon() {
        let parse = |text: &str| text.parse::<RecordSpec>().map(|spec| (spec.pattern, spec.arguments));
        let is = |pattern: &str, arguments| Ok((pattern.to_owned(), arguments));
        assert_eq!(parse("malloc"), is("malloc", 0));
        assert_eq!(parse("malloc:arg0"), is("malloc", 1));
        assert_eq!(parse("libc.so.6:mem*:arg0,arg2"), is("libc.so.6:mem*", 0b101));
        assert_eq!(parse("f:arg5,arg5"), is("f", 1 << 5));
        // Patterns that hold colons, and functions with such a name.
        assert_eq!(parse("libc.so.6:malloc"), is("libc.so.6:malloc", 0));
        assert_eq!(parse("db::*"), is("db::*", 0));
        assert_eq!(parse("db::arg0"), is("db::arg0", 0));
        assert_eq!(parse("module:argument_of"), is("module:argument_of", 0));
        assert_eq!(parse(":arg0"), is(":arg0", 0));
        assert_eq!(parse("app:argue(int, char)"), is("app:argue(int, char)", 0));
        assert_eq!(parse("app:argue(int, char):arg1"), is("app:argue(int, char)", 2));
        assert_eq!(parse("app:/arg{1,2}/"), is("app:/arg{1,2}/", 0));
        for wrong in ["f:arg6", "f:arg99999999999", "f:arg0,rsi", "f:arg0,", "f:arg0, arg1"] {
            assert!(parse(wrong).unwrap_err().contains("K from 0 to 5"), "{wrong}");
        }
    }
}
