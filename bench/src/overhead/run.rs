//! One run: the program works, the agent watches it, and both say what that took.

use super::truth::{self, Cycle, Parts};
use crate::decades::record;
use crate::durations::{Told, Truth, start_before_others};
use crate::scratch;
use anyhow::{Context, Result, ensure};
use profiler_core::estimate::Estimate;
use profiler_core::recording::{Charge, Recording, WindowKind};
use profiler_core::report::Report;
use profiler_tests::support::{Target, monotonic_ns};
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::time::Duration;

/// The functions that are watched, and whether their calls are timed.
pub const FUNCTIONS: [(&str, bool); 7] = [
    ("hot_push", false),
    ("hot_nop5", false),
    ("hot_sub", false),
    ("some_push", false),
    ("timed_push", true),
    ("some_sub", false),
    ("rare_sub", false),
];
/// Of the work before anything is measured.
const WARM_UP: Duration = Duration::from_millis(300);
/// Stretches without the agent, before it comes and after it left.
const ALONE: Duration = Duration::from_millis(1_500);

/// What was told of a part, and what is true, over the program's own CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// By the receipt.
    pub told: Told,
    /// By the program.
    pub truth: Truth,
}

/// Hits of one function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hits {
    /// Its name.
    pub name: String,
    /// In survey windows.
    pub survey: u64,
    /// In bursts.
    pub burst: u64,
    /// While it was traced.
    pub traced: u64,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// All of the overhead.
    pub overhead: Part,
    /// Told: traps and what they leave behind. True: both differences of turns.
    pub traps: Part,
    /// Told: traps by their samples alone. True: what is in the watched turn.
    pub in_turn: Part,
    /// Told: what traps leave behind. True: the first turn of the twins less the second (a part of it).
    pub behind: Part,
    /// Samples, switches, attaching; the truth has the last two from the ledger.
    pub beside: Part,
    /// Switches and attaching: by the ledger, and what hits all turns alike and is no sample.
    pub rest: Part,
    /// What a sample takes by the program's clock, ns.
    pub true_sample_ns: Truth,
    /// Samples, and those that fell into traps.
    pub samples: [u64; 2],
    /// By the ledger, at the prices that were charged, over the program's own CPU time.
    pub predicted: f64,
    /// CPU time by the ledger over that by the program's clock, both of the run.
    pub cpu_over_clock: f64,
    /// Price of a sample as charged, and at the end, ns.
    pub sample_ns: [f64; 2],
    /// CPU time by the ledger: samples, switches, attaching, s.
    pub beside_s: [f64; 3],
    /// Hits of each function.
    pub hits: Vec<Hits>,
}

/// A run of so many seconds at a budget in percent; `is_wide`: of work that fills the caches.
///
/// # Errors
///
/// If the agent fails, if it told no measured overhead, or if the program's records are not whole.
pub fn one_run(budget: f64, is_wide: bool, seconds: u64) -> Result<Run> {
    let mut target = start_before_others(&mut Command::new(profiler_tests::program("overhead")));
    target.command(if is_wide { "start 1" } else { "start" });
    std::thread::sleep(WARM_UP);
    let begin_ns = monotonic_ns();
    std::thread::sleep(ALONE);
    let before = (begin_ns, monotonic_ns());
    let mut more: Vec<String> = FUNCTIONS
        .iter()
        .flat_map(|(name, is_timed)| {
            [if *is_timed { "--latency" } else { "--count" }.to_owned(), (*name).to_owned()]
        })
        .collect();
    more.extend(["--discover", "0"].map(str::to_owned));
    let (report, recording) = record(target.pid(), budget, seconds, &more)?;
    let left_ns = monotonic_ns();
    std::thread::sleep(ALONE);
    let after = (left_ns, monotonic_ns());
    let cycles = stop(&mut target)?;
    let end_ns = recording.meta.end_ns.context("the agent did not end its recording")?;
    let alone = [between(&cycles, before), between(&cycles, after)].concat();
    let run = between(&cycles, (recording.meta.start_ns, end_ns));
    let mut samples: Vec<u64> = recording.samples.iter().map(|s| s.time_ns).collect();
    samples.extend(recording.trap_samples.iter().map(|s| s.time_ns));
    let others_ns = spent(&recording, Charge::Switches).1 + spent(&recording, Charge::Attach).1;
    let parts = truth::parts(&alone, run, &samples, others_ns).context("the program did too little")?;
    told(&report, &recording, &parts, run)
}

/// Ends the work: what the program has to say of it.
fn stop(target: &mut Target) -> Result<Vec<Cycle>> {
    let stopped = target.command("stop");
    ensure!(stopped.number("lost") == 0, "the program had no room for its records");
    let scratch = scratch::new()?;
    let path = scratch.path().join("cycles");
    target.command(&format!("dump {}", path.display()));
    truth::read(&path)
}

/// The cycles that began between two instants, of cycles in order of time.
fn between(cycles: &[Cycle], (from_ns, to_ns): (u64, u64)) -> &[Cycle] {
    let at = |ns: u64| cycles.partition_point(|c| c.begin_ns < ns);
    &cycles[at(from_ns)..at(to_ns).max(at(from_ns))]
}

/// The sum of two figures whose distances to their limits add by squares.
fn both(a: Told, b: Told) -> Told {
    let high = a.high.zip(b.high).map(|(x, y)| (x - a.value).hypot(y - b.value));
    let value = a.value + b.value;
    let low = value - (a.value - a.low).hypot(b.value - b.low);
    Told { value, low, high: high.map(|up| value + up), at_most: a.at_most || b.at_most }
}

/// Units and CPU time of a kind by the ledger, ns.
fn spent(recording: &Recording, charge: Charge) -> (f64, f64) {
    let rows = recording.ledger.iter().filter(|row| row.charge == charge);
    rows.fold((0.0, 0.0), |(units, ns), row| (units + row.units as f64, ns + row.cost_ns as f64))
}

fn told(report: &Report, recording: &Recording, parts: &Parts, run: &[Cycle]) -> Result<Run> {
    let receipt = &report.receipt;
    let in_place = receipt.in_place.as_ref().context("no overhead was measured")?;
    let part = |told: &Estimate, truth: Truth| Part { told: Told::of(told), truth };
    let traps = Truth {
        value: parts.in_turn.value + parts.after_turn.value,
        half: parts.in_turn.half.hypot(parts.after_turn.half),
    };
    let of = |charge: Charge| spent(recording, charge);
    let (samples, samples_ns) = of(Charge::Samples);
    let others = (of(Charge::Switches).1 + of(Charge::Attach).1) * 1e-9 / receipt.target_cpu_s.max(1e-9);
    let beside = Truth { value: parts.samples.value + others, half: parts.samples.half.hypot(others) };
    let clock_ns: f64 = run.iter().map(|c| c.watched + c.first + c.second + c.between).sum();
    let cpu_s = receipt.target_cpu_s + receipt.predicted * receipt.target_cpu_s;
    Ok(Run {
        overhead: part(&in_place.overhead, parts.overhead),
        traps: Part { told: both(Told::of(&in_place.traps), Told::of(&in_place.behind)), truth: traps },
        in_turn: part(&in_place.traps, parts.in_turn),
        behind: part(&in_place.behind, parts.after_turn),
        beside: part(&in_place.beside, beside),
        rest: Part {
            told: Told { value: others, low: 0.0, high: Some(2.0 * others), at_most: false },
            truth: parts.rest,
        },
        true_sample_ns: parts.sample_ns,
        samples: [in_place.samples, in_place.in_traps],
        predicted: receipt.predicted,
        cpu_over_clock: cpu_s / (clock_ns * 1e-9),
        sample_ns: [
            samples_ns / samples.max(1.0),
            recording.meta.agent.prices_at_end.map_or(0.0, |prices| prices.sample.ns),
        ],
        beside_s: [Charge::Samples, Charge::Switches, Charge::Attach].map(|charge| of(charge).1 * 1e-9),
        hits: FUNCTIONS.iter().map(|(name, _)| hits(name, recording)).collect(),
    })
}

fn hits(name: &str, recording: &Recording) -> Hits {
    let ids: Vec<u32> = recording.classes.iter().filter(|c| c.name == name).map(|c| c.class_id).collect();
    let of = |kind: WindowKind| {
        let windows = recording.windows.iter().filter(|w| w.kind == kind && ids.contains(&w.class_id));
        windows.map(|w| w.attempted).sum()
    };
    let (survey, burst, traced) = (of(WindowKind::Survey), of(WindowKind::Burst), of(WindowKind::Trace));
    Hits { name: name.to_owned(), survey, burst, traced }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_those_between_two_instants() {
        let at = |begin_ns| Cycle { begin_ns, watched: 1.0, first: 1.0, second: 1.0, between: 0.0 };
        let cycles = [at(10), at(20), at(30), at(40)];
        assert_eq!(between(&cycles, (20, 40)), &cycles[1..3]);
        assert_eq!(between(&cycles, (40, 20)), &[]);
        assert_eq!(between(&cycles, (0, 100)).len(), 4);
    }

    #[test]
    fn parts_add_and_their_limits_by_squares() {
        let one = Told { value: 1.0, low: 0.7, high: Some(1.5), at_most: false };
        let other = Told { value: 2.0, low: 1.6, high: Some(3.2), at_most: false };
        let sum = both(one, other);
        assert!((sum.value - 3.0).abs() < 1e-12 && (sum.low - 2.5).abs() < 1e-12);
        assert!((sum.high.unwrap() - 4.3).abs() < 1e-12);
        assert_eq!(both(one, Told { high: None, ..other }).high, None);
    }
}
