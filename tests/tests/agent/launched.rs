//! `record -- COMMAND`: attached before the first instruction, and the command's end is ours.

use super::{sleep_ms, start};
use profiler_core::class::{ExitMode, Source};
use profiler_core::report::{Report, Row};
use profiler_tests::program;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const NAMED: [&str; 3] = ["--only-named", "--budget", "1000ms/s"];
const CALLS: u64 = 1_000;

/// Starts `tithe record ARGUMENTS -- launched COMMAND`.
fn spawn(preload: Option<&str>, folder: &Path, arguments: &[&str], command: &[&str]) -> Child {
    Command::new(program("tithe"))
        .envs(preload.map(|library| ("LD_PRELOAD", library)))
        .args(["record", "--format", "json", "--rows", "1000", "--force", "-o"])
        .arg(folder.join("run.tithe"))
        .args(arguments)
        .arg("--")
        .arg(program("launched"))
        .args(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tithe was built")
}

fn output(child: Child) -> (Output, String) {
    let output = child.wait_with_output().expect("it can be waited for");
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, messages)
}

fn run(folder: &Path, arguments: &[&str], command: &[&str]) -> (Report, Option<i32>, String) {
    run_with(None, folder, arguments, command)
}

fn run_with(
    preload: Option<&str>,
    folder: &Path,
    arguments: &[&str],
    command: &[&str],
) -> (Report, Option<i32>, String) {
    let (output, messages) = output(spawn(preload, folder, arguments, command));
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}; {messages}", String::from_utf8_lossy(&output.stdout)));
    (report, output.status.code(), messages)
}

fn row<'a>(report: &'a Report, name: &str, messages: &str) -> &'a Row {
    let names: Vec<_> = report.rows.iter().map(|r| &r.name).collect();
    report
        .rows
        .iter()
        .find(|r| r.name == name)
        .unwrap_or_else(|| panic!("no {name} in {names:?}; {messages}"))
}

fn assert_exact(report: &Report, name: &str, calls: u64, messages: &str) {
    let row = row(report, name, messages);
    let shown = row.calls.unwrap_or_else(|| panic!("no calls in {row:?}; {messages}"));
    assert_eq!((shown.source, shown.value), (Source::Exact, calls as f64), "{row:?}; {messages}");
    assert_eq!((row.attempted, row.dropped), (calls, 0), "{row:?}; {messages}");
}

/// The loader calls `in_preinit` before any constructor, the C library calls `in_constructor` before `main`.
#[test]
fn a_launched_program_is_counted_from_its_first_instruction() {
    let Some(folder) = start("a_launched_program_is_counted_from_its_first_instruction") else { return };
    let mut arguments = NAMED.to_vec();
    arguments.extend(["--count", "in_*", "--count", "launched:main", "--count", "libc.so*:getppid"]);
    let calls = CALLS.to_string();
    let (report, status, messages) = run(folder.path(), &arguments, &["calls", &calls, "7"]);
    for (name, calls) in
        [("in_preinit", 3), ("in_constructor", 5), ("main", 1), ("in_main", CALLS), ("getppid", CALLS)]
    {
        assert_exact(&report, name, calls, &messages);
    }
    assert_eq!(status, Some(7), "the command's own status; {messages}");
    assert!(messages.contains("tracing 5 of 5 functions"), "{messages}");
    let recorded = super::recording(&folder.path().join("run.tithe"));
    let cpu_ns: u64 = recorded.ledger.iter().map(|r| r.target_cpu_ns).sum();
    assert!(cpu_ns > 0, "the CPU time of a program that ends within an interval of the ledger");
}

/// What is timed is attached at the entry point, where it is known whether return links are safe.
#[test]
fn a_launched_program_is_timed_from_its_entry_point() {
    let Some(folder) = start("a_launched_program_is_timed_from_its_entry_point") else { return };
    let mut arguments = NAMED.to_vec();
    arguments.extend(["--latency", "in_main", "--record", "in_constructor"]);
    let calls = CALLS.to_string();
    // The unwinder comes with the libraries: nothing shows it before the loader has run.
    for (preload, exit) in [(None, ExitMode::ReturnLink), (Some("libgcc_s.so.1"), ExitMode::ExitSites)] {
        let (report, _, messages) = run_with(preload, folder.path(), &arguments, &["calls", &calls, "0"]);
        assert_exact(&report, "in_main", CALLS, &messages);
        assert_exact(&report, "in_constructor", 5, &messages);
        let recorded = super::recording(&folder.path().join("run.tithe"));
        let class = recorded.classes.iter().find(|c| c.name == "in_main").expect("it is a class");
        assert_eq!(class.exit_mode, exit);
        let windows = recorded.windows.iter().filter(|w| w.class_id == class.class_id);
        assert_eq!(windows.map(|w| w.returns).sum::<u64>(), CALLS, "{messages}");
        assert_eq!(recorded.events.len(), 5, "{messages}");
    }
}

/// Without `--only-named`, under a budget as people give it: `main` is called once, before any survey could see it.
#[test]
fn main_is_counted_under_a_small_budget() {
    let Some(folder) = start("main_is_counted_under_a_small_budget") else { return };
    let calls = CALLS.to_string();
    let arguments = ["--budget", "2%", "--count", "launched:main", "--count", "in_preinit"];
    let (report, status, messages) = run(folder.path(), &arguments, &["calls", &calls, "0"]);
    assert_exact(&report, "main", 1, &messages);
    assert_exact(&report, "in_preinit", 3, &messages);
    assert_eq!(status, Some(0), "{messages}");
}

#[test]
fn the_end_of_a_launched_program_is_passed_on() {
    let Some(folder) = start("the_end_of_a_launched_program_is_passed_on") else { return };
    let mut arguments = NAMED.to_vec();
    arguments.extend(["--count", "main"]);
    let (_, status, messages) = run(folder.path(), &arguments, &["signal", "10"]);
    assert_eq!(status, Some(128 + 10), "{messages}");
    arguments.extend(["--duration", "500ms"]);
    // Ended by us, as asked: done. One that has its own idea of SIGTERM says its own status.
    for (command, expected) in [("wait", 0), ("graceful", 9)] {
        let (_, status, messages) = run(folder.path(), &arguments, &[command]);
        assert_eq!(status, Some(expected), "{command}: {messages}");
    }
    let missing = Command::new(program("tithe")).args(["record", "--", "/no/such/program"]).output();
    assert_eq!(missing.expect("tithe was built").status.code(), Some(3), "our own failures keep their codes");
}

/// Starts it, and interrupts the agent alone (no terminal that tells both) as often as said, half a second apart.
fn interrupted(command: &str, times: u32) -> Option<(Output, String, Duration)> {
    let folder = start("a launched program is interrupted")?;
    // In the background of a script it would be ignored, by the command too, which inherits that.
    // SAFETY: the default action; this process handles no SIGINT.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    let mut arguments = NAMED.to_vec();
    arguments.extend(["--count", "main"]);
    let child = spawn(None, folder.path(), &arguments, &[command]);
    let id = rustix::process::Pid::from_child(&child);
    let begun = Instant::now();
    let windows = || super::recording(&folder.path().join("run.tithe")).classes.len();
    while !folder.path().join("run.tithe/meta.json").exists() || windows() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it never began");
        sleep_ms(100);
    }
    // The class is known before the program runs: it has its handlers by now.
    sleep_ms(300);
    let begun = Instant::now();
    for i in 0..times {
        sleep_ms(if i > 0 { 500 } else { 0 });
        // The child has not been reaped. OK because the report tells what it did.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::INT);
    }
    let (output, messages) = output(child);
    let report: Report = serde_json::from_slice(&output.stdout).expect("the report");
    assert_exact(&report, "main", 1, &messages);
    Some((output, messages, begun.elapsed()))
}

#[test]
fn an_interrupted_agent_interrupts_its_command() {
    let Some((output, messages, _)) = interrupted("wait", 1) else { return };
    assert_eq!(output.status.code(), Some(128 + 2), "{messages}");
    assert!(!messages.contains("waiting"), "{messages}");
}

/// It takes 2 s to save what it has.
#[test]
fn a_command_ends_in_its_own_time_after_ctrl_c() {
    let Some((output, messages, took)) = interrupted("tidy", 1) else { return };
    assert_eq!(output.status.code(), Some(5), "{messages}");
    assert!(took >= Duration::from_secs(2), "{took:?}");
    assert!(messages.contains("waiting up to 10 s") && !messages.contains("gets SIGTERM"), "{messages}");
}

#[test]
fn a_second_ctrl_c_hastens_the_end_of_the_command() {
    let Some((output, messages, took)) = interrupted("stubborn", 2) else { return };
    assert_eq!(output.status.code(), Some(9), "{messages}");
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(messages.contains("waiting up to 10 s") && messages.contains("gets SIGTERM"), "{messages}");
}
