//! Takes words of the target's memory by a list (`profiler_common::words`).
//!
//! All reads are those of `bpf_probe_read_user`, which never faults a page in: what is not resident, not mapped or no address at all is
//! marked. Each word is what stood there when it was read; a chain of dereferences is several reads, between which the target may
//! change what the next one finds.

use crate::maps::{NO_WAKEUP, TAKINGS, WORD_LIMIT, count_global, current_ids, now_ns, word_spec};
use crate::storage::{self, TEXT_BYTES, ThreadWords};
use aya_ebpf::helpers::generated::{bpf_probe_read_user, bpf_probe_read_user_str};
use core::ffi::c_void;
use core::mem::size_of;
use profiler_common::words::{
    MAX_DEREFERENCES, MAX_OBJECTS, MAX_WORDS, SOURCE_ADDRESS, SOURCE_ARGUMENT, SOURCE_OBJECT, TakenWord,
    TakingHeader, WORD_NO_OBJECT, WORD_NO_REGISTER, WORD_NULL, WORD_READ, WORD_STRING, WORD_TOO_LONG,
    WORD_UNREADABLE, WordSpec, list_count, list_first, list_lost, taking_bytes, word_status,
};

/// Where words are taken.
pub struct Place {
    /// The list; 0: none.
    pub list: u32,
    /// `TAKEN_AT_*`.
    pub kind: u32,
    /// Class of the function or of the operation.
    pub class: u32,
    /// Operation, or `NO_OPERATION`.
    pub operation: u32,
    /// The result, if it is known.
    pub result: Option<u64>,
}

/// The words of this run are none: what follows is cut out by the verifier.
#[inline(always)]
pub fn are_taken() -> bool {
    WORD_LIMIT.load() != 0
}

/// Reads the words of a list and sends them. `begin`: gives the begin of the call or operation, ktime ns, when all words are read, so that
/// what reading takes lies before it.
#[inline(always)]
pub fn take(place: &Place, argument: impl Fn(u32) -> u64, begin: impl FnOnce() -> u64) {
    let limit = WORD_LIMIT.load();
    // Constants for the verifier, which wants the size to be one.
    if limit == 0 || limit > MAX_WORDS || place.list == 0 {
        return;
    }
    // Before there is a place in the ring, which would have to be given back.
    let store = storage::words();
    if store.is_null() {
        count_global!(takings_dropped);
        return;
    }
    let Some(mut record) = TAKINGS.reserve_bytes(taking_bytes(limit), 0) else {
        // What the list would have named stays unknown, rather than what it was before.
        // SAFETY: a live map value, of this thread only.
        unsafe { (*store).seen = 0 };
        count_global!(takings_dropped);
        return;
    };
    let to = record.as_mut_ptr();
    let time_ns = now_ns();
    let (first, count) = (list_first(place.list), list_count(place.list));
    let mut taken = 0;
    for i in 0..MAX_WORDS {
        // Two conditions, of which the compiler cannot make one: the verifier knows only the first.
        if i >= WORD_LIMIT.load() || i >= count {
            break;
        }
        let number = first + i;
        let Some(spec) = word_spec(number) else { break };
        let (value, status) = word(spec, place, &argument, store);
        // SAFETY: `i` is below the limit that the size of the record was made of.
        unsafe {
            to.add(size_of::<TakingHeader>() + i as usize * size_of::<TakenWord>())
                .cast::<TakenWord>()
                .write(TakenWord { value, word: number, status });
        }
        taken = i + 1;
    }
    let (pid, tid) = current_ids();
    let until_ns = now_ns();
    let header = TakingHeader {
        time_ns,
        until_ns,
        begin_ns: begin(),
        class: place.class,
        operation: place.operation,
        pid,
        tid,
        kind: place.kind,
        words: taken,
    };
    // SAFETY: the record begins with the header.
    unsafe { to.cast::<TakingHeader>().write(header) };
    record.submit(NO_WAKEUP);
}

/// The same numbers, of which the verifier knows nothing: what follows is explored once, whatever way led there.
#[inline(always)]
fn forget(store: *mut ThreadWords, value: u64, status: u32) -> (u64, u32) {
    // SAFETY: a map value of this thread only.
    unsafe {
        let scratch = (&raw mut (*store).scratch).cast::<u64>();
        scratch.write_volatile(value);
        scratch.add(1).write_volatile(u64::from(status));
        // OK because it was a number of 32 bits.
        (scratch.read_volatile(), scratch.add(1).read_volatile() as u32)
    }
}

/// A field of a word, read anew wherever it is wanted: what a branch before has shown of it would part the verifier's states.
macro_rules! field {
    ($spec:expr, $name:ident) => {
        // SAFETY: a live map value that the agent wrote before anything was attached.
        unsafe { (&raw const (*$spec).$name).read_volatile() }
    };
}

/// Value and status of a word; keeps the value if it is an object.
#[inline(always)]
fn word(
    spec: *const WordSpec,
    place: &Place,
    argument: &impl Fn(u32) -> u64,
    store: *mut ThreadWords,
) -> (u64, u32) {
    let (value, status) = source(spec, place, argument, store);
    let (mut value, mut status) = forget(store, value, status);
    if status == WORD_READ {
        (value, status) = follow(spec, value);
        (value, status) = forget(store, value, status);
    }
    if status == WORD_READ {
        (value, status) =
            if field!(spec, kind) == WORD_STRING { string(spec, value, store) } else { integer(spec, value) };
        (value, status) = forget(store, value, status);
    }
    let object = field!(spec, object);
    if object != 0 {
        remember(store, u32::from(object) - 1, value, status == WORD_READ);
    }
    (value, status)
}

/// Where the chain begins.
#[inline(always)]
fn source(
    spec: *const WordSpec,
    place: &Place,
    argument: &impl Fn(u32) -> u64,
    store: *mut ThreadWords,
) -> (u64, u32) {
    let (source, number) = (field!(spec, source), field!(spec, number));
    if source == SOURCE_ADDRESS {
        return (field!(spec, address), WORD_READ);
    }
    if source == SOURCE_ARGUMENT {
        if list_lost(place.list, number) {
            return (0, WORD_NO_REGISTER);
        }
        return (argument(u32::from(number)), WORD_READ);
    }
    if source == SOURCE_OBJECT {
        let number = u32::from(number) & (MAX_OBJECTS - 1);
        // SAFETY: a map value of this thread only; the mask keeps the number inside the array.
        unsafe {
            if (*store).seen & (1 << number) == 0 {
                return (0, WORD_NO_OBJECT);
            }
            return (*(&raw const (*store).objects).cast::<u64>().add(number as usize), WORD_READ);
        }
    }
    place.result.map_or((0, WORD_NO_REGISTER), |result| (result, WORD_READ))
}

/// The thread has seen this object, or does not know it any more.
#[inline(always)]
fn remember(store: *mut ThreadWords, number: u32, value: u64, read: bool) {
    let number = number & (MAX_OBJECTS - 1);
    // SAFETY: as above.
    unsafe {
        if read {
            *(&raw mut (*store).objects).cast::<u64>().add(number as usize) = value;
            (*store).seen |= 1 << number;
        } else {
            (*store).seen &= !(1 << number);
        }
    }
}

/// Follows the dereferences of a chain. The last one reads as many bytes as an integer has.
#[inline(always)]
fn follow(spec: *const WordSpec, mut value: u64) -> (u64, u32) {
    for i in 0..MAX_DEREFERENCES {
        let depth = i as u32 + 1;
        if depth > u32::from(field!(spec, dereferences)) {
            break;
        }
        if value == 0 {
            return (0, word_status(WORD_NULL, depth));
        }
        // SAFETY: a live map value; `i` lies inside the array.
        let offset = unsafe { (&raw const (*spec).offsets).cast::<i32>().add(i).read_volatile() };
        let at = value.wrapping_add(i64::from(offset) as u64);
        let is_last = depth == u32::from(field!(spec, dereferences));
        let bytes =
            if is_last && field!(spec, kind) != WORD_STRING { u32::from(field!(spec, bytes)) } else { 8 };
        let mut word = 0_u64;
        // The mask tells the verifier that it fits: 1 to 8 bytes.
        // SAFETY: room for 8 bytes; the helper checks the address itself.
        let failed = unsafe {
            bpf_probe_read_user((&raw mut word).cast(), (bytes.wrapping_sub(1) & 7) + 1, at as *const c_void)
        };
        if failed != 0 {
            return (0, word_status(WORD_UNREADABLE, depth));
        }
        value = word;
    }
    (value, WORD_READ)
}

#[inline(always)]
fn integer(spec: *const WordSpec, value: u64) -> (u64, u32) {
    (WordSpec::widen(field!(spec, bytes), field!(spec, signed), value), WORD_READ)
}

/// The length of the string at the end of the chain.
#[inline(always)]
fn string(spec: *const WordSpec, value: u64, store: *mut ThreadWords) -> (u64, u32) {
    let depth = u32::from(field!(spec, dereferences)) + 1;
    if value == 0 {
        return (0, word_status(WORD_NULL, depth));
    }
    let last = u32::from(field!(spec, dereferences)) & 7;
    // SAFETY: a live map value; with the mask the offset lies inside it, and the agent writes four dereferences at most.
    let offset = unsafe { (&raw const (*spec).offsets).cast::<i32>().add(last as usize).read_volatile() };
    let at = value.wrapping_add(i64::from(offset) as u64);
    // SAFETY: room for `TEXT_BYTES`; the helper checks the address itself.
    let read = unsafe {
        bpf_probe_read_user_str((&raw mut (*store).text).cast(), TEXT_BYTES as u32, at as *const c_void)
    };
    if read <= 0 {
        (0, word_status(WORD_UNREADABLE, depth))
    } else if read as usize >= TEXT_BYTES {
        (0, word_status(WORD_TOO_LONG, depth))
    } else {
        (read as u64 - 1, WORD_READ)
    }
}
