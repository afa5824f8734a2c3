//! The target programs tell the truth: a test of the tests. No root, no kernel features.

use profiler_tests::support::{Target, Twins, changed_text, monotonic_ns};
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
    // On a busy machine it gets a CPU again later.
    let mut stall = Duration::ZERO;
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(20));
        stall = stall.max(target.take_stall());
        if stall >= Duration::from_millis(25) {
            break;
        }
    }
    assert!(stall >= Duration::from_millis(25), "stopped for 30 ms, the longest stall seen is {stall:?}");
    let exploded = target.stop_background();
    assert!(exploded.calls > 10_000, "{exploded:?}");
    assert_eq!(target.count("entry_push"), exploded.calls);
}

/// `sub`, a register, its value: what the kernel steps over.
const STEPPED: [u8; 4] = [0x48, 0x83, 0xec, 0x08];

#[test]
fn a_function_and_its_twin_are_the_same_code_of_the_same_alignment() {
    let mut target = Twins::start();
    for (pair, begin, length) in [("push", &[0x55_u8][..], 24), ("stepped", &STEPPED[..], 9)] {
        let [(function, its), (twin, of_twin)] = Twins::names(pair).map(|name| target.code(&name, length));
        assert_eq!(its, of_twin, "{pair}");
        assert!(its.starts_with(begin), "{pair}: {its:x?}");
        assert_ne!(function, twin, "{pair}");
        assert_eq!((function % 64, twin % 64), (0, 0), "{pair}");
    }
}

#[test]
fn a_function_and_its_twin_take_turns_and_take_the_same_time() {
    for (pair, hz, calls, near) in
        [("push", 1_000_000, 20, 0.05), ("stepped", 100_000, 2, 0.05), ("push", 2_000, 1, 0.15)]
    {
        let mut target = Twins::start();
        target.work(pair, hz, 0);
        let begin = monotonic_ns();
        let borders: Vec<_> = (0..4).map(|_| target.watch_for(0.15)).map(|span| span.to_ns).collect();
        // What began in a slot is in it once it has ended.
        target.stop();
        let whole = target.between(begin, borders[3]);
        assert_eq!(whole.to_ns, borders[3]);
        let parts: Vec<_> = std::iter::once(whole.from_ns)
            .chain(borders.iter().copied())
            .zip(&borders)
            .map(|(from, to)| target.between(from, *to))
            .collect();
        for part in &parts {
            assert_eq!(part.calls, part.twin_calls, "{part:?}");
            assert!(part.calls > 0 && part.calls % calls == 0, "whole slices: {part:?}");
        }
        assert_eq!(parts.iter().map(|part| part.calls).sum::<u64>(), whole.calls, "each call in one slot");
        assert!((whole.ratio - 1.0).abs() < near, "the median of the slots, nobody watches: {whole:?}");
        // Interruptions fall on either; a truth of one function only, or of slices without pauses, would be off by a factor of two and more.
        let by_twin = whole.undisturbed_hz(whole.ratio).expect("it was called");
        let by_count = whole.calls as f64 / whole.seconds();
        assert!(
            (0.6..1.6).contains(&(by_twin / by_count)),
            "{by_twin} by the twin, {by_count} counted: {whole:?}"
        );
    }
}

/// Nobody watches, but the calls take as long as if somebody did: 25 us more of 5.
#[test]
fn the_twin_knows_the_rate_of_a_function_that_is_slowed() {
    let mut target = Twins::start();
    target.work("push", 100_000, 25_000);
    let slowed = target.watch_for(1.0);
    let by_count = slowed.calls as f64 / slowed.seconds();
    // 10 us of undisturbed time have become 35: up to 3.5 times as many calls as were made, fewer where it waits for a CPU.
    let gain = slowed.undisturbed_hz(1.0).expect("it was called") / by_count;
    assert!(
        slowed.ratio > 2.0 && gain > 1.1,
        "{gain} times the calls, and a call of 30 us over one of 5: {slowed:?}"
    );
    // All of the time is that of the calls of the one, of the other, and waiting.
    let ran_ns = slowed.calls as f64 * (slowed.ratio + 1.0) * slowed.twin_call_ns;
    let share = (ran_ns + slowed.waited_ns as f64) / (slowed.seconds() * 1e9);
    assert!((0.6..1.6).contains(&share), "{share} of the time: {slowed:?}");
    assert_eq!(slowed.calls, slowed.twin_calls);
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

/// Each program of the bench `durations` has the entries that it is asked about, and records every function on each thread.
#[test]
fn durations_have_four_entries_and_are_recorded() {
    for language in ["c", "cpp", "rust"] {
        let mut target = Target::start(&format!("durations-{language}"));
        for (form, bytes) in [
            ("nop5", &[0x0f_u8, 0x1f, 0x44, 0x00, 0x00][..]),
            ("endbr", &[0xf3, 0x0f, 0x1e, 0xfa, 0x55]),
            ("sub", &[0x48, 0x81, 0xec]),
        ] {
            for function in [format!("d100_{form}"), format!("t1000000_{form}")] {
                assert_eq!(target.function_bytes(&function, bytes.len()), bytes, "{language}: {function}");
            }
        }
        let functions = [100, 300, 1_000, 10_000, 1_000_000]
            .into_iter()
            .flat_map(|ns| ["push", "nop5", "endbr", "sub"].map(|form| format!("{ns}_{form}")))
            .flat_map(|name| [format!("d{name}"), format!("t{name}")]);
        let addresses: std::collections::BTreeSet<u64> = functions.map(|f| target.address(&f)).collect();
        assert_eq!(addresses.len(), 40, "{language}: a compiler has made one of several");
        // `push rbp`, or `push r12` and the like with a prefix.
        let push = target.function_bytes("d300_push", 2);
        assert!(push[0] == 0x55 || push[0] == 0x41 && push[1] & 0xf8 == 0x50, "{language}: {push:x?}");
        target.command("start 2");
        std::thread::sleep(Duration::from_millis(600));
        let records = target.command("stop").number("records");
        let path = std::env::temp_dir().join(format!("durations-{}-{language}", target.pid()));
        target.command(&format!("dump {}", path.display()));
        let bytes = std::fs::read(&path).expect("the program has written its records");
        std::fs::remove_file(&path).expect("the records can be removed");
        assert_eq!(bytes.len() as u64, records * 16, "{language}");
        for (id, thread) in (0..40_u8).flat_map(|id| [(id, 0), (id, 1)]) {
            let of = bytes.chunks_exact(16).find(|r| (r[14], r[15]) == (id, thread));
            let record =
                of.unwrap_or_else(|| panic!("{language}: thread {thread} never called function {id}"));
            let calls = u16::from_le_bytes([record[12], record[13]]);
            assert_eq!(calls, [50, 17, 5, 1, 1][usize::from(id) / 8], "{language}: function {id}");
        }
    }
}
