//! Memory that comes and goes while it is read: the target takes no fault, and what was read stood there.

use super::{attach, configure, integer, options, takings};
use crate::support::*;
use profiler_tests::support::tiers_here;
use profiler_user::prober::{KernelOptions, LinkKind, Taking, Tier, Word};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

function!(racing);

const PAGE: usize = 4096;
/// What the page holds while it is there and written: a number that tells itself, and its complement behind it.
const MARK: u64 = 0x5157_0000_0000_0000;

/// Maps and unmaps the page at an address, writes it each time anew. Returns how often.
fn come_and_go(at: u64, stop: &AtomicBool) -> u64 {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: the address range was reserved by this test, and nothing of it is in use but by this thread.
        unsafe {
            assert_eq!(libc::mmap(at as *mut _, PAGE, protection, flags, -1, 0) as u64, at);
            let words = at as *mut u64;
            words.write_volatile(MARK | rounds);
            words.add(1).write_volatile(!(MARK | rounds));
            assert_eq!(words.read_volatile(), MARK | rounds, "nobody else writes it");
            assert_eq!(libc::mmap(at as *mut _, PAGE, libc::PROT_NONE, flags, -1, 0) as u64, at);
        }
        rounds += 1;
    }
    rounds
}

static SUM: AtomicU64 = AtomicU64::new(0);

extern "C" fn add_up(at: u64) {
    SUM.fetch_add(at ^ 0xff, Ordering::Relaxed);
}

/// Words of one taking are each what stood there at some moment: 0 between the page's coming and its writing, or a number of a round that
/// was reached.
fn check(all: &[Taking], rounds: u64) -> (u64, u64, u64) {
    let (mut marked, mut read, mut torn) = (0, 0, 0);
    for taking in all {
        let stood = |word: u64| word == 0 || word & !0xffff_ffff == MARK && word & 0xffff_ffff <= rounds;
        let [first, second] = [taking.words[0].1, taking.words[1].1].map(|word| match word {
            Word::Read(value) => Some(value),
            Word::Unreadable(1) => None,
            other => panic!("{other:?}"),
        });
        for value in [first, second.map(|value| if value == 0 { 0 } else { !value })].into_iter().flatten() {
            assert!(stood(value), "{value:#x} never stood there");
        }
        match (first, second) {
            (Some(first), Some(second)) => {
                read += 1;
                torn += u64::from(first != 0 && second != !first);
            }
            _ => marked += 1,
        }
    }
    (marked, read, torn)
}

fn race(tier: Tier) {
    const CALLS: u64 = 60_000;
    let kernel = load(&KernelOptions { forced_tier: Some(tier), ..options() });
    let mut reader = kernel.taking_reader().unwrap();
    configure(&kernel, &[integer(8, &[0]), integer(8, &[8])], 0);
    // One address more than the page, so that nothing else comes to lie there.
    let reserved = super::marked::Pages::map(3);
    let at = reserved.at as u64 + PAGE as u64;
    let attached = attach(&kernel, LinkKind::ExitPair, vec![racing.entry(CLASS), racing.exit(CLASS)]);
    let stop = AtomicBool::new(false);
    SUM.store(0, Ordering::Relaxed);
    let (rounds, all) = std::thread::scope(|scope| {
        let mapper = scope.spawn(|| come_and_go(at, &stop));
        let mut all = Vec::new();
        for i in 0..CALLS {
            racing.call(Some(add_up), at);
            if i % 500 == 0 {
                all.extend(takings(&mut reader));
            }
        }
        stop.store(true, Ordering::Relaxed);
        all.extend(takings(&mut reader));
        (mapper.join().unwrap(), all)
    });
    drop(attached);
    kernel.remove_target(std::process::id());
    let lost = kernel.classes().global_counters().takings_dropped;
    assert_eq!(all.len() as u64 + lost, CALLS);
    assert_eq!(SUM.load(Ordering::Relaxed), (at ^ 0xff).wrapping_mul(CALLS), "the target's own work");
    let (marked, read, torn) = check(&all, rounds);
    println!(
        "tier {tier:?}: {rounds} times there and gone; {read} pairs read ({torn} of two moments), {marked} marked"
    );
    assert!(rounds > 100 && marked > 100 && read > 100, "{rounds}, {marked}, {read}");
}

#[test]
fn memory_that_is_unmapped_while_it_is_read_is_marked_or_was_there() {
    let test = "memory_that_is_unmapped_while_it_is_read_is_marked_or_was_there";
    for tier in tiers_here(test, &[Tier::A, Tier::B, Tier::D]) {
        race(tier);
    }
}
