//! The machine: kernel, capabilities, limits.

use super::{Requirement, RequirementState};
use crate::calibrate::{FormsHere, known_rules};
use crate::inspect::host::kernel_version;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde::Serialize;
use std::fs;
use std::path::Path;

/// What was found on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostReport {
    /// All requirements, in the order they matter.
    pub requirements: Vec<Requirement>,
}

impl HostReport {
    /// Whether `tithe record` can run at all.
    #[must_use]
    pub fn usable(&self) -> bool {
        self.requirements.iter().all(|r| r.ok != RequirementState::Missing)
    }
}

/// Looks at this host. `tier` is what the capability probe of the kernel found, in words with its letter first (`"A
/// (session links)"`); `None` when it was not run.
#[must_use]
pub fn check_host(tier: Option<&str>) -> HostReport {
    let capabilities = effective_capabilities();
    let mut requirements = vec![machine(), kernel(), tier_of(tier)];
    requirements.extend(capability_checks(capabilities));
    requirements.push(forms(tier));
    requirements.extend([
        lockdown(),
        btf(),
        jit(),
        paranoid(capabilities),
        fifo(),
        grace_periods(
            read("/sys/kernel/rcu_expedited").as_deref(),
            read("/sys/kernel/rcu_normal").as_deref(),
        ),
        memlock(capabilities),
        thread_descriptors(),
        io_waits(read("/proc/sys/kernel/task_delayacct").as_deref()),
        tracefs(),
        pid_namespace(),
    ]);
    HostReport { requirements }
}

fn requirement(name: &'static str, found: impl Into<String>, needed_for: &'static str) -> Requirement {
    Requirement { name, found: found.into(), needed_for, remedy: None, ok: RequirementState::Ok }
}

impl Requirement {
    fn unless(mut self, met: bool, otherwise: RequirementState, remedy: impl Into<String>) -> Self {
        if !met {
            self.ok = otherwise;
            self.remedy = Some(remedy.into());
        }
        self
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_owned())
}

fn machine() -> Requirement {
    let arch = std::env::consts::ARCH;
    requirement("machine", arch, "choosing sites by decoding instructions").unless(
        arch == "x86_64",
        RequirementState::Missing,
        "run Tithe on an x86-64 host",
    )
}

fn kernel() -> Requirement {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    let version = kernel_version();
    let all =
        requirement("kernel", release, "links of many functions at once (6.6), with a PID filter (6.10)");
    if version < (5, 15) {
        return all.unless(false, RequirementState::Missing, "use Linux 5.15 or later");
    }
    all.unless(
        version >= (6, 10),
        RequirementState::Limited,
        "Linux 6.10 or later traces many functions cheaply; the capability tier says what this one can do",
    )
}

fn tier_of(tier: Option<&str>) -> Requirement {
    let needed_for =
        "tracing many functions at once, in bursts, and stopping them within microseconds (tiers A and B)";
    let Some(text) = tier else {
        return requirement("capability tier", "not probed", needed_for).unless(
            false,
            RequirementState::Limited,
            "run `sudo tithe doctor`: the probe needs to load programs",
        );
    };
    let meaning = match text.as_bytes().first() {
        Some(b'C') => {
            "other processes that run the same code pay for the hits, so functions of shared libraries are traced \
             only when they are named; use Linux 6.10 or later"
        }
        Some(b'D') => {
            "at most 8 functions are traced at once and none in bursts, and taking one off lasts 0.1 to 0.3 s; \
             functions inside operations stay attached, and everything else is sampled as usual; use Linux 6.10 or later"
        }
        _ => "use Linux 6.10 or later",
    };
    requirement("capability tier", text, needed_for).unless(
        text.starts_with(['A', 'B']),
        if text.starts_with("none") { RequirementState::Missing } else { RequirementState::Limited },
        meaning,
    )
}

/// Tried on ourselves: `PIDFD_THREAD` is refused where the kernel does not know it (Linux 6.9 brought it).
fn thread_descriptors() -> Requirement {
    // OK because the constant is positive.
    let thread = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());
    thread_descriptors_are(pidfd_open(getpid(), thread).is_ok())
}

pub(super) fn thread_descriptors_are(there: bool) -> Requirement {
    requirement(
        "thread descriptors",
        if there { "yes" } else { "no" },
        "how long a call has taken that a window's end cuts off, in any thread",
    )
    .unless(
        there,
        RequirementState::Limited,
        "only those of a process's first thread are known; the others count as lost; use Linux 6.9 or later",
    )
}

/// `kept`: `kernel.task_delayacct`; `None`: the kernel has no such setting.
pub(super) fn io_waits(kept: Option<&str>) -> Requirement {
    requirement(
        "waits for disks",
        match kept {
            Some("0") => "not counted",
            Some(_) => "counted",
            None => "unknown (no kernel.task_delayacct)",
        },
        "telling waits for a disk from locks and sleeps, in calls that took long",
    )
    .unless(
        kept != Some("0"),
        RequirementState::Limited,
        "both are told as 'off CPU, blocked'; count them: `sudo sysctl kernel.task_delayacct=1`",
    )
}

/// Instructions that may be probed.
fn forms(tier: Option<&str>) -> Requirement {
    let (rules, here) = known_rules();
    let dropped: Vec<String> = rules.forms.dropped().iter().map(ToString::to_string).collect();
    let single_links = tier.is_some_and(|tier| tier.starts_with('D'));
    forms_of(rules.forms.len(), here, &dropped, single_links)
}

/// How many forms that differ here are named.
const NAMED: usize = 10;

pub(super) fn forms_of(
    accepted: usize,
    here: FormsHere,
    dropped: &[String],
    single_links: bool,
) -> Requirement {
    let of = |found: String| {
        requirement("instruction forms", found, "probing only what does the same under a probe")
    };
    match here {
        FormsHere::Proven => of(format!("{accepted}, proven on this kernel")),
        FormsHere::RunAgain if dropped.is_empty() => {
            of(format!("{accepted}, run again on this kernel: all agree"))
        }
        FormsHere::RunAgain => {
            let named = dropped.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
            let more = if dropped.len() > NAMED { ", and more" } else { "" };
            of(format!(
                "{accepted}, run again on this kernel; {} differ and are not probed: {named}{more}",
                dropped.len()
            ))
            .unless(
                false,
                RequirementState::Limited,
                "functions that begin with those have a site further on, or none",
            )
        }
        FormsHere::Failed(why) => of(format!(
            "{accepted}, those that every x86-64 CPU has; running the others here failed: {why}"
        ))
        .unless(
            false,
            RequirementState::Limited,
            "functions that begin with others have a site further on, or none; the next `tithe record` or `sudo tithe calibrate` \
             tries again",
        ),
        FormsHere::Unknown => of(format!(
            "{accepted}, those that every x86-64 CPU has; not run on this kernel and CPU"
        ))
        .unless(
            false,
            RequirementState::Limited,
            if single_links {
                "functions that begin with others have a site further on, or none: running all beforehand needs links of \
                 many sites (Linux 6.6 or later)"
            } else {
                "`sudo tithe calibrate` runs the others here; the first `tithe record` does it, too"
            },
        ),
    }
}

/// Bits of `CapEff` (include/uapi/linux/capability.h).
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_NICE: u32 = 23;
const CAP_SYS_RESOURCE: u32 = 24;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

fn effective_capabilities() -> u64 {
    read("/proc/self/status")
        .and_then(|t| {
            let line = t.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        })
        .unwrap_or(0)
}

fn has(capabilities: u64, bit: u32) -> bool {
    capabilities >> bit & 1 == 1
}

fn capability_checks(capabilities: u64) -> Vec<Requirement> {
    // CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON (capabilities(7)).
    let admin = has(capabilities, CAP_SYS_ADMIN);
    let one = |name, bit, implied, needed_for, otherwise, remedy: &str| {
        let there = has(capabilities, bit) || implied && admin;
        requirement(name, if there { "yes" } else { "no" }, needed_for).unless(there, otherwise, remedy)
    };
    let sudo = "run as root: `sudo tithe …`";
    vec![
        one("CAP_BPF", CAP_BPF, true, "loading programs and maps", RequirementState::Missing, sudo),
        one(
            "CAP_PERFMON",
            CAP_PERFMON,
            true,
            "uprobes, sampling events, tracepoints",
            RequirementState::Missing,
            sudo,
        ),
        one(
            "CAP_SYS_PTRACE",
            CAP_SYS_PTRACE,
            false,
            "reading the memory and mappings of other users' processes",
            RequirementState::Limited,
            "run as root, or watch your own processes only",
        ),
        one(
            "CAP_SYS_RESOURCE",
            CAP_SYS_RESOURCE,
            false,
            "raising limits (locked memory, open files)",
            RequirementState::Limited,
            "raise them before: `ulimit -l unlimited -n 65536`",
        ),
        one(
            "CAP_SYS_NICE",
            CAP_SYS_NICE,
            false,
            "real-time priority of the governor",
            RequirementState::Limited,
            "run as root, or expect a slower breaker: quotas follow its measured reaction time",
        ),
    ]
}

fn lockdown() -> Requirement {
    // `[none] integrity confidentiality`: the active one stands in brackets.
    let text = read("/sys/kernel/security/lockdown").unwrap_or_default();
    let active = text.split_once('[').and_then(|(_, t)| t.split_once(']')).map_or("none", |(a, _)| a);
    requirement("kernel lockdown", active, "reading user memory from BPF programs").unless(
        active != "confidentiality",
        RequirementState::Missing,
        "boot with `lockdown=integrity` or less: confidentiality forbids BPF to read memory",
    )
}

fn btf() -> Requirement {
    let there = Path::new("/sys/kernel/btf/vmlinux").exists();
    requirement("kernel BTF", if there { "yes" } else { "no" }, "session links, typed tracepoints").unless(
        there,
        RequirementState::Limited,
        "use a kernel built with CONFIG_DEBUG_INFO_BTF=y; without it return links cost more",
    )
}

fn jit() -> Requirement {
    match read("/proc/sys/net/core/bpf_jit_enable").as_deref() {
        Some("0") => requirement("BPF JIT", "off", "cheap hits").unless(
            false,
            RequirementState::Limited,
            "turn it on: `sudo sysctl net.core.bpf_jit_enable=1`",
        ),
        Some(_) => requirement("BPF JIT", "on", "cheap hits"),
        // The file is absent where the kernel compiles always (CONFIG_BPF_JIT_ALWAYS_ON hides nothing, but some
        // containers mount no /proc/sys/net).
        None => requirement("BPF JIT", "unknown (no /proc/sys/net/core)", "cheap hits"),
    }
}

fn paranoid(capabilities: u64) -> Requirement {
    let text = read("/proc/sys/kernel/perf_event_paranoid");
    let level: i32 = text.as_deref().and_then(|t| t.parse().ok()).unwrap_or(i32::MAX);
    let exempt = has(capabilities, CAP_PERFMON) || has(capabilities, CAP_SYS_ADMIN);
    let found = text.unwrap_or_else(|| "no perf events in this kernel".into());
    let found =
        if exempt && level != i32::MAX { format!("{found} (does not bind us: CAP_PERFMON)") } else { found };
    requirement("perf_event_paranoid", found, "sampling").unless(
        level != i32::MAX && (exempt || level <= -1),
        RequirementState::Missing,
        "run as root, or `sudo sysctl kernel.perf_event_paranoid=-1`",
    )
}

/// Tries it, in a thread of its own that ends at once.
fn fifo() -> Requirement {
    let result = std::thread::spawn(|| {
        let priority = libc::sched_param { sched_priority: 1 };
        // SAFETY: pid 0 is the calling thread; the parameter outlives the call.
        let r = unsafe {
            libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const priority)
        };
        if r == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    })
    .join();
    let needed_for = "stopping an exploding class within microseconds while the machine is busy";
    match result {
        Ok(Ok(())) => requirement("SCHED_FIFO", "possible", needed_for),
        Ok(Err(e)) => {
            let group = read("/proc/self/cgroup")
                .and_then(|t| t.lines().find_map(|l| l.split_once(":cpu").map(|x| x.1.to_owned())))
                .and_then(|t| t.split_once(':').map(|x| x.1.to_owned()));
            let runtime = group
                .and_then(|g| read(&format!("/sys/fs/cgroup/cpu{g}/cpu.rt_runtime_us")))
                .filter(|r| r == "0");
            let why = if runtime.is_some() { " (cpu.rt_runtime_us of our cgroup is 0)" } else { "" };
            requirement("SCHED_FIFO", format!("refused: {e}{why}"), needed_for).unless(
                false,
                RequirementState::Limited,
                "run as root and outside cpu cgroups without real-time share; nice -20 is used instead",
            )
        }
        Err(_) => requirement("SCHED_FIFO", "could not be tried", needed_for).unless(
            false,
            RequirementState::Limited,
            "nice -20 is used instead",
        ),
    }
}

/// The kernel's switches for RCU (`Documentation/admin-guide/kernel-parameters.txt`: `rcu_expedited`, `rcu_normal`).
pub(super) fn grace_periods(expedited: Option<&str>, normal: Option<&str>) -> Requirement {
    let of = |found| {
        requirement("RCU grace periods", found, "taking an exploded function's breakpoint out at once")
    };
    match (expedited, normal) {
        (None, _) => of("no switch").unless(
            false,
            RequirementState::Limited,
            "nothing can be done on this kernel: such a breakpoint stays some milliseconds longer",
        ),
        (Some(_), Some(normal)) if normal != "0" => of("kept ordinary (rcu_normal)").unless(
            false,
            RequirementState::Limited,
            "such a breakpoint stays some milliseconds longer; if nobody needs it: `echo 0 | sudo tee /sys/kernel/rcu_normal`",
        ),
        (Some("0"), _) => of("ordinary; short for the milliseconds in which that happens"),
        (Some(_), _) => of("always short (rcu_expedited)").unless(
            false,
            RequirementState::Limited,
            "set by somebody, or left by an agent that was killed with its watchdog; each one interrupts every CPU: \
             `echo 0 | sudo tee /sys/kernel/rcu_expedited`",
        ),
    }
}

fn memlock(capabilities: u64) -> Requirement {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit to a live, properly typed place.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    let unlimited = got && limit.rlim_cur == libc::RLIM_INFINITY;
    let found = match (got, unlimited) {
        (false, _) => "unknown".to_owned(),
        (_, true) => "unlimited".to_owned(),
        _ => format!("{} KiB", limit.rlim_cur / 1024),
    };
    let exempt = has(capabilities, CAP_IPC_LOCK) || has(capabilities, CAP_SYS_RESOURCE);
    requirement("locked memory", found, "keeping governor and watchdog in memory; maps before Linux 5.11")
        .unless(
            unlimited || exempt || got && limit.rlim_cur >= 64 << 20,
            RequirementState::Limited,
            "`ulimit -l unlimited`, or run as root",
        )
}

fn tracefs() -> Requirement {
    let mounted = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"]
        .iter()
        .any(|p| Path::new(p).exists());
    let needed_for = "classic tracepoints only; functions and samples need it not";
    requirement("tracefs", if mounted { "mounted" } else { "not mounted" }, needed_for).unless(
        mounted,
        RequirementState::Limited,
        "`sudo mount -t tracefs nodev /sys/kernel/tracing`, if you want tracepoint classes",
    )
}

fn pid_namespace() -> Requirement {
    let nested = read("/proc/self/status").is_some_and(|t| {
        t.lines().find_map(|l| l.strip_prefix("NSpid:")).is_some_and(|l| l.split_whitespace().count() > 1)
    });
    let needed_for = "PIDs that mean the same to us and to the kernel";
    requirement("PID namespace", if nested { "a nested one" } else { "the host's" }, needed_for).unless(
        !nested,
        RequirementState::Limited,
        "run the agent on the host, or in a container with `--pid=host`",
    )
}
