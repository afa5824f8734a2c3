//! The precision objective: intervals as narrow as the budget allows, first of what takes most of the CPU time.
//!
//! ```text
//! min sum w_i ln(max(width_i, floor))        w_i = W_i x share of CPU time; all of them and the sampler's are 1 together
//! ```
//! over calls per second, where `width_i` is what a report will show: half of the interval over the value. A class is traced, or in bursts of one
//! length and so many per second, or sampled. The value of a plan is minus that sum: `e^-value` is the mean width of a row.
//!
//! - Until the floor each class gets `w_i` of the budget, whatever its spread and price ([`curve`]); spread decides where the floor is reached.
//! - What was named comes first: its weights are equal, and [`FIRST_PART`] of all.
//! - A class that costs below [`CHEAP_PART`] of the budget is counted in full, the cheapest first, as long as they take no more than
//!   [`CHEAP_TOGETHER`] of it together.
//! - Shares are what everything rests on: the sampler counts as one more row of weight 0.1 ([`sampler`]), with the width of a share of 10 %.
//!
//! Solved by Lagrange's multiplier: at a price `mu` of the budget each class has its best offer by itself, and
//! `sum (worth - mu cost) + mu b` bounds every plan. `mu` is found by bisection; what its classes leave is given to those that gain most by
//! it. The gap is absolute: how much the log of the mean width could be less. It is of the problem with all of a class's lengths, also where a limit on
//! work ([`steps`]) has looked at fewer.
//!
//! Not done here: derived counts, minimum rates (the other objectives), and lengths between those that are tried.

mod curve;
mod fill;
mod sampler;
mod search;
mod steps;
mod width;

use super::{ClassPlan, Decision, Options, Plan, PlanClass, PlanError, Problem, Strategy};
use crate::burst::FIRST_PART;
use curve::{Offer, Pick, has_window};
use sampler::Sampler;
use search::{Draft, Search};
use steps::Steps;
use width::{NOTHING_KNOWN, knowledge, knowledge_at, width, window_variance};

/// A class that costs less than this part of the budget is counted in full.
pub const CHEAP_PART: f64 = 0.05;
/// All of those together take at most this part of what samples and demands leave.
pub const CHEAP_TOGETHER: f64 = 0.5;
/// What fewer than one sample in a thousand shows counts as this share.
const LEAST_PART: f64 = 1e-3;

/// The best plan for [`super::Objective::Precision`].
pub(super) fn solve(problem: &Problem, options: &Options) -> Result<Vec<Plan>, PlanError> {
    problem.validate()?;
    if problem.classes.iter().any(|c| c.min_rate_hz > 0.0) {
        let why =
            "'precision' knows no min_rate_hz; use the objective 'information' or 'variance'".to_owned();
        return Err(PlanError::NotApplicable { strategy: Strategy::Auto, why });
    }
    planned(problem, &Steps::new(options))
}

fn planned(problem: &Problem, steps: &Steps) -> Result<Vec<Plan>, PlanError> {
    let search = Search::new(problem, steps, true)?;
    let (mut draft, bound) = search.run();
    search.spend(&mut draft);
    let must = problem.classes.iter().filter(|c| c.must_trace).count();
    // What is counted in full for next to nothing keeps from others, and is no rule that other plans must keep.
    let any = match search.is_full.iter().filter(|full| **full).count() > must {
        true => bound.max(Search::new(problem, steps, false)?.bound()),
        false => bound,
    };
    Ok(vec![search.plan(&draft, bound, any)])
}

/// Classes whose calls per second a plan may give an interval, of all: the others are in no mean.
#[must_use]
pub fn rows_with_intervals(problem: &Problem) -> (usize, usize) {
    (problem.classes.iter().filter(|class| may_be_known(problem, class)).count(), problem.classes.len())
}

/// It is wanted, and can be traced within the budget or looked at in windows.
fn may_be_known(problem: &Problem, class: &PlanClass) -> bool {
    let traced = !class.never_trace && class.traced_hz() > 0.0 && class.trace_cost() <= problem.room();
    class.weight > 0.0 && (class.must_trace || traced || has_window(problem, class))
}

/// Half of the interval of each class's rate over its value that a plan made with this objective leaves; 0 where every call is counted.
#[must_use]
pub fn widths(problem: &Problem, plan: &Plan) -> Vec<f64> {
    known(problem, plan).into_iter().map(|(n, knowledge)| width(n, knowledge)).collect()
}

/// Windows of each class in the horizon, and what is known by them; infinite where every call is counted.
fn known(problem: &Problem, plan: &Plan) -> Vec<(f64, f64)> {
    let rules = problem.window_rules();
    let of = |(class, planned): (&PlanClass, &ClassPlan)| match (planned.decision, planned.burst) {
        (Decision::Trace, _) => (f64::INFINITY, f64::INFINITY),
        (Decision::Burst { duty }, Some(order)) => {
            let per_s = 1e9 / order.every_ns.max(1) as f64;
            let (n, length_s) = (per_s * problem.horizon_s, duty / per_s);
            let a = window_variance(class, &rules, length_s, class.traced_hz() * length_s);
            (n, knowledge(n, a, duty))
        }
        _ => (0.0, NOTHING_KNOWN),
    };
    problem.classes.iter().zip(&plan.classes).map(of).collect()
}

/// The value of a plan's decisions under another problem, with the sampling rate that is best there; `None` where they cost too much.
pub(super) fn value_of(problem: &Problem, plan: &Plan) -> Option<f64> {
    let sampler = Sampler::new(problem);
    let prices = problem.window_rules().prices;
    let cost = |(class, planned): (&PlanClass, &ClassPlan)| match (planned.decision, planned.burst) {
        (Decision::Trace, _) => class.trace_cost(),
        (Decision::Burst { duty }, Some(order)) => {
            let per_s = 1e9 / order.every_ns.max(1) as f64;
            duty * class.trace_cost() + per_s * prices.churn_s(class.trace_cost(), order.length_s())
        }
        _ => 0.0,
    };
    let spent: f64 = problem.classes.iter().zip(&plan.classes).map(cost).sum();
    // The times of an order are whole nanoseconds.
    let left = problem.room() * (1.0 + 1e-6) - spent;
    if left < sampler.range.0 * sampler.price {
        return None;
    }
    let s = if sampler.price > 0.0 { left / sampler.price } else { f64::INFINITY };
    let s = s.min(sampler.range.1).max(sampler.range.0);
    Some(values(problem, plan, &sampler).iter().sum::<f64>() + sampler.worth(s) - sampler.weight * unknown())
}

/// What each class of a plan adds to its value.
fn values(problem: &Problem, plan: &Plan, sampler: &Sampler) -> Vec<f64> {
    let worth = |(class, (_, knowledge)): (&PlanClass, (f64, f64))| {
        0.5 * (knowledge.min(knowledge_at(class.windows.floor())) / knowledge_at(1.0)).ln()
    };
    let rows = problem.classes.iter().zip(known(problem, plan)).map(worth).zip(weights(problem));
    rows.map(|(worth, weight)| weight * (1.0 - sampler.weight) * worth).collect()
}

/// Value and gap of a plan whose bursts were changed after it was made; the bound stays.
pub(super) fn value_anew(problem: &Problem, plan: &mut Plan) {
    let sampler = Sampler::new(problem);
    let values = values(problem, plan, &sampler);
    plan.value = values.iter().sum::<f64>() + sampler.worth(plan.sampling_hz) - sampler.weight * unknown();
    plan.upper_bound = plan.upper_bound.max(plan.value);
    plan.gap = plan.upper_bound - plan.value;
    plan.classes.iter_mut().zip(values).for_each(|(class, value)| class.value = value);
}

/// `w_i`: parts of the weight of all classes that may be known.
fn weights(problem: &Problem) -> Vec<f64> {
    let share = |c: &PlanClass| {
        let share = if problem.target_cpu > 0.0 { c.rho.value / problem.target_cpu } else { 0.0 };
        share.max(LEAST_PART)
    };
    let is_first = |c: &PlanClass| c.windows.first && !c.must_trace;
    let own = |c: &PlanClass| match may_be_known(problem, c) {
        true => c.weight * if is_first(c) { 1.0 } else { share(c) },
        false => 0.0,
    };
    let sum = |first: bool| -> f64 { problem.classes.iter().filter(|c| is_first(c) == first).map(own).sum() };
    let (first, others) = (sum(true), sum(false));
    let part = match (first > 0.0, others > 0.0) {
        (true, true) => FIRST_PART,
        (true, false) => 1.0,
        _ => 0.0,
    };
    let of = |c: &PlanClass| match is_first(c) {
        true if first > 0.0 => part * own(c) / first,
        false if others > 0.0 => (1.0 - part) * own(c) / others,
        _ => 0.0,
    };
    problem.classes.iter().map(of).collect()
}

/// The classes that are counted in full because they cost next to nothing, from what is `left` for them.
fn cheap(problem: &Problem, left: f64) -> Vec<bool> {
    let upper = |c: &PlanClass| c.trace_cost() * (c.rate_hz.high / c.rate_hz.value).max(1.0);
    let may = |c: &PlanClass| !c.must_trace && !c.never_trace && c.weight > 0.0 && c.rate_hz.value > 0.0;
    let mut order: Vec<usize> = (0..problem.classes.len())
        .filter(|&i| may(&problem.classes[i]) && upper(&problem.classes[i]) < CHEAP_PART * problem.budget)
        .collect();
    order.sort_by(|&a, &b| upper(&problem.classes[a]).total_cmp(&upper(&problem.classes[b])));
    let (mut is_cheap, mut left) = (vec![false; problem.classes.len()], CHEAP_TOGETHER * left);
    for i in order {
        // With the upper end of the rate: a plan that must be taken back tomorrow is no plan.
        left -= upper(&problem.classes[i]);
        if left < 0.0 {
            break;
        }
        is_cheap[i] = true;
    }
    is_cheap
}

/// Log of the width of a rate of which nothing is known: what offers are worth is counted from there.
fn unknown() -> f64 {
    0.5 * (knowledge_at(1.0) / NOTHING_KNOWN).ln()
}

impl Search<'_> {
    /// `bound`: of plans that count in full what this one does for next to nothing; `any`: of all.
    fn plan(&self, draft: &Draft, bound: f64, any: f64) -> Plan {
        let of = |(i, offer): (usize, &Offer)| {
            let (class, curve) = (&self.problem.classes[i], &self.curves[i]);
            let value = offer.worth - curve.weight * unknown();
            match offer.pick {
                Pick::Burst(choice, per_s) if per_s > 0.0 => {
                    let order = curve.choices[choice].shape.order(per_s);
                    let decision = Decision::Burst { duty: order.duty };
                    ClassPlan { decision, cost: offer.cost, value, burst: Some(order) }
                }
                Pick::Trace => {
                    ClassPlan { decision: Decision::Trace, cost: class.trace_cost(), value, burst: None }
                }
                _ => ClassPlan { decision: Decision::Sample, cost: 0.0, value, burst: None },
            }
        };
        let classes: Vec<ClassPlan> = draft.offers.iter().enumerate().map(of).collect();
        let cost = classes.iter().map(|c| c.cost).sum::<f64>() + draft.s * self.sampler.price;
        let cost = cost.min(self.problem.room());
        let target_cpu = self.problem.target_cpu;
        // The share of the sampler is a row as well.
        let share = self.sampler.worth(draft.s) - self.sampler.weight * unknown();
        let value = classes.iter().map(|c| c.value).sum::<f64>() + share;
        let gap = (any - self.value(draft)).max(0.0);
        Plan {
            strategy: Strategy::Certified,
            classes,
            sampling_hz: draft.s,
            cost,
            overhead: if target_cpu > 0.0 { cost / target_cpu } else { 0.0 },
            value,
            upper_bound: value + gap,
            gap,
            exact_counts: (any - bound).clamp(0.0, gap),
        }
    }
}

#[cfg(test)]
mod tests;
