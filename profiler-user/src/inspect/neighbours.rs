//! Short jumps from outside a function.
//!
//! The module-wide index holds 32-bit branches only. An 8-bit one reaches 128 bytes, so only the code right around a
//! function can lead into it that way. Every byte there is taken as a possible opcode first; if one would jump into
//! the range, the function that it belongs to is decoded, and the jump counts only if an instruction begins there.
//! Bytes that belong to no function (padding, hand-written code) count as they are.

use super::flow::{self, Edge, Region};
use super::module::Module;
use std::ops::Range;

/// Reach of an 8-bit displacement, with the two bytes of the instruction.
const REACH: u64 = 130;

/// The address of a short jump outside the function, which has this `extent`, that leads into `from ..= to`, if there is one.
#[must_use]
pub(super) fn short_jump_into(module: &Module, extent: Range<u64>, from: u64, to: u64) -> Option<u64> {
    let elf = module.elf().ok()?;
    let Range { start, end } = extent;
    let before = (start.saturating_sub(REACH), start);
    let after = (end, (to + REACH).max(end));
    // What stands before the function reaches its first bytes only.
    let near = [(from < start.saturating_add(REACH)).then_some(before), Some(after)];
    // Many bytes of one neighbour may look like jumps: it is decoded once.
    let mut decoded: Option<Region> = None;
    for (low, high) in near.into_iter().flatten() {
        // The range may run over the section's end.
        let low = (low..high).find(|&a| elf.is_code(a));
        let Some(low) = low else { continue };
        let high = (low..high).rev().find(|&a| elf.is_code(a)).map_or(low, |a| a + 1);
        let Ok(bytes) = elf.read_vaddr(low, (high - low) as usize) else { continue };
        for (at, target) in short_jumps(&bytes, low) {
            if (from..=to).contains(&target) && may_be_an_instruction(module, at, &mut decoded) {
                return Some(at);
            }
        }
    }
    None
}

/// What would be short jumps if an instruction began there, in `bytes` from the address `low` on: where, and where to.
fn short_jumps(bytes: &[u8], low: u64) -> impl Iterator<Item = (u64, u64)> {
    let pairs = bytes.windows(2).enumerate();
    pairs.filter(|(_, pair)| matches!(pair[0], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb)).map(move |(i, pair)| {
        let at = low.wrapping_add(i as u64);
        (at, at.wrapping_add(2).wrapping_add_signed(i64::from(pair[1] as i8)))
    })
}

/// A jump may lead to this link-time address, or that cannot be told: what only looks like a jump counts, too. Calls and addresses that are held somewhere
/// do not.
#[must_use]
pub fn may_be_jumped_to(module: &Module, vaddr: u64) -> bool {
    let text = if module.has_text() { module.text().ok() } else { None };
    let (Some(text), Ok(elf)) = (text, module.elf()) else { return true };
    let low = vaddr.saturating_sub(REACH).max(elf.code_begin(vaddr));
    let high = (vaddr + REACH).min(elf.code_end(vaddr));
    let Ok(bytes) = elf.read_vaddr(low, high.saturating_sub(low) as usize) else { return true };
    text.branch_into(vaddr, vaddr).is_some() || short_jumps(&bytes, low).any(|(_, to)| to == vaddr)
}

/// False only if a sized function that decodes without gaps covers the address and no branch of it begins there.
fn may_be_an_instruction(module: &Module, at: u64, decoded: &mut Option<Region>) -> bool {
    let (Ok(elf), Ok(symbols)) = (module.elf(), module.symbols()) else { return true };
    let covering = symbols.covering(at);
    let Some(entry) = covering.iter().max_by_key(|e| e.size) else { return true };
    let last = decoded.take().filter(|region| region.start == entry.vaddr);
    let region = decoded.insert(last.unwrap_or_else(|| Region::decode(elf, entry.vaddr, entry.size)));
    if region.unknown.is_some() {
        return true;
    }
    match region.index_of(at) {
        Some(i) => matches!(flow::edge(&region.insns[i]), Edge::Jump(_) | Edge::Branch(_) | Edge::Other),
        // A prefix may stand before the opcode: `bnd jmp`.
        None => region.insns.iter().any(|insn| {
            (insn.ip()..insn.next_ip()).contains(&at)
                && matches!(flow::edge(insn), Edge::Jump(_) | Edge::Branch(_))
        }),
    }
}
