use super::*;
use crate::output::{CallsOptions, FileFormat, TextOptions, calls_json, calls_text, render_calls};
use crate::recording::sample::{classes, meta, recording};
use crate::recording::{Overwrite, Writer};
use expect_test::{Expect, expect};
use profiler_core::calls::Layout;
use profiler_core::recording::{CallerRule, CallsMeta};
use std::path::PathBuf;

/// Functions by class.
const QUERY: u32 = 0;
const PARSE: u32 = 1;
const LOG: u32 = 2;
const HANDLER: u32 = 3;
const START: u64 = 1_000_000_000;

/// Entries of a thread of process 1234: time after the run's start in us, number, class, slot, return address.
type Entry = (u64, u64, u32, u64, u64);

fn step(tid: u32, (us, number, class_id, slot, return_address): Entry) -> StepRow {
    let time_ns = START + us * 1_000;
    StepRow { time_ns, number, class_id, pid: 1234, tid, slot, return_address, frame: 0 }
}

fn site(return_address: u64, function_class: Option<u32>, target_class: Option<u32>) -> CallSiteRow {
    CallSiteRow {
        return_address,
        pid: 1234,
        module: "/usr/bin/server".into(),
        offset: return_address,
        function: String::new(),
        function_class,
        caller: if return_address == 0x70 { CallerRule::Signal } else { CallerRule::Sp },
        caller_value: 0x20,
        target_class,
        is_direct: target_class.map(|_| true),
        jumps_from: Some(vec![]),
        reached_from: None,
        since_ns: None,
        until_ns: None,
    }
}

fn operation(tid: u32, begin_us: u64, took_us: u64, numbers: (u64, u64)) -> OperationRow {
    OperationRow {
        tid,
        begin_ns: START + begin_us * 1_000,
        duration_ns: took_us * 1_000,
        steps_before: Some(numbers.0),
        steps_after: Some(numbers.1),
        ..recording().operations[0]
    }
}

/// One thread, operations one after another: a slow one with all kinds of links, a fast one, one that the kernel side marks, one with a gap, one that had not
/// ended; and a step between them.
fn write(path: &Path) {
    let mut meta = meta();
    meta.calls = Some(CallsMeta {
        asked: vec!["db::*".into()],
        classes: vec![QUERY, PARSE, LOG, HANDLER],
        tails_known: vec![QUERY, PARSE, LOG, HANDLER],
        stack_span_bytes: 8 << 20,
        notes: vec!["libplain.so is stripped: only the functions that it exports have names".into()],
    });
    let mut names = classes();
    for (class_id, name) in [(LOG, "log::Sink<char>::write(char const*)"), (HANDLER, "on_alarm")] {
        names.push(ClassRow { class_id, name: name.into(), ..names[1].clone() });
    }
    let mut steps = vec![step(7, (1_000, 1, QUERY, 0x1000, 0x90))];
    steps.extend((0..37).map(|i| step(7, (1_010 + i, 2 + i, PARSE, 0xfe0, 0x10))));
    steps.extend(
        [
            // `parse` hands over to `log` by a jump, and once it may.
            (1_100, 39, PARSE, 0xfe0, 0x10),
            (1_101, 40, LOG, 0xfe0, 0x10),
            (1_200, 41, PARSE, 0xfe0, 0x11),
            (1_201, 42, LOG, 0xfe0, 0x11),
            (1_300, 43, HANDLER, 0x800, 0x70),
            (1_400, 44, LOG, 0xfe0, 0x12),
            // Between operations.
            (3_500, 45, LOG, 0x1000, 0x90),
            (4_100, 46, QUERY, 0x1000, 0x90),
            (5_100, 47, QUERY, 0x1000, 0x90),
            (6_100, 48, QUERY, 0x1000, 0x90),
            (6_300, 50, PARSE, 0xfe0, 0x10),
        ]
        .map(|entry| step(7, entry)),
    );
    let mut w = Writer::create(path, None, Overwrite::Recording, &meta).unwrap();
    w.push(&names);
    w.push(&recording().operation_classes);
    w.push(&[
        operation(7, 900, 2_000, (0, 44)),
        operation(7, 4_000, 500, (45, 46)),
        OperationRow { incomplete: Some(true), ..operation(7, 5_000, 900, (46, 47)) },
        operation(7, 6_000, 400, (47, 50)),
        OperationRow { censored: true, steps_after: None, pid: None, ..operation(7, 7_000, 100, (50, 50)) },
    ]);
    w.push(&[
        site(0x90, None, Some(QUERY)),
        site(0x10, Some(QUERY), Some(PARSE)),
        site(0x11, Some(QUERY), None),
        site(0x12, Some(QUERY), Some(LOG)),
        site(0x70, None, None),
    ]);
    w.push(&[TailRow { from_class: PARSE, to_class: LOG }]);
    w.push(&steps);
    w.finish(&meta).unwrap();
}

fn recorded() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    write(&path);
    (dir, path)
}

fn wanted(which: Which) -> Wanted {
    Wanted { operation: Some("req".into()), class: None, which }
}

const ALL: CallsOptions = CallsOptions { layout: Layout { levels: usize::MAX, folds: true }, bounds: false };

fn check(which: Which, shown: CallsOptions, expect: Expect) {
    let (_dir, path) = recorded();
    let calls = Calls::read(&path, &wanted(which)).unwrap();
    let text = calls_text(&calls, shown, TextOptions::default());
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    expect.assert_eq(&text);
}

#[test]
fn the_slowest_operation_with_all_kinds_of_calls() {
    check(
        Which::Slowest(1),
        ALL,
        expect![[r#"
            Calls in order of operation req (req=handle,class=arg0:str)

            GET /a, thread 7: began at 0.000900 s, took 2.00 ms (200 us off CPU, 15.6 us of it monitoring),
              complete, 44 calls, of 2 it is not sure where they belong
                   +100.0 us  db::query
                   +110.0 us    parse  x 37
                   +200.0 us    parse
                   +201.0 us      log::Sink::write  [tail]
                   +300.0 us    parse
                   +301.0 us    log::Sink::write  [ambiguous]
                   +400.0 us      on_alarm  [signal, ambiguous]
                   +500.0 us    log::Sink::write

            5 operations recorded: 2 complete, 1 with calls lost, or functions attached or detached meanwhile, 1
              with calls missing from the recording or there twice, 1 not ended when the run did
            49 calls in the recording, 1 outside recorded operations
            libplain.so is stripped: only the functions that it exports have names
            x N: N calls in a row with the same calls in them (--unfold shows each); the time is that of the
              first
            tail: the function above handed over to it by a jump, and has left
            signal: a handler that interrupted the function above
            ambiguous: it may belong to another call: exits are not recorded (docs/calls.md)
        "#]],
    );
}

#[test]
fn unfolded_two_levels_with_bounds() {
    let layout = Layout { levels: 1, folds: false };
    check(
        Which::Slowest(2),
        CallsOptions { layout, bounds: true },
        expect![[r#"
            Calls in order of operation req (req=handle,class=arg0:str)

            GET /a, thread 7: began at 0.000900 s, took 2.00 ms (200 us off CPU, 15.6 us of it monitoring),
              complete, 44 calls, of 2 it is not sure where they belong
                   +100.0 us  db::query  … 43 calls in it  returned between +500.0 us and +2,000.0 us

            GET /a, thread 7: began at 0.004000 s, took 500 us (200 us off CPU, 15.6 us of it monitoring),
              complete, 1 call
                   +100.0 us  db::query  returned between +100.0 us and +500.0 us

            5 operations recorded: 2 complete, 1 with calls lost, or functions attached or detached meanwhile, 1
              with calls missing from the recording or there twice, 1 not ended when the run did
            49 calls in the recording, 1 outside recorded operations
            libplain.so is stripped: only the functions that it exports have names
        "#]],
    );
}

#[test]
fn operations_that_are_not_complete_say_why() {
    check(
        Which::At(5_500_000),
        ALL,
        expect![[r#"
            Calls in order of operation req (req=handle,class=arg0:str)

            GET /a, thread 7: began at 0.005000 s, took 900 us (200 us off CPU, 15.6 us of it monitoring),
              incomplete (calls were lost, or functions were attached or detached meanwhile), 1 call recorded
                   +100.0 us  db::query

            5 operations recorded: 2 complete, 1 with calls lost, or functions attached or detached meanwhile, 1
              with calls missing from the recording or there twice, 1 not ended when the run did
            49 calls in the recording, 1 outside recorded operations
            libplain.so is stripped: only the functions that it exports have names
            calls of incomplete operations are in order, but how they nest cannot be told
        "#]],
    );
    check(
        Which::At(6_200_000),
        ALL,
        expect![[r#"
            Calls in order of operation req (req=handle,class=arg0:str)

            GET /a, thread 7: began at 0.006000 s, took 400 us (200 us off CPU, 15.6 us of it monitoring),
              incomplete (1 call missing), 2 calls recorded
                   +100.0 us  db::query
                   +300.0 us  parse

            5 operations recorded: 2 complete, 1 with calls lost, or functions attached or detached meanwhile, 1
              with calls missing from the recording or there twice, 1 not ended when the run did
            49 calls in the recording, 1 outside recorded operations
            libplain.so is stripped: only the functions that it exports have names
            calls of incomplete operations are in order, but how they nest cannot be told
        "#]],
    );
    check(
        Which::At(7_050_000),
        ALL,
        expect![[r#"
            Calls in order of operation req (req=handle,class=arg0:str)

            GET /a, thread 7: began at 0.007000 s, open for 100 us (200 us off CPU, 15.6 us of it monitoring),
              incomplete (it had not ended when the run did), 0 calls recorded

            5 operations recorded: 2 complete, 1 with calls lost, or functions attached or detached meanwhile, 1
              with calls missing from the recording or there twice, 1 not ended when the run did
            49 calls in the recording, 1 outside recorded operations
            libplain.so is stripped: only the functions that it exports have names
        "#]],
    );
    check(
        Which::At(8_000_000),
        ALL,
        expect![[r#"
            Calls in order of operation req (req=handle,class=arg0:str)

            none of the recorded operations is the one asked for
            5 operations recorded: 2 complete, 1 with calls lost, or functions attached or detached meanwhile, 1
              with calls missing from the recording or there twice, 1 not ended when the run did
            49 calls in the recording, 1 outside recorded operations
            libplain.so is stripped: only the functions that it exports have names
        "#]],
    );
}

#[test]
fn json_has_every_call_with_its_parent() {
    let (_dir, path) = recorded();
    let calls = Calls::read(&path, &wanted(Which::Slowest(9))).unwrap();
    let json: serde_json::Value = serde_json::from_str(&calls_json(&calls).unwrap()).unwrap();
    let account = serde_json::json!({
        "operations": 5, "complete": 2, "incomplete_by_kernel": 1, "incomplete_by_numbers": 1, "open": 1, "unnumbered": 0,
    });
    assert_eq!(json["account"], account);
    assert_eq!((&json["steps"], &json["steps_outside"]), (&49.into(), &1.into()));
    let operations = json["operations"].as_array().unwrap();
    let summary: Vec<(u64, bool, usize)> = operations
        .iter()
        .map(|o| {
            let calls = o["calls"].as_array().unwrap();
            (o["response_ns"].as_u64().unwrap(), o["complete"].as_bool().unwrap(), calls.len())
        })
        .collect();
    assert_eq!(summary, [(2_000_000, true, 44), (500_000, true, 1), (400_000, false, 2)]);
    let calls = &operations[0]["calls"];
    assert_eq!(calls[0]["parent"], serde_json::Value::Null);
    let tail = serde_json::json!({
        "function": "log::Sink<char>::write(char const*)", "class_id": 2, "offset_ns": 201_000, "parent": 38, "kind": "tail",
        "ambiguous": false, "returned_after_ns": 0, "returned_before_ns": 99_000,
    });
    assert_eq!(calls[39], tail);
    assert_eq!(calls[41]["ambiguous"], true);
    assert!(
        operations[2]["calls"][0].get("parent").is_none(),
        "how calls of an incomplete operation nest is not known"
    );
}

/// Slices of a thread must lie inside one another, or apart.
#[test]
fn slices_of_a_trace_nest() {
    let (_dir, path) = recorded();
    let calls = Calls::read(&path, &wanted(Which::Slowest(9))).unwrap();
    let trace = render_calls(&calls, FileFormat::Chrome, ALL, TextOptions::default()).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |cat: &'static str| events.iter().filter(move |e| e["cat"] == cat);
    assert_eq!((of("operation").count(), of("step").count()), (3, 47));
    let slices: Vec<(f64, f64)> = events
        .iter()
        .filter(|e| e["ph"] == "X")
        .map(|e| (e["ts"].as_f64().unwrap(), e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap()))
        .collect();
    for (i, a) in slices.iter().enumerate() {
        for b in &slices[i + 1..] {
            let apart = a.1 <= b.0 + 1e-6 || b.1 <= a.0 + 1e-6;
            let inside = a.0 <= b.0 && b.1 <= a.1 + 1e-6;
            assert!(apart || inside, "{a:?} {b:?}");
        }
    }
    let step = of("step").next().unwrap();
    assert_eq!(step["args"]["end"], "upper bound: exits are not recorded");
    assert_eq!(of("step").next_back().unwrap()["ph"], "i", "those of an incomplete operation have no end");
    let text = render_calls(&calls, FileFormat::Text, ALL, TextOptions::default()).unwrap();
    assert!(String::from_utf8(text).unwrap().contains("on_alarm"));
    assert!(render_calls(&calls, FileFormat::Svg, ALL, TextOptions::default()).is_err());
}

#[test]
fn what_is_not_there_is_said_with_what_is() {
    let (_dir, path) = recorded();
    let refused = |wanted: &Wanted, path: &Path, expect: Expect| {
        expect.assert_eq(&Calls::read(path, wanted).unwrap_err().to_string());
    };
    let other = Wanted { operation: Some("login".into()), ..wanted(Which::Slowest(1)) };
    refused(&other, &path, expect!["the recording has no operation 'login'; it has req"]);
    let other = Wanted { class: Some("GET /b".into()), ..wanted(Which::Slowest(1)) };
    refused(&other, &path, expect!["operation 'req' has no class 'GET /b'; it has GET /a"]);
    let class = Wanted { class: Some("GET /a".into()), ..wanted(Which::Slowest(1)) };
    assert_eq!(Calls::read(&path, &class).unwrap().chosen.len(), 1);

    let unnamed = Wanted { operation: None, ..wanted(Which::Slowest(1)) };
    assert_eq!(Calls::read(&path, &unnamed).unwrap().operation.name, "req");
    let mut two = Stream::open(&path).unwrap().meta().clone();
    two.operations.push(OperationMeta { name: "login".into(), ..two.operations[0].clone() });
    let both = path.with_file_name("both.tithe");
    Writer::create(&both, None, Overwrite::Recording, &two).unwrap().finish(&two).unwrap();
    refused(
        &unnamed,
        &both,
        expect!["the recording has several operations: login, req; name one with --operation"],
    );

    // A recording from before, or without --calls.
    let old = path.with_file_name("old.tithe");
    let mut meta = meta();
    meta.calls = None;
    Writer::create(&old, None, Overwrite::Recording, &meta).unwrap().finish(&meta).unwrap();
    refused(
        &wanted(Which::Slowest(1)),
        &old,
        expect![
            "the recording has no calls in order; this command makes one that has: sudo tithe record --pid PID --operation 'req=handle,class=arg0:str' --calls 'PATTERN' -o run.tithe"
        ],
    );
}

#[test]
fn a_recording_that_is_cut_off_says_what_is_missing() {
    let (_dir, path) = recorded();
    std::fs::write(path.join("steps-00001.parquet"), b"PAR1").unwrap();
    let calls = Calls::read(&path, &wanted(Which::Slowest(2))).unwrap();
    assert_eq!(calls.chosen[0].completeness, Completeness::Missing(44));
    let text = calls_text(&calls, ALL, TextOptions::default());
    assert!(text.contains("incomplete (44 calls missing), 0 calls recorded"), "{text}");
    assert!(text.contains("damage: steps-00001.parquet: not read"), "{text}");
}
