//! Functions that leave by a tail jump: their calls end where the caller goes on.

use super::*;

function!(returned_jumped_to);
caller!(returned_tail_from);

// `tail(callback, argument, to)` jumps to `to(callback, argument, to)`.
core::arch::global_asm!(
    ".pushsection .text",
    ".p2align 4",
    ".globl tithe_test_returned_tail",
    "tithe_test_returned_tail:",
    "push rbp",
    "pop rbp",
    "jmp rdx",
    ".popsection",
);
unsafe extern "C" {
    fn tithe_test_returned_tail(callback: Option<extern "C" fn(u64)>, argument: u64);
}

#[test]
fn a_tail_jump_ends_nothing() {
    let (t, f) = (ClassId(50), ClassId(51));
    let (tail, to, from) = (tithe_test_returned_tail as Callee, returned_jumped_to, returned_tail_from);
    let tail_entry = Site::entry(t, file_offset(tail as usize as u64));
    let kernel = kernel(None);
    let (outer, inner) = (0, 1);
    let attach_outer = || {
        let attached = attach(&kernel, vec![tail_entry, from.site(t, 0)]);
        assert!(kernel.arm_caller(t, from.return_address()));
        attached
    };
    let attach_inner = |way| match way {
        LinkKind::ReturnSites => watch(&kernel, f, to, from),
        LinkKind::ExitPair => kernel.attach(&group(way, vec![to.entry(f), to.exit(f)])).unwrap(),
        _ => kernel.attach(&group(way, vec![to.entry(f)])).unwrap(),
    };
    // Whatever way the function that is jumped to is timed, and whichever program of a site runs first.
    let ways = [LinkKind::ReturnSites, LinkKind::ExitPair, LinkKind::ReturnPair];
    for (way, first) in ways.into_iter().flat_map(|way| [(way, outer), (way, inner)]) {
        for class in [t, f] {
            renew(&kernel, class, learning(ClassKind::Latency));
        }
        let links = if first == outer {
            [attach_outer(), attach_inner(way)]
        } else {
            [attach_inner(way), attach_outer()]
        };
        for _ in 0..20 {
            from.call_over(tail, to, Some(sleep_ms), 1);
        }
        // Without the jump: the site is hit, and only one of them was called.
        for _ in 0..10 {
            from.call(to, None, 0);
        }
        drop(links);
        let callers = CallerCounters { strays: 10, ends: 30, ..CallerCounters::default() };
        assert_eq!(seen(&kernel, t), Seen { callers, ..timed(20) }, "{way:?}");
        let [t, c] = [t, f].map(|class| kernel.classes().counters(class));
        assert_eq!((c.attempted, c.kept, c.returns, c.unwound, c.open(), c.orphans), (30, 30, 30, 0, 0, 0));
        assert!(t.sum_ns > 20_000_000 && c.sum_ns > 20_000_000, "{} and {} ns", t.sum_ns, c.sum_ns);
    }
}

#[test]
fn a_tail_jump_ends_nothing_where_another_tracer_has_replaced_the_address() {
    let (t, x, f) = (ClassId(50), ClassId(51), ClassId(52));
    let (tail, to, from) = (tithe_test_returned_tail as Callee, returned_jumped_to, returned_tail_from);
    let tail_entry = |class| Site::entry(class, file_offset(tail as usize as u64));
    let kernel = kernel(None);
    for class in [t, f] {
        renew(&kernel, class, learning(ClassKind::Latency));
    }
    let sites = attach(&kernel, vec![tail_entry(t), from.site(t, 0)]);
    assert!(kernel.arm_caller(t, from.return_address()));
    // What is jumped to finds the trampoline where the return address was.
    let other = kernel.attach(&group(LinkKind::EmptyReturnPair, vec![tail_entry(x)])).unwrap();
    let exits = kernel.attach(&group(LinkKind::ExitPair, vec![to.entry(f), to.exit(f)])).unwrap();
    for _ in 0..20 {
        from.call_over(tail, to, Some(sleep_ms), 1);
    }
    drop((sites, other, exits));
    assert_eq!(seen(&kernel, t), timed(20));
    let [t, f] = [t, f].map(|class| kernel.classes().counters(class));
    assert_eq!((f.kept, f.returns, f.unwound, f.open()), (20, 20, 0, 0));
    assert!(t.sum_ns > 20_000_000 && f.sum_ns > 20_000_000);
}
