//! Where in the functions that are looked at the frames of stacks lie.

use super::code::FunctionCode;
use crate::recording::{OpenError, Stream};
use profiler_core::recording::FrameRow;
use std::collections::{HashMap, HashSet};

/// A frame in a function that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the function.
    pub function: u32,
    /// The innermost loop that it lies in.
    pub in_loop: Option<u32>,
    /// Index of the source line in [`Places::lines`].
    pub line: Option<u32>,
    /// It is the innermost frame outside the kernel: what the thread ran itself.
    pub is_leaf: bool,
}

/// A function that is looked at.
#[derive(Debug)]
pub struct Looked<'a> {
    pub class: u32,
    pub module: &'a str,
    pub code: &'a FunctionCode,
}

/// Frames of stacks in functions that are looked at.
#[derive(Debug, Default)]
pub struct Places {
    /// By stack, innermost first.
    of: HashMap<u64, Vec<Place>>,
    /// Source files and lines.
    pub lines: Vec<(String, u32)>,
}

impl Places {
    /// Reads the frames of these stacks.
    ///
    /// # Errors
    /// A segment is of a later format.
    pub fn read(
        stream: &mut Stream,
        stacks: &HashSet<u64>,
        functions: &[Looked<'_>],
    ) -> Result<Self, OpenError> {
        let mut reading =
            Reading { functions, places: Self::default(), numbers: HashMap::new(), leaf_of: None };
        stream.each(|row: FrameRow| {
            if stacks.contains(&row.stack_id) {
                reading.take(&row);
            }
        })?;
        Ok(reading.places)
    }

    /// The frames of a stack, innermost first.
    pub fn of(&self, stack_id: u64) -> &[Place] {
        self.of.get(&stack_id).map_or(&[], Vec::as_slice)
    }
}

struct Reading<'a> {
    functions: &'a [Looked<'a>],
    places: Places,
    numbers: HashMap<(String, u32), u32>,
    /// The stack whose innermost frame has been passed.
    leaf_of: Option<u64>,
}

impl Reading<'_> {
    /// Frames of a stack come together, innermost first.
    fn take(&mut self, row: &FrameRow) {
        if row.depth == 0 {
            // What an earlier segment had of it holds no longer.
            self.places.of.remove(&row.stack_id);
            self.leaf_of = None;
        }
        // An inlined call has the address of the function that it was made a part of.
        if row.inlined || row.module == "[kernel]" {
            return;
        }
        let is_leaf = self.leaf_of.replace(row.stack_id) != Some(row.stack_id);
        for (number, function) in (0..).zip(self.functions).filter(|(_, f)| f.module == row.module) {
            let Some(in_loop) = function.code.place(row.address) else { continue };
            let line = in_loop.filter(|_| row.line > 0).map(|_| self.line(row));
            let place = Place { function: number, in_loop, line, is_leaf };
            self.places.of.entry(row.stack_id).or_default().push(place);
        }
    }

    fn line(&mut self, row: &FrameRow) -> u32 {
        let lines = &mut self.places.lines;
        let key = (row.file.clone(), row.line);
        *self.numbers.entry(key).or_insert_with_key(|key| {
            lines.push(key.clone());
            // OK because a recording has fewer lines than u32 counts.
            lines.len() as u32 - 1
        })
    }
}
