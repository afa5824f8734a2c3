//! The committed list of timing tests: kernel tests whose assertions depend on how fast this machine runs at that moment. Only these are
//! run again when they fail (`again.rs`).

use super::kernel;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

/// Where the list stands, from the root of the checkout.
pub(super) const PATH: &str = "tests/timing-tests.txt";
const TEXT: &str = include_str!("../../../tests/timing-tests.txt");

/// Reasons by test, `binary::test`.
#[derive(Debug)]
pub(super) struct List(BTreeMap<String, String>);

impl List {
    /// That of this checkout.
    ///
    /// # Errors
    ///
    /// If it has a line that is none.
    pub(super) fn committed() -> Result<Self> {
        Self::parse(TEXT).context(PATH)
    }

    /// Lines of a name, spaces and a reason, in the order of their names; lines that begin with `#` are comments.
    ///
    /// # Errors
    ///
    /// If a line has another form, names a test that stands there already or before its place, or one of a binary that is never run again.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut reasons: BTreeMap<String, String> = BTreeMap::new();
        for (line, number) in text.lines().zip(1..).filter(|(line, _)| !line.starts_with('#')) {
            let parts = line.split_once(' ').map(|(name, reason)| (name, reason.trim()));
            let (name, reason) = parts
                .filter(|(name, reason)| name.contains("::") && !reason.is_empty())
                .with_context(|| format!("line {number}: write BINARY::TEST and the reason, not '{line}'"))?;
            let last = reasons.last_key_value().map(|(last, _)| last.as_str());
            ensure!(last != Some(name), "line {number}: {name} is there twice");
            ensure!(last < Some(name), "line {number}: {name} belongs before {}", last.unwrap_or_default());
            let binary = name.split("::").next().unwrap_or_default();
            ensure!(
                !kernel::is_rootless(binary),
                "line {number}: {name} is no kernel test: {binary} runs without root and is never run again"
            );
            reasons.insert(name.to_owned(), reason.to_owned());
        }
        Ok(Self(reasons))
    }

    /// What about time a test asserts; `None`: it is no timing test.
    pub(super) fn reason(&self, test: &str) -> Option<&str> {
        self.0.get(test).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell;
    use std::path::PathBuf;

    /// The text of the file that holds the tests of a module of a test binary, `agent::traps` or `adversaries`.
    fn source(module: &[&str]) -> Option<String> {
        let path = shell::root().join("tests/tests").join(module.iter().collect::<PathBuf>());
        let files = [path.with_extension("rs"), path.join("mod.rs"), path.join("main.rs")];
        files.iter().find_map(|file| std::fs::read_to_string(file).ok())
    }

    /// A function `name` under `#[test]`, or `name: "MODE"` of a macro that makes such functions.
    fn has_test(source: &str, name: &str) -> bool {
        let mut is_test = false;
        let makes_tests = source.contains("#[test]\n        fn $test()");
        source.lines().map(str::trim).any(|line| {
            let (function, of_macro) = (format!("fn {name}() "), format!("{name}: \""));
            let found = is_test && line.starts_with(&function) || makes_tests && line.starts_with(&of_macro);
            // Other attributes may stand between.
            is_test = line == "#[test]" || is_test && line.starts_with("#[");
            found
        })
    }

    #[test]
    fn every_test_of_the_list_is_there() {
        let list = List::committed().unwrap();
        assert!(list.0.len() > 20, "{} tests", list.0.len());
        let is_there = |test: &str| {
            let parts: Vec<&str> = test.split("::").collect();
            let (name, module) = parts.split_last().unwrap();
            source(module).is_some_and(|source| has_test(&source, name))
        };
        let missing: Vec<&String> = list.0.keys().filter(|test| !is_there(test)).collect();
        assert!(missing.is_empty(), "{PATH} names tests that are not in tests/tests: {missing:#?}");
        // The same look sees that a test is not there.
        for test in [
            "adversaries::watch",
            "adversaries::stead",
            "adversaries::drive",
            "agent::traps::spins",
            "agent::steady",
            "prober::returned::calls_left_by_a_throw_are_unwound_and_end_nowhere",
        ] {
            assert!(!is_there(test), "{test}");
        }
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        let said = |text: &str| format!("{:#}", List::parse(text).unwrap_err());
        assert_eq!(said("a::b  x\na::b  y\n"), "line 2: a::b is there twice");
        assert_eq!(said("# c\na::b  x\na::a  y\n"), "line 3: a::a belongs before a::b");
        for text in ["a::b\n", "a::b  \n", "ab  x\n", "\n"] {
            assert!(said(text).starts_with("line 1: write BINARY::TEST and the reason"), "{text}");
        }
        assert!(said("targets::pace  x\n").contains("is never run again"));
        let list = List::parse("# all\na::b  two words\n").unwrap();
        assert_eq!((list.reason("a::b"), list.reason("a::c")), (Some("two words"), None));
    }
}
