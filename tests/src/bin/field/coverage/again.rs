//! What a newer build tells of recordings that an older one made: an estimator is tried on runs that it was not made from, without their hours.

use super::Record;
use super::fact::{Fact, Quantity, told};
use super::programs::{Known, Timed};
use anyhow::{Context, Result, ensure};
use profiler_core::class::Source;
use profiler_core::report::Report;
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
    let facts =
        record.facts.iter().filter(|fact| is_known(fact, known)).map(|fact| fact_again(fact, &report));
    Ok(Record {
        agent: format!("{}, reports by {version}", record.agent),
        facts: facts.collect(),
        ..record.clone()
    })
}

/// A total that is told as exact is one of another time than an estimated one, so that its truth is: where only one of the two is exact the old one stays.
fn fact_again(fact: &Fact, report: &Report) -> Fact {
    let new = told(&report.rows, &fact.function, fact.quantity);
    let is_exact =
        |told: Option<profiler_core::estimate::Estimate>| told.is_some_and(|e| e.source == Source::Exact);
    let told = if is_exact(new) == is_exact(fact.told) { new } else { fact.told };
    Fact { told, ..fact.clone() }
}

fn is_known(fact: &Fact, known: &[Known]) -> bool {
    let timed = known.iter().find(|known| known.function == fact.function).map(|known| known.timed);
    match fact.quantity {
        Quantity::Total | Quantity::Rate | Quantity::RateBeside => timed.is_some(),
        Quantity::Mean | Quantity::OnCpu => timed.is_some_and(|timed| timed != Timed::No),
        Quantity::Share | Quantity::ShareLongRun => timed == Some(Timed::MeanAndShare),
    }
}
