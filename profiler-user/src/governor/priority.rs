//! What a thread needs to react in time: a scheduling class, pages that are there, and a leash.

use std::hint::black_box;

/// How the governor's threads are scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// `SCHED_FIFO` 1: before every ordinary thread.
    RealTime,
    /// Real time was refused; nice -20: reactions take milliseconds on a busy machine.
    Nice,
    /// Both were refused: reactions take as long as the machine's load makes them.
    Ordinary,
}

impl Priority {
    /// The name shown to people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RealTime => "SCHED_FIFO 1",
            Self::Nice => "nice -20",
            Self::Ordinary => "ordinary",
        }
    }

    pub(super) fn code(self) -> u64 {
        match self {
            Self::Ordinary => 0,
            Self::Nice => 1,
            Self::RealTime => 2,
        }
    }

    pub(super) fn from_code(code: u64) -> Self {
        match code {
            2 => Self::RealTime,
            1 => Self::Nice,
            _ => Self::Ordinary,
        }
    }
}

/// A real-time thread of ours that runs for so long without sleeping is a bug, and it would freeze a CPU.
const REALTIME_LIMIT_US: libc::rlim_t = 50_000;

/// Give the calling thread the best scheduling that we may have. Threads and processes that it creates get the
/// ordinary one (reset on fork).
pub(super) fn raise() -> Priority {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 means the calling thread; the parameter is read only.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const param) }
        == 0
    {
        return Priority::RealTime;
    }
    // SAFETY: for PRIO_PROCESS Linux takes 0 as the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) } == 0 {
        return Priority::Nice;
    }
    Priority::Ordinary
}

/// The ordinary scheduling for a real-time thread, for work that may wait; [`raise`] ends it.
pub(super) fn lower() {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 means the calling thread; the parameter is read only. It needs no rights.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, &raw const param) };
}

/// Puts the calling thread, the agent's event loop, before the ordinary threads of its machine: nice -10, where that is
/// allowed. It needs little CPU time, but soon: among 200 busy threads a run of 4 s took 100, and a loop that does not turn
/// lets quotas run out and the watchdog lose its patience. Threads and processes that it creates get the ordinary
/// priority (reset on fork): a launched target too.
pub fn prefer_event_loop() {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 means the calling thread; the parameter is read only. Refused without CAP_SYS_NICE: then it is slower.
    unsafe {
        if libc::sched_setscheduler(0, libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, &raw const param) == 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, -10);
        }
    }
}

/// Put the leash on all real-time threads of this process (the limit is per process, the account per thread):
/// beyond 50 ms without sleeping the kernel kills the agent, and its links go with it. A limit that is lower
/// already stays.
pub(super) fn limit_realtime() {
    crate::target::remember_limits();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel reads and writes one rlimit, which is ours. Lowering needs no rights.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_RTTIME, &raw mut limit) == 0 {
            limit.rlim_max = limit.rlim_max.min(REALTIME_LIMIT_US);
            limit.rlim_cur = limit.rlim_cur.min(limit.rlim_max);
            libc::setrlimit(libc::RLIMIT_RTTIME, &raw const limit);
        }
    }
}

/// Keep every page of this process in memory once it has been touched, code, stacks and heap, so that the governor
/// never waits for a disk. Pages that are never touched are not brought in (`MCL_ONFAULT`). Whether it was done.
///
/// Only with `CAP_IPC_LOCK`: without it locked memory counts against a limit, and ordinary allocations would fail later.
/// Not inherited by children.
#[must_use]
pub fn lock_memory() -> bool {
    // SAFETY: changes paging only.
    may_lock() && unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) == 0 }
}

/// Ends [`lock_memory`]: nobody waits for the governor any more.
pub fn unlock_memory() {
    // SAFETY: changes paging only. It needs no rights, and changes nothing where nothing is locked.
    unsafe { libc::munlockall() };
}

fn may_lock() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
        .is_some_and(|effective| effective >> CAP_IPC_LOCK & 1 == 1)
}

/// Touch as much stack as the thread will ever use.
#[inline(never)]
pub(super) fn prefault_stack() {
    let mut pages = [0u8; super::closers::STACK_BYTES / 4];
    for page in pages.chunks_mut(4096) {
        page[0] = 1;
    }
    black_box(&mut pages);
}
