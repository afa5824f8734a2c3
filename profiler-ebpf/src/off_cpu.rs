//! What the scheduler keeps of the current thread, from which its time off CPU follows without a look at context switches
//! (`profiler_common::presence` has the formulas). Offsets come from the running kernel's BTF.

use crate::maps::{
    TASK_ARRIVAL_OFFSET, TASK_BEFORE_OFFSET, TASK_PRIO_OFFSET, TASK_STARTED_OFFSET, TASK_USED_OFFSET,
    current_ids, now_ns,
};
use crate::task::Task;
use aya_ebpf::helpers::generated::bpf_get_smp_processor_id;
use profiler_common::class::{Quota, RAN_KNOWN};
use profiler_common::presence::{Presence, off_cpu_ns};

/// Priorities below are of real-time and deadline threads, also of those that are lifted for a lock's sake (`include/linux/sched/prio.h`,
/// `MAX_RT_PRIO`).
const FAIR_PRIO: i32 = 100;

/// The account of the current thread; `None`: the kernel does not say.
#[inline(always)]
pub fn presence() -> Option<Presence> {
    presence_of(Task::current())
}

/// The same of a task that was asked for before.
#[inline(always)]
pub fn presence_of(task: Task) -> Option<Presence> {
    if TASK_STARTED_OFFSET.load() == 0 {
        return None;
    }
    // A tick between two reads would count up to its length as off CPU: then once more.
    let first = read(task);
    if task.word(TASK_STARTED_OFFSET.load()) == first.accounted_ns {
        return Some(first);
    }
    Some(read(task))
}

#[inline(always)]
fn read(task: Task) -> Presence {
    let accounted_ns = task.word(TASK_STARTED_OFFSET.load());
    let used_ns = task.word(TASK_USED_OFFSET.load());
    // SAFETY: the helper has no preconditions.
    let cpu = u64::from(unsafe { bpf_get_smp_processor_id() as u32 });
    let mut presence = Presence { accounted_ns, used_ns, arrival_ns: 0, before_ns: 0, cpu };
    let arrival = TASK_ARRIVAL_OFFSET.load();
    // An int.
    let prio = task.half(TASK_PRIO_OFFSET.load()) as i32;
    if arrival != 0 && prio >= FAIR_PRIO {
        presence.arrival_ns = task.word(arrival);
        presence.before_ns = task.word(TASK_BEFORE_OFFSET.load());
    }
    presence
}

/// For [`follow`]: the hit is not the last of its quota.
pub const NOT_LAST: u64 = 0;

/// A hit is let in, the last of its quota at `last_ns` (ktime). Keeps the account of the thread that takes the first, and how long it ran until
/// it takes the last one, on the same CPU.
#[inline(always)]
pub fn follow(quota: *mut Quota, last_ns: u64) {
    // SAFETY: a live map value.
    let first_ns = unsafe { (&raw const (*quota).first_ns).read_volatile() };
    if first_ns != 0 && (last_ns == NOT_LAST || first_ns == RAN_KNOWN) {
        return;
    }
    let Some(mut now) = presence() else { return };
    now.cpu |= u64::from(current_ids().1) << 32;
    if first_ns == 0 {
        // SAFETY: as above. Another thread may do the same: then neither takes both hits for its own, or the one that wrote last.
        unsafe {
            (*quota).first = now;
            (&raw mut (*quota).first_ns).write_volatile(now_ns());
        }
        return;
    }
    // SAFETY: as above.
    let first = unsafe { (*quota).first };
    // Between two CPUs what interrupts and the hypervisor took since the last arrival counts as off CPU, which may be more than the few
    // microseconds of a window.
    if first.cpu != now.cpu {
        return;
    }
    let passed_ns = last_ns.wrapping_sub(first_ns);
    let off_ns = off_cpu_ns(&first, &now);
    if off_ns < passed_ns {
        // SAFETY: as above.
        unsafe {
            (*quota).first.used_ns = passed_ns - off_ns;
            (&raw mut (*quota).first_ns).write_volatile(RAN_KNOWN);
        }
    }
}
