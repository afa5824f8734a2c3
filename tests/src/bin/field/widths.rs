//! How narrow the intervals of calls per second are, with one objective of plans and with the other, on the same programs at the same budgets.
//!
//! The two take turns within each round, on one instance of the program after another. A row's *width* is half of its interval over its value; a row without a rate,
//! or with a limit only, has none, and counts as wider than any. The rows are the [`ROWS`] that took most of the CPU time.

use crate::observe::{Observation, observe};
use crate::place::{self, Place};
use crate::program::{Mode, Program};
use crate::programs;
use anyhow::{Result, bail, ensure};
use profiler_core::report::Report;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The rows that are compared: those that a person reads.
const ROWS: usize = 20;
/// A row that is known to a quarter can be acted on.
const KNOWN: f64 = 0.25;
/// The objectives, in the order of the table.
const OBJECTIVES: [&str; 2] = ["information", "precision"];
/// Budgets and lengths, s.
const BUDGETS: [&str; 3] = ["1%", "2%", "5%"];
const LENGTHS_S: [f64; 2] = [15.0, 60.0];
/// Programs that are run where none is named.
const PROGRAMS: [&str; 6] = ["sqlite", "redis", "postgresql", "cpython", "memcached", "openssl"];

/// What the command line asks for.
pub struct Options<'a> {
    /// Where programs lie.
    pub place: &'a Place,
    /// The agent.
    pub agent: &'a Path,
    /// Its version.
    pub agent_version: String,
    /// `PROGRAM` or `PROGRAM:BUDGET`; none: all of [`PROGRAMS`].
    pub only: &'a [String],
    /// Runs of each kind.
    pub rounds: u32,
}

/// A finished run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    program: String,
    budget: String,
    seconds: f64,
    objective: String,
    round: u32,
    agent: String,
    /// What was wrong with the program's own results or its end, or with the agent.
    trouble: Vec<String>,
    observation: Observation,
    /// Widths of the rows; `None`: no rate, or a limit.
    widths: Vec<Option<f64>>,
    /// The measured overhead, over the program's own CPU time.
    measured: Option<f64>,
}

/// A kind of run: program, budget, length in ms, objective.
type Kind = (String, String, u64, String);

impl Record {
    fn kind(&self) -> Kind {
        kind(&self.program, &self.budget, self.seconds, &self.objective)
    }
}

fn kind(program: &str, budget: &str, seconds: f64, objective: &str) -> Kind {
    // OK because lengths are positive and below an hour.
    (program.to_owned(), budget.to_owned(), (seconds * 1e3) as u64, objective.to_owned())
}

/// Widths of the rows that took most of the CPU time, of functions that were called while they were watched: `main`, or a loop that a thread entered
/// before the agent came, has no rate that a plan could tell.
fn widths(report: &Report) -> Vec<Option<f64>> {
    let mut rows: Vec<(f64, Option<f64>)> = report
        .rows
        .iter()
        .filter_map(|row| {
            let share = row.share.filter(|_| row.attempted > 0)?.value;
            let rate = row.rate_hz.filter(|e| !e.at_most && e.value > 0.0 && e.high.is_finite());
            Some((share, rate.map(|e| (e.high - e.low) / (2.0 * e.value))))
        })
        .collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    rows.truncate(ROWS);
    rows.into_iter().map(|(_, width)| width).collect()
}

/// Median width of a run's rows (of an even number the larger of the middle two); infinite where half of them have none.
fn median_width(widths: &[Option<f64>]) -> f64 {
    let mut all: Vec<f64> = widths.iter().map(|w| w.unwrap_or(f64::INFINITY)).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::INFINITY)
}

fn known(widths: &[Option<f64>]) -> usize {
    widths.iter().flatten().filter(|w| **w <= KNOWN).count()
}

/// Runs what is not finished yet, each finished run a line of `widths.jsonl`; returns the Markdown of all that are.
///
/// # Errors
///
/// If a name is unknown, nothing is finished, or a line cannot be written.
pub fn run(options: &Options<'_>, only_table: bool) -> Result<String> {
    let all = programs::all();
    for only in options.only {
        let (name, budget) = only.split_once(':').map_or((&**only, None), |(p, b)| (p, Some(b)));
        ensure!(all.iter().any(|program| program.name() == name), "no program {name}; --list shows them");
        ensure!(budget.is_none_or(|b| BUDGETS.contains(&b)), "{only}: budgets are {}", BUDGETS.join(", "));
    }
    let wants = |program: &str, budget: &str| match options.only {
        [] => PROGRAMS.contains(&program),
        only => only.iter().any(|o| *o == program || *o == format!("{program}:{budget}")),
    };
    let lines = options.place.base.join("widths.jsonl");
    let mut finished: Vec<Record> = place::finished(&lines)?;
    for round in (0..options.rounds).filter(|_| !only_table) {
        let mut pairs = 0;
        for program in &all {
            for (budget, seconds) in BUDGETS.iter().flat_map(|b| LENGTHS_S.map(|s| (*b, s))) {
                if !wants(program.name(), budget) {
                    continue;
                }
                if let Some(why) = program.missing(options.place) {
                    eprintln!("{} is not run: {why}", program.name());
                    break;
                }
                // They take turns at being first, within a round and between rounds: what is started first finds other caches.
                let mut objectives = OBJECTIVES;
                objectives.rotate_left((pairs + round as usize) % OBJECTIVES.len());
                pairs += 1;
                for objective in objectives {
                    let wanted = kind(program.name(), budget, seconds, objective);
                    let is_done = |r: &Record| {
                        r.round == round
                            && r.kind() == wanted
                            && r.trouble.is_empty()
                            && r.agent == options.agent_version
                    };
                    if finished.iter().any(is_done) {
                        continue;
                    }
                    match one(options, &**program, &wanted, round) {
                        Ok(record) => {
                            say(&record);
                            place::keep(&lines, &record)?;
                            finished.push(record);
                        }
                        Err(error) => eprintln!("{wanted:?} cannot be run: {error:#}"),
                    }
                }
            }
        }
    }
    if finished.is_empty() {
        bail!("no finished runs in {}", lines.display());
    }
    Ok(document(&finished))
}

/// One run of the agent on a new instance.
fn one(options: &Options<'_>, program: &dyn Program, kind: &Kind, round: u32) -> Result<Record> {
    let (_, budget, ms, objective) = kind;
    let seconds = *ms as f64 * 1e-3;
    let folder = options.place.working("widths")?;
    let arguments = ["--budget", budget, "--objective", objective].map(str::to_owned).to_vec();
    let mode = Mode { name: "widths", arguments };
    let mut instance = program.start(options.place, &folder)?;
    let pid = instance.begin(seconds)?;
    let (observation, report) = observe(options.agent, pid, &mode, seconds, &folder)?;
    let mut trouble: Vec<String> = observation.failed.iter().cloned().collect();
    trouble.extend(observation.blind(mode.name));
    trouble.extend(instance.end().err().map(|e| format!("its results: {e:#}")));
    trouble.extend(instance.finish().err().map(|e| format!("its end: {e:#}")));
    let receipt = report.as_ref().and_then(|r| r.receipt.in_place.as_ref());
    Ok(Record {
        program: program.name().to_owned(),
        budget: budget.clone(),
        seconds,
        objective: objective.clone(),
        round,
        agent: options.agent_version.clone(),
        trouble,
        measured: receipt.map(|in_place| in_place.overhead.value),
        widths: report.as_ref().map(widths).unwrap_or_default(),
        observation,
    })
}

fn say(record: &Record) {
    let (program, budget, ms, objective) = record.kind();
    eprintln!(
        "{program} {budget} {} s {objective}: median width {:.0} %, {} of {} rows within {:.0} %",
        ms / 1000,
        median_width(&record.widths) * 100.0,
        known(&record.widths),
        record.widths.len(),
        KNOWN * 100.0,
    );
    record.trouble.iter().for_each(|what| eprintln!("    {what}"));
}

/// `12.1 (9.8..14.0)`; what is infinite is `none`.
fn show(mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    let text = |x: f64| if x.is_finite() { format!("{x:.digits$}") } else { "none".to_owned() };
    match values.as_slice() {
        [] => "-".to_owned(),
        [one] => text(*one),
        all => format!("{} ({}..{})", text(all[all.len() / 2]), text(all[0]), text(all[all.len() - 1])),
    }
}

/// The table of all finished runs.
fn document(finished: &[Record]) -> String {
    let mut kinds: BTreeMap<(String, String, u64), Vec<&Record>> = BTreeMap::new();
    let newest = finished.last().map(|r| &r.agent);
    for record in finished.iter().filter(|r| r.trouble.is_empty() && Some(&r.agent) == newest) {
        let (program, budget, ms, _) = record.kind();
        kinds.entry((program, budget, ms)).or_default().push(record);
    }
    let mut text = format!(
        "# Widths of intervals\n\nWritten by `cargo xtask field --widths`. Each program is watched with both objectives of plans, in turns, each time a new instance. Rows: the {ROWS} that took most of the \
         CPU time in the run, of functions that were called while they were watched. *Width*: half of the interval of calls per second over its value, %; a row without a rate, or with a limit, counts as wider than any (`none`: that is the median). *Known*: rows within \
         {:.0} %. *Measured*: overhead by the receipt, % of the program's own CPU time. Medians (least..most) over the runs; left of the arrow `information`, right `precision`.\n\n\
         | program | budget | length, s | runs | median width | known | measured | predicted |\n|---|---|--:|--:|---|---|---|---|\n",
        KNOWN * 100.0
    );
    for ((program, budget, ms), records) in &kinds {
        let of = |objective: &str| -> Vec<&&Record> {
            records.iter().filter(|r| r.objective == objective).collect()
        };
        let both = |figure: &dyn Fn(&Record) -> Option<f64>, digits: usize| {
            let shown = OBJECTIVES.map(|o| show(of(o).iter().filter_map(|r| figure(r)).collect(), digits));
            shown.join(" → ")
        };
        let of_rows = OBJECTIVES.map(|o| {
            let rows: BTreeSet<usize> = of(o).iter().map(|r| r.widths.len()).collect();
            let rows: Vec<String> = rows.iter().map(ToString::to_string).collect();
            let known = show(of(o).iter().map(|r| known(&r.widths) as f64).collect(), 0);
            format!("{known} of {}", rows.join(" or "))
        });
        text.push_str(&format!(
            "| {program} | {budget} | {} | {} | {} | {} | {} | {} |\n",
            ms / 1000,
            OBJECTIVES.map(|o| of(o).len().to_string()).join(" → "),
            both(&|r| Some(median_width(&r.widths) * 100.0), 1),
            of_rows.join(" → "),
            both(&|r| r.measured.map(|m| m * 100.0), 2),
            both(&|r| Some(r.observation.predicted * 100.0), 2),
        ));
    }
    let troubled: Vec<String> = finished
        .iter()
        .filter(|r| !r.trouble.is_empty() && Some(&r.agent) == newest)
        .map(|r| format!("- {:?}: {}\n", r.kind(), r.trouble.join("; ")))
        .collect();
    if !troubled.is_empty() {
        text.push_str(&format!("\nNot in the table:\n\n{}", troubled.concat()));
    }
    text.push_str(&format!(
        "\nAgent: {}; runs of others are not shown.\n",
        newest.map_or("-", String::as_str)
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_a_rate_is_wider_than_any() {
        assert_eq!(median_width(&[Some(0.1), None, Some(0.3)]), 0.3);
        assert_eq!(median_width(&[Some(0.1), None, None]), f64::INFINITY);
        assert_eq!(median_width(&[]), f64::INFINITY);
        assert_eq!(known(&[Some(0.25), None, Some(0.3), Some(0.0)]), 2);
        assert_eq!(show(vec![f64::INFINITY, 12.0, 13.0], 1), "13.0 (12.0..none)");
    }

    #[test]
    fn the_table_has_both_objectives_side_by_side() {
        let record = |objective: &str, width: f64| Record {
            program: "p".to_owned(),
            budget: "2%".to_owned(),
            seconds: 15.0,
            objective: objective.to_owned(),
            round: 0,
            agent: "a".to_owned(),
            trouble: Vec::new(),
            observation: Observation { predicted: 0.018, ..Observation::default() },
            widths: vec![Some(width); 3],
            measured: Some(0.02),
        };
        let broken = Record { trouble: vec!["it died".to_owned()], ..record("precision", 9.0) };
        let text = document(&[record("information", 0.4), record("precision", 0.1), broken]);
        assert!(
            text.contains(
                "| p | 2% | 15 | 1 → 1 | 40.0 → 10.0 | 0 of 3 → 3 of 3 | 2.00 → 2.00 | 1.80 → 1.80 |"
            ),
            "{text}"
        );
        assert!(text.contains("it died"), "{text}");
    }
}
