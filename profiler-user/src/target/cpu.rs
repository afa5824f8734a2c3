//! CPU time and context switches of the target, at a price that allows asking often.

use super::{Target, TargetError, gone_or};
use std::collections::HashMap;
use std::io;
use std::time::Instant;

/// include/linux/posix-timers_types.h
const CPUCLOCK_SCHED: i32 = 2;

impl Target {
    /// CPU time that the whole process has used since it started, ended threads included, ns.
    ///
    /// The process CPU clock of another process: clock id `(~pid << 3) | CPUCLOCK_SCHED`
    /// (include/linux/posix-timers_types.h). No file is read.
    ///
    /// The kernel brings a running thread's account up to date at the timer tick and at each switch, so the
    /// value may lag by one tick (1 to 10 ms) per running thread. Over windows of 100 ms and more that is
    /// below a few per cent, and it does not add up.
    ///
    /// # Errors
    /// [`TargetError::Exited`].
    ///
    /// # Cost
    /// Two system calls, below 1 us, plus some ns per thread.
    pub fn cpu_time_ns(&self) -> Result<u64, TargetError> {
        let clock = (!self.pid << 3) | CPUCLOCK_SCHED;
        let value = clock_ns(clock);
        // The clock goes by number: only while the pidfd says "alive" is the number surely our process.
        if !self.is_alive() {
            return Err(TargetError::Exited { pid: self.pid });
        }
        value.map_err(|source| TargetError::Io { pid: self.pid, what: "read the CPU clock", source })
    }

    /// The same of a child of ours that may have ended and was not waited for yet: its number is still its own.
    #[must_use]
    pub(crate) fn cpu_time_of_child_ns(&self) -> Option<u64> {
        clock_ns((!self.pid << 3) | CPUCLOCK_SCHED).ok()
    }

    /// CPU time that one thread has used, ns; may lag by one timer tick while it runs. `None` if the thread has
    /// ended.
    ///
    /// From `schedstat` (ns); on kernels built without it from `stat` (clock ticks, 10 ms).
    ///
    /// # Errors
    /// What the kernel said.
    ///
    /// # Cost
    /// Opens and reads one file, 2 to 4 us.
    pub fn thread_cpu_ns(&self, tid: i32) -> Result<Option<u64>, TargetError> {
        let ticks = || {
            // SAFETY: sysconf reads a constant.
            let hz = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
            self.proc.thread_stat(tid).map(|s| s.cpu_ticks * (1_000_000_000 / hz))
        };
        let read = match self.proc.schedstat(tid) {
            Ok([cpu_ns, _, _]) => Ok(cpu_ns),
            // Either the thread is gone, and then so is its stat, or the kernel has no schedstat.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => ticks(),
            // "0 0 0" is an own case: scheduler statistics switched off give zeros, stat does not.
            Err(e) => Err(e),
        };
        match read {
            Ok(0) => present(ticks()),
            other => present(other),
        }
        .map_err(|e| gone_or(self.pid, "read a thread's CPU time", e, false))
    }

    /// CPU time of one thread, ns, and how often it has been put on a CPU since it started. `None` if the thread has ended.
    ///
    /// # Errors
    /// What the kernel said.
    ///
    /// # Cost
    /// As [`Target::thread_cpu_ns`].
    pub fn thread_account(&self, tid: i32) -> Result<Option<(u64, u64)>, TargetError> {
        present(self.proc.schedstat(tid).map(|[cpu_ns, _, scheduled]| (cpu_ns, scheduled)))
            .map_err(|e| gone_or(self.pid, "read a thread's account", e, false))
    }
}

/// Counts the context switches of the whole target between two readings.
///
/// The price of a per-task sampling event is paid at each switch, so the planner wants switches per second.
/// Switches of threads that were born *and* ended between two readings are missed, as are those of an ended
/// thread after its last reading.
#[derive(Debug, Default)]
pub struct SwitchMeter {
    last: HashMap<i32, (u64, u64)>,
    last_at: Option<Instant>,
    used: HashMap<u32, ThreadUse>,
}

/// What one thread used between the last two readings of a [`SwitchMeter`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ThreadUse {
    /// CPU s/s.
    pub cpu_per_s: f64,
    /// Times per second that it was put on a CPU.
    pub switches_per_s: f64,
}

impl SwitchMeter {
    /// A meter that starts now: the first [`SwitchMeter::advance`] counts from here.
    ///
    /// # Errors
    /// As [`Target::threads`].
    pub fn new(target: &Target) -> Result<Self, TargetError> {
        let mut meter = Self::default();
        meter.advance(target)?;
        Ok(meter)
    }

    /// Switches since the last reading.
    ///
    /// # Errors
    /// As [`Target::threads`].
    ///
    /// # Cost
    /// About 4 us a thread: ask every second or less often.
    pub fn advance(&mut self, target: &Target) -> Result<u64, TargetError> {
        let mut now = HashMap::with_capacity(self.last.len() + 1);
        let mut switches = 0;
        let at = Instant::now();
        let elapsed_s = self.last_at.replace(at).map(|last| (at - last).as_secs_f64());
        self.used.clear();
        for tid in target.threads()? {
            if let Some((cpu_ns, count)) = target.thread_account(tid)? {
                // A new thread counts from its birth; a reused TID starts below the old one's count.
                let before = self.last.get(&tid).copied().filter(|(_, b)| *b <= count);
                switches += count - before.map_or(0, |(_, b)| b);
                if let (Some((cpu_before, count_before)), Some(s)) = (before, elapsed_s.filter(|s| *s > 0.0))
                {
                    let used = ThreadUse {
                        cpu_per_s: cpu_ns.saturating_sub(cpu_before) as f64 * 1e-9 / s,
                        switches_per_s: (count - count_before) as f64 / s,
                    };
                    // OK because thread ids are positive.
                    self.used.insert(tid as u32, used);
                }
                now.insert(tid, (cpu_ns, count));
            }
        }
        self.last = now;
        Ok(switches)
    }

    /// What a thread used between the last two readings. `None`: it is younger, or has ended.
    #[must_use]
    pub fn use_of(&self, tid: u32) -> Option<ThreadUse> {
        self.used.get(&tid).copied()
    }
}

/// An ended thread is an answer, not an error.
fn present<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// `clock_gettime`, ns.
fn clock_ns(clock: libc::clockid_t) -> io::Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which is ours.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // OK because CPU clocks are not negative.
    Ok(u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}
