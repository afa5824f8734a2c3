//! Control, quota and counters of one event class.

use crate::presence::Presence;
use crate::{wire_enum, wire_type};

wire_enum! {
    /// What the programs keep of a hit.
    ClassKind, "class kind" {
        /// Nothing yet: hits are gated.
        Off = 0,
        /// Counters only.
        Count = 1,
        /// Counters, sum of durations, histogram.
        Latency = 2,
        /// As latency, and a record per call.
        Record = 3,
        /// Counters, and a record per entry ([`step`](crate::step)).
        Step = 4,
    }
}

/// `ClassControl::histogram` of a class that leases none.
pub const NO_HISTOGRAM: u32 = u32::MAX;
/// Flag: count only hits of processes in the `TARGETS` map; others are gated and counted as bystanders.
pub const FLAG_FILTER_TARGETS: u32 = 1;
/// Flag: records carry the six integer argument registers as they were at the entry site.
pub const FLAG_ARGUMENTS: u32 = 2;
/// Flag: no quota is taken (calibration and tests; a class of a target always has a quota).
pub const FLAG_NO_QUOTA: u32 = 4;
/// Flag: hits are gated unless the thread is in a recorded operation.
pub const FLAG_INSIDE: u32 = 8;
/// Flag, beside [`FLAG_INSIDE`]: calls count as inner calls of the operation.
pub const FLAG_INNER_CALL: u32 = 16;
/// Flag: hits are counted by thread as well ([`thread_cell`](crate::thread::thread_cell)).
pub const FLAG_BY_THREAD: u32 = 32;
/// Flag: return addresses of hits that are let in are learned ([`caller`](crate::caller)).
pub const FLAG_LEARN_CALLERS: u32 = 64;

/// Flag: records of calls whose end is seen carry what the kernel counted for the thread inside them ([`context`](crate::context)).
pub const FLAG_CONTEXT: u32 = 128;

/// Flag: words of the target are taken with each record ([`words`](crate::words)).
pub const FLAG_WORDS: u32 = 256;

/// [`ClassControl::operation`] of a class that bounds none.
pub const NO_OPERATION: u32 = u32::MAX;

/// Numbers that the programs evaluate for each hit of a class. The agent computes them; the programs choose none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ClassControl {
    /// A [`ClassKind`].
    pub kind: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Number of the attachment: open calls of an earlier one are forgotten, not counted as unwound.
    pub generation: u32,
    /// First histogram slot, or [`NO_HISTOGRAM`].
    pub histogram: u32,
    /// A hit is gated when a uniform 32-bit random number lies below this; 0 gates none.
    pub skip_below: u32,
    /// Price of one entry hit, ns: added to the monitoring cost of the calls that are open on the thread.
    /// 0: none is.
    pub hit_cost_ns: u32,
    /// Price of one return or exit hit, ns; likewise.
    pub return_cost_ns: u32,
    /// Part of a call's own monitoring cost that lies between its two time stamps, ns.
    pub own_cost_ns: u32,
    /// Operation that the class bounds, or [`NO_OPERATION`].
    pub operation: u32,
    /// What a call adds to the measure of the operation that it lies in: 0 nothing, 1 + k the argument register k,
    /// [`MEASURE_CALLS`](crate::operation::MEASURE_CALLS) 1.
    pub measure: u32,
    /// Where the argument that names the class of an operation lies at this begin ([`register_word`]); 0: in the argument
    /// register that the operation says.
    pub argument: u32,
    /// The same of the argument behind it: the length of a slice.
    pub argument_next: u32,
    /// Classes of one function have the same number here; 0: there is no other class of its function. One call then runs the programs of several.
    pub function: u32,
    /// Of an inner function: operations that it begins or ends itself, one bit each. The calls that do so lie not inside those.
    pub bounds: u32,
    /// With [`FLAG_WORDS`]: the [`word_list`](crate::words::word_list) that is taken at the begin of a recorded call; 0: none.
    pub words_begin: u32,
    /// The same at its end.
    pub words_end: u32,
}
wire_type!(ClassControl, size 64, align 4);

/// Set in every [`register_word`], so that no word of a register is 0.
const REGISTER_GIVEN: u32 = 1 << 31;
/// Set where the value has a sign.
const REGISTER_SIGNED: u32 = 1 << 16;

/// A value in a register: its low `bytes` bytes (1, 2, 4 or 8), found `offset` bytes into the kernel's `pt_regs`.
#[must_use]
pub const fn register_word(offset: u8, bytes: u8, signed: bool) -> u32 {
    let bits = 64 - 8 * bytes as u32;
    REGISTER_GIVEN | offset as u32 | bits << 8 | if signed { REGISTER_SIGNED } else { 0 }
}

/// Offset in `pt_regs` of a [`register_word`].
#[must_use]
#[inline(always)]
pub const fn register_offset(word: u32) -> u64 {
    word as u64 & 0xff
}

/// The value of a [`register_word`], cut out of the whole register and widened to 64 bits.
#[must_use]
#[inline(always)]
pub const fn register_value(word: u32, register: u64) -> u64 {
    let bits = (word >> 8) & 63;
    let high = register << bits;
    // OK because the casts keep all bits: only the shift differs.
    if word & REGISTER_SIGNED != 0 { ((high as i64) >> bits) as u64 } else { high >> bits }
}

impl ClassControl {
    /// A class of that kind with no histogram, no gate and no prices.
    #[must_use]
    pub const fn new(kind: ClassKind) -> Self {
        Self {
            kind: kind as u32,
            flags: 0,
            generation: 0,
            histogram: NO_HISTOGRAM,
            skip_below: 0,
            hit_cost_ns: 0,
            return_cost_ns: 0,
            own_cost_ns: 0,
            operation: NO_OPERATION,
            measure: 0,
            argument: 0,
            argument_next: 0,
            function: 0,
            bounds: 0,
            words_begin: 0,
            words_end: 0,
        }
    }
}

/// Hits left in the present interval, on a cache line of its own: taken by atomic subtraction from all CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Quota {
    /// Hits left; the hit that takes the last one raises an alarm; 0 and below: hits are gated.
    pub remaining: i64,
    /// The same of hits at return sites, where others than the class's own calls may come by. They are not gated: a call that was let in
    /// is to have its end.
    pub ends: i64,
    /// When the first hit was let in, ktime ns; 0: none was; [`RAN_KNOWN`]: a thread took the first and the last hit of the quota
    /// on one CPU.
    pub first_ns: u64,
    /// The account of the thread that took the first hit, its id in the upper half of `cpu`. With [`RAN_KNOWN`] `used_ns` is how long
    /// it ran from the first hit to the last, ns.
    pub first: Presence,
}
wire_type!(Quota, size 64, align 64);

/// [`Quota::first_ns`]: see there.
pub const RAN_KNOWN: u64 = u64::MAX;

/// Hits that find the quota used up repeat the alarm once in so many, so that a lost alarm is not fatal.
pub const ALARM_REPEAT: i64 = 1024;

/// What return-address sites add to the counters of a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallerCounters {
    /// Part of `kept` that is not timed: calls from a return address without a return site.
    pub untimed: u64,
    /// Hits whose return address could not be learned: no room, or none could be read.
    pub unlearned: u64,
    /// Hits at return sites that ended no call on record: somebody else came by, or the call is not timed.
    pub strays: u64,
    /// Hits at return sites: `returns`, `orphans` and `strays`.
    pub ends: u64,
}
wire_type!(CallerCounters, size 32, align 8);

impl CallerCounters {
    fn add(&mut self, other: &Self) {
        self.untimed = self.untimed.wrapping_add(other.untimed);
        self.unlearned = self.unlearned.wrapping_add(other.unlearned);
        self.strays = self.strays.wrapping_add(other.strays);
        self.ends = self.ends.wrapping_add(other.ends);
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            untimed: self.untimed.wrapping_sub(earlier.untimed),
            unlearned: self.unlearned.wrapping_sub(earlier.unlearned),
            strays: self.strays.wrapping_sub(earlier.strays),
            ends: self.ends.wrapping_sub(earlier.ends),
        }
    }
}

/// Counters of one class, kept in stripes that the agent adds up.
///
/// Every hit bumps exactly one of `kept`, `gated` and `dropped` (one atomic add less per hit than counting attempts
/// beside them), and `attempted` is their sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ClassCounters {
    /// Entry hits that reached the program: the sum of the next three. The programs leave it zero;
    /// [`add`](Self::add) makes it.
    pub attempted: u64,
    /// Entry hits counted, and for records whose call has been or will be recorded.
    pub kept: u64,
    /// Entry hits turned away: quota used up, skipped at random, class off, bystander.
    pub gated: u64,
    /// Entry hits lost: no room for the open call, or its record found the ring full.
    pub dropped: u64,
    /// Calls whose end was seen.
    pub returns: u64,
    /// Calls whose frame was left without passing an exit.
    pub unwound: u64,
    /// Calls whose return was left out because too many return links were pending on the thread.
    pub omitted: u64,
    /// Ends whose begin is not on record: the call was open when the class was attached, or was gated at an exit-site
    /// pair.
    pub orphans: u64,
    /// Sum of the durations of `returns`, ns, uncorrected.
    pub sum_ns: u64,
    /// Monitoring cost inside those durations, ns.
    pub nested_cost_ns: u64,
    /// Largest duration, ns.
    pub max_ns: u64,
    /// Part of `gated` that came from processes that are not targets.
    pub bystanders: u64,
    /// Of return-address sites. With it the size is a power of two, which the kernel indexes by a shift.
    pub callers: CallerCounters,
}
wire_type!(ClassCounters, size 128, align 8);

impl ClassCounters {
    /// Adds another stripe: sums wrap (a stripe may be "negative" where an entry was counted on one CPU and taken
    /// back on another), the maximum is the larger one.
    pub fn add(&mut self, other: &Self) {
        let sum = |a: &mut u64, b: u64| *a = a.wrapping_add(b);
        sum(&mut self.kept, other.kept);
        sum(&mut self.gated, other.gated);
        sum(&mut self.dropped, other.dropped);
        self.attempted = self.kept.wrapping_add(self.gated).wrapping_add(self.dropped);
        sum(&mut self.returns, other.returns);
        sum(&mut self.unwound, other.unwound);
        sum(&mut self.omitted, other.omitted);
        sum(&mut self.orphans, other.orphans);
        sum(&mut self.sum_ns, other.sum_ns);
        sum(&mut self.nested_cost_ns, other.nested_cost_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        sum(&mut self.bystanders, other.bystanders);
        self.callers.add(&other.callers);
    }

    /// What was counted since `earlier`. The maximum is not a difference: it is that of the whole time.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            attempted: self.attempted.wrapping_sub(earlier.attempted),
            kept: self.kept.wrapping_sub(earlier.kept),
            gated: self.gated.wrapping_sub(earlier.gated),
            dropped: self.dropped.wrapping_sub(earlier.dropped),
            returns: self.returns.wrapping_sub(earlier.returns),
            unwound: self.unwound.wrapping_sub(earlier.unwound),
            omitted: self.omitted.wrapping_sub(earlier.omitted),
            orphans: self.orphans.wrapping_sub(earlier.orphans),
            sum_ns: self.sum_ns.wrapping_sub(earlier.sum_ns),
            nested_cost_ns: self.nested_cost_ns.wrapping_sub(earlier.nested_cost_ns),
            max_ns: self.max_ns,
            bystanders: self.bystanders.wrapping_sub(earlier.bystanders),
            callers: self.callers.since(&earlier.callers),
        }
    }

    /// Calls that are open: `kept - returns - unwound - omitted - untimed`, never below zero (reads are not atomic together).
    #[must_use]
    pub fn open(&self) -> u64 {
        let over = self.returns.wrapping_add(self.unwound).wrapping_add(self.omitted);
        self.kept.saturating_sub(over.wrapping_add(self.callers.untimed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_cut_out_of_registers() {
        let value = |bytes, signed, register| register_value(register_word(112, bytes, signed), register);
        let dirty = 0xfedc_ba98_ffff_fff9;
        assert_eq!(value(8, false, dirty), dirty);
        assert_eq!(value(8, true, dirty), dirty);
        assert_eq!(value(4, true, dirty) as i64, -7);
        assert_eq!(value(4, false, dirty), 0xffff_fff9);
        assert_eq!(value(2, true, dirty) as i64, -7);
        assert_eq!(value(1, false, dirty), 0xf9);
        assert_eq!(value(1, true, 0x1234_5678), 0x78);
    }

    #[test]
    fn every_register_has_a_word_of_its_own_that_is_not_zero() {
        for offset in (0..=160).step_by(8) {
            let word = register_word(offset, 8, false);
            assert_ne!(word, 0);
            assert_eq!(register_offset(word), u64::from(offset));
        }
    }
}
