//! Where a call leads.
//!
//! By its displacement; where that is a stub of the procedure linkage table, or where the call goes through a slot of the
//! global offset table, by what the dynamic linker wrote into the slot. A slot that is not bound yet points back into the
//! stubs. Any other pointer may hold something else the next time.

use super::super::elf::ElfInfo;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of a stub: `endbr64`, `bnd jmp [rip+x]`.
const STUB_BYTES: usize = 16;
/// Larger tables of relocations are not searched for a name (87,000 stubs).
const MOST_RELOCATIONS: u64 = 2 << 20;

/// The memory of the process, if there is one.
pub(super) struct Memory<'a> {
    file: Option<File>,
    /// Begin and end of all executable mappings, by address.
    executable: &'a [(u64, u64)],
}

impl<'a> Memory<'a> {
    pub fn of(pid: i32, executable: &'a [(u64, u64)]) -> Self {
        Self { file: File::open(format!("/proc/{pid}/mem")).ok(), executable }
    }

    /// Nothing of it is read.
    pub fn none(executable: &'a [(u64, u64)]) -> Self {
        Self { file: None, executable }
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.file.as_ref()?.read_exact_at(&mut word, address).ok()?;
        Some(u64::from_le_bytes(word))
    }

    fn is_code(&self, address: u64) -> bool {
        let after = self.executable.partition_point(|(start, _)| *start <= address);
        after.checked_sub(1).is_some_and(|i| address < self.executable[i].1)
    }
}

/// The address in the process to which a call of a module leads; `bias`: what to add to link-time addresses of the module.
pub(super) fn of_call(elf: &ElfInfo, memory: &Memory<'_>, call: &Instruction, bias: u64) -> Option<u64> {
    if call.op0_kind() == OpKind::NearBranch64 {
        let to = call.near_branch_target();
        return match is_stub(elf, to) {
            true => bound(elf, memory, slot_of_stub(elf, to)?, bias),
            false => Some(to.wrapping_add(bias)),
        };
    }
    bound(elf, memory, slot_of(call)?, bias)
}

pub(super) fn is_stub(elf: &ElfInfo, vaddr: u64) -> bool {
    elf.section_at(vaddr).is_some_and(|s| s.name.starts_with(".plt") || s.name == ".iplt")
}

/// Link-time address of the slot that an instruction reads relative to the next one.
fn slot_of(insn: &Instruction) -> Option<u64> {
    let relative = insn.op0_kind() == OpKind::Memory
        && insn.memory_base() == Register::RIP
        && insn.segment_prefix() == Register::None;
    relative.then(|| insn.memory_displacement64())
}

pub(super) fn slot_of_stub(elf: &ElfInfo, stub: u64) -> Option<u64> {
    let end = elf.code_end(stub);
    let bytes = elf.read_vaddr(stub, STUB_BYTES.min(usize::try_from(end.checked_sub(stub)?).ok()?)).ok()?;
    let mut decoder = Decoder::with_ip(64, &bytes, stub, DecoderOptions::NONE);
    let mut insn = decoder.decode();
    if insn.mnemonic() == Mnemonic::Endbr64 {
        insn = decoder.decode();
    }
    if insn.flow_control() == FlowControl::IndirectBranch { slot_of(&insn) } else { None }
}

/// The name of the function of another module that a stub jumps to.
pub fn stub_name(elf: &ElfInfo, stub: u64) -> Option<String> {
    let slot = slot_of_stub(elf, stub)?;
    // Elf64_Rela: offset u64, info u64 (symbol << 32 | type), addend i64.
    let section =
        elf.sections.iter().find(|s| s.name == ".rela.plt" && !s.nobits && s.size <= MOST_RELOCATIONS)?;
    let bytes = elf.read_at(section.offset, usize::try_from(section.size).ok()?).ok()?;
    let word = |entry: &[u8], at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
    let entry = bytes.chunks_exact(24).find(|entry| word(entry, 0) == slot)?;
    elf.dynamic_symbol_name((word(entry, 8) >> 32) as u32)
}

/// What a slot of the global offset table holds, if it is bound.
pub(super) fn bound(elf: &ElfInfo, memory: &Memory<'_>, slot: u64, bias: u64) -> Option<u64> {
    let filled_by_linker = elf.section_at(slot).is_some_and(|s| s.name == ".got" || s.name == ".got.plt");
    if !filled_by_linker {
        return None;
    }
    let value = memory.word(slot.wrapping_add(bias))?;
    (memory.is_code(value) && !is_stub(elf, value.wrapping_sub(bias))).then_some(value)
}
