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
    /// Lengths of the slices of the program and of its twin, s. `None`: an older record, whose twin had 0.6 of the length that was asked for.
    #[serde(default)]
    pub slices: Option<(f64, f64)>,
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

    /// The agent ran.
    pub fn is_watched(&self) -> bool {
        Mode::is_watched(&self.mode)
    }

    /// The agent's breakpoints were hit. (System calls bound operations without any.)
    pub fn has_hits(&self) -> bool {
        self.observation.hits > 0
    }

    /// Both slices are known to have been as long as each other, but for a tenth.
    pub fn has_equal_slices(&self) -> bool {
        self.slices.is_some_and(|(seen, twin)| (twin / seen - 1.0).abs() <= 0.1)
    }

    /// What the end of both programs says about the run before it.
    pub fn judge_end(&mut self, trouble: Option<Trouble>) {
        match trouble {
            Some(Trouble::Harm(what)) => self.harmed.push(format!("at its end: {what}")),
            Some(Trouble::Void(why)) => {
                self.void.get_or_insert(format!("at its end: {why}"));
            }
            None => {}
        }
    }

    /// Judges what the agent saw of a program that did its work: something, unless `excuse` says why it need not.
    pub fn judge_sight(&mut self, excuse: Option<&str>) {
        if !self.is_watched() {
            return;
        }
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
    /// Length of a slice, s: the agent is told to watch for so long, and what it needs beside makes the slice longer.
    pub seconds: f64,
    /// Length of a twin's slice, s, where it is to be short because speeds do not matter.
    pub twin_seconds: Option<f64>,
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
    /// Length of the last slice that was watched, s.
    last_s: Option<f64>,
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
            last_s: None,
        })
    }

    /// A run. The twin works before in odd rounds, after in even ones, for as long. Whatever happens is in the record, so that no harm is lost.
    pub fn run(&mut self, suite: &Suite, mode: &Mode, round: u32) -> Record {
        let began = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let began = began.map_or(0, |since| since.as_secs());
        let watched = Mode::is_watched(mode.name);
        let mut record = Record {
            program: self.program.name().to_owned(),
            mode: mode.name.to_owned(),
            round,
            began,
            version: self.version.clone(),
            agent: if watched { suite.agent_version.clone() } else { "none".to_owned() },
            harmed: Vec::new(),
            void: None,
            observation: Observation::default(),
            ratio: None,
            cpu_ratio: None,
            slices: None,
            rates: Default::default(),
            twin_rates: Default::default(),
            cpu_rates: Default::default(),
            twin_cpu_rates: Default::default(),
        };
        let mut before = None;
        if round % 2 == 1 {
            let length = suite.twin_seconds.or(self.last_s).unwrap_or(suite.seconds);
            before = Some((slice(&mut *self.twin, length), length));
        }
        // The one that is watched works for no less.
        let least = before.as_ref().map_or(0.0, |(_, length)| *length);
        let Watched { work: seen, report, alive, length } = self.watched(suite, mode, least, &mut record);
        self.last_s = Some(length);
        let (twin, twin_length) = before.unwrap_or_else(|| {
            let length = suite.twin_seconds.unwrap_or(length);
            (slice(&mut *self.twin, length), length)
        });
        record.slices = Some((length, twin_length));
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
        if watched {
            record.judge_length(suite.seconds, alive);
        }
        record.judge_sight(self.program.may_be_unseen(mode.name));
        if let (Some(folder), Ok(seen)) = (&suite.statistics, &seen) {
            let path = folder.join(format!("{}-{}-{round}.json", record.program, record.mode));
            let both = json!({ "program": seen.statistics, "rates": seen.rates, "cpu_rates": seen.cpu_rates, "tithe": report });
            if let Err(error) = std::fs::write(&path, format!("{both:#}")) {
                // Not a word about the program: the run counts.
                eprintln!("cannot write {}: {error}", path.display());
            }
        }
        record
    }

    /// The slice that is watched, `least` seconds or more: what the program did, and the agent. Breakpoints that stay are harm.
    fn watched(&mut self, suite: &Suite, mode: &Mode, least: f64, record: &mut Record) -> Watched {
        let start = Instant::now();
        let pid = match self.seen.begin(suite.seconds) {
            Ok(pid) => pid,
            Err(error) => return Watched { work: Err(error), report: None, alive: false, length: 0.0 },
        };
        let mut report = None;
        let mut rest = least;
        if Mode::is_watched(mode.name) {
            self.touched = true;
            match observe(&suite.agent, pid, mode, suite.seconds, &self.agent_folder) {
                Ok((observation, read)) => (record.observation, report) = (observation, read),
                // It may have been attached by then.
                Err(error) => {
                    record.observation.failed = Some(format!("it was not watched to its end: {error:#}"))
                }
            }
        } else {
            rest = rest.max(suite.seconds);
        }
        let alive = is_alive(pid);
        match left_behind(pid, LEFT_LIMIT) {
            Ok(left) if left.is_empty() => {}
            Ok(left) => {
                record.harmed.push(format!("its text is changed after the agent's end: {}", left.join(", ")));
            }
            Err(error) => record.void = Some(format!("whether breakpoints stayed is not known: {error:#}")),
        }
        std::thread::sleep((start + Duration::from_secs_f64(rest)).saturating_duration_since(Instant::now()));
        let length = start.elapsed().as_secs_f64();
        Watched { work: self.seen.end(), report, alive, length }
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
    pub fn finish(self) -> Option<Trouble> {
        let twin = self.twin.finish();
        trouble(&self.seen.finish(), &twin, self.touched)
    }
}

/// A slice that was watched.
struct Watched {
    work: Result<Work>,
    report: Option<Report>,
    /// The process that was watched ran at the agent's end.
    alive: bool,
    /// From its begin to its end, s.
    length: f64,
}

/// It runs: neither gone nor a zombie.
fn is_alive(pid: u32) -> bool {
    let stat = text_of(Path::new(&format!("/proc/{pid}/stat")));
    // The name before may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

impl Record {
    /// Judges for how long the agent watched a program that did its work, of the `seconds` that it was to: less is its failure, if the process
    /// still ran (`alive`).
    fn judge_length(&mut self, seconds: f64, alive: bool) {
        let covered = self.observation.covered_s;
        if !self.harmed.is_empty() || self.observation.failed.is_some() || covered >= 0.8 * seconds {
            return;
        }
        if alive {
            let took = self.observation.took_s;
            self.observation.failed = Some(format!(
                "it watched for {covered:.1} of {seconds} s (ran for {took:.1} s), and the process still runs"
            ));
        } else {
            self.void.get_or_insert(format!("watched for {covered:.1} s only: the process ended"));
        }
    }
}

/// What an error of the watched program or of its twin means.
#[derive(Debug, PartialEq)]
pub enum Trouble {
    /// The agent harmed the program.
    Harm(String),
    /// The run says nothing.
    Void(String),
}

/// Judges errors. The watched program's is harm, whatever its twin does, if the agent has `touched` it; the twin's alone
/// leaves nothing to compare with.
fn trouble<T>(seen: &Result<T>, twin: &Result<T>, touched: bool) -> Option<Trouble> {
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

    /// A record of a run in which nothing has gone wrong yet.
    fn record(mode: &str, covered_s: f64) -> Record {
        let line = format!(
            r#"{{"program":"redis","mode":"{mode}","round":0,"began":0,"version":"","agent":"","harmed":[],"void":null,
            "observation":{{"status":"exit status: 0","failed":null,"took_s":1.5,"covered_s":{covered_s},"predicted":0,
            "worst_second":0,"traced":0,"hits":0,"operations":0,"agent_cpu":0,"remarks":[]}},
            "ratio":null,"cpu_ratio":null,"rates":{{}},"twin_rates":{{}},"cpu_rates":{{}},"twin_cpu_rates":{{}}}}"#
        );
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn an_agent_that_ends_before_its_time_has_failed_if_the_target_lives() {
        let judged = |covered_s, alive| {
            let mut record = record("5%", covered_s);
            record.judge_length(5.0, alive);
            (record.observation.failed.is_some(), record.void.is_some())
        };
        assert_eq!(judged(4.0, true), (false, false));
        assert_eq!(judged(1.0, true), (true, false));
        assert_eq!(judged(1.0, false), (false, true));
    }

    #[test]
    fn who_runs_is_alive_and_who_is_not_reaped_is_not() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        assert!(is_alive(child.id()));
        child.kill().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while is_alive(child.id()) {
            assert!(Instant::now() < end, "a killed process runs");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn a_bad_end_is_harm_whatever_the_twin_does() {
        let ended = |seen: Result<()>, twin: Result<()>| {
            let mut record = record("5%", 5.0);
            record.judge_end(trouble(&seen, &twin, true));
            (record.harmed, record.void)
        };
        let bad = || Err(anyhow::anyhow!("signal 4"));
        assert_eq!(ended(Ok(()), Ok(())), (vec![], None));
        let (harmed, void) = ended(bad(), bad());
        assert_eq!(
            (harmed, void),
            (vec!["at its end: signal 4 (its twin failed, too: signal 4)".to_owned()], None)
        );
        let (harmed, void) = ended(Ok(()), bad());
        assert_eq!((harmed, void), (vec![], Some("at its end: signal 4".to_owned())));
    }

    #[test]
    fn who_is_not_watched_need_not_be_seen() {
        let failed = |mode| {
            let mut record = record(mode, 0.0);
            record.judge_sight(None);
            record.observation.failed.is_some()
        };
        assert!(failed("5%") && !failed("none"));
        let equal = |slices| Record { slices, ..record("5%", 5.0) }.has_equal_slices();
        assert!(equal(Some((5.0, 5.4))) && !equal(Some((5.0, 3.0))) && !equal(None));
    }
}
