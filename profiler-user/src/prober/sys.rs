//! bpf(2) and perf_event_open(2), as thin as they go: what aya 0.14 does not offer (uprobe.multi and session links,
//! programs with an expected attach type, links whose file descriptors we own).
//!
//! Numbers and layouts are the kernel's `include/uapi/linux/{bpf,perf_event}.h`.

use crate::target::pidfd_open_with;
use rustix::process::PidfdFlags;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_MAP_LOOKUP_ELEM: u32 = 1;
const BPF_PROG_LOAD: u32 = 5;
const BPF_OBJ_GET_INFO_BY_FD: u32 = 15;
const BPF_RAW_TRACEPOINT_OPEN: u32 = 17;
const BPF_LINK_CREATE: u32 = 28;

/// `BPF_PROG_TYPE_KPROBE`: the program type of all uprobes.
pub(super) const PROG_TYPE_KPROBE: u32 = 2;
/// `BPF_PROG_TYPE_PERF_EVENT`.
pub(super) const PROG_TYPE_PERF_EVENT: u32 = 7;
/// `BPF_PROG_TYPE_RAW_TRACEPOINT`.
pub(super) const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;

/// `BPF_PERF_EVENT`.
const ATTACH_PERF_EVENT: u32 = 41;
/// `BPF_TRACE_UPROBE_MULTI`.
pub(super) const ATTACH_UPROBE_MULTI: u32 = 48;
/// `BPF_TRACE_UPROBE_SESSION`.
pub(super) const ATTACH_UPROBE_SESSION: u32 = 57;
/// `BPF_F_UPROBE_MULTI_RETURN`.
pub(super) const UPROBE_MULTI_RETURN: u32 = 1;

fn bpf<T>(command: u32, attr: &mut T) -> io::Result<i64> {
    // SAFETY: `attr` is a `repr(C)` prefix of `union bpf_attr` for this command, of the size passed; the kernel takes
    // missing bytes as zero.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(fd: i64) -> OwnedFd {
    // SAFETY: the kernel just returned this descriptor to us; nobody else owns it. OK because descriptors fit an i32.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

#[repr(C)]
#[derive(Default)]
struct ProgLoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// Loads a program. On refusal, loads it again with the verifier's log.
///
/// # Errors
/// The kernel's error and the end of the verifier's log.
pub(super) fn load_program(
    name: &str,
    prog_type: u32,
    attach_type: u32,
    instructions: &[[u8; 8]],
) -> Result<OwnedFd, (io::Error, String)> {
    let license = c"Dual MIT/GPL";
    let mut attr = ProgLoadAttr {
        prog_type,
        // OK because programs have at most a million instructions.
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        expected_attach_type: attach_type,
        ..Default::default()
    };
    for (to, from) in attr.prog_name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    let error = match bpf(BPF_PROG_LOAD, &mut attr) {
        Ok(fd) => return Ok(owned(fd)),
        Err(error) => error,
    };
    let mut log = vec![0u8; 1 << 20];
    attr.log_level = 1;
    attr.log_size = log.len() as u32;
    attr.log_buf = log.as_mut_ptr() as u64;
    match bpf(BPF_PROG_LOAD, &mut attr) {
        Ok(fd) => Ok(owned(fd)),
        Err(_) => {
            let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
            let text = String::from_utf8_lossy(&log[..end]);
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(12)..].join("\n");
            Err((error, tail))
        }
    }
}

#[repr(C)]
struct LinkUprobeMultiAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    cnt: u32,
    multi_flags: u32,
    pid: u32,
    reserved: u32,
}

/// What a uprobe.multi or session link attaches to.
pub(super) struct MultiSites<'a> {
    pub path: &'a CString,
    pub offsets: &'a [u64],
    pub cookies: &'a [u64],
    /// Empty, or one per offset.
    pub reference_counters: &'a [u64],
    /// 0: every process that maps the file.
    pub pid: u32,
}

/// Creates a uprobe.multi (`returns`: on the return of each function) or session link.
///
/// # Errors
/// The kernel's; it does not say which offset it refused.
pub(super) fn link_uprobe_multi(
    program: BorrowedFd<'_>,
    attach_type: u32,
    returns: bool,
    sites: &MultiSites<'_>,
) -> io::Result<OwnedFd> {
    assert!(sites.cookies.len() == sites.offsets.len(), "one cookie per offset");
    let mut attr = LinkUprobeMultiAttr {
        prog_fd: program.as_raw_fd() as u32,
        target_fd: 0,
        attach_type,
        flags: 0,
        path: sites.path.as_ptr() as u64,
        offsets: sites.offsets.as_ptr() as u64,
        ref_ctr_offsets: if sites.reference_counters.is_empty() {
            0
        } else {
            assert!(
                sites.reference_counters.len() == sites.offsets.len(),
                "one reference counter per offset"
            );
            sites.reference_counters.as_ptr() as u64
        },
        cookies: sites.cookies.as_ptr() as u64,
        cnt: sites.offsets.len() as u32,
        multi_flags: if returns { UPROBE_MULTI_RETURN } else { 0 },
        pid: sites.pid,
        reserved: 0,
    };
    bpf(BPF_LINK_CREATE, &mut attr).map(owned)
}

#[repr(C)]
struct LinkPerfAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    bpf_cookie: u64,
}

/// Links a program to a perf event that we opened ourselves.
///
/// # Errors
/// The kernel's.
pub(super) fn link_perf_event(
    program: BorrowedFd<'_>,
    event: BorrowedFd<'_>,
    cookie: u64,
) -> io::Result<OwnedFd> {
    let mut attr = LinkPerfAttr {
        prog_fd: program.as_raw_fd() as u32,
        target_fd: event.as_raw_fd() as u32,
        attach_type: ATTACH_PERF_EVENT,
        flags: 0,
        bpf_cookie: cookie,
    };
    bpf(BPF_LINK_CREATE, &mut attr).map(owned)
}

/// Attaches a raw tracepoint program.
///
/// # Errors
/// The kernel's: ENOENT if there is no such tracepoint, EINVAL if the program reads beyond its arguments.
pub(super) fn open_raw_tracepoint(program: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct OpenAttr {
        name: u64,
        prog_fd: u32,
        pad: u32,
    }
    let mut attr = OpenAttr { name: name.as_ptr() as u64, prog_fd: program.as_raw_fd() as u32, pad: 0 };
    bpf(BPF_RAW_TRACEPOINT_OPEN, &mut attr).map(owned)
}

/// What the kernel tells of a loaded program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Hits that the kernel counted as missed before the program ran (`recursion_misses`).
    pub missed: u64,
    /// Instructions that the verifier processed; it stops at a million. 0 before Linux 5.16.
    pub verified_instructions: u32,
}

/// Asks the kernel about a program.
///
/// # Errors
/// The kernel's.
pub(super) fn program_info(program: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
    /// Offsets in `struct bpf_prog_info`.
    const RECURSION_MISSES: usize = 208;
    const VERIFIED_INSNS: usize = 216;
    #[repr(C)]
    struct InfoAttr {
        fd: u32,
        len: u32,
        info: u64,
    }
    let mut info = [0u64; 32];
    let mut attr = InfoAttr {
        fd: program.as_raw_fd() as u32,
        len: size_of_val(&info) as u32,
        info: info.as_mut_ptr() as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(ProgramInfo {
        missed: info[RECURSION_MISSES / 8],
        // OK because the low half holds the 32-bit field (little-endian).
        verified_instructions: info[VERIFIED_INSNS / 8] as u32,
    })
}

/// A descriptor of one thread. Where the kernel has none of threads (before 6.9), of a process by its first thread.
///
/// # Errors
/// The kernel's: the thread is gone, or is not its process's first and this kernel is too old.
pub(super) fn thread_fd(tid: i32) -> io::Result<OwnedFd> {
    /// `PIDFD_THREAD` is `O_EXCL` (include/uapi/linux/pidfd.h).
    const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
    match pidfd_open_with(tid, PIDFD_THREAD) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => pidfd_open_with(tid, PidfdFlags::empty()),
        other => other,
    }
}

/// Copies a task's value out of a task storage map (`bpf_fd_task_storage_lookup_elem`, kernel/bpf/bpf_task_storage.c: the
/// key is a descriptor of the task).
///
/// # Errors
/// The kernel's: ENOENT if the task has no value.
pub(super) fn lookup_task_storage<T: aya::Pod>(
    map: BorrowedFd<'_>,
    task: BorrowedFd<'_>,
    value: &mut T,
) -> io::Result<()> {
    #[repr(C)]
    struct LookupAttr {
        map_fd: u32,
        pad: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let key = task.as_raw_fd();
    let mut attr = LookupAttr {
        map_fd: map.as_raw_fd() as u32,
        pad: 0,
        key: (&raw const key) as u64,
        // The kernel writes as many bytes as the map's values have, which the object's type `T` fixes.
        value: std::ptr::from_mut(value) as u64,
        flags: 0,
    };
    bpf(BPF_MAP_LOOKUP_ELEM, &mut attr).map(drop)
}

/// `struct perf_event_attr`, version 8 of it (136 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct PerfEventAttr {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    /// Bit field, see `FLAG_*`.
    pub flags: u64,
    pub wakeup_events: u32,
    pub bp_type: u32,
    /// uprobes: address of the path.
    pub config1: u64,
    /// uprobes: offset in the file.
    pub config2: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clockid: i32,
    pub sample_regs_intr: u64,
    pub aux_watermark: u32,
    pub sample_max_stack: u16,
    pub reserved_2: u16,
    pub aux_sample_size: u32,
    pub reserved_3: u32,
    pub sig_data: u64,
    pub config3: u64,
}

/// `disabled`: the event starts off.
pub(super) const PERF_FLAG_DISABLED: u64 = 1;
const PERF_FLAG_FD_CLOEXEC: u64 = 8;

/// perf_event_open(2) without a group.
///
/// # Errors
/// The kernel's.
pub(super) fn perf_event_open(attr: &PerfEventAttr, tid: i32, cpu: i32) -> io::Result<OwnedFd> {
    let attr = PerfEventAttr { size: size_of::<PerfEventAttr>() as u32, ..*attr };
    // SAFETY: `attr` is a `perf_event_attr` of the size that it states; pointers in it are live in the caller.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, tid, cpu, -1, PERF_FLAG_FD_CLOEXEC)
    };
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(owned(fd)) }
}

/// `PERF_EVENT_IOC_ENABLE`, `_DISABLE`, `_PERIOD`, `_SET_BPF`.
#[derive(Clone, Copy)]
pub(super) enum PerfIoctl<'a> {
    Enable,
    Disable,
    Period(u64),
    SetProgram(BorrowedFd<'a>),
}

/// An ioctl on a perf event.
///
/// # Errors
/// The kernel's.
pub(super) fn perf_ioctl(event: BorrowedFd<'_>, request: PerfIoctl<'_>) -> io::Result<()> {
    let fd = event.as_raw_fd();
    let result = match request {
        // SAFETY: the argument of these two is a flag word.
        PerfIoctl::Enable => unsafe { libc::ioctl(fd, 0x2400, 0) },
        // SAFETY: as above.
        PerfIoctl::Disable => unsafe { libc::ioctl(fd, 0x2401, 0) },
        // SAFETY: the argument is a pointer to a u64, alive during the call.
        PerfIoctl::Period(period) => unsafe { libc::ioctl(fd, 0x4008_2404, &raw const period) },
        // SAFETY: the argument is a descriptor, alive during the call; the event keeps its own reference.
        PerfIoctl::SetProgram(program) => unsafe { libc::ioctl(fd, 0x4004_2408, program.as_raw_fd()) },
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
