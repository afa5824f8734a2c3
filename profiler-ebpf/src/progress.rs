//! Progress metrics: how often the target enters each system call, or hits a tracepoint. Raw tracepoints.
//!
//! `sys_enter` runs at every system call of every process of the machine, so the first thing is to look whether the
//! process is the one that is wanted; the others are counted, because they pay. Nothing is read but the tracepoint's own
//! arguments.

use crate::atomic::add;
use crate::maps::{current_ids, progress_counters, settings};
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use profiler_common::settings::{PROGRESS_OTHERS, PROGRESS_SLOTS};

/// `sys_enter(regs, number)`: counts by number; those beyond the table share the last slot before `PROGRESS_OTHERS`.
#[raw_tracepoint]
pub fn progress_syscall(ctx: RawTracePointContext) -> i32 {
    let number: u64 = ctx.arg(1);
    bump(if number < PROGRESS_OTHERS as u64 { number as usize } else { PROGRESS_OTHERS - 1 });
    0
}

/// Any tracepoint: counts in slot 0.
#[raw_tracepoint]
pub fn progress_tracepoint(_ctx: RawTracePointContext) -> i32 {
    bump(0);
    0
}

#[inline(always)]
fn bump(slot: usize) {
    let (Some(settings), Some(counters)) = (settings(), progress_counters()) else { return };
    // SAFETY: a live map value; the agent may change it at any time.
    let wanted = unsafe { (*settings).progress_pid };
    let slot = if current_ids().0 == wanted { slot } else { PROGRESS_OTHERS };
    // SAFETY: the mask keeps the slot inside the array.
    add(unsafe { (&raw mut (*counters).counts).cast::<u64>().add(slot & (PROGRESS_SLOTS - 1)) }, 1);
}
