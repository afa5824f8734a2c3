//! The callers of timed functions: found and learned by return address, in cells that programs and agent share.

use crate::atomic::{add, take_free};
use crate::class::{Hit, count};
use crate::maps;
use crate::returns::word_in;
use aya_ebpf::bindings::pt_regs;
use core::ffi::c_void;
use profiler_common::caller::{CALLER_TRIES, CallerCell, caller_cell, caller_key};
use profiler_common::class::FLAG_LEARN_CALLERS;

/// Learns the return address of a hit that opens no call, if its class asks for that.
#[inline(always)]
pub fn learn(hit: &Hit, ctx: *mut c_void) {
    if learns(hit) {
        note(hit, return_address(hit, ctx));
    }
}

#[inline(always)]
fn learns(hit: &Hit) -> bool {
    // SAFETY: a live map value; the agent may change it at any time.
    unsafe { (&raw const (*hit.control).flags).read_volatile() & FLAG_LEARN_CALLERS != 0 }
}

/// The word in the return slot at an entry; 0: not known.
#[inline(always)]
pub fn return_address(hit: &Hit, ctx: *mut c_void) -> u64 {
    // SAFETY: the context of a uprobe program is a `pt_regs`.
    let rsp = unsafe { (*ctx.cast::<pt_regs>()).rsp };
    hit.cookie.return_slot(rsp).map_or(0, word_in)
}

/// Counts a call from that return address, which is learned if it is new. True: it is armed.
#[inline(always)]
pub fn note(hit: &Hit, address: u64) -> bool {
    let Some(key) = caller_key(hit.cookie.class, address) else {
        count!(hit.counters, callers.unlearned, 1);
        return false;
    };
    let Some(cell) = find(key, learns(hit)) else {
        if learns(hit) {
            count!(hit.counters, callers.unlearned, 1);
        }
        return false;
    };
    // SAFETY: a live map value; the agent changes the second word at any time.
    unsafe {
        add(&raw mut (*cell).calls, 1);
        (&raw const (*cell).armed).read_volatile() != 0
    }
}

/// The cell of a caller; where it has none it gets the first free one, if asked for.
#[inline(always)]
fn find(key: u64, insert: bool) -> Option<*mut CallerCell> {
    let first = caller_cell(key);
    // All of them before one is taken: a caller may lie behind a cell that was freed since.
    for i in 0..CALLER_TRIES {
        let cell = maps::caller(first + i)?;
        // SAFETY: a live map value.
        if unsafe { (&raw const (*cell).key).read_volatile() } == key {
            return Some(cell);
        }
    }
    if insert {
        for i in 0..CALLER_TRIES {
            let cell = maps::caller(first + i)?;
            // SAFETY: as above.
            let key_ptr = unsafe { &raw mut (*cell).key };
            // Read first: an exchange takes the cache line from others.
            // SAFETY: as above.
            if unsafe { key_ptr.read_volatile() } == 0 {
                let before = take_free(key_ptr, key);
                // Another thread may have learned the same caller.
                if before == 0 || before == key {
                    return Some(cell);
                }
            }
        }
    }
    None
}
