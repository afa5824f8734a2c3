use super::*;
use crate::inspect::graph::tests::made::{ALLOC, EXEC, Made};
use crate::models::Models;
use crate::output::{FileFormat, TextOptions, models_json, models_text, render_models};
use crate::recording::sample::{classes, frame, meta};
use crate::recording::{Overwrite, Writer};
use profiler_core::class::RecordKind;
use profiler_core::models::Class;
use profiler_core::recording::{CallContext, CallPlace, EventRow, FrameRow};

const TEXT: u64 = 0x40_1000;
const BUILD_ID: &str = "0102030405060708";
/// Sampling periods of the first and the second half of the run, ns of CPU time.
const PERIODS: [u64; 2] = [250_000, 1_000_000];
/// Stacks: below the call in the first loop, in that loop itself, in the inner and in the outer one of two others, one that ends too early, and one with
/// a call inside a call, of which no row is there.
const CALLED: u64 = 1;
const LINEAR: u64 = 2;
const INNER: u64 = 3;
const OUTER: u64 = 4;
const CUT: u64 = 5;
const TWICE: u64 = 6;

/// A program with `twofold`: a loop at +1 that calls `helper`, then one at +12 with another at +13 inside of it.
fn program(path: &Path) {
    let relative = |opcode: &[u8], at: u64, to: u64| {
        let next = at + opcode.len() as u64 + 4;
        [opcode, &(to.wrapping_sub(next) as u32).to_le_bytes()].concat()
    };
    let jne = |at: u64, to: u64| relative(&[0x0f, 0x85], TEXT + at, TEXT + to);
    let mut code = [&[0x55][..], &relative(&[0xe8], TEXT + 1, TEXT + 0x100), &jne(6, 1)].concat();
    code.extend([&[0x90][..], &jne(13, 13), &jne(19, 12), &[0x5d, 0xc3]].concat());
    code.resize(0x100, 0x90);
    code.extend([0x55, 0x5d, 0xc3]);
    let mut made = Made::new(3);
    made.section(".text", ALLOC | EXEC, TEXT, &code);
    made.build_id(&[1, 2, 3, 4, 5, 6, 7, 8]);
    made.symbol("twofold", TEXT, 27, 2);
    made.symbol("helper", TEXT + 0x100, 3, 2);
    made.write(path);
}

fn stacks(module: &str) -> Vec<FrameRow> {
    let of = |stack, depth, address, function| frame(stack, depth, address, module, function);
    let mut rows = vec![
        of(CALLED, 0, TEXT + 0x101, "helper"),
        of(CALLED, 1, TEXT + 5, "twofold"),
        of(CALLED, 2, TEXT + 0x900, "main"),
        // In the kernel, and with an inlined call at the same address.
        frame(LINEAR, 0, 0xffff_ffff_8100_0010, "[kernel]", "timer"),
        of(LINEAR, 1, TEXT + 6, "inlined"),
        of(LINEAR, 2, TEXT + 6, "twofold"),
        of(INNER, 0, TEXT + 13, "twofold"),
        of(OUTER, 0, TEXT + 19, "twofold"),
        of(CUT, 0, TEXT + 0x101, "helper"),
        of(TWICE, 0, TEXT + 13, "twofold"),
        of(TWICE, 1, TEXT + 5, "twofold"),
        of(TWICE, 2, TEXT + 0x900, "main"),
    ];
    rows[4].inlined = true;
    for (row, line) in [(1, 31), (5, 31), (6, 35), (7, 34)] {
        (rows[row].file, rows[row].line) = ("src/twofold.c".to_owned(), line);
    }
    rows
}

/// What a run is like.
#[derive(Debug, Clone, Copy)]
struct Run {
    calls: u64,
    /// Of ten samples in `helper`, so many have a stack that ends too early.
    cut: u64,
    /// The others in `helper` fell into a call inside the call, whose row is not there.
    is_twice: bool,
    /// The periods are so many times as long.
    slower: u64,
    sampled: bool,
}

const RUN: Run = Run { calls: 16 * 300, cut: 0, is_twice: false, slower: 1, sampled: true };

/// Calls of `twofold(n)` one after the other, 100 us apart: `300 n` ns in the first loop, of that two thirds in `helper`, then `n^2` ns in the
/// others, of that a hundredth in the outer one. A probe takes 700 ns at the end of each, which no sample sees.
fn record(folder: &Path, run: Run) -> std::path::PathBuf {
    let (file, path) = (folder.join("program"), folder.join("run.tithe"));
    program(&file);
    let module = file.to_str().unwrap().to_owned();
    let class = ClassRow {
        name: "twofold".into(),
        symbol: "twofold".into(),
        module: module.clone(),
        build_id: BUILD_ID.into(),
        address: TEXT,
        kind: RecordKind::Record,
        ..classes()[0].clone()
    };
    let (mut events, mut samples) = (Vec::new(), Vec::new());
    let (mut now, mut due) = (1_000_000_000_u64, 0_u64);
    let sample = |time_ns, tid, stack_id, period_ns| SampleRow {
        time_ns,
        pid: 1234,
        tid,
        cpu: 0,
        stack_id,
        in_kernel: false,
        period_ns,
        truncated: stack_id == CUT,
    };
    for i in 0..run.calls {
        let n = (32.0 * 1.27_f64.powi((i % 16) as i32)).round() as u64;
        let (linear, square) = (300 * n, n * n);
        let period = run.slower * PERIODS[usize::from(i >= run.calls / 2)];
        let mut at = due;
        while at < linear + square {
            let number = samples.len() as u64;
            let stack = match at {
                at if at < linear && number.is_multiple_of(3) => LINEAR,
                at if at < linear && number % 10 < run.cut => CUT,
                at if at < linear && run.is_twice => TWICE,
                at if at < linear => CALLED,
                _ if number.is_multiple_of(100) => OUTER,
                _ => INNER,
            };
            samples.push(sample(now + at, 7, stack, period));
            // Another thread, of which no call was recorded.
            samples.push(sample(now + at, 8, INNER, period));
            at += period + number % 7;
        }
        due = at - (linear + square);
        events.push(EventRow {
            time_ns: now,
            class_id: 0,
            pid: 1234,
            tid: 7,
            duration_ns: Some(linear + square + 700),
            args: [Some(n), None, None, None, None, None],
            nested_cost_ns: Some(700),
            place: CallPlace::default(),
            context: CallContext { off_cpu_ns: Some(0), ..CallContext::default() },
        });
        now += linear + square + 50_000;
        // Between two calls.
        samples.push(sample(now, 7, INNER, period));
        now += 50_000;
    }
    let mut writer = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
    writer.push(&[class]);
    writer.push(&events);
    if run.sampled {
        writer.push(&samples);
        writer.push(&stacks(&module));
    }
    writer.finish(&meta()).unwrap();
    path
}

fn found(run: Run) -> Models {
    let folder = tempfile::tempdir().unwrap();
    Models::read(&record(folder.path(), run), &[]).unwrap()
}

fn text(models: &Models) -> String {
    models_text(models, TextOptions { width: 1_000, ..TextOptions::default() })
}

#[test]
fn loops_of_a_function_have_models_by_the_samples_inside_its_calls() {
    let models = found(RUN);
    let loops = models.functions[0].loops.as_ref().unwrap();
    let told: Vec<_> =
        loops.loops.iter().map(|l| (l.header - TEXT, l.depth, l.inside.map(|h| h - TEXT))).collect();
    assert_eq!(told, [(1, 1, None), (12, 1, None), (13, 2, Some(12))], "{models:?}");
    assert_eq!((loops.cut, loops.is_uncertain, models.notes.len()), (None, false, 0), "{:?}", models.notes);
    assert!((loops.samples as f64 / loops.expected_samples - 1.0).abs() < 0.03, "{loops:?}");
    let [linear, outer, inner] = loops.loops.as_slice() else { panic!("{loops:?}") };
    for (own, class, ns) in [(linear, Class::Linear, 300_000.0), (inner, Class::Polynomial, 990_000.0)] {
        let model = own.found.as_ref().unwrap();
        assert_eq!(model.class, class, "{model:?}");
        let at = model.sum.at(&[1_000.0]);
        assert!((at / ns - 1.0).abs() < 0.1, "{at}: {model:?}");
    }
    assert!(matches!(outer.found, Err(NoLoopModel::FewSamples { samples: 1..100 })), "{outer:?}");
    assert_eq!(linear.source, Some(("src/twofold.c".to_owned(), 31)));

    let text = text(&models);
    let is_ours = |line: &&str| line.contains(" loop (") || line.contains(" loop has ");
    let lines: Vec<&str> = text.lines().filter(is_ours).collect();
    assert!(lines[0].starts_with("    twofold+0x1 loop (depth 1, twofold.c:31): linear, "), "{text}");
    assert!(lines[1].starts_with("    twofold+0xd loop (depth 2, twofold.c:35): polynomial, "), "{text}");
    assert!(
        lines[2].starts_with("    1 loop has no model: ") && lines[2].contains("times as many"),
        "{text}"
    );
    assert!(lines.len() == 3 && text.contains("\nLoops: CPU time"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&models_json(&models).unwrap()).unwrap();
    let json = &json["functions"][0]["loops"]["found"];
    assert_eq!((&json[2]["model"]["class"], &json[2]["inside"]), (&"polynomial".into(), &(TEXT + 12).into()));
    assert!(json[1]["no_model"]["few_samples"]["samples"].is_u64(), "{json}");
    let page = render_models(&models, FileFormat::Html, TextOptions::default()).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("<li style=\"margin-left:0em\">twofold+0xd loop (depth 2"), "{page}");
}

/// What a loop calls counts only if most stacks reach the function.
#[test]
fn short_stacks_count_by_where_the_thread_was_itself() {
    let models = found(Run { cut: 5, ..RUN });
    let loops = models.functions[0].loops.as_ref().unwrap();
    assert!(loops.cut.is_some_and(|share| share > 0.05), "{loops:?}");
    let linear = loops.loops[0].found.as_ref().unwrap();
    let at = linear.sum.at(&[1_000.0]);
    assert!((at / 100_000.0 - 1.0).abs() < 0.15, "{at}: a third of the first loop's time is its own");
    assert!(text(&models).contains("too short to reach the function"), "{}", text(&models));
}

/// The inner frame is not the recorded call's.
#[test]
fn samples_in_calls_without_a_row_are_left_out_and_counted() {
    let (whole, lossy) = (found(RUN), found(Run { is_twice: true, ..RUN }));
    let inner = |models: &Models| {
        let loops = &models.functions[0].loops.as_ref().unwrap().loops;
        loops.iter().find(|l| l.header == TEXT + 13).map(|l| l.samples)
    };
    assert!(inner(&whole).is_some_and(|samples| samples > 1_000), "{whole:?}");
    assert_eq!(inner(&lossy), inner(&whole), "{lossy:?}");
    let [note] = lossy.notes.as_slice() else { panic!("{:?}", lossy.notes) };
    assert!(note.starts_with("loops of twofold: ") && note.contains("are left out"), "{note}");
}

#[test]
fn too_few_samples_are_told_in_one_line_and_none_at_all_once() {
    let some = text(&found(Run { slower: 20, ..RUN }));
    let told = |text: &str| text.lines().filter(|line| line.contains("no model")).count();
    assert!(
        some.contains("    2 loops have no model: ") && some.contains(" samples at most, and 100 are needed"),
        "{some}"
    );
    assert!(told(&some) == 1 && some.contains("twofold+0xd loop (depth 2"), "{some}");
    let few = text(&found(Run { slower: 60, ..RUN }));
    assert!(
        few.contains("    loops: no models: ")
            && few.contains(" samples inside its calls, and a loop needs 100; some "),
        "{few}"
    );
    assert!(told(&few) == 1 && !few.contains("twofold+0x"), "{few}");
    let other = Run { calls: 16 * 10, sampled: false, ..RUN };
    let none = found(other);
    assert!(none.functions[0].loops.is_none() && none.functions[0].found.is_ok(), "{none:?}");
    assert!(text(&none).contains("the recording has no samples"), "{}", text(&none));
}

#[test]
fn a_file_that_is_not_that_of_the_recording_is_told_once_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = record(folder.path(), RUN);
    let file = folder.path().join("program");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(8).position(|window| window == [1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    bytes[at] = 0xff;
    std::fs::write(&file, bytes).unwrap();
    let other = Models::read(&path, &[]).unwrap();
    assert!(other.functions[0].found.is_ok() && other.functions[0].loops.is_none(), "{other:?}");
    let said = "build ID ff02030405060708 here, 0102030405060708 in the recording";
    assert!(other.notes.len() == 1 && other.notes[0].contains(said), "{:?}", other.notes);
    std::fs::remove_file(&file).unwrap();
    let missing = Models::read(&path, &[]).unwrap();
    assert!(
        missing.notes.len() == 1 && missing.notes[0].contains("program have no models: "),
        "{:?}",
        missing.notes
    );
    assert!(text(&missing).contains(&missing.notes[0]), "{}", text(&missing));
}
