//! Calls in order against the log that the program `tree` writes of itself, until so many were compared.
//!
//! A round is a new target under a new agent, with commands of one kind one after the other. Between commands there is a pause, so that the agent reads what it recorded; two kinds are
//! long commands in each of which the agent, or only its thread that writes, is stopped for half a second, so that the ring is full. The comparison is that of the kernel tests: [`profiler_tests::steps`]; operations without a row are accounted for. Memory is bounded by the length of a round.

mod table;

use crate::place::{self, Place, text_of};
use crate::process::die_with_us;
use anyhow::{Result, anyhow, ensure};
use profiler_tests::steps::{self, Compared, Log, Made, stop_writer};
use profiler_tests::support::{Agent, Target, monotonic_ns};
use serde::{Deserialize, Serialize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Calls that a round's target makes, where so many are wanted.
const ROUND_STEPS: u64 = 2_000_000;
/// Calls between two pauses: the ring holds 116,000.
const BURST_STEPS: u64 = 40_000;
/// Between bursts.
const PAUSE: Duration = Duration::from_millis(100);
/// After the last burst: the agent reads what is left.
const REST: Duration = Duration::from_millis(500);
/// The agent, or its writer, is stopped for [`STOPPED`], so long after a command began.
const BEFORE_STOP: Duration = Duration::from_millis(200);
const STOPPED: Duration = Duration::from_millis(500);
/// So many rounds in a row with trouble end it.
const IN_A_ROW: usize = 3;
/// What the agent may use: whatever it needs.
const BUDGET: [&str; 5] = ["--budget", "1000ms/s", "--only-named", "--agent-cpu", "100%"];

/// A kind of command.
struct Kind {
    name: &'static str,
    /// Words of the command for so many operations on each thread and a seed; the path of the log follows.
    command: fn(operations: u64, seed: u64) -> String,
    threads: u64,
    /// Operations on each thread in a command.
    operations: u64,
    stops: Stops,
}

/// What is stopped for a while in each command. There are pauses between commands only where it is nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stops {
    Nothing,
    Agent,
    /// The agent's thread that writes: as on a disk that stalls.
    Writer,
}

const fn tree(name: &'static str, command: fn(u64, u64) -> String, threads: u64, operations: u64) -> Kind {
    Kind { name, command, threads, operations, stops: Stops::Nothing }
}

/// The kinds, in their turns and in the order of the table.
const KINDS: [Kind; 15] = [
    tree("random trees, 1 thread", |n, seed| format!("tree {n} 1 {seed}"), 1, 400),
    tree("random trees, 2 threads", |n, seed| format!("tree {n} 2 {seed}"), 2, 200),
    tree("random trees, 16 threads", |n, seed| format!("tree {n} 16 {seed}"), 16, 25),
    tree("recursion, 1,000 deep", |_, _| "recurse 1000".to_owned(), 1, 1),
    tree("calls in a loop", |n, _| format!("only loops {n}"), 1, 400),
    tree("tail calls", |n, _| format!("only tails {n}"), 1, 400),
    tree("`longjmp`", |n, _| format!("only jumps {n}"), 1, 400),
    tree("exceptions", |n, _| format!("only throws {n}"), 1, 400),
    tree("signals", |n, _| format!("only signals {n}"), 1, 400),
    tree("signals on another stack", |n, _| format!("only altstack {n}"), 1, 400),
    tree("coroutines", |n, _| format!("only coroutines {n}"), 1, 400),
    tree("code made at run time", |n, _| format!("only made {n}"), 1, 400),
    tree("a forked child", |n, seed| format!("forked {n} {seed}"), 1, 400),
    Kind {
        stops: Stops::Agent,
        ..tree("random trees, agent stopped", |n, seed| format!("tree {n} 1 {seed}"), 1, 50_000)
    },
    Kind {
        stops: Stops::Writer,
        ..tree("random trees, writer stopped", |n, seed| format!("tree {n} 1 {seed}"), 1, 50_000)
    },
];

/// What the command line asks for.
pub struct Options<'a> {
    /// Where lines are kept.
    pub place: &'a Place,
    /// The agent.
    pub agent: &'a Path,
    /// Its version.
    pub agent_version: String,
    /// No round begins when this session has taken so long, s.
    pub seconds: f64,
    /// Rounds of this session at most.
    pub rounds: u32,
    /// Calls that are to be compared in all rounds.
    pub until: u64,
}

/// A finished round.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    round: u64,
    kind: String,
    agent: String,
    /// Processes that ran or waited for a CPU of this machine, average of the minute at the end.
    load: Option<f64>,
    /// With starts, ends, and comparing, s.
    took_s: f64,
    /// Of that, the part in which the target made its calls and paused, s.
    called_s: f64,
    /// Calls that the target logged.
    logged: u64,
    compared: Compared,
    /// Why nothing was compared.
    trouble: Option<String>,
}

/// Goes on with the rounds of `steps.jsonl` until enough calls were compared, or the session is over; returns the Markdown of all rounds, and whether something was compared in each of them and nothing was
/// wrong. With `only_table` nothing is run.
///
/// # Errors
///
/// If there is no finished round, a line cannot be written, or rounds in a row had trouble.
pub fn run(options: &Options<'_>, only_table: bool) -> Result<(String, bool)> {
    let lines = options.place.base.join("steps.jsonl");
    let mut finished: Vec<Record> = place::finished(&lines)?;
    let start = Instant::now();
    let mut in_a_row = 0;
    for _ in (0..options.rounds).filter(|_| !only_table) {
        let compared: u64 = finished.iter().map(|record| record.compared.steps).sum();
        let Some(kind) = next(&finished, options.until) else { break };
        if start.elapsed().as_secs_f64() >= options.seconds {
            break;
        }
        let round = finished.len() as u64;
        // Each kind has a turn also where few calls are wanted.
        let calls = options.until.div_ceil(KINDS.len() as u64).clamp(1, ROUND_STEPS);
        let record = one(options, kind, round, calls);
        say(&record, compared + record.compared.steps, options.until);
        in_a_row = if record.trouble.is_some() { in_a_row + 1 } else { 0 };
        place::keep(&lines, &record)?;
        finished.push(record);
        ensure!(in_a_row < IN_A_ROW, "{IN_A_ROW} rounds in a row had trouble; those before are kept");
    }
    ensure!(!finished.is_empty(), "no finished rounds in {}", lines.display());
    Ok((table::document(&finished), verdict(&finished)))
}

/// Each round had no trouble, compared something, and found nothing wrong. No good one makes up for another.
fn verdict(finished: &[Record]) -> bool {
    let is_right = |of: &Record| of.trouble.is_none() && of.compared.complete > 0 && of.compared.wrong() == 0;
    finished.iter().all(is_right)
}

/// The kind of the next round: the one with the fewest, the first of several. `None`: enough was compared, of each kind something.
fn next(finished: &[Record], until: u64) -> Option<&'static Kind> {
    let rounds = |kind: &Kind| finished.iter().filter(|record| record.kind == kind.name).count();
    let compared: u64 = finished.iter().map(|record| record.compared.steps).sum();
    let kind = KINDS.iter().min_by_key(|kind| rounds(kind))?;
    (compared < until || rounds(kind) == 0).then_some(kind)
}

/// A round. What panics in it is its trouble: targets and agents of tests say so what is wrong.
fn one(options: &Options<'_>, kind: &Kind, round: u64, calls: u64) -> Record {
    let start = Instant::now();
    let ended = catch_unwind(AssertUnwindSafe(|| follow(options, kind, round, calls)));
    let (seen, trouble) = match ended {
        // Nothing that is wrong says nothing where nothing was compared.
        Ok(Ok(seen)) if seen.compared.complete == 0 => {
            (seen, Some("no operation was complete: nothing was compared".to_owned()))
        }
        Ok(Ok(seen)) => (seen, None),
        Ok(Err(error)) => (Seen::default(), Some(format!("{error:#}"))),
        Err(panic) => (Seen::default(), Some(words_of(&*panic))),
    };
    Record {
        round,
        kind: kind.name.to_owned(),
        agent: options.agent_version.clone(),
        load: text_of(Path::new("/proc/loadavg")).split(' ').next().and_then(|n| n.parse().ok()),
        took_s: start.elapsed().as_secs_f64(),
        called_s: seen.called_s,
        logged: seen.logged,
        compared: seen.compared,
        trouble,
    }
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

/// What a round came to.
#[derive(Default)]
struct Seen {
    called_s: f64,
    logged: u64,
    compared: Compared,
}

fn follow(options: &Options<'_>, kind: &Kind, round: u64, calls: u64) -> Result<Seen> {
    let folder = options.place.working("steps")?;
    let mut program = Command::new(profiler_tests::program("tree"));
    die_with_us(&mut program, libc::SIGKILL);
    let mut target = Target::start_command(&mut program);
    let arguments = steps::arguments();
    let arguments: Vec<&str> =
        BUDGET.iter().chain(&steps::RICH).copied().chain(arguments.iter().map(String::as_str)).collect();
    let mut command = Command::new(options.agent);
    die_with_us(&mut command, libc::SIGINT);
    let recording = folder.join("run.tithe");
    let mut agent = Agent::start_command(command, target.pid(), &recording, &arguments);
    agent.wait_message("tithe: following operations");
    let start = Instant::now();
    let (log, made) = command_until(&mut target, &agent, kind, (round, calls), &folder.join("log"))?;
    std::thread::sleep(REST);
    let called_s = start.elapsed().as_secs_f64();
    let finished = agent.stop();
    ensure!(finished.status.success(), "{}: {}", finished.status, finished.messages);
    ensure!(target.is_alive(), "the target has ended");
    target.assert_text_original();
    let logged = log.len();
    Ok(Seen { called_s, logged, compared: steps::compare(&recording, log, &made)? })
}

/// The agent's watchdog waits for a second.
fn stop_for_a_while(agent: &Agent, what: Stops) -> Result<()> {
    match what {
        Stops::Nothing => {}
        Stops::Agent => {
            std::thread::sleep(BEFORE_STOP);
            agent.signal(libc::SIGSTOP);
            std::thread::sleep(STOPPED);
            agent.signal(libc::SIGCONT);
        }
        Stops::Writer => {
            std::thread::sleep(BEFORE_STOP);
            stop_writer(agent.id(), STOPPED)?;
        }
    }
    Ok(())
}

/// Has the target make so many calls; its logs are one. Also the operations in which it made them.
fn command_until(
    target: &mut Target,
    agent: &Agent,
    kind: &Kind,
    (round, calls): (u64, u64),
    path: &Path,
) -> Result<(Log, Made)> {
    let mut log = Log::default();
    let (from_ns, mut operations) = (monotonic_ns(), 0);
    let (mut seed, mut in_burst) = (round * 1_000_000, 0);
    while log.len() < calls {
        // Threads of a command have seeds that follow one another.
        seed += kind.threads;
        let before = log.len();
        let words = format!("{} {}", (kind.command)(kind.operations, seed), path.display());
        std::thread::scope(|scope| {
            let stopped = scope.spawn(|| stop_for_a_while(agent, kind.stops));
            operations += target.command(&words).number("operations");
            stopped.join().map_err(|panic| anyhow!(words_of(&*panic)))?
        })?;
        log.add(path)?;
        ensure!(log.len() > before, "the target made no call");
        in_burst += log.len() - before;
        if kind.stops == Stops::Nothing && in_burst >= BURST_STEPS {
            std::thread::sleep(PAUSE);
            in_burst = 0;
        }
    }
    Ok((log, Made { operations, from_ns, until_ns: monotonic_ns() }))
}

fn say(record: &Record, compared: u64, until: u64) {
    let told = &record.compared;
    let account = told.account.unwrap_or_default();
    eprintln!(
        "round {} ({}): {:.0} s; {} calls logged, {} compared in {} complete operations, {} marked, {} open, {} with gaps, {} ambiguous; of {} operations {} have no row and are counted; WRONG: {} not marked, {} orders, {} links, {} not accounted for; {compared} of {until}",
        record.round,
        record.kind,
        record.took_s,
        record.logged,
        told.steps,
        told.complete,
        told.marked,
        told.open,
        told.gaps,
        told.ambiguous,
        account.made,
        account.counted(),
        told.unmarked,
        told.wrong_orders,
        told.wrong_links,
        account.wrong(),
    );
    record.trouble.iter().chain(&told.faults).for_each(|what| eprintln!("    {what}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_tests::steps::Account;

    pub(super) fn record(kind: &str, steps: u64) -> Record {
        Record {
            round: 0,
            kind: kind.to_owned(),
            agent: "tithe 1 (aa)".to_owned(),
            load: None,
            took_s: 2.0,
            called_s: 1.0,
            logged: steps + 10,
            compared: Compared {
                complete: 5,
                marked: 2,
                steps,
                ambiguous: steps / 4,
                account: Some(Account { made: 9, lost: 2, gap_ns: Some(0), ..Account::default() }),
                ..Compared::default()
            },
            trouble: None,
        }
    }

    #[test]
    fn kinds_take_turns_until_enough_was_compared_of_all_and_something_of_each() {
        let mut finished = Vec::new();
        for kind in &KINDS {
            assert_eq!(next(&finished, 20).map(|kind| kind.name), Some(kind.name));
            finished.push(record(kind.name, 1));
        }
        assert_eq!(next(&finished, 20).map(|kind| kind.name), Some(KINDS[0].name));
        assert!(next(&finished, 15).is_none());
        assert!(next(&finished[..14], 1).is_some());
    }

    #[test]
    fn one_round_in_trouble_fails_all_and_no_other_makes_up_for_it() {
        let good = record(KINDS[0].name, 10);
        let trouble = Record { trouble: Some("it died".to_owned()), ..record(KINDS[0].name, 0) };
        let mut nothing = good.clone();
        nothing.compared.complete = 0;
        let mut not_written = good.clone();
        not_written.compared.account.get_or_insert_default().rows_not_written = 1;
        let mut wrong = good.clone();
        wrong.compared.wrong_links = 1;
        for bad in [trouble, nothing, not_written, wrong] {
            assert!(!verdict(&[good.clone(), bad]));
        }
        assert!(verdict(&[good.clone(), good]));
    }

    #[test]
    fn commands_are_of_the_targets_protocol() {
        let names: Vec<String> = KINDS.iter().map(|kind| (kind.command)(3, 9)).collect();
        assert_eq!(names[2], "tree 3 16 9");
        assert_eq!(names[12], "forked 3 9");
        assert_eq!(names.iter().filter(|words| words.starts_with("only ")).count(), 8);
    }
}
