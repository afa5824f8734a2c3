//! Anomalies: how soon is it told that something goes wrong, and what, by calls held against models, and by samples at a static rate?
//!
//! ```text
//! program (tests/field/anomalies.c) ── clean recording ──► models; what is usual of samples
//!      └── recording with --expect and samples: clean, 10 s of an anomaly, clean ──► live lines; the same run as each arm sees it
//! ```
//! One recording serves all arms of a repetition: they see the same calls, at the same time. What goes wrong is switched by the suite, which takes the time.

mod agent;
mod arms;
mod lines;
mod record;
mod slices;
mod table;
mod tables;
mod target;
mod times;

use crate::durations::Options;
use crate::observe::{LEFT_LIMIT, left_behind};
use crate::place::text_of;
use agent::Agent;
use anyhow::{Context, Result, bail, ensure};
use arms::{HIGH_HZ, Run, Stretch};
use record::Record;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tables::Tables;
use target::{Anomaly, Call, FUNCTIONS, Target};
use times::Modelled;

/// Budget of each recording, and what the agent itself may take of a CPU: what it may not take, it does not look at.
const BUDGET: &str = "5%";
const AGENT_CPU: &str = "20%";
/// Before the first recording: the program has warmed up by then.
const WARM_UP: Duration = Duration::from_secs(2);
/// How long models may take.
const MODELS_WITHIN: Duration = Duration::from_secs(60);
/// Clean before the injection at least, injected, and clean after it.
const BEFORE: Duration = Duration::from_secs(5);
const INJECTED: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(3);
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
    let mut finished: Vec<Record> = text_of(&lines)
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("{}: {line}", lines.display())))
        .collect::<Result<_>>()?;
    let counts = |r: &Record| r.agent == options.agent_version && (r.seconds - options.seconds).abs() < 0.5;
    for round in (0..options.rounds).filter(|_| !only_table) {
        let is_done = |anomaly: Anomaly| {
            let is_it = |r: &&Record| r.anomaly == anomaly.name() && r.round == round && r.trouble.is_empty();
            finished.iter().filter(|r| counts(r)).any(|r| is_it(&r))
        };
        let is_wanted =
            |a: &Anomaly| options.only.is_empty() || options.only.iter().any(|only| only == a.name());
        let mut missing: Vec<Anomaly> =
            Anomaly::ALL.into_iter().filter(is_wanted).filter(|a| !is_done(*a)).collect();
        if missing.is_empty() {
            continue;
        }
        if let Some(why) = Target::missing(options.place) {
            bail!("the program is not there: {why}");
        }
        // What comes first finds a program that has just begun.
        let first = round as usize % missing.len();
        missing.rotate_left(first);
        let ended = repeat(options, round, &missing, |record| {
            say(&record);
            let mut file = std::fs::File::options().create(true).append(true).open(&lines)?;
            writeln!(file, "{}", serde_json::to_string(&record)?)
                .with_context(|| format!("cannot write {}", lines.display()))?;
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
        "no finished runs of {} with {} s in {}",
        options.agent_version,
        options.seconds,
        lines.display()
    );
    Ok(table::document(&counted))
}

/// One repetition: a new program, a clean recording, and one recording for each of these anomalies. What fails is told in its record.
fn repeat(
    options: &Options<'_>,
    round: u32,
    anomalies: &[Anomaly],
    mut keep: impl FnMut(Record) -> Result<()>,
) -> Result<()> {
    let mut learned = learn(options).context("the clean recording")?;
    for anomaly in anomalies {
        let mut record = Record {
            anomaly: anomaly.name().to_owned(),
            round,
            seconds: options.seconds,
            agent: options.agent_version.clone(),
            load: None,
            trouble: Vec::new(),
            clean_s: 0.0,
            arms: Vec::new(),
            told: Vec::new(),
            times: Vec::new(),
        };
        if let Err(error) = watch(options, &mut learned, *anomaly, &mut record) {
            record.trouble.push(format!("{error:#}"));
        }
        record.load =
            text_of(Path::new("/proc/loadavg")).split(' ').next().and_then(|load| load.parse().ok());
        keep(record)?;
        learned.target.ensure_alive()?;
    }
    learned.target.finish()
}

/// Options of both recordings. Both are sampled at the high rate, and nothing is detached for a while: samples would be missing then.
fn arguments(more: &[&str]) -> Vec<String> {
    let rate = format!("{HIGH_HZ}");
    let common = ["--budget", BUDGET, "--agent-cpu", AGENT_CPU, "--no-ab", "--sample-rate", &rate];
    common.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

fn learn(options: &Options<'_>) -> Result<Learned> {
    let mut target = Target::start(options.place)?;
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
    let calls = learned.target.calls()?;
    let stretch = Stretch { from_ns, begin_ns, end_ns, to_ns: tables.span_ns.1 };
    let run = Run {
        anomaly,
        stretch,
        lines: &lines,
        clean: (&learned.tables, &learned.calls, learned.tables.span_ns),
        watched: (&tables, &calls),
    };
    record.clean_s = stretch.clean_s();
    let after_s = |at_ns: u64| (at_ns as f64 - begin_ns as f64) / 1e9;
    let alarms = lines.iter().filter(|line| lines::told(&line.text).is_some());
    record.told = alarms.map(|line| (after_s(line.at_ns), line.text.clone())).collect();
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
