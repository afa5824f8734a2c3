//! Plans for people and for machines: a text table and a serialisable form.

use super::explain::{number, percent, seconds};
use super::{Plan, Problem, Sensitivity, Strategy, WhatIf};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// What `tithe plan --format json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// The budget, CPU s per wall second.
    pub budget: f64,
    /// CPU seconds that the target uses per wall second.
    pub target_cpu: f64,
    /// The plans, best first.
    pub plans: Vec<PlanOutput>,
    /// What more budget or weight would change about the first plan, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what_if: Option<WhatIf>,
    /// Whether the first plan would be another one within the intervals, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensitivity: Option<Sensitivity>,
}

/// One plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanOutput {
    /// How it was found.
    pub strategy: Strategy,
    /// Its value.
    pub value: f64,
    /// No plan is worth more.
    pub upper_bound: f64,
    /// `(upper_bound - value) / upper_bound`.
    pub gap: f64,
    /// Samples per second of target CPU time.
    pub sampling_hz: f64,
    /// Predicted cost, CPU s/s.
    pub cost: f64,
    /// Predicted cost / the target's CPU time.
    pub overhead: f64,
    /// One entry per class, in the problem's order.
    pub classes: Vec<ClassOutput>,
}

/// One class of one plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassOutput {
    /// Name.
    pub name: String,
    /// `trace`, `burst`, `sample`, `derived`.
    pub decision: String,
    /// Share of time attached.
    pub duty: f64,
    /// Predicted cost of its instrumentation, CPU s/s.
    pub cost: f64,
    /// Its part of the value.
    pub value: f64,
    /// Events per second.
    pub rate_hz: f64,
    /// On-CPU share of the target's CPU time.
    pub share: f64,
    /// Price of one traced event, us.
    pub price_us: f64,
    /// Weight.
    pub weight: f64,
    /// Why.
    pub reason: String,
}

impl Output {
    /// The plans of a problem.
    #[must_use]
    pub fn new(problem: &Problem, plans: &[Plan]) -> Self {
        let plans = plans.iter().map(|plan| plan_output(problem, plan)).collect();
        Self {
            budget: problem.budget,
            target_cpu: problem.target_cpu,
            plans,
            what_if: None,
            sensitivity: None,
        }
    }
}

fn plan_output(problem: &Problem, plan: &Plan) -> PlanOutput {
    let reasons = plan.explain(problem);
    let rows = problem.classes.iter().zip(&plan.classes).zip(reasons);
    let classes = rows.map(|((class, planned), explanation)| ClassOutput {
        name: class.name.clone(),
        decision: planned.decision.name().to_owned(),
        duty: planned.decision.duty(),
        cost: planned.cost,
        value: planned.value,
        rate_hz: class.traced_hz(),
        share: if problem.target_cpu > 0.0 { class.rho.value / problem.target_cpu } else { 0.0 },
        price_us: (class.tau_s + class.detect_s) * 1e6,
        weight: class.weight,
        reason: explanation.reason,
    });
    PlanOutput {
        strategy: plan.strategy,
        value: plan.value,
        upper_bound: plan.upper_bound,
        gap: plan.gap,
        sampling_hz: plan.sampling_hz,
        cost: plan.cost,
        overhead: plan.overhead,
        classes: classes.collect(),
    }
}

/// The first plan as a table with reasons, attached classes first, and one line for each of the others.
#[must_use]
pub fn render_text(problem: &Problem, plans: &[Plan]) -> String {
    let mut out = String::new();
    let Some(best) = plans.first() else { return "no plan\n".to_owned() };
    // OK, here and below, because writing to a string cannot fail.
    let _ = writeln!(out, "{}", summary(problem, best));
    let output = plan_output(problem, best);
    let mut rows: Vec<[String; 8]> = vec![
        ["class", "decision", "calls/s", "on CPU", "per call", "weight", "cost", "reason"].map(str::to_owned),
    ];
    let mut order: Vec<usize> = (0..output.classes.len()).collect();
    let rank = |i: usize| ["trace", "burst", "derived"].iter().position(|d| *d == output.classes[i].decision);
    order.sort_by_key(|&i| rank(i).unwrap_or(3));
    for i in order {
        let class = &output.classes[i];
        let decision = match class.decision.as_str() {
            "burst" => format!("burst {}", percent(class.duty)),
            word => word.to_owned(),
        };
        let cost = if class.cost == 0.0 {
            "-".to_owned()
        } else if problem.target_cpu > 0.0 {
            percent(class.cost / problem.target_cpu)
        } else {
            format!("{} CPU", seconds(class.cost))
        };
        rows.push([
            class.name.clone(),
            decision,
            number(class.rate_hz),
            percent(class.share),
            seconds(problem.classes[i].mean_s()),
            number(class.weight),
            cost,
            class.reason.clone(),
        ]);
    }
    out.push_str(&align(&rows));
    if plans.len() > 1 {
        let _ = writeln!(out, "\nother plans, best first:");
    }
    for (place, plan) in plans.iter().enumerate().skip(1) {
        let _ = writeln!(out, "{}. {}", place + 1, difference(problem, best, plan));
    }
    out
}

fn summary(problem: &Problem, plan: &Plan) -> String {
    let proof = match plan.gap {
        0.0 => "proven best".to_owned(),
        gap if gap <= 1e-9 => "proven best to 9 digits".to_owned(),
        gap => format!("at most {} below the best possible", percent(gap)),
    };
    let share = if problem.target_cpu > 0.0 {
        let budget = problem.budget / problem.target_cpu;
        format!("{} of the target's CPU time (budget {})", percent(plan.overhead), percent(budget))
    } else {
        format!("{} CPU s/s (budget {})", number(plan.cost), number(problem.budget))
    };
    format!(
        "plan ({}): value {}, {proof}; sampling {} Hz of target CPU time; predicted cost {share}\n",
        plan.strategy,
        value(plan.value),
        number(plan.sampling_hz),
    )
}

/// A value with two decimals, as the paper's tables have.
fn value(x: f64) -> String {
    if x.abs() < 1e9 { format!("{x:.2}") } else { format!("{x:.5e}") }
}

fn difference(problem: &Problem, best: &Plan, plan: &Plan) -> String {
    let attached = |p: &Plan, i: usize| p.classes[i].decision.duty() > 0.0;
    let names = |keep: &dyn Fn(usize) -> bool| {
        let all: Vec<&str> = (0..problem.classes.len())
            .filter(|&i| keep(i))
            .map(|i| problem.classes[i].name.as_str())
            .collect();
        match all.len() {
            0 => "nothing".to_owned(),
            1..=6 => all.join(", "),
            n => format!("{}, {} more", all[..5].join(", "), n - 5),
        }
    };
    format!(
        "value {}, sampling {} Hz: adds {}; drops {}",
        value(plan.value),
        number(plan.sampling_hz),
        names(&|i| attached(plan, i) && !attached(best, i)),
        names(&|i| !attached(plan, i) && attached(best, i)),
    )
}

/// Columns side by side; numbers to the right, words to the left, the last column as it is.
fn align<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let gap = " ".repeat(width - cell.chars().count());
            match column {
                0 | 1 => line += &format!("{cell}{gap}  "),
                c if c + 1 == N => line += cell,
                _ => line += &format!("{gap}{cell}  "),
            }
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}
