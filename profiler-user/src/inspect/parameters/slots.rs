//! Which function a call through a stub or a slot leads to, by the relocations of the file.

use super::super::elf::{ElfInfo, MAX_TABLE_BYTES};
use super::super::flow::{self, Edge};
use super::super::graph::{Bound, bound_slots, is_stubs, slot_of};
use super::prototypes;
use super::versions;
use iced_x86::{Decoder, DecoderOptions};
use std::collections::HashMap;

/// What a slot holds while the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// The module's own function at this link-time address.
    Own(u64),
    /// A function of another module, or perhaps of one: its integer parameters, if a standard says how many.
    Foreign(Option<u8>),
}

/// Slots of the global offset table that are bound to functions, and stubs that jump through them.
#[derive(Debug, Default)]
pub(super) struct Slots {
    bound: HashMap<u64, Slot>,
    /// The slot of each stub, by the stub's address.
    stubs: HashMap<u64, u64>,
}

impl Slots {
    /// Reads them. What cannot be read is left out: nothing is known of it. `is_shared`: whether other modules of the process may define a name too.
    pub fn read(elf: &ElfInfo, is_shared: impl Fn(&str) -> bool) -> Self {
        let standard = versions::standard_imports(elf);
        let slot = |bound| match bound {
            // A weak one is often an empty stand-in for what another module brings.
            Bound::Own { vaddr, name, global } if global && !is_shared(&name) => Slot::Own(vaddr),
            Bound::Own { .. } => Slot::Foreign(None),
            Bound::Import { name, number } => {
                let known = standard.contains(&number).then(|| prototypes::parameters(&name));
                Slot::Foreign(known.flatten())
            }
        };
        let bound = bound_slots(elf).into_iter().map(|(at, to)| (at, slot(to))).collect();
        let mut slots = Self { bound, stubs: HashMap::new() };
        for section in elf.sections.iter().filter(|s| is_stubs(s) && !s.nobits) {
            // OK because a section that is read has at most so many bytes.
            let size = section.size.min(MAX_TABLE_BYTES) as usize;
            if let Ok(bytes) = elf.read_at(section.offset, size) {
                slots.stubs_of(&bytes, section.vaddr);
            }
        }
        slots
    }

    /// Stubs begin at each address that is a multiple of 8, and are `jmp *slot(%rip)`, behind an `endbr64` or not.
    fn stubs_of(&mut self, bytes: &[u8], vaddr: u64) {
        for at in (0..bytes.len()).step_by(8) {
            let begin = vaddr + at as u64;
            let jump = Decoder::with_ip(64, &bytes[at..], begin, DecoderOptions::NONE)
                .into_iter()
                .take(2)
                .find(|insn| flow::edge(insn) != Edge::Next);
            let slot = jump.filter(|insn| flow::edge(insn) == Edge::Indirect);
            self.stubs.extend(slot.and_then(|insn| slot_of(&insn)).map(|slot| (begin, slot)));
        }
    }

    /// The slot that a stub jumps through; `None`: the address is no stub.
    pub fn stub(&self, vaddr: u64) -> Option<u64> {
        self.stubs.get(&vaddr).copied()
    }

    /// What a slot is bound to; `None`: that is not known.
    pub fn bound(&self, slot: u64) -> Option<Slot> {
        self.bound.get(&slot).copied()
    }
}
