//! `session`: entry and return of a call in one program (uprobe.session links).
//!
//! At entry the session cookie, 8 bytes that the kernel keeps per call, takes the position of the call on the
//! thread's stack of open calls, so that the return finds it without a search. Entry returns 1 where no return is
//! wanted (gated, no room, too many pending): the kernel then skips it, which halves the price.
//!
//! The kernel functions `bpf_session_is_return` and `bpf_session_cookie` are called through marker helper ids, which
//! the loader replaces by BTF ids of the running kernel. Later kernels pass them the context, earlier ones
//! ignore it. `session_ip` does without them.

use crate::class::{Hit, count};
use crate::maps::now_ns;
use crate::storage::{End, charge_hit};
use crate::thread::{self, Push};
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::generated::bpf_get_func_ip;
use core::ffi::c_void;

/// Marker ids, out of the range of helpers; the loader patches calls to them.
const SESSION_IS_RETURN: usize = 0x7fff_0001;
const SESSION_COOKIE: usize = 0x7fff_0002;

#[inline(always)]
fn is_return(ctx: *mut c_void) -> bool {
    // SAFETY: not an address but the marker that the loader patches; a constant call target is how helpers are called.
    let function: unsafe extern "C" fn(*mut c_void) -> u64 =
        unsafe { core::mem::transmute(SESSION_IS_RETURN) };
    // SAFETY: the kernel function takes the program's context, or nothing. Only the low byte of a `bool` is defined.
    unsafe { function(ctx) as u8 != 0 }
}

#[inline(always)]
fn session_cookie(ctx: *mut c_void) -> *mut u64 {
    // SAFETY: as above.
    let function: unsafe extern "C" fn(*mut c_void) -> *mut u64 =
        unsafe { core::mem::transmute(SESSION_COOKIE) };
    // SAFETY: as above; the result points to 8 bytes that live as long as the call.
    unsafe { function(ctx) }
}

/// Entry and return, told apart and joined by the session kernel functions.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn session(ctx: *mut c_void) -> u32 {
    if is_return(ctx) {
        let end_ns = now_ns();
        let Some(hit) = Hit::find(ctx) else { return 0 };
        // SAFETY: see `session_cookie`.
        let position = unsafe { *session_cookie(ctx) };
        // OK because the entry stored a position below `thread::DEPTH`.
        if !thread::close_at(&hit, position as u32, &End::of(ctx, end_ns)) {
            count!(hit.counters, orphans, 1);
        }
        return 0;
    }
    let Some(hit) = Hit::find(ctx) else { return 1 };
    match open(&hit, ctx) {
        Some(position) => {
            // SAFETY: see `session_cookie`.
            unsafe { *session_cookie(ctx) = u64::from(position) };
            0
        }
        None => 1,
    }
}

/// The same without kernel functions: it is the entry if the program runs at the probed address. The call is found by
/// its return slot.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn session_ip(ctx: *mut c_void) -> u32 {
    // SAFETY: the context of a uprobe program is a `pt_regs`.
    let rip = unsafe { (*ctx.cast::<pt_regs>()).rip };
    // SAFETY: `ctx` is the program's context.
    if rip != unsafe { bpf_get_func_ip(ctx) } {
        let end_ns = now_ns();
        let Some(mut hit) = Hit::find(ctx) else { return 0 };
        // After the return the slot lies just below the stack pointer, whatever the entry site was.
        hit.cookie.slot_delta = -1;
        if !thread::close_innermost(&hit, &End::of(ctx, end_ns)) {
            count!(hit.counters, orphans, 1);
        }
        return 0;
    }
    let Some(hit) = Hit::find(ctx) else { return 1 };
    u32::from(open(&hit, ctx).is_none())
}

/// Opens the call; `None` if its return is not wanted.
#[inline(always)]
fn open(hit: &Hit, ctx: *mut c_void) -> Option<u32> {
    if !hit.admit(ctx) {
        charge_hit(hit.control, hit.shared(ctx));
        return None;
    }
    match thread::push(hit, ctx, 0) {
        Push::Open(position) => {
            count!(hit.counters, kept, 1);
            Some(position)
        }
        Push::Omitted => {
            count!(hit.counters, kept, 1);
            count!(hit.counters, omitted, 1);
            None
        }
        Push::Full => {
            count!(hit.counters, dropped, 1);
            None
        }
    }
}
