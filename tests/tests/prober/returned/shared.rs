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

#[test]
fn a_trap_that_runs_the_programs_of_two_classes_is_paid_once() {
    const N: u64 = 200;
    /// A hit: longer than a program takes, shorter than two hits.
    const PRICE: u32 = 700;
    /// What the other class's program may take of it in the mean, ns.
    const MOST: u64 = 350;
    let (o, f, g) = (ClassId(42), ClassId(43), ClassId(44));
    let kernel = kernel(None);
    // Whichever program of the site runs first.
    for order in [[0, 1], [1, 0]] {
        renew(&kernel, o, ClassControl { hit_cost_ns: 1, ..learning(ClassKind::Latency) });
        for class in [f, g] {
            let own_cost_ns = 30;
            let control = learning(ClassKind::Latency);
            renew(
                &kernel,
                class,
                ClassControl { hit_cost_ns: 100, return_cost_ns: PRICE, own_cost_ns, ..control },
            );
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
        let trap = u64::from(PRICE) + 100;
        let nested_ns = kernel.classes().counters(o).nested_cost_ns;
        let all = 2 * N;
        assert!((trap * all..(trap + MOST) * all).contains(&nested_ns), "{} ns a call", nested_ns / all);
    }
}
