//! Several operations share one budget.

use super::operations::{stop, sums};
use super::{sleep_ms, start};
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
