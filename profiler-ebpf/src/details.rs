//! What lies inside recorded operations: calls of inner functions, and whether they are all seen.

use crate::atomic::add;
use crate::maps::{operation_control, operation_state};
use crate::registers::argument;
use crate::storage;
use core::ffi::c_void;
use profiler_common::class::{ClassControl, FLAG_INNER_CALL};
use profiler_common::operation::{MEASURE_CALLS, MEASURE_NONE, OPERATION_STEPS};

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

/// A hit of an inner function: false outside recorded operations.
#[inline(always)]
pub fn inner_call(control: *const ClassControl, flags: u32, ctx: *mut c_void) -> bool {
    let state = storage::state(false);
    // SAFETY: a live map value, of this thread only.
    if state.is_null() || unsafe { (*state).recording } == 0 {
        return false;
    }
    // SAFETY: as above; the agent may change the control at any time.
    unsafe {
        if flags & FLAG_INNER_CALL != 0 {
            (*state).calls += 1;
        }
        let measure = (*control).measure;
        if measure == MEASURE_CALLS {
            (*state).measure += 1;
        } else if measure != MEASURE_NONE {
            (*state).measure = (*state).measure.wrapping_add(argument(ctx, measure - 1));
        }
    }
    true
}

/// Inner calls of the operation are recorded as steps.
#[inline(always)]
pub fn has_steps(operation: u32) -> bool {
    // SAFETY: a live map value; the agent may change it at any time.
    operation_control(operation)
        .is_some_and(|c| unsafe { (&raw const (*c).flags).read_volatile() } & OPERATION_STEPS != 0)
}
