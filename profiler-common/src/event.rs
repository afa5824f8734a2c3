//! Records in the four rings.

use crate::context::CallContext;
use crate::{wire_enum, wire_type};

/// `CallRecord::duration_ns` of a call whose end was not watched.
pub const NO_DURATION: u64 = u64::MAX;

/// Ring `EVENTS`: one recorded call, emitted when it returns (or at once, if only entries are watched).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CallRecord {
    /// Begin of the call, ktime ns.
    pub time_ns: u64,
    /// Duration, ns, uncorrected; [`NO_DURATION`] if the end was not watched.
    pub duration_ns: u64,
    /// Monitoring cost inside the duration, ns.
    pub nested_cost_ns: u64,
    /// Class.
    pub class: u32,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// [`CALL_NO_ARGUMENTS`], [`CALL_HAS_PLACE`], [`CALL_HAS_RESULT`].
    pub flags: u32,
    /// rdi, rsi, rdx, rcx, r8, r9 at the entry site; zero where they were not kept.
    pub args: [u64; 6],
    /// The word in its return slot: where it returns to; 0: not known.
    pub return_address: u64,
    /// rax as it returned, with [`CALL_HAS_RESULT`].
    pub result: u64,
    /// Class of the innermost timed call of the thread around it, with [`CALL_HAS_PLACE`]; [`FREE`](crate::thread::FREE): there is none.
    pub outer: u32,
    /// Timed calls of the thread around it, with [`CALL_HAS_PLACE`].
    pub depth: u32,
    /// What the kernel counted for the thread inside it.
    pub context: CallContext,
}
wire_type!(CallRecord, size 160, align 8);

/// `CallRecord::flags`: the arguments were not asked for or could not be kept; `args` says nothing.
pub const CALL_NO_ARGUMENTS: u32 = 1;
/// `CallRecord::flags`: it is known which timed calls were open around it.
pub const CALL_HAS_PLACE: u32 = 2;
/// `CallRecord::flags`: the end was seen by a return link, where rax holds the result.
pub const CALL_HAS_RESULT: u32 = 4;

wire_enum! {
    /// What an alarm says.
    AlarmKind, "alarm kind" {
        /// The hit that took the last of a class's quota.
        QuotaUsed = 1,
        /// Repeated while the class is still hit with its quota used up.
        StillHit = 2,
        /// The hit that took the last of the hits that a class may have at return sites.
        EndsUsed = 3,
    }
}

/// Ring `ALARMS`: a class needs the governor. Sent with a forced wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Alarm {
    /// When, ktime ns.
    pub time_ns: u64,
    /// Hits left, of entries or (`EndsUsed`, and repeated after it) at return sites; negative by as many as came after the last.
    pub remaining: i64,
    /// An [`AlarmKind`].
    pub kind: u32,
    /// Class.
    pub class: u32,
    /// Process that was hit.
    pub pid: u32,
    /// Thread that was hit.
    pub tid: u32,
}
wire_type!(Alarm, size 32, align 8);

wire_enum! {
    /// What happened to a process or thread of the target.
    LifecycleKind, "lifecycle kind" {
        /// A thread was born: `child_tid` in process `pid`.
        ThreadBorn = 1,
        /// A process was forked: `child_pid` from process `pid`. It inherits the breakpoints.
        Forked = 2,
        /// The process loaded a new program: it carries no breakpoint of ours any more.
        Execed = 3,
        /// A thread ended.
        ThreadExited = 4,
    }
}

/// Ring `LIFECYCLE`: births and deaths in the target's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct LifecycleRecord {
    /// When, ktime ns.
    pub time_ns: u64,
    /// A [`LifecycleKind`].
    pub kind: u32,
    /// Process in which it happened.
    pub pid: u32,
    /// Thread in which it happened.
    pub tid: u32,
    /// New process, if there is one.
    pub child_pid: u32,
    /// New thread, if there is one.
    pub child_tid: u32,
    /// Reserved, zero.
    pub reserved: u32,
}
wire_type!(LifecycleRecord, size 32, align 8);

/// `SampleHeader::flags`: the thread was in the kernel; `ip`, `sp`, `bp` are its user registers all the same.
pub const SAMPLE_IN_KERNEL: u32 = 1;
/// `SampleHeader::flags`: the user registers could not be read.
pub const SAMPLE_NO_REGISTERS: u32 = 2;

/// Ring `SAMPLES`: one periodic observation of a running thread, followed by the copied part of its stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct SampleHeader {
    /// When, ktime ns.
    pub time_ns: u64,
    /// User instruction pointer.
    pub ip: u64,
    /// User stack pointer: address of the first copied byte.
    pub sp: u64,
    /// User frame pointer register.
    pub bp: u64,
    /// Kernel instruction pointer; 0 if the thread was in user mode.
    pub kernel_ip: u64,
    /// CPU time that the sample stands for, ns.
    pub period_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// CPU.
    pub cpu: u32,
    /// `SAMPLE_*`.
    pub flags: u32,
    /// Bytes of stack that follow and are valid; the copy stops at the first page that cannot be read.
    pub stack_bytes: u32,
    /// Bytes of stack asked for.
    pub stack_asked: u32,
}
wire_type!(SampleHeader, size 72, align 8);

/// Sizes of stack copy that the sample program has code for, bytes. 0: none.
pub const STACK_SIZES: [u32; 5] = [0, 2048, 4096, 8192, 16384];
