//! Steps: entries of functions inside recorded operations, in the order of their thread.
//!
//! A step has no end. Which call lies in which follows from the return slots, the call site from the return address, and what is
//! missing from the numbers.

use crate::wire_type;

/// Ring `STEPS`: one entry of a function whose class is of kind [`Step`](crate::class::ClassKind::Step).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct StepRecord {
    /// When, ktime ns.
    pub time_ns: u64,
    /// Running number of the thread's steps, from 1. It is counted up also where the ring has no room, so that a loss is a gap.
    pub number: u64,
    /// Return slot: address of the stack word with the return address; 0: not known.
    pub slot: u64,
    /// The word there; 0: it could not be read.
    pub return_address: u64,
    /// Frame pointer register at the site: the caller's, where the caller keeps one.
    pub frame: u64,
    /// Class.
    pub class: u32,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Reserved, zero.
    pub flags: u32,
}
wire_type!(StepRecord, size 56, align 8);

/// Where a thread's steps stood when an operation began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StepMark {
    /// Steps so far.
    pub number: u64,
    /// Of those, without a record: the ring was full. Low bits.
    pub lost: u32,
    /// Low bits of the number of the last step that the operation's own bound has taken since: if it is the last one of all, it lies not inside.
    pub own: u32,
}
wire_type!(StepMark, size 16, align 8);

/// The steps inside an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StepSpan {
    /// The thread's steps when it began: the first inside it has the next number.
    pub before: u64,
    /// The thread's steps when it ended: the number of the last inside it.
    pub after: u64,
    /// [`RECORD_INCOMPLETE`](crate::operation::RECORD_INCOMPLETE) or zero.
    pub flags: u32,
    /// Reserved, zero.
    pub reserved: u32,
}
wire_type!(StepSpan, size 24, align 8);
