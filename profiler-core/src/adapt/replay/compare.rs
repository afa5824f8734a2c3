//! All policies over one full trace, several times: what `tithe plan replay` shows.
//!
//! Each run has a seed of its own, the same for all policies, so that quotients are paired. The interval of a mean is over
//! runs (Student); a quotient is the geometric mean over runs.

use super::recorded::FullTrace;
use super::score::{Score, score, score_of, thin};
use super::{ReplayError, Run, replay};
use crate::adapt::cycle::CycleEnd;
use crate::adapt::{AdaptConfig, PolicyKind};
use crate::class::Source;
use crate::estimate::Estimate;
use crate::stats::LEVEL;
use crate::stats::moments::Moments;
use serde::Serialize;

/// What is replayed, and how often.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The policies, in the order of the answer.
    pub policies: Vec<PolicyKind>,
    /// Their settings.
    pub config: AdaptConfig,
    /// Runs; at least 1.
    pub runs: u32,
    /// Seed of the first run; each further one has the next.
    pub seed: u64,
    /// Budget of monitoring, CPU s/s.
    pub cpu_per_s: Option<f64>,
}

/// One policy over all runs. Errors are of the measure's means by type, in its unit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyResult {
    /// Its name.
    pub policy: String,
    /// Recorded / all operations.
    pub rate: Estimate,
    /// CPU time of monitoring, CPU s/s, by the model.
    pub cpu_per_s: Estimate,
    /// Rise of the mean response time over that without monitoring, a share, by the model.
    pub slower: Estimate,
    /// RMSE of plain means against the full trace (the paper's); `None` without a sample.
    pub rmse: Option<Estimate>,
    /// RMSE of the relative errors, a share.
    pub relative_rmse: Option<Estimate>,
    /// RMSE of post-stratified means.
    pub weighted_rmse: Option<Estimate>,
    /// RMSE of plain means with every sample thinned to the smallest.
    pub equal_rmse: Option<Estimate>,
    /// Intervals of post-stratified means that hold the truth / intervals.
    pub coverage: Option<Estimate>,
    /// Largest difference of a type's share in sample and population.
    pub mix_difference: Option<Estimate>,
    /// Types with operations and none recorded, mean over runs.
    pub unobserved_types: f64,
    /// Cycles of a run, mean.
    pub cycles: f64,
    /// Length of a cycle, s, mean; `None` without cycles.
    pub cycle_s: Option<f64>,
    /// Operations recorded in a cycle, mean; `None` without cycles.
    pub cycle_sample: Option<f64>,
    /// Cycles that ended at their time limit, mean of a run.
    pub timeouts: f64,
}

/// One policy's error over another's, paired.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Quotient {
    /// `adp/inv`.
    pub of: String,
    /// Of the RMSE.
    pub rmse: Estimate,
    /// Of the relative RMSE.
    pub relative_rmse: Estimate,
    /// Of the RMSE at equal counts.
    pub equal_rmse: Estimate,
}

/// One type of operations: the truth, and each policy's mean in the first run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TypeResult {
    /// Its name.
    pub name: String,
    /// Operations.
    pub population: u64,
    /// Mean measure of all.
    pub truth: f64,
    /// By policy: recorded operations, and the post-stratified mean of their measure.
    pub policies: Vec<(String, u64, Option<Estimate>)>,
}

/// What `tithe plan replay` shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyComparison {
    /// Name of the operation.
    pub operation: String,
    /// The measure, in words.
    pub measure: String,
    /// Operations replayed.
    pub operations: u64,
    /// From the first begin to the last end, s.
    pub length_s: f64,
    /// Operations left out: had not ended.
    pub censored: u64,
    /// Operations that ended and are missing in the recording.
    pub missing: u64,
    /// Where cost and queue come from.
    pub model: String,
    /// Runs.
    pub runs: u32,
    /// Seed of the first.
    pub seed: u64,
    /// Settings of the policies.
    pub config: AdaptConfig,
    /// Policies.
    pub policies: Vec<PolicyResult>,
    /// Quotients of those among adp, inv, uni and tithe that were replayed.
    pub quotients: Vec<Quotient>,
    /// Types, the most frequent first.
    pub types: Vec<TypeResult>,
}

/// One policy in one run.
struct Cell {
    run: Run,
    score: Score,
    equal: f64,
}

/// Replays and compares.
///
/// # Errors
/// See [`ReplayError`].
pub fn compare(trace: &FullTrace, settings: &Settings) -> Result<PolicyComparison, ReplayError> {
    let operations = &trace.operations;
    let mut rounds: Vec<Vec<Cell>> = Vec::new();
    for seed in (0..u64::from(settings.runs.max(1))).map(|i| settings.seed.wrapping_add(i)) {
        let runs: Vec<Run> = settings
            .policies
            .iter()
            .map(|kind| replay(operations, *kind, &settings.config, &trace.model, settings.cpu_per_s, seed))
            .collect::<Result<_, _>>()?;
        let least = runs.iter().map(Run::sample).filter(|n| *n > 0).min().unwrap_or(0);
        let cells = runs
            .into_iter()
            .filter_map(|run| {
                let thinned = thin(&run.recorded, least, seed ^ 0x7417);
                let equal = score_of(operations, &thinned, None)?.rmse_plain;
                Some(Cell { score: score(operations, &run)?, equal, run })
            })
            .collect();
        rounds.push(cells);
    }
    let last_s = operations.iter().map(|o| o.begin_s + o.duration_s).fold(0.0, f64::max);
    Ok(PolicyComparison {
        operation: trace.name.clone(),
        measure: trace.measure.clone(),
        operations: operations.len() as u64,
        length_s: last_s,
        censored: trace.censored,
        missing: trace.missing,
        model: trace.model.label.clone(),
        runs: settings.runs.max(1),
        seed: settings.seed,
        config: settings.config.clone(),
        policies: (0..settings.policies.len()).map(|i| policy(&rounds, i)).collect(),
        quotients: quotients(&rounds, &settings.policies),
        types: types(trace, rounds.first().map_or(&[], Vec::as_slice)),
    })
}

/// Mean over runs with its interval, open where there is one run.
fn over_runs(values: &Moments) -> Estimate {
    let open = (f64::NEG_INFINITY, f64::INFINITY);
    let (low, high) = values.mean_interval(LEVEL).map_or(open, |i| (i.low, i.high));
    Estimate {
        value: values.mean(),
        low,
        high,
        level: LEVEL,
        n: values.n(),
        source: Source::Derived,
        at_most: false,
    }
}

fn policy(rounds: &[Vec<Cell>], i: usize) -> PolicyResult {
    let cells = || rounds.iter().filter_map(move |cells| cells.get(i));
    let of = |f: &dyn Fn(&Cell) -> f64| over_runs(&cells().map(f).collect());
    let sampled = cells().all(|c| c.run.sample() > 0);
    let of_sample = |f: &dyn Fn(&Cell) -> f64| sampled.then(|| of(f));
    let cycles = || cells().flat_map(|c| &c.run.cycles);
    let lengths: Moments = cycles().map(|c| c.length_s).collect();
    let samples: Moments = cycles().map(|c| c.sample as f64).collect();
    let timeouts =
        |c: &Cell| c.run.cycles.iter().filter(|cycle| cycle.end == CycleEnd::Timeout).count() as f64;
    PolicyResult {
        policy: cells().next().map_or_else(String::new, |c| c.run.policy.to_string()),
        rate: of(&|c| c.run.average_rate()),
        cpu_per_s: of(&|c| c.run.overhead()),
        slower: of(&|c| c.run.mean_response_s / c.run.bare_response_s - 1.0),
        rmse: of_sample(&|c| c.score.rmse_plain),
        relative_rmse: of_sample(&|c| c.score.relative_plain),
        weighted_rmse: of_sample(&|c| c.score.rmse_weighted),
        equal_rmse: of_sample(&|c| c.equal),
        coverage: of_sample(&|c| c.score.coverage),
        mix_difference: of_sample(&|c| c.score.largest_share_difference),
        unobserved_types: of(&|c| c.score.unobserved.len() as f64).value,
        cycles: of(&|c| c.run.cycles.len() as f64).value,
        cycle_s: (lengths.n() > 0).then(|| lengths.mean()),
        cycle_sample: (samples.n() > 0).then(|| samples.mean()),
        timeouts: of(&timeouts).value,
    }
}

fn quotients(rounds: &[Vec<Cell>], policies: &[PolicyKind]) -> Vec<Quotient> {
    use PolicyKind::{Adp, Inv, Tithe, Uni};
    let place = |kind| policies.iter().position(|p| *p == kind);
    [(Adp, Inv), (Adp, Uni), (Tithe, Adp), (Tithe, Inv), (Tithe, Uni)]
        .into_iter()
        .filter_map(|(a, b)| {
            let (i, j) = (place(a)?, place(b)?);
            let of = |f: &dyn Fn(&Cell) -> f64| {
                let pairs = rounds.iter().filter_map(|cells| Some((f(cells.get(i)?), f(cells.get(j)?))));
                geometric(pairs)
            };
            Some(Quotient {
                of: format!("{a}/{b}"),
                rmse: of(&|c| c.score.rmse_plain),
                relative_rmse: of(&|c| c.score.relative_plain),
                equal_rmse: of(&|c| c.equal),
            })
        })
        .collect()
}

/// Geometric mean of paired quotients; pairs without a finite logarithm (an error of 0) are left out, and `n` says so.
pub fn geometric(pairs: impl Iterator<Item = (f64, f64)>) -> Estimate {
    let logs: Moments = pairs.map(|(a, b)| (a / b).ln()).filter(|x| x.is_finite()).collect();
    let e = over_runs(&logs);
    let value = if e.n > 0 { e.value.exp() } else { f64::NAN };
    Estimate { value, low: e.low.exp(), high: e.high.exp(), ..e }
}

fn types(trace: &FullTrace, cells: &[Cell]) -> Vec<TypeResult> {
    let Some(first) = cells.first() else { return Vec::new() };
    let mut types: Vec<TypeResult> = first
        .score
        .classes
        .iter()
        .enumerate()
        .map(|(i, class)| TypeResult {
            name: trace
                .classes
                .get(&class.class)
                .cloned()
                .unwrap_or_else(|| format!("class {}", class.class.0)),
            population: class.population,
            truth: class.truth,
            // All scores are of the same trace: the same classes in the same order.
            policies: cells
                .iter()
                .map(|cell| {
                    let class = &cell.score.classes[i];
                    (cell.run.policy.to_string(), class.sample, class.weighted.map(|w| w.estimate))
                })
                .collect(),
        })
        .collect();
    types.sort_by(|a, b| b.population.cmp(&a.population).then_with(|| a.name.cmp(&b.name)));
    types
}
