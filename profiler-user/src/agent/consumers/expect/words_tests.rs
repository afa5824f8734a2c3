//! Calls whose inputs are words.

use super::*;
use crate::config::WordsSpec;
use crate::models::watched;
use crate::output::RunStart;
use crate::recording::sample::{classes, meta};
use crate::recording::{Overwrite, Writer};
use profiler_core::class::RecordKind;
use profiler_core::recording::{CallContext, CallPlace, ModelsMeta, WordMeta, WordRow, WordStatus};
use std::path::PathBuf;
use std::sync::mpsc::channel;

const START: u64 = 1_000_000_000;
const BEGAN: RunStart = RunStart { ns: START, unix_ns: 0 };
const MS: u64 = 1_000_000;
/// Class of the function in the earlier recording, and in this run; and the number of its word.
const OLD: (u32, u32) = (0, 0);
const NEW: (u32, u32) = (17, 5);

fn class() -> ClassRow {
    ClassRow { kind: RecordKind::Record, stamps_of: None, named: Some(true), ..classes()[0].clone() }
}

/// Call `i`, which takes `1 us + 5 ns n`, 2 % more or less, and `more_ns` off CPU; and its word `n`, which no register has.
fn call((class_id, word): (u32, u32), i: u64, at_ns: u64, more_ns: u64) -> (EventRow, WordRow) {
    let n = 100 * (1 << (i % 8));
    let noise = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) as f64 / f64::from(1 << 20) - 0.5;
    let own_ns = ((1_000.0 + 5.0 * n as f64) * (1.0 + 0.04 * noise)) as u64;
    let (time_ns, tid) = (START + at_ns, 7);
    let context = CallContext {
        off_cpu_ns: Some(more_ns),
        runnable_ns: Some(0),
        blocked_ns: Some(more_ns),
        ..CallContext::default()
    };
    let row = EventRow {
        time_ns,
        class_id,
        pid: 9,
        tid,
        duration_ns: Some(own_ns + more_ns),
        args: [None; 6],
        nested_cost_ns: Some(0),
        place: CallPlace::default(),
        context,
    };
    let word = WordRow {
        begin_ns: time_ns,
        class_id,
        operation: None,
        pid: 9,
        tid,
        at_end: false,
        word,
        from_ns: time_ns - 300,
        until_ns: time_ns - 20,
        value: Some(n),
        status: WordStatus::Read,
        depth: 0,
    };
    (row, word)
}

/// 4,000 calls in 40 s, with their words.
fn earlier() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tithe");
    let symbol = class().symbol;
    let mut meta = meta();
    meta.words = vec![WordMeta {
        word: OLD.1,
        name: "length".into(),
        place: symbol.clone(),
        expression: "arg0->8:long".into(),
        value: "long".into(),
        ..WordMeta::default()
    }];
    meta.models =
        Some(ModelsMeta { inputs: vec![format!("{symbol}:n=length:size")], ..ModelsMeta::default() });
    let mut writer = Writer::create(&path, None, Overwrite::Recording, &meta).unwrap();
    writer.push(&[class()]);
    let (rows, words): (Vec<EventRow>, Vec<WordRow>) =
        (0..4_000).map(|i| call(OLD, i, i * 10 * MS, 0)).unzip();
    writer.push(&rows);
    writer.push(&words);
    writer.finish(&meta).unwrap();
    (dir, path)
}

fn turn(expect: &mut Expectations, at_ns: u64) -> Vec<String> {
    let mut turn = Turn::new((START + at_ns, BEGAN), 50 * MS);
    expect.work(&mut turn);
    turn.told
}

/// A word of that name, with calls of the function.
fn taken(name: &str) -> WordsSpec {
    format!("{}:{name}=arg0->8:long", class().symbol).parse().unwrap()
}

/// The consumer with its models, in a run that takes these words.
fn consumer(taken: &[WordsSpec]) -> (Expectations, Vec<String>) {
    let (_dir, path) = earlier();
    let functions = watched(&path, &[]).unwrap();
    let (sender, making) = channel();
    let expect = Expectations::new("a.tithe".to_owned(), &functions, making);
    let mut expect = expect.with_words([(NEW.1, "length".to_owned())]);
    expect.classes(&[ClassRow { class_id: NEW.0, ..class() }]);
    let made = Expected::read(&path, &[]).map(|expected| expected.with_words(taken));
    sender.send(made.map_err(|error| error.to_string())).unwrap();
    let said = turn(&mut expect, 1);
    (expect, said)
}

/// A hundred calls a second, of which one in ten takes `more_ns` longer, and every hundredth has lost its word. What was told.
fn run(expect: &mut Expectations, seconds: std::ops::Range<u64>, more_ns: u64) -> Vec<String> {
    let mut told = Vec::new();
    for i in seconds.start * 100..seconds.end * 100 {
        let at_ns = i * 10 * MS;
        let (row, word) = call(NEW, i * 3, at_ns, if i % 10 == 3 { more_ns } else { 0 });
        // Before the row, or behind it.
        let words = if i % 100 == 50 { vec![] } else { vec![word] };
        let (before, behind) = if i % 2 == 0 { (words, vec![]) } else { (vec![], words) };
        expect.take(Rows::Words(&before));
        expect.take(Rows::Calls(&[row]));
        expect.take(Rows::Words(&behind));
        told.extend(turn(expect, at_ns));
    }
    told
}

fn end(expect: &mut Expectations, at_ns: u64) -> ExpectedMeta {
    let mut turn = Turn::new((START + at_ns, BEGAN), 50 * MS);
    assert!(expect.end(&mut turn).is_empty());
    let mut meta = meta();
    expect.note(&mut meta);
    meta.models.unwrap().expected.unwrap()
}

#[test]
fn calls_are_held_against_models_whose_inputs_are_words() {
    let (mut expect, said) = consumer(&[taken("length")]);
    assert!(said[0].contains("1 of 1 functions have a model"), "{said:?}");
    assert_eq!(run(&mut expect, 1..60, 0), Vec::<String>::new());
    let told = run(&mut expect, 60..75, 40 * MS);
    assert!(told[0].contains("took 40.") && told[0].contains(", n = "), "{told:?}");
    let noted = end(&mut expect, 75_000 * MS);
    let function = &noted.functions[0];
    // The word of each hundredth did not come.
    assert_eq!((function.calls, function.outside, noted.not_looked_at), (74 * 99, 0, 74), "{noted:?}");
    assert!(function.alarms >= 5 && function.beyond >= 150, "{noted:?}");
}

#[test]
fn a_model_whose_word_is_not_taken_judges_nothing_and_says_which() {
    let (mut expect, said) = consumer(&[taken("other")]);
    assert!(said[0].contains("0 of 1 functions have a model"), "{said:?}");
    assert!(said[0].contains("the word 'length', which is an input, is not taken in this run"), "{said:?}");
    assert_eq!(run(&mut expect, 1..20, 40 * MS), Vec::<String>::new());
    assert_eq!(expect.waiting.kept, 0, "no model has them as inputs");
    let noted = end(&mut expect, 20_000 * MS);
    assert_eq!((noted.functions.len(), noted.functions[0].calls), (1, 0), "{noted:?}");
}
