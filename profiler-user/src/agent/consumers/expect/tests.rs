use super::*;
use crate::config::InputsSpec;
use crate::models::watched;
use crate::output::RunStart;
use crate::recording::sample::{classes, meta};
use crate::recording::{Overwrite, Writer};
use profiler_core::class::RecordKind;
use profiler_core::recording::OpenCallRow;
pub(super) use profiler_core::recording::{CallContext, CallPlace, EventRow};
use std::path::PathBuf;
use std::sync::mpsc::channel;

pub(super) const START: u64 = 1_000_000_000;
pub(super) const BEGAN: RunStart = RunStart { ns: START, unix_ns: 0 };
pub(super) const MS: u64 = 1_000_000;
/// Class of the function in the earlier recording, and in this run.
const OLD: u32 = 0;
pub(super) const NEW: u32 = 17;

/// A call of `f(pointer, n)`, which takes `1 us + 5 ns n`, 2 % more or less; `more_ns` of it off CPU.
pub(super) fn call(class_id: u32, i: u64, at_ns: u64, more_ns: u64) -> EventRow {
    let n = 100 * (1 << (i % 8));
    // Of one call nothing follows for the next.
    let noise = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) as f64 / f64::from(1 << 20) - 0.5;
    let own_ns = ((1_000.0 + 5.0 * n as f64) * (1.0 + 0.04 * noise)) as u64;
    EventRow {
        time_ns: START + at_ns,
        class_id,
        pid: 9,
        tid: 7,
        duration_ns: Some(own_ns + more_ns),
        args: [Some(0x7fff_0000_1000 + i * 64), Some(n), None, None, None, None],
        nested_cost_ns: Some(0),
        place: CallPlace::default(),
        context: CallContext {
            off_cpu_ns: Some(more_ns),
            runnable_ns: Some(0),
            blocked_ns: Some(more_ns),
            ..CallContext::default()
        },
    }
}

pub(super) fn class() -> ClassRow {
    ClassRow {
        kind: RecordKind::Record,
        stamps_of: None,
        named: Some(true),
        ..classes()[OLD as usize].clone()
    }
}

/// 4,000 calls in 40 s, and a function without arguments.
fn earlier() -> (tempfile::TempDir, PathBuf) {
    recorded((0..4_000).map(|i| call(OLD, i, i * 10 * MS, 0)).collect())
}

fn recorded(rows: Vec<EventRow>) -> (tempfile::TempDir, PathBuf) {
    recorded_with(rows, &[])
}

/// The same with calls that were open at the ends of windows.
fn recorded_with(mut rows: Vec<EventRow>, open: &[OpenCallRow]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tithe");
    let mut writer = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
    let plain =
        ClassRow { class_id: 1, name: "plain".into(), symbol: "plain".into(), address: 0x77, ..class() };
    writer.push(&[class(), plain]);
    // Another function of the first one's name, where it has calls.
    if rows.iter().any(|row| row.class_id == 2) {
        writer.push(&[ClassRow { class_id: 2, address: class().address + 0x40, ..class() }]);
    }
    rows.push(EventRow { class_id: 1, args: [None; 6], ..call(1, 0, 0, 0) });
    writer.push(&rows);
    writer.push(open);
    writer.finish(&meta()).unwrap();
    (dir, path)
}

/// The consumer with models of a recording whose bursts cut calls off at these times.
pub(super) fn consumer_of_bursts(ends_ns: &[u64]) -> Expectations {
    let cut = |time_ns: &u64| OpenCallRow { time_ns: *time_ns, class_id: OLD, tid: 7, elapsed_ns: 50 * MS };
    let open: Vec<OpenCallRow> = ends_ns.iter().map(cut).collect();
    let (_dir, path) = recorded_with((0..4_000).map(|i| call(OLD, i, i * 10 * MS, 0)).collect(), &open);
    consumer_of(&path, &ClassRow { class_id: NEW, ..class() }).0
}

/// The consumer with its models, and the class of this run.
pub(super) fn consumer(of_this_run: &ClassRow) -> (Expectations, Vec<String>) {
    let (_dir, path) = earlier();
    consumer_of(&path, of_this_run)
}

fn consumer_of(path: &std::path::Path, of_this_run: &ClassRow) -> (Expectations, Vec<String>) {
    consumer_with(path, of_this_run, &[2, 0])
}

/// `registers`: those of the recording's functions.
fn consumer_with(
    path: &std::path::Path,
    of_this_run: &ClassRow,
    registers: &[u8],
) -> (Expectations, Vec<String>) {
    let named: [InputsSpec; 1] = [format!("{}:n=arg1:size", class().symbol).parse().unwrap()];
    let functions = watched(path, &named).unwrap();
    assert_eq!(functions.iter().map(|f| f.arguments).collect::<Vec<_>>(), registers);
    let (sender, making) = channel();
    let mut expect = Expectations::new("a.tithe".to_owned(), &functions, making);
    expect.classes(std::slice::from_ref(of_this_run));
    // Calls before there are models are counted.
    expect.take(Rows::Calls(&[call(NEW, 0, 0, 0)]));
    sender.send(Expected::read(path, &named).map_err(|error| error.to_string())).unwrap();
    let said = turn(&mut expect, 1);
    (expect, said)
}

pub(super) fn turn(expect: &mut Expectations, at_ns: u64) -> Vec<String> {
    let mut turn = Turn::new((START + at_ns, BEGAN), 50 * MS);
    expect.work(&mut turn);
    turn.told
}

/// A hundred calls a second for so many seconds, of which one in ten takes `more_ns` longer. What was told.
fn run(expect: &mut Expectations, seconds: std::ops::Range<u64>, more_ns: u64) -> Vec<String> {
    let mut told = Vec::new();
    for i in seconds.start * 100..seconds.end * 100 {
        let at_ns = i * 10 * MS;
        expect.take(Rows::Calls(&[call(NEW, i * 3, at_ns, if i % 10 == 3 { more_ns } else { 0 })]));
        told.extend(turn(expect, at_ns));
    }
    told
}

pub(super) fn end(expect: &mut Expectations, at_ns: u64) -> (String, ExpectedMeta) {
    let mut turn = Turn::new((START + at_ns, BEGAN), 50 * MS);
    assert!(expect.end(&mut turn).is_empty());
    let mut meta = meta();
    expect.note(&mut meta);
    (turn.told.join("\n"), meta.models.unwrap().expected.unwrap())
}

#[test]
fn calls_like_those_before_raise_no_alarm_and_a_delay_does_within_seconds() {
    // The same file at another place.
    let module = format!("/elsewhere{}", class().module);
    let (mut expect, said) = consumer(&ClassRow { class_id: NEW, module, ..class() });
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("1 of 2 functions have a model") && said[0].contains("not judged: plain: no model")
    );
    assert_eq!(run(&mut expect, 1..60, 0), Vec::<String>::new());
    let told = run(&mut expect, 60..75, 40 * MS);
    let first = &told[0];
    assert!(
        first.contains("took 40.") && first.contains("off CPU, blocked (100 % of the excess)"),
        "{first}"
    );
    assert!(first.contains(", n = ") && !first.contains("arg0"), "{first}");
    let at_s: f64 = first.split(" at ").nth(1).unwrap().split(" s").next().unwrap().parse().unwrap();
    assert!((60.0..64.0).contains(&at_s), "{first}");
    let (summary, noted) = end(&mut expect, 75_000 * MS);
    assert!(summary.contains("incidents: 1; alarms: ") && noted.incidents == 1, "{summary}");
    assert!(told[1..].iter().all(|line| line.starts_with("still longer than expected: ")), "{told:?}");
    let function = &noted.functions[0];
    assert_eq!((function.calls, noted.not_looked_at, noted.machine_changes), (7_400, 1, 0), "{noted:?}");
    assert!(function.alarms >= 5 && function.told <= function.alarms && function.beyond >= 150, "{noted:?}");
    let at_the_end = summary.matches("longer than expected: ").count();
    assert_eq!((told.len() + at_the_end) as u64, function.told);
    assert_eq!(noted.functions[1].not_judged.as_deref(), Some("no model: the function has no inputs"));
}

#[test]
fn another_build_is_not_judged_and_both_ids_are_told() {
    let (mut expect, said) = consumer(&ClassRow { class_id: NEW, build_id: "beef".into(), ..class() });
    let text = said.join("\n");
    assert!(text.contains("build ID beef here, 00ff there"), "{text}");
    assert_eq!(run(&mut expect, 1..20, 40 * MS), Vec::<String>::new());
    let (_, noted) = end(&mut expect, 20_000 * MS);
    assert_eq!(noted.functions.iter().map(|f| f.calls).sum::<u64>(), 0);
    assert!(noted.functions.iter().any(|f| f.not_judged.as_ref().is_some_and(|why| why.contains("00ff"))));
}

/// With models of two functions of one name.
fn consumer_of_two() -> Expectations {
    let row = |i: u64| {
        let row = call(OLD, i, i * 10 * MS, 0);
        // Eight sizes in turns; the second function takes five times as long.
        if (i / 8).is_multiple_of(2) { row } else { slower_by(5, EventRow { class_id: 2, ..row }) }
    };
    let (_dir, path) = recorded((0..8_000).map(row).collect());
    let (mut expect, said) = consumer_with(&path, &ClassRow { class_id: NEW, ..class() }, &[2, 0, 2]);
    assert!(said[0].contains("2 of 3 functions have a model"), "{said:?}");
    expect.classes(&[ClassRow { class_id: NEW + 1, address: class().address + 0x40, ..class() }]);
    expect
}

#[test]
fn of_several_functions_those_with_alarms_are_told_at_the_end() {
    let mut expect = consumer_of_two();
    run(&mut expect, 1..30, 0);
    run(&mut expect, 30..45, 40 * MS);
    let (text, noted) = end(&mut expect, 45_000 * MS);
    assert_eq!(text.matches(" calls took longer; alarms: ").count(), 1, "{text}");
    let [f, _, _] = noted.functions.as_slice() else { panic!("{noted:?}") };
    let line = format!(
        "\n  {}: {} of {} calls took longer; alarms: {}",
        f.function,
        f.beyond,
        count(f.calls as f64),
        f.alarms
    );
    assert!(f.alarms > 2 && text.ends_with(&line), "{text}; {line}");
    // Of one alone the line before says it.
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    run(&mut expect, 1..30, 0);
    run(&mut expect, 30..45, 40 * MS);
    assert!(!end(&mut expect, 45_000 * MS).0.contains("calls took longer;"));
}

#[test]
fn two_functions_of_one_name_are_told_apart_by_their_addresses() {
    let mut expect = consumer_of_two();
    // A third one, which the recording does not have.
    expect.classes(&[ClassRow { class_id: NEW + 2, address: class().address + 0x80, ..class() }]);
    let rows = |class_id: u32, times: u64, from: u64| -> Vec<EventRow> {
        (from..from + 200).map(|i| slower_by(times, call(class_id, i, i * 10 * MS, 0))).collect()
    };
    for (class_id, times) in [(NEW, 1), (NEW + 1, 5), (NEW + 2, 9)] {
        expect.take(Rows::Calls(&rows(class_id, times, 100 * u64::from(class_id))));
    }
    let (_, noted) = end(&mut expect, 10_000 * MS);
    let of: Vec<[u64; 3]> = noted.functions.iter().map(|f| [f.calls, f.outside, f.alarms]).collect();
    assert_eq!(of, [[200, 0, 0], [200, 0, 0], [0, 0, 0]], "{noted:?}");
    assert!(noted.functions.iter().all(|f| f.beyond < 40), "each is held against its own: {noted:?}");
}

#[test]
fn an_alarm_is_told_by_a_call_that_the_resource_of_most_slow_calls_explains() {
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    assert_eq!(run(&mut expect, 1..60, 0), Vec::<String>::new());
    let mut told = Vec::new();
    for i in 6_000..6_400_u64 {
        let at_ns = i * 10 * MS;
        let mut row = call(NEW, i * 3, at_ns, 0);
        if i % 4 == 3 {
            // 20 ms of page faults; the longest have waited for a CPU as well, even longer.
            let waited_ns = if i % 16 == 3 { 40 * MS } else { 0 };
            row.duration_ns = row.duration_ns.map(|ns| ns + 20 * MS + waited_ns);
            row.context.minor_faults = Some(9_000);
            (row.context.off_cpu_ns, row.context.runnable_ns) = (Some(waited_ns), Some(waited_ns));
        }
        expect.take(Rows::Calls(&[row]));
        told.extend(turn(&mut expect, at_ns));
    }
    assert!(!told.is_empty());
    for line in &told {
        assert!(line.contains("took 20.") && line.contains("page faults (100 % of the excess)"), "{line}");
    }
}

/// Of 2,000 calls a second 256 in a quarter of one may be judged. One in twenty takes 200 ms longer from 5 s on.
#[test]
fn slow_calls_of_a_function_that_is_called_thousands_of_times_a_second_are_told() {
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    let (mut told, mut late) = (Vec::new(), std::collections::VecDeque::<EventRow>::new());
    for i in 2_000..20_000_u64 {
        let at_ns = i * MS / 2;
        let is_slow = at_ns > 5_000 * MS && i % 20 == 3;
        let row = call(NEW, i * 3, at_ns, if is_slow { 200 * MS } else { 0 });
        let row = EventRow { tid: i as u32, ..row };
        if is_slow {
            late.push_back(row)
        } else {
            expect.take(Rows::Calls(&[row]))
        }
        while let Some(row) = late.pop_front_if(|row| row.time_ns + 200 * MS <= START + at_ns) {
            expect.take(Rows::Calls(&[row]));
        }
        if i % 20 == 0 {
            told.extend(turn(&mut expect, at_ns).into_iter().map(|text| (at_ns / MS, text)));
        }
    }
    let first = told.iter().find(|(_, text)| !text.contains("this call is the evidence"));
    assert!(first.is_some_and(|(at_ms, _)| (5_200..7_000).contains(at_ms)), "{told:?}");
}

/// After a crowd few calls are drawn for some seconds. One that was not, and hangs, is told all the same when it ends.
#[test]
fn a_call_that_was_not_drawn_may_be_told_alone_and_counts_as_not_looked_at() {
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    assert_eq!(run(&mut expect, 1..20, 0), Vec::<String>::new());
    let crowd: Vec<EventRow> = (0..2_500).map(|i| call(NEW, i * 3, 20_000 * MS + i * 1_000, 0)).collect();
    expect.take(Rows::Calls(&crowd));
    assert_eq!(turn(&mut expect, 20_010 * MS), Vec::<String>::new());
    assert_eq!(turn(&mut expect, 20_300 * MS), Vec::<String>::new());
    let draw = &expect.judge.functions[0].sides[0].draw;
    let tid = (100..10_000).find(|tid| !draw.is_drawn(START + 20_500 * MS, *tid)).unwrap();
    let row = EventRow { tid, ..call(NEW, 3, 20_500 * MS, 8_000 * MS) };
    assert_eq!(run(&mut expect, 21..28, 0), Vec::<String>::new());
    expect.take(Rows::Calls(&[row]));
    let told = [28_500, 28_800].map(|ms| turn(&mut expect, ms * MS)).concat();
    assert!(told.len() == 1 && told[0].contains("this call is the evidence"), "{told:?}");
    let (_, noted) = end(&mut expect, 29_000 * MS);
    assert!(noted.not_looked_at > 2_200 && noted.functions[0].calls < 2_900, "{noted:?}");
}

/// One call in a second takes some 100 times what was expected. That is no alarm, and is told; of those after it the ones that take four times as long.
#[test]
fn a_call_that_no_recorded_one_comes_near_is_told_as_the_slowest_so_far() {
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    assert_eq!(run(&mut expect, 1..60, 0), Vec::<String>::new());
    // The largest of the eight sizes.
    let slow = |at_ms: u64, more_ms: u64| call(NEW, 7, at_ms * MS, more_ms * MS);
    let mut told = Vec::new();
    for (at_s, more_ms) in [(60, 8), (61, 12), (62, 40), (63, 60)] {
        expect.take(Rows::Calls(&[slow(1_000 * at_s, more_ms)]));
        let lines = run(&mut expect, at_s + 1..at_s + 2, 0);
        told.extend(lines.into_iter().map(|line| (more_ms, line)));
    }
    let lines: Vec<u64> = told.iter().map(|(more_ms, _)| *more_ms).collect();
    assert_eq!(lines, [12, 60], "{told:?}");
    for (more_ms, line) in &told {
        assert!(
            line.starts_with("slowest so far: ") && line.contains(&format!(" and took {more_ms}.")),
            "{line}"
        );
        assert!(line.contains("blocked (100 %") && line.contains("\n  no alarm yet: "), "{line}");
    }
    let (summary, noted) = end(&mut expect, 66_000 * MS);
    assert!(summary.contains("; 3 took over 100 times what was expected"), "{summary}");
    assert_eq!((noted.functions[0].alarms, noted.incidents), (0, 0), "{noted:?}");
}

#[test]
fn inputs_beyond_the_models_range_are_counted_and_not_judged() {
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    let far = |i: u64| {
        let row = call(NEW, i, i * 10 * MS, 40 * MS);
        EventRow { args: [row.args[0], Some(5_000_000), None, None, None, None], ..row }
    };
    expect.take(Rows::Calls(&(0..50).map(far).collect::<Vec<_>>()));
    let many: Vec<EventRow> = (0..1_500).map(|i| call(NEW, i, 600 * MS + i * 1_000, 0)).collect();
    expect.take(Rows::Calls(&many));
    let (summary, noted) = end(&mut expect, 2_000 * MS);
    assert_eq!((noted.functions[0].calls, noted.functions[0].outside), (256, 50));
    // Those above 256 in a step, and the one before there were models.
    assert_eq!(noted.not_looked_at, 1_245);
    assert!(
        summary
            .contains("50 had inputs or a caller that the models know nothing of; 1,245 were not looked at"),
        "{summary}"
    );
}

/// The call, taking so many times as long.
fn slower_by(times: u64, row: EventRow) -> EventRow {
    EventRow { duration_ns: row.duration_ns.map(|ns| times * ns), ..row }
}

/// The call inside another one, which takes five times as long there.
fn inside(outer_class: u32, row: EventRow) -> EventRow {
    let place = CallPlace { outer_class: Some(outer_class), depth: Some(1), ..CallPlace::default() };
    EventRow { place, ..slower_by(5, row) }
}

#[test]
fn a_caller_that_the_models_do_not_know_is_none_of_their_contexts() {
    let plain = |i: u64| call(OLD, i, i * 10 * MS, 0);
    // Eight sizes in turns, with a caller and without one.
    let rows = (0..8_000).map(|i| if i / 8 % 2 == 0 { plain(i) } else { inside(1, plain(i)) }).collect();
    let (_dir, path) = recorded(rows);
    let (mut expect, said) = consumer_of(&path, &ClassRow { class_id: NEW, ..class() });
    assert!(said[0].contains("2 of 3 functions have a model"), "{said:?}");
    // Of a class that this run alone has: were these calls held against those without a caller, all would be five times too slow.
    let calls = |from: u64| (from..from + 200).map(|i| call(NEW, i, i * 10 * MS, 0));
    expect.take(Rows::Calls(&calls(100).map(|row| inside(99, row)).collect::<Vec<_>>()));
    expect.take(Rows::Calls(&calls(500).collect::<Vec<_>>()));
    let (_, noted) = end(&mut expect, 10_000 * MS);
    let sum = |part: fn(&ExpectedFunction) -> u64| noted.functions.iter().map(part).sum::<u64>();
    assert_eq!((sum(|f| f.outside), sum(|f| f.calls), sum(|f| f.alarms)), (200, 200, 0), "{noted:?}");
}

#[test]
fn rows_that_were_not_shown_count_if_they_are_calls_of_its_functions() {
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    expect.skipped(Rows::Steps(&[]));
    expect.skipped(Rows::Calls(&[call(NEW, 1, 0, 0), call(99, 1, 0, 0)]));
    let (_, noted) = end(&mut expect, 1_000 * MS);
    assert_eq!(noted.not_looked_at, 2, "one before there were models, and one of the two");
}

#[test]
fn a_recording_that_gives_no_models_is_told_once() {
    let (sender, making) = channel();
    let mut expect = Expectations::new("a.tithe".to_owned(), &[], making);
    assert!(turn(&mut expect, 1).is_empty());
    sender.send(Err("no calls".to_owned())).unwrap();
    assert_eq!(turn(&mut expect, 2), ["--expect a.tithe: there are no models: no calls"]);
    assert!(turn(&mut expect, 3).is_empty());
    let (late, making) = channel::<Result<Expected, String>>();
    let mut expect = Expectations::new("a.tithe".to_owned(), &[], making);
    let mut last = Turn::new((START, BEGAN), MS);
    let warnings = expect.end(&mut last);
    assert!(warnings[0].contains("before there were models"), "{warnings:?}");
    drop(late);
}
