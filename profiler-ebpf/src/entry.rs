//! Programs at entry sites: `count`, `record` (both watch entries only) and `enter` (begin of a timed call).
//!
//! All return 0: on kernels 6.6 to 6.12 another value removes the probe.

use crate::class::{Hit, count};
use crate::maps::{EVENTS, NO_WAKEUP, current_ids, now_ns};
use crate::registers::arguments;
use crate::storage::charge_hit;
use crate::thread::{self, Push};
use core::ffi::c_void;
use profiler_common::class::FLAG_ARGUMENTS;
use profiler_common::event::{CallRecord, NO_DURATION};

/// Counts the hit.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn count(ctx: *mut c_void) -> u32 {
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if hit.admit(ctx) {
        count!(hit.counters, kept, 1);
    }
    charge_hit(hit.control);
    0
}

/// Counts the hit and emits a record without a duration.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn record(ctx: *mut c_void) -> u32 {
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if hit.admit(ctx) {
        match EVENTS.reserve::<CallRecord>(0) {
            Some(mut slot) => {
                let (pid, tid) = current_ids();
                // SAFETY: a live map value.
                let with_args = unsafe { (*hit.control).flags } & FLAG_ARGUMENTS != 0;
                slot.write(CallRecord {
                    time_ns: now_ns(),
                    duration_ns: NO_DURATION,
                    nested_cost_ns: 0,
                    class: hit.cookie.class,
                    pid,
                    tid,
                    flags: 0,
                    args: if with_args { arguments(ctx) } else { [0; 6] },
                });
                slot.submit(NO_WAKEUP);
                count!(hit.counters, kept, 1);
            }
            None => count!(hit.counters, dropped, 1),
        }
    }
    charge_hit(hit.control);
    0
}

/// Opens a call on the thread's stack of open calls; `leave` closes it.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn enter(ctx: *mut c_void) -> u32 {
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if hit.admit(ctx) {
        match thread::push(&hit, ctx) {
            Push::Open(_) => count!(hit.counters, kept, 1),
            Push::Omitted => {
                count!(hit.counters, kept, 1);
                count!(hit.counters, omitted, 1);
            }
            Push::Full => count!(hit.counters, dropped, 1),
        }
    } else {
        charge_hit(hit.control);
    }
    0
}
