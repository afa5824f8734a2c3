//! Interval coverage on real runs: does the interval hold the target's own truth 95 times in 100? Many short runs; intervals
//! of one run are alike, so runs are what is drawn again (cluster bootstrap), and all cells together err at 1 % (Holm).
//! Finished runs are kept in `target/.../bench/`, so that a run can be resumed.

use crate::Options;
use crate::decades::{Decades, count_all, index_of, record};
use crate::measure::Table;
use anyhow::{Context, Result};
use profiler_core::class::Source;
use profiler_core::estimate::Estimate;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

const BUDGET: f64 = 2.0;
/// Length of a run, s.
const RUN_S: u64 = 4;
/// Runs for each regime; a round of `--repeat` is eight of them.
const RUNS_PER_ROUND: u32 = 8;
const DRAWS: usize = 4_000;
/// All cells together are wrongly called bad this often.
const ERROR: f64 = 0.01;
const NOMINAL: f64 = 0.95;
/// Intervals, and runs that have one, below which a cell is not judged.
const ENOUGH: (usize, usize) = (400, 40);
/// The function that is timed.
const TIMED: &str = "dec65";

/// One interval against the truth.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Check {
    holds: bool,
    /// Width over that of an oracle that has as many independent events: `2 x 1.96 / sqrt(n)` of the value. Nothing of an interval that
    /// is open (and JSON has no infinity).
    width: Option<f64>,
}

/// Checks of one run by cell.
type Run = BTreeMap<String, Vec<Check>>;

#[derive(Default, Serialize, Deserialize)]
struct Results {
    runs: Vec<Run>,
}

fn path() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let built = program.parent().and_then(|folder| folder.parent()).context("no target directory")?;
    let folder = built.join("bench");
    std::fs::create_dir_all(&folder)?;
    Ok(folder.join("coverage.json"))
}

fn check(run: &mut Run, cell: &str, estimate: &Estimate, truth: f64) {
    if !truth.is_finite() || estimate.n == 0 || estimate.value <= 0.0 {
        return;
    }
    let oracle = 2.0 * 1.96 * estimate.value / (estimate.n as f64).sqrt();
    let check = Check {
        holds: estimate.low <= truth && truth <= estimate.high,
        width: Some((estimate.high - estimate.low) / oracle).filter(|width| width.is_finite()),
    };
    run.entry(cell.to_owned()).or_default().push(check);
}

fn one_run(phases: bool) -> Result<Run> {
    let regime = if phases { "phases" } else { "steady" };
    let mut target = Decades::start();
    target.work(phases);
    let mut more: Vec<String> =
        count_all().chunks(2).filter(|pair| pair[1] != TIMED).flatten().cloned().collect();
    more.extend(["--discover", "0", "--latency", TIMED].map(str::to_owned));
    let (report, recording) = record(target.pid(), BUDGET, RUN_S, &more)?;
    let (from, to) =
        (recording.meta.start_ns, recording.meta.end_ns.context("the agent ended its recording")?);
    let done = target.between(from, to);
    // Whole slots of 10 ms, less than the run at its edges.
    let scale = (to - from) as f64 * 1e-9 / done.seconds();
    let charged: f64 = report.receipt.spent_s.values().sum();
    let undisturbed_s = (done.seconds() * scale - charged).max(1e-9);
    let mut run = Run::new();
    for row in &report.rows {
        let Some(i) = index_of(&row.name) else { continue };
        let (calls, spent_ns) = (done.calls[i] * scale, done.spent_ns[i] * scale);
        // What is exact has no interval; of a class that was never called there is nothing to hold.
        if let Some(rate) = row.rate_hz.filter(|e| e.source == Source::Burst && calls >= 1.0) {
            check(&mut run, &format!("rate, bursts, {regime}"), &rate, calls / undisturbed_s);
        }
        if let Some(total) = row.calls.filter(|e| e.source == Source::Burst && calls >= 1.0) {
            check(&mut run, &format!("total, bursts, {regime}"), &total, calls);
        }
        if spent_ns <= 0.0 {
            continue;
        }
        if let Some(share) = row.share {
            let truth = spent_ns * 1e-9 / report.receipt.target_cpu_s;
            check(&mut run, &format!("share, this recording, {regime}"), &share, truth);
        }
        if let Some(share) = row.share_long_run {
            check(&mut run, &format!("share, long run, {regime}"), &share, 0.04);
        }
        if let Some(mean) = row.on_cpu_ns {
            check(&mut run, &format!("on-CPU per call, {regime}"), &mean, spent_ns / calls);
        }
        if let Some(mean) = row.mean_ns.filter(|e| e.low < e.high) {
            check(&mut run, &format!("mean time per call, {regime}"), &mean, spent_ns / calls);
        }
    }
    Ok(run)
}

/// Part of the draws in which coverage, were it the nominal one, comes out as low as it did.
fn p_value(runs: &[Vec<Check>], random: &mut StdRng) -> f64 {
    let sums: Vec<(f64, f64)> =
        runs.iter().map(|run| (run.iter().filter(|c| c.holds).count() as f64, run.len() as f64)).collect();
    let ratio = |list: &mut dyn Iterator<Item = (f64, f64)>| {
        let (held, all) = list.fold((0.0, 0.0), |sum, x| (sum.0 + x.0, sum.1 + x.1));
        if all > 0.0 { held / all } else { 1.0 }
    };
    let seen = ratio(&mut sums.iter().copied());
    let low = (0..DRAWS)
        .filter(|_| {
            let drawn = ratio(&mut (0..sums.len()).map(|_| sums[random.random_range(0..sums.len())]));
            drawn - seen + NOMINAL <= seen
        })
        .count();
    (low + 1) as f64 / (DRAWS + 1) as f64
}

/// Runs of a cell's regime that would give it enough intervals, by what the `runs` so far gave: `intervals` in `with_some` of them.
fn runs_wanted(intervals: usize, with_some: usize, runs: usize) -> usize {
    let scaled = |enough: usize, have: usize| (enough * runs).div_ceil(have.max(1));
    scaled(ENOUGH.0, intervals).max(scaled(ENOUGH.1, with_some))
}

/// The sentence on cells that have too few: (cell, intervals, runs wanted) of each.
fn too_few(cells: &[(&str, usize, usize)]) -> String {
    let Some(most) = cells.iter().map(|(.., wanted)| *wanted).max() else { return String::new() };
    let each: Vec<String> = cells
        .iter()
        .map(|(cell, have, wanted)| format!("{cell}: {have}, {wanted} runs of its regime"))
        .collect();
    // Half of the runs are of each regime.
    format!(
        "Too few to judge, with the runs that would give {} intervals in {} runs: {}; all of them want `--repeat {}`, {} runs.\n",
        ENOUGH.0,
        ENOUGH.1,
        each.join("; "),
        (2 * most).div_ceil(RUNS_PER_ROUND as usize),
        2 * most
    )
}

/// The cell.
pub fn coverage(options: &Options) -> Result<String> {
    let path = path()?;
    let stored = std::fs::read(&path).ok().filter(|_| !options.fresh);
    let mut results: Results =
        stored.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let wanted = (options.rounds * RUNS_PER_ROUND) as usize;
    while results.runs.len() < wanted {
        eprintln!("coverage: run {} of {wanted}", results.runs.len() + 1);
        results.runs.push(one_run(results.runs.len() % 2 == 1)?);
        std::fs::write(&path, serde_json::to_vec(&results)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut cells: BTreeMap<&str, Vec<Vec<Check>>> = BTreeMap::new();
    for run in &results.runs {
        for (cell, checks) in run {
            cells.entry(cell).or_default().push(checks.clone());
        }
    }
    let mut random = StdRng::seed_from_u64(4);
    let mut judged: Vec<(&str, &Vec<Vec<Check>>, f64)> =
        cells.iter().map(|(cell, runs)| (*cell, runs, p_value(runs, &mut random))).collect();
    judged.sort_by(|a, b| a.2.total_cmp(&b.2));
    let mut table = Table::new(&[
        "estimator, regime",
        "runs",
        "intervals",
        "hold the truth, %",
        "width over the oracle's, 2 x 1.96 / sqrt(n) of the value",
        "p",
        "verdict",
    ]);
    let many = judged.len();
    let mut few = Vec::new();
    // Holm: the smallest p against ERROR / m, the next against ERROR / (m - 1), until one is not below.
    let mut rejecting = true;
    for (rank, (cell, runs, p)) in judged.into_iter().enumerate() {
        rejecting &= p <= ERROR / (many - rank) as f64;
        let all: Vec<&Check> = runs.iter().flatten().collect();
        let held = all.iter().filter(|c| c.holds).count();
        let mut widths: Vec<f64> = all.iter().filter_map(|c| c.width).collect();
        widths.sort_by(f64::total_cmp);
        let width = widths.get(widths.len() / 2).copied();
        let mut verdict = String::new();
        if all.len() < ENOUGH.0 || runs.len() < ENOUGH.1 {
            verdict.push_str("too few to judge");
            // Every other run has phases, the first has not.
            let of_regime = (results.runs.len() + usize::from(cell.ends_with("steady"))) / 2;
            few.push((cell, all.len(), runs_wanted(all.len(), runs.len(), of_regime)));
        } else if rejecting {
            verdict.push_str("**below 95 %**");
        } else if width.is_some_and(|width| width > 1.5) {
            verdict.push_str("wide");
        }
        table.row(&[
            cell.to_owned(),
            runs.len().to_string(),
            all.len().to_string(),
            format!("{:.1}", held as f64 / all.len().max(1) as f64 * 100.0),
            width.map_or(String::new(), |width| format!("{width:.2}")),
            format!("{p:.4}"),
            verdict,
        ]);
    }
    Ok(format!(
        "{table}\n{} runs of {RUN_S} s on 100 functions over 7 decades at {BUDGET} %; the truth is the target's own count and CPU time. p: cluster \
         bootstrap by run ({DRAWS} draws) that coverage is {:.0} %; verdict after Holm at {:.0} % for all cells. The oracle knows that the n events that the estimate \
         rests on (calls, samples) are independent, and has the interval of such a mean: value x (1 +- 1.96 / sqrt(n)).\n{}",
        results.runs.len(),
        NOMINAL * 100.0,
        ERROR * 100.0,
        too_few(&few)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_that_are_wanted_follow_from_those_that_were_made() {
        // Eight intervals a run.
        assert_eq!(runs_wanted(320, 40, 40), 50);
        // Enough intervals, in too few runs.
        assert_eq!(runs_wanted(3_000, 30, 30), 40);
        // One interval in 40 runs.
        assert_eq!(runs_wanted(1, 1, 40), 16_000);
        assert_eq!(runs_wanted(400, 40, 40), 40);
        assert_eq!(too_few(&[]), "");
        assert_eq!(
            too_few(&[("share, steady", 320, 50), ("share, phases", 300, 54)]),
            "Too few to judge, with the runs that would give 400 intervals in 40 runs: share, steady: 320, 50 runs of its regime; \
             share, phases: 300, 54 runs of its regime; all of them want `--repeat 14`, 108 runs.\n"
        );
    }

    /// The width beside the oracle's: an interval of n independent events has 1.
    #[test]
    fn the_oracle_has_the_interval_of_independent_events() {
        let half = 1.96 / 400_f64.sqrt();
        let estimate = Estimate {
            value: 100.0,
            low: 100.0 * (1.0 - half),
            high: 100.0 * (1.0 + half),
            level: 0.95,
            n: 400,
            source: Source::Burst,
            at_most: false,
        };
        let mut run = Run::new();
        check(&mut run, "cell", &estimate, 109.0);
        check(&mut run, "cell", &estimate, 111.0);
        let checks = &run["cell"];
        assert!(checks[0].holds && !checks[1].holds);
        assert!((checks[0].width.unwrap() - 1.0).abs() < 1e-12, "{:?}", checks[0]);
        // A lower limit holds, and is kept between two runs of the bench.
        check(&mut run, "cell", &Estimate { high: f64::INFINITY, ..estimate }, 1e9);
        let kept: Run = serde_json::from_slice(&serde_json::to_vec(&run).unwrap()).unwrap();
        let checks = &kept["cell"];
        assert!(checks.len() == 3 && checks[2].holds && checks[2].width.is_none(), "{checks:?}");
    }
}
