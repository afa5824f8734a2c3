//! The stack of open calls that a thread carries, in its task storage (map `THREADS`).
//!
//! Only the programs write it. The agent reads it when a window is over, for the calls that have not ended.

use crate::presence::Presence;
use crate::step::StepMark;
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
/// [`CallFrame::generation`] carries this bit when the arguments of the call are in the thread's storage.
pub const HAS_ARGUMENTS: u32 = 1 << 29;
/// [`CallFrame::generation`] carries this bit when the thread's account at the begin of the call is in its storage.
pub const HAS_CONTEXT: u32 = 1 << 28;
/// [`CallFrame::generation`] carries this bit beside [`RETURN_LINK`] when the return is that of the frame below: the same call of the same
/// function, which several classes watch.
pub const SHARED_LINK: u32 = 1 << 27;
/// [`CallFrame::generation`] carries this bit when words are taken of the call ([`words`](crate::words)).
pub const HAS_WORDS: u32 = 1 << 26;
/// The generation in [`CallFrame::generation`].
pub const GENERATION: u32 = HAS_WORDS - 1;

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
    /// The thread's steps when it began.
    pub steps: StepMark,
}
wire_type!(OpenOperation, size 136, align 8);

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
    /// Steps without a record so far: the ring was full.
    pub steps_lost: u32,
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
    /// The last trap at the end of a call.
    pub trap: Trap,
    /// Steps in recorded operations so far ([`StepRecord::number`](crate::step::StepRecord::number)).
    pub steps: u64,
}
wire_type!(ThreadState, size 4256, align 8);

/// A trap at the end of calls. It runs the programs of all classes that have a site there, one after the other, and is paid once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Trap {
    /// Low bits of the instruction pointer.
    pub ip: u32,
    /// When its last program so far began, low bits of ktime, ns.
    pub last_ns: u32,
    /// The class whose program ran first.
    pub class: u32,
    /// What it was charged: the price of a hit of that class, ns.
    pub price_ns: u32,
    /// The thread's monitoring cost before the trap, and what its programs before the last one took, ns.
    pub cost_ns: u64,
}
wire_type!(Trap, size 24, align 8);

/// A program that runs where calls end.
#[derive(Debug, Clone, Copy)]
pub struct EndProgram {
    /// Instruction pointer.
    pub ip: u64,
    /// When it began, ktime ns.
    pub time_ns: u64,
    /// Its class.
    pub class: u32,
    /// Price of a hit of the class, ns.
    pub price_ns: u32,
    /// How long the call that it ends was open, ns; `u64::MAX`: it ends none.
    pub open_ns: u64,
}

impl Trap {
    /// A program runs on a thread that monitoring has cost `cost_ns`. What is to be added to that, ns: its price where a trap begins; else
    /// what the program before it took. Then [`cost_ns`](Self::cost_ns) is what monitoring had cost before this program.
    ///
    /// Programs that follow one another in less time than a hit costs are taken to be of one trap. The price of a class may be that of its
    /// dearest sites, and longer than the way from one trap to the next. But all traps of a site run the same programs in the same order, so
    /// that the class that began this trap begins the next one; and no call ends in a trap before its begin.
    #[inline(always)]
    pub const fn note(&mut self, program: &EndProgram, cost_ns: u64) -> u32 {
        let EndProgram { class, price_ns, open_ns, .. } = *program;
        // OK because the casts keep the low bits.
        let (ip, time_ns) = (program.ip as u32, program.time_ns as u32);
        let since_ns = time_ns.wrapping_sub(self.last_ns);
        let soon = since_ns < price_ns && since_ns < self.price_ns && (since_ns as u64) < open_ns;
        if soon && self.ip == ip && self.class != class {
            self.last_ns = time_ns;
            self.cost_ns = self.cost_ns.wrapping_add(since_ns as u64);
            return since_ns;
        }
        *self = Self { ip, last_ns: time_ns, class, price_ns, cost_ns };
        price_ns
    }
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
    use super::{EndProgram, THREAD_CELLS, Trap, thread_cell};
    use std::collections::HashSet;
    use std::vec;
    use std::vec::Vec;

    const SITE: u64 = 0x7f12_3456_7890;

    /// A program that ends no call.
    fn at(time_ns: u64, class: u32, price_ns: u32) -> EndProgram {
        EndProgram { ip: SITE, time_ns, class, price_ns, open_ns: u64::MAX }
    }

    /// What monitoring costs a thread that runs these programs, and what it had cost before each.
    fn cost(programs: &[EndProgram]) -> (u64, Vec<u64>) {
        let (mut trap, mut cost_ns, mut before) = (Trap::default(), 1_000, Vec::new());
        for program in programs {
            cost_ns += u64::from(trap.note(program, cost_ns));
            before.push(trap.cost_ns - 1_000);
        }
        (cost_ns - 1_000, before)
    }

    #[test]
    fn a_trap_is_charged_once_at_the_price_of_its_first_class() {
        const T: u64 = 5_000_000_000;
        for (first, second) in [(600, 10_000), (10_000, 600), (600, 600)] {
            let programs = [at(T, 7, first), at(T + 150, 8, second), at(T + 250, 9, second)];
            assert_eq!(cost(&programs), (u64::from(first) + 250, vec![0, 150, 250]));
        }
        let apart = (1_200, vec![0, 600]);
        assert_eq!(cost(&[at(T, 7, 600), at(T + 600, 8, 600)]), apart, "a hit costs that much");
        let elsewhere = EndProgram { ip: SITE + 0x100, ..at(T + 150, 8, 600) };
        assert_eq!(cost(&[at(T, 7, 600), elsewhere]), apart);
        let began_later = EndProgram { open_ns: 140, ..at(T + 150, 8, 600) };
        assert_eq!(cost(&[at(T, 7, 600), began_later]), apart);
        let wraps = [at((1 << 32) - 50, 7, 600), at((1 << 32) + 100, 8, 600)];
        assert_eq!(cost(&wraps), (750, vec![0, 150]));
    }

    #[test]
    fn traps_in_a_row_are_no_single_one_however_dear_their_class_is() {
        let alone: Vec<_> = (1..5).map(|n| at(n * 3_000, 7, 10_000)).collect();
        assert_eq!(cost(&alone), (40_000, vec![0, 10_000, 20_000, 30_000]));
        let two = |prices: [u32; 2]| {
            let of = |n: u64| [at(n * 3_000, 7, prices[0]), at(n * 3_000 + 150, 8, prices[1])];
            cost(&(1..3).flat_map(of).collect::<Vec<_>>())
        };
        assert_eq!(two([600, 10_000]), (1_500, vec![0, 150, 750, 900]));
        assert_eq!(two([10_000, 10_000]), (20_300, vec![0, 150, 10_150, 10_300]));
        // An interrupt parts the two once. The next trap is whole again.
        let parted = [at(0, 7, 10_000), at(900, 8, 600), at(3_000, 7, 10_000), at(3_150, 8, 600)];
        assert_eq!(cost(&parted), (20_750, vec![0, 10_000, 10_600, 10_750]));
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
