//! Functions inside operations that are attached for a part of the time.

use super::operations::{A_FIFTH, follow, stop, sums};
use super::{sleep_ms, start};
use profiler_core::class::Source;
use profiler_core::recording::WindowRow;
use profiler_tests::program;
use profiler_tests::support::{Target, monotonic_ns};

/// Requests a second and thread, threads, types.
const LOAD: &str = "start 20000 2 6";

/// Share recorded of all requests, and hits of `allocate` (one a request) over requests. Whatever is recorded has its measure.
fn shares(name: &str, more: &[&str]) -> Option<(f64, f64, String)> {
    let folder = start(name)?;
    let mut target = Target::start("requests");
    let mut arguments = vec![
        "--operation",
        "req=handle,class=arg1:int",
        "--measure",
        "requests:allocate:arg0",
        "--adapt",
        "revise_s=0.5",
    ];
    arguments.extend(more);
    let agent = follow(&target, &folder, &arguments);
    target.command(LOAD);
    sleep_ms(10_000);
    let served = target.command("stop").number("requests");
    sleep_ms(100);
    let (finished, recorded) = stop(agent);
    let all = |of| sums(&recorded, of).values().sum::<u64>();
    let context = format!("{:?}\n{}", recorded.operation_windows, finished.messages);
    assert_eq!(all(|w| w.population), served, "{context}");
    let rows = recorded.operations.len() as u64;
    assert_eq!(all(|w| w.recorded), rows + all(|w| w.dropped), "{context}");
    for row in &recorded.operations {
        let class =
            recorded.operation_classes.iter().find(|c| c.class_id == row.class_id).expect("its class");
        let type_: u64 = class.class_name.parse().expect("a number");
        assert_eq!(row.measure, 100 * (type_ + 1), "{row:?}");
    }
    // Rows and report say what slices stand for.
    let sliced = recorded.operation_windows.iter().any(|w| w.sliced == Some(true));
    assert_eq!(sliced, finished.messages.contains("in slices at random"), "{context}");
    for class in &finished.report().operations[0].classes {
        let measure =
            class.measure.unwrap_or_else(|| panic!("nothing recorded of {}; {context}", class.name));
        let type_: f64 = class.name.parse().expect("a number");
        assert!((measure.value / (100.0 * (type_ + 1.0)) - 1.0).abs() < 1e-9, "{class:?}; {context}");
        assert!(!sliced || measure.source != Source::Exact, "{class:?}; {context}");
    }
    let meta = &recorded.meta.operations[0];
    let inner = recorded.windows.iter().filter(|w| meta.inner_classes.contains(&w.class_id));
    let hits: u64 = inner.map(|w| w.attempted).sum();
    assert!(target.is_alive());
    target.assert_text_original();
    Some((rows as f64 / served as f64, hits as f64 / served as f64, context))
}

#[test]
fn a_constant_rate_attaches_what_is_inside_for_its_share_of_the_time() {
    let name = "a_constant_rate_attaches_what_is_inside_for_its_share_of_the_time";
    let rate = ["--policy", "uni", "--adapt", "max_rate=0.2", "--adapt", "rate=0.2"];
    let Some((recorded, hit, context)) = shares(name, &rate) else { return };
    // Ten slices of 0.2 s, less what attaching takes, and the first half second whole.
    assert!((0.1..0.3).contains(&recorded), "{recorded} recorded, {hit} hit; {context}");
    assert!(hit < 0.5, "{recorded} recorded, {hit} hit; {context}");
    assert!(context.contains("are attached for 20 % of the time"), "{context}");
}

#[test]
fn without_slices_every_operation_pays() {
    let name = "without_slices_every_operation_pays";
    let rate = [
        "--policy",
        "uni",
        "--adapt",
        "max_rate=0.2",
        "--adapt",
        "rate=0.2",
        "--adapt",
        "attach_share=false",
    ];
    let Some((recorded, hit, context)) = shares(name, &rate) else { return };
    assert!((0.15..0.25).contains(&recorded) && hit > 0.9, "{recorded} recorded, {hit} hit; {context}");
}

#[test]
fn baselines_and_slices_go_together() {
    let name = "baselines_and_slices_go_together";
    // `tithe` has no baselines: what is not hit there is not hit because of slices.
    for policy in ["adp", "tithe"] {
        let more = ["--policy", policy, "--adapt", "baseline_s=0.5", "--adapt", "max_cycle_s=3"];
        let Some((recorded, hit, context)) = shares(name, &more) else { return };
        assert!(context.contains("of the time, in slices at random"), "{policy}; {context}");
        assert!(
            (0.02..0.6).contains(&recorded) && hit < 0.85,
            "{policy}: {recorded} recorded, {hit} hit; {context}"
        );
    }
}

#[test]
fn a_library_that_is_closed_takes_the_slices_with_it_and_brings_them_back() {
    let name = "a_library_that_is_closed_takes_the_slices_with_it_and_brings_them_back";
    let Some(folder) = start(name) else { return };
    let mut target = Target::start("requests");
    let load = format!("load {}", program("libplugin.so").display());
    assert_eq!(target.command(&load).number("loaded"), 1);
    let arguments = [
        "--operation",
        "req=handle,class=arg1:int",
        "--detail",
        "libplugin.so:plugin_function",
        "--measure",
        "requests:allocate:arg0",
    ];
    let agent = follow(&target, &folder, &[&arguments, &A_FIFTH[..]].concat());
    target.command(LOAD);
    sleep_ms(3_000);
    assert_eq!(target.command("unload").number("unloaded"), 1);
    let closed_ns = monotonic_ns();
    sleep_ms(5_000);
    let opened_ns = monotonic_ns();
    assert_eq!(target.command(&load).number("loaded"), 1);
    sleep_ms(5_000);
    target.command("stop");
    let (finished, recorded) = stop(agent);
    let context = format!("{:?}\n{}", recorded.windows, finished.messages);
    assert!(context.contains("cannot be attached now"), "{context}");
    let begun =
        |from: u64, to: u64| recorded.operations.iter().filter(|o| (from..to).contains(&o.begin_ns)).count();
    // The slice that ran when it was closed may go on to its end.
    let (before, without, after) =
        (begun(0, closed_ns), begun(closed_ns + 500_000_000, opened_ns), begun(opened_ns, u64::MAX));
    assert!(before > 1_000 && after > 1_000 && without == 0, "{before}, {without}, {after}; {context}");
    // Nobody pays for the other function meanwhile, but at a few attempts.
    let meta = &recorded.meta.operations[0];
    let allocate = recorded.windows.iter().filter(|w| meta.inner_classes.contains(&w.class_id));
    let meanwhile = |w: &&WindowRow| w.start_ns >= closed_ns + 500_000_000 && w.start_ns < opened_ns;
    let attached_ns: u64 = allocate.filter(meanwhile).map(|w| w.end_ns - w.start_ns).sum();
    assert!(attached_ns < 500_000_000, "attached for {attached_ns} ns; {context}");
    assert!(target.is_alive());
    target.assert_text_original();
}
