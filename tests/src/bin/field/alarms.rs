//! False alarms: how often does `record --expect` tell that something is wrong where nothing is?
//!
//! Ten programs run at once, most of them twice, each for a part of a CPU, as services do. Of each a recording is made first; then all are held against theirs, for as long as a piece lasts. Nothing goes
//! wrong with them, so that each alarm is a false one. Pieces of different programs are different recordings.

mod subjects;
mod table;

use crate::anomalies::agent::Agent;
use crate::anomalies::lines;
use crate::durations::Options;
use crate::durations::truth::now_ns;
use crate::observe::{LEFT_LIMIT, left_behind};
use crate::place::{self, text_of};
use anyhow::{Context, Result, ensure};
use profiler_user::recording::Stream;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use subjects::{Running, SUBJECTS, Subject};

/// Budget of each recording: the programs are idle for most of the time, so that it is some 1 % of a CPU. Everything else is as without options.
const BUDGET: &str = "20%";
/// Before the first recording: the programs have warmed up by then.
const WARM_UP: Duration = Duration::from_secs(3);
/// Length of the recordings that models are made of.
const LEARNED: Duration = Duration::from_secs(90);
/// How long models may take, of all programs at once.
const MODELS_WITHIN: Duration = Duration::from_secs(60);
/// Between two looks at whether all still run.
const LOOK: Duration = Duration::from_secs(5);
/// The longest piece, s: SQLite's program logs each of its calls, and has room for so many.
const LONGEST_S: f64 = 3_600.0;

/// A program that was watched for a piece.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    /// The program.
    pub program: String,
    /// Which of those that ran at once, from 0.
    pub copy: u32,
    /// Number of the piece, from 0.
    pub round: u32,
    /// Length asked for, s.
    pub seconds: f64,
    /// The agent's version, and which programs there were ([`subjects::version`]).
    pub agent: String,
    pub programs: String,
    /// So many programs ran at once.
    pub at_once: usize,
    /// Processes that ran or waited for a CPU, average of the minute at its end.
    pub load: Option<f64>,
    /// What went wrong: it does not count then.
    pub trouble: Vec<String>,
    /// From the models on to the end, s.
    pub watched_s: f64,
    /// Functions with a model.
    pub functions: usize,
    /// Calls that were judged, and recorded ones that were not looked at.
    pub judged: u64,
    pub not_looked_at: u64,
    /// The alarms: s since the models were there, and the text.
    pub told: Vec<(f64, String)>,
    /// What was counted of them.
    #[serde(flatten)]
    pub counted: Counted,
}

/// What was counted of alarms, and of what is none.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Counted {
    /// Alarms that were not told one by one.
    pub untold: u64,
    /// Incidents, as the agent counts them: alarms at most 30 s apart are one.
    #[serde(default)]
    pub incidents: u64,
    /// Calls that were told to be the slowest so far, which are no alarms.
    #[serde(default)]
    pub notes: u64,
}

/// A program, and the agent that watches it.
struct Watched {
    running: Running,
    agent: Agent,
    from_ns: u64,
    record: Record,
}

/// Runs the pieces that are not finished yet, each program of a piece a line of `alarms.jsonl`; returns the Markdown of all that are. With `only_table` nothing is run.
///
/// # Errors
///
/// If a name is unknown, nothing is finished, or a line cannot be written.
pub fn run(options: &Options<'_>, only_table: bool) -> Result<String> {
    let names: Vec<&str> = SUBJECTS.iter().map(|subject| subject.name).collect();
    for only in options.only {
        ensure!(names.contains(&&**only), "no program {only}; there are {}", names.join(", "));
    }
    ensure!(
        options.seconds <= LONGEST_S,
        "--seconds {}: a piece takes at most {LONGEST_S} s",
        options.seconds
    );
    let lines = options.place.base.join("alarms.jsonl");
    let mut finished: Vec<Record> = place::finished(&lines)?;
    let is_wanted =
        |s: &&'static Subject| options.only.is_empty() || options.only.iter().any(|only| only == s.name);
    let copies = |subject: &'static Subject| (0..subject.copies).map(move |copy| (subject, copy));
    let wanted: Vec<(&Subject, u32)> = SUBJECTS.iter().filter(is_wanted).flat_map(copies).collect();
    let programs = match subjects::version(options.place) {
        Ok(programs) => programs,
        Err(_) if only_table => finished.last().map(|record| record.programs.clone()).unwrap_or_default(),
        Err(error) => return Err(error.context("the programs are not there")),
    };
    let counts = |r: &Record| {
        (&*r.agent, &*r.programs, r.at_once) == (&*options.agent_version, &*programs, wanted.len())
            && (r.seconds - options.seconds).abs() < 0.5
    };
    for round in (0..options.rounds).filter(|_| !only_table) {
        let is_missing = |(subject, copy): &(&Subject, u32)| {
            let is_it = |r: &Record| (&*r.program, r.copy, r.round) == (subject.name, *copy, round);
            !finished.iter().any(|r| counts(r) && is_it(r) && r.trouble.is_empty())
        };
        let missing: Vec<(&Subject, u32)> = wanted.iter().copied().filter(is_missing).collect();
        if missing.is_empty() {
            continue;
        }
        // Each among all others, as the others were; kept at once, as the last ones may take minutes to end.
        piece(options, &programs, round, &wanted, &mut |record| {
            if !missing.iter().any(|(subject, copy)| (subject.name, *copy) == (&*record.program, record.copy))
            {
                return Ok(());
            }
            say(&record);
            place::keep(&lines, &record)?;
            finished.push(record);
            Ok(())
        })?;
    }
    let counted: Vec<&Record> = finished.iter().filter(|record| counts(record)).collect();
    ensure!(
        !counted.is_empty(),
        "no finished pieces of {} with {} s in {}; there are {} others",
        options.agent_version,
        options.seconds,
        lines.display(),
        finished.len()
    );
    Ok(table::document(&counted))
}

/// All these programs at once: a recording of each, and then each held against its own. `done` is given each as soon as it is over.
fn piece(
    options: &Options<'_>,
    programs: &str,
    round: u32,
    subjects: &[(&'static Subject, u32)],
    done: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<()> {
    let of = |subject: &Subject, copy: u32| Record {
        program: subject.name.to_owned(),
        copy,
        round,
        seconds: options.seconds,
        agent: options.agent_version.clone(),
        programs: programs.to_owned(),
        at_once: subjects.len(),
        ..Record::default()
    };
    let mut records = Vec::new();
    let mut started = Vec::new();
    for &(subject, copy) in subjects {
        match subject.start(options.place, copy) {
            Ok(running) => started.push((running, of(subject, copy))),
            Err(error) => records.push(of(subject, copy).with(&error.context("it did not start"))),
        }
    }
    if started.is_empty() {
        return records.into_iter().try_for_each(done);
    }
    std::thread::sleep(WARM_UP);
    let learned = learn(options, started, &mut records);
    let mut watched = expect(options, learned, &mut records);
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    while Instant::now() < end {
        std::thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
        for one in &mut watched {
            let state = one.running.ensure_alive().and_then(|()| one.agent.ensure_runs());
            if let (Err(error), true) = (state, one.record.trouble.is_empty()) {
                one.record = std::mem::take(&mut one.record).with(&error);
            }
        }
    }
    // All before any: the end of one must not be seen by the others as something that goes wrong.
    let to_ns = now_ns();
    watched.iter().for_each(|one| one.agent.interrupt());
    records.into_iter().try_for_each(&mut *done)?;
    watched.into_iter().try_for_each(|one| done(finish(one, to_ns)))
}

/// Clean recordings of all programs at the same time.
fn learn(
    options: &Options<'_>,
    started: Vec<(Running, Record)>,
    records: &mut Vec<Record>,
) -> Vec<(Running, Record, PathBuf)> {
    let duration = format!("{}s", LEARNED.as_secs());
    let mut agents = Vec::new();
    for (mut running, record) in started {
        let output = running.folder().join("base.tithe");
        let mut arguments =
            vec!["--budget".to_owned(), BUDGET.to_owned(), "--duration".to_owned(), duration.clone()];
        for (pattern, input) in running.subject().functions {
            arguments.extend(["--model", pattern, "--input", input].map(str::to_owned));
        }
        arguments.extend(running.subject().words.iter().flat_map(|word| ["--word", word]).map(str::to_owned));
        match Agent::start(options.agent, running.pid(), &arguments, &output) {
            Ok(agent) => agents.push((running, record, output, agent)),
            Err(error) => records.push(record.with(&error)),
        }
    }
    std::thread::sleep(LEARNED);
    let mut learned = Vec::new();
    for (running, record, output, agent) in agents {
        match agent.finish().context("the clean recording") {
            Ok(_) => learned.push((running, record, output)),
            Err(error) => records.push(record.with(&error)),
        }
    }
    learned
}

/// Begins to hold each program against its recording.
fn expect(
    options: &Options<'_>,
    learned: Vec<(Running, Record, PathBuf)>,
    records: &mut Vec<Record>,
) -> Vec<Watched> {
    let mut begun = Vec::new();
    for (mut running, record, base) in learned {
        let output = running.folder().join("run.tithe");
        let arguments = ["--budget", BUDGET, "--expect", &base.display().to_string()].map(str::to_owned);
        match Agent::start(options.agent, running.pid(), &arguments, &output) {
            Ok(agent) => begun.push((running, record, agent)),
            Err(error) => records.push(record.with(&error)),
        }
    }
    let mut watched = Vec::new();
    for (running, mut record, mut agent) in begun {
        record.functions = running.subject().functions.len();
        let there = |line: &str| lines::models_are_there(line, record.functions);
        match agent.wait_for(there, MODELS_WITHIN) {
            Ok((from_ns, true)) => watched.push(Watched { running, agent, from_ns, record }),
            Ok((_, false)) => {
                agent.interrupt();
                let said = agent.finish().unwrap_or_default();
                let why =
                    said.iter().map(|line| line.text.trim()).find(|line| line.starts_with("not judged"));
                let error =
                    anyhow::anyhow!("not each function has a model: {}", why.unwrap_or("no reason was told"));
                records.push(record.with(&error));
            }
            Err(error) => records.push(record.with(&error)),
        }
    }
    watched
}

/// The end of a piece, and what was told in it.
fn finish(one: Watched, to_ns: u64) -> Record {
    let Watched { mut running, agent, from_ns, mut record } = one;
    record.watched_s = to_ns.saturating_sub(from_ns) as f64 / 1e9;
    match agent.finish() {
        Ok(said) => {
            let alarms = said.iter().filter(|line| lines::told(&line.text).is_some());
            record.told =
                alarms.map(|line| ((line.at_ns as f64 - from_ns as f64) / 1e9, line.text.clone())).collect();
            record.counted.untold = said.iter().filter_map(|line| lines::untold(&line.text)).sum();
            record.counted.notes = said.iter().filter(|line| lines::is_note(&line.text)).count() as u64;
            if let Err(error) = record.take_counts(&running.folder().join("run.tithe")) {
                record = record.with(&error);
            }
        }
        Err(error) => record = record.with(&error),
    }
    match left_behind(running.pid(), LEFT_LIMIT) {
        Ok(left) => record.trouble.extend(left.into_iter().map(|what| format!("left behind: {what}"))),
        Err(error) => record.trouble.push(format!("its text cannot be compared: {error:#}")),
    }
    if let Err(error) = running.finish() {
        record = record.with(&error.context("its end"));
    }
    record.load = text_of(Path::new("/proc/loadavg")).split(' ').next().and_then(|load| load.parse().ok());
    record
}

impl Record {
    fn with(mut self, error: &anyhow::Error) -> Record {
        self.trouble.push(format!("{error:#}"));
        self
    }

    /// What the recording says of the calls of each function. Where none were judged, no alarm says nothing.
    fn take_counts(&mut self, path: &Path) -> Result<()> {
        let stream = Stream::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let expected = stream.meta().models.as_ref().and_then(|models| models.expected.as_ref());
        let expected = expected.context("the recording says nothing of expected calls")?;
        for function in &expected.functions {
            ensure!(function.calls > 0, "no call of {} was judged", function.function);
        }
        ensure!(
            expected.functions.len() >= self.functions,
            "{} functions were judged",
            expected.functions.len()
        );
        self.judged = expected.functions.iter().map(|function| function.calls).sum();
        self.not_looked_at = expected.not_looked_at;
        self.counted.incidents = expected.incidents;
        Ok(())
    }

    /// Alarms of functions, and of all of them together.
    pub fn alarms(&self) -> (u64, u64) {
        let of_machine =
            |(_, text): &&(f64, String)| lines::told(text).is_some_and(|told| told.function.is_none());
        let machine = self.told.iter().filter(of_machine).count() as u64;
        (self.told.len() as u64 - machine + self.counted.untold, machine)
    }
}

fn say(record: &Record) {
    let (alarms, machine) = record.alarms();
    eprintln!(
        "{} {} piece {}: {:.0} s, {} calls judged, {alarms} alarms, {machine} of the machine",
        record.program,
        record.copy + 1,
        record.round,
        record.watched_s,
        record.judged
    );
    for (at_s, text) in &record.told {
        eprintln!("    {at_s:.1} s: {text}");
    }
    record.trouble.iter().for_each(|what| eprintln!("    {what}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    #[test]
    fn programs_that_do_not_start_are_told_and_do_not_count() {
        let base = tempfile::tempdir().unwrap();
        let place = Place::new(base.path().to_owned()).unwrap();
        let only = ["crc32".to_owned()];
        let options = Options {
            place: &place,
            agent: Path::new("/nonexistent/tithe"),
            agent_version: "tithe".to_owned(),
            only: &only,
            seconds: 1.0,
            rounds: 1,
        };
        assert!(run(&options, false).unwrap_err().to_string().contains("the programs are not there"));
        std::fs::create_dir_all(place.built("own")).unwrap();
        for file in ["grows", "anomalies", "anomalies-delay.so"] {
            std::fs::write(place.built("own").join(file), "").unwrap();
        }
        let text = run(&options, false).unwrap();
        assert!(text.contains("crc32 1 piece 0: it did not start"), "{text}");
        let kept: Vec<Record> = place::finished(&base.path().join("alarms.jsonl")).unwrap();
        assert_eq!(kept.iter().map(|record| record.copy).collect::<Vec<_>>(), [0, 1]);
        assert!(kept.iter().all(|record| record.watched_s == 0.0 && record.trouble.len() == 1));
        let unknown = ["nothing".to_owned()];
        assert!(
            run(&Options { only: &unknown, ..options }, false).unwrap_err().to_string().contains("nothing")
        );
    }

    #[test]
    fn alarms_of_functions_and_of_the_machine_are_told_apart() {
        let of_function = "tithe: longer than expected: f, thread 1, at 1.0 s, n = 1: should have taken 1.00 us (1.00 us to 2.00 us) and took 5.00 us: CPU (99 % of the excess)";
        let of_machine = "tithe: longer than expected: the machine: 5 of 6 functions take about 1.31 times what was expected; from here on each is held against the others";
        let told = [of_function, of_machine, of_function].map(|text| (1.0, text.to_owned())).to_vec();
        let record =
            Record { told, counted: Counted { untold: 4, ..Counted::default() }, ..Record::default() };
        assert_eq!(record.alarms(), (6, 1));
    }
}
