//! The kernel suite again and again, to see which of its tests fail by chance: without it nobody knows whether a test belongs on the list
//! of timing tests, or fails one time in ten for a reason of its own.
//!
//! A run is all test binaries that need root; no test is run again in it. Runs are kept in `docs/suite-runs.jsonl`, of any build, each with
//! its build, its time and the machine's load. A run that was interrupted is not counted; the next call goes on. Not for CI: twenty runs
//! take hours.

mod record;
mod table;

use super::kernel::{self, Binary};
use super::{Summary, again, calm, timing};
use crate::shell;
use anyhow::{Context, Result, ensure};
use record::{Build, Run};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Instant, SystemTime};

/// `cargo xtask test --suites N`.
#[derive(Debug, clap::Args)]
pub struct Suites {
    /// Run the kernel tests until there are N runs of this build, none of them repeated where it fails, and print how often each failed
    /// (kept in docs/suite-runs.jsonl; goes on where it stopped; 0: print only)
    #[arg(long, value_name = "N", conflicts_with = "offline")]
    pub suites: Option<usize>,
    /// Write what --suites prints into docs/suite-runs.md
    #[arg(long, requires = "suites", conflicts_with = "filter")]
    pub write: bool,
}

/// Runs what is missing of `wanted` runs of this build, and prints all.
///
/// # Errors
///
/// In CI; if something cannot be built, or was changed during a run, which is not counted then. Failed tests are no error: they are listed.
pub(super) fn run(wanted: usize, options: &Suites, filter: Option<&str>) -> Result<()> {
    ensure!(!shell::is_ci(), "suites are no part of CI: they take hours");
    ensure!(shell::can_be_root(), "the suite traces: run it as root, or let sudo work without a password");
    // Committed: runs of several days and machines add up, and no build directory outlives them.
    let path = shell::root().join("docs/suite-runs.jsonl");
    let mut runs = record::read(&path)?;
    if wanted > 0 {
        let build = Build::here()?;
        let is_of = |run: &&Run| run.build.tree == build.tree && run.filter.as_deref() == filter;
        for number in runs.iter().filter(is_of).count()..wanted {
            println!("suite run {} of {wanted}, build {}", number + 1, build.commit);
            let run = one(&build, filter)?;
            record::append(&path, &run)?;
            runs.push(run);
        }
    }
    let text = table::markdown(&runs, filter, &timing::List::committed()?);
    println!("{text}");
    if options.write {
        let path = shell::root().join("docs/suite-runs.md");
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// One run of the suite.
///
/// # Errors
///
/// If a binary cannot be built or started, or what is run was changed meanwhile.
fn one(build: &Build, filter: Option<&str>) -> Result<Run> {
    // Builds nothing if nothing has changed.
    let mut binaries = kernel::build(None)?;
    binaries.retain(|binary| !binary.is_rootless());
    let files = files(&binaries)?;
    let begun = shell::output(Command::new("date").args(["-u", "+%FT%H:%MZ"]))?.trim().to_owned();
    let load = calm::Watch::begin();
    let clock = Instant::now();
    let (mut summary, mut failed) = (Summary::default(), Vec::new());
    for binary in &binaries {
        let arguments: Vec<&str> = filter.into_iter().collect();
        let (status, lines) = binary.run(&arguments)?;
        let success = status.success();
        summary.add(&binary.name, success, &lines);
        failed.extend(failed_in(&binary.name, success, &lines));
    }
    ensure!(
        summary.passed > 0 || !failed.is_empty(),
        "no test ran, and the run is not counted: the filter '{}' is a part of a test's name without its binary",
        filter.unwrap_or_default()
    );
    let run = Run {
        build: build.clone(),
        filter: filter.map(str::to_owned),
        begun,
        seconds: clock.elapsed().as_secs_f64(),
        load: load.end(),
        passed: summary.passed,
        skipped: summary.skipped,
        failed,
    };
    ensure!(
        self::files(&binaries)? == files && Build::here()? == *build,
        "the sources or the binaries were changed during this run, which is not counted"
    );
    Ok(run)
}

/// The test binaries and the agent: where they are, how long, and when they were built.
fn files(binaries: &[Binary]) -> Result<Vec<(PathBuf, u64, SystemTime)>> {
    let agent = shell::target_dir().join("debug/tithe");
    let paths = binaries.iter().map(|binary| binary.path.clone()).chain([agent]);
    paths
        .map(|path| {
            let of = std::fs::metadata(&path).with_context(|| format!("no {}", path.display()))?;
            Ok((path, of.len(), of.modified()?))
        })
        .collect()
}

/// Failed tests of a binary, `binary::test`; the binary itself where it did not come to its end.
fn failed_in(binary: &str, success: bool, lines: &[String]) -> Vec<String> {
    if success {
        return Vec::new();
    }
    let named = again::failed_tests(lines).filter(|names| !names.is_empty());
    let mut failed: Vec<String> = named
        .unwrap_or_else(|| failed_as_they_ended(lines))
        .into_iter()
        .map(|test| format!("{binary}::{test}"))
        .collect();
    if failed.is_empty() || !lines.iter().any(|line| line.starts_with("test result: ")) {
        failed.push(format!("{binary} (it ended before its last test)"));
    }
    failed
}

/// The tests that the harness called failed when they ended, for output without a whole list at its end. A test's own output may stand
/// between its name and its end.
fn failed_as_they_ended(lines: &[String]) -> Vec<String> {
    let (mut failed, mut current) = (Vec::new(), None);
    for line in lines {
        if let Some((name, _)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            current = Some(name.to_owned());
        }
        if line == "FAILED" || line.ends_with(" ... FAILED") {
            failed.extend(current.take());
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(success: bool, text: &str) -> Vec<String> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        failed_in("b", success, &lines)
    }

    #[test]
    fn failed_tests_are_named_whatever_became_of_the_binary() {
        let result = "test result: FAILED. 1 passed; 2 failed; 0 ignored";
        let whole =
            format!("test x ... FAILED\ntest y::z ... FAILED\n\nfailures:\n    x\n    y::z\n\n{result}");
        assert_eq!(failed(false, &whole), ["b::x", "b::y::z"]);
        assert!(failed(true, "test result: ok. 3 passed; 0 failed").is_empty());
        // Something else was printed into the list at the end.
        let garbled = whole.replace("    x\n", "    x\nagent: said\n");
        assert_eq!(failed(false, &garbled), ["b::x", "b::y::z"]);
        // A test wrote between its name and its end; then the binary was killed.
        let killed = "test x ... agent: said\nFAILED\ntest y ... ok\ntest z ... ";
        assert_eq!(failed(false, killed), ["b::x", "b (it ended before its last test)"]);
        assert_eq!(failed(false, ""), ["b (it ended before its last test)"]);
    }
}
