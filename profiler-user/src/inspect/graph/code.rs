//! The code of one function: its instructions, its parts, and where its indirect jumps lead.
//!
//! Decoded from the first byte to the last one, as a disassembler does. Where bytes are no instruction, decoding goes on at the next
//! byte: sites and loops are chosen from code that is known completely ([`super::super::flow`]), while a graph is to have all edges that there
//! may be. What was skipped is counted.

use super::super::elf::ElfInfo;
use super::super::flow::{self, Edge, IndirectTo, Region, Unknown};
use super::super::text::TextIndex;
use super::functions::Functions;
use iced_x86::{Decoder, DecoderOptions, Instruction};
use std::collections::HashSet;
use std::ops::Range;

/// Parts of one function.
const MOST_PARTS: usize = 64;

/// A function, decoded.
pub(super) struct Code {
    /// The function itself, then its parts.
    pub regions: Vec<Region>,
    /// Bytes that are no instructions, or too many to be decoded.
    pub undecoded_bytes: u64,
    /// Each indirect jump, by address, and where it may lead.
    pub indirect: Vec<(u64, Leads)>,
}

/// Where an indirect jump may lead.
pub(super) enum Leads {
    /// To these addresses of the function.
    Inside(Vec<u64>),
    /// Out of it, through a pointer; to these addresses of the function, too.
    Pointer(Vec<u64>),
    /// That is not known.
    Unknown,
}

impl Code {
    /// Decodes a function and what it jumps to of the parts.
    pub fn read(elf: &ElfInfo, functions: &Functions, text: Option<&TextIndex>, range: &Range<u64>) -> Self {
        let mut code = Self { regions: Vec::new(), undecoded_bytes: 0, indirect: Vec::new() };
        code.add(elf, range);
        let mut tried = HashSet::new();
        let mut queue = code.leaving();
        let mut searched = 0;
        loop {
            while let Some(to) = queue.pop() {
                if !tried.insert(to) || code.contains(to) || code.regions.len() > MOST_PARTS {
                    continue;
                }
                if let Some(part) = functions.part_at(to) {
                    code.add(elf, &part);
                    queue.extend(code.leaving());
                }
            }
            // Jumps are looked at again where a table has named one more part.
            if std::mem::replace(&mut searched, code.regions.len()) == code.regions.len() {
                return code;
            }
            queue = code.find_indirect(elf, functions, text);
        }
    }

    /// Decodes one more region.
    fn add(&mut self, elf: &ElfInfo, range: &Range<u64>) {
        let size = range.end.saturating_sub(range.start);
        let most = size.min(flow::MAX_FUNCTION_BYTES);
        self.undecoded_bytes += size - most;
        match elf.read_vaddr(range.start, most as usize) {
            Ok(bytes) => {
                let (region, skipped) = sweep(range.start, bytes);
                self.undecoded_bytes += skipped;
                self.regions.push(region);
            }
            Err(e) => {
                self.undecoded_bytes += most;
                let unknown = Some(Unknown::Unreadable(e.to_string()));
                self.regions.push(Region {
                    start: range.start,
                    bytes: Vec::new(),
                    insns: Vec::new(),
                    unknown,
                });
            }
        }
    }

    /// Where the jumps of the last region lead that leave it.
    fn leaving(&self) -> Vec<u64> {
        self.regions.last().map(super::super::sites::outside_targets).unwrap_or_default()
    }

    /// Whether an address lies in it.
    pub fn contains(&self, vaddr: u64) -> bool {
        self.regions.iter().any(|region| region.contains(vaddr))
    }

    /// Link-time addresses of the split-off parts.
    pub fn parts(&self) -> impl Iterator<Item = Range<u64>> {
        self.regions.iter().skip(1).map(|region| region.start..region.end())
    }

    /// Finds where indirect jumps lead. Returned are starts of parts that only their tables name.
    fn find_indirect(&mut self, elf: &ElfInfo, functions: &Functions, text: Option<&TextIndex>) -> Vec<u64> {
        let begins = |to: u64| self.regions.iter().any(|region| region.index_of(to).is_some());
        let part = |to: u64| functions.part_at(to).is_some_and(|part| part.start == to);
        let own_or_part = |to: u64| begins(to) || part(to);
        let mut parts = Vec::new();
        let mut held: Option<Vec<u64>> = None;
        let mut indirect = Vec::new();
        for region in &self.regions {
            for (i, insn) in region.insns.iter().enumerate() {
                if flow::edge(insn) != Edge::Indirect {
                    continue;
                }
                let held = held.get_or_insert_with(|| self.held(text));
                let leads = match flow::resolve_indirect(elf, region, i, &own_or_part, held) {
                    Some(IndirectTo::Table(to)) => {
                        parts.extend(to.iter().copied().filter(|to| !self.contains(*to)));
                        Leads::Inside(to)
                    }
                    Some(IndirectTo::Out) => Leads::Pointer(Vec::new()),
                    Some(IndirectTo::Either(to)) => Leads::Pointer(to),
                    None => flow::table_without_bound(elf, region, i, &begins)
                        .map_or(Leads::Unknown, Leads::Inside),
                };
                indirect.push((insn.ip(), leads));
            }
        }
        indirect.sort_unstable_by_key(|(at, _)| *at);
        self.indirect = indirect;
        parts
    }

    /// Where the indirect jump at an address may lead.
    pub fn leads(&self, at: u64) -> &Leads {
        let found = self.indirect.binary_search_by_key(&at, |(jump, _)| *jump).ok();
        found.and_then(|i| self.indirect.get(i)).map_or(&Leads::Unknown, |(_, leads)| leads)
    }

    /// Addresses of its instructions that are held somewhere in the file; not its start, which everybody may call.
    fn held(&self, text: Option<&TextIndex>) -> Vec<u64> {
        let Some(text) = text else { return Vec::new() };
        let mut held = Vec::new();
        for (number, region) in self.regions.iter().enumerate() {
            let from = region.start + u64::from(number == 0);
            held.extend(text.all_taken(from, region.end()).filter(|at| region.index_of(*at).is_some()));
        }
        held
    }
}

/// Decodes some code; with the number of bytes that are no instructions.
pub(super) fn sweep(start: u64, bytes: Vec<u8>) -> (Region, u64) {
    let mut insns = Vec::with_capacity(bytes.len() / 4);
    let mut skipped = 0;
    let mut decoder = Decoder::with_ip(64, &bytes, start, DecoderOptions::NONE);
    let mut insn = Instruction::default();
    while decoder.can_decode() {
        let at = decoder.position();
        decoder.decode_out(&mut insn);
        if !insn.is_invalid() {
            insns.push(insn);
            continue;
        }
        skipped += 1;
        if decoder.set_position(at + 1).is_err() {
            break;
        }
        decoder.set_ip(start.wrapping_add(at as u64 + 1));
    }
    let unknown = (skipped > 0).then_some(Unknown::BadInstruction(0));
    (Region { start, bytes, insns, unknown }, skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_goes_on_behind_what_is_no_instruction() {
        // push rbp; two bytes that are none; call +0; ret; a call that is cut
        let bytes = vec![0x55, 0x06, 0x06, 0xe8, 0, 0, 0, 0, 0xc3, 0xe8, 0, 0];
        let (region, skipped) = sweep(0x1000, bytes);
        let at: Vec<u64> = region.insns.iter().map(Instruction::ip).collect();
        assert_eq!(at, [0x1000, 0x1003, 0x1008, 0x100a], "0000 is an instruction");
        assert_eq!(skipped, 3);
        assert_eq!(sweep(0, Vec::new()).0.insns.len(), 0);
    }
}
