//! Begins and ends of operations: functions, system calls, and tracepoints.
//!
//! All uprobe programs return 0: on kernels 6.6 to 6.12 another value removes the probe. A bound has a quota like any class:
//! what it turns away is no operation, and is counted as gated.

use crate::class::{Hit, count};
use crate::maps::{
    count_global, current_ids, now_ns, operation_control, operation_counters, operation_syscall, settings,
};
use crate::operation::{self, Begin, Finish};
use crate::registers::{argument, in_register};
use crate::storage::{End, charge_hit};
use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use core::ffi::c_void;
use profiler_common::class::NO_OPERATION;
use profiler_common::cookie::SLOT_UNKNOWN;
use profiler_common::operation::{MARKER_TRACEPOINT_ARGUMENT, MARKER_TRACEPOINT_BOUND, TRACEPOINT_ENDS};

/// The function that begins an operation.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn operation_begin(ctx: *mut c_void) -> u32 {
    let Some(hit) = Hit::find(ctx) else { return 0 };
    // SAFETY: a live map value; the agent may change it at any time.
    let (number, hit_cost_ns, first, next) = unsafe {
        let control = hit.control;
        ((*control).operation, (*control).hit_cost_ns, (*control).argument, (*control).argument_next)
    };
    if !hit.admit(ctx) {
        charge_hit(hit.control, hit.shared(ctx));
        return 0;
    }
    count!(hit.counters, kept, 1);
    let begin = Begin { operation: number, slot: hit.slot(ctx), hit_cost_ns, shared: hit.shared(ctx) };
    operation::begin(&begin, |k| match (first, k) {
        (0, _) => argument(ctx, k),
        // An operation whose begins say where their arguments lie has argument 0.
        (_, 0) => in_register(ctx, first),
        _ => in_register(ctx, next),
    });
    0
}

/// A way out of that function, or the function that ends the operation.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn operation_end(ctx: *mut c_void) -> u32 {
    let end_ns = now_ns();
    let Some(hit) = Hit::find(ctx) else { return 0 };
    // SAFETY: as above.
    let (number, return_cost_ns, own_cost_ns) =
        unsafe { ((*hit.control).operation, (*hit.control).return_cost_ns, (*hit.control).own_cost_ns) };
    let slot = if hit.cookie.slot_delta == SLOT_UNKNOWN { 0 } else { hit.slot(ctx) };
    let at = Some((hit.cookie.class, End::of(ctx, end_ns)));
    if operation::end(&Finish { operation: number, slot, end_ns, return_cost_ns, own_cost_ns, hit: at }) {
        count!(hit.counters, returns, 1);
    } else {
        count!(hit.counters, orphans, 1);
    }
    0
}

/// The function that ends an operation which another one began. It has a quota of its own.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn operation_end_function(ctx: *mut c_void) -> u32 {
    let end_ns = now_ns();
    let Some(hit) = Hit::find(ctx) else { return 0 };
    if !hit.admit(ctx) {
        charge_hit(hit.control, hit.shared(ctx));
        return 0;
    }
    count!(hit.counters, kept, 1);
    // SAFETY: as above.
    let (number, hit_cost_ns) = unsafe { ((*hit.control).operation, (*hit.control).hit_cost_ns) };
    let at = Some((hit.cookie.class, End::of(ctx, end_ns)));
    operation::end(&Finish {
        operation: number,
        slot: 0,
        end_ns,
        return_cost_ns: hit_cost_ns,
        own_cost_ns: 0,
        hit: at,
    });
    0
}

/// A begin that is no function.
#[inline(always)]
fn begins(operation: u32) -> Begin {
    Begin { operation, slot: 0, hit_cost_ns: 0, shared: None }
}

/// An end that is no function.
#[inline(always)]
fn ended(operation: u32, end_ns: u64) -> Finish {
    Finish { operation, slot: 0, end_ns, return_cost_ns: 0, own_cost_ns: 0, hit: None }
}

/// Fields of a word of `OPERATION_SYSCALLS`: number of an operation + 1, or 0.
const BEGINS_AT_EXIT: u32 = 0;
const ENDS_AT_EXIT: u32 = 8;
const BEGINS_AT_ENTRY: u32 = 16;

#[inline(always)]
fn bound(word: u32, shift: u32) -> u32 {
    match (word >> shift) & 0xff {
        0 => NO_OPERATION,
        number => number - 1,
    }
}

/// True for the process whose system calls bound operations. The others are counted, because they pay.
#[inline(always)]
fn is_target() -> bool {
    let Some(settings) = settings() else { return false };
    // SAFETY: a live map value; the agent may change it at any time.
    if current_ids().0 == unsafe { (*settings).operation_pid } {
        count_global!(operation_syscalls);
        return true;
    }
    count_global!(operation_syscalls_other);
    false
}

/// `sys_enter(regs, number)`: begin of an operation that is one system call.
#[raw_tracepoint]
pub fn operation_sys_enter(ctx: RawTracePointContext) -> i32 {
    let number: u64 = ctx.arg(1);
    // OK because numbers beyond the table have no operation.
    if !is_target() || number > 511 {
        return 0;
    }
    let operation = bound(operation_syscall(number as u32), BEGINS_AT_ENTRY);
    if operation != NO_OPERATION {
        operation::begin(&begins(operation), |_| 0);
    }
    0
}

/// `sys_exit(regs, result)`: ends first, so that one system call may end an operation and begin the next.
#[raw_tracepoint]
pub fn operation_sys_exit(ctx: RawTracePointContext) -> i32 {
    if !is_target() {
        return 0;
    }
    let end_ns = now_ns();
    let (regs, result): (u64, i64) = (ctx.arg(0), ctx.arg::<u64>(1) as i64);
    // The layout of `pt_regs` is that of ptrace: part of the ABI.
    let number_at = regs + core::mem::offset_of!(pt_regs, orig_rax) as u64;
    // SAFETY: the helper checks the address itself.
    let Ok(number) = (unsafe { bpf_probe_read_kernel(number_at as *const u64) }) else { return 0 };
    if number > 511 {
        return 0;
    }
    let word = operation_syscall(number as u32);
    if word == 0 {
        return 0;
    }
    let ends = bound(word, ENDS_AT_EXIT);
    if ends != NO_OPERATION {
        operation::end(&ended(ends, end_ns));
    }
    let begins = bound(word, BEGINS_AT_EXIT);
    // A call that failed (nothing to read yet) brought no request.
    if begins != NO_OPERATION && result >= 0 {
        operation::begin(&self::begins(begins), |_| 0);
    }
    0
}

/// Number of the operation that this copy of the program bounds, and `TRACEPOINT_ENDS`.
#[inline(always)]
fn tracepoint_bound() -> u32 {
    // SAFETY: not an address but the marker that the loader replaces; a constant call target is how helpers are called.
    let function: unsafe extern "C" fn() -> u64 =
        unsafe { core::mem::transmute(MARKER_TRACEPOINT_BOUND as usize) };
    // SAFETY: one instruction that sets the result. OK because the word has 9 bits.
    unsafe { function() as u32 }
}

/// The tracepoint's argument that names the class.
#[inline(always)]
fn tracepoint_argument(ctx: *mut c_void) -> u64 {
    // SAFETY: as above.
    let function: unsafe extern "C" fn(*mut c_void) -> u64 =
        unsafe { core::mem::transmute(MARKER_TRACEPOINT_ARGUMENT as usize) };
    // SAFETY: one instruction that reads from the context, which the verifier checks.
    unsafe { function(ctx) }
}

/// True for the process whose tracepoints bound the operation. The others are counted, because they pay.
#[inline(always)]
fn is_screened(operation: u32) -> bool {
    let (Some(settings), Some(control)) = (settings(), operation_control(operation)) else { return false };
    // SAFETY: a live map value that the agent wrote before it attached the tracepoint.
    let Some(counters) = operation_counters(unsafe { (*control).base_class }) else { return false };
    // SAFETY: a live map value.
    if current_ids().0 == unsafe { (*settings).operation_pid } {
        count!(counters, screened, 1);
        return true;
    }
    count!(counters, screened_other, 1);
    false
}

/// Any tracepoint: begin or end of an operation on the thread that runs, which in an interrupt is any.
#[raw_tracepoint]
pub fn operation_tracepoint(ctx: RawTracePointContext) -> i32 {
    let bound = tracepoint_bound();
    let operation = bound & (TRACEPOINT_ENDS - 1);
    if !is_screened(operation) {
        return 0;
    }
    if bound & TRACEPOINT_ENDS != 0 {
        operation::end(&ended(operation, now_ns()));
    } else {
        operation::begin(&begins(operation), |_| tracepoint_argument(ctx.as_ptr()));
    }
    0
}
