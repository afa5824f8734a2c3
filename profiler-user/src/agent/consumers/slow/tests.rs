use super::*;
use crate::output::RunStart;
use crate::recording::sample::recording;
use expect_test::{Expect, expect};
use profiler_core::recording::CallerRule;

const START: u64 = 1_000_000_000;
const BEGAN: RunStart = RunStart { ns: START, unix_ns: 0 };
const US: u64 = 1_000;
/// Functions by class.
const QUERY: u32 = 3;
const PARSE: u32 = 4;

fn consumer() -> SlowOperations {
    let functions = vec![(QUERY, "db::query(int)".to_owned()), (PARSE, "db::parse(char const*)".to_owned())];
    let mut slow = SlowOperations::new(100 * US, vec!["req".to_owned()], functions);
    let class = |class_id, class_name: &str| OperationClassRow {
        operation: 0,
        class_id,
        operation_name: "req".to_owned(),
        class_name: class_name.to_owned(),
    };
    slow.take(Rows::OperationClasses(&[class(0, "req"), class(2, "GET\u{1b}[31m /cart")]));
    slow
}

/// One that began so long after the run's start, us, with its time, us, and the numbers of its steps.
fn operation(begin_us: u64, took_us: u64, numbers: (u64, u64)) -> OperationRow {
    OperationRow {
        operation: 0,
        class_id: 0,
        pid: Some(9),
        tid: 7,
        begin_ns: START + begin_us * US,
        duration_ns: took_us * US,
        cost_ns: 4 * US,
        off_cpu_ns: Some(0),
        censored: false,
        steps_before: Some(numbers.0),
        steps_after: Some(numbers.1),
        incomplete: Some(false),
        ..recording().operations[0]
    }
}

/// Time after the run's start, us, number, class, slot, return address.
fn step((at_us, number, class_id, slot, return_address): (u64, u64, u32, u64, u64)) -> StepRow {
    StepRow { time_ns: START + at_us * US, number, class_id, pid: 9, tid: 7, slot, return_address, frame: 0 }
}

fn site(return_address: u64, function_class: Option<u32>, target_class: Option<u32>) -> CallSiteRow {
    CallSiteRow {
        return_address,
        pid: 9,
        module: "/bin/server".into(),
        offset: return_address,
        function: String::new(),
        function_class,
        caller: CallerRule::Sp,
        caller_value: 0x20,
        target_class,
        is_direct: target_class.map(|_| true),
        jumps_from: Some(vec![]),
        reached_from: None,
        since_ns: None,
        until_ns: None,
    }
}

/// What it says in a turn so long after the run's start, ms, and what it asks for.
fn turn(slow: &mut SlowOperations, at_ms: u64) -> (Vec<String>, Vec<(u32, u64)>) {
    let mut turn = Turn::new((START + at_ms * 1_000 * US, BEGAN), u64::MAX / 2);
    slow.work(&mut turn);
    (turn.told, turn.asked)
}

fn code(sites: Vec<CallSiteRow>) -> CodeFound {
    CodeFound {
        looked_at: sites.iter().map(|site| (site.pid, site.return_address)).collect(),
        sites,
        jumps: Some((vec![], vec![QUERY, PARSE])),
        stack_span_bytes: 8 << 20,
    }
}

fn sites() -> Vec<CallSiteRow> {
    vec![site(0x90, None, Some(QUERY)), site(0x10, Some(QUERY), Some(PARSE))]
}

/// A query with three calls of the parser.
fn steps(from_us: u64, from: u64) -> Vec<StepRow> {
    let query = (from_us + 1, from + 1, QUERY, 0x1000, 0x90);
    let parse = (2..5).map(|i| (from_us + 10 * i, from + i, PARSE, 0xfe0, 0x10));
    std::iter::once(query).chain(parse).map(step).collect()
}

fn check(told: &[String], expected: &Expect) {
    expected.assert_eq(&told.join("\n---\n"));
}

#[test]
fn a_slow_operation_is_told_with_its_tree_when_all_is_known() {
    let mut slow = consumer();
    slow.take(Rows::Operations(&[operation(0, 90, (0, 0)), operation(1_000, 300, (0, 4))]));
    // Its last steps come a turn later, and what the code says yet later.
    let steps = steps(1_000, 0);
    slow.take(Rows::Steps(&steps[..2]));
    assert_eq!(turn(&mut slow, 10), (vec![], vec![]));
    slow.take(Rows::Steps(&steps[2..]));
    assert_eq!(turn(&mut slow, 20), (vec![], vec![(9, 0x10), (9, 0x90)]));
    assert_eq!(turn(&mut slow, 30), (vec![], vec![]), "it asks once");
    slow.learn(&code(sites()));
    let (told, _) = turn(&mut slow, 40);
    check(
        &told,
        &expect![[r#"
            slow: req, thread 7: began at 0.001000 s, took 300 us (0 ns off CPU, 4.00 us of it monitoring), complete, 4 calls
                     +1.0 us  db::query
                    +20.0 us    db::parse  x 3"#]],
    );
    // The code is known now.
    slow.take(Rows::Operations(&[operation(2_000, 300, (4, 8))]));
    slow.take(Rows::Steps(&self::steps(2_000, 4)));
    assert_eq!(turn(&mut slow, 50).0.len(), 1);
}

#[test]
fn what_is_not_complete_has_no_tree_and_says_so() {
    let mut slow = consumer();
    slow.learn(&code(sites()));
    slow.take(Rows::Operations(&[
        OperationRow { incomplete: Some(true), ..operation(0, 300, (0, 4)) },
        OperationRow {
            incomplete: None,
            steps_before: None,
            steps_after: None,
            ..operation(500, 300, (0, 0))
        },
        OperationRow { class_id: 2, ..operation(1_000, 300, (4, 8)) },
    ]));
    slow.take(Rows::Steps(&steps(0, 0)));
    // One of the third is missing: it is waited for, not for ever.
    slow.take(Rows::Steps(&steps(1_000, 4)[..3]));
    let (told, _) = turn(&mut slow, 10);
    assert_eq!(told.len(), 2);
    assert!(turn(&mut slow, 1_900).0.is_empty());
    let (late, _) = turn(&mut slow, 2_010);
    check(
        &[told, late].concat(),
        &expect![[r#"
            slow: req, thread 7: began at 0.000000 s, took 300 us (0 ns off CPU, 4.00 us of it monitoring), incomplete (calls were lost, or functions were attached or detached meanwhile), 4 calls recorded
            ---
            slow: req, thread 7: began at 0.000500 s, took 300 us (0 ns off CPU, 4.00 us of it monitoring), incomplete (its calls are not numbered), 0 calls recorded
            ---
            slow: GET\x1b[31m /cart, thread 7: began at 0.001000 s, took 300 us (0 ns off CPU, 4.00 us of it monitoring), incomplete (1 call missing), 3 calls recorded"#]],
    );
    slow.skipped(Rows::Operations(&[]));
    slow.take(Rows::Operations(&[operation(3_000, 300, (8, 12))]));
    turn(&mut slow, 3_000);
    let (late, _) = turn(&mut slow, 5_100);
    assert!(
        late[0].ends_with("(not all of its calls were looked at in time; 'tithe calls' may have them)"),
        "{late:?}"
    );
}

#[test]
fn time_that_monitoring_took_makes_nothing_slow() {
    let mut slow = consumer();
    let row = OperationRow { cost_ns: 250 * US, ..operation(0, 340, (0, 0)) };
    slow.take(Rows::Operations(&[row, operation(1_000, 104, (0, 0)), operation(2_000, 105, (0, 0))]));
    assert_eq!(slow.waiting.len(), 1);
    assert_eq!(slow.waiting[0].row.duration_ns, 105 * US);
}

#[test]
fn many_are_counted_and_a_few_are_told() {
    let mut slow = consumer();
    let rows: Vec<OperationRow> = (0..500).map(|i| operation(i * 10, 300, (0, 0))).collect();
    slow.take(Rows::Operations(&rows));
    let (told, _) = turn(&mut slow, 10);
    assert_eq!(told.len(), 5);
    slow.take(Rows::Operations(&[operation(1_500_000, 300, (0, 0))]));
    let (told, _) = turn(&mut slow, 1_510);
    assert_eq!(told.len(), 1);
    assert!(told[0].ends_with("\n  (495 more took longer since the last one that was told)"), "{told:?}");
    let bucket = |low_ns, count| OperationHistogramRow {
        operation: 0,
        class_id: 0,
        low_ns,
        high_ns: low_ns + 1,
        count,
    };
    slow.take(Rows::OperationHistograms(&[
        bucket(50 * US, 9_000),
        bucket(100 * US, 700),
        bucket(200 * US, 31),
    ]));
    let mut end = Turn::new((START, BEGAN), u64::MAX / 2);
    assert!(slow.end(&mut end).is_empty());
    check(
        &end.told,
        &expect![
            "--slower 100 us: 501 of 501 recorded operations took longer, 6 of these were told; of all 9,731 operations some 731 took longer, with what watching cost them"
        ],
    );
}

#[test]
fn a_large_tree_is_cut_and_a_huge_one_is_not_drawn() {
    let mut slow = consumer();
    slow.learn(&code(sites()));
    let alternating = |n: u64| {
        let parse = (2..=n).map(|i| (i, i, if i % 2 == 0 { PARSE } else { QUERY }, 0xfe0, 0x10));
        std::iter::once((1, 1, QUERY, 0x1000, 0x90)).chain(parse).map(step).collect::<Vec<_>>()
    };
    slow.take(Rows::Operations(&[operation(0, 300, (0, 60))]));
    slow.take(Rows::Steps(&alternating(60)));
    let (told, _) = turn(&mut slow, 10);
    let lines: Vec<&str> = told[0].lines().collect();
    assert_eq!(lines.len(), 1 + MOST_LINES + 1);
    assert_eq!(lines[MOST_LINES + 1].trim_start(), "…  36 lines more; 'tithe calls' shows them");
    let mut slow = consumer();
    slow.learn(&code(sites()));
    slow.take(Rows::Operations(&[operation(0, 9_000, (0, MOST_STEPS + 1))]));
    slow.take(Rows::Steps(&alternating(MOST_STEPS + 1)));
    let (told, _) = turn(&mut slow, 10);
    assert!(told[0].ends_with("complete, 4,097 calls: too many to be drawn"), "{told:?}");
}

#[test]
fn what_waits_when_the_run_ends_is_told() {
    let mut slow = consumer();
    slow.take(Rows::Operations(&[operation(0, 300, (0, 4))]));
    slow.take(Rows::Steps(&steps(0, 0)));
    assert!(turn(&mut slow, 10).0.is_empty());
    let mut end = Turn::new((START, BEGAN), u64::MAX / 2);
    slow.end(&mut end);
    assert!(
        end.told[0].contains("complete, 4 calls, of 4 it is not sure"),
        "nothing is known of the code: {:?}",
        end.told
    );
    assert_eq!(end.told.len(), 2);
}
