//! The answer: plans, decisions, strategies, and what can go wrong.

use super::{CostUnit, Problem};
use crate::burst::BurstOrder;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a class is observed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Every event is recorded.
    Trace,
    /// Every event of some windows is recorded.
    Burst {
        /// Share of time attached, in (0, 1).
        duty: f64,
    },
    /// Only the shared sampler sees it.
    Sample,
    /// Its count follows from another class's; its time is sampled (Metz et al. §4.3.1).
    Derived {
        /// Index of the class, in the problem, that it is derived from.
        from: usize,
    },
}

impl Decision {
    /// The word used in tables, JSON and recordings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Burst { .. } => "burst",
            Self::Sample => "sample",
            Self::Derived { .. } => "derived",
        }
    }

    /// Share of time in which the class itself is attached, 0 to 1.
    #[must_use]
    pub fn duty(self) -> f64 {
        match self {
            Self::Trace => 1.0,
            Self::Burst { duty } => duty,
            Self::Sample | Self::Derived { .. } => 0.0,
        }
    }
}

/// What a plan does with one class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClassPlan {
    /// The decision.
    pub decision: Decision,
    /// Predicted cost of its own instrumentation, CPU s/s (samples are shared and not in it).
    pub cost: f64,
    /// Its part of the plan's value.
    pub value: f64,
    /// Its bursts where they are planned with the prices of links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<BurstOrder>,
}

/// A plan: for each class of the problem, in its order, a decision, and the rate of the shared sampler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// How it was found.
    pub strategy: Strategy,
    /// One entry per class of the problem.
    pub classes: Vec<ClassPlan>,
    /// `s`: samples per second of target CPU time.
    pub sampling_hz: f64,
    /// Predicted cost, CPU s/s; never above the budget.
    pub cost: f64,
    /// Predicted cost / CPU time that the target uses by itself; 0.02 is 2 %.
    pub overhead: f64,
    /// What the plan is worth by the problem's objective: weighted events per second, minus the mean log of the widths of intervals, or weighted
    /// relative variance taken away.
    pub value: f64,
    /// No plan that keeps the problem's rules is worth more.
    pub upper_bound: f64,
    /// `(upper_bound - value) / upper_bound`, or with the objective precision `upper_bound - value`: 0 for a proven optimum.
    pub gap: f64,
    /// With the objective precision: the part of the gap that is due to counting in full what costs next to nothing, which no other plan need do.
    #[serde(default)]
    pub exact_counts: f64,
}

/// How a plan is looked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// With burst rules mixed, else certified; for the objectives precision and variance, their solvers.
    #[default]
    Auto,
    /// The best split into traced and sampled, with an upper bound that proves how good it is.
    Certified,
    /// All splits tried out, for at most 20 free classes.
    Exhaustive,
    /// The best plan with bursts, with an upper bound.
    Mixed,
    /// The paper's O(n log n) approximation, worth more than half of the optimum (Metz et al. §4.2); with more than 64
    /// different minimum rates not all combinations are looked at, and the printed gap says how good it is.
    Approximation,
    /// Each class reported at any reduced frequency by itself, without the shared sampler (Problem 1, §4.1).
    Continuous,
    /// Sample everything, where that is provably best (Problem 3, §4.3.7).
    Frequent,
    /// Trace what fits, most CPU time first: what people do by hand.
    Hottest,
    /// Trace what fits, largest weight first.
    ByWeight,
    /// Trace what must be traced, sample the rest.
    SampleAll,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Self; 10] = [
        Self::Auto,
        Self::Certified,
        Self::Mixed,
        Self::Approximation,
        Self::Exhaustive,
        Self::Continuous,
        Self::Frequent,
        Self::Hottest,
        Self::ByWeight,
        Self::SampleAll,
    ];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Certified => "certified",
            Self::Exhaustive => "exhaustive",
            Self::Continuous => "continuous",
            Self::Frequent => "frequent",
            Self::Mixed => "mixed",
            Self::Approximation => "approximation",
            Self::Hottest => "hottest",
            Self::ByWeight => "by-weight",
            Self::SampleAll => "sample-all",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A strategy name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no strategy '{0}': choose from {names}", names = Strategy::ALL.map(Strategy::name).join(", "))]
pub struct UnknownStrategy(String);

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|s| s.name() == text).ok_or_else(|| UnknownStrategy(text.to_owned()))
    }
}

/// How hard to look.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Distinct plans wanted, best first.
    pub top: usize,
    /// Stop when the gap is at most this.
    pub gap: f64,
    /// Stop after looking at so many classes in so many subproblems; `None`: a limit that grows with the
    /// problem. A stopped search still returns a plan and a valid bound.
    pub work_limit: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { top: 1, gap: 1e-9, work_limit: None }
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A number outside its range.
    #[error("{}{field} is {value}; accepted: {accepted}", class_prefix(class.as_deref()))]
    Invalid {
        /// The class, if it is a class's number.
        class: Option<String>,
        /// Which number.
        field: &'static str,
        /// The value seen.
        value: f64,
        /// What would be accepted.
        accepted: &'static str,
    },
    /// What must be observed costs more than the budget.
    #[error("the rules cost more than the budget: {what} take {}", costs(*needed, *budget, *unit))]
    Infeasible {
        /// The rules that cost.
        what: String,
        /// Least budget that would do, CPU s/s.
        needed: f64,
        /// The budget, CPU s/s.
        budget: f64,
        /// What costs are shown in.
        unit: CostUnit,
    },
    /// A minimum rate that no allowed sampling rate can bring, of a class that may not be traced.
    #[error(
        "class '{class}' may not be traced, and its min_rate_hz needs {needed_hz} samples/s where at most {max_hz} are \
         allowed: lower min_rate_hz, or allow tracing"
    )]
    MinRate {
        /// The class.
        class: String,
        /// Sampling rate that would do, Hz (infinite if samples never see the class).
        needed_hz: f64,
        /// Largest rate allowed, Hz.
        max_hz: f64,
    },
    /// Samples cost nothing and nothing limits their rate.
    #[error(
        "samples cost nothing and no largest rate is set: any plan could be improved; set max_sampling_hz"
    )]
    Unbounded,
    /// The strategy cannot do this problem.
    #[error("strategy '{strategy}' cannot solve this problem: {why}")]
    NotApplicable {
        /// The strategy.
        strategy: Strategy,
        /// Why not, and what to choose instead.
        why: String,
    },
}

impl PlanError {
    /// The rules of `problem` take `needed` CPU s/s, which is above the budget.
    pub(super) fn infeasible(problem: &Problem, needed: f64) -> Self {
        let musts = problem.classes.iter().any(|c| c.must_trace && c.trace_cost() > 0.0);
        let minima = problem.classes.iter().any(|c| c.min_rate_hz > 0.0 && !c.must_trace);
        let sampling = problem.sampling.min_hz * problem.sample_cost() > 0.0;
        let rules = [
            (musts, "the must-trace classes"),
            (minima, "the minimum rates"),
            (sampling, "the least sampling rate"),
        ];
        let words: Vec<&str> = rules.iter().filter(|rule| rule.0).map(|rule| rule.1).collect();
        let what = match words.as_slice() {
            // Problem 1 has one cost more.
            [] => "detection".to_owned(),
            [only] => (*only).to_owned(),
            [first @ .., last] => format!("{} and {last}", first.join(", ")),
        };
        Self::Infeasible { what, needed, budget: problem.room(), unit: problem.cost_unit() }
    }
}

/// Needed, allowed, missing, and the budget that would do.
fn costs(needed: f64, budget: f64, unit: CostUnit) -> String {
    let per = |cost: f64| unit.absolute(cost);
    let least = match unit {
        CostUnit::Share { target_cpu } => {
            format!("{:.4}% of the target's CPU time", round_up(needed / target_cpu * 100.0))
        }
        CostUnit::Reports { report_s } => format!("max_frequency = {}", (needed / report_s).ceil()),
        CostUnit::CpuTime => per(needed),
    };
    format!(
        "{}, the budget is {}, {} short; the least budget that would do is {least}",
        per(needed),
        per(budget),
        per(needed - budget),
    )
}

/// To four decimals, never below: who copies the figure has a budget that does.
fn round_up(percent: f64) -> f64 {
    (percent * (1.0 - 1e-12) * 1e4).ceil() / 1e4
}

fn class_prefix(class: Option<&str>) -> String {
    class.map(|name| format!("class '{name}': ")).unwrap_or_default()
}
