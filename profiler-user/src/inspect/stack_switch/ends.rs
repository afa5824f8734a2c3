//! Code or data: what is run has to lead somewhere.

use super::super::elf::ElfInfo;
use super::super::flow::{Edge, Region, edge};
use iced_x86::{Decoder, DecoderError, DecoderOptions, Instruction};
use std::collections::BTreeSet;

/// Most memory behind what a module has in its file, bytes (`.bss`).
const MAX_BSS: u64 = 1 << 30;

/// Whether running the code from this address on can end well: some way leads to a return, a call or out of the region before the
/// program would die of bytes that are no instruction, of one that only the kernel may run, or of one that reads where no module
/// is. What cannot is data.
pub(super) fn can_end_well(elf: &ElfInfo, region: &Region, begin: u64) -> bool {
    let mut decoder = Decoder::with_ip(64, &region.bytes, region.start, DecoderOptions::NONE);
    let mut seen = BTreeSet::new();
    let mut work = vec![begin];
    while let Some(at) = work.pop() {
        if !region.contains(at) {
            if elf.is_code(at) {
                return true;
            }
            continue;
        }
        if !seen.insert(at) || decoder.set_position((at - region.start) as usize).is_err() {
            continue;
        }
        decoder.set_ip(at);
        let insn = decoder.decode();
        if insn.is_invalid() {
            // It runs over the end of the region: into the next one.
            if decoder.last_error() == DecoderError::NoMoreBytes {
                return true;
            }
            continue;
        }
        if insn.is_privileged() || !reads_module(elf, &insn) {
            continue;
        }
        match edge(&insn) {
            Edge::Next => work.push(insn.next_ip()),
            Edge::Branch(to) => work.extend([to, insn.next_ip()]),
            Edge::Jump(to) => work.push(to),
            Edge::Call | Edge::Indirect | Edge::Return | Edge::Other => return true,
            Edge::Stop => {}
        }
    }
    false
}

/// Memory that it names relative to itself belongs to the module.
fn reads_module(elf: &ElfInfo, insn: &Instruction) -> bool {
    if !insn.is_ip_rel_memory_operand() {
        return true;
    }
    let begin = elf.segments.iter().map(|s| s.vaddr).min().unwrap_or(0);
    let end = elf.segments.iter().map(|s| s.vaddr + s.file_size).max().unwrap_or(0);
    (begin..end.saturating_add(MAX_BSS)).contains(&insn.ip_rel_memory_address())
}
