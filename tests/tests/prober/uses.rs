//! Functions that several classes watch at once: each counts, times and records as if it were alone.

use crate::support::*;
use crate::throws::{tithe_test_catch, tithe_test_throw};
use profiler_core::adapt::decision;
use profiler_core::class::ClassId;
use profiler_tests::support::tiers_here;
use profiler_user::prober::operation::{OPERATION_MONITORING, OPERATION_STEPS};
use profiler_user::prober::{
    Attached, ClassControl, ClassKind, FLAG_ARGUMENTS, FLAG_INNER_CALL, FLAG_INSIDE, Kernel, KernelOptions,
    LinkKind, OperationControl, OperationRecord, Site, Tier,
};

function!(shared);
function!(shared_left);
function!(shared_around);
function!(shared_request);

const RECORDED: ClassId = ClassId(11);
const TIMED: ClassId = ClassId(12);
const COUNTED: ClassId = ClassId(13);
/// Number of the function in the controls of its classes.
const FUNCTION: u32 = 12;

fn of_function(kind: ClassKind) -> ClassControl {
    ClassControl { function: FUNCTION, ..ungated(kind) }
}

fn attach(kernel: &Kernel, kind: LinkKind, sites: Vec<Site>) -> Attached {
    let attached = kernel.attach(&group(kind, sites)).unwrap();
    assert!(attached.refused.is_empty());
    attached
}

/// The sites of a timed function, by the way its end is seen.
fn sites(f: Function, class: ClassId, kind: LinkKind) -> Vec<Site> {
    if kind == LinkKind::ExitPair { vec![f.entry(class), f.exit(class)] } else { vec![f.entry(class)] }
}

extern "C" fn call_again(n: u64) {
    if n > 0 {
        shared.call(Some(call_again), n - 1);
    }
}

fn every_use_counts(kernel: &Kernel) {
    let mut reader = kernel.call_reader().unwrap();
    for kind in [LinkKind::ReturnPair, LinkKind::ExitPair] {
        for class in [RECORDED, TIMED, COUNTED] {
            kernel.classes().reset(class);
        }
        let recorded = of_function(ClassKind::Record);
        kernel
            .classes()
            .configure(RECORDED, ClassControl { flags: recorded.flags | FLAG_ARGUMENTS, ..recorded });
        kernel.classes().configure(TIMED, of_function(ClassKind::Latency));
        kernel.classes().configure(COUNTED, of_function(ClassKind::Count));
        let links = [
            attach(kernel, kind, sites(shared, RECORDED, kind)),
            attach(kernel, kind, sites(shared, TIMED, kind)),
            attach(kernel, LinkKind::Count, vec![shared.entry(COUNTED)]),
        ];
        call_from(4, 500, shared);
        for _ in 0..50 {
            shared.call(Some(call_again), 3);
        }
        drop(links);
        const CALLS: u64 = 4 * 500 + 50 * 4;
        for class in [RECORDED, TIMED] {
            let c = kernel.classes().counters(class);
            assert_eq!(
                (c.attempted, c.kept, c.returns, c.unwound, c.omitted, c.orphans, c.dropped),
                (CALLS, CALLS, CALLS, 0, 0, 0, 0),
                "{kind:?} {class:?}"
            );
        }
        let c = kernel.classes().counters(COUNTED);
        assert_eq!((c.attempted, c.kept), (CALLS, CALLS), "{kind:?}");
        let mut around = Vec::new();
        reader.drain(usize::MAX, |call| {
            assert_eq!(call.class, RECORDED);
            around.push((call.args.expect("they were asked for")[1], call.around));
        });
        assert_eq!(around.len() as u64, CALLS, "{kind:?}");
        // What the other class keeps of the same call is no call around it. The innermost ends first.
        let nested: Vec<_> = around[2_000..2_004].iter().map(|(_, around)| around.unwrap()).collect();
        assert_eq!(nested.iter().map(|(depth, _)| *depth).collect::<Vec<_>>(), [6, 4, 2, 0], "{kind:?}");
        assert_eq!(nested.iter().filter(|(_, class)| class.is_none()).count(), 1, "{kind:?}: {nested:?}");
    }
}

#[test]
fn every_use_of_a_function_counts_every_call() {
    every_use_counts(&kernel(None));
}

#[test]
fn every_use_of_a_function_counts_every_call_in_tiers_b_c_and_d() {
    let test = "every_use_of_a_function_counts_every_call_in_tiers_b_c_and_d";
    for tier in tiers_here(test, &[Tier::B, Tier::C, Tier::D]) {
        let kernel = kernel(Some(tier));
        kernel.add_target(std::process::id(), false).unwrap();
        every_use_counts(&kernel);
    }
}

extern "C" fn throw(_: u64) {
    // SAFETY: `catch` is on the stack, and only assembly lies between.
    unsafe { tithe_test_throw() }
}

/// A call that is left by a throw leaves one call of each class behind, which the next call at its place proves.
#[test]
fn calls_that_are_left_are_unwound_in_every_use() {
    let kernel = kernel(None);
    for class in [RECORDED, TIMED] {
        kernel.classes().configure(class, of_function(ClassKind::Latency));
    }
    let links = [RECORDED, TIMED]
        .map(|class| attach(&kernel, LinkKind::ExitPair, sites(shared_left, class, LinkKind::ExitPair)));
    for _ in 0..200 {
        // SAFETY: assembly that follows the C ABI; the function takes a callback and its argument.
        unsafe { tithe_test_catch(shared_left.0 as usize, throw as *const () as usize, 0, 0) }
    }
    drop(links);
    for class in [RECORDED, TIMED] {
        let c = kernel.classes().counters(class);
        assert_eq!((c.kept, c.dropped, c.returns, c.unwound, c.open()), (200, 0, 0, 199, 1), "{class:?}");
    }
}

extern "C" fn call_shared(n: u64) {
    for _ in 0..n {
        shared.call(None, 0);
    }
}

/// The price of a hit is mostly that of its trap.
#[test]
fn a_trap_that_two_uses_share_is_paid_once() {
    const PRICE: u32 = 10_000;
    const CALLS: u64 = 50;
    let kernel = kernel(None);
    let around = ClassId(14);
    kernel.classes().configure(around, ungated(ClassKind::Latency));
    let nested_ns = |function| {
        kernel.classes().reset(around);
        for class in [RECORDED, COUNTED] {
            let control = ClassControl { function, hit_cost_ns: PRICE, ..ungated(ClassKind::Count) };
            kernel.classes().configure(class, control);
        }
        let links = [
            attach(&kernel, LinkKind::ExitPair, sites(shared_around, around, LinkKind::ExitPair)),
            attach(&kernel, LinkKind::Count, vec![shared.entry(RECORDED)]),
            attach(&kernel, LinkKind::Count, vec![shared.entry(COUNTED)]),
        ];
        shared_around.call(Some(call_shared), CALLS);
        drop(links);
        kernel.classes().counters(around).nested_cost_ns
    };
    let price = CALLS * u64::from(PRICE);
    assert_eq!(nested_ns(0), 2 * price, "who does not know of the other charges all");
    let once = nested_ns(FUNCTION);
    assert!((price..price * 3 / 2).contains(&once), "{once} of {price}");
}

extern "C" fn request_again(n: u64) {
    if n > 0 {
        shared_request.call(Some(request_again), n - 1);
    }
    call_shared(2);
}

/// A function that is an operation, lies inside operations, and is recorded: the call that is the operation lies not inside it, whichever
/// program runs first.
#[test]
fn a_bound_lies_inside_other_operations_and_not_in_its_own() {
    for kind in [ClassKind::Count, ClassKind::Latency, ClassKind::Step] {
        for inner_first in [true, false] {
            let options = KernelOptions {
                operation_classes: 4,
                operations_ring_bytes: 1 << 20,
                steps_ring_bytes: 1 << 20,
                ..KernelOptions::default()
            };
            let kernel = load(&options);
            let mut operations = kernel.operation_reader().unwrap();
            let mut steps = kernel.step_reader().unwrap();
            let steps_flag = if kind == ClassKind::Step { OPERATION_STEPS } else { 0 };
            let control = OperationControl {
                flags: OPERATION_MONITORING | steps_flag,
                base_class: 0,
                other_class: 1,
                end_class: 4,
                ..OperationControl::default()
            };
            kernel.operations().configure(0, &control, 2);
            kernel.operations().set_quota(0, u64::MAX);
            kernel.operations().order(0, decision::threshold(1.0), 0, 7);
            kernel
                .classes()
                .configure(RECORDED, ClassControl { operation: 0, ..of_function(ClassKind::Count) });
            let inside = of_function(kind);
            let flags = inside.flags | FLAG_INSIDE | FLAG_INNER_CALL;
            kernel.classes().configure(TIMED, ClassControl { flags, bounds: 1, ..inside });
            kernel.classes().configure(COUNTED, ClassControl { flags, function: 0, ..inside });
            let way = match kind {
                ClassKind::Latency => LinkKind::ReturnPair,
                ClassKind::Step => LinkKind::Step,
                _ => LinkKind::Count,
            };
            let bound = || attach(&kernel, LinkKind::OperationReturn, vec![shared_request.entry(RECORDED)]);
            let inner = || attach(&kernel, way, vec![shared_request.entry(TIMED)]);
            let links = if inner_first { [inner(), bound()] } else { [bound(), inner()] };
            let leaf = attach(&kernel, way, vec![shared.entry(COUNTED)]);
            for _ in 0..20 {
                shared_request.call(Some(request_again), 2);
            }
            drop((links, leaf));
            let mut records: Vec<OperationRecord> = Vec::new();
            operations.drain(usize::MAX, |r| records.push(*r));
            let context = format!("{kind:?}, inner attached first: {inner_first}");
            assert_eq!(records.len(), 60, "{context}");
            let mut taken = Vec::new();
            steps.drain(usize::MAX, |step| taken.push(*step));
            for calls in records.chunks(3) {
                // The innermost ends first: two leaves; two more and the innermost; and so on.
                assert_eq!(calls.iter().map(|r| r.calls).collect::<Vec<_>>(), [2, 5, 8], "{context}");
                assert!(calls.iter().all(|r| r.steps.flags == 0 && r.inner_ns < r.duration_ns), "{context}");
                if kind == ClassKind::Step {
                    let of = |r: &OperationRecord| r.steps.after - r.steps.before;
                    assert_eq!(calls.iter().map(of).collect::<Vec<_>>(), [2, 5, 8], "{context}");
                }
            }
            if kind == ClassKind::Step {
                assert_eq!(taken.len(), 20 * 8, "{context}");
                let own = taken.iter().filter(|step| step.class == TIMED.0).count();
                assert_eq!(own, 20 * 2, "{context}: the outermost lies in no operation");
            }
        }
    }
}
