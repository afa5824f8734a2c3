//! The control flow of one function, decoded completely or not at all.
//!
//! Input: the bytes of a function (and of its `.cold` parts). Output: its instructions, where its own branches lead,
//! how it is left, and whether all of that is *known*: a gap in decoding, a jump into the middle of an instruction,
//! or an indirect jump that cannot be resolved is stated, not guessed.
//!
//! Indirect jumps are resolved as follows.
//! - Relative tables (`lea base, [rip+T]; movsxd r, [base+i*4]; add r, base; jmp r`, bounded by `cmp i, N; ja`): the
//!   N + 1 entries are read from the file.
//! - Jumps through an absolute address (a register loaded from memory, a memory operand, a slot of the GOT) can only
//!   lead to an address that is held somewhere in the file. Those inside the function are all taken as targets;
//!   where there are none, the jump leaves the function (a tail call).

use super::elf::ElfInfo;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::fmt;

/// Functions larger than this are not decoded (a whole interpreter loop is 100 KiB).
pub const MAX_FUNCTION_BYTES: u64 = 4 << 20;
/// Entries of one jump table.
const MAX_TABLE: u64 = 16_384;

/// Why a function's control flow is not completely known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unknown {
    /// Bytes at this offset are no instruction (data in the code?).
    BadInstruction(u64),
    /// An instruction runs over the function's end.
    CutInstruction(u64),
    /// The jump at this offset leads between two instructions.
    MidInstruction(u64),
    /// The indirect jump at this offset cannot be resolved.
    IndirectJump(u64),
    /// Its unwind table is in a form that is not understood, so exceptions may land anywhere.
    LandingPads,
    /// Larger than [`MAX_FUNCTION_BYTES`].
    TooLarge(u64),
    /// It has more split-off parts than this.
    TooManyParts(usize),
    /// The file could not be read.
    Unreadable(String),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadInstruction(at) => write!(f, "the bytes at +{at:#x} are no instruction"),
            Self::CutInstruction(at) => write!(f, "the instruction at +{at:#x} runs over the function's end"),
            Self::MidInstruction(at) => write!(f, "the jump at +{at:#x} leads between two instructions"),
            Self::IndirectJump(at) => write!(f, "the indirect jump at +{at:#x} cannot be resolved"),
            Self::LandingPads => {
                write!(f, "its unwind table is in an unknown form: exceptions may land anywhere")
            }
            Self::TooLarge(size) => write!(f, "it has {size} bytes, too many to decode"),
            Self::TooManyParts(most) => write!(f, "it has more than {most} split-off parts"),
            Self::Unreadable(why) => write!(f, "its bytes cannot be read: {why}"),
        }
    }
}

/// How an instruction passes control on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// To the next instruction.
    Next,
    /// A call; then, if it returns, to the next instruction.
    Call,
    /// An unconditional jump to an address.
    Jump(u64),
    /// A conditional jump to an address, or the next instruction.
    Branch(u64),
    /// An indirect jump.
    Indirect,
    /// Returns to the caller.
    Return,
    /// Ends here (`ud2`, `hlt`, `int3`).
    Stop,
    /// Something that may end the run of instructions in another way (a system call, a transaction).
    Other,
}

/// Where an indirect jump may lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndirectTo {
    /// Out of the function, through a pointer (a tail call).
    Out,
    /// To these addresses of the function.
    Table(Vec<u64>),
    /// To addresses of the function, or out of it.
    Either(Vec<u64>),
}

/// A contiguous run of code: the function itself, or one of its `.cold` parts.
#[derive(Debug)]
pub struct Region {
    /// Link-time address of its first byte.
    pub start: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its instructions, in order, without gaps; where decoding failed, those before that. With
    /// [`Unknown::MidInstruction`] they may be out of step.
    pub insns: Vec<Instruction>,
    /// Set when decoding failed.
    pub unknown: Option<Unknown>,
}

impl Region {
    /// Reads and decodes `size` bytes.
    #[must_use]
    pub fn decode(elf: &ElfInfo, start: u64, size: u64) -> Self {
        let empty = |unknown| Self { start, bytes: Vec::new(), insns: Vec::new(), unknown: Some(unknown) };
        if size > MAX_FUNCTION_BYTES {
            return empty(Unknown::TooLarge(size));
        }
        match elf.read_vaddr(start, size as usize) {
            Ok(bytes) => Self::decode_bytes(start, bytes),
            Err(e) => empty(Unknown::Unreadable(e.to_string())),
        }
    }

    /// Decodes the bytes of a function.
    #[must_use]
    pub fn decode_bytes(start: u64, bytes: Vec<u8>) -> Self {
        let mut decoder = Decoder::with_ip(64, &bytes, start, DecoderOptions::NONE);
        let mut insns = Vec::with_capacity(bytes.len() / 4);
        let mut unknown = None;
        while decoder.can_decode() {
            let at = decoder.ip() - start;
            let insn = decoder.decode();
            if insn.is_invalid() {
                unknown = Some(match decoder.last_error() {
                    iced_x86::DecoderError::NoMoreBytes => Unknown::CutInstruction(at),
                    _ => Unknown::BadInstruction(at),
                });
                break;
            }
            insns.push(insn);
        }
        let mut region = Self { start, bytes, insns, unknown };
        if region.unknown.is_none() {
            region.unknown = region.insns.iter().find_map(|insn| match edge(insn) {
                Edge::Jump(to) | Edge::Branch(to) if region.contains(to) && region.index_of(to).is_none() => {
                    Some(Unknown::MidInstruction(insn.ip() - start))
                }
                _ => None,
            });
        }
        region
    }

    /// One past its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Whether the address lies inside.
    #[must_use]
    pub fn contains(&self, vaddr: u64) -> bool {
        (self.start..self.end()).contains(&vaddr)
    }

    /// Index of the instruction that begins at the address.
    #[must_use]
    pub fn index_of(&self, vaddr: u64) -> Option<usize> {
        self.insns.binary_search_by_key(&vaddr, Instruction::ip).ok()
    }

    /// Whether a branch of its own leads into `from ..= to`.
    fn is_entered(&self, from: u64, to: u64) -> bool {
        self.insns.iter().any(|insn| match edge(insn) {
            Edge::Jump(at) | Edge::Branch(at) => (from..=to).contains(&at),
            _ => false,
        })
    }

    /// The bytes of one instruction.
    #[must_use]
    pub fn bytes_of(&self, insn: &Instruction) -> &[u8] {
        let at = (insn.ip() - self.start) as usize;
        &self.bytes[at..at + insn.len()]
    }
}

/// How an instruction passes control on.
#[must_use]
pub fn edge(insn: &Instruction) -> Edge {
    match insn.flow_control() {
        // The decoder takes it for one that goes on; outside of the kernel it does not.
        _ if insn.mnemonic() == Mnemonic::Hlt => Edge::Stop,
        FlowControl::Next => Edge::Next,
        FlowControl::UnconditionalBranch if is_near(insn) => Edge::Jump(insn.near_branch_target()),
        FlowControl::ConditionalBranch if is_near(insn) => Edge::Branch(insn.near_branch_target()),
        FlowControl::IndirectBranch => Edge::Indirect,
        FlowControl::Return => Edge::Return,
        // syscall and sysenter count as calls there; they may not come back the same way (clone, sigreturn).
        FlowControl::Call | FlowControl::IndirectCall => match insn.mnemonic() {
            Mnemonic::Call => Edge::Call,
            _ => Edge::Other,
        },
        FlowControl::Exception | FlowControl::Interrupt => Edge::Stop,
        _ => Edge::Other,
    }
}

fn is_near(insn: &Instruction) -> bool {
    matches!(insn.op0_kind(), OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16)
}

/// Bytes that an instruction adds to the stack pointer; `None` if that cannot be told (`leave`, `and rsp, -32`).
#[must_use]
pub fn stack_change(insn: &Instruction) -> Option<i64> {
    let to_stack_pointer =
        insn.op_count() > 0 && insn.op0_kind() == OpKind::Register && insn.op0_register() == Register::RSP;
    match insn.mnemonic() {
        Mnemonic::Add if to_stack_pointer && is_immediate(insn) => Some(insn.immediate(1).cast_signed()),
        Mnemonic::Sub if to_stack_pointer && is_immediate(insn) => Some(-insn.immediate(1).cast_signed()),
        Mnemonic::Lea
            if to_stack_pointer
                && insn.memory_base() == Register::RSP
                && insn.memory_index() == Register::None =>
        {
            Some(insn.memory_displacement64().cast_signed())
        }
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push => Some(i64::from(insn.stack_pointer_increment())),
        Mnemonic::Leave | Mnemonic::Enter => None,
        Mnemonic::Xchg if insn.op1_kind() == OpKind::Register && insn.op1_register() == Register::RSP => None,
        _ if to_stack_pointer => None,
        _ => Some(i64::from(insn.stack_pointer_increment())),
    }
}

/// Where the indirect jump at index `at` may lead; `None` if that cannot be told. `inside` says whether an address
/// belongs to the function or one of its parts.
#[must_use]
pub fn resolve_indirect(
    elf: &ElfInfo,
    region: &Region,
    at: usize,
    inside: &dyn Fn(u64) -> bool,
    taken: &[u64],
) -> Option<IndirectTo> {
    let jump = &region.insns[at];
    let through_pointer =
        || Some(if taken.is_empty() { IndirectTo::Out } else { IndirectTo::Either(taken.to_vec()) });
    if jump.op0_kind() == OpKind::Memory {
        // jmp *slot(%rip): a GOT entry or a function pointer, filled by a relocation.
        return through_pointer();
    }
    // jmp *%reg: how was it made?
    let mut reg = jump.op0_register().full_register();
    let mut i = at;
    for _ in 0..32 {
        i = i.checked_sub(1)?;
        let insn = &region.insns[i];
        if !writes(insn, reg) {
            // A call returns with scratch registers that hold anything.
            if edge(insn) == Edge::Call && is_scratch(reg) {
                return None;
            }
            continue;
        }
        match insn.mnemonic() {
            Mnemonic::Add if insn.op1_kind() == OpKind::Register => {
                let table = relative_table(elf, region, i, inside)?;
                return Some(IndirectTo::Table(table));
            }
            Mnemonic::Mov if insn.op1_kind() == OpKind::Register => reg = insn.op1_register().full_register(),
            Mnemonic::Mov if insn.op1_kind() == OpKind::Memory && insn.code() == Code::Mov_r64_rm64 => {
                return through_pointer();
            }
            // lea r, [rip+x]: counted as a held address.
            Mnemonic::Lea if insn.memory_base() == Register::RIP => return through_pointer(),
            _ => return None,
        }
    }
    None
}

/// The same table where nothing bounds the index: its entries as long as they are addresses of the function. It may hold some of the next
/// table's, so it says where the jump may lead, not where it does. None where there is no table.
#[must_use]
pub fn table_without_bound(
    elf: &ElfInfo,
    region: &Region,
    at: usize,
    inside: &dyn Fn(u64) -> bool,
) -> Option<Vec<u64>> {
    let reg = region.insns.get(at)?.op0_register().full_register();
    let add = (at.saturating_sub(32)..at).rev().find(|i| writes(&region.insns[*i], reg))?;
    if region.insns[add].mnemonic() != Mnemonic::Add || region.insns[add].op1_kind() != OpKind::Register {
        return None;
    }
    let (_, table) = table_of(region, add)?;
    let entries = (0..MAX_TABLE).map_while(|i| {
        let entry = elf.read_vaddr(table.checked_add(i * 4)?, 4).ok()?;
        let to = entry_of(table, &entry);
        inside(to).then_some(to)
    });
    Some(entries.collect::<Vec<u64>>()).filter(|to| !to.is_empty())
}

/// Where an entry of a relative table leads.
fn entry_of(table: u64, entry: &[u8]) -> u64 {
    let offset = entry.try_into().map_or(0, i32::from_le_bytes);
    table.wrapping_add_signed(i64::from(offset))
}

/// Reads the table of `add r, base` at index `add`.
fn relative_table(
    elf: &ElfInfo,
    region: &Region,
    add: usize,
    inside: &dyn Fn(u64) -> bool,
) -> Option<Vec<u64>> {
    let (load, table) = table_of(region, add)?;
    let index = region.insns[load].memory_index().full_register();
    let (compared, last) = last_index(region, load, index)?;
    // Who comes by another way may bring another index.
    if region.is_entered(region.insns[compared].next_ip(), region.insns[load].ip()) {
        return None;
    }
    if last >= MAX_TABLE {
        return None;
    }
    let bytes = elf.read_vaddr(table, (last as usize + 1) * 4).ok()?;
    let entries = bytes.chunks_exact(4).map(|entry| entry_of(table, entry));
    entries.map(|to| inside(to).then_some(to)).collect()
}

/// The index of the instruction that loads an entry for `add r, base` at index `add`, and where the table lies.
fn table_of(region: &Region, add: usize) -> Option<(usize, u64)> {
    let sum = &region.insns[add];
    let pair = [sum.op0_register().full_register(), sum.op1_register().full_register()];
    // movsxd r, [base + index*4]: r and base are the two registers of the addition.
    let load = (0..add).rev().take(24).find(|&i| {
        let insn = &region.insns[i];
        insn.mnemonic() == Mnemonic::Movsxd
            && insn.op1_kind() == OpKind::Memory
            && insn.memory_index_scale() == 4
            && pair.contains(&insn.op0_register().full_register())
            && pair.contains(&insn.memory_base().full_register())
    })?;
    let insn = &region.insns[load];
    if insn.memory_displacement64() != 0 {
        return None;
    }
    let base = insn.memory_base().full_register();
    let table = (0..load).rev().find_map(|i| {
        let insn = &region.insns[i];
        writes(insn, base).then(|| {
            (insn.mnemonic() == Mnemonic::Lea && insn.memory_base() == Register::RIP)
                .then(|| insn.memory_displacement64())
        })
    })??;
    Some((load, table))
}

/// The largest index that reaches the table: `cmp index, N` followed by `ja` (or `jae`), or `and index, N`.
/// With the index of the instruction that holds the bound. Only what runs straight on to the load counts.
fn last_index(region: &Region, load: usize, index: Register) -> Option<(usize, u64)> {
    let mut names = vec![index];
    for i in (0..load).rev().take(24) {
        let insn = &region.insns[i];
        if matches!(edge(insn), Edge::Jump(_) | Edge::Indirect | Edge::Return | Edge::Stop) {
            return None;
        }
        match insn.mnemonic() {
            // A copy: the bound may be on either register.
            Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsxd
                if insn.op1_kind() == OpKind::Register
                    && insn.op0_kind() == OpKind::Register
                    && names.contains(&insn.op0_register().full_register()) =>
            {
                names.push(insn.op1_register().full_register());
            }
            Mnemonic::Cmp
                if insn.op0_kind() == OpKind::Register
                    && names.contains(&insn.op0_register().full_register())
                    && is_immediate(insn) =>
            {
                let bound = insn.immediate(1);
                let after = region.insns.get(i + 1..load)?;
                let last = after.iter().find_map(|j| match j.mnemonic() {
                    Mnemonic::Ja | Mnemonic::Jbe => Some(bound),
                    Mnemonic::Jae | Mnemonic::Jb => bound.checked_sub(1),
                    _ => None,
                });
                return last.map(|last| (i, last));
            }
            Mnemonic::And
                if insn.op0_kind() == OpKind::Register
                    && names.contains(&insn.op0_register().full_register())
                    && is_immediate(insn) =>
            {
                return Some((i, insn.immediate(1)));
            }
            // Changed after the comparison: the bound no longer holds.
            _ if names.iter().any(|&r| writes(insn, r)) => return None,
            _ => {}
        }
    }
    None
}

fn is_immediate(insn: &Instruction) -> bool {
    !matches!(insn.op1_kind(), OpKind::Register | OpKind::Memory)
}

/// Whether the first operand is this register and is written (enough for the instructions looked at here).
fn writes(insn: &Instruction, reg: Register) -> bool {
    insn.op0_kind() == OpKind::Register
        && insn.op0_register().full_register() == reg
        && !matches!(
            insn.mnemonic(),
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Bt | Mnemonic::Jmp
        )
}

fn is_scratch(reg: Register) -> bool {
    use Register::{R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI};
    matches!(reg, RAX | RCX | RDX | RSI | RDI | R8 | R9 | R10 | R11)
}

#[cfg(test)]
mod tests {
    use super::super::sites::Body;
    use super::super::stack_switch::tests::{CODE_AT, file_with};
    use super::*;

    #[test]
    fn decodes_without_gaps_or_says_where() {
        // push rbp; mov rbp, rsp; jne +1 (to the nop); nop; pop rbp; ret
        let code = vec![0x55, 0x48, 0x89, 0xe5, 0x75, 0x00, 0x90, 0x5d, 0xc3];
        let region = Region::decode_bytes(0x1000, code);
        assert_eq!(region.unknown, None);
        assert_eq!(region.insns.len(), 6);
        assert_eq!(edge(&region.insns[2]), Edge::Branch(0x1006));
        assert_eq!(edge(&region.insns[5]), Edge::Return);

        // hlt, ud2 and int3 end there; a system call goes on, but not as any instruction does
        for (code, ends) in [
            (&[0xf4][..], Edge::Stop),
            (&[0x0f, 0x0b], Edge::Stop),
            (&[0xcc], Edge::Stop),
            (&[0x0f, 0x05], Edge::Other),
        ] {
            assert_eq!(edge(&Region::decode_bytes(0, code.to_vec()).insns[0]), ends, "{code:x?}");
        }

        // jmp into the immediate of a mov
        let region = Region::decode_bytes(0x1000, vec![0xeb, 0x01, 0xb8, 0x90, 0x90, 0x90, 0x90, 0xc3]);
        assert_eq!(region.unknown, Some(Unknown::MidInstruction(0)));
        // 06 is no instruction in 64-bit code; e8 without its four bytes is cut
        assert_eq!(
            Region::decode_bytes(0, [&[0x90, 0x06][..], &[0x90; 16]].concat()).unknown,
            Some(Unknown::BadInstruction(1))
        );
        assert_eq!(Region::decode_bytes(0, vec![0x90, 0xe8, 0]).unknown, Some(Unknown::CutInstruction(1)));
    }

    /// `cmp edi, 1; ja`, then what stands between, a jump through a table of two, two `ret`, and what stands behind.
    #[test]
    fn a_table_is_as_long_as_what_runs_on_to_it_has_compared() {
        let of = |between: &[u8], behind: &[u8]| {
            let head = 5 + between.len();
            let size = head + 16 + 2 + behind.len();
            let mut code = vec![0x83, 0xff, 1, 0x77, (between.len() + 16) as u8];
            code.extend(between);
            code.extend([0x48, 0x8d, 0x15]); // lea rdx, [rip+table]
            code.extend((size as u32 - head as u32 - 7).to_le_bytes());
            code.extend([0x48, 0x63, 0x04, 0xba, 0x48, 0x01, 0xd0, 0xff, 0xe0]); // movsxd; add; jmp rax
            code.extend([0xc3, 0xc3]);
            code.extend(behind);
            for case in [head + 16, head + 17] {
                code.extend((case as i32 - size as i32).to_le_bytes());
            }
            let dir = tempfile::tempdir().unwrap();
            let module = file_with(dir.path(), 4096, &code, Some(size as u64));
            let body = Body::read(&module, &module.functions(0)[0]).unwrap();
            let (_, to) = body.indirect.into_iter().next().unwrap();
            to.map(|to| match to {
                IndirectTo::Table(to) => to.iter().map(|to| to - CODE_AT.1 - head as u64).collect(),
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(of(&[], &[0xc3]), Some(vec![16, 17]));
        assert_eq!(of(&[0x90, 0x74, 18], &[0xc3]), Some(vec![16, 17]), "a branch goes on to it");
        // Who jumps right to the load has compared something else, or nothing.
        assert_eq!(of(&[], &[0xeb, 0xec]), None);
        // The comparison is one of another way.
        assert_eq!(of(&[0xeb, 0], &[0xc3]), None);
        assert_eq!(of(&[0xc3], &[0xc3]), None);
    }
}
