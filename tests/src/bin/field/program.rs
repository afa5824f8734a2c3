//! What the suite asks of a program: to start, to work, and to say by itself whether its results are right.

use crate::place::Place;
use anyhow::Result;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The names of all modes, in the order of the table.
pub const MODES: [&str; 5] = ["none", "1%", "5%", "latency", "operation"];

/// A way to watch a program: a name, and what is added to `tithe record --pid PID`.
#[derive(Clone, Debug)]
pub struct Mode {
    /// One of [`MODES`].
    pub name: &'static str,
    /// The agent's arguments.
    pub arguments: Vec<String>,
}

impl Mode {
    /// The same slices as the others, and no agent: what the ratios are where nothing was done.
    pub fn none() -> Mode {
        Mode { name: "none", arguments: Vec::new() }
    }

    /// It is a mode with the agent.
    pub fn is_watched(name: &str) -> bool {
        name != "none"
    }

    /// A run with nothing but a budget.
    pub fn plain(budget: &'static str) -> Mode {
        Mode { name: budget, arguments: words(&["--budget", budget]) }
    }

    /// A run at 5 % with named functions.
    pub fn named(name: &'static str, arguments: &[&str]) -> Mode {
        let mut all = words(&["--budget", "5%"]);
        all.extend(words(arguments));
        Mode { name, arguments: all }
    }

    /// One that is not watched, the two plain runs, and more.
    pub fn plain_and<const N: usize>(more: [Mode; N]) -> Vec<Mode> {
        let mut modes = vec![Mode::none(), Mode::plain("1%"), Mode::plain("5%")];
        modes.extend(more);
        modes
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// A program of the suite.
pub trait Program {
    /// Its name in the table and in `--only`.
    fn name(&self) -> &str;

    /// How it is watched.
    fn modes(&self) -> Vec<Mode>;

    /// How it is watched in this round: all of its modes, or some. Each round begins with another one: a program that has just been
    /// started is slower, and so is its twin.
    fn modes_of(&self, round: u32) -> Vec<Mode> {
        let mut modes = self.modes();
        let first = round as usize % modes.len().max(1);
        modes.rotate_left(first);
        modes
    }

    /// Why the agent may see nothing of it in this mode, if it may: no call, or no operation.
    fn may_be_unseen(&self, _mode: &str) -> Option<&'static str> {
        None
    }

    /// What is missing, if it cannot run here: the first file of it that does not exist.
    fn missing(&self, place: &Place) -> Option<String>;

    /// Its version, by its own word.
    ///
    /// # Errors
    ///
    /// If it cannot be asked.
    fn version(&self, place: &Place) -> Result<String>;

    /// Starts an instance that keeps what it writes in `folder`.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    fn start(&self, place: &Place, folder: &Path) -> Result<Box<dyn Instance>>;
}

/// A started program.
pub trait Instance {
    /// Begins to work, until [`Instance::end`] (at the least for so many seconds), and returns the process to watch.
    ///
    /// # Errors
    ///
    /// If the program does not answer, has died, or gives a wrong result.
    fn begin(&mut self, seconds: f64) -> Result<u32>;

    /// Ends the work and checks all of its results. Never waits without a limit.
    ///
    /// # Errors
    ///
    /// If the program does not answer, has died, or gave a wrong result.
    fn end(&mut self) -> Result<Work>;

    /// Ends the program.
    ///
    /// # Errors
    ///
    /// If it ends in another way than it should, or its last results are wrong.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// What a program did between `begin` and `end`.
#[derive(Debug, Default)]
pub struct Work {
    /// Work per second, by kind.
    pub rates: BTreeMap<String, f64>,
    /// Work per second of the program's CPU time, by kind.
    pub cpu_rates: BTreeMap<String, f64>,
    /// Results that another instance must give, too: by question.
    pub answers: BTreeMap<u64, String>,
    /// The program's own statistics of this time.
    pub statistics: Value,
}

impl Work {
    /// Work of one kind, in so many seconds, of which the program ran on a CPU for `cpu_seconds`.
    pub fn of(kind: &str, units: f64, seconds: f64, cpu_seconds: f64) -> Work {
        let rate = |seconds: f64| BTreeMap::from([(kind.to_owned(), units / seconds.max(1e-9))]);
        // Below that its clock is too coarse: ticks of 10 ms.
        let cpu_rates = if cpu_seconds >= 0.1 { rate(cpu_seconds) } else { BTreeMap::new() };
        Work { rates: rate(seconds), cpu_rates, ..Work::default() }
    }

    /// The first question to which the two gave different answers.
    pub fn contradiction(&self, other: &Work) -> Option<String> {
        self.answers.iter().find_map(|(question, answer)| {
            let theirs = other.answers.get(question)?;
            (answer != theirs).then(|| format!("question {question}: {answer}, and the twin says {theirs}"))
        })
    }
}

/// Speeds over others: the geometric mean over the kinds that both have. `None`: there is none.
pub fn ratio(one: &BTreeMap<String, f64>, other: &BTreeMap<String, f64>) -> Option<f64> {
    let logarithms: Vec<f64> = one
        .iter()
        .filter_map(|(kind, rate)| Some((*rate, *other.get(kind)?)))
        .filter(|&(one, two)| one > 0.0 && two > 0.0)
        .map(|(one, two)| (one / two).ln())
        .collect();
    let n = logarithms.len() as f64;
    (n > 0.0).then(|| (logarithms.iter().sum::<f64>() / n).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_taken_over_the_kinds_that_both_did() {
        let of = |rates: &[(&str, f64)]| rates.iter().map(|&(kind, rate)| (kind.to_owned(), rate)).collect();
        let one = of(&[("sign", 10.0), ("verify", 10.0), ("alone", 7.0)]);
        let two = of(&[("sign", 40.0), ("verify", 5.0), ("none", 0.0)]);
        assert!((ratio(&one, &two).unwrap() - (0.25f64 * 2.0).sqrt()).abs() < 1e-12);
        assert_eq!(ratio(&of(&[("alone", 7.0)]), &two), None);
        assert_eq!(ratio(&of(&[("none", 1.0)]), &two), None);
    }

    #[test]
    fn work_is_told_by_wall_clock_and_by_cpu_time() {
        let work = Work::of("requests", 100.0, 4.0, 0.5);
        assert_eq!((work.rates["requests"], work.cpu_rates["requests"]), (25.0, 200.0));
        assert!(Work::of("requests", 1.0, 4.0, 0.02).cpu_rates.is_empty());
    }

    #[test]
    fn answers_to_the_same_question_must_agree() {
        let with = |answers: &[(u64, &str)]| Work {
            answers: answers.iter().map(|&(question, answer)| (question, answer.to_owned())).collect(),
            ..Work::default()
        };
        assert_eq!(with(&[(1, "a"), (2, "b")]).contradiction(&with(&[(1, "a"), (3, "c")])), None);
        let said = with(&[(1, "a"), (2, "b")]).contradiction(&with(&[(2, "c")])).unwrap();
        assert_eq!(said, "question 2: b, and the twin says c");
    }
}
