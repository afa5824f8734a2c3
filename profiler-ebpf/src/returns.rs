//! Replaced return addresses: a return link puts the address of the kernel's trampoline where the return address was.
//!
//! While samples are taken a frame keeps the word that stood there, so that copied stacks can be made whole. The word in a
//! slot also tells whether an earlier call with the same slot still waits for its return.

use crate::maps::settings;
use crate::storage::{self, frame};
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use core::ffi::c_void;
use profiler_common::thread::{CallFrame, DEPTH, FREE, RETURN_LINK, RETURN_SITE, ThreadState};

/// The trampoline's address is a multiple of this: it is the first slot of the page that the kernel maps for uprobes
/// (`kernel/events/uprobes.c`, `__create_xol_area`).
const TRAMPOLINE_ALIGN: u64 = 4096;

/// The word in a slot of the user's stack; 0: it cannot be read.
#[inline(always)]
pub fn word_in(slot: u64) -> u64 {
    let mut word = 0u64;
    // SAFETY: room for one word; the helper checks the address itself.
    let failed = unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, slot as *const c_void) };
    if failed == 0 { word } else { 0 }
}

/// It can be the address of the trampoline.
#[inline(always)]
pub fn is_trampoline(word: u64) -> bool {
    word != 0 && word.is_multiple_of(TRAMPOLINE_ALIGN)
}

/// The word in this slot, if the newest call has the same one and the word tells whether it still waits for its return; else 0.
#[inline(always)]
pub fn word_of_newest(state: *mut ThreadState, depth: u32, slot: u64) -> u64 {
    let top = frame(state, depth.wrapping_sub(1));
    // SAFETY: a live map value, of this thread only.
    let CallFrame { slot: top_slot, class, generation, .. } = unsafe { *top };
    if top_slot != slot || class == FREE || generation & (RETURN_LINK | RETURN_SITE) == 0 {
        return 0;
    }
    word_in(slot)
}

/// The newest call has a return link and this slot, and the word there is the caller's own return address, no trampoline:
/// that call was left by a throw or `longjmp`, or its link was closed before it returned.
#[inline(always)]
pub fn is_reused(state: *mut ThreadState, depth: u32, slot: u64, word: u64) -> bool {
    let top = frame(state, depth.wrapping_sub(1));
    // SAFETY: a live map value, of this thread only.
    let CallFrame { slot: top_slot, class, generation, .. } = unsafe { *top };
    top_slot == slot && class != FREE && generation & RETURN_LINK != 0 && word != 0 && !is_trampoline(word)
}

/// The word in the slot of a call with a return site shows that the call was left: it is another return address. (A trampoline stands
/// there where a function that it jumped to has a return link.)
#[inline(always)]
pub fn is_replaced(return_address: u64, word: u64) -> bool {
    word != 0 && word != return_address && !is_trampoline(word)
}

/// The word in a return slot, if samples are taken; else 0. Where another return link (of a function that left by a tail
/// jump) has replaced it already, that is the trampoline, and putting it back changes nothing.
#[inline(always)]
pub fn return_address(slot: u64) -> u64 {
    let mut word = 0u64;
    if let Some(settings) = settings()
        // SAFETY: a live map value; the agent may change it at any time.
        && unsafe { (*settings).sample_period_ns } != 0
        && slot != 0
        // SAFETY: room for one word; the helper checks the address itself.
        && unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, slot as *const c_void) } != 0
    {
        return 0;
    }
    word
}

/// Puts the return addresses that return links have replaced back into a copy of this thread's stack from `sp` upwards,
/// of at most `STACK` bytes; what lies behind a shorter copy may be overwritten.
///
/// A word is replaced only if it can be the trampoline: a frame may be left over from a call that ended by `longjmp`,
/// and another's data lie in its slot. The innermost call goes first, so that of two frames with one slot the live one
/// wins.
#[inline(always)]
pub fn restore_returns<const STACK: usize>(stack: *mut c_void, sp: u64) {
    let state = storage::state(false);
    // SAFETY: a live map value, of this thread only.
    if state.is_null() || unsafe { (*state).pending } == 0 {
        return;
    }
    // SAFETY: as above.
    let depth = unsafe { (*state).depth };
    for above in 0..DEPTH {
        if above >= depth {
            break;
        }
        let open = frame(state, depth - 1 - above);
        // SAFETY: as above.
        let (slot, return_address) = unsafe { ((*open).slot, (*open).return_address) };
        let offset = slot.wrapping_sub(sp);
        if return_address == 0 || offset > STACK as u64 - 8 {
            continue;
        }
        // SAFETY: inside the buffer, which is aligned to a word as stack pointers are; for odd ones the offset is made so.
        unsafe {
            let word = stack.cast::<u64>().byte_add(offset as usize & !7);
            if is_trampoline(*word) {
                *word = return_address;
            }
        }
    }
}
