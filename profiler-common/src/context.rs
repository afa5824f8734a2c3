//! What the kernel has counted for a thread, as two readings of the same account: one where a recorded call begins, one where it ends.
//!
//! | of `task_struct` | what | needs |
//! |---|---|---|
//! | `sched_info.run_delay` | time on a run queue, waiting for a CPU, ns | `CONFIG_SCHED_INFO` |
//! | `delays->blkio_delay` | time in waits that the kernel marks as I/O (`in_iowait`), ns | `CONFIG_TASK_DELAY_ACCT`, and `kernel.task_delayacct` on when the thread was born |
//! | `ioac.rchar`, `ioac.wchar` | bytes that read and write system calls returned | `CONFIG_TASK_XACCT` |
//! | `min_flt`, `maj_flt` | page faults that were served without and with I/O | |
//!
//! Time off CPU is that of [`presence`](crate::presence). What is still running or waiting is in none of them; but a thread that reads its own
//! account runs.

use crate::presence::{OFF_CPU_UNKNOWN, Standing};
use crate::wire_type;

/// The kernel does not say.
pub const UNKNOWN: u64 = u64::MAX;
/// The same of a count of 32 bits.
pub const UNKNOWN_COUNT: u32 = u32::MAX;

/// The account of a thread at one moment, which is kept of calls that are open. A cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ThreadAccount {
    /// Where its time off CPU follows from.
    pub standing: Standing,
    /// `sched_info.run_delay`, ns, or [`UNKNOWN`].
    pub runnable_ns: u64,
    /// `delays->blkio_delay`, ns, or [`UNKNOWN`].
    pub io_wait_ns: u64,
    /// `ioac.rchar`, bytes, or [`UNKNOWN`].
    pub read_bytes: u64,
    /// `ioac.wchar`, bytes, or [`UNKNOWN`].
    pub written_bytes: u64,
    /// `min_flt`, low bits.
    pub minor_faults: u32,
    /// `maj_flt`, low bits.
    pub major_faults: u32,
}
wire_type!(ThreadAccount, size 64, align 8);

/// What lies between two accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CallContext {
    /// Time off CPU, ns, or [`UNKNOWN`].
    pub off_cpu_ns: u64,
    /// Part of it in which the thread waited for a CPU, ns, or [`UNKNOWN`].
    pub runnable_ns: u64,
    /// Part of it in which the thread waited for I/O, ns, or [`UNKNOWN`].
    pub io_wait_ns: u64,
    /// Bytes read, or [`UNKNOWN`].
    pub read_bytes: u64,
    /// Bytes written, or [`UNKNOWN`].
    pub written_bytes: u64,
    /// Page faults without I/O, or [`UNKNOWN_COUNT`].
    pub minor_faults: u32,
    /// Page faults with I/O, or [`UNKNOWN_COUNT`].
    pub major_faults: u32,
}
wire_type!(CallContext, size 48, align 8);

const _: () = assert!(OFF_CPU_UNKNOWN == UNKNOWN);

impl CallContext {
    /// Nothing is known.
    pub const NOTHING: Self = Self {
        off_cpu_ns: UNKNOWN,
        runnable_ns: UNKNOWN,
        io_wait_ns: UNKNOWN,
        read_bytes: UNKNOWN,
        written_bytes: UNKNOWN,
        minor_faults: UNKNOWN_COUNT,
        major_faults: UNKNOWN_COUNT,
    };

    /// From `begin` to `end` of a call. Between an account and the time stamp beside it the thread may lose its CPU: no time is longer than
    /// `duration_ns`.
    #[must_use]
    #[inline(always)]
    pub const fn between(begin: &ThreadAccount, end: &ThreadAccount, duration_ns: u64) -> Self {
        Self {
            off_cpu_ns: at_most(Standing::off_cpu_ns(&begin.standing, &end.standing), duration_ns),
            runnable_ns: at_most(grown(begin.runnable_ns, end.runnable_ns), duration_ns),
            io_wait_ns: at_most(grown(begin.io_wait_ns, end.io_wait_ns), duration_ns),
            read_bytes: grown(begin.read_bytes, end.read_bytes),
            written_bytes: grown(begin.written_bytes, end.written_bytes),
            minor_faults: end.minor_faults.wrapping_sub(begin.minor_faults),
            major_faults: end.major_faults.wrapping_sub(begin.major_faults),
        }
    }
}

/// What a number that only grows has grown by, or [`UNKNOWN`].
#[inline(always)]
const fn grown(begin: u64, end: u64) -> u64 {
    if begin == UNKNOWN || end == UNKNOWN { UNKNOWN } else { end.wrapping_sub(begin) }
}

/// That time, or the limit if it is longer; [`UNKNOWN`] stays.
#[inline(always)]
const fn at_most(time_ns: u64, limit_ns: u64) -> u64 {
    if time_ns != UNKNOWN && time_ns > limit_ns { limit_ns } else { time_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: ThreadAccount = ThreadAccount {
        standing: Standing { here_ns: 50, anywhere_ns: 70, cpu: 1 },
        runnable_ns: 1_000,
        io_wait_ns: 2_000,
        read_bytes: 3_000,
        written_bytes: 4_000,
        minor_faults: u32::MAX,
        major_faults: 7,
    };

    #[test]
    fn what_grew_between_two_accounts_is_the_calls() {
        let end = ThreadAccount {
            standing: Standing { here_ns: 950, ..BEGIN.standing },
            runnable_ns: 1_400,
            io_wait_ns: 2_300,
            read_bytes: 3_010,
            written_bytes: 4_020,
            minor_faults: 2,
            major_faults: 9,
        };
        let expected = CallContext {
            off_cpu_ns: 900,
            runnable_ns: 400,
            io_wait_ns: 300,
            read_bytes: 10,
            written_bytes: 20,
            minor_faults: 3,
            major_faults: 2,
        };
        assert_eq!(CallContext::between(&BEGIN, &end, 10_000), expected);
        let short = CallContext::between(&BEGIN, &end, 350);
        assert_eq!((short.off_cpu_ns, short.runnable_ns, short.io_wait_ns), (350, 350, 300));
        assert_eq!((short.read_bytes, short.written_bytes), (10, 20), "bytes are no time");
    }

    #[test]
    fn what_the_kernel_does_not_keep_stays_unknown() {
        let nothing = ThreadAccount {
            standing: Standing::UNKNOWN,
            runnable_ns: UNKNOWN,
            io_wait_ns: UNKNOWN,
            read_bytes: UNKNOWN,
            written_bytes: UNKNOWN,
            ..BEGIN
        };
        for (begin, end) in [(nothing, nothing), (BEGIN, nothing), (nothing, BEGIN)] {
            let unknown = CallContext { minor_faults: 0, major_faults: 0, ..CallContext::NOTHING };
            assert_eq!(CallContext::between(&begin, &end, 10), unknown);
        }
    }
}
