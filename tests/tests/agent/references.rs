//! Functions whose hits are dear against the time between two calls are watched beside a slower one, which tells what a hit costs.

use super::{recording, start, working_target};
use profiler_core::recording::{Recording, WindowKind, WindowRow};
use profiler_core::report::{Report, Row};
use profiler_tests::support::Agent;

/// Half of an interval over its value.
fn half(row: &Row) -> f64 {
    row.calls.map_or(f64::INFINITY, |calls| (calls.high - calls.low) / 2.0 / calls.value)
}

fn row<'r>(report: &'r Report, name: &str) -> &'r Row {
    report.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no {name}: {:?}", report.rows))
}

#[test]
fn calls_that_hits_would_hide_are_known_by_a_slower_function_beside_them() {
    let Some(folder) = start("calls_that_hits_would_hide_are_known_by_a_slower_function_beside_them") else {
        return;
    };
    let mut target = working_target();
    // Two hundred calls of some 50 ns in each call of the slower one; a hit takes several times as long.
    target.start_background("woven", 1, 0, 1);
    let agent = Agent::start_plain(target.pid(), folder.path(), &["--budget", "5%", "--duration", "15s"]);
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    let recorded = recording(&path);
    let (fast, slow) = (row(finished.report(), "woven_fast"), row(finished.report(), "woven"));
    let id = |row: &Row| row.class_id.expect("it was watched");
    let beside =
        |w: &&WindowRow| w.kind == WindowKind::Burst && w.class_id == id(slow) && w.link == Some(id(fast));
    let windows: Vec<&WindowRow> = recorded.windows.iter().filter(beside).collect();
    let context = || format!("{fast:?}\n{slow:?}\n{} windows\n{}", windows.len(), finished.messages);
    assert!(windows.len() >= 10, "{}", context());
    // Two hundred for each, whatever was watched when.
    let (calls, of_slow) = (fast.calls.expect("it was called"), slow.calls.expect("it was called"));
    let truth = (200.0 * of_slow.low, 200.0 * of_slow.high);
    assert!(calls.low < truth.1 && truth.0 < calls.high && calls.high.is_finite(), "{}", context());
    // Without what the reference tells, the price hides the rate.
    let alone = Recording {
        windows: recorded.windows.iter().filter(|w| !beside(w)).cloned().collect(),
        ..recorded.clone()
    };
    let alone = Report::from_recording(&alone);
    let narrow = (half(fast), half(row(&alone, "woven_fast")));
    assert!(narrow.0 < 0.5 * narrow.1, "{narrow:?}: {}", context());
    target.stop_background();
    target.assert_text_original();
}
