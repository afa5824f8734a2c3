//! The process that is watched: attach to it, launch it, and ask the kernel about it.
//!
//! A [`Target`] is bound to one process for good: by a pidfd (is it still there?) and by an open directory
//! `/proc/PID` (the kernel answers `ESRCH` through it once that process is gone, also when its number is used
//! again), so a reused PID is never mistaken for the target.
//!
//! In: a PID ([`Target::attach`]) or a command ([`launch`](fn@launch)). Out: threads, CPU time, context
//! switches, identity (exe, command line, start time, user), and the end of the process.
//!
//! It does not follow forks, execs and new threads: those events come from the kernel programs (see
//! [`crate::prober`]). It never stops, signals or writes to a process that it did not launch.

mod cpu;
mod launch;
mod proc;
pub mod syscalls;
mod thread_look;
mod user;

pub use cpu::SwitchMeter;
pub use launch::{LaunchError, Suspended, launch, remember_limits};
pub use thread_look::ThreadLook;
pub use user::{LaunchUser, UserError};

use proc::ProcDir;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Why a process cannot be watched, or a question about it not be answered.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// No such process here.
    #[error(
        "no process {pid}: it has ended, or it lives in another PID namespace; list processes with 'ps -e'"
    )]
    Missing {
        /// The PID asked for.
        pid: i32,
    },
    /// The number of a thread that is not the first of its process.
    #[error("{pid} is a thread of process {tgid}: use --pid {tgid}")]
    Thread {
        /// The number asked for.
        pid: i32,
        /// The process that it belongs to.
        tgid: i32,
    },
    /// It has ended and waits for its parent to collect it.
    #[error(
        "process {pid} ({name}) is a zombie: it has ended and its parent {parent} has not collected it yet"
    )]
    Zombie {
        /// The PID asked for.
        pid: i32,
        /// Its name.
        name: String,
        /// Its parent.
        parent: i32,
    },
    /// A thread of the kernel: it has no user code.
    #[error("{pid} ({name}) is a kernel thread: it runs no program that could be traced")]
    KernelThread {
        /// The PID asked for.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// A process that we may not look into.
    #[error(
        "process {pid} belongs to user {uid} and we run as user {euid}: not permitted to look into it; run with sudo"
    )]
    OtherUser {
        /// The PID asked for.
        pid: i32,
        /// Its owner.
        uid: u32,
        /// Who we are.
        euid: u32,
    },
    /// Our own PID.
    #[error("process {pid} is this profiler itself: it cannot watch itself")]
    Ourselves {
        /// The PID asked for.
        pid: i32,
    },
    /// It ended while we looked.
    #[error("process {pid} has ended")]
    Exited {
        /// Its PID.
        pid: i32,
    },
    /// The kernel refused something that should work.
    #[error("cannot {what} of process {pid}: {source}")]
    Io {
        /// Its PID.
        pid: i32,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The process that is watched.
#[derive(Debug)]
pub struct Target {
    pid: i32,
    pidfd: OwnedFd,
    proc: ProcDir,
    start_ticks: u64,
}

impl Target {
    /// Bind to the running process `pid`. Leaves no trace in it.
    ///
    /// # Errors
    /// One variant per reason: missing, a thread's number, zombie, kernel thread, another user's, ourselves.
    pub fn attach(pid: i32) -> Result<Self, TargetError> {
        if pid <= 0 {
            return Err(TargetError::Missing { pid });
        }
        if u32::try_from(pid) == Ok(std::process::id()) {
            return Err(TargetError::Ourselves { pid });
        }
        let proc = ProcDir::open(pid).map_err(|e| gone_or(pid, "open /proc", e, true))?;
        let pidfd = match pidfd_open(pid) {
            Ok(fd) => fd,
            Err(error) => {
                // Not the first thread of its process: EINVAL, later kernels ENOENT.
                return match proc.status_field("Tgid") {
                    Ok(Some(tgid)) if tgid != i64::from(pid) => {
                        Err(TargetError::Thread { pid, tgid: i32::try_from(tgid).unwrap_or(0) })
                    }
                    _ => Err(gone_or(pid, "open a pidfd", error, true)),
                };
            }
        };
        let stat = proc.stat().map_err(|e| gone_or(pid, "read the state", e, true))?;
        if stat.state == b'Z' || stat.state == b'X' {
            return Err(TargetError::Zombie { pid, name: stat.name, parent: stat.parent });
        }
        if stat.is_kernel_thread() {
            return Err(TargetError::KernelThread { pid, name: stat.name });
        }
        if let Err(error) = proc.read_link(c"exe") {
            return Err(match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => TargetError::OtherUser {
                    pid,
                    uid: proc.owner().unwrap_or(u32::MAX),
                    euid: rustix::process::geteuid().as_raw(),
                },
                // A process without memory map that is no kernel thread is on its way out.
                _ => gone_or(pid, "read the program file", error, true),
            });
        }
        let target = Self { pid, pidfd, proc, start_ticks: stat.start_ticks };
        // The directory and the pidfd were opened one after the other: both must mean a process that is
        // still there now, and then they mean the same one.
        if target.proc.stat().map(|s| s.start_ticks).ok() != Some(target.start_ticks) || !target.is_alive() {
            return Err(TargetError::Missing { pid });
        }
        Ok(target)
    }

    /// Its PID in our PID namespace.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The pidfd: readable when the process has ended. For `tokio::io::unix::AsyncFd`, or use
    /// [`Target::exited`].
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether it still runs (a zombie does not). One system call.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !readable(self.pidfd.as_fd())
    }

    /// Wait for its end.
    ///
    /// # Errors
    /// Only if the runtime cannot watch the pidfd.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub async fn exited(&self) -> io::Result<()> {
        // A descriptor of its own, because epoll takes each one only once.
        let pidfd = self.pidfd.try_clone()?;
        // SAFETY: `watch` owns the descriptor, which stays open and the same until `watch` is dropped.
        let watch =
            unsafe { tokio::io::unix::AsyncFd::register_with_interest(pidfd, tokio::io::Interest::READABLE) }
                .map_err(io::Error::from)?;
        let _ready = watch.readable().await?;
        Ok(())
    }

    /// When it started, in clock ticks since boot (field 22 of `/proc/PID/stat`): with the PID, the name of
    /// this process that never repeats within a boot.
    #[must_use]
    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// The program file as the process sees it. Ends in ` (deleted)` when the file was removed or replaced:
    /// open [`Target::exe_link`] to read it all the same.
    ///
    /// # Errors
    /// [`TargetError::Exited`], or what the kernel said.
    pub fn exe(&self) -> Result<PathBuf, TargetError> {
        self.proc.read_link(c"exe").map_err(|e| gone_or(self.pid, "read the program file", e, false))
    }

    /// The path `/proc/PID/exe`, which opens the program file also when it was deleted or lives in another
    /// mount namespace.
    #[must_use]
    pub fn exe_link(&self) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join("exe")
    }

    /// Its command line, as the process shows it.
    ///
    /// # Errors
    /// [`TargetError::Exited`], or what the kernel said.
    pub fn cmdline(&self) -> Result<Vec<OsString>, TargetError> {
        let bytes =
            self.proc.read(c"cmdline").map_err(|e| gone_or(self.pid, "read the command line", e, false))?;
        let text = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
        Ok(text.split(|b| *b == 0).map(|a| OsString::from_vec(a.to_vec())).collect())
    }

    /// The user that it runs as (effective UID).
    ///
    /// # Errors
    /// [`TargetError::Exited`], or what the kernel said.
    pub fn uid(&self) -> Result<u32, TargetError> {
        self.proc.owner().map_err(|e| gone_or(self.pid, "read the owner", e, false))
    }

    /// Its threads' TIDs, in ascending order.
    ///
    /// # Errors
    /// [`TargetError::Exited`], or what the kernel said.
    ///
    /// # Cost
    /// Reads a directory: about 0.5 us a thread.
    pub fn threads(&self) -> Result<Vec<i32>, TargetError> {
        let mut tids = self.proc.tids().map_err(|e| gone_or(self.pid, "list the threads", e, false))?;
        if tids.is_empty() || !self.is_alive() {
            return Err(TargetError::Exited { pid: self.pid });
        }
        tids.sort_unstable();
        Ok(tids)
    }
}

impl AsFd for Target {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd()
    }
}

/// "No such process" means that it ended (or never was, while attaching); anything else is passed on.
fn gone_or(pid: i32, what: &'static str, source: io::Error, attaching: bool) -> TargetError {
    match source.raw_os_error() {
        Some(libc::ESRCH | libc::ENOENT) if attaching => TargetError::Missing { pid },
        Some(libc::ESRCH | libc::ENOENT) => TargetError::Exited { pid },
        _ => TargetError::Io { pid, what, source },
    }
}

/// A pidfd of `pid` (the first thread of a process), close-on-exec.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    pidfd_open_with(pid, PidfdFlags::empty())
}

/// A pidfd of `pid` with these flags, close-on-exec.
///
/// # Errors
/// The kernel's. EINVAL for numbers that no process has, as the kernel has it.
pub(crate) fn pidfd_open_with(pid: i32, flags: PidfdFlags) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid.max(0)).ok_or(Errno::INVAL)?;
    Ok(rustix::process::pidfd_open(pid, flags)?)
}

/// Whether `fd` is readable now.
fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests;
