//! Each operation without a row is counted by somebody, or the account says that it is not.

use super::super::Span;
use super::super::tests::operation;
use super::super::watched::{Attached, InGaps, gaps};
use super::{Account, Counts, Made, account};
use profiler_core::recording::OperationRow;

/// Operations that the target made.
const MADE: u64 = 10;
const RUN: Made = Made { operations: MADE, from_ns: 1_000, until_ns: 9_000 };

/// Operation 1 is made from 1,100 to 1,500, 2 from 1,900 to 2,300, and so on: the last one until 8,700. All by one thread.
fn spans() -> Vec<Span> {
    let span = |operation| {
        let from_ns = 300 + 800 * operation;
        Span { thread: 7, operation, from_ns, until_ns: from_ns + 400 }
    };
    (1..=MADE).map(span).collect()
}

/// Rows of operations with these numbers.
fn rows(numbers: impl IntoIterator<Item = u64>) -> Vec<OperationRow> {
    numbers.into_iter().map(|number| operation(number, 0, 0)).collect()
}

fn marked(number: u64) -> OperationRow {
    OperationRow { incomplete: Some(true), ..operation(number, 0, 0) }
}

/// Attached all the time, in two stretches that touch; so many begins were let through.
fn attached(kept: u64) -> [Attached; 2] {
    let at = |start_ns, end_ns, kept| Attached { start_ns, end_ns, kept, away: 0, gated: 0 };
    [at(5_000, 9_500, kept - 1), at(900, 5_000, 1)]
}

/// Attached, but for these times.
fn attached_without(kept: u64, gaps: &[(u64, u64)]) -> Vec<Attached> {
    let from = [900].into_iter().chain(gaps.iter().map(|gap| gap.1));
    let until = gaps.iter().map(|gap| gap.0).chain([9_500]);
    let stretch = |(at, (start_ns, end_ns))| Attached {
        start_ns,
        end_ns,
        kept: if at == 0 { kept } else { 0 },
        away: 0,
        gated: 0,
    };
    from.zip(until).enumerate().map(stretch).collect()
}

/// As many were begun, recorded and ended.
fn all(begun: u64) -> Counts {
    Counts { begun, recorded: begun, population: begun, ..Counts::default() }
}

fn told(rows: &[OperationRow], attached: &[Attached], counts: &Counts) -> (Account, Option<String>) {
    account(&RUN, &spans(), rows, attached, counts)
}

/// Nothing is wrong: no row, and counted so.
#[track_caller]
fn fine(rows: &[OperationRow], attached: &[Attached], counts: &Counts) -> (u64, u64, u64) {
    let (told, fault) = told(rows, attached, counts);
    assert_eq!((told.made, told.wrong(), fault), (MADE, 0, None), "{told:?}");
    (told.lost + told.endless, told.not_drawn, told.unwatched)
}

/// Operations that are counted nowhere, and those that are there too often.
#[track_caller]
fn wrong(rows: &[OperationRow], attached: &[Attached], counts: &Counts) -> (u64, u64) {
    let (told, fault) = told(rows, attached, counts);
    assert!(fault.is_some() && told.wrong() > 0, "{told:?}");
    (told.nowhere, told.beyond)
}

/// Ends that nothing explains.
#[track_caller]
fn wrong_ends(rows: &[OperationRow], attached: &[Attached], counts: &Counts) -> u64 {
    let (told, fault) = told(rows, attached, counts);
    assert_eq!(fault.is_some(), told.wrong() > 0, "{told:?}");
    told.wrong_ends
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
    let (_, fault) = told(&nine, &whole, &all(MADE));
    assert!(fault.unwrap().starts_with("1 of 10 operations have no row (the first: 1)"));
}

#[test]
fn what_is_counted_is_not_missing() {
    let (nine, whole) = (rows(2..=MADE), attached(MADE));
    // The ring was full.
    assert_eq!(fine(&nine, &whole, &Counts { dropped: 1, ..all(MADE) }), (1, 0, 0));
    // It was not drawn.
    assert_eq!(fine(&nine, &whole, &Counts { recorded: 9, ..all(MADE) }), (0, 1, 0));
    // The thread had no memory.
    assert_eq!(fine(&nine, &whole, &Counts { refused: 1, ..all(9) }), (1, 0, 0));
    // A gate turned it away.
    let mut gated = attached(9);
    (gated[1].away, gated[1].gated) = (1, 1);
    assert_eq!(fine(&nine, &gated, &all(9)), (1, 0, 0));
}

#[test]
fn a_count_explains_no_more_than_it_counts() {
    let (eight, whole) = (rows(3..=MADE), attached(MADE));
    assert_eq!(wrong(&eight, &whole, &Counts { dropped: 1, ..all(MADE) }), (1, 0));
    assert_eq!(wrong(&eight, &whole, &Counts { refused: 1, ..all(8) }), (1, 0));
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
fn a_begin_that_was_lost_does_not_explain_itself_by_its_end() {
    let nine = rows(2..=MADE);
    let lost = Counts { unmatched: 1, ..all(9) };
    assert_eq!(wrong(&nine, &attached(MADE), &lost), (1, 0));
    assert_eq!(wrong_ends(&nine, &attached(MADE), &lost), 1);
    // It was refused, or turned away: its end has no begin.
    assert_eq!(fine(&nine, &attached(MADE), &Counts { refused: 1, ..lost }), (1, 0, 0));
    let mut gated = attached(9);
    (gated[1].away, gated[1].gated) = (1, 1);
    assert_eq!(fine(&nine, &gated, &lost), (1, 0, 0));
    assert_eq!(wrong_ends(&nine, &gated, &Counts { unmatched: 2, ..all(9) }), 1);
}

#[test]
fn an_end_that_was_not_seen_is_wrong_where_the_breakpoints_were_there() {
    let (nine, whole) = (rows(2..=MADE), attached(MADE));
    // Given up when the next one began, or left open by a thread that ended.
    for unmatched in [0, 1] {
        let given_up = Counts { population: 9, unmatched, ..all(MADE) };
        assert_eq!(wrong_ends(&nine, &whole, &given_up), 1);
        // Also if nobody recorded it.
        assert_eq!(wrong_ends(&nine, &whole, &Counts { recorded: 9, ..given_up }), 1);
    }
    // Open when the run ended: it has a row, which has no number. Its command had ended before.
    let mut open = nine.clone();
    open.push(OperationRow { censored: true, incomplete: None, ..operation(0, 0, 0) });
    assert_eq!(wrong_ends(&open, &whole, &Counts { population: 9, open: 1, ..all(MADE) }), 1);
    // More ended than began.
    assert_eq!(wrong(&rows(1..=MADE), &whole, &Counts { population: MADE + 1, ..all(MADE) }), (0, 1));
}

#[test]
fn an_end_may_be_missed_of_each_operation_that_was_being_made_when_a_gap_began() {
    let nine = rows(2..=MADE);
    let two_endless = Counts { population: 8, unmatched: 2, ..all(MADE) };
    // In operations 1 and 2, and between others.
    let at = |gaps: &[(u64, u64)]| attached_without(MADE, gaps);
    assert_eq!(
        fine(&nine, &at(&[(1_400, 1_450)]), &Counts { population: 9, unmatched: 1, ..all(MADE) }),
        (1, 0, 0)
    );
    assert_eq!(wrong_ends(&rows(3..=MADE), &at(&[(1_400, 2_000)]), &two_endless), 1);
    assert_eq!(fine(&rows(3..=MADE), &at(&[(1_400, 1_450), (2_000, 2_050)]), &two_endless), (2, 0, 0));
    assert_eq!(wrong_ends(&rows(3..=MADE), &at(&[(1_400, 1_450), (1_600, 1_700)]), &two_endless), 1);
    // An operation has one end, however many gaps begin in it: that of operation 5 was missed while the breakpoints were there.
    let one_and_five = rows((2..=MADE).filter(|number| *number != 5));
    assert_eq!(wrong_ends(&one_and_five, &at(&[(1_400, 1_420), (1_440, 1_460)]), &two_endless), 1);
    // An operation that began in the gap, or was over before it, has no end to be missed there.
    let given_up = Counts { population: 9, unmatched: 1, ..all(MADE) };
    assert_eq!(wrong_ends(&nine, &at(&[(1_050, 1_200)]), &given_up), 1);
    assert_eq!(wrong_ends(&nine, &at(&[(1_501, 1_700)]), &given_up), 1);
    assert_eq!(wrong_ends(&nine, &at(&[(1_500, 1_700)]), &given_up), 0);
    // An end without a begin is that of an operation which was not seen to begin.
    let late = attached_without(9, &[(1_000, 1_200)]);
    assert_eq!(fine(&nine, &late, &Counts { unmatched: 1, ..all(9) }), (0, 0, 1));
    assert_eq!(wrong_ends(&nine, &late, &Counts { unmatched: 2, ..all(9) }), 1);
}

#[test]
fn what_was_made_while_the_breakpoint_was_not_there_nobody_can_tell() {
    let nine = rows(2..=MADE);
    assert_eq!(fine(&nine, &attached_without(9, &[(1_300, 1_301)]), &all(9)), (0, 0, 1));
    let late = attached_without(8, &[(900, 2_000)]);
    assert_eq!(fine(&rows(3..=MADE), &late, &all(8)), (0, 0, 2));
    assert_eq!(fine(&rows(1..=9), &attached_without(9, &[(8_400, 9_500)]), &all(9)), (0, 0, 1));
    assert_eq!(fine(&[], &[], &all(0)), (0, 0, MADE));
    // What it saw is told all the same.
    assert_eq!(wrong(&nine, &attached_without(9, &[(1_300, 1_301)]), &all(MADE)), (1, 1));
}

#[test]
fn a_gap_explains_no_more_than_the_target_made_in_it() {
    // 1 ns, in which operation 1 begins, or between two.
    let (short, between) = ([(1_100, 1_101)], [(1_700, 1_701)]);
    let five = rows(6..=MADE);
    assert_eq!(wrong(&five, &attached_without(5, &short), &all(5)), (4, 0));
    assert_eq!(wrong(&five, &attached_without(5, &between), &all(5)), (5, 0));
    // Operation 1 was made in it, and it is another one that is missing.
    let other: Vec<_> = rows((1..=MADE).filter(|number| *number != 5));
    assert_eq!(wrong(&other, &attached_without(9, &short), &all(9)), (1, 0));
    // One that is counted as lost is not the one in the gap.
    let eight = rows((2..=MADE).filter(|number| *number != 5));
    assert_eq!(fine(&eight, &attached_without(9, &short), &Counts { dropped: 1, ..all(9) }), (1, 0, 1));
    let neither = rows((2..=MADE).filter(|number| *number != 5 && *number != 6));
    assert_eq!(wrong(&neither, &attached_without(9, &short), &Counts { dropped: 1, ..all(9) }), (1, 0));
    // Operation 2 was turned away when the gap had begun: it is not in the gap twice, for operation 5 as well.
    let mut gated = attached_without(8, &[(2_000, 2_050)]);
    (gated[0].away, gated[0].gated) = (1, 1);
    let two_less = rows((1..=MADE).filter(|number| *number != 2 && *number != 5));
    assert_eq!(wrong(&two_less, &gated, &all(8)), (1, 0));
    let (told, _) = told(&five, &attached_without(5, &[(1_300, 1_301), (5_000, 5_500)]), &all(5));
    assert_eq!(told.gap_ns, Some(501));
}

#[test]
fn an_operation_that_began_before_a_gap_excuses_no_other_where_it_is_counted_itself() {
    // Operation 2 was being made when the gap began, and nobody saw operation 5 begin.
    let two_less = rows((1..=MADE).filter(|number| *number != 2 && *number != 5));
    let cut = attached_without(9, &[(2_000, 2_050)]);
    assert_eq!(wrong(&two_less, &cut, &Counts { recorded: 8, ..all(9) }), (1, 0));
    assert_eq!(wrong(&two_less, &cut, &Counts { dropped: 1, ..all(9) }), (1, 0));
    assert_eq!(wrong(&two_less, &cut, &Counts { population: 8, ..all(9) }), (1, 0));
    assert_eq!(wrong(&two_less, &cut, &Counts { refused: 1, ..all(8) }), (1, 0));
    // It began in the gap.
    let begun = attached_without(9, &[(1_850, 2_050)]);
    assert_eq!(fine(&two_less, &begun, &Counts { recorded: 8, ..all(9) }), (0, 1, 1));
    // It has no other count: its begin came after the time that the target logged.
    assert_eq!(fine(&rows((1..=MADE).filter(|number| *number != 2)), &cut, &all(9)), (0, 0, 1));
}

#[test]
fn a_gate_is_shut_before_the_gap_begins() {
    // Operation 1 was turned away just before, or while it was made; 2 began in the gap.
    for gap in [(1_510, 2_000), (1_450, 2_000)] {
        let mut gated = attached_without(8, &[gap]);
        (gated[0].away, gated[0].gated) = (1, 1);
        assert_eq!(fine(&rows(3..=MADE), &gated, &all(8)), (1, 0, 1));
    }
    // An operation with a row was not turned away, so that 2 was, and it is 5 that nobody saw.
    let mut gated = attached_without(8, &[(1_510, 2_000)]);
    (gated[0].away, gated[0].gated) = (1, 1);
    let two_less = rows((1..=MADE).filter(|number| *number != 2 && *number != 5));
    assert_eq!(wrong(&two_less, &gated, &all(8)), (1, 0));
    // Nor was one that was over long before.
    let made = Made { operations: 1, from_ns: 0, until_ns: 2_000_000 };
    let attached = [Attached { start_ns: 0, end_ns: 1_000_000, kept: 0, away: 1, gated: 1 }];
    let at_gate = |until_ns| {
        let span = Span { thread: 7, operation: 1, from_ns: until_ns - 10, until_ns };
        InGaps::of(&[span], &gaps(&attached, &made), |_| false).at_gate
    };
    assert_eq!((at_gate(999_000), at_gate(500_000), at_gate(1_500_000)), (1, 0, 0));
}

#[test]
fn rows_that_were_not_written_are_wrong() {
    let (told, fault) = told(&rows(1..=MADE), &attached(MADE), &Counts { rows_not_written: 3, ..all(MADE) });
    assert_eq!((told.nowhere, told.beyond, told.wrong()), (0, 0, 3));
    assert!(fault.unwrap().contains("rows_not_written: 3"));
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
