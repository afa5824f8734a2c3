//! What a newer build tells of recordings that an older one made: an estimator is tried on runs that it was not made from, without their hours.

use super::Record;
use super::fact::{Fact, Quantity, told};
use super::programs::{Known, Timed};
use anyhow::{Context, Result, ensure};
use profiler_core::class::Source;
use profiler_core::estimate::Estimate;
use profiler_core::report::{Report, Row};
use std::path::Path;
use std::process::Command;

/// Tells the facts of a run anew, by the report that this agent makes of its recording. What is true was taken beside the recording and stays; what
/// is not `known` any more is left out.
///
/// # Errors
///
/// The recording is not there any more, or the agent makes no report of it.
pub fn again(
    record: &Record,
    known: &[Known],
    (agent, version): (&Path, &str),
    recording: &Path,
) -> Result<Record> {
    let mut command = Command::new(agent);
    command.arg("report").arg(recording).args(["--format", "json", "--rows", "200"]);
    let output = command.output().with_context(|| format!("cannot start {}", agent.display()))?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", recording.display(), messages.trim_end());
    let report: Report = serde_json::from_slice(&output.stdout).context("no report")?;
    let facts = record.facts.iter().filter(|fact| is_known(fact, known));
    let facts = facts.filter_map(|fact| fact_again(fact, &report.rows)).collect();
    Ok(Record { agent: reports_by(&record.agent, version), facts, ..record.clone() })
}

/// Who made the recordings, and who the reports.
pub fn reports_by(recorder: &str, version: &str) -> String {
    format!("{recorder}, reports by {version}")
}

/// What is not told any more is not told. A total that is told as exact is one of another time than an estimated one, and so is its truth, which was taken for the old one:
/// where only one of the two is exact nothing is known of the new one, and the fact is left out.
fn fact_again(fact: &Fact, rows: &[Row]) -> Option<Fact> {
    let new = told(rows, &fact.function, fact.quantity);
    let is_exact = |told: Option<Estimate>| told.is_some_and(|told| told.source == Source::Exact);
    let is_of_another_time =
        fact.quantity == Quantity::Total && new.is_some() && is_exact(new) != is_exact(fact.told);
    (!is_of_another_time).then(|| Fact { told: new, ..fact.clone() })
}

fn is_known(fact: &Fact, known: &[Known]) -> bool {
    let timed = known.iter().find(|known| known.function == fact.function).map(|known| known.timed);
    match fact.quantity {
        Quantity::Total | Quantity::Rate | Quantity::RateBeside => timed.is_some(),
        Quantity::Mean | Quantity::OnCpu => timed.is_some_and(|timed| timed != Timed::No),
        Quantity::Share | Quantity::ShareLongRun => timed == Some(Timed::MeanAndShare),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fact::Truth;
    use super::*;

    fn estimate(value: f64) -> Estimate {
        Estimate { source: Source::Burst, level: 0.95, ..Estimate::exact(value, 9) }
    }

    fn report(calls: Option<Estimate>, rate_hz: Option<Estimate>) -> [Row; 1] {
        let row = serde_json::json!({
            "name": "f", "module": "m", "class_id": 7, "decision": "burst", "share": null, "share_long_run": null, "self_share": null,
            "calls": calls, "rate_hz": rate_hz, "on_cpu_ns": null, "mean_ns": null, "correction_ns": 0.0, "quantiles_ns": [], "watched_share": 1.0,
            "dropped": 0, "attempted": 9, "site_class": null, "kind": null, "notes": [],
        });
        [serde_json::from_value(row).unwrap()]
    }

    fn fact(quantity: Quantity, told: Option<Estimate>) -> Fact {
        let truth = Truth { value: 100.0, within: 1.0, apart: 0.0 };
        Fact { function: "f".to_owned(), quantity, told, truth }
    }

    #[test]
    fn what_the_newer_build_does_not_tell_is_not_told() {
        let told = |quantity, old, rows: &[Row]| fact_again(&fact(quantity, old), rows).map(|fact| fact.told);
        let (old, new) = (estimate(90.0), estimate(99.0));
        assert_eq!(told(Quantity::Total, Some(old), &report(Some(new), None)), Some(Some(new)));
        assert_eq!(told(Quantity::Total, Some(old), &report(None, None)), Some(None));
        assert_eq!(told(Quantity::Total, Some(Estimate::exact(90.0, 9)), &report(None, None)), Some(None));
        assert_eq!(told(Quantity::Rate, Some(old), &report(Some(new), None)), Some(None));
        assert_eq!(told(Quantity::Total, None, &report(Some(new), None)), Some(Some(new)));
        assert_eq!(told(Quantity::Total, Some(old), &[]), Some(None));
    }

    #[test]
    fn a_total_whose_truth_is_of_another_time_is_left_out() {
        let told = |quantity, old, rows: &[Row]| fact_again(&fact(quantity, old), rows).map(|fact| fact.told);
        let (old, exact) = (estimate(90.0), Estimate::exact(80.0, 9));
        assert_eq!(told(Quantity::Total, Some(old), &report(Some(exact), None)), None);
        assert_eq!(told(Quantity::Total, None, &report(Some(exact), None)), None);
        assert_eq!(told(Quantity::Total, Some(exact), &report(Some(old), None)), None);
        assert_eq!(told(Quantity::Total, Some(exact), &report(Some(exact), None)), Some(Some(exact)));
        // The truth of a rate is that of the whole recording in any case.
        assert_eq!(told(Quantity::Rate, Some(old), &report(None, Some(exact))), Some(Some(exact)));
    }
}
