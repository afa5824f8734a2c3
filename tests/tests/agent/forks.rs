//! A forked child inherits the breakpoints of its parent: it is not counted, but what it pays is on the receipt.

use super::{paced_calls, recording, sleep_ms, start, working_target};
use profiler_core::recording::Charge;
use profiler_tests::support::Agent;

#[test]
fn a_forked_childs_traps_are_charged_and_gone_soon() {
    let Some(folder) = start("a_forked_childs_traps_are_charged_and_gone_soon") else { return };
    let mut target = working_target();
    // CPU time of a call without a breakpoint.
    let bare_ns = target.call_in_fork("entry_push", 1_000_000).cpu_ns_per_call();
    let arguments = ["--only-named", "--budget", "1000ms/s", "--count", "entry_push"];
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_tracing();
    let mut own = paced_calls(&mut target, "entry_push", 1, 20_000, 1_000);
    let child = target.call_in_fork("entry_push", 1_000_000);
    // The links that were made anew count the parent's calls again.
    sleep_ms(500);
    own += paced_calls(&mut target, "entry_push", 1, 20_000, 500);
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    assert_eq!(finished.row("entry_push").attempted, own, "{}", finished.messages);
    let recorded = recording(&path);
    let charged_ns: u64 =
        recorded.ledger.iter().filter(|r| r.charge == Charge::Children).map(|r| r.cost_ns).sum();
    let paid_ns = (child.cpu.as_nanos() as f64 - bare_ns * 1e6).max(0.0);
    println!("the child paid {:.1} ms, {:.1} ms were charged", paid_ns * 1e-6, charged_ns as f64 * 1e-6);
    // A million traps are 0.65 s or more.
    assert!(paid_ns < 0.5e9, "the breakpoints stayed: {paid_ns:.0} ns");
    assert!(charged_ns as f64 >= 0.9 * paid_ns, "{charged_ns} of {paid_ns:.0} ns are on the account");
    let warnings = &finished.report().warnings;
    assert!(warnings.iter().any(|w| w.contains("forked 1 times")), "{warnings:?}");
    target.assert_text_original();
}

/// Many children that live for some milliseconds each: most are born and gone between two looks.
#[test]
fn a_storm_of_short_children_is_charged() {
    let Some(folder) = start("a_storm_of_short_children_is_charged") else { return };
    let mut target = working_target();
    let bare_ns = target.call_in_fork("entry_push", 1_000_000).cpu_ns_per_call();
    let arguments = ["--only-named", "--budget", "1000ms/s", "--count", "entry_push"];
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_tracing();
    paced_calls(&mut target, "entry_push", 1, 20_000, 500);
    let mut paid_ns = 0.0;
    for _ in 0..100 {
        let child = target.call_in_fork("entry_push", 10_000);
        paid_ns += (child.cpu.as_nanos() as f64 - bare_ns * 1e4).max(0.0);
    }
    sleep_ms(300);
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    let rows = recording(&path).ledger;
    let charged_ns: u64 = rows.iter().filter(|r| r.charge == Charge::Children).map(|r| r.cost_ns).sum();
    println!("the children paid {:.1} ms, {:.1} ms were charged", paid_ns * 1e-6, charged_ns as f64 * 1e-6);
    assert!(paid_ns > 10e6, "{paid_ns:.0} ns: the children hit nothing");
    assert!(charged_ns as f64 >= 0.9 * paid_ns, "{charged_ns} of {paid_ns:.0} ns; {}", finished.messages);
    let warnings = &finished.report().warnings;
    assert!(warnings.iter().any(|w| w.contains("forked 100 times")), "{warnings:?}");
    target.assert_text_original();
}
