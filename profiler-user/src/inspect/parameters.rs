//! Which of the six integer argument registers a function can make use of, from its machine code.
//!
//! A register is no parameter if no way through the function reads what its caller left there, or passes it on: it was overwritten before
//! each instruction that reads it, and before each call and tail jump whose callee may read it. Recorded calls hold a value of it all the same,
//! which a caller left there for something else.
//!
//! Input: a function of a module. Output: the set of its registers that are parameters, or may be; nothing where its code is not known completely. A
//! register that is passed through to a callee counts only if the callee makes use of it, as far as that can be told: functions of the same
//! module are followed ([`MAX_DEPTH`] calls deep), those of the C and C++ libraries are known by their prototypes (`prototypes`). What cannot be told counts
//! as used: so does what is passed on to a function of the module that is weak, or that another module defines too, where the dynamic linker binds it.
//!
//! Rules that lean on the System V ABI: a call leaves nothing in the six registers that the caller may use, except where compiler and callee are of one
//! piece (GCC's `-fipa-ra`): there it keeps what the callee does not write. A register that is only given back (`rdx`) is no parameter, since no
//! instruction of the function depends on it. A function with variable arguments saves the registers behind its named ones: they count as read.
//!
//! Not known: types. A register that is a pointer, or of which only a part is used, is a parameter.

mod prototypes;
mod shared;
mod slots;
#[cfg(test)]
mod tests;
mod versions;
mod walk;

use super::arguments::ALL_ARGUMENTS;
use super::landing;
use super::module::Module;
use super::resolve::Function;
use super::sites::Body;
use shared::Shared;
use slots::{Slot, Slots};
use std::cell::OnceCell;
use std::collections::HashMap;
use walk::Walk;

/// Calls inside calls that are followed.
const MAX_DEPTH: u32 = 4;
/// Instructions of callees that are decoded and passed for one function; a callee beyond that is taken to use all registers. Passing one takes some 0.2 us in
/// a release build.
const BUDGET: usize = 1 << 15;
/// Instructions of the function itself that are decoded and passed; of a function beyond that nothing is known.
const OWN_BUDGET: usize = 1 << 16;
/// Instructions that are decoded and passed in a run, callees or not: about a second. Nothing is known of what is asked for behind that.
const RUN_BUDGET: usize = 1 << 22;
/// A larger callee is not decoded, bytes.
const MAX_CALLEE_BYTES: u64 = 64 << 10;
/// A larger function is not decoded, bytes.
const MAX_OWN_BYTES: u64 = 256 << 10;

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
struct Known {
    slots: Option<Slots>,
    callees: HashMap<u64, Summary>,
    /// Those that were cut short, by their addresses and how many calls deep they were called.
    cut_short: HashMap<(u64, u32), Summary>,
}

/// What is known of the functions of a process, and what may still be spent on others.
#[derive(Debug)]
pub(super) struct Run {
    /// Instructions.
    left: usize,
    modules: HashMap<usize, Known>,
    shared: OnceCell<Shared>,
}

impl Default for Run {
    fn default() -> Self {
        Self { left: RUN_BUDGET, modules: HashMap::new(), shared: OnceCell::new() }
    }
}

impl Run {
    /// Modules came or went: what slots are bound to may have changed.
    pub fn forget(&mut self) {
        *self = Self { left: self.left, ..Self::default() };
    }
}

/// Takes from a budget; `None`: it is spent.
fn charge(left: &mut usize, instructions: usize) -> Option<()> {
    let rest = left.checked_sub(instructions);
    *left = rest.unwrap_or(0);
    rest.map(|_| ())
}

/// The registers of a function that are parameters, or may be, as [`super::Site::arguments`]; `None`: its code is not known completely, or a budget is spent.
/// `modules`: those of the process, of which others may define what a slot of this one is bound to.
///
/// # Cost
/// Decodes and passes up to [`OWN_BUDGET`] instructions of the function and [`BUDGET`] of callees, and one body beyond each; in a run [`RUN_BUDGET`].
pub(super) fn of(modules: &[Module], module: &Module, function: &Function, run: &mut Run) -> Option<u8> {
    if run.left == 0 || function.size > MAX_OWN_BYTES {
        return None;
    }
    let mut callees = Callees {
        module,
        modules,
        known: run.modules.entry(function.module).or_default(),
        shared: &run.shared,
        asked: HashMap::new(),
        left: BUDGET,
        own: OWN_BUDGET,
    };
    let used = callees.used(function);
    let spent = (BUDGET - callees.left) + (OWN_BUDGET - callees.own);
    run.left = run.left.saturating_sub(spent);
    used
}

/// Functions that are called, for one question.
struct Callees<'a> {
    module: &'a Module,
    modules: &'a [Module],
    known: &'a mut Known,
    shared: &'a OnceCell<Shared>,
    /// Those that were cut short, or are being followed.
    asked: HashMap<u64, Summary>,
    /// Instructions of callees that may still be decoded or passed.
    left: usize,
    /// The same of the function that was asked for.
    own: usize,
}

impl Callees<'_> {
    fn used(&mut self, function: &Function) -> Option<u8> {
        let body = Body::read(self.module, function).ok()?;
        charge(&mut self.own, decoded(&body))?;
        if body.unknown.is_some() {
            return None;
        }
        Walk::new(&body).summary(self, None).map(|summary| summary.used)
    }

    /// The function at a link-time address, or what a stub there leads to. `depth`: how many calls deep it is called.
    fn at(&mut self, vaddr: u64, depth: u32) -> Summary {
        match self.slots().stub(vaddr) {
            None => self.followed(vaddr, depth),
            Some(slot) => self.behind(slot, depth),
        }
    }

    /// What a slot is bound to.
    fn behind(&mut self, slot: u64, depth: u32) -> Summary {
        match self.slots().bound(slot) {
            Some(Slot::Foreign(parameters)) => Summary::of_import(parameters),
            Some(Slot::Own(vaddr)) => self.followed(vaddr, depth).through_slot(),
            None => Summary::UNKNOWN.through_slot(),
        }
    }

    fn slots(&mut self) -> &Slots {
        let (module, modules, shared) = (self.module, self.modules, self.shared);
        let is_shared = |name: &str| shared.get_or_init(|| Shared::of(modules)).holds(name);
        self.known.slots.get_or_insert_with(|| {
            module.elf().map_or_else(|_| Slots::default(), |elf| Slots::read(elf, is_shared))
        })
    }

    fn followed(&mut self, vaddr: u64, depth: u32) -> Summary {
        let known = self.known.callees.get(&vaddr).or_else(|| self.asked.get(&vaddr));
        if let Some(known) = known.or_else(|| self.known.cut_short.get(&(vaddr, depth))) {
            return *known;
        }
        if depth >= MAX_DEPTH || self.left == 0 {
            return Summary::CUT_SHORT;
        }
        // One that calls itself by way of others finds this.
        self.asked.insert(vaddr, Summary::CUT_SHORT);
        let summary = match self.body(vaddr) {
            None => Summary::UNKNOWN,
            Some(body) => self.passed(&body, depth).unwrap_or(Summary::CUT_SHORT),
        };
        if summary.is_whole {
            self.known.callees.insert(vaddr, summary);
        } else {
            // Of another question it may be less deep.
            self.asked.insert(vaddr, summary);
            self.known.cut_short.insert((vaddr, depth), summary);
        }
        summary
    }

    /// `None`: the budget is spent.
    fn passed(&mut self, body: &Body, depth: u32) -> Option<Summary> {
        charge(&mut self.left, decoded(body))?;
        if body.unknown.is_some() {
            return Some(Summary::UNKNOWN);
        }
        Walk::new(body).summary(self, Some(depth))
    }

    /// The code of a callee, known completely or not; `None`: it cannot be read, or is too large.
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
        (size <= MAX_CALLEE_BYTES).then(|| Body::at(self.module, vaddr, size))?.ok()
    }
}

/// Instructions of a body.
fn decoded(body: &Body) -> usize {
    body.regions().map(|region| region.insns.len()).sum()
}
