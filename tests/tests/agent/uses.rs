//! One function, several uses: it bounds an operation, lies inside another one, is recorded and counted at the same time.

use super::operations::{rows, stop, sums};
use super::{sleep_ms, start};
use profiler_core::class::RecordKind;
use profiler_core::recording::Recording;
use profiler_tests::support::{Agent, Target};
use std::collections::BTreeMap;

const REQUESTS: u64 = 600;

/// The class of a function that the planner knows: neither a bound nor an inner function.
fn own_class(recorded: &Recording, name: &str, kind: RecordKind) -> u32 {
    let planned = |class: u32| recorded.plans.iter().any(|plan| plan.class_id == class);
    let of_name: Vec<_> = recorded.classes.iter().filter(|c| c.name == name).collect();
    let own: Vec<_> = of_name.iter().filter(|c| c.kind == kind && planned(c.class_id)).collect();
    assert_eq!(own.len(), 1, "{of_name:?} {:?}", recorded.plans);
    own[0].class_id
}

#[test]
fn a_function_is_a_bound_an_inner_function_recorded_and_counted_at_once() {
    let Some(folder) = start("a_function_is_a_bound_an_inner_function_recorded_and_counted_at_once") else {
        return;
    };
    let mut target = Target::start("requests");
    let arguments = [
        "--only-named",
        "--budget",
        "1000ms/s",
        "--no-ab",
        "--operation",
        "req=handle",
        "--operation",
        "query=query",
        "--detail",
        "requests:query",
        "--detail",
        "requests:step",
        "--record",
        "requests:query",
        "--count",
        "requests:step",
        "--policy",
        "full",
        "--adapt",
        "attach_share=false",
    ];
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_message("tithe: following operations");
    // The survey of a program that does nothing takes 0.7 s, and nothing is said when its plan is followed.
    sleep_ms(2_500);
    target.command(&format!("serve {REQUESTS} 1 1"));
    sleep_ms(300);
    let (finished, recorded) = stop(agent);
    let said = &finished.messages;
    let expected = BTreeMap::from([("req".to_owned(), REQUESTS), ("query".to_owned(), REQUESTS)]);
    assert_eq!(sums(&recorded, |w| w.population), expected, "{said}");
    assert_eq!(sums(&recorded, |w| w.unmatched), BTreeMap::new(), "{said}");
    // A request of type 0: `step`, `query`, and `step` in that.
    let (requests, queries) = (rows(&recorded, "req"), rows(&recorded, "query"));
    assert_eq!((requests.len() as u64, queries.len() as u64), (REQUESTS, REQUESTS), "{said}");
    assert!(requests.iter().all(|r| r.calls == 3), "{said}");
    // A query lies not inside itself.
    assert!(queries.iter().all(|r| r.calls == 1 && r.inner_ns < r.duration_ns), "{said}");
    let query = own_class(&recorded, "query", RecordKind::Record);
    let events: Vec<_> = recorded.events.iter().filter(|e| e.class_id == query).collect();
    assert_eq!(events.len() as u64, REQUESTS, "{said}");
    assert!(events.iter().all(|e| e.args[0] == Some(0) && e.place.outer_class.is_none()), "{:?}", events[0]);
    assert!(
        events.iter().all(|e| e.duration_ns.is_some() && e.context.minor_faults.is_some()),
        "{:?}",
        events[0]
    );
    let step = own_class(&recorded, "step", RecordKind::Count);
    let counted: u64 = recorded.windows.iter().filter(|w| w.class_id == step).map(|w| w.kept).sum();
    assert_eq!(counted, 2 * REQUESTS, "{said}");
    let missed = &recorded.meta.not_observed;
    assert!(missed.is_empty(), "{missed:?}; {said}");
    assert!(target.is_alive());
    target.assert_text_original();
}

#[test]
fn two_operations_may_have_the_same_bound() {
    let Some(folder) = start("two_operations_may_have_the_same_bound") else { return };
    let mut target = Target::start("requests");
    let arguments = [
        "--operation",
        "a=handle",
        "--operation",
        "b=handle,class=arg1:int",
        "--operation",
        "c=handle..requests:query",
        "--policy",
        "full",
    ];
    let mut agent = Agent::start(target.pid(), folder.path(), &arguments);
    agent.wait_message("tithe: following operations");
    target.command("serve 300 2 2");
    let (finished, recorded) = stop(agent);
    let expected = [("a", 600), ("0", 300), ("1", 300), ("c", 600)].map(|(name, n)| (name.to_owned(), n));
    assert_eq!(sums(&recorded, |w| w.population), BTreeMap::from(expected), "{}", finished.messages);
    assert_eq!(sums(&recorded, |w| w.unmatched), BTreeMap::new(), "{}", finished.messages);
}
