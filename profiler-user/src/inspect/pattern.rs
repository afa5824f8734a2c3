//! Patterns by which people name functions.
//!
//! | text | matches |
//! |---|---|
//! | `sqlite3_*`, `main` | symbols; `*` any text, `?` one character |
//! | `mycrate::db::*`, `foo::bar(int)` | demangled names; C++ also without parameters |
//! | `/re.*x/` | a regular expression, anywhere in the symbol or the demangled name |
//! | `=foo`, `libc.so.6:=foo` | the symbol itself, and no clone of it; in modules of that very name |
//! | `libc.so.6:malloc`, `libfoo*:init_*`, `app:/re/` | the same, in modules whose file name matches |
//!
//! Compiler clones (`foo.constprop.0`, `foo.part.0`) match the pattern of their stem, unless the symbol itself is asked for. No I/O here.

use super::{Function, names};
use regex::Regex;
use std::fmt;

/// A pattern, parsed.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    module: Option<Regex>,
    name: Regex,
    /// The longest part without wildcards: what a similar name should contain.
    literal: String,
    /// Identifiers that must stand in the mangled name as they are; a cheap test before demangling.
    demangled: bool,
    is_regex: bool,
    /// The symbol as it is.
    is_symbol: bool,
}

/// A pattern that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Nothing given.
    #[error(
        "the pattern is empty; name a function (`sqlite3_step`), a glob (`db_*`), or a regular expression (`/^db_/`)"
    )]
    Empty,
    /// A module without a function.
    #[error("pattern `{0}` names a module but no function; to mean all of them write `{0}*`")]
    NoFunction(String),
    /// A function without a module.
    #[error("pattern `{0}` has nothing before the colon; write `libc.so.6:malloc`, or leave the colon out")]
    NoModule(String),
    /// A regular expression that does not end.
    #[error("pattern `{0}` starts with `/` but has no closing `/`; write `/expression/`")]
    Unterminated(String),
    /// A regular expression that does not parse.
    #[error("pattern `{pattern}` is no valid regular expression: {why}")]
    Regex {
        /// The pattern.
        pattern: String,
        /// What the parser said.
        why: String,
    },
    /// White space around it.
    #[error("pattern `{0}` contains a line break or control character")]
    Control(String),
}

impl Pattern {
    /// Parses the text of a pattern.
    ///
    /// # Errors
    /// See [`PatternError`].
    ///
    /// ```
    /// use profiler_user::inspect::Pattern;
    /// let pattern = Pattern::parse("libc.so.6:mall?c").unwrap();
    /// assert!(pattern.matches_module("libc.so.6") && !pattern.matches_module("app"));
    /// assert!(pattern.matches_symbol("malloc"));
    /// assert!(Pattern::parse("db::*").unwrap().matches_symbol("_ZN2db5fetch17h0123456789abcdefE"));
    /// assert!(Pattern::parse("/(/").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(PatternError::Empty);
        }
        if trimmed.chars().any(char::is_control) {
            return Err(PatternError::Control(trimmed.escape_debug().to_string()));
        }
        let (module, function) = split_module(trimmed);
        if function.is_empty() {
            return Err(PatternError::NoFunction(trimmed.to_owned()));
        }
        let module = match module {
            Some("") => return Err(PatternError::NoModule(trimmed.to_owned())),
            Some(glob) if function.starts_with('=') => {
                Some(regex(trimmed, &format!("^(?:{})$", glob_body(glob)))?)
            }
            // `libc` stands for `libc.so.6`, `libfoo-1.2.so` as well.
            Some(glob) => Some(regex(
                trimmed,
                &format!("^(?:{}(?:[-.][0-9.]*)?(?:\\.so(?:\\..*)?)?)$", glob_body(glob)),
            )?),
            None => None,
        };
        let is_regex = function.starts_with('/');
        let symbol = function.strip_prefix('=');
        let (name, literal) = if let Some(symbol) = symbol {
            if symbol.is_empty() {
                return Err(PatternError::NoFunction(trimmed.to_owned()));
            }
            (regex(trimmed, &format!("^(?:{})$", regex::escape(symbol)))?, symbol.to_owned())
        } else if is_regex {
            let body = function[1..]
                .strip_suffix('/')
                .ok_or_else(|| PatternError::Unterminated(trimmed.to_owned()))?;
            if body.is_empty() {
                return Err(PatternError::Empty);
            }
            (regex(trimmed, body)?, longest_word(body))
        } else {
            (regex(trimmed, &format!("^(?s:{})$", glob_body(function)))?, longest_word(function))
        };
        let is_symbol = symbol.is_some();
        let demangled =
            is_regex || function.contains("::") || function.contains(['(', '<', '{', ' ', '&', '~']);
        Ok(Self { text: trimmed.to_owned(), module, name, literal, demangled, is_regex, is_symbol })
    }

    /// The pattern as written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it names exactly one function by its symbol (no wildcards).
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.is_symbol || !self.is_regex && !self.text.contains(['*', '?'])
    }

    /// The longest part without wildcards.
    #[must_use]
    pub(crate) fn literal(&self) -> &str {
        &self.literal
    }

    /// Whether functions of this module (by file name) are meant.
    #[must_use]
    pub fn matches_module(&self, file_name: &str) -> bool {
        self.module.as_ref().is_none_or(|m| m.is_match(file_name))
    }

    /// Whether the pattern is restricted to some modules.
    #[must_use]
    pub fn names_module(&self) -> bool {
        self.module.is_some()
    }

    /// Whether that function is meant, by any of its names.
    #[must_use]
    pub fn names(&self, function: &Function) -> bool {
        self.matches_module(&function.module_name)
            && (self.matches_symbol(&function.symbol)
                || function.aliases.iter().any(|alias| self.matches_symbol(alias)))
    }

    /// Whether a symbol is meant: as it is; and unless the pattern asks for that, without a compiler's clone suffix or symbol version, or demangled.
    #[must_use]
    pub fn matches_symbol(&self, symbol: &str) -> bool {
        if self.name.is_match(symbol) {
            return true;
        }
        if self.is_symbol {
            return false;
        }
        let plain = symbol.split('@').next().unwrap_or(symbol);
        let (stem, suffix) = names::split_clone_suffix(plain);
        let cloned = !suffix.is_empty() && names::clone_kind(plain) != names::Clone::Whole;
        if plain.len() != symbol.len() && self.name.is_match(plain) || cloned && self.name.is_match(stem) {
            return true;
        }
        if !self.demangled || !(symbol.starts_with("_Z") || symbol.starts_with("_R")) {
            return false;
        }
        // Identifiers stand in mangled names as they are, except those that the C++ ABI abbreviates.
        if !self.is_regex && !ABBREVIATED.contains(&self.literal.as_str()) && !symbol.contains(&self.literal)
        {
            return false;
        }
        let target = if cloned { stem } else { plain };
        self.name.is_match(&names::demangle(target))
            || names::without_parameters(target).is_some_and(|n| self.name.is_match(&n))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Words of C++ names that have short forms (Itanium C++ ABI, 5.1.10) or codes (operators, types).
const ABBREVIATED: [&str; 24] = [
    "std",
    "allocator",
    "basic_string",
    "string",
    "basic_istream",
    "istream",
    "basic_ostream",
    "ostream",
    "basic_iostream",
    "iostream",
    "char",
    "char_traits",
    "const",
    "int",
    "long",
    "unsigned",
    "short",
    "bool",
    "float",
    "double",
    "void",
    "operator",
    "anonymous",
    "namespace",
];

fn regex(pattern: &str, body: &str) -> Result<Regex, PatternError> {
    Regex::new(body).map_err(|e| PatternError::Regex {
        pattern: pattern.to_owned(),
        // The last line names the cause; those before draw a picture.
        why: e.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    })
}

/// Splits at the first single colon that is not inside `/…/`.
fn split_module(text: &str) -> (Option<&str>, &str) {
    if text.starts_with('/') {
        return (None, text);
    }
    let bytes = text.as_bytes();
    let single =
        |&i: &usize| bytes[i] == b':' && bytes.get(i + 1) != Some(&b':') && (i == 0 || bytes[i - 1] != b':');
    match (0..bytes.len()).find(single) {
        Some(i) => (Some(&text[..i]), &text[i + 1..]),
        None => (None, text),
    }
}

/// A glob as a regular expression: `*` and `?` are wild, everything else stands for itself.
fn glob_body(glob: &str) -> String {
    let mut body = String::new();
    let mut buffer = [0; 4];
    for c in glob.chars() {
        match c {
            '*' => body.push_str(".*"),
            '?' => body.push('.'),
            c => body.push_str(&regex::escape(c.encode_utf8(&mut buffer))),
        }
    }
    body
}

fn longest_word(pattern: &str) -> String {
    pattern
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .max_by_key(|word| word.len())
        .unwrap_or_default()
        .to_owned()
}

/// Edit distance (Levenshtein), at most `limit`; `None` beyond.
#[must_use]
pub(super) fn distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let change = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().filter(|&d| d <= limit)
}

/// How unlike a name is to the literal part of a pattern that named nothing: 0 to 3 for a typing error, more for a name that holds the
/// word; none where they have nothing in common.
#[must_use]
pub(super) fn unlikeness(literal: &str, name: &str) -> Option<usize> {
    if literal.len() < 3 {
        return None;
    }
    let limit = (literal.len() / 3).clamp(1, 3);
    let holds = || name.len() < 80 && name.to_ascii_lowercase().contains(&literal.to_ascii_lowercase());
    distance(literal, name, limit).or_else(|| holds().then(|| 4 + name.len().abs_diff(literal.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn matches(pattern: &str, symbol: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches_symbol(symbol)
    }

    #[test]
    fn symbols_clones_versions_and_demangled_names() {
        assert!(matches("sqlite3_*", "sqlite3_step") && !matches("sqlite3_*", "xsqlite3_step"));
        assert!(
            matches("foo", "foo.constprop.0") && matches("foo", "foo.part.0") && !matches("foo", "foo.x")
        );
        assert!(matches("memcpy", "memcpy@@GLIBC_2.14"));
        assert!(matches("=foo", "foo") && !matches("=foo", "foo.constprop.0") && !matches("=foo", "xfoo"));
        assert!(matches("=f*o", "f*o") && !matches("=f*o", "foo") && matches("=a.isra.0", "a.isra.0"));
        assert!(!matches("=ns::f", "_ZN2ns1fEv") && matches("=_ZN2ns1fEv", "_ZN2ns1fEv"));
        assert!(matches("/step$/", "sqlite3_step") && !matches("/^step/", "sqlite3_step"));
        assert!(matches("mycrate::db::*", "_ZN7mycrate2db5fetch17h0123456789abcdefE"));
        assert!(matches("mycrate::db::*", "_RNvNtCs1234_7mycrate2db5fetch"));
        assert!(matches("foo::bar", "_ZN3foo3barEiPKc") && matches("foo::bar(int, *)", "_ZN3foo3barEiPKc"));
        assert!(!matches("foo::bar()", "_ZN3foo3barEiPKc"));
        assert!(matches("std::*", "_ZSt4swapIiEvRT_S1_"));
        // Brackets and braces stand for themselves.
        assert!(!matches("a[bc]", "ab") && !matches("{a,b}", "a"));
    }

    #[test]
    fn modules() {
        let p = Pattern::parse("libc:malloc").unwrap();
        assert!(
            p.matches_module("libc.so.6")
                && p.matches_module("libc-2.31.so")
                && !p.matches_module("libcrypt.so.1")
        );
        let p = Pattern::parse("lib*.so*:/^x/").unwrap();
        assert!(p.matches_module("libfoo.so.1") && !p.matches_module("app") && p.matches_symbol("xy"));
        let p = Pattern::parse("app:ns::f").unwrap();
        assert!(p.matches_module("app") && p.matches_symbol("_ZN2ns1fEv"));
        assert!(!Pattern::parse("ns::f").unwrap().names_module());
        // With a symbol a module has that very name.
        let p = Pattern::parse("app:=f").unwrap();
        assert!(p.matches_module("app") && !p.matches_module("app.so") && p.is_exact());
        let p = Pattern::parse("libz.so.*:=f").unwrap();
        assert!(p.matches_module("libz.so.1.2.13") && !p.matches_module("libz.so"));
        assert!(Pattern::parse("app:=").is_err() && Pattern::parse("=").is_err());
    }

    #[test]
    fn errors_say_what_to_write() {
        let text: Vec<String> = ["", " ", "libc:", ":malloc", "/open", "/(/", "//", "a\u{7}b"]
            .iter()
            .map(|p| format!("{p:?}: {}", Pattern::parse(p).unwrap_err()))
            .collect();
        expect![[r#"
            "": the pattern is empty; name a function (`sqlite3_step`), a glob (`db_*`), or a regular expression (`/^db_/`)
            " ": the pattern is empty; name a function (`sqlite3_step`), a glob (`db_*`), or a regular expression (`/^db_/`)
            "libc:": pattern `libc:` names a module but no function; to mean all of them write `libc:*`
            ":malloc": pattern `:malloc` has nothing before the colon; write `libc.so.6:malloc`, or leave the colon out
            "/open": pattern `/open` starts with `/` but has no closing `/`; write `/expression/`
            "/(/": pattern `/(/` is no valid regular expression: unclosed group
            "//": the pattern is empty; name a function (`sqlite3_step`), a glob (`db_*`), or a regular expression (`/^db_/`)
            "a\u{7}b": pattern `a\u{7}b` contains a line break or control character"#]]
        .assert_eq(&text.join("\n"));
    }

    #[test]
    fn distances() {
        assert_eq!(distance("malloc", "maloc", 3), Some(1));
        assert_eq!(distance("kitten", "sitting", 3), Some(3));
        assert_eq!(distance("kitten", "sitting", 2), None);
        assert_eq!(distance("a", "abcdef", 3), None);
    }
}
