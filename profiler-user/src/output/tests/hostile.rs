//! Names that a hostile target chose.

use super::*;
use profiler_core::recording::{ForksHeld, PrivateMemory};

/// What a hostile target calls itself, its functions, files and operations.
const HOSTILE: &str = "a\x1b]0;owned\x07b\nc\u{9b}2Jd\u{202e}e\u{200b}f\x7f";
/// How people see it.
const SHOWN: &str = "a\\x1b]0;owned\\x07b\\nc\\u{9b}2Jd\\u{202e}e\\u{200b}f\\x7f";

fn hostile() -> (Report, profiler_core::recording::Recording) {
    let mut report = report();
    sample::named_by_target(&mut report, HOSTILE);
    let receipt = &mut report.receipt;
    receipt.private_memory =
        Some(PrivateMemory { pages: 3, headroom_path: HOSTILE.into(), ..PrivateMemory::default() });
    receipt.forks_held = Some(ForksHeld { mappers: 7, module: HOSTILE.into(), ..ForksHeld::default() });
    let mut recording = recording();
    for frame in &mut recording.stacks {
        frame.function = HOSTILE.into();
        frame.file = HOSTILE.into();
    }
    (report, recording)
}

#[test]
fn names_of_a_hostile_target_do_not_reach_a_terminal() {
    use profiler_core::text::is_hidden;
    let (report, recording) = hostile();
    let wide = TextOptions { width: 400, ..TextOptions::default() };
    for format in [FileFormat::Text, FileFormat::Html, FileFormat::Svg, FileFormat::Folded] {
        let text = String::from_utf8(render(&report, &recording, format, wide).unwrap()).unwrap();
        let bad: Vec<char> =
            text.chars().filter(|c| is_hidden(*c) && !matches!(c, '\n' | '\t' | '\r')).collect();
        assert!(bad.is_empty(), "{format:?}: {bad:?}");
        assert!(
            text.contains(SHOWN) || format == FileFormat::Folded && text.contains("a\\x1b]0:owned"),
            "{format:?}: {text}"
        );
    }
    let text = text(&report, wide);
    let title = text.lines().next().unwrap();
    assert!(title.starts_with(&format!("{SHOWN} (pid 1234): ")), "a title is one line: {title}");
    let svg = String::from_utf8(render(&report, &recording, FileFormat::Svg, wide).unwrap()).unwrap();
    let title = svg.lines().find(|l| l.contains("on-CPU samples")).unwrap();
    assert!(title.contains("(pid 1234)"), "{title}");
    let folded = String::from_utf8(render(&report, &recording, FileFormat::Folded, wide).unwrap()).unwrap();
    assert!(folded.lines().all(|l| l.rsplit(' ').next().unwrap().parse::<u64>().is_ok()), "{folded}");
    // Colours of our own are all that speaks to a terminal.
    let coloured = crate::output::text(&report, TextOptions { colours: true, ..wide });
    let printed = profiler_core::text::printable_text(&coloured, &crate::terminal::SEQUENCES).into_owned();
    assert_eq!(printed, coloured);
    assert!(coloured.contains("\x1b[1m") && !coloured.contains("\x1b]"));
}

#[test]
fn files_for_programs_keep_the_names_and_escape_them() {
    use profiler_core::text::is_hidden;
    let (report, recording) = hostile();
    for format in [FileFormat::Json, FileFormat::Speedscope, FileFormat::Firefox, FileFormat::Chrome] {
        let bytes = render(&report, &recording, format, TextOptions::default()).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.chars().all(|c| c == '\n' || !is_hidden(c)), "{format:?}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        fn holds(value: &serde_json::Value) -> bool {
            match value {
                serde_json::Value::String(text) => text.contains(HOSTILE),
                serde_json::Value::Array(list) => list.iter().any(holds),
                serde_json::Value::Object(map) => map.iter().any(|(k, v)| k.contains(HOSTILE) || holds(v)),
                _ => false,
            }
        }
        assert!(holds(&value), "{format:?} keeps the name");
    }
    let profile = render(&report, &recording, FileFormat::Pprof, TextOptions::default()).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(profile.as_slice()).read_to_end(&mut bytes).unwrap();
    assert!(bytes.windows(HOSTILE.len()).any(|w| w == HOSTILE.as_bytes()), "pprof keeps the name");
}
