//! Buckets of the in-kernel duration histograms: 32 per octave, so that a bucket is at most 1/32 (3.2 %) wide.
//!
//! Bucket 0 holds everything below 64 ns, then 31 octaves of 32 buckets reach 2^37 ns (137 s), and the last bucket
//! holds what is longer. A histogram takes [`SLOTS`] slots of [`SLOT_BUCKETS`] counters.

/// Buckets per octave: a power of two, so that a bucket is found by shifting.
pub const PER_OCTAVE: u32 = 32;
/// log2 of the lowest resolved duration: 2^6 = 64 ns, less than a traced call can take.
const FIRST_OCTAVE: u32 = 6;
/// Octaves resolved: 64 ns to 137 s.
const OCTAVES: u32 = 31;
/// Counters in one slot. 2 KiB: the unit in which histogram memory is leased to classes.
pub const SLOT_BUCKETS: usize = 256;
/// Slots of one histogram.
pub const SLOTS: u32 = 4;
/// Buckets of one histogram.
pub const BUCKETS: usize = SLOTS as usize * SLOT_BUCKETS;
/// The bucket of durations of 2^37 ns and more.
pub const OVERFLOW: u32 = BUCKETS as u32 - 1;

const _: () = assert!((OCTAVES * PER_OCTAVE + 1) < OVERFLOW);

/// One slot of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct HistogramSlot {
    /// Calls per bucket.
    pub counts: [u64; SLOT_BUCKETS],
}
crate::wire_type!(HistogramSlot, size 2048, align 8);

/// The bucket of a duration.
///
/// `bucket(d) = 1 + 32 (e - 6) + floor(32 (d / 2^e - 1))` with `e = floor(log2 d)`, for 2^6 <= d < 2^37.
#[must_use]
#[inline(always)]
pub const fn bucket(duration_ns: u64) -> u32 {
    if duration_ns < 1 << FIRST_OCTAVE {
        return 0;
    }
    if duration_ns >= 1 << (FIRST_OCTAVE + OCTAVES) {
        return OVERFLOW;
    }
    let e = log2(duration_ns);
    // The five bits below the leading one. OK because the value is below 32.
    let within = (duration_ns >> (e - 5)) as u32 & (PER_OCTAVE - 1);
    1 + (e - FIRST_OCTAVE) * PER_OCTAVE + within
}

/// `floor(log2 x)` for `0 < x < 2^64` in six steps. BPF has no count-leading-zeros instruction, and the compiler's
/// expansion of `leading_zeros` is three times as long.
#[inline(always)]
const fn log2(x: u64) -> u32 {
    let mut x = x;
    let mut e = 0;
    if x >> 32 != 0 {
        x >>= 32;
        e += 32;
    }
    if x >> 16 != 0 {
        x >>= 16;
        e += 16;
    }
    if x >> 8 != 0 {
        x >>= 8;
        e += 8;
    }
    if x >> 4 != 0 {
        x >>= 4;
        e += 4;
    }
    if x >> 2 != 0 {
        x >>= 2;
        e += 2;
    }
    if x >> 1 != 0 {
        e += 1;
    }
    e
}

/// Lowest duration of a bucket and lowest duration above it, ns. The last bucket that is used ends at `u64::MAX`;
/// buckets between the top octave and it are never used and are empty ranges at 2^37.
#[must_use]
pub const fn bounds(bucket: u32) -> (u64, u64) {
    let top = 1 << (FIRST_OCTAVE + OCTAVES);
    if bucket == 0 {
        return (0, 1 << FIRST_OCTAVE);
    }
    if bucket >= OVERFLOW {
        return (top, u64::MAX);
    }
    let index = bucket - 1;
    let e = FIRST_OCTAVE + index / PER_OCTAVE;
    if e >= FIRST_OCTAVE + OCTAVES {
        return (top, top);
    }
    let width = 1u64 << (e - 5);
    let low = (1u64 << e) + (index % PER_OCTAVE) as u64 * width;
    (low, low + width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_holds_its_bounds_and_is_narrow() {
        let mut expected_low = 0;
        for b in 0..=OCTAVES * PER_OCTAVE {
            let (low, high) = bounds(b);
            assert_eq!(low, expected_low, "bucket {b} starts where the one before ends");
            assert_eq!((bucket(low), bucket(high - 1)), (b, b));
            assert_ne!(bucket(high), b);
            if b > 0 {
                assert!((high - low) * 32 <= low, "bucket {b} is wider than 1/32 of its low end");
            }
            expected_low = high;
        }
        assert!(expected_low > 100_000_000_000, "resolved beyond 100 s");
        assert_eq!(bucket(expected_low), OVERFLOW);
        assert_eq!(bounds(OVERFLOW), (expected_low, u64::MAX));
    }

    #[test]
    fn extremes() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(63), 0);
        assert_eq!(bucket(64), 1);
        assert_eq!(bucket(u64::MAX), OVERFLOW);
        assert_eq!(bounds(OVERFLOW - 1).0, bounds(OVERFLOW - 1).1);
    }
}
