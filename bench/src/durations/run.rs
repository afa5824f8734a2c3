//! One run: the program works, the agent times its functions, and both are asked.

use super::truth::{Log, Truth, mean, median};
use crate::decades::{record_into, told_again};
use anyhow::{Context, Result, ensure};
use profiler_core::class::{ExitMode, SiteClass};
use profiler_core::estimate::Estimate;
use profiler_core::recording::Recording;
use profiler_core::report::{Report, Row};
use profiler_tests::support::{Target, monotonic_ns};
use serde::{Deserialize, Serialize};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Nominal durations, ns, and entry forms; functions are numbered in this order.
pub const DURATIONS_NS: [u64; 5] = [100, 300, 1_000, 10_000, 1_000_000];
/// See `DURATIONS_NS`.
pub const FORMS: [&str; 4] = ["push", "nop5", "endbr", "sub"];
/// Of the work before the agent comes.
const WARM_UP: Duration = Duration::from_millis(300);
/// Stretches without the agent, before and after it, if one thread runs: samples, attaching and the agent interrupt the twins as they do the
/// functions, and a mean of 1 ms shows that.
const ALONE: Duration = Duration::from_millis(1_000);
/// Names in the folder of a run.
const LOG: &str = "log";
/// See `LOG`; written when the run is whole.
const KEPT: &str = "run.json";
/// Around a window its breakpoints may be in the text, ns.
const MARGIN_NS: u64 = 150_000_000;

/// What the report says of a figure; `high` is `None` where it is open.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// Point estimate.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: Option<f64>,
    /// Only the upper end is known.
    pub at_most: bool,
}

impl Told {
    /// An estimate of the report.
    pub fn of(e: &Estimate) -> Self {
        let high = Some(e.high).filter(|high| high.is_finite());
        Self { value: e.value, low: e.low, high, at_most: e.at_most }
    }
}

/// A figure of one function in one run, and its truth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// What the report says; `None`: nothing.
    pub told: Option<Told>,
    /// What is true.
    pub truth: Truth,
}

/// One function in one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// Number in `DURATIONS_NS`.
    pub duration: usize,
    /// Number in `FORMS`.
    pub form: usize,
    /// Price class of the entry site, and how calls end; empty: it had no class.
    pub way: String,
    /// The entry is single-stepped.
    pub stepped: bool,
    /// Calls that were timed.
    pub timed: u64,
    /// Mean time of a call, ns.
    pub mean: Pair,
    /// Median, ns.
    pub p50: Pair,
    /// Calls of the run.
    pub calls: Pair,
    /// Median of the function over that of its twin, while the function was not watched.
    pub over_twin: Option<f64>,
    /// Mean of the twin over its P50 while the agent was there, over the same without it.
    pub interrupted: Option<f64>,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Threads of the program.
    pub threads: u32,
    /// Each function.
    pub functions: Vec<Seen>,
    /// CPU seconds of the agent and its probes over those of the program, by the receipt.
    pub spent: f64,
}

/// From when to when, ns of `CLOCK_MONOTONIC`.
type Span = (u64, u64);

/// What is kept of a run beside its recording and the program's records.
#[derive(Serialize, Deserialize)]
struct Kept {
    threads: u32,
    /// What a reading of the clock puts into a batch, ns.
    clock_ns: f64,
    /// There was no agent.
    alone: Option<[Span; 2]>,
}

/// Parts of the program's life.
struct Spans {
    /// The agent watched.
    run: Span,
    /// There was none.
    alone: Option<[Span; 2]>,
}

/// A twin while there is no agent.
struct Alone {
    mean: Truth,
    p50: Truth,
}

impl Alone {
    /// Of the times of its calls; `None` of fewer than two.
    fn of(per_call: &[f64]) -> Option<Self> {
        let mut ascending = per_call.to_vec();
        ascending.sort_by(f64::total_cmp);
        Some(Self { mean: mean(&ascending)?, p50: median(&ascending)? })
    }

    /// The mean at the clock frequency at which the median is `p50`: `mean x p50 / its own p50`. Samples hit one call of 1 ms in ten, so that a median
    /// has next to nothing of them, and frequency moves all calls.
    fn mean_at(&self, p50: Truth) -> Truth {
        let value = self.mean.value * p50.value / self.p50.value;
        let relative = |of: &Truth| of.half / of.value;
        let half = relative(&self.mean).hypot(relative(&self.p50)).hypot(relative(&p50));
        Truth { value, half: value * half }
    }
}

/// The name of a function.
pub fn name(duration: usize, form: usize) -> String {
    format!("d{}_{}", DURATIONS_NS[duration], FORMS[form])
}

/// Names and numbers of all functions.
pub fn all() -> impl Iterator<Item = (usize, usize)> {
    (0..DURATIONS_NS.len()).flat_map(|duration| (0..FORMS.len()).map(move |form| (duration, form)))
}

/// A program before everything else that has no real-time priority: what other programs of the machine take is no duration of its
/// functions.
pub fn start_before_others(command: &mut Command) -> Target {
    let prefer = || {
        // A session of its own has a scheduling group of its own; where there are none, the priority does it.
        // SAFETY: setsid and setpriority take plain numbers.
        unsafe {
            libc::setsid();
            libc::setpriority(libc::PRIO_PROCESS, 0, -20);
        }
        let _ = std::fs::write("/proc/self/autogroup", "-20");
        Ok(())
    };
    // SAFETY: between fork and exec of a bench of one thread, nobody holds the allocator's lock.
    unsafe { command.pre_exec(prefer) };
    Target::start_command(command)
}

/// The program of a language, before everything else.
pub fn start(language: &str) -> Target {
    start_before_others(&mut Command::new(profiler_tests::program(&format!("durations-{language}"))))
}

/// A run of so many seconds at a budget in percent. What was recorded, and what the program says, is kept in `folder`.
///
/// # Errors
///
/// If the agent fails, or the program's records are not whole.
pub fn one_run(folder: &Path, language: &str, threads: u32, budget: f64, seconds: u64) -> Result<Run> {
    // What an earlier bench did not end.
    let _ = std::fs::remove_dir_all(folder);
    let mut target = start(language);
    target.command(&format!("start {threads}"));
    std::thread::sleep(WARM_UP);
    let begin_ns = monotonic_ns();
    if threads == 1 {
        std::thread::sleep(ALONE);
    }
    let before = (begin_ns, monotonic_ns());
    let mut more: Vec<String> = all().flat_map(|(d, f)| ["--latency".to_owned(), name(d, f)]).collect();
    more.extend(["--discover", "0"].map(str::to_owned));
    let (report, recording) = record_into(folder, target.pid(), budget, seconds, &more)?;
    let left_ns = monotonic_ns();
    if threads == 1 {
        std::thread::sleep(ALONE);
    }
    let alone = (threads == 1).then_some([before, (left_ns, monotonic_ns())]);
    let clock_ns = stop(&mut target, &folder.join(LOG))?;
    let kept = Kept { threads, clock_ns, alone };
    std::fs::write(folder.join(KEPT), serde_json::to_vec(&kept)?)?;
    judged(&kept, &report, &recording, &Log::read(&folder.join(LOG), clock_ns)?)
}

/// A run that was kept, and ended.
pub fn is_whole(folder: &Path) -> bool {
    folder.join(KEPT).exists()
}

/// A run that was kept, by the report that this build makes of it.
///
/// # Errors
///
/// If it is not whole.
pub fn again(folder: &Path) -> Result<Run> {
    let bytes =
        std::fs::read(folder.join(KEPT)).with_context(|| format!("no run in {}", folder.display()))?;
    let kept: Kept = serde_json::from_slice(&bytes)?;
    let (report, recording) = told_again(folder)?;
    judged(&kept, &report, &recording, &Log::read(&folder.join(LOG), kept.clock_ns)?)
}

fn judged(kept: &Kept, report: &Report, recording: &Recording, log: &Log) -> Result<Run> {
    let end_ns = recording.meta.end_ns.context("the agent did not end its recording")?;
    let spans = Spans { run: (recording.meta.start_ns, end_ns), alone: kept.alone };
    let functions = all().map(|at| seen(at, report, recording, log, &spans)).collect::<Result<_>>()?;
    let spent = report.receipt.spent_s.values().sum::<f64>() / report.receipt.target_cpu_s.max(1e-9);
    Ok(Run { threads: kept.threads, functions, spent })
}

/// Ends the work, and writes what the program has to say of it to `path`: what a reading of the clock puts into a batch, ns.
///
/// # Errors
///
/// If the program had no room for its records.
pub fn stop(target: &mut Target, path: &Path) -> Result<f64> {
    let stopped = target.command("stop");
    ensure!(stopped.number("lost") == 0, "the program had no room for its records");
    target.command(&format!("dump {}", path.display()));
    Ok(stopped.number("clock_ns") as f64)
}

/// The number of a function in the program's records; that of its twin is one more.
pub fn number(duration: usize, form: usize) -> u8 {
    // OK because there are 40.
    ((duration * FORMS.len() + form) * 2) as u8
}

fn seen(
    (duration, form): (usize, usize),
    report: &Report,
    recording: &Recording,
    log: &Log,
    spans: &Spans,
) -> Result<Seen> {
    let span = spans.run;
    let name = name(duration, form);
    let number = number(duration, form);
    let row = report.rows.iter().find(|row| row.name == name);
    let class = recording.classes.iter().find(|c| c.name == name && c.stamps_of.is_none());
    let twin = log.per_call(number + 1, span, &[]);
    let few = || format!("{name}: its twin was hardly called");
    let told = |of: fn(&Row) -> Option<Estimate>| row.and_then(of).as_ref().map(Told::of);
    let p50 = |row: &Row| row.quantiles_ns.iter().find(|(p, _)| *p == 0.5).map(|(_, e)| *e);
    let true_p50 = median(&twin).with_context(few)?;
    let in_run = mean(&twin).with_context(few)?;
    let alone = match &spans.alone {
        Some(parts) => Some(
            Alone::of(&parts.map(|part| log.per_call(number + 1, part, &[])).concat()).with_context(few)?,
        ),
        None => None,
    };
    let watched: Vec<(u64, u64)> = recording
        .windows
        .iter()
        .filter(|w| class.is_some_and(|c| is_of(c.class_id, w.class_id, recording)))
        .map(|w| (w.start_ns.saturating_sub(MARGIN_NS), w.end_ns + MARGIN_NS))
        .collect();
    let unwatched = median(&log.per_call(number, span, &watched));
    Ok(Seen {
        duration,
        form,
        way: class.map_or_else(String::new, |c| format!("{}, {}", c.site_class.name(), ending(c.exit_mode))),
        stepped: class.is_some_and(|c| c.site_class == SiteClass::Stepped),
        timed: row.and_then(|row| row.mean_ns).map_or(0, |e| e.n),
        mean: Pair {
            told: told(|row| row.mean_ns),
            truth: alone.as_ref().map_or(in_run, |alone| alone.mean_at(true_p50)),
        },
        p50: Pair { told: told(p50), truth: true_p50 },
        calls: Pair {
            told: told(|row| row.calls),
            truth: Truth { value: log.calls(number, span.0, span.1), half: 0.0 },
        },
        over_twin: unwatched.map(|own| own.value / true_p50.value),
        interrupted: alone.map(|alone| in_run.value / alone.mean_at(true_p50).value),
    })
}

/// The windows of a class are its own, and those of the pair of sites that measures the price of its time stamps.
fn is_of(class: u32, window: u32, recording: &Recording) -> bool {
    class == window || recording.classes.iter().any(|c| c.class_id == window && c.stamps_of == Some(class))
}

fn ending(mode: ExitMode) -> &'static str {
    match mode {
        ExitMode::None => "no end",
        ExitMode::ReturnLink => "return link",
        ExitMode::ExitSites => "exit sites",
        ExitMode::ReturnSites => "return-address sites",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_without_the_agent_follows_the_frequency() {
        let alone = Alone { mean: Truth { value: 110.0, half: 3.3 }, p50: Truth { value: 100.0, half: 4.0 } };
        let found = alone.mean_at(Truth { value: 105.0, half: 12.6 });
        assert!((found.value - 115.5).abs() < 1e-9);
        // 3, 4 and 12 %: 13 %.
        assert!((found.half - 115.5 * 0.13).abs() < 1e-9, "{found:?}");
        let of = Alone::of(&[3.0, 1.0, 2.0, 10.0]).unwrap();
        assert_eq!((of.mean.value, of.p50.value), (4.0, 3.0));
    }
}
