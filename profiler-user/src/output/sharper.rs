//! What a longer run or a larger budget would sharpen, in words.

use super::precision::{LARGEST_BUDGET, LARGEST_DUTY, LONGEST_S, length};
use super::units::percent;
use profiler_core::report::Report;
use profiler_core::report::sharper::{Limit, Sharper, TIMES};

/// One line for each row, after one that says what they are about; nothing where nothing is to be said.
pub(super) fn lines(report: &Report) -> Vec<String> {
    report.sharper.iter().map(|sharper| line(sharper, report)).collect()
}

fn line(sharper: &Sharper, report: &Report) -> String {
    let name = &sharper.name;
    let (Some(half), Some(then)) = (sharper.half_width, sharper.then) else {
        return format!(
            "{name}: at least, as the price of a hit hides the rest; neither a longer run nor a larger budget tells more"
        );
    };
    let now = format!("{name}: ±{} now", percent(half));
    let then = percent(then);
    if sharper.limit == Limit::Price {
        return format!(
            "{now}, as what a hit costs is known no better; neither a longer run nor a larger budget tells much more"
        );
    }
    let seconds = report.duration_s * TIMES;
    let longer = (seconds <= LONGEST_S).then(|| format!("--duration {}", length(seconds)));
    let fits = TIMES * sharper.watched_share <= LARGEST_DUTY;
    let budget = report.receipt.budget.times(TIMES);
    let budget = budget.filter(|b| fits && b.cpu_per_second(1.0) <= LARGEST_BUDGET);
    // With the objective information a budget goes where it buys most calls, wherever intervals are wide.
    let is_of_widths = report.receipt.plan.is_some_and(|plan| plan.of_widths);
    let budget = budget.filter(|_| is_of_widths);
    if sharper.limit == Limit::Agent {
        let longer = longer.map(|longer| format!("; at {longer} ±{then}")).unwrap_or_default();
        return format!(
            "{now}{longer} (the agent keeps to its own limit: a larger --agent-cpu tells more, not a larger budget)"
        );
    }
    match (sharper.limit, budget, longer) {
        (Limit::Windows, _, Some(longer)) => format!(
            "{now}; at {longer} ±{then} (the number of its windows limits it: a larger budget makes them longer, not more)"
        ),
        (Limit::Windows, _, None) => {
            format!(
                "{now} (the number of its windows limits it: a larger budget makes them longer, not more)"
            )
        }
        (Limit::Unspent, _, longer) => {
            let longer = longer.map(|longer| format!("; at {longer} ±{then}")).unwrap_or_default();
            format!(
                "{now}{longer} (the budget was not used up: a larger one tells more only where it allows longer bursts)"
            )
        }
        (Limit::Watched, Some(budget), Some(longer)) => {
            format!("{now}; at --budget {budget} or {longer} ±{then}")
        }
        (_, _, Some(longer)) => format!("{now}; at {longer} ±{then}"),
        (Limit::Watched, Some(budget), None) => format!("{now}; at --budget {budget} ±{then}"),
        _ => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::sample;

    /// Of a run of 10 s at 2 %.
    fn said(half_width: Option<f64>, watched_share: f64, limit: Limit) -> String {
        of(&sample::report(), half_width, watched_share, limit)
    }

    #[test]
    fn a_larger_budget_is_named_where_plans_spend_it_on_width() {
        let mut report = sample::report();
        let all = of(&report, Some(0.32), 0.01, Limit::Watched);
        report.receipt.plan.as_mut().unwrap().of_widths = false;
        assert!(
            all.contains("--budget") && !of(&report, Some(0.32), 0.01, Limit::Watched).contains("--budget")
        );
        let said = of(&sample::report(), Some(0.32), 0.01, Limit::Agent);
        assert!(
            said.contains("--duration 40s ±16.0 % (the agent keeps") && said.contains("--agent-cpu"),
            "{said}"
        );
    }

    fn of(report: &Report, half_width: Option<f64>, watched_share: f64, limit: Limit) -> String {
        let then = half_width.map(|half| half / 2.0);
        line(&Sharper { name: "f".to_owned(), half_width, then, watched_share, limit }, report)
    }

    #[test]
    fn four_times_as_much_halves_it_and_what_limits_it_is_said() {
        assert_eq!(
            said(Some(0.32), 0.01, Limit::Watched),
            "f: ±32.0 % now; at --budget 8% or --duration 40s ±16.0 %"
        );
        // Watched for a fifth of the run, it cannot be watched for four fifths by bursts.
        assert_eq!(said(Some(0.32), 0.2, Limit::Watched), "f: ±32.0 % now; at --duration 40s ±16.0 %");
        assert!(
            said(Some(0.32), 0.01, Limit::Windows)
                .contains("--duration 40s ±16.0 % (the number of its windows")
        );
        assert!(
            said(Some(0.12), 0.01, Limit::Price)
                .contains("±12.0 % now, as what a hit costs is known no better")
        );
        let unspent = said(Some(0.32), 0.01, Limit::Unspent);
        assert!(unspent.contains("--duration 40s ±16.0 % (the budget was not used up"), "{unspent}");
        assert!(said(None, 0.01, Limit::Price).contains("the price of a hit hides the rest"));
    }
}
