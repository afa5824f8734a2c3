//! The whole agent on programs that a careless tracer breaks: default safety, nothing overridden. Each target must
//! live, its own results must be right, its text must be the original one afterwards.

use profiler_tests::program;
use profiler_tests::support::{Agent, Finished, Target, kernel_or_skip, skip, wait_text_original};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A folder for recordings, or nothing if the test cannot run here.
fn start(test: &str) -> Option<TempDir> {
    kernel_or_skip(test).then(|| tempfile::tempdir().expect("a temporary folder can be made"))
}

/// Attaches the agent, does the deed, stops the agent; the target must be alive and untouched.
fn watch(target: &mut Target, folder: &Path, arguments: &[&str], deed: impl FnOnce(&mut Target)) -> Finished {
    let mut agent = Agent::start(target.pid(), folder, arguments);
    agent.wait_attached();
    deed(target);
    let finished = agent.stop();
    assert!(target.is_alive(), "the target died; {}", finished.messages);
    target.assert_text_original();
    finished
}

/// Runs commands in a program that nothing watches, and in one whose functions are timed, as the agent sees fit: the answers must be
/// the same.
fn same_results(test: &str, program: &str, functions: &[&str], commands: &[&str]) -> Option<Finished> {
    let folder = start(test)?;
    let mut twin = Target::start(program);
    let expected: Vec<_> = commands.iter().map(|line| twin.command(line)).collect();
    let mut target = Target::start(program);
    let arguments: Vec<&str> = functions.iter().flat_map(|f| ["--latency", f]).collect();
    let finished = watch(&mut target, folder.path(), &arguments, |target| {
        let got: Vec<_> = commands.iter().map(|line| target.command(line)).collect();
        assert_eq!(got, expected, "{program} gives other results when it is watched");
    });
    Some(finished)
}

/// Why the ends of a function's calls were not seen by return links.
fn refused_because(finished: &Finished, function: &str) -> String {
    let notes = &finished.row(function).notes;
    notes.iter().find(|n| n.contains("no return link")).unwrap_or_else(|| panic!("{notes:?}")).clone()
}

#[test]
fn a_switch_in_assembly_gives_the_same_results() {
    let test = "a_switch_in_assembly_gives_the_same_results";
    let Some(finished) = same_results(test, "switcher", &["switched_work"], &["run 5000", "run 7"]) else {
        return;
    };
    assert_eq!(finished.row("switched_work").attempted, 2 * 5_007);
    let why = refused_because(&finished, "switched_work");
    assert!(why.contains("own_switch in switcher loads the stack pointer from rsi"), "{why}");
}

/// What stands before the switch looks harmless, and data that are no instructions lie between.
#[test]
fn a_switch_behind_a_harmless_function_gives_the_same_results() {
    let test = "a_switch_behind_a_harmless_function_gives_the_same_results";
    let commands = ["run 5000", "run 7"];
    let Some(finished) = same_results(test, "switcher_helper", &["switched_work"], &commands) else { return };
    assert_eq!(finished.row("switched_work").attempted, 2 * 5_007);
    let why = refused_because(&finished, "switched_work");
    assert!(why.contains("own_switch in switcher_helper loads the stack pointer from rsi"), "{why}");
}

#[test]
fn contexts_of_the_c_library_give_the_same_results() {
    let test = "contexts_of_the_c_library_give_the_same_results";
    let Some(finished) = same_results(test, "hazards", &["hazard_fiber"], &["fibers 20000"]) else { return };
    assert_eq!(finished.row("hazard_fiber").attempted, 20_000);
}

#[test]
fn threads_that_end_inside_timed_functions_are_cleaned_up() {
    let test = "threads_that_end_inside_timed_functions_are_cleaned_up";
    let commands = ["exit 200", "cancel 200"];
    let Some(finished) = same_results(test, "cpp_throw", &["cpp_exit", "cpp_wait"], &commands) else {
        return;
    };
    assert_eq!((finished.hits("cpp_exit"), finished.hits("cpp_wait")), (200, 200));
    let Some(finished) = same_results(test, "ends", &["ends_exit", "ends_wait"], &commands) else { return };
    assert_eq!(finished.hits("ends_exit"), 200);
    let notes = &finished.row("ends_wait").notes;
    assert!(notes.iter().any(|n| n.contains("ends imports pthread_")), "{notes:?}");
}

#[test]
fn exceptions_and_panics_give_the_same_results() {
    let test = "exceptions_and_panics_give_the_same_results";
    let functions = ["cpp_thrower", "cpp_middle"];
    let commands = ["throw 1000", "plain 500"];
    let Some(finished) = same_results(test, "cpp_throw", &functions, &commands) else { return };
    assert_eq!(finished.hits("cpp_middle"), 1_500);
    let functions = ["rust_panic_thrower", "rust_panic_middle"];
    let commands = ["panic 1000", "plain 500"];
    let Some(finished) = same_results(test, "rust-panic", &functions, &commands) else { return };
    assert_eq!(finished.hits("rust_panic_middle"), 1_500);
}

/// `longjmp` over 70 frames with pending returns, and over one, many times: later calls get their returns.
#[test]
fn calls_are_timed_after_longjmp_over_many_frames() {
    let test = "calls_are_timed_after_longjmp_over_many_frames";
    let commands = ["work 1000", "leave 100 70", "work 1000", "leave 1000 1", "work 1000"];
    let Some(finished) = same_results(test, "leaver", &["leaver_work", "leaver_deep"], &commands) else {
        return;
    };
    assert_eq!((finished.hits("leaver_work"), finished.hits("leaver_deep")), (3_000, 8_000));
    let row = finished.row("leaver_work");
    // Every call has a duration: none ended unseen.
    assert_eq!(row.mean_ns.as_ref().map(|mean| mean.n), Some(3_000), "{row:?}");
    assert!(!row.notes.iter().any(|n| n.contains("return link")), "{row:?}");
}

/// Samples show a thread on a second stack: return links go, and the report says why.
#[test]
fn a_second_stack_ends_return_links() {
    let Some(folder) = start("a_second_stack_ends_return_links") else { return };
    let mut twin = Target::start("leaver");
    let expected = [twin.command("work 1000"), twin.command("work 1000")];
    let mut target = Target::start("leaver");
    let arguments = ["--budget", "1000ms/s", "--latency", "leaver_work", "--verbose"];
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_message("plan 1:");
    agent.wait_attached();
    let first = target.command("work 1000");
    assert_eq!(target.command("signal 2000").number("handled"), 1);
    agent.wait_message("no return links from now on");
    let got = [first, target.command("work 1000")];
    assert_eq!(got, expected);
    let finished = agent.stop();
    assert!(target.is_alive(), "{}", finished.messages);
    target.assert_text_original();
    let warnings = &finished.report().warnings;
    assert!(warnings.iter().any(|w| w.contains("outside its stack")), "{warnings:?}");
    let notes = &finished.row("leaver_work").notes;
    assert!(notes.iter().any(|n| n.contains("return links were taken off")), "{notes:?}");
}

/// A library that switches stacks comes while return links are in use: they go.
#[test]
fn a_library_that_switches_stacks_ends_return_links() {
    let Some(folder) = start("a_library_that_switches_stacks_ends_return_links") else { return };
    let load = format!("load {}", program("libswitches.so").display());
    let commands = ["work 1000", &load, "switch 20000", "work 1000"];
    let mut twin = Target::start("leaver");
    let expected: Vec<_> = commands.iter().map(|line| twin.command(line)).collect();
    let mut target = Target::start("leaver");
    let arguments = ["--latency", "leaver_across", "--latency", "leaver_work"];
    let mut agent = Agent::start(target.pid(), folder.path(), &arguments);
    agent.wait_tracing();
    let mut got: Vec<_> = commands[..2].iter().map(|line| target.command(line)).collect();
    agent.wait_message("return links of 2 functions are taken off: own_switch in libswitches.so loads");
    // They go at once.
    std::thread::sleep(Duration::from_secs(1));
    got.extend(commands[2..].iter().map(|line| target.command(line)));
    assert_eq!(got, expected);
    let finished = agent.stop();
    assert!(target.is_alive(), "{}", finished.messages);
    target.assert_text_original();
    // The calls before it came were timed; how soon exit sites come is the machine's affair.
    let row = finished.row("leaver_work");
    assert!(row.attempted >= 1_000 && row.mean_ns.as_ref().is_some_and(|mean| mean.n >= 1_000), "{row:?}");
    assert!(row.notes.iter().any(|n| n.contains("return links were taken off")), "{row:?}");
}

/// A library comes whose code takes longer to look through than the watchdog waits: the agent goes on, without return links
/// until that is done.
#[test]
fn a_library_that_takes_long_to_look_through_does_not_stop_the_agent() {
    let test = "a_library_that_takes_long_to_look_through_does_not_stop_the_agent";
    let Some(folder) = start(test) else { return };
    let library = program("libslow.so");
    let mut target = Target::start("leaver");
    let mut agent = Agent::start(target.pid(), folder.path(), &["--latency", "leaver_work", "--verbose"]);
    agent.wait_tracing();
    let work = |target: &mut Target| assert_eq!(target.command("work 1000").number("calls"), 1_000);
    work(&mut target);
    target.command(&format!("load {}", library.display()));
    agent.wait_message("return links are off while the code of what came is looked at");
    let begin = Instant::now();
    // The links go; these calls are seen by nobody.
    wait_text_original(&target, Duration::from_secs(1));
    work(&mut target);
    // Four seconds of CPU time, much more where builds run beside.
    while !agent.messages().contains("the code of what came has been looked at") {
        assert!(agent.is_alive(), "the agent ended: {}", agent.messages());
        assert!(begin.elapsed() < Duration::from_secs(120), "not in time: {}", agent.messages());
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = begin.elapsed();
    agent.wait_attached();
    work(&mut target);
    let finished = agent.stop();
    assert!(target.is_alive(), "{}", finished.messages);
    target.assert_text_original();
    let row = finished.row("leaver_work");
    assert_eq!((row.attempted, row.mean_ns.as_ref().map(|mean| mean.n)), (2_000, Some(2_000)), "{row:?}");
    assert!(!row.notes.iter().any(|n| n.contains("return link")), "{row:?}");
    // The watchdog waits for 1 s. Release builds of the agent look through it faster.
    assert!(took > Duration::from_millis(1_200) || !cfg!(debug_assertions), "{took:?}: too small a library");
}

#[test]
fn exceptions_pass_through_timed_frames() {
    let Some(folder) = start("exceptions_pass_through_timed_frames") else { return };
    let mut target = Target::start("cpp_throw");
    let arguments = ["--latency", "cpp_thrower", "--latency", "cpp_middle"];
    let finished = watch(&mut target, folder.path(), &arguments, |target| {
        assert_eq!(target.command("throw 1000").number("caught"), 1000);
        assert_eq!(target.command("plain 500").number("returned"), 500);
    });
    assert_eq!(finished.hits("cpp_thrower"), 1500);
    assert_eq!(finished.hits("cpp_middle"), 1500);
}

#[test]
fn panics_pass_through_timed_frames() {
    let Some(folder) = start("panics_pass_through_timed_frames") else { return };
    let mut target = Target::start("rust-panic");
    let arguments = ["--latency", "rust_panic_thrower", "--latency", "rust_panic_middle"];
    let finished = watch(&mut target, folder.path(), &arguments, |target| {
        assert_eq!(target.command("panic 1000").number("caught"), 1000);
        assert_eq!(target.command("plain 500").number("returned"), 500);
    });
    assert_eq!(finished.hits("rust_panic_middle"), 1500);
}

#[test]
fn a_foreign_stack_walk_sees_the_real_callers() {
    let Some(folder) = start("a_foreign_stack_walk_sees_the_real_callers") else { return };
    let mut target = Target::start("hazards");
    let arguments = ["--latency", "hazard_outer", "--latency", "hazard_inner"];
    let finished = watch(&mut target, folder.path(), &arguments, |target| {
        assert_eq!(target.command("backtrace 500").number("seen"), 500);
    });
    assert_eq!(finished.hits("hazard_outer"), 500);
}

#[test]
fn fibers_switch_inside_a_timed_function() {
    let Some(folder) = start("fibers_switch_inside_a_timed_function") else { return };
    let mut target = Target::start("hazards");
    let finished = watch(&mut target, folder.path(), &["--latency", "hazard_fiber"], |target| {
        assert_eq!(target.command("fibers 1000").number("switches"), 1000);
    });
    // Calls of two stacks interleave on one thread: one that finds no room is reported as lost, and was seen.
    assert_eq!(finished.row("hazard_fiber").attempted, 1000);
}

#[test]
fn a_handler_on_an_alternate_stack_is_timed() {
    let Some(folder) = start("a_handler_on_an_alternate_stack_is_timed") else { return };
    let mut target = Target::start("hazards");
    let finished = watch(&mut target, folder.path(), &["--latency", "hazard_handler"], |target| {
        assert_eq!(target.command("sigaltstack 1000").number("handled"), 1000);
    });
    assert_eq!(finished.hits("hazard_handler"), 1000);
}

#[test]
fn threads_end_inside_a_timed_function() {
    let Some(folder) = start("threads_end_inside_a_timed_function") else { return };
    let mut target = Target::start("hazards");
    let finished = watch(&mut target, folder.path(), &["--count", "hazard_exit_thread"], |target| {
        assert_eq!(target.command("pthread_exit 50").number("ended"), 50);
    });
    assert_eq!(finished.hits("hazard_exit_thread"), 50);
}

#[test]
fn recursion_deeper_than_the_kernel_follows_is_counted() {
    let Some(folder) = start("recursion_deeper_than_the_kernel_follows_is_counted") else { return };
    let mut target = Target::start("calls");
    let finished = watch(&mut target, folder.path(), &["--latency", "recurse"], |target| {
        assert_eq!(target.call_with("recurse", 3, 1, 1_000).calls, 3_000);
    });
    assert_eq!(finished.hits("recurse"), 3_000);
}

/// The kernel would run the file's instruction in place of the patched one: such a function is refused, by name.
#[test]
fn a_patched_function_is_refused_and_lives() {
    let Some(folder) = start("a_patched_function_is_refused_and_lives") else { return };
    for patch in ["patch", "patch_writable"] {
        let mut target = Target::start("hazards");
        target.command(patch);
        let arguments = ["--count", "hazard_patched", "--count", "hazard_call"];
        let mut agent = Agent::start(target.pid(), folder.path(), &arguments);
        // The patch itself shows as changed text: wait for hits instead.
        std::thread::sleep(Duration::from_secs(3));
        assert!(agent_runs(&mut agent), "the agent ended early");
        assert_eq!(target.command("patched 1000").number("sum"), 2_000, "{patch}");
        let finished = agent.stop();
        assert!(target.is_alive(), "{patch}: {}", finished.messages);
        let text = format!("{:?} {}", finished.report, finished.messages);
        assert!(text.contains("hazard_patched"), "{patch}: nobody says why it is not counted: {text}");
        let counted = finished.report().rows.iter().find(|row| row.name == "hazard_patched");
        assert!(counted.is_none_or(|row| row.calls.is_none()), "{patch}: {counted:?}");
        assert_eq!(target.command("patched 10").number("sum"), 20);
    }
}

fn agent_runs(agent: &mut Agent) -> bool {
    Path::new(&format!("/proc/{}/stat", agent.id())).exists()
}

/// A forked child inherits the breakpoints of its parent.
#[test]
fn a_forked_child_that_calls_a_million_times_lives_and_is_not_counted_as_the_parent() {
    let test = "a_forked_child_that_calls_a_million_times_lives_and_is_not_counted_as_the_parent";
    let Some(folder) = start(test) else { return };
    let mut target = Target::start("calls");
    let mut agent = Agent::start(target.pid(), folder.path(), &["--count", "entry_push"]);
    agent.wait_attached();
    assert_eq!(target.call("entry_push", 1_000, 1).calls, 1_000);
    assert_eq!(target.call_in_fork("entry_push", 1_000_000).calls, 1_000_000);
    // The links may be made anew, so that the child is free of them.
    agent.wait_attached();
    assert_eq!(target.call("entry_push", 1_000, 1).calls, 1_000);
    let finished = agent.stop();
    assert_eq!(finished.hits("entry_push"), 2_000);
    let said = format!("{:?} {}", finished.report().warnings, finished.messages);
    assert!(said.contains("fork"), "nobody says that the child was not observed: {said}");
    assert!(target.is_alive());
    target.assert_text_original();
}

/// The kernel takes the opcode bytes of `vfnmadd132sd` and `vcmpltps` for `popf` and `ret`.
#[test]
fn vector_functions_survive_being_counted() {
    let test = "vector_functions_survive_being_counted";
    let Some(folder) = start(test) else { return };
    let mut target = Target::start("vectors");
    if target.command("cpu").number("able") == 0 {
        skip(test, "this CPU lacks FMA or AVX");
        return;
    }
    let arguments = ["--count", "vector_fnmadd", "--count", "vector_less"];
    let finished = watch(&mut target, folder.path(), &arguments, |target| {
        assert_eq!(target.command("fnmadd 1000").number("right"), 1000);
        assert_eq!(target.command("less 1000").number("right"), 1000);
    });
    // Their other instruction is a ret, which can be probed.
    assert_eq!(finished.hits("vector_fnmadd"), 1000);
    assert_eq!(finished.hits("vector_less"), 1000);
}

#[test]
fn vector_functions_survive_the_default_run() {
    let test = "vector_functions_survive_the_default_run";
    let Some(folder) = start(test) else { return };
    let mut target = Target::start("vectors");
    if target.command("cpu").number("able") == 0 {
        skip(test, "this CPU lacks FMA or AVX");
        return;
    }
    let agent = Agent::start_plain(target.pid(), folder.path(), &["--duration", "5s"]);
    // `run` is answered after the agent has ended.
    target.send("run 12000");
    let finished = agent.finish();
    let reply = target.receive("run");
    assert!(reply.number("calls") > 0 && reply.number("right") == reply.number("calls"), "{reply:?}");
    assert!(target.is_alive(), "the target died; {}", finished.messages);
    target.assert_text_original();
    let rows = &finished.report().rows;
    assert!(rows.iter().any(|row| row.name == "vector_fnmadd"), "{}", finished.messages);
}

/// Nothing named, nothing allowed: the default run finds the function by itself and traces it. It is called some thousand
/// times a second, so that this fits into the budget. An agent that probes its first instruction ends the target.
#[test]
fn a_default_run_that_traces_a_vector_function_leaves_it_right() {
    let test = "a_default_run_that_traces_a_vector_function_leaves_it_right";
    let Some(folder) = start(test) else { return };
    let mut target = Target::start("vectors");
    if target.command("cpu").number("able") == 0 {
        skip(test, "this CPU lacks FMA or AVX");
        return;
    }
    target.send("busy 12000");
    let agent = Agent::start_plain(target.pid(), folder.path(), &[]);
    std::thread::sleep(Duration::from_secs(8));
    let finished = agent.stop();
    let reply = target.receive("busy");
    assert!(reply.number("calls") > 1_000 && reply.number("right") == reply.number("calls"), "{reply:?}");
    assert!(target.is_alive(), "the target died; {}", finished.messages);
    target.assert_text_original();
    assert!(finished.hits("vector_busy") > 0, "it was not traced: {}", finished.messages);
}

#[test]
fn a_library_comes_and_goes() {
    let Some(folder) = start("a_library_comes_and_goes") else { return };
    let mut target = Target::start("hazards");
    let plugin = program("libplugin.so");
    let finished = watch(&mut target, folder.path(), &["--count", "hazard_call"], |target| {
        assert_eq!(target.command(&format!("dlopen {} 200", plugin.display())).number("calls"), 200);
        assert_eq!(target.command("call 100").number("calls"), 100);
    });
    assert_eq!(finished.hits("hazard_call"), 100);
}

#[test]
fn a_thousand_threads_are_counted() {
    let Some(folder) = start("a_thousand_threads_are_counted") else { return };
    let mut target = Target::start("hazards");
    let finished = watch(&mut target, folder.path(), &["--count", "hazard_call"], |target| {
        assert_eq!(target.command("threads 1000 5").number("calls"), 5_000);
        assert_eq!(target.command("births 500").number("calls"), 500);
    });
    assert_eq!(finished.hits("hazard_call"), 5_500);
}

#[test]
fn the_target_becomes_another_program() {
    let Some(folder) = start("the_target_becomes_another_program") else { return };
    let mut target = Target::start("hazards");
    let mut agent = Agent::start(target.pid(), folder.path(), &["--count", "hazard_call"]);
    agent.wait_attached();
    assert_eq!(target.command("call 10").number("calls"), 10);
    target.exec(&program("cpp_throw"));
    assert_eq!(target.command("throw 100").number("caught"), 100);
    let finished = agent.stop();
    assert_eq!(finished.hits("hazard_call"), 10);
    assert!(target.is_alive());
    target.assert_text_original();
}

#[test]
fn a_killed_agent_leaves_the_text_as_it_was() {
    let Some(folder) = start("a_killed_agent_leaves_the_text_as_it_was") else { return };
    let mut target = Target::start("calls");
    let mut agent = Agent::start(target.pid(), folder.path(), &["--count", "big*"]);
    agent.wait_attached();
    target.start_background("big", 2, 0, 1);
    std::thread::sleep(Duration::from_millis(300));
    agent.signal(libc::SIGKILL);
    // The aim is 100 ms on an idle machine (a benchmark); the limit is for a busy one.
    wait_text_original(&target, Duration::from_secs(5));
    assert!(target.stop_background().calls > 0);
    assert!(target.is_alive());
}

#[test]
fn the_default_run_on_sqlite_ends_with_a_receipt() {
    let Some(folder) = start("the_default_run_on_sqlite_ends_with_a_receipt") else { return };
    let mut load = std::process::Command::new(program("sqlite-load"))
        .args(["--seconds", "60"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the demo target starts");
    std::thread::sleep(Duration::from_secs(2));
    let agent = Agent::start_plain(load.id(), folder.path(), &["--budget", "2%", "--duration", "6s"]);
    let finished = agent.finish();
    let alive = matches!(load.try_wait(), Ok(None));
    let changed = profiler_tests::support::changed_text(load.id());
    // Both fail only if it has ended and been reaped.
    let _ = load.kill();
    let _ = load.wait();
    assert!(alive, "SQLite died; {}", finished.messages);
    assert_eq!(changed.expect("the target ran").len(), 0);
    let report = finished.report();
    assert!(report.rows.iter().any(|row| row.name == "sqlite3VdbeExec"), "{}", finished.messages);
    // A run of seconds on a busy machine may end a little above; then the report says so.
    let predicted = report.receipt.predicted;
    let warned = report.warnings.iter().any(|warning| warning.contains("above the budget"));
    assert!(predicted <= 0.02 || (warned && predicted <= 0.04), "{predicted}: {:?}", report.warnings);
    assert!(report.receipt.target_cpu_s > 3.0, "{:?}", report.receipt);
}
