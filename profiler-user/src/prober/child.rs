//! Children of our own for the behaviour probe: they call a site when told, from one thread or from two.
//!
//! A forked copy of a process with threads may only make system calls: no allocation, no locks. So the second thread is
//! a bare clone(2) on a stack that was there before, and all talk is over pipes.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

core::arch::global_asm!(
    ".pushsection .text",
    ".p2align 4",
    ".type tithe_behaviour_site, @function",
    "tithe_behaviour_site:",
    "push rbp",
    "pop rbp",
    "ret",
    ".size tithe_behaviour_site, . - tithe_behaviour_site",
    ".popsection",
);

unsafe extern "C" {
    fn tithe_behaviour_site();
}

/// Calls of the first thread per round.
const FIRST_CALLS: u64 = 3;
/// Calls of the second thread per round.
const SECOND_CALLS: u64 = 5;
const STACK_BYTES: usize = 64 * 1024;

/// A forked copy of this process.
pub(super) struct ProbeChild {
    pid: libc::pid_t,
    threads: u32,
    go: OwnedFd,
    done: OwnedFd,
}

struct Pipes {
    go: [RawFd; 2],
    done: [RawFd; 2],
    second_go: [RawFd; 2],
    second_done: [RawFd; 2],
}

impl ProbeChild {
    /// Forks a child with one or two threads.
    ///
    /// # Errors
    /// fork(2), pipe(2) or mmap(2) fails.
    pub fn spawn(threads: u32) -> io::Result<Self> {
        let (go, done, second_go, second_done) = (pipe()?, pipe()?, pipe()?, pipe()?);
        let raw = |p: &(OwnedFd, OwnedFd)| [p.0.as_raw_fd(), p.1.as_raw_fd()];
        let pipes = Pipes {
            go: raw(&go),
            done: raw(&done),
            second_go: raw(&second_go),
            second_done: raw(&second_done),
        };
        // SAFETY: a new private mapping.
        let stack = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                STACK_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if stack == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the child only runs `serve`, which makes nothing but system calls.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: `stack` is a mapping of `STACK_BYTES`, copied by fork.
            unsafe { serve(&pipes, threads, stack) }
        }
        let error = io::Error::last_os_error();
        // SAFETY: our mapping from above; the child has its own copy.
        unsafe { libc::munmap(stack, STACK_BYTES) };
        if pid < 0 {
            return Err(error);
        }
        Ok(Self { pid, threads, go: go.1, done: done.0 })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        // OK because process ids are positive.
        self.pid as u32
    }

    /// Calls that one round makes.
    pub fn calls(&self) -> u64 {
        if self.threads > 1 { FIRST_CALLS + SECOND_CALLS } else { FIRST_CALLS }
    }

    /// Lets the child make one round of calls and waits for its end.
    ///
    /// # Errors
    /// The child is gone.
    pub fn round(&self) -> io::Result<()> {
        let mut byte = [1u8];
        let sent = rustix::io::write(&self.go, &byte);
        let mut fds = [PollFd::new(&self.done, PollFlags::IN)];
        let ready = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 2, tv_nsec: 0 }));
        if sent != Ok(1) || ready != Ok(1) {
            return Err(io::Error::other("the probe child does not answer"));
        }
        let got = rustix::io::read(&self.done, &mut byte);
        if got == Ok(1) { Ok(()) } else { Err(io::Error::other("the probe child has ended")) }
    }
}

impl Drop for ProbeChild {
    fn drop(&mut self) {
        // Our own child, not reaped yet, so the id is still its.
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

/// Offset of the site in this executable's file (or in the library that holds this code), and that file.
pub(super) fn site() -> io::Result<(std::path::PathBuf, u64)> {
    let address = tithe_behaviour_site as *const () as u64;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let Some((range, offset)) = fields.next().zip(fields.nth(1)) else { continue };
        let path = fields.nth(2).unwrap_or_default();
        let Some((low, high)) = range.split_once('-') else { continue };
        let hex = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        if (hex(low)..hex(high)).contains(&address) {
            // The name serves as long as it is there; map_files also finds a deleted file, but takes more privilege.
            let named = std::path::PathBuf::from(path);
            let module = if named.exists() { named } else { format!("/proc/self/map_files/{range}").into() };
            return Ok((module, address - hex(low) + hex(offset)));
        }
    }
    Err(io::Error::other("our own code is not in /proc/self/maps"))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}

/// The child's life: rounds until the pipe closes.
///
/// # Safety
/// Runs in a forked child; `stack` is a mapping of `STACK_BYTES`.
unsafe fn serve(pipes: &Pipes, threads: u32, stack: *mut libc::c_void) -> ! {
    // SAFETY: system calls only, on descriptors and memory of this process.
    unsafe {
        // Die with the agent; leave its terminal's signals alone; keep no descriptor of it, least of all a link's.
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::syscall(libc::SYS_setsid);
        let mut keep = [
            pipes.go[0],
            pipes.done[1],
            pipes.second_go[0],
            pipes.second_go[1],
            pipes.second_done[0],
            pipes.second_done[1],
        ];
        keep.sort_unstable();
        let mut next = 0;
        for fd in keep {
            if fd > next {
                libc::syscall(libc::SYS_close_range, next, fd - 1, 0);
            }
            next = fd + 1;
        }
        libc::syscall(libc::SYS_close_range, next, i32::MAX, 0);
        if threads > 1 {
            let flags = libc::CLONE_VM
                | libc::CLONE_FS
                | libc::CLONE_FILES
                | libc::CLONE_SIGHAND
                | libc::CLONE_THREAD
                | libc::CLONE_SYSVSEM;
            let top = stack.add(STACK_BYTES);
            let argument = std::ptr::from_ref(pipes).cast_mut().cast();
            if libc::clone(second, top, flags, argument) < 0 {
                libc::syscall(libc::SYS_exit_group, 1);
            }
        }
        loop {
            if !take(pipes.go[0]) {
                libc::syscall(libc::SYS_exit_group, 0);
            }
            for _ in 0..FIRST_CALLS {
                tithe_behaviour_site();
            }
            if threads > 1 {
                give(pipes.second_go[1]);
                take(pipes.second_done[0]);
            }
            give(pipes.done[1]);
        }
    }
}

extern "C" fn second(pipes: *mut libc::c_void) -> libc::c_int {
    // SAFETY: points to the `Pipes` on the first thread's stack, which never returns from `serve`.
    let pipes = unsafe { &*pipes.cast::<Pipes>() };
    while take(pipes.second_go[0]) {
        for _ in 0..SECOND_CALLS {
            // SAFETY: follows the C ABI and does nothing.
            unsafe { tithe_behaviour_site() };
        }
        give(pipes.second_done[1]);
    }
    0
}

fn take(fd: RawFd) -> bool {
    let mut byte = 0u8;
    // SAFETY: one byte, alive during the call.
    unsafe { libc::syscall(libc::SYS_read, fd, &raw mut byte, 1usize) == 1 }
}

fn give(fd: RawFd) {
    let byte = 1u8;
    // SAFETY: one byte, alive during the call.
    unsafe { libc::syscall(libc::SYS_write, fd, &raw const byte, 1usize) };
}
