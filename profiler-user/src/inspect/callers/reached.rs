//! Which calls of a caller control can come to.
//!
//! Decoding from the first byte to the last takes data between the instructions for instructions, if they happen to look like
//! some. What looks like a call in there is none: no return comes back behind it, and a breakpoint there would change data. So
//! a call counts only if control comes to it: from the first instruction, by branches, resolved jump tables and landing pads. Where an
//! indirect jump is not resolved, it may lead to each address of the function that is held somewhere, and to what each table
//! that the function takes the address of would lead to.
//!
//! A call is taken to come back: data right behind a call that does not are not told from code. A function that never returns
//! is therefore not matched at its return addresses ([`super::returns`]).

use super::super::elf::ElfInfo;
use super::super::flow::{self, Edge, IndirectTo, Region};
use super::super::sites::Body;
use super::super::{Module, landing};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use std::collections::HashSet;

/// Entries of one table that are read.
const MOST_ENTRIES: u64 = 4096;
/// Places that distances may be from.
const MOST_PLACES: usize = 4;

/// Link-time addresses behind the calls that control comes to.
pub(super) fn behind_calls(module: &Module, body: &Body, whole: bool) -> HashSet<u64> {
    let mut found = HashSet::new();
    // By region and instruction.
    let mut seen: Vec<Vec<bool>> = body.regions().map(|region| vec![false; region.insns.len()]).collect();
    let mut work = begins(module, body, whole);
    while let Some(from) = work.pop() {
        let Some((number, region)) = body.regions().enumerate().find(|(_, region)| region.contains(from))
        else {
            continue;
        };
        let Some(first) = region.index_of(from) else { continue };
        for (insn, seen) in region.insns.iter().zip(&mut seen[number]).skip(first) {
            if std::mem::replace(seen, true) {
                break;
            }
            let mut ends = false;
            match flow::edge(insn) {
                Edge::Next => {}
                Edge::Call => {
                    found.insert(insn.next_ip());
                    // Its own parts are called, too.
                    work.extend(near_target(insn));
                }
                Edge::Branch(to) => work.push(to),
                Edge::Jump(to) => {
                    work.push(to);
                    ends = true;
                }
                // Where a transaction goes on when it was aborted.
                Edge::Other => work.extend(near_target(insn)),
                Edge::Indirect => {
                    let of = body.indirect.iter().find(|(at, _)| *at == insn.ip());
                    if let Some((_, Some(IndirectTo::Table(to) | IndirectTo::Either(to)))) = of {
                        work.extend(to);
                    }
                    ends = true;
                }
                Edge::Return | Edge::Stop => ends = true,
            }
            if ends {
                break;
            }
        }
    }
    found
}

fn near_target(insn: &Instruction) -> Option<u64> {
    (insn.op_count() > 0 && insn.op0_kind() == OpKind::NearBranch64).then(|| insn.near_branch_target())
}

/// Where control enters. `whole`: the body is a function with all its parts; else others may jump to any of its instructions.
fn begins(module: &Module, body: &Body, whole: bool) -> Vec<u64> {
    let mut begins = vec![body.main.start];
    if let Ok(elf) = module.elf() {
        begins.extend(body.regions().filter_map(|region| landing::pads(elf, region.start).ok()).flatten());
    }
    let Ok(text) = module.text() else { return begins };
    let unresolved = body.indirect.iter().any(|(_, to)| to.is_none());
    if let (true, Ok(elf)) = (unresolved, module.elf()) {
        begins.extend(table_entries(elf, body));
    }
    let on_instructions = |region: &Region, at: &u64| region.index_of(*at).is_some();
    for region in body.regions() {
        if body.indirect.iter().any(|(_, to)| to.is_none()) {
            begins
                .extend(text.all_taken(region.start, region.end()).filter(|at| on_instructions(region, at)));
        }
        if !whole {
            begins.extend(
                text.all_branches(region.start, region.end()).filter(|at| on_instructions(region, at)),
            );
        }
    }
    begins
}

/// What tables of distances would lead to, in data that the function takes the address of: from the table itself, or from a place
/// in the function whose address it takes. Of each, the entries that lead to an instruction of the function, up to the
/// first one that leads to no code.
fn table_entries(elf: &ElfInfo, body: &Body) -> Vec<u64> {
    let inside = |to: &u64| body.regions().any(|region| region.index_of(*to).is_some());
    let mut held: Vec<u64> = body
        .regions()
        .flat_map(|region| &region.insns)
        .filter(|insn| insn.mnemonic() == Mnemonic::Lea && insn.memory_base() == Register::RIP)
        .map(Instruction::memory_displacement64)
        .collect();
    held.sort_unstable();
    held.dedup();
    let places: Vec<u64> = held.iter().copied().filter(inside).take(MOST_PLACES).collect();
    held.retain(|at| elf.section_at(*at).is_some_and(|section| !section.exec && !section.nobits));
    let mut found = Vec::new();
    for table in held {
        let end = elf.section_at(table).map_or(table, |section| section.vaddr + section.size);
        let len = (end - table).min(4 * MOST_ENTRIES) as usize;
        let Ok(bytes) = elf.read_vaddr(table, len) else { continue };
        for from in std::iter::once(&table).chain(&places) {
            let to =
                |e: &[u8]| from.wrapping_add_signed(i64::from(i32::from_le_bytes([e[0], e[1], e[2], e[3]])));
            let entries = bytes.chunks_exact(4).map(to).take_while(|to| elf.is_code(*to));
            found.extend(entries.filter(inside));
        }
    }
    found
}
