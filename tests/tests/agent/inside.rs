//! Functions inside operations: which of them are watched, and what is said of those that are not.

use super::operations::{A_FIFTH, follow, refused, rows, stop, sums};
use super::{recording, sleep_ms, start};
use profiler_core::recording::Recording;
use profiler_core::report::Report;
use profiler_tests::program;
use profiler_tests::support::{Agent, Target, monotonic_ns};
use std::io::Write;
use std::process::{Command, Stdio};

/// `record ARGUMENTS -- requests`, which is told `commands`.
fn launched(folder: &tempfile::TempDir, arguments: &[&str], commands: &str) -> (Report, Recording, String) {
    let output = folder.path().join("run.tithe");
    let mut child = Command::new(program("tithe"))
        .args(["record", "--only-named", "--budget", "1000ms/s", "--policy", "full", "--format", "json"])
        .args(["--rows", "1000", "--force", "-o"])
        .arg(&output)
        .args(arguments)
        .arg("--")
        .arg(program("requests"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tithe was built");
    let mut input = child.stdin.take().expect("stdin was piped");
    input.write_all(commands.as_bytes()).expect("it reads");
    drop(input);
    let finished = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&finished.stderr).into_owned();
    let text = String::from_utf8_lossy(&finished.stdout);
    // What the target said comes before the report.
    let report = text.find("\n{").or_else(|| text.starts_with('{').then_some(0));
    let report = report.and_then(|i| serde_json::from_str(&text[i..]).ok());
    (report.unwrap_or_else(|| panic!("{}: {text}; {said}", finished.status)), recording(&output), said)
}

/// A launched program's functions are counted before its first instruction, but for those that operations need.
#[test]
fn functions_that_are_traced_are_inside_operations_of_a_launched_program_too() {
    let Some(folder) = start("functions_that_are_traced_are_inside_operations_of_a_launched_program_too")
    else {
        return;
    };
    // What is traced is the details, the measure, and the bound of an operation; the rest is counted.
    let arguments = [
        "--operation",
        "req=handle,class=arg1:int",
        "--trace",
        "requests:step",
        "--trace",
        "requests:allocate",
        "--count",
        "handle",
        "--count",
        "requests:query",
        "--measure",
        "requests:allocate:arg0",
    ];
    let (report, recorded, said) = launched(&folder, &arguments, "serve 300 2 3\nquit\n");
    assert_eq!(sums(&recorded, |w| w.population).values().sum::<u64>(), 600, "{said}");
    // `step` 2, 3 and 4 times, `allocate` once.
    assert_eq!(recorded.operations.iter().map(|r| r.calls).sum::<u64>(), 200 * (3 + 4 + 5), "{said}");
    assert_eq!(recorded.operations.iter().map(|r| r.measure).sum::<u64>(), 200 * (100 + 200 + 300), "{said}");
    let query = report.rows.iter().find(|r| r.name == "query").expect("it is counted");
    assert_eq!(query.attempted, 600, "{said}");
    let missed = &report.receipt.not_observed;
    assert!(missed.is_empty(), "{missed:?}; {said}");
}

#[test]
fn functions_that_two_patterns_name_are_watched_once() {
    let Some(folder) = start("functions_that_two_patterns_name_are_watched_once") else { return };
    let mut target = Target::start("requests");
    let arguments = [
        "--operation",
        "req=handle",
        "--detail",
        "requests:ste*",
        "--detail",
        "requests:step",
        "--policy",
        "full",
    ];
    let agent = follow(&target, &folder, &arguments);
    target.command("serve 200 1 1");
    let (finished, recorded) = stop(agent);
    assert_eq!(recorded.operations.iter().map(|r| r.calls).sum::<u64>(), 400, "{}", finished.messages);
    let missed = &finished.report().receipt.not_observed;
    assert!(missed.is_empty(), "{missed:?}; {}", finished.messages);
}

/// On kernels before Linux 6.6, where eight functions are attached at a time: nine inner functions, and the operation.
#[test]
fn an_operation_with_more_details_than_links_keeps_its_bound() {
    let Some(folder) = start("an_operation_with_more_details_than_links_keeps_its_bound") else { return };
    let mut target = Target::start("requests");
    let load = format!("load {}", program("libmany.so").display());
    assert_eq!(target.command(&load).number("loaded"), 1);
    let arguments = [
        "--force-tier",
        "D",
        "--operation",
        "req=handle,class=arg1:int",
        "--detail",
        "requests:step",
        "--detail",
        "libmany.so:/^many000[0-7]$/",
    ];
    let agent = follow(&target, &folder, &[&arguments, &A_FIFTH[..]].concat());
    target.command("start 5000 2 6");
    sleep_ms(4_000);
    let served = target.command("stop").number("requests");
    sleep_ms(100);
    let (finished, recorded) = stop(agent);
    let said = &finished.messages;
    assert_eq!(sums(&recorded, |w| w.population).values().sum::<u64>(), served, "{said}");
    let share = recorded.operations.len() as f64 / served as f64;
    assert!((0.1..0.3).contains(&share), "{share} of {served}; {said}");
    // Calls are those of `step`: of type T T mod 5 + 2.
    for row in &recorded.operations {
        let class =
            recorded.operation_classes.iter().find(|c| c.class_id == row.class_id).expect("its class");
        let type_: u64 = class.class_name.parse().expect("a number");
        assert_eq!(row.calls, type_ % 5 + 2, "{row:?}");
    }
    let missed: Vec<&str> = finished.report().receipt.not_observed.iter().map(|n| n.what.as_str()).collect();
    assert_eq!(missed, ["many0006", "many0007"], "{said}");
    // To detach them takes 0.1 to 0.3 s each: no slices.
    assert!(!said.contains("in slices at random"), "{said}");
    target.assert_text_original();
}

/// On Linux 6.6 to 6.9 a probe in a shared library is one in every process that uses it.
#[test]
fn where_others_would_pay_libraries_are_left_alone_unless_trace_names_them() {
    let Some(folder) = start("where_others_would_pay_libraries_are_left_alone_unless_trace_names_them")
    else {
        return;
    };
    let mut target = Target::start("requests");
    let load = format!("load {}", program("libmany.so").display());
    assert_eq!(target.command(&load).number("loaded"), 1);
    let tier = ["--force-tier", "C", "--operation"];
    let why = "all that use libmany.so would pay for it; --trace names it to do so all the same";
    for wish in [&["req=libmany.so:many0001"][..], &["req=handle", "--measure", "libmany.so:many0001:arg0"]] {
        let said = refused(&target, &folder, &[&tier, wish].concat());
        assert!(said.starts_with("exit 2: ") && said.contains(why), "{said}");
    }
    let detail =
        ["req=handle", "--policy", "full", "--detail", "libmany.so:many10*", "--detail", "requests:step"];
    for (named, missed) in [(&[][..], 11), (&["--trace", "libmany.so:many10*"], 0)] {
        let agent = follow(&target, &folder, &[&tier, &detail[..], named].concat());
        target.command("serve 100 1 1");
        let (finished, recorded) = stop(agent);
        assert_eq!(recorded.operations.iter().map(|r| r.calls).sum::<u64>(), 200, "{}", finished.messages);
        // Of a hundred functions ten are named.
        let said = &finished.report().receipt.not_observed;
        assert_eq!(said.len(), missed, "{said:?}");
        assert_eq!(said.iter().any(|n| n.why.contains(why)), named.is_empty(), "{said:?}");
    }
    target.assert_text_original();
}

/// Without slices: functions inside are detached in windows off, and one of them is not there when they come back.
fn left_out(name: &str, again: bool) {
    let Some(folder) = start(name) else { return };
    let mut target = Target::start("requests");
    let load = format!("load {}", program("libplugin.so").display());
    assert_eq!(target.command(&load).number("loaded"), 1);
    // While the overhead is compared everything is detached for a moment.
    let arguments = [
        "--budget",
        "500ms/s",
        "--progress",
        "fn:requests:query",
        "--operation",
        "req=handle",
        "--detail",
        "libplugin.so:plugin_function",
        "--detail",
        "requests:step",
        "--policy",
        "uni",
        "--adapt",
        "attach_share=false",
    ];
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_message("tithe: following operations");
    target.command("start 500 1 1");
    sleep_ms(1_000);
    assert_eq!(target.command("unload").number("unloaded"), 1);
    agent.wait_message("plugin_function cannot be attached now (is its library mapped?)");
    agent.wait_message("plugin_function is left out");
    let left_ns = monotonic_ns();
    sleep_ms(3_000);
    let loaded_ns = monotonic_ns();
    if again {
        assert_eq!(target.command(&load).number("loaded"), 1);
        sleep_ms(3_000);
    }
    target.command("stop");
    let (finished, recorded) = stop(agent);
    let said = &finished.messages;
    let after = recorded.operations.iter().filter(|o| o.begin_ns > left_ns).count();
    assert!(after > 20 && recorded.operations.iter().all(|o| o.calls == 2), "{after}; {said}");
    let missed = &finished.report().receipt.not_observed;
    assert_eq!(missed.iter().any(|n| n.what == "plugin_function"), !again, "{missed:?}; {said}");
    let class = recorded.classes.iter().find(|c| c.name == "plugin_function").expect("it was attached");
    let back = recorded.windows.iter().any(|w| w.class_id == class.class_id && w.start_ns > loaded_ns);
    assert_eq!(back, again, "{said}");
    assert_eq!(said.matches("cannot be attached now").count(), 1, "{said}");
    assert!(target.is_alive());
}

#[test]
fn a_function_whose_library_is_gone_is_left_out_in_the_end() {
    left_out("a_function_whose_library_is_gone_is_left_out_in_the_end", false);
}

#[test]
fn a_function_that_was_left_out_comes_back_with_its_library() {
    left_out("a_function_that_was_left_out_comes_back_with_its_library", true);
}

/// Inner functions are closed before what screens system calls: an operation in between would be recorded without its calls.
#[test]
fn operations_that_go_on_while_the_run_ends_are_recorded_with_their_calls_or_not_at_all() {
    let name = "operations_that_go_on_while_the_run_ends_are_recorded_with_their_calls_or_not_at_all";
    let Some(folder) = start(name) else { return };
    let mut target = Target::start("requests");
    target.command("echo 4000 2 3");
    let arguments =
        ["--operation", "echo=syscall:read..syscall:write", "--detail", "requests:step", "--policy", "full"];
    let agent = follow(&target, &folder, &arguments);
    sleep_ms(500);
    let (finished, recorded) = stop(agent);
    target.command("stop");
    let rows = rows(&recorded, "echo");
    assert!(rows.len() > 500, "{}; {}", rows.len(), finished.messages);
    let short = rows.iter().filter(|r| r.calls != 3).count();
    assert_eq!(short, 0, "of {}; {}", rows.len(), finished.messages);
}
