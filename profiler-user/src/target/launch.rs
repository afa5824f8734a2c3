//! Launching a target *suspended*: its program is loaded, and not one of its instructions has run.
//!
//! The child asks to be traced (`PTRACE_TRACEME`) before it execs, so the kernel stops it inside execve, after
//! the new program has been mapped. It is held there by ptrace and not by SIGSTOP, on purpose: with
//! `PTRACE_O_EXITKILL` the kernel ends the child if we die before it was let go, so nothing is left behind, and
//! no parent or job control sees a stopped process. Breakpoints and sampling events can be put on it meanwhile.
//!
//! ptrace belongs to one thread, so a thread of its own launches the child, holds it and lets it go. From then
//! on the child is an ordinary, untraced process.
//!
//! At the exec stop only the program and its loader are mapped. [`Suspended::run_to_entry`] lets the loader map
//! the libraries and stops again at the program's entry point, by a debug register: no byte of its text changes.
//! (The libraries' own constructors have then run.)

use super::{LaunchUser, Target, TargetError};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The loader maps libraries within milliseconds; half a minute allows for a slow network file system.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the caller is asked to show that it is alive meanwhile.
const ENTRY_LOOK: Duration = Duration::from_millis(50);

/// Why a program was not launched, or not let go.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The program cannot be executed.
    #[error("cannot run '{program}': {source}; check the name, the path and the execute permission")]
    Exec {
        /// The program asked for.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Changing to the user failed.
    #[error("cannot become user {uid} to run '{program}': {source}; pass --as-root to run it as root")]
    User {
        /// The program asked for.
        program: String,
        /// The user asked for.
        uid: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// ptrace is not allowed.
    #[error(
        "cannot hold '{program}' at its start: {what} failed: {source}; ptrace may be forbidden here (container, \
         kernel.yama.ptrace_scope = 3): start the program yourself and use --pid"
    )]
    Hold {
        /// The program asked for.
        program: String,
        /// Which step.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// It ended before it was let go.
    #[error("'{program}' ended before its first instruction ({status})")]
    Ended {
        /// The program asked for.
        program: String,
        /// How it ended, in words.
        status: String,
    },
    /// The loader did not reach the program's entry point.
    #[error("'{program}' did not reach its entry point within 30 s: its loader hangs (network file system?)")]
    EntryTimeout {
        /// The program asked for.
        program: String,
    },
    /// The new process cannot be watched.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// Resource limits that the agent changes for itself and that a launched program must not inherit.
const LIMITS: [libc::__rlimit_resource_t; 4] =
    [libc::RLIMIT_RTTIME, libc::RLIMIT_NOFILE, libc::RLIMIT_MEMLOCK, libc::RLIMIT_CORE];
static ORIGINAL_LIMITS: OnceLock<[libc::rlimit; 4]> = OnceLock::new();

/// Note our resource limits as they are now, so that launched programs get these and not what the agent sets
/// for itself later. Call it first thing in `main`; the first call counts.
pub fn remember_limits() {
    ORIGINAL_LIMITS.get_or_init(|| {
        LIMITS.map(|resource| {
            let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the kernel writes one rlimit, which is ours. It cannot fail for these resources.
            unsafe { libc::getrlimit(resource, &raw mut limit) };
            limit
        })
    });
}

/// A program that is loaded and held before its first instruction. Dropping it kills it.
#[derive(Debug)]
pub struct Suspended {
    target: Option<Target>,
    program: String,
    orders: Option<Sender<Order>>,
    replies: Receiver<Result<Option<Child>, LaunchError>>,
    holder: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Order {
    RunToEntry,
    Resume,
}

/// Launch `program` with `args`, found through `PATH`, held before its first instruction. It inherits our
/// standard input and outputs and the working directory. With `as_user` it runs with that user's rights,
/// groups, `HOME`, `USER` and `LOGNAME`, and without sudo's variables.
///
/// # Errors
/// The program cannot be executed, the user not be assumed, or ptrace is not allowed. No process is left.
pub fn launch(
    program: &OsStr,
    args: &[OsString],
    as_user: Option<&LaunchUser>,
) -> Result<Suspended, LaunchError> {
    let name = program.to_string_lossy().into_owned();
    let mut command = Command::new(program);
    command.args(args);
    if let Some(user) = as_user {
        command.env("HOME", &user.home).env("USER", &user.name).env("LOGNAME", &user.name);
        for variable in ["SUDO_UID", "SUDO_GID", "SUDO_USER", "SUDO_COMMAND"] {
            command.env_remove(variable);
        }
    }
    let credentials = as_user.map(|u| (u.uid, u.gid, u.groups.clone()));
    let limits = ORIGINAL_LIMITS.get();
    // SAFETY: the closure runs between fork and exec and makes only system calls: no allocation, no locks.
    unsafe { command.pre_exec(move || prepare_child(credentials.as_ref(), limits)) };

    let uid = as_user.map_or(0, |u| u.uid);
    let (orders, order_queue) = channel();
    let (reply, replies) = channel();
    let (ready, readiness) = channel();
    let thread_name = name.clone();
    let holder = std::thread::Builder::new()
        .name("tithe-launch".into())
        .spawn(move || {
            match start(&mut command, &thread_name, uid) {
                Ok((child, target)) => {
                    if ready.send(Ok(target)).is_ok() {
                        hold(child, &thread_name, &order_queue, &reply);
                    } else {
                        end(child);
                    }
                }
                // The receiver waits below; if it is gone, so is the need to tell it.
                Err(error) => drop(ready.send(Err(error))),
            }
        })
        .map_err(|source| LaunchError::Hold { program: name.clone(), what: "starting a thread", source })?;
    let target = readiness.recv().unwrap_or_else(|_| Err(broken(&name)))?;
    Ok(Suspended { target: Some(target), program: name, orders: Some(orders), replies, holder: Some(holder) })
}

impl Suspended {
    /// The process, to attach to while it is held.
    #[must_use]
    pub fn target(&self) -> &Target {
        // OK because only `resume`, which consumes self, and `drop` take it.
        self.target.as_ref().expect("held until resumed")
    }

    /// Let the loader map the libraries that the program is linked with, and hold again at the program's entry
    /// point. Blocks for the loader's run, typically 1 to 20 ms, and calls `while_waiting` now and then.
    ///
    /// # Errors
    /// The program ended, or no debug register is to be had: it is then *not* known to be held, so drop or
    /// resume it.
    pub fn run_to_entry(&mut self, mut while_waiting: impl FnMut()) -> Result<(), LaunchError> {
        self.order(Order::RunToEntry)?;
        let begun = Instant::now();
        loop {
            match self.replies.recv_timeout(ENTRY_LOOK) {
                Ok(reply) => return reply.map(drop),
                Err(RecvTimeoutError::Timeout) if begun.elapsed() < ENTRY_TIMEOUT => while_waiting(),
                Err(_) => return Err(LaunchError::EntryTimeout { program: self.program.clone() }),
            }
        }
    }

    /// Let it run, untraced. The [`Child`] is for collecting its exit status: the caller must wait for it.
    ///
    /// # Errors
    /// It ended, or ptrace failed; it is then killed.
    pub fn resume(mut self) -> Result<(Target, Child), LaunchError> {
        self.order(Order::Resume)?;
        let child = self.replies.recv().unwrap_or_else(|_| Err(broken(&self.program)))?;
        match (self.target.take(), child) {
            (Some(target), Some(child)) => Ok((target, child)),
            _ => Err(broken(&self.program)),
        }
    }

    fn order(&self, order: Order) -> Result<(), LaunchError> {
        let sent = self.orders.as_ref().is_some_and(|o| o.send(order).is_ok());
        if sent { Ok(()) } else { Err(broken(&self.program)) }
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        // Without an order the holder kills the child, if it still has it. A loader that hangs keeps the holder
        // in waitpid: kill through the pidfd as well.
        self.orders = None;
        if let Some(target) = &self.target {
            // Fails only if it is already gone.
            let _ = rustix::process::pidfd_send_signal(target.pidfd(), Signal::KILL);
        }
        if let Some(holder) = self.holder.take() {
            // A panic there has ended the child by EXITKILL; nothing to add.
            drop(holder.join());
        }
    }
}

fn broken(program: &str) -> LaunchError {
    LaunchError::Ended { program: program.to_owned(), status: "it is no longer held".into() }
}

/// Errors of these steps travel through the standard library's errno pipe, told apart by these offsets.
const STEP_USER: i32 = 0x1000;
const STEP_TRACE: i32 = 0x2000;

/// Runs in the child between fork and exec: system calls only.
fn prepare_child(
    credentials: Option<&(u32, u32, Vec<u32>)>,
    limits: Option<&[libc::rlimit; 4]>,
) -> io::Result<()> {
    let at = |step: i32| {
        io::Error::from_raw_os_error(step + io::Error::last_os_error().raw_os_error().unwrap_or(libc::EPERM))
    };
    if let Some(limits) = limits {
        for (resource, limit) in LIMITS.iter().zip(limits) {
            // SAFETY: reads one rlimit. Lowering always works; raising back needs the rights we had.
            unsafe { libc::setrlimit(*resource, limit) };
        }
    }
    if let Some((uid, gid, groups)) = credentials {
        // The raw system calls: the C library's wrappers would try to reach threads that fork left behind.
        // SAFETY: the group array is valid for its length; the others take integers.
        let failed = unsafe {
            libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) != 0
                || libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid) != 0
                || libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid) != 0
        };
        if failed {
            return Err(at(STEP_USER));
        }
    }
    // SAFETY: TRACEME ignores its arguments.
    if unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } != 0 {
        return Err(at(STEP_TRACE));
    }
    Ok(())
}

/// Spawn, and wait for the stop inside execve.
fn start(command: &mut Command, program: &str, uid: u32) -> Result<(Child, Target), LaunchError> {
    let name = || program.to_owned();
    let child = command.spawn().map_err(|error| match error.raw_os_error() {
        Some(e) if e >= STEP_TRACE => LaunchError::Hold {
            program: name(),
            what: "PTRACE_TRACEME",
            source: io::Error::from_raw_os_error(e - STEP_TRACE),
        },
        Some(e) if e >= STEP_USER => {
            LaunchError::User { program: name(), uid, source: io::Error::from_raw_os_error(e - STEP_USER) }
        }
        _ => LaunchError::Exec { program: name(), source: error },
    })?;
    let pid = pid_of(&child);
    let held = wait_stop(pid, program, |signal| signal == libc::SIGTRAP).and_then(|()| {
        let options = libc::PTRACE_O_EXITKILL;
        ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options as usize, program, "PTRACE_SETOPTIONS")?;
        Ok(Target::attach(pid)?)
    });
    match held {
        Ok(target) => Ok((child, target)),
        Err(error) => {
            end(child);
            Err(error)
        }
    }
}

/// The holder's loop: obeys orders until the child is let go, is gone, or nobody asks any more.
fn hold(
    child: Child,
    program: &str,
    orders: &Receiver<Order>,
    reply: &Sender<Result<Option<Child>, LaunchError>>,
) {
    let pid = pid_of(&child);
    while let Ok(order) = orders.recv() {
        match order {
            Order::RunToEntry => {
                let done = run_to_entry(pid, program).map(|()| None);
                if reply.send(done).is_err() {
                    break;
                }
            }
            Order::Resume => {
                match ptrace(libc::PTRACE_DETACH, pid, 0, 0, program, "PTRACE_DETACH") {
                    Ok(()) => drop(reply.send(Ok(Some(child)))),
                    Err(error) => {
                        end(child);
                        drop(reply.send(Err(error)));
                    }
                }
                return;
            }
        }
    }
    end(child);
}

/// Run from the exec stop to the entry point that the auxiliary vector names, with debug register 0.
fn run_to_entry(pid: i32, program: &str) -> Result<(), LaunchError> {
    let failed = |what: &'static str, source: io::Error| LaunchError::Hold {
        program: program.to_owned(),
        what,
        source,
    };
    let auxv = std::fs::read(format!("/proc/{pid}/auxv")).map_err(|e| failed("reading auxv", e))?;
    let entry = auxv_value(&auxv, libc::AT_ENTRY)
        .ok_or_else(|| failed("finding AT_ENTRY", io::ErrorKind::NotFound.into()))?;
    // struct user, u_debugreg (arch/x86/include/asm/user_64.h). DR7 = 1: register 0 on, this task, on execution.
    let register = |n: usize| std::mem::offset_of!(libc::user, u_debugreg) + 8 * n;
    ptrace(libc::PTRACE_POKEUSER, pid, register(0), entry, program, "setting a debug register")?;
    ptrace(libc::PTRACE_POKEUSER, pid, register(7), 1, program, "setting a debug register")?;
    ptrace(libc::PTRACE_CONT, pid, 0, 0, program, "PTRACE_CONT")?;
    let rip = std::mem::offset_of!(libc::user, regs) + std::mem::offset_of!(libc::user_regs_struct, rip);
    let at_entry = |signal: i32| {
        // SAFETY: PEEKUSER reads one word of the stopped child's saved registers.
        signal == libc::SIGTRAP
            && unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, pid, rip, 0) } as usize == entry
    };
    let stopped = wait_stop(pid, program, at_entry);
    if stopped.is_ok() {
        ptrace(libc::PTRACE_POKEUSER, pid, register(7), 0, program, "clearing a debug register")?;
        ptrace(libc::PTRACE_POKEUSER, pid, register(0), 0, program, "clearing a debug register")?;
    }
    stopped
}

/// A value of the auxiliary vector.
fn auxv_value(auxv: &[u8], key: u64) -> Option<usize> {
    let word = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
    auxv.chunks_exact(16)
        .find(|pair| word(&pair[..8]) == Some(key))
        .and_then(|pair| usize::try_from(word(&pair[8..])?).ok())
}

/// Wait until the child stops with a signal that `wanted` accepts; other signals are passed on to it.
fn wait_stop(pid: i32, program: &str, wanted: impl Fn(i32) -> bool) -> Result<(), LaunchError> {
    let all = WaitOptions::from_bits_retain(libc::__WALL.cast_unsigned());
    loop {
        let status = match rustix::process::waitpid(Pid::from_raw(pid), all) {
            Ok(Some((_, status))) => status,
            Ok(None) | Err(Errno::INTR) => continue,
            Err(error) => {
                let (program, source) = (program.to_owned(), error.into());
                return Err(LaunchError::Hold { program, what: "waitpid", source });
            }
        };
        let Some(signal) = status.stopping_signal() else {
            let status = match status.terminating_signal() {
                Some(signal) => format!("killed by signal {signal}"),
                None => format!("exit status {}", status.exit_status().unwrap_or(0)),
            };
            return Err(LaunchError::Ended { program: program.to_owned(), status });
        };
        if wanted(signal) {
            return Ok(());
        }
        let signal = usize::try_from(signal).unwrap_or(0);
        ptrace(libc::PTRACE_CONT, pid, 0, signal, program, "PTRACE_CONT")?;
    }
}

fn ptrace(
    request: libc::c_uint,
    pid: i32,
    address: usize,
    data: usize,
    program: &str,
    what: &'static str,
) -> Result<(), LaunchError> {
    // SAFETY: the requests used here take integers, no pointers of ours; the kernel checks that the process is
    // our tracee.
    if unsafe { libc::ptrace(request, pid, address, data) } == 0 {
        return Ok(());
    }
    Err(LaunchError::Hold { program: program.to_owned(), what, source: io::Error::last_os_error() })
}

fn pid_of(child: &Child) -> i32 {
    // OK because the kernel's PIDs are at most 2^22.
    i32::try_from(child.id()).unwrap_or(0)
}

/// Kill and collect a child that never ran.
fn end(mut child: Child) {
    // Fails only if it is already gone.
    drop(child.kill());
    drop(child.wait());
}
