//! Calls that are open on the target's threads, read out of their task storage (map `THREADS`).
//!
//! A task storage map is looked up by a descriptor of the task. A descriptor of a thread that is not its process's first
//! needs `PIDFD_THREAD` (Linux 6.9); before that only the calls of first threads are found.

use super::Kernel;
use super::object::map_data;
use super::sys;
use profiler_common::step::StepMark;
use profiler_common::thread::{DEPTH, FREE, GENERATION, OPERATION_DEPTH, OpenOperation, ThreadState};
use profiler_core::class::ClassId;
use std::os::fd::AsFd;

/// A call that had begun and had not ended when it was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenCall {
    /// Class.
    pub class: ClassId,
    /// Thread.
    pub tid: i32,
    /// Begin, ktime ns.
    pub begin_ns: u64,
}

impl Kernel {
    /// The open calls of these threads that began under the present attachment of their class. Calls that threads begin and
    /// end while they are read may be missing or there; those of a class whose links are closed stand still. Threads that
    /// are gone, or have made no timed call, have none.
    ///
    /// # Cost
    /// Two system calls and a copy of 4 KB for each thread.
    #[must_use]
    pub fn open_calls(&self, tids: &[i32]) -> Vec<OpenCall> {
        let ebpf = self.ebpf();
        let Some(map) = ebpf.map("THREADS").and_then(map_data) else { return Vec::new() };
        let mut state = Box::new(empty());
        let mut open = Vec::new();
        for tid in tids {
            let Ok(task) = sys::thread_fd(*tid) else { continue };
            if sys::lookup_task_storage(map.fd().as_fd(), task.as_fd(), &mut *state).is_err() {
                continue;
            }
            open.extend(self.open_on(*tid, &state));
        }
        open
    }

    /// The operations that are open on these threads.
    ///
    /// # Cost
    /// As [`open_calls`](Self::open_calls).
    #[must_use]
    pub fn open_operations(&self, tids: &[i32]) -> Vec<(i32, OpenOperation)> {
        let ebpf = self.ebpf();
        let Some(map) = ebpf.map("THREADS").and_then(map_data) else { return Vec::new() };
        let mut state = Box::new(empty());
        let mut open = Vec::new();
        for tid in tids {
            let Ok(task) = sys::thread_fd(*tid) else { continue };
            if sys::lookup_task_storage(map.fd().as_fd(), task.as_fd(), &mut *state).is_err() {
                continue;
            }
            let used = state.operations.iter().take(state.operation_depth.min(OPERATION_DEPTH) as usize);
            open.extend(used.filter(|o| o.operation != FREE && o.begin_ns != 0).map(|o| (*tid, *o)));
        }
        open
    }

    fn open_on(&self, tid: i32, state: &ThreadState) -> Vec<OpenCall> {
        let frames = state.frames.iter().take(state.depth.min(DEPTH) as usize);
        let live =
            frames.filter(|f| f.class != FREE && f.class < self.classes.max_classes() && f.begin_ns != 0);
        live.filter(|f| f.generation & GENERATION == self.classes.control(ClassId(f.class)).generation)
            .map(|f| OpenCall { class: ClassId(f.class), tid, begin_ns: f.begin_ns })
            .collect()
    }
}

pub(super) fn empty() -> ThreadState {
    use profiler_common::presence::Presence;
    use profiler_common::thread::{CallFrame, Trap};
    let frame = CallFrame {
        slot: 0,
        return_address: 0,
        begin_ns: 0,
        cost_ns: 0,
        class: FREE,
        generation: 0,
        inner_ns: 0,
    };
    let operation = OpenOperation {
        slot: 0,
        begin_ns: 0,
        cost_ns: 0,
        calls: 0,
        inner_ns: 0,
        measure: 0,
        cycle: 0,
        stretch: 0,
        presence: Presence::default(),
        operation: FREE,
        class: 0,
        flags: 0,
        generation: 0,
        steps: StepMark::default(),
    };
    ThreadState {
        cost_ns: 0,
        depth: 0,
        pending: 0,
        scratch: 0,
        recording: 0,
        operation_depth: 0,
        steps_lost: 0,
        calls: 0,
        inner_ns: 0,
        measure: 0,
        frames: [frame; DEPTH as usize],
        operations: [operation; OPERATION_DEPTH as usize],
        sample_cost_ns: 0,
        trap: Trap::default(),
        steps: 0,
    }
}
