//! Exceptions to the house rules: one line each, with a reason and a limit of its own.

use super::finding::Finding;
use anyhow::{Result, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use toml::Spanned;

/// One line of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    /// Which rule is broken.
    rule: String,
    /// Where: as `Finding::place` says it.
    place: String,
    /// The largest number that is allowed there.
    limit: usize,
    /// Why it may stay.
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    exceptions: Vec<Spanned<Exception>>,
}

/// What may break the rules, by rule and place, with the line in the file.
#[derive(Debug)]
pub struct Exceptions(BTreeMap<(String, String), (Exception, usize)>);

impl Exceptions {
    /// Reads the file's text.
    ///
    /// # Errors
    ///
    /// If it is not as described, a reason is missing, or a place stands twice under one rule.
    pub fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text)?;
        let mut exceptions = BTreeMap::new();
        for spanned in file.exceptions {
            let line = text[..spanned.span().start].matches('\n').count() + 1;
            let exception = spanned.into_inner();
            ensure!(!exception.reason.trim().is_empty(), "line {line}: no reason; say why it may stay");
            let key = (exception.rule.clone(), exception.place.clone());
            let before = exceptions.insert(key, (exception, line));
            ensure!(before.is_none(), "line {line}: rule and place stand here twice; leave one of them");
        }
        Ok(Self(exceptions))
    }

    /// The places of the exceptions to one rule.
    pub fn places(&self, rule: &str) -> BTreeSet<String> {
        self.0.keys().filter(|(of, _)| of == rule).map(|(_, place)| place.clone()).collect()
    }

    /// The findings that no exception covers, and the exceptions (in the file `path`) that cover none.
    pub fn apply(&self, found: Vec<Finding>, path: &str) -> Vec<Finding> {
        let mut used = BTreeSet::new();
        let mut left = Vec::new();
        for mut finding in found {
            let key = (finding.rule.to_owned(), finding.place.clone());
            if let Some((exception, _)) = self.0.get(&key) {
                used.insert(key);
                if finding.value <= exception.limit {
                    continue;
                }
                finding.limit = exception.limit;
                finding.what += " that has grown beyond its exception";
            }
            left.push(finding);
        }
        let unused = self.0.iter().filter(|(key, _)| !used.contains(*key));
        left.extend(unused.map(|(_, (exception, line))| Finding {
            rule: "exception",
            path: path.to_owned(),
            line: *line,
            place: path.to_owned(),
            what: format!("an exception that is not needed: {} {}", exception.rule, exception.place),
            value: 0,
            limit: exception.limit,
            unit: "found there",
            advice: "delete the line".to_owned(),
        }));
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"exceptions = [
    # Why.
    { rule = "function", place = "a.rs: f", limit = 90, reason = "a table" },
    { rule = "function", place = "a.rs: gone", limit = 90, reason = "a table" },
]"#;

    fn finding(name: &str, value: usize) -> Finding {
        Finding {
            rule: "function",
            path: "a.rs".to_owned(),
            line: 7,
            place: format!("a.rs: {name}"),
            what: format!("a long function {name}"),
            value,
            limit: 80,
            unit: "lines",
            advice: "split it".to_owned(),
        }
    }

    fn left(found: Vec<Finding>) -> Vec<String> {
        let left = Exceptions::parse(TEXT).unwrap().apply(found, "e.toml");
        left.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_covered_is_left_out_and_what_covers_nothing_is_found() {
        let unneeded = "e.toml:4: an exception that is not needed: function a.rs: gone, 0 found there, limit 90, \
                        delete the line";
        assert_eq!(left(vec![finding("f", 90)]), [unneeded]);
        assert_eq!(
            left(vec![finding("f", 91), finding("gone", 85)]),
            ["a.rs:7: a long function f that has grown beyond its exception, 91 lines, limit 90, split it"]
        );
        assert_eq!(
            left(vec![finding("f", 81), finding("g", 81)]),
            ["a.rs:7: a long function g, 81 lines, limit 80, split it", unneeded]
        );
    }

    #[test]
    fn an_exception_is_for_one_rule() {
        let other = Finding { rule: "struct", ..finding("f", 85) };
        assert_eq!(left(vec![other]).len(), 3);
    }

    #[test]
    fn a_reason_is_wanted_and_a_place_stands_once() {
        let error = |text: &str| Exceptions::parse(text).unwrap_err().to_string();
        assert_eq!(error(&TEXT.replace("a table", " ")), "line 3: no reason; say why it may stay");
        assert_eq!(
            error(&TEXT.replace("gone", "f")),
            "line 4: rule and place stand here twice; leave one of them"
        );
        assert!(error(&TEXT.replace("limit = 90, ", "")).contains("missing field `limit`"));
    }
}
