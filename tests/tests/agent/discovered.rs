//! Functions that nobody named: samples are asked for them twice.

use super::{recording, start};
use profiler_core::recording::WindowKind;
use profiler_tests::support::{Agent, Target};

/// The four frames around the three functions that are called (of the thread's start, and of the program's loop) are on each stack and never called. With six places one of the three may be left out at first, for which of those that are on nearly every
/// stack come first is chance; later it has the place of one that is never called.
#[test]
fn what_is_never_called_takes_no_place_for_long() {
    let Some(folder) = start("what_is_never_called_takes_no_place_for_long") else { return };
    let mut target = Target::start("calls");
    target.start_background("woven_slow", 1, 0, 1);
    let arguments = ["--budget", "5%", "--duration", "14s", "--discover", "6"];
    let agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    let recorded = recording(&path);
    let classes: Vec<(u32, &str)> =
        recorded.classes.iter().filter(|c| c.stamps_of.is_none()).map(|c| (c.class_id, &*c.name)).collect();
    let surveyed = |id: u32| {
        let of = recorded.windows.iter().filter(|w| w.class_id == id && w.kind == WindowKind::Survey);
        of.map(|w| w.attempted).sum::<u64>()
    };
    let never: Vec<&str> =
        classes.iter().filter(|(id, _)| surveyed(*id) == 0).map(|(_, name)| *name).collect();
    assert!(!never.is_empty(), "nothing that is never called was found first: {classes:?}");
    for name in ["woven_slow", "woven", "woven_fast"] {
        let calls = finished.report().rows.iter().find(|row| row.name == name).map_or(0, |row| row.attempted);
        assert!(calls > 0, "{name}: {calls} calls; {never:?} of {classes:?} are never called");
    }
    // All others were tried, and not called.
    assert_eq!(classes.len() - never.len(), 3, "{never:?} of {classes:?} are never called");
    target.stop_background();
    target.assert_text_original();
}

/// The functions on nearly every stack may not be traced, and the one that takes most of the rest: the only place is that of the next.
#[test]
fn what_is_never_to_be_traced_takes_no_place() {
    let Some(folder) = start("what_is_never_to_be_traced_takes_no_place") else { return };
    let mut target = Target::start("calls");
    target.start_background("mix", 1, 0, 1);
    let never = ["libc.so.6:*", "call_paced", "work", "worker_main", "mix", "burn", "mix_slow"];
    let mut arguments = vec!["--budget", "5%", "--duration", "5s", "--discover", "1"];
    arguments.extend(never.iter().flat_map(|name| ["--never", name]));
    let agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    let path = agent.recording().to_owned();
    agent.finish();
    let recorded = recording(&path);
    let found: Vec<&str> =
        recorded.classes.iter().filter(|c| c.stamps_of.is_none()).map(|c| &*c.name).collect();
    assert_eq!(found, ["mix_middle"]);
    target.stop_background();
    target.assert_text_original();
}
