//! Operations of the current thread: begin, inner calls, end.
//!
//! A thread keeps counts of inner calls, their time and their measure that only grow; an open operation remembers where
//! they stood, so that operations inside one another each get what lies in them.

use crate::atomic::{add, fetch_add, fetch_add_signed};
use crate::class::count;
use crate::details::{details, has_steps, lacks_details};
use crate::maps::{
    NO_WAKEUP, OPERATION_RECORDS, count_global, current_ids, now_ns, operation_class, operation_control,
    operation_counters, operation_state, settings,
};
use crate::names;
use crate::off_cpu;
use crate::population::{self, tally};
use crate::storage::{
    self, End, SharedSite, cost_after_begin, cost_before, cost_before_end, forget_range, open_at,
};
use crate::words::{self, Place};
use aya_ebpf::helpers::generated::bpf_get_prandom_u32;
use profiler_common::operation::{
    ClassNumbers, Decision, OPERATION_BALANCE, OPERATION_BY_THREAD, OPERATION_MONITORING, OperationClass,
    OperationControl, OperationCounters, OperationRecord, OperationState, RECORD_INCOMPLETE, Switch, Totals,
    choose,
};
use profiler_common::presence::{OFF_CPU_UNKNOWN, Presence, off_cpu_ns};
use profiler_common::step::{StepMark, StepSpan};
use profiler_common::thread::{
    FREE, OPERATION_DEPTH, OPERATION_DETAILS_SHIFT, OPERATION_PRESENCE, OPERATION_RECORDED, OpenOperation,
    ThreadState,
};
use profiler_common::words::{TAKEN_AT_BEGIN, TAKEN_AT_END};

/// A begin.
pub struct Begin {
    pub operation: u32,
    /// Return slot; 0: not known.
    pub slot: u64,
    /// Price of the hit.
    pub hit_cost_ns: u32,
    /// The function's class and the site, where other classes have programs in the same trap.
    pub shared: Option<SharedSite>,
}

/// Gives up an operation whose end was not seen.
#[inline(always)]
fn abandon(state: *mut ThreadState, open: *mut OpenOperation) {
    // SAFETY: live map values, of this thread only.
    unsafe {
        let operation = (*open).operation;
        if (*open).flags & OPERATION_RECORDED != 0 {
            (*state).recording = (*state).recording.wrapping_sub(1);
        }
        (*open).operation = FREE;
        unmatched(operation);
    }
}

#[inline(always)]
fn unmatched(operation: u32) {
    if let Some(control) = operation_control(operation)
        // SAFETY: a live map value.
        && let Some(counters) = operation_counters(unsafe { (*control).base_class })
    {
        count!(counters, unmatched, 1);
    }
}

/// Takes free places off the top.
#[inline(always)]
fn trim(state: *mut ThreadState) {
    for _ in 0..OPERATION_DEPTH {
        // SAFETY: a live map value, of this thread only.
        let depth = unsafe { (*state).operation_depth };
        // SAFETY: as above.
        if depth == 0 || depth > OPERATION_DEPTH || unsafe { (*open_at(state, depth - 1)).operation } != FREE
        {
            break;
        }
        // SAFETY: as above.
        unsafe { (*state).operation_depth = depth - 1 };
    }
}

/// Finds what the new begin proves to have been left: of pairs, the same operation; else those whose frame lies
/// at the new one or below it on the same stack.
#[inline(always)]
fn abandon_left(state: *mut ThreadState, begin: &Begin, by_thread: bool) {
    let span = match settings() {
        // SAFETY: a live map value.
        Some(settings) => unsafe { (*settings).stack_span_bytes },
        None => 0,
    };
    for position in 0..OPERATION_DEPTH {
        // SAFETY: a live map value, of this thread only.
        if position >= unsafe { (*state).operation_depth } {
            break;
        }
        let open = open_at(state, position);
        // SAFETY: as above.
        let (operation, slot) = unsafe { ((*open).operation, (*open).slot) };
        let left = if by_thread {
            operation == begin.operation
        } else {
            slot != 0
                && (slot == begin.slot && operation == begin.operation
                    || slot < begin.slot && begin.slot - slot < span)
        };
        if operation != FREE && left {
            abandon(state, open);
        }
    }
    trim(state);
}

/// Begins an operation: class, population, decision.
#[inline(always)]
pub fn begin(begin: &Begin, argument: impl Fn(u32) -> u64) {
    let (Some(control), Some(shared)) =
        (operation_control(begin.operation), operation_state(begin.operation))
    else {
        return;
    };
    let state = storage::state(true);
    if state.is_null() {
        count_global!(no_thread_state);
        return;
    }
    // Before everything that is decided: inner functions that go from here on take this operation with them.
    let details = details();
    // SAFETY: a live map value, of this thread only.
    let cost_ns = cost_after_begin(state, begin.hit_cost_ns, begin.shared);
    // SAFETY: a live map value; the agent may change it at any time.
    let flags = unsafe { (&raw const (*control).flags).read_volatile() };
    let by_thread = flags & OPERATION_BY_THREAD != 0;
    // SAFETY: as above.
    if unsafe { (*state).operation_depth } != 0 {
        abandon_left(state, begin, by_thread);
    }
    // SAFETY: as above.
    let depth = unsafe { (*state).operation_depth };
    if depth >= OPERATION_DEPTH {
        unmatched(begin.operation);
        return;
    }
    let class = names::class_of(begin.operation, control, shared, &argument);
    let (Some(numbers), Some(counters)) = (operation_class(class), operation_counters(class)) else { return };
    // SAFETY: live map values; the agent may change them at any time.
    let (stretch, cycle, generation) = unsafe {
        (
            (&raw const (*numbers).stretch).read_volatile(),
            (&raw const (*control).cycle).read_volatile(),
            (&raw const (*control).generation).read_volatile(),
        )
    };
    let decision = decide(control, flags, shared, numbers);
    let recorded = tell(decision, shared, numbers, counters);
    let mut flags = recorded | details << OPERATION_DETAILS_SHIFT;
    let mut presence = Presence { accounted_ns: 0, used_ns: 0, arrival_ns: 0, before_ns: 0, cpu: 0 };
    if recorded != 0
        && let Some(now) = off_cpu::presence()
    {
        presence = now;
        flags |= OPERATION_PRESENCE;
    }
    let open = open_at(state, depth);
    // SAFETY: a live map value, of this thread only. The time stamp is taken last.
    unsafe {
        *open = OpenOperation {
            slot: if by_thread { 0 } else { begin.slot },
            begin_ns: 0,
            cost_ns,
            calls: (*state).calls,
            inner_ns: (*state).inner_ns,
            measure: (*state).measure,
            cycle,
            stretch,
            presence,
            operation: begin.operation,
            class,
            flags,
            generation,
            steps: StepMark { number: (*state).steps, lost: (*state).steps_lost, own: 0 },
        };
        (*state).recording += recorded;
        (*state).operation_depth = depth + 1;
        (*open).begin_ns = now_ns();
    }
    if words::are_taken() && forget_range(state, recorded) != 0 {
        // Of all that led here the verifier is to know nothing.
        let (class, depth) = (forget_range(state, class), forget_range(state, depth));
        // SAFETY: a live map value; the agent wrote it before anything was attached.
        let list = unsafe { (*control).words_begin };
        let operation = begin.operation;
        words::take(&Place { list, kind: TAKEN_AT_BEGIN, class, operation, result: None }, argument, || {
            let begin_ns = now_ns();
            // SAFETY: a live map value, of this thread only.
            unsafe { (*open_at(state, depth)).begin_ns = begin_ns };
            begin_ns
        });
    }
}

/// Counts an operation that begins, and decides whether it is recorded.
#[inline(always)]
fn decide(
    control: *const OperationControl,
    flags: u32,
    shared: *mut OperationState,
    numbers: *mut OperationClass,
) -> Decision {
    // SAFETY: live map values; the agent may change the first three at any time.
    let (threshold, price_ns, slack_q16) = unsafe {
        (
            (&raw const (*numbers).threshold).read_volatile(),
            (&raw const (*numbers).price_ns).read_volatile(),
            (&raw const (*control).slack_q16).read_volatile(),
        )
    };
    // SAFETY: as above.
    let (totals, class, quota_ns) = unsafe {
        (
            Totals {
                population: clip(fetch_add(&raw mut (*shared).population, 1) + 1),
                sample: clip((&raw const (*shared).sample).read_volatile()),
            },
            ClassNumbers {
                threshold,
                price_ns,
                population: clip(fetch_add(&raw mut (*numbers).population, 1) + 1),
                sample: clip((&raw const (*numbers).sample).read_volatile()),
            },
            (&raw const (*shared).quota_ns).read_volatile(),
        )
    };
    let switch = Switch {
        monitoring: flags & OPERATION_MONITORING != 0,
        balance: flags & OPERATION_BALANCE != 0,
        slack_q16,
        quota_ns: if quota_ns > 0 { quota_ns as u64 } else { 0 },
    };
    // SAFETY: the helper has no preconditions.
    let draw = unsafe { bpf_get_prandom_u32() as u32 };
    match choose(&switch, &totals, &class, draw) {
        Decision::Record if !pay(shared, class.price_ns) || lacks_details() => Decision::NoQuota,
        decision => decision,
    }
}

/// Counts what was decided. Returns [`OPERATION_RECORDED`] or 0.
#[inline(always)]
fn tell(
    decision: Decision,
    shared: *mut OperationState,
    numbers: *mut OperationClass,
    counters: *mut OperationCounters,
) -> u32 {
    match decision {
        Decision::Record => {
            // SAFETY: live map values.
            unsafe {
                add(&raw mut (*shared).sample, 1);
                add(&raw mut (*numbers).sample, 1);
            }
            count!(counters, recorded, 1);
            return OPERATION_RECORDED;
        }
        Decision::Off => count!(counters, off, 1),
        Decision::NotDrawn => count!(counters, not_drawn, 1),
        Decision::Balanced => count!(counters, balanced, 1),
        Decision::NoQuota => count!(counters, no_quota, 1),
    }
    0
}

/// Takes the price of recording from the quota. False: it does not pay for it.
#[inline(always)]
fn pay(shared: *mut OperationState, price_ns: u64) -> bool {
    if price_ns == 0 {
        return true;
    }
    // Others may have taken it meanwhile.
    // SAFETY: a live map value.
    let before = fetch_add_signed(unsafe { &raw mut (*shared).quota_ns }, -(price_ns as i64));
    if before < price_ns as i64 {
        // SAFETY: as above.
        fetch_add_signed(unsafe { &raw mut (*shared).quota_ns }, price_ns as i64);
        return false;
    }
    true
}

#[inline(always)]
fn clip(count: u64) -> u32 {
    if count > u64::from(u32::MAX) { u32::MAX } else { count as u32 }
}

/// An end.
pub struct Finish {
    pub operation: u32,
    /// Return slot; 0: not known.
    pub slot: u64,
    /// When, ktime ns.
    pub end_ns: u64,
    /// Price of the hit.
    pub return_cost_ns: u32,
    /// Part of the operation's own monitoring cost that lies between its two time stamps.
    pub own_cost_ns: u32,
    /// The class and the hit, of a function.
    pub hit: Option<(u32, End)>,
}

/// Ends the innermost operation of that number (and return slot). False: it is not open.
#[inline(always)]
pub fn end(finish: &Finish) -> bool {
    let Finish { operation, slot, end_ns, return_cost_ns, own_cost_ns, .. } = *finish;
    let state = storage::state(false);
    if state.is_null() {
        unmatched(operation);
        return false;
    }
    let cost_now_ns = match &finish.hit {
        Some((class, hit)) => cost_before_end(state, hit, *class, return_cost_ns, u64::MAX),
        None => cost_before(state, return_cost_ns),
    };
    // SAFETY: a live map value, of this thread only.
    let depth = unsafe { (*state).operation_depth };
    let mut found = OPERATION_DEPTH;
    // From the innermost out, over constants: counted from `depth`, the verifier of Linux 6.1 sees no end to the loop.
    for outer in (0..OPERATION_DEPTH).rev() {
        if outer >= depth {
            continue;
        }
        let open = open_at(state, outer);
        // SAFETY: as above.
        let (its, its_slot) = unsafe { ((*open).operation, (*open).slot) };
        if its == operation && (its_slot == slot || its_slot == 0 || slot == 0) {
            found = outer;
            break;
        }
    }
    let found = forget_range(state, found);
    if found >= OPERATION_DEPTH {
        unmatched(operation);
        return false;
    }
    let open = open_at(state, found);
    // SAFETY: as above.
    let done = unsafe { *open };
    // SAFETY: a live map value; the agent may change it at any time.
    let present = operation_control(operation)
        .is_some_and(|c| unsafe { (&raw const (*c).generation).read_volatile() } == done.generation);
    if !present {
        abandon(state, open);
        trim(state);
        return false;
    }
    // SAFETY: as above.
    unsafe { (*open).operation = FREE };
    // Of functions, those called inside this one have been left, too.
    if done.slot != 0 {
        for position in 0..OPERATION_DEPTH {
            // SAFETY: as above.
            if position >= unsafe { (*state).operation_depth } {
                break;
            }
            let inside = open_at(state, position);
            // SAFETY: as above.
            let (its, its_slot) = unsafe { ((*inside).operation, (*inside).slot) };
            if position > found && its != FREE && its_slot != 0 && its_slot < done.slot {
                abandon(state, inside);
            }
        }
    }
    trim(state);
    let Some(counters) = operation_counters(done.class) else { return true };
    let duration_ns = end_ns.wrapping_sub(done.begin_ns);
    // SAFETY: a live map value.
    tally(unsafe { &raw mut (*counters).population }, duration_ns);
    population::count_duration(done.class, duration_ns);
    if done.flags & OPERATION_RECORDED != 0 {
        let cost_ns = cost_now_ns.wrapping_sub(done.cost_ns) + u64::from(own_cost_ns);
        record(state, counters, &done, duration_ns, cost_ns);
    }
    true
}

#[inline(always)]
fn record(
    state: *mut ThreadState,
    counters: *mut OperationCounters,
    done: &OpenOperation,
    duration_ns: u64,
    cost_ns: u64,
) {
    // SAFETY: a live map value, of this thread only.
    let (calls, inner_ns, measure) = unsafe {
        (*state).recording = (*state).recording.wrapping_sub(1);
        (
            (*state).calls.wrapping_sub(done.calls),
            (*state).inner_ns.wrapping_sub(done.inner_ns),
            (*state).measure.wrapping_sub(done.measure),
        )
    };
    // SAFETY: as above.
    let (steps, steps_lost) = unsafe { ((*state).steps, (*state).steps_lost) };
    // OK because the cast keeps the low bits. The first step has the number 1.
    let steps = if done.steps.own != 0 && done.steps.own == steps as u32 { steps - 1 } else { steps };
    // They may have gone and come back meanwhile.
    let whole = !lacks_details()
        && done.flags >> OPERATION_DETAILS_SHIFT == details()
        && steps_lost == done.steps.lost;
    if whole {
        // SAFETY: a live map value.
        tally(unsafe { &raw mut (*counters).sample }, duration_ns);
        // SAFETY: as above.
        tally(unsafe { &raw mut (*counters).measure }, measure);
        count!(counters, cost_ns, cost_ns);
        count!(counters, calls, calls);
    } else {
        count!(counters, dropped, 1);
        if !has_steps(done.operation) {
            return;
        }
    }
    let flags = if whole { 0 } else { RECORD_INCOMPLETE };
    let Some(mut slot) = OPERATION_RECORDS.reserve::<OperationRecord>(0) else {
        if whole {
            count!(counters, dropped, 1);
        }
        return;
    };
    let off_cpu_ns = match off_cpu::presence() {
        Some(end) if done.flags & OPERATION_PRESENCE != 0 => off_cpu_ns(&done.presence, &end),
        _ => OFF_CPU_UNKNOWN,
    };
    let (pid, tid) = current_ids();
    slot.write(OperationRecord {
        begin_ns: done.begin_ns,
        duration_ns,
        calls,
        inner_ns,
        measure,
        cost_ns,
        cycle: done.cycle,
        stretch: done.stretch,
        off_cpu_ns,
        operation: done.operation,
        class: done.class,
        pid,
        tid,
        steps: StepSpan { before: done.steps.number, after: steps, flags, reserved: 0 },
    });
    slot.submit(NO_WAKEUP);
    if words::are_taken()
        && let Some(control) = operation_control(done.operation)
    {
        // SAFETY: a live map value; the agent wrote it before anything was attached.
        let list = forget_range(state, unsafe { (*control).words_end });
        let (class, operation) = (done.class, done.operation);
        let place = Place { list, kind: TAKEN_AT_END, class, operation, result: None };
        words::take(&place, |_| 0, || done.begin_ns);
    }
}
