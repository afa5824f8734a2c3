//! The clock of every kernel record, and the turns of the loop.

use std::time::Duration;

/// Turn of the loop.
pub(super) const TURN: Duration = Duration::from_millis(10);
/// Time between two turns where nothing has to end on time: each turn wakes a CPU that the target could use.
pub(super) const QUIET_TURN: Duration = Duration::from_millis(25);

/// `CLOCK_MONOTONIC` in ns, the clock of every kernel record.
#[must_use]
pub(super) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    // OK because monotonic time since boot is positive and far below 2^64 ns.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time of the calling thread, ns. A system call: 0.3 us.
#[must_use]
pub(super) fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    // OK because CPU times are positive and far below 2^64 ns.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
