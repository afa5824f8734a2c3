//! Calls timed at return-address sites: exact counts of what is timed, untimed, strayed and left.

mod left;
mod limits;
mod shared;
mod tail;

use crate::support::*;
use profiler_core::class::ClassId;
use profiler_tests::support::tiers_here;
use profiler_user::prober::{
    Attached, CallerCounters, ClassControl, ClassCounters, ClassKind, FLAG_LEARN_CALLERS, FLAG_NO_QUOTA,
    Kernel, LinkKind, Site, Tier,
};
use std::time::Duration;

/// Defines a caller for a test, as a constant of that name.
///
/// `caller(function, callback, argument, extra)` calls `function(callback, argument, extra)`; where `function` is null it jumps to the
/// address that the call would return to.
/// ```text
///  0  push rbp
///  1  mov rbp, rsp
///  4  test rdi, rdi
///  7  je 23
///  9  mov rax, rdi
/// 12  mov rdi, rsi
/// 15  mov rsi, rdx
/// 18  mov rdx, rcx
/// 21  call rax
/// 23  nop
/// 24  push rbx
/// 25  pop rbx
/// 26  pop rbp
/// 27  ret
/// ```
macro_rules! caller {
    ($name:ident) => {
        core::arch::global_asm!(
            ".pushsection .text",
            ".p2align 4",
            concat!(".globl tithe_test_", stringify!($name)),
            concat!(".type tithe_test_", stringify!($name), ", @function"),
            concat!("tithe_test_", stringify!($name), ":"),
            ".byte 0x55",
            ".byte 0x48, 0x89, 0xe5",
            ".byte 0x48, 0x85, 0xff",
            ".byte 0x74, 0x0e",
            ".byte 0x48, 0x89, 0xf8",
            ".byte 0x48, 0x89, 0xf7",
            ".byte 0x48, 0x89, 0xd6",
            ".byte 0x48, 0x89, 0xca",
            ".byte 0xff, 0xd0",
            ".byte 0x90, 0x53, 0x5b, 0x5d, 0xc3",
            concat!(".size tithe_test_", stringify!($name), ", . - tithe_test_", stringify!($name)),
            ".popsection",
        );

        #[expect(non_upper_case_globals, reason = "named as the symbol is")]
        const $name: $crate::returned::Caller = {
            unsafe extern "C" {
                #[link_name = concat!("tithe_test_", stringify!($name))]
                fn symbol(
                    function: Option<$crate::returned::Callee>,
                    callback: Option<extern "C" fn(u64)>,
                    argument: u64,
                    extra: u64,
                );
            }
            $crate::returned::Caller(symbol)
        };
    };
}
use caller;

/// A function of `function!`.
type Callee = unsafe extern "C" fn(Option<extern "C" fn(u64)>, u64);

/// A caller made by [`caller!`].
#[derive(Clone, Copy)]
struct Caller(unsafe extern "C" fn(Option<Callee>, Option<extern "C" fn(u64)>, u64, u64));

/// Sites behind the call: bytes from the return address on, and words by which the stack pointer lies higher.
const SITES: [(u64, i16); 5] = [(0, 0), (1, 0), (2, -1), (3, 0), (4, 1)];

impl Caller {
    fn call(self, function: Function, callback: Option<extern "C" fn(u64)>, argument: u64) {
        // SAFETY: the assembly follows the C ABI.
        unsafe { (self.0)(Some(function.0), callback, argument, 0) }
    }

    /// A call that ends in a jump to `to`, which gets the same arguments.
    fn call_over(self, function: Callee, to: Function, callback: Option<extern "C" fn(u64)>, argument: u64) {
        // SAFETY: as above.
        unsafe { (self.0)(Some(function), callback, argument, to.0 as usize as u64) }
    }

    /// Jumps over its call.
    fn jump(self) {
        // SAFETY: as above.
        unsafe { (self.0)(None, None, 0, 0) }
    }

    /// What its call returns to.
    fn return_address(self) -> u64 {
        self.0 as usize as u64 + 23
    }

    /// The site at its return address, or `SITES[n]`.
    fn site(self, class: ClassId, n: usize) -> Site {
        let (distance, popped) = SITES[n];
        Site::returned(class, file_offset(self.return_address()) + distance, popped).behind(distance as u8)
    }
}

/// Control of a class without a quota that learns callers.
fn learning(kind: ClassKind) -> ClassControl {
    ClassControl { flags: FLAG_NO_QUOTA | FLAG_LEARN_CALLERS, ..ClassControl::new(kind) }
}

/// A class anew: nothing counted, no caller known.
fn renew(kernel: &Kernel, class: ClassId, control: ClassControl) {
    kernel.classes().reset(class);
    kernel.forget_callers(&[class]);
    kernel.classes().configure(class, control);
}

fn attach(kernel: &Kernel, sites: Vec<Site>) -> Attached {
    let attached = kernel.attach(&group(LinkKind::ReturnSites, sites)).unwrap();
    assert!(attached.refused.is_empty(), "{:?}", attached.refused);
    attached
}

/// Entry of a function and the return site of one caller, which is armed.
fn watch(kernel: &Kernel, class: ClassId, f: Function, caller: Caller) -> Attached {
    let attached = attach(kernel, vec![f.entry(class), caller.site(class, 0)]);
    assert!(kernel.arm_caller(class, caller.return_address()));
    attached
}

/// What every test knows of a class. Checks that every hit is accounted for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    kept: u64,
    gated: u64,
    dropped: u64,
    returns: u64,
    unwound: u64,
    orphans: u64,
    open: u64,
    callers: CallerCounters,
}

fn seen(kernel: &Kernel, class: ClassId) -> Seen {
    let c: ClassCounters = kernel.classes().counters(class);
    assert_eq!(c.attempted, c.kept + c.gated + c.dropped);
    assert_eq!(c.kept, c.returns + c.unwound + c.omitted + c.callers.untimed + c.open());
    assert_eq!(c.callers.ends, c.returns + c.orphans + c.callers.strays);
    assert_eq!(c.omitted, 0);
    Seen {
        kept: c.kept,
        gated: c.gated,
        dropped: c.dropped,
        returns: c.returns,
        unwound: c.unwound,
        orphans: c.orphans,
        open: c.open(),
        callers: c.callers,
    }
}

/// So many calls, all of them timed.
fn timed(calls: u64) -> Seen {
    let callers = CallerCounters { ends: calls, ..CallerCounters::default() };
    Seen { kept: calls, returns: calls, callers, ..Seen::default() }
}

extern "C" fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

function!(returned);
caller!(returned_from);
function!(returned_tiers);
caller!(returned_tiers_from);

fn every_call_is_timed(kernel: &Kernel, f: Function, from: Caller) {
    let sites = (0..SITES.len()).map(|n| (n, 1, 200)).chain([(0, 8, 2_000)]);
    for (n, threads, calls) in sites {
        renew(kernel, CLASS, learning(ClassKind::Latency));
        let attached = attach(kernel, vec![f.entry(CLASS), from.site(CLASS, n)]);
        assert!(kernel.arm_caller(CLASS, from.return_address()));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..calls).for_each(|_| from.call(f, None, 0)));
            }
        });
        drop(attached);
        assert_eq!(seen(kernel, CLASS), timed(threads * calls), "{threads} threads, site {n}");
        assert_eq!(kernel.callers(CLASS), [(from.return_address(), threads * calls, true)]);
        let c = kernel.classes().counters(CLASS);
        assert!(c.sum_ns > 0 && c.max_ns >= c.sum_ns / c.returns);
    }
}

#[test]
fn every_call_of_an_armed_caller_is_timed_with_1_and_8_threads() {
    every_call_is_timed(&kernel(None), returned, returned_from);
}

#[test]
fn every_call_of_an_armed_caller_is_timed_in_tiers_b_c_and_d() {
    let test = "every_call_of_an_armed_caller_is_timed_in_tiers_b_c_and_d";
    for tier in tiers_here(test, &[Tier::B, Tier::C, Tier::D]) {
        let kernel = kernel(Some(tier));
        kernel.add_target(std::process::id(), false).unwrap();
        every_call_is_timed(&kernel, returned_tiers, returned_tiers_from);
    }
}

function!(returned_slept);
caller!(returned_slept_from);

#[test]
fn durations_are_what_the_caller_waits_for() {
    let kernel = kernel(None);
    let mut reader = kernel.call_reader().unwrap();
    renew(&kernel, CLASS, learning(ClassKind::Record));
    let lease = kernel.classes().lease_histogram().unwrap();
    kernel.classes().adjust(CLASS, |c| c.histogram = lease.first_slot());
    let attached = watch(&kernel, CLASS, returned_slept, returned_slept_from);
    let begin = ktime_ns();
    for _ in 0..5 {
        returned_slept_from.call(returned_slept, Some(sleep_ms), 10);
    }
    let elapsed_ns = ktime_ns() - begin;
    // Of a caller without a return site there is a record, but no duration.
    returned_slept.call(None, 0);
    drop(attached);
    let c = kernel.classes().counters(CLASS);
    assert_eq!((c.kept, c.returns, c.callers.untimed), (6, 5, 1));
    assert!((50_000_000..=elapsed_ns).contains(&c.sum_ns), "{} of {elapsed_ns} ns", c.sum_ns);
    let counts = kernel.classes().histogram(&lease);
    assert_eq!(counts.iter().sum::<u64>(), 5);
    let mut calls = Vec::new();
    reader.drain(usize::MAX, |call| calls.push(call));
    assert_eq!(calls.len(), 6);
    let durations: Vec<u64> = calls.iter().filter_map(|c| c.duration_ns).collect();
    assert_eq!((durations.len(), durations.iter().sum::<u64>()), (5, c.sum_ns));
    assert!(calls.iter().all(|c| c.time_ns >= begin && c.class == CLASS), "{calls:?}");
}

function!(returned_several);
caller!(returned_a);
caller!(returned_b);
caller!(returned_c);

#[test]
fn callers_are_learned_armed_and_disarmed_one_by_one() {
    let kernel = kernel(None);
    let (f, [a, b, c]) = (returned_several, [returned_a, returned_b, returned_c]);
    renew(&kernel, CLASS, learning(ClassKind::Latency));
    let call = |caller: Caller, n: u64| (0..n).for_each(|_| caller.call(f, None, 0));
    let known = || {
        let mut known = kernel.callers(CLASS);
        known.sort_unstable();
        known
    };
    let address = Caller::return_address;
    let expected = |mut rows: Vec<(u64, u64, bool)>| {
        rows.sort_unstable();
        rows
    };
    // The function alone.
    let entry = attach(&kernel, vec![f.entry(CLASS)]);
    call(a, 30);
    call(b, 20);
    let mut all = Seen { kept: 50, ..Seen::default() };
    all.callers.untimed = 50;
    assert_eq!(seen(&kernel, CLASS), all);
    assert_eq!(known(), expected(vec![(address(a), 30, false), (address(b), 20, false)]));
    // Return sites come later, and belong to no group with an entry. A site alone times nothing.
    let site_a = attach(&kernel, vec![a.site(CLASS, 0)]);
    call(a, 3);
    (all.kept, all.callers) = (53, CallerCounters { untimed: 53, unlearned: 0, strays: 3, ends: 3 });
    assert_eq!(seen(&kernel, CLASS), all);
    assert!(kernel.arm_caller(CLASS, address(a)));
    call(a, 100);
    call(b, 10);
    (all.kept, all.returns, all.callers.untimed, all.callers.ends) = (163, 100, 63, 103);
    assert_eq!(seen(&kernel, CLASS), all);
    // Two in one group; one of them was never seen.
    let sites = attach(&kernel, vec![b.site(CLASS, 2), c.site(CLASS, 4)]);
    assert!(kernel.arm_caller(CLASS, address(b)) && kernel.arm_caller(CLASS, address(c)));
    assert_eq!(
        known(),
        expected(vec![(address(a), 133, true), (address(b), 30, true), (address(c), 0, true)])
    );
    for caller in [a, b, c] {
        call(caller, 10);
    }
    (all.kept, all.returns, all.callers.ends) = (193, 130, 133);
    assert_eq!(seen(&kernel, CLASS), all);
    kernel.disarm_caller(CLASS, address(a));
    call(a, 5);
    (all.kept, all.callers) = (198, CallerCounters { untimed: 68, unlearned: 0, strays: 8, ends: 138 });
    assert_eq!(seen(&kernel, CLASS), all);
    // Another class knows none of them.
    assert_eq!(kernel.callers(ClassId(8)), []);
    kernel.forget_callers(&[CLASS]);
    assert_eq!(known(), []);
    drop((entry, site_a, sites));
    // No address of a user's program.
    assert!(!kernel.arm_caller(CLASS, 0) && !kernel.arm_caller(CLASS, u64::MAX));
}

function!(returned_counted);
caller!(returned_counted_from);

#[test]
fn a_count_learns_callers_if_asked_to() {
    let kernel = kernel(None);
    for (control, known) in [(learning(ClassKind::Count), 1), (ungated(ClassKind::Count), 0)] {
        renew(&kernel, CLASS, control);
        // An entry site behind the `push`, too.
        let late = Site { slot_delta: 1, ..Site::entry(CLASS, returned_counted.offset() + 1) };
        for site in [returned_counted.entry(CLASS), late] {
            let attached = kernel.attach(&group(LinkKind::Count, vec![site])).unwrap();
            (0..7).for_each(|_| returned_counted_from.call(returned_counted, None, 0));
            drop(attached);
        }
        assert_eq!(seen(&kernel, CLASS), Seen { kept: 14, open: 14, ..Seen::default() });
        assert_eq!(kernel.callers(CLASS), [(returned_counted_from.return_address(), 14, false)][..known]);
    }
    // Nor does a class with return sites that is not asked to learn; what is armed it times.
    renew(&kernel, CLASS, ungated(ClassKind::Latency));
    let attached = watch(&kernel, CLASS, returned_counted, returned_counted_from);
    returned_counted_from.call(returned_counted, None, 0);
    returned_counted.call(None, 0);
    drop(attached);
    let callers = CallerCounters { untimed: 1, ends: 1, ..CallerCounters::default() };
    assert_eq!(seen(&kernel, CLASS), Seen { kept: 2, returns: 1, callers, ..Seen::default() });
    assert_eq!(kernel.callers(CLASS), [(returned_counted_from.return_address(), 1, true)]);
}

function!(returned_deep);
caller!(returned_deep_from);
function!(returned_self);

extern "C" fn recurse(n: u64) {
    if n > 0 {
        returned_deep_from.call(returned_deep, Some(recurse), n - 1);
    }
}

#[test]
fn recursion_through_one_site_is_told_apart_by_slots() {
    let kernel = kernel(None);
    renew(&kernel, CLASS, learning(ClassKind::Latency));
    let lease = kernel.classes().lease_histogram().unwrap();
    kernel.classes().adjust(CLASS, |c| c.histogram = lease.first_slot());
    let attached = watch(&kernel, CLASS, returned_deep, returned_deep_from);
    recurse(10);
    assert_eq!(seen(&kernel, CLASS), timed(10));
    // There is room for 64 open calls.
    recurse(100);
    drop(attached);
    let mut all = timed(74);
    (all.dropped, all.callers.strays, all.callers.ends) = (36, 36, 110);
    assert_eq!(seen(&kernel, CLASS), all);

    // The outer call is let in, the inner one is not, and sleeps before the outer one ends.
    extern "C" fn inner_then_sleep(_: u64) {
        returned_deep_from.call(returned_deep, None, 0);
        sleep_ms(20);
    }
    renew(
        &kernel,
        CLASS,
        ClassControl { flags: FLAG_LEARN_CALLERS, ..ClassControl::new(ClassKind::Latency) },
    );
    kernel.classes().set_quota(CLASS, 1);
    let attached = watch(&kernel, CLASS, returned_deep, returned_deep_from);
    returned_deep_from.call(returned_deep, Some(inner_then_sleep), 0);
    drop(attached);
    let callers = CallerCounters { strays: 1, ends: 2, ..CallerCounters::default() };
    assert_eq!(seen(&kernel, CLASS), Seen { gated: 1, callers, ..timed(1) });
    assert!(kernel.classes().counters(CLASS).sum_ns > 20_000_000);

    // A function that calls itself, from its own only site.
    renew(&kernel, CLASS, learning(ClassKind::Latency));
    let f = returned_self;
    let sites = vec![f.entry(CLASS), Site::returned(CLASS, f.offset() + 17, 0)];
    let attached = attach(&kernel, sites);
    assert!(kernel.arm_caller(CLASS, f.0 as usize as u64 + 17));
    // SAFETY: the callback gets its first argument as its own callback: null.
    let itself: extern "C" fn(u64) = unsafe { std::mem::transmute(f.0 as *const ()) };
    for _ in 0..25 {
        f.call(Some(itself), 0);
    }
    drop(attached);
    // The inner call jumps over its own call, to the site.
    let callers = CallerCounters { untimed: 25, strays: 25, ends: 50, ..CallerCounters::default() };
    assert_eq!(seen(&kernel, CLASS), Seen { kept: 50, returns: 25, callers, ..Seen::default() });
}

function!(returned_outer);
caller!(returned_outer_from);
function!(returned_inner);
caller!(returned_inner_from);

extern "C" fn call_inner(n: u64) {
    for _ in 0..n {
        returned_inner_from.call(returned_inner, None, 0);
        returned_inner_from.jump();
    }
}

#[test]
fn the_cost_of_nested_hits_is_known_strays_too() {
    let kernel = kernel(None);
    let (o, i) = (ClassId(40), ClassId(41));
    let priced = |hit_cost_ns, return_cost_ns, own_cost_ns| ClassControl {
        hit_cost_ns,
        return_cost_ns,
        own_cost_ns,
        ..learning(ClassKind::Latency)
    };
    renew(&kernel, o, priced(1000, 2000, 50));
    renew(&kernel, i, priced(100, 200, 30));
    let outer = watch(&kernel, o, returned_outer, returned_outer_from);
    let inner = watch(&kernel, i, returned_inner, returned_inner_from);
    returned_outer_from.call(returned_outer, Some(call_inner), 3);
    drop((outer, inner));
    assert_eq!(seen(&kernel, o), timed(1));
    let callers = CallerCounters { strays: 3, ends: 6, ..CallerCounters::default() };
    assert_eq!(seen(&kernel, i), Seen { callers, ..timed(3) });
    assert_eq!(kernel.classes().counters(o).nested_cost_ns, 50 + 3 * (100 + 200 + 200));
    assert_eq!(kernel.classes().counters(i).nested_cost_ns, 3 * 30);
}

function!(returned_bad_site);
caller!(returned_bad_site_from);

#[test]
fn groups_of_other_modules_hold_no_entry_and_a_bad_site_goes_alone() {
    for tier in [None, Some(Tier::D)] {
        let kernel = kernel(tier);
        renew(&kernel, CLASS, learning(ClassKind::Latency));
        let bad = Site::returned(CLASS, 1 << 40, 0);
        let sites = vec![returned_bad_site.entry(CLASS), bad, returned_bad_site_from.site(CLASS, 0)];
        let attached = kernel.attach(&group(LinkKind::ReturnSites, sites)).unwrap();
        assert_eq!(attached.refused.iter().map(|r| r.site).collect::<Vec<_>>(), [bad]);
        assert_eq!(attached.link.sites(), 2);
        assert!(kernel.arm_caller(CLASS, returned_bad_site_from.return_address()));
        (0..5).for_each(|_| returned_bad_site_from.call(returned_bad_site, None, 0));
        drop(attached);
        assert_eq!(seen(&kernel, CLASS), timed(5));
        let error = kernel.attach(&group(LinkKind::ReturnSites, Vec::new())).unwrap_err().to_string();
        assert!(error.contains("no entry site"), "{error}");
    }
}
