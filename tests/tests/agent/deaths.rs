//! The agent or the target dies, stops, goes: the target's text is the original one, its work goes on, and what the
//! agent knew is told.

use super::{counting, exact_calls, paced_calls, recording, sleep_ms, start, working_target};
use profiler_tests::support::{Agent, Target, changed_text, wait_text_original};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// On an idle machine 1,000 functions are gone within 100 ms (a benchmark); the limit is for a busy one.
const GONE: Duration = Duration::from_secs(3);
/// A killed thread cannot take its breakpoints out of another process: the watchdog's successor does, after it has
/// loaded the kernel side anew.
const MENDED: Duration = Duration::from_secs(10);

/// The target works, and nothing of ours is in it.
fn assert_unharmed(target: &mut Target) {
    let took = wait_text_original(target, MENDED);
    println!("text original after {took:?}");
    target.call("entry_push", 1_000, 1);
    assert!(target.is_alive());
}

#[test]
fn killed_while_it_attaches() {
    let Some(folder) = start("killed_while_it_attaches") else { return };
    let mut target = working_target();
    let mut caught = 0;
    for _ in 0..5 {
        let mut agent = Agent::start(target.pid(), folder.path(), &["--count", "big*"]);
        let end = std::time::Instant::now() + Duration::from_secs(20);
        let first = target.function_bytes("big0", 8);
        while target.function_bytes("big0", 8) == first && agent.is_alive() {
            assert!(std::time::Instant::now() < end, "nothing attached: {}", agent.messages());
        }
        agent.signal(libc::SIGKILL);
        let finished = agent.finish();
        assert_eq!(finished.status.signal(), Some(libc::SIGKILL), "{}", finished.messages);
        caught += u32::from(!finished.messages.contains("tithe: tracing"));
        assert_unharmed(&mut target);
    }
    assert!(caught > 0, "it was never caught while it attached");
}

/// What the killed agent left is taken out, what another agent has put there stays.
#[test]
fn mending_leaves_other_agents_alone() {
    let Some(folder) = start("mending_leaves_other_agents_alone") else { return };
    let other = tempfile::tempdir().expect("a temporary folder can be made");
    let mut target = working_target();
    let mut steady = Agent::start(target.pid(), folder.path(), &["--count", "entry_push", "--count", "big0"]);
    steady.wait_tracing();
    let traced = target.function_bytes("entry_push", 8);
    let original = target.function_bytes("big1999", 8);
    let mut agent = Agent::start(target.pid(), other.path(), &["--count", "big*"]);
    let free = target.function_bytes("big1", 8);
    while target.function_bytes("big1", 8) == free && agent.is_alive() {}
    agent.signal(libc::SIGKILL);
    agent.finish();
    let begun = std::time::Instant::now();
    let mut left = 1;
    while left > 0 {
        assert!(begun.elapsed() < MENDED, "{left} breakpoints are still there");
        sleep_ms(50);
        // Those of the steady agent: entry_push and big0.
        left = changed_text(target.pid()).expect("the target runs").len().saturating_sub(2);
    }
    assert_eq!(target.function_bytes("big1999", 8), original);
    assert_eq!(target.function_bytes("entry_push", 8), traced, "the other agent's breakpoint is gone");
    let calls = paced_calls(&mut target, "entry_push", 1, 1_000, 200);
    let finished = steady.stop();
    assert_eq!(exact_calls(&finished, "entry_push"), calls, "{}", finished.messages);
    target.assert_text_original();
}

#[test]
fn killed_in_the_survey() {
    let Some(folder) = start("killed_in_the_survey") else { return };
    let mut target = Target::start("calls");
    target.start_background("mix", 2, 0, 1);
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &["--budget", "5%"]);
    // The first breakpoints in a run that names nothing are those of the survey.
    agent.wait_attached();
    agent.signal(libc::SIGKILL);
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    assert_eq!(finished.status.signal(), Some(libc::SIGKILL), "{}", finished.messages);
    wait_text_original(&target, MENDED);
    assert!(target.stop_background().calls > 0);
    assert_unharmed(&mut target);
    let recorded = recording(&path);
    assert!(recorded.meta.end_ns.is_none(), "a killed agent has not ended its recording");
}

#[test]
fn killed_in_the_run() {
    let Some(folder) = start("killed_in_the_run") else { return };
    let mut target = working_target();
    let agent = counting(&target, &folder);
    target.start_background("entry_push", 2, 10_000, 1);
    let path = agent.recording().to_owned();
    // Segments are closed every 3 s; where the disk is busy they are there later.
    sleep_ms(4_000);
    let is_written = || {
        let files = std::fs::read_dir(&path).into_iter().flatten().flatten();
        files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("ledger-"))
    };
    let end =
        std::time::Instant::now() + profiler_tests::support::patience(std::time::Duration::from_secs(20));
    while !is_written() && std::time::Instant::now() < end {
        sleep_ms(20);
    }
    agent.signal(libc::SIGKILL);
    agent.finish();
    assert!(wait_text_original(&target, GONE) <= GONE);
    assert!(target.stop_background().calls > 0);
    assert_unharmed(&mut target);
    let recorded = recording(&path);
    assert!(!recorded.ledger.is_empty(), "what was written before stays readable: {:?}", recorded.damage);
}

/// The watchdog kills an agent that was stopped: its traps go with it.
#[test]
fn stopped_with_sigstop() {
    let Some(folder) = start("stopped_with_sigstop") else { return };
    let mut target = working_target();
    let agent = counting(&target, &folder);
    target.start_background("entry_push", 2, 10_000, 1);
    sleep_ms(500);
    agent.signal(libc::SIGSTOP);
    // 1.5 s on an idle machine.
    let took = wait_text_original(&target, Duration::from_secs(3));
    println!("stopped agent: traps gone after {took:?}");
    assert!(took > Duration::from_millis(500), "the watchdog has patience: {took:?}");
    let finished = agent.finish();
    assert_eq!(finished.status.signal(), Some(libc::SIGKILL), "{}", finished.messages);
    assert!(finished.messages.contains("killed by its own watchdog"), "{}", finished.messages);
    assert!(target.stop_background().calls > 0);
    assert_unharmed(&mut target);
}

/// Ctrl-Z would leave the traps armed with nobody looking: it is refused in words, and the run goes on.
#[test]
fn ctrl_z_is_refused() {
    let Some(folder) = start("ctrl_z_is_refused") else { return };
    let mut target = working_target();
    let mut agent = counting(&target, &folder);
    agent.signal(libc::SIGTSTP);
    agent.wait_message("Ctrl-Z does not work");
    sleep_ms(1_500);
    let calls = paced_calls(&mut target, "entry_push", 1, 1_000, 200);
    let finished = agent.stop();
    assert_eq!(exact_calls(&finished, "entry_push"), calls, "{}", finished.messages);
}

#[test]
fn the_target_exits() {
    let Some(folder) = start("the_target_exits") else { return };
    let mut target = working_target();
    let agent = counting(&target, &folder);
    let calls = paced_calls(&mut target, "entry_push", 2, 2_000, 500);
    let path = agent.recording().to_owned();
    assert!(target.quit().success());
    let finished = agent.finish();
    assert_eq!(exact_calls(&finished, "entry_push"), calls, "{}", finished.messages);
    assert_eq!(recording(&path).meta.end_reason.as_deref(), Some("target exited"));
}

#[test]
fn the_target_is_killed() {
    let Some(folder) = start("the_target_is_killed") else { return };
    let mut target = working_target();
    let agent = counting(&target, &folder);
    let calls = paced_calls(&mut target, "entry_push", 2, 2_000, 500);
    let path = agent.recording().to_owned();
    target.kill();
    let finished = agent.finish();
    assert_eq!(exact_calls(&finished, "entry_push"), calls, "{}", finished.messages);
    assert_eq!(recording(&path).meta.end_reason.as_deref(), Some("target exited"));
}

#[test]
fn the_target_is_killed_in_the_survey() {
    let Some(folder) = start("the_target_is_killed_in_the_survey") else { return };
    let mut target = Target::start("calls");
    target.start_background("mix", 2, 0, 1);
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &["--budget", "5%"]);
    agent.wait_attached();
    target.kill();
    let finished = agent.finish();
    let report = finished.report();
    assert!(report.samples > 0, "{}", finished.messages);
    assert!(report.rows.iter().any(|row| row.name == "mix_slow"), "{:?}", report.rows);
}
