//! What plans of both objectives are expected to tell of calls per second, by the planner's own model of widths.

use profiler_core::burst::{BurstPrices, MOST_WINDOWS_HZ};
use profiler_core::plan::{self, Objective, Options, PlanError, Problem, Strategy, WIDTH_FLOOR, WindowRules};

/// Part of the budget that is kept for bursts with the objective *information*, as in a run.
const KEPT: f64 = 0.1;
/// Part of the bucket, which holds a quarter of a second's income, that one burst may take.
const BURST_PART: f64 = 0.125;

/// What one plan is expected to tell.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// Median width (half of the interval over the value) of the 20 rows of the largest shares.
    pub median: f64,
    /// Mean of all rows by the logs of their widths, 5 % at least, weighted with shares.
    pub mean: f64,
    /// How many of those are known to 25 %.
    pub within: usize,
    /// How many those are.
    pub rows: usize,
    /// Predicted cost over what a plan may count on.
    pub spent: f64,
    /// Gap of the plan.
    pub gap: f64,
}

/// The problem of a run of `seconds` at this share of the target's CPU time, with links as on the machine of the surveys.
#[must_use]
pub fn of_run(survey: &Problem, objective: Objective, share: f64, seconds: f64) -> Problem {
    let mut problem = survey.clone();
    problem.budget = 0.9 * share * problem.target_cpu;
    problem.kept = if objective == Objective::Information { KEPT * problem.budget } else { 0.0 };
    (problem.objective, problem.horizon_s) = (objective, seconds);
    let prices =
        BurstPrices { attach_s: 60e-6, delay_s: 8e-3, fresh_delay_s: 100e-6, fresh_s: 5e-3, cpus: 2 };
    problem.windows = Some(WindowRules {
        prices,
        limit_s: Some(BURST_PART * share * problem.target_cpu),
        closest_s: 0.1,
        most_per_s: MOST_WINDOWS_HZ,
        ..WindowRules::default()
    });
    // At most half of the budget is for samples.
    let affordable = 0.5 * problem.room() / problem.sample_cost().max(1e-12);
    problem.sampling.min_hz = problem.sampling.min_hz.min(affordable);
    problem.sampling.max_hz = problem.sampling.max_hz.max(problem.sampling.min_hz);
    problem
}

/// What the plan of a problem is expected to tell.
///
/// # Errors
/// There is no plan.
pub fn told(problem: &Problem) -> Result<Told, PlanError> {
    let plan = plan::solve(problem, Strategy::Auto, &Options::default())?;
    let mut rows: Vec<(f64, f64)> =
        problem.classes.iter().map(|c| c.rho.value).zip(plan::widths(problem, &plan)).collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    let logs: f64 = rows.iter().map(|(rho, width)| rho * width.max(WIDTH_FLOOR).ln()).sum();
    let mean = (logs / rows.iter().map(|row| row.0).sum::<f64>()).exp();
    rows.truncate(20);
    let mut widths: Vec<f64> = rows.iter().map(|row| row.1).collect();
    widths.sort_by(f64::total_cmp);
    Ok(Told {
        mean,
        median: widths.get(widths.len() / 2).copied().unwrap_or(0.0),
        within: widths.iter().filter(|w| **w <= 0.25).count(),
        rows: widths.len(),
        spent: plan.cost / problem.budget,
        gap: plan.gap,
    })
}
