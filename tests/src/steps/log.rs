//! The log of the program `tree`: 16 bytes for each entry of a function.

use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// Bytes of an entry: thread, operation, function, and number of its parent, each a little-endian word of 32 bits.
const BYTES: usize = 16;

/// An entry that the target logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Thread.
    pub thread: u32,
    /// Number of the operation, from 1.
    pub operation: u64,
    /// Place in [`FUNCTIONS`](super::FUNCTIONS).
    pub function: usize,
    /// Number of an earlier entry of the operation.
    pub parent: Option<usize>,
}

impl Entry {
    fn read(record: &[u8]) -> Entry {
        let word = |at: usize| u32::from_le_bytes(record[4 * at..4 * at + 4].try_into().expect("4 bytes"));
        Entry {
            thread: word(0),
            operation: u64::from(word(1)),
            function: word(2) as usize,
            parent: usize::try_from(word(3).cast_signed()).ok(),
        }
    }
}

/// What the target logged, by operation. Held as it is in the files.
#[derive(Debug, Default)]
pub struct Log {
    bytes: Vec<u8>,
    /// Where the entries of an operation lie, bytes.
    operations: HashMap<u64, Range<usize>>,
}

impl Log {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// As [`Log::add`].
    pub fn read(path: &Path) -> Result<Log> {
        let mut log = Log::default();
        log.add(path)?;
        Ok(log)
    }

    /// Adds a file of the same target.
    ///
    /// # Errors
    ///
    /// If it cannot be read, is torn, or has entries of an operation in two places.
    pub fn add(&mut self, path: &Path) -> Result<()> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.add_bytes(&bytes).with_context(|| path.display().to_string())
    }

    pub(super) fn add_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        ensure!(bytes.len().is_multiple_of(BYTES), "the last entry is torn");
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        for (index, record) in bytes.chunks_exact(BYTES).enumerate() {
            let at = start + index * BYTES;
            let operation = Entry::read(record).operation;
            let range = self.operations.entry(operation).or_insert(at..at);
            ensure!(range.end == at, "operation {operation} is in two places");
            range.end = at + BYTES;
        }
        Ok(())
    }

    /// The entries of an operation, in order; none if it made no call.
    pub fn entries(&self, operation: u64) -> impl Iterator<Item = Entry> + '_ {
        let range = self.operations.get(&operation).cloned().unwrap_or(0..0);
        self.bytes[range].chunks_exact(BYTES).map(Entry::read)
    }

    /// Entries of all operations.
    #[must_use]
    pub fn len(&self) -> u64 {
        (self.bytes.len() / BYTES) as u64
    }

    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}
