//! Words of the target's memory: what the programs copy at begins and ends of recorded calls and operations.
//!
//! The agent writes a list of [`WordSpec`]s; the programs evaluate each and send what they found as a *taking*. They know no meaning: a
//! word is an address or a register, up to four dereferences, and a width.

use crate::wire_type;

/// Words that all lists of a run hold together (map `WORDS`).
pub const MAX_WORDS: u32 = 64;
/// Dereferences of a word.
pub const MAX_DEREFERENCES: usize = 4;
/// Length of the longest string whose length is told, bytes without the NUL.
pub const MAX_STRING: u64 = 4096;
/// Objects that a thread remembers.
pub const MAX_OBJECTS: u32 = 16;

/// `WordSpec::source`: [`WordSpec::address`].
pub const SOURCE_ADDRESS: u8 = 0;
/// `WordSpec::source`: argument register [`WordSpec::number`] of the call, as it was at its entry site.
pub const SOURCE_ARGUMENT: u8 = 1;
/// `WordSpec::source`: the result, where the end is seen by a return link.
pub const SOURCE_RESULT: u8 = 2;
/// `WordSpec::source`: the object [`WordSpec::number`] that this thread saw last.
pub const SOURCE_OBJECT: u8 = 3;

/// `WordSpec::kind`: an integer of `WordSpec::bytes` bytes.
pub const WORD_INTEGER: u8 = 0;
/// `WordSpec::kind`: the length of the string there.
pub const WORD_STRING: u8 = 1;

/// How one word is found (map `WORDS`).
///
/// With `v` the source and `n` dereferences: `v = *(v + offsets[i])` for each `i < n`, of which the last reads `bytes` bytes where the
/// kind is an integer. Without dereferences an integer is cut out of the register. A string begins at `v + offsets[n]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct WordSpec {
    /// Of [`SOURCE_ADDRESS`].
    pub address: u64,
    /// Offsets of the dereferences, and of the string, bytes.
    pub offsets: [i32; MAX_DEREFERENCES + 1],
    /// `SOURCE_*`.
    pub source: u8,
    /// Of the argument (from 0) or of the object.
    pub number: u8,
    /// How many.
    pub dereferences: u8,
    /// `WORD_*`.
    pub kind: u8,
    /// Width, bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// 1: the value has a sign.
    pub signed: u8,
    /// The value becomes this object of the thread, from 1; 0: it does not.
    pub object: u8,
    /// Keep the size a power of two, which the kernel indexes by a shift.
    pub reserved: [u8; 29],
}
wire_type!(WordSpec, size 64, align 8);

impl WordSpec {
    /// Widens the low `bytes` bytes of a value to 64 bits.
    #[must_use]
    #[inline(always)]
    pub const fn widen(bytes: u8, signed: u8, value: u64) -> u64 {
        let unused = (64 - 8 * bytes as u32) & 63;
        let high = value << unused;
        // OK because the casts keep all bits: only the shift differs.
        if signed != 0 { ((high as i64) >> unused) as u64 } else { high >> unused }
    }
}

/// A list: `count` words from number `first` on, and the argument registers (a bit each) that do not hold what the caller passed at this
/// site. 0: no list.
#[must_use]
pub const fn word_list(first: u8, count: u8, lost: u8) -> u32 {
    if count == 0 { 0 } else { first as u32 | (count as u32) << 8 | (lost as u32) << 16 }
}

/// Number of the first word of a [`word_list`].
#[must_use]
#[inline(always)]
pub const fn list_first(list: u32) -> u32 {
    list & 0xff
}

/// Words of a [`word_list`].
#[must_use]
#[inline(always)]
pub const fn list_count(list: u32) -> u32 {
    (list >> 8) & 0xff
}

/// Argument `k` is lost at the site of a [`word_list`].
#[must_use]
#[inline(always)]
pub const fn list_lost(list: u32, k: u8) -> bool {
    list >> (16 + (k & 7)) & 1 != 0
}

/// `TakingHeader::kind`: at the begin of a call or an operation.
pub const TAKEN_AT_BEGIN: u32 = 0;
/// `TakingHeader::kind`: at its end.
pub const TAKEN_AT_END: u32 = 1;

/// Ring `TAKINGS`: words that were taken at one hit; [`TakenWord`]s follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TakingHeader {
    /// Before the first word was read, ktime ns.
    pub time_ns: u64,
    /// After the last was read, ktime ns: each stood there at some moment between the two.
    pub until_ns: u64,
    /// Begin of the recorded call or operation, ktime ns: with thread and class it names the call.
    pub begin_ns: u64,
    /// Class of the function, or of the operation.
    pub class: u32,
    /// Operation, or [`NO_OPERATION`](crate::class::NO_OPERATION) at a call.
    pub operation: u32,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// `TAKEN_AT_*`.
    pub kind: u32,
    /// How many words follow that say something.
    pub words: u32,
}
wire_type!(TakingHeader, size 48, align 8);

/// One word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TakenWord {
    /// The value, widened to 64 bits; 0 where the status is not [`WORD_READ`].
    pub value: u64,
    /// Number of its [`WordSpec`].
    pub word: u32,
    /// [`word_status`].
    pub status: u32,
}
wire_type!(TakenWord, size 16, align 8);

/// The value was read.
pub const WORD_READ: u32 = 0;
/// A pointer in the chain was null.
pub const WORD_NULL: u32 = 1;
/// Memory of the chain could not be read: it is not mapped, not resident, or no address of the target at all.
pub const WORD_UNREADABLE: u32 = 2;
/// The string is longer than [`MAX_STRING`].
pub const WORD_TOO_LONG: u32 = 3;
/// The argument or the result is not known at this site.
pub const WORD_NO_REGISTER: u32 = 4;
/// The thread has not seen the object.
pub const WORD_NO_OBJECT: u32 = 5;

/// What became of a word (`WORD_*`), and at which dereference, from 1; 0: at the source. A string is read by one more.
#[must_use]
#[inline(always)]
pub const fn word_status(code: u32, depth: u32) -> u32 {
    code | depth << 8
}

/// Code and dereference of a [`word_status`].
#[must_use]
pub const fn status_parts(status: u32) -> (u32, u32) {
    (status & 0xff, status >> 8)
}

/// Bytes of a record in the ring where the longest list has `words` words.
#[must_use]
pub const fn taking_bytes(words: u32) -> usize {
    size_of::<TakingHeader>() + words as usize * size_of::<TakenWord>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_widened_by_their_sign() {
        let widen = |bytes, signed, value| WordSpec::widen(bytes, signed, value) as i64;
        let dirty = 0xfedc_ba98_89f0_f1f9;
        assert_eq!(widen(1, 1, dirty), -7);
        assert_eq!(widen(1, 0, dirty), 0xf9);
        assert_eq!(widen(2, 1, dirty), i64::from(0xf1f9_u16 as i16));
        assert_eq!(widen(2, 0, dirty), 0xf1f9);
        assert_eq!(widen(4, 1, dirty), i64::from(0x89f0_f1f9_u32 as i32));
        assert_eq!(widen(4, 0, dirty), 0x89f0_f1f9);
        assert_eq!(widen(8, 0, dirty), dirty as i64);
        assert_eq!(widen(8, 1, dirty), dirty as i64);
    }

    #[test]
    fn lists_and_statuses_come_apart_again() {
        let list = word_list(60, 4, 0b10_0001);
        assert_eq!((list_first(list), list_count(list)), (60, 4));
        let lost: u8 = (0..6).filter(|k| list_lost(list, *k)).map(|k| 1 << k).sum();
        assert_eq!(lost, 0b10_0001);
        assert_eq!(word_list(7, 0, 0x3f), 0);
        assert_eq!(status_parts(word_status(WORD_UNREADABLE, 4)), (WORD_UNREADABLE, 4));
        assert_eq!(taking_bytes(64), 48 + 1024);
    }
}
