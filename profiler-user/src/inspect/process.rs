//! `/proc/PID`: is it a process that can be inspected, and what does the kernel say about it?

use super::error::InspectError;
use crate::target_file::{OpenError, TargetFile};
use std::fs;
use std::io;
use std::path::PathBuf;

/// What `/proc/PID/status` says, as far as it matters here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// `Name`.
    pub name: String,
    /// `State`, first letter.
    pub state: char,
    /// `Tgid`.
    pub tgid: i32,
    /// `PPid`.
    pub parent: i32,
    /// Effective uid.
    pub uid: u32,
    /// `TracerPid`; 0 for none.
    pub tracer: i32,
    /// `Seccomp`: 0 off, 1 strict, 2 filter.
    pub seccomp: u32,
    /// `x86_Thread_features` names `shstk`: returns are checked against a second stack that only the CPU writes.
    pub shadow_stack: bool,
    /// `Threads`.
    pub threads: usize,
    /// `NSpid`: its ids in each nested PID namespace, outermost first.
    pub ns_pids: Vec<i32>,
    /// A kernel thread (`Kthread: 1`, or no memory map).
    pub kernel_thread: bool,
}

impl Status {
    /// Parses the text of `/proc/PID/status`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let field = |name: &str| {
            text.lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
                .unwrap_or_default()
        };
        let number = |name: &str| field(name).parse().unwrap_or(0);
        Self {
            name: field("Name").to_owned(),
            state: field("State").chars().next().unwrap_or('?'),
            tgid: number("Tgid"),
            parent: number("PPid"),
            uid: field("Uid").split_whitespace().nth(1).and_then(|u| u.parse().ok()).unwrap_or(0),
            tracer: number("TracerPid"),
            seccomp: field("Seccomp").parse().unwrap_or(0),
            shadow_stack: field("x86_Thread_features").split_whitespace().any(|f| f == "shstk"),
            threads: field("Threads").parse().unwrap_or(0),
            ns_pids: field("NSpid").split_whitespace().filter_map(|n| n.parse().ok()).collect(),
            // Linux 6.10 states it; before, a live process without VmSize has no memory of its own.
            kernel_thread: match field("Kthread") {
                "" => field("VmSize").is_empty(),
                flag => flag == "1",
            },
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// The process is gone, or `/proc` is not mounted.
    pub fn read(pid: i32) -> io::Result<Self> {
        fs::read_to_string(format!("/proc/{pid}/status")).map(|t| Self::parse(&t))
    }
}

/// Checks that a PID names a live 64-bit x86 process that we may read; returns its status and program.
///
/// # Errors
/// One variant of [`InspectError`] per cause.
pub fn check(pid: i32) -> Result<(Status, PathBuf), InspectError> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(InspectError::UnsupportedHost { arch: std::env::consts::ARCH });
    }
    let Ok(status) = Status::read(pid) else { return Err(InspectError::NoSuchProcess { pid }) };
    if pid <= 0 {
        return Err(InspectError::NoSuchProcess { pid });
    }
    if status.tgid != pid {
        return Err(InspectError::IsThread { tid: pid, pid: status.tgid });
    }
    if matches!(status.state, 'Z' | 'X' | 'x') {
        return Err(InspectError::Zombie { pid, name: status.name, parent: status.parent });
    }
    if status.kernel_thread {
        return Err(InspectError::KernelThread { pid, name: status.name });
    }
    let refused = |what: &str| InspectError::NotPermitted {
        pid,
        owner: status.uid,
        uid: rustix::process::geteuid().as_raw(),
        what: what.to_owned(),
    };
    let read = |what: &str, source: io::Error| match source.kind() {
        io::ErrorKind::PermissionDenied => refused(what),
        io::ErrorKind::NotFound => InspectError::Exited { pid, what: what.to_owned() },
        _ => InspectError::Read { path: PathBuf::from(what), source },
    };
    let link = format!("/proc/{pid}/exe");
    let exe = fs::read_link(&link).map_err(|e| read(&link, e))?;
    // e_ident and e_machine: 20 bytes.
    let mut head = [0_u8; 20];
    let file = match TargetFile::program(pid.cast_unsigned(), &exe) {
        Err(OpenError::System { source, .. }) => return Err(read(&link, source)),
        other => other?,
    };
    file.read_exact_at(&mut head, 0).map_err(|e| read(&link, e))?;
    let machine = u16::from_le_bytes([head[18], head[19]]);
    match (head[4], machine) {
        (2, 62) => {}
        // Class 1 is 32-bit; machine 3 is i386, 62 with class 1 the x32 ABI.
        (1, 3 | 62) => return Err(InspectError::ThirtyTwoBit { pid, exe }),
        _ => return Err(InspectError::ForeignMachine { pid, exe, machine }),
    }
    let maps = format!("/proc/{pid}/maps");
    fs::File::open(&maps).map_err(|e| read(&maps, e))?;
    Ok((status, exe))
}

/// The file name of the first word of the command line, as a process has it now; empty: it has none.
pub fn command(pid: i32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = words.split(|byte| matches!(byte, 0 | b' ')).next().unwrap_or_default();
    String::from_utf8_lossy(first.rsplit(|byte| *byte == b'/').next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_fields() {
        let text = "Name:\tsshd x\nState:\tS (sleeping)\nTgid:\t12\nPid:\t12\nPPid:\t1\nTracerPid:\t7\n\
            Uid:\t1000\t1001\t0\t0\nNSpid:\t12\t1\nKthread:\t0\nVmSize:\t 10 kB\nThreads:\t3\nSeccomp:\t2\n";
        let s = Status::parse(text);
        assert_eq!((s.name.as_str(), s.state, s.tgid, s.parent, s.tracer), ("sshd x", 'S', 12, 1, 7));
        assert_eq!(
            (s.uid, s.seccomp, s.threads, s.ns_pids, s.kernel_thread),
            (1001, 2, 3, vec![12, 1], false)
        );
        assert!(!s.shadow_stack);
        // As Linux 6.6 prints it (`fs/proc/array.c`, `arch/x86/kernel/cpu/proc.c`).
        let features =
            format!("{text}x86_Thread_features:\tshstk wrss \nx86_Thread_features_locked:\tshstk \n");
        assert!(Status::parse(&features).shadow_stack);
        let locked = format!("{text}x86_Thread_features:\t\nx86_Thread_features_locked:\tshstk \n");
        assert!(!Status::parse(&locked).shadow_stack);
        assert!(Status::parse("Name:\tkthreadd\nKthread:\t1\n").kernel_thread);
        assert!(Status::parse("Name:\tkthreadd\n").kernel_thread);
    }
}
