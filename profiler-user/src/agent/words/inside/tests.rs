//! What is charged to the calls around an operation that takes words.

use super::*;
use profiler_core::recording::{CallContext, CallPlace};

fn taking(tid: u32, operation: Option<u32>, from_ns: u64, read_ns: u64) -> Taking {
    Taking {
        read_ns: (from_ns, from_ns + read_ns),
        begin_ns: from_ns,
        class: 0,
        operation,
        pid: 1,
        tid,
        at_end: false,
        words: Vec::new(),
    }
}

fn call(tid: u32, time_ns: u64, duration_ns: Option<u64>) -> EventRow {
    EventRow {
        time_ns,
        class_id: 0,
        pid: 1,
        tid,
        duration_ns,
        args: [None; 6],
        nested_cost_ns: duration_ns.map(|_| 100),
        place: CallPlace::default(),
        context: CallContext::default(),
    }
}

fn operation(tid: u32, begin_ns: u64, duration_ns: u64) -> OperationRow {
    OperationRow {
        operation: 0,
        class_id: 0,
        tid,
        begin_ns,
        duration_ns,
        calls: 0,
        inner_ns: 0,
        measure: 0,
        cost_ns: 7,
        off_cpu_ns: None,
        cycle: 0,
        stretch: 0,
        censored: false,
        pid: Some(1),
        steps_before: None,
        steps_after: None,
        incomplete: None,
    }
}

#[test]
fn a_call_is_charged_what_operations_took_inside_it_on_its_thread() {
    let of = |read_ns: u64| taking_ns(read_ns as f64) as u64;
    let mut taken = TakenInside::default();
    let mut untouched = [call(1, 0, Some(10_000))];
    taken.charge(&mut untouched, &mut []);
    assert_eq!(untouched[0].nested_cost_ns, Some(100));
    // Begin and end of an operation, another thread's, a function's, and one that was preempted.
    for one in [
        taking(1, Some(0), 1_000, 300),
        taking(1, Some(0), 2_000, 50),
        taking(2, Some(0), 1_500, 400),
        taking(1, None, 1_600, 900),
        taking(1, Some(1), 5_000, 9_000_000),
    ] {
        taken.note(&one);
    }
    let mut calls = [
        call(1, 500, Some(2_000)),
        call(1, 1_500, Some(1_000)),
        call(1, 2_500, Some(1_000)),
        call(2, 0, Some(10_000)),
        call(3, 0, Some(10_000)),
        call(1, 4_000, Some(20_000_000)),
        call(1, 0, None),
    ];
    // Its own words at the begin were read before it began, and those at its end after it ended.
    let mut operations = [operation(1, 1_400, 600), operation(1, 900, 1_150)];
    taken.charge(&mut calls, &mut operations);
    let costs: Vec<Option<u64>> = calls.iter().map(|call| call.nested_cost_ns).collect();
    let more = |ns: u64| Some(100 + ns);
    let expected =
        [more(of(300) + of(50)), more(of(50)), more(0), more(of(400)), more(0), more(of(LONGEST_NS)), None];
    assert_eq!(costs, expected);
    assert_eq!(operations.map(|operation| operation.cost_ns), [7, 7 + of(300) + of(50)]);
}

#[test]
fn what_is_remembered_is_bounded_and_the_newest_stay() {
    let mut taken = TakenInside::default();
    // A thread that ended long ago, and one that goes on.
    taken.note(&taking(9, Some(0), 1, 100));
    let n = MOST as u64 + 1_000;
    for i in 0..n {
        taken.note(&taking(1, Some(0), 10 + i, 100));
    }
    assert!(
        taken.kept <= MOST && taken.kept == taken.threads.values().map(|t| t.takings.len()).sum::<usize>()
    );
    assert!(!taken.threads.contains_key(&9));
    let each = taking_ns(100.0) as u64;
    assert_eq!(taken.of(1, 10 + n - 2_000, 1_000), 1_000 * each);
    // Of a call that is older than what is remembered, what is remembered.
    assert_eq!(taken.of(1, 0, u64::MAX), taken.kept as u64 * each);
}
