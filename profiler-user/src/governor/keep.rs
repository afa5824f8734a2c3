//! Closers that keep the links they will close, each in a descriptor table of its own.
//!
//! When a process ends, the kernel closes its descriptors one after the other, and closing a link takes a grace period:
//! the breakpoints of an agent that was killed with 34 links went within two seconds. Threads that have a
//! descriptor table of their own (`unshare(CLONE_FILES)`) end side by side. So each urgent closer gets such a table, and a link is sent to the
//! one that will close it, through a socket (`SCM_RIGHTS`, unix(7)); the main table keeps no copy. What is in the
//! socket still goes with its receiving end, which only the closer has.
//!
//! Where a closer cannot have a table of its own it works in the main one, as a patient closer does.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Room for the control message that carries one descriptor: header and descriptor, aligned.
const CONTROL_BYTES: usize = 24;

/// Aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// A connected pair that keeps messages apart.
pub(super) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the array has room for two descriptors, which nobody else owns.
    unsafe {
        if libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr())
            != 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// Sends a descriptor under a number.
///
/// # Errors
/// The other end is gone, or too many descriptors are on their way.
pub(super) fn send(socket: BorrowedFd<'_>, number: u64, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut bytes = number.to_ne_bytes();
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: a message header is plain data; all that it points to lives until the call returns, and the control message
    // has the room that CMSG_SPACE asks for one descriptor.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BYTES;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a closer keeps.
#[derive(Debug)]
pub(super) struct KeptFds {
    socket: OwnedFd,
    fds: HashMap<u64, OwnedFd>,
}

impl KeptFds {
    /// Keeps what comes through `socket`.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, fds: HashMap::new() }
    }

    /// Takes in what has been sent.
    pub fn receive(&mut self) {
        while let Some((number, fd)) = self.next() {
            self.fds.insert(number, fd);
        }
    }

    /// Gives out what was sent under this number.
    pub fn take(&mut self, number: u64) -> Option<OwnedFd> {
        self.receive();
        self.fds.remove(&number)
    }

    fn next(&self) -> Option<(u64, OwnedFd)> {
        let mut bytes = [0u8; 8];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = Control([0; CONTROL_BYTES]);
        // SAFETY: as in `send`; a descriptor that comes is new and ours alone.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = CONTROL_BYTES;
            let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
            if libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) != 8 {
                return None;
            }
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
                return None;
            }
            let fd = libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned();
            Some((u64::from_ne_bytes(bytes), OwnedFd::from_raw_fd(fd)))
        }
    }
}

/// Gives the calling thread a descriptor table of its own that holds standard input, output and error and `keep`.
/// `false`: the kernel refuses it (before 5.9, or a seccomp filter), and the table is still shared.
pub(super) fn own_table(keep: &[BorrowedFd<'_>]) -> bool {
    // OK because descriptors are not negative.
    let mut kept: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    kept.sort_unstable();
    // From the top: what lies above the last is never copied.
    let mut top = u32::MAX;
    let mut flags = libc::CLOSE_RANGE_UNSHARE;
    for fd in kept.into_iter().rev().chain([2]) {
        if fd < top {
            // SAFETY: closes descriptors of this thread's table alone, once the first call has unshared it; nothing that this
            // thread owns is among them.
            if unsafe { libc::syscall(libc::SYS_close_range, fd + 1, top, flags) } != 0 {
                // Later calls only tidy up.
                if flags != 0 {
                    return false;
                }
            }
            flags = 0;
        }
        top = fd.saturating_sub(1);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_sent_is_kept_and_goes_with_its_keeper() {
        let (ours, theirs) = socket_pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let (mut second, other) = io::pipe().unwrap();
        send(ours.as_fd(), 7, writer.as_fd()).unwrap();
        send(ours.as_fd(), 8, other.as_fd()).unwrap();
        drop((writer, other));
        let mut kept = KeptFds::new(theirs);
        assert!(kept.take(9).is_none());
        drop(kept.take(7).expect("7 was sent"));
        // End of file: nobody has the other end any more.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        drop(kept);
        assert_eq!(second.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_table_of_its_own_holds_what_is_asked_for_and_nothing_else() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (keep_reader, keep_writer) = io::pipe().unwrap();
        std::thread::scope(|scope| {
            let alone = scope.spawn(|| {
                assert!(own_table(&[keep_reader.as_fd(), keep_writer.as_fd()]));
                // SAFETY: asks for flags only.
                let is_open = |fd: RawFd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
                (
                    is_open(keep_reader.as_raw_fd()),
                    is_open(keep_writer.as_raw_fd()),
                    is_open(2),
                    is_open(writer.as_raw_fd()),
                )
            });
            assert_eq!(alone.join().unwrap(), (true, true, true, false));
        });
        // Ours is untouched.
        drop(writer);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        drop(File::from(OwnedFd::from(keep_writer)));
    }
}
