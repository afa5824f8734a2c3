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
    let Some(mut record) = TAKINGS.reserve_bytes(taking_bytes(limit), 0) else {
        count_global!(takings_dropped);
        return;
    };
    let to = record.as_mut_ptr();
    let time_ns = now_ns();
    let store = storage::words();
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

/// Value and status of a word; keeps the value if it is an object.
#[inline(always)]
fn word(
    spec: *const WordSpec,
    place: &Place,
    argument: &impl Fn(u32) -> u64,
    store: *mut ThreadWords,
) -> (u64, u32) {
    // SAFETY: a live map value that the agent wrote before anything was attached.
    let (object, kind) = unsafe { ((*spec).object, (*spec).kind) };
    let (value, status) = match source(spec, place, argument, store) {
        Ok(value) if kind == WORD_STRING => string(spec, value, store),
        Ok(value) => integer(spec, value),
        Err(code) => (0, word_status(code, 0)),
    };
    if object != 0 && !store.is_null() {
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
) -> Result<u64, u32> {
    // SAFETY: as above.
    let (source, number, address) = unsafe { ((*spec).source, (*spec).number, (*spec).address) };
    if source == SOURCE_ADDRESS {
        return Ok(address);
    }
    if source == SOURCE_ARGUMENT {
        if list_lost(place.list, number) {
            return Err(WORD_NO_REGISTER);
        }
        return Ok(argument(u32::from(number)));
    }
    if source == SOURCE_OBJECT {
        let number = u32::from(number) & (MAX_OBJECTS - 1);
        // SAFETY: a map value of this thread only; the mask keeps the number inside the array.
        unsafe {
            if store.is_null() || (*store).seen & (1 << number) == 0 {
                return Err(WORD_NO_OBJECT);
            }
            return Ok(*(&raw const (*store).objects).cast::<u64>().add(number as usize));
        }
    }
    place.result.ok_or(WORD_NO_REGISTER)
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

/// Follows the dereferences of a chain, of which the last one reads `last` bytes. `Err`: the status.
#[inline(always)]
fn follow(spec: *const WordSpec, mut value: u64, last: u32) -> Result<u64, u32> {
    // SAFETY: as above.
    let count = u32::from(unsafe { (*spec).dereferences });
    for i in 0..MAX_DEREFERENCES {
        let depth = i as u32 + 1;
        if depth > count {
            break;
        }
        if value == 0 {
            return Err(word_status(WORD_NULL, depth));
        }
        // SAFETY: as above; `i` lies inside the array.
        let offset = unsafe { *(&raw const (*spec).offsets).cast::<i32>().add(i) };
        let at = value.wrapping_add(i64::from(offset) as u64);
        let bytes = if depth == count { last } else { 8 };
        let mut word = 0_u64;
        // The mask tells the verifier that it fits: 1 to 8 bytes.
        // SAFETY: room for 8 bytes; the helper checks the address itself.
        let failed = unsafe {
            bpf_probe_read_user((&raw mut word).cast(), (bytes.wrapping_sub(1) & 7) + 1, at as *const c_void)
        };
        if failed != 0 {
            return Err(word_status(WORD_UNREADABLE, depth));
        }
        value = word;
    }
    Ok(value)
}

#[inline(always)]
fn integer(spec: *const WordSpec, value: u64) -> (u64, u32) {
    // SAFETY: as above.
    let (bytes, signed) = unsafe { ((*spec).bytes, (*spec).signed) };
    match follow(spec, value, u32::from(bytes)) {
        Ok(value) => (WordSpec::widen(bytes, signed, value), WORD_READ),
        Err(status) => (0, status),
    }
}

/// The length of the string at the end of the chain.
#[inline(always)]
fn string(spec: *const WordSpec, value: u64, store: *mut ThreadWords) -> (u64, u32) {
    let value = match follow(spec, value, 8) {
        Ok(value) => value,
        Err(status) => return (0, status),
    };
    // SAFETY: as above; the mask keeps the number inside the array.
    let (count, offset) = unsafe {
        let count = u32::from((*spec).dereferences) & 7;
        let last = if count as usize > MAX_DEREFERENCES { 0 } else { count };
        (count, *(&raw const (*spec).offsets).cast::<i32>().add(last as usize))
    };
    if value == 0 {
        return (0, word_status(WORD_NULL, count + 1));
    }
    if store.is_null() {
        return (0, word_status(WORD_UNREADABLE, count + 1));
    }
    let at = value.wrapping_add(i64::from(offset) as u64);
    // SAFETY: room for `TEXT_BYTES`; the helper checks the address itself.
    let read = unsafe {
        bpf_probe_read_user_str((&raw mut (*store).text).cast(), TEXT_BYTES as u32, at as *const c_void)
    };
    if read <= 0 {
        (0, word_status(WORD_UNREADABLE, count + 1))
    } else if read as usize >= TEXT_BYTES {
        (0, word_status(WORD_TOO_LONG, count + 1))
    } else {
        (read as u64 - 1, WORD_READ)
    }
}
