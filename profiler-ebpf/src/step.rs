//! `step`: an entry inside a recorded operation, in the order of its thread. No end is watched, and nothing is searched.

use crate::class::{Hit, count};
use crate::details::{Own, Share};
use crate::maps::{NO_WAKEUP, STEPS, count_global, current_ids, now_ns};
use crate::returns::word_in;
use crate::storage::{self, charge_hit};
use aya_ebpf::bindings::pt_regs;
use core::ffi::c_void;
use profiler_common::step::StepRecord;

/// Numbers the entry and emits its record. Returns 0: on kernels 6.6 to 6.12 another value removes the probe.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn step(ctx: *mut c_void) -> u32 {
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if hit.admit(ctx) {
        if emit(&hit, ctx) {
            count!(hit.counters, kept, 1);
        } else {
            count!(hit.counters, dropped, 1);
        }
    } else {
        miss(&hit, ctx);
    }
    charge_hit(hit.control, hit.shared(ctx));
    0
}

/// An entry inside a recorded operation that was turned away: its number is missing, and the operation that it lies in knows of it.
#[inline(always)]
fn miss(hit: &Hit, ctx: *mut c_void) {
    let state = storage::state(false);
    // SAFETY: a live map value, of this thread only.
    if state.is_null() || unsafe { (*state).recording } == 0 {
        return;
    }
    let own = own(hit, ctx);
    if own.bounds != 0 && !own.has_others(state) {
        return;
    }
    // SAFETY: as above.
    unsafe {
        (*state).steps += 1;
        (*state).steps_lost = (*state).steps_lost.wrapping_add(1);
    }
}

/// Operations that this call bounds.
#[inline(always)]
fn own(hit: &Hit, ctx: *mut c_void) -> Own {
    // SAFETY: a live map value; the agent may change it at any time.
    Own { bounds: unsafe { (*hit.control).bounds }, slot: hit.slot(ctx) }
}

/// False: there is no room for the record, and the number is missing.
#[inline(always)]
fn emit(hit: &Hit, ctx: *mut c_void) -> bool {
    let state = storage::state(true);
    if state.is_null() {
        count_global!(no_thread_state);
        return false;
    }
    // SAFETY: a live map value, of this thread only.
    let number = unsafe {
        (*state).steps += 1;
        (*state).steps
    };
    let own = own(hit, ctx);
    if own.bounds != 0 {
        own.leave_out(state, &Share { step: number, ..Share::default() });
    }
    // SAFETY: the context of a uprobe program is a `pt_regs`.
    let frame = unsafe { (*ctx.cast::<pt_regs>()).rbp };
    let slot = own.slot;
    let (pid, tid) = current_ids();
    // All of it before there is a place in the ring: while that is not filled, nobody reads what lies behind it.
    let step = StepRecord {
        time_ns: now_ns(),
        number,
        slot,
        return_address: if slot == 0 { 0 } else { word_in(slot) },
        frame,
        class: hit.cookie.class,
        pid,
        tid,
        flags: 0,
    };
    let Some(mut record) = STEPS.reserve::<StepRecord>(0) else {
        // SAFETY: as above.
        unsafe { (*state).steps_lost = (*state).steps_lost.wrapping_add(1) };
        return false;
    };
    record.write(step);
    record.submit(NO_WAKEUP);
    true
}
