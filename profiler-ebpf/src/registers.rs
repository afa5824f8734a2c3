//! Arguments of the call that a uprobe hit, by the registers of its context.

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use core::ffi::c_void;
use profiler_common::class::{register_offset, register_value};

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
