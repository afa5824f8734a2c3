//! Return addresses that several classes share: each return runs a program of each.

use super::*;

function!(returned_shared_outer);
caller!(returned_shared_outer_from);
function!(returned_shared_one);
function!(returned_shared_other);
caller!(returned_shared_from);

extern "C" fn call_both(n: u64) {
    for _ in 0..n {
        returned_shared_from.call(returned_shared_one, None, 0);
        returned_shared_from.call(returned_shared_other, None, 0);
    }
}

function!(returned_dear);
caller!(returned_dear_from);
function!(returned_dear_inner);

extern "C" fn call_counted(n: u64) {
    (0..n).for_each(|_| returned_dear_inner.call(None, 0));
}

#[test]
fn traps_of_one_class_are_paid_each_however_dear_they_are() {
    const N: u64 = 500;
    /// Longer than the way from one call to the next: the price of the dearest sites of a class, at one that is cheap.
    const PRICE: u32 = 10_000;
    let (o, f, inner) = (ClassId(42), ClassId(43), ClassId(44));
    let kernel = kernel(None);
    let priced = |hit_cost_ns, return_cost_ns, own_cost_ns| ClassControl {
        hit_cost_ns,
        return_cost_ns,
        own_cost_ns,
        ..learning(ClassKind::Latency)
    };
    extern "C" fn call_dear(n: u64) {
        (0..n).for_each(|_| returned_dear_from.call(returned_dear, Some(call_counted), 2));
    }
    renew(&kernel, o, priced(1, 0, 0));
    renew(&kernel, f, priced(100, PRICE, 30));
    renew(&kernel, inner, ClassControl { hit_cost_ns: 1_200, ..ungated(ClassKind::Count) });
    let outer = watch(&kernel, o, returned_shared_outer, returned_shared_outer_from);
    let dear = watch(&kernel, f, returned_dear, returned_dear_from);
    let counted = kernel.attach(&group(LinkKind::Count, vec![returned_dear_inner.entry(inner)])).unwrap();
    returned_shared_outer_from.call(returned_shared_outer, Some(call_dear), N);
    drop((outer, dear, counted));
    assert_eq!(seen(&kernel, f), timed(N));
    assert_eq!(kernel.classes().counters(f).nested_cost_ns, N * (30 + 2 * 1_200));
    let each = u64::from(PRICE) + 100 + 2 * 1_200;
    assert_eq!(kernel.classes().counters(o).nested_cost_ns, N * each);
}

#[test]
fn a_trap_that_runs_the_programs_of_two_classes_is_paid_once() {
    const N: u64 = 200;
    /// A hit of each class: longer than a program takes; one is shorter than two hits, one is longer than the way to the next call.
    const PRICES: [u32; 2] = [700, 10_000];
    /// What the other class's program may take of it in the mean, ns.
    const MOST: u64 = 600;
    let (o, f, g) = (ClassId(42), ClassId(43), ClassId(44));
    let kernel = kernel(None);
    let mut first = Vec::new();
    // Whichever program of the site runs first.
    for order in [[0, 1], [1, 0]] {
        renew(&kernel, o, ClassControl { hit_cost_ns: 1, ..learning(ClassKind::Latency) });
        for (class, return_cost_ns) in [(f, PRICES[0]), (g, PRICES[1])] {
            let own_cost_ns = 30;
            let control = learning(ClassKind::Latency);
            renew(&kernel, class, ClassControl { hit_cost_ns: 100, return_cost_ns, own_cost_ns, ..control });
        }
        let outer = watch(&kernel, o, returned_shared_outer, returned_shared_outer_from);
        let links = order.map(|n| {
            let (class, function) = [(f, returned_shared_one), (g, returned_shared_other)][n];
            watch(&kernel, class, function, returned_shared_from)
        });
        returned_shared_outer_from.call(returned_shared_outer, Some(call_both), N);
        drop((outer, links));
        let callers = CallerCounters { strays: N, ends: 2 * N, ..CallerCounters::default() };
        for class in [f, g] {
            assert_eq!(seen(&kernel, class), Seen { callers, ..timed(N) });
            let nested_ns = kernel.classes().counters(class).nested_cost_ns;
            assert!((30 * N..(30 + MOST) * N).contains(&nested_ns), "{} ns a call", nested_ns / N);
        }
        let nested_ns = kernel.classes().counters(o).nested_cost_ns;
        let all = 2 * N;
        // Each trap costs what a hit of the class costs whose program runs first.
        let trap = PRICES.map(|price| u64::from(price) + 100);
        let paid = trap.iter().position(|trap| (trap * all..(trap + MOST) * all).contains(&nested_ns));
        first.push(paid.unwrap_or_else(|| panic!("{} ns a call", nested_ns / all)));
    }
    first.sort_unstable();
    assert_eq!(first, [0, 1], "both orders");
}
