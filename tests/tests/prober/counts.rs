//! Counting: every hit, once, under its class.

use crate::support::*;
use profiler_user::prober::{ClassKind, LinkKind};

function!(counted);
function!(paired);

#[test]
fn counts_are_exact_with_1_and_8_threads() {
    let kernel = kernel(None);
    let f = counted;
    let before = f.bytes();
    for (threads, calls) in [(1, 1), (1, 10_000), (8, 10_000)] {
        kernel.classes().reset(CLASS);
        kernel.classes().configure(CLASS, ungated(ClassKind::Count));
        let attached = kernel.attach(&group(LinkKind::Count, vec![f.entry(CLASS)])).unwrap();
        assert!(attached.refused.is_empty());
        call_from(threads, calls, f);
        drop(attached);
        assert_eq!(f.bytes(), before, "the text is the original after detaching");
        call_from(1, 10, f);
        let c = kernel.classes().counters(CLASS);
        assert_eq!((c.attempted, c.kept, c.gated, c.dropped), (threads * calls, threads * calls, 0, 0));
    }
}

#[test]
fn pairs() {
    let kernel = kernel(None);
    for kind in [LinkKind::ReturnPair, LinkKind::ExitPair] {
        let f = paired;
        kernel.classes().reset(CLASS);
        kernel.classes().configure(CLASS, ungated(ClassKind::Latency));
        let attached = kernel.attach(&group(kind, vec![f.entry(CLASS), f.exit(CLASS)])).unwrap();
        assert!(attached.refused.is_empty());
        call_from(8, 1000, f);
        drop(attached);
        let c = kernel.classes().counters(CLASS);
        println!("{kind:?} {c:?}");
    }
}
