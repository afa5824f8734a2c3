//! What means are worth: a function of known duration, timed by bpftrace's pair and by us, each in runs of its own, in turns.
//!
//! The truth is the twin that nobody watches (`crate::durations`), in the same run. What watching does to the program is told by its rate
//! of work: before and after against meanwhile. bpftrace has no budget.

use super::bpftrace::{self, Stats};
use crate::Options;
use crate::decades::record;
use crate::durations::ns;
use crate::durations::run::{DURATIONS_NS, Pair, Told, name, number, start, stop};
use crate::durations::truth::{Log, mean};
use crate::durations::verdict::holds;
use crate::measure::{Series, Table};
use crate::scratch;
use crate::watch::Bpftrace;
use anyhow::{Context, Result};
use profiler_tests::support::{Target, monotonic_ns};
use std::time::Duration;

/// Numbers in `DURATIONS_NS`: 100 ns to 10 us.
const DURATIONS: [usize; 4] = [0, 1, 2, 3];
/// Numbers in `FORMS`: `push`, and `endbr64; push`.
const ENTRIES: [(usize, &str); 2] = [(0, "push"), (2, "endbr64; push")];
/// Before the watching and after it.
const ALONE: Duration = Duration::from_secs(1);
/// Length of a run, s.
const RUN_S: u64 = 5;
const ROUNDS: u32 = 3;
/// Percent of the program's CPU time that we may take.
const BUDGET: f64 = 5.0;

/// What a function is like in the runs of one tool.
#[derive(Debug, Default)]
struct Figures {
    /// The twin's mean, ns.
    truth: Series,
    /// The tool's mean, ns, of runs that have one.
    mean: Series,
    /// It over the truth, less 1, %.
    error: Series,
    /// Ends of the interval, ns.
    low: Series,
    high: Series,
    /// Upper limits of runs that have no more than that, ns.
    limit: Series,
    /// Runs whose interval or limit holds the truth.
    held: usize,
    /// Calls timed.
    timed: Series,
    /// A call over the run over one of the twin.
    slower_call: Series,
    /// Time for the same work, more by so many %.
    slower: Series,
}

impl Figures {
    fn note(&mut self, run: &Run) {
        let truth = run.pair.truth;
        self.truth.push(truth.value);
        self.slower_call.push(run.slower_call);
        self.slower.push(run.slower);
        let Some(told) = run.pair.told else { return };
        self.timed.push(run.timed as f64);
        self.held += usize::from(holds(&run.pair));
        let high = told.high.unwrap_or(f64::INFINITY);
        if told.at_most {
            self.limit.push(high);
            return;
        }
        self.mean.push(told.value);
        self.error.push((told.value / truth.value - 1.0) * 100.0);
        self.low.push(told.low);
        self.high.push(high);
    }

    /// `107 (105 to 110)`, `<= 240 (230 to 250)`, or both with their numbers of runs.
    fn show_mean(&self) -> String {
        let limits = || format!("<= {}", self.limit.show(0));
        match (self.mean.n(), self.limit.n()) {
            (0, 0) => "none".to_owned(),
            (0, _) => limits(),
            (_, 0) => self.mean.show(0),
            (means, n) => format!("{}, n = {means}; {}, n = {n}", self.mean.show(0), limits()),
        }
    }

    fn show_error(&self) -> String {
        if self.error.n() == 0 { String::new() } else { signed(&self.error) }
    }

    fn show_interval(&self) -> String {
        if self.low.n() == 0 {
            return String::new();
        }
        format!("{:.0} to {:.0}", self.low.median(), self.high.median())
    }
}

/// `+12.0 (-3.0 to +20.0)`.
fn signed(series: &Series) -> String {
    match series.range() {
        Some((least, most)) => format!("{:+.1} ({least:+.1} to {most:+.1})", series.median()),
        None => "not measured".to_owned(),
    }
}

/// A run.
struct Run {
    pair: Pair,
    timed: u64,
    slower_call: f64,
    slower: f64,
}

#[derive(Clone, Copy)]
enum Tool {
    Bpftrace,
    Ours(f64),
}

/// What a tool tells, and between which instants it watched.
struct Watched {
    told: Option<Told>,
    timed: u64,
    span: (u64, u64),
}

fn watch(tool: Tool, target: &mut Target, function: &str, seconds: u64) -> Result<Watched> {
    match tool {
        Tool::Bpftrace => {
            let path = profiler_tests::program("durations-c");
            let bpftrace = Bpftrace::start(target, &path, function, bpftrace::PAIR)?;
            let begin = monotonic_ns();
            std::thread::sleep(Duration::from_secs(seconds));
            let span = (begin, monotonic_ns());
            let Stats { count, mean } = bpftrace::stats(&bpftrace.finish()?)?;
            let told = Told { value: mean, low: mean, high: Some(mean), at_most: false };
            Ok(Watched { told: Some(told), timed: count, span })
        }
        Tool::Ours(budget) => {
            let more = ["--latency", function, "--discover", "0"].map(str::to_owned);
            let (report, recording) = record(target.pid(), budget, seconds, &more)?;
            let end = recording.meta.end_ns.context("the agent did not end its recording")?;
            let mean = report.rows.iter().find(|row| row.name == function).and_then(|row| row.mean_ns);
            Ok(Watched {
                told: mean.as_ref().map(Told::of),
                timed: mean.map_or(0, |mean| mean.n),
                span: (recording.meta.start_ns, end),
            })
        }
    }
}

/// Calls of a function a second, over all these spans.
fn rate(log: &Log, function: u8, spans: &[(u64, u64)]) -> f64 {
    let calls: f64 = spans.iter().map(|(from, to)| log.calls(function, *from, *to)).sum();
    let ns: u64 = spans.iter().map(|(from, to)| to.saturating_sub(*from)).sum();
    calls / ns as f64 * 1e9
}

fn one_run(tool: Tool, (duration, form): (usize, usize), seconds: u64) -> Result<Run> {
    let function = name(duration, form);
    let mut target = start("c");
    let begin = target.command("start 1").number("t0_ns");
    std::thread::sleep(ALONE);
    let before = (begin, monotonic_ns());
    let Watched { told, timed, span } = watch(tool, &mut target, &function, seconds)?;
    let from = monotonic_ns();
    std::thread::sleep(ALONE);
    let after = (from, monotonic_ns());
    let scratch = scratch::new()?;
    let path = scratch.path().join("log");
    let clock_ns = stop(&mut target, &path)?;
    let log = Log::read(&path, clock_ns)?;
    drop(scratch);
    let number = number(duration, form);
    let few = || format!("{function}: hardly called");
    let truth = mean(&log.per_call(number + 1, span, &[])).with_context(few)?;
    let watched = mean(&log.per_call(number, span, &[])).with_context(few)?;
    let alone = rate(&log, number + 1, &[before, after]);
    Ok(Run {
        pair: Pair { told, truth },
        timed,
        slower_call: watched.value / truth.value,
        slower: (alone / rate(&log, number + 1, &[span]) - 1.0) * 100.0,
    })
}

/// The part `mean`.
pub fn means(options: &Options) -> Result<String> {
    let Some(version) = Bpftrace::version() else {
        return Ok("SKIP: bpftrace is not installed\n".to_owned());
    };
    let rounds = options.repeat.unwrap_or(ROUNDS);
    let seconds = options.seconds_or(RUN_S);
    let budget = options.budgets.as_ref().and_then(|list| list.first()).copied().unwrap_or(BUDGET);
    let tools = [Tool::Bpftrace, Tool::Ours(budget)];
    let all: Vec<(usize, (usize, &str))> =
        DURATIONS.iter().flat_map(|d| ENTRIES.iter().map(move |entry| (*d, *entry))).collect();
    let mut figures: Vec<[Figures; 2]> = all.iter().map(|_| Default::default()).collect();
    for round in 0..rounds as usize {
        for ((duration, (form, _)), figures) in all.iter().zip(&mut figures) {
            eprintln!("ways:mean: {}, round {} of {rounds}", name(*duration, *form), round + 1);
            for turn in 0..2 {
                let tool = (round + turn) % 2;
                figures[tool].note(&one_run(tools[tool], (*duration, *form), seconds)?);
            }
        }
    }
    let mut means = Table::new(&[
        "entry, nominal ns",
        "truth in bpftrace's runs, ns",
        "bpftrace's mean, ns",
        "error, %",
        "truth in ours, ns",
        "our mean, ns",
        "error, %",
        "interval, ns",
        "holds",
    ]);
    let mut costs = Table::new(&[
        "entry, nominal ns",
        "timed by bpftrace",
        "by us",
        "a call over its twin, bpftrace",
        "ours",
        "program slower with bpftrace, %",
        "with us, %",
    ]);
    for ((duration, (_, entry)), [theirs, ours]) in all.iter().zip(&figures) {
        let row = format!("{entry}, {}", ns(DURATIONS_NS[*duration] as f64));
        means.row(&[
            row.clone(),
            theirs.truth.show(0),
            theirs.show_mean(),
            theirs.show_error(),
            ours.truth.show(0),
            ours.show_mean(),
            ours.show_error(),
            ours.show_interval(),
            format!("{} of {}", ours.held, ours.timed.n()),
        ]);
        costs.row(&[
            row,
            ns(theirs.timed.median()),
            ns(ours.timed.median()),
            theirs.slower_call.show(2),
            ours.slower_call.show(2),
            signed(&theirs.slower),
            signed(&ours.slower),
        ]);
    }
    Ok(format!(
        "### What means are worth\n\n{means}\n{costs}\n{version}: `{}`. Ours: `tithe record --latency F --budget {budget}% --discover 0`. n = {rounds} rounds: each tool in a run of its own of {seconds} s \
         on a program of its own, one thread that never sleeps, in turns; median (least to most). *Truth*: mean of the twin that nobody watches, in the same run. *Interval*: medians of \
         its ends; *holds*: runs whose interval or limit holds the truth (whose own error is added by squares), of those that tell one. *A call over its twin*: mean wall time over the whole run. \
         *Program slower*: rounds of work a second, in the second before and the one after over those meanwhile, less 1; a round has 50, 17, 5 and 1 calls of the functions of 100 ns to 10 us \
         in some 3 ms.\n",
        bpftrace::PAIR
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durations::truth::Truth;

    #[test]
    fn limits_stand_beside_means() {
        let mut figures = Figures::default();
        let mut note = |told: Option<(f64, f64, f64, bool)>| {
            let told = told.map(|(value, low, high, at_most)| Told { value, low, high: Some(high), at_most });
            let pair = Pair { told, truth: Truth { value: 100.0, half: 0.0 } };
            figures.note(&Run { pair, timed: 10, slower_call: 1.0, slower: 0.0 });
        };
        note(None);
        note(Some((0.0, 0.0, 240.0, true)));
        note(Some((110.0, 105.0, 115.0, false)));
        assert_eq!(figures.show_mean(), "110 (110 to 110), n = 1; <= 240 (240 to 240), n = 1");
        assert_eq!(figures.show_error(), "+10.0 (+10.0 to +10.0)");
        assert_eq!((figures.held, figures.timed.n(), figures.truth.n()), (1, 2, 3));
        assert_eq!(figures.show_interval(), "105 to 115");
    }
}
