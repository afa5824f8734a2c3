//! How often the intervals of totals, rates, means and shares hold what real programs say by their own counters.
//!
//! A run has three stretches without a break in the load, as those of `--durations`: unobserved, observed, unobserved. The agent gets a budget of 2 %, and in every
//! other run the names of some functions, whose calls it is to time: by itself it times none. What else is told of which function is its own choice. What the
//! truth is and how far it is known is in [`fact`].

mod again;
mod fact;
mod programs;
mod table;

use crate::durations::subject::{Case, Running};
use crate::durations::truth::{self, Counted, Reading};
use crate::durations::{NICE, NICE_BESIDE, Observed, Options, read};
use crate::observe::{LEFT_LIMIT, Observation, left_behind, observe};
use crate::place::{self, Place, text_of};
use crate::program::Mode;
use anyhow::{Context, Result, ensure};
use fact::{CPU, Fact, Sides, Span, WAIT};
use profiler_user::recording::Stream;
use programs::Subjects;
use rustix::process::{Pid, setpriority_process};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The agent's budget.
const BUDGET: &str = "2%";
/// Before the first stretch: the program has warmed up by then.
const WARM_UP: Duration = Duration::from_secs(3);
/// Length of each of the two unobserved stretches, over that of the recording.
const BESIDE: f64 = 0.25;
/// Between two readings of the program's counts, in all stretches: how far counts at the edges are known.
const BETWEEN_READINGS: Duration = Duration::from_millis(50);

/// A finished run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The program.
    pub program: String,
    /// Number of the run, from 0.
    pub round: u32,
    /// Unix time at its begin, s.
    pub began: u64,
    /// Length asked for, s.
    pub seconds: f64,
    /// Processes that ran or waited for a CPU of this machine, average of the minute at the end of the run.
    pub load: Option<f64>,
    /// The program's version.
    pub version: String,
    /// The agent's version.
    pub agent: String,
    /// Some functions were named, to be timed.
    pub named: bool,
    /// What was wrong with the program's own results or its end, or with the agent.
    pub trouble: Vec<String>,
    /// How the agent's run went.
    pub observation: Observation,
    /// The program's CPU time for a unit of its work while it was watched, over that beside, less one.
    #[serde(default)]
    pub dearer: Option<f64>,
    /// What was told of each function, beside the truth.
    pub facts: Vec<Fact>,
}

/// Runs what is not finished yet, each finished run a line of `coverage.jsonl`; returns the Markdown of all that are. With `only_table` nothing is run, and
/// this agent makes the reports of recordings that another one made, where they are still there.
///
/// # Errors
///
/// If a name is unknown, nothing is finished, or a line cannot be written.
pub fn run(options: &Options<'_>, only_table: bool) -> Result<String> {
    let subjects = programs::all();
    for only in options.only {
        let known = subjects.iter().any(|subject| subject.program.name() == only);
        ensure!(known, "no program {only} whose counters are known");
    }
    let lines = options.place.base.join("coverage.jsonl");
    let mut finished: Vec<Record> = place::finished(&lines)?;
    for round in (0..options.rounds).filter(|_| !only_table) {
        for subject in &subjects {
            let name = subject.program.name();
            if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
                continue;
            }
            if let Some(why) = subject.program.missing(options.place) {
                eprintln!("{name} is not run: {why}");
                continue;
            }
            let is_done = |record: &Record| {
                record.program == name
                    && record.round == round
                    && record.agent == options.agent_version
                    && record.trouble.is_empty()
                    && (record.seconds - options.seconds).abs() < 0.5
            };
            if finished.iter().any(is_done) {
                continue;
            }
            match one(options, subject, round) {
                Ok(record) => {
                    table::say(&record);
                    place::keep(&lines, &record)?;
                    finished.push(record);
                }
                Err(error) => eprintln!("{name} cannot be run: {error:#}"),
            }
        }
    }
    ensure!(!finished.is_empty(), "no finished runs in {}", lines.display());
    if only_table {
        judge_again(options, &subjects, &mut finished);
    }
    let order: Vec<&str> = subjects.iter().map(|subject| subject.program.name()).collect();
    Ok(table::document(&finished, &order))
}

/// Of the newest runs that another agent made.
fn judge_again(options: &Options<'_>, subjects: &[Subjects], finished: &mut [Record]) {
    let Some(recorder) = finished.last().map(|record| record.agent.clone()) else { return };
    if recorder == options.agent_version {
        return;
    }
    let is_its = |record: &&mut Record| record.agent == recorder && record.trouble.is_empty();
    for record in finished.iter_mut().filter(is_its) {
        let known = subjects.iter().find(|subject| subject.program.name() == record.program);
        let known = known.map_or(&[][..], |subject| subject.known);
        let by = (options.agent, &*options.agent_version);
        let judged = recording_of(options.place, record)
            .and_then(|recording| again::again(record, known, by, &recording));
        *record = judged.unwrap_or_else(|error| not_judged(record, &options.agent_version, &error));
    }
    // Those of the newest agent are shown: the last one says which.
    finished.sort_by_key(|record| record.agent.contains(&options.agent_version));
}

/// A run that this agent could not judge is listed, and is in no table.
fn not_judged(record: &Record, version: &str, error: &anyhow::Error) -> Record {
    let mut record = record.clone();
    record.agent = again::reports_by(&record.agent, version);
    record.trouble.push(format!("no report by {version}: {error:#}"));
    record
}

/// The folder of a run: each program, round, length and agent has its own.
fn folder_of(place: &Place, program: &str, round: u32, seconds: f64, agent: &str) -> PathBuf {
    let hash: String = Sha256::digest(agent).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    place.base.join("coverage").join(format!("{program}-{round}-{seconds}s-{hash}"))
}

/// The recording of a run: in the run's folder, or where those of all agents were once kept, if it is of this run.
fn recording_of(place: &Place, record: &Record) -> Result<PathBuf> {
    let own =
        folder_of(place, &record.program, record.round, record.seconds, &record.agent).join("run.tithe");
    if own.exists() {
        return Ok(own);
    }
    let old =
        place.base.join("coverage").join(format!("{}-{}", record.program, record.round)).join("run.tithe");
    ensure!(old.exists(), "its recording is not there any more");
    let start_s = Stream::open(&old)?.meta().start_unix_ns / 1_000_000_000;
    ensure!(is_of(record, start_s), "the recording that is there is of another run");
    Ok(old)
}

/// A recording that began at this Unix time (s) is that of the run: it begins a warm-up and a stretch after the run does.
fn is_of(record: &Record, start_s: u64) -> bool {
    // OK because it is some minutes.
    (record.began..=record.began + 60 + record.seconds as u64).contains(&start_s)
}

/// The folder in which report and recording of a run stay.
fn kept(options: &Options<'_>, program: &str, round: u32) -> Result<PathBuf> {
    let folder = folder_of(options.place, program, round, options.seconds, &options.agent_version);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// One run: the program is started, has its three stretches, and is ended.
fn one(options: &Options<'_>, subject: &Subjects, round: u32) -> Result<Record> {
    let program = &*subject.program;
    let folder = options.place.working("coverage")?;
    let kept = kept(options, program.name(), round)?;
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    // What is started inherits it.
    setpriority_process(None, NICE_BESIDE).context("cannot raise the priority")?;
    let named = round % 2 == 1;
    let (name, latency) = if named { ("latency", subject.named) } else { ("coverage", &[][..]) };
    let case = Case { name, budget: BUDGET, latency, functions: &[] };
    let mut running = program.start(options.place, &folder, &case)?;
    let pid = running.pid();
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
    setpriority_process(id, NICE).context("cannot raise the priority")?;
    std::thread::sleep(WARM_UP);
    let clock_ns = truth::clock_ns();
    let Stretches { observed, readings, beside, left } = watch(options, &case, &mut *running, pid, &kept);
    let (observation, report) = observed?;
    let mut trouble: Vec<String> = observation.failed.iter().cloned().chain(left).collect();
    trouble.extend(observation.blind(case.name));
    trouble.extend(running.finish().err().map(|error| format!("its results or its end: {error:#}")));
    let readings = readings?;
    let (mut facts, mut dearer) = (Vec::new(), None);
    if let Some(report) = &report {
        let recording = profiler_user::recording::open_without_events(&kept.join("run.tithe"))
            .map_err(|error| anyhow::anyhow!("the recording cannot be read: {error}"))?;
        match recording.meta.end_ns {
            Some(end_ns) => {
                let watched = (recording.meta.start_ns, end_ns);
                let overhead = fact::overhead(report);
                let sides = Sides { readings: &readings, stretches: beside, watched, clock_ns, overhead };
                let spans: Vec<Span> = recording.windows.iter().map(Span::of).collect();
                dearer = subject.known.first().and_then(|known| sides.dearer(known.counters));
                facts = fact::facts(subject.known, &report.rows, &spans, &sides);
            }
            None => trouble.push("the recording has no end".to_owned()),
        }
    }
    Ok(Record {
        program: program.name().to_owned(),
        round,
        began,
        seconds: options.seconds,
        load: text_of(Path::new("/proc/loadavg")).split(' ').next().and_then(|n| n.parse().ok()),
        version: program.version(options.place)?,
        agent: options.agent_version.clone(),
        named,
        trouble,
        observation,
        dearer,
        facts,
    })
}

/// What came of the three stretches.
struct Stretches {
    observed: Observed,
    /// The program's word, from before the first to after the last of them.
    readings: Result<Vec<Reading>>,
    /// Begin and end of the stretches before and after, `CLOCK_MONOTONIC`, ns.
    beside: [(u64, u64); 2],
    /// What the agent left behind.
    left: Vec<String>,
}

/// The three stretches. The program is asked all the while, so that it has the same to do in each.
fn watch(options: &Options<'_>, case: &Case, running: &mut dyn Running, pid: u32, kept: &Path) -> Stretches {
    let over = AtomicBool::new(false);
    let mode = Mode { name: case.name, arguments: case.arguments() };
    let unobserved = || {
        let begin = truth::now_ns();
        std::thread::sleep(Duration::from_secs_f64(options.seconds * BESIDE));
        (begin, truth::now_ns())
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<Vec<Reading>> {
            let mut readings = Vec::new();
            loop {
                let mut reading = read(running)?;
                for (name, ns) in [(CPU, cpu_ns(pid)?), (WAIT, wait_ns(pid)?)] {
                    reading.counted.insert(name.to_owned(), Counted { calls: ns, total_ns: None });
                }
                readings.push(reading);
                if over.load(Ordering::Relaxed) {
                    return Ok(readings);
                }
                std::thread::sleep(BETWEEN_READINGS);
            }
        });
        let before = unobserved();
        let observed = observe(options.agent, pid, &mode, options.seconds, kept);
        let left = match left_behind(pid, LEFT_LIMIT) {
            Ok(left) => left.into_iter().map(|what| format!("left behind: {what}")).collect(),
            Err(error) => vec![format!("its text cannot be compared: {error:#}")],
        };
        let after = unobserved();
        over.store(true, Ordering::Relaxed);
        let readings = reader.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the reader panicked")));
        Stretches { observed, readings, beside: [before, after], left }
    })
}

/// CPU time that all threads of a process have used, ns.
fn cpu_ns(pid: u32) -> Result<f64> {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock is written by the call; a process that has gone is an error.
    let code = unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) };
    ensure!(code == 0, "no CPU clock of process {pid}: error {code}");
    // SAFETY: the clock is that of a process, and the time is written by the call.
    let code = unsafe { libc::clock_gettime(clock, &raw mut time) };
    ensure!(code == 0, "the CPU clock of process {pid} cannot be read: {}", std::io::Error::last_os_error());
    Ok(time.tv_sec as f64 * 1e9 + time.tv_nsec as f64)
}

/// Time for which the threads of a process were ready to run and waited for a CPU, ns. Threads that have ended do not count.
fn wait_ns(pid: u32) -> Result<f64> {
    let mut sum = None;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).context("no threads")?.flatten() {
        // Time on a CPU, time of waits, and turns.
        let text = text_of(&task.path().join("schedstat"));
        let wait = text.split(' ').nth(1).and_then(|ns| ns.parse::<f64>().ok());
        sum = wait.map(|wait| wait + sum.unwrap_or(0.0)).or(sum);
    }
    sum.with_context(|| format!("the kernel does not say for how long process {pid} waited for a CPU"))
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_goes_on_while_it_works() {
        let pid = std::process::id();
        let before = cpu_ns(pid).unwrap();
        let mut sum = 0_u64;
        while cpu_ns(pid).unwrap() < before + 2e6 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu_ns(u32::MAX >> 4).is_err(), "there is no such process");
    }

    fn record() -> Record {
        Record {
            program: "redis".to_owned(),
            round: 3,
            began: 1_000,
            seconds: 40.0,
            load: None,
            version: String::new(),
            agent: "tithe 1 (aa)".to_owned(),
            named: false,
            trouble: Vec::new(),
            observation: Observation::default(),
            dearer: None,
            facts: Vec::new(),
        }
    }

    #[test]
    fn each_run_has_a_folder_of_its_own_and_an_old_recording_is_that_of_its_run_only() {
        let base = tempfile::tempdir().unwrap();
        let place = Place::new(base.path().to_owned()).unwrap();
        let folder = |round, seconds, agent| folder_of(&place, "redis", round, seconds, agent);
        let all = [folder(3, 40.0, "a"), folder(4, 40.0, "a"), folder(3, 20.0, "a"), folder(3, 40.0, "b")];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
        assert!(recording_of(&place, &record()).unwrap_err().to_string().contains("not there"));
        let own = folder(3, 40.0, "tithe 1 (aa)").join("run.tithe");
        std::fs::create_dir_all(&own).unwrap();
        assert_eq!(recording_of(&place, &record()).unwrap(), own);
        // 13 s after the run began, as it should; before it; long after it.
        assert!(is_of(&record(), 1_013) && !is_of(&record(), 999) && !is_of(&record(), 1_200));
    }

    #[test]
    fn a_run_that_cannot_be_judged_again_is_listed() {
        let failed = not_judged(&record(), "tithe 2 (bb)", &anyhow::anyhow!("it is damaged"));
        let judged =
            Record { agent: again::reports_by("tithe 1 (aa)", "tithe 2 (bb)"), round: 4, ..record() };
        let text = table::document(&[record(), failed, judged], &["redis"]);
        assert!(text.contains("- redis, round 3: no report by tithe 2 (bb): it is damaged\n"), "{text}");
    }

    #[test]
    fn waits_for_a_cpu_are_known_of_who_runs() {
        assert!(wait_ns(std::process::id()).unwrap() > 0.0);
        assert!(wait_ns(u32::MAX >> 2).is_err(), "there is no such process");
    }
}
