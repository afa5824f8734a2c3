//! Exactness: attached before the first call and detached after the last, the agent's counts are the target's own;
//! the difference is zero.

use super::{paced_calls, recording, start, working_target};
use profiler_core::class::{ExitMode, RecordKind, Source, Tier};
use profiler_core::recording::Recording;
use profiler_tests::program;
use profiler_tests::support::{Agent, Finished, Target, tiers_here};
use std::collections::BTreeSet;
use std::process::Command;

/// A budget that does not depend on how much CPU time a busy machine leaves the target.
const AMPLE: [&str; 3] = ["--only-named", "--budget", "1000ms/s"];

/// The row, and the sum of the windows, are `calls`, exactly; nothing was gated, dropped or stopped.
fn assert_exact(finished: &Finished, recorded: &Recording, function: &str, calls: u64) -> u32 {
    let row = finished.row(function);
    let shown = row.calls.unwrap_or_else(|| panic!("no calls in {row:?}; {}", finished.messages));
    let id = row.class_id.expect("what is counted is a class");
    let windows: Vec<_> = recorded.windows.iter().filter(|w| w.class_id == id).collect();
    let sum = |f: fn(&profiler_core::recording::WindowRow) -> u64| windows.iter().map(|w| f(w)).sum::<u64>();
    let context = format!("{function}: {row:?}\n{windows:?}\n{}", finished.messages);
    assert_eq!((shown.value, shown.low, shown.high), (calls as f64, calls as f64, calls as f64), "{context}");
    assert_eq!(shown.source, Source::Exact, "{context}");
    assert_eq!((row.named, row.counted), (true, Some(calls)), "{context}");
    assert_eq!((sum(|w| w.kept), sum(|w| w.dropped)), (calls, 0), "{context}");
    // Without a filter for processes, hits of other targets that run the same program are gated.
    assert!(recorded.meta.tier == Tier::C || sum(|w| w.gated) == 0, "{context}");
    assert!(windows.iter().all(|w| !w.tripped), "{context}");
    id
}

fn exit_mode(recorded: &Recording, id: u32) -> ExitMode {
    recorded.classes.iter().find(|c| c.class_id == id).expect("the class is recorded").exit_mode
}

/// Durations as well: as many as calls, in the windows and in the histogram.
fn assert_timed(recorded: &Recording, id: u32, calls: u64) {
    let windows = || recorded.windows.iter().filter(|w| w.class_id == id);
    let returns: u64 = windows().map(|w| w.returns).sum();
    let in_histogram: u64 = recorded.histograms.iter().filter(|h| h.class_id == id).map(|h| h.count).sum();
    let lost: Vec<_> = windows().map(|w| (w.unwound, w.omitted, w.open)).collect();
    assert_eq!((returns, in_histogram), (calls, calls), "unwound, omitted, open: {lost:?}");
}

#[test]
fn counts_under_a_budget_of_100_percent_are_the_targets_own() {
    let Some(folder) = start("counts_under_a_budget_of_100_percent_are_the_targets_own") else { return };
    let mut target = working_target();
    let functions = [
        "entry_push",
        "entry_nop",
        "entry_nop5",
        "entry_endbr_push",
        "entry_mov",
        "entry_sub",
        "entry_test_je",
    ];
    let mut agent = Agent::start(target.pid(), folder.path(), &["--count", "entry_*"]);
    agent.wait_tracing();
    // A share of what the target uses: the first income comes with the first tick of the ledger.
    super::sleep_ms(700);
    let before = functions.map(|f| target.count(f));
    for function in functions {
        paced_calls(&mut target, function, 1, 2_000, 150);
        paced_calls(&mut target, function, 8, 500, 150);
    }
    let calls = functions.map(|f| target.count(f));
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    let recorded = recording(&path);
    for (i, function) in functions.iter().enumerate() {
        assert!(calls[i] > before[i] + 300, "{function} was called {} times only", calls[i] - before[i]);
        assert_exact(&finished, &recorded, function, calls[i] - before[i]);
    }
    assert!(target.is_alive());
    target.assert_text_original();
}

/// 100,000 calls a second of each kind at once (20,000 where they are single-stepped), on 1 thread and on 8, return links, in the tier given.
fn every_kind_in(tier: Option<Tier>, folder: &tempfile::TempDir) {
    let mut target = working_target();
    let text = tier.map(|t| format!("{t:?}"));
    let mut arguments = AMPLE.to_vec();
    arguments.extend(["--count", "entry_push", "--latency", "exits_two", "--record", "inner"]);
    arguments.extend(text.iter().flat_map(|t| ["--force-tier", t.as_str()]));
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_tracing();
    super::sleep_ms(300);
    let functions = ["entry_push", "exits_two", "inner"];
    let before = functions.map(|f| target.count(f));
    for function in functions {
        // A single-stepped call costs 30 us and more here: 100,000 a second would be more than any budget.
        let hz = if function == "inner" { 20_000 } else { 100_000 };
        paced_calls(&mut target, function, 1, hz, 300);
        paced_calls(&mut target, function, 8, hz / 8, 300);
        // The bucket fills again: quotas are what it holds, and the next function explodes from nothing.
        super::sleep_ms(400);
    }
    let after = functions.map(|f| target.count(f));
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    let recorded = recording(&path);
    if let Some(tier) = tier {
        assert_eq!(recorded.meta.tier, tier);
    }
    let mut ids = [0; 3];
    for (i, function) in functions.iter().enumerate() {
        let calls = after[i] - before[i];
        assert!(calls > 5_000, "{function}: {calls} calls only: the machine is too busy to say anything");
        ids[i] = assert_exact(&finished, &recorded, function, calls);
    }
    assert_eq!(exit_mode(&recorded, ids[1]), ExitMode::ReturnLink);
    assert_timed(&recorded, ids[1], after[1] - before[1]);
    let events: Vec<_> = recorded.events.iter().filter(|e| e.class_id == ids[2]).collect();
    assert_eq!(events.len() as u64, after[2] - before[2], "records");
    let tids: BTreeSet<u32> = events.iter().map(|e| e.tid).collect();
    // The first run's thread is the first of the eight.
    assert_eq!(tids.len(), 8, "{tids:?}");
    assert!(events.iter().all(|e| e.args[0] == Some(1)), "the argument of every call is 1");
    assert!(target.is_alive());
    target.assert_text_original();
}

#[test]
fn every_kind_is_exact_at_100_000_calls_a_second() {
    let Some(folder) = start("every_kind_is_exact_at_100_000_calls_a_second") else { return };
    every_kind_in(None, &folder);
}

#[test]
fn every_kind_is_exact_in_tier_a() {
    let Some(folder) = start("every_kind_is_exact_in_tier_a") else { return };
    if !tiers_here("every_kind_is_exact_in_tier_a", &[Tier::A]).is_empty() {
        every_kind_in(Some(Tier::A), &folder);
    }
}

#[test]
fn every_kind_is_exact_in_tier_b() {
    let Some(folder) = start("every_kind_is_exact_in_tier_b") else { return };
    if !tiers_here("every_kind_is_exact_in_tier_b", &[Tier::B]).is_empty() {
        every_kind_in(Some(Tier::B), &folder);
    }
}

#[test]
fn every_kind_is_exact_in_tier_c() {
    let Some(folder) = start("every_kind_is_exact_in_tier_c") else { return };
    if !tiers_here("every_kind_is_exact_in_tier_c", &[Tier::C]).is_empty() {
        every_kind_in(Some(Tier::C), &folder);
    }
}

#[test]
fn every_kind_is_exact_in_tier_d() {
    let Some(folder) = start("every_kind_is_exact_in_tier_d") else { return };
    if !tiers_here("every_kind_is_exact_in_tier_d", &[Tier::D]).is_empty() {
        every_kind_in(Some(Tier::D), &folder);
    }
}

/// In a process that maps an unwinder, calls are timed at their ways out, never through return links.
#[test]
fn exit_sites_time_every_call_where_an_unwinder_is_mapped() {
    let Some(folder) = start("exit_sites_time_every_call_where_an_unwinder_is_mapped") else { return };
    let test = "exit_sites_time_every_call_where_an_unwinder_is_mapped";
    for tier in tiers_here(test, &[Tier::A, Tier::D]) {
        let tier = format!("{tier:?}");
        let mut target =
            Target::start_command(Command::new(program("calls")).env("LD_PRELOAD", "libgcc_s.so.1"));
        target.command("burn 1");
        let functions = ["exits_two", "inner"];
        let mut arguments = AMPLE.to_vec();
        arguments.extend(["--latency", "exits_two", "--record", "inner", "--force-tier", &tier]);
        let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
        agent.wait_tracing();
        super::sleep_ms(300);
        let before = functions.map(|f| target.count(f));
        for function in functions {
            paced_calls(&mut target, function, 1, 5_000, 300);
            paced_calls(&mut target, function, 8, 1_000, 300);
        }
        let after = functions.map(|f| target.count(f));
        let path = agent.recording().to_owned();
        let finished = agent.stop();
        let recorded = recording(&path);
        for (i, function) in functions.iter().enumerate() {
            let calls = after[i] - before[i];
            assert!(calls > 1_000, "{function}: {calls} calls only");
            let id = assert_exact(&finished, &recorded, function, calls);
            assert_eq!(exit_mode(&recorded, id), ExitMode::ExitSites, "{function} in tier {tier}");
            assert_timed(&recorded, id, calls);
        }
        assert!(target.is_alive());
        target.assert_text_original();
    }
}

/// Two agents at the same time, each with its own view: neither takes from the other, neither leaves when the other
/// goes.
#[test]
fn two_agents_count_the_same_calls() {
    let Some(folder) = start("two_agents_count_the_same_calls") else { return };
    let other = tempfile::tempdir().expect("a temporary folder can be made");
    let mut target = working_target();
    let arguments = [&AMPLE[..], &["--count", "entry_push"]].concat();
    let mut first = Agent::start_plain(target.pid(), folder.path(), &arguments);
    first.wait_tracing();
    let mut second = Agent::start_plain(target.pid(), other.path(), &arguments);
    second.wait_tracing();
    super::sleep_ms(300);
    let both = paced_calls(&mut target, "entry_push", 2, 10_000, 300);
    let first_path = first.recording().to_owned();
    let first = first.stop();
    let more = paced_calls(&mut target, "entry_push", 2, 10_000, 300);
    let second_path = second.recording().to_owned();
    let second = second.stop();
    assert!(both > 1_000 && more > 1_000, "{both} and {more} calls only");
    assert_exact(&first, &recording(&first_path), "entry_push", both);
    assert_exact(&second, &recording(&second_path), "entry_push", both + more);
    target.assert_text_original();
}

/// Of a function that is named twice the richest wish counts, and `--never` beats all.
#[test]
fn what_was_named_is_traced_and_nothing_else() {
    let Some(folder) = start("what_was_named_is_traced_and_nothing_else") else { return };
    let mut target = working_target();
    let mut arguments = AMPLE.to_vec();
    arguments.extend([
        "--count",
        "entry_*",
        "--latency",
        "/^entry_(push|nop)$/",
        "--never",
        "calls:entry_nop5",
    ]);
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_tracing();
    target.call("entry_push", 10, 1);
    target.call("entry_nop5", 10, 1);
    target.call("inner", 10, 1);
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    let recorded = recording(&path);
    assert_exact(&finished, &recorded, "entry_push", 10);
    assert_eq!(finished.row("entry_push").kind, Some(RecordKind::Latency));
    assert_eq!(finished.row("entry_nop").kind, Some(RecordKind::Latency));
    assert_eq!(finished.row("entry_mov").kind, Some(RecordKind::Count));
    let rows = &finished.report().rows;
    assert!(rows.iter().all(|r| r.name.starts_with("entry_") && r.name != "entry_nop5"), "{rows:?}");
}
