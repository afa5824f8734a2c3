//! Arguments of recorded calls are what the caller passed, or null: of functions whose cheapest instruction stands behind one that has
//! overwritten some, with a return link and with exit sites.

use super::{recording, sleep_ms, start};
use profiler_core::class::{ExitMode, SiteClass};
use profiler_core::recording::{ClassRow, Recording};
use profiler_tests::support::{Agent, Finished, Target};
use std::path::Path;

const CALLS: u64 = 300;
const NAMES: [&str; 5] = ["push", "fourth", "unread", "second", "rounds"];

/// What the target passes.
fn passed() -> [u64; 6] {
    std::array::from_fn(|k| 0xa000_0000_0000_0008 + 16 * k as u64)
}

/// The agent beside the target, which calls each function; what was recorded.
fn run(program: &str, folder: &Path, arguments: &[&str], names: &[&str]) -> (Finished, Recording) {
    let mut target = Target::start(program);
    let always = ["--only-named", "--budget", "1000ms/s", "--no-ab"];
    let mut agent = Agent::start_plain(target.pid(), folder, &[&always[..], arguments].concat());
    agent.wait_tracing();
    sleep_ms(300);
    for name in names {
        assert_eq!(target.command(&format!("call {name} {CALLS}")).number("calls"), CALLS);
    }
    sleep_ms(200);
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    assert!(target.is_alive());
    target.assert_text_original();
    (finished, recording(&path))
}

/// The class of a function, and the arguments that all its records have; each is what was passed, or null.
fn recorded<'a>(recorded: &'a Recording, name: &str) -> (&'a ClassRow, [Option<u64>; 6]) {
    let class = recorded.classes.iter().find(|c| c.name == format!("takes_{name}")).expect("it is a class");
    let events: Vec<_> = recorded.events.iter().filter(|e| e.class_id == class.class_id).collect();
    assert!(events.len() as u64 >= CALLS / 2, "{name}: {} records, {:?}", events.len(), class.notes);
    let args = events[0].args;
    for event in events {
        assert_eq!(event.args, args, "{name}");
        for (k, (is, truth)) in event.args.into_iter().zip(passed()).enumerate() {
            assert!(is.is_none_or(|is| is == truth), "{name}: argument {k} is {is:x?}, {truth:x} was passed");
        }
    }
    (class, args)
}

/// Lost where the `push` is probed, there where the first instruction is.
fn assert_true_or_null(class: &ClassRow, args: [Option<u64>; 6], lost: usize) {
    let all = passed().map(Some);
    match class.site_class {
        SiteClass::Push => {
            let mut without = all;
            without[lost] = None;
            assert_eq!(args, without, "{class:?}");
            assert!(class.notes.iter().any(|note| note.contains("null in its records")), "{class:?}");
        }
        _ => assert_eq!((args, class.site), (all, class.address), "{class:?}"),
    }
}

fn true_or_null_in(program: &str, test: &str, exit: ExitMode) {
    let Some(folder) = start(test) else { return };
    let (finished, plain) = run(program, folder.path(), &["--record", "takes_*"], &NAMES);
    let of = |name| recorded(&plain, name);
    let (class, args) = of("push");
    assert_eq!(class.exit_mode, exit, "{}", finished.messages);
    assert_eq!(args, passed().map(Some));
    let (class, args) = of("fourth");
    assert_true_or_null(class, args, 3);
    let (class, args) = of("second");
    assert_true_or_null(class, args, 1);
    // Nothing reads it: no reason to step.
    let (class, args) = of("unread");
    assert_eq!(class.site_class, SiteClass::Push, "{class:?}");
    assert_true_or_null(class, args, 3);
    let (class, args) = of("rounds");
    assert_eq!(args, [None; 6], "{class:?}");
    assert!(class.notes.iter().any(|note| note.contains("arguments are null in its records")), "{class:?}");

    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let named = ["--record", "takes_*:arg1,arg3"];
    let (_, named) = run(program, folder.path(), &named, &NAMES[..4]);
    for name in &NAMES[..4] {
        let (class, args) = recorded(&named, name);
        assert_eq!(args, passed().map(Some), "{class:?}");
        assert_eq!(class.exit_mode, exit, "{class:?}");
    }
}

#[test]
fn arguments_are_true_or_null_with_a_return_link() {
    let test = "arguments_are_true_or_null_with_a_return_link";
    true_or_null_in("arguments", test, ExitMode::ReturnLink);
}

#[test]
fn arguments_are_true_or_null_with_exit_sites() {
    let test = "arguments_are_true_or_null_with_exit_sites";
    true_or_null_in("arguments_unlinked", test, ExitMode::ExitSites);
}

/// An operation is named after what was passed, although a cheaper site has lost it; where nothing has it, that is refused.
#[test]
fn an_operation_is_named_after_a_true_argument() {
    let Some(folder) = start("an_operation_is_named_after_a_true_argument") else { return };
    for program in ["arguments", "arguments_unlinked"] {
        let folder = folder.path().join(program);
        std::fs::create_dir(&folder).expect("the folder is empty");
        let operation = ["--operation", "req=takes_fourth,class=arg3:long", "--policy", "full"];
        let (finished, recorded) = run(program, &folder, &operation, &["fourth"]);
        let name = |id| {
            let class = recorded.operation_classes.iter().find(|c| c.class_id == id);
            class.expect("each class has a row").class_name.clone()
        };
        let truth = passed()[3].cast_signed().to_string();
        assert!(recorded.operations.len() as u64 >= CALLS / 2, "{}", finished.messages);
        assert!(recorded.operations.iter().all(|o| name(o.class_id) == truth), "{}", finished.messages);
    }
    let target = Target::start("arguments");
    let agent = Agent::start_plain(
        target.pid(),
        folder.path(),
        &["--operation", "req=takes_rounds..takes_push,class=arg0:long"],
    );
    let finished = agent.finish();
    assert!(finished.messages.contains("the target of a loop"), "{}", finished.messages);
}
