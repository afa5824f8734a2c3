//! Which rows there are, in which order, and what they are called.

use super::*;

/// Three classes, hottest first: `hot`, `warm` and `cold`, all attached all the time.
fn three() -> Recording {
    let mut r = sampled();
    r.classes = vec![class(1, "hot"), class(2, "warm"), class(3, "cold")];
    for (i, class) in [(0, 1), (1, 1), (2, 2)] {
        r.stacks[i].class_id = Some(class);
    }
    r.windows = (1..=3)
        .map(|id| plain_window(ClassId(id), WindowKind::Trace, (START, START + 10 * S), 1_000))
        .collect();
    r
}

fn names(r: &Recording) -> Vec<String> {
    Report::from_recording(r).rows.into_iter().map(|row| row.name).collect()
}

#[test]
fn what_the_user_named_comes_first_however_cold_it_is() {
    let mut r = three();
    assert_eq!(names(&r)[..3], ["hot", "warm", "cold"], "an older recording does not know who was named");
    r.classes[0].named = Some(false);
    r.classes[2].named = Some(true);
    assert_eq!(names(&r)[..3], ["cold", "hot", "warm"]);
    r.classes[0].named = Some(true);
    assert_eq!(names(&r)[..3], ["hot", "cold", "warm"], "among the named the hottest");
    let report = Report::from_recording(&r);
    assert_eq!(report.rows.iter().map(|row| row.named).filter(|named| *named).count(), 2);
    assert_no_nan(&report);
}

#[test]
fn rows_have_short_names_that_tell_them_apart() {
    let mut r = three();
    r.classes[0].name = "void db::Log<char>::put(int)".into();
    r.classes[1].name = "void db::Log<char>::put(long)".into();
    r.classes[2].name = "void db::Log<char>::flush(int)".into();
    let report = Report::from_recording(&r);
    let short: Vec<&str> = report.rows[..3].iter().map(Row::shown_name).collect();
    assert_eq!(short, ["db::Log::put(int)", "db::Log::put(long)", "db::Log::flush"]);
    assert_eq!(report.rows[0].name, "void db::Log<char>::put(int)");
}

/// Beside the extrapolation stands what was counted, and in which part of the run.
#[test]
fn what_was_counted_in_a_part_of_the_run_is_exact() {
    let mut r = empty();
    r.classes.push(class(1, "f"));
    r.windows = vec![window(WindowKind::Survey, 0.0, 0.5, 48), window(WindowKind::Burst, 3.0, 5.0, 204)];
    let mut tripped = window(WindowKind::Burst, 6.0, 6.5, 50);
    (tripped.tripped, tripped.gated, tripped.dropped, tripped.attempted) = (true, 7, 3, 60);
    r.windows.push(tripped);
    let report = Report::from_recording(&r);
    let f = row(&report, "f");
    assert_eq!(f.counted, Some(302), "hits after a quota was used up, and lost ones, are not counted");
    assert!((f.watched_share - 0.3).abs() < 1e-9 && f.calls.unwrap().value > 900.0, "{f:?}");
    assert_no_nan(&report);
    r.windows.clear();
    assert_eq!(Report::from_recording(&r).rows[0].counted, None, "it was never watched");
    let older: Row = serde_json::from_str(
        &serde_json::to_string(&report.rows[0]).unwrap().replace("watched_share", "attached"),
    )
    .unwrap();
    assert_eq!(older, report.rows[0]);
}
