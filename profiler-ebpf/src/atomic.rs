//! Atomic adds on map memory.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};

/// Adds to a counter. Compiles to one `lock add`.
#[inline(always)]
pub fn add(counter: *mut u64, value: u64) {
    // SAFETY: callers pass a field of a live map value; the kernel keeps it alive while the program runs.
    unsafe {
        atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, value);
    }
}

/// Subtracts one and returns the value before.
///
/// Not relaxed: LLVM turns a relaxed fetch-and-add into the instruction that does not fetch, *even where the result
/// is used* (seen with LLVM 22), and the "old value" would be the addend.
#[inline(always)]
pub fn fetch_decrement(counter: *mut i64) -> i64 {
    // SAFETY: as in `add`.
    unsafe { atomic_xadd::<i64, i64, { AtomicOrdering::AcqRel }>(counter, -1) }
}

/// Adds and returns the value before; not relaxed for the same reason.
#[inline(always)]
pub fn fetch_add(counter: *mut u64, value: u64) -> u64 {
    // SAFETY: as in `add`.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::AcqRel }>(counter, value) }
}

/// The same for a signed counter.
#[inline(always)]
pub fn fetch_add_signed(counter: *mut i64, value: i64) -> i64 {
    // SAFETY: as in `add`.
    unsafe { atomic_xadd::<i64, i64, { AtomicOrdering::AcqRel }>(counter, value) }
}

/// Puts a value in the place of 0. Returns the value before, whether it was 0 or not.
#[inline(always)]
pub fn take_free(word: *mut u64, value: u64) -> u64 {
    // SAFETY: as in `add`.
    let (seen, _) = unsafe {
        atomic_cxchg::<u64, { AtomicOrdering::AcqRel }, { AtomicOrdering::Acquire }>(word, 0, value)
    };
    seen
}

/// Raises a maximum. Four tries: a maximum that loses four races to larger values in a row was beaten anyway, and
/// one that loses them to smaller values is lost (each stripe is written by few threads).
#[inline(always)]
pub fn raise(maximum: *mut u64, value: u64) {
    for _ in 0..4 {
        // SAFETY: as in `add`.
        let seen = unsafe { maximum.read_volatile() };
        if value <= seen {
            return;
        }
        // SAFETY: as in `add`.
        let (_, done) = unsafe {
            atomic_cxchg::<u64, { AtomicOrdering::AcqRel }, { AtomicOrdering::Acquire }>(maximum, seen, value)
        };
        if done {
            return;
        }
    }
}
