//! The price between two time stamps is measured in the target: what is left of calls that take next to no time.

use super::{recording, start, working_target};
use profiler_core::estimate::Estimate;
use profiler_core::recording::{EventRow, WindowKind};
use profiler_tests::support::{Agent, Target};

/// These functions do a few instructions.
const LONGEST_NS: f64 = 60.0;

#[test]
fn calls_of_no_time_are_limits_once_their_price_is_known() {
    let Some(folder) = start("calls_of_no_time_are_limits_once_their_price_is_known") else { return };
    for function in ["entry_push", "entry_endbr_push", "entry_sub"] {
        let mut target = working_target();
        // Far more than the budget lets be traced: it is watched in bursts, with time for the pair between them.
        target.start_background(function, 1, 50_000, 1);
        let folder = folder.path().join(function);
        std::fs::create_dir(&folder).expect("the folder is new");
        let arguments = ["--budget", "2%", "--latency", function, "--only-named", "--duration", "6s"];
        let agent = Agent::start_plain(target.pid(), &folder, &arguments);
        let path = agent.recording().to_owned();
        let finished = agent.finish();
        let recorded = recording(&path);
        let row = finished.row(function);
        let of = |id: u32| recorded.windows.iter().filter(move |w| w.class_id == id);
        let id = row.class_id.expect("what is timed is a class");
        let pair = recorded.classes.iter().find(|c| c.stamps_of == Some(id));
        let pair = pair.unwrap_or_else(|| panic!("{function} has no pair: {:?}", recorded.classes));
        let context =
            || format!("{row:?}\n{:?}\n{}", of(pair.class_id).collect::<Vec<_>>(), finished.messages);
        let intervals: u64 = of(pair.class_id).map(|w| w.returns).sum();
        assert!(intervals >= 30, "{function}: {intervals} intervals: {}", context());
        // What the pair took is charged, counted and no function.
        assert!(of(pair.class_id).all(|w| w.attempted == w.kept + w.gated + w.dropped), "{}", context());
        assert!(finished.report().rows.iter().all(|r| r.class_id != Some(pair.class_id)), "{}", context());
        // The truth is in every interval, and none of them is 0.
        let holds = |e: &Estimate| e.low <= LONGEST_NS && e.high > 0.0 && (e.at_most || e.value > 0.0);
        let mean = row.mean_ns.unwrap_or_else(|| panic!("{function} has no mean: {}", context()));
        let median = row.quantiles_ns.iter().find(|(p, _)| *p == 0.5).map(|(_, e)| *e);
        assert!(holds(&mean) && median.as_ref().is_some_and(holds), "{function}: {}", context());
        target.stop_background();
        assert!(target.is_alive());
        target.assert_text_original();
    }
}

/// The survey looks at functions inside calls that are recorded: its hits make these longer, and are none of their time.
#[test]
fn what_the_survey_takes_inside_a_call_is_told_apart() {
    let Some(folder) = start("what_the_survey_takes_inside_a_call_is_told_apart") else { return };
    // 2,000 of its inner calls take some 4 % of its time. The survey looks at functions with three samples in the first seconds: of a thread that works for
    // a third of the time they were fewer now and then.
    let mut target = Target::start("calls");
    target.start_background("mix", 1, 500, 1);
    let arguments = ["--budget", "5%", "--record", "calls:mix", "--duration", "8s"];
    let agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    let recorded = recording(&path);
    let class = |name: &str| recorded.classes.iter().find(|c| c.name == name);
    let outer = class("mix").expect("it is recorded").class_id;
    let names: Vec<&str> = recorded.classes.iter().map(|c| &*c.name).collect();
    let inner = class("mix_fast").unwrap_or_else(|| panic!("samples show {names:?}: {}", finished.messages));
    let inner = inner.class_id;
    let surveys: Vec<_> = recorded
        .windows
        .iter()
        .filter(|w| w.kind == WindowKind::Survey && w.class_id == inner && w.attempted > 100)
        .collect();
    let is_inside = |e: &&EventRow| {
        let end_ns = e.time_ns + e.duration_ns.unwrap_or(0);
        surveys.iter().any(|w| e.time_ns < w.end_ns && end_ns > w.start_ns)
    };
    let calls = || recorded.events.iter().filter(|e| e.class_id == outer);
    // Its own probes, and samples.
    let mut usual: Vec<u64> = calls().filter(|e| !is_inside(e)).filter_map(|e| e.nested_cost_ns).collect();
    usual.sort_unstable();
    let usual_ns = usual.get(usual.len() / 2).copied().expect("most are in no survey");
    let inside: Vec<u64> =
        calls().filter(is_inside).map(|e| e.nested_cost_ns.unwrap_or(0).saturating_sub(usual_ns)).collect();
    // A hit takes 300 ns on the fastest machine. Windows before the calls are recorded have none inside; of those that end in a call it has most of the hits.
    let most_ns = inside.iter().max().copied().unwrap_or(0);
    assert!(most_ns > 100 * 300, "{inside:?}, usual {usual_ns}: {surveys:?}\n{}", finished.messages);
    target.stop_background();
    assert!(target.is_alive());
    target.assert_text_original();
}
