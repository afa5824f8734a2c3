//! Numbers that concern all classes, and counters that belong to none.

use crate::wire_type;

/// Settings that may change while programs run (map `SETTINGS`, one element).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Settings {
    /// Bytes of user stack copied with a sample: one of [`crate::event::STACK_SIZES`].
    pub stack_bytes: u32,
    /// Price of one sample, ns: added to the monitoring cost of the calls that are open on the thread; 0: not added.
    pub sample_cost_ns: u32,
    /// Two return slots closer than this lie on one stack, bytes: a call whose slot lies below that of a call that
    /// begins or ends has been left. 0 where threads run on several stacks (fibers): then only a slot that is used
    /// again proves it.
    pub stack_span_bytes: u64,
    /// CPU time that a sample stands for, ns. 0: the period that the event was opened with, which is what the kernel
    /// tells (it does not tell a clock event's changed period); return addresses that return links replace are then not
    /// kept, and stacks end there.
    pub sample_period_ns: u64,
    /// Process whose progress is counted.
    pub progress_pid: u32,
    /// Process whose system calls and tracepoints bound operations.
    pub operation_pid: u32,
}
wire_type!(Settings, size 32, align 8);

/// Slots of [`ProgressCounters`]: x86-64 numbers its system calls below 470.
pub const PROGRESS_SLOTS: usize = 512;
/// The slot of hits by processes that are not the target.
pub const PROGRESS_OTHERS: usize = PROGRESS_SLOTS - 1;

/// Counts of the progress metric, kept in stripes: system calls by number, or a tracepoint's hits in slot 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ProgressCounters {
    /// Counts by slot.
    pub counts: [u64; PROGRESS_SLOTS],
}
wire_type!(ProgressCounters, size 4096, align 8);

/// Value in map `TARGETS` (key: process id): samples and lifecycle of this process are wanted.
pub const TARGET_WATCHED: u32 = 1;
/// Flag in map `TARGETS`: forked children are entered into the map by the kernel, with the same value.
pub const TARGET_ADOPT_CHILDREN: u32 = 2;

/// Counters that belong to no class, kept in stripes. `samples_attempted = kept + other + dropped`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GlobalCounters {
    /// Sampling interrupts that reached the program.
    pub samples_attempted: u64,
    /// Samples sent.
    pub samples_kept: u64,
    /// Interrupts in processes that are not targets.
    pub samples_other: u64,
    /// Samples lost because the ring was full.
    pub samples_dropped: u64,
    /// Samples kept of which no stack could be copied, though some was asked for.
    pub samples_no_stack: u64,
    /// Samples kept of which less stack than asked for could be copied (most threads' stacks end earlier).
    pub samples_short_stack: u64,
    /// Samples kept that found the thread in the kernel.
    pub samples_in_kernel: u64,
    /// Hits whose cookie names no class.
    pub unknown_class: u64,
    /// Hits for which no thread state could be had (out of memory, or re-entered).
    pub no_thread_state: u64,
    /// Alarms lost because the ring was full.
    pub alarms_dropped: u64,
    /// Lifecycle records lost because the ring was full.
    pub lifecycle_dropped: u64,
    /// Lifecycle events whose task could not be read.
    pub lifecycle_unread: u64,
    /// System calls of the target that reached the programs which bound operations.
    pub operation_syscalls: u64,
    /// The same of other processes, which pay.
    pub operation_syscalls_other: u64,
    /// Takings of words lost because the ring was full.
    pub takings_dropped: u64,
    /// Keeps the size a power of two.
    pub reserved: u64,
}
wire_type!(GlobalCounters, size 128, align 8);

impl GlobalCounters {
    /// Adds another stripe.
    pub fn add(&mut self, other: &Self) {
        let sum = |a: &mut u64, b: u64| *a = a.wrapping_add(b);
        sum(&mut self.samples_attempted, other.samples_attempted);
        sum(&mut self.samples_kept, other.samples_kept);
        sum(&mut self.samples_other, other.samples_other);
        sum(&mut self.samples_dropped, other.samples_dropped);
        sum(&mut self.samples_no_stack, other.samples_no_stack);
        sum(&mut self.samples_short_stack, other.samples_short_stack);
        sum(&mut self.samples_in_kernel, other.samples_in_kernel);
        sum(&mut self.unknown_class, other.unknown_class);
        sum(&mut self.no_thread_state, other.no_thread_state);
        sum(&mut self.alarms_dropped, other.alarms_dropped);
        sum(&mut self.lifecycle_dropped, other.lifecycle_dropped);
        sum(&mut self.lifecycle_unread, other.lifecycle_unread);
        sum(&mut self.operation_syscalls, other.operation_syscalls);
        sum(&mut self.operation_syscalls_other, other.operation_syscalls_other);
        sum(&mut self.takings_dropped, other.takings_dropped);
    }
}
