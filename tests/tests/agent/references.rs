//! Functions whose hits hide how often they are called are watched beside a slower one, or while one is traced: how many calls come on one of its tells the rate.

use super::{recording, start};
use profiler_core::recording::{BesideRow, Recording, WindowKind, WindowRow};
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

/// A burst holds a dozen calls of the function that is traced, or one; of all bursts together they tell what no price does.
#[test]
fn functions_that_are_traced_tell_the_rates_of_others() {
    let Some(folder) = start("functions_that_are_traced_tell_the_rates_of_others") else {
        return;
    };
    let mut target = Target::start("calls");
    // 100 x 200 calls in each call of the slowest one, which is traced: some thousand a second.
    target.start_background("woven_slow", 1, 0, 1);
    let arguments = ["--budget", "5%", "--duration", "20s", "--trace", "woven_slow"];
    let agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    let recorded = recording(&path);
    let (middle, slow) = (row(finished.report(), "woven"), row(finished.report(), "woven_slow"));
    let id = |row: &Row| row.class_id.expect("it was watched");
    let rows: Vec<&BesideRow> =
        recorded.beside.iter().filter(|of| of.class_id == id(middle) && of.beside_id == id(slow)).collect();
    let sum = |of: fn(&BesideRow) -> u64| rows.iter().map(|row| of(row)).sum::<u64>();
    let (calls, beside) = (sum(|of| of.calls), sum(|of| of.beside_calls));
    let context = || format!("{middle:?}\n{slow:?}\n{calls} beside {beside} in {} bursts", rows.len());
    // Each of its bursts has a row, and every call is in it, those that a used-up quota turned away, too.
    let bursts = recorded.windows.iter().filter(|w| w.class_id == id(middle) && w.kind == WindowKind::Burst);
    let bursts: Vec<&WindowRow> = bursts.filter(|w| w.link.is_none() && w.start_ns < w.end_ns).collect();
    let of = |w: &&&WindowRow| rows.iter().any(|row| row.start_ns == w.start_ns && row.calls <= w.attempted);
    assert!(rows.len() >= 10 && bursts.iter().filter(of).count() + 2 >= bursts.len(), "{}", context());
    // A hundred for each, whatever hits cost, but for what is cut off at both ends of each burst.
    let ends = 2.0 * (rows.len() as f64).sqrt() / beside as f64;
    assert!((calls as f64 / beside as f64 / 100.0 - 1.0).abs() < 0.02 + ends, "{}", context());
    let (rate, of_slow) = (middle.rate_hz.expect("it was called"), slow.rate_hz.expect("it was called"));
    let truth = target.count("woven") as f64 / target.count("woven_slow") as f64;
    assert!((truth / 100.0 - 1.0).abs() < 0.01, "{truth}");
    assert!((rate.low..=rate.high).contains(&(truth * of_slow.value)), "{}", context());
    target.stop_background();
    target.assert_text_original();
}
