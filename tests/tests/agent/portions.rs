//! Several operations share one budget.

use super::operations::{stop, sums};
use super::{sleep_ms, start};
use profiler_core::ledger::{FLOOR_CPU_PER_S, LedgerSummary};
use profiler_core::recording::{Charge, Recording};
use profiler_tests::support::{Agent, Target, worst_second_in_words};
use std::collections::BTreeMap;

const FOUR_OPERATIONS: [&str; 12] = [
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

/// An equal part of four is 0.2 of the budget, which the busy one screens for more than: 0.4. And yet all of it fits into the 0.8 of operations.
#[test]
fn an_operation_that_screens_for_more_than_its_equal_part_is_watched_and_recorded() {
    let Some(folder) =
        start("an_operation_that_screens_for_more_than_its_equal_part_is_watched_and_recorded")
    else {
        return;
    };
    let mut target = Target::start("requests");
    target.command("start 3000 1 1");
    let followed = |budget: &str, ms: u64| {
        let arguments: Vec<&str> = ["--budget", budget].into_iter().chain(FOUR_OPERATIONS).collect();
        let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
        agent.wait_message("tithe: following operations");
        sleep_ms(ms);
        stop(agent)
    };
    // What it screens for depends on what a hit costs here and now, and on how many come after a rest: that is known after a second.
    let (_, recorded) = followed("1000ms/s", 3_500);
    let screening_ms = dearest_interval(&recorded) * 1e3;
    let budget = format!("{:.3}ms/s", screening_ms / 0.4);
    let (finished, recorded) = followed(&budget, 5_000);
    target.command("stop");
    let begin_ns = recorded.operation_windows.iter().map(|w| w.start_ns).min().expect("windows");
    // The first window is ordered before anybody knows what screening costs.
    let mut later = recorded;
    later.operation_windows.retain(|w| w.start_ns > begin_ns + 500_000_000);
    let of_later = sums(&later, |w| w.recorded);
    assert!(of_later.get("busy").is_some_and(|n| *n > 200), "{budget}: {of_later:?}; {}", finished.messages);
    let report = finished.report();
    let operation = &report.operations[0];
    assert!(operation.watched_share > 0.9, "{budget}: {operation:?}; {}", finished.messages);
    assert!(!finished.messages.contains("screening 'busy' costs"), "{budget}: {}", finished.messages);
}

/// What is traced took most in this of the ledger's whole intervals, CPU s/s.
fn dearest_interval(recorded: &Recording) -> f64 {
    let mut traced: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for row in recorded.ledger.iter().filter(|r| r.charge == Charge::Traced && r.interval_ns > 900_000_000) {
        *traced.entry((row.time_ns, row.interval_ns)).or_default() += row.cost_ns;
    }
    traced.iter().map(|((_, interval), cost)| *cost as f64 / *interval as f64).fold(0.0, f64::max)
}

/// An interval of a ledger.
#[derive(Debug, Default)]
struct Second {
    length_s: f64,
    /// CPU time that the target had for itself, and what was taken, s.
    own_s: f64,
    charged_s: f64,
    /// The dearest class's calls from when its link went until the trap was gone, CPU s.
    tail_s: f64,
}

/// The intervals of a ledger, each about a second.
fn seconds(recorded: &Recording) -> Vec<Second> {
    let mut seconds: BTreeMap<u64, Second> = BTreeMap::new();
    for row in &recorded.ledger {
        let second = seconds.entry(row.time_ns).or_insert_with(|| Second {
            length_s: row.interval_ns as f64 * 1e-9,
            own_s: row.target_cpu_ns as f64 * 1e-9,
            ..Second::default()
        });
        let cost_s = if row.charge.counts() { row.cost_ns as f64 * 1e-9 } else { 0.0 };
        second.charged_s += cost_s;
        second.own_s -= cost_s;
        if row.charge == Charge::Attach && row.class_id.is_some() {
            second.tail_s = second.tail_s.max(cost_s);
        }
    }
    let mut seconds: Vec<Second> = seconds.into_values().collect();
    // The end of the run is a part of one: it belongs to the second before.
    if let [.., before, last] = &mut seconds[..]
        && last.length_s < 0.99
    {
        before.length_s += last.length_s;
        before.own_s += last.own_s;
        before.charged_s += last.charged_s;
        before.tail_s = before.tail_s.max(last.tail_s);
        seconds.pop();
    }
    seconds
}

/// Part of the target's CPU time that the dearest of the classes that tripped took while it was attached.
fn dearest_part(recorded: &Recording) -> f64 {
    let tripped = recorded.windows.iter().filter(|w| w.tripped && w.kept >= 100);
    let parts = tripped.map(|w| w.kept as f64 * w.tau_ns / w.target_cpu_ns.max(1) as f64);
    parts.fold(0.0, f64::max).min(1.0)
}

/// What hits cost that came while links were being made, in the whole run, CPU s: no quota holds yet, and they belong to no window. On a machine
/// that keeps the agent waiting in that moment they are many (docs/limitations.md).
fn while_attaching_s(recorded: &Recording) -> f64 {
    let of_class = |id: u32| {
        let charged = recorded.ledger.iter().filter(|r| r.charge == Charge::Traced && r.class_id == Some(id));
        let windows = || recorded.windows.iter().filter(|w| w.class_id == id);
        let (units, seen): (u64, u64) =
            (charged.map(|r| r.units).sum(), windows().map(|w| w.attempted).sum());
        units.saturating_sub(seen) as f64 * windows().map(|w| w.tau_ns).fold(0.0, f64::max) * 1e-9
    };
    recorded.classes.iter().map(|c| of_class(c.class_id)).sum()
}

/// Bounds and functions inside that would take a whole CPU: no second takes more than 1.25 times the budget of the CPU time that was known, and
/// what the class that tripped takes from then until its link is gone.
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
    let part = dearest_part(&recorded);
    assert!(part > 0.05, "{part} of what was attached; {said}\n{}", worst_second_in_words(&recorded));
    let closing_s = answer.closing_ns as f64 * 1e-9;
    let attaching_s = while_attaching_s(&recorded);
    let mut before_s = 0.0_f64;
    for second in seconds(&recorded) {
        // What is granted follows the CPU time that was known then: a target that gets less of it in the next second has spent already.
        let own_s = second.own_s.max(before_s * second.length_s).max(FLOOR_CPU_PER_S * second.length_s);
        let most_s = 1.25 * 0.05 * own_s + part * closing_s + second.tail_s + attaching_s;
        assert!(
            second.charged_s <= most_s,
            "{second:?}: more than {most_s}, {part}, {attaching_s}; {answer:?}; {said}\n{}",
            worst_second_in_words(&recorded)
        );
        before_s = second.own_s / second.length_s;
    }
    assert!(summary.predicted > 0.01, "{summary:?}; {said}");
    // What was watched is what the target did, and what was recorded has all its calls.
    let population = sums(&recorded, |w| w.population).values().sum::<u64>();
    assert!(population > 1_000 && population <= served, "{population} of {served}; {said}");
    let rows = &recorded.operations;
    // Bounds that take a whole CPU may leave nothing, and inner functions use up their quotas before recording begins: that is told.
    let told =
        finished.report().receipt.not_observed.iter().any(|n| n.what.starts_with("the inside of operations"));
    assert!(!rows.is_empty() || told, "{population} of {served}; {said}");
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
