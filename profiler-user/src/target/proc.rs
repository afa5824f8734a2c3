//! Reading `/proc/PID` through one open directory, so that the answers are always about the same process.

use rustix::fs::{Mode, OFlags};
use std::ffi::{CStr, CString, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Kernel thread flag of field 9 of `/proc/PID/stat` (`PF_KTHREAD`, include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

/// An open `/proc/PID`.
#[derive(Debug)]
pub(super) struct ProcDir(OwnedFd);

/// What we use of `/proc/PID/stat`.
#[derive(Debug)]
pub(super) struct Stat {
    /// Field 2: the name, at most 15 bytes.
    pub name: String,
    /// Field 3: `R`, `S`, `Z`, …
    pub state: u8,
    /// Field 4.
    pub parent: i32,
    /// Field 9.
    flags: u64,
    /// Fields 10 and 12: page faults that needed no disk, and those that did.
    pub faults: [u64; 2],
    /// Fields 14 and 15: user and system time, clock ticks.
    pub cpu_ticks: u64,
    /// Field 22: start after boot, clock ticks.
    pub start_ticks: u64,
    /// Field 42: waits for block devices, clock ticks; none is counted where `kernel.task_delayacct` is off.
    pub io_ticks: Option<u64>,
}

impl Stat {
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    fn parse(text: &str) -> Option<Self> {
        // The name may hold spaces and brackets: it ends at the last one.
        let (open, close) = (text.find('(')?, text.rfind(')')?);
        let name = text.get(open + 1..close)?.to_owned();
        let fields: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
        // fields[0] is field 3.
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            name,
            state: *field(3)?.as_bytes().first()?,
            parent: field(4)?.parse().ok()?,
            flags: field(9)?.parse().ok()?,
            faults: [field(10)?.parse().ok()?, field(12)?.parse().ok()?],
            cpu_ticks: field(14)?.parse::<u64>().ok()? + field(15)?.parse::<u64>().ok()?,
            start_ticks: field(22)?.parse().ok()?,
            io_ticks: field(42).and_then(|ticks| ticks.parse().ok()),
        })
    }
}

impl ProcDir {
    pub fn open(pid: i32) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty())?))
    }

    pub fn open_at(&self, name: &CStr, flags: OFlags) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(&self.0, name, flags | OFlags::CLOEXEC, Mode::empty())?)
    }

    pub fn read(&self, name: &CStr) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::from(self.open_at(name, OFlags::RDONLY)?).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub fn read_link(&self, name: &CStr) -> io::Result<PathBuf> {
        let mut buffer = vec![0u8; 4096];
        let n = rustix::fs::readlinkat_raw(&self.0, name, &mut buffer[..])?;
        buffer.truncate(n);
        Ok(PathBuf::from(OsString::from_vec(buffer)))
    }

    pub fn stat(&self) -> io::Result<Stat> {
        let bytes = self.read(c"stat")?;
        Stat::parse(&String::from_utf8_lossy(&bytes))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/stat has an unknown form"))
    }

    /// `stat` of one thread.
    pub fn thread_stat(&self, tid: i32) -> io::Result<Stat> {
        let bytes = self.read(&thread_file(tid, "stat"))?;
        Stat::parse(&String::from_utf8_lossy(&bytes))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/stat has an unknown form"))
    }

    /// `schedstat` of one thread: ns on a CPU, ns waiting for one, times scheduled in
    /// (kernel Documentation/scheduler/sched-stats.rst).
    pub fn schedstat(&self, tid: i32) -> io::Result<[u64; 3]> {
        let text = self.read(&thread_file(tid, "schedstat"))?;
        let text = String::from_utf8_lossy(&text);
        let mut fields = text.split_ascii_whitespace().map(str::parse::<u64>);
        match (fields.next(), fields.next(), fields.next()) {
            (Some(Ok(a)), Some(Ok(b)), Some(Ok(c))) => Ok([a, b, c]),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "schedstat has an unknown form")),
        }
    }

    /// Where the stack of a thread that does not run ends (`syscall`, whose last two words are the stack and the instruction pointer); `None`: it runs.
    pub fn stack_pointer(&self, tid: i32) -> io::Result<Option<u64>> {
        let text = self.read(&thread_file(tid, "syscall"))?;
        Ok(stack_pointer_of(&String::from_utf8_lossy(&text)))
    }

    /// The number of the system call that a thread is in that does not run (`syscall`, whose first word it is; -1: in none); `None`: it runs.
    pub fn waits_in(&self, tid: i32) -> io::Result<Option<i64>> {
        let text = self.read(&thread_file(tid, "syscall"))?;
        Ok(waits_in_of(&String::from_utf8_lossy(&text)))
    }

    /// A numeric line of `status`.
    pub fn status_field(&self, name: &str) -> io::Result<Option<i64>> {
        let bytes = self.read(c"status")?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok()))
    }

    /// Effective UID of the process. (The owner of `/proc/PID` itself is root for processes that may not be
    /// dumped.)
    pub fn owner(&self) -> io::Result<u32> {
        let bytes = self.read(c"status")?;
        let text = String::from_utf8_lossy(&bytes);
        text.lines()
            .find_map(|line| line.strip_prefix("Uid:")?.split_ascii_whitespace().nth(1)?.parse().ok())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "status has no Uid line"))
    }

    pub fn tids(&self) -> io::Result<Vec<i32>> {
        let dir = self.open_at(c"task", OFlags::RDONLY | OFlags::DIRECTORY)?;
        // std reads directories by path only; this one names our descriptor, so it stays the same process.
        let entries = std::fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()))?;
        let mut tids = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) => tids.extend(entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok())),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(tids)
    }
}

fn stack_pointer_of(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let at = words.len().checked_sub(2)?;
    u64::from_str_radix(words.get(at)?.strip_prefix("0x")?, 16).ok().filter(|at| *at != 0)
}

fn waits_in_of(text: &str) -> Option<i64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

fn thread_file(tid: i32, name: &str) -> CString {
    // OK because a number and a literal hold no NUL.
    CString::new(format!("task/{tid}/{name}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Stat, stack_pointer_of, waits_in_of};

    #[test]
    fn a_thread_that_waits_says_where_its_stack_ends() {
        let waits = "35 0x7ffd10 0x0 0x0 0x0 0x7f00 0x1 0x7ffd00 0x7f2b51\n";
        assert_eq!(stack_pointer_of(waits), Some(0x7f_fd00));
        // Not in a system call.
        assert_eq!(stack_pointer_of("-1 0x7ffd08 0x4010\n"), Some(0x7f_fd08));
        assert_eq!((stack_pointer_of("running\n"), stack_pointer_of("")), (None, None));
        assert_eq!((waits_in_of(waits), waits_in_of("-1 0x7ffd08 0x4010\n")), (Some(35), Some(-1)));
        assert_eq!((waits_in_of("running\n"), waits_in_of("")), (None, None));
    }

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let text = "77 (a) Z (b) S 5 1 1 0 -1 4194560 1 2 3 4 30 12 0 0 20 0 1 0 4242 1 1";
        let stat = Stat::parse(text).expect("a valid line");
        assert_eq!((stat.name.as_str(), stat.state, stat.parent), ("a) Z (b", b'S', 5));
        assert_eq!((stat.cpu_ticks, stat.start_ticks), (42, 4242));
        assert_eq!((stat.faults, stat.io_ticks), ([1, 3], None));
        assert!(!stat.is_kernel_thread());
    }

    #[test]
    fn a_short_line_is_no_stat() {
        assert!(Stat::parse("77 (a) S 5").is_none());
        assert!(Stat::parse("").is_none());
    }
}
