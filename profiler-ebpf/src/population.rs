//! What all operations of a class took, recorded or not: sums, and a histogram.

use crate::atomic::{add, fetch_add, take_free};
use crate::class::count;
use crate::maps::{max_operation_histograms, operation_class, operation_histogram, operation_state};
use profiler_common::histogram::{SLOT_BUCKETS, bucket};
use profiler_common::operation::{NO_HISTOGRAM_LEFT, Sums, square};

/// Adds a value.
#[inline(always)]
pub fn tally(sums: *mut Sums, value: u64) {
    let (low, high) = square(value);
    count!(sums, n, 1);
    count!(sums, sum, value);
    if low != 0 {
        count!(sums, squares_low, low);
    }
    if high != 0 {
        count!(sums, squares_high, high);
    }
}

/// Counts a response time in the histogram of its class.
#[inline(always)]
pub fn count_duration(class: u32, duration_ns: u64) {
    let Some(numbers) = operation_class(class) else { return };
    // SAFETY: a live map value.
    let word = unsafe { &raw mut (*numbers).histogram };
    // SAFETY: as above; only programs write it, once.
    let mut number = unsafe { word.read_volatile() };
    if number == 0 {
        number = give(word);
    }
    if number == NO_HISTOGRAM_LEFT {
        return;
    }
    let index = bucket(duration_ns);
    // OK because as many histograms as there are fit into 32 bits.
    if let Some(slot) = operation_histogram(number as u32 - 1, index / SLOT_BUCKETS as u32) {
        // SAFETY: the index lies inside the slot.
        add(unsafe { (&raw mut (*slot).counts).cast::<u64>().add(index as usize & (SLOT_BUCKETS - 1)) }, 1);
    }
}

/// Gives the class whose number is in `word` the next histogram. Two threads that end its first operations at the same moment take two, of
/// which one stays empty.
#[inline(always)]
fn give(word: *mut u64) -> u64 {
    let Some(shared) = operation_state(0) else { return NO_HISTOGRAM_LEFT };
    // SAFETY: a live map value.
    let given = fetch_add(unsafe { &raw mut (*shared).histograms }, 1);
    let number = if given < u64::from(max_operation_histograms()) { given + 1 } else { NO_HISTOGRAM_LEFT };
    match take_free(word, number) {
        0 => number,
        others => others,
    }
}
