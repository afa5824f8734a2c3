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
             v8::internal::JsonParser::ParseJsonValue<br>"
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
