//! How well durations are known, and what would do, in words.

use super::units::duration_ns;
use profiler_core::report::Report;
use profiler_core::report::precision::{Known, Limit, Precision, WANTED};

/// Longest run that is proposed, s.
pub(super) const LONGEST_S: f64 = 24.0 * 3_600.0;
/// Largest share of the target's CPU time, or of a CPU, that is proposed as a budget.
pub(super) const LARGEST_BUDGET: f64 = 0.5;
/// Bursts take at most so much of the time, whatever the budget (core `burst.rs`).
pub(super) const LARGEST_DUTY: f64 = 0.5;

/// A remark on one function, the same for all whose durations are known as well as wanted, or for none of those; and what it says of this one.
///
/// `attached`: part of the run in which it was watched.
pub(super) fn words(precision: &Precision, attached: f64, report: &Report) -> (String, String) {
    let wanted = format!("{:.0} %", WANTED * 100.0);
    if precision.is_reached() {
        return (format!("P50 and mean of durations are known to {wanted}"), String::new());
    }
    let mut figure = format!("(P50 {}, mean {}", part(&precision.p50), part(&precision.mean));
    if let Some(times) = precision.times() {
        figure.push_str(&format!("; {} times the calls: {}", rounded(times), means(times, attached, report)));
    }
    figure.push(')');
    (format!("P50 or mean of durations are not known to {wanted}"), figure)
}

fn part(known: &Known) -> String {
    let half = known.half_width.map(|h| format!("{:.0} %", h * 100.0));
    match (known.limit, half) {
        (Limit::Untimed, _) => {
            "without upper end, as calls that were not timed may have taken any time".to_owned()
        }
        (Limit::Price, Some(half)) => format!("{half}, as what timing a call costs is known no better"),
        (_, Some(half)) => half,
        (_, None) => "only a limit, as timing a call costs as long as the call takes".to_owned(),
    }
}

/// What gives so many times the calls: a larger budget, or a longer run.
fn means(times: f64, attached: f64, report: &Report) -> String {
    let fits = times * attached <= LARGEST_DUTY;
    let budget =
        report.receipt.budget.times(times).filter(|b| fits && b.cpu_per_second(1.0) <= LARGEST_BUDGET);
    let seconds = report.duration_s * times;
    let longer = (seconds <= LONGEST_S).then(|| format!("--duration {}", length(seconds)));
    match (budget, longer) {
        (Some(budget), Some(longer)) => format!("--budget {budget}, or {longer} at this one"),
        (None, Some(longer)) => {
            format!("{longer}; no budget gives them in {}", duration_ns(report.duration_s * 1e9))
        }
        _ => "more than a run of a day has".to_owned(),
    }
}

/// A length of time as `--duration` takes it, rounded up: `90s`, `12m`, `5h`.
pub(super) fn length(seconds: f64) -> String {
    let (unit, name) = match seconds {
        s if s <= 120.0 => (1.0, "s"),
        s if s <= 7_200.0 => (60.0, "m"),
        _ => (3_600.0, "h"),
    };
    format!("{:.0}{name}", (seconds / unit).ceil())
}

/// Two digits at most.
fn rounded(times: f64) -> String {
    if times < 9.95 {
        return format!("{times:.1}");
    }
    let step = 10f64.powf(times.log10().floor() - 1.0);
    format!("{:.0}", (times / step).round() * step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::sample;

    fn known(half: f64, limit: Limit) -> Known {
        Known { half_width: Some(half), limit }
    }

    /// Of a run of 10 s at 2 %.
    fn said(p50: Known, mean: Known) -> String {
        words(&Precision { p50, mean }, 0.03, &sample::report()).1
    }

    /// Watched for a fifth of the run, it cannot be watched six times as long in the same time.
    #[test]
    fn no_budget_is_proposed_that_bursts_could_not_use() {
        let calls = known(0.25, Limit::Calls(6.25));
        let (_, said) = words(&Precision { p50: calls, mean: calls }, 0.2, &sample::report());
        assert!(
            said.ends_with("6.2 times the calls: --duration 63s; no budget gives them in 10.0 s)"),
            "{said}"
        );
    }

    #[test]
    fn what_limits_each_figure_is_said_and_what_would_do() {
        let reached = known(0.02, Limit::Reached);
        let (text, figure) = words(&Precision { p50: reached, mean: reached }, 0.03, &sample::report());
        assert_eq!((text.as_str(), figure.as_str()), ("P50 and mean of durations are known to 10 %", ""));
        assert_eq!(
            said(reached, known(0.25, Limit::Calls(6.25))),
            "(P50 2 %, mean 25 %; 6.2 times the calls: --budget 13%, or --duration 63s at this one)"
        );
        assert_eq!(
            said(known(0.35, Limit::Price), known(2.49, Limit::Calls(617.0))),
            "(P50 35 %, as what timing a call costs is known no better, mean 249 %; 620 times the calls: --duration 103m; no \
             budget gives them in 10.0 s)"
        );
        let none = |limit| Known { half_width: None, limit };
        assert_eq!(
            said(none(Limit::Price), none(Limit::Untimed)),
            "(P50 only a limit, as timing a call costs as long as the call takes, mean without upper end, as calls that were \
             not timed may have taken any time)"
        );
        assert!(
            said(reached, known(9.0, Limit::Calls(8_100.0)))
                .ends_with("--duration 23h; no budget gives them in 10.0 s)")
        );
        assert!(
            said(reached, known(90.0, Limit::Calls(810_000.0))).ends_with("more than a run of a day has)")
        );
    }
}
