//! What the program itself says of its functions: every batch of calls, with begin and length.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Standard errors of a 95 % interval.
const Z: f64 = 1.96;
/// Size of a record of `durations.c`, bytes.
const RECORD: usize = 16;

/// A batch of calls of one function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// `CLOCK_MONOTONIC`, ns.
    pub begin_ns: u64,
    /// Length with one reading of the clock, ns.
    pub took_ns: u32,
    /// Calls.
    pub calls: u16,
    /// (duration x 4 + form) x 2, + 1 for a twin.
    pub function: u8,
}

/// A true figure with the half-width of its own 95 % interval, in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// The figure.
    pub value: f64,
    /// Half-width.
    pub half: f64,
}

/// The batches of a run.
pub struct Log {
    batches: Vec<Batch>,
    /// What a reading of the clock puts into a batch, ns.
    clock_ns: f64,
}

impl Log {
    /// Reads what `dump` wrote.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is not made of whole records.
    pub fn read(path: &Path, clock_ns: f64) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(bytes.len().is_multiple_of(RECORD), "{} ends in a record", path.display());
        Ok(Self { batches: bytes.chunks_exact(RECORD).map(batch).collect(), clock_ns })
    }

    /// Calls of a function between two instants; of a batch that reaches over one its part.
    pub fn calls(&self, function: u8, from_ns: u64, to_ns: u64) -> f64 {
        let of = self.batches.iter().filter(|b| b.function == function);
        of.map(|b| {
            let (begin, length) = (b.begin_ns, u64::from(b.took_ns).max(1));
            let within = (begin + length).min(to_ns).saturating_sub(begin.max(from_ns));
            f64::from(b.calls) * within as f64 / length as f64
        })
        .sum()
    }

    /// Time of a call in each batch of a function that lies between two instants and in none of `without`, ns, ascending.
    pub fn per_call(&self, function: u8, (from_ns, to_ns): (u64, u64), without: &[(u64, u64)]) -> Vec<f64> {
        let mut found: Vec<f64> = self
            .batches
            .iter()
            .filter(|b| b.function == function)
            .filter_map(|b| {
                let (begin, end) = (b.begin_ns, b.begin_ns + u64::from(b.took_ns));
                let is_free = without.iter().all(|(a, z)| end < *a || *z < begin);
                (from_ns <= begin && end <= to_ns && is_free)
                    .then(|| (f64::from(b.took_ns) - self.clock_ns).max(0.0) / f64::from(b.calls.max(1)))
            })
            .collect();
        found.sort_by(f64::total_cmp);
        found
    }
}

fn batch(bytes: &[u8]) -> Batch {
    let of = |from: usize, length: usize| {
        let mut wide = [0; 8];
        wide[..length].copy_from_slice(&bytes[from..from + length]);
        u64::from_le_bytes(wide)
    };
    // OK because each is read from as many bytes as its type has.
    Batch { begin_ns: of(0, 8), took_ns: of(8, 4) as u32, calls: of(12, 2) as u16, function: bytes[14] }
}

/// Mean of values of equal weight; `None` of fewer than two.
pub fn mean(values: &[f64]) -> Option<Truth> {
    let moments: profiler_core::stats::moments::Moments = values.iter().copied().collect();
    let half = Z * (moments.variance()? / values.len() as f64).sqrt();
    Some(Truth { value: moments.mean(), half })
}

/// Median of ascending values, with the order statistics that enclose it; `None` of fewer than two.
pub fn median(ascending: &[f64]) -> Option<Truth> {
    let n = ascending.len();
    if n < 2 {
        return None;
    }
    let apart = Z * (n as f64).sqrt() / 2.0;
    let at = |rank: f64| ascending[(rank.max(0.0) as usize).min(n - 1)];
    let middle = n as f64 / 2.0;
    let half = (at(middle + apart) - at(middle - apart)) / 2.0;
    Some(Truth { value: at(middle), half })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Log {
        let batch = |begin_ns, took_ns, function| Batch { begin_ns, took_ns, calls: 10, function };
        let batches =
            vec![batch(100, 1_020, 0), batch(2_000, 2_020, 0), batch(5_000, 1_520, 0), batch(100, 7, 1)];
        Log { batches, clock_ns: 20.0 }
    }

    #[test]
    fn calls_are_those_between_two_instants() {
        assert_eq!(log().calls(0, 0, 10_000), 30.0);
        assert_eq!(log().calls(0, 100 + 510, 10_000), 25.0);
        assert_eq!(log().calls(0, 0, 2_000 + 1_010), 15.0);
        assert_eq!(log().calls(1, 0, 10_000), 10.0);
    }

    #[test]
    fn what_is_watched_and_what_lies_outside_is_left_out() {
        let run = (0, 10_000);
        assert_eq!(log().per_call(0, run, &[]), [100.0, 150.0, 200.0]);
        assert_eq!(log().per_call(0, run, &[(4_000, 4_900)]), [100.0, 150.0]);
        assert_eq!(log().per_call(0, (1_000, 6_000), &[]), [200.0]);
    }

    #[test]
    fn records_are_read_as_they_are_written() {
        let bytes = [1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0, 50, 1, 39, 7];
        assert_eq!(batch(&bytes), Batch { begin_ns: 513, took_ns: 65_539, calls: 306, function: 39 });
    }

    #[test]
    fn truths_have_intervals_of_their_own() {
        // Standard deviation 1 of 4: standard error a half.
        let all = [9.0, 10.0, 10.0, 11.0];
        let found = mean(&all).unwrap();
        assert!(
            (found.value - 10.0).abs() < 1e-12
                && (found.half - 1.96 * (2.0_f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12
        );
        let many: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(median(&many), Some(Truth { value: 50.0, half: 9.5 }));
        assert!(mean(&[1.0]).is_none() && median(&[1.0]).is_none());
    }
}
