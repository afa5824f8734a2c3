//! Functions whose hits hide how often they are called are watched beside a slower one: how many calls come on one of its tells the rate.

use super::{recording, start};
use profiler_core::recording::{Recording, WindowKind, WindowRow};
use profiler_core::report::{Report, Row};
use profiler_tests::support::{Agent, Target};

/// Half of the interval of the rate, over its value.
fn half(row: &Row) -> f64 {
    row.rate_hz.map_or(f64::INFINITY, |rate| (rate.high - rate.low) / 2.0 / rate.value)
}

fn row<'r>(report: &'r Report, name: &str) -> &'r Row {
    report.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no {name}: {:?}", report.rows))
}

#[test]
fn calls_that_hits_would_hide_are_known_by_a_slower_function_beside_them() {
    let Some(folder) = start("calls_that_hits_would_hide_are_known_by_a_slower_function_beside_them") else {
        return;
    };
    let mut target = Target::start("calls");
    // Two hundred calls of some 50 ns in each call of the slower one; a hit takes many times as long.
    target.start_background("woven", 1, 0, 1);
    let agent = Agent::start_plain(target.pid(), folder.path(), &["--budget", "5%", "--duration", "20s"]);
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    let recorded = recording(&path);
    let (fast, slow) = (row(finished.report(), "woven_fast"), row(finished.report(), "woven"));
    let id = |row: &Row| row.class_id.expect("it was watched");
    let beside = |w: &&WindowRow| w.class_id == id(slow) && w.link == Some(id(fast));
    let windows: Vec<&WindowRow> = recorded.windows.iter().filter(beside).collect();
    let context = || format!("{fast:?}\n{slow:?}\n{} windows", windows.len());
    assert!(windows.len() >= 4 && windows.iter().all(|w| w.kind == WindowKind::Burst), "{}", context());
    let (rate, of_slow) = (fast.rate_hz.expect("it was called"), slow.rate_hz.expect("it was called"));
    // Two hundred for each, by the program's own count, too, whatever hits cost, whenever it was watched, and however fast the machine was then.
    let truth = target.count("woven_fast") as f64 / target.count("woven") as f64;
    let ratio = rate.value / of_slow.value;
    assert!((truth / 200.0 - 1.0).abs() < 0.01, "{truth}");
    assert!((ratio / truth - 1.0).abs() < 0.1 && rate.high.is_finite(), "{ratio}: {}", context());
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
