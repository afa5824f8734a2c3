//! Records that the agent acts upon are lost, because it is stopped while the target goes on: it finds out, looks again,
//! and says so. (The watchdog lets an agent be silent for a second.)

use super::{recording, sleep_ms, start, wait_child};
use profiler_core::recording::Charge;
use profiler_tests::support::{Agent, Finished, Target};
use std::time::{Duration, Instant};

/// Rounds in which the machine may be too busy to lose anything in time.
const ROUNDS: u32 = 6;
/// Longest stop: the watchdog's patience less a beat and some.
const STOP: Duration = Duration::from_millis(800);

/// At real-time priority, so that other work on the machine does not take the time of the stop. Not for targets with threads that never
/// sleep.
fn urgent(target: &Target) {
    for entry in std::fs::read_dir(format!("/proc/{}/task", target.pid())).expect("the target runs") {
        let tid = entry.ok().and_then(|entry| entry.file_name().to_str()?.parse().ok());
        let priority = libc::sched_param { sched_priority: 1 };
        // SAFETY: plain numbers and a structure that outlives the call. OK if it is refused: a quiet machine does without.
        unsafe { libc::sched_setscheduler(tid.expect("a number"), libc::SCHED_RR, &raw const priority) };
    }
}

/// What a stopped agent makes of it; `None`: it was stopped for too long.
fn report_after(agent: Agent, stopped: Duration) -> Option<Finished> {
    println!("stopped for {stopped:?}");
    let finished = agent.stop();
    (stopped < STOP && finished.report.is_some()).then_some(finished)
}

#[test]
fn a_child_whose_birth_was_lost_is_found_and_charged() {
    let Some(folder) = start("a_child_whose_birth_was_lost_is_found_and_charged") else { return };
    let mut target = Target::start("calls");
    urgent(&target);
    let bare_ns = target.call_in_fork("entry_push", 1_000_000).cpu_ns_per_call();
    for _ in 0..ROUNDS {
        let arguments = ["--only-named", "--budget", "1000ms/s", "--count", "entry_push"];
        let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
        agent.wait_tracing();
        sleep_ms(300);
        agent.signal(libc::SIGSTOP);
        let begun = Instant::now();
        // The ring holds 6,500 births and ends.
        target.command("storm 3500");
        target.send("fork entry_push 3000000");
        wait_child(&target);
        agent.signal(libc::SIGCONT);
        let stopped = begun.elapsed();
        let child_ns = target.receive("fork").number("cpu_ns");
        sleep_ms(500);
        let path = agent.recording().to_owned();
        let Some(finished) = report_after(agent, stopped) else { continue };
        let losses = finished.report().receipt.losses;
        if losses.lifecycle_dropped == 0 {
            continue;
        }
        let recorded = recording(&path);
        let charged_ns: u64 =
            recorded.ledger.iter().filter(|r| r.charge == Charge::Children).map(|r| r.cost_ns).sum();
        let paid_ns = (child_ns as f64 - bare_ns * 3e6).max(0.0);
        println!("{losses:?}: the child paid {paid_ns:.0} ns, {charged_ns} were charged");
        // Three million traps are 1.9 s or more.
        assert!(paid_ns < 1.5e9, "the breakpoints stayed: {paid_ns:.0} ns");
        assert!(charged_ns as f64 >= 0.9 * paid_ns, "{charged_ns} of {paid_ns:.0} ns are on the account");
        let warnings = &finished.report().warnings;
        assert!(warnings.iter().any(|w| w.contains("forked 1 times")), "{warnings:?}");
        target.assert_text_original();
        return;
    }
    panic!("no birth was lost in {ROUNDS} rounds: is the machine busy?");
}

#[test]
fn lost_alarms_are_on_the_receipt_and_the_function_is_taken_off() {
    let Some(folder) = start("lost_alarms_are_on_the_receipt_and_the_function_is_taken_off") else { return };
    let mut target = Target::start("calls");
    for _ in 0..ROUNDS {
        let arguments = ["--only-named", "--budget", "20ms/s", "--count", "entry_push"];
        let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
        agent.wait_tracing();
        sleep_ms(300);
        agent.signal(libc::SIGSTOP);
        let begun = Instant::now();
        target.start_background("entry_push", 1, 0, 1);
        urgent(&target);
        // An alarm for each 1,024 hits; the ring holds 409.
        sleep_ms(650);
        agent.signal(libc::SIGCONT);
        let stopped = begun.elapsed();
        sleep_ms(500);
        target.stop_background();
        let Some(finished) = report_after(agent, stopped) else { continue };
        let receipt = &finished.report().receipt;
        println!("{} hits, {} trips, {:?}", receipt.hits_attempted, receipt.trips, receipt.losses);
        if receipt.losses.alarms_dropped == 0 {
            continue;
        }
        assert!(receipt.trips > 0, "{}", finished.messages);
        target.assert_text_original();
        assert!(target.is_alive());
        return;
    }
    panic!("no alarm was lost in {ROUNDS} rounds: is the machine busy?");
}
