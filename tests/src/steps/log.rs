//! The log of the program `tree`: 16 bytes for each entry of a function, and beside it 24 bytes for each operation, which say when it was made.

use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// Bytes of an entry: thread, operation, function, and number of its parent, each a little-endian word of 32 bits.
const BYTES: usize = 16;

/// Bytes of a time: thread and operation, each a little-endian word of 32 bits, and two words of 64 bits.
const TIME_BYTES: usize = 24;

/// An operation that the target made: between these times `handle` was entered and left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Thread.
    pub thread: u32,
    /// Number of the operation, from 1.
    pub operation: u64,
    /// Before the call, ktime ns.
    pub from_ns: u64,
    /// After it, ktime ns.
    pub until_ns: u64,
}

impl Span {
    fn read(record: &[u8]) -> Span {
        let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
        Span { thread: word(0), operation: u64::from(word(4)), from_ns: long(8), until_ns: long(16) }
    }
}

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
    /// When each operation was made.
    spans: Vec<Span>,
}

impl Log {
    /// Reads a file, and the one with its times.
    ///
    /// # Errors
    ///
    /// As [`Log::add`].
    pub fn read(path: &Path) -> Result<Log> {
        let mut log = Log::default();
        log.add(path)?;
        Ok(log)
    }

    /// Adds a file of the same target, and the one with its times, whose name is that of the file with `.times`.
    ///
    /// # Errors
    ///
    /// If it cannot be read, is torn, or has entries of an operation in two places.
    pub fn add(&mut self, path: &Path) -> Result<()> {
        let times = path.with_added_extension("times");
        let read =
            |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        self.add_bytes(&read(path)?).with_context(|| path.display().to_string())?;
        self.add_times(&read(&times)?).with_context(|| times.display().to_string())
    }

    pub(super) fn add_times(&mut self, bytes: &[u8]) -> Result<()> {
        ensure!(bytes.len().is_multiple_of(TIME_BYTES), "the last time is torn");
        self.spans.extend(bytes.chunks_exact(TIME_BYTES).map(Span::read));
        Ok(())
    }

    /// Takes the times of all operations, in the order of their numbers.
    ///
    /// # Errors
    ///
    /// If there is not one for each of so many, or one ends before it begins.
    pub(super) fn take_spans(&mut self, operations: u64) -> Result<Vec<Span>> {
        let mut spans = std::mem::take(&mut self.spans);
        spans.sort_unstable_by_key(|span| span.operation);
        ensure!(
            spans.iter().map(|span| span.operation).eq(1..=operations),
            "the target made {operations} operations, and logged the times of {}, or of others",
            spans.len()
        );
        let backward = spans.iter().find(|span| span.until_ns < span.from_ns);
        ensure!(backward.is_none(), "an operation ends before it begins: {backward:?}");
        Ok(spans)
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
