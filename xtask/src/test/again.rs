//! Another try: a timing test that failed is run again by itself, twice, once the machine is calm, and must pass both times. Tests share
//! the machine with whoever else has it, and a second of somebody's work breaks a budget that the code keeps. A test that is not on the
//! list (`timing.rs`) asserts nothing of that kind: its failure stays a failure. The summary names every test that was run again, whatever
//! came of it.

use super::timing::List;
use super::{Summary, count};
use anyhow::Result;

/// Tests of one run that are tried again; more failures than these are no chance.
const TESTS: usize = 10;
/// How often each is run again. It must pass each time: a test that fails every second time for a reason of its own would pass one of two
/// tries in three of four runs.
const TRIES: usize = 2;

/// A test that was run again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Again {
    /// `binary::test`.
    name: String,
    /// What about time it asserts.
    reason: String,
    tries: usize,
    passed: bool,
}

impl Summary {
    /// Runs the failed timing tests of a binary again, each by itself; `lines` is what the binary printed, and has been added as failed.
    /// `run` takes a test's exact name, and returns whether the binary succeeded and what it printed.
    ///
    /// # Errors
    ///
    /// If the binary cannot be started.
    pub(super) fn try_again(
        &mut self,
        timing: &List,
        binary: &str,
        lines: &[String],
        mut run: impl FnMut(&str) -> Result<(bool, Vec<String>)>,
    ) -> Result<()> {
        let Some(failed) = failed_tests(lines) else { return Ok(()) };
        if failed.is_empty() || self.again.len() + failed.len() > TESTS {
            return Ok(());
        }
        let mut all_passed = true;
        for test in &failed {
            let name = format!("{binary}::{test}");
            let Some(reason) = timing.reason(&name) else {
                println!(
                    "{name} failed and is not run again: it is no timing test ({})",
                    super::timing::PATH
                );
                all_passed = false;
                continue;
            };
            let mut again = Again { name, reason: reason.to_owned(), tries: 0, passed: true };
            // One failure decides.
            while again.passed && again.tries < TRIES {
                again.tries += 1;
                println!("{} failed; run {} of {TRIES} by itself", again.name, again.tries);
                let (success, lines) = run(test)?;
                again.passed = has_passed(success, &lines);
            }
            if again.passed {
                self.failed = self.failed.saturating_sub(1);
                self.passed += 1;
            }
            all_passed &= again.passed;
            self.again.push(again);
        }
        // One of them only: the same binary may have failed before, with another object.
        if let Some(last) = self.broken.iter().rposition(|what| what == binary).filter(|_| all_passed) {
            self.broken.remove(last);
        }
        Ok(())
    }

    /// Names the tests that were tried again.
    pub(super) fn say_again(&self) {
        for Again { name, reason, tries, passed } in &self.again {
            let then = if *passed { "passed" } else { "failed" };
            println!(
                "TRIED AGAIN {name} ({reason}): it failed in this run (above) and {then} by itself (run {tries} of {TRIES})"
            );
        }
    }
}

/// One test ran, and it was neither skipped nor ignored: a name that matches nothing succeeds, too.
fn has_passed(success: bool, lines: &[String]) -> bool {
    let mut alone = Summary::default();
    alone.add("", success, lines);
    alone.passed == 1 && alone.skipped == 0 && alone.is_good()
}

/// The tests that the harness names at its end: the last block that begins with `failures:`. `None` where these are not as many as
/// failed, because something else was printed into the block.
pub(super) fn failed_tests(lines: &[String]) -> Option<Vec<String>> {
    let failed: u64 =
        lines.iter().filter_map(|line| line.strip_prefix("test result: ")).map(|c| count(c, " failed")).sum();
    let names: Vec<String> = match lines.iter().rposition(|line| line == "failures:") {
        Some(begin) => {
            let names = lines.get(begin + 1..).unwrap_or_default().iter();
            names.map_while(|line| line.strip_prefix("    ")).map(str::to_owned).collect()
        }
        None => Vec::new(),
    };
    (names.len() as u64 == failed).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "test x ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored";
    const FAILED: &str = "test x ... FAILED\n\nfailures:\n\n---- x stdout ----\nsaid\n\n\nfailures:\n    x\n    y::z\n\ntest result: FAILED. 3 passed; 2 failed; 0 ignored";

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    /// Both tests of `FAILED` are on it.
    fn both() -> List {
        List::parse("b::x  a budget\nb::y::z  a latency\n").unwrap()
    }

    fn after(texts: &[&str]) -> Summary {
        let mut summary = Summary::default();
        for text in texts {
            summary.add("b", text.contains("result: ok"), &lines(text));
        }
        summary
    }

    #[test]
    fn a_binary_is_good_again_when_all_its_failed_tests_passed_twice_by_themselves() {
        let mut summary = after(&[FAILED]);
        let mut ran = Vec::new();
        let answer = summary.try_again(&both(), "b", &lines(FAILED), |test| {
            ran.push(test.to_owned());
            Ok((true, lines(PASSED)))
        });
        answer.unwrap();
        assert_eq!(ran, ["x", "x", "y::z", "y::z"]);
        assert_eq!((summary.passed, summary.failed, summary.again.len()), (5, 0, 2));
        assert_eq!((&*summary.again[0].name, &*summary.again[1].reason), ("b::x", "a latency"));
        assert!(summary.finish().is_ok());

        let mut summary = after(&[FAILED]);
        let pass_x = |test: &str| Ok((test == "x", lines(if test == "x" { PASSED } else { FAILED })));
        summary.try_again(&both(), "b", &lines(FAILED), pass_x).unwrap();
        assert_eq!((summary.passed, summary.failed), (4, 1));
        assert!(summary.again[0].passed && !summary.again[1].passed);
        assert_eq!((summary.again[0].tries, summary.again[1].tries), (TRIES, 1));
        assert!(summary.finish().is_err(), "y::z has not passed");
    }

    #[test]
    fn one_pass_of_two_is_a_failure() {
        let one = FAILED.replace("    y::z\n", "").replace("2 failed", "1 failed");
        for fails in 1..=TRIES {
            let mut summary = after(&[&one]);
            let mut ran = 0;
            let answer = summary.try_again(&both(), "b", &lines(&one), |_| {
                ran += 1;
                Ok((ran != fails, lines(if ran == fails { &one } else { PASSED })))
            });
            answer.unwrap();
            assert_eq!((summary.passed, summary.failed, ran), (3, 1, fails));
            assert!(!summary.again[0].passed && summary.finish().is_err());
        }
    }

    #[test]
    fn a_test_that_is_not_on_the_list_is_not_run_again() {
        let mut summary = after(&[FAILED]);
        let mut ran = Vec::new();
        let timing =
            List::parse("b::xx  another one\nb::y::z  a latency\nc::x  of another binary\n").unwrap();
        let answer = summary.try_again(&timing, "b", &lines(FAILED), |test| {
            ran.push(test.to_owned());
            Ok((true, lines(PASSED)))
        });
        answer.unwrap();
        assert_eq!(ran, ["y::z", "y::z"]);
        assert_eq!((summary.passed, summary.failed, summary.broken.len()), (4, 1, 1));
        assert!(summary.finish().is_err(), "x has failed, and stays so");
    }

    #[test]
    fn another_try_mends_one_failure_of_a_binary_and_not_that_of_another_object() {
        let mut summary = after(&["test result: FAILED. 0 passed; 9 failed; 0 ignored", FAILED]);
        summary.try_again(&both(), "b", &lines(FAILED), |_| Ok((true, lines(PASSED)))).unwrap();
        assert_eq!((summary.failed, summary.broken.len()), (9, 1));
        assert!(summary.finish().is_err());
        // Also where no binary is left that says so.
        let summary = Summary { failed: 1, ..Summary::default() };
        assert!(summary.finish().is_err());
    }

    #[test]
    fn nothing_is_tried_again_where_the_names_are_not_all_there() {
        let cut = FAILED.replace("    y::z", "agent: said\n    y::z");
        assert_eq!(failed_tests(&lines(&cut)), None);
        let mut summary = after(&[&cut]);
        summary.try_again(&both(), "b", &lines(&cut), |test| panic!("{test}")).unwrap();
        assert_eq!(failed_tests(&lines(PASSED)), Some(Vec::new()));
        // A binary that was killed says nothing at its end.
        let killed = "test x ... FAILED\ntest y ... ";
        let mut summary = Summary::default();
        summary.add("b", false, &lines(killed));
        summary.try_again(&both(), "b", &lines(killed), |test| panic!("{test}")).unwrap();
        assert!(summary.finish().is_err());
    }

    #[test]
    fn a_skip_and_a_name_that_matches_nothing_are_no_pass() {
        assert!(has_passed(true, &lines(PASSED)));
        assert!(!has_passed(false, &lines(PASSED)));
        assert!(!has_passed(true, &lines("test result: ok. 0 passed; 0 failed; 0 ignored")));
        assert!(!has_passed(true, &lines("test result: ok. 0 passed; 0 failed; 1 ignored")));
        let skipped = format!("SKIP x: needs a newer kernel\n{PASSED}");
        assert!(!has_passed(true, &lines(&skipped)));
        let mut summary = after(&[FAILED]);
        summary.try_again(&both(), "b", &lines(FAILED), |_| Ok((true, lines(&skipped)))).unwrap();
        assert_eq!((summary.passed, summary.failed), (3, 2));
        assert!(summary.finish().is_err());
    }

    #[test]
    fn the_first_that_fails_again_keeps_no_other_from_its_tries() {
        let mut summary = after(&[FAILED]);
        let mut ran = Vec::new();
        let pass_y = |test: &str| {
            ran.push(test.to_owned());
            Ok((test != "x", lines(if test == "x" { FAILED } else { PASSED })))
        };
        summary.try_again(&both(), "b", &lines(FAILED), pass_y).unwrap();
        assert_eq!(ran, ["x", "y::z", "y::z"]);
        assert_eq!((summary.passed, summary.failed), (4, 1));
        assert!(summary.finish().is_err());
    }

    #[test]
    fn tests_are_counted_and_not_passes() {
        let one = FAILED.replace("    y::z\n", "").replace("2 failed", "1 failed");
        let mut summary = Summary::default();
        let mut ran = 0;
        for _ in 0..TESTS + 2 {
            summary.add("b", false, &lines(&one));
            let passes = |_: &str| {
                ran += 1;
                Ok((true, lines(PASSED)))
            };
            summary.try_again(&both(), "b", &lines(&one), passes).unwrap();
        }
        assert_eq!((ran, summary.again.len(), summary.failed), (TESTS * TRIES, TESTS, 2));
    }
}
