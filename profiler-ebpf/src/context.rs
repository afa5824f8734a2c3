//! The current thread's account at the begin and the end of a recorded call (`profiler_common::context`).

use crate::maps::{
    DELAYS_IO_OFFSET, TASK_DELAYS_OFFSET, TASK_MAJOR_FAULTS_OFFSET, TASK_MINOR_FAULTS_OFFSET,
    TASK_READ_OFFSET, TASK_RUNNABLE_OFFSET, TASK_WRITTEN_OFFSET,
};
use crate::off_cpu;
use crate::task::Task;
use profiler_common::context::{CallContext, ThreadAccount, UNKNOWN, UNKNOWN_COUNT};
use profiler_common::presence::Standing;

/// A field, or that the kernel has none.
#[inline(always)]
fn known(task: Task, offset: u32) -> u64 {
    if offset == 0 { UNKNOWN } else { task.word(offset) }
}

/// Where the account stands now.
#[inline(always)]
pub fn account() -> ThreadAccount {
    let task = Task::current();
    let mut io_wait_ns = UNKNOWN;
    if TASK_DELAYS_OFFSET.load() != 0
        && let Some(delay_ns) = task.behind(TASK_DELAYS_OFFSET.load(), DELAYS_IO_OFFSET.load())
    {
        io_wait_ns = delay_ns;
    }
    ThreadAccount {
        standing: off_cpu::presence_of(task).map_or(Standing::UNKNOWN, |presence| Standing::of(&presence)),
        runnable_ns: known(task, TASK_RUNNABLE_OFFSET.load()),
        io_wait_ns,
        read_bytes: known(task, TASK_READ_OFFSET.load()),
        written_bytes: known(task, TASK_WRITTEN_OFFSET.load()),
        // OK because the casts keep the low bits.
        minor_faults: known(task, TASK_MINOR_FAULTS_OFFSET.load()) as u32,
        major_faults: known(task, TASK_MAJOR_FAULTS_OFFSET.load()) as u32,
    }
}

/// What lies between an account and now.
#[inline(always)]
pub fn since(begin: &ThreadAccount, duration_ns: u64) -> CallContext {
    let mut context = CallContext::between(begin, &account(), duration_ns);
    if TASK_MINOR_FAULTS_OFFSET.load() == 0 {
        context.minor_faults = UNKNOWN_COUNT;
    }
    if TASK_MAJOR_FAULTS_OFFSET.load() == 0 {
        context.major_faults = UNKNOWN_COUNT;
    }
    context
}
