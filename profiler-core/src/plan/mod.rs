//! Which classes are traced, traced in bursts, or sampled: the knapsack under the budget (Metz et al. §4).
//!
//! What: given rates `F_i`, on-CPU shares `rho_i`, weights `W_i`, prices and a budget `b`, choose for each
//! class *trace*, *burst* or *sample* and the rate of the one shared sampler, so that the weighted
//! information is largest. Live (`record` re-plans with it) and offline (`tithe plan --classes FILE`).
//!
//! Inputs: a [`Problem`]; a [`Strategy`]; [`Options`]. Output: [`Plan`]s with cost, value, an upper bound on
//! the value of *any* plan, and the gap between the two; [`Plan::explain`] gives the reasons in words.
//!
//! Its tests are in `lab/tests/plan`: they want random problems and oracles, which the product does not.
//!
//! What it does not do: it measures nothing (the survey does), attaches nothing, and reads no clock: effort is
//! limited by counted work, so that the same problem gives the same plan everywhere.
//!
//! Notation (E. Metz, R. Lencevicius, T. Gonzalez, "Performance Data Collection Using a Hybrid Approach",
//! ESEC/FSE 2005): `F_i` rate of class `i` in events per wall second; `rho_i = EventTime_i / EventPeriod_i`,
//! on-CPU seconds per wall second; `W_i` weight; `tau_i` price of one traced event and `tau_s` of one sample,
//! CPU seconds; `U` CPU seconds that the target uses per wall second; `s` samples per second of target CPU
//! time (`F_probing` at `U = 1`); `c_i = F_i tau_i`; `b` the budget in CPU seconds per second (the paper's
//! `MaxF T_report`).

mod approximation;
mod candidates;
mod certified;
mod continuous;
mod exhaustive;
mod explain;
mod figures;
mod frequent;
mod least;
mod leftover;
mod model;
mod precision;
mod problem;
mod render;
mod scaled;
mod selection;
mod solution;
pub mod table;
mod variance;
mod whatif;
mod windows;

pub use explain::Explanation;
pub use precision::{rows_with_intervals, widths};
pub use problem::{
    BurstRules, CostUnit, Estimand, Objective, PlanClass, Problem, Range, SamplingRules, UNPRICED_REPORT_S,
    UnknownObjective,
};
pub use render::{ClassOutput, Output, PlanOutput, render_text};
pub use solution::{ClassPlan, Decision, Options, Plan, PlanError, Strategy, UnknownStrategy};
pub use variance::relative_errors;
pub use whatif::{Change, Decisive, Outlook, Sensitivity, WhatIf, outlook, sensitivity, what_if};
pub use windows::{ClassWindows, USUAL_SPREAD, WIDTH_FLOOR, WIDTH_FLOOR_OF_FIRST, WindowRules};

/// The best plan for `problem` by `strategy`.
///
/// # Errors
/// [`PlanError::Invalid`] for numbers outside their range, [`PlanError::Infeasible`] when must-trace classes,
/// minimum rates or the least sampling rate alone exceed the budget (with the shortfall and the least budget
/// that would do), [`PlanError::Unbounded`] when samples are free and no largest rate is set.
///
/// # Example
/// ```
/// use profiler_core::plan::{Decision, Options, PlanClass, Problem, Strategy, solve};
/// // 2 % of one busy CPU; a hit costs 1 us, a sample 20 us.
/// let mut problem = Problem::new(0.02, 1.0, 20e-6);
/// problem.classes.push(PlanClass::new("commit", 300.0, 0.01, 1e-6));
/// problem.classes.push(PlanClass::new("compare", 3e6, 0.4, 1e-6));
/// let plan = solve(&problem, Strategy::Approximation, &Options::default()).unwrap();
/// assert_eq!(plan.classes[0].decision, Decision::Trace);
/// assert_eq!(plan.classes[1].decision, Decision::Sample);
/// assert!(plan.cost <= 0.02);
/// ```
pub fn solve(problem: &Problem, strategy: Strategy, options: &Options) -> Result<Plan, PlanError> {
    // OK because every solver returns at least one plan or an error.
    Ok(solve_top(problem, strategy, &Options { top: 1, ..options.clone() })?.swap_remove(0))
}

/// The best distinct plans by `strategy`, best first; at most `options.top`, at least one.
///
/// Two plans are the same if they differ only in which of several identical classes they trace.
///
/// # Errors
/// As [`solve`].
pub fn solve_top(problem: &Problem, strategy: Strategy, options: &Options) -> Result<Vec<Plan>, PlanError> {
    let solver = match problem.objective {
        Objective::Information => return informed(problem, strategy, options),
        Objective::Precision => precision::solve,
        Objective::Variance => variance::solve,
    };
    match strategy {
        Strategy::Auto | Strategy::Mixed | Strategy::Certified => solver(problem, options),
        _ => {
            let why = format!(
                "it maximises information; with the objective '{}' use auto",
                problem.objective.name()
            );
            Err(PlanError::NotApplicable { strategy, why })
        }
    }
}

/// Value and gap of a plan whose bursts were changed after it was made: with [`Objective::Precision`] bursts are a part of its value.
pub fn value_anew(problem: &Problem, plan: &mut Plan) {
    if problem.objective == Objective::Precision {
        precision::value_anew(problem, plan);
    }
}

/// What the split of the paper's approximation would be worth by the objective *precision*; `None` with others, or where there is no such split.
#[must_use]
pub fn value_of_approximation(problem: &Problem) -> Option<f64> {
    let is_of_widths = problem.objective == Objective::Precision;
    let split = Problem { objective: Objective::Information, windows: None, burst: None, ..problem.clone() };
    let plan = solve(&split, Strategy::Approximation, &Options::default()).ok().filter(|_| is_of_widths)?;
    precision::value_of(problem, &plan)
}

/// The best plans for [`Objective::Information`]: what they leave is spent on bursts where links have prices.
fn informed(problem: &Problem, strategy: Strategy, options: &Options) -> Result<Vec<Plan>, PlanError> {
    let mut plans = split(problem, strategy, options)?;
    plans.iter_mut().for_each(|plan| leftover::spend(problem, plan));
    Ok(plans)
}

fn split(problem: &Problem, strategy: Strategy, options: &Options) -> Result<Vec<Plan>, PlanError> {
    let model = model::Model::new(problem)?;
    match strategy {
        Strategy::Auto if problem.burst.is_some() => certified::solve_mixed(&model, options),
        Strategy::Approximation => approximation::solve(problem, &model, options),
        Strategy::Auto | Strategy::Certified => certified::solve(&model, options),
        Strategy::Exhaustive => exhaustive::solve(&model, options),
        Strategy::Mixed => certified::solve_mixed(&model, options),
        Strategy::Continuous => continuous::solve(&model),
        Strategy::Frequent => frequent::solve(&model),
        Strategy::Hottest => approximation::hottest(problem, &model),
        Strategy::ByWeight => approximation::by_weight(problem, &model),
        Strategy::SampleAll => approximation::sample_all(problem, &model),
    }
}
