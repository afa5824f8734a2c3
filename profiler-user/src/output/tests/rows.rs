//! Rows of the table as people read them.

use super::*;

/// The lines of the table alone, at `width` columns.
fn table_of(report: &Report, width: usize) -> String {
    let text = text(report, TextOptions { width, ..TextOptions::default() });
    let table = text.split("\n\n").nth(1).unwrap();
    table.lines().map(|line| format!("{line}\n")).collect()
}

/// The sample with names of V8, the second of them named by the user.
fn of_v8() -> Report {
    let mut report = report();
    for (row, name) in report.rows.iter_mut().zip([
        "v8::internal::JsonParser<unsigned short>::ParseJsonValue(v8::internal::Isolate*)",
        "v8::internal::Heap::AllocateRaw(int, v8::internal::AllocationType)",
        "v8::internal::Heap::AllocateRaw(v8::internal::AllocationType)",
    ]) {
        row.name = name.into();
    }
    report.shorten_names();
    report
}

#[test]
fn names_are_whole_where_there_is_room_and_keep_their_last_part() {
    expect![[r#"
        FUNCTION                                    CPU          CALLS         TIME/CALL
        v8::…::JsonParser::ParseJsonValue   42.1 ±2.1 %        5,010 E  80.2 us ±0.9 % E
        AllocateRaw(int,…::AllocationType)  31.0 ±1.9 %  12.3 M ±3 % B
        AllocateRaw(v8::…::AllocationType)   1.2 ±0.6 %
        CPU, SELF from samples; E exact, B burst (scaled from windows), S sampled, D
        derived (CPU/CALL = share / rate); ± half the interval's width (95 %)
    "#]]
    .assert_eq(&table_of(&of_v8(), 80));
    expect![[r#"
        FUNCTION                                  CPU         SELF          CALLS        CPU/CALL         TIME/CALL          HOW
        …::JsonParser::ParseJsonValue     42.1 ±2.1 %  10.1 ±1.2 %        5,010 E  68.1 us ±5 % D  80.2 us ±0.9 % E        trace
        AllocateRaw(int…:AllocationType)  31.0 ±1.9 %  30.0 ±1.9 %  12.3 M ±3 % B   204 ns ±7 % D                    burst 3.0 %
        AllocateRaw(v8:…:AllocationType)   1.2 ±0.6 %   0.2 ±0.3 %                                                        sample
        CPU, SELF from samples; E exact, B burst (scaled from windows), S sampled, D derived (CPU/CALL = share / rate); ± half
        the interval's width (95 %)
    "#]]
    .assert_eq(&table_of(&of_v8(), 120));
    let page = html::page(&of_v8(), &recording(), TextOptions::default(), &[]);
    assert!(
        page.contains(
            "<td title=\"v8::internal::JsonParser&lt;unsigned short&gt;::ParseJsonValue(v8::internal::Isolate*)\">\
             v8::internal::JsonParser::ParseJsonValue<small>"
        ),
        "{page}"
    );
    let json = render(&of_v8(), &recording(), FileFormat::Json, TextOptions::default()).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let row = &json["rows"][0];
    assert_eq!(row["name"].as_str().unwrap(), of_v8().rows[0].name);
    assert_eq!(row["short_name"], "v8::internal::JsonParser::ParseJsonValue");
    assert_eq!((&row["named"], &json["rows"][1]["named"]), (&true.into(), &false.into()));
}

/// Functions that were watched and never called have no rows; those that the user named are said.
#[test]
fn what_was_not_seen_has_no_row_and_one_line() {
    let mut report = report();
    let zero = Estimate {
        high: 0.4,
        level: 0.95,
        source: profiler_core::class::Source::Burst,
        ..Estimate::exact(0.0, 0)
    };
    let nothing = |name: &str, named: bool, watched_share: f64| Row {
        name: name.into(),
        named,
        watched_share,
        calls: Some(zero),
        rate_hz: Some(zero),
        notes: vec!["counts iterations".into()],
        share: None,
        self_share: None,
        mean_ns: None,
        quantiles_ns: vec![],
        precision: None,
        attempted: 0,
        dropped: 0,
        ..report.rows[1].clone()
    };
    let mut rows: Vec<Row> = (0..77).map(|i| nothing(&format!("cold_{i}"), false, 0.1)).collect();
    rows.extend(["init", "shutdown"].map(|name| nothing(name, true, 0.1)));
    rows.push(nothing("not_reached", true, 0.0));
    report.rows.splice(0..0, rows);
    report.shorten_names();
    let table = table_of(&report, 100);
    expect![[r#"
        FUNCTION                           CPU          CALLS        CPU/CALL         TIME/CALL          HOW
        db::query                  42.1 ±2.1 %        5,010 E  68.1 us ±5 % D  80.2 us ±0.9 % E        trace
        parse                      31.0 ±1.9 %  12.3 M ±3 % B   204 ns ±7 % D                    burst 3.0 %
        …::Iterator::for_each       1.2 ±0.6 %                                                        sample
        79 functions were watched and never called, named of them: init, shutdown
        1 function was neither watched nor sampled: not_reached
        CPU, SELF from samples; E exact, B burst (scaled from windows), S sampled, D derived (CPU/CALL =
        share / rate); ± half the interval's width (95 %)
    "#]]
    .assert_eq(&table);
    let page = html::page(&report, &recording(), TextOptions::default(), &[]);
    assert!(
        page.contains("<p>79 functions were watched and never called, named of them: init, shutdown</p>"),
        "{page}"
    );
    assert!(!page.contains("cold_1"), "{page}");
    // JSON has them all.
    let json =
        String::from_utf8(render(&report, &recording(), FileFormat::Json, TextOptions::default()).unwrap())
            .unwrap();
    assert!(json.contains("\"cold_76\""));
    report.rows.truncate(80);
    let text = text(&report, TextOptions { width: 100, ..TextOptions::default() });
    assert!(
        text.contains("nothing was observed: no samples and no calls\n79 functions were watched"),
        "{text}"
    );
}

/// The notes of `report` at 100 columns.
fn notes_of(report: &Report) -> String {
    let rows: Vec<&Row> = report.rows.iter().collect();
    notes::notes(report, &rows).iter().map(|note| format!("{}\n", table::wrap(note, 100, "  "))).collect()
}

#[test]
fn a_note_is_said_once_with_the_rows_that_it_is_about() {
    use profiler_core::report::precision::{Known, Limit, Precision};
    let mut report = report();
    let first = report.rows[0].clone();
    let of = |i: u64| Row {
        name: format!("f{i}"),
        short_name: String::new(),
        dropped: i,
        attempted: 1_000 * i,
        correction_ns: 100.0 * i as f64,
        notes: vec![
            "no return link: libgcc_s.so.1 walks stacks".into(),
            format!("{i} of {} hits lost", 1_000 * i),
            format!("its returns are seen at {i} return addresses"),
        ],
        precision: Some(Precision {
            mean: Known { half_width: Some(0.25), limit: Limit::Calls(6.25) },
            ..first.precision.unwrap()
        }),
        ..first.clone()
    };
    report.rows = (1..=7).map(of).collect();
    expect![[r#"
        f1, f2, f3, f4, f5 and 2 more: no return link: libgcc_s.so.1 walks stacks
        f1, f2, f3, f4, f5 and 2 more: its returns are seen at 1 return addresses (figures of f1; others
          differ)
        hits lost: f1 1 of 1,000, f2 2 of 2,000, f3 3 of 3,000, f4 4 of 4,000, f5 5 of 5,000 and 2 more
        probe cost taken out of TIME/CALL: f1 100 ns, f2 200 ns, f3 300 ns, f4 400 ns, f5 500 ns and 2 more
        P50 or mean of durations are not known to 10 %: f1, f2, f3, f4, f5 and 2 more (P50 2 %, mean 25 %;
          6.2 times the calls: --duration 63s; no budget gives them in 10.0 s)
    "#]]
    .assert_eq(&notes_of(&report));
    report.rows.truncate(1);
    expect![[r#"
        f1: no return link: libgcc_s.so.1 walks stacks
        f1: its returns are seen at 1 return addresses
        hits lost: f1 1 of 1,000
        probe cost taken out of TIME/CALL: f1 100 ns
        P50 or mean of durations are not known to 10 %: f1 (P50 2 %, mean 25 %; 6.2 times the calls:
          --duration 63s; no budget gives them in 10.0 s)
    "#]]
    .assert_eq(&notes_of(&report));
}

/// What was counted stands beside what was made of it where there is room, and always on a page and in JSON.
#[test]
fn the_exact_count_of_the_watched_time_is_shown() {
    let wide = table_of(&report(), 150);
    expect![[r#"
        FUNCTION                               CPU         SELF          CALLS           COUNTED        CALLS/S        CPU/CALL         TIME/CALL          HOW
        db::query                      42.1 ±2.1 %  10.1 ±1.2 %        5,010 E                            501 E  68.1 us ±5 % D  80.2 us ±0.9 % E        trace
        parse                          31.0 ±1.9 %  30.0 ±1.9 %  12.3 M ±3 % B  369,000 in 3.0 %  1.23 M ±3 % B   204 ns ±7 % D                    burst 3.0 %
        core::…::Iterator::for_each     1.2 ±0.6 %   0.2 ±0.3 %                                                                                         sample
        CPU, SELF from samples; E exact, B burst (scaled from windows), S sampled, D derived (CPU/CALL = share / rate); ± half the interval's width (95 %);
        COUNTED exact, in the part of the run that was watched
    "#]]
    .assert_eq(&wide);
    let page = html::page(&report(), &recording(), TextOptions::default(), &[]);
    assert!(page.contains("data-v=\"369000\" title=\"exact\">369,000 in 3.0 %</td>"), "{page}");
    assert!(page.contains("data-v=\"5004\" title=\"exact\">5,004 in 100 %</td>"), "{page}");
    let headings = page.split("</thead>").next().unwrap().matches("<th>").count();
    let table = page.split("</table>").next().unwrap();
    for row in table.lines().filter(|line| line.contains("<td title=")) {
        assert_eq!(row.matches("<td").count(), headings, "{row}");
    }
    let json =
        String::from_utf8(render(&report(), &recording(), FileFormat::Json, TextOptions::default()).unwrap())
            .unwrap();
    assert!(json.contains("\"counted\": 369000,\n      \"watched_share\": 0.03"), "{json}");
}

#[test]
fn a_report_of_nothing_says_so() {
    let mut empty = report();
    empty.rows.clear();
    empty.samples = 0;
    empty.receipt.measured = None;
    empty.receipt.in_place = None;
    empty.receipt.spent_s.clear();
    empty.receipt.hits_attempted = 0;
    let text = text(&empty, TextOptions::default());
    assert!(text.contains("nothing was observed") && text.contains("spent on      nothing"), "{text}");
    assert!(text.contains("measured      no ("), "{text}");
}

/// A pattern that names more functions than there are places does not hide the hottest of the others.
#[test]
fn named_rows_leave_places_to_the_hottest() {
    let mut report = report();
    let (named, other) = (report.rows[1].clone(), report.rows[1].clone());
    let with = |row: &Row, name: String, named| Row {
        name,
        named,
        kind: Some(profiler_core::class::RecordKind::Count),
        ..row.clone()
    };
    report.rows = (0..9).map(|i| with(&named, format!("named{i}"), true)).collect();
    report.rows.extend((0..9).map(|i| with(&other, format!("hot{i}"), false)));
    let names = |report: &Report, rows| -> Vec<String> {
        let options = TextOptions { rows, ..TextOptions::default() };
        crate::output::rows::shown(report, options).iter().map(|row| row.name.clone()).collect()
    };
    assert_eq!(names(&report, 4), ["named0", "named1", "hot0", "hot1"]);
    report.rows.truncate(10);
    assert_eq!(names(&report, 4), ["named0", "named1", "named2", "hot0"]);
    // One whose durations were asked for is shown all the same, beside its like.
    report.rows[8].kind = Some(profiler_core::class::RecordKind::Latency);
    assert_eq!(names(&report, 4), ["named0", "named1", "named2", "named8", "hot0"]);
    assert_eq!(names(&report, 0), ["named8"; 0], "none");
}
