//! Table 1 of the ADLER paper: how the kernels of programs grow, by class, and at how many places the sampling frequency is set.
//!
//! A program runs under the parameterised load of [`profiler_tests::kernels`]. Its functions are recorded in slices, a run of the agent for each. A kernel is a
//! function in a context: the timed call around it, as far as that is in the slice.

mod count;
mod figures;
mod jaq;
mod order;
mod sqlite;
mod subject;
mod table;

use crate::durations::Options;
use crate::observe::observe;
use crate::place::{self, text_of};
use crate::process::tail;
use crate::program::Mode;
use anyhow::{Context, Result, ensure};
use figures::{Inputs, Record, Told};
use order::Positions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use subject::{Program, Slice};

/// Budget of each run.
const BUDGET: &str = "20%";
/// Recorded calls that are wanted of each decade of a function's inputs.
const DATAPOINTS: u32 = 1_000;
/// Each combination is run so often, as in the paper.
const RUNS_OF_EACH: u64 = profiler_tests::kernels::RUNS_OF_EACH as u64;

/// The programs, in the order of the table.
fn programs() -> Vec<Box<dyn Program>> {
    vec![Box::new(sqlite::Sqlite), Box::new(jaq::Jaq)]
}

fn wants(only: &[String], program: &str, slice: &str) -> bool {
    only.is_empty() || only.iter().any(|only| only == program || *only == format!("{program}:{slice}"))
}

/// Runs what is not finished yet, each finished run a line of `kernels.jsonl`; returns the Markdown of all that are. With `only_table` nothing is run.
///
/// # Errors
///
/// If a name is unknown, nothing is finished, or a line cannot be written.
pub fn run(options: &Options<'_>, only_table: bool) -> Result<String> {
    let programs = programs();
    for only in options.only {
        let one = std::slice::from_ref(only);
        let is_known = |program: &dyn Program| {
            program.slices().iter().any(|slice| wants(one, program.name(), slice.name))
        };
        ensure!(programs.iter().any(|program| is_known(&**program)), "no program or slice {only} of kernels");
    }
    let lines = options.place.base.join("kernels.jsonl");
    let mut finished: Vec<Record> = place::finished(&lines)?;
    let counts = |record: &Record| {
        record.agent == options.agent_version && (record.seconds - options.seconds).abs() < 0.5
    };
    for round in (0..options.rounds).filter(|_| !only_table) {
        for program in &programs {
            if let Some(why) = program.missing(options.place) {
                eprintln!("{} is not run: {why}", program.name());
                continue;
            }
            for slice in program.slices() {
                let is_done = |record: &Record| {
                    record.is_of(program.name(), slice.name, round)
                        && counts(record)
                        && record.is_complete(&subject::inputs(&**program))
                };
                if !wants(options.only, program.name(), slice.name) || finished.iter().any(is_done) {
                    continue;
                }
                let record = one(options, &**program, slice, round)
                    .with_context(|| format!("{}:{}", program.name(), slice.name))?;
                say(&record);
                place::keep(&lines, &record)?;
                finished.push(record);
            }
        }
    }
    let counted: Vec<&Record> = finished.iter().filter(|record| counts(record)).collect();
    ensure!(
        !counted.is_empty(),
        "no finished runs of {} with {} s in {}",
        options.agent_version,
        options.seconds,
        lines.display()
    );
    let names: Vec<table::Named> =
        programs.iter().map(|program| (program.name(), program.language())).collect();
    Ok(table::document(&counted, &names))
}

fn one(options: &Options<'_>, program: &dyn Program, slice: &Slice, round: u32) -> Result<Record> {
    let folder = options.place.working("kernels")?;
    let mut running = program.start(options.place, &folder)?;
    let mode = Mode { name: "kernels", arguments: subject::recording(program, slice, BUDGET, DATAPOINTS) };
    let before = running.runs()?;
    let (observation, _) = observe(options.agent, running.pid(), &mode, options.seconds, &folder)?;
    let after = running.runs()?;
    let mut trouble: Vec<String> = observation.failed.iter().cloned().collect();
    trouble.extend(running.finish().err().map(|error| format!("its end: {error:#}")));
    let runs: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    let least_runs = runs.iter().copied().min().unwrap_or(0);
    if least_runs < RUNS_OF_EACH {
        trouble.push(format!("a combination was run {least_runs} times only while it was watched"));
    }
    let mut told = Vec::new();
    if observation.failed.is_none() {
        let recording = folder.join("run.tithe");
        let positions = Positions::read(&recording)?;
        for inputs in subject::inputs(program) {
            let kept = kept(options, program, slice, round, inputs)?;
            match models(options, slice, inputs, &recording, &kept, &positions) {
                Ok(one) => told.push(one),
                Err(why) => trouble.push(format!("{}: {why}", inputs.name())),
            }
        }
    }
    Ok(Record {
        program: program.name().to_owned(),
        version: program.version(options.place)?,
        slice: slice.name.to_owned(),
        round,
        seconds: options.seconds,
        agent: options.agent_version.clone(),
        load: text_of(Path::new("/proc/loadavg")).split(' ').next().and_then(|n| n.parse().ok()),
        trouble,
        observation,
        runs: runs.iter().sum(),
        least_runs,
        told,
    })
}

/// The file in which the models of a run stay, for whoever wants to see one.
fn kept(
    options: &Options<'_>,
    program: &dyn Program,
    slice: &Slice,
    round: u32,
    inputs: Inputs,
) -> Result<PathBuf> {
    let folder = options.place.base.join("kernels");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder.join(format!("{}-{}-{round}-{}.json", program.name(), slice.name, inputs.name())))
}

/// What `tithe models` says of a recording.
fn models(
    options: &Options<'_>,
    slice: &Slice,
    inputs: Inputs,
    recording: &Path,
    kept: &Path,
    positions: &Positions,
) -> Result<Told, String> {
    let mut command = Command::new(options.agent);
    command.arg("models").arg(recording).arg("-o").arg(kept).args(subject::modelling(slice, inputs));
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, tail(&String::from_utf8_lossy(&output.stderr))));
    }
    count::read(&text_of(kept), inputs, positions)
}

fn say(record: &Record) {
    let kernels = |told: &Told| {
        let with = told.kernels.iter().filter(|kernel| kernel.growth().is_some()).count();
        format!(
            "{}: {with} of {} kernels with a model, {} switches",
            told.inputs.name(),
            told.kernels.len(),
            told.switches
        )
    };
    let told: Vec<String> = record.told.iter().map(kernels).collect();
    eprintln!(
        "{}:{} round {}: {} runs, {} of the rarest combination; {}",
        record.program,
        record.slice,
        record.round,
        record.runs,
        record.least_runs,
        told.join("; ")
    );
    for what in &record.trouble {
        eprintln!("    {what}");
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use profiler_tests::kernels::PARAMETERS;
    use profiler_user::config::{InputsSpec, WordsSpec};
    use profiler_user::inspect::Pattern;

    /// Some functions of the two programs.
    const FUNCTIONS: [&str; 12] = [
        "sqlite3VdbeExec",
        "sqlite3BtreeInsert",
        "sqlite3ExprDup",
        "sqlite3_malloc64",
        "balance_nonroot",
        "whereLoopAddBtree",
        "likeFunc",
        "pcache1Fetch",
        "jaq_core::filter::run",
        "jaq_json::read::parse",
        "mi_malloc",
        "core::slice::sort::stable::driftsort_main",
    ];

    #[test]
    fn no_function_is_in_two_slices_and_each_is_in_one() {
        let is = |pattern: &str, name: &str| Pattern::parse(pattern).unwrap().matches_symbol(name);
        for name in FUNCTIONS {
            let has = |slice: &&Slice| {
                is(slice.pattern, name) && !slice.never.iter().any(|pattern| is(pattern, name))
            };
            let of = |program: &dyn Program| program.slices().iter().filter(has).count();
            let slices: Vec<usize> = programs().iter().map(|program| of(&**program)).collect();
            assert!(slices.iter().all(|slices| *slices <= 1) && slices.contains(&1), "{name}: {slices:?}");
        }
    }

    #[test]
    fn the_agent_reads_what_it_is_told_of_parameters() {
        for program in programs() {
            for slice in program.slices() {
                let arguments = subject::recording(&*program, slice, BUDGET, DATAPOINTS);
                let word = arguments.iter().position(|word| word == "--word");
                let kinds = subject::inputs(&*program);
                assert_eq!(word.is_some(), kinds.contains(&Inputs::Parameters));
                let Some(word) = word else { continue };
                let spec: WordsSpec = arguments[word + 1].parse().unwrap();
                assert_eq!((spec.place.as_str(), spec.words.len()), (slice.pattern, PARAMETERS.len()));
                let spec: InputsSpec = subject::modelling(slice, Inputs::Parameters)[1].parse().unwrap();
                assert_eq!((spec.pattern.text(), spec.inputs.len()), (slice.pattern, PARAMETERS.len()));
            }
        }
    }

    #[test]
    fn only_names_a_program_or_one_of_its_slices() {
        let only = |text: &str| vec![text.to_owned()];
        assert!(wants(&only("jaq"), "jaq", "core") && !wants(&only("jaq"), "sqlite", "vdbe"));
        assert!(wants(&only("sqlite:vdbe"), "sqlite", "vdbe"));
        assert!(!wants(&only("sqlite:vdbe"), "sqlite", "parser"));
        assert!(wants(&[], "sqlite", "parser"));
    }
}
