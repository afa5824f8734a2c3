//! What the agent says of durations and calls, beside what the programs say of themselves.
//!
//! A run has three stretches, without a break in the load: unobserved, observed, unobserved (A-B-A). Mean times of the program's own come from the
//! first and the last, for its clock counts our traps, too; counts come from the observed one itself, read ten times a second and interpolated
//! to the recording's begin and end. A second instance at the same time would share the two CPUs of a small machine with the first and with both
//! loads, and would not have the first one's caches.

pub mod clocked;
pub mod figure;
pub mod memcached;
mod postgresql;
mod redis;
pub mod subject;
mod table;
pub mod truth;

use crate::observe::{LEFT_LIMIT, Observation, left_behind, observe};
use crate::place::{self, Place};
use crate::program::Mode;
use anyhow::{Context, Result, bail, ensure};
use figure::{Figure, Sides};
use profiler_core::report::Report;
use rustix::process::{Pid, setpriority_process};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use subject::{Case, Judged, Running};
use truth::Reading;

/// Before the first stretch: the program has warmed up by then.
const WARM_UP: Duration = Duration::from_secs(2);
/// Length of each of the two unobserved stretches.
const UNOBSERVED: Duration = Duration::from_secs(6);
/// Between two readings of the program's counts while it is observed.
const BETWEEN_READINGS: Duration = Duration::from_millis(100);
/// Nice values of the watched process, and of its load and the agent: other work on the machine takes the CPU from them less often. A preempted
/// call lasts milliseconds.
pub const NICE: i32 = -20;
pub const NICE_BESIDE: i32 = -10;

/// What the command line asks for.
pub struct Options<'a> {
    /// Where programs lie.
    pub place: &'a Place,
    /// The agent.
    pub agent: &'a Path,
    /// Its version.
    pub agent_version: String,
    /// `PROGRAM`, or `PROGRAM:CASE` where programs have cases; none: all.
    pub only: &'a [String],
    /// Length of the observed stretch, s.
    pub seconds: f64,
    /// Runs of each program or case.
    pub rounds: u32,
}

/// A finished run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The program.
    pub program: String,
    /// The case.
    pub case: String,
    /// The agent's budget.
    pub budget: String,
    /// Number of the run, from 0.
    pub round: u32,
    /// Unix time at its begin, s.
    pub began: u64,
    /// Length asked for, s.
    pub seconds: f64,
    /// Processes that ran or waited for a CPU of this machine, average of the minute at the end of the run; `None`: an older record.
    #[serde(default)]
    pub load: Option<f64>,
    /// The program's version.
    pub version: String,
    /// The agent's version.
    pub agent: String,
    /// What was wrong with the program's own results or its end.
    pub harmed: Vec<String>,
    /// How the agent's run went.
    pub observation: Observation,
    /// What was said of each function.
    pub figures: Vec<Figure>,
}

fn programs() -> Vec<Box<dyn Judged>> {
    let mut all: Vec<Box<dyn Judged>> = vec![Box::new(redis::Redis), Box::new(postgresql::PostgreSql)];
    all.extend(clocked::all().into_iter().map(|library| Box::new(library) as Box<dyn Judged>));
    all.push(Box::new(memcached::Memcached));
    all
}

/// Runs what is not finished yet, each finished run a line of `durations.jsonl`; returns the Markdown of all that are. With `only_table` nothing
/// is run.
///
/// # Errors
///
/// If nothing is finished, or a line cannot be written.
pub fn run(options: &Options<'_>, only_table: bool) -> Result<String> {
    let programs = programs();
    let wants = |program: &str, case: &str| {
        let is = |only: &String| *only == program || *only == format!("{program}:{case}");
        options.only.is_empty() || options.only.iter().any(is)
    };
    for only in options.only {
        let known = programs.iter().any(|program| {
            let is = |case: &Case| *only == format!("{}:{}", program.name(), case.name);
            only == program.name() || program.cases().iter().any(is)
        });
        ensure!(known, "no program or case {only} whose durations are judged");
    }
    let lines = options.place.base.join("durations.jsonl");
    let mut finished: Vec<Record> = place::finished(&lines)?;
    for round in (0..options.rounds).filter(|_| !only_table) {
        for program in &programs {
            if let Some(why) = program.missing(options.place) {
                eprintln!("{} is not run: {why}", program.name());
                continue;
            }
            for case in program.cases() {
                let done = finished.iter().any(|record| {
                    let same = record.program == program.name() && record.case == case.name;
                    same && record.round == round && (record.seconds - options.seconds).abs() < 0.5
                });
                if done || !wants(program.name(), case.name) {
                    continue;
                }
                match one(options, &**program, &case, round) {
                    Ok(record) => {
                        table::say(&record);
                        place::keep(&lines, &record)?;
                        finished.push(record);
                    }
                    Err(error) => eprintln!("{}:{} cannot be run: {error:#}", program.name(), case.name),
                }
            }
        }
    }
    ensure!(!finished.is_empty(), "no finished runs in {}", lines.display());
    finished.iter_mut().for_each(|record| judge_again(record, options.place));
    let order: Vec<(String, String)> = programs
        .iter()
        .flat_map(|program| {
            let name = program.name().to_owned();
            program.cases().into_iter().map(move |case| (name.clone(), case.name.to_owned()))
        })
        .collect();
    Ok(table::document(&finished, &order))
}

/// The folder in which report and recording of a run stay.
fn kept(place: &Place, program: &str, case: &str, round: u32) -> PathBuf {
    place.base.join("durations").join(format!("{program}-{}-{round}", case.replace(' ', "-")))
}

/// Reads the recording of a finished run once more, if it is still there: a report is computed from its recording alone, and this build may
/// compute it better than the agent of the run did.
fn judge_again(record: &mut Record, place: &Place) {
    let path = kept(place, &record.program, &record.case, record.round).join("run.tithe");
    let Ok(recording) = profiler_user::recording::open_without_events(&path) else { return };
    let report = Report::from_recording(&recording);
    record.figures.iter_mut().for_each(|figure| figure.judge_again(&report, &recording));
}

/// One run: the program is started, has its three stretches, and is ended.
fn one(options: &Options<'_>, program: &dyn Judged, case: &Case, round: u32) -> Result<Record> {
    let folder = options.place.working("durations")?;
    let kept = kept(options.place, program.name(), case.name, round);
    if kept.exists() {
        std::fs::remove_dir_all(&kept)?;
    }
    std::fs::create_dir_all(&kept)?;
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    // What is started inherits it.
    setpriority_process(None, NICE_BESIDE).context("cannot raise the priority")?;
    let mut running = program.start(options.place, &folder, case)?;
    let pid = running.pid();
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
    setpriority_process(id, NICE).context("cannot raise the priority")?;
    std::thread::sleep(WARM_UP);
    let clock_ns = truth::clock_ns();
    let before = unobserved(&mut *running)?;
    let (observed, readings) = watch(options, case, &mut *running, pid, &kept);
    let (observation, report) = observed?;
    let mut harmed = Vec::new();
    match left_behind(pid, LEFT_LIMIT) {
        Ok(left) => harmed.extend(left.into_iter().map(|what| format!("left behind: {what}"))),
        Err(error) => harmed.push(format!("its text cannot be compared: {error:#}")),
    }
    let after = unobserved(&mut *running);
    if let Err(error) = running.finish() {
        harmed.push(format!("{error:#}"));
    }
    let readings = readings?;
    let stretches = [before, after?];
    let sides = Sides { stretches: &stretches, readings: &readings, clock_ns };
    let figures = match &report {
        Some(report) => {
            let recording = profiler_user::recording::open_without_events(&kept.join("run.tithe"))
                .map_err(|error| anyhow::anyhow!("the recording cannot be read: {error}"))?;
            let each = case.functions.iter();
            each.flat_map(|name| figure::figures(name, report, &recording, &sides)).collect()
        }
        None => Vec::new(),
    };
    Ok(Record {
        program: program.name().to_owned(),
        case: case.name.to_owned(),
        budget: case.budget.to_owned(),
        round,
        began,
        seconds: options.seconds,
        load: crate::place::text_of(Path::new("/proc/loadavg"))
            .split(' ')
            .next()
            .and_then(|n| n.parse().ok()),
        version: program.version(options.place)?,
        agent: options.agent_version.clone(),
        harmed,
        observation,
        figures,
    })
}

/// How the agent's run went, and its report.
pub type Observed = Result<(Observation, Option<Report>)>;

/// The observed stretch, and what the program said meanwhile.
fn watch(
    options: &Options<'_>,
    case: &Case,
    running: &mut dyn Running,
    pid: u32,
    kept: &Path,
) -> (Observed, Result<Vec<Reading>>) {
    let over = AtomicBool::new(false);
    let mode = Mode { name: case.name, arguments: case.arguments() };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<Vec<Reading>> {
            let mut readings = vec![read(running)?];
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(BETWEEN_READINGS);
                readings.push(read(running)?);
            }
            Ok(readings)
        });
        let observed = observe(options.agent, pid, &mode, options.seconds, kept);
        over.store(true, Ordering::Relaxed);
        let readings = match reader.join() {
            Ok(readings) => readings,
            Err(_) => Err(anyhow::anyhow!("the reader panicked")),
        };
        (observed, readings)
    })
}

/// The two ends of a stretch that nobody watches.
fn unobserved(running: &mut dyn Running) -> Result<[Reading; 2]> {
    let first = read(running)?;
    std::thread::sleep(UNOBSERVED);
    Ok([first, read(running)?])
}

/// What the program says now: as of the middle of the time that asking took.
///
/// # Errors
///
/// If it does not answer, or says nothing of itself.
pub fn read(running: &mut dyn Running) -> Result<Reading> {
    let begin = truth::now_ns();
    let counted = running.read()?;
    let at_ns = begin.midpoint(truth::now_ns());
    if counted.is_empty() {
        bail!("the program says nothing of itself");
    }
    Ok(Reading { at_ns, counted })
}
