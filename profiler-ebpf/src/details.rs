//! What lies inside recorded operations: calls of inner functions, and whether they are all seen.

use crate::atomic::add;
use crate::maps::{operation_control, operation_state};
use crate::registers::argument;
use crate::storage::{self, open_at};
use core::ffi::c_void;
use profiler_common::class::{ClassControl, FLAG_INNER_CALL};
use profiler_common::operation::{MAX_OPERATIONS, MEASURE_CALLS, MEASURE_NONE, OPERATION_STEPS};
use profiler_common::thread::{FREE, OPERATION_DEPTH, OPERATION_RECORDED, OpenOperation, ThreadState};

/// An inner function has used up its quota: until the agent says otherwise nothing is recorded, because calls would be
/// missing.
#[inline(always)]
pub fn lose_details() {
    if let Some(state) = operation_state(0) {
        // SAFETY: a live map value; one aligned word.
        add(unsafe { &raw mut (*state).losses }, 1);
    }
}

/// Since an inner function used up its quota.
#[inline(always)]
pub fn lacks_details() -> bool {
    // SAFETY: as above; the agent writes the second.
    operation_state(0).is_some_and(|state| unsafe {
        (&raw const (*state).losses).read_volatile() != (&raw const (*state).losses_mended).read_volatile()
    })
}

/// Number of the present attachment of inner functions, 16 bits.
#[inline(always)]
pub fn details() -> u32 {
    // SAFETY: as above.
    operation_state(0)
        .map_or(0, |state| unsafe { (&raw const (*state).details).read_volatile() } as u32 & 0xffff)
}

/// A hit of an inner function: false outside recorded operations. `slot`: return slot of the call; 0: not known.
#[inline(always)]
pub fn inner_call(control: *const ClassControl, flags: u32, slot: u64, ctx: *mut c_void) -> bool {
    let state = storage::state(false);
    // SAFETY: a live map value, of this thread only.
    if state.is_null() || unsafe { (*state).recording } == 0 {
        return false;
    }
    // SAFETY: as above; the agent may change the control at any time.
    let (measure, bounds) = unsafe { ((*control).measure, (*control).bounds) };
    let calls = u64::from(flags & FLAG_INNER_CALL != 0);
    let adds = match measure {
        MEASURE_NONE => 0,
        MEASURE_CALLS => 1,
        register => argument(ctx, register - 1),
    };
    if bounds != 0 {
        let own = Own { bounds, slot };
        if !own.has_others(state) {
            return false;
        }
        own.leave_out(state, &Share { calls, measure: adds, ..Share::default() });
    }
    // SAFETY: as above.
    unsafe {
        (*state).calls += calls;
        (*state).measure = (*state).measure.wrapping_add(adds);
    }
    true
}

/// A call of an inner function that bounds operations itself: it begins or ends them, and lies not inside.
#[derive(Clone, Copy)]
pub struct Own {
    /// The operations, one bit each.
    pub bounds: u32,
    /// Return slot of the call; 0: not known.
    pub slot: u64,
}

/// What a call adds to the operations around it.
#[derive(Clone, Copy, Default)]
pub struct Share {
    pub calls: u64,
    pub measure: u64,
    pub inner_ns: u64,
    /// Number of its step; 0: it takes none.
    pub step: u64,
}

impl Own {
    /// That open operation is bounded by this very call. Of a function that is an operation another one may be open further out: recursion.
    #[inline(always)]
    fn is(self, open: &OpenOperation) -> bool {
        open.operation < MAX_OPERATIONS as u32
            && self.bounds & (1 << open.operation) != 0
            && (open.slot == 0 || open.slot == self.slot)
    }

    /// A recorded operation is open that this call does not bound.
    #[inline(always)]
    pub fn has_others(self, state: *mut ThreadState) -> bool {
        let mut others = 0;
        for position in 0..OPERATION_DEPTH {
            // SAFETY: a live map value, of this thread only.
            if position >= unsafe { (*state).operation_depth } {
                break;
            }
            // SAFETY: as above.
            let open = unsafe { &*open_at(state, position) };
            if open.operation != FREE && open.flags & OPERATION_RECORDED != 0 && !self.is(open) {
                others += 1;
            }
        }
        others != 0
    }

    /// Takes what the thread's counts grow by out of the operations that this call bounds.
    #[inline(always)]
    pub fn leave_out(self, state: *mut ThreadState, share: &Share) {
        for position in 0..OPERATION_DEPTH {
            // SAFETY: a live map value, of this thread only.
            if position >= unsafe { (*state).operation_depth } {
                break;
            }
            // SAFETY: as above.
            let open = unsafe { &mut *open_at(state, position) };
            if open.operation == FREE || !self.is(open) {
                continue;
            }
            open.calls = open.calls.wrapping_add(share.calls);
            open.measure = open.measure.wrapping_add(share.measure);
            open.inner_ns = open.inner_ns.wrapping_add(share.inner_ns);
            if share.step == 0 {
                continue;
            }
            if open.steps.number + 1 == share.step {
                // It began with this call, or nothing was called in it.
                open.steps.number = share.step;
            } else {
                // OK because the cast keeps the low bits.
                open.steps.own = share.step as u32;
            }
        }
    }
}

/// Inner calls of the operation are recorded as steps.
#[inline(always)]
pub fn has_steps(operation: u32) -> bool {
    // SAFETY: a live map value; the agent may change it at any time.
    operation_control(operation)
        .is_some_and(|c| unsafe { (&raw const (*c).flags).read_volatile() } & OPERATION_STEPS != 0)
}
