//! Programs at entry sites: `count`, `record` (both watch entries only) and `enter` (begin of a timed call).
//!
//! All return 0: on kernels 6.6 to 6.12 another value removes the probe.

use crate::class::{Hit, count};
use crate::maps::{EVENTS, NO_WAKEUP, current_ids, now_ns};
use crate::thread::{self, Push};
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use core::ffi::c_void;
use profiler_common::class::{FLAG_ARGUMENTS, register_offset, register_value};
use profiler_common::event::{CallRecord, NO_DURATION};

/// Counts the hit.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn count(ctx: *mut c_void) -> u32 {
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if hit.admit(ctx) {
        count!(hit.counters, kept, 1);
    }
    thread::charge_hit(hit.control);
    0
}

/// Counts the hit and emits a record without a duration.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn record(ctx: *mut c_void) -> u32 {
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if hit.admit(ctx) {
        match EVENTS.reserve::<CallRecord>(0) {
            Some(mut slot) => {
                let (pid, tid) = current_ids();
                // SAFETY: a live map value.
                let with_args = unsafe { (*hit.control).flags } & FLAG_ARGUMENTS != 0;
                slot.write(CallRecord {
                    time_ns: now_ns(),
                    duration_ns: NO_DURATION,
                    nested_cost_ns: 0,
                    class: hit.cookie.class,
                    pid,
                    tid,
                    flags: 0,
                    args: if with_args { arguments(ctx) } else { [0; 6] },
                });
                slot.submit(NO_WAKEUP);
                count!(hit.counters, kept, 1);
            }
            None => count!(hit.counters, dropped, 1),
        }
    }
    thread::charge_hit(hit.control);
    0
}

/// Opens a call on the thread's stack of open calls; `leave` closes it.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn enter(ctx: *mut c_void) -> u32 {
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if hit.admit(ctx) {
        match thread::push(&hit, ctx) {
            Push::Open(_) => count!(hit.counters, kept, 1),
            Push::Omitted => {
                count!(hit.counters, kept, 1);
                count!(hit.counters, omitted, 1);
            }
            Push::Full => count!(hit.counters, dropped, 1),
        }
    } else {
        thread::charge_hit(hit.control);
    }
    0
}

/// One of them. All are read, at constant offsets, and one is chosen: the compiler would make a variable offset of
/// anything less, which the verifier refuses on contexts.
#[inline(always)]
pub fn argument(ctx: *mut c_void, index: u32) -> u64 {
    let regs = ctx.cast::<pt_regs>();
    // SAFETY: the context of a uprobe program is a `pt_regs`.
    let (a, b, c, d, e, f) = unsafe {
        (
            (&raw const (*regs).rdi).read_volatile(),
            (&raw const (*regs).rsi).read_volatile(),
            (&raw const (*regs).rdx).read_volatile(),
            (&raw const (*regs).rcx).read_volatile(),
            (&raw const (*regs).r8).read_volatile(),
            (&raw const (*regs).r9).read_volatile(),
        )
    };
    match index {
        0 => a,
        1 => b,
        2 => c,
        3 => d,
        4 => e,
        _ => f,
    }
}

/// A value in any register, as a word of [`register_word`](profiler_common::class::register_word) tells. The helper reads
/// at an offset that is not known beforehand, which the verifier allows it and not the program; 0 where it fails.
#[inline(always)]
pub fn in_register(ctx: *mut c_void, word: u32) -> u64 {
    let at = ctx as u64 + register_offset(word);
    // SAFETY: the helper checks the address itself.
    let register = unsafe { bpf_probe_read_kernel(at as *const u64) };
    register.map_or(0, |register| register_value(word, register))
}

/// rdi, rsi, rdx, rcx, r8, r9.
#[inline(always)]
pub fn arguments(ctx: *mut c_void) -> [u64; 6] {
    let regs = ctx.cast::<pt_regs>();
    // SAFETY: the context of a uprobe program is a `pt_regs`.
    unsafe { [(*regs).rdi, (*regs).rsi, (*regs).rdx, (*regs).rcx, (*regs).r8, (*regs).r9] }
}
