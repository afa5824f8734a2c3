//! Each request by itself, of programs whose requests come twice: once through the function that bounds them, once through its twin.
//!
//! The two of a pair are of the same type and ask for the same, in an order that is drawn, with the user's pause between them.

use anyhow::{Context, Result, ensure};
use std::path::Path;

/// Size of a record, bytes.
const RECORD: usize = 20;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// `CLOCK_MONOTONIC`, ns.
    pub begin_ns: u64,
    /// Response time with one reading of the clock, ns; at most 4.3 s.
    pub took_ns: u32,
    /// Number of the pair among those of the user.
    pub pair: u32,
    /// Number of the user.
    pub user: u16,
    /// Number of the type.
    pub kind: u8,
    /// Served by the twin.
    pub is_twin: bool,
}

impl Call {
    fn to_bytes(self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&self.begin_ns.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.took_ns.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.pair.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.user.to_le_bytes());
        bytes[18..].copy_from_slice(&[self.kind, u8::from(self.is_twin)]);
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        let of = |from: usize, length: usize| {
            bytes[from..from + length].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        // OK because each is read from as many bytes as its type has.
        Self {
            begin_ns: of(0, 8),
            took_ns: of(8, 4) as u32,
            pair: of(12, 4) as u32,
            user: of(16, 2) as u16,
            kind: bytes[18],
            is_twin: bytes[19] != 0,
        }
    }

    /// Writes all into a file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn write(calls: &[Call], path: &Path) -> Result<()> {
        let bytes: Vec<u8> = calls.iter().flat_map(|call| call.to_bytes()).collect();
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads what [`Call::write`] wrote.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is not made of whole records.
    pub fn read(path: &Path) -> Result<Vec<Call>> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(bytes.len().is_multiple_of(RECORD), "{} ends in a record", path.display());
        Ok(bytes.chunks_exact(RECORD).map(Self::of_bytes).collect())
    }
}

/// What a user asks for: a type, what in particular, and of whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    /// Number of the type.
    pub kind: usize,
    /// What is asked for in particular.
    pub parameter: u64,
    /// Number of the pair.
    pub pair: u32,
    /// Of the twin.
    pub of_twin: bool,
}

/// Turns of a user between the function and its twin.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pairs: u32,
    second: Option<Asked>,
}

impl Turns {
    /// The next request: the last one again of the other, or a new one that `draw` gives, with whether the twin serves it first.
    pub(super) fn next(&mut self, draw: impl FnOnce() -> (usize, u64, bool)) -> Asked {
        self.second.take().unwrap_or_else(|| {
            let (kind, parameter, of_twin) = draw();
            let first = Asked { kind, parameter, pair: self.pairs, of_twin };
            self.second = Some(Asked { of_twin: !of_twin, ..first });
            self.pairs += 1;
            first
        })
    }
}

/// What a reading of the clock puts into a request: the median of many with nothing between them, ns.
pub(super) fn clock_ns(now_ns: fn() -> u64) -> u64 {
    let mut costs: Vec<u64> = (0..1001)
        .map(|_| {
            let before = now_ns();
            now_ns() - before
        })
        .collect();
    costs.sort_unstable();
    costs[costs.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_are_written() {
        let call = |is_twin| Call {
            begin_ns: 0x0102_0304_0506_0708,
            took_ns: 0x0A0B_0C0D,
            pair: 7_000_000,
            user: 513,
            kind: 9,
            is_twin,
        };
        for is_twin in [false, true] {
            assert_eq!(Call::of_bytes(&call(is_twin).to_bytes()), call(is_twin));
        }
    }

    #[test]
    fn every_request_comes_twice_once_of_the_twin() {
        let mut turns = Turns::default();
        let mut drawn = [(3, 30, true), (4, 40, false)].into_iter();
        let asked: Vec<Asked> = (0..4).map(|_| turns.next(|| drawn.next().unwrap())).collect();
        let of = |kind, parameter, pair, of_twin| Asked { kind, parameter, pair, of_twin };
        assert_eq!(asked, [of(3, 30, 0, true), of(3, 30, 0, false), of(4, 40, 1, false), of(4, 40, 1, true)]);
    }
}
