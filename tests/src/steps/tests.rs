//! The comparison itself: what is right counts as right, and what is not is told.

use super::{Compared, Comparison, Log};
use profiler_core::calls::Code;
use profiler_core::recording::{CallSiteRow, CallerRule, CallsMeta, OperationRow, StepRow};
use std::collections::HashMap;

const PID: u32 = 7;
const TID: u32 = 8;
/// Functions of the log by name.
const SMALL: u32 = 0;
const MIDDLE: u32 = 1;
const LEAF: u32 = 4;
/// Class of the operation's bounds.
const HANDLE: u32 = 90;
/// A logged call has no parent.
const NONE: i32 = -1;

/// A log of entries, each of them operation, function and parent.
fn log(entries: &[(u32, u32, i32)]) -> Log {
    let bytes = entries.iter().flat_map(|&(operation, function, parent)| {
        [TID, operation, function, parent.cast_unsigned()].into_iter().flat_map(u32::to_le_bytes)
    });
    let mut log = Log::default();
    log.add_bytes(&bytes.collect::<Vec<_>>()).unwrap();
    log
}

pub(super) fn operation(number: u64, before: u64, after: u64) -> OperationRow {
    OperationRow {
        operation: 0,
        class_id: HANDLE,
        tid: TID,
        begin_ns: 0,
        duration_ns: 1,
        calls: 0,
        inner_ns: 0,
        measure: number,
        cost_ns: 0,
        off_cpu_ns: None,
        cycle: 0,
        stretch: 0,
        censored: false,
        pid: Some(PID),
        steps_before: Some(before),
        steps_after: Some(after),
        incomplete: Some(false),
    }
}

/// A step of a function whose class has the same number, with a slot of its own.
fn step(number: u64, function: u32, slot: u64) -> StepRow {
    StepRow {
        time_ns: 100 * number,
        number,
        class_id: function,
        pid: PID,
        tid: TID,
        slot,
        return_address: 0x40_0000 + u64::from(function),
        frame: 0,
    }
}

/// The only call of a function, in `caller`, whose slot lies so far above.
fn site(function: u32, caller: u32, above: i64) -> CallSiteRow {
    CallSiteRow {
        return_address: 0x40_0000 + u64::from(function),
        pid: PID,
        module: "tree".to_owned(),
        offset: u64::from(function),
        function: String::new(),
        function_class: Some(caller),
        caller: CallerRule::Sp,
        caller_value: above,
        target_class: Some(function),
        is_direct: Some(true),
        jumps_from: Some(Vec::new()),
        reached_from: Some(Vec::new()),
        since_ns: None,
        until_ns: None,
    }
}

fn compared(rows: &[OperationRow], steps: &[StepRow], log: Log) -> Compared {
    let functions = (0..11).map(|function| (function, function as usize)).collect::<HashMap<_, _>>();
    // Nobody can hand over by a jump.
    let meta = CallsMeta {
        classes: (0..11).collect(),
        tails_known: (0..11).collect(),
        stack_span_bytes: 8 << 20,
        ..CallsMeta::default()
    };
    let sites = vec![site(SMALL, HANDLE, 0x80), site(LEAF, SMALL, 0x100)];
    let mut comparison = Comparison::new(Code::new(&meta, sites, &[]), functions, rows, log);
    steps.iter().for_each(|step| comparison.step(*step));
    comparison.finish()
}

/// Two operations, each with a call in a call.
const LOGGED: [(u32, u32, i32); 4] = [(1, SMALL, NONE), (1, LEAF, 0), (2, MIDDLE, NONE), (2, LEAF, 0)];

fn steps() -> [StepRow; 4] {
    [step(1, SMALL, 0x9000), step(2, LEAF, 0x8f00), step(3, MIDDLE, 0x9000), step(4, LEAF, 0x8f00)]
}

#[test]
fn what_the_log_has_is_complete_in_whichever_order_it_comes() {
    let rows = [operation(1, 0, 2), operation(2, 2, 4), operation(3, 4, 4)];
    let mut steps = steps();
    for _ in 0..steps.len() {
        steps.rotate_left(1);
        let told = compared(&rows, &steps, log(&LOGGED));
        assert_eq!((told.complete, told.steps, told.wrong(), told.gaps), (3, 4, 0, 0), "{told:?}");
        assert!(told.faults.is_empty() && told.outside == 0, "{told:?}");
    }
}

#[test]
fn a_wrong_order_is_told() {
    let mut steps = steps();
    // Their numbers are those of each other.
    (steps[0].number, steps[1].number) = (2, 1);
    let told = compared(&[operation(1, 0, 2), operation(2, 2, 4)], &steps, log(&LOGGED));
    assert_eq!((told.complete, told.wrong_orders, told.unmarked), (1, 1, 0), "{told:?}");
    assert!(told.faults[0].contains("operation 1: another order"), "{told:?}");
    assert!(told.faults[0].contains("call 0: leaf for small"), "{told:?}");
}

#[test]
fn times_threads_and_numbers_that_come_twice_are_told() {
    let rows = [operation(1, 0, 2), operation(2, 2, 4)];
    let mut late = steps();
    late[2].time_ns = 1_000;
    let told = compared(&rows, &late, log(&LOGGED));
    assert!(told.wrong_orders == 1 && told.faults[0].contains("by time"), "{told:?}");
    let [first, .., last] = steps();
    let twice = compared(&rows, &[&steps()[..], &[first]].concat(), log(&LOGGED));
    assert!(twice.wrong_orders == 1 && twice.complete == 2, "{twice:?}");
    let instead = compared(&rows, &[&steps()[..3], &[StepRow { number: 3, ..last }]].concat(), log(&LOGGED));
    assert!(instead.wrong_orders == 1 && instead.faults[0].contains("twice"), "{instead:?}");
    let of_another = OperationRow { tid: TID + 1, ..operation(1, 0, 2) };
    let moved = steps().map(|step| StepRow { tid: TID + 1, ..step });
    let told = compared(&[of_another], &moved[..2], log(&LOGGED));
    assert!(told.wrong_orders == 1 && told.faults[0].contains("thread"), "{told:?}");
    let shared = compared(&[operation(1, 0, 2), operation(2, 1, 4)], &[], log(&LOGGED));
    assert!(shared.wrong_orders == 1 && shared.faults[0].contains("share"), "{shared:?}");
}

#[test]
fn an_operation_without_all_of_its_calls_that_counts_as_complete_is_told() {
    // Its numbers leave out what the log has.
    let rows = [operation(1, 0, 1), operation(2, 1, 3)];
    let steps = [step(1, SMALL, 0x9000), step(2, MIDDLE, 0x9000), step(3, LEAF, 0x8f00)];
    let told = compared(&rows, &steps, log(&LOGGED));
    assert_eq!((told.complete, told.unmarked, told.wrong_orders), (1, 1, 0), "{told:?}");
    assert!(told.faults[0].contains("operation 1: calls are missing"), "{told:?}");
    let none = compared(&[operation(1, 0, 0)], &[], log(&LOGGED));
    assert_eq!((none.unmarked, none.complete), (1, 0), "{none:?}");
}

#[test]
fn what_is_marked_open_or_lacks_numbers_is_incomplete_and_not_wrong() {
    let marked = OperationRow { incomplete: Some(true), ..operation(1, 0, 2) };
    let told = compared(&[marked, operation(2, 2, 4)], &steps()[1..], log(&LOGGED));
    assert_eq!((told.marked, told.complete, told.wrong()), (1, 1, 0), "{told:?}");
    let open = OperationRow { censored: true, steps_after: None, ..operation(1, 0, 2) };
    let told = compared(&[open, operation(2, 2, 4)], &steps(), log(&LOGGED));
    assert_eq!((told.open, told.complete, told.outside, told.wrong()), (1, 1, 2, 0), "{told:?}");
    let told = compared(&[operation(1, 0, 2), operation(2, 2, 4)], &steps()[1..], log(&LOGGED));
    assert_eq!((told.gaps, told.complete, told.wrong()), (1, 1, 0), "{told:?}");
}

#[test]
fn a_link_to_another_caller_is_told_where_it_is_not_marked() {
    let steps = [step(1, SMALL, 0x9000), step(2, LEAF, 0x8f00)];
    let told =
        |parent: i32| compared(&[operation(1, 0, 2)], &steps, log(&[(1, SMALL, NONE), (1, LEAF, parent)]));
    let right = told(0);
    assert_eq!((right.complete, right.steps, right.ambiguous, right.wrong_links), (1, 2, 0, 0), "{right:?}");
    // The target says that the operation itself called it.
    let wrong = told(NONE);
    assert_eq!((wrong.complete, wrong.wrong_links, wrong.wrong()), (1, 1, 1), "{wrong:?}");
    assert!(wrong.faults[0].contains("call 1 (leaf): lies in None"), "{wrong:?}");
}

#[test]
fn a_log_is_refused_where_it_is_torn_or_has_an_operation_in_two_places() {
    assert!(Log::default().add_bytes(&[0; 15]).is_err());
    let mut log = log(&[(1, SMALL, NONE)]);
    let other = [TID, 2, SMALL, u32::MAX].map(u32::to_le_bytes).concat();
    log.add_bytes(&other).unwrap();
    assert_eq!((log.len(), log.entries(2).count(), log.entries(3).count()), (2, 1, 0));
    let again = [TID, 1, SMALL, u32::MAX].map(u32::to_le_bytes).concat();
    assert!(log.add_bytes(&again).is_err());
}

#[test]
fn times_of_all_operations_are_in_the_log_or_it_is_refused() {
    let of = |operation: u32, from_ns: u64, until_ns: u64| {
        let words = [TID, operation].map(u32::to_le_bytes).concat();
        [words, [from_ns, until_ns].map(u64::to_le_bytes).concat()].concat()
    };
    let log = |times: &[Vec<u8>]| {
        let mut log = Log::default();
        log.add_times(&times.concat()).unwrap();
        log
    };
    let spans = log(&[of(2, 30, 40), of(1, 10, 20)]).take_spans(2).unwrap();
    let told: Vec<_> = spans.iter().map(|s| (s.thread, s.operation, s.from_ns, s.until_ns)).collect();
    assert_eq!(told, [(TID, 1, 10, 20), (TID, 2, 30, 40)]);
    assert!(log(&[of(1, 10, 20)]).take_spans(2).is_err());
    assert!(log(&[of(1, 10, 20), of(1, 10, 20)]).take_spans(2).is_err());
    assert!(log(&[of(1, 10, 20), of(3, 10, 20)]).take_spans(2).is_err());
    assert!(log(&[of(1, 10, 9)]).take_spans(1).is_err());
    assert!(Log::default().add_times(&[0; 23]).is_err());
}
