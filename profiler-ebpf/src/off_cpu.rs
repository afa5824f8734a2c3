//! Time that the current thread has spent off CPU, without a look at context switches.
//!
//! The scheduler keeps two numbers of each thread that it sets when the thread gets a CPU: `sched_info.last_arrival`, the time of that
//! (`kernel/sched/stats.h`, `sched_info_arrive`), and `se.prev_sum_exec_runtime`, the CPU time that it had used until then
//! (`kernel/sched/fair.c`, `set_next_entity`). While a thread runs from arrival i to its departure both grow by the same, and while it
//! is away only the time does:
//!
//! ```text
//! off CPU between two moments = (A_2 - A_1) - (B_2 - B_1)      A: last arrival, B: CPU time before it, ns
//! ```
//!
//! Both are exact at any moment at which the thread runs, whichever CPU it is on, and cost two reads. Time that a hypervisor takes from a
//! running thread counts as off CPU. Only for the scheduling policies of the fair class: the others do not set the second number.

use crate::maps::{TASK_ARRIVAL_OFFSET, TASK_BEFORE_OFFSET, TASK_POLICY_OFFSET};
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::bpf_get_current_task;

/// `SCHED_NORMAL`, `SCHED_BATCH` and `SCHED_IDLE` (`include/uapi/linux/sched.h`), a bit each.
const FAIR: u32 = 1 << 0 | 1 << 3 | 1 << 5;

/// Time off CPU from any moment to now, ns, wrapping; `None`: the kernel does not say.
#[inline(always)]
pub fn so_far_ns() -> Option<u64> {
    let arrival = TASK_ARRIVAL_OFFSET.load();
    if arrival == 0 {
        return None;
    }
    // SAFETY: the helper has no preconditions.
    let task = unsafe { bpf_get_current_task() } as u64;
    // SAFETY: the helper checks the addresses itself.
    unsafe {
        let policy: u32 = bpf_probe_read_kernel((task + u64::from(TASK_POLICY_OFFSET.load())) as *const u32).ok()?;
        if policy > 5 || FAIR & (1 << policy) == 0 {
            return None;
        }
        let arrival_ns: u64 = bpf_probe_read_kernel((task + u64::from(arrival)) as *const u64).ok()?;
        let before_ns: u64 =
            bpf_probe_read_kernel((task + u64::from(TASK_BEFORE_OFFSET.load())) as *const u64).ok()?;
        Some(arrival_ns.wrapping_sub(before_ns))
    }
}
