//! The house rules: sizes, circles of imports, and what may stand where. Rules over the source text of the checkout.
//!
//! Why here: a rule that nobody checks is broken within a month, and a linter of the compiler's knows nothing of this
//! project's modules. Inputs: every Rust file below `src` and `tests` of each crate, and `xtask/exceptions.toml`. Output:
//! findings, one line each. It builds nothing, changes nothing, and takes less than 5 s.
//!
//! Code for tests (`#[cfg(test)]`) has the same limits of size. It does not count for circles and places.

mod circles;
mod exceptions;
mod finding;
mod outline;
mod places;
mod sizes;
mod source;
mod tree;

use crate::shell;
use anyhow::{Context, Result, ensure};
use exceptions::Exceptions;
use finding::Finding;
use std::path::Path;

/// Where the exceptions stand, from the root of the checkout.
const EXCEPTIONS: &str = "xtask/exceptions.toml";

/// Checks the checkout that this xtask lies in.
///
/// # Errors
///
/// If a rule is broken, an exception is not needed, or a file cannot be read or parsed.
pub fn run() -> Result<()> {
    let findings = findings(&shell::root())?;
    for finding in &findings {
        println!("{finding}");
    }
    ensure!(
        findings.is_empty(),
        "{} house rules are broken (CONTRIBUTING.md, 'House rules'); mend the code, or add one line with its reason to \
         {EXCEPTIONS}",
        findings.len()
    );
    Ok(())
}

/// What is wrong below `root`, by path and line.
fn findings(root: &Path) -> Result<Vec<Finding>> {
    let sources = source::read(root)?;
    let text =
        std::fs::read_to_string(root.join(EXCEPTIONS)).with_context(|| format!("read {EXCEPTIONS}"))?;
    let exceptions = Exceptions::parse(&text).with_context(|| EXCEPTIONS.to_owned())?;
    let trees = tree::grow(&sources)?;
    let mut found: Vec<Finding> = sources.values().flat_map(sizes::check).collect();
    for tree in &trees {
        found.extend(circles::check(tree, &exceptions.places(circles::RULE)));
    }
    found.extend(places::check(&trees));
    let mut left = exceptions.apply(found, EXCEPTIONS);
    left.sort_by(|a, b| (&a.path, a.line, &a.what).cmp(&(&b.path, b.line, &b.what)));
    Ok(left)
}
