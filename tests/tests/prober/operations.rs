//! Operations in the kernel, against a process that knows the truth: this one.

use crate::support::*;
use profiler_core::adapt::decision::{self, ClassNumbers, Switch, Totals};
use profiler_core::class::ClassId;
use profiler_tests::support::linux_or_skip;
use profiler_user::prober::operation::{
    ARGUMENT_INT, ARGUMENT_SLICE, ARGUMENT_STRING, MEASURE_CALLS, OPERATION_BALANCE, OPERATION_BY_THREAD,
    OPERATION_MONITORING,
};
use profiler_user::prober::{
    Attached, ClassControl, ClassKind, FLAG_INNER_CALL, FLAG_INSIDE, Kernel, KernelOptions, LinkKind,
    OperationControl, OperationReader, OperationRecord, SLOT_UNKNOWN, Site, SyscallBounds,
};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

mod histograms;
mod incomplete;
mod losses;
mod off_cpu;
mod tracepoints;

function!(request);
function!(query);
function!(first);
function!(last);
function!(inside_call);
function!(thrown);

/// Class of the bound in the tables of functions; those of inner functions follow.
const BOUND: ClassId = ClassId(3);
const BOUND_END: ClassId = ClassId(4);
const INNER: ClassId = ClassId(5);
/// Classes of operation 0: its own, `(other)`, then names.
const BASE: u32 = 0;
const OTHER: u32 = 1;

fn options(classes: u32) -> KernelOptions {
    KernelOptions { operation_classes: classes, operations_ring_bytes: 1 << 20, ..KernelOptions::default() }
}

/// Operation 0 with that rate; classes from 2 to `end`.
fn configure(kernel: &Kernel, argument_kind: u32, argument: u32, flags: u32, end: u32, rate: f64) {
    let control = OperationControl {
        flags,
        argument_kind,
        argument,
        base_class: BASE,
        other_class: OTHER,
        end_class: end,
        ..OperationControl::default()
    };
    let table = kernel.operations();
    table.configure(0, &control, 2);
    table.set_quota(0, u64::MAX);
    for class in 0..end {
        table.order(class, decision::threshold(rate), 0, 7);
    }
}

fn bound(operation: u32) -> ClassControl {
    ClassControl { operation, ..ungated(ClassKind::Count) }
}

fn attach(kernel: &Kernel, kind: LinkKind, sites: Vec<Site>) -> Attached {
    kernel.classes().configure(sites[0].class, bound(0));
    kernel.attach(&group(kind, sites)).expect("functions of this process can be attached")
}

fn drain(reader: &mut OperationReader) -> Vec<OperationRecord> {
    let mut records = Vec::new();
    reader.drain(usize::MAX, |r| records.push(*r));
    records
}

/// Population by class name.
fn populations(kernel: &Kernel, reader: &mut OperationReader) -> BTreeMap<String, u64> {
    let names = reader.new_names();
    names.into_iter().map(|n| (n.name, kernel.operations().counters(n.class).population.n)).collect()
}

fn call_named(name: &CStr, n: u64) {
    for _ in 0..n {
        request.call(None, name.as_ptr() as u64);
    }
}

#[test]
fn populations_are_exact_for_every_class_name_on_many_threads() {
    for (kind, sites) in [
        (LinkKind::OperationReturn, vec![request.entry(BOUND)]),
        (LinkKind::OperationExits, vec![request.entry(BOUND), request.early_exit(BOUND)]),
    ] {
        let kernel = load(&options(64));
        let mut reader = kernel.operation_reader().unwrap();
        configure(&kernel, ARGUMENT_STRING, 1, OPERATION_MONITORING, 64, 1.0);
        let attached = attach(&kernel, kind, sites);
        let names: Vec<CString> = (0..8).map(|i| CString::new(format!("GET /{i}")).unwrap()).collect();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let names = &names;
                scope.spawn(move || {
                    for (i, name) in (0u64..).zip(names) {
                        call_named(name, 50 * (i + 1) + thread);
                    }
                });
            }
        });
        drop(attached);
        let expected: BTreeMap<String, u64> =
            (0..8u64).map(|i| (format!("GET /{i}"), 4 * 50 * (i + 1) + 6)).collect();
        assert_eq!(populations(&kernel, &mut reader), expected, "{kind:?}");
        let records = drain(&mut reader);
        assert_eq!(records.len() as u64, expected.values().sum::<u64>());
        for class in 2..10 {
            let c = kernel.operations().counters(class);
            assert_eq!(
                (c.begun(), c.recorded, c.sample.n, c.dropped),
                (c.population.n, c.begun(), c.begun(), 0)
            );
            let own: Vec<_> = records.iter().filter(|r| r.class == class).collect();
            assert_eq!(own.len() as u64, c.sample.n);
            assert_eq!(own.iter().map(|r| r.duration_ns).sum::<u64>(), c.sample.sum);
            let squares: f64 = own.iter().map(|r| (r.duration_ns as f64).powi(2)).sum();
            assert_eq!(c.population.squares(), squares);
            assert!(own.iter().all(|r| r.stretch == 7 && r.pid == std::process::id() && r.begin_ns > 0));
        }
        let base = kernel.operations().counters(BASE);
        assert_eq!((base.begun(), base.unmatched, base.unread), (0, 0, 0));
    }
}

#[test]
fn the_rate_is_a_binomial_share_and_the_quota_a_hard_bound() {
    let kernel = load(&options(4));
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, 0, 0, OPERATION_MONITORING, 4, 0.3);
    let attached = attach(&kernel, LinkKind::OperationReturn, vec![request.entry(BOUND)]);
    call_from(2, 5_000, request);
    let c = kernel.operations().counters(BASE);
    assert_eq!((c.population.n, c.recorded + c.not_drawn), (10_000, 10_000));
    // 3,000 expected, standard deviation 46: seven of them on either side.
    assert!((2_680..3_320).contains(&c.recorded), "{}", c.recorded);
    assert_eq!(drain(&mut reader).len() as u64, c.recorded);
    // 10 us at 300 ns each: 33, whatever the threads do.
    kernel.operations().order(BASE, decision::threshold(1.0), 300, 8);
    kernel.operations().set_quota(0, 10_000);
    call_from(4, 1_000, request);
    let after = kernel.operations().counters(BASE).since(&c);
    assert_eq!((after.recorded, after.no_quota, after.population.n), (33, 3_967, 4_000));
    // Off: the population goes on.
    kernel.operations().adjust(0, |c| c.flags = 0);
    call_from(1, 100, request);
    assert_eq!(kernel.operations().counters(BASE).off, 100);
    drop(attached);
}

#[test]
fn the_balance_test_is_that_of_the_core() {
    let kernel = load(&options(8));
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, ARGUMENT_INT, 1, OPERATION_MONITORING | OPERATION_BALANCE, 8, 1.0);
    let slack = decision::slack_q16(0.01);
    kernel.operations().adjust(0, |c| c.slack_q16 = slack);
    let attached = attach(&kernel, LinkKind::OperationReturn, vec![request.entry(BOUND)]);
    // Recording goes on and off, so that sample and population part; all draws are forced.
    let mut switch = Switch { monitoring: true, balance: true, slack_q16: slack, quota_ns: u64::MAX };
    let mut totals = Totals::default();
    let mut classes = [ClassNumbers { threshold: 1 << 32, price_ns: 0, population: 0, sample: 0 }; 3];
    let mut expected = [[0u64; 3]; 3];
    let mut random = 12_345u64;
    for i in 0..3_000 {
        if i % 500 == 0 {
            switch.monitoring = i % 1_000 == 0;
            let on = if switch.monitoring { OPERATION_MONITORING } else { 0 };
            kernel.operations().adjust(0, |c| c.flags = on | OPERATION_BALANCE);
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // The shares change with time: 0 is frequent in the first half, rare in the second.
        let class = match (random >> 33) % 10 {
            n if n < if i < 1_500 { 7 } else { 1 } => 0,
            n if n % 3 == 0 => 1,
            _ => 2,
        };
        request.call(None, class as u64);
        let decision = decision::decide(&mut switch, &mut totals, &mut classes[class], 0);
        expected[class][match decision {
            decision::Decision::Record => 0,
            decision::Decision::Off => 1,
            _ => 2,
        }] += 1;
    }
    drop(attached);
    for name in reader.new_names() {
        let c = kernel.operations().counters(name.class);
        let expected = expected[name.name.parse::<usize>().unwrap()];
        assert_eq!([c.recorded, c.off, c.balanced], expected, "class {}", name.name);
    }
    let outcomes: Vec<u64> = (0..3).map(|i| expected.iter().map(|class| class[i]).sum()).collect();
    assert!(outcomes.iter().all(|n| *n > 20), "{outcomes:?}: the run exercises all of them");
}

extern "C" fn three_inner(argument: u64) {
    for _ in 0..3 {
        inside_call.call(None, argument);
    }
}

extern "C" fn nested(argument: u64) {
    inside_call.call(None, argument);
    query.call(Some(three_inner), argument);
    inside_call.call(None, argument);
}

#[test]
fn nested_operations_get_their_inner_calls_and_measure() {
    let kernel = load(&options(8));
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, 0, 0, OPERATION_MONITORING, 4, 1.0);
    // Operation 1: class 4.
    let second = OperationControl {
        flags: OPERATION_MONITORING,
        base_class: 4,
        other_class: 5,
        end_class: 6,
        ..OperationControl::default()
    };
    kernel.operations().configure(1, &second, 6);
    kernel.operations().set_quota(1, u64::MAX);
    kernel.operations().order(4, decision::threshold(1.0), 0, 9);
    let outer = attach(&kernel, LinkKind::OperationReturn, vec![request.entry(BOUND)]);
    kernel.classes().configure(BOUND_END, bound(1));
    let nested_bound =
        kernel.attach(&group(LinkKind::OperationReturn, vec![query.entry(BOUND_END)])).unwrap();
    let inside = |measure| ClassControl {
        flags: ungated(ClassKind::Latency).flags | FLAG_INSIDE | FLAG_INNER_CALL,
        measure,
        hit_cost_ns: 1_000,
        return_cost_ns: 500,
        ..ungated(ClassKind::Latency)
    };
    // The second argument.
    kernel.classes().configure(INNER, inside(2));
    let inner_link = kernel.attach(&group(LinkKind::ReturnPair, vec![inside_call.entry(INNER)])).unwrap();
    inside_call.call(None, 99);
    request.call(Some(nested), 10);
    inside_call.call(None, 99);
    let records = drain(&mut reader);
    let find = |operation| *records.iter().find(|r| r.operation == operation).unwrap();
    let (outer_record, nested_record) = (find(0), find(1));
    assert_eq!(records.len(), 2);
    assert_eq!((outer_record.calls, outer_record.measure), (5, 50));
    assert_eq!((nested_record.calls, nested_record.measure), (3, 30));
    assert_eq!((outer_record.cost_ns, nested_record.cost_ns), (5 * 1_500, 3 * 1_500));
    assert!(nested_record.inner_ns < nested_record.duration_ns, "{nested_record:?}");
    assert!(
        outer_record.inner_ns > nested_record.inner_ns && outer_record.inner_ns < outer_record.duration_ns
    );
    let c = kernel.classes().counters(INNER);
    assert_eq!((c.attempted, c.kept, c.gated, c.returns), (7, 5, 2, 5), "outside operations they are gated");
    // Only the outer one is recorded: what lies in the other belongs to it all the same.
    kernel.operations().order(4, 0, 0, 10);
    kernel.classes().configure(INNER, inside(MEASURE_CALLS));
    request.call(Some(nested), 10);
    query.call(Some(three_inner), 10);
    let records = drain(&mut reader);
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].calls, records[0].measure), (5, 5));
    assert_eq!(kernel.operations().counters(4).population.n, 3);
    drop((outer, nested_bound, inner_link));
}

#[test]
fn pairs_of_functions_match_on_their_thread() {
    let kernel = load(&options(4));
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, 0, 0, OPERATION_MONITORING | OPERATION_BY_THREAD, 4, 1.0);
    let end = Site { slot_delta: SLOT_UNKNOWN, ..last.entry(BOUND_END) };
    kernel.classes().configure(BOUND_END, bound(0));
    let ends = kernel.attach(&group(LinkKind::OperationEnd, vec![end])).unwrap();
    let begins = attach(&kernel, LinkKind::OperationBegin, vec![first.entry(BOUND)]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    first.call(None, 0);
                    last.call(None, 0);
                }
            });
        }
    });
    let c = kernel.operations().counters(BASE);
    assert_eq!((c.population.n, c.recorded, c.unmatched), (2_000, 2_000, 0));
    assert_eq!(drain(&mut reader).len(), 2_000);
    // An end without a begin, a begin after a begin, and a thread that ends inside.
    last.call(None, 0);
    first.call(None, 0);
    first.call(None, 0);
    last.call(None, 0);
    std::thread::spawn(|| first.call(None, 0)).join().unwrap();
    let c = kernel.operations().counters(BASE).since(&c);
    assert_eq!((c.begun(), c.population.n, c.unmatched), (3, 1, 2));
    assert_eq!(drain(&mut reader).len(), 1);
    let open = kernel.open_operations(&[i32::try_from(std::process::id()).unwrap()]);
    assert!(open.is_empty(), "{open:?}");
    drop((ends, begins));
}

#[test]
fn operations_that_were_open_while_nobody_looked_are_given_up() {
    let test = "operations_that_were_open_while_nobody_looked_are_given_up";
    if !linux_or_skip(test, (6, 9), "a descriptor of a thread that is not its process's first") {
        return;
    }
    let kernel = load(&options(4));
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, 0, 0, OPERATION_MONITORING | OPERATION_BY_THREAD, 4, 1.0);
    let end = Site { slot_delta: SLOT_UNKNOWN, ..last.entry(BOUND_END) };
    kernel.classes().configure(BOUND_END, bound(0));
    let ends = kernel.attach(&group(LinkKind::OperationEnd, vec![end])).unwrap();
    let begins = attach(&kernel, LinkKind::OperationBegin, vec![first.entry(BOUND)]);
    first.call(None, 0);
    let open = kernel.open_operations(&[gettid()]);
    assert_eq!(open.len(), 1, "{open:?}");
    // Detached and attached again: ends and begins between were not seen.
    kernel.operations().adjust(0, |c| c.generation += 1);
    last.call(None, 0);
    first.call(None, 0);
    last.call(None, 0);
    drop((ends, begins));
    let c = kernel.operations().counters(BASE);
    assert_eq!((c.begun(), c.population.n, c.unmatched), (2, 1, 1));
    assert_eq!(drain(&mut reader).len(), 1);
}

fn gettid() -> i32 {
    rustix::thread::gettid().as_raw_pid()
}

/// Leaves the function without passing its exit, as an exception does.
extern "C" fn leave(buffer: u64) {
    // SAFETY: the buffer was filled by `setjmp` in a frame that is still live.
    unsafe { longjmp(buffer as *mut u64, 1) };
}

unsafe extern "C" {
    fn _setjmp(buffer: *mut u64) -> i32;
    fn longjmp(buffer: *mut u64, value: i32) -> !;
}

#[test]
fn operations_that_are_left_by_a_jump_are_given_up() {
    let kernel = load(&options(4));
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, 0, 0, OPERATION_MONITORING, 4, 1.0);
    let sites = vec![thrown.entry(BOUND), thrown.early_exit(BOUND)];
    let attached = attach(&kernel, LinkKind::OperationExits, sites);
    for _ in 0..20 {
        let mut buffer = [0u64; 64];
        // SAFETY: no value that lives across the jump is changed, and nothing has to be dropped.
        unsafe {
            if _setjmp(buffer.as_mut_ptr()) == 0 {
                thrown.call(Some(leave), buffer.as_mut_ptr() as u64);
            }
        }
    }
    thrown.call(None, 0);
    drop(attached);
    let c = kernel.operations().counters(BASE);
    assert_eq!((c.begun(), c.population.n, c.unmatched), (21, 1, 20));
    assert_eq!(drain(&mut reader).len(), 1);
}

#[test]
fn names_by_the_hundred_thousand_share_the_last_class() {
    let kernel = load(&options(102));
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, ARGUMENT_STRING, 1, OPERATION_MONITORING, 102, 0.0);
    let attached = attach(&kernel, LinkKind::OperationReturn, vec![request.entry(BOUND)]);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            scope.spawn(move || {
                for i in 0..25_000u32 {
                    let name = CString::new(format!("GET /user/{}", i * 4 + thread)).unwrap();
                    call_named(&name, 1);
                }
            });
        }
    });
    drop(attached);
    let table = kernel.operations();
    let names = reader.new_names();
    assert!(names.len() <= 100, "{}", names.len());
    let named: u64 = names.iter().map(|n| table.counters(n.class).population.n).sum();
    let other = table.counters(OTHER);
    assert_eq!(named + other.population.n, 100_000);
    assert_eq!(named, names.len() as u64, "each of them was called once");
    assert_eq!(other.not_drawn, other.population.n);
    assert!(reader.new_names().is_empty());
}

#[test]
fn names_that_cannot_be_read_go_to_the_operations_own_class() {
    let kernel = load(&options(8));
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, ARGUMENT_STRING, 1, OPERATION_MONITORING, 8, 1.0);
    let attached = attach(&kernel, LinkKind::OperationReturn, vec![request.entry(BOUND)]);
    request.call(None, 8);
    call_named(c"", 2);
    let long = CString::new("x".repeat(500)).unwrap();
    call_named(&long, 3);
    drop(attached);
    let base = kernel.operations().counters(BASE);
    assert_eq!((base.population.n, base.unread), (1, 1));
    let expected = BTreeMap::from([(String::new(), 2), ("x".repeat(63), 3)]);
    assert_eq!(populations(&kernel, &mut reader), expected);
}

#[test]
fn slices_are_as_long_as_the_next_argument_says() {
    let kernel = load(&options(8));
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, ARGUMENT_SLICE, 1, OPERATION_MONITORING, 8, 1.0);
    let attached = attach(&kernel, LinkKind::OperationReturn, vec![request.entry(BOUND)]);
    // SAFETY: a third argument is one that the callee ignores.
    let call: unsafe extern "C" fn(u64, *const u8, usize) = unsafe { std::mem::transmute(request.0) };
    let text = "x".repeat(200);
    for (text, length) in
        [("GET /abc", 6), ("GET /abc", 8), ("GET /a", 6), (text.as_str(), 200), (text.as_str(), 0)]
    {
        // SAFETY: the function reads no memory.
        unsafe { call(0, text.as_ptr(), length) };
    }
    drop(attached);
    let expected = [("", 1), ("GET /a", 2), ("GET /abc", 1), (&text[..63], 1)];
    let expected = expected.map(|(name, n)| (name.to_owned(), n)).into();
    assert_eq!(populations(&kernel, &mut reader), expected);
}

#[test]
fn system_calls_bound_operations_of_one_process() {
    let kernel = load(&options(8));
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, 0, 0, OPERATION_MONITORING | OPERATION_BY_THREAD, 4, 1.0);
    let alone = OperationControl {
        flags: OPERATION_MONITORING | OPERATION_BY_THREAD,
        base_class: 4,
        other_class: 5,
        end_class: 6,
        ..OperationControl::default()
    };
    kernel.operations().configure(1, &alone, 6);
    kernel.operations().set_quota(1, u64::MAX);
    kernel.operations().order(4, decision::threshold(1.0), 0, 0);
    let number = |n: i64| u32::try_from(n).unwrap();
    let bounds = [
        (
            number(libc::SYS_sched_yield),
            SyscallBounds { begins_at_exit: Some(0), ..SyscallBounds::default() },
        ),
        (number(libc::SYS_getppid), SyscallBounds { ends_at_exit: Some(0), ..SyscallBounds::default() }),
        (
            number(libc::SYS_nanosleep),
            SyscallBounds { begins_at_entry: Some(1), ends_at_exit: Some(1), ..SyscallBounds::default() },
        ),
    ];
    let watch = kernel.watch_syscalls(&bounds, std::process::id()).unwrap();
    let syscall = |n: i64| {
        // SAFETY: both take no argument and have no effect.
        unsafe { libc::syscall(n) }
    };
    for _ in 0..300 {
        syscall(libc::SYS_sched_yield);
        syscall(libc::SYS_getppid);
    }
    syscall(libc::SYS_getppid);
    let time = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    // SAFETY: a live timespec, no remainder wanted.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, 0) };
    drop(watch);
    syscall(libc::SYS_sched_yield);
    let (pair, sleep) = (kernel.operations().counters(BASE), kernel.operations().counters(4));
    assert_eq!((pair.population.n, pair.unmatched), (300, 1));
    assert_eq!((sleep.population.n, sleep.unmatched), (1, 0));
    assert!((5_000_000..100_000_000).contains(&sleep.population.sum), "{}", sleep.population.sum);
    assert_eq!(drain(&mut reader).len(), 301);
    assert!(kernel.classes().global_counters().operation_syscalls >= 602);
}
