//! Which operations are complete.

use super::super::machine::Dice;
use super::*;
use crate::recording::OperationRow;

fn operation(tid: u32, (begin_ns, end_ns): (u64, u64), numbers: (u64, u64)) -> OperationRow {
    OperationRow {
        operation: 0,
        class_id: 0,
        tid,
        begin_ns,
        duration_ns: end_ns - begin_ns,
        calls: 0,
        inner_ns: 0,
        measure: 0,
        cost_ns: 0,
        off_cpu_ns: None,
        cycle: 0,
        stretch: 0,
        censored: false,
        pid: Some(1),
        steps_before: Some(numbers.0),
        steps_after: Some(numbers.1),
        incomplete: Some(false),
    }
}

fn step(tid: u32, number: u64, time_ns: u64) -> StepRow {
    StepRow { time_ns, number, class_id: 0, pid: 1, tid, slot: 0, return_address: 0, frame: 0 }
}

/// Completeness of each operation, and the steps outside.
fn count(operations: &[OperationRow], steps: &[StepRow]) -> (Vec<Completeness>, u64) {
    let mut census = Census::new(operations);
    steps.iter().for_each(|step| census.count(step, |_| ()));
    let all = (0..operations.len()).map(|place| census.completeness(place).unwrap()).collect();
    assert_eq!(census.steps(), steps.len() as u64);
    (all, census.outside())
}

#[test]
fn each_number_must_be_there_once() {
    use Completeness::{Complete, Doubled, Missing};
    let one = [operation(1, (100, 200), (5, 8))];
    let of = |numbers: &[u64]| {
        let steps: Vec<StepRow> = numbers.iter().map(|n| step(1, *n, 100 + 10 * n % 100)).collect();
        count(&one, &steps)
    };
    assert_eq!(of(&[6, 7, 8]), (vec![Complete], 0));
    assert_eq!(of(&[8, 6, 7]), (vec![Complete], 0), "the order does not matter");
    assert_eq!(of(&[6, 8]), (vec![Missing(1)], 0));
    assert_eq!(of(&[6, 7, 8, 8]), (vec![Doubled], 0));
    assert_eq!(of(&[6, 8, 8]), (vec![Doubled], 0), "as many as there should be");
    assert_eq!(of(&[5, 6, 7, 8, 9]), (vec![Complete], 2));
    assert_eq!(of(&[]), (vec![Missing(3)], 0));
}

#[test]
fn what_the_rows_say_comes_first() {
    use Completeness::{Complete, Marked, Open, Unnumbered};
    let plain = operation(1, (100, 200), (0, 0));
    let operations = [
        plain,
        OperationRow { incomplete: Some(true), ..plain },
        OperationRow { censored: true, steps_after: None, ..plain },
        OperationRow { steps_before: None, steps_after: None, incomplete: None, ..plain },
        OperationRow { steps_before: Some(9), ..plain },
    ];
    let expected = vec![Complete, Marked, Open, Unnumbered, Unnumbered];
    assert_eq!(count(&operations, &[]), (expected, 0));
    let account = Census::new(&operations).account(0);
    assert_eq!(
        account,
        Account { operations: 5, complete: 1, marked: 1, missing: 0, open: 1, unnumbered: 2 }
    );
}

#[test]
fn operations_inside_one_another_both_have_the_step_and_a_later_thread_with_the_same_number_has_none() {
    let operations = [
        operation(1, (100, 200), (0, 3)),
        operation(1, (120, 160), (1, 2)),
        operation(1, (500, 600), (0, 1)),
    ];
    let steps = [
        step(1, 1, 110),
        step(1, 2, 130),
        step(1, 3, 180),
        step(1, 1, 550),
        step(2, 1, 130),
        step(1, 1, 700),
    ];
    let mut census = Census::new(&operations);
    let mut inside = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        census.count(step, |place| inside.push((index, place)));
    }
    inside.sort_unstable();
    assert_eq!(inside, [(0, 0), (1, 0), (1, 1), (2, 0), (3, 2)]);
    assert!((0..3).all(|place| census.completeness(place) == Some(Completeness::Complete)));
    assert_eq!(census.outside(), 2);
}

/// Random operations of a few threads, one inside another and side by side, against a count that looks at all of them.
#[test]
fn a_census_agrees_with_a_count_of_all() {
    for seed in 0..200 {
        let mut dice = Dice(seed);
        let (mut operations, mut steps) = (Vec::new(), Vec::new());
        for tid in 0..3 {
            let mut open: Vec<(u64, u64)> = Vec::new();
            let mut number = 0;
            let mut time = 1_000;
            for _ in 0..400 {
                time += dice.roll(3);
                match dice.roll(5) {
                    0 if open.len() < 4 => open.push((time, number)),
                    1 => {
                        // Not always the youngest: bounds of different operations may cross.
                        let place = dice.roll(4) as usize;
                        if place < open.len() {
                            let (begin, before) = open.remove(place);
                            operations.push(operation(tid, (begin, time), (before, number)));
                        }
                    }
                    _ => {
                        number += 1;
                        if dice.roll(50) > 0 {
                            steps.push(step(tid, number, time));
                        }
                    }
                }
            }
        }
        let holds = |o: &OperationRow, s: &StepRow| {
            o.tid == s.tid
                && (o.begin_ns..=o.begin_ns + o.duration_ns).contains(&s.time_ns)
                && o.steps_before.unwrap() < s.number
                && s.number <= o.steps_after.unwrap()
        };
        let expected: Vec<bool> = operations
            .iter()
            .map(|o| {
                let found = steps.iter().filter(|s| holds(o, s)).count() as u64;
                found == o.steps_after.unwrap() - o.steps_before.unwrap()
            })
            .collect();
        let outside = steps.iter().filter(|s| !operations.iter().any(|o| holds(o, s))).count() as u64;
        let (found, found_outside) = count(&operations, &steps);
        let found: Vec<bool> = found.iter().map(|c| *c == Completeness::Complete).collect();
        assert_eq!((found, found_outside), (expected, outside), "seed {seed}");
    }
}
