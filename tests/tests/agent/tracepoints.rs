//! Tracepoints and system calls as bounds of operations: what the agent says of them against how often the target passed them.

use super::operations::{follow, refused, rows, stop, sums};
use super::{sleep_ms, start};
use profiler_core::recording::{Charge, Recording};
use profiler_tests::support::{Agent, Target};
use std::collections::BTreeMap;

/// Both are passed by the thread itself.
const SIGNAL: &str = "sig=tp:signal:signal_deliver..tp:task:task_rename,class=arg0:int";
/// Signals of others' timers are generated in interrupts, under any thread.
const SENT: &str = "sent=tp:signal:signal_generate..tp:signal:signal_deliver,class=arg0:int";
const NAME: &str = "name=tp:task:task_rename..tp:signal:signal_deliver";
const USR1: i32 = libc::SIGUSR1;
const USR2: i32 = libc::SIGUSR2;

fn charged(recorded: &Recording, charge: Charge) -> (u64, f64) {
    let rows = recorded.ledger.iter().filter(|row| row.charge == charge);
    rows.fold((0, 0.0), |(units, cost), row| (units + row.units, cost + row.cost_ns as f64))
}

#[test]
fn every_pair_of_tracepoints_is_counted_and_those_of_others_are_not() {
    let Some(folder) = start("every_pair_of_tracepoints_is_counted_and_those_of_others_are_not") else {
        return;
    };
    let mut target = Target::start("events");
    let arguments = ["--operation", SIGNAL, "--operation", NAME, "--policy", "full"];
    let agent = follow(&target, &folder, &arguments);
    let raised = target.command("raise 1000 3");
    assert_eq!((raised.number("usr1"), raised.number("usr2")), (1_500, 1_500));
    assert_eq!(target.command("rename 700").number("usr1"), 700);
    assert_eq!(target.command("stray").number("usr1"), 1);
    // Its process is another one.
    assert_eq!(target.command("child 900").number("status"), 0);
    sleep_ms(1_200);
    let (finished, recorded) = stop(agent);
    // The last of the first thread's signals is open when the stray one comes, and that one until the end.
    let expected = BTreeMap::from([
        (USR1.to_string(), 1_500 + 699),
        (USR2.to_string(), 1_500),
        ("name".to_owned(), 3 * 999 + 700),
    ]);
    assert_eq!(sums(&recorded, |w| w.population), expected, "{}", finished.messages);
    assert_eq!(sums(&recorded, |w| w.begun)[&USR1.to_string()], 1_500 + 701);
    assert_eq!(sums(&recorded, |w| w.recorded)[&USR2.to_string()], 1_500);
    // The first name ends no signal, the stray signal comes upon an open one; no name came before each thread's first signal and
    // before the stray one.
    let unmatched = BTreeMap::from([("(unnamed)".to_owned(), 1 + 1), ("name".to_owned(), 3 + 1)]);
    assert_eq!(sums(&recorded, |w| w.unmatched), unmatched);
    let ended =
        |operation| recorded.operations.iter().filter(move |o| o.operation == operation && !o.censored);
    assert_eq!((ended(0).count(), ended(1).count()), (3_000 + 699, 3 * 999 + 700));
    let inside_ns: u64 = ended(0).map(|o| o.duration_ns).sum();
    // What the target timed around those of `raise` includes ours; the others are short.
    let wall_ns = raised.number("wall_ns");
    assert!(inside_ns < wall_ns + 699 * 1_000_000, "{inside_ns} of {wall_ns}");
    assert!(ended(0).all(|o| o.duration_ns > 0 && o.duration_ns < 1_000_000_000));
    // Both operations screen each signal and each name.
    let (own, others) = (charged(&recorded, Charge::Screening), charged(&recorded, Charge::Bystanders));
    assert_eq!(own.0, 2 * (2 * (3_000 + 700) + 1), "{}", finished.messages);
    assert!(own.1 > 0.0 && others.0 >= 2 * 2 * 900, "{own:?}, {others:?}");
    let screen_ns: Vec<f64> = recorded.meta.operations.iter().map(|o| o.screen_ns).collect();
    assert!(screen_ns.iter().all(|ns| *ns > 0.0), "{screen_ns:?}");
    assert!(recorded.meta.operations.iter().all(|o| !o.by_functions), "no trap bounds them");
    assert!(target.is_alive());
}

/// Both in one: the tracepoint that others pass all the time is dropped, the other one goes on.
#[test]
fn a_tracepoint_that_other_processes_pass_too_often_is_dropped_for_the_rest_of_the_run() {
    let Some(folder) =
        start("a_tracepoint_that_other_processes_pass_too_often_is_dropped_for_the_rest_of_the_run")
    else {
        return;
    };
    let mut target = Target::start("events");
    let mut other = Target::start("events");
    let arguments = ["--operation", SENT, "--operation", NAME, "--policy", "full"];
    let mut agent = follow(&target, &folder, &arguments);
    assert_eq!(target.command("rename 100").number("usr1"), 100);
    other.command("start");
    agent.wait_message("operation 'name' is not watched from here on: screening its tracepoints takes");
    let renames = other.command("stop").number("renames");
    target.command("rename 50");
    sleep_ms(300);
    let (finished, recorded) = stop(agent);
    assert!(finished.messages.contains("from other processes of this host"), "{}", finished.messages);
    let expected = BTreeMap::from([(USR1.to_string(), 150), ("name".to_owned(), 100)]);
    assert_eq!(sums(&recorded, |w| w.population), expected, "{}", finished.messages);
    let (units, _) = charged(&recorded, Charge::Bystanders);
    assert!(units > 1_000 && units <= renames + 10_000, "{units} of {renames}");
    let missing = &recorded.meta.not_observed;
    assert!(missing.iter().any(|n| n.what == "operation 'name', later part"), "{missing:?}");
    assert!(!missing.iter().any(|n| n.what.contains("'sent'")), "{missing:?}");
    assert!(target.is_alive());
}

#[test]
fn a_tracepoint_that_the_target_passes_too_often_is_dropped_for_the_rest_of_the_run() {
    let Some(folder) =
        start("a_tracepoint_that_the_target_passes_too_often_is_dropped_for_the_rest_of_the_run")
    else {
        return;
    };
    let mut target = Target::start("events");
    target.command("start");
    let arguments = ["--budget", "1%", "--no-ab", "--only-named", "--operation", NAME];
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_message("operation 'name' is not watched from here on: screening its tracepoints costs");
    let (finished, recorded) = stop(agent);
    assert!(finished.messages.contains("name what is passed more rarely as bounds"), "{}", finished.messages);
    assert!(charged(&recorded, Charge::Screening).0 > 1_000);
    let missing = &recorded.meta.not_observed;
    assert!(missing.iter().any(|n| n.what == "operation 'name', later part"), "{missing:?}");
    assert!(target.command("stop").number("renames") > 1_000);
}

#[test]
fn tracepoints_that_cannot_bound_an_operation_are_refused_in_words() {
    let Some(folder) = start("tracepoints_that_cannot_bound_an_operation_are_refused_in_words") else {
        return;
    };
    let target = Target::start("events");
    let check = |spec: &str, exit: i32, parts: &[&str]| {
        let said = refused(&target, &folder, &["--operation", spec]);
        assert!(said.starts_with(&format!("exit {exit}: ")), "{said}");
        for part in parts {
            assert!(said.contains(part), "no \"{part}\" in {said}");
        }
    };
    let end = "..tp:signal:signal_deliver";
    check(
        &format!("req=tp:task:task_renam{end}"),
        2,
        &["its begin 'tp:task:task_renam': this kernel has no tracepoint 'task_renam'; "],
    );
    check(
        "req=tp:task:task_rename..tp:signal:signal_delivered",
        2,
        &["its end 'tp:signal:signal_delivered': this kernel has no tracepoint 'signal_delivered'; "],
    );
    check(
        &format!("req=tp:task:task_rename{end},class=arg9:long"),
        2,
        &["its begin 'tp:task:task_rename': it has no argument 9: ", "TP_PROTO"],
    );
    check("req=tp:task:task_rename", 2, &["is a point and has no end"]);
    check(&format!("req=main{end}"), 2, &["both tracepoints"]);
    check(&format!("req=tp:sched:sched_switch{end}"), 2, &["where no thread's work begins or ends"]);
    check(
        &format!("req=tp:task:task_rename{end},class=arg1:str"),
        2,
        &["strings of the kernel are not read"],
    );
    check(&format!("req=tp:task{end}"), 2, &["write tp:CATEGORY:NAME", "mount -t tracefs"]);
}

#[test]
fn system_calls_bound_the_commands_of_a_server() {
    let Some(folder) = start("system_calls_bound_the_commands_of_a_server") else { return };
    let mut target = Target::start("requests");
    let arguments = ["--operation", "command=syscall:read..syscall:write", "--policy", "full"];
    let agent = follow(&target, &folder, &arguments);
    for _ in 0..50 {
        target.command("stray");
    }
    let (finished, recorded) = stop(agent);
    let rows = rows(&recorded, "command");
    assert_eq!(rows.len(), 50, "{}", finished.messages);
    assert_eq!(sums(&recorded, |w| w.population), BTreeMap::from([("command".to_owned(), 50)]));
    // From the return of `read` to that of `write`, not the waiting between commands.
    assert!(rows.iter().all(|r| r.duration_ns < 50_000_000), "{rows:?}");
}
