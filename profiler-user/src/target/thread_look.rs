//! One look at a thread: what it has used so far, and what it does now.

use super::Target;

/// What the kernel says of a thread. Times only grow; what runs or waits now is counted up to the last time at which it was added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadLook {
    /// When, ktime ns.
    pub at_ns: u64,
    /// Time on a CPU, ns.
    pub cpu_ns: u64,
    /// Time on a run queue, waiting for a CPU, ns.
    pub waited_ns: u64,
    /// How often it came to a CPU.
    pub arrivals: u64,
    /// It runs, or it could: `R`.
    pub is_runnable: bool,
    /// Page faults that needed no disk.
    pub minor_faults: u64,
    /// Page faults that needed one.
    pub major_faults: u64,
    /// Waits for block devices, ns; in steps of 10 ms, and 0 where `kernel.task_delayacct` is off.
    pub io_ns: u64,
}

impl Target {
    /// Looks at a thread. `None`: it is gone, or the kernel does not say (it has no `schedstat`). `at_ns`: now, ktime ns.
    ///
    /// # Cost
    /// Two files of `/proc`: some 10 us.
    #[must_use]
    pub fn look_at_thread(&self, tid: i32, at_ns: u64) -> Option<ThreadLook> {
        let [cpu_ns, waited_ns, arrivals] = self.proc.schedstat(tid).ok()?;
        // A first thread that has left stays for the others, and does nothing any more.
        let stat = self.proc.thread_stat(tid).ok().filter(|stat| !matches!(stat.state, b'Z' | b'X'))?;
        // SAFETY: asks for a constant.
        let per_s = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
        let [minor_faults, major_faults] = stat.faults;
        Some(ThreadLook {
            at_ns,
            cpu_ns,
            waited_ns,
            arrivals,
            is_runnable: stat.state == b'R',
            minor_faults,
            major_faults,
            io_ns: stat.io_ticks.unwrap_or(0) * (1_000_000_000 / per_s),
        })
    }

    /// The number of the system call that a thread waits in; below 0: it waits in none (a page fault, say). `None`: it runs, is gone, or may not be asked.
    ///
    /// # Cost
    /// A file of `/proc`: some 5 us.
    #[must_use]
    pub fn waits_in(&self, tid: i32) -> Option<i64> {
        self.proc.waits_in(tid).ok()?
    }

    /// Where the stack of a thread ends that does not run now. `None`: it runs, is gone, or may not be asked.
    #[must_use]
    pub fn stack_pointer(&self, tid: i32) -> Option<u64> {
        self.proc.stack_pointer(tid).ok()?
    }
}
