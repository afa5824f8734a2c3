//! The target programs tell the truth: a test of the tests. No root, no kernel features.

use profiler_tests::support::{Target, changed_text};
use std::time::Duration;

#[test]
fn every_entry_counts_its_calls_on_one_and_eight_threads() {
    let mut target = Target::start("calls");
    for function in [
        "entry_push",
        "entry_nop",
        "entry_nop5",
        "entry_endbr_push",
        "entry_mov",
        "entry_sub",
        "entry_test_je",
        "exits_two",
        "exits_tail_jump",
        "entry_loop_head",
        "inner",
        "operation_done",
        "big0",
        "big1999",
    ] {
        assert_eq!(target.call(function, 1_000, 1).calls, 1_000, "{function}");
        assert_eq!(target.call(function, 500, 8).calls, 4_000, "{function}");
    }
    assert_eq!(target.count("entry_push"), 5_000);
    assert_eq!(target.call("big", 3, 1).calls, 6_000);
    assert!(target.quit().success());
}

#[test]
fn entries_begin_with_the_promised_instruction() {
    let mut target = Target::start("calls");
    for (function, bytes) in [
        ("entry_push", &[0x55_u8][..]),
        ("entry_nop", &[0x90]),
        ("entry_nop5", &[0x0f, 0x1f, 0x44, 0x00, 0x00]),
        ("entry_endbr_push", &[0xf3, 0x0f, 0x1e, 0xfa, 0x55]),
        ("entry_mov", &[0x48, 0x89, 0xf8]),
        ("entry_sub", &[0x48, 0x83, 0xec, 0x18]),
        ("entry_test_je", &[0x48, 0x85, 0xff, 0x74]),
        ("big1234", &[0x55]),
        ("recurse", &[0x55]),
    ] {
        assert_eq!(target.function_bytes(function, bytes.len()), bytes, "{function}");
    }
}

#[test]
fn recursion_nesting_and_sleep_have_known_truth() {
    let mut target = Target::start("calls");
    assert_eq!(target.call_with("recurse", 2, 1, 1_000).calls, 2_000);
    let inner_before = target.count("inner");
    assert_eq!(target.call_with("outer", 5, 2, 100).calls, 10);
    assert_eq!(target.count("inner") - inner_before, 1_000);
    let slept = target.call_with("sleep_us", 3, 1, 10_000);
    assert!(slept.wall >= Duration::from_millis(30) && slept.cpu < Duration::from_millis(15), "{slept:?}");
    assert_eq!(target.call_with("operation", 10, 1, 10).calls, 10);
    assert_eq!(target.count("operation_done"), 10);
    assert_eq!(target.call("mix", 1, 1).calls, 1);
    assert_eq!(
        (target.count("mix_slow"), target.count("mix_middle"), target.count("mix_fast")),
        (1, 10, 2_000)
    );
}

#[test]
fn background_calls_keep_their_pace_and_can_explode() {
    let mut target = Target::start("calls");
    target.start_background("entry_push", 1, 10, 1);
    std::thread::sleep(Duration::from_millis(450));
    let slow = target.count("entry_push");
    assert!((2..=6).contains(&slow), "{slow} calls in 0.45 s at 10 a second");
    target.pace(0);
    std::thread::sleep(Duration::from_millis(50));
    target.take_stall();
    target.signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(30));
    target.signal(libc::SIGCONT);
    std::thread::sleep(Duration::from_millis(20));
    let stall = target.take_stall();
    assert!(stall >= Duration::from_millis(25), "stopped for 30 ms, the longest stall seen is {stall:?}");
    let exploded = target.stop_background();
    assert!(exploded.calls > 10_000, "{exploded:?}");
    assert_eq!(target.count("entry_push"), exploded.calls);
}

#[test]
fn a_forked_child_makes_its_own_calls() {
    let mut target = Target::start("calls");
    assert_eq!(target.call_in_fork("entry_push", 10_000).calls, 10_000);
    assert_eq!(target.count("entry_push"), 0);
}

#[test]
fn hazards_are_right_when_nobody_watches() {
    let mut target = Target::start("hazards");
    assert_eq!(target.command("backtrace 10").number("seen"), 10);
    assert_eq!(target.command("fibers 10").number("switches"), 10);
    assert_eq!(target.command("sigaltstack 10").number("handled"), 10);
    assert_eq!(target.command("pthread_exit 3").number("ended"), 3);
    assert_eq!(target.command("threads 1000 2").number("calls"), 2_000);
    assert_eq!(target.command("births 20").number("calls"), 20);
    let plugin = profiler_tests::program("libplugin.so");
    assert_eq!(target.command(&format!("dlopen {} 5", plugin.display())).number("calls"), 5);
    target.exec(&profiler_tests::program("cpp_throw"));
    assert_eq!(target.command("throw 2").number("caught"), 2);

    let mut cpp = Target::start("cpp_throw");
    assert_eq!(cpp.command("throw 5").number("caught"), 5);
    assert_eq!(cpp.command("plain 5").number("returned"), 5);
}

#[test]
fn a_patched_function_shows_as_changed_text() {
    let mut target = Target::start("hazards");
    target.assert_text_original();
    assert_eq!(target.command("patched 2").number("sum"), 2);
    target.command("patch");
    assert_eq!(target.command("patched 2").number("sum"), 4);
    let changes = changed_text(target.pid()).expect("the target runs");
    assert!(!changes.is_empty(), "the patch was not seen");
}

#[test]
fn rust_panics_are_caught() {
    let mut target = Target::start("rust-panic");
    assert_eq!(target.command("panic 5").number("caught"), 5);
    assert_eq!(target.command("plain 5").number("returned"), 5);
}

#[test]
#[should_panic(expected = "the target ended")]
fn a_dead_target_is_reported_with_its_fate() {
    let mut target = Target::start("calls");
    target.signal(libc::SIGKILL);
    target.call("entry_push", 1, 1);
}
