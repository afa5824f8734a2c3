//! Why a process cannot be inspected, each cause its own variant with the command that mends it.

use crate::target_file::OpenError;
use std::path::PathBuf;

/// What went wrong before or while looking at the target.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// No process has this PID.
    #[error(
        "no process {pid}: it has exited, or it lives in another PID namespace; list processes with `ps -e`"
    )]
    NoSuchProcess {
        /// The PID asked for.
        pid: i32,
    },
    /// The process has exited and waits for its parent.
    #[error(
        "process {pid} ({name}) is a zombie: it has exited and only its parent {parent} can remove it; \
         there is nothing left to watch"
    )]
    Zombie {
        /// The PID asked for.
        pid: i32,
        /// Its name (`comm`).
        name: String,
        /// Its parent.
        parent: i32,
    },
    /// A kernel thread has no user code.
    #[error(
        "process {pid} ([{name}]) is a kernel thread: it runs no user code; give the PID of a user process"
    )]
    KernelThread {
        /// The PID asked for.
        pid: i32,
        /// Its name (`comm`).
        name: String,
    },
    /// The number names a thread, not a process.
    #[error("{tid} is a thread of process {pid}, and a whole process is watched; use `--pid {pid}`")]
    IsThread {
        /// The thread id given.
        tid: i32,
        /// The process it belongs to.
        pid: i32,
    },
    /// `/proc/PID` may not be read by us.
    #[error(
        "process {pid} belongs to uid {owner} and may not be read by uid {uid} ({what}); run as root: `sudo tithe …`, \
         or give the agent CAP_SYS_PTRACE"
    )]
    NotPermitted {
        /// The PID asked for.
        pid: i32,
        /// Its owner.
        owner: u32,
        /// The caller's effective uid.
        uid: u32,
        /// What was refused.
        what: String,
    },
    /// A 32-bit program.
    #[error(
        "process {pid} runs the 32-bit program {exe}; only x86-64 programs can be inspected: sites are chosen by \
         decoding 64-bit code"
    )]
    ThirtyTwoBit {
        /// The PID asked for.
        pid: i32,
        /// The program.
        exe: PathBuf,
    },
    /// A program of another machine (run by an emulator).
    #[error(
        "process {pid} runs {exe}, made for ELF machine {machine}, not x86-64 (62); sites can be chosen for x86-64 only"
    )]
    ForeignMachine {
        /// The PID asked for.
        pid: i32,
        /// The program.
        exe: PathBuf,
        /// `e_machine` of its ELF header.
        machine: u16,
    },
    /// This agent was built for another machine.
    #[error("tithe was built for {arch}; choosing sites needs x86-64; run it on an x86-64 host")]
    UnsupportedHost {
        /// `std::env::consts::ARCH`.
        arch: &'static str,
    },
    /// The process went away while it was read.
    #[error("process {pid} exited while it was inspected ({what})")]
    Exited {
        /// The PID asked for.
        pid: i32,
        /// What was being read.
        what: String,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file is not a usable ELF file.
    #[error("{path} is no ELF file that can be read: {why}")]
    Elf {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        why: String,
    },
}
