//! Records of calls whose ends are seen: what is kept of them while they are open, and what is sent when they end.

use crate::beside;
use crate::class::{Hit, count};
use crate::context;
use crate::maps::{self, EVENTS, NO_WAKEUP, current_ids};
use crate::registers::{argument, arguments};
use crate::returns::word_in;
use crate::storage::{self, End, ThreadArguments, forget_range, frame};
use crate::words::{self, Place};
use core::ffi::c_void;
use profiler_common::class::{FLAG_ARGUMENTS, FLAG_CONTEXT, FLAG_WORDS, NO_OPERATION};
use profiler_common::context::CallContext;
use profiler_common::event::{CALL_HAS_PLACE, CALL_HAS_RESULT, CALL_NO_ARGUMENTS, CallRecord};
use profiler_common::thread::{
    CallFrame, FREE, GENERATION, HAS_ARGUMENTS, HAS_CONTEXT, HAS_WORDS, RETURN_LINK, ThreadState,
};
use profiler_common::words::{TAKEN_AT_BEGIN, TAKEN_AT_END};

/// Keeps the arguments of the call at this depth, where they are wanted. Which of [`HAS_ARGUMENTS`], [`HAS_CONTEXT`] and
/// [`HAS_WORDS`] hold: none where there was no memory.
#[inline(always)]
pub fn keep_arguments(store: *mut ThreadArguments, flags: u32, depth: u32, ctx: *mut c_void) -> u32 {
    if store.is_null() {
        return 0;
    }
    let mut kept = if flags & FLAG_CONTEXT != 0 { HAS_CONTEXT } else { 0 };
    if words::are_taken() && flags & FLAG_WORDS != 0 {
        kept |= HAS_WORDS;
    }
    if flags & FLAG_ARGUMENTS != 0 {
        kept |= HAS_ARGUMENTS;
        // SAFETY: a map value of this thread only.
        unsafe { *storage::kept_arguments(store, depth) = arguments(ctx) };
    }
    kept
}

/// Takes words where a recorded call begins, and puts its begin after them. `begin` gives and keeps it.
#[inline(always)]
pub fn words_at_begin(hit: &Hit, ctx: *mut c_void, begin: impl FnOnce() -> u64) {
    // SAFETY: a live map value; the agent may change it at any time.
    let list = unsafe { (*hit.control).words_begin };
    let place =
        Place { list, kind: TAKEN_AT_BEGIN, class: hit.cookie.class, operation: NO_OPERATION, result: None };
    words::take(&place, |k| argument(ctx, k), begin);
}

/// Takes words where it ends. Its arguments are those of its begin.
#[inline(always)]
fn words_at_end(hit: &Hit, call: &Call, args: &[u64; 6], result: Option<u64>) {
    // SAFETY: as above.
    let list = unsafe { (*hit.control).words_end };
    let place = Place { list, kind: TAKEN_AT_END, class: hit.cookie.class, operation: NO_OPERATION, result };
    let [a, b, c, d, e, f] = *args;
    let argument = |k| match k {
        0 => a,
        1 => b,
        2 => c,
        3 => d,
        4 => e,
        _ => f,
    };
    words::take(&place, argument, || call.time_ns);
}

/// A call that has ended.
pub struct Call {
    /// Of its frame.
    pub position: u32,
    /// Of its frame, with the bits beside it.
    pub generation: u32,
    pub slot: u64,
    /// Of its frame: 0 where the word is still in the slot, or where nobody kept it.
    pub return_address: u64,
    pub time_ns: u64,
    pub duration_ns: u64,
    pub nested_cost_ns: u64,
}

/// Newest calls that are looked at for what is around a call.
const AROUND: u32 = 4;

/// Class of the innermost call around a call, and how many there are. What another class of the function keeps of the same call is none; nor is a
/// call of an earlier attachment, which was open when its links went: nothing sees its end. (Below the newest [`AROUND`] such calls count.)
#[inline(always)]
fn around(hit: &Hit, state: *mut ThreadState, call: &Call) -> (u32, u32) {
    let (mut outer, mut depth) = (FREE, call.position);
    for above in 0..AROUND {
        if above >= call.position {
            break;
        }
        let at = forget_range(state, call.position - 1 - above);
        // SAFETY: a live map value, of this thread only.
        let other = unsafe { *frame(state, at) };
        if !is_attached(&other) || beside::is_same_call(hit, call.slot, &other) {
            depth -= 1;
        } else if outer == FREE {
            outer = other.class;
        }
    }
    (outer, depth)
}

/// The links that see its end are those that saw its begin.
#[inline(always)]
fn is_attached(call: &CallFrame) -> bool {
    maps::control(call.class)
        // SAFETY: a live map value.
        .is_some_and(|control| unsafe { (*control).generation } == call.generation & GENERATION)
}

/// Emits the record of a call. If the ring is full the hit, counted as kept at its entry, becomes a dropped one.
#[inline(always)]
pub fn emit(hit: &Hit, state: *mut ThreadState, call: &Call, end: &End) {
    let (pid, tid) = current_ids();
    let (mut args, mut flags) = ([0; 6], CALL_NO_ARGUMENTS | CALL_HAS_PLACE);
    let mut context = CallContext::NOTHING;
    if call.generation & (HAS_ARGUMENTS | HAS_CONTEXT) != 0 {
        let store = storage::arguments(false);
        if !store.is_null() && call.generation & HAS_ARGUMENTS != 0 {
            flags &= !CALL_NO_ARGUMENTS;
            // SAFETY: a map value of this thread only.
            args = unsafe { *storage::kept_arguments(store, call.position) };
        }
        if !store.is_null() && call.generation & HAS_CONTEXT != 0 {
            // SAFETY: as above.
            let begin = unsafe { &*storage::kept_account(store, call.position) };
            context = context::since(begin, call.duration_ns);
        }
    }
    let linked = call.generation & RETURN_LINK != 0;
    let mut return_address = call.return_address;
    // The kernel has replaced it where there is a link.
    if return_address == 0 && !linked && call.slot != 0 {
        return_address = word_in(call.slot);
    }
    let (outer, depth) = around(hit, state, call);
    let mut result = 0;
    if linked {
        flags |= CALL_HAS_RESULT;
        result = end.rax;
    }
    let Some(mut slot) = EVENTS.reserve::<CallRecord>(0) else {
        count!(hit.counters, kept, u64::MAX);
        count!(hit.counters, dropped, 1);
        return;
    };
    slot.write(CallRecord {
        time_ns: call.time_ns,
        duration_ns: call.duration_ns,
        nested_cost_ns: call.nested_cost_ns,
        class: hit.cookie.class,
        pid,
        tid,
        flags,
        args,
        return_address,
        result,
        outer,
        depth,
        context,
    });
    slot.submit(NO_WAKEUP);
    // Of all that was found out on the way the verifier is to know nothing, or it would follow each list once for each way.
    if words::are_taken() && forget_range(state, call.generation & HAS_WORDS) != 0 {
        words_at_end(hit, call, &args, linked.then_some(end.rax));
    }
}
