//! What a plan takes from single threads.

use crate::class::ClassId;
use crate::ledger::{Load, ThreadBounds};
use crate::plan::{Decision, Objective, Plan, PlanClass, Problem};

/// The classes of a plan, by their indices in the problem, that one thread could not bear, and the thread: `most` at most. `must`: the user demands it,
/// and it is traced all the same.
pub(super) fn too_much(
    bounds: &ThreadBounds<'_>,
    problem: &Problem,
    plan: &Plan,
    ids: &[ClassId],
    must: impl Fn(ClassId) -> bool,
    most: usize,
) -> Vec<(usize, u32)> {
    let mut loads = traced(problem, plan, ids);
    for load in loads.iter_mut().filter(|l| must(l.class)) {
        load.density = f64::INFINITY;
    }
    let given_up = bounds.give_up_all(&loads, most).into_iter().take_while(|(class, _)| !must(*class));
    given_up.filter_map(|(class, tid)| Some((ids.iter().position(|id| *id == class)?, tid))).collect()
}

/// What a plan traces all the time, as loads.
pub(super) fn traced(problem: &Problem, plan: &Plan, ids: &[ClassId]) -> Vec<Load> {
    let is_traced = |i: &usize| matches!(plan.classes[*i].decision, Decision::Trace);
    (0..ids.len()).filter(is_traced).map(|i| load(ids[i], problem, i, plan.classes[i].cost)).collect()
}

/// Class `i` of the problem as a load of so many CPU s/s.
pub(super) fn load(id: ClassId, problem: &Problem, i: usize, cost: f64) -> Load {
    let class = &problem.classes[i];
    Load { class: id, cost, density: worth_of_call(problem, class) / class.tau_s.max(1e-12) }
}

/// Information weight of a call: what the controller keeps when tokens run out is worth most for its cost. With the objective *precision* a
/// class is worth its share of the CPU time, however often it is called.
pub(super) fn worth_of_call(problem: &Problem, class: &PlanClass) -> f64 {
    match problem.objective {
        Objective::Precision => {
            class.weight * class.rho.value.max(1e-3 * problem.target_cpu) / class.traced_hz().max(1e-3)
        }
        Objective::Information | Objective::Variance => class.weight,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two classes one is called ten times as often, the other is on the stack for most of the time.
    #[test]
    fn a_thread_gives_up_what_tells_least_by_the_objective() {
        let mut problem = Problem::new(0.02, 1.0, 15e-6);
        problem.classes =
            vec![PlanClass::new("often", 1e4, 0.1, 1e-6), PlanClass::new("long", 1e3, 0.8, 1e-6)];
        let density = |problem: &Problem, i| load(ClassId(0), problem, i, 1e-3).density;
        problem.objective = Objective::Information;
        assert_eq!(density(&problem, 0), density(&problem, 1));
        problem.objective = Objective::Precision;
        assert!((density(&problem, 1) / density(&problem, 0) - 80.0).abs() < 1e-9);
    }
}
