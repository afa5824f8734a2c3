//! `sample`: one periodic observation of a running thread, with a copy of the top of its stack.
//!
//! Copying the stack for unwinding in user space costs the target less than walking it in the kernel. The copy goes
//! page by page up the stack and stops at the first that cannot be read, so a thread near the base of its stack
//! yields what there is. In the copy, the return addresses that return links have replaced are put back.

use crate::maps::{NO_WAKEUP, SAMPLES, count_global, current_ids, now_ns, settings, target_flags};
use crate::returns;
use crate::storage::charge_sample;
use aya_ebpf::bindings::{bpf_perf_event_data, pt_regs};
use aya_ebpf::helpers::generated::{
    bpf_get_current_task_btf, bpf_get_smp_processor_id, bpf_probe_read_kernel, bpf_probe_read_user,
    bpf_task_pt_regs,
};
use aya_ebpf::macros::perf_event;
use aya_ebpf::programs::PerfEventContext;
use core::ffi::c_void;
use core::mem::size_of;
use profiler_common::event::{SAMPLE_IN_KERNEL, SAMPLE_NO_REGISTERS, SampleHeader};

const PAGE: u64 = 4096;

#[repr(C)]
struct SampleRecord<const STACK: usize> {
    header: SampleHeader,
    stack: [u8; STACK],
}

/// Does nothing: the price of the interrupt alone, for calibration and benchmarks.
#[perf_event]
pub fn sample_empty(_ctx: PerfEventContext) -> u32 {
    0
}

/// Observes the current thread, if its process is a target.
#[perf_event]
pub fn sample(ctx: PerfEventContext) -> u32 {
    count_global!(samples_attempted);
    let (pid, tid) = current_ids();
    if target_flags(pid).is_none() {
        count_global!(samples_other);
        return 0;
    }
    let Some(settings) = settings() else { return 0 };
    // SAFETY: a live map value; the agent may change it at any time.
    let (asked, cost_ns, period_ns) =
        unsafe { ((*settings).stack_bytes, (*settings).sample_cost_ns, (*settings).sample_period_ns) };
    charge_sample(cost_ns);
    let mut header = observe(ctx.ctx, pid, tid);
    header.stack_asked = asked;
    if period_ns != 0 {
        header.period_ns = period_ns;
    }
    // The sizes of `STACK_SIZES`: the verifier wants constants.
    match asked {
        16384 => emit::<16384>(header),
        8192 => emit::<8192>(header),
        4096 => emit::<4096>(header),
        2048 => emit::<2048>(header),
        _ => emit::<0>(header),
    }
    0
}

#[inline(always)]
fn observe(data: *const bpf_perf_event_data, pid: u32, tid: u32) -> SampleHeader {
    // SAFETY: the context of a perf event program.
    let (ip, sp, bp, period_ns) =
        unsafe { ((*data).regs.rip, (*data).regs.rsp, (*data).regs.rbp, (*data).sample_period) };
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() as u32 };
    let mut header = SampleHeader {
        time_ns: now_ns(),
        ip,
        sp,
        bp,
        kernel_ip: 0,
        period_ns,
        pid,
        tid,
        cpu,
        flags: 0,
        stack_bytes: 0,
        stack_asked: 0,
    };
    // Addresses in the upper half are the kernel's: the registers are, too. The user's lie at the base of the task's
    // kernel stack, in the layout that ptrace exposes (asm/ptrace.h: part of the ABI).
    if ip >> 63 != 0 {
        header.kernel_ip = ip;
        header.flags = SAMPLE_IN_KERNEL;
        let mut user = core::mem::MaybeUninit::<pt_regs>::uninit();
        // SAFETY: the helpers check the addresses themselves.
        let failed = unsafe {
            bpf_probe_read_kernel(
                user.as_mut_ptr().cast::<c_void>(),
                size_of::<pt_regs>() as u32,
                bpf_task_pt_regs(bpf_get_current_task_btf()) as *const c_void,
            )
        };
        if failed == 0 {
            // SAFETY: filled just now.
            let user = unsafe { user.assume_init_ref() };
            header.ip = user.rip;
            header.sp = user.rsp;
            header.bp = user.rbp;
        } else {
            header.ip = 0;
            header.sp = 0;
            header.bp = 0;
            header.flags |= SAMPLE_NO_REGISTERS;
        }
        count_global!(samples_in_kernel);
    }
    header
}

#[inline(always)]
fn emit<const STACK: usize>(header: SampleHeader) {
    let Some(mut slot) = SAMPLES.reserve::<SampleRecord<STACK>>(0) else {
        count_global!(samples_dropped);
        return;
    };
    let record = slot.as_mut_ptr();
    // SAFETY: reserved just now.
    unsafe { (*record).header = header };
    if STACK > 0 {
        // SAFETY: as above.
        let stack = unsafe { &raw mut (*record).stack }.cast::<c_void>();
        let copied = copy_stack::<STACK>(stack, header.sp);
        // SAFETY: as above.
        unsafe { (*record).header.stack_bytes = copied };
        if copied == 0 {
            count_global!(samples_no_stack);
        } else if u64::from(copied) + PAGE <= STACK as u64 {
            count_global!(samples_short_stack);
        }
        // Last, where the verifier need not tell the lengths of the copy apart.
        returns::restore_returns::<STACK>(stack, header.sp);
    }
    slot.submit(NO_WAKEUP);
    count_global!(samples_kept);
}

/// Copies the stack from `sp` up to the end of its page, then whole pages as long as they fit. Returns the bytes
/// copied, at most `STACK` and more than `STACK - 4096` if nothing failed.
#[inline(always)]
fn copy_stack<const STACK: usize>(to: *mut c_void, sp: u64) -> u32 {
    if STACK < PAGE as usize {
        // SAFETY: `to` has room for `STACK` bytes; the helper checks `sp` itself.
        let failed = unsafe { bpf_probe_read_user(to, STACK as u32, sp as *const c_void) };
        return if failed == 0 { STACK as u32 } else { 0 };
    }
    let first = PAGE - (sp & (PAGE - 1));
    // SAFETY: `first` is at most a page, and `STACK` at least one.
    if unsafe { bpf_probe_read_user(to, first as u32, sp as *const c_void) } != 0 {
        return 0;
    }
    let mut copied = first;
    for page in 1..(STACK as u64 / PAGE) {
        let offset = first + (page - 1) * PAGE;
        // SAFETY: `offset + PAGE <= page * PAGE + PAGE <= STACK`.
        let failed = unsafe {
            bpf_probe_read_user(to.add(offset as usize), PAGE as u32, (sp + offset) as *const c_void)
        };
        if failed != 0 {
            break;
        }
        copied = offset + PAGE;
    }
    copied as u32
}
