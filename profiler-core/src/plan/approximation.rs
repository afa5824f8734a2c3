//! The paper's approximation (Metz et al. §4.2), and the rules of thumb that it is compared with.
//!
//! The best of the candidates `S_{i,0}` and `S_{0,j}` ([`candidates`]) is worth more than half of the optimum.
//!
//! Proof, also for unequal prices, bounds on `s` and must-trace classes (the paper's Theorem 2 has equal prices):
//! let OPT trace `T` for a traced value `k` and sample the rest at `s*` for `V`; let `l` be the first class of
//! `T`, in density order, that the greedy skips, and `g` the greedy's traced value then. What the greedy holds
//! with `l` costs more than all that OPT may spend on tracing, at densities at least those of the rest of `T`:
//! `k < g + W_l F_l`. `S_{l,0}` traces no more than OPT, so it samples at `s*` or faster:
//! `S_{l,0} >= W_l F_l + V`. Adding, `OPT = k + V < S_{0,l} + S_{l,0}`. If nothing is skipped, `k <= g` and
//! `V <= S_{0,0}`. Minimum rates split the problem into cases ([`Model::cases`]), each with the bound.

use super::candidates::{MAX_CASES, candidates, greedy};
use super::certified;
use super::model::{Candidate, Model};
use super::{Options, Plan, PlanError, Problem, Strategy};

/// The paper's approximation; the best `options.top` of its candidates.
pub(super) fn solve(problem: &Problem, model: &Model<'_>, options: &Options) -> Result<Vec<Plan>, PlanError> {
    debug_assert!(std::ptr::eq(problem, model.problem), "a model belongs to its problem");
    let candidates = candidates(model, options.top.max(1))?;
    let bound = bound(model, &candidates[0])?;
    Ok(candidates.iter().map(|c| model.plan(c, Strategy::Approximation, bound)).collect())
}

/// What no plan is worth more than. Theorem 2: twice the best candidate. Where cases were left out the theorem does not
/// hold; then it is the relaxation's bound.
fn bound(model: &Model<'_>, best: &Candidate) -> Result<f64, PlanError> {
    if model.cases()?.len() <= MAX_CASES {
        return Ok(2.0 * best.value);
    }
    let once = Options { work_limit: Some(0), ..Options::default() };
    Ok(certified::solve(model, &once)?[0].upper_bound)
}

/// Trace what fits, most CPU time (`rho`) first.
pub(super) fn hottest(problem: &Problem, model: &Model<'_>) -> Result<Vec<Plan>, PlanError> {
    let rho = |i: u32| problem.classes[model.items[i as usize].rep as usize].rho.value;
    by_rule(model, Strategy::Hottest, rho)
}

/// Trace what fits, largest weight first.
pub(super) fn by_weight(problem: &Problem, model: &Model<'_>) -> Result<Vec<Plan>, PlanError> {
    let weight = |i: u32| problem.classes[model.items[i as usize].rep as usize].weight;
    by_rule(model, Strategy::ByWeight, weight)
}

fn by_rule(model: &Model<'_>, strategy: Strategy, key: impl Fn(u32) -> f64) -> Result<Vec<Plan>, PlanError> {
    #[expect(clippy::cast_possible_truncation, reason = "class indexes are below 2^32")]
    let mut order: Vec<u32> = (0..model.items.len() as u32).collect();
    order.sort_by(|&a, &b| key(b).total_cmp(&key(a)));
    let cases = model.cases()?;
    // OK because `cases` returns at least one; the last one leaves the sampling rate freest.
    let case = &cases[cases.len() - 1];
    Ok(model
        .candidate(greedy(model, case, &order))
        .into_iter()
        .map(|c| unproven(model, &c, strategy))
        .collect())
}

/// Trace what must be traced, sample the rest as fast as the budget allows.
pub(super) fn sample_all(_: &Problem, model: &Model<'_>) -> Result<Vec<Plan>, PlanError> {
    // The case with the fewest forced items comes first.
    let traced = model.cases()?.swap_remove(0).forced;
    Ok(model.candidate(traced).into_iter().map(|c| unproven(model, &c, Strategy::SampleAll)).collect())
}

/// A plan of a rule that promises nothing: its bound is the approximation's.
fn unproven(model: &Model<'_>, candidate: &Candidate, strategy: Strategy) -> Plan {
    // OK because a model with a candidate has a case.
    let bound = candidates(model, 1).and_then(|c| bound(model, &c[0])).unwrap_or(f64::INFINITY);
    model.plan(candidate, strategy, bound)
}
