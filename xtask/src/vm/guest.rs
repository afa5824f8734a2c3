//! What the guest says: its lines are kept by step, its verdicts counted.

use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Lines of the protocol begin so (see `init.sh`); all others are output of programs.
const MARK: &str = "@@tithe ";

/// True for a line of the protocol.
pub fn is_marker(line: &str) -> bool {
    line.starts_with(MARK)
}

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TestResult {
    Passed,
    Failed,
    Skipped,
}

#[derive(Debug)]
struct Test {
    step: String,
    name: String,
    verdict: TestResult,
    seconds: f64,
    /// Why it failed or was skipped.
    reason: String,
}

/// All verdicts of a run.
#[derive(Debug, Default)]
pub struct Results {
    folder: PathBuf,
    release: String,
    steps: Vec<String>,
    tests: Vec<Test>,
    log: Option<File>,
    ended: Vec<String>,
    done: bool,
    /// Why the run is not complete.
    cut: Option<String>,
}

impl Results {
    /// Writes the output of each step into the folder.
    pub fn new(folder: &Path) -> Self {
        Results { folder: folder.to_owned(), ..Results::default() }
    }

    /// Takes a line of the guest.
    ///
    /// # Errors
    ///
    /// If it cannot be written, or is no line of the protocol that this program knows.
    pub fn line(&mut self, line: &str) -> Result<()> {
        let Some(marker) = line.strip_prefix(MARK) else {
            if let Some(log) = &mut self.log {
                writeln!(log, "{line}")?;
            }
            return Ok(());
        };
        let mut words = marker.splitn(4, ' ');
        let (word, first) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (seconds, reason) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let verdict = match word {
            "start" => {
                self.release = first.to_owned();
                println!("Linux {first} runs");
                return Ok(());
            }
            "begin" => {
                println!("{first}");
                let path = self.folder.join(format!("{first}.log"));
                self.log =
                    Some(File::create(&path).with_context(|| format!("cannot write {}", path.display()))?);
                self.steps.push(first.to_owned());
                return Ok(());
            }
            "end" => {
                self.ended.push(first.to_owned());
                return Ok(());
            }
            "done" => {
                self.done = true;
                return Ok(());
            }
            "passed" => TestResult::Passed,
            "failed" => TestResult::Failed,
            "skipped" => TestResult::Skipped,
            _ => anyhow::bail!("the guest said \"{line}\", which is no line of init.sh"),
        };
        if let Some(log) = &mut self.log {
            writeln!(log, "{marker}")?;
        }
        println!("  {marker}");
        self.tests.push(Test {
            step: self.steps.last().cloned().unwrap_or_default(),
            name: first.to_owned(),
            verdict,
            seconds: seconds.parse().unwrap_or(0.0),
            reason: reason.to_owned(),
        });
        Ok(())
    }

    /// The run ended before its end.
    pub fn cut(&mut self, why: &str) {
        self.cut = Some(why.to_owned());
    }

    /// True if the guest said its last word.
    pub fn is_complete(&self) -> bool {
        self.done
    }

    /// True if the step ran to its end, with at least one test.
    pub fn has(&self, step: &str) -> bool {
        self.ended.iter().any(|ended| ended == step) && self.tests.iter().any(|test| test.step == step)
    }

    /// Passed, failed, skipped.
    pub fn sums(&self) -> (usize, usize, usize) {
        let count = |verdict| self.tests.iter().filter(|test| test.verdict == verdict).count();
        (count(TestResult::Passed), count(TestResult::Failed), count(TestResult::Skipped))
    }

    /// Each failure in a few words.
    pub fn failures(&self) -> Vec<String> {
        let failed = self.tests.iter().filter(|test| test.verdict == TestResult::Failed);
        let mut all: Vec<String> =
            failed.map(|test| format!("{}: {} failed ({})", test.step, test.name, test.reason)).collect();
        all.extend(self.cut.clone());
        all
    }

    /// A table in Markdown: a row for each step, then each test that did not pass.
    pub fn table(&self, package: &str, accel: &str) -> String {
        let mut text = format!("Linux {} ({package}), CPUs: {accel}\n\n", self.release);
        text.push_str("| step | passed | failed | skipped | time |\n|---|---|---|---|---|\n");
        for step in &self.steps {
            let of = || self.tests.iter().filter(|test| &test.step == step);
            let count = |verdict| of().filter(|test| test.verdict == verdict).count();
            let seconds: f64 = of().map(|test| test.seconds).sum();
            let _ = writeln!(
                text,
                "| {step} | {} | {} | {} | {seconds:.0} s |",
                count(TestResult::Passed),
                count(TestResult::Failed),
                count(TestResult::Skipped)
            );
        }
        let others: Vec<&Test> =
            self.tests.iter().filter(|test| test.verdict != TestResult::Passed).collect();
        if !others.is_empty() {
            text.push_str("\n| test | | reason |\n|---|---|---|\n");
        }
        for test in others {
            let word = if test.verdict == TestResult::Failed { "failed" } else { "skipped" };
            let _ = writeln!(text, "| {}: {} | {word} | {} |", test.step, test.name, test.reason);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(lines: &[&str]) -> Results {
        let folder = std::env::temp_dir();
        let mut results = Results::new(&folder);
        for line in lines {
            results.line(line).unwrap();
        }
        // What the test wrote.
        let _ = std::fs::remove_file(folder.join("vm-guest-test.log"));
        results
    }

    #[test]
    fn verdicts_are_counted_and_a_cut_run_is_a_failure() {
        let mut results = results(&[
            "@@tithe start 6.1.0-56",
            "@@tithe begin vm-guest-test",
            "  output",
            "@@tithe passed a::b 1.5 ",
            "@@tithe failed c 2.0 status 101",
            "@@tithe skipped d 0.1 no session links",
            "@@tithe end vm-guest-test",
            "@@tithe begin other",
        ]);
        let _ = std::fs::remove_file(std::env::temp_dir().join("other.log"));
        assert_eq!(results.sums(), (1, 1, 1));
        assert!(results.has("vm-guest-test"));
        assert!(!results.has("other"), "it did not end");
        assert!(!results.is_complete());
        results.cut("silence");
        assert_eq!(results.failures(), ["vm-guest-test: c failed (status 101)", "silence"]);
        let table = results.table("linux-image-x", "tcg");
        assert!(table.contains("| vm-guest-test | 1 | 1 | 1 | 4 s |"), "{table}");
        assert!(table.contains("| vm-guest-test: d | skipped | no session links |"), "{table}");
    }
}
