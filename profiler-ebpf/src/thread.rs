//! The stack of open calls that each thread carries, and the monitoring cost inside them.
//!
//! A call is named by its *return slot*, the stack word with its return address. Two live calls never share one,
//! save where one function left by a tail jump and its end is seen through a return link or at a return site. So a call is known to
//! have been left without passing an exit (a throw, `longjmp`) when its slot is used again, or when a call that lies
//! further up the same stack begins or ends. The span within which two slots are taken to lie on one stack comes
//! from the settings. Calls that an earlier attachment of their class left behind are forgotten silently.

use crate::atomic::{add, raise};
use crate::beside::{function_of, is_beside, same_as};
use crate::class::{Hit, count};
use crate::context;
use crate::details::{Own, Share};
use crate::maps::{self, count_global, histogram_slot, now_ns, settings};
use crate::record;
use crate::returns::{is_replaced, is_reused, return_address, word_of_newest};
use crate::storage::{self, End, cost_after_begin, cost_before_end, forget_range, frame};
use crate::words;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::programs::ProbeContext;
use aya_log_ebpf::warn;
use core::ffi::c_void;
use profiler_common::class::{
    ClassControl, ClassKind, FLAG_ARGUMENTS, FLAG_CONTEXT, FLAG_INNER_CALL, FLAG_WORDS, NO_HISTOGRAM,
};
use profiler_common::cookie::{COOKIE_RETURN_LINK, SLOT_UNKNOWN};
use profiler_common::histogram::{SLOT_BUCKETS, bucket};
use profiler_common::thread::{
    CallFrame, DEPTH, FREE, GENERATION, HAS_CONTEXT, HAS_WORDS, RETURN_LINK, RETURN_SITE, SHARED_LINK,
    ThreadState,
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
    /// Frames of this slot and of classes of this function are of this call, and stay; 0: none are.
    same: u32,
}

/// Removes the frames on top, above position `floor`, that `proof` shows to have been left, and counts them as unwound.
#[inline(always)]
fn bury(state: *mut ThreadState, floor: u32, proof: Proof) {
    let Proof { slot, word, reused, asks_return, again, same } = proof;
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
            } else if same != 0 && function_of(class) == same {
                false
            } else if generation & RETURN_SITE != 0 {
                depth > again || is_replaced(its_word, word)
            } else {
                !linked || reused
            };
            if !left {
                break;
            }
            forget(class, generation);
            if generation & (RETURN_LINK | SHARED_LINK) == RETURN_LINK {
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

/// Takes away what the begin of a call proves to have been left: how many calls are open then.
#[inline(always)]
fn make_room(hit: &Hit, state: *mut ThreadState, slot: u64, linked: bool, returns_to: u64) -> u32 {
    // SAFETY: a live map value, of this thread only.
    let mut depth = unsafe { (*state).depth };
    if slot != 0 && depth != 0 {
        let word = if returns_to != 0 { returns_to } else { word_of_newest(state, depth, slot) };
        let again = if returns_to != 0 { same_call(state, depth, hit.cookie.class, slot) } else { DEPTH };
        let reused = is_reused(state, depth, slot, word);
        let same = same_as(state, depth, hit, slot);
        let proof = Proof { slot, word, reused, asks_return: linked, again, same };
        bury(state, 0, proof);
        // SAFETY: as above.
        depth = unsafe { (*state).depth };
        if depth >= DEPTH {
            bury(state, 0, Proof { reused: true, same: 0, ..proof });
            // SAFETY: as above.
            depth = unsafe { (*state).depth };
        }
    }
    depth
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
    let depth = make_room(hit, state, slot, linked, returns_to);
    // SAFETY: a live map value; the agent may change it at any time.
    let (hit_cost_ns, generation, kind, flags) = unsafe {
        ((*hit.control).hit_cost_ns, (*hit.control).generation, (*hit.control).kind, (*hit.control).flags)
    };
    let cost_ns = cost_after_begin(state, hit_cost_ns, hit.shared(ctx));
    let mut shares = 0;
    if linked {
        if is_beside(state, depth, hit, slot) {
            shares = SHARED_LINK;
        }
        // SAFETY: as above.
        let pending = unsafe { (*state).pending };
        if shares == 0 && pending >= MAX_PENDING {
            return Push::Omitted;
        }
        if shares == 0 && depth < DEPTH {
            // SAFETY: as above.
            unsafe { (*state).pending = pending + 1 };
        }
    }
    if depth >= DEPTH {
        return Push::Full;
    }
    let wanted =
        kind == ClassKind::Record as u32 && flags & (FLAG_ARGUMENTS | FLAG_CONTEXT | FLAG_WORDS) != 0;
    let store = if wanted { storage::arguments(true) } else { core::ptr::null_mut() };
    let kept = record::keep_arguments(store, flags, depth, ctx);
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
        (&raw mut (*new).generation).write_volatile(generation & GENERATION | way | kept | shares);
        (&raw mut (*new).class).write_volatile(hit.cookie.class);
        (*new).cost_ns = cost_ns;
        (*new).inner_ns = (*state).inner_ns;
        (&raw mut (*state).depth).write_volatile(depth + 1);
        if kept & HAS_CONTEXT != 0 && !store.is_null() {
            *storage::kept_account(store, depth) = context::account();
        }
        (*new).begin_ns = now_ns();
    }
    if words::are_taken() && forget_range(state, kept & HAS_WORDS) != 0 {
        record::words_at_begin(hit, ctx, || {
            let begin_ns = now_ns();
            // SAFETY: a live map value, of this thread only.
            unsafe { (*frame(state, forget_range(state, depth))).begin_ns = begin_ns };
            begin_ns
        });
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
        // SAFETY: as above.
        let same = unsafe { (*hit.control).function };
        let proof = Proof { slot, word: 0, reused: true, asks_return: false, again: DEPTH, same };
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
        if generation & (RETURN_LINK | SHARED_LINK) == RETURN_LINK {
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
        bounds,
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
        add_inner(state, inner_ns.wrapping_add(duration_ns), Own { bounds, slot });
    }
    count!(hit.counters, returns, 1);
    count!(hit.counters, sum_ns, duration_ns);
    if nested_cost_ns != 0 {
        count!(hit.counters, nested_cost_ns, nested_cost_ns);
    }
    // SAFETY: a live map value.
    raise(unsafe { &raw mut (*hit.counters).max_ns }, duration_ns);
    if histogram != NO_HISTOGRAM {
        count_duration(histogram, duration_ns);
    }
    if kind == ClassKind::Record as u32 {
        let call = record::Call {
            position,
            generation,
            slot,
            return_address,
            time_ns: begin_ns,
            duration_ns,
            nested_cost_ns,
        };
        record::emit(hit, state, &call, end);
    }
}

/// The thread's time in inner calls grows to `after_ns`: what calls inside this one have added is part of it.
#[inline(always)]
fn add_inner(state: *mut ThreadState, after_ns: u64, own: Own) {
    // SAFETY: a live map value, of this thread only.
    let before_ns = unsafe { (*state).inner_ns };
    if own.bounds != 0 {
        own.leave_out(state, &Share { inner_ns: after_ns.wrapping_sub(before_ns), ..Share::default() });
    }
    // SAFETY: as above.
    unsafe { (*state).inner_ns = after_ns };
}

/// Counts a duration in the histogram that begins with that slot.
#[inline(always)]
fn count_duration(histogram: u32, duration_ns: u64) {
    let index = bucket(duration_ns);
    if let Some(slot) = histogram_slot(histogram.wrapping_add(index / SLOT_BUCKETS as u32)) {
        // SAFETY: the index lies inside the slot.
        add(unsafe { (&raw mut (*slot).counts).cast::<u64>().add(index as usize & (SLOT_BUCKETS - 1)) }, 1);
    }
}
