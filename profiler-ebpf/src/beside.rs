//! Calls of functions that several classes watch: each class keeps the call for itself, and they must not take one another's for calls that were left.

use crate::class::Hit;
use crate::maps;
use crate::returns::{is_trampoline, word_in};
use crate::storage::{forget_range, frame};
use profiler_common::thread::{CallFrame, FREE, RETURN_LINK, ThreadState};

/// Calls of one slot and function that are looked at: two classes of a function keep calls, what is recorded or timed and what lies inside
/// operations, and each may be there once more from a call that was left.
const SAME_CALL: u32 = 4;

/// Number that classes of one function share; 0: it has one class.
#[inline(always)]
pub fn function_of(class: u32) -> u32 {
    // SAFETY: a live map value.
    maps::control(class).map_or(0, |control| unsafe { (*control).function })
}

/// What lies below a call of this slot is what another class of the function keeps of it, or has kept: its end may have come first.
#[inline(always)]
pub fn is_same_call(hit: &Hit, slot: u64, below: &CallFrame) -> bool {
    // SAFETY: a live map value.
    let function = unsafe { (*hit.control).function };
    function != 0
        && slot != 0
        && below.slot == slot
        && (below.class == FREE || function_of(below.class) == function)
}

/// The number of this class's function, if the newest calls with this slot are what its other classes keep of the call that begins now: one of
/// this class is not among them. (Every call runs the programs of all; so where there is one of this class, it was left by a throw or
/// `longjmp`, and all of them with it.)
#[inline(always)]
pub fn same_as(state: *mut ThreadState, depth: u32, hit: &Hit, slot: u64) -> u32 {
    // SAFETY: a live map value.
    let function = unsafe { (*hit.control).function };
    if function == 0 {
        return 0;
    }
    let mut found = 0;
    for above in 0..SAME_CALL {
        if above >= depth {
            break;
        }
        // SAFETY: a live map value, of this thread only.
        let CallFrame { slot: its_slot, class, .. } = unsafe { *frame(state, depth - 1 - above) };
        if its_slot != slot || class == FREE {
            break;
        }
        if class == hit.cookie.class {
            found = 1;
            break;
        }
    }
    if forget_range(state, found) == 0 { function } else { 0 }
}

/// The newest call is what another class of the function keeps of the call that begins now, and its return is the same one. Else the
/// trampoline stands in the slot already, since the other class has a site of its own.
#[inline(always)]
pub fn is_beside(state: *mut ThreadState, depth: u32, hit: &Hit, slot: u64) -> bool {
    // SAFETY: a live map value.
    let function = unsafe { (*hit.control).function };
    if function == 0 || depth == 0 || slot == 0 {
        return false;
    }
    // SAFETY: a live map value, of this thread only.
    let CallFrame { slot: its_slot, class, generation, .. } = unsafe { *frame(state, depth.wrapping_sub(1)) };
    its_slot == slot
        && class != FREE
        && generation & RETURN_LINK != 0
        && function_of(class) == function
        && !is_trampoline(word_in(slot))
}
