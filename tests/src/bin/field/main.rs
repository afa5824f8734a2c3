//! The field suite: real programs under load, watched by the agent, judged by their own results. `cargo xtask field`
//! fetches and builds them and runs this as root. It prints Markdown; each finished run is a line of `runs.jsonl`, and
//! what is finished is not run again.

mod alarms;
mod anomalies;
mod coverage;
mod durations;
mod kernels;
mod load;
mod models;
mod observe;
mod place;
mod process;
mod program;
mod programs;
mod run;
mod steps;
mod table;
mod widths;

use anyhow::{Context, Result, bail, ensure};
use place::Place;
use program::{Mode, Program};
use run::{Pair, Record, Suite};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What the command line asks for.
struct Options {
    /// `target/field`.
    base: PathBuf,
    /// The agent.
    agent: PathBuf,
    /// Programs, or modes of them: `PROGRAM` or `PROGRAM:MODE`. None: all.
    only: Vec<String>,
    /// Length of an observed run, s.
    seconds: f64,
    /// Runs of each mode.
    rounds: u32,
    /// Forget finished runs.
    fresh: bool,
    /// Only say what there is.
    list: bool,
    /// As a test: say what passed and what failed, and keep nothing.
    test: bool,
    /// Run nothing: print the table of the finished runs.
    table: bool,
    /// What is asked for instead.
    beside: Option<Beside>,
    /// Calls in order that are to be compared.
    until: u64,
}

/// What can be asked for instead of the suite itself. Of several the first counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Beside {
    /// Durations and calls beside what the programs say of themselves.
    Durations,
    /// How often intervals hold what the programs count.
    Coverage,
    /// Models of functions whose growth is known.
    Models,
    /// Kernels of programs by their class.
    Kernels,
    /// How soon it is told that something goes wrong.
    Anomalies,
    /// How often it is told where nothing does.
    FalseAlarms,
    /// Widths of intervals with both objectives of plans.
    Widths,
    /// Calls in order against the target's own log.
    Steps,
}

impl Beside {
    /// By its option.
    fn of(option: &str) -> Option<Beside> {
        Some(match option {
            "--durations" => Beside::Durations,
            "--coverage" => Beside::Coverage,
            "--models" => Beside::Models,
            "--kernels" => Beside::Kernels,
            "--anomalies" => Beside::Anomalies,
            "--false-alarms" => Beside::FalseAlarms,
            "--widths" => Beside::Widths,
            "--steps" => Beside::Steps,
            _ => return None,
        })
    }
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
        let mut options = Options {
            base: PathBuf::new(),
            agent: PathBuf::new(),
            only: Vec::new(),
            seconds: 5.0,
            rounds: 3,
            fresh: false,
            list: false,
            test: false,
            table: false,
            beside: None,
            until: 100_000_000,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("{argument} wants a value"));
            match argument.as_str() {
                "--base" => options.base = value()?.into(),
                "--agent" => options.agent = value()?.into(),
                "--only" => options.only.push(value()?),
                "--seconds" => options.seconds = value()?.parse().context("--seconds wants a number")?,
                "--rounds" => options.rounds = value()?.parse().context("--rounds wants a number")?,
                "--fresh" => options.fresh = true,
                "--list" => options.list = true,
                "--test" => options.test = true,
                "--table" => options.table = true,
                "--until" => options.until = value()?.parse().context("--until wants a number")?,
                other => match Beside::of(other) {
                    Some(asked) => options.beside = Some(options.beside.map_or(asked, |b| b.min(asked))),
                    None => bail!("no option {argument}; use `cargo xtask field --help`"),
                },
            }
        }
        ensure!(options.seconds >= 1.0, "--seconds {}: a run takes at least 1 s", options.seconds);
        Ok(options)
    }

    fn wants(&self, program: &str, mode: &str) -> bool {
        self.only.is_empty()
            || self.only.iter().any(|only| {
                let (name, wanted) = only.split_once(':').map_or((&**only, None), |(p, m)| (p, Some(m)));
                (name == program || (name == "stress-ng" && program.starts_with("stress-ng-")))
                    && wanted.is_none_or(|wanted| wanted == mode)
            })
    }

    /// The modes of a program that are wanted in a round.
    fn modes(&self, program: &dyn Program, round: u32) -> Vec<Mode> {
        if self.test && round == 0 {
            return program
                .modes()
                .into_iter()
                .filter(|mode| self.wants(program.name(), mode.name))
                .collect();
        }
        program.modes_of(round).into_iter().filter(|mode| self.wants(program.name(), mode.name)).collect()
    }
}

/// The agent's version and the first digits of its executable's hash, which is no commit's.
fn agent_version(agent: &Path) -> Result<String> {
    let version = place::first_line(Command::new(agent).arg("--version"))?;
    let bytes = std::fs::read(agent).with_context(|| format!("cannot read {}", agent.display()))?;
    let digits: String = Sha256::digest(&bytes)[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{version} (sha256 {digits})"))
}

/// The programs of the table, in their order; stressors are one.
fn order(programs: &[Box<dyn Program>]) -> Vec<String> {
    let mut names: Vec<String> = programs
        .iter()
        .map(|program| if program.name().starts_with("stress-ng-") { "stress-ng" } else { program.name() })
        .map(str::to_owned)
        .collect();
    names.dedup();
    names
}

fn say(record: &Record) {
    let observation = &record.observation;
    let of_twin = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
    let verdict = match (record.is_void(), record.harmed.is_empty(), &observation.failed) {
        (true, ..) => "void",
        (_, false, _) => "HARMED",
        (_, _, Some(_)) => "tithe failed",
        _ => "lives",
    };
    eprintln!(
        "{}:{} round {}: {verdict}; throughput {}, work per CPU time {} of the twin's, worst second {:.2} %, {} functions, {} hits, {} operations",
        record.program,
        record.mode,
        record.round,
        of_twin(record.ratio),
        of_twin(record.cpu_ratio),
        observation.worst_second * 100.0,
        observation.traced,
        observation.hits,
        observation.operations,
    );
    for what in record.harmed.iter().chain(&record.void).chain(&observation.failed) {
        eprintln!("    {what}");
    }
}

/// Runs what is wanted of a program in a round, and hands each finished run on.
fn run_program(
    suite: &Suite,
    program: &dyn Program,
    modes: &[Mode],
    round: u32,
    mut keep: impl FnMut(Record) -> Result<()>,
) -> Result<()> {
    let mut pair: Option<Pair> = None;
    for (index, mode) in modes.iter().enumerate() {
        let mut running = match pair.take() {
            Some(pair) => pair,
            None => Pair::start(suite, program)?,
        };
        let mut record = running.run(suite, mode, round);
        // One that was harmed is not used again, nor is one of a void run; those that were not harmed end by themselves.
        if record.harmed.is_empty() && record.void.is_none() && index + 1 < modes.len() {
            pair = Some(running);
        } else if record.harmed.is_empty() {
            record.judge_end(running.finish());
        }
        say(&record);
        keep(record)?;
    }
    Ok(())
}

/// A void run has to be run again.
fn is_done(finished: &[Record], program: &str, mode: &str, round: u32) -> bool {
    finished.iter().any(|record| {
        record.program == program && record.mode == mode && record.round == round && !record.is_void()
    })
}

/// Judges records of an older version, which did not ask whether the agent saw anything.
fn judge_again(finished: &mut [Record], programs: &[Box<dyn Program>]) {
    for record in finished {
        if let Some(program) = programs.iter().find(|program| program.name() == record.program) {
            record.judge_sight(program.may_be_unseen(&record.mode));
        }
    }
}

/// What else than the suite itself is asked for, or that.
fn run(options: &Options) -> Result<bool> {
    match options.beside {
        None => run_suite(options),
        Some(Beside::Durations) => run_beside(options, "durations", durations::run),
        Some(Beside::Coverage) => run_beside(options, "coverage", coverage::run),
        Some(Beside::Models) => run_beside(options, "models", models::run),
        Some(Beside::Kernels) => run_beside(options, "kernels", kernels::run),
        Some(Beside::Anomalies) => run_beside(options, "anomalies", anomalies::run),
        Some(Beside::FalseAlarms) => run_beside(options, "alarms", alarms::run),
        Some(Beside::Widths) => compare_widths(options),
        Some(Beside::Steps) => compare_steps(options),
    }
}

fn run_suite(options: &Options) -> Result<bool> {
    let programs = programs::all();
    if options.list {
        for program in &programs {
            let modes: Vec<_> = program.modes().iter().map(|mode| mode.name).collect();
            println!("{:24} {}", program.name(), modes.join(" "));
        }
        return Ok(true);
    }
    if let Some(unknown) = options.only.iter().find(|only| !is_known(only, &programs)) {
        bail!("no program or mode {unknown}; --list shows them");
    }
    let place = Place::new(options.base.clone())?;
    let runs = options.base.join("runs.jsonl");
    let statistics = options.base.join("statistics");
    std::fs::create_dir_all(&statistics)?;
    if options.fresh {
        place::set_aside(&options.base, "runs")?;
    }
    let suite = Suite {
        place: &place,
        agent: options.agent.clone(),
        agent_version: agent_version(&options.agent)?,
        seconds: options.seconds,
        twin_seconds: options.test.then_some(3.0),
        statistics: (!options.test).then_some(statistics),
    };
    let mut finished = if options.test { Vec::new() } else { place::finished(&runs)? };
    judge_again(&mut finished, &programs);
    if options.table {
        ensure!(!finished.is_empty(), "no finished runs in {}; run without --table", runs.display());
        print!("{}", document(&finished, &programs, &[]));
        return Ok(true);
    }
    let mut missing: Vec<(String, String)> = Vec::new();
    let mut broken = false;
    for round in 0..options.rounds {
        for program in &programs {
            let done = |mode: &Mode| is_done(&finished, program.name(), mode.name, round);
            let modes: Vec<Mode> =
                options.modes(&**program, round).into_iter().filter(|mode| !done(mode)).collect();
            if modes.is_empty() || missing.iter().any(|(name, _)| name == program.name()) {
                continue;
            }
            if let Some(why) = program.missing(&place) {
                eprintln!("{} is not run: {why}", program.name());
                missing.push((program.name().to_owned(), why));
                continue;
            }
            let ended = run_program(&suite, &**program, &modes, round, |record| {
                let kept = if options.test { Ok(()) } else { place::keep(&runs, &record) };
                // A run whose line cannot be written counts in this table.
                finished.push(record);
                kept
            });
            if let Err(error) = ended {
                // A pair did not start, or a line could not be written: runs before that were kept.
                eprintln!("{} cannot be run: {error:#}", program.name());
                missing.push((program.name().to_owned(), format!("{error:#}")));
                broken = true;
            }
        }
    }
    if options.test {
        return Ok(say_tests(&finished, &missing));
    }
    print!("{}", document(&finished, &programs, &missing));
    Ok(!broken)
}

/// What is asked for of runs that are held to the programs' own figures.
fn wanted<'a>(options: &'a Options, place: &'a Place) -> Result<durations::Options<'a>> {
    Ok(durations::Options {
        place,
        agent: &options.agent,
        agent_version: agent_version(&options.agent)?,
        only: &options.only,
        seconds: options.seconds,
        rounds: options.rounds,
    })
}

/// Runs another suite, whose file of finished runs has this name, and prints its table.
fn run_beside(
    options: &Options,
    name: &str,
    run: fn(&durations::Options<'_>, bool) -> Result<String>,
) -> Result<bool> {
    let place = Place::new(options.base.clone())?;
    if options.fresh {
        place::set_aside(&options.base, name)?;
    }
    print!("{}", run(&wanted(options, &place)?, options.table)?);
    Ok(true)
}

/// Calls in order against the target's own log. True if nothing was wrong.
fn compare_steps(options: &Options) -> Result<bool> {
    let place = Place::new(options.base.clone())?;
    if options.fresh {
        place::set_aside(&options.base, "steps")?;
    }
    let wanted = steps::Options {
        place: &place,
        agent: &options.agent,
        agent_version: agent_version(&options.agent)?,
        seconds: options.seconds,
        rounds: options.rounds,
        until: options.until,
    };
    let (table, is_right) = steps::run(&wanted, options.table)?;
    print!("{table}");
    Ok(is_right)
}

/// Widths of intervals with both objectives of plans.
fn compare_widths(options: &Options) -> Result<bool> {
    let place = Place::new(options.base.clone())?;
    let wanted = widths::Options {
        place: &place,
        agent: &options.agent,
        agent_version: agent_version(&options.agent)?,
        only: &options.only,
        rounds: options.rounds,
    };
    print!("{}", widths::run(&wanted, options.table)?);
    Ok(true)
}

/// True if `only` is a program of the suite, or a mode of one.
fn is_known(only: &str, programs: &[Box<dyn Program>]) -> bool {
    programs.iter().any(|program| {
        program.modes().iter().any(|mode| {
            let one = Options {
                only: vec![only.to_owned()],
                ..Options::parse(std::iter::empty()).expect("no argument")
            };
            one.wants(program.name(), mode.name)
        })
    })
}

/// The table and what stands around it.
fn document(finished: &[Record], programs: &[Box<dyn Program>], missing: &[(String, String)]) -> String {
    let excuse = |record: &Record| {
        let program = programs.iter().find(|program| program.name() == record.program)?;
        program.may_be_unseen(&record.mode)
    };
    table::document(finished, &order(programs), missing, excuse)
}

/// The runs as tests, with a last line like that of the harness. True if all is well.
fn say_tests(records: &[Record], missing: &[(String, String)]) -> bool {
    let mut failed = 0;
    for record in records {
        let trouble: Vec<&String> =
            record.harmed.iter().chain(&record.void).chain(&record.observation.failed).collect();
        println!("test field::{} ... {}", record.program, if trouble.is_empty() { "ok" } else { "FAILED" });
        failed += usize::from(!trouble.is_empty());
    }
    for (program, why) in missing {
        println!("test field::{program} ... FAILED ({why})");
    }
    failed += missing.len();
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    let passed = records.len() + missing.len() - failed;
    println!(
        "test result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
    );
    failed == 0 && passed > 0
}

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_a_program_or_one_of_its_modes() {
        let options =
            |only: &str| Options::parse(["--only".to_owned(), only.to_owned()].into_iter()).unwrap();
        assert!(options("redis").wants("redis", "5%"));
        assert!(!options("redis:1%").wants("redis", "5%"));
        assert!(options("stress-ng:5%").wants("stress-ng-cpu", "5%"));
        assert!(!options("stress-ng-fork").wants("stress-ng-cpu", "5%"));
        assert!(Options::parse(std::iter::empty()).unwrap().wants("go", "latency"));
    }

    #[test]
    fn each_program_but_stress_ng_is_compared_with_nobody_watching() {
        for program in programs::all() {
            let is_stressor = program.name().starts_with("stress-ng-");
            for round in 0..3 {
                let none = program.modes_of(round).iter().filter(|mode| mode.name == "none").count();
                assert_eq!(none, usize::from(!is_stressor), "{}", program.name());
            }
            assert!(program.modes().iter().all(|mode| program::MODES.contains(&mode.name)));
        }
    }

    #[test]
    fn the_whole_suite_has_enough_runs_and_stressors() {
        let options = Options::parse(std::iter::empty()).unwrap();
        let programs = programs::all();
        let runs: usize = (0..options.rounds)
            .map(|round| programs.iter().map(|program| options.modes(&**program, round).len()).sum::<usize>())
            .sum();
        assert!(runs >= 200, "{runs}");
        assert!(programs.iter().filter(|program| program.name().starts_with("stress-ng-")).count() >= 30);
    }

    #[test]
    fn a_void_run_is_run_again_and_old_records_are_judged_anew() {
        let observation = r#"{"status":"exit status: 0","failed":null,"took_s":5,"covered_s":4,"predicted":0,
            "worst_second":0,"traced":0,"hits":0,"operations":0,"agent_cpu":0,"remarks":[]}"#;
        let record = |program: &str, harmed: &str, void: &str| -> Record {
            let line = format!(
                r#"{{"program":"{program}","mode":"5%","round":0,"began":0,"version":"","agent":"","harmed":{harmed},
                "void":{void},"observation":{observation},"ratio":null,"cpu_ratio":null,"rates":{{}},"twin_rates":{{}},
                "cpu_rates":{{}},"twin_cpu_rates":{{}}}}"#
            );
            serde_json::from_str(&line).unwrap()
        };
        let done = |record: Record| is_done(&[record], "redis", "5%", 0);
        assert!(
            done(record("redis", "[]", "null")) && done(record("redis", r#"["dead"]"#, r#""the twin, too""#))
        );
        assert!(!done(record("redis", "[]", r#""the twin died""#)) && !done(record("zstd", "[]", "null")));
        let mut old = ["redis", "stress-ng-cpu"].map(|program| record(program, "[]", "null"));
        judge_again(&mut old, &programs::all());
        assert!(old[0].observation.failed.as_ref().is_some_and(|why| why.contains("no call")));
        assert_eq!(old[1].observation.failed, None);
    }
}
