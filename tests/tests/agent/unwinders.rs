//! Return links beside an unwinder that is mapped: used where nothing can send it on its way, refused again when something comes
//! that can.

use super::{exact_calls, recording, start};
use profiler_core::class::ExitMode;
use profiler_tests::program;
use profiler_tests::support::{Agent, Finished, Target};
use profiler_user::doctor::{TargetReport, check_target, render_text};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const ALLOWED: &str =
    "libgcc_s.so.1 is mapped, and none of the 4 modules can raise, end a thread or walk a stack";

/// The agent on a function of the target, attached.
fn timing(target: &Target, folder: &TempDir) -> Agent {
    let arguments = ["--only-named", "--budget", "1000ms/s", "--latency", "cleared_work", "--verbose"];
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_tracing();
    agent
}

/// Stops the agent. How ends of calls were seen, at last.
fn stopped(agent: Agent, target: &mut Target) -> (Finished, ExitMode) {
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    assert!(target.is_alive(), "the target died; {}", finished.messages);
    target.assert_text_original();
    let recorded = recording(&path);
    let class = recorded.classes.iter().find(|class| class.name == "cleared_work").unwrap();
    (finished, class.exit_mode)
}

fn doctor(target: &Target) -> (TargetReport, String) {
    let report = check_target(target.pid().cast_signed()).unwrap();
    let text = render_text(None, Some(&report));
    (report, text)
}

fn folder_of_charset() -> PathBuf {
    program("libcharset.so").parent().unwrap().to_owned()
}

#[test]
fn return_links_are_used_where_nothing_can_unwind() {
    let Some(folder) = start("return_links_are_used_where_nothing_can_unwind") else { return };
    let mut target = Target::start("cleared");
    let (report, text) = doctor(&target);
    assert!(report.return_links && text.contains("return links  allowed\n"), "{text}");
    assert!(text.contains(&format!("note: return links are allowed: {ALLOWED}")), "{text}");
    let agent = timing(&target, &folder);
    let calls = 2_000;
    target.command(&format!("work {calls}"));
    let (finished, exit) = stopped(agent, &mut target);
    let row = finished.row("cleared_work");
    assert_eq!(exit, ExitMode::ReturnLink, "{:?}", row.notes);
    assert_eq!(exact_calls(&finished, "cleared_work"), calls);
    assert_eq!(row.mean_ns.as_ref().map(|mean| mean.n), Some(calls), "{row:?}");
    assert!(row.notes.iter().any(|note| note == &format!("return links: {ALLOWED}")), "{:?}", row.notes);
}

#[test]
fn a_module_that_can_end_threads_forbids_return_links() {
    let Some(folder) = start("a_module_that_can_end_threads_forbids_return_links") else { return };
    let mut target = Target::start("uncleared");
    let why = "libgcc_s.so.1 is mapped (the C++ and Rust unwinder), and libcharset.so imports pthread_exit";
    let (report, text) = doctor(&target);
    assert_eq!(report.return_links_refused.as_deref(), Some(why));
    let line = "libcharset.so imports pthread_exit: only threads that all end by returning would change that";
    assert!(text.contains(line), "{text}");
    // The others can nothing.
    let forbid = report.modules.iter().filter(|m| m.unwinding.is_some()).map(|m| m.name.as_str());
    assert_eq!(forbid.collect::<Vec<_>>(), ["libcharset.so"]);
    let agent = timing(&target, &folder);
    target.command("work 1000");
    let (finished, exit) = stopped(agent, &mut target);
    assert_eq!(exit, ExitMode::ExitSites);
    assert_eq!(exact_calls(&finished, "cleared_work"), 1_000);
    let notes = &finished.row("cleared_work").notes;
    assert!(notes.contains(&format!("no return link: {why}")), "{notes:?}");
}

/// The C library loads a module that can end threads: return links go before it does so.
#[test]
fn a_module_that_comes_and_can_end_threads_ends_return_links() {
    let Some(folder) = start("a_module_that_comes_and_can_end_threads_ends_return_links") else { return };
    let load = format!("load {}", folder_of_charset().display());
    let commands = ["work 1000", &load, "end 200", "work 1000"];
    let mut twin = Target::start("cleared");
    let expected: Vec<_> = commands.iter().map(|line| twin.command(line)).collect();
    assert_eq!(expected[2].number("ended"), 200);
    let mut target = Target::start("cleared");
    let mut agent = timing(&target, &folder);
    let mut got: Vec<_> = commands[..2].iter().map(|line| target.command(line)).collect();
    agent.wait_message("return links of 1 functions are taken off: libgcc_s.so.1 is mapped");
    assert!(agent.messages().contains("and libcharset.so imports pthread_exit"), "{}", agent.messages());
    // They go at once.
    std::thread::sleep(Duration::from_secs(1));
    got.extend(commands[2..].iter().map(|line| target.command(line)));
    assert_eq!(got, expected);
    let (finished, _) = stopped(agent, &mut target);
    let row = finished.row("cleared_work");
    assert!(row.attempted >= 1_000 && row.mean_ns.as_ref().is_some_and(|mean| mean.n >= 1_000), "{row:?}");
    assert!(row.notes.iter().any(|n| n.contains("return links were taken off")), "{row:?}");
}

/// Code that is made at run time shows nothing.
#[test]
fn code_made_at_run_time_ends_return_links() {
    let Some(folder) = start("code_made_at_run_time_ends_return_links") else { return };
    let mut target = Target::start("cleared");
    let mut agent = timing(&target, &folder);
    target.command("work 1000");
    target.command("code");
    let why = "the process has executable memory that no file shows";
    agent.wait_message("return links of 1 functions are taken off: libgcc_s.so.1 is mapped");
    assert!(agent.messages().contains(why), "{}", agent.messages());
    assert!(doctor(&target).1.contains(why));
    let (finished, exit) = stopped(agent, &mut target);
    assert_ne!(exit, ExitMode::ReturnLink, "{:?}", finished.row("cleared_work").notes);
}

/// The C library loads the unwinder when a thread is cancelled, by whatever way it was asked to.
#[test]
fn an_unwinder_that_nobody_needs_forbids_return_links() {
    for (preload, refused) in [("", false), ("libgcc_s.so.1", true)] {
        let mut command = Command::new(program("decades"));
        command.env("LD_PRELOAD", preload).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "{line}");
        let why = check_target(child.id().cast_signed()).unwrap().return_links_refused;
        child.kill().unwrap();
        child.wait().unwrap();
        let expected = refused.then_some(
            "libgcc_s.so.1 is mapped (the C++ and Rust unwinder), and libgcc_s.so.1 is needed by no mapped module: \
             the C library may have loaded it to end a thread",
        );
        assert_eq!(why.as_deref(), expected, "{preload}");
    }
}
