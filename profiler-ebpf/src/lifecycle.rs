//! Births and deaths in the target's processes: raw tracepoints on fork, exec and exit.
//!
//! These run for every process of the machine, so the first thing is to look whether the process is a target. The
//! offsets of `pid` and `tgid` in `task_struct` come from the running kernel's BTF.

use crate::maps::{
    LIFECYCLE, TARGETS, TASK_PID_OFFSET, TASK_TGID_OFFSET, count_global, current_ids, now_ns, target_flags,
};
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use aya_log_ebpf::warn;
use profiler_common::event::{LifecycleKind, LifecycleRecord};
use profiler_common::settings::TARGET_ADOPT_CHILDREN;

/// `sched_process_fork(parent, child)`: a new thread, or a new process that inherits the breakpoints.
#[raw_tracepoint]
pub fn fork(ctx: RawTracePointContext) -> i32 {
    let (pid, tid) = current_ids();
    let Some(flags) = target_flags(pid) else { return 0 };
    let task: u64 = ctx.arg(1);
    // SAFETY: the helper checks the addresses itself.
    let read = |offset: u32| unsafe { bpf_probe_read_kernel((task + u64::from(offset)) as *const u32) };
    let (Ok(child_tid), Ok(child_pid)) = (read(TASK_PID_OFFSET.load()), read(TASK_TGID_OFFSET.load())) else {
        count_global!(lifecycle_unread);
        warn!(&ctx, "cannot read the task that process {} forked", pid);
        return 0;
    };
    let kind = if child_pid == pid { LifecycleKind::ThreadBorn } else { LifecycleKind::Forked };
    if child_pid != pid && flags & TARGET_ADOPT_CHILDREN != 0 {
        // OK to ignore a full map: the record tells the agent, which watches the size of the target set.
        let _ = TARGETS.insert(child_pid, flags, 0);
    }
    emit(kind, pid, tid, child_pid, child_tid);
    0
}

/// `sched_process_exec(task, old_pid, bprm)`: the process has a new address space.
#[raw_tracepoint]
pub fn exec(_ctx: RawTracePointContext) -> i32 {
    let (pid, tid) = current_ids();
    if target_flags(pid).is_some() {
        emit(LifecycleKind::Execed, pid, tid, 0, 0);
    }
    0
}

/// `sched_process_exit(task)`: a thread ends. The process has ended when its last thread has.
#[raw_tracepoint]
pub fn exit_task(_ctx: RawTracePointContext) -> i32 {
    let (pid, tid) = current_ids();
    if target_flags(pid).is_some() {
        emit(LifecycleKind::ThreadExited, pid, tid, 0, 0);
    }
    0
}

#[inline(always)]
fn emit(kind: LifecycleKind, pid: u32, tid: u32, child_pid: u32, child_tid: u32) {
    match LIFECYCLE.reserve::<LifecycleRecord>(0) {
        Some(mut slot) => {
            slot.write(LifecycleRecord {
                time_ns: now_ns(),
                kind: kind as u32,
                pid,
                tid,
                child_pid,
                child_tid,
                reserved: 0,
            });
            // Wakes the reader if it has caught up.
            slot.submit(0);
        }
        None => count_global!(lifecycle_dropped),
    }
}
