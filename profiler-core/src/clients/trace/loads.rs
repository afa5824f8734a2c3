//! What a plan takes from single threads.

use crate::class::ClassId;
use crate::ledger::{Load, ThreadBounds};
use crate::plan::{Decision, Plan, PlanClass, Problem};

/// The class of a plan, by its index in the problem, that one thread could not bear, and the thread. `must`: the user demands it, and it
/// is traced all the same.
pub(super) fn too_much(
    bounds: &ThreadBounds<'_>,
    problem: &Problem,
    plan: &Plan,
    ids: &[ClassId],
    must: impl Fn(ClassId) -> bool,
) -> Option<(usize, u32)> {
    let mut loads = traced(problem, plan, ids);
    for load in loads.iter_mut().filter(|l| must(l.class)) {
        load.density = f64::INFINITY;
    }
    let (class, tid) = bounds.give_up(&loads)?;
    let index = ids.iter().position(|id| *id == class)?;
    (!must(class)).then_some((index, tid))
}

/// What a plan traces all the time, as loads.
pub(super) fn traced(problem: &Problem, plan: &Plan, ids: &[ClassId]) -> Vec<Load> {
    let is_traced = |i: &usize| matches!(plan.classes[*i].decision, Decision::Trace);
    (0..ids.len())
        .filter(is_traced)
        .map(|i| load(ids[i], &problem.classes[i], plan.classes[i].cost))
        .collect()
}

/// One class as a load of so many CPU s/s.
pub(super) fn load(id: ClassId, class: &PlanClass, cost: f64) -> Load {
    Load { class: id, cost, density: class.weight / class.tau_s.max(1e-12) }
}
