use super::*;
use crate::output::{FileFormat, TextOptions, changes_text, models_json, models_text, render_models};
use crate::recording::sample::{classes, meta};
use crate::recording::{Overwrite, Writer};
use profiler_core::models::{Class, Reason, Unusable};
use profiler_core::recording::{
    CallContext, CallPlace, ClassRow, EventRow, ModelsMeta, WordMeta, WordRow, WordStatus,
};
use std::path::PathBuf;

/// Functions by class.
const SUM: u32 = 0;
const PARSE: u32 = 1;

/// Nanoseconds that a probe takes inside each call.
const PROBE_NS: u64 = 700;

pub(super) fn call(i: u64, class_id: u32, args: [Option<u64>; 6], own_ns: u64) -> EventRow {
    EventRow {
        time_ns: 1_000_000_000 + i * 10_000,
        class_id,
        pid: 1234,
        tid: 7,
        duration_ns: Some(own_ns + PROBE_NS),
        args,
        nested_cost_ns: Some(PROBE_NS),
        place: CallPlace::default(),
        context: CallContext::default(),
    }
}

/// `SUM(pointer, n)` takes `300 + ns_each * n` ns, up to 2 % more or less, and half of its calls come from `PARSE`; of `PARSE` no argument is known.
fn write(path: &Path, ns_each: f64, models: Option<ModelsMeta>) {
    write_of(path, ns_each, models, &classes());
}

/// The same of functions with other rows in `classes`.
fn write_of(path: &Path, ns_each: f64, models: Option<ModelsMeta>, classes: &[ClassRow]) {
    write_with(path, ns_each, &Meta { models, ..meta() }, classes);
}

/// The same where words were taken; the value of word 1 is that of the second register.
fn write_with(path: &Path, ns_each: f64, meta: &Meta, classes: &[ClassRow]) {
    let mut w = Writer::create(path, None, Overwrite::Recording, meta).unwrap();
    w.push(classes);
    let mut rows = Vec::new();
    for i in 0..1_200_u64 {
        let n = 10 * (1 << (i / 2 % 10));
        let wave = 1.0 + 0.02 * (i as f64 * 0.7).sin();
        let own_ns = ((300.0 + ns_each * n as f64) * wave) as u64;
        let args = [Some(0x7fff_0000_1000 + i * 64), Some(n), None, None, None, None];
        let outer_class = (i % 2 == 0).then_some(PARSE);
        rows.push(EventRow {
            place: CallPlace { outer_class, ..CallPlace::default() },
            ..call(i, SUM, args, own_ns)
        });
    }
    // One of them waits for a CPU for 4 ms.
    let usual = CallContext {
        off_cpu_ns: Some(0),
        runnable_ns: Some(0),
        blocked_ns: Some(0),
        ..CallContext::default()
    };
    rows.iter_mut().for_each(|row| row.context = usual);
    rows[601].duration_ns = rows[601].duration_ns.map(|ns| ns + 4_000_000);
    rows[601].context = CallContext { off_cpu_ns: Some(4_000_000), runnable_ns: Some(4_000_000), ..usual };
    rows.push(call(5_000, PARSE, [None; 6], 900));
    rows.push(EventRow { duration_ns: None, nested_cost_ns: None, ..call(5_001, PARSE, [None; 6], 0) });
    w.push(&rows);
    let word = |row: &EventRow| WordRow {
        begin_ns: row.time_ns,
        class_id: row.class_id,
        operation: None,
        pid: row.pid,
        tid: row.tid,
        at_end: false,
        word: 1,
        from_ns: row.time_ns,
        until_ns: row.time_ns,
        value: row.args[1],
        status: WordStatus::Read,
        depth: 0,
    };
    if meta.words.iter().any(|own| own.word == 1) {
        w.push(&rows.iter().map(word).collect::<Vec<_>>());
    }
    w.finish(meta).unwrap();
}

fn recorded(ns_each: f64) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    write(&path, ns_each, None);
    (dir, path)
}

fn model<'a>(models: &'a Models, context: Option<&str>) -> &'a Model {
    let of = |f: &&FunctionModel| f.found.is_ok() && f.context.as_deref() == context;
    models.functions.iter().find(of).unwrap().found.as_ref().unwrap()
}

#[test]
fn a_function_has_a_model_in_each_context_without_what_watching_cost() {
    let (_dir, path) = recorded(5.0);
    let models = Models::read(&path, &[]).unwrap();
    let parse = classes()[PARSE as usize].name.clone();
    assert_eq!(models.functions.len(), 3, "{models:?}");
    for context in [None, Some(parse.as_str())] {
        let model = model(&models, context);
        assert_eq!(model.class, Class::Linear, "{model:?}");
        assert_eq!(model.critical.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["arg1"]);
        // 300 + 5 * 1,000 without the probe's 700.
        let (register, n) = (Value::Signed(0x7fff_0000_1000), Value::Signed(1_000));
        let predicted = model.predict(&[register, n], 0.95);
        let predicted = predicted.unwrap().ns;
        assert!((predicted / 5_300.0 - 1.0).abs() < 0.02, "{predicted}");
    }
    let none = models.functions.iter().find_map(|f| f.found.as_ref().err()).unwrap();
    assert_eq!(none.reason, Reason::NoInputs, "{none}");
    let text = models_text(&models, TextOptions::default());
    for part in
        ["linear [linear]", "ns · arg1", "an address, or a mark", "2 of 3 functions", &format!(" in {parse}")]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value = serde_json::from_str(&models_json(&models).unwrap()).unwrap();
    assert_eq!(json["functions"][0]["model"]["class"], "linear");
}

#[test]
fn a_register_that_the_function_makes_no_use_of_is_no_input_unless_it_was_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let mut rows = classes();
    let unusable = |named: &[InputsSpec]| {
        let models = Models::read(&path, named).unwrap();
        let (text, model) = (models_text(&models, TextOptions::default()), model(&models, None).clone());
        (model.unusable().to_vec(), model.critical.iter().map(|c| c.name.clone()).collect::<Vec<_>>(), text)
    };
    // Of three registers that have chance values, one is used.
    rows[SUM as usize].parameters = Some(0b10);
    write_of(&path, 5.0, None, &rows);
    let (none, critical, text) = unusable(&[]);
    assert_eq!((none, critical), (vec![("arg0".to_owned(), Unusable::NoParameter)], vec!["arg1".to_owned()]));
    assert!(text.contains("arg0: the function makes no use of it: it is no parameter"), "{text}");
    // Its value is not told of the slow calls either.
    let slow =
        |text: &str| text.lines().filter(|line| line.contains("- at ") && line.contains("arg0")).count();
    assert_eq!(slow(&text), 0, "{text}");
    // Who names it knows better.
    let spec = format!("{}:p=arg0,n=arg1", rows[SUM as usize].symbol).parse().unwrap();
    let (none, critical, _) = unusable(&[spec]);
    assert!(matches!(none.as_slice(), [(p, Unusable::Huge { .. })] if p == "p"), "{none:?}");
    assert_eq!(critical, ["n"]);
    // An older recording does not say.
    rows[SUM as usize].parameters = None;
    let older = dir.path().join("older.tithe");
    write_of(&older, 5.0, None, &rows);
    let models = Models::read(&older, &[]).unwrap();
    assert!(matches!(model(&models, None).unusable(), [(p, Unusable::Huge { .. })] if p == "arg0"));
}

/// The function as debug information has told of it.
fn declared(prototype: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let mut rows = classes();
    rows[SUM as usize].prototype = Some(prototype.to_owned());
    write_of(&path, 5.0, None, &rows);
    (dir, path)
}

#[test]
fn parameters_are_inputs_by_the_names_that_the_recording_has() {
    let (_dir, path) = declared("data=arg0:pointer,items=arg1:size,x=-:float");
    let read = |input: &str| {
        let named: Vec<InputsSpec> = [input].iter().filter_map(|text| text.parse().ok()).collect();
        let models = Models::read(&path, &named).map_err(|error| error.to_string())?;
        let model = model(&models, None);
        Ok::<_, String>((
            model.unusable().to_vec(),
            model.critical.iter().map(|c| c.name.clone()).collect::<Vec<_>>(),
        ))
    };
    let none = vec![("data".to_owned(), Unusable::Pointer), ("x".to_owned(), Unusable::Float)];
    assert_eq!(read(""), Ok((none, vec!["items".to_owned()])));
    // By its name, and called otherwise.
    let symbol = classes()[SUM as usize].symbol.clone();
    assert_eq!(read(&format!("{symbol}:items")), Ok((vec![], vec!["items".to_owned()])));
    assert_eq!(read(&format!("{symbol}:n=items")), Ok((vec![], vec!["n".to_owned()])));
    let error = read(&format!("{symbol}:n=size")).unwrap_err();
    let expected = "it is no parameter: its parameters are data (arg0, pointer), items (arg1, size), x (floating-point: not recorded)";
    assert!(error.contains("no word 'size'") && error.contains(expected), "{error}");
    // Without any.
    let (_dir, path) = recorded(5.0);
    let named: InputsSpec = format!("{symbol}:items").parse().unwrap();
    let error = Models::read(&path, &[named]).unwrap_err().to_string();
    assert!(error.contains("does not have the names of its parameters"), "{error}");
}

#[test]
fn what_debug_information_forbids_has_no_model_with_the_reason() {
    for (prototype, reason, part) in [
        ("format=arg0:pointer,n=arg1:size,...", Reason::Variadic, "it takes variable arguments"),
        ("x=-:float", Reason::NoUsableInput, "x: a floating-point number is not recorded"),
        (
            "s=-:structure,t=-:structure",
            Reason::NoUsableInput,
            "t: a structure passed by value is not recorded",
        ),
        ("", Reason::NoInputs, "the function has no inputs"),
    ] {
        let (_dir, path) = declared(prototype);
        let models = Models::read(&path, &[]).unwrap();
        let own = models.functions.iter().filter(|f| f.name == classes()[SUM as usize].name);
        for function in own {
            let none = function.found.as_ref().unwrap_err();
            assert_eq!(none.reason, reason, "{prototype}");
            assert!(none.to_string().contains(part), "{none}");
            assert!(none.shortest_ns.is_some() && none.calls == 600, "{none:?}");
        }
        // Who names its inputs knows better.
        let named: InputsSpec = format!("{}:n=arg1:size", classes()[SUM as usize].symbol).parse().unwrap();
        assert_eq!(model(&Models::read(&path, &[named]).unwrap(), None).class, Class::Linear, "{prototype}");
    }
}

#[test]
fn a_function_without_a_model_says_which_of_its_words_could_be_inputs() {
    let dir = tempfile::tempdir().unwrap();
    let mut rows = classes();
    rows[SUM as usize].prototype = Some("data=arg0:pointer".to_owned());
    let symbol = rows[SUM as usize].symbol.clone();
    let word = |word: u32, place: &str, name: &str, value: &str| WordMeta {
        word,
        name: name.to_owned(),
        place: place.to_owned(),
        value: value.to_owned(),
        ..WordMeta::default()
    };
    let of = |path: &Path, words: &[WordMeta]| {
        write_with(path, 5.0, &Meta { words: words.to_vec(), ..meta() }, &rows);
        let models = Models::read(path, &[]).unwrap();
        let own = models.functions.iter().find(|f| f.name == "db::query").unwrap();
        assert_eq!(own.found.as_ref().unwrap_err().reason, Reason::NoUsableInput);
        (own.advice.clone(), models)
    };
    let bytes = word(1, "db::query", "bytes", "u32");
    let others = [
        word(2, "db::query", "next", "ptr"),
        WordMeta { at_end: true, ..word(3, "db::query", "left", "long") },
        WordMeta { operation: Some(0), ..word(4, "db::query", "conn", "long") },
        word(5, "other", "kind", "u8"),
    ];
    let path = dir.path().join("one.tithe");
    let (advice, models) = of(&path, &[&[bytes.clone()][..], &others].concat());
    let expected = "its word bytes is no input: name it with --input 'db::query:n=bytes'";
    assert_eq!(advice.as_deref(), Some(expected));
    let text = models_text(&models, TextOptions::default()).replace("\n      ", " ");
    assert!(text.contains("no model: no input can be a predictor") && text.contains(expected), "{text}");
    let page = render_models(&models, FileFormat::Html, TextOptions::default()).unwrap();
    assert!(String::from_utf8(page).unwrap().contains("its word bytes is no input"));
    let json: serde_json::Value = serde_json::from_str(&models_json(&models).unwrap()).unwrap();
    assert_eq!(json["functions"][0]["advice"], expected);
    let read = Expected::read(&path, &[]).unwrap();
    let mut whys = read.functions.iter().filter_map(|f| f.no_inputs.as_deref());
    assert!(whys.any(|why| why.contains(expected)), "{read:?}");
    // Who takes the advice has a model.
    let named: InputsSpec = "db::query:n=bytes".parse().unwrap();
    let models = Models::read(&path, &[named]).unwrap();
    assert_eq!(model(&models, None).class, Class::Linear);
    assert!(models.functions.iter().all(|f| f.advice.is_none()), "{models:?}");
    // Words of several patterns; and none that could be one.
    let (advice, _) = of(&dir.path().join("two.tithe"), &[bytes, word(2, "db::*", "items", "strlen")]);
    let expected = format!(
        "its words bytes, items are no inputs: name those that its time may depend on with --input '{symbol}:bytes,items'"
    );
    assert_eq!(advice, Some(expected));
    assert_eq!(of(&dir.path().join("none.tithe"), &others).0, None);
}

#[test]
fn a_call_that_took_longer_than_its_inputs_explain_is_told_with_the_reason() {
    let (_dir, path) = recorded(5.0);
    let models = Models::read(&path, &[]).unwrap();
    let of = models.functions.iter().find(|f| f.found.is_ok() && f.context.is_none()).unwrap();
    let worst = &of.slow.worst[0];
    assert!(of.slow.calls < 5 && worst.call.own_ns > 4e6 && worst.call.most_ns < 1e6, "{:?}", of.slow);
    assert_eq!(worst.call.cause.as_ref().unwrap().part, Some(models::Part::Runnable));
    let text = models_text(&models, TextOptions::default());
    for part in ["calls took longer than their inputs explain", "waiting for a CPU"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let other = models.functions.iter().find(|f| f.found.is_ok() && f.context.is_some()).unwrap();
    assert!(other.slow.worst.iter().all(|slow| slow.call.own_ns < 1e6), "{:?}", other.slow);
}

#[test]
fn calls_whose_inputs_say_nothing_are_held_against_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pointer.tithe");
    let mut rows = classes();
    rows[SUM as usize].prototype = Some("data=arg0:pointer".to_owned());
    // All take 300 ns.
    write_of(&path, 0.0, None, &rows);
    let models = Models::read(&path, &[]).unwrap();
    let of = models.functions.iter().find(|f| f.name == "db::query" && f.context.is_none()).unwrap();
    assert!(of.found.is_err() && of.slow.calls == 1, "{of:?}");
    let worst = &of.slow.worst[0];
    assert!(worst.call.own_ns > 4e6 && worst.call.most_ns < 1e4 && worst.inputs.is_empty(), "{worst:?}");
    let text = models_text(&models, TextOptions::default()).replace("\n      ", " ");
    let head = "    1 of 600 calls took longer than is usual, whatever their inputs; the worst:\n    - at ";
    assert!(text.contains(head) && text.contains("waiting for a CPU"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&models_json(&models).unwrap()).unwrap();
    let of_json = |name: &str| {
        json["functions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|f| f["function"] == name && f["context"].is_null())
            .unwrap()
            .clone()
    };
    assert_eq!(of_json("db::query")["slow_calls"], 1);
}

#[test]
fn inputs_have_the_names_that_were_given() {
    let (_dir, path) = recorded(5.0);
    let named: InputsSpec = format!("{}:n=arg1:size", classes()[SUM as usize].symbol).parse().unwrap();
    let models = Models::read(&path, &[named]).unwrap();
    assert!(models_text(&models, TextOptions::default()).contains("ns · n"), "{models:?}");
    let wrong: InputsSpec = "nobody:n=arg1".parse().unwrap();
    let error = Models::read(&path, &[wrong]).unwrap_err().to_string();
    assert!(error.contains("nobody") && error.contains(&classes()[SUM as usize].name), "{error}");
}

#[test]
fn a_recording_says_itself_what_is_modelled_and_the_command_line_overrules_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let symbol = classes()[SUM as usize].symbol.clone();
    let of = |pattern: &str| ModelsMeta {
        patterns: vec![pattern.to_owned()],
        inputs: vec![format!("{symbol}:items=arg1:size"), "f:x=".to_owned()],
        expected: None,
    };
    write(&path, 5.0, Some(of(&symbol)));
    let models = Models::read(&path, &[]).unwrap();
    // Of `PARSE` calls were recorded, too.
    assert_eq!(models.functions.len(), 2, "{models:?}");
    assert!(models_text(&models, TextOptions::default()).contains("ns · items"), "{models:?}");
    assert!(models.damage[0].contains("'f:x='"), "{:?}", models.damage);
    let named: InputsSpec = format!("{symbol}:n=arg1:size").parse().unwrap();
    assert!(models_text(&Models::read(&path, &[named]).unwrap(), TextOptions::default()).contains("ns · n"));
    let parse = classes()[PARSE as usize].symbol.clone();
    let other: InputsSpec = format!("{parse}:n=arg0").parse().unwrap();
    assert_eq!(Models::read(&path, &[other]).unwrap().functions.len(), 3, "what is named is modelled, too");

    let path = dir.path().join("other.tithe");
    write(&path, 5.0, Some(of("nobody*")));
    let error = Models::read(&path, &[]).unwrap_err().to_string();
    assert!(error.contains("--model nobody*") && error.contains(&classes()[SUM as usize].name), "{error}");
}

#[test]
fn a_page_has_a_table_and_a_plot_for_each_model_and_no_name_becomes_markup() {
    let (_dir, path) = recorded(5.0);
    let mut models = Models::read(&path, &[]).unwrap();
    models.functions[0].name = "<script>alert(1)</script>".to_owned();
    let page =
        String::from_utf8(render_models(&models, FileFormat::Html, TextOptions::default()).unwrap()).unwrap();
    assert!(!page.contains("<script>alert") && page.contains("&lt;script&gt;alert"));
    let count = |part: &str| page.matches(part).count();
    assert_eq!((count("<svg "), count("<polyline "), count("<tr>")), (2, 2, 4), "{page}");
    assert!(count("<circle ") > 300, "{}", count("<circle "));
    assert!(page.contains("no model: the function has no inputs"));
    for svg in [FileFormat::Svg, FileFormat::Pprof] {
        let error = render_models(&models, svg, TextOptions::default()).unwrap_err().to_string();
        assert!(error.contains(".html"), "{error}");
    }
    let json = render_models(&models, FileFormat::Json, TextOptions::default()).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["functions"].as_array().unwrap().len(), 3);
}

#[test]
fn what_grew_since_the_baseline_is_told_and_the_same_program_is_the_same() {
    let ((_a, before), (_b, after)) = (recorded(5.0), recorded(8.0));
    let [before, after] = [before, after].map(|path| Models::read(&path, &[]).unwrap());
    let changes = compare(&before, &after);
    assert_eq!(changes.iter().filter(|c| c.is_worse()).count(), 2, "{changes:?}");
    assert!(changes_text(&changes, TextOptions::default()).contains("slower by a factor"), "{changes:?}");
    assert!(compare(&before, &before).iter().all(|c| !c.is_worse()));
    assert!(compare(&after, &before).iter().all(|c| !c.is_worse()));
}

#[test]
fn a_recording_without_recorded_calls_says_how_to_get_some() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let w = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
    w.finish(&meta()).unwrap();
    let error = Models::read(&path, &[]).unwrap_err().to_string();
    assert!(error.contains("tithe record --model"), "{error}");
}
