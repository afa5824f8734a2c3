//! Files that many processes map are attached to in pauses, because every fork of the machine waits meanwhile.

use super::{recording, sleep_ms, start};
use profiler_tests::program;
use profiler_tests::support::{Agent, Target};
use std::collections::BTreeSet;
use std::time::Instant;

/// Processes that map the library, beside the target.
const SLEEPERS: u32 = 400;

#[test]
fn a_library_that_many_map_is_attached_to_in_pauses() {
    let Some(folder) = start("a_library_that_many_map_is_attached_to_in_pauses") else { return };
    let library = program("libmany.so");
    let load = format!("load {}", library.display());
    let mut crowd = Target::start("crowd");
    crowd.command(&load);
    crowd.command(&format!("sleepers {SLEEPERS}"));
    let mut target = Target::start("crowd");
    target.command(&load);

    let begun = Instant::now();
    let mut agent = Agent::start(target.pid(), folder.path(), &["--count", "libmany.so:many0*"]);
    agent.wait_attached();
    sleep_ms(4_000);
    let written = agent.recording().to_owned();
    let finished = agent.stop();
    let seconds = begun.elapsed().as_secs_f64();

    assert!(target.is_alive(), "{}", finished.messages);
    target.assert_text_original();
    let report = finished.report.as_ref().unwrap_or_else(|| panic!("no report: {}", finished.messages));
    let held = report.receipt.forks_held.clone().expect("others map the library");
    // The one that forked them maps it, too.
    assert!((SLEEPERS..SLEEPERS + 20).contains(&held.mappers), "{held:?}");
    assert!(held.module.ends_with("libmany.so"), "{held:?}");
    assert_eq!(held.refused, 0, "{held:?}");
    // What is allowed: 4 ms at once, and 4 ms a second; the last link may go beyond it by its own length.
    let held_s = held.held_ns as f64 * 1e-9;
    assert!(held_s <= 0.004 * (seconds + 1.0) + 0.008, "{held:?} in {seconds:.1} s");
    assert!(held.longest_ns < 8_000_000, "{held:?}");
    // Thousand functions take longer than that; some are there.
    let attached = recording(&written).windows.iter().map(|w| w.class_id).collect::<BTreeSet<_>>().len();
    assert!(
        (10..700).contains(&attached),
        "{attached} of 1000 functions were attached in {seconds:.1} s: {held:?}"
    );
    assert!(held.registrations as usize >= 2 * attached, "{attached} functions, {held:?}");
}

#[test]
fn nobody_waits_for_pauses_when_the_target_has_ended() {
    let Some(folder) = start("nobody_waits_for_pauses_when_the_target_has_ended") else { return };
    let load = format!("load {}", program("libmany.so").display());
    let mut crowd = Target::start("crowd");
    crowd.command(&load);
    crowd.command(&format!("sleepers {SLEEPERS}"));
    let mut target = Target::start("crowd");
    target.command(&load);
    // More than have their turn in that time.
    let names = ["--count", "libmany.so:many0*", "--count", "libmany.so:many1*"];
    let mut agent = Agent::start(target.pid(), folder.path(), &names);
    agent.wait_attached();
    // Detaching what was attached in so long takes as long in pauses.
    sleep_ms(8_000);
    target.kill();
    let ended = Instant::now();
    let finished = agent.finish();
    let seconds = ended.elapsed().as_secs_f64();
    let report = finished.report.as_ref().unwrap_or_else(|| panic!("no report: {}", finished.messages));
    let held = report.receipt.forks_held.clone().expect("others map the library");
    assert!(seconds < 5.0, "the agent ended {seconds:.1} s after its target: {held:?}");
    // What never had its turn is not kept quiet.
    assert!(
        report.receipt.not_observed.iter().any(|row| row.why.contains("before its turn")),
        "{:?}",
        report.receipt.not_observed
    );
}

#[test]
fn a_program_that_nobody_else_maps_is_attached_to_at_once() {
    let Some(folder) = start("a_program_that_nobody_else_maps_is_attached_to_at_once") else { return };
    let mut target = Target::start("pages");
    let mut agent = Agent::start(target.pid(), folder.path(), &["--count", "page*"]);
    agent.wait_tracing();
    target.command("call 20");
    let finished = agent.stop();
    assert_eq!(finished.hits("page000"), 20);
    let report = finished.report.as_ref().unwrap_or_else(|| panic!("no report: {}", finished.messages));
    // Another test may run the same program now; two visits a site are nothing.
    if let Some(held) = &report.receipt.forks_held {
        assert!(held.mappers <= 2 && held.longest_ns < 1_000_000, "{held:?}");
    }
}
