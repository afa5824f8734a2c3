//! Does the budget hold, whatever the target does? The target's own throughput is the judge, arms taking turns; beside it
//! what the agent's receipt says. Finished rounds are kept in `target/bench/`, so that a run can be resumed.

mod halves;
mod run;

use crate::Options;
use crate::measure::{Series, Table};
use anyhow::{Context, Result, bail};
use run::{Arm, IDLE, Run, Subject};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::PathBuf;

/// Points over the budget that the median slowdown of a run may be.
const OVER_RUN: f64 = 0.5;
/// The same for the 99th percentile of 1 s slowdowns, over that of the target alone.
const OVER_SECOND: f64 = 3.0;

const fn adversary(name: &'static str, functions: &'static [&'static str]) -> Subject {
    Subject { name, functions, driven: None }
}

/// Where functions are named it is because samples alone would not lead to them.
const SUBJECTS: &[Subject] = &[
    adversary("steady", &["adv_call", "adv_middle", "adv_slow"]),
    adversary("seasonal", &["adv_call", "adv_slow"]),
    adversary("exploding", &["adv_call", "adv_slow"]),
    adversary("hot", &["adv_call"]),
    adversary("alternating", &["adv_call", "adv_slow"]),
    adversary("lockstep", &[]),
    adversary("threads200", &["adv_call", "adv_slow"]),
    adversary("tiny", &["adv_call"]),
    adversary("recursion", &["adv_recurse", "adv_slow"]),
    adversary("longjmp", &["adv_jump", "adv_jump_middle", "adv_slow"]),
    adversary("fibers", &["adv_fiber", "adv_slow"]),
    adversary("births", &[]),
    adversary("dlopen", &[]),
    adversary("forks", &["adv_call", "adv_slow"]),
    adversary(IDLE, &["adv_call", "adv_middle", "adv_slow"]),
    adversary("onehot16", &["adv_call", "adv_middle"]),
    adversary("lock", &["adv_call", "adv_middle", "adv_slow"]),
    Subject {
        name: "exceptions",
        functions: &["cpp_thrower", "cpp_middle"],
        driven: Some(("cpp_throw", "throw 200", 200)),
    },
    Subject {
        name: "panics",
        functions: &["rust_panic_thrower", "rust_panic_middle"],
        driven: Some(("rust-panic", "panic 200", 200)),
    },
];

/// Targets at 0.5 and 5 % as well.
const MORE_BUDGETS: [&str; 3] = ["steady", "exploding", "threads200"];
/// Targets that bpftrace watches as well. (Beside `threads200`, 400 busy threads with the twin's, it took minutes to start.)
const WITH_BPFTRACE: [&str; 5] = ["steady", "seasonal", "exploding", "alternating", "lock"];

/// Names of the parts, for `--list`.
pub fn parts() -> impl Iterator<Item = &'static str> {
    SUBJECTS.iter().map(|subject| subject.name)
}

fn arms(subject: &Subject, options: &Options) -> Vec<Arm> {
    let mut arms = vec![Arm::Alone];
    if let Some(budgets) = &options.budgets {
        arms.extend(budgets.iter().map(|percent| Arm::Budget(*percent)));
        return arms;
    }
    arms.extend([1.0, 2.0].map(Arm::Budget));
    if MORE_BUDGETS.contains(&subject.name) {
        arms.extend([0.5, 5.0].map(Arm::Budget));
    }
    if WITH_BPFTRACE.contains(&subject.name) && crate::watch::Bpftrace::version().is_some() {
        arms.push(Arm::Bpftrace);
    }
    arms
}

/// Finished runs of a part.
#[derive(Default, Serialize, Deserialize)]
struct Results {
    /// Length of a run, s; runs of another length are not continued.
    seconds: u64,
    /// Work before it and after it, s; the same.
    #[serde(default = "around_once")]
    around_s: u64,
    /// Each round has a run of every arm.
    rounds: Vec<Vec<Run>>,
}

/// What it was for all targets while it was not kept, s.
fn around_once() -> u64 {
    1
}

fn results_path(part: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let built = program.parent().and_then(|folder| folder.parent()).context("no target directory")?;
    let folder = built.join("bench");
    std::fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("governor-{part}.json")))
}

/// Runs what is missing of a part.
fn measure(subject: &Subject, options: &Options) -> Result<Results> {
    let path = results_path(subject.name)?;
    let arms = arms(subject, options);
    let mut results: Results = std::fs::read(&path)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .filter(|results: &Results| {
            let alike = results.seconds == options.seconds_or(10) && results.around_s == subject.around_s();
            alike && !options.fresh
        })
        .unwrap_or_default();
    (results.seconds, results.around_s) = (options.seconds_or(10), subject.around_s());
    results.rounds.retain(|round| arms.iter().all(|arm| round.iter().any(|run| run.arm == *arm)));
    while results.rounds.len() < options.rounds as usize {
        let turn = results.rounds.len();
        let mut round = Vec::new();
        for i in 0..arms.len() {
            let arm = &arms[(turn + i) % arms.len()];
            eprintln!("governor:{}: round {} of {}, {arm:?}", subject.name, turn + 1, options.rounds);
            round.push(
                run::run(arm, subject, options.seconds_or(10))
                    .with_context(|| format!("{}, {arm:?}", subject.name))?,
            );
        }
        results.rounds.push(round);
        std::fs::write(&path, serde_json::to_vec(&results)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(results)
}

fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * q).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

impl Results {
    fn of<'a>(&'a self, arm: &'a Arm) -> impl Iterator<Item = &'a Run> {
        self.rounds.iter().filter_map(move |round| round.iter().find(|run| run.arm == *arm))
    }

    /// One figure a run; runs in which it is not to be had are left out.
    fn series(&self, arm: &Arm, figure: impl Fn(&Run) -> f64) -> Series {
        let mut series = Series::default();
        self.of(arm).map(figure).filter(|value| value.is_finite()).for_each(|value| series.push(value));
        series
    }

    /// Slowdown of a whole run, percent: against its twin, or the run alone of the same round.
    fn slowdown(&self, arm: &Arm) -> Series {
        let total = |run: &Run| run.seconds.iter().sum::<f64>();
        self.against(
            arm,
            |run| run.beside.as_ref().and_then(|b| b.slowdown),
            |run, alone| 1.0 - total(run) / total(alone),
        )
    }

    /// CPU time added to an operation, percent, by the same.
    fn added_cpu(&self, arm: &Arm) -> Series {
        let cost = |run: &Run, alone: &Run| run.cpu_ns_per_operation / alone.cpu_ns_per_operation - 1.0;
        self.against(arm, |run| run.beside.as_ref().and_then(|b| b.added_cpu), cost)
    }

    fn against(
        &self,
        arm: &Arm,
        twin: impl Fn(&Run) -> Option<f64>,
        alone: impl Fn(&Run, &Run) -> f64,
    ) -> Series {
        let mut series = Series::default();
        self.of(arm).filter_map(&twin).for_each(|share| series.push(share * 100.0));
        // Without a twin: against the run alone of the same round, and that against the one of the round before.
        let lonely = |run: &&Run| run.beside.is_none();
        let runs = self.of(arm).filter(lonely).skip(usize::from(*arm == Arm::Alone));
        for (other, run) in self.of(&Arm::Alone).filter(lonely).zip(runs) {
            // One of the two may have done nothing.
            let share = alone(run, other);
            if share.is_finite() {
                series.push(share * 100.0);
            }
        }
        series
    }

    /// Slowdowns of single seconds, percent: against the twin, or the median of the same second (the same phase of the load) of the runs
    /// alone.
    fn second_slowdowns(&self, arm: &Arm) -> Vec<f64> {
        let twin = |run: &Run| run.beside.as_ref().map(|b| b.seconds.clone());
        let beside: Vec<f64> = self.of(arm).filter_map(twin).flatten().map(|s| s * 100.0).collect();
        if !beside.is_empty() {
            return beside;
        }
        let seconds = self.of(&Arm::Alone).map(|run| run.seconds.len()).min().unwrap_or(0);
        let usual: Vec<f64> =
            (0..seconds).map(|i| self.series(&Arm::Alone, |run| run.seconds[i]).median()).collect();
        self.of(arm)
            .flat_map(|run| run.seconds.iter().zip(&usual))
            .filter(|(_, usual)| **usual > 0.0)
            .map(|(done, usual)| (1.0 - done / usual) * 100.0)
            .collect()
    }
}

/// The verdict beside a figure; empty where there is none.
fn against(value: f64, limit: f64) -> String {
    match (value.is_finite() && limit.is_finite(), value <= limit) {
        (false, _) => String::new(),
        (_, true) => format!("<= {limit:.2}"),
        (_, false) => format!("<= {limit:.2}, **missed**"),
    }
}

/// A figure with so many decimals; empty where there is none.
fn shown(value: f64, decimals: usize) -> String {
    if value.is_finite() { format!("{value:.decimals$}") } else { String::new() }
}

fn row(table: &mut Table, subject: &Subject, results: &Results, arm: &Arm) {
    let (slowdown, added) = (results.slowdown(arm), results.added_cpu(arm));
    let worst = quantile(results.second_slowdowns(arm), 0.99);
    let alone = quantile(results.second_slowdowns(&Arm::Alone), 0.99);
    // It waits for its clock: what an operation takes longer makes no operation less.
    let idle = subject.name == IDLE;
    let (mut aim, mut aim_second, mut aim_added) = (String::new(), String::new(), String::new());
    let name = match arm {
        Arm::Budget(budget) => {
            let limit = if subject.name == "onehot16" { 2.0 * budget + 1.0 } else { budget + OVER_RUN };
            if idle {
                aim_added = against(added.median(), limit);
            } else {
                aim = against(slowdown.median(), limit);
                aim_second = against(worst, alone + budget + OVER_SECOND);
            }
            format!("{}, {budget} %", subject.name)
        }
        Arm::Bpftrace => format!("{}, bpftrace", subject.name),
        Arm::Alone => format!("{}, alone", subject.name),
    };
    let receipt = |figure: fn(&run::Receipt) -> f64| {
        let series = results.series(arm, |run| run.receipt.as_ref().map_or(f64::NAN, figure));
        if matches!(arm, Arm::Budget(_)) { series.show(2) } else { String::new() }
    };
    let latency = |figure: fn(&Run) -> f64| {
        let us = results.series(arm, figure).median() / 1e3;
        if us > 0.0 { format!("{us:.0}") } else { String::new() }
    };
    let added_p99 = results.series(arm, |run| {
        let twin = run.beside.as_ref().map_or(0.0, |b| b.p99_ns);
        if run.p99_ns > 0.0 && twin > 0.0 { (run.p99_ns - twin) / 1e3 } else { f64::NAN }
    });
    table.row(&[
        name,
        if idle { String::new() } else { slowdown.show(2) },
        aim,
        if idle { String::new() } else { shown(worst, 1) },
        aim_second,
        added.show(2),
        aim_added,
        receipt(|r| r.predicted * 100.0),
        receipt(|r| r.worst_second * 100.0),
        receipt(|r| f64::from(r.trips)),
        receipt(|r| r.agent_cpu * 100.0),
        latency(|run| run.p99_ns),
        latency(|run| run.beside.as_ref().map_or(0.0, |b| b.p99_ns)),
        if added_p99.n() > 0 { added_p99.show(0) } else { String::new() },
        results.of(arm).map(|run| run.errors).sum::<u64>().to_string(),
        added.n().to_string(),
    ]);
}

/// The cell: all parts, or one (`governor:PART`).
pub fn governor(options: &Options) -> Result<String> {
    let chosen: Vec<&Subject> = match &options.part {
        None => SUBJECTS.iter().collect(),
        Some(part) => match SUBJECTS.iter().find(|subject| subject.name == part.as_str()) {
            Some(subject) => vec![subject],
            None => bail!("no target {part}; there are {}", parts().collect::<Vec<_>>().join(", ")),
        },
    };
    let mut table = Table::new(&[
        "target, budget",
        "slowdown of a run, %",
        "aim",
        "p99 of 1 s slowdowns, %",
        "aim (alone + budget + 3)",
        "CPU per operation added, %",
        "aim (idle)",
        "receipt: predicted, %",
        "receipt: worst second, %",
        "trips",
        "agent CPU, %",
        "p99 of an operation, us",
        "of the twin",
        "added, us",
        "wrong results",
        "n",
    ]);
    let mut failed = Vec::new();
    for subject in chosen {
        match measure(subject, options) {
            Ok(results) => {
                arms(subject, options).iter().for_each(|arm| row(&mut table, subject, &results, arm))
            }
            Err(error) => failed.push(format!("{}: {error:#}", subject.name)),
        }
    }
    let mut text = format!(
        "{table}\nRuns of {} s, a target of its own for each, which counts its operations itself. Beside it runs a twin, started at the same moment and \
         never watched: slowdown and CPU time are against the twin's, by what the two do in the second before and the second after (one instance may be twice as fast as the other for all of its life); each thread of the one takes turns on the two CPUs with the same thread of the other (`threads200`: each is a control group that gets half of each CPU). `alone`: nobody \
         watches either, which is what the method cannot tell from 0. `exceptions` and `panics` have no twin and are compared with the run alone of the \
         same round (`alone`: with that of the round before). `idle` sleeps for 2 s of every 4 and works by its clock: no slowdown is shown of it, it is judged \
         by CPU per operation and by the 99th percentile of its operations, against 4 s before and 4 s after, a whole period. `lock` is watched with `--progress \
         operations`. bpftrace counts the same functions.\n",
        options.seconds_or(10)
    );
    for line in failed {
        writeln!(text, "- not measured: {line}")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::run::{Beside, Receipt};
    use super::*;

    fn run(arm: Arm, beside: Beside) -> Run {
        let receipt = matches!(arm, Arm::Budget(_)).then(|| Receipt {
            predicted: 0.01,
            worst_second: 0.02,
            trips: 0,
            agent_cpu: 0.03,
            spent: Vec::new(),
        });
        Run {
            arm,
            seconds: vec![0.0; 10],
            cpu_ns_per_operation: 1e5,
            p50_ns: 1e6,
            p99_ns: 2e6,
            errors: 0,
            beside: Some(beside),
            receipt,
        }
    }

    fn rows(name: &'static str, beside: &Beside) -> String {
        let subject = adversary(name, &[]);
        let arms = [Arm::Alone, Arm::Budget(2.0)];
        let round: Vec<Run> = arms.iter().map(|arm| run(arm.clone(), beside.clone())).collect();
        // As they are kept between two runs of the bench.
        let stored = serde_json::to_vec(&Results { seconds: 10, around_s: 1, rounds: vec![round] }).unwrap();
        let results: Results = serde_json::from_slice(&stored).unwrap();
        let mut table = Table::new(&["target"]);
        arms.iter().for_each(|arm| row(&mut table, &subject, &results, arm));
        table.to_string()
    }

    #[test]
    fn no_row_shows_what_is_no_number() {
        let asleep = Beside { slowdown: None, seconds: Vec::new(), added_cpu: None, p99_ns: 0.0 };
        let awake = Beside { slowdown: Some(0.3), seconds: vec![0.3], added_cpu: Some(0.01), p99_ns: 1.5e6 };
        for (name, beside) in [("idle", &asleep), ("steady", &asleep), ("idle", &awake), ("steady", &awake)] {
            let text = rows(name, beside);
            assert!(!text.contains("NaN") && !text.contains("inf"), "{name}:\n{text}");
        }
        assert!(rows("steady", &asleep).contains("| not measured |"));
        let steady = rows("steady", &awake);
        assert!(steady.contains("| 30.00 (30.00 to 30.00) | <= 2.50, **missed** | 30.0 |"), "{steady}");
        // By its CPU time per operation and its 99th percentile, not by what it did.
        let idle = rows("idle", &awake);
        assert!(idle.contains("| idle, 2 % |  |  |  |  | 1.00 (1.00 to 1.00) | <= 2.50 |"), "{idle}");
        assert!(idle.contains("| 2000 | 1500 | 500 (500 to 500) |"), "{idle}");
    }
}
