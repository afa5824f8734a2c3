//! Plans for people and for machines: a text table and a serialisable form.

use super::figures::{number, percent, seconds};
use super::{
    CostUnit, Objective, Outlook, Plan, Problem, Strategy, rows_with_intervals, value_of_approximation,
};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// What `tithe plan --format json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// The budget, CPU s per wall second; reports per second if `priced` is false.
    pub budget: f64,
    /// Whether prices are known. If not (`max_frequency` without `report_time_us`), costs are reports per second.
    pub priced: bool,
    /// CPU seconds that the target uses per wall second.
    pub target_cpu: f64,
    /// The plans, best first.
    pub plans: Vec<PlanOutput>,
    /// What would change the first plan.
    #[serde(flatten)]
    pub outlook: Outlook,
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
    /// Predicted cost, CPU s/s; reports per second where prices are not known.
    pub cost: f64,
    /// Predicted cost / the target's CPU time; null where prices are not known or the target uses no CPU time.
    pub overhead: Option<f64>,
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
    /// Predicted cost of its instrumentation, CPU s/s; reports per second where prices are not known.
    pub cost: f64,
    /// Its part of the value.
    pub value: f64,
    /// Events per second.
    pub rate_hz: f64,
    /// On-CPU share of the target's CPU time.
    pub share: f64,
    /// Price of one traced event, us; null where prices are not known.
    pub price_us: Option<f64>,
    /// Weight.
    pub weight: f64,
    /// Why.
    pub reason: String,
}

impl Output {
    /// The plans of a problem, and what would change the first one.
    #[must_use]
    pub fn new(problem: &Problem, plans: &[Plan], outlook: Outlook) -> Self {
        let plans = plans.iter().map(|plan| plan_output(problem, plan)).collect();
        Self {
            budget: shown_cost(problem, problem.budget),
            priced: problem.priced,
            target_cpu: problem.target_cpu,
            plans,
            outlook,
        }
    }
}

/// A cost in CPU s/s, or in reports per second where prices are not known.
fn shown_cost(problem: &Problem, cost: f64) -> f64 {
    match problem.cost_unit() {
        CostUnit::Reports { report_s } => cost / report_s,
        CostUnit::Share { .. } | CostUnit::CpuTime => cost,
    }
}

fn plan_output(problem: &Problem, plan: &Plan) -> PlanOutput {
    let reasons = plan.explain(problem);
    let rows = problem.classes.iter().zip(&plan.classes).zip(reasons);
    let classes = rows.map(|((class, planned), explanation)| ClassOutput {
        name: class.name.clone(),
        decision: planned.decision.name().to_owned(),
        duty: planned.decision.duty(),
        cost: shown_cost(problem, planned.cost),
        value: planned.value,
        rate_hz: class.traced_hz(),
        share: if problem.target_cpu > 0.0 { class.rho.value / problem.target_cpu } else { 0.0 },
        price_us: problem.priced.then_some((class.tau_s + class.detect_s) * 1e6),
        weight: class.weight,
        reason: explanation.reason,
    });
    PlanOutput {
        strategy: plan.strategy,
        value: plan.value,
        upper_bound: plan.upper_bound,
        gap: plan.gap,
        sampling_hz: plan.sampling_hz,
        cost: shown_cost(problem, plan.cost),
        overhead: problem.cost_unit().share(plan.cost),
        classes: classes.collect(),
    }
}

/// The first plan as a table with reasons, attached classes first, one line for each of the others, and what would
/// change it.
#[must_use]
pub fn render_text(problem: &Problem, plans: &[Plan], outlook: &Outlook) -> String {
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
        } else {
            match problem.cost_unit() {
                CostUnit::Share { target_cpu } => percent(class.cost / target_cpu),
                CostUnit::CpuTime => format!("{} CPU", seconds(class.cost)),
                CostUnit::Reports { .. } => format!("{}/s", number(class.cost)),
            }
        };
        rows.push([
            shortened(&class.name),
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
    let sentences = outlook.sentences(problem, best);
    if !sentences.is_empty() {
        let _ = writeln!(out, "\nwhat would change it:");
    }
    for sentence in sentences {
        let _ = writeln!(out, "- {sentence}");
    }
    out
}

fn summary(problem: &Problem, plan: &Plan) -> String {
    let budget = match problem.cost_unit() {
        CostUnit::Share { target_cpu } => percent(problem.budget / target_cpu),
        CostUnit::CpuTime => number(problem.budget),
        CostUnit::Reports { report_s } => number(problem.budget / report_s),
    };
    let share = format!("{} (budget {budget})", problem.cost_unit().words(plan.cost));
    let beside = value_of_approximation(problem).map(|value| {
        format!("the paper's approximation, without bursts: mean interval +-{}\n", percent((-value).exp()))
    });
    format!(
        "plan ({}): {}; sampling {} Hz of target CPU time; predicted cost {share}\n{}",
        plan.strategy,
        plan.worth_in_words(problem),
        number(plan.sampling_hz),
        beside.unwrap_or_default()
    )
}

impl Plan {
    /// Value, bound and gap in words. `problem` must be the one solved.
    #[must_use]
    pub fn worth_in_words(&self, problem: &Problem) -> String {
        let is_of_widths = problem.objective == Objective::Precision;
        let width = |value: f64| percent((-value).exp());
        let proof = match self.gap {
            0.0 => "proven best".to_owned(),
            gap if gap <= 1e-9 => "proven best to 9 digits".to_owned(),
            gap if is_of_widths => {
                let exact = match self.exact_counts {
                    exact if exact < 5e-5 => String::new(),
                    exact => format!(", {exact:.4} of it for what is counted in full for next to nothing"),
                };
                format!(
                    "no plan brings it below +-{} (gap {gap:.4} in its log{exact})",
                    width(self.upper_bound)
                )
            }
            gap => format!("at most {} below the best possible", percent(gap)),
        };
        if is_of_widths {
            let (rows, all) = rows_with_intervals(problem);
            let (mean, horizon) = (width(self.value), seconds(problem.horizon_s));
            format!(
                "mean interval +-{mean} in {horizon}, of shares and of calls/s of {rows} of {all} functions, none below +-5 %; {proof}"
            )
        } else {
            format!("value {}, {proof}", value(self.value))
        }
    }
}

/// A name that leaves room for the reason: its beginning and its end.
fn shortened(name: &str) -> String {
    const LONGEST: usize = 48;
    let length = name.chars().count();
    if length <= LONGEST {
        return name.to_owned();
    }
    let begin: String = name.chars().take(LONGEST / 2).collect();
    let end: String = name.chars().skip(length - (LONGEST - LONGEST / 2 - 1)).collect();
    format!("{begin}…{end}")
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
