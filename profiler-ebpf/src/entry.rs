//! Programs at entry sites: `count`, `record` (both watch entries only) and `enter` and `enter_caller` (begin of a timed call).
//!
//! `count` learns return addresses where that is asked for, so that a survey knows the callers.
//!
//! All return 0: on kernels 6.6 to 6.12 another value removes the probe.

use crate::callers;
use crate::class::{Hit, count};
use crate::maps::{EVENTS, NO_WAKEUP, current_ids, now_ns};
use crate::record;
use crate::registers::arguments;
use crate::returns::word_in;
use crate::storage::{self, charge_hit};
use crate::thread::{self, Push};
use crate::words;
use aya_ebpf::bindings::pt_regs;
use core::ffi::c_void;
use profiler_common::class::{ClassKind, FLAG_ARGUMENTS, FLAG_WORDS};
use profiler_common::context::CallContext;
use profiler_common::event::{CALL_NO_ARGUMENTS, CallRecord, NO_DURATION};
use profiler_common::thread::FREE;

/// Counts the hit.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn count(ctx: *mut c_void) -> u32 {
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if hit.admit(ctx) {
        count!(hit.counters, kept, 1);
        callers::learn(&hit, ctx);
    }
    charge_hit(hit.control, hit.shared(ctx));
    0
}

/// Counts the hit and emits a record without a duration.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn record(ctx: *mut c_void) -> u32 {
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if hit.admit(ctx) {
        if emit(&hit, ctx) {
            count!(hit.counters, kept, 1);
        } else {
            count!(hit.counters, dropped, 1);
        }
    }
    charge_hit(hit.control, hit.shared(ctx));
    0
}

/// Emits the record of a call whose end is not watched. False: the ring is full.
#[inline(always)]
pub fn emit(hit: &Hit, ctx: *mut c_void) -> bool {
    // SAFETY: the context of a uprobe program is a `pt_regs`.
    let rsp = unsafe { (*ctx.cast::<pt_regs>()).rsp };
    let return_address = hit.cookie.return_slot(rsp).map_or(0, word_in);
    let Some(mut slot) = EVENTS.reserve::<CallRecord>(0) else { return false };
    let (pid, tid) = current_ids();
    // SAFETY: a live map value.
    let flags = unsafe { (*hit.control).flags };
    let with_args = flags & FLAG_ARGUMENTS != 0;
    let time_ns = now_ns();
    slot.write(CallRecord {
        time_ns,
        duration_ns: NO_DURATION,
        nested_cost_ns: 0,
        class: hit.cookie.class,
        pid,
        tid,
        flags: if with_args { 0 } else { CALL_NO_ARGUMENTS },
        args: if with_args { arguments(ctx) } else { [0; 6] },
        return_address,
        result: 0,
        outer: FREE,
        depth: 0,
        context: CallContext::NOTHING,
    });
    slot.submit(NO_WAKEUP);
    if words::are_taken() && flags & FLAG_WORDS != 0 {
        record::words_at_begin(hit, ctx, || time_ns);
    }
    true
}

/// Opens a call on the thread's stack of open calls; `leave` closes it.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn enter(ctx: *mut c_void) -> u32 {
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if hit.admit(ctx) {
        match thread::push(&hit, ctx, 0) {
            Push::Open(_) => count!(hit.counters, kept, 1),
            Push::Omitted => {
                count!(hit.counters, kept, 1);
                count!(hit.counters, omitted, 1);
            }
            Push::Full => count!(hit.counters, dropped, 1),
        }
    } else {
        charge_hit(hit.control, hit.shared(ctx));
    }
    0
}

/// Opens a call whose caller is armed, and `leave_caller` closes it; counts any other, and learns its return address.
/// Nothing of the target is replaced, so whatever unwinds or jumps away leaves a frame behind and nothing else.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn enter_caller(ctx: *mut c_void) -> u32 {
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if !hit.admit(ctx) {
        charge_hit(hit.control, hit.shared(ctx));
        return 0;
    }
    let address = callers::return_address(&hit, ctx);
    let mut armed = u32::from(callers::note(&hit, address));
    if words::are_taken() {
        // Of how it was found the verifier is to know nothing, or it would follow the list once for each way.
        let state = storage::state(true);
        if !state.is_null() {
            armed = storage::forget_range(state, armed);
        }
    }
    if armed != 0 {
        match thread::push(&hit, ctx, address) {
            Push::Open(_) | Push::Omitted => count!(hit.counters, kept, 1),
            Push::Full => count!(hit.counters, dropped, 1),
        }
        return 0;
    }
    // SAFETY: a live map value.
    if unsafe { (*hit.control).kind } == ClassKind::Record as u32 && !emit(&hit, ctx) {
        count!(hit.counters, dropped, 1);
    } else {
        count!(hit.counters, kept, 1);
        count!(hit.counters, callers.untimed, 1);
    }
    charge_hit(hit.control, hit.shared(ctx));
    0
}
