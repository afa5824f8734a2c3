//! What a split into traced and sampled leaves of the budget goes to bursts of what it does not trace.

use super::{Decision, Plan, Problem};
use crate::burst::{self, BurstClass};
use crate::class::ClassId;

/// Adds bursts to a plan, where the problem says what links cost: what it leaves of the whole budget is spent.
///
/// The plan's value, bound and gap stay those of the split.
pub(super) fn spend(problem: &Problem, plan: &mut Plan) {
    let Some(rules) = problem.windows else { return };
    let of = |(class, planned): (&super::PlanClass, &super::ClassPlan)| {
        // What is traced, or may not be, is not a matter of bursts: no rate, no order.
        let wanted = planned.decision == Decision::Sample && (!class.never_trace || class.windows.only);
        BurstClass {
            class: class.id.map_or(ClassId(0), ClassId),
            rate_hz: if wanted { class.rate_hz.value } else { 0.0 },
            tau_s: class.tau_s,
            weight: class.weight,
            spread: 1.0,
            limit_s: class.windows.limit_s.unwrap_or(f64::INFINITY),
            first: class.windows.first,
        }
    };
    let classes: Vec<BurstClass> = problem.classes.iter().zip(&plan.classes).map(of).collect();
    let limit_s = rules.limit_s.unwrap_or(f64::INFINITY);
    let orders = burst::schedule(&classes, &rules.prices, problem.budget - plan.cost, limit_s);
    for ((planned, order), class) in plan.classes.iter_mut().zip(orders).zip(&problem.classes) {
        let Some(order) = order else { continue };
        let wanted = class.windows.most_duty.unwrap_or(f64::INFINITY);
        let order = if order.duty > wanted { order.rarer(order.duty / wanted) } else { order };
        planned.decision = Decision::Burst { duty: order.duty };
        planned.cost += order.cost_per_s();
        planned.burst = Some(order);
        plan.cost += order.cost_per_s();
    }
    plan.cost = plan.cost.min(problem.budget);
    if problem.target_cpu > 0.0 {
        plan.overhead = plan.cost / problem.target_cpu;
    }
}
