//! The certified optimum: branch and bound on the sampling rate and on single classes.
//!
//! What: the best split (or the best few), an upper bound on every split, and the gap between them. The problem
//! is NP-hard (Metz et al., Theorem 1), so the effort is limited by counted work; stopped early, the plan is the
//! best found and the bound is still valid.
//!
//! How: a subproblem is an interval of `s`, and the classes that are fixed. Its bound is the [`bound`] module's.
//! If the bound is loose because the interval is wide, the interval is halved; otherwise the class at which the
//! continuous knapsack stops is branched on. Classes whose change alone would push the bound below the best plan
//! known are fixed, which leaves few. Identical classes are branched on by their number: the first of them are
//! traced.
//!
//! Bursts (the mixed problem): a class may be attached for a share `d` of the time, `d = 0` or `d_min <= d <= 1`,
//! for `d c_i` and a fixed charge while `0 < d < 1`; it is worth `W [d F + (1 - d) s rho]`. With `s` moving as `d`
//! moves along the budget the value is *convex* in one `d`, so some optimum has every burst at its floor, or `s` at
//! one of its ends and then (a linear program) at most one burst between floor and 1. Three searches cover it:
//! bursts at their floors with `s` free, and free bursts with `s` held at either end. Minimum rates raise the floor
//! to `d >= (F_min - s rho) / (F - s rho)`, which moves with `s`: then one search with free bursts covers all `s`,
//! and closes by halving intervals.

mod bound;
mod node;
mod primal;
mod rounding;
mod search;

use super::candidates::candidates;
use super::model::Model;
use super::{Options, Plan, PlanError, Strategy, exhaustive};
pub(super) use primal::duty_floor;
use search::{Bursts, Search};

/// Work allowed by default: enough to prove nearly every real problem, near 10 ms, and then some 60 looks at
/// each class.
fn default_work(n: usize) -> u64 {
    10_000_000 + 60 * n as u64
}

/// The best splits of the binary problem, with their certificate.
pub(super) fn solve(model: &Model<'_>, options: &Options) -> Result<Vec<Plan>, PlanError> {
    model.cases()?;
    let mut search = Search::new(model, None, options, default_work(model.items.len()));
    for candidate in candidates(model, options.top.max(1))? {
        search.offer_candidate(candidate);
    }
    search.run(model.s_min, model.s_max);
    let plans = search.plans(Strategy::Certified);
    // A hard but small problem: try everything.
    let unproven = plans.first().is_some_and(|plan| plan.gap > options.gap);
    if unproven && options.work_limit.is_none() && model.items.len() <= exhaustive::MAX_ITEMS {
        let relabel = |plan| Plan { strategy: Strategy::Certified, ..plan };
        return Ok(exhaustive::solve(model, options)?.into_iter().map(relabel).collect());
    }
    Ok(plans)
}

/// The best plans of the mixed problem, with their certificate.
pub(super) fn solve_mixed(model: &Model<'_>, options: &Options) -> Result<Vec<Plan>, PlanError> {
    let rules = model.problem.burst_rules();
    let ruled = model.items.iter().any(|item| item.min_s > model.s_min);
    let bursts = Bursts { min_duty: rules.min_duty(), charge: rules.charge(), interior: ruled };
    let (least, s) = model.rules(Some((bursts.min_duty, bursts.charge))).least();
    if !model.fits(least) {
        return Err(model.infeasible(least));
    }
    let mut search = Search::new(model, Some(bursts), options, default_work(model.items.len()));
    // The plan that keeps the rules at the least cost: the search never ends with nothing.
    search.offer_cheapest(s, bursts);
    if let Ok(found) = candidates(model, options.top.max(1)) {
        for candidate in found {
            search.offer_candidate(candidate);
        }
    }
    if ruled {
        search.run(model.s_min, model.s_max);
    } else {
        // Ends first: they give plans to prune with.
        search.set_interior(true);
        search.run(model.s_min, model.s_min);
        let highest = model.best_s(model.base_cost, 1.0, model.s_min);
        if model.s_max <= highest && model.s_max > model.s_min {
            search.run(model.s_max, model.s_max);
        }
        search.set_interior(false);
        search.run(model.s_min, model.s_max);
    }
    if search.found_nothing() {
        // Within the last bits of the budget.
        return Err(model.infeasible(least));
    }
    Ok(search.plans(Strategy::Mixed))
}
