//! The whole agent, end to end: a real target, the real kernel, `tithe record` as people run it.
//!
//! What is asked: are the counts those of the target itself, does the target outlive whatever befalls the agent, does
//! the agent outlive whatever befalls the target, does each failure say what is wrong. Programs that break careless
//! tracers (exceptions, fibers, patched text) have a test binary of their own.

mod arguments;
mod cut;
mod deaths;
mod discovered;
mod ends;
mod errors;
mod exact;
mod expect;
mod footprint;
mod forks;
mod heirs;
mod hostile;
mod inside;
mod launched;
mod libraries;
mod limit;
mod loops;
mod losses;
mod many;
mod memory;
mod operation_report;
mod operations;
mod others;
mod parameters;
mod portions;
mod probes;
mod progress;
mod references;
mod replan;
mod returns;
mod slices;
mod slower;
mod stamps;
mod tracepoints;
mod traps;
mod tree;
mod unwinders;
mod uses;
mod words;

use profiler_core::class::Source;
use profiler_core::recording::Recording;
use profiler_tests::support::{Agent, Finished, Target, kernel_or_skip};
use std::time::Duration;
use tempfile::TempDir;

/// A folder for recordings, or nothing if the test cannot run here.
fn start(test: &str) -> Option<TempDir> {
    kernel_or_skip(test).then(|| tempfile::tempdir().expect("a temporary folder can be made"))
}

fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// What the agent wrote.
fn recording(agent_wrote: &std::path::Path) -> Recording {
    profiler_user::recording::open(agent_wrote)
        .unwrap_or_else(|error| panic!("{}: {error}", agent_wrote.display()))
}

/// Target `calls` with one thread that works, so that a share of its CPU time is a budget.
fn working_target() -> Target {
    let mut target = Target::start("calls");
    target.command("burn 1");
    target
}

/// Waits for the child that the target's main thread has forked.
fn wait_child(target: &Target) -> u32 {
    let pid = target.pid();
    let end = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        if let Some(child) = text.split_whitespace().next().and_then(|child| child.parse().ok()) {
            return child;
        }
        assert!(std::time::Instant::now() < end, "process {pid} has no child: \"{text}\"");
        std::thread::yield_now();
    }
}

/// Background calls of a function for a while, then the number of them.
fn paced_calls(target: &mut Target, function: &str, threads: u32, hz: u64, ms: u64) -> u64 {
    target.start_background(function, threads, hz, 1);
    sleep_ms(ms);
    target.stop_background().calls
}

/// The agent on `entry_push` alone, attached.
fn counting(target: &Target, folder: &TempDir) -> Agent {
    let mut agent = Agent::start(target.pid(), folder.path(), &["--count", "entry_push"]);
    agent.wait_tracing();
    agent
}

/// Calls of a function as the report has them.
///
/// # Panics
///
/// If they are an estimate.
fn exact_calls(finished: &Finished, function: &str) -> u64 {
    let row = finished.row(function);
    let calls = row.calls.unwrap_or_else(|| panic!("no calls in {row:?}; {}", finished.messages));
    assert_eq!(calls.source, Source::Exact, "{row:?}; {}", finished.messages);
    // OK because the count is below 2^53.
    calls.value as u64
}
