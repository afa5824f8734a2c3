//! Programs to compare with: nothing but the trap (calibration, benchmarks), and a call timed as tracers with a hash map do
//! (benchmarks).

use crate::atomic::add;
use crate::maps::{PLAIN_STARTS, current_ids, histogram_slot, now_ns};
use core::ffi::c_void;
use profiler_common::histogram::{SLOT_BUCKETS, bucket};

/// Returns 0 on any uprobe link. (On a session link that keeps the return.)
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn empty(_ctx: *mut c_void) -> u32 {
    0
}

/// `@start[tid] = nsecs`, as bpftrace and bcc scripts do it.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn plain_enter(_ctx: *mut c_void) -> u32 {
    // OK to ignore a full map: it is a yardstick.
    let _ = PLAIN_STARTS.insert(current_ids().1, now_ns(), 0);
    0
}

/// `@ = hist(nsecs - @start[tid]); delete(@start[tid])`, into the first histogram.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn plain_leave(_ctx: *mut c_void) -> u32 {
    let tid = current_ids().1;
    // SAFETY: only this thread writes its entry.
    let Some(begin_ns) = (unsafe { PLAIN_STARTS.get(&tid).copied() }) else { return 0 };
    let index = bucket(now_ns().wrapping_sub(begin_ns));
    if let Some(slot) = histogram_slot(index / SLOT_BUCKETS as u32) {
        // SAFETY: the index lies inside the slot.
        add(unsafe { (&raw mut (*slot).counts).cast::<u64>().add(index as usize & (SLOT_BUCKETS - 1)) }, 1);
    }
    let _ = PLAIN_STARTS.remove(tid);
    0
}
