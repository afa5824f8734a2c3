//! Anomalies: how soon is it told that something goes wrong, and what, by calls held against models, and by samples at a static rate?
//!
//! ```text
//! program (tests/field/anomalies.c) ── clean recording ──► models; what is usual of samples
//!      └── recording with --expect and samples: clean, 10 s of an anomaly, clean ──► live lines; the same run as each arm sees it
//! ```
//! One recording serves all arms of a repetition: they see the same calls, at the same time. What goes wrong is switched by the suite, which takes the time.

pub mod agent;
mod arms;
mod cusum;
pub mod lines;
mod record;
mod slices;
mod table;
mod tables;
pub mod target;
mod times;
mod verdict;

use crate::durations::Options;
use crate::observe::{LEFT_LIMIT, left_behind};
use crate::place::{self, text_of};
use agent::Agent;
use anyhow::{Context, Result, ensure};
use arms::{RATE_HZ, Run};
use record::Record;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tables::Tables;
use target::{Anomaly, Call, FUNCTIONS, Target};
use times::Modelled;
use verdict::Stretch;

/// Budget of each recording, and what the agent itself may take of a CPU: what it may not take, it does not look at.
const BUDGET: &str = "8%";
const AGENT_CPU: &str = "20%";
/// Before the first recording: the program has warmed up by then.
const WARM_UP: Duration = Duration::from_secs(2);
/// How long models may take.
const MODELS_WITHIN: Duration = Duration::from_secs(60);
/// Clean before the injection at least, injected, and clean after it.
const BEFORE: Duration = Duration::from_secs(5);
const INJECTED: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(6);
/// The agent looks once a second: each repetition begins so much later in that second than the one before, in turns.
const LATER_MS: u64 = 350;

/// A program with a clean recording of it.
struct Learned {
    target: Target,
    recording: PathBuf,
    models: Vec<Modelled>,
    tables: Tables,
    calls: Vec<Call>,
}

/// Runs what is not finished yet, each finished repetition a line of `anomalies.jsonl`; returns the Markdown of all that are. With `only_table` nothing is run.
///
/// # Errors
///
/// If a name is unknown, nothing is finished, or a line cannot be written.
pub fn run(options: &Options<'_>, only_table: bool) -> Result<String> {
    let all = Anomaly::ALL.map(Anomaly::name).join(", ");
    for only in options.only {
        ensure!(Anomaly::of(only).is_some(), "no anomaly {only}; there are {all}");
    }
    let lines = options.place.base.join("anomalies.jsonl");
    let mut finished: Vec<Record> = place::finished(&lines)?;
    let program = match Target::version(options.place) {
        Ok(program) => program,
        Err(_) if only_table => finished.last().map(|record| record.program.clone()).unwrap_or_default(),
        Err(error) => return Err(error.context("the program is not there")),
    };
    let counts = |r: &Record| {
        r.agent == options.agent_version && r.program == program && (r.seconds - options.seconds).abs() < 0.5
    };
    for round in (0..options.rounds).filter(|_| !only_table) {
        let missing = missing(options, round, |anomaly| {
            let is_it = |r: &Record| r.anomaly == anomaly.name() && r.round == round && r.trouble.is_empty();
            finished.iter().any(|r| counts(r) && is_it(r))
        });
        let ended = repeat(options, round, &program, &missing, |record| {
            say(&record);
            place::keep(&lines, &record)?;
            finished.push(record);
            Ok(())
        });
        if let Err(error) = ended {
            // What was finished before is kept, and the next round begins with a new program.
            eprintln!("round {round} cannot be finished: {error:#}");
        }
    }
    let counted: Vec<&Record> = finished.iter().filter(|record| counts(record)).collect();
    ensure!(
        !counted.is_empty(),
        "no finished runs of {} with {} s and the program {program} in {}; there are {} others",
        options.agent_version,
        options.seconds,
        lines.display(),
        finished.len()
    );
    Ok(table::document(&counted))
}

/// What is still to be done in a round, in the order in which it is done.
fn missing(options: &Options<'_>, round: u32, is_done: impl Fn(Anomaly) -> bool) -> Vec<Anomaly> {
    let is_wanted = |a: &Anomaly| options.only.is_empty() || options.only.iter().any(|only| only == a.name());
    let mut missing: Vec<Anomaly> =
        Anomaly::ALL.into_iter().filter(is_wanted).filter(|a| !is_done(*a)).collect();
    // What comes first finds a program that has just begun.
    let first = round as usize % missing.len().max(1);
    missing.rotate_left(first);
    missing
}

/// One repetition: a new program, a clean recording, and one recording for each of these anomalies. What fails is told in its record, also where nothing could be run.
fn repeat(
    options: &Options<'_>,
    round: u32,
    program: &str,
    anomalies: &[Anomaly],
    mut keep: impl FnMut(Record) -> Result<()>,
) -> Result<()> {
    if anomalies.is_empty() {
        return Ok(());
    }
    let mut learned = learn(options).context("the clean recording");
    for anomaly in anomalies {
        let of = (options.seconds, &*options.agent_version, program);
        let mut record = Record::empty(anomaly.name(), round, of);
        match &mut learned {
            Ok(learned) => {
                if let Err(error) = watch(options, learned, *anomaly, &mut record) {
                    record.trouble.push(format!("{error:#}"));
                }
                record.load =
                    text_of(Path::new("/proc/loadavg")).split(' ').next().and_then(|load| load.parse().ok());
            }
            Err(error) => record.trouble.push(format!("{error:#}")),
        }
        keep(record)?;
        if let Ok(Err(error)) = learned.as_mut().map(|learned| learned.target.ensure_alive()) {
            // The others of this round cannot be run.
            learned = Err(error.context(format!("the program ended in or after {}", anomaly.name())));
        }
    }
    learned?.target.finish()
}

/// Options of both recordings. Both are sampled at one rate, and nothing is detached for a while: samples would be missing then.
fn arguments(more: &[&str]) -> Vec<String> {
    let rate = format!("{RATE_HZ}");
    let common = ["--budget", BUDGET, "--agent-cpu", AGENT_CPU, "--no-ab", "--sample-rate", &rate];
    common.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

fn learn(options: &Options<'_>) -> Result<Learned> {
    let mut target = Target::start(options.place, true)?;
    std::thread::sleep(WARM_UP);
    let recording = target.folder().join("base.tithe");
    let duration = format!("{}s", options.seconds);
    // As many calls as there are: what is usual of samples is learned from as long a time.
    let mut more = vec!["--duration", &duration, "--datapoints", "0"];
    for function in &FUNCTIONS {
        more.extend(["--model", function.pattern, "--input", function.input]);
    }
    let mut agent = Agent::start(options.agent, target.pid(), &arguments(&more), &recording)?;
    agent.sleep(Duration::from_secs_f64(options.seconds))?;
    agent.finish()?;
    target.ensure_alive()?;
    let tables = Tables::read(&recording)?;
    let models = times::models(&recording)?;
    Ok(Learned { models, tables, calls: target.calls()?, recording, target })
}

fn watch(options: &Options<'_>, learned: &mut Learned, anomaly: Anomaly, record: &mut Record) -> Result<()> {
    let output = learned.target.folder().join("run.tithe");
    let base = learned.recording.display().to_string();
    let pid = learned.target.pid();
    let mut agent = Agent::start(options.agent, pid, &arguments(&["--expect", &base]), &output)?;
    let there = |line: &str| lines::models_are_there(line, FUNCTIONS.len());
    let (from_ns, have_all) = agent.wait_for(there, MODELS_WITHIN)?;
    ensure!(have_all, "not each of the {} functions has a model", FUNCTIONS.len());
    let place = Duration::from_millis(u64::from(record.round) * LATER_MS % 1_000);
    agent.sleep(BEFORE + place)?;
    let (begin_ns, end_ns) = learned.target.inject(anomaly, INJECTED)?;
    agent.sleep(AFTER)?;
    agent.interrupt();
    let lines = agent.finish()?;
    match left_behind(pid, LEFT_LIMIT) {
        Ok(left) => record.trouble.extend(left.into_iter().map(|what| format!("left behind: {what}"))),
        Err(error) => record.trouble.push(format!("its text cannot be compared: {error:#}")),
    }
    let tables = Tables::read(&output)?;
    // The arms at static rates are parts of these samples.
    let rate_hz = tables.samples.len() as f64 / (tables.cpu_ns.max(1.0) / 1e9);
    ensure!(
        (0.8..1.2).contains(&(rate_hz / RATE_HZ)),
        "{rate_hz:.0} samples/s of CPU time, and {RATE_HZ} were asked for"
    );
    let calls = learned.target.calls()?;
    let stretch = Stretch { from_ns, begin_ns, end_ns, to_ns: tables.span_ns.1 };
    let run = Run {
        anomaly,
        stretch,
        lines: &lines,
        clean: (&learned.tables, &learned.calls, learned.tables.span_ns),
        watched: (&tables, &calls),
        threads: learned.target.threads()?,
    };
    (record.clean_s, record.aftermath_s) = (stretch.clean_s(anomaly), stretch.aftermath_s(anomaly));
    let after_s = |at_ns: u64| (at_ns as f64 - begin_ns as f64) / 1e9;
    let alarms = lines.iter().filter(|line| lines::told(&line.text).is_some());
    record.told = alarms.map(|line| (after_s(line.at_ns), line.text.clone())).collect();
    record.untold = lines.iter().filter_map(|line| lines::untold(&line.text)).sum();
    record.arms = run.arms();
    record.times = times::times(&learned.models, &tables.calls, &stretch);
    Ok(())
}

fn say(record: &Record) {
    let arms: Vec<String> = record
        .arms
        .iter()
        .map(|arm| {
            let delay = arm.delay_s.map_or("not found".to_owned(), |delay| format!("{delay:.2} s"));
            let resource = arm.resource.as_deref().unwrap_or("unknown");
            let false_alarms = match arm.false_alarms {
                0 => String::new(),
                n => format!(", {n} FALSE"),
            };
            format!("{}: {delay}, {resource}{false_alarms}", arm.name)
        })
        .collect();
    eprintln!("{} round {}: {}", record.anomaly, record.round, arms.join("; "));
    record.trouble.iter().for_each(|what| eprintln!("    {what}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    #[test]
    fn a_round_whose_clean_recording_fails_leaves_a_record_of_each_anomaly() {
        let base = tempfile::tempdir().unwrap();
        let place = Place::new(base.path().to_owned()).unwrap();
        let options = Options {
            place: &place,
            agent: Path::new("/nonexistent/tithe"),
            agent_version: "tithe".to_owned(),
            only: &[],
            seconds: 40.0,
            rounds: 3,
        };
        let wanted = missing(&options, 2, |anomaly| anomaly == Anomaly::Cpu);
        assert_eq!(wanted, [Anomaly::Cache, Anomaly::Memory, Anomaly::Delay, Anomaly::Lock]);
        let mut kept = Vec::new();
        let ended = repeat(&options, 2, "0123", &wanted, |record| {
            kept.push(record);
            Ok(())
        });
        assert!(ended.is_err());
        let names: Vec<&str> = kept.iter().map(|record| &*record.anomaly).collect();
        assert_eq!(names, ["cache", "memory", "delay", "lock"]);
        let is_told =
            |record: &Record| record.trouble.len() == 1 && record.trouble[0].contains("the clean recording");
        assert!(kept.iter().all(|record| is_told(record) && record.round == 2), "{kept:?}");
    }
}
