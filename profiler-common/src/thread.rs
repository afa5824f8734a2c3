//! The stack of open calls that a thread carries, in its task storage (map `THREADS`).
//!
//! Only the programs write it. The agent reads it when a window is over, for the calls that have not ended.

use crate::presence::Presence;
use crate::wire_type;

/// Open calls per thread. A power of two: positions are masked, which the verifier can follow. The kernel itself allows
/// 64 pending returns.
pub const DEPTH: u32 = 64;
/// [`CallFrame::class`] of a frame that was closed out of order.
pub const FREE: u32 = u32::MAX;
/// [`CallFrame::generation`] carries this bit when the frame has a return link.
pub const RETURN_LINK: u32 = 1 << 31;
/// [`CallFrame::generation`] carries this bit when the call ends at a return site.
pub const RETURN_SITE: u32 = 1 << 30;
/// The generation in [`CallFrame::generation`].
pub const GENERATION: u32 = RETURN_SITE - 1;

/// A call that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CallFrame {
    /// Return slot; 0: not known.
    pub slot: u64,
    /// The word in the return slot when the call began, of calls with a return link (the kernel then replaced it) or a return site;
    /// 0: the call has neither, or it is not kept.
    pub return_address: u64,
    /// When it began, ktime ns.
    pub begin_ns: u64,
    /// The thread's monitoring cost when the call began, ns.
    pub cost_ns: u64,
    /// Class, or [`FREE`].
    pub class: u32,
    /// Generation of the class when the call began, and [`RETURN_LINK`] or [`RETURN_SITE`].
    pub generation: u32,
    /// The thread's time in inner calls when it began, ns.
    pub inner_ns: u64,
}
wire_type!(CallFrame, size 48, align 8);

/// Operations that may be open on a thread, one inside the other. A power of two.
pub const OPERATION_DEPTH: u32 = 8;
/// [`OpenOperation::flags`]: it is recorded.
pub const OPERATION_RECORDED: u32 = 1;
/// `OpenOperation::flags`: [`OpenOperation::presence`] is known.
pub const OPERATION_PRESENCE: u32 = 2;
/// `OpenOperation::flags`: from this bit on the number of the attachment of inner functions (`OperationState::details`) when it began.
pub const OPERATION_DETAILS_SHIFT: u32 = 16;

/// An operation that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct OpenOperation {
    /// Return slot; 0: matched by thread alone.
    pub slot: u64,
    /// When it began, ktime ns.
    pub begin_ns: u64,
    /// The thread's monitoring cost when it began, ns.
    pub cost_ns: u64,
    /// The thread's inner calls when it began.
    pub calls: u64,
    /// The thread's time in inner calls when it began, ns.
    pub inner_ns: u64,
    /// The thread's measure when it began.
    pub measure: u64,
    /// Monitoring cycle in which it began.
    pub cycle: u64,
    /// Stretch of constant rate in which it began.
    pub stretch: u64,
    /// The scheduler's account of the thread when it began; meaningful with [`OPERATION_PRESENCE`].
    pub presence: Presence,
    /// Operation, or [`FREE`].
    pub operation: u32,
    /// Class.
    pub class: u32,
    /// [`OPERATION_RECORDED`], [`OPERATION_PRESENCE`], [`OPERATION_DETAILS_SHIFT`].
    pub flags: u32,
    /// Generation of the operation when it began.
    pub generation: u32,
}
wire_type!(OpenOperation, size 120, align 8);

/// All of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ThreadState {
    /// Cost of hits on this thread so far, ns. Only programs of uprobes write it, which never interrupt one another on one
    /// thread: no atomic add.
    pub cost_ns: u64,
    /// Frames in use.
    pub depth: u32,
    /// Frames with return links among them.
    pub pending: u32,
    /// For the verifier's sake (`forget_range` of the programs).
    pub scratch: u32,
    /// Recorded operations that are open.
    pub recording: u32,
    /// Operations in use.
    pub operation_depth: u32,
    /// The last hit at the end of a call ([`end_stamp`]).
    pub last_end: u32,
    /// Inner calls in recorded operations so far.
    pub calls: u64,
    /// Time in timed inner calls so far, ns.
    pub inner_ns: u64,
    /// Measure so far.
    pub measure: u64,
    /// The calls, outermost first.
    pub frames: [CallFrame; DEPTH as usize],
    /// The operations, outermost first.
    pub operations: [OpenOperation; OPERATION_DEPTH as usize],
    /// Cost of samples on this thread so far, ns, written by samples only. At the end, so that the first frame shares
    /// its cache line with the fields above.
    pub sample_cost_ns: u64,
}
wire_type!(ThreadState, size 4096, align 8);

/// Low bits of [`end_stamp`] that carry the time; the others carry the site.
const END_TIME: u32 = (1 << 24) - 1;

/// When and where a hit at the end of a call ran: the low bits of its ktime, ns, and of its instruction pointer.
#[must_use]
#[inline(always)]
pub const fn end_stamp(ip: u64, time_ns: u64) -> u32 {
    (ip as u32) << END_TIME.count_ones() | time_ns as u32 & END_TIME
}

/// Time from one [`end_stamp`] to the next, ns, if it is shorter than `price_ns`, the price of a whole hit: then both are programs of
/// several classes that one trap ran, one after the other. It is paid once, and what the earlier program took is the time between
/// them. 2 hits of one site that lie a multiple of 17 ms apart are taken for one in `price_ns` of 17 ms.
#[must_use]
#[inline(always)]
pub const fn same_trap_ns(earlier: u32, later: u32, price_ns: u32) -> Option<u32> {
    let since_ns = later.wrapping_sub(earlier) & END_TIME;
    if (earlier ^ later) & !END_TIME == 0 && since_ns < price_ns { Some(since_ns) } else { None }
}

/// Counters of hits by thread and class (map `THREAD_HITS`): 512 KiB. Several pairs of thread and class may share one; with 16
/// threads in 24 classes one pair in 170 does.
pub const THREAD_CELLS: u32 = 1 << 16;

/// The counter of a thread's hits of a class. Neighbours in number lie on cache lines of their own, so that threads on different
/// CPUs do not wait for one another.
#[must_use]
#[inline(always)]
pub const fn thread_cell(tid: u32, class: u32) -> u32 {
    // The constants of xxHash, whose low bits matter for the high bits of a product.
    let mixed = tid.wrapping_mul(0x9e37_79b1).wrapping_add(class.wrapping_mul(0x85eb_ca77));
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0xc2b2_ae3d);
    mixed >> 16
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{THREAD_CELLS, end_stamp, same_trap_ns, thread_cell};
    use std::collections::HashSet;

    #[test]
    fn programs_of_one_trap_are_told_by_site_and_time() {
        let (site, other) = (0x7f12_3456_7890, 0x7f12_3456_7895);
        let first = end_stamp(site, 5_000_000_000);
        assert_eq!(same_trap_ns(first, end_stamp(site, 5_000_000_150), 600), Some(150));
        assert_eq!(same_trap_ns(first, end_stamp(site, 5_000_000_600), 600), None, "a hit costs that much");
        assert_eq!(same_trap_ns(first, end_stamp(other, 5_000_000_150), 600), None);
        let wrapped = (1 << 24) + 100;
        assert_eq!(same_trap_ns(end_stamp(site, (1 << 24) - 50), end_stamp(site, wrapped), 600), Some(150));
    }

    #[test]
    fn threads_and_classes_in_a_row_rarely_share_a_counter_or_a_cache_line() {
        let mut cells = HashSet::new();
        let mut shared = 0;
        for tid in 4_000..4_200 {
            for class in 0..24 {
                let cell = thread_cell(tid, class);
                assert!(cell < THREAD_CELLS);
                shared += u32::from(!cells.insert(cell));
            }
        }
        // Of 4,800 pairs; at random n^2 / 2 N = 176.
        assert!(shared < 250, "{shared}");
        let lines: HashSet<u32> = (4_000..4_064).map(|tid| thread_cell(tid, 7) / 8).collect();
        assert!(lines.len() >= 62, "{}", lines.len());
    }
}
