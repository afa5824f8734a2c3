//! Timed calls: both ways to see an end, nesting, recursion, unwinding, records.

use crate::support::*;
use crate::throws::{tithe_test_catch, tithe_test_throw};
use profiler_core::class::ClassId;
use profiler_tests::support::{best_tier, linux_or_skip, tiers_here};
use profiler_user::prober::{
    ClassControl, ClassKind, FLAG_ARGUMENTS, Kernel, LinkKind, SLOT_UNKNOWN, Site, Tier, histogram,
};
use std::time::Duration;

function!(paired);
function!(paired_in_tiers);
function!(slept);
function!(outer);
function!(inner);
function!(deep);
function!(catcher);
function!(left);
function!(interrupted);
function!(handled);
function!(recorded);
function!(stale);
function!(unfinished);

extern "C" fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// All ways to time a function of `function!`: return links, exits at `ret`, exits at the `pop` before it, exits at an
/// unknown distance from the return address, entries after the `push`.
fn ways(f: Function, class: ClassId) -> Vec<(LinkKind, Vec<Site>)> {
    let unknown = Site { slot_delta: SLOT_UNKNOWN, ..f.early_exit(class) };
    let late_entry = Site { slot_delta: 1, ..Site::entry(class, f.offset() + 1) };
    vec![
        (LinkKind::ReturnPair, vec![f.entry(class)]),
        (LinkKind::ExitPair, vec![f.entry(class), f.exit(class)]),
        (LinkKind::ExitPair, vec![f.entry(class), f.early_exit(class)]),
        (LinkKind::ExitPair, vec![f.entry(class), unknown]),
        (LinkKind::ExitPair, vec![late_entry, f.exit(class)]),
    ]
}

fn every_call_returns(kernel: &Kernel, f: Function) {
    for (kind, sites) in ways(f, CLASS) {
        kernel.classes().reset(CLASS);
        kernel.classes().configure(CLASS, ungated(ClassKind::Latency));
        let attached = kernel.attach(&group(kind, sites)).unwrap();
        assert!(attached.refused.is_empty());
        call_from(8, 2_000, f);
        drop(attached);
        let c = kernel.classes().counters(CLASS);
        assert_eq!(
            (c.attempted, c.kept, c.returns, c.unwound, c.omitted, c.orphans, c.dropped),
            (16_000, 16_000, 16_000, 0, 0, 0, 0),
            "{kind:?}"
        );
        assert!(c.sum_ns > 0 && c.max_ns >= c.sum_ns / c.returns);
    }
}

#[test]
fn every_call_returns_with_8_threads() {
    every_call_returns(&kernel(None), paired);
}

#[test]
fn every_call_returns_in_tiers_b_c_and_d() {
    for tier in tiers_here("every_call_returns_in_tiers_b_c_and_d", &[Tier::B, Tier::C, Tier::D]) {
        let kernel = kernel(Some(tier));
        kernel.add_target(std::process::id(), false).unwrap();
        every_call_returns(&kernel, paired_in_tiers);
    }
}

#[test]
fn durations_are_those_of_the_calls() {
    let kernel = kernel(None);
    for (kind, sites) in ways(slept, CLASS) {
        let lease = kernel.classes().lease_histogram().unwrap();
        kernel.classes().reset(CLASS);
        let control = ClassControl { histogram: lease.first_slot(), ..ungated(ClassKind::Latency) };
        kernel.classes().configure(CLASS, control);
        let attached = kernel.attach(&group(kind, sites)).unwrap();
        let begin = ktime_ns();
        for _ in 0..5 {
            slept.call(Some(sleep_ms), 10);
        }
        let elapsed_ns = ktime_ns() - begin;
        drop(attached);
        let c = kernel.classes().counters(CLASS);
        assert_eq!(c.returns, 5);
        assert!((50_000_000..=elapsed_ns).contains(&c.sum_ns), "{kind:?}: {} of {elapsed_ns} ns", c.sum_ns);
        let counts = kernel.classes().histogram(&lease);
        assert_eq!(counts.iter().sum::<u64>(), 5);
        let longest = counts.iter().rposition(|n| *n > 0).unwrap() as u32;
        assert_eq!(histogram::bucket(c.max_ns), longest);
        let shortest = counts.iter().position(|n| *n > 0).unwrap() as u32;
        assert!(histogram::bounds(shortest).1 > 10_000_000);
    }
    assert_eq!(kernel.classes().free_histograms(), 256, "leases are given back");
}

#[test]
fn the_cost_of_nested_hits_is_known() {
    let kernel = kernel(None);
    let (o, i) = (ClassId(40), ClassId(41));
    extern "C" fn call_inner(n: u64) {
        for _ in 0..n {
            inner.call(None, 0);
        }
    }
    let priced = |hit_cost_ns, return_cost_ns, own_cost_ns| ClassControl {
        hit_cost_ns,
        return_cost_ns,
        own_cost_ns,
        ..ungated(ClassKind::Latency)
    };
    // Inner calls only counted: 7 hits of 100 ns.
    kernel.classes().configure(o, priced(1000, 2000, 50));
    kernel.classes().configure(i, ClassControl { hit_cost_ns: 100, ..ungated(ClassKind::Count) });
    let a = kernel.attach(&group(LinkKind::ReturnPair, vec![outer.entry(o)])).unwrap();
    let b = kernel.attach(&group(LinkKind::Count, vec![inner.entry(i)])).unwrap();
    outer.call(Some(call_inner), 7);
    drop(b);
    let c = kernel.classes().counters(o);
    assert_eq!((c.returns, c.nested_cost_ns), (1, 50 + 7 * 100));
    // Inner calls timed: entry and return each.
    kernel.classes().reset(o);
    kernel.classes().configure(i, priced(100, 200, 30));
    let b = kernel.attach(&group(LinkKind::ExitPair, vec![inner.entry(i), inner.exit(i)])).unwrap();
    outer.call(Some(call_inner), 3);
    drop((a, b));
    assert_eq!(kernel.classes().counters(o).nested_cost_ns, 50 + 3 * 300);
    assert_eq!(kernel.classes().counters(i).nested_cost_ns, 3 * 30);
}

extern "C" fn recurse(n: u64) {
    if n > 0 {
        deep.call(Some(recurse), n - 1);
    }
}

#[test]
fn deep_recursion_omits_returns_and_says_so() {
    let kernel = kernel(None);
    kernel.classes().configure(CLASS, ungated(ClassKind::Latency));
    let attached = kernel.attach(&group(LinkKind::ReturnPair, vec![deep.entry(CLASS)])).unwrap();
    recurse(1000);
    recurse(10);
    drop(attached);
    let c = kernel.classes().counters(CLASS);
    assert_eq!((c.kept, c.returns, c.omitted, c.unwound, c.open()), (1010, 70, 940, 0, 0));

    // Exit sites know no such limit of the kernel, but there is room for 64 open calls.
    kernel.classes().reset(CLASS);
    kernel.classes().configure(CLASS, ungated(ClassKind::Latency));
    let attached =
        kernel.attach(&group(LinkKind::ExitPair, vec![deep.entry(CLASS), deep.exit(CLASS)])).unwrap();
    recurse(100);
    drop(attached);
    let c = kernel.classes().counters(CLASS);
    assert_eq!((c.attempted, c.kept, c.dropped, c.returns, c.orphans), (100, 64, 36, 64, 36));
}

extern "C" fn throw(_: u64) {
    // SAFETY: `catch` is on the stack, and only assembly lies between.
    unsafe { tithe_test_throw() }
}

/// Calls `left`, which is left by a throw.
fn throw_through_left() {
    // SAFETY: assembly that follows the C ABI; the function takes a callback and its argument.
    unsafe { tithe_test_catch(left.0 as usize, throw as *const () as usize, 0, 0) }
}

extern "C" fn throw_some(n: u64) {
    for _ in 0..n {
        throw_through_left();
    }
}

#[test]
fn calls_that_are_left_count_as_unwound() {
    let kernel = kernel(None);
    let (o, l) = (ClassId(50), ClassId(51));
    for class in [o, l] {
        kernel.classes().configure(class, ungated(ClassKind::Latency));
    }
    let sites = vec![catcher.entry(o), catcher.exit(o), left.entry(l), left.exit(l)];
    let attached = kernel.attach(&group(LinkKind::ExitPair, sites)).unwrap();
    // Each throw but the last is proved by the next call at the same place, the last by the end of `catcher`.
    catcher.call(Some(throw_some), 5);
    let c = kernel.classes().counters(l);
    assert_eq!((c.kept, c.returns, c.unwound, c.open()), (5, 0, 5, 0));
    let c = kernel.classes().counters(o);
    assert_eq!((c.kept, c.returns, c.unwound), (1, 1, 0));
    // At the top level nothing encloses them: the last stays open.
    throw_some(200);
    drop(attached);
    let c = kernel.classes().counters(l);
    assert_eq!((c.kept, c.dropped, c.returns, c.unwound, c.open()), (205, 0, 0, 204, 1));
}

extern "C" fn on_signal(_: libc::c_int) {
    handled.call(None, 0);
}

extern "C" fn raise_signal(_: u64) {
    // SAFETY: the handler only calls `handled`.
    unsafe { libc::raise(libc::SIGURG) };
}

#[test]
fn a_handler_on_a_stack_of_its_own_leaves_the_interrupted_calls_open() {
    let kernel = kernel(None);
    let (i, h) = (ClassId(60), ClassId(61));
    for class in [i, h] {
        kernel.classes().configure(class, ungated(ClassKind::Latency));
    }
    let sites = vec![interrupted.entry(i), interrupted.exit(i), handled.entry(h), handled.exit(h)];
    let attached = kernel.attach(&group(LinkKind::ExitPair, sites)).unwrap();
    std::thread::spawn(|| {
        // Memory that happens to lie a little above the thread's stack would be taken for a part of it (limitations.md).
        let stack = far_below();
        // SAFETY: the stack outlives its use; the handler's type is right; SIGURG is used by nobody here.
        unsafe {
            let alternate =
                libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
            assert_eq!(libc::sigaltstack(&raw const alternate, std::ptr::null_mut()), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()), 0);
        }
        for _ in 0..20 {
            interrupted.call(Some(raise_signal), 0);
        }
        let off = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: as above.
        unsafe { libc::sigaltstack(&raw const off, std::ptr::null_mut()) };
    })
    .join()
    .unwrap();
    drop(attached);
    for class in [i, h] {
        let c = kernel.classes().counters(class);
        assert_eq!((c.kept, c.returns, c.unwound, c.orphans), (20, 20, 0, 0));
    }
}

#[test]
fn calls_left_by_an_earlier_attachment_are_forgotten() {
    let kernel = kernel(None);
    kernel.classes().configure(CLASS, ungated(ClassKind::Latency));
    let sites = vec![stale.entry(CLASS), stale.exit(CLASS)];
    // Attached during the call: its end has no begin.
    std::thread::scope(|scope| {
        let call = scope.spawn(|| stale.call(Some(sleep_ms), 1_500));
        std::thread::sleep(Duration::from_millis(50));
        let attached = kernel.attach(&group(LinkKind::ExitPair, sites.clone())).unwrap();
        call.join().unwrap();
        drop(attached);
    });
    let c = kernel.classes().counters(CLASS);
    assert_eq!((c.attempted, c.returns, c.orphans), (0, 0, 1));
    // Detached during the call, attached again under a new generation on the same thread.
    kernel.classes().reset(CLASS);
    let (to_thread, work) = std::sync::mpsc::channel::<u64>();
    let (done, from_thread) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        for ms in work {
            stale.call(Some(sleep_ms), ms);
            done.send(()).unwrap();
        }
    });
    let attached = kernel.attach(&group(LinkKind::ExitPair, sites.clone())).unwrap();
    to_thread.send(300).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(attached);
    from_thread.recv().unwrap();
    assert_eq!(kernel.classes().counters(CLASS).open(), 1);
    kernel.classes().reset(CLASS);
    kernel.classes().configure(CLASS, ungated(ClassKind::Latency));
    let attached = kernel.attach(&group(LinkKind::ExitPair, sites)).unwrap();
    for _ in 0..3 {
        to_thread.send(0).unwrap();
        from_thread.recv().unwrap();
    }
    drop(attached);
    drop(to_thread);
    thread.join().unwrap();
    let c = kernel.classes().counters(CLASS);
    assert_eq!((c.kept, c.returns, c.unwound, c.orphans), (3, 3, 0, 0));
}

/// What `answers` returns.
const ANSWER: u64 = 0x1234_5678_9abc_def0;

/// Sleeps and answers, for a caller that hands on what it leaves in rax.
extern "C" fn answers(ms: u64) -> u64 {
    sleep_ms(ms);
    ANSWER
}

#[test]
fn records_carry_where_a_call_stood_and_what_it_returned() {
    let kernel = kernel(None);
    let mut reader = kernel.call_reader().unwrap();
    // SAFETY: a result that nobody reads changes nothing in the C ABI.
    let answers = unsafe { std::mem::transmute::<extern "C" fn(u64) -> u64, extern "C" fn(u64)>(answers) };
    let mut linked = 0;
    for (kind, sites) in ways(recorded, CLASS) {
        kernel.classes().reset(CLASS);
        kernel.classes().configure(CLASS, ungated(ClassKind::Record));
        let attached = kernel.attach(&group(kind, sites)).unwrap();
        recorded.call(Some(answers), 1);
        drop(attached);
        let mut calls = Vec::new();
        reader.drain(usize::MAX, |call| calls.push(call));
        let [call] = calls[..] else { panic!("{calls:?}") };
        assert_eq!((call.around, call.args), (Some((0, None)), None));
        match call.result {
            Some(result) => {
                assert_eq!(result, ANSWER, "{kind:?}");
                // Nobody takes samples, so that the word that the link replaced is not kept.
                assert_eq!(call.return_address, None, "{kind:?}");
                linked += 1;
            }
            // Some ways do not know where the slot is.
            None => assert!(call.return_address.is_none_or(is_behind_a_call), "{kind:?}: {call:?}"),
        }
    }
    assert!(linked > 0);
    // Inside a timed call of another class.
    let (around, inside) = (ClassId(42), CLASS);
    kernel.classes().configure(inside, ungated(ClassKind::Record));
    kernel.classes().configure(around, ungated(ClassKind::Latency));
    let sites = |f: Function, class| vec![f.entry(class), f.exit(class)];
    let attached = [(stale, around), (recorded, inside)]
        .map(|(f, class)| kernel.attach(&group(LinkKind::ExitPair, sites(f, class))).unwrap());
    stale.call(Some(calls_recorded), 1);
    drop(attached);
    let mut calls = Vec::new();
    reader.drain(usize::MAX, |call| calls.push(call));
    let [call] = calls[..] else { panic!("{calls:?}") };
    assert_eq!((call.around, call.result), (Some((1, Some(around))), None));
    assert!(call.return_address.is_some_and(is_behind_a_call), "{call:?}");
}

static HELD: std::sync::Barrier = std::sync::Barrier::new(2);

extern "C" fn waits_and_calls_recorded(_: u64) {
    HELD.wait();
    HELD.wait();
    recorded.call(None, 0);
}

#[test]
fn a_call_that_was_open_when_its_links_went_is_around_no_later_call_once_it_is_forgotten() {
    let kernel = kernel(None);
    let mut reader = kernel.call_reader().unwrap();
    let (around, inside) = (ClassId(42), CLASS);
    kernel.classes().configure(inside, ungated(ClassKind::Record));
    let attach = |f: Function, class| {
        kernel.attach(&group(LinkKind::ExitPair, vec![f.entry(class), f.exit(class)])).unwrap()
    };
    let of_inside = attach(recorded, inside);
    for is_forgotten in [false, true] {
        kernel.classes().configure(around, ungated(ClassKind::Latency));
        let of_around = attach(stale, around);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| stale.call(Some(waits_and_calls_recorded), 1));
            HELD.wait();
            drop(of_around);
            if is_forgotten {
                kernel.classes().forget_open(around);
            }
            HELD.wait();
            thread.join().unwrap();
        });
        let mut calls = Vec::new();
        reader.drain(usize::MAX, |call| calls.push(call));
        let [call] = calls[..] else { panic!("{calls:?}") };
        let expected = if is_forgotten { (0, None) } else { (1, Some(around)) };
        assert_eq!(call.around, Some(expected), "forgotten: {is_forgotten}");
    }
    drop(of_inside);
}

extern "C" fn calls_recorded(_: u64) {
    recorded.call(None, 0);
}

/// The bytes before this address of ours end in a call, direct or through a register.
fn is_behind_a_call(address: u64) -> bool {
    // SAFETY: it is said to lie in our text, behind at least seven bytes of it.
    let before = unsafe { std::slice::from_raw_parts((address - 7) as *const u8, 7) };
    before[2] == 0xe8 || [1, 4, 5].iter().any(|at| before[*at] == 0xff)
}

#[test]
fn records_carry_time_thread_duration_and_arguments() {
    let others = [Tier::B].into_iter().filter(|tier| *tier > best_tier());
    for tier in std::iter::once(None).chain(others.map(Some)) {
        let kernel = kernel(tier);
        let mut reader = kernel.call_reader().unwrap();
        for (kind, sites) in ways(recorded, CLASS) {
            let flags = ungated(ClassKind::Record).flags | FLAG_ARGUMENTS;
            kernel.classes().reset(CLASS);
            kernel.classes().configure(CLASS, ClassControl { flags, ..ungated(ClassKind::Record) });
            let attached = kernel.attach(&group(kind, sites)).unwrap();
            let begin = ktime_ns();
            recorded.call(Some(sleep_ms), 3);
            let end = ktime_ns();
            drop(attached);
            let mut calls = Vec::new();
            reader.drain(usize::MAX, |call| calls.push(call));
            let [call] = calls[..] else { panic!("{calls:?}") };
            let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
            assert_eq!((call.class, call.pid, call.tid), (CLASS, std::process::id(), tid));
            assert_eq!(call.args.expect("they were asked for")[..2], [sleep_ms as *const () as u64, 3]);
            let duration = call.duration_ns.unwrap();
            assert!(
                call.time_ns >= begin && call.time_ns + duration <= end,
                "{call:?} not in {begin}..{end}"
            );
            assert!(duration >= 3_000_000);
        }
        // Entries only.
        kernel.classes().configure(CLASS, ungated(ClassKind::Record));
        let attached = kernel.attach(&group(LinkKind::Record, vec![recorded.entry(CLASS)])).unwrap();
        recorded.call(None, 9);
        drop(attached);
        let mut calls = Vec::new();
        reader.drain(usize::MAX, |call| calls.push(call));
        assert_eq!(calls.len(), 1);
        assert_eq!((calls[0].duration_ns, calls[0].args), (None, None));
        assert!(kernel.call_reader().is_err(), "there is one reader");
    }
}

#[test]
fn open_calls_of_every_thread_are_found_by_its_id() {
    let test = "open_calls_of_every_thread_are_found_by_its_id";
    if !linux_or_skip(test, (6, 9), "a descriptor of a thread that is not its process's first") {
        return;
    }
    let kernel = kernel(None);
    for (kind, sites) in ways(unfinished, CLASS) {
        kernel.classes().reset(CLASS);
        kernel.classes().configure(CLASS, ungated(ClassKind::Latency));
        let attached = kernel.attach(&group(kind, sites)).unwrap();
        let (inside, entered) = std::sync::mpsc::channel();
        let begin = ktime_ns();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let inside = inside.clone();
                scope.spawn(move || {
                    inside.send(rustix::thread::gettid().as_raw_pid()).unwrap();
                    unfinished.call(Some(sleep_ms), 400);
                });
            }
            let mut tids: Vec<i32> = entered.iter().take(4).collect();
            tids.sort_unstable();
            // The threads are on their way into the call.
            let mut open = Vec::new();
            while open.len() < 4 && ktime_ns() < begin + 300_000_000 {
                open = kernel.open_calls(&tids);
            }
            let end = ktime_ns();
            let mut found: Vec<i32> = open.iter().map(|c| c.tid).collect();
            found.sort_unstable();
            assert_eq!(found, tids, "{kind:?}");
            assert!(
                open.iter().all(|c| c.class == CLASS && c.begin_ns > begin && c.begin_ns < end),
                "{open:?}"
            );
            // A thread that makes no call, and one that is not there.
            assert_eq!(kernel.open_calls(&[rustix::thread::gettid().as_raw_pid(), i32::MAX]), []);
        });
        // All have ended.
        assert_eq!(kernel.classes().counters(CLASS).open(), 0);
        drop(attached);
    }
}
