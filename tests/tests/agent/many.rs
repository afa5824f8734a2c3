//! Hundreds of functions are looked at and attached while others are traced: those keep their quotas.

use super::{paced_calls, recording, sleep_ms, start, working_target};
use profiler_tests::program;
use profiler_tests::support::Agent;

/// A quota lasts half a second; a library with 3,000 named functions comes, which takes longer than that to look at and to
/// attach. What is traced meanwhile counts every call and does not trip.
#[test]
fn traced_functions_keep_their_quotas_while_hundreds_are_attached() {
    let Some(folder) = start("traced_functions_keep_their_quotas_while_hundreds_are_attached") else {
        return;
    };
    let mut target = working_target();
    let arguments = [
        "--only-named",
        "--budget",
        "40ms/s",
        "--count",
        "entry_push",
        "--count",
        "libmany.so:many*",
        "--force-tier",
        "A",
    ];
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_tracing();
    // The quota follows the rate; of this budget little is left over that could stretch it.
    let mut calls = paced_calls(&mut target, "entry_push", 1, 10_000, 1_000);
    target.start_background("entry_push", 1, 10_000, 1);
    sleep_ms(500);
    target.command(&format!("load {}", program("libmany.so").display()));
    sleep_ms(6_000);
    calls += target.stop_background().calls;
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    let recorded = recording(&path);
    let id = finished.row("entry_push").class_id.expect("it is a class");
    let windows: Vec<_> = recorded.windows.iter().filter(|w| w.class_id == id).collect();
    assert!(windows.iter().all(|w| !w.tripped), "{windows:?}; {}", finished.messages);
    assert_eq!(windows.iter().map(|w| w.kept).sum::<u64>(), calls, "{windows:?}; {}", finished.messages);
    let many = recorded.classes.iter().filter(|c| c.name.starts_with("many")).map(|c| c.class_id);
    let attached = many.filter(|id| recorded.windows.iter().any(|w| w.class_id == *id)).count();
    assert!(attached >= 200, "{attached} functions of the library were attached; {}", finished.messages);
    target.assert_text_original();
}
