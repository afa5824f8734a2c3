//! Which registers a called function may write: assembly keeps its old stack pointer in registers that a call need not keep,
//! over calls of its own parts.

use super::super::elf::ElfInfo;
use super::super::flow::{Edge, edge};
use super::values::{Registers, bit};
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess};
use std::collections::{BTreeSet, HashMap};

/// Every register.
const ALL: Registers = Registers::MAX;
/// A called function is followed that far in either direction, bytes.
const MAX_BYTES: u64 = 16 << 10;
/// Calls inside calls that are followed.
const MAX_DEPTH: u32 = 4;
/// Instructions that are looked at in one module; what is called beyond that is taken to write all registers.
const BUDGET: u32 = 1 << 20;
/// Bytes that are read at the price of one instruction.
const BYTES_A_STEP: u64 = 256;

/// The functions of a module that were looked at.
pub(super) struct Callees<'a> {
    elf: &'a ElfInfo,
    known: HashMap<u64, Registers>,
    left: u32,
}

impl<'a> Callees<'a> {
    pub fn of(elf: &'a ElfInfo) -> Self {
        Self { elf, known: HashMap::new(), left: BUDGET }
    }

    /// The registers that the function at this link-time address may write before it returns: all where that is not known, because it
    /// leaves the module, jumps through a pointer or is too large.
    pub fn clobbers(&mut self, function: u64) -> Registers {
        self.follow(function, 0)
    }

    fn follow(&mut self, function: u64, depth: u32) -> Registers {
        if let Some(known) = self.known.get(&function) {
            return *known;
        }
        // One that calls itself finds this.
        self.known.insert(function, ALL);
        let written = self.written(function, depth).unwrap_or(ALL);
        self.known.insert(function, written);
        written
    }

    fn written(&mut self, function: u64, depth: u32) -> Option<Registers> {
        // A call may lead into the middle of a loop.
        let begin = function.saturating_sub(MAX_BYTES).max(self.elf.code_begin(function));
        let end = function.saturating_add(MAX_BYTES).min(self.elf.code_end(function));
        let size = end.checked_sub(begin)?;
        self.left = self.left.checked_sub(u32::try_from(size / BYTES_A_STEP).ok()?)?;
        let bytes = self.elf.read_vaddr(begin, size as usize).ok()?;
        let mut decoder = Decoder::with_ip(64, &bytes, begin, DecoderOptions::NONE);
        let mut info = InstructionInfoFactory::new();
        let (mut written, mut seen, mut work) = (0, BTreeSet::new(), vec![function]);
        while let Some(at) = work.pop() {
            if !seen.insert(at) {
                continue;
            }
            self.left = self.left.checked_sub(1)?;
            // Outside of what was read: another function.
            decoder.set_position(usize::try_from(at.checked_sub(begin)?).ok()?).ok()?;
            decoder.set_ip(at);
            let insn = decoder.decode();
            if insn.is_invalid() {
                return None;
            }
            for used in info.info(&insn).used_registers() {
                if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess) {
                    written |= bit(used.register());
                }
            }
            match edge(&insn) {
                Edge::Next => work.push(insn.next_ip()),
                Edge::Branch(to) => work.extend([to, insn.next_ip()]),
                Edge::Jump(to) => work.push(to),
                Edge::Call if insn.is_call_near() && depth < MAX_DEPTH => {
                    written |= self.follow(insn.near_branch_target(), depth + 1);
                    work.push(insn.next_ip());
                }
                Edge::Call | Edge::Indirect | Edge::Other => return None,
                Edge::Return | Edge::Stop => {}
            }
        }
        Some(written)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CODE_AT, file_with};
    use super::*;
    use iced_x86::Register::{RAX, RBX, RCX, RDX, RSP};

    #[test]
    fn what_a_called_function_writes_is_known() {
        let dir = tempfile::tempdir().unwrap();
        /// Name, code, registers.
        type Case<'a> = (&'a str, &'a [u8], Registers);
        let cases: [Case<'_>; 7] = [
            ("ret", &[0xc3], bit(RSP)),
            ("add ecx, edx; ret", &[0x01, 0xd1, 0xc3], bit(RSP) | bit(RCX)),
            // On one branch of two.
            (
                "test edi, edi; je +2; mov al, 1; ret",
                &[0x85, 0xff, 0x74, 2, 0xb0, 1, 0xc3],
                bit(RSP) | bit(RAX),
            ),
            // Behind the end.
            ("xor edx, edx; ret; mov eax, 1", &[0x31, 0xd2, 0xc3, 0xb8, 1, 0, 0, 0], bit(RSP) | bit(RDX)),
            (
                "call +1; ret; mov ebx, 1; ret",
                &[0xe8, 1, 0, 0, 0, 0xc3, 0xbb, 1, 0, 0, 0, 0xc3],
                bit(RSP) | bit(RBX),
            ),
            ("jmp rdx", &[0xff, 0xe2], ALL),
            ("it calls itself", &[0xe8, 0xfb, 0xff, 0xff, 0xff, 0xc3], ALL),
        ];
        for (name, code, registers) in cases {
            let module = file_with(dir.path(), 4096, code, None);
            let elf = module.elf().unwrap();
            assert_eq!(Callees::of(elf).clobbers(CODE_AT.1), registers, "{name}");
        }
    }
}
