//! How long a thread was off CPU between two moments at which it ran, from what the scheduler keeps of it.
//!
//! Read at both moments (`kernel/sched/`; all in ns):
//!
//! | | set | clock |
//! |---|---|---|
//! | `se.exec_start` e | whenever CPU time is accounted: at each arrival on a CPU, departure, tick | the CPU's `rq_clock_task` |
//! | `se.sum_exec_runtime` s | the same, but for arrivals, which add nothing | lengths of that clock |
//! | `sched_info.last_arrival` A | at each arrival after another task | `rq_clock`, the same on all CPUs |
//! | `se.prev_sum_exec_runtime` B | at each arrival, to s; fair class only | |
//!
//! ```text
//! same CPU:      off CPU = (e_2 - e_1) - (s_2 - s_1)
//! another CPU:   off CPU = (A_2 - A_1) - (B_2 - B_1)
//! ```
//! While the thread runs, both terms grow alike; while it is away, only the first does. On the same CPU it does not matter where the thread was
//! between, nor of which class it is. `rq_clock_task` stands still while interrupts or the hypervisor have *its* CPU, where the kernel accounts
//! that (`IRQ_TIME_ACCOUNTING`, `PARAVIRT_TIME_ACCOUNTING`). So the first row is short by what they took from that CPU between the two
//! moments, and e of two CPUs cannot be compared; there the second row is used. It has two errors: what interrupts and the hypervisor took since
//! the thread's last arrival counts as off CPU, and B is also set where a running thread is reniced, pinned or moved to another
//! group, which makes what it ran before that off CPU, too.

use crate::wire_type;

/// The kernel does not say.
pub const OFF_CPU_UNKNOWN: u64 = u64::MAX;

/// The scheduler's account of a thread, read while it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Presence {
    /// `se.exec_start`, ns.
    pub accounted_ns: u64,
    /// `se.sum_exec_runtime`, ns.
    pub used_ns: u64,
    /// `sched_info.last_arrival`, ns; 0: not known, or the class of the thread does not keep `before_ns`.
    pub arrival_ns: u64,
    /// `se.prev_sum_exec_runtime`, ns.
    pub before_ns: u64,
    /// CPU on which it runs.
    pub cpu: u64,
}
wire_type!(Presence, size 40, align 8);

/// What is left of an account for the formulas: each has its terms of one moment in one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Standing {
    /// e - s, ns, or [`OFF_CPU_UNKNOWN`]: comparable on one CPU.
    pub here_ns: u64,
    /// A - B, ns, or [`OFF_CPU_UNKNOWN`]: comparable on all.
    pub anywhere_ns: u64,
    /// CPU on which the thread runs.
    pub cpu: u64,
}
wire_type!(Standing, size 24, align 8);

impl Standing {
    /// The kernel does not say.
    pub const UNKNOWN: Self = Self { here_ns: OFF_CPU_UNKNOWN, anywhere_ns: OFF_CPU_UNKNOWN, cpu: 0 };

    /// Of an account.
    #[must_use]
    #[inline(always)]
    pub const fn of(presence: &Presence) -> Self {
        let anywhere_ns = if presence.arrival_ns != 0 {
            presence.arrival_ns.wrapping_sub(presence.before_ns)
        } else {
            OFF_CPU_UNKNOWN
        };
        Self { here_ns: presence.accounted_ns.wrapping_sub(presence.used_ns), anywhere_ns, cpu: presence.cpu }
    }

    /// Time off CPU from `begin` to `end`, ns, or [`OFF_CPU_UNKNOWN`].
    #[must_use]
    #[inline(always)]
    pub const fn off_cpu_ns(begin: &Self, end: &Self) -> u64 {
        let (from_ns, to_ns) = if begin.cpu == end.cpu {
            (begin.here_ns, end.here_ns)
        } else {
            (begin.anywhere_ns, end.anywhere_ns)
        };
        if from_ns == OFF_CPU_UNKNOWN || to_ns == OFF_CPU_UNKNOWN {
            return OFF_CPU_UNKNOWN;
        }
        let off_ns = to_ns.wrapping_sub(from_ns);
        // Clocks of two CPUs differ by little, but by something.
        if (off_ns as i64) < 0 { 0 } else { off_ns }
    }
}

/// Time off CPU from `begin` to `end`, ns, or [`OFF_CPU_UNKNOWN`].
#[must_use]
#[inline(always)]
pub const fn off_cpu_ns(begin: &Presence, end: &Presence) -> u64 {
    Standing::off_cpu_ns(&Standing::of(begin), &Standing::of(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(cpu: u64, accounted: u64, used: u64, arrival: u64, before: u64) -> Presence {
        Presence {
            accounted_ns: accounted * MS,
            used_ns: used * MS,
            arrival_ns: arrival * MS,
            before_ns: before * MS,
            cpu,
        }
    }

    #[test]
    fn a_thread_that_stays_was_not_away_however_long_it_runs() {
        // Ticks at 4 and 8 ms.
        assert_eq!(off_cpu_ns(&at(0, 104, 54, 100, 50), &at(0, 108, 58, 100, 50)), 0);
        // It was reniced while it ran: `before` moved alone.
        assert_eq!(off_cpu_ns(&at(0, 104, 54, 100, 50), &at(0, 108, 58, 100, 57)), 0);
    }

    #[test]
    fn on_the_same_cpu_what_the_hypervisor_took_of_a_wait_is_missing() {
        // It waits for 100 ms, in 60 of which the CPU is stolen and its clock stands still.
        assert_eq!(off_cpu_ns(&at(0, 104, 54, 100, 50), &at(0, 144, 54, 200, 54)), 40 * MS);
        // On another CPU they are in it.
        assert_eq!(off_cpu_ns(&at(0, 104, 54, 100, 54), &at(1, 900, 54, 200, 54)), 100 * MS);
    }

    #[test]
    fn waiting_counts_wherever_it_was_waited() {
        // It runs from 100 to 110, waits until 130; the tick at 104 is the last before the begin.
        let begin = at(0, 104, 54, 100, 50);
        assert_eq!(off_cpu_ns(&begin, &at(0, 134, 64, 130, 60)), 20 * MS);
        // It comes back on a CPU whose clock leaves out 3 s that the hypervisor took.
        let elsewhere = Presence { accounted_ns: 7, ..at(1, 0, 64, 130, 60) };
        assert_eq!(off_cpu_ns(&begin, &elsewhere), 20 * MS);
    }

    #[test]
    fn what_the_class_does_not_keep_is_not_made_up() {
        let begin = at(0, 104, 54, 0, 0);
        assert_eq!(off_cpu_ns(&begin, &at(1, 134, 64, 0, 0)), OFF_CPU_UNKNOWN);
        assert_eq!(off_cpu_ns(&begin, &at(1, 134, 64, 130, 60)), OFF_CPU_UNKNOWN);
        assert_eq!(off_cpu_ns(&begin, &at(0, 134, 64, 0, 0)), 20 * MS);
        assert_eq!(off_cpu_ns(&at(0, 104, 54, 100, 50), &at(0, 103, 54, 100, 50)), 0);
    }
}
