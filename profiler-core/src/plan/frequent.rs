//! Problem 3 (Metz et al. §4.3.7): classes that occur nearly all the time are best sampled, all of them.
//!
//! The paper proves it for `r_i = 1` and one price. The exchange behind it: no longer tracing `i` frees `c_i`, which
//! buys `c_i / (tau_s U)` samples per second, and those see `i` at least `c_i rho_i / (tau_s U)` times. So sampling
//! everything is optimal whenever, for every class, `tau_i rho_i >= tau_s U` (with `rho = 1`, `U = 1`:
//! `tau_i >= tau_s`), and no largest sampling rate binds. Where a sample costs twenty hits, as on today's machines,
//! that is rarely so, and the problem is Problem 2.

use super::model::Model;
use super::{Plan, PlanError, Strategy};

/// Sampling everything, with the proof that nothing is better; or why that cannot be said.
pub(super) fn solve(model: &Model<'_>) -> Result<Vec<Plan>, PlanError> {
    model.cases()?;
    let refuse = |why: String| PlanError::NotApplicable { strategy: Strategy::Frequent, why };
    for item in &model.items {
        let class = &model.problem.classes[item.rep as usize];
        if item.cost * item.slope < item.full_at_least() * model.sample_cost {
            return Err(refuse(format!(
                "one event of class '{}' costs {:.3e} s, the samples that would see it once cost {:.3e} s: tracing may be \
                 better; use certified",
                class.name,
                class.tau_s + class.detect_s,
                model.sample_cost / class.rho.value,
            )));
        }
    }
    let everything = model.candidate(Vec::new());
    let Some(everything) = everything else {
        return Err(refuse("sampling alone does not reach every minimum rate; use certified".to_owned()));
    };
    let affordable = (model.budget - model.base_cost) / model.sample_cost;
    if affordable > model.s_max && !model.items.is_empty() {
        return Err(refuse(format!(
            "the budget would pay for {affordable:.0} samples/s, but max_sampling_hz is {}: the rest may be traced; use \
             certified",
            model.s_max
        )));
    }
    Ok(vec![model.plan(&everything, Strategy::Frequent, everything.value)])
}
