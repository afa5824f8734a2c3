//! Calls that are timed at their return addresses, because a return link is refused and the ways out cannot be found.

use super::{exact_calls, recording, sleep_ms, start};
use profiler_core::class::ExitMode;
use profiler_core::recording::{ClassRow, Recording};
use profiler_core::report::Row;
use profiler_tests::support::{Agent, Target};
use tempfile::TempDir;

/// How long each call waits, ns: far more than what a trap takes.
const WAIT_NS: f64 = 50_000.0;

/// The agent on `waits_oddly` of target `waits`, attached, with calls of its own budget.
fn timing(target: &Target, folder: &TempDir, more: &[&str]) -> Agent {
    let mut arguments = vec!["--only-named", "--budget", "1000ms/s", "--latency", "waits_oddly"];
    arguments.extend(more);
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_tracing();
    agent
}

/// Has a caller call `calls` times. All calls so far.
fn run(target: &mut Target, caller: &str, calls: u64) -> u64 {
    target.command(&format!("run {caller} {calls} {WAIT_NS}")).number("calls")
}

fn class<'a>(recorded: &'a Recording, name: &str) -> &'a ClassRow {
    recorded.classes.iter().find(|class| class.name == name).unwrap()
}

/// Calls of a class whose return was seen.
fn returned(recorded: &Recording, class: &ClassRow) -> u64 {
    recorded.windows.iter().filter(|w| w.class_id == class.class_id).map(|w| w.returns).sum()
}

/// Half of the calls take what the program waits, within 5 %. (Others are preempted meanwhile, on a busy machine many.)
fn assert_median(row: &Row) {
    let median =
        row.quantiles_ns.iter().find(|(p, _)| *p == 0.5).unwrap_or_else(|| panic!("no P50: {row:?}")).1;
    assert!((median.value / WAIT_NS - 1.0).abs() < 0.05, "{median:?}");
}

#[test]
fn calls_are_timed_where_they_return_to() {
    let Some(folder) = start("calls_are_timed_where_they_return_to") else { return };
    let mut target = Target::start("waits");
    let agent = timing(&target, &folder, &[]);
    // The first calls tell who calls.
    for caller in ["one", "two", "beyond", "pointer"] {
        run(&mut target, caller, 20);
    }
    sleep_ms(500);
    let learned = run(&mut target, "one", 0);
    for caller in ["one", "two", "beyond", "pointer"] {
        run(&mut target, caller, 500);
    }
    let calls = run(&mut target, "one", 0);
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    let recorded = recording(&path);
    let class = class(&recorded, "waits_oddly");
    assert_eq!(class.exit_mode, ExitMode::ReturnSites, "{:?}", class.notes);
    assert_eq!(exact_calls(&finished, "waits_oddly"), calls);
    let timed = returned(&recorded, class);
    assert!(
        timed >= calls - learned,
        "{timed} of {calls} calls were timed, the first {learned} may not; {:?}",
        class.notes
    );
    assert!(class.notes.iter().any(|note| note.contains("5 return addresses")), "{:?}", class.notes);
    assert_median(finished.row("waits_oddly"));
    assert!(target.is_alive());
    target.assert_text_original();
}

/// Code that was made at run time is not touched; its calls count, and are not timed, which is said.
#[test]
fn calls_from_code_made_at_run_time_are_counted_and_not_timed() {
    let Some(folder) = start("calls_from_code_made_at_run_time_are_counted_and_not_timed") else { return };
    let mut target = Target::start("waits");
    let agent = timing(&target, &folder, &[]);
    run(&mut target, "one", 20);
    sleep_ms(300);
    run(&mut target, "one", 500);
    let before = run(&mut target, "one", 0);
    let calls = target.command(&format!("jit 300 {WAIT_NS}")).number("calls");
    assert_eq!(calls, before + 300);
    sleep_ms(200);
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    let recorded = recording(&path);
    let class = class(&recorded, "waits_oddly");
    assert_eq!(exact_calls(&finished, "waits_oddly"), calls);
    let timed = returned(&recorded, class);
    assert!((500..=before).contains(&timed), "{timed} timed; {:?}", class.notes);
    let said = |note: &String| note.contains("not timed") && note.contains("made at run time");
    assert!(class.notes.iter().any(said), "{:?}", class.notes);
    target.assert_text_original();
}

/// What a `longjmp` leaves is no return: its time counts for nobody.
#[test]
fn calls_that_are_left_by_a_jump_do_not_count_as_returned() {
    let Some(folder) = start("calls_that_are_left_by_a_jump_do_not_count_as_returned") else { return };
    let mut target = Target::start("waits");
    let agent = timing(&target, &folder, &[]);
    run(&mut target, "one", 20);
    sleep_ms(300);
    run(&mut target, "one", 200);
    let before = run(&mut target, "one", 0);
    target.command(&format!("leap 100 {WAIT_NS}"));
    let calls = run(&mut target, "one", 200);
    assert_eq!(calls, before + 300);
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    let recorded = recording(&path);
    let class = class(&recorded, "waits_oddly");
    assert_eq!(exact_calls(&finished, "waits_oddly"), calls);
    let timed = returned(&recorded, class);
    assert!((400..=before + 200).contains(&timed), "{timed} timed of {calls}");
    assert_median(finished.row("waits_oddly"));
    target.assert_text_original();
}

/// Windows come and go; each has the sites of all callers that are known by then.
#[test]
fn bursts_time_calls_of_callers_that_were_learned_before() {
    let Some(folder) = start("bursts_time_calls_of_callers_that_were_learned_before") else { return };
    let mut target = Target::start("waits");
    let mut agent =
        Agent::start_plain(target.pid(), folder.path(), &["--budget", "2%", "--latency", "waits_oddly"]);
    agent.wait_attached();
    let calls = target.command("run one 80000 50000").number("calls");
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    let recorded = recording(&path);
    let class = class(&recorded, "waits_oddly");
    let timed = returned(&recorded, class);
    assert!(timed > 100, "{timed} of {calls} timed; {:?}; {}", class.notes, finished.messages);
    assert_median(finished.row("waits_oddly"));
    target.assert_text_original();
}

/// A `ret` is single-stepped, which costs ten times as much here. Where callers are known from the survey, bursts see returns behind the calls.
#[test]
fn bursts_of_a_function_with_exit_sites_see_its_returns_in_its_callers() {
    let Some(folder) = start("bursts_of_a_function_with_exit_sites_see_its_returns_in_its_callers") else {
        return;
    };
    let mut target = Target::start("waits");
    let mut agent =
        Agent::start_plain(target.pid(), folder.path(), &["--budget", "2%", "--latency", "waits_plainly"]);
    agent.wait_attached();
    let calls = target.command("run plain 80000 50000").number("calls");
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    let recorded = recording(&path);
    let class = class(&recorded, "waits_plainly");
    assert_eq!(class.exit_mode, ExitMode::ReturnSites, "{:?}; {}", class.notes, finished.messages);
    let timed = returned(&recorded, class);
    assert!(timed > 100, "{timed} of {calls} timed; {:?}; {}", class.notes, finished.messages);
    assert_median(finished.row("waits_plainly"));
    target.assert_text_original();
}

/// Nobody is left out where every call is watched from the first on.
#[test]
fn a_function_that_is_traced_whole_keeps_its_exit_sites() {
    let Some(folder) = start("a_function_that_is_traced_whole_keeps_its_exit_sites") else { return };
    let mut target = Target::start("waits");
    let arguments = ["--only-named", "--budget", "1000ms/s", "--latency", "waits_plainly"];
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_tracing();
    let calls = target.command("run plain 500 50000").number("calls");
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    let recorded = recording(&path);
    let class = class(&recorded, "waits_plainly");
    assert_eq!(class.exit_mode, ExitMode::ExitSites, "{:?}", class.notes);
    assert_eq!((exact_calls(&finished, "waits_plainly"), returned(&recorded, class)), (calls, calls));
    target.assert_text_original();
}
