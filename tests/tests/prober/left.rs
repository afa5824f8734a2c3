//! Calls with return links that are left by a throw or `longjmp`: the kernel forgets what they left behind, and later calls
//! of the thread get their returns.

use crate::support::*;
use crate::throws::{tithe_test_catch, tithe_test_throw};
use profiler_core::class::ClassId;
use profiler_user::prober::{ClassKind, LinkKind};

function!(left_thrown);
function!(left_descent);
function!(left_after);

const CLASSES: [ClassId; 3] = [ClassId(70), ClassId(71), ClassId(72)];

extern "C" fn throw(_: u64) {
    // SAFETY: `catch` is on the stack, and the frames between have nothing to drop.
    unsafe { tithe_test_throw() }
}

/// Calls `left_descent` on `depth` levels, each with more than `ROOM` bytes of stack, and throws from the deepest.
extern "C" fn descend<const ROOM: usize>(depth: u64) {
    let mut room = [0u8; ROOM];
    std::hint::black_box(&mut room);
    if depth == 0 {
        throw(0);
    }
    left_descent.call(Some(descend::<ROOM>), depth - 1);
    std::hint::black_box(&mut room);
}

fn catch(through: Function, callback: extern "C" fn(u64), argument: u64) {
    // SAFETY: assembly that follows the C ABI; the function takes a callback and its argument.
    unsafe { tithe_test_catch(through.0 as usize, callback as usize, argument, 0) }
}

/// Leaves `left` calls behind on a thread of its own, then makes 1,000 calls that return. Of those that are left, returns are omitted where
/// 60 live ones are pending.
fn returns_after(leave: fn(), left: u64, expected_omitted: u64) {
    let kernel = kernel(None);
    let [t, d, a] = CLASSES;
    for class in CLASSES {
        kernel.classes().configure(class, ungated(ClassKind::Latency));
    }
    let sites = vec![left_thrown.entry(t), left_descent.entry(d), left_after.entry(a)];
    let attached = kernel.attach(&group(LinkKind::ReturnPair, sites)).unwrap();
    assert!(attached.refused.is_empty());
    std::thread::Builder::new()
        .stack_size(16 << 20)
        .spawn(move || {
            leave();
            for _ in 0..1_000 {
                left_after.call(None, 0);
            }
        })
        .unwrap()
        .join()
        .unwrap();
    drop(attached);
    let c = kernel.classes().counters(a);
    assert_eq!((c.attempted, c.kept, c.returns, c.omitted, c.unwound), (1_000, 1_000, 1_000, 0, 0));
    let [t, d] = [t, d].map(|class| kernel.classes().counters(class));
    let (kept, omitted) = (t.kept + d.kept, t.omitted + d.omitted);
    let (unwound, open) = (t.unwound + d.unwound, t.open() + d.open());
    assert_eq!((kept, t.returns + d.returns, omitted), (left, 0, expected_omitted));
    assert_eq!(kept, omitted + unwound + open, "{t:?} {d:?}");
    println!("{left} left: {omitted} omitted, {unwound} unwound, {open} open");
}

#[test]
fn calls_return_after_a_throw_over_64_frames() {
    returns_after(|| catch(left_descent, descend::<64>, 70), 71, 11);
}

#[test]
fn calls_return_after_a_throw_over_64_frames_far_away() {
    returns_after(|| catch(left_descent, descend::<0x1_0000>, 70), 71, 11);
}

#[test]
fn calls_return_after_200_throws_from_one_place() {
    returns_after(
        || {
            for _ in 0..200 {
                catch(left_thrown, throw, 0);
            }
        },
        200,
        0,
    );
}
