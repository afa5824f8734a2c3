//! What another budget, other weights or other rates would change: plans solved again, nothing else.

use super::{Decision, Options, Plan, PlanError, Problem, Strategy, solve};
use serde::{Deserialize, Serialize};

/// At most so many classes are solved for one by one; those with the most at stake.
const MAX_CLASSES: usize = 64;

/// A class that another plan treats in another way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Index of the class.
    pub class: usize,
    /// Its name.
    pub name: String,
    /// Decision now.
    pub from: Decision,
    /// Decision then.
    pub to: Decision,
}

/// What more budget or more weight would change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// Shadow price of the budget: value gained per CPU s/s of budget, by 1 % more of it.
    pub shadow_price: f64,
    /// The value with twice the budget.
    pub double_budget_value: f64,
    /// What twice the budget would change.
    pub double_budget: Vec<Change>,
    /// Classes that would be traced, or in longer bursts, at ten times their weight.
    pub tenfold_weight: Vec<Change>,
}

/// What twice the budget, or ten times a class's weight, would change about `plan`.
///
/// # Errors
/// As [`solve`].
///
/// # Cost
/// One solution for each of at most 64 classes and two more.
pub fn what_if(
    problem: &Problem,
    plan: &Plan,
    strategy: Strategy,
    options: &Options,
) -> Result<WhatIf, PlanError> {
    let with_budget = |factor: f64| {
        solve(&Problem { budget: problem.budget * factor, ..problem.clone() }, strategy, options)
    };
    let more = with_budget(1.01)?;
    let double = with_budget(2.0)?;
    let mut sampled: Vec<usize> = (0..problem.classes.len())
        .filter(|&i| {
            let open = !problem.classes[i].never_trace && problem.classes[i].weight > 0.0;
            open && matches!(plan.classes[i].decision, Decision::Sample | Decision::Burst { .. })
        })
        .collect();
    // The dearest that fit at all, first: cheap ones are traced anyway.
    let stake = |i: usize| problem.classes[i].weight * problem.classes[i].traced_hz();
    sampled.retain(|&i| problem.classes[i].trace_cost() <= problem.budget || problem.burst.is_some());
    sampled.sort_by(|&a, &b| stake(b).total_cmp(&stake(a)));
    sampled.truncate(MAX_CLASSES);
    let mut tenfold_weight = Vec::new();
    let mut heavier = problem.clone();
    for i in sampled {
        heavier.classes[i].weight *= 10.0;
        let then = solve(&heavier, strategy, options)?;
        heavier.classes[i].weight = problem.classes[i].weight;
        let (from, to) = (plan.classes[i].decision, then.classes[i].decision);
        if to.duty() > from.duty() * 1.01 {
            tenfold_weight.push(Change { class: i, name: problem.classes[i].name.clone(), from, to });
        }
    }
    Ok(WhatIf {
        shadow_price: ((more.value - plan.value) / (0.01 * problem.budget)).max(0.0),
        double_budget_value: double.value,
        double_budget: changes(problem, plan, &double),
        tenfold_weight,
    })
}

impl WhatIf {
    /// In words, one sentence a line.
    #[must_use]
    pub fn sentences(&self, plan: &Plan) -> Vec<String> {
        let list = |changes: &[Change]| {
            let mut words: Vec<String> = changes
                .iter()
                .take(5)
                .map(|c| format!("'{}' ({} to {})", c.name, c.from.name(), c.to.name()))
                .collect();
            if changes.len() > 5 {
                words.push(format!("{} more", changes.len() - 5));
            }
            words.join(", ")
        };
        let gain = if plan.value > 0.0 { self.double_budget_value / plan.value - 1.0 } else { 0.0 };
        let mut lines = vec![format!(
            "twice the budget would bring {} more information{}",
            super::explain::percent(gain.max(0.0)),
            if self.double_budget.is_empty() {
                " and change no decision".to_owned()
            } else {
                format!(" and change {}", list(&self.double_budget))
            }
        )];
        if !self.tenfold_weight.is_empty() {
            lines.push(format!(
                "at ten times its own weight, each of these would change: {}",
                list(&self.tenfold_weight)
            ));
        }
        lines
    }
}

fn changes(problem: &Problem, before: &Plan, after: &Plan) -> Vec<Change> {
    let pairs = before.classes.iter().zip(&after.classes).enumerate();
    pairs
        .filter(|(_, (a, b))| a.decision.name() != b.decision.name())
        .map(|(i, (a, b))| Change {
            class: i,
            name: problem.classes[i].name.clone(),
            from: a.decision,
            to: b.decision,
        })
        .collect()
}

/// Whether the plan would be another one within the intervals of rates and shares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// No value tried within the intervals gives a plan that beats this one by more than the tolerance.
    pub stable: bool,
    /// Classes whose own interval decides, with what they may cost: those to look at again, worst first.
    pub decisive: Vec<Decisive>,
    /// Largest relative loss of this plan against the best one, over what was tried.
    pub regret: f64,
}

/// A class whose interval holds more than one decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decisive {
    /// Index of the class.
    pub class: usize,
    /// Its name.
    pub name: String,
    /// Decision if it is as rare and as long as its intervals allow.
    pub at_low: Decision,
    /// Decision if it is as frequent and as short as its intervals allow.
    pub at_high: Decision,
    /// Largest relative loss of the present plan: 1 if it would break the budget.
    pub regret: f64,
}

/// Tries the ends of every class's intervals, one class at a time, and of all together.
///
/// A class is decisive if, at an end of its interval, the plan's split would lose more than `tolerance` (relative)
/// against the best split there, or would no longer fit the budget.
///
/// # Errors
/// As [`solve`], for the problem itself; ends that are infeasible count as a regret of 1.
///
/// # Cost
/// Two solutions for each of at most 64 classes, and two more.
pub fn sensitivity(
    problem: &Problem,
    plan: &Plan,
    strategy: Strategy,
    options: &Options,
    tolerance: f64,
) -> Result<Sensitivity, PlanError> {
    let uncertain = |i: &usize| {
        let c = &problem.classes[*i];
        c.rate_hz.low < c.rate_hz.high || c.rho.low < c.rho.high
    };
    let mut classes: Vec<usize> = (0..problem.classes.len()).filter(uncertain).collect();
    let stake = |i: usize| {
        let c = &problem.classes[i];
        c.weight * (c.rate_hz.high - c.rate_hz.low + plan.sampling_hz * (c.rho.high - c.rho.low))
    };
    classes.sort_by(|&a, &b| stake(b).total_cmp(&stake(a)));
    let looked_at: Vec<usize> = classes.iter().copied().take(MAX_CLASSES).collect();
    let mut result = Sensitivity { stable: true, decisive: Vec::new(), regret: 0.0 };
    let mut other = problem.clone();
    for &i in &looked_at {
        let mut ends = [plan.classes[i].decision; 2];
        let mut worst = 0.0;
        for (end, decision) in ends.iter_mut().enumerate() {
            at_end(&mut other, problem, i, end == 1);
            let (regret, then) = regret(&other, plan, strategy, options);
            if let Some(then) = then {
                *decision = then.classes[i].decision;
            }
            worst = f64::max(worst, regret);
        }
        other.classes[i] = problem.classes[i].clone();
        result.regret = result.regret.max(worst);
        if worst > tolerance {
            let name = problem.classes[i].name.clone();
            let [at_low, at_high] = ends;
            result.decisive.push(Decisive { class: i, name, at_low, at_high, regret: worst });
        }
    }
    if !classes.is_empty() {
        for high in [false, true] {
            for &i in &classes {
                at_end(&mut other, problem, i, high);
            }
            result.regret = result.regret.max(regret(&other, plan, strategy, options).0);
        }
    }
    result.decisive.sort_by(|a, b| b.regret.total_cmp(&a.regret));
    result.stable = result.regret <= tolerance;
    Ok(result)
}

/// Frequent and short, or rare and long: the ends at which tracing is most and least of a burden.
fn at_end(other: &mut Problem, problem: &Problem, i: usize, high: bool) {
    let class = &problem.classes[i];
    let (rate, rho) =
        if high { (class.rate_hz.high, class.rho.low) } else { (class.rate_hz.low, class.rho.high) };
    other.classes[i].rate_hz = rate.into();
    other.classes[i].rho = rho.into();
}

/// What the plan's split loses in another problem, relative to the best plan there, and that plan.
fn regret(other: &Problem, plan: &Plan, strategy: Strategy, options: &Options) -> (f64, Option<Plan>) {
    let Ok(best) = solve(other, strategy, options) else { return (1.0, None) };
    let Some(value) = value_of(other, plan) else { return (1.0, Some(best)) };
    let loss = if best.value > 0.0 { (best.value - value) / best.value } else { 0.0 };
    (loss.max(0.0), Some(best))
}

/// The value of a plan's decisions under another problem, with the sampling rate that is best there.
fn value_of(problem: &Problem, plan: &Plan) -> Option<f64> {
    let mut cost = 0.0;
    for (class, planned) in problem.classes.iter().zip(&plan.classes) {
        cost += planned.decision.duty() * class.trace_cost();
        if matches!(planned.decision, Decision::Burst { .. }) {
            cost += problem.burst_rules().charge();
        }
    }
    let room = problem.budget * (1.0 + 1e-9) - cost;
    let price = problem.sample_cost();
    if room < price * problem.sampling.min_hz {
        return None;
    }
    let s = if price > 0.0 { (room / price).min(problem.sampling.max_hz) } else { problem.sampling.max_hz };
    let worth = problem.classes.iter().zip(&plan.classes).map(|(class, planned)| {
        let (full, sampled) = (class.weight * class.traced_hz(), s * class.weight * class.rho.value);
        match planned.decision {
            Decision::Derived { from } => {
                let duty = plan.classes[from].decision.duty();
                duty * full.max(sampled) + (1.0 - duty) * sampled
            }
            decision => decision.duty() * full + (1.0 - decision.duty()) * sampled,
        }
    });
    Some(worth.sum())
}
