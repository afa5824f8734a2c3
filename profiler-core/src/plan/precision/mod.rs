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
//! - Shares are what everything rests on: the sampler counts as one more row of weight [`SAMPLER_WEIGHT`], with the width of a share of 10 %.
//!
//! Solved by Lagrange's multiplier: at a price `mu` of the budget each class has its best offer by itself, and
//! `sum (worth - mu cost) + mu b` bounds every plan. `mu` is found by bisection; what its classes leave is given to those that gain most by
//! it. The gap is absolute: how much the log of the mean width could be less.
//!
//! Not done here: derived counts, minimum rates (the other objectives), and lengths between those that are tried.

mod curve;
mod width;

use super::model::SLACK;
use super::{ClassPlan, Decision, Options, Plan, PlanClass, PlanError, Problem, Strategy};
use crate::burst::{CLOSEST_OF_FIRST_S, FIRST_PART, least_apart_of_first};
use curve::{Curve, Offer, Pick};
use width::{NOTHING_KNOWN, knowledge, knowledge_at, width, window_variance};

/// A class that costs less than this part of the budget is counted in full.
pub const CHEAP_PART: f64 = 0.05;
/// All of those together take at most this part of what samples and demands leave.
pub const CHEAP_TOGETHER: f64 = 0.5;
/// Weight of the sampler; all classes have the rest of 1.
const SAMPLER_WEIGHT: f64 = 0.1;
/// Share whose width the sampler is planned for.
const SAMPLED_PART: f64 = 0.1;
/// Width that the sampler's share is narrowed to and no further.
const SHARE_FLOOR: f64 = 0.05;
/// What fewer than one sample in a thousand shows counts as this share.
const LEAST_PART: f64 = 1e-3;
/// Halvings of the interval of prices.
const HALVINGS: usize = 60;
/// Classes that get what is left, one after the other.
const FILLS: usize = 16;

/// The best plan for [`super::Objective::Precision`].
pub(super) fn solve(problem: &Problem, options: &Options) -> Result<Vec<Plan>, PlanError> {
    problem.validate()?;
    if problem.classes.iter().any(|c| c.min_rate_hz > 0.0) {
        let why =
            "'precision' knows no min_rate_hz; use the objective 'information' or 'variance'".to_owned();
        return Err(PlanError::NotApplicable { strategy: Strategy::Auto, why });
    }
    let search = Search::new(problem)?;
    Ok(vec![search.run(options)])
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
            duty * class.trace_cost() + per_s * prices.churn_s(class.trace_cost(), duty / per_s)
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
    let worth = |(class, (_, knowledge)): (&PlanClass, (f64, f64))| {
        0.5 * (knowledge.min(knowledge_at(class.windows.floor())) / knowledge_at(1.0)).ln()
    };
    let rows = problem.classes.iter().zip(known(problem, plan)).map(worth).zip(weights(problem));
    let rows: f64 = rows.map(|(worth, weight)| weight * (1.0 - sampler.weight) * worth).sum();
    Some(rows + sampler.worth(s) - sampler.weight * unknown())
}

/// `w_i`: parts of the weight of all classes.
fn weights(problem: &Problem) -> Vec<f64> {
    let share = |c: &PlanClass| {
        let share = if problem.target_cpu > 0.0 { c.rho.value / problem.target_cpu } else { 0.0 };
        share.max(LEAST_PART)
    };
    let is_first = |c: &PlanClass| c.windows.first && !c.must_trace;
    let own = |c: &PlanClass| c.weight * if is_first(c) { 1.0 } else { share(c) };
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

/// The shared sampler, as a class.
struct Sampler {
    price: f64,
    range: (f64, f64),
    weight: f64,
    /// Knowledge of the usual share by one sample per second.
    per_hz: f64,
}

impl Sampler {
    fn new(problem: &Problem) -> Self {
        let per_hz = problem.target_cpu * problem.horizon_s * SAMPLED_PART / (1.0 - SAMPLED_PART);
        let (min, max) = (problem.sampling.min_hz, problem.sampling.max_hz);
        let enough = if per_hz > 0.0 { (knowledge_at(SHARE_FLOOR) - NOTHING_KNOWN) / per_hz } else { min };
        // Where none may be taken there is no share.
        let weight = if max > 0.0 && per_hz > 0.0 { SAMPLER_WEIGHT } else { 0.0 };
        Self { price: problem.sample_cost(), range: (min, max.min(enough).max(min)), weight, per_hz }
    }

    fn worth(&self, s: f64) -> f64 {
        0.5 * self.weight * (1.0 + s * self.per_hz / NOTHING_KNOWN).ln()
    }

    /// The rate at which one CPU s/s more brings `mu`.
    fn best(&self, mu: f64) -> f64 {
        let (min, max) = self.range;
        if self.price * mu <= 0.0 {
            return max;
        }
        (0.5 * self.weight / (mu * self.price) - NOTHING_KNOWN / self.per_hz.max(1e-300)).clamp(min, max)
    }
}

/// Log of the width of a rate of which nothing is known: what offers are worth is counted from there.
fn unknown() -> f64 {
    0.5 * (knowledge_at(1.0) / NOTHING_KNOWN).ln()
}

struct Search<'a> {
    problem: &'a Problem,
    /// Of each class; `None`: it is counted in full, whatever the price.
    curves: Vec<Curve>,
    is_full: Vec<bool>,
    sampler: Sampler,
    /// What is not for classes that are counted in full, CPU s/s; with the least samples.
    room: f64,
}

/// A plan in the making.
struct Draft {
    offers: Vec<Offer>,
    s: f64,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem) -> Result<Self, PlanError> {
        let sampler = Sampler::new(problem);
        let must: f64 = problem.classes.iter().filter(|c| c.must_trace).map(PlanClass::trace_cost).sum();
        let least = must + sampler.range.0 * sampler.price;
        let room = problem.room() * (1.0 + SLACK);
        if least > room {
            return Err(PlanError::infeasible(problem, least));
        }
        let is_cheap = cheap(problem, room - least);
        let is_full: Vec<bool> =
            problem.classes.iter().zip(&is_cheap).map(|(c, cheap)| c.must_trace || *cheap).collect();
        let weights: Vec<f64> = weights(problem).iter().map(|w| w * (1.0 - sampler.weight)).collect();
        let closest = closest(problem, &weights, &is_full);
        let curve = |i: usize| {
            let class = &problem.classes[i];
            // No need of windows where every call is counted.
            let full = PlanClass { must_trace: true, ..class.clone() };
            Curve::new(problem, if is_full[i] { &full } else { class }, weights[i], closest[i])
        };
        let curves = (0..problem.classes.len()).map(curve).collect();
        let full: f64 =
            (0..is_full.len()).filter(|&i| is_full[i]).map(|i| problem.classes[i].trace_cost()).sum();
        Ok(Self { problem, curves, is_full, sampler, room: room - full })
    }

    /// Every class's best offer at this price.
    fn at(&self, mu: f64) -> Draft {
        let offers = self.curves.iter().zip(&self.is_full).map(|(curve, full)| {
            if *full { Offer { pick: Pick::Trace, worth: curve.full(), cost: 0.0 } } else { curve.best(mu) }
        });
        Draft { offers: offers.collect(), s: self.sampler.best(mu) }
    }

    /// What is spent of the room.
    fn spent(&self, draft: &Draft) -> f64 {
        draft.offers.iter().map(|o| o.cost).sum::<f64>() + draft.s * self.sampler.price
    }

    fn value(&self, draft: &Draft) -> f64 {
        draft.offers.iter().map(|o| o.worth).sum::<f64>() + self.sampler.worth(draft.s)
    }

    fn run(&self, options: &Options) -> Plan {
        let mut bound = f64::INFINITY;
        let mut look = |mu: f64| {
            let draft = self.at(mu);
            let spent = self.spent(&draft);
            bound = bound.min(self.value(&draft) + mu * (self.room - spent));
            (draft, spent)
        };
        let (free, spent) = look(0.0);
        let mut best = free;
        if spent > self.room {
            // All prices that matter: one class alone, or all of them at once.
            let (mut high, mut low) = (1.0 / self.room.max(1e-300), 1.0 / self.room.max(1e-300));
            while high < 1e300 && look(high).1 > self.room {
                high *= 16.0;
            }
            while low > 1e-300 && look(low).1 <= self.room {
                low /= 16.0;
            }
            let looks: usize = self.curves.iter().map(|c| c.choices.len() + 1).sum();
            let most =
                options.work_limit.map_or(HALVINGS, |w| (w as usize / looks.max(1)).clamp(24, HALVINGS));
            for _ in 0..most {
                let middle = (low * high).sqrt();
                if look(middle).1 <= self.room { high = middle } else { low = middle }
            }
            best = look(high).0;
            self.fill(&mut best);
        }
        self.plan(&best, bound)
    }

    /// Gives what is left to the classes that gain most by it.
    fn fill(&self, draft: &mut Draft) {
        for _ in 0..FILLS {
            let left = self.room - self.spent(draft);
            let gain = |i: usize| {
                let offer = self.curves[i].within(left + draft.offers[i].cost);
                (offer.worth - draft.offers[i].worth, i, offer)
            };
            let open = (0..self.curves.len()).filter(|&i| !self.is_full[i]);
            let Some((gain, i, offer)) = open.map(gain).max_by(|a, b| a.0.total_cmp(&b.0)) else { break };
            if left <= 0.0 || gain <= 1e-9 {
                break;
            }
            draft.offers[i] = offer;
        }
        if self.sampler.price > 0.0 {
            let left = self.room - self.spent(draft);
            draft.s = (draft.s + left.max(0.0) / self.sampler.price).min(self.sampler.range.1).max(draft.s);
        }
    }

    fn plan(&self, draft: &Draft, bound: f64) -> Plan {
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
        let gap = (bound - self.value(draft)).max(0.0);
        Plan {
            strategy: Strategy::Certified,
            classes,
            sampling_hz: draft.s,
            cost,
            overhead: if target_cpu > 0.0 { cost / target_cpu } else { 0.0 },
            value,
            upper_bound: value + gap,
            gap,
        }
    }
}

/// How far apart windows of each class begin at least, s: links are made one after the other. Half of them are shared out evenly, half by weight.
fn closest(problem: &Problem, weights: &[f64], is_full: &[bool]) -> Vec<f64> {
    let rules = problem.window_rules();
    let open = || (0..weights.len()).filter(|&i| !is_full[i] && problem.classes[i].rate_hz.value > 0.0);
    let (n, sum) = (open().count().max(1) as f64, open().map(|i| weights[i]).sum::<f64>());
    let first = open().filter(|&i| problem.classes[i].windows.first).count();
    let of = |i: usize| {
        let floor_s = if problem.classes[i].windows.first {
            least_apart_of_first(first).min(rules.closest_s).max(CLOSEST_OF_FIRST_S)
        } else {
            rules.closest_s
        };
        let part = 0.5 / n + if sum > 0.0 { 0.5 * weights[i] / sum } else { 0.0 };
        floor_s.max(1.0 / (rules.most_per_s * part))
    };
    (0..weights.len()).map(of).collect()
}

#[cfg(test)]
mod tests;
