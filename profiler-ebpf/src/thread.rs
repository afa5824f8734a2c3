//! The stack of open calls that each thread carries, and the monitoring cost inside them.
//!
//! A call is named by its *return slot*, the stack word with its return address. Two live calls never share one,
//! save where one function left by a tail jump and its end is seen through a return link or at a return site. So a call is known to
//! have been left without passing an exit (a throw, `longjmp`) when its slot is used again, or when a call that lies
//! further up the same stack begins or ends. The span within which two slots are taken to lie on one stack comes
//! from the settings. Calls that an earlier attachment of their class left behind are forgotten silently.

use crate::atomic::{add, raise};
use crate::class::{Hit, count};
use crate::maps::{self, EVENTS, NO_WAKEUP, count_global, current_ids, histogram_slot, now_ns, settings};
use crate::registers::arguments;
use crate::returns::{is_replaced, is_reused, return_address, word_in, word_of_newest};
use crate::storage::{self, End, cost_before, cost_before_end, frame};
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::programs::ProbeContext;
use aya_log_ebpf::warn;
use core::ffi::c_void;
use profiler_common::class::{ClassControl, ClassKind, FLAG_ARGUMENTS, FLAG_INNER_CALL, NO_HISTOGRAM};
use profiler_common::cookie::{COOKIE_RETURN_LINK, SLOT_UNKNOWN};
use profiler_common::event::{CALL_HAS_PLACE, CALL_HAS_RESULT, CALL_NO_ARGUMENTS, CallRecord};
use profiler_common::histogram::{SLOT_BUCKETS, bucket};
use profiler_common::thread::{
    CallFrame, DEPTH, FREE, GENERATION, HAS_ARGUMENTS, RETURN_LINK, RETURN_SITE, ThreadState,
};

/// Return links that may be pending on a thread before returns are left out: the kernel drops the 65th silently, and a
/// few may be pending from links of others (another agent, a debugger). Those that a throw or `longjmp` left behind do not
/// count: an entry that finds the newest one dead is let through, because the kernel looks at its limit before it forgets the dead,
/// and forgets them only where a return is asked for.
const MAX_PENDING: u32 = 60;
/// Frames that one hit may bury. Each hit adds one at most, so more that are dead go with the hits that follow. Keeps the
/// verifier's work small, which explores each round of a loop.
const BURIED_PER_HIT: u32 = 8;

/// What became of an entry.
pub enum Push {
    /// It lies at this position.
    Open(u32),
    /// Too many return links are pending.
    Omitted,
    /// There is no room.
    Full,
}

/// What a hit tells of the calls on top.
#[derive(Clone, Copy)]
struct Proof {
    /// Return slot of the call that begins or ends.
    slot: u64,
    /// The word in it; 0: not known.
    word: u64,
    /// A frame with a return link and the same slot counts as left, too.
    reused: bool,
    /// This hit makes the kernel forget every pending return below its slot, however far (`arch_uretprobe_is_alive`): so are
    /// frames with return links.
    asks_return: bool,
    /// From this position on frames with return sites are left: the same function begins with the same slot.
    again: u32,
}

/// Removes the frames on top, above position `floor`, that `proof` shows to have been left, and counts them as unwound.
#[inline(always)]
fn bury(state: *mut ThreadState, floor: u32, proof: Proof) {
    let Proof { slot, word, reused, asks_return, again } = proof;
    let span = match settings() {
        // SAFETY: a live map value.
        Some(settings) => unsafe { (*settings).stack_span_bytes },
        None => 0,
    };
    for _ in 0..BURIED_PER_HIT {
        // SAFETY: a live map value, of this thread only.
        let depth = unsafe { (*state).depth };
        if depth <= floor || depth > DEPTH {
            break;
        }
        let top = frame(state, depth - 1);
        // SAFETY: as above.
        let CallFrame { slot: top_slot, class, generation, return_address: its_word, .. } = unsafe { *top };
        if class != FREE {
            let linked = generation & RETURN_LINK != 0;
            let near = slot.wrapping_sub(top_slot) < span || (linked && asks_return);
            let left = if top_slot != slot {
                top_slot < slot && near
            } else if generation & RETURN_SITE != 0 {
                depth > again || is_replaced(its_word, word)
            } else {
                !linked || reused
            };
            if !left {
                break;
            }
            forget(class, generation);
            if linked {
                // SAFETY: as above.
                unsafe { (*state).pending = (*state).pending.wrapping_sub(1) };
            }
        }
        // SAFETY: as above.
        unsafe { (*state).depth = depth - 1 };
    }
}

/// Counts a frame that was left, unless it belongs to an earlier attachment.
#[inline(always)]
fn forget(class: u32, generation: u32) {
    if let Some(control) = maps::control(class)
        // SAFETY: a live map value.
        && unsafe { (*control).generation } == generation & GENERATION
        && let Some(counters) = maps::counters(class)
    {
        count!(counters, unwound, 1);
    }
}

/// Among the newest calls with this slot and a return site the position of one of this class; `DEPTH` if there is none. It was
/// left by a throw or `longjmp`, or the function came back to its begin by tail jumps: nothing tells the two apart.
#[inline(always)]
fn same_call(state: *mut ThreadState, depth: u32, class: u32, slot: u64) -> u32 {
    let mut found = DEPTH;
    for above in 0..BURIED_PER_HIT {
        if above >= depth {
            break;
        }
        let position = depth - 1 - above;
        // SAFETY: a live map value, of this thread only.
        let CallFrame { slot: its_slot, class: its_class, generation, .. } =
            unsafe { *frame(state, position) };
        if its_class == FREE || its_slot < slot {
            continue; // `bury` takes it away.
        }
        if its_slot != slot || generation & RETURN_SITE == 0 {
            break;
        }
        if its_class == class {
            found = position;
            break;
        }
    }
    forget_range(state, found)
}

/// Opens a call. The time stamp is taken last, so that this program's own work lies outside the call. `returns_to`: the return
/// address, of a call whose end is seen at a return site; else 0.
#[inline(always)]
pub fn push(hit: &Hit, ctx: *mut c_void, returns_to: u64) -> Push {
    let state = storage::state(true);
    if state.is_null() {
        count_global!(no_thread_state);
        warn!(&ProbeContext::new(ctx), "no state for a thread that called class {}", hit.cookie.class);
        return Push::Full;
    }
    // SAFETY: the context of a uprobe program is a `pt_regs`.
    let rsp = unsafe { (*ctx.cast::<pt_regs>()).rsp };
    let slot = hit.cookie.return_slot(rsp).unwrap_or(0);
    let linked = hit.cookie.flags & COOKIE_RETURN_LINK != 0;
    // SAFETY: a live map value, of this thread only.
    let mut depth = unsafe { (*state).depth };
    if slot != 0 && depth != 0 {
        let word = if returns_to != 0 { returns_to } else { word_of_newest(state, depth, slot) };
        let again = if returns_to != 0 { same_call(state, depth, hit.cookie.class, slot) } else { DEPTH };
        let reused = is_reused(state, depth, slot, word);
        let proof = Proof { slot, word, reused, asks_return: linked, again };
        bury(state, 0, proof);
        // SAFETY: as above.
        depth = unsafe { (*state).depth };
        if depth >= DEPTH {
            bury(state, 0, Proof { reused: true, ..proof });
            // SAFETY: as above.
            depth = unsafe { (*state).depth };
        }
    }
    // SAFETY: a live map value; the agent may change it at any time.
    let (hit_cost_ns, generation, kind, flags) = unsafe {
        ((*hit.control).hit_cost_ns, (*hit.control).generation, (*hit.control).kind, (*hit.control).flags)
    };
    let cost_ns = cost_before(state, hit_cost_ns) + u64::from(hit_cost_ns);
    if linked {
        // SAFETY: as above.
        let pending = unsafe { (*state).pending };
        if pending >= MAX_PENDING {
            return Push::Omitted;
        }
        if depth < DEPTH {
            // SAFETY: as above.
            unsafe { (*state).pending = pending + 1 };
        }
    }
    if depth >= DEPTH {
        return Push::Full;
    }
    let wanted = kind == ClassKind::Record as u32 && flags & FLAG_ARGUMENTS != 0;
    let kept = if wanted { keep_arguments(depth, ctx) } else { 0 };
    let new = frame(state, depth);
    // A sample may come at any moment and walk the frames: they count only when they are complete.
    // SAFETY: as above.
    unsafe {
        (&raw mut (*new).slot).write_volatile(slot);
        (&raw mut (*new).return_address).write_volatile(if linked {
            return_address(slot)
        } else {
            returns_to
        });
        let way = match (linked, returns_to) {
            (true, _) => RETURN_LINK,
            (false, 0) => 0,
            (false, _) => RETURN_SITE,
        };
        (&raw mut (*new).generation).write_volatile(generation & GENERATION | way | kept);
        (&raw mut (*new).class).write_volatile(hit.cookie.class);
        (*new).cost_ns = cost_ns;
        (*new).inner_ns = (*state).inner_ns;
        (&raw mut (*state).depth).write_volatile(depth + 1);
        (*new).begin_ns = now_ns();
    }
    Push::Open(depth)
}

/// Closes the call at a known position, if it is of that class and has just returned. False: it is not there.
#[inline(always)]
pub fn close_at(hit: &Hit, position: u32, end: &End) -> bool {
    let slot = end.rsp.wrapping_sub(8);
    let state = storage::state(false);
    if state.is_null() {
        return false;
    }
    let found = frame(state, position);
    // SAFETY: a live map value, of this thread only.
    let (class, its_slot, depth) = unsafe { ((*found).class, (*found).slot, (*state).depth) };
    if position >= depth || class != hit.cookie.class || (its_slot != slot && its_slot != 0) {
        return false;
    }
    close(hit, state, position, slot, end);
    true
}

/// Closes the innermost call of that class with the return slot that the cookie names. False: there is none.
#[inline(always)]
pub fn close_innermost(hit: &Hit, end: &End) -> bool {
    let state = storage::state(false);
    if state.is_null() {
        return false;
    }
    let slot = hit.cookie.return_slot(end.rsp).unwrap_or(0);
    let any_slot = hit.cookie.slot_delta == SLOT_UNKNOWN;
    // SAFETY: a live map value, of this thread only.
    let depth = unsafe { (*state).depth };
    let mut found = DEPTH;
    for above in 0..DEPTH {
        if above >= depth {
            break;
        }
        let position = depth - 1 - above;
        let candidate = frame(state, position);
        // SAFETY: as above.
        let (class, its_slot) = unsafe { ((*candidate).class, (*candidate).slot) };
        if class == hit.cookie.class && (its_slot == slot || its_slot == 0 || any_slot) {
            found = position;
            break;
        }
    }
    let found = forget_range(state, found);
    if found >= DEPTH {
        return false;
    }
    // SAFETY: as above.
    let slot = unsafe { (*frame(state, found)).slot };
    close(hit, state, found, slot, end);
    true
}

/// Closes the innermost call of that class with the return slot that the cookie names, whose return address lies right before the
/// site that was hit. False: there is none.
#[inline(always)]
pub fn close_returned(hit: &Hit, end: &End) -> bool {
    let state = storage::state(false);
    if state.is_null() {
        return false;
    }
    let Some(slot) = hit.cookie.return_slot(end.rsp) else { return false };
    // SAFETY: a live map value, of this thread only.
    let depth = unsafe { (*state).depth };
    let mut found = DEPTH;
    for above in 0..DEPTH {
        if above >= depth {
            break;
        }
        let position = depth - 1 - above;
        // SAFETY: as above.
        let CallFrame { slot: its_slot, class, generation, return_address, .. } =
            unsafe { *frame(state, position) };
        if class == hit.cookie.class
            && its_slot == slot
            && generation & RETURN_SITE != 0
            && hit.cookie.is_behind(end.rip, return_address)
        {
            found = position;
            break;
        }
    }
    let found = forget_range(state, found);
    if found >= DEPTH {
        return false;
    }
    close(hit, state, found, slot, end);
    true
}

/// The same number, of which the verifier knows nothing: without this it would explore all that follows once for each
/// round in which the search may have ended.
#[inline(always)]
pub fn forget_range(state: *mut ThreadState, value: u32) -> u32 {
    // SAFETY: a live map value, of this thread only.
    unsafe {
        (&raw mut (*state).scratch).write_volatile(value);
        (&raw const (*state).scratch).read_volatile()
    }
}

/// Removes the frame, with those above it that its end proves to have been left, and accounts for the call.
#[inline(always)]
fn close(hit: &Hit, state: *mut ThreadState, position: u32, slot: u64, end: &End) {
    let position = position & (DEPTH - 1);
    let found = frame(state, position);
    // SAFETY: a live map value, of this thread only.
    let CallFrame { begin_ns, cost_ns: cost_at_begin_ns, generation, inner_ns, return_address, .. } =
        unsafe { *found };
    // SAFETY: as above.
    if unsafe { (*state).depth } > position + 1 {
        let proof = Proof { slot, word: 0, reused: true, asks_return: false, again: DEPTH };
        bury(state, position + 1, proof);
    }
    // SAFETY: as above.
    unsafe {
        if (*state).depth == position + 1 {
            (*state).depth = position;
        } else {
            (*found).class = FREE;
            (*found).return_address = 0;
        }
        if generation & RETURN_LINK != 0 {
            (*state).pending = (*state).pending.wrapping_sub(1);
        }
    }
    // SAFETY: a live map value; the agent may change it at any time.
    let ClassControl {
        kind,
        flags,
        generation: class_generation,
        histogram,
        return_cost_ns,
        own_cost_ns,
        ..
    } = unsafe { *hit.control };
    let duration_ns = end.time_ns.wrapping_sub(begin_ns);
    let cost_ns = cost_before_end(state, end, hit.cookie.class, return_cost_ns, duration_ns);
    if generation & GENERATION != class_generation {
        // Begun under an earlier attachment: its begin is not in the present counts.
        count!(hit.counters, orphans, 1);
        return;
    }
    let inside_ns = cost_ns.wrapping_sub(cost_at_begin_ns);
    // Below nothing where strays have joined this trap to one before the call.
    let inside_ns = if (inside_ns as i64) < 0 { 0 } else { inside_ns };
    let nested_cost_ns = inside_ns + u64::from(own_cost_ns);
    if flags & FLAG_INNER_CALL != 0 {
        // What calls inside this one have added is part of it.
        // SAFETY: a live map value, of this thread only.
        unsafe { (*state).inner_ns = inner_ns.wrapping_add(duration_ns) };
    }
    count!(hit.counters, returns, 1);
    count!(hit.counters, sum_ns, duration_ns);
    if nested_cost_ns != 0 {
        count!(hit.counters, nested_cost_ns, nested_cost_ns);
    }
    // SAFETY: a live map value.
    raise(unsafe { &raw mut (*hit.counters).max_ns }, duration_ns);
    if histogram != NO_HISTOGRAM {
        let index = bucket(duration_ns);
        if let Some(slot) = histogram_slot(histogram.wrapping_add(index / SLOT_BUCKETS as u32)) {
            // SAFETY: the index lies inside the slot.
            add(
                unsafe { (&raw mut (*slot).counts).cast::<u64>().add(index as usize & (SLOT_BUCKETS - 1)) },
                1,
            );
        }
    }
    if kind == ClassKind::Record as u32 {
        let call = Call {
            position,
            generation,
            slot,
            return_address,
            time_ns: begin_ns,
            duration_ns,
            nested_cost_ns,
        };
        emit(hit, state, &call, end);
    }
}

/// Keeps the arguments of the call at this depth. Returns [`HAS_ARGUMENTS`], or 0: there was no memory for them.
#[inline(always)]
fn keep_arguments(depth: u32, ctx: *mut c_void) -> u32 {
    let store = storage::arguments(true);
    if store.is_null() {
        return 0;
    }
    // SAFETY: the mask keeps the position inside the array.
    unsafe {
        *(&raw mut (*store).frames).cast::<[u64; 6]>().add((depth & (DEPTH - 1)) as usize) = arguments(ctx);
    }
    HAS_ARGUMENTS
}

/// A call that has ended.
struct Call {
    /// Of its frame.
    position: u32,
    /// Of its frame, with the bits beside it.
    generation: u32,
    slot: u64,
    /// Of its frame: 0 where the word is still in the slot, or where nobody kept it.
    return_address: u64,
    time_ns: u64,
    duration_ns: u64,
    nested_cost_ns: u64,
}

/// Emits the record of a call. If the ring is full the hit, counted as kept at its entry, becomes a dropped one.
#[inline(always)]
fn emit(hit: &Hit, state: *mut ThreadState, call: &Call, end: &End) {
    let (pid, tid) = current_ids();
    let (mut args, mut flags) = ([0; 6], CALL_NO_ARGUMENTS | CALL_HAS_PLACE);
    if call.generation & HAS_ARGUMENTS != 0 {
        let store = storage::arguments(false);
        if !store.is_null() {
            flags &= !CALL_NO_ARGUMENTS;
            // SAFETY: the mask keeps the position inside the array.
            args = unsafe {
                *(&raw const (*store).frames).cast::<[u64; 6]>().add((call.position & (DEPTH - 1)) as usize)
            };
        }
    }
    let linked = call.generation & RETURN_LINK != 0;
    let mut return_address = call.return_address;
    // The kernel has replaced it where there is a link.
    if return_address == 0 && !linked && call.slot != 0 {
        return_address = word_in(call.slot);
    }
    let mut outer = FREE;
    if call.position > 0 {
        // SAFETY: a live map value, of this thread only.
        outer = unsafe { (*frame(state, call.position.wrapping_sub(1))).class };
    }
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
        depth: call.position,
    });
    slot.submit(NO_WAKEUP);
}
