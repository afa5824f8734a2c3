//! Which policy tells the mean of an independent measure per request type best, at which cost? Our Table 3 of Mertz and Nunes
//! (2023): measured on programs that serve requests, each run judged by what the program itself knows. Policies take
//! turns in each round; finished rounds are kept in `target/…/bench/`, so that a run can be resumed.

mod redis;
mod run;

use crate::Options;
use crate::measure::Table;
use anyhow::{Context, Result, bail};
use profiler_core::adapt::PolicyKind;
use profiler_core::adapt::replay::compare::{Settings, compare, geometric};
use profiler_core::adapt::replay::recorded::full_trace;
use profiler_core::adapt::replay::render_text;
use profiler_core::estimate::Estimate;
use profiler_core::stats::LEVEL;
use profiler_core::stats::moments::Moments;
use run::{Run, Seen, Subject};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::PathBuf;

/// Nobody, then the policies; `-always`: with functions inside operations attached all the time.
const ARMS: [&str; 8] = ["alone", "none", "full", "uni", "inv", "adp", "tithe", "uni-always"];
/// Of those with the paper's constants, which take long.
const PAPER_ARMS: &[&str] = ARMS.split_at(7).0.split_at(1).1;
/// `adp` without slices, which the paper does not have.
const PRINTED_ARMS: &[&str] = &["adp-always", "tithe"];
const QUOTIENTS: [(&str, &str); 8] = [
    ("adp", "inv"),
    ("adp", "uni"),
    ("tithe", "adp"),
    ("tithe", "inv"),
    ("tithe", "uni"),
    ("uni", "full"),
    ("uni", "uni-always"),
    ("tithe", "adp-always"),
];
/// Replays of the last full trace.
const REPLAYS: u32 = 10;

const SUBJECTS: &[Subject] = &[
    Subject {
        name: "sqlite",
        program: "sqlite-requests",
        measure: "sqlite_allocates",
        paper: false,
        arms: &ARMS,
    },
    Subject {
        name: "pages",
        program: "page-server",
        measure: "page_server_allocates",
        paper: false,
        arms: &ARMS,
    },
    Subject {
        name: "sqlite-paper",
        program: "sqlite-requests",
        measure: "sqlite_allocates",
        paper: true,
        arms: PAPER_ARMS,
    },
    Subject {
        name: "pages-paper",
        program: "page-server",
        measure: "page_server_allocates",
        paper: true,
        arms: PAPER_ARMS,
    },
    Subject {
        name: "sqlite-printed",
        program: "sqlite-requests",
        measure: "sqlite_allocates",
        paper: false,
        arms: PRINTED_ARMS,
    },
    Subject {
        name: "pages-printed",
        program: "page-server",
        measure: "page_server_allocates",
        paper: false,
        arms: PRINTED_ARMS,
    },
];

/// Names of the parts, for `--list`.
pub fn parts() -> impl Iterator<Item = &'static str> {
    SUBJECTS.iter().map(|subject| subject.name).chain([redis::NAME])
}

/// Finished runs of a part.
#[derive(Default, Serialize, Deserialize)]
struct Results {
    /// Length of a run, s; runs of another length are not continued.
    seconds: u64,
    /// Each round has a run of every arm.
    rounds: Vec<Vec<Run>>,
}

fn results_path(part: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let built = program.parent().and_then(|folder| folder.parent()).context("no target directory")?;
    let folder = built.join("bench");
    std::fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("operations-{part}.json")))
}

/// Runs what is missing of a part.
fn measure(subject: &Subject, options: &Options) -> Result<Results> {
    let path = results_path(subject.name)?;
    let mut results: Results = std::fs::read(&path)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .filter(|results: &Results| !options.fresh && results.seconds == options.seconds_or(60))
        .unwrap_or_default();
    results.seconds = options.seconds_or(60);
    while results.rounds.len() < options.rounds as usize {
        let turn = results.rounds.len();
        let mut round = Vec::new();
        let arms = subject.arms;
        for i in 0..arms.len() {
            let arm = arms[(turn + i) % arms.len()];
            eprintln!("operations:{}: round {} of {}, {arm}", subject.name, turn + 1, options.rounds);
            let run = run::run(subject, arm, options.seconds_or(60));
            round.push(run.with_context(|| format!("{}, {arm}", subject.name))?);
        }
        results.rounds.push(round);
        std::fs::write(&path, serde_json::to_vec(&results)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    results.rounds.truncate(options.rounds as usize);
    Ok(results)
}

/// `12.3 ±0.4`; the half interval over rounds, where there are two.
fn show(values: &Moments, scale: f64, decimals: usize) -> String {
    if values.n() == 0 {
        return String::new();
    }
    let mean = values.mean() * scale;
    match values.mean_interval(LEVEL) {
        Some(i) => format!("{mean:.decimals$} ±{:.decimals$}", (i.high - i.low) / 2.0 * scale),
        None => format!("{mean:.decimals$}"),
    }
}

fn show_quotient(e: &Estimate) -> String {
    match e.n {
        0 => "-".to_owned(),
        1 => format!("{:.2}", e.value),
        _ => format!("{:.2} [{:.2}, {:.2}]", e.value, e.low, e.high),
    }
}

impl Results {
    fn of(round: &[Run], arm: &str) -> Option<Run> {
        round.iter().find(|run| run.policy == arm).cloned()
    }

    fn moments(&self, arm: &str, figure: impl Fn(&Run) -> f64) -> Moments {
        self.rounds.iter().filter_map(|round| Some(figure(&Self::of(round, arm)?))).collect()
    }

    fn seen(&self, arm: &str, figure: impl Fn(&Seen) -> f64) -> Moments {
        let values = self.rounds.iter().filter_map(|round| Some(figure(&Self::of(round, arm)?.seen?)));
        values.filter(|x| x.is_finite()).collect()
    }

    /// A figure of one arm and of another in the same round, put together.
    fn paired(&self, arm: &str, base: &str, figure: impl Fn(&Run, &Run) -> f64) -> Moments {
        let pair = |round: &Vec<Run>| Some(figure(&Self::of(round, arm)?, &Self::of(round, base)?));
        self.rounds.iter().filter_map(pair).collect()
    }

    fn quotient(&self, a: &str, b: &str, figure: impl Fn(&Run) -> Option<f64>) -> String {
        let pair = |round: &Vec<Run>| Some((figure(&Self::of(round, a)?)?, figure(&Self::of(round, b)?)?));
        show_quotient(&geometric(self.rounds.iter().filter_map(pair)))
    }
}

fn row(table: &mut Table, subject: &Subject, results: &Results, arm: &'static str) {
    let sampled = !matches!(arm, "alone" | "none");
    let loss = |base| {
        show(&results.paired(arm, base, |run, base| 1.0 - run.throughput_hz / base.throughput_hz), 100.0, 1)
    };
    let seen = |figure: fn(&Seen) -> f64, scale, decimals| show(&results.seen(arm, figure), scale, decimals);
    let of_sample = |figure: fn(&Seen) -> f64, scale, decimals| {
        if sampled { seen(figure, scale, decimals) } else { String::new() }
    };
    table.row(&[
        format!("{}, {arm}", subject.name),
        show(&results.moments(arm, |run| run.throughput_hz), 1.0, 0),
        if arm == "none" { String::new() } else { loss("none") },
        if arm == "alone" { String::new() } else { loss("alone") },
        show(&results.paired(arm, "none", |run, base| run.cpu_ns / base.cpu_ns - 1.0), 100.0, 1),
        show(&results.moments(arm, |run| run.response_ns), 1e-6, 3),
        of_sample(|s| s.rate, 100.0, 1),
        of_sample(|s| s.rmse, 1.0, 1),
        of_sample(|s| s.relative, 100.0, 2),
        of_sample(|s| s.weighted, 1.0, 1),
        of_sample(|s| s.weighted_relative, 100.0, 2),
        of_sample(|s| s.mix, 100.0, 2),
        of_sample(|s| f64::from(s.unobserved), 1.0, 1),
        seen(|s| s.counted, 100.0, 2),
        seen(|s| s.dropped as f64, 1.0, 0),
        seen(|s| s.agent_cpu, 100.0, 1),
        results.rounds.len().to_string(),
    ]);
}

fn cycles(table: &mut Table, subject: &Subject, results: &Results, arm: &'static str) {
    let all = |figure: fn(&Seen) -> &Vec<f64>| -> Vec<f64> {
        let mut values: Vec<f64> = results
            .rounds
            .iter()
            .filter_map(|round| Results::of(round, arm)?.seen)
            .flat_map(|seen| figure(&seen).clone())
            .collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let spread = |values: &[f64], decimals: usize| match values {
        [] => String::new(),
        [first, .., last] => {
            format!("{:.decimals$} ({first:.decimals$} to {last:.decimals$})", values[values.len() / 2])
        }
        [only] => format!("{only:.decimals$}"),
    };
    table.row(&[
        format!("{}, {arm}", subject.name),
        show(&results.seen(arm, |s| f64::from(s.representative)), 1.0, 1),
        show(&results.seen(arm, |s| f64::from(s.timeouts)), 1.0, 1),
        spread(&all(|s| &s.cycle_s), 1),
        spread(&all(|s| &s.cycle_sample), 0),
    ]);
}

/// All policies over the last full recording of a part.
fn replayed(subject: &Subject) -> Result<String> {
    let recording = profiler_user::recording::open_without_events(&run::full_recording(subject))?;
    let trace = full_trace(&recording, None, recording.meta.cpus)?;
    let settings = Settings {
        policies: vec![
            PolicyKind::Full,
            PolicyKind::Uni,
            PolicyKind::Inv,
            PolicyKind::Adp,
            PolicyKind::Tithe,
        ],
        config: trace.config.clone(),
        runs: REPLAYS,
        seed: 1,
        cpu_per_s: None,
    };
    Ok(render_text(&compare(&trace, &settings)?, 0))
}

/// The cell: the parts with scaled constants, or one (`operations:PART`).
pub fn operations(options: &Options) -> Result<String> {
    if options.part.as_deref() == Some(redis::NAME) {
        return redis::redis(options);
    }
    let chosen: Vec<&Subject> = match &options.part {
        None => SUBJECTS.iter().filter(|subject| subject.arms.len() == ARMS.len()).collect(),
        Some(part) => match SUBJECTS.iter().find(|subject| subject.name == part.as_str()) {
            Some(subject) => vec![subject],
            None => bail!("no workload {part}; there are {}", parts().collect::<Vec<_>>().join(", ")),
        },
    };
    let mut table = Table::new(&[
        "workload, policy",
        "requests/s",
        "loss against none, %",
        "loss against alone, %",
        "CPU per request added to none's, %",
        "response, ms",
        "recorded, %",
        "RMSE, bytes",
        "relative RMSE, %",
        "weighted RMSE, bytes",
        "weighted relative, %",
        "mix, largest difference, %",
        "types unobserved",
        "counted by the agent, %",
        "records lost",
        "agent CPU, %",
        "n",
    ]);
    let mut cycle_table = Table::new(&[
        "workload, policy",
        "representative",
        "timeouts",
        "length, s: median (least to most)",
        "sample: median (least to most)",
    ]);
    let mut quotients = Table::new(&[
        "workload, quotient",
        "RMSE",
        "relative RMSE",
        "weighted RMSE",
        "weighted relative",
        "requests/s",
        "CPU per request",
    ]);
    let mut notes = String::new();
    for subject in chosen {
        let results = match measure(subject, options) {
            Ok(results) => results,
            Err(error) => {
                writeln!(notes, "- not measured: {}: {error:#}", subject.name)?;
                continue;
            }
        };
        subject.arms.iter().for_each(|arm| row(&mut table, subject, &results, arm));
        let sampling = subject.arms.iter().filter(|arm| !matches!(**arm, "alone" | "none"));
        sampling.for_each(|arm| cycles(&mut cycle_table, subject, &results, arm));
        for (a, b) in QUOTIENTS {
            if !subject.arms.contains(&a) || !subject.arms.contains(&b) {
                continue;
            }
            // The sample of `full` has no error.
            let of = |figure: fn(&Seen) -> f64| match b {
                "full" => "-".to_owned(),
                _ => results.quotient(a, b, |run| run.seen.as_ref().map(figure)),
            };
            quotients.row(&[
                format!("{}, {a}/{b}", subject.name),
                of(|s| s.rmse),
                of(|s| s.relative),
                of(|s| s.weighted),
                of(|s| s.weighted_relative),
                results.quotient(a, b, |run| Some(run.throughput_hz)),
                results.quotient(a, b, |run| Some(run.cpu_ns)),
            ]);
        }
        match replayed(subject) {
            Ok(text) => {
                writeln!(
                    notes,
                    "\nReplay of the last full recording of {}:\n\n```\n{text}```",
                    subject.name
                )?;
            }
            Err(error) => {
                writeln!(notes, "- not replayed: {}: {error:#}", subject.name)?;
            }
        }
    }
    Ok(format!(
        "{table}\nRuns of {} s, a target of its own for each, users stationary, seasonal and in bursts (a third each); means over rounds \
         with 95 % intervals. The truth is the target's own. Weighted: post-stratified means.\n\n{cycle_table}\n{quotients}\nQuotients \
         are paired within rounds: geometric mean [95 %].\n{notes}",
        options.seconds_or(60)
    ))
}
