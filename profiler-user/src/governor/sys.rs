//! The few system calls that the governor's threads make on their way.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An eventfd, close-on-exec.
pub(super) fn eventfd(flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: creates a descriptor that nobody else owns.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created, ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Wake whoever waits for an eventfd. It only fails when the count would pass 2^64 - 2, and then it is readable
/// already.
pub(super) fn signal(fd: BorrowedFd<'_>) {
    let one = 1u64;
    // SAFETY: writes eight bytes of ours.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Set an eventfd back to "not readable"; blocks until it is readable, if it is a blocking one.
pub(super) fn drain(fd: BorrowedFd<'_>) {
    let mut count = 0u64;
    // SAFETY: reads eight bytes into a variable of ours.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
}

/// `CLOCK_MONOTONIC`, ns: the clock of `bpf_ktime_get_ns`. Through the vDSO, no system call.
pub(super) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    // OK because the monotonic clock is not negative and its nanoseconds are below 10^9.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
