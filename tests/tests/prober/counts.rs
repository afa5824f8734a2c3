//! Counting: every hit, once, under its class, in every tier.

use crate::support::*;
use profiler_core::class::ClassId;
use profiler_tests::support::tiers_here;
use profiler_user::prober::{AttachError, ClassKind, Kernel, LinkKind, SampleKind, Site, Tier};

function!(counted);
function!(counted_b);
function!(counted_c);
function!(counted_d);
function!(told_a);
function!(told_b);
function!(off);
function!(guarded);
function!(kept_pair);
function!(refused_pair);
function!(unattached);
function!(refused_a);
function!(refused_b);
function!(refused_c);

fn counts_are_exact(kernel: &Kernel, f: Function) {
    kernel.add_target(std::process::id(), false).unwrap();
    let before = f.bytes();
    for (threads, calls) in [(1, 1), (1, 10_000), (8, 10_000)] {
        kernel.classes().reset(CLASS);
        kernel.classes().configure(CLASS, ungated(ClassKind::Count));
        let attached = kernel.attach(&group(LinkKind::Count, vec![f.entry(CLASS)])).unwrap();
        assert!(attached.refused.is_empty());
        assert_eq!(attached.link.sites(), 1);
        assert_ne!(f.bytes(), before, "a breakpoint is in the text while attached");
        call_from(threads, calls, f);
        drop(attached);
        // A process that another test forks just now may hold a copy of the link until it execs.
        let original = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            f.bytes() == before
        });
        assert!(original, "the text is the original after detaching");
        call_from(1, 10, f);
        let c = kernel.classes().counters(CLASS);
        assert_eq!((c.attempted, c.kept, c.gated, c.dropped), (threads * calls, threads * calls, 0, 0));
        assert_eq!(kernel.classes().attempted(CLASS), c.attempted);
    }
}

#[test]
fn counts_are_exact_with_1_and_8_threads() {
    let kernel = kernel(None);
    println!("tier {:?}, {} bytes", kernel.tier(), kernel.kernel_memory_bytes());
    counts_are_exact(&kernel, counted);
    assert_eq!(kernel.kernel_misses(), 0);
}

#[test]
fn counts_are_exact_in_tier_b() {
    if tiers_here("counts_are_exact_in_tier_b", &[Tier::B]).is_empty() {
        return;
    }
    let kernel = kernel(Some(Tier::B));
    assert_eq!(kernel.tier(), Tier::B);
    counts_are_exact(&kernel, counted_b);
}

#[test]
fn counts_are_exact_in_tier_c() {
    if tiers_here("counts_are_exact_in_tier_c", &[Tier::C]).is_empty() {
        return;
    }
    let kernel = kernel(Some(Tier::C));
    counts_are_exact(&kernel, counted_c);
    // Without the target set nothing is kept: the kernel filters nothing.
    kernel.remove_target(std::process::id());
    kernel.classes().reset(CLASS);
    let attached = kernel.attach(&group(LinkKind::Count, vec![counted_c.entry(CLASS)])).unwrap();
    call_from(1, 50, counted_c);
    drop(attached);
    let c = kernel.classes().counters(CLASS);
    assert_eq!((c.attempted, c.kept, c.gated, c.bystanders), (50, 0, 50, 50));
}

#[test]
fn counts_are_exact_in_tier_d() {
    let kernel = kernel(Some(Tier::D));
    counts_are_exact(&kernel, counted_d);
}

#[test]
fn cookies_tell_classes_apart() {
    let kernel = kernel(None);
    let (a, b) = (ClassId(3), ClassId(kernel.classes().max_classes() - 1));
    for class in [a, b] {
        kernel.classes().configure(class, ungated(ClassKind::Count));
    }
    let attached = kernel.attach(&group(LinkKind::Count, vec![told_a.entry(a), told_b.entry(b)])).unwrap();
    call_from(1, 300, told_a);
    call_from(1, 500, told_b);
    drop(attached);
    assert_eq!(kernel.classes().counters(a).kept, 300);
    assert_eq!(kernel.classes().counters(b).kept, 500);
    assert_eq!(kernel.classes().global_counters().unknown_class, 0);
}

#[test]
fn a_class_that_is_off_is_gated() {
    let kernel = kernel(None);
    let attached = kernel.attach(&group(LinkKind::Count, vec![off.entry(ClassId(11))])).unwrap();
    call_from(1, 20, off);
    drop(attached);
    let c = kernel.classes().counters(ClassId(11));
    assert_eq!((c.attempted, c.kept, c.gated), (20, 0, 20));
}

#[test]
fn a_bad_address_is_left_out_and_named() {
    let kernel = kernel(None);
    let good: Vec<(Function, ClassId)> =
        [refused_a, refused_b, refused_c].into_iter().zip([20, 21, 22].map(ClassId)).collect();
    let mut sites: Vec<Site> = good.iter().map(|(f, class)| f.entry(*class)).collect();
    // Far beyond the end of the file: the kernel cannot read an instruction there.
    let bad = Site::entry(ClassId(23), 1 << 40);
    sites.insert(1, bad);
    for (_, class) in &good {
        kernel.classes().configure(*class, ungated(ClassKind::Count));
    }
    let attached = kernel.attach(&group(LinkKind::Count, sites)).unwrap();
    assert_eq!(attached.refused.len(), 1, "{:?}", attached.refused);
    assert_eq!(attached.refused[0].site, bad);
    assert_eq!(attached.link.sites(), 3);
    for (f, _) in &good {
        call_from(1, 7, *f);
    }
    // One link each of tier D; else halves are linked: the first site, and the last two.
    let parts: Vec<u32> = attached.link.into_parts().into_iter().map(|(_, sites)| sites).collect();
    assert!(kernel.tier() == Tier::D || parts == [1, 2], "{parts:?}");
    for (_, class) in &good {
        assert_eq!(kernel.classes().counters(*class).kept, 7);
    }
}

#[test]
fn a_refused_exit_takes_its_entry_along() {
    let kernel = kernel(None);
    let (good, bad) = (ClassId(30), ClassId(31));
    kernel.classes().configure(good, ungated(ClassKind::Latency));
    kernel.classes().configure(bad, ungated(ClassKind::Latency));
    let sites =
        vec![kept_pair.entry(good), refused_pair.entry(bad), kept_pair.exit(good), Site::exit(bad, 1 << 40)];
    let attached = kernel.attach(&group(LinkKind::ExitPair, sites)).unwrap();
    assert_eq!(attached.refused.iter().map(|r| r.site.class).collect::<Vec<_>>(), [bad, bad]);
    assert_eq!(attached.link.sites(), 2);
    call_from(1, 5, kept_pair);
    call_from(1, 5, refused_pair);
    drop(attached);
    assert_eq!(kernel.classes().counters(good).returns, 5);
    assert_eq!(kernel.classes().counters(bad).attempted, 0);
}

#[test]
fn what_cannot_be_attached_says_why() {
    let kernel = kernel(None);
    let site = unattached.entry(CLASS);
    let mut missing = group(LinkKind::Count, vec![site]);
    missing.module = "/no/such/file".into();
    let error = kernel.attach(&missing).unwrap_err();
    assert!(matches!(error, AttachError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("/no/such/file"), "{error}");

    let all_bad = group(LinkKind::Count, vec![Site::entry(CLASS, 1 << 40)]);
    assert!(matches!(kernel.attach(&all_bad).unwrap_err(), AttachError::AllRefused { .. }));

    let nothing = group(LinkKind::ExitPair, vec![site]);
    assert!(matches!(kernel.attach(&nothing).unwrap_err(), AttachError::Empty { missing: "exit", .. }));

    let mut gone = group(LinkKind::Count, vec![site]);
    gone.pid = 4_194_303; // The largest process id: nobody has it.
    let error = kernel.attach(&gone).unwrap_err();
    assert!(error.to_string().contains("4194303"), "{error}");
}

#[test]
fn the_best_tier_comes_with_its_reason() {
    let kernel = kernel(None);
    let last = kernel.tier_findings().last().unwrap();
    assert_eq!((last.tier, &last.refused), (kernel.tier(), &None));
    for finding in &kernel.tier_findings()[..kernel.tier_findings().len() - 1] {
        assert!(finding.refused.is_some());
    }
}

#[test]
fn every_program_leaves_the_verifier_room() {
    for tier in tiers_here("every_program_leaves_the_verifier_room", &[Tier::A, Tier::B, Tier::D]) {
        let kernel = kernel(Some(tier));
        let (entry, exit) = (off.entry(CLASS), off.exit(CLASS));
        for kind in [LinkKind::Count, LinkKind::Record, LinkKind::ExitPair, LinkKind::ReturnPair] {
            drop(kernel.attach(&group(kind, vec![entry, exit])).unwrap());
        }
        kernel.sampler(SampleKind::Observe).unwrap();
        for (name, info) in kernel.program_info() {
            println!("{name}: {} instructions verified", info.verified_instructions);
            // The kernel gives up at a million; older verifiers prune less. With words of the target it is up to eight times as much.
            assert!(info.verified_instructions < 100_000, "{name}: {}", info.verified_instructions);
        }
    }
}

core::arch::global_asm!(
    ".pushsection .data",
    ".p2align 1",
    ".globl tithe_test_semaphore",
    "tithe_test_semaphore: .short 0",
    ".popsection",
);

unsafe extern "C" {
    static mut tithe_test_semaphore: u16;
}

#[test]
fn semaphores_are_raised_while_attached() {
    // SAFETY: aligned, and the kernel may write it at any time, hence volatile.
    let semaphore = || unsafe { std::ptr::read_volatile(&raw const tithe_test_semaphore) };
    for tier in [None, Some(Tier::D)] {
        let kernel = kernel(tier);
        kernel.classes().configure(CLASS, ungated(ClassKind::Count));
        let offset = file_offset(&raw const tithe_test_semaphore as u64);
        let site = Site { reference_counter: offset, ..guarded.entry(CLASS) };
        assert_eq!(semaphore(), 0);
        let attached = kernel.attach(&group(LinkKind::Count, vec![site])).unwrap();
        // Once for each mapping of the file that may become executable: who printed a backtrace has mapped all of it.
        assert!(semaphore() >= 1, "tier {:?}", kernel.tier());
        drop(attached);
        let lowered = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            semaphore() == 0
        });
        assert!(lowered);
    }
}
