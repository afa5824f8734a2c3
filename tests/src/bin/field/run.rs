//! One run: a slice of work while the agent watches, a slice of an unobserved twin, and the judgement.

use crate::observe::{LEFT_LIMIT, Observation, left_behind, observe};
use crate::place::{Place, text_of};
use crate::program::{Instance, Mode, Program, Work, ratio};
use anyhow::{Context, Result};
use profiler_core::report::Report;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is kept of a run: a line of `runs.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The program.
    pub program: String,
    /// How it was watched.
    pub mode: String,
    /// 0 for its first run.
    pub round: u32,
    /// When it began, seconds since 1970.
    pub began: u64,
    /// The program's version.
    pub version: String,
    /// The agent's version, and its executable's SHA-256, first digits.
    pub agent: String,
    /// What happened to the program that does not happen to its twin.
    pub harmed: Vec<String>,
    /// Why the run says nothing, if it was not harmed: what went wrong with the twin, or that it was hardly watched.
    pub void: Option<String>,
    /// The agent.
    pub observation: Observation,
    /// Throughput over the twin's.
    pub ratio: Option<f64>,
    /// Work per CPU time over the twin's.
    pub cpu_ratio: Option<f64>,
    /// Work per second.
    pub rates: std::collections::BTreeMap<String, f64>,
    /// Work per second of the twin.
    pub twin_rates: std::collections::BTreeMap<String, f64>,
    /// Work per second of CPU time.
    pub cpu_rates: std::collections::BTreeMap<String, f64>,
    /// Work per second of CPU time of the twin.
    pub twin_cpu_rates: std::collections::BTreeMap<String, f64>,
}

impl Record {
    /// It says nothing: it is not counted, and is run again.
    pub fn is_void(&self) -> bool {
        self.void.is_some() && self.harmed.is_empty()
    }

    /// Judges what the agent saw of a program that did its work: something, unless `excuse` says why it need not.
    pub fn judge_sight(&mut self, excuse: Option<&str>) {
        let sound = self.void.is_none() && self.harmed.is_empty() && self.observation.failed.is_none();
        if sound && excuse.is_none() {
            self.observation.failed = self.observation.blind(&self.mode);
        }
    }
}

/// What all runs share.
pub struct Suite<'a> {
    /// The folders.
    pub place: &'a Place,
    /// The agent's executable.
    pub agent: PathBuf,
    /// See [`Record::agent`].
    pub agent_version: String,
    /// Length of an observed slice, s.
    pub seconds: f64,
    /// Length of a twin's slice, s.
    pub twin_seconds: f64,
    /// Where statistics are kept: the programs' own beside the agent's.
    pub statistics: Option<PathBuf>,
}

/// A program that is up twice: one instance is watched, its twin never.
pub struct Pair<'a> {
    program: &'a dyn Program,
    version: String,
    seen: Box<dyn Instance>,
    twin: Box<dyn Instance>,
    seen_folder: PathBuf,
    twin_folder: PathBuf,
    agent_folder: PathBuf,
    /// The agent has been started on it.
    touched: bool,
}

impl<'a> Pair<'a> {
    /// Starts both.
    ///
    /// # Errors
    ///
    /// If one does not come up: nothing was watched yet.
    pub fn start(suite: &Suite, program: &'a dyn Program) -> Result<Pair<'a>> {
        let place = suite.place;
        let (seen_folder, twin_folder) = (place.working("seen")?, place.working("twin")?);
        Ok(Pair {
            program,
            version: program.version(place)?,
            seen: program.start(place, &seen_folder).context("the instance to watch")?,
            twin: program.start(place, &twin_folder).context("the twin")?,
            seen_folder,
            twin_folder,
            agent_folder: place.working("agent")?,
            touched: false,
        })
    }

    /// A run. The twin works before in odd rounds, after in even ones.
    ///
    /// # Errors
    ///
    /// If the agent cannot be started or statistics cannot be written; everything else is in the record.
    pub fn run(&mut self, suite: &Suite, mode: &Mode, round: u32) -> Result<Record> {
        let began = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
        let mut record = Record {
            program: self.program.name().to_owned(),
            mode: mode.name.to_owned(),
            round,
            began,
            version: self.version.clone(),
            agent: suite.agent_version.clone(),
            harmed: Vec::new(),
            void: None,
            observation: Observation::default(),
            ratio: None,
            cpu_ratio: None,
            rates: Default::default(),
            twin_rates: Default::default(),
            cpu_rates: Default::default(),
            twin_cpu_rates: Default::default(),
        };
        let mut twin = Err(anyhow::anyhow!("not yet"));
        if round % 2 == 1 {
            twin = slice(&mut *self.twin, suite.twin_seconds);
        }
        let (seen, observation, report) = self.watched(suite, mode, &mut record)?;
        record.observation = observation;
        if round.is_multiple_of(2) {
            twin = slice(&mut *self.twin, suite.twin_seconds);
        }
        match trouble(&seen, &twin, self.touched) {
            Some(Trouble::Harm(what)) => record.harmed.push(what),
            Some(Trouble::Void(why)) => record.void = Some(why),
            None => {}
        }
        if let (Ok(seen), Ok(twin)) = (&seen, &twin) {
            record.harmed.extend(seen.contradiction(twin));
            record.ratio = ratio(&seen.rates, &twin.rates);
            record.cpu_ratio = ratio(&seen.cpu_rates, &twin.cpu_rates);
            record.rates.clone_from(&seen.rates);
            record.twin_rates.clone_from(&twin.rates);
            record.cpu_rates.clone_from(&seen.cpu_rates);
            record.twin_cpu_rates.clone_from(&twin.cpu_rates);
        }
        record.harmed.extend(self.complaints());
        let covered = record.observation.covered_s;
        if record.harmed.is_empty() && record.observation.failed.is_none() && covered < 0.8 * suite.seconds {
            record.void.get_or_insert(format!("watched for {covered:.1} s only"));
        }
        record.judge_sight(self.program.may_be_unseen(mode.name));
        if let (Some(folder), Ok(seen)) = (&suite.statistics, &seen) {
            let path = folder.join(format!("{}-{}-{round}.json", record.program, record.mode));
            let both = json!({ "program": seen.statistics, "rates": seen.rates, "cpu_rates": seen.cpu_rates, "tithe": report });
            std::fs::write(&path, serde_json::to_vec_pretty(&both)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(record)
    }

    /// The slice that is watched: what the program did, and the agent. Breakpoints that stay are harm.
    fn watched(
        &mut self,
        suite: &Suite,
        mode: &Mode,
        record: &mut Record,
    ) -> Result<(Result<Work>, Observation, Option<Report>)> {
        let pid = match self.seen.begin(suite.seconds) {
            Ok(pid) => pid,
            Err(error) => return Ok((Err(error), Observation::default(), None)),
        };
        self.touched = true;
        let (observation, report) = observe(&suite.agent, pid, mode, suite.seconds, &self.agent_folder)?;
        match left_behind(pid, LEFT_LIMIT) {
            Ok(left) if left.is_empty() => {}
            Ok(left) => {
                record.harmed.push(format!("its text is changed after the agent's end: {}", left.join(", ")));
            }
            Err(error) => record.void = Some(format!("whether breakpoints stayed is not known: {error:#}")),
        }
        Ok((self.seen.end(), observation, report))
    }

    /// Lines of trouble in the program's log that its twin's log does not have, and files of crashes.
    fn complaints(&self) -> Vec<String> {
        let of = |folder: &Path| complaints(&text_of(&folder.join("log")));
        let twin = of(&self.twin_folder);
        let mut found: Vec<String> =
            of(&self.seen_folder).difference(&twin).map(|line| format!("it logged: {line}")).collect();
        for entry in std::fs::read_dir(&self.seen_folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("core") || name.starts_with("hs_err") {
                found.push(format!("it left {name}"));
            }
        }
        found
    }

    /// Ends both. What the watched one does wrong then is harm done in the last run.
    pub fn finish(self) -> Vec<String> {
        let twin = self.twin.finish();
        match (self.seen.finish(), twin) {
            (Err(error), Ok(())) => vec![format!("at its end: {error:#}")],
            _ => Vec::new(),
        }
    }
}

/// What an error of the watched program or of its twin means.
#[derive(Debug, PartialEq)]
enum Trouble {
    Harm(String),
    Void(String),
}

/// Judges errors. The watched program's is harm, whatever its twin does, if the agent has `touched` it; the twin's alone
/// leaves nothing to compare with.
fn trouble(seen: &Result<Work>, twin: &Result<Work>, touched: bool) -> Option<Trouble> {
    match (seen, twin) {
        (Ok(_), Ok(_)) => None,
        (Ok(_), Err(twin)) => Some(Trouble::Void(format!("{twin:#}"))),
        (Err(seen), _) if !touched => Some(Trouble::Void(format!("before it was watched: {seen:#}"))),
        (Err(seen), Ok(_)) => Some(Trouble::Harm(format!("{seen:#}"))),
        (Err(seen), Err(twin)) => Some(Trouble::Harm(format!("{seen:#} (its twin failed, too: {twin:#})"))),
    }
}

/// A slice of work that nobody watches.
fn slice(instance: &mut dyn Instance, seconds: f64) -> Result<Work> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    instance.begin(seconds)?;
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    instance.end()
}

/// Words of trouble.
const TROUBLE: [&str; 9] =
    ["error", "fatal", "panic", "abort", "segfault", "corrupt", "assert", "signal", "exception"];

/// Lines with words of trouble; digits are one and the same, so that times and process ids do not tell two apart.
fn complaints(log: &str) -> BTreeSet<String> {
    log.lines()
        .filter(|line| {
            let line = line.to_lowercase();
            TROUBLE.iter().any(|word| line.contains(word))
        })
        .map(|line| {
            let mut text: String = line.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
            while text.contains("00") {
                text = text.replace("00", "0");
            }
            text
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_while_watched_is_harm_whatever_the_twin_does() {
        let well = || Ok(Work::default());
        let dead = |what: &'static str| Err(anyhow::anyhow!(what));
        assert_eq!(trouble(&well(), &well(), true), None);
        assert_eq!(trouble(&well(), &dead("twin"), true), Some(Trouble::Void("twin".to_owned())));
        assert_eq!(trouble(&dead("seen"), &well(), true), Some(Trouble::Harm("seen".to_owned())));
        let both = trouble(&dead("seen"), &dead("twin"), true);
        assert_eq!(both, Some(Trouble::Harm("seen (its twin failed, too: twin)".to_owned())));
        assert!(matches!(trouble(&dead("seen"), &well(), false), Some(Trouble::Void(_))));
    }

    #[test]
    fn lines_of_trouble_are_compared_without_their_numbers() {
        let one = complaints("12:30 [71] LOG: ready\n12:31 [71] ERROR: deadlock of 5\n");
        let two = complaints("9:02 [1234] ERROR: deadlock of 17\n");
        assert_eq!(one.len(), 1);
        assert_eq!(one.difference(&two).count(), 0);
        let three = complaints("worker was terminated by signal 11: Segmentation fault\n");
        assert_eq!(three.difference(&one).count(), 1);
    }
}
