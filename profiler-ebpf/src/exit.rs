//! `leave`: the end of a timed call, at an exit site or as a uretprobe.

use crate::class::{Hit, count};
use crate::maps::now_ns;
use crate::thread;
use aya_ebpf::bindings::pt_regs;
use core::ffi::c_void;

/// Closes the innermost open call of its class that has this return slot.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn leave(ctx: *mut c_void) -> u32 {
    let end_ns = now_ns();
    let Some(hit) = Hit::find(ctx) else { return 0 };
    // SAFETY: the context of a uprobe program is a `pt_regs`.
    let rsp = unsafe { (*ctx.cast::<pt_regs>()).rsp };
    if !thread::close_innermost(&hit, rsp, end_ns) {
        count!(hit.counters, orphans, 1);
    }
    0
}
