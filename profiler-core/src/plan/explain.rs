//! A plan's reasons, in words.

use super::figures::{number, percent, seconds};
use super::{ClassPlan, Decision, Estimand, Objective, Plan, PlanClass, Problem, relative_errors, widths};
use serde::{Deserialize, Serialize};

/// Why a class is observed the way it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Index of the class in the problem.
    pub class: usize,
    /// Its name.
    pub name: String,
    /// The decision.
    pub decision: Decision,
    /// The reason.
    pub reason: String,
}

impl Plan {
    /// The reason for each class's decision, in the problem's order. `problem` must be the one solved.
    #[must_use]
    pub fn explain(&self, problem: &Problem) -> Vec<Explanation> {
        let errors = match problem.objective {
            Objective::Information => vec![0.0; problem.classes.len()],
            Objective::Precision => widths(problem, self),
            Objective::Variance => relative_errors(problem, self),
        };
        let words = Words { plan: self, problem };
        problem
            .classes
            .iter()
            .zip(&self.classes)
            .enumerate()
            .map(|(index, (class, planned))| Explanation {
                class: index,
                name: class.name.clone(),
                decision: planned.decision,
                reason: match problem.objective {
                    Objective::Information => words.reason(class, planned),
                    Objective::Precision => words.width(class, planned, errors[index]),
                    Objective::Variance => words.variance(class, planned, errors[index]),
                },
            })
            .collect()
    }
}

struct Words<'a> {
    plan: &'a Plan,
    problem: &'a Problem,
}

/// It was watched and no call came: its rate only says how long. Not to be read off the interval, which reaches down to 0 also where
/// bursts of a hot class differ.
fn unseen(class: &PlanClass) -> bool {
    class.calls_seen == Some(0)
}

impl Words<'_> {
    fn reason(&self, class: &PlanClass, planned: &ClassPlan) -> String {
        let hz = class.traced_hz();
        let full = self.share(class.trace_cost());
        let s = self.plan.sampling_hz;
        match planned.decision {
            Decision::Trace if class.must_trace => format!("must be traced; costs {full}"),
            Decision::Trace if unseen(class) => format!(
                "not called while it was watched, at most {} events/s: tracing costs {full}",
                number(class.rate_hz.high)
            ),
            Decision::Trace => {
                let seen = s * class.rho.value;
                let short = if seen < hz { "short against the sampling period: " } else { "" };
                format!(
                    "{short}samples would see {} of {} events/s; tracing costs {full}",
                    number(seen),
                    number(hz)
                )
            }
            // What the split leaves.
            Decision::Burst { .. } if planned.burst.is_some() => {
                let order = planned.burst.map(|order| order.in_words()).unwrap_or_default();
                format!("{}; {order}", self.sampled(class, &full))
            }
            Decision::Burst { duty } if class.min_rate_hz > s * class.rho.value => format!(
                "samples would see {} of the {} events/s that are wanted at least: bursts in {} of the time",
                number(s * class.rho.value),
                number(class.min_rate_hz),
                percent(duty)
            ),
            Decision::Burst { duty } => format!(
                "too hot to trace all the time ({full}): bursts in {} of the time use up the budget",
                percent(duty)
            ),
            Decision::Derived { from } => {
                let source = &self.problem.classes[from].name;
                format!("its count follows from '{source}', which is traced; its time is sampled")
            }
            Decision::Sample => self.sampled(class, &full),
        }
    }

    /// The reason where variance is the objective: the error that is left.
    fn variance(&self, class: &PlanClass, planned: &ClassPlan, error: f64) -> String {
        let what = match class.estimand {
            Estimand::Mean => "mean time per call",
            Estimand::Total => "total time",
            Estimand::Rate => "rate",
        };
        let full = self.share(class.trace_cost());
        // Nothing known is an error of 100 %.
        let left = if error < 1.0 {
            format!("its {what} will be known to {} (standard error)", percent(error))
        } else {
            format!("its {what} stays unknown")
        };
        match planned.decision {
            Decision::Trace if class.must_trace => format!("must be traced; costs {full}"),
            Decision::Trace => format!("every event for {full}; no error is left"),
            Decision::Burst { duty } => {
                format!("tracing all would cost {full}; with bursts in {} of the time {left}", percent(duty))
            }
            _ if class.never_trace => format!("cannot or may not be traced; {left}"),
            _ if class.traced_hz() == 0.0 => "no events: there is nothing to trace".to_owned(),
            _ => format!("bursts bring more elsewhere; {left}"),
        }
    }

    /// The reason where precision is the objective: how wide the interval of its rate will be.
    fn width(&self, class: &PlanClass, planned: &ClassPlan, width: f64) -> String {
        let full = self.share(class.trace_cost());
        match (planned.decision, &planned.burst) {
            (Decision::Trace, _) if class.must_trace => format!("must be traced; costs {full}"),
            (Decision::Trace, _) if unseen(class) => format!(
                "not called while it was watched, at most {} events/s: counting all of them costs {full}",
                number(class.rate_hz.high)
            ),
            (Decision::Trace, _) => format!("counting every call costs {full}"),
            (Decision::Burst { duty }, Some(order)) => format!(
                "counting every call would cost {full}; {} in {} of the time give its rate to +-{} in {}",
                order.in_words(),
                percent(duty),
                percent(width),
                seconds(self.problem.horizon_s)
            ),
            _ if class.never_trace => "cannot or may not be traced".to_owned(),
            _ if class.traced_hz() == 0.0 => "no events: there is nothing to trace".to_owned(),
            _ if class.weight == 0.0 => "its weight is 0".to_owned(),
            _ => format!(
                "counting every call would cost {full}; no burst of it is possible, or it brings more elsewhere"
            ),
        }
    }

    fn sampled(&self, class: &PlanClass, full: &str) -> String {
        let s = self.plan.sampling_hz;
        let cost = class.trace_cost();
        if class.never_trace && !class.windows.only {
            "cannot or may not be traced".to_owned()
        } else if class.traced_hz() == 0.0 {
            "no events: there is nothing to trace".to_owned()
        } else if unseen(class) {
            format!("not called while it was watched, at most {} events/s", number(class.rate_hz.high))
        } else if cost > self.problem.budget {
            let times = cost / self.problem.budget;
            format!("too dear: tracing would cost {full}, {} times the budget", number(times))
        } else if cost > self.problem.room() {
            let kept = self.share(self.problem.kept);
            format!("too dear: tracing would cost {full}, and {kept} is kept for bursts")
        } else if class.weight == 0.0 {
            "its weight is 0".to_owned()
        } else if class.rho.value * s >= class.traced_hz() {
            format!(
                "long against the sampling period: a call takes {}, a sample comes every {} of CPU time",
                seconds(class.mean_s()),
                seconds(1.0 / s)
            )
        } else {
            format!("tracing would cost {full}; that budget brings more elsewhere")
        }
    }

    /// A cost in words.
    fn share(&self, cost: f64) -> String {
        self.problem.cost_unit().words(cost)
    }
}
