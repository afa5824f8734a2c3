//! The test binaries of the tests crate and of the bench: built as the caller, and run one test at a time, as root where they need the
//! kernel.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Those that need no root.
const ROOTLESS: [&str; 6] = ["bench", "field", "offline", "page", "sqlite", "targets"];

/// A test binary.
pub(super) struct Binary {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

impl Binary {
    /// It needs no root, and asks nothing of the kernel.
    pub(super) fn is_rootless(&self) -> bool {
        is_rootless(&self.name)
    }

    /// Runs it, with these arguments of the harness: how it ended, and what it printed.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<(ExitStatus, Vec<String>)> {
        let environment = passed_on();
        let environment: Vec<(&str, &str)> =
            environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let mut command = if self.is_rootless() {
            let mut command = Command::new(&self.path);
            command.envs(environment).stdin(Stdio::null());
            command
        } else {
            shell::as_root(&self.path, &environment)
        };
        command.current_dir(shell::root().join("tests")).arg("--test-threads=1").args(arguments);
        shell::run_teed(&mut command)
    }
}

/// It came to its end, and tests failed: the exit code of the harness (`library/test/src/lib.rs`, `ERROR_EXIT_CODE`). One that was killed or
/// crashed has another.
pub(super) fn has_failed_tests(status: ExitStatus) -> bool {
    status.code() == Some(101)
}

/// A binary of that name is run as the caller.
pub(super) fn is_rootless(name: &str) -> bool {
    ROOTLESS.contains(&name)
}

/// Builds what the tests start and the test binaries, with the committed object or another one. In the order of their names.
///
/// Cargo unites the features of what is built at once, and those of development count where tests are built. So this builds the tests of the
/// whole workspace, as the offline tests do: a command for the tests crate alone would build the agent and half of its libraries anew.
///
/// # Errors
///
/// If something cannot be built.
pub(super) fn build(object: Option<&Path>) -> Result<Vec<Binary>> {
    let mut command = shell::cargo();
    command.args(["build", "--locked", "--workspace", "--bin", "tithe", "--tests"]);
    command.arg("--message-format=json-render-diagnostics");
    if let Some(object) = object {
        command.env("TITHE_BPF_OBJECT", object);
    }
    shell::say(&command);
    let messages = shell::output(command.stderr(Stdio::inherit()))?;
    let binaries = test_binaries(&messages)?;
    Ok(binaries.into_iter().map(|(name, path)| Binary { name, path }).collect())
}

/// What the tests read from the environment, for sudo drops it.
fn passed_on() -> Vec<(String, String)> {
    let mut passed: Vec<(String, String)> =
        ["REQUIRE_KERNEL", "RUST_BACKTRACE", "RUST_TEST_NOCAPTURE", "UPDATE_EXPECT", "PATH", "CI"]
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
            .collect();
    passed.push(("CARGO_MANIFEST_DIR".to_owned(), shell::root().join("tests").display().to_string()));
    passed.push(("CARGO".to_owned(), std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())));
    passed
}

/// The test executables of the tests crate and of the bench in cargo's messages, by name.
///
/// # Errors
///
/// If there are none, or a message is no JSON.
pub fn test_binaries(messages: &str) -> Result<BTreeMap<String, PathBuf>> {
    const PACKAGES: [&str; 2] = ["#profiler-tests@", "#profiler-bench@"];
    let mut binaries = BTreeMap::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: serde_json::Value = serde_json::from_str(line).context("cargo printed no JSON")?;
        let is_ours =
            message["package_id"].as_str().is_some_and(|id| PACKAGES.iter().any(|name| id.contains(name)));
        if message["profile"]["test"] != true || !is_ours {
            continue;
        }
        if let (Some(name), Some(path)) = (message["target"]["name"].as_str(), message["executable"].as_str())
        {
            binaries.insert(name.to_owned(), PathBuf::from(path));
        }
    }
    if binaries.is_empty() {
        bail!("cargo named no test binary of profiler-tests");
    }
    Ok(binaries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_that_died_has_no_failed_tests() {
        use std::os::unix::process::ExitStatusExt;
        assert!(has_failed_tests(ExitStatus::from_raw(101 << 8)));
        for other in [0, 139 << 8, 137 << 8, 9, 11] {
            assert!(!has_failed_tests(ExitStatus::from_raw(other)), "{other}");
        }
    }

    #[test]
    fn only_test_executables_are_taken() {
        let messages = r#"{"reason":"compiler-artifact","package_id":"path+file:///t/tests#profiler-tests@0.1.0","target":{"name":"build-script-build"},"profile":{"test":false},"executable":"/t/build"}
{"reason":"compiler-artifact","package_id":"path+file:///t/xtask#0.1.0","target":{"name":"xtask"},"profile":{"test":true},"executable":"/t/xtask-1"}
{"reason":"compiler-artifact","package_id":"path+file:///t/tests#profiler-tests@0.1.0","target":{"name":"prober"},"profile":{"test":true},"executable":"/t/prober-1"}
{"reason":"build-finished","success":true}"#;
        let binaries = test_binaries(messages).unwrap();
        assert_eq!(
            binaries.into_iter().collect::<Vec<_>>(),
            [("prober".to_owned(), PathBuf::from("/t/prober-1"))]
        );
        assert!(test_binaries("{\"reason\":\"build-finished\"}").is_err());
    }
}
