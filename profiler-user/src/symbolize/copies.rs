//! The copies of modules' files that the symbolizer holds, all together within a budget.
//!
//! Why a budget over all: a copy is memory that the kernel cannot take back, and a target may have loaded hundreds of
//! modules. What was used least recently goes, together with the reader that has it open, and is made again when it is asked
//! for.

use super::elf_copy::ElfCopy;
use crate::unwind::ModuleId;
use blazesym::symbolize::Symbolizer as Blazesym;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

/// All copies together, bytes (what blazesym makes of them is not counted), as much as the unwinder's tables. What is larger is not copied at all.
/// The program of this crate's own tests has more.
pub(super) const BUDGET_BYTES: u64 = if cfg!(test) { 1 << 30 } else { 96 << 20 };
/// Modules with copies at once: each has one or two descriptors.
const MAX_MODULES: usize = 128;
/// A module whose copy had to go so often is left alone: copying would be all that the agent does.
const MAX_MADE: u32 = 64;

/// A copy, and the reader that has it open. Each has a reader of its own: readers know files by their path, and the path of a
/// copy that is gone (`/proc/self/fd/N`) is soon that of another.
pub(super) struct Reader {
    copy: ElfCopy,
    pub(super) blaze: Blazesym,
}

impl Reader {
    pub(super) fn new(copy: ElfCopy, blaze: Blazesym) -> Self {
        Self { copy, blaze }
    }

    /// Where `blaze` finds it.
    pub(super) fn path(&self) -> PathBuf {
        self.copy.path()
    }
}

/// What is read of one module's files.
#[derive(Default)]
pub(super) struct Copies {
    /// The symbols of the module itself.
    pub(super) plain: Option<Reader>,
    /// What says more: its DWARF, or the symbols or the DWARF of its separate debug file.
    pub(super) debug: Option<Reader>,
}

impl Copies {
    fn bytes(&self) -> u64 {
        [&self.plain, &self.debug].into_iter().flatten().map(|reader| reader.copy.bytes()).sum()
    }
}

#[derive(Default)]
struct Entry {
    copies: Option<Rc<Copies>>,
    /// When it was last asked for, in requests.
    used: u64,
    /// How often copies were made.
    made: u32,
}

impl Entry {
    fn has_copies(&self) -> bool {
        self.copies.as_ref().is_some_and(|copies| copies.bytes() > 0)
    }
}

/// The copies of all modules.
pub(super) struct Held {
    entries: HashMap<ModuleId, Entry>,
    requests: u64,
    budget: u64,
}

impl Held {
    pub(super) fn new(budget: u64) -> Self {
        Self { entries: HashMap::new(), requests: 0, budget }
    }

    /// The copies of a module, if they are there.
    pub(super) fn get(&mut self, id: ModuleId) -> Option<Rc<Copies>> {
        self.requests += 1;
        let entry = self.entries.get_mut(&id)?;
        entry.used = self.requests;
        entry.copies.clone()
    }

    /// Whether a module's copies were made so often that they should not be made again.
    pub(super) fn is_spent(&self, id: ModuleId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.made >= MAX_MADE)
    }

    /// What is left of the budget beside a copy of `bytes`.
    pub(super) fn room_beside(&self, bytes: u64) -> u64 {
        self.budget.saturating_sub(bytes)
    }

    /// Gives copies up, least recently used first, until `more` bytes fit into the budget, or none is left.
    pub(super) fn make_room(&mut self, more: u64) {
        let mut held: u64 = self.bytes();
        let mut modules = self.entries.values().filter(|e| e.has_copies()).count();
        while held.saturating_add(more) > self.budget || modules >= MAX_MODULES {
            let with_copies = self.entries.values_mut().filter(|e| e.has_copies());
            let Some(oldest) = with_copies.min_by_key(|entry| entry.used) else { return };
            held -= oldest.copies.take().map_or(0, |copies| copies.bytes());
            modules -= 1;
        }
    }

    /// Keeps the new copies of a module; others go if all are more than the budget.
    pub(super) fn insert(&mut self, id: ModuleId, copies: Copies) -> Rc<Copies> {
        let copies = Rc::new(copies);
        self.make_room(copies.bytes());
        self.requests += 1;
        let entry = self.entries.entry(id).or_default();
        entry.copies = Some(Rc::clone(&copies));
        entry.used = self.requests;
        entry.made += 1;
        copies
    }

    /// Gives all copies up.
    pub(super) fn give_up(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.copies = None);
    }

    /// What all copies take, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.entries.values().filter_map(|entry| Some(entry.copies.as_ref()?.bytes())).sum()
    }
}
