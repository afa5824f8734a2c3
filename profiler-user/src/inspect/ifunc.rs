//! Which implementations the process has chosen for its IFUNC symbols (`memcpy`, `strlen`, …).
//!
//! The address of such a symbol is a *resolver* that runs once, at load time. What it chose stands in the slots that
//! the dynamic linker filled: `R_X86_64_IRELATIVE` slots of the module itself, and the `JUMP_SLOT`/`GLOB_DAT` slots of
//! the modules that import the name. We read those slots from the process's memory. A slot that is not bound yet
//! points back into a linkage table and is left out.

use super::Inspection;
use super::elf::ElfInfo;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;

const GLOB_DAT: u32 = 6;
const JUMP_SLOT: u32 = 7;
const IRELATIVE: u32 = 37;

/// Values of all slots, by what they stand for.
#[derive(Debug, Default)]
pub(super) struct Bound {
    /// (module, resolver) -> run-time address
    by_resolver: HashMap<(usize, u64), u64>,
    by_name: HashMap<String, HashSet<u64>>,
}

impl Bound {
    pub(super) fn read(inspection: &Inspection) -> Self {
        let mut bound = Self::default();
        let Ok(memory) = File::open(format!("/proc/{}/mem", inspection.pid())) else { return bound };
        for (index, module) in inspection.modules().iter().enumerate() {
            let (Ok(elf), Some(map)) = (module.elf(), module.mappings.first()) else { continue };
            // bias = map.start - (p_vaddr - (p_offset - map.offset))
            let Some(segment) = elf.segments.iter().find(|s| {
                s.exec && s.offset < map.offset + (map.end - map.start) && map.offset < s.offset + s.file_size
            }) else {
                continue;
            };
            let bias =
                map.start.wrapping_sub(segment.vaddr).wrapping_add(segment.offset).wrapping_sub(map.offset);
            bound.add(index, elf, bias, &memory);
        }
        bound
    }

    fn add(&mut self, index: usize, elf: &ElfInfo, bias: u64, memory: &File) {
        for section in elf.sections.iter().filter(|s| s.name.starts_with(".rela") && !s.nobits) {
            let Ok(bytes) = elf.read_at(section.offset, section.size as usize) else { continue };
            for entry in bytes.chunks_exact(24) {
                // Elf64_Rela: offset u64, info u64 (symbol << 32 | type), addend i64.
                let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
                let (offset, info, addend) = (word(0), word(8), word(16));
                let kind = info as u32;
                if !matches!(kind, GLOB_DAT | JUMP_SLOT | IRELATIVE) {
                    continue;
                }
                let mut slot = [0; 8];
                if memory.read_exact_at(&mut slot, bias.wrapping_add(offset)).is_err() {
                    continue;
                }
                let value = u64::from_le_bytes(slot);
                if kind == IRELATIVE {
                    self.by_resolver.insert((index, addend), value);
                } else if let Some(name) = elf.dynamic_symbol_name((info >> 32) as u32) {
                    self.by_name.entry(name).or_default().insert(value);
                }
            }
        }
    }

    /// (module, link-time address) of the functions that an IFUNC symbol stands for.
    pub(super) fn targets(
        &self,
        inspection: &Inspection,
        module: usize,
        resolver: u64,
        name: &str,
    ) -> Vec<(usize, u64)> {
        let plain = name.split('@').next().unwrap_or(name);
        let addresses = self
            .by_resolver
            .get(&(module, resolver))
            .into_iter()
            .chain(self.by_name.get(plain).into_iter().flatten());
        let mut found: Vec<(usize, u64)> = addresses
            .filter_map(|&address| {
                let index = inspection
                    .modules()
                    .iter()
                    .position(|m| m.mappings.iter().any(|x| x.contains(address)))?;
                let target = &inspection.modules()[index];
                let vaddr = target.vaddr_of_address(address)?;
                // Only a function that begins there, and no second resolver.
                let class = target.symbols().ok()?.at(vaddr);
                (class.iter().any(|e| e.size > 0) && !class.iter().all(|e| e.ifunc)).then_some((index, vaddr))
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}
