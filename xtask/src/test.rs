//! All tests: the offline ones, then those against the running kernel.
//!
//! Test binaries are built as the caller; the kernel ones run as root, one test at a time: they attach to targets,
//! and two at once would measure each other.

mod again;
mod calm;
mod kernel;
mod suites;
mod timing;

use crate::apt;
use crate::ebpf::{self, Rebuilt};
use crate::field;
use crate::lint::Beside;
use crate::shell;
use anyhow::{Result, bail};
use kernel::Binary;
pub use kernel::test_binaries;
use std::path::Path;
use std::process::Stdio;

/// `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    tests: Options,
    #[command(flatten)]
    suites: suites::Suites,
}

/// Which tests, for `cargo xtask ci`, too.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Do not install the BPF toolchain
    #[arg(long)]
    pub no_install: bool,
    /// Only the tests that need neither root nor the kernel
    #[arg(long)]
    pub offline: bool,
    /// Only tests whose name contains this
    #[arg(value_name = "FILTER")]
    pub filter: Option<String>,
}

/// What all test binaries together said.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Summary {
    passed: u64,
    failed: u64,
    ignored: u64,
    skipped: u64,
    /// Commands that failed.
    broken: Vec<String>,
    /// Tests that failed and were run again by themselves.
    again: Vec<again::Again>,
}

impl Summary {
    fn add(&mut self, what: &str, success: bool, lines: &[String]) {
        let skipped = self.skipped;
        for line in lines {
            if let Some(counts) = line.strip_prefix("test result: ") {
                self.passed += count(counts, " passed");
                self.failed += count(counts, " failed");
                self.ignored += count(counts, " ignored");
            }
            // The harness may have written "test name ... " before it.
            if line.starts_with("SKIP ") || line.contains(" ... SKIP ") {
                self.skipped += 1;
            }
        }
        // A skipped test returns early and counts as passed in the harness.
        self.passed = self.passed.saturating_sub(self.skipped - skipped);
        if !success {
            self.broken.push(what.to_owned());
        }
    }

    /// A whole test binary, or the rebuild, that cannot run here; `forbidden`: that is a failure.
    fn skip(&mut self, what: &str, reason: &str, forbidden: bool) {
        println!("SKIP {what}: {reason}");
        self.skipped += 1;
        if forbidden {
            self.broken.push(format!("{what} (skipped, which REQUIRE_KERNEL=1 and CI forbid)"));
        }
    }

    /// Prints the last lines, in the form of cargo's own.
    ///
    /// # Errors
    ///
    /// If a test failed.
    pub fn finish(&self) -> Result<()> {
        if self.skipped > 0 {
            println!("{} skipped: see the SKIP lines above", self.skipped);
        }
        self.say_again();
        println!("{}", self.last_line());
        match (self.is_good(), self.broken.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => bail!("{} tests failed, and their binary said that all went well", self.failed),
            (false, false) => bail!("failed: {}", self.broken.join(", ")),
        }
    }

    fn last_line(&self) -> String {
        let verdict = if self.is_good() { "ok" } else { "FAILED" };
        format!(
            "test result: {verdict}. {} passed; {} failed; {} ignored; {} skipped",
            self.passed, self.failed, self.ignored, self.skipped
        )
    }

    fn is_good(&self) -> bool {
        self.broken.is_empty() && self.failed == 0
    }
}

/// The number before ` passed` in `ok. 9 passed; 0 failed`.
fn count(text: &str, label: &str) -> u64 {
    text.split(label).next().and_then(|before| before.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// Runs the command.
///
/// # Errors
///
/// If a test fails or cannot be built.
pub fn run(arguments: &Arguments) -> Result<()> {
    match arguments.suites.suites {
        Some(runs) => suites::run(runs, &arguments.suites, arguments.tests.filter.as_deref()),
        None => run_all(&arguments.tests, None)?.finish(),
    }
}

/// The binary beside which compilers may run: it takes longest, mostly waits for runs to end, and passes beside them (docs/log.md M49).
const LONGEST: &str = "agent";

/// Runs all tests, also after failures. `beside` runs while the longest binary does, when all that the tests need is built.
///
/// # Errors
///
/// If something cannot be built or started; failed tests are in the summary.
pub fn run_all(options: &Options, beside: Option<&mut Beside>) -> Result<Summary> {
    let mut summary = Summary::default();
    let mut other_tools = None;
    if !options.offline {
        match ebpf::check(!options.no_install)? {
            Rebuilt::Same => {}
            Rebuilt::OtherTools(object) => other_tools = Some(object),
            Rebuilt::Skipped(reason) => {
                summary.skip(ebpf::REBUILD, &reason, shell::skips_are_forbidden());
            }
        }
    }

    let mut offline = shell::cargo();
    offline.args(["test", "--locked", "--no-fail-fast"]).args(&options.filter);
    let (status, lines) = shell::run_teed(&mut offline)?;
    summary.add("offline tests", status.success(), &lines);
    if options.offline {
        return Ok(summary);
    }

    if !options.no_install {
        browser();
    }
    kernel_tests(options, None, beside, &mut summary)?;
    field_tests(options, &mut summary)?;
    if let Some(object) = other_tools {
        println!("once more, with the object that this machine's tools built: {}", object.display());
        kernel_tests(options, Some(&object), None, &mut summary)?;
    }
    Ok(summary)
}

/// Installs a browser for the test of the report's page, on Debian where there is none. Elsewhere that test says that it is skipped.
fn browser() {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    if names.iter().any(|name| starts(name)) || !apt::is_here() || !shell::can_be_root() {
        return;
    }
    // Without it the test is skipped, and says so; where skips are forbidden, it fails.
    if let Err(error) = apt::install(&["chromium"]) {
        eprintln!("no browser for the test of the report's page: {error:#}");
    }
}

/// True if a browser of that name is in `PATH` and starts: on Ubuntu `chromium-browser` is a script that only says where the browser may be had.
fn starts(name: &str) -> bool {
    let Some(path) = shell::find_in_path(name) else { return false };
    let mut version = std::process::Command::new("timeout");
    version.args(["--kill-after=5", "30"]).arg(path).arg("--version").stdin(Stdio::null());
    version.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Builds the test binaries, with the committed object or another one, and runs them. Timing tests that fail are run again.
fn kernel_tests(
    options: &Options,
    object: Option<&Path>,
    mut beside: Option<&mut Beside>,
    summary: &mut Summary,
) -> Result<()> {
    let root = shell::can_be_root();
    let timing = timing::List::committed()?;
    let filter: Vec<&str> = options.filter.as_deref().into_iter().collect();
    for binary in kernel::build(object)? {
        let Binary { name, .. } = &binary;
        if !root && !binary.is_rootless() {
            let reason = "not root, and sudo is missing or asks for a password";
            summary.skip(name, reason, shell::skips_are_forbidden());
            continue;
        }
        let mut here = beside.as_deref_mut().filter(|_| name == LONGEST && filter.is_empty());
        if let Some(beside) = &mut here {
            beside.begin();
        }
        let before = calm::Cpus::now();
        let (status, lines) = binary.run(&filter)?;
        // The next ones, and what is tried again, are to find a calm machine.
        if let Some(beside) = here {
            beside.wait();
        }
        if !binary.is_rootless()
            && let Some(stolen) = before.stolen_since()
        {
            println!(
                "during {name} the hypervisor took {:.1} % of the time of this machine's CPUs",
                stolen * 100.0
            );
        }
        summary.add(name, status.success(), &lines);
        if !binary.is_rootless() && kernel::has_failed_tests(status) {
            summary.try_again(&timing, name, &lines, |test| {
                calm::wait();
                binary.run(&["--exact", test]).map(|(status, lines)| (status.success(), lines))
            })?;
        }
    }
    Ok(())
}

/// Five real programs, 20 s each: those of the field suite that need little.
fn field_tests(options: &Options, summary: &mut Summary) -> Result<()> {
    if options.filter.as_deref().is_some_and(|filter| !"field::".contains(filter)) {
        return Ok(());
    }
    if !shell::can_be_root() {
        summary.skip(
            "the field suite",
            "not root, and sudo is missing or asks for a password",
            shell::skips_are_forbidden(),
        );
        return Ok(());
    }
    let mut command = match field::in_ci() {
        Ok(command) => command,
        Err(error) => {
            summary.skip("the field suite", &format!("{error:#}"), shell::skips_are_forbidden());
            return Ok(());
        }
    };
    let (status, lines) = shell::run_teed(&mut command)?;
    summary.add("the field suite", status.success(), &lines);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_added_up_and_a_skip_is_not_a_pass() {
        let mut summary = Summary::default();
        let lines = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        summary.add(
            "a",
            true,
            &lines(&[
                "SKIP counts: needs root",
                "test x ... SKIP x: needs root",
                "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.64s",
            ]),
        );
        summary.add("b", false, &lines(&["test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured"]));
        assert_eq!(
            summary,
            Summary {
                passed: 13,
                failed: 2,
                ignored: 1,
                skipped: 2,
                broken: vec!["b".to_owned()],
                again: Vec::new()
            }
        );
        assert_eq!(summary.finish().unwrap_err().to_string(), "failed: b");
    }

    #[test]
    fn a_skipped_rebuild_is_counted_and_fails_where_skips_are_forbidden() {
        let mut summary = Summary { passed: 5, ..Summary::default() };
        summary.skip(ebpf::REBUILD, "apt-get failed", false);
        assert_eq!((summary.passed, summary.skipped), (5, 1));
        assert!(summary.last_line().ends_with("ok. 5 passed; 0 failed; 0 ignored; 1 skipped"));
        assert!(summary.finish().is_ok());
        summary.skip(ebpf::REBUILD, "apt-get failed", true);
        assert!(summary.last_line().ends_with("FAILED. 5 passed; 0 failed; 0 ignored; 2 skipped"));
        assert!(summary.finish().unwrap_err().to_string().contains("rebuild of the eBPF object (skipped"));
    }
}
