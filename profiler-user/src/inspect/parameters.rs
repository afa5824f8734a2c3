//! Which of the six integer argument registers a function can make use of, from its machine code.
//!
//! A register is no parameter if no way through the function reads what its caller left there, or passes it on: it was overwritten before
//! each instruction that reads it, and before each call and tail jump whose callee may read it. Recorded calls hold a value of it all the same,
//! which a caller left there for something else.
//!
//! Input: a function of a module. Output: the set of its registers that are parameters, or may be; nothing where its code is not known completely. A
//! register that is passed through to a callee counts only if the callee makes use of it, as far as that can be told: functions of the same
//! module are followed ([`MAX_DEPTH`] calls deep), others are known by their prototypes (`prototypes`). What cannot be told counts as used.
//!
//! Rules that lean on the System V ABI: a call leaves nothing in the six registers that the caller may use, except where compiler and callee are of one
//! piece (GCC's `-fipa-ra`): there it keeps what the callee does not write. A register that is only given back (`rdx`) is no parameter, since no
//! instruction of the function depends on it. A function with variable arguments saves the registers behind its named ones: they count as read.
//!
//! Not known: types. A register that is a pointer, or of which only a part is used, is a parameter.

mod prototypes;
mod slots;
#[cfg(test)]
mod tests;
mod walk;

use super::arguments::ALL_ARGUMENTS;
use super::landing;
use super::module::Module;
use super::resolve::Function;
use super::sites::Body;
use slots::{Slot, Slots};
use std::collections::HashMap;
use walk::Walk;

/// Calls inside calls that are followed.
const MAX_DEPTH: u32 = 4;
/// Instructions of callees that are passed for one function; a callee beyond that is taken to use all registers. Passing one takes some 0.2 us in a release
/// build.
const BUDGET: usize = 1 << 14;
/// A larger callee is not decoded, bytes.
const MAX_CALLEE_BYTES: u64 = 64 << 10;

/// What a function does with the six registers; bit 0 is `rdi`, bit 5 `r9`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Summary {
    /// Used, or perhaps used, as the caller left them.
    used: u8,
    /// Written by it or its callees on some way: a caller of the same piece may not lean on them.
    written: u8,
    /// It was not cut short by [`BUDGET`], [`MAX_DEPTH`] or functions that call each other.
    is_whole: bool,
}

impl Summary {
    /// Of code that cannot be followed.
    const UNKNOWN: Self = Self { used: ALL_ARGUMENTS, written: 0, is_whole: true };
    const CUT_SHORT: Self = Self { is_whole: false, ..Self::UNKNOWN };

    /// Of another module's function, by its number of integer parameters.
    fn of_import(parameters: Option<u8>) -> Self {
        let used = parameters.map_or(ALL_ARGUMENTS, |count| ALL_ARGUMENTS & ((1 << count) - 1));
        Self { used, written: ALL_ARGUMENTS, is_whole: true }
    }

    /// The same, called through a slot that another definition may be bound to: the caller leans on nothing.
    fn through_slot(self) -> Self {
        Self { written: ALL_ARGUMENTS, ..self }
    }
}

/// What is known of the functions of one module.
#[derive(Debug, Default)]
pub(super) struct Known {
    slots: Option<Slots>,
    callees: HashMap<u64, Summary>,
}

/// The registers of a function that are parameters, or may be, as [`super::Site::arguments`]; `None`: its code is not known completely.
///
/// # Cost
/// Decodes the function, and callees of up to [`BUDGET`] instructions.
pub(super) fn of(module: &Module, function: &Function, known: &mut Known) -> Option<u8> {
    let body = Body::read(module, function).ok().filter(|body| body.unknown.is_none())?;
    let mut callees = Callees { module, known, asked: HashMap::new(), left: BUDGET };
    Walk::new(&body).summary(&mut callees, None).map(|summary| summary.used)
}

/// Functions that are called, for one question.
struct Callees<'a> {
    module: &'a Module,
    known: &'a mut Known,
    /// Those that were cut short, or are being followed.
    asked: HashMap<u64, Summary>,
    /// Instructions that may still be passed.
    left: usize,
}

impl Callees<'_> {
    /// The function at a link-time address, or what a stub there leads to. `depth`: how many calls deep it is called.
    fn at(&mut self, vaddr: u64, depth: u32) -> Summary {
        match self.slots().stub(vaddr) {
            None => self.followed(vaddr, depth),
            Some(slot) => self.behind(slot, depth),
        }
    }

    /// What a slot is bound to.
    fn behind(&mut self, slot: u64, depth: u32) -> Summary {
        match self.slots().bound(slot).cloned() {
            Some(Slot::Import(name)) => Summary::of_import(prototypes::parameters(&name)),
            Some(Slot::Own(vaddr)) => self.followed(vaddr, depth).through_slot(),
            None => Summary::UNKNOWN.through_slot(),
        }
    }

    fn slots(&mut self) -> &Slots {
        let module = self.module;
        self.known
            .slots
            .get_or_insert_with(|| module.elf().map_or_else(|_| Slots::default(), |elf| Slots::read(elf)))
    }

    fn followed(&mut self, vaddr: u64, depth: u32) -> Summary {
        if let Some(known) = self.known.callees.get(&vaddr).or_else(|| self.asked.get(&vaddr)) {
            return *known;
        }
        if depth >= MAX_DEPTH || self.left == 0 {
            return Summary::CUT_SHORT;
        }
        // One that calls itself by way of others finds this.
        self.asked.insert(vaddr, Summary::CUT_SHORT);
        let summary = match self.body(vaddr) {
            None => Summary::UNKNOWN,
            Some(body) => Walk::new(&body).summary(self, Some(depth)).unwrap_or(Summary::CUT_SHORT),
        };
        if summary.is_whole {
            self.known.callees.insert(vaddr, summary);
        } else {
            // Of another question it may be less deep.
            self.asked.insert(vaddr, summary);
        }
        summary
    }

    /// The code of a callee; `None`: it is not known completely, or too large.
    fn body(&self, vaddr: u64) -> Option<Body> {
        let (elf, symbols) = (self.module.elf().ok()?, self.module.symbols().ok()?);
        let named = symbols.at(vaddr);
        // What chooses a function is no code of it.
        if named.iter().any(|entry| entry.ifunc) {
            return None;
        }
        let by_unwinding = || {
            let (start, size) = landing::function_at(elf, vaddr).ok()??;
            (start == vaddr).then_some(size)
        };
        let size =
            named.iter().map(|entry| entry.size).max().filter(|size| *size > 0).or_else(by_unwinding)?;
        let body = (size <= MAX_CALLEE_BYTES).then(|| Body::at(self.module, vaddr, size))?;
        body.ok().filter(|body| body.unknown.is_none())
    }
}
