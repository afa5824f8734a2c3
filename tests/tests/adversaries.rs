//! Targets that were built to break a profiler's promises, each watched at 2 % as people do it: the target lives, its
//! results are right, its text is the original one afterwards, every exact count agrees with the target's own, and the
//! ledger stays within the budget. What the watching costs by the target's own throughput is measured by the cell
//! `governor` of the benchmarks. Needs root.

use profiler_core::ledger::FLOOR_CPU_PER_S;
use profiler_core::recording::{Charge, Recording, WindowRow};
use profiler_tests::support::{Agent, Finished, Target, kernel_or_skip};
use std::sync::atomic::{AtomicBool, Ordering};

const BUDGET: f64 = 0.02;
const SECONDS: f64 = 4.0;
/// The token bucket holds this much income, s.
const BUCKET_S: f64 = 0.25;
/// Between a trip and the detach hits go on: the governor's reaction on each CPU.
const OVERSHOOT_S: f64 = 0.002;
/// An agent that loses the CPU between reading a clock and reading a counter is this late, and no later.
const EDGE_NS: u64 = 5_000_000;

/// Options that every run has; `--duration` runs from the first sample on.
const RUN: [&str; 4] = ["--budget", "2%", "--duration", "4s"];

/// What must hold of every run, whatever the target did: by the ledger's own account it stayed within the budget, which
/// is never less than that of a target that uses the floor.
fn check_receipt(mode: &str, finished: &Finished) {
    let receipt = &finished.report().receipt;
    let seconds = finished.report().duration_s;
    let income_s = BUDGET * receipt.target_cpu_s.max(FLOOR_CPU_PER_S * seconds);
    let limit_s = income_s * (1.0 + BUCKET_S / SECONDS) + f64::from(receipt.trips) * OVERSHOOT_S;
    let own = |(kind, s): (&Charge, &f64)| if *kind == Charge::Bystanders { 0.0 } else { *s };
    let spent_s: f64 = receipt.spent_s.iter().map(own).sum();
    println!(
        "{mode}: predicted {:.3} %, worst second {:.2} %, trips {}, spent {:?}, CPU {:.2} s, agent {:.1} %",
        receipt.predicted * 100.0,
        receipt.worst_second * 100.0,
        receipt.trips,
        receipt.spent_s,
        receipt.target_cpu_s,
        receipt.agent_cpu * 100.0
    );
    assert!(
        spent_s <= limit_s,
        "{mode}: {spent_s:.6} s spent by the ledger's own account, {limit_s:.6} s allowed: {:?}; {}",
        receipt.spent_s,
        finished.messages
    );
}

/// Every window's count lies between the fewest and the most calls that the target can have made in it.
fn check_windows(mode: &str, target: &mut Target, recorded: &Recording, finished: &Finished) -> usize {
    let mut checked = 0;
    for class in recorded.classes.iter().filter(|class| class.name.starts_with("adv_")) {
        let windows: Vec<&WindowRow> =
            recorded.windows.iter().filter(|window| window.class_id == class.class_id).collect();
        for window in windows {
            let mut calls = |from: u64, to: u64, key: &str| {
                target.command(&format!("between {} {from} {to}", class.name)).number(key)
            };
            let most = calls(window.start_ns - EDGE_NS, window.end_ns + EDGE_NS, "most");
            let context = || format!("{mode}: {} {window:?}; {}", class.name, finished.messages);
            assert!(window.kept <= most, "at most {most} calls were made: {}", context());
            assert_eq!(window.attempted, window.kept + window.gated + window.dropped, "{}", context());
            if window.end_ns - window.start_ns > 2 * EDGE_NS {
                let least = calls(window.start_ns + EDGE_NS, window.end_ns - EDGE_NS, "least");
                assert!(window.attempted >= least, "at least {least} calls were made: {}", context());
            }
            checked += 1;
        }
    }
    checked
}

/// Watches a mode of the program `adversary`; returns the run and the number of windows that were compared with the
/// truth.
fn watch(mode: &str, arguments: &[&str]) -> Option<(Finished, Recording, usize)> {
    if !kernel_or_skip(mode) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut command = std::process::Command::new(profiler_tests::program("adversary"));
    let mut target = Target::start_command(command.arg(mode));
    // What changes at one instant changes while the functions are traced.
    target.command("start 3000");
    let all: Vec<&str> = RUN.iter().chain(arguments).copied().collect();
    let agent = Agent::start_plain(target.pid(), folder.path(), &all);
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    assert!(finished.status.success(), "{mode}: {}: {}", finished.status, finished.messages);
    assert!(target.is_alive(), "{mode}: the target died; {}", finished.messages);
    let recorded = profiler_user::recording::open(&path).expect("the agent closed its recording");
    let checked = check_windows(mode, &mut target, &recorded, &finished);
    // Nothing of ours is left: the work goes on.
    let done = target.command("times").number("operations");
    let end = target.command("stop");
    // Stopped, so that no library comes or goes while its text is read.
    target.assert_text_original();
    assert!(done > 0, "{mode}: no operation while it was watched");
    assert_eq!(end.number("errors"), 0, "{mode}: wrong results; {}", finished.messages);
    check_receipt(mode, &finished);
    assert!(target.quit().success());
    Some((finished, recorded, checked))
}

/// A test for each mode, with what the agent is asked to do; and that so many windows at least were compared.
macro_rules! modes {
    ($($test:ident: $mode:literal $arguments:expr, $windows:literal;)*) => {$(
        #[test]
        fn $test() {
            if let Some((finished, _, checked)) = watch($mode, &$arguments) {
                let wanted: usize = $windows;
                assert!(checked >= wanted, "{checked} windows of {}; {}", $mode, finished.messages);
            }
        }
    )*};
}

const NAMED: [&str; 2] = ["--count", "adv_*"];
const TIMED: [&str; 2] = ["--latency", "adv_*"];

modes! {
    steady: "steady" [], 1;
    seasonal: "seasonal" NAMED, 1;
    exploding: "exploding" NAMED, 1;
    hot_from_the_start: "hot" NAMED, 1;
    alternating_faster_than_plans: "alternating" NAMED, 1;
    lockstep_with_the_sampler: "lockstep" TIMED, 1;
    two_hundred_threads_in_one_class: "threads200" NAMED, 1;
    functions_of_20_ns: "tiny" TIMED, 1;
    recursion_10_000_deep: "recursion" NAMED, 1;
    longjmp_through_timed_frames: "longjmp" TIMED, 1;
    fibers_in_timed_frames: "fibers" TIMED, 1;
    threads_born_and_dying: "births" NAMED, 1;
    libraries_that_come_and_go: "dlopen" [], 0;
    // Nothing is attached that children would inherit.
    fork_storm: "forks" NAMED, 0;
    idle_and_waking: "idle" TIMED, 1;
    one_hot_thread_of_16: "onehot16" NAMED, 1;
    sixteen_that_share_few_cpus: "crowded16" NAMED, 1;
    hits_inside_a_lock: "lock" TIMED, 1;
}

/// CPU time of a thread, ns.
fn thread_cpu_ns(pid: u32, tid: u32) -> u64 {
    let path = format!("/proc/{pid}/task/{tid}/schedstat");
    let text = std::fs::read_to_string(path).expect("the thread lives");
    text.split_whitespace().next().and_then(|n| n.parse().ok()).expect("schedstat begins with a number")
}

/// Part of its own CPU time that the first worker of `crowded16` lost to hits, by the ledger, at this thread budget.
fn lost_by_one_of_16(thread_budget: &[&str]) -> Option<(f64, Finished)> {
    if !kernel_or_skip("crowded16") {
        return None;
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut command = std::process::Command::new(profiler_tests::program("adversary"));
    let mut target = Target::start_command(command.arg("crowded16"));
    target.command("start");
    let task = format!("/proc/{}/task", target.pid());
    let tids = std::fs::read_dir(task).expect("the target lives").flatten();
    let mut tids: Vec<u32> = tids.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    assert_eq!(tids.len(), 17, "the commands' thread and 16 workers: {tids:?}");
    let named = ["--count", "adv_call", "--count", "adv_slow", "--discover", "0"];
    let arguments: Vec<&str> = ["--budget", "2%", "--duration", "8s", "--no-ab"]
        .into_iter()
        .chain(named)
        .chain(thread_budget.iter().copied())
        .collect();
    let before = thread_cpu_ns(target.pid(), tids[1]);
    let agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    let used = thread_cpu_ns(target.pid(), tids[1]) - before;
    assert_eq!(target.command("stop").number("errors"), 0);
    let recorded = profiler_user::recording::open(&path).expect("the agent closed its recording");
    // Only the first worker calls these two.
    let of_first = |class: Option<u32>| {
        recorded
            .classes
            .iter()
            .any(|c| Some(c.class_id) == class && ["adv_call", "adv_slow"].contains(&c.name.as_str()))
    };
    let cost: u64 = recorded.ledger.iter().filter(|row| of_first(row.class_id)).map(|row| row.cost_ns).sum();
    let lost = cost as f64 / (used as f64 - cost as f64);
    println!("{thread_budget:?}: {:.2} % of {:.2} s", lost * 100.0, used as f64 * 1e-9);
    for entry in &finished.report().log {
        println!("  {:.1} s {:?} {} {}", entry.time_s, entry.kind, entry.subject, entry.text);
    }
    Some((lost, finished))
}

/// The budget of the process would allow to trace all: 16 times as much falls on one thread.
#[test]
fn one_thread_does_not_pay_for_sixteen() {
    // 3 to 18 %, by what the host leaves the target to do in a time slice: the plan does not always trace what would hurt.
    let mut unbounded = 0.0;
    for _ in 0..3 {
        let Some((lost, _)) = lost_by_one_of_16(&["--thread-budget", "100%"]) else { return };
        unbounded = lost;
        if unbounded > 1.1 * 2.0 * BUDGET {
            break;
        }
    }
    let Some((lost, finished)) = lost_by_one_of_16(&[]) else { return };
    if unbounded > 1.1 * 2.0 * BUDGET {
        assert!(lost < unbounded, "{lost} with a bound, {unbounded} without");
    } else {
        println!("SKIP the comparison: without a bound one thread of 16 lost {unbounded} in three runs");
    }
    // Twice the budget, and a point for the time before anything is known.
    assert!(lost <= 2.0 * BUDGET + 0.01, "{lost}; {}", finished.messages);
    // It is counted all the same, in bursts.
    let row = finished.row("adv_call");
    assert!(row.decision == "burst" && row.rate_hz.is_some_and(|r| r.value > 1_000.0), "{row:?}");
}

/// A program that is told what to do again and again while the agent runs; the answer's number must be `each`.
fn drive(program: &str, pattern: &str, line: &str, key: &str, each: u64) {
    if !kernel_or_skip(program) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut target = Target::start(program);
    let all: Vec<&str> = RUN.iter().chain(&["--latency", pattern]).copied().collect();
    let agent = Agent::start_plain(target.pid(), folder.path(), &all);
    let ended = AtomicBool::new(false);
    let (finished, rounds) = std::thread::scope(|scope| {
        let driver = scope.spawn(|| {
            let mut rounds = 0;
            while !ended.load(Ordering::Relaxed) {
                assert_eq!(target.command(line).number(key), each, "{program}");
                rounds += 1;
            }
            rounds
        });
        let finished = agent.finish();
        ended.store(true, Ordering::Relaxed);
        (finished, driver.join().expect("the target answered as it must"))
    });
    assert!(finished.status.success(), "{program}: {}", finished.messages);
    assert!(target.is_alive() && rounds > 0);
    target.assert_text_original();
    check_receipt(program, &finished);
}

#[test]
fn exceptions_through_timed_frames() {
    drive("cpp_throw", "cpp_*", "throw 500", "caught", 500);
}

#[test]
fn panics_through_timed_frames() {
    drive("rust-panic", "rust_panic_*", "panic 500", "caught", 500);
}
