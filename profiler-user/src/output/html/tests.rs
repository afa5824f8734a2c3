//! What a page holds, and what it cannot hold whatever a target calls itself. How it behaves is tested in a browser (tests/tests/page.rs).

use super::*;
use crate::output::sample::{named_by_target, report};
use crate::output::{FileFormat, render, text};
use crate::recording::sample::recording;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

fn page_of(report: &Report) -> String {
    page(report, &recording(), TextOptions::default(), &[])
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0_u32, |bits, b| bits << 8 | u32::from(*b)) << (8 * (3 - three.len()));
        for i in 0..4 {
            let digit = char::from(DIGITS[(bits >> (18 - 6 * i) & 63) as usize]);
            out.push(if i <= three.len() { digit } else { '=' });
        }
    }
    out
}

/// A changed script needs its new sum in the page's policy, or no browser runs it.
#[test]
fn the_policy_allows_the_script_and_nothing_else() {
    assert_eq!(SCRIPT_SHA256, base64(&Sha256::digest(SCRIPT)), "SCRIPT_SHA256 is that of page.js");
    let page = page_of(&report());
    assert!(page.contains(&format!("<script>{SCRIPT}</script>")));
    assert!(page.contains("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-"));
    // It ends where it should, and begins no comment that would hide its end.
    assert!(!SCRIPT.contains("</") && !SCRIPT.contains("<!--"));
}

/// The tags of a page with their attributes, script and style left out. It reads as a browser does: a quote ends a value, `>` a tag.
fn tags(page: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut tags = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        let end = rest.find(|c: char| c.is_whitespace() || c == '>').unwrap();
        let name = rest[..end].to_owned();
        rest = rest[end..].trim_start();
        let mut attributes = Vec::new();
        while !rest.starts_with('>') {
            // At least one character: a stray quote or sign is a part of a name.
            let end = 1 + rest[1..].find(|c: char| c.is_whitespace() || "=>".contains(c)).unwrap();
            let attribute = rest[..end].to_owned();
            rest = rest[end..].trim_start();
            let mut value = String::new();
            if let Some(after) = rest.strip_prefix("=\"") {
                let end = after.find('"').unwrap();
                value = after[..end].to_owned();
                rest = after[end + 1..].trim_start();
            }
            attributes.push((attribute, value));
        }
        rest = &rest[1..];
        if ["script", "style"].contains(&name.as_str()) {
            rest = &rest[rest.find("</").unwrap()..];
        }
        tags.push((name, attributes));
    }
    tags
}

#[test]
fn a_name_becomes_no_markup() {
    let hostile = "</td><script>alert('x')</script>\" onmouseover=\"alert(1)\" x='</style><img src=x onerror=alert(2)>&lt;";
    let plain = page_of(&report());
    let mut r = report();
    named_by_target(&mut r, hostile);
    r.rows[0].decision = hostile.into();
    let mut recording = recording();
    let mut of_operations = Report::from_recording(&recording).operations;
    of_operations[0].name = hostile.into();
    of_operations[0].classes[0].name = hostile.into();
    r.operations = of_operations;
    for frame in &mut recording.stacks {
        frame.function = hostile.into();
        frame.module = hostile.into();
    }
    recording.meta.host = hostile.into();
    recording.meta.kernel = hostile.into();
    let page = page(&r, &recording, TextOptions::default(), &[]);
    let names = |page: &str| -> BTreeSet<String> {
        tags(page)
            .into_iter()
            .flat_map(|(tag, of)| of.into_iter().map(move |(a, _)| format!("{tag} {a}")).collect::<Vec<_>>())
            .collect()
    };
    // Tags and attributes are those of a harmless page, but for the parts that the other one does not have.
    let new: Vec<String> = names(&page).difference(&names(&plain)).cloned().collect();
    assert_eq!(new, Vec::<String>::new());
    let scripts = tags(&page).iter().filter(|(tag, _)| tag == "script").count();
    assert_eq!((scripts, page.matches("<img").count()), (1, 0));
    assert!(
        page.contains(
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot; onmouseover=&quot;alert(1)&quot;"
        ),
        "{page}"
    );
    assert!(page.contains("&amp;lt;"), "an entity in a name is text");
    // A style holds numbers alone.
    for (_, attributes) in tags(&page) {
        for (_, style) in attributes.iter().filter(|(name, _)| name == "style") {
            assert!(style.chars().all(|c| "-:;.%rowsxy".contains(c) || c.is_ascii_digit()), "{style}");
        }
    }
}

#[test]
fn the_page_stands_alone() {
    let page = page_of(&report());
    for outside in ["http://", "https://", "src=", "@import", "url(", "<link", "<iframe"] {
        assert!(!page.contains(outside), "{outside}");
    }
    for (tag, attributes) in tags(&page) {
        for (name, value) in attributes.iter().filter(|(name, _)| name == "href") {
            assert!(
                value.starts_with('#') && page.contains(&format!("id=\"{}\"", &value[1..])),
                "{tag} {name} {value}"
            );
        }
    }
    assert!(page.contains("<dt>measured</dt>") && page.contains("prefers-color-scheme:dark"));
    // Without its script it is a table: the search box and what is said of clicks are not there, and nothing else is hidden.
    assert_eq!(page.split("<script>").next().unwrap().matches(" hidden").count(), 2);
    assert!(page.contains("<div id=\"find\" hidden>") && page.contains("<span id=\"how\" hidden>"));
}

/// Names in the order of a page's table.
fn page_names(page: &str) -> Vec<String> {
    let table = page.split("id=\"functions\"").nth(1).unwrap().split("</table>").next().unwrap();
    table
        .split("<td title=\"")
        .skip(1)
        .map(|cell| cell.split('>').nth(1).unwrap().split('<').next().unwrap().to_owned())
        .collect()
}

/// One truth: rows of the terminal are in the page, those of the page in JSON, all in one order and by one name.
#[test]
fn terminal_page_and_json_agree() {
    let mut r = report();
    let row = r.rows[1].clone();
    r.rows.extend((0..60).map(|i| Row {
        name: format!("ns::f{i}(int)"),
        short_name: String::new(),
        ..row.clone()
    }));
    r.shorten_names();
    let options = TextOptions { rows: 5, width: 200, colours: false };
    let page = page(&r, &recording(), options, &[]);
    let on_page = page_names(&page);
    assert_eq!(on_page.len(), 50, "ten times what a terminal shows");
    assert!(page.contains("<p>… and 13 more (--rows)</p>"), "{page}");
    let terminal: Vec<String> = shown(&r, options).iter().map(|row| row.shown_name().to_owned()).collect();
    let lines = text(&r, options);
    let mut after = lines.as_str();
    for name in &terminal {
        after = &after[after.find(name.as_str()).unwrap() + name.len()..];
    }
    assert_eq!(terminal[..], on_page[..terminal.len()]);
    let json: serde_json::Value =
        serde_json::from_slice(&render(&r, &recording(), FileFormat::Json, options).unwrap()).unwrap();
    let in_json: Vec<&str> =
        json["rows"].as_array().unwrap().iter().map(|row| row["short_name"].as_str().unwrap()).collect();
    assert_eq!(in_json[..50], on_page.iter().map(String::as_str).collect::<Vec<_>>()[..]);
    // Figures, too: those of the first row, without the letters that the page has words for.
    for figure in ["42.1 ±2.1 %", "5,010", "68.1 us ±5 %", "80.2 us ±0.9 %"] {
        assert!(lines.contains(figure) && page.contains(&format!(">{figure}<")), "{figure}: {page}");
    }
}

#[test]
fn a_word_says_whether_a_figure_is_exact() {
    let page = page_of(&report());
    assert!(
        page.contains("<td class=\"exact\" data-v=\"5010\" title=\"exact\">5,010<small>exact</small></td>"),
        "{page}"
    );
    assert!(page.contains(">12.3 M ±3 %<small>estimate, bursts</small></td>"), "{page}");
    // What all of a column's figures are is said once.
    assert!(page.contains("<th>CPU<small>estimate, samples</small></th>"), "{page}");
    assert!(page.contains("<th>COUNTED<small class=\"exact\">exact</small></th>"), "{page}");
    assert!(
        page.contains(">80.2 us ±0.9 %</td>")
            && page.contains("<th>TIME/CALL<small>estimate, all calls</small></th>"),
        "{page}"
    );
    let e = |source, at_most| {
        Some(Estimate { value: 3.0, low: 2.0, high: 5.0, level: 0.95, n: 9, source, at_most })
    };
    let figure =
        |text: &str, estimate| Figure { text: text.into(), estimate, value: duration_ns, order: None };
    let limit = figure("≤ 5 ns B", e(Source::Burst, true));
    assert_eq!((limit.word(), limit.key()), ("limit, bursts", Some(5.0)), "sorted by what is shown");
    let open = Estimate { high: f64::INFINITY, ..e(Source::Burst, false).unwrap() };
    assert_eq!(figure("≥ 2 B", Some(open)).key(), Some(2.0));
    let unknown = figure("?", Some(open));
    assert_eq!((unknown.word(), unknown.key()), ("unknown", None));
    assert!(unknown.cell(false, None).contains("data-v=\"\""), "{}", unknown.cell(false, None));
    assert_eq!(figure("", None).cell(false, None), "<td></td>");
    // One class attribute, whatever a cell is.
    let exact = figure("3", Some(Estimate::exact(3.0, 3))).cell(true, Some(0.5));
    assert!(exact.starts_with("<td class=\"exact share\" style=\"--w:50.0%\" data-v=\"3\""), "{exact}");
}

/// What is pointed at is told in its own unit: shares as such, durations as such.
#[test]
fn a_tooltip_has_the_unit_of_its_column() {
    let mut r = report();
    let e = |value, low, high| {
        Some(Estimate { value, low, high, level: 0.95, n: 9, source: Source::Sampled, at_most: false })
    };
    r.rows[0].share = e(0.003, 0.001, 0.009);
    r.rows[0].on_cpu_ns = e(11_000.0, 10_000.0, 12_500.0);
    r.rows[0].rate_hz = e(1_500.0, 1_400.0, 1_600.0);
    let page = page_of(&r);
    for tip in [
        "title=\"0.30 % (0.10 % to 0.90 %, 95 %), n = 9, sampled\"",
        "title=\"11.0 us (10.0 us to 12.5 us, 95 %), n = 9, sampled\"",
        "title=\"1.50 k /s (1.40 k /s to 1.60 k /s, 95 %), n = 9, sampled\"",
    ] {
        assert!(page.contains(tip), "{tip}: {page}");
    }
    // HOW is sorted by the part of the run.
    assert!(
        page.contains("<td data-v=\"1\">trace</td>") && page.contains("<td data-v=\"0\">sample</td>"),
        "{page}"
    );
}

/// The boxes are the stacks of flame.svg: places and widths, by callers.
#[test]
fn the_flame_graph_has_the_folded_stacks() {
    let folded = String::from_utf8(
        render(&report(), &recording(), FileFormat::Folded, TextOptions::default()).unwrap(),
    )
    .unwrap();
    let all: u64 = folded.lines().map(|l| l.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    let page = page_of(&report());
    let boxes: Vec<&str> =
        page.lines().filter(|line| line.starts_with("<span class=\"") && line.contains("--x:")).collect();
    assert!(
        boxes[0].contains(&format!(
            "--x:0;--w:1;--y:0\" title=\"all&#10;&#10;{all} of {all} samples, 100 %\">all</span>"
        )),
        "{}",
        boxes[0]
    );
    let frames: BTreeSet<String> = folded
        .lines()
        .flat_map(|line| {
            let stack = line.rsplit_once(' ').unwrap().0;
            stack
                .match_indices(';')
                .map(|(i, _)| stack[..i].to_owned())
                .chain([stack.to_owned()])
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(boxes.len(), frames.len() + 1, "a box for each frame below each caller: {folded}\n{boxes:#?}");
    // Names as the table has them, whole ones in the tooltip.
    let mut named = report();
    named.rows[0].short_name = "query".into();
    let page = page_of(&named);
    assert!(page.contains("title=\"db::query&#10;") && page.contains(">query</span>"), "{page}");
    // Each box has its module, and the graph says what its widths are of.
    let mut other = recording();
    let module = other.stacks[0].module.clone();
    assert!(!module.is_empty() && page.contains(&format!("&#10;{module}&#10;")), "{page}");
    assert!(page.contains("data-of=\"samples\" style=") && page.contains("a box of k samples"), "{page}");
    other.samples[0].period_ns += 1;
    let page = super::page(&report(), &other, TextOptions::default(), &[]);
    assert!(page.contains("data-of=\"CPU time\"") && !page.contains("a box of k samples"), "{page}");
}
