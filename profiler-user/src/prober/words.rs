//! Words of the target: the lists that programs take them by, and what they took.

use super::memory::MappedArray;
use super::rings::Ring;
use super::{Kernel, KernelError};
use profiler_common::class::NO_OPERATION;
use profiler_common::words::{
    MAX_WORDS, TAKEN_AT_END, TakenWord, TakingHeader, WORD_NO_OBJECT, WORD_NO_REGISTER, WORD_NULL, WORD_READ,
    WORD_TOO_LONG, WORD_UNREADABLE, WordSpec, status_parts,
};
use profiler_core::class::ClassId;

/// What became of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// The value, widened to 64 bits.
    Read(u64),
    /// The pointer that this dereference, from 1, would follow is null.
    Null(u32),
    /// What this dereference, from 1, would read is not mapped, not resident, or no address of the target.
    Unreadable(u32),
    /// The string at this dereference is longer than [`MAX_STRING`](profiler_common::words::MAX_STRING).
    TooLong(u32),
    /// The argument or the result is not known at this site.
    NoRegister,
    /// The thread has not seen the object.
    NoObject,
}

impl Word {
    /// `None`: a status of another build of the object.
    fn of(raw: &TakenWord) -> Option<Self> {
        let (code, depth) = status_parts(raw.status);
        Some(match code {
            WORD_READ => Self::Read(raw.value),
            WORD_NULL => Self::Null(depth),
            WORD_UNREADABLE => Self::Unreadable(depth),
            WORD_TOO_LONG => Self::TooLong(depth),
            WORD_NO_REGISTER => Self::NoRegister,
            WORD_NO_OBJECT => Self::NoObject,
            _ => return None,
        })
    }

    /// The value, if it was read.
    #[must_use]
    pub fn value(self) -> Option<u64> {
        if let Self::Read(value) = self { Some(value) } else { None }
    }
}

/// Words that were taken at one hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taking {
    /// From when to when they were read, ktime ns.
    pub read_ns: (u64, u64),
    /// Begin of the recorded call or operation, ktime ns: with thread and class it names the call.
    pub begin_ns: u64,
    /// Class of the function, or of the operation.
    pub class: u32,
    /// Number of the operation; `None`: a call.
    pub operation: Option<u32>,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Taken at the end of the call or operation; else at its begin.
    pub at_end: bool,
    /// Numbers of the words, and what became of each.
    pub words: Vec<(u32, Word)>,
}

/// Reader of takings.
pub struct TakingReader(pub(super) Ring);

impl TakingReader {
    /// Hands all takings that are there to `each`, at most `limit`; returns how many.
    pub fn drain(&mut self, limit: usize, mut each: impl FnMut(Taking)) -> usize {
        let mut n = 0;
        while n < limit {
            let Some((h, item)) = self.0.next::<TakingHeader>() else { break };
            let words = item.bytes().get(size_of::<TakingHeader>()..).unwrap_or_default();
            let words = words.chunks_exact(size_of::<TakenWord>()).take(h.words as usize);
            let words = words.filter_map(|bytes| {
                // SAFETY: as many bytes as a word has, and any bits are a valid one (Pod).
                let raw = unsafe { bytes.as_ptr().cast::<TakenWord>().read_unaligned() };
                Some((raw.word, Word::of(&raw)?))
            });
            each(Taking {
                read_ns: (h.time_ns, h.until_ns),
                begin_ns: h.begin_ns,
                class: h.class,
                operation: (h.operation != NO_OPERATION).then_some(h.operation),
                pid: h.pid,
                tid: h.tid,
                at_end: h.kind == TAKEN_AT_END,
                words: words.collect(),
            });
            n += 1;
        }
        n
    }
}

/// The words of all lists, in the kernel.
pub(super) struct WordTable {
    specs: MappedArray<WordSpec>,
}

impl WordTable {
    pub fn new(specs: MappedArray<WordSpec>) -> Self {
        Self { specs }
    }
}

impl Kernel {
    /// Sets the words that lists name by number. To be called before a class with a list is attached.
    ///
    /// # Errors
    /// They are more than fit: how many do.
    pub fn set_words(&self, words: &[WordSpec]) -> Result<(), u32> {
        if words.len() > MAX_WORDS as usize {
            return Err(MAX_WORDS);
        }
        for (number, word) in (0..).zip(words) {
            self.words.specs.write(number, word);
        }
        Ok(())
    }

    /// Gives a class its [`word_list`](profiler_common::words::word_list)s, for the begin and for the end of its recorded calls.
    pub fn set_word_lists(&self, class: ClassId, begin: u32, end: u32) {
        use profiler_common::class::FLAG_WORDS;
        self.classes().adjust(class, |control| {
            (control.words_begin, control.words_end) = (begin, end);
            control.flags = control.flags & !FLAG_WORDS | if begin | end == 0 { 0 } else { FLAG_WORDS };
        });
    }

    /// The reader of takings. There is one.
    ///
    /// # Errors
    /// It was taken before.
    pub fn taking_reader(&self) -> Result<TakingReader, KernelError> {
        self.take_ring("TAKINGS").map(TakingReader)
    }
}
