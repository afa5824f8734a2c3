//! Calls with return sites that are left: by a throw, by the end of a thread, by the end of an attachment.

use super::*;
use crate::throws::{tithe_test_catch, tithe_test_throw};

function!(returned_thrown);
caller!(returned_thrown_from);
function!(returned_beside);
function!(returned_catcher);
caller!(returned_catcher_from);

extern "C" fn throw(ms: u64) {
    sleep_ms(ms);
    // SAFETY: `catch` is on the stack, and the frames between have nothing to drop.
    unsafe { tithe_test_throw() }
}

/// `from` calls the function inside of `catch`, at the same place of the stack each time.
fn catch_in(from: Caller, function: Function, callback: extern "C" fn(u64), argument: u64) {
    let callback = callback as usize as u64;
    // SAFETY: assembly that follows the C ABI; the caller takes a function, a callback and its argument.
    unsafe { tithe_test_catch(from.0 as usize, function.0 as usize, callback, argument) }
}

/// That of `returned_thrown`.
fn catch(function: Function, callback: extern "C" fn(u64), argument: u64) {
    catch_in(returned_thrown_from, function, callback, argument);
}

extern "C" fn quiet(_: u64) {}

/// Five throws through the function, each 5 ms after its begin.
extern "C" fn throw_some(_: u64) {
    for _ in 0..5 {
        catch(returned_thrown, throw, 5);
    }
}

#[test]
fn calls_left_by_a_throw_are_unwound_and_end_nowhere() {
    let kernel = kernel(None);
    let (o, l) = (ClassId(50), ClassId(51));
    for class in [o, l] {
        renew(&kernel, class, learning(ClassKind::Latency));
    }
    let outer = watch(&kernel, o, returned_catcher, returned_catcher_from);
    let inner = watch(&kernel, l, returned_thrown, returned_thrown_from);
    // Each throw but the last is proved by the next call at the same place, the last by the end of `catcher`.
    returned_catcher_from.call(returned_catcher, Some(throw_some), 0);
    assert_eq!(seen(&kernel, l), Seen { kept: 5, unwound: 5, ..Seen::default() });
    assert_eq!(seen(&kernel, o), timed(1));
    // A call from the same place that returns: its duration begins with itself, not with the one that was left there.
    catch(returned_thrown, throw, 5);
    catch(returned_thrown, quiet, 0);
    let c = kernel.classes().counters(l);
    assert_eq!((c.kept, c.returns, c.unwound, c.open()), (7, 1, 6, 0));
    assert!(c.max_ns < 4_000_000, "{} ns", c.max_ns);
    // Another function called there, without a return site: what was left there does not end at its `ret`.
    let beside = ClassId(52);
    kernel.classes().configure(beside, ungated(ClassKind::Latency));
    let sites = vec![returned_beside.entry(beside), returned_beside.exit(beside)];
    let exits = kernel.attach(&group(LinkKind::ExitPair, sites)).unwrap();
    returned_catcher_from.call(returned_beside, None, 0);
    drop((outer, inner, exits));
    assert_eq!(kernel.classes().counters(beside).returns, 1);
    assert_eq!(seen(&kernel, o).callers.strays, 1);
}

extern "C" fn leave_open(depth: u64) {
    if depth == 0 {
        throw(0);
    }
    returned_thrown_from.call(returned_thrown, Some(leave_open), depth - 1);
}

#[test]
fn a_throw_over_more_frames_than_one_hit_buries_is_forgotten_by_and_by() {
    let kernel = kernel(None);
    renew(&kernel, CLASS, learning(ClassKind::Latency));
    let attached = watch(&kernel, CLASS, returned_thrown, returned_thrown_from);
    // Few at first: the next call at the place of the outermost one shows that all are left.
    catch(returned_thrown, leave_open, 2);
    catch(returned_thrown, quiet, 0);
    assert_eq!(seen(&kernel, CLASS), Seen { kept: 4, unwound: 3, ..timed(1) });
    renew(&kernel, CLASS, learning(ClassKind::Latency));
    assert!(kernel.arm_caller(CLASS, returned_thrown_from.return_address()));
    // 31 calls are left, of which each hit takes 8 away: the entry and the end of the first calls that follow.
    catch(returned_thrown, leave_open, 30);
    assert_eq!(seen(&kernel, CLASS), Seen { kept: 31, open: 31, ..Seen::default() });
    for _ in 0..10 {
        catch(returned_thrown, quiet, 0);
    }
    drop(attached);
    assert_eq!(seen(&kernel, CLASS), Seen { kept: 41, unwound: 31, ..timed(10) });
}

#[test]
fn a_call_from_another_place_with_the_same_slot_shows_that_one_was_left() {
    let kernel = kernel(None);
    let (l, b) = (ClassId(51), ClassId(52));
    for class in [l, b] {
        renew(&kernel, class, learning(ClassKind::Latency));
    }
    let inner = watch(&kernel, l, returned_thrown, returned_thrown_from);
    let other = attach(&kernel, vec![returned_catcher_from.site(l, 0)]);
    catch(returned_thrown, throw, 0);
    assert_eq!(seen(&kernel, l).open, 1);
    // The other caller has the same frame, so the same slot.
    let beside = || catch_in(returned_catcher_from, returned_beside, quiet, 0);
    // A function that nobody watches comes back to a site of the class, which is not the one behind the call that was left.
    beside();
    let callers = CallerCounters { strays: 1, ends: 1, ..CallerCounters::default() };
    assert_eq!(seen(&kernel, l), Seen { kept: 1, open: 1, callers, ..Seen::default() });
    // One that is watched shows that the call was left.
    let sites = vec![returned_beside.entry(b), returned_beside.exit(b)];
    let exits = kernel.attach(&group(LinkKind::ExitPair, sites)).unwrap();
    beside();
    drop((inner, other, exits));
    let callers = CallerCounters { strays: 2, ends: 2, ..CallerCounters::default() };
    assert_eq!(seen(&kernel, l), Seen { kept: 1, unwound: 1, callers, ..Seen::default() });
    assert_eq!(kernel.classes().counters(b).returns, 1);
}

function!(returned_stale);
caller!(returned_stale_from);

#[test]
fn calls_of_an_earlier_attachment_are_forgotten() {
    let kernel = kernel(None);
    let (f, from) = (returned_stale, returned_stale_from);
    let (to_thread, work) = std::sync::mpsc::channel::<u64>();
    let (done, from_thread) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        for ms in work {
            from.call(f, Some(sleep_ms), ms);
            done.send(()).unwrap();
        }
    });
    // Attached during the call: its end has no begin.
    renew(&kernel, CLASS, learning(ClassKind::Latency));
    to_thread.send(600).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let attached = watch(&kernel, CLASS, f, from);
    from_thread.recv().unwrap();
    let callers = CallerCounters { strays: 1, ends: 1, ..CallerCounters::default() };
    assert_eq!(seen(&kernel, CLASS), Seen { callers, ..Seen::default() });
    // Configured anew during the call: the end is seen, and belongs to nobody.
    kernel.classes().reset(CLASS);
    to_thread.send(300).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(seen(&kernel, CLASS).open, 1);
    kernel.classes().reset(CLASS);
    kernel.classes().configure(CLASS, learning(ClassKind::Latency));
    from_thread.recv().unwrap();
    let callers = CallerCounters { ends: 1, ..CallerCounters::default() };
    assert_eq!(seen(&kernel, CLASS), Seen { orphans: 1, callers, ..Seen::default() });
    // Detached during the call, attached again on the same thread: callers are still known and armed.
    kernel.classes().reset(CLASS);
    to_thread.send(300).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(attached);
    from_thread.recv().unwrap();
    assert_eq!(seen(&kernel, CLASS).open, 1);
    kernel.classes().reset(CLASS);
    kernel.classes().configure(CLASS, learning(ClassKind::Latency));
    let attached = attach(&kernel, vec![f.entry(CLASS), from.site(CLASS, 1)]);
    for _ in 0..3 {
        to_thread.send(0).unwrap();
        from_thread.recv().unwrap();
    }
    assert_eq!(seen(&kernel, CLASS), timed(3));
    // Forgotten: calls are counted and learned again.
    kernel.forget_callers(&[CLASS]);
    to_thread.send(0).unwrap();
    from_thread.recv().unwrap();
    drop(attached);
    drop(to_thread);
    thread.join().unwrap();
    let callers = CallerCounters { untimed: 1, strays: 1, ends: 4, ..CallerCounters::default() };
    assert_eq!(seen(&kernel, CLASS), Seen { kept: 4, callers, ..timed(3) });
    assert_eq!(kernel.callers(CLASS), [(from.return_address(), 1, false)]);
}

function!(returned_ending);
caller!(returned_ending_from);

extern "C" fn end_thread(_: u64) {
    // SAFETY: the thread was made for this, and has nothing to drop.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

#[test]
fn calls_of_threads_that_end_inside_stay_open() {
    let kernel = kernel(None);
    renew(&kernel, CLASS, learning(ClassKind::Latency));
    let attached = watch(&kernel, CLASS, returned_ending, returned_ending_from);
    extern "C" fn thread(_: *mut libc::c_void) -> *mut libc::c_void {
        returned_ending_from.call(returned_ending, None, 0);
        returned_ending_from.call(returned_ending, Some(end_thread), 0);
        std::ptr::null_mut()
    }
    let before = std::fs::read_dir("/proc/self/task").unwrap().count();
    for _ in 0..6 {
        let mut id = 0;
        // SAFETY: the thread ends by itself, and is not joined.
        let failed =
            unsafe { libc::pthread_create(&raw mut id, std::ptr::null(), thread, std::ptr::null_mut()) };
        assert_eq!(failed, 0);
    }
    let gone = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        kernel.classes().counters(CLASS).kept == 12
            && std::fs::read_dir("/proc/self/task").unwrap().count() == before
    });
    assert!(gone, "{:?}", kernel.classes().counters(CLASS));
    drop(attached);
    assert_eq!(seen(&kernel, CLASS), Seen { kept: 12, open: 6, ..timed(6) });
}
