//! How a module is linked: what the dynamic linker writes into which slot, and which stubs jump through one.
//!
//! By the relocations of the file: nothing is loaded. A slot that is bound to a name which the module defines itself is taken to be bound
//! to that definition; a program may put its own in the place of it.

use super::super::elf::{ElfInfo, MAX_TABLE_BYTES, Section};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use profiler_core::graph::{Builder, Node, Target};
use std::collections::HashMap;

// Types of relocations (System V ABI, AMD64 supplement, table 4.9).
const R_64: u32 = 1;
const R_GLOB_DAT: u32 = 6;
const R_JUMP_SLOT: u32 = 7;
const R_RELATIVE: u32 = 8;
const R_IRELATIVE: u32 = 37;
/// Bytes of an `Elf64_Sym` and of an `Elf64_Rela`.
const ENTRY: usize = 24;
/// Type of a symbol that is a function.
const FUNCTION: u8 = 2;
/// Binding of a symbol that is neither local nor weak.
const GLOBAL: u8 = 1;
/// Symbols of these types are functions: none, function, IFUNC.
const FUNCTIONS: [u8; 3] = [0, 2, 10];

/// Slots, stubs, and what data hold.
#[derive(Debug, Default)]
pub(super) struct Linkage {
    /// What a slot of the global offset table holds, by its link-time address.
    slots: HashMap<u64, Target>,
    /// The slot that a stub of the procedure linkage table jumps through, by the stub's address.
    stubs: HashMap<u64, u64>,
    /// Words of the data that hold addresses: link-time address of the word, and what it holds.
    pub pointers: Vec<(u64, u64)>,
    /// Addresses of functions that the loader calls to choose others (IFUNC resolvers).
    pub resolvers: Vec<u64>,
    /// Tables that could not be read, in words.
    pub unread: Vec<String>,
}

/// A symbol of `.dynsym`.
struct Symbol {
    name: String,
    kind: u8,
    /// Of global binding: not weak.
    global: bool,
    defined: bool,
    vaddr: u64,
}

impl Linkage {
    /// Reads the relocations and the stubs of a file; imports become nodes.
    pub fn read(elf: &ElfInfo, builder: &mut Builder) -> Self {
        let mut linkage = Self::default();
        let mut symbols = Symbols::read(elf, &mut linkage.unread);
        for section in elf.sections.iter().filter(|s| s.name.starts_with(".rela") && !s.nobits) {
            let Some(bytes) = linkage.bytes(elf, section) else { continue };
            for entry in bytes.chunks_exact(ENTRY) {
                let (at, info, addend) = (word(entry, 0), word(entry, 8), word(entry, 16));
                // OK because both halves have 32 bits.
                linkage.relocation(at, info as u32, (info >> 32) as u32, addend, &mut symbols, builder);
            }
        }
        for section in elf.sections.iter().filter(|s| s.name == ".relr.dyn" && !s.nobits) {
            let Some(bytes) = linkage.bytes(elf, section) else { continue };
            for at in relative_words(&bytes) {
                let held = elf.read_vaddr(at, 8).ok().map(|bytes| word(&bytes, 0));
                linkage.pointers.extend(held.filter(|held| elf.is_code(*held)).map(|held| (at, held)));
            }
        }
        linkage.pointers.retain(|(_, held)| elf.is_code(*held));
        if elf.fixed_address {
            linkage.scan_data(elf);
        }
        for section in elf.sections.iter().filter(|s| is_stubs(s) && !s.nobits) {
            if let Some(bytes) = linkage.bytes(elf, section) {
                linkage.stubs_of(&bytes, section.vaddr);
            }
        }
        linkage
    }

    fn bytes(&mut self, elf: &ElfInfo, section: &Section) -> Option<Vec<u8>> {
        let read = match section.size {
            size if size > MAX_TABLE_BYTES => Err(format!("it is said to have {size} bytes")),
            size => elf.read_at(section.offset, size as usize).map_err(|e| e.to_string()),
        };
        let name = &section.name;
        read.map_err(|why| self.unread.push(format!("{name} cannot be read: {why}"))).ok()
    }

    fn relocation(
        &mut self,
        at: u64,
        kind: u32,
        symbol: u32,
        addend: u64,
        symbols: &mut Symbols,
        builder: &mut Builder,
    ) {
        match kind {
            R_JUMP_SLOT | R_GLOB_DAT => {
                if let Some(target) = symbols.target(symbol, builder) {
                    self.slots.insert(at, target);
                }
            }
            R_64 => {
                let symbol = symbols.all.get(symbol as usize).filter(|symbol| symbol.defined);
                self.pointers.extend(symbol.map(|symbol| (at, symbol.vaddr.wrapping_add(addend))));
            }
            R_RELATIVE => {
                self.pointers.push((at, addend));
                // A slot that the linker bound itself.
                self.slots.insert(at, Target::Address(addend));
            }
            R_IRELATIVE => {
                self.resolvers.push(addend);
                self.slots.insert(at, Target::Address(addend));
            }
            _ => {}
        }
    }

    /// In a program with a fixed address the linker writes addresses of functions into data itself: every aligned word counts that
    /// is one.
    fn scan_data(&mut self, elf: &ElfInfo) {
        let dull =
            |s: &Section| s.exec || s.nobits || s.name.starts_with(".rel") || s.name.starts_with(".eh_");
        for section in elf.sections.iter().filter(|s| !dull(s)) {
            let Some(bytes) = self.bytes(elf, section) else { continue };
            let skip = section.vaddr.next_multiple_of(8) - section.vaddr;
            for (number, eight) in (0_u64..).zip(bytes.get(skip as usize..).unwrap_or(&[]).chunks_exact(8)) {
                let held = word(eight, 0);
                if held != 0 && elf.is_code(held) {
                    self.pointers.push((section.vaddr + skip + 8 * number, held));
                }
            }
        }
    }

    /// Finds `jmp *slot(%rip)`, behind an `endbr64` or not, in the code of a section of stubs.
    fn stubs_of(&mut self, bytes: &[u8], vaddr: u64) {
        let mut decoder = Decoder::with_ip(64, bytes, vaddr, DecoderOptions::NONE);
        let mut insn = Instruction::default();
        let mut marked = None;
        while decoder.can_decode() {
            decoder.decode_out(&mut insn);
            if insn.flow_control() == FlowControl::IndirectBranch
                && let Some(slot) = slot_of(&insn)
            {
                self.stubs.insert(marked.unwrap_or(insn.ip()), slot);
            }
            marked = (insn.mnemonic() == Mnemonic::Endbr64).then(|| insn.ip());
        }
    }

    /// What a stub leads to, if the address is one.
    pub fn through_stub(&self, vaddr: u64) -> Option<Target> {
        let slot = self.stubs.get(&vaddr)?;
        Some(self.slots.get(slot).copied().unwrap_or(Target::Unknown))
    }

    /// What the linker writes into the slot that an instruction reads, if it reads one.
    pub fn through_slot(&self, insn: &Instruction) -> Option<Target> {
        self.slots.get(&slot_of(insn)?).copied()
    }
}

/// Names that the dynamic linker looks up for a module.
pub(in crate::inspect) fn imported_names(elf: &ElfInfo) -> impl Iterator<Item = String> {
    let symbols = Symbols::read(elf, &mut Vec::new());
    symbols
        .all
        .into_iter()
        .filter(|symbol| !symbol.defined && !symbol.name.is_empty())
        .map(|symbol| symbol.name)
}

/// Names that a file defines for others; `None`: they cannot be read.
pub(in crate::inspect) fn defined_names(elf: &ElfInfo) -> Option<impl Iterator<Item = String>> {
    let mut unread = Vec::new();
    let symbols = Symbols::read(elf, &mut unread);
    // Without section headers nothing tells how many there are.
    let is_read = unread.is_empty() && !(elf.dynsym.is_none() && elf.sections.is_empty());
    let defined = |symbol: &Symbol| symbol.defined && !symbol.name.is_empty();
    is_read.then(|| symbols.all.into_iter().filter(defined).map(|symbol| symbol.name))
}

/// What the dynamic linker writes into a slot.
pub(in crate::inspect) enum Bound {
    /// The module's own function, or one of the same name that takes its place.
    Own {
        /// Link-time address.
        vaddr: u64,
        /// Its name.
        name: String,
        /// It is not weak.
        global: bool,
    },
    /// A function of another module.
    Import {
        /// Its name.
        name: String,
        /// Its number among the dynamic symbols.
        number: usize,
    },
}

/// Slots that are bound to a function by its name: link-time address of the slot, and what it is bound to. Those of functions that the loader
/// chooses (IFUNC) are left out.
pub(in crate::inspect) fn bound_slots(elf: &ElfInfo) -> Vec<(u64, Bound)> {
    let mut unread = Vec::new();
    let symbols = Symbols::read(elf, &mut unread);
    let bound = |entry: &[u8]| {
        let (at, info) = (word(entry, 0), word(entry, 8));
        // OK because both halves have 32 bits.
        let (kind, number) = (info as u32, (info >> 32) as usize);
        let symbol = symbols.all.get(number).filter(|_| matches!(kind, R_JUMP_SLOT | R_GLOB_DAT))?;
        match (symbol.defined, symbol.kind) {
            (true, FUNCTION) => {
                let name = symbol.name.clone();
                Some((at, Bound::Own { vaddr: symbol.vaddr, name, global: symbol.global }))
            }
            (false, _) if FUNCTIONS.contains(&symbol.kind) && !symbol.name.is_empty() => {
                Some((at, Bound::Import { name: symbol.name.clone(), number }))
            }
            _ => None,
        }
    };
    let tables = elf.sections.iter().filter(|s| s.name.starts_with(".rela") && !s.nobits);
    let read = tables
        .filter(|s| s.size <= MAX_TABLE_BYTES)
        .filter_map(|s| elf.read_at(s.offset, s.size as usize).ok());
    read.flat_map(|bytes| bytes.chunks_exact(ENTRY).filter_map(bound).collect::<Vec<_>>()).collect()
}

/// A section of stubs: no function of the module lies there.
pub(in crate::inspect) fn is_stubs(section: &Section) -> bool {
    section.exec && (section.name.starts_with(".plt") || section.name == ".iplt")
}

/// Link-time address of the eight bytes that an instruction reads relative to the next one.
pub(in crate::inspect) fn slot_of(insn: &Instruction) -> Option<u64> {
    let memory = (0..insn.op_count()).any(|i| insn.op_kind(i) == OpKind::Memory);
    let relative = memory && insn.memory_base() == Register::RIP && insn.segment_prefix() == Register::None;
    (relative && insn.code() != Code::Lea_r64_m).then(|| insn.memory_displacement64())
}

/// The addresses that a table of relative relocations tells (`SHT_RELR`): an even entry is one, an odd one is a bitmap of the 63 words
/// behind the last (generic ABI, "Relative Relocation Table").
fn relative_words(bytes: &[u8]) -> Vec<u64> {
    let mut words = Vec::new();
    let mut next = 0_u64;
    for entry in bytes.chunks_exact(8).map(|entry| word(entry, 0)) {
        if entry & 1 == 0 {
            words.push(entry);
            next = entry.wrapping_add(8);
        } else {
            let set = (1..64).filter(|bit| entry >> bit & 1 == 1);
            words.extend(set.map(|bit| next.wrapping_add(8 * (bit - 1))));
            next = next.wrapping_add(8 * 63);
        }
    }
    words
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(bytes) = bytes.get(at..at + 8) {
        word.copy_from_slice(bytes);
    }
    u64::from_le_bytes(word)
}

/// The dynamic symbols, and the nodes that were made of those that are imported.
struct Symbols {
    all: Vec<Symbol>,
    nodes: HashMap<u32, Target>,
}

impl Symbols {
    fn read(elf: &ElfInfo, unread: &mut Vec<String>) -> Self {
        let table = |offset, size: u64| match size {
            size if size > MAX_TABLE_BYTES => Err(format!("a table of {size} bytes")),
            size => elf.read_at(offset, size as usize).map_err(|e| e.to_string()),
        };
        let mut all = Vec::new();
        if let Some(range) = elf.dynsym {
            match (table(range.offset, range.size), table(range.names_offset, range.names_size)) {
                (Ok(symbols), Ok(names)) => {
                    // Elf64_Sym: name u32, info u8, other u8, section u16, value u64; section 0 is an import.
                    all.extend(symbols.chunks_exact(ENTRY).map(|s| Symbol {
                        name: super::super::elf::nul_terminated(&names, word(s, 0) as u32),
                        kind: s.get(4).map_or(0, |info| info & 15),
                        global: s.get(4).is_some_and(|info| info >> 4 == GLOBAL),
                        defined: word(s, 0) >> 48 != 0,
                        vaddr: word(s, 8),
                    }));
                }
                (Err(why), _) | (_, Err(why)) => unread.push(format!(".dynsym cannot be read: {why}")),
            }
        }
        Self { all, nodes: HashMap::new() }
    }

    /// What a slot holds that is bound to a symbol; none if that is no function.
    fn target(&mut self, index: u32, builder: &mut Builder) -> Option<Target> {
        let symbol = self.all.get(index as usize).filter(|symbol| FUNCTIONS.contains(&symbol.kind))?;
        if symbol.defined {
            return Some(Target::Address(symbol.vaddr));
        }
        if symbol.name.is_empty() {
            return None;
        }
        let new = || Target::Node(builder.node(Node::import(symbol.name.as_str())));
        Some(*self.nodes.entry(index).or_insert_with(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_relative_table() {
        let table: Vec<u8> =
            [0x1000_u64, 0b1011, 3, 0x5000, 1].iter().flat_map(|e| e.to_le_bytes()).collect();
        assert_eq!(relative_words(&table), [0x1000, 0x1008, 0x1018, 0x1008 + 504, 0x5000]);
        assert!(relative_words(&[1, 2, 3]).is_empty());
    }

    #[test]
    fn stubs_begin_at_their_mark() {
        let mut linkage = Linkage::default();
        // endbr64; bnd jmp [rip+2]; nop; jmp [rip+4]; push 0; jmp -5
        let code = [
            &[0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 2, 0, 0, 0][..],
            &[0x90],
            &[0xff, 0x25, 4, 0, 0, 0],
            &[0x68, 0, 0, 0, 0],
            &[0xe9, 0xfb, 0xff, 0xff, 0xff],
        ]
        .concat();
        linkage.slots.insert(0x2000 + 11 + 2, Target::Address(7));
        linkage.stubs_of(&code, 0x2000);
        assert_eq!(linkage.through_stub(0x2000), Some(Target::Address(7)));
        assert_eq!(
            linkage.through_stub(0x2000 + 12),
            Some(Target::Unknown),
            "a slot of which nothing is known"
        );
        assert_eq!(linkage.through_stub(0x2000 + 4), None);
    }
}
