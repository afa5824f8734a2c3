//! Each operation without a row is counted by somebody, or the account says that it is not.

use super::super::tests::operation;
use super::{Attached, Counts, Made, account};
use profiler_core::recording::OperationRow;

/// Operations that the target made.
const MADE: u64 = 10;
const RUN: Made = Made { operations: MADE, from_ns: 1_000, until_ns: 9_000 };

/// Rows of operations with these numbers.
fn rows(numbers: impl IntoIterator<Item = u64>) -> Vec<OperationRow> {
    numbers.into_iter().map(|number| operation(number, 0, 0)).collect()
}

fn marked(number: u64) -> OperationRow {
    OperationRow { incomplete: Some(true), ..operation(number, 0, 0) }
}

/// Attached all the time, in two stretches that touch; so many begins were let through.
fn attached(kept: u64) -> [Attached; 2] {
    let at = |start_ns, end_ns, kept| Attached { start_ns, end_ns, kept, away: 0 };
    [at(5_000, 9_500, kept - 1), at(900, 5_000, 1)]
}

/// As many were begun, recorded and ended.
fn all(begun: u64) -> Counts {
    Counts { begun, recorded: begun, population: begun, ..Counts::default() }
}

/// Nothing is wrong: no row, and counted so.
#[track_caller]
fn fine(rows: &[OperationRow], attached: &[Attached], counts: &Counts) -> (u64, u64, u64) {
    let (told, fault) = account(&RUN, rows, attached, counts);
    assert_eq!((told.made, told.wrong(), fault), (MADE, 0, None), "{told:?}");
    (told.lost, told.not_drawn, told.unwatched)
}

/// Operations that are counted nowhere, and those that are there too often.
#[track_caller]
fn wrong(rows: &[OperationRow], attached: &[Attached], counts: &Counts) -> (u64, u64) {
    let (told, fault) = account(&RUN, rows, attached, counts);
    assert!(fault.is_some(), "{told:?}");
    (told.nowhere, told.beyond)
}

#[test]
fn operations_with_a_row_each_need_no_count() {
    assert_eq!(fine(&rows(1..=MADE), &attached(MADE), &all(MADE)), (0, 0, 0));
    // Also where two of them are marked, of which one saw no `mark`.
    let mut rows = rows(1..=8);
    rows.extend([marked(10), marked(0)]);
    assert_eq!(fine(&rows, &attached(MADE), &Counts { dropped: 2, ..all(MADE) }), (0, 0, 0));
}

#[test]
fn an_operation_without_a_row_is_missing_where_nobody_counts_it() {
    let (nine, whole) = (rows(2..=MADE), attached(MADE));
    assert_eq!(wrong(&nine, &whole, &all(MADE)), (1, 0));
    // Begun and not counted as recorded or as anything else, let through and not begun, not seen at all.
    assert_eq!(wrong(&nine, &whole, &all(9)), (1, 0));
    assert_eq!(wrong(&nine, &attached(9), &all(9)), (1, 0));
    let (_, fault) = account(&RUN, &nine, &whole, &all(MADE));
    assert!(fault.unwrap().starts_with("1 of 10 operations have no row (the first: 1)"));
}

#[test]
fn what_is_counted_is_not_missing() {
    let (nine, whole) = (rows(2..=MADE), attached(MADE));
    // The ring was full.
    assert_eq!(fine(&nine, &whole, &Counts { dropped: 1, ..all(MADE) }), (1, 0, 0));
    // Its end was not seen.
    assert_eq!(fine(&nine, &whole, &Counts { population: 9, ..all(MADE) }), (1, 0, 0));
    // It was not drawn.
    assert_eq!(fine(&nine, &whole, &Counts { recorded: 9, ..all(MADE) }), (0, 1, 0));
    // The thread had no memory.
    assert_eq!(fine(&nine, &whole, &Counts { refused: 1, ..all(9) }), (1, 0, 0));
    // A gate turned it away.
    let mut gated = attached(9);
    gated[1].away = 1;
    assert_eq!(fine(&nine, &gated, &all(9)), (1, 0, 0));
    // It is open: it has a row, which has no number.
    let mut open = nine.clone();
    open.push(OperationRow { censored: true, incomplete: None, ..operation(0, 0, 0) });
    assert_eq!(fine(&open, &whole, &Counts { population: 9, open: 1, ..all(MADE) }), (0, 0, 0));
}

#[test]
fn a_count_explains_no_more_than_it_counts() {
    let (eight, whole) = (rows(3..=MADE), attached(MADE));
    assert_eq!(wrong(&eight, &whole, &Counts { dropped: 1, ..all(MADE) }), (1, 0));
    assert_eq!(wrong(&eight, &whole, &Counts { population: 9, ..all(MADE) }), (1, 0));
    assert_eq!(wrong(&eight, &whole, &Counts { recorded: 9, ..all(MADE) }), (1, 0));
    // One that is open and not recorded is no end that was not seen.
    assert_eq!(wrong(&eight, &whole, &Counts { population: 8, open: 1, ..all(MADE) }), (1, 0));
    // A lost one is marked, and has a row: it is not counted for another.
    let mut with_mark = rows(3..=MADE);
    with_mark.push(marked(1));
    assert_eq!(wrong(&with_mark, &whole, &Counts { dropped: 1, ..all(MADE) }), (1, 0));
}

#[test]
fn nobody_can_tell_where_the_breakpoint_was_not_there_for_a_while() {
    let nine = rows(2..=MADE);
    let mut gap = attached(9);
    gap[0].start_ns += 1;
    assert_eq!(fine(&nine, &gap, &all(9)), (0, 0, 1));
    let late = attached(9).map(|at| Attached { start_ns: at.start_ns + 200, ..at });
    let [last, first] = attached(9);
    let early = [Attached { end_ns: 8_999, ..last }, first];
    for stretches in [&late[..], &early, &[]] {
        let counts = if stretches.is_empty() { all(0) } else { all(9) };
        let seen = if stretches.is_empty() { &[] } else { &nine[..] };
        assert_eq!(fine(seen, stretches, &counts), (0, 0, MADE - seen.len() as u64));
    }
    // What it saw is told all the same.
    assert_eq!(wrong(&nine, &gap, &all(MADE)), (1, 1));
}

#[test]
fn a_surplus_is_told_and_hides_nothing() {
    let whole = attached(MADE);
    // One has two rows, and another none.
    let mut twice = rows(2..=MADE);
    twice.push(operation(2, 0, 0));
    assert_eq!(wrong(&twice, &whole, &all(MADE)), (1, 1));
    // One was not made.
    let (_, beyond) = wrong(&rows(1..=MADE + 1), &whole, &all(MADE));
    assert!(beyond > 0);
    // More were lost than are without a row.
    assert_eq!(wrong(&rows(1..=MADE), &whole, &Counts { dropped: 1, ..all(MADE) }), (0, 1));
    assert_eq!(wrong(&rows(1..=MADE), &attached(MADE + 1), &all(MADE + 1)).1, 1);
    // One that is too many in one count is not one that lacks in another.
    assert_eq!(wrong(&rows(2..=MADE), &attached(MADE + 1), &Counts { dropped: 1, ..all(MADE) }).0, 1);
}
