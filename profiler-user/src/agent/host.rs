//! Facts about this host and this agent for `meta.json`.

use profiler_core::recording::AgentUse;
use std::time::{SystemTime, UNIX_EPOCH};

/// Host name, kernel release, CPUs online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Host name.
    pub name: String,
    /// `uname -r`.
    pub kernel: String,
    /// CPUs online.
    pub cpus: u32,
}

impl Host {
    /// Reads them.
    #[must_use]
    pub fn read() -> Self {
        let cpus =
            std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
        Self { name: line("/proc/sys/kernel/hostname"), kernel: line("/proc/sys/kernel/osrelease"), cpus }
    }
}

/// A line that the kernel says of itself; empty: it does not.
fn line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The kernel keeps for each thread how long it waited for block devices (kernel/delayacct.c), or does not say that it does not.
#[must_use]
pub fn keeps_io_waits() -> bool {
    line("/proc/sys/kernel/task_delayacct") != "0"
}

/// Now, ns since the Unix epoch; 0 if the clock stands before it.
#[must_use]
pub fn unix_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

/// CPU time and largest resident set of this process; `helpers_ns`: see [`helpers_cpu_ns`]. Reads a file: for the end of a run.
#[must_use]
pub fn agent_use(helpers_ns: u64) -> AgentUse {
    AgentUse { cpu_ns: agent_cpu_ns(helpers_ns), max_rss_bytes: peak_rss_bytes(), ..AgentUse::default() }
}

/// CPU time of this process with that of its helpers, ns.
#[must_use]
pub fn agent_cpu_ns(helpers_ns: u64) -> u64 {
    cpu_ns(&usage(libc::RUSAGE_SELF)) + helpers_ns
}

/// Largest resident set of this program so far, bytes; 0 if the kernel does not say. Not `ru_maxrss`: `execve` leaves that at the peak of whoever
/// launched us (`exec_mmap` in fs/exec.c), a supervisor of 2 GiB for one.
#[must_use]
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib =
        kib.and_then(|rest| rest.trim().strip_suffix("kB")).and_then(|kib| kib.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// CPU time of the processes that we started and waited for, ns. Ask before the command that is watched is waited for: it is
/// the target, and no part of the agent.
pub fn helpers_cpu_ns() -> u64 {
    cpu_ns(&usage(libc::RUSAGE_CHILDREN))
}

/// Gives what the allocator keeps of freed memory back to the kernel; of locked memory only what lies at the end of the heap. For the moments
/// after much has been freed: it looks through all that is free, some hundred us.
pub fn give_memory_back() {
    // SAFETY: changes nothing that is allocated.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// All zero if the kernel does not say.
fn usage(who: libc::c_int) -> libc::rusage {
    // SAFETY: all-zero is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a live rusage that the kernel fills.
    unsafe { libc::getrusage(who, &raw mut usage) };
    usage
}

fn cpu_ns(usage: &libc::rusage) -> u64 {
    // OK because times are not negative.
    let ns = |t: libc::timeval| (t.tv_sec as u64) * 1_000_000_000 + (t.tv_usec as u64) * 1_000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}
