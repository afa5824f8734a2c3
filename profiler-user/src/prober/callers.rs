//! The callers of timed functions in the kernel, by return address: read, armed, forgotten. No system call.

use super::memory::MappedArray;
use super::{Kernel, KernelError};
use profiler_common::caller::{CALLER_TRIES, CallerCell, caller_cell, caller_key, caller_of};
use profiler_core::class::ClassId;
use std::collections::{BTreeMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// The map `CALLERS`.
pub(super) struct CallerTable {
    cells: MappedArray<CallerCell>,
}

/// Words of a [`CallerCell`].
const KEY: usize = 0;
const CALLS: usize = 1;
const ARMED: usize = 2;
const _: () = assert!(
    std::mem::offset_of!(CallerCell, key) == KEY * 8
        && std::mem::offset_of!(CallerCell, calls) == CALLS * 8
        && std::mem::offset_of!(CallerCell, armed) == ARMED * 8
);

impl CallerTable {
    pub(super) fn new(fd: Option<BorrowedFd<'_>>, cells: u32) -> Result<Self, KernelError> {
        let name = "CALLERS";
        let fd = fd.ok_or_else(|| KernelError::Object(format!("no map {name}")))?;
        let cells = MappedArray::new(fd, cells).map_err(|source| KernelError::Map { name, source })?;
        Ok(Self { cells })
    }

    /// The cells that are looked at for a key, in the order of the programs.
    fn tried(&self, key: u64) -> impl Iterator<Item = u32> {
        let mask = self.cells.elements() - 1;
        (0..CALLER_TRIES).map(move |i| caller_cell(key).wrapping_add(i) & mask)
    }

    fn find(&self, key: u64) -> Option<u32> {
        self.tried(key).find(|cell| self.cells.word(*cell, KEY) == key)
    }

    fn insert(&self, key: u64) -> Option<u32> {
        self.tried(key).find(|cell| {
            let word = self.cells.word_at(*cell, KEY);
            // Programs take cells at the same time.
            let before = word.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire);
            before.is_ok() || before == Err(key)
        })
    }

    /// Cells that are taken: the cell, the class, and the address that its calls return to.
    fn taken(&self) -> impl Iterator<Item = (u32, ClassId, u64)> {
        (0..self.cells.elements()).filter_map(|cell| match self.cells.word(cell, KEY) {
            0 => None,
            key => {
                let (class, address) = caller_of(key);
                Some((cell, ClassId(class), address))
            }
        })
    }
}

/// A caller that the kernel's programs know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownCaller {
    /// Where its calls return to.
    pub address: u64,
    /// Calls that came from there since it was learned: hits that the gates let in.
    pub calls: u64,
    /// They are timed.
    pub armed: bool,
}

impl Kernel {
    /// The callers of these classes that are known; classes without one are left out. Reads the whole table once: 0.1 ms, whatever the number of
    /// classes. None: nothing is read.
    #[must_use]
    pub fn callers_of(&self, classes: &[ClassId]) -> BTreeMap<ClassId, Vec<KnownCaller>> {
        let mut known: BTreeMap<ClassId, Vec<KnownCaller>> = BTreeMap::new();
        if classes.is_empty() {
            return known;
        }
        let cells = &self.callers.cells;
        let wanted: HashSet<ClassId> = classes.iter().copied().collect();
        for (cell, class, address) in self.callers.taken().filter(|(_, class, _)| wanted.contains(class)) {
            let (calls, armed) = (cells.word(cell, CALLS), cells.word(cell, ARMED) != 0);
            known.entry(class).or_default().push(KnownCaller { address, calls, armed });
        }
        known
    }

    /// The callers of one class: address, calls, and whether it is armed. See [`Kernel::callers_of`].
    #[must_use]
    pub fn callers(&self, class: ClassId) -> Vec<(u64, u64, bool)> {
        let known = self.callers_of(&[class]).remove(&class).unwrap_or_default();
        known.into_iter().map(|caller| (caller.address, caller.calls, caller.armed)).collect()
    }

    /// From now on calls of this class that return to this address are timed. Its return site is to be attached before. False: there
    /// is no room for it, or it is no address of a user's program.
    #[must_use]
    pub fn arm_caller(&self, class: ClassId, address: u64) -> bool {
        let Some(key) = caller_key(class.0, address) else { return false };
        let Some(cell) = self.callers.find(key).or_else(|| self.callers.insert(key)) else { return false };
        self.callers.cells.set_word(cell, ARMED, 1);
        true
    }

    /// Calls that return to this address are only counted from now on. To be called before its return site is detached; calls that are
    /// open meanwhile get their end if it is still there.
    pub fn disarm_caller(&self, class: ClassId, address: u64) {
        if let Some(cell) = caller_key(class.0, address).and_then(|key| self.callers.find(key)) {
            self.callers.cells.set_word(cell, ARMED, 0);
        }
    }

    /// Forgets the callers of these classes, armed ones too: their cells are free for others. While a class is hit, some calls may be counted
    /// for who gets a cell next. Reads the whole table once.
    pub fn forget_callers(&self, classes: &[ClassId]) {
        if classes.is_empty() {
            return;
        }
        let these: HashSet<ClassId> = classes.iter().copied().collect();
        for (cell, _, _) in self.callers.taken().filter(|(_, class, _)| these.contains(class)) {
            for word in [ARMED, CALLS, KEY] {
                self.callers.cells.set_word(cell, word, 0);
            }
        }
    }
}
