//! The end of a timed call: `leave` at an exit site or as a uretprobe, `leave_caller` at a return site in the caller.

use crate::class::{Hit, count};
use crate::maps::now_ns;
use crate::storage::{End, charge_end};
use crate::thread;
use core::ffi::c_void;

/// Closes the innermost open call of its class that has this return slot.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn leave(ctx: *mut c_void) -> u32 {
    let end_ns = now_ns();
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if !thread::close_innermost(&hit, &End::of(ctx, end_ns)) {
        count!(hit.counters, orphans, 1);
    }
    0
}

/// Closes the call that came back here. The cookie names the class, and how far the stack pointer has moved since the return.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn leave_caller(ctx: *mut c_void) -> u32 {
    let end_ns = now_ns();
    let Some(hit) = Hit::find(ctx) else { return 0 };
    count!(hit.counters, callers.ends, 1);
    hit.take_end();
    let end = End::of(ctx, end_ns);
    if !thread::close_returned(&hit, &end) {
        count!(hit.counters, callers.strays, 1);
        charge_end(hit.control, hit.cookie.class, &end);
    }
    0
}
