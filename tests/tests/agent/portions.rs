//! Several operations share one budget.

use super::operations::{stop, sums};
use super::{sleep_ms, start};
use profiler_core::ledger::LedgerSummary;
use profiler_tests::support::{Agent, Target};

/// 2 ms/s are the equal part of each of the four: the busy one screens for more (3,000 at 1.3 to 1.9 us), and yet all of it fits into
/// the 8.
#[test]
fn an_operation_that_screens_for_more_than_its_equal_part_is_watched_and_recorded() {
    let Some(folder) =
        start("an_operation_that_screens_for_more_than_its_equal_part_is_watched_and_recorded")
    else {
        return;
    };
    let mut target = Target::start("requests");
    target.command("start 3000 1 1");
    let arguments = [
        "--budget",
        "10ms/s",
        "--no-ab",
        "--only-named",
        "--policy",
        "uni",
        "--operation",
        "busy=handle",
        "--operation",
        "slow=handle_slow",
        "--operation",
        "pair=pair_begin..pair_end",
        "--operation",
        "sync=syscall:fsync",
    ];
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_message("tithe: following operations");
    sleep_ms(5_000);
    let (finished, recorded) = stop(agent);
    target.command("stop");
    let begin_ns = recorded.operation_windows.iter().map(|w| w.start_ns).min().expect("windows");
    // The first window is ordered before anybody knows what screening costs.
    let mut later = recorded;
    later.operation_windows.retain(|w| w.start_ns > begin_ns + 500_000_000);
    let of_later = sums(&later, |w| w.recorded);
    assert!(of_later.get("busy").is_some_and(|n| *n > 200), "{of_later:?}; {}", finished.messages);
    let report = finished.report();
    let operation = &report.operations[0];
    assert!(operation.watched_share > 0.9, "{operation:?}; {}", finished.messages);
    assert!(!finished.messages.contains("screening 'busy' costs"), "{}", finished.messages);
}

/// Bounds and functions inside that would take a whole CPU: no second takes more than 1.25 times the budget, and what a thread pays from a trip
/// until the link is gone.
#[test]
fn no_second_of_hot_operations_with_details_goes_far_beyond_the_budget() {
    let name = "no_second_of_hot_operations_with_details_goes_far_beyond_the_budget";
    let Some(folder) = start(name) else { return };
    let mut target = Target::start("requests");
    target.command("start 0 1 8");
    let arguments = [
        "--budget",
        "5%",
        "--no-ab",
        "--only-named",
        "--operation",
        "req=handle,class=arg1:int",
        "--detail",
        "requests:step",
        "--detail",
        "requests:query",
        "--detail",
        "requests:allocate",
    ];
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_message("tithe: following operations");
    sleep_ms(12_000);
    let (finished, recorded) = stop(agent);
    let served = target.command("stop").number("requests");
    let said = &finished.messages;
    let summary = LedgerSummary::from_rows(&recorded.ledger);
    let answer = finished.report().receipt.slowest_answer.expect("quotas were used up");
    // One thread pays no more than all of its time, until the trap is gone.
    let reaction_s = answer.closing_ns as f64 * 1e-9 + recorded.meta.cost.detach_delay.seconds();
    let own = summary.own_cpu_s / summary.length_s;
    let most = 1.25 * 0.05 + reaction_s / own;
    assert!(
        summary.worst_second <= most,
        "{} of {most}: {answer:?}, {own} CPU s/s; {said}",
        summary.worst_second
    );
    assert!(summary.predicted > 0.01, "{summary:?}; {said}");
    // What was watched is what the target did, and what was recorded has all its calls.
    let population = sums(&recorded, |w| w.population).values().sum::<u64>();
    assert!(population > 1_000 && population <= served, "{population} of {served}; {said}");
    let rows = &recorded.operations;
    assert!(!rows.is_empty(), "{population} of {served}; {said}");
    for row in rows.iter().filter(|row| !row.censored) {
        let class =
            recorded.operation_classes.iter().find(|c| c.class_id == row.class_id).expect("its class");
        let type_: u64 = class.class_name.parse().expect("a number");
        // `step` T mod 5 + 1 times and once more in `query`, and `allocate`.
        assert_eq!(row.calls, type_ % 5 + 4, "{row:?}; {said}");
    }
    assert!(target.is_alive());
    target.assert_text_original();
}
