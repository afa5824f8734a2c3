//! What another budget, other weights or other rates would change: plans solved again, nothing else.

use super::figures::{number, percent};
use super::{
    CostUnit, Decision, Objective, Options, Plan, PlanError, Problem, Strategy, precision, relative_errors,
    solve,
};
use serde::{Deserialize, Serialize};

/// At most so many classes are solved for one by one; those with the most at stake.
const MAX_CLASSES: usize = 64;
/// Classes times solutions: large tables get fewer of these.
const MAX_LOOKS: usize = 2_000_000;
/// Effort for each plan of [`outlook`]: near 20 ms.
const OUTLOOK_WORK: u64 = 1_000_000;
/// A loss that nobody minds, for [`outlook`]; rates are hardly known better.
const OUTLOOK_TOLERANCE: f64 = 0.01;

/// How many classes are looked at one by one.
fn looks(problem: &Problem) -> usize {
    MAX_CLASSES.min(MAX_LOOKS / problem.classes.len().max(1))
}

/// What would change a plan, for people and programs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outlook {
    /// What more budget or weight would change; `None` where the strategy cannot solve that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what_if: Option<WhatIf>,
    /// Whether the plan would be another one within the intervals; `None` where there are no intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sensitivity: Option<Sensitivity>,
}

/// What would change `plan`: [`what_if`] and, where rates or shares have intervals, [`sensitivity`] to 1 %.
///
/// # Cost
/// Three plans for each of at most 64 classes, fewer in tables of more than 30,000; each with limited effort.
#[must_use]
pub fn outlook(problem: &Problem, plan: &Plan, strategy: Strategy) -> Outlook {
    let options = Options { work_limit: Some(OUTLOOK_WORK), ..Options::default() };
    let uncertain = problem.classes.iter().any(|c| c.rate_hz.low < c.rate_hz.high || c.rho.low < c.rho.high);
    let answer = || sensitivity(problem, plan, strategy, &options, OUTLOOK_TOLERANCE).ok();
    Outlook {
        what_if: what_if(problem, plan, strategy, &options).ok(),
        sensitivity: if uncertain { answer() } else { None },
    }
}

impl Outlook {
    /// In words, one sentence each.
    #[must_use]
    pub fn sentences(&self, problem: &Problem, plan: &Plan) -> Vec<String> {
        let mut lines = self.what_if.as_ref().map(|w| w.sentences(problem, plan)).unwrap_or_default();
        lines.extend(self.sensitivity.as_ref().map(Sensitivity::sentence));
        lines
    }
}

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
    /// Shadow price of the budget: value gained per CPU s/s of budget, by 1 % more of it; per report/s where prices are
    /// not known.
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
    let with_budget = |factor: f64| solve(&problem.scaled(factor), strategy, options);
    let more = with_budget(1.01)?;
    let double = with_budget(2.0)?;
    let mut sampled: Vec<usize> = (0..problem.classes.len())
        .filter(|&i| {
            let open = !problem.classes[i].never_trace && problem.classes[i].weight > 0.0;
            open && matches!(plan.classes[i].decision, Decision::Sample | Decision::Burst { .. })
        })
        .collect();
    // The dearest that fit at all, first: cheap ones are traced anyway.
    let stake = |i: usize| {
        let class = &problem.classes[i];
        class.weight * if problem_is_of_logs(problem) { class.rho.value } else { class.traced_hz() }
    };
    let may_burst = problem.burst.is_some() || problem.windows.is_some();
    sampled.retain(|&i| problem.classes[i].trace_cost() <= problem.room() || may_burst);
    sampled.sort_by(|&a, &b| stake(b).total_cmp(&stake(a)));
    sampled.truncate(looks(problem));
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
    let budget = match problem.cost_unit() {
        CostUnit::Reports { report_s } => problem.budget / report_s,
        CostUnit::Share { .. } | CostUnit::CpuTime => problem.budget,
    };
    Ok(WhatIf {
        shadow_price: ((more.value - plan.value) / (0.01 * budget)).max(0.0),
        double_budget_value: double.value,
        double_budget: changes(problem, plan, &double),
        tenfold_weight,
    })
}

impl WhatIf {
    /// In words, one sentence each.
    #[must_use]
    pub fn sentences(&self, problem: &Problem, plan: &Plan) -> Vec<String> {
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
        if problem.objective == Objective::Precision {
            return self.widths(plan, &list);
        }
        let gain = if plan.value > 0.0 { self.double_budget_value / plan.value - 1.0 } else { 0.0 };
        let (value, unit) = match problem.cost_unit() {
            CostUnit::Share { target_cpu } => {
                (self.shadow_price * 0.01 * target_cpu, "1% of the target's CPU time")
            }
            CostUnit::CpuTime => (self.shadow_price * 1e-3, "1 ms/s of CPU time"),
            CostUnit::Reports { .. } => (self.shadow_price, "report per second"),
        };
        let what = match problem.objective {
            Objective::Information => "information",
            Objective::Precision | Objective::Variance => "precision",
        };
        let mut lines = vec![
            format!("the budget's shadow price: {} of value for each {unit} more", number(value)),
            format!(
                "twice the budget would bring {} more {what}{}",
                percent(gain.max(0.0)),
                if self.double_budget.is_empty() {
                    " and change no decision".to_owned()
                } else {
                    format!(" and change {}", list(&self.double_budget))
                }
            ),
        ];
        if !self.tenfold_weight.is_empty() {
            lines.push(format!(
                "at ten times its own weight, each of these would change: {}",
                list(&self.tenfold_weight)
            ));
        }
        lines
    }
}

impl WhatIf {
    /// In words, where the value is minus the log of a mean width.
    fn widths(&self, plan: &Plan, list: &dyn Fn(&[Change]) -> String) -> Vec<String> {
        let change = match self.double_budget.as_slice() {
            [] => String::new(),
            changes => format!(", and change {}", list(changes)),
        };
        let mut lines = vec![format!(
            "twice the budget would narrow the mean interval from +-{} to +-{}{change}",
            percent((-plan.value).exp()),
            percent((-self.double_budget_value.max(plan.value)).exp()),
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

impl Sensitivity {
    /// In words.
    #[must_use]
    pub fn sentence(&self) -> String {
        if self.stable {
            return format!(
                "within the intervals of rates and shares this plan stays within {} of the best",
                percent(self.regret)
            );
        }
        let lost = |regret: f64| {
            if regret >= 1.0 { "over budget".to_owned() } else { format!("{} lost", percent(regret)) }
        };
        let one = |d: &Decisive| match (d.at_low.name(), d.at_high.name()) {
            (low, high) if low == high => format!("'{}' ({})", d.name, lost(d.regret)),
            (low, high) => format!("'{}' ({low} or {high}; {})", d.name, lost(d.regret)),
        };
        let mut words: Vec<String> = self.decisive.iter().take(5).map(one).collect();
        if self.decisive.len() > 5 {
            words.push(format!("{} more", self.decisive.len() - 5));
        }
        if words.is_empty() {
            words.push(format!("all rates together ({})", lost(self.regret)));
        }
        format!(
            "within the intervals of rates and shares another plan may be better; it hangs on {}",
            words.join(", ")
        )
    }
}

/// Tries the ends of every class's intervals, one class at a time, and of all together.
///
/// A class is decisive if, at an end of its interval, the plan's split would lose more than `tolerance` (relative)
/// against the best split there, would no longer fit the budget, or would miss a minimum rate.
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
    let looked_at: Vec<usize> = classes.iter().copied().take(looks(problem)).collect();
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
    let loss = match problem_is_of_logs(other) {
        true => best.value - value,
        false if best.value > 0.0 => (best.value - value) / best.value,
        false => 0.0,
    };
    (loss.max(0.0), Some(best))
}

/// The value is a log: losses are differences.
fn problem_is_of_logs(problem: &Problem) -> bool {
    problem.objective == Objective::Precision
}

/// The value of a plan's decisions under another problem, with the sampling rate that is best there.
fn value_of(problem: &Problem, plan: &Plan) -> Option<f64> {
    if problem_is_of_logs(problem) {
        return precision::value_of(problem, plan);
    }
    let mut cost = 0.0;
    for (class, planned) in problem.classes.iter().zip(&plan.classes) {
        // What the split leaves is no part of it.
        if planned.burst.is_some() {
            continue;
        }
        cost += planned.decision.duty() * class.trace_cost();
        if matches!(planned.decision, Decision::Burst { .. }) {
            cost += problem.burst_rules().charge();
        }
    }
    let room = problem.room() * (1.0 + 1e-9) - cost;
    let price = problem.sample_cost();
    if room < price * problem.sampling.min_hz {
        return None;
    }
    let s = if price > 0.0 { (room / price).min(problem.sampling.max_hz) } else { problem.sampling.max_hz };
    let kept = problem.classes.iter().zip(&plan.classes).all(|(class, planned)| {
        let (all, duty) = (class.traced_hz(), planned.decision.duty());
        let seen = duty * all + (1.0 - duty) * s * class.rho.value;
        matches!(planned.decision, Decision::Derived { .. })
            || seen >= class.min_rate_hz.min(all) * (1.0 - 1e-9)
    });
    if !kept {
        return None;
    }
    if problem.objective == Objective::Variance {
        let errors = relative_errors(problem, &Plan { sampling_hz: s, ..plan.clone() });
        return Some(
            problem.classes.iter().zip(errors).map(|(c, e)| c.weight * c.weight * (1.0 - e * e)).sum(),
        );
    }
    let worth = problem.classes.iter().zip(&plan.classes).map(|(class, planned)| {
        let (full, sampled) = (class.weight * class.traced_hz(), s * class.weight * class.rho.value);
        match planned.decision {
            Decision::Derived { from } => {
                let duty = plan.classes[from].decision.duty();
                duty * full.max(sampled) + (1.0 - duty) * sampled
            }
            _ if planned.burst.is_some() => sampled,
            decision => decision.duty() * full + (1.0 - decision.duty()) * sampled,
        }
    });
    Some(worth.sum())
}
