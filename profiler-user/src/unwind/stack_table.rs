//! Distinct stacks and their numbers.

use super::Frame;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Frames kept at most (16 bytes each): 16 MiB.
const MAX_FRAMES: usize = 1 << 20;

/// Gives each distinct stack a number, and keeps its frames until the end of the run, when lines and
/// inlined calls are looked up. Bounded: once full, new stacks are refused and counted.
#[derive(Debug, Default)]
pub struct StackTable {
    by_id: HashMap<u64, usize>,
    stacks: Vec<(u64, Box<[Frame]>)>,
    /// Stacks handed out by [`StackTable::take_new`].
    taken: usize,
    frames: usize,
    refused: u64,
}

impl StackTable {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of a stack, innermost frame first: a hash of its frames, above 0 and below 2^63 (so that it
    /// is a positive `BIGINT`). 0: the stack is empty, or new and the table is full.
    pub fn intern(&mut self, frames: &[Frame]) -> u64 {
        if frames.is_empty() {
            return 0;
        }
        // Fixed keys: the same stack has the same number in every run of one session's modules.
        let mut hasher = DefaultHasher::new();
        frames.hash(&mut hasher);
        let mut id = (hasher.finish() >> 1).max(1);
        loop {
            match self.by_id.get(&id) {
                Some(i) if *self.stacks[*i].1 == *frames => return id,
                // Another stack with this hash: the next number.
                Some(_) => id = (id % (u64::MAX >> 1)) + 1,
                None => break,
            }
        }
        if self.frames + frames.len() > MAX_FRAMES {
            self.refused += 1;
            return 0;
        }
        self.frames += frames.len();
        self.by_id.insert(id, self.stacks.len());
        self.stacks.push((id, frames.into()));
        id
    }

    /// The stacks that are new since the last call.
    pub fn take_new(&mut self) -> &[(u64, Box<[Frame]>)] {
        let from = std::mem::replace(&mut self.taken, self.stacks.len());
        &self.stacks[from..]
    }

    /// All stacks, in the order in which they came.
    #[must_use]
    pub fn all(&self) -> &[(u64, Box<[Frame]>)] {
        &self.stacks
    }

    /// The frames of a stack; empty if the number is unknown.
    #[must_use]
    pub fn frames(&self, id: u64) -> &[Frame] {
        self.by_id.get(&id).map_or(&[], |i| &self.stacks[*i].1)
    }

    /// Samples whose stack was new when the table was full.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }
}
