//! Is the code in memory the code in the file?
//!
//! The kernel reads the instruction under a breakpoint from the *file*. Where a program has patched itself, it would
//! run something else (measured: SIGSEGV); where text is writable or shared, it places no breakpoint and says nothing
//! (measured: zero hits). Breakpoints of other tracers are told apart: a lone `int3` where an instruction begins, or
//! a call into `[uprobes-trampoline]` in place of a five-byte nop.

use super::callers::CallerSite;
use super::choice::{SiteChoice, TraceRefusal};
use super::flow::Region;
use super::maps::{self, Backing, Mapping};
use super::resolve::Function;
use super::{Inspection, Module};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Compares functions with a fresh view of the process.
pub(super) struct Verifier<'a> {
    inspection: &'a Inspection,
    maps: Vec<Mapping>,
    memory: File,
}

/// Bytes compared at a site outside the function's own range.
const SITE_BYTES: u64 = 16;

impl<'a> Verifier<'a> {
    pub(super) fn new(inspection: &'a Inspection) -> Result<Self, TraceRefusal> {
        let pid = inspection.pid();
        let unverified = |what: String, e: std::io::Error| TraceRefusal::Unverified(format!("{what}: {e}"));
        let path = format!("/proc/{pid}/maps");
        let maps = maps::parse(&std::fs::read(&path).map_err(|e| unverified(path, e))?);
        let path = format!("/proc/{pid}/mem");
        let memory = File::open(&path).map_err(|e| unverified(path, e))?;
        Ok(Self { inspection, maps, memory })
    }

    pub(super) fn check(&self, function: &Function, sites: &SiteChoice) -> Result<Vec<String>, TraceRefusal> {
        let module = self
            .inspection
            .modules()
            .get(function.module)
            .ok_or_else(|| TraceRefusal::Unverified("its module is unknown".into()))?;
        let mut remarks = Vec::new();
        let end = function.vaddr + function.size;
        self.compare(module, function.vaddr, function.vaddr..end, &mut remarks)?;
        for site in sites.exits.iter().flatten().filter(|s| !(function.vaddr..end).contains(&s.vaddr)) {
            self.compare(module, function.vaddr, site.vaddr..site.vaddr + SITE_BYTES, &mut remarks)?;
        }
        Ok(remarks)
    }

    /// A call and what stands behind it, up to the end of the last instruction that may be probed. Offsets are from the call.
    pub(super) fn check_caller(&self, caller: &CallerSite) -> Result<Vec<String>, TraceRefusal> {
        let module = self
            .inspection
            .modules()
            .get(caller.module)
            .ok_or_else(|| TraceRefusal::Unverified("its module is unknown".into()))?;
        let last = caller.cheaper.unwrap_or(caller.site);
        let code = caller.call_vaddr..last.vaddr + u64::from(last.length);
        let mut remarks = Vec::new();
        self.compare(module, caller.call_vaddr, code, &mut remarks)?;
        Ok(remarks)
    }

    /// Compares some code of a module, by link-time addresses; offsets in answers are from `origin`.
    fn compare(
        &self,
        module: &Module,
        origin: u64,
        code: Range<u64>,
        remarks: &mut Vec<String>,
    ) -> Result<(), TraceRefusal> {
        let (vaddr, len) = (code.start, code.end - code.start);
        let elf = module.elf().map_err(|e| TraceRefusal::Unverified(e.to_owned()))?;
        // Sites and names were read before: what was copied over the file since may agree with memory and not with them.
        if elf.file.is_changed().map_err(|e| TraceRefusal::Unverified(e.to_string()))? {
            let what = "its file was written to since it was read; watch the process anew";
            return Err(TraceRefusal::Unverified(what.into()));
        }
        let unmapped = || TraceRefusal::Unverified("it is not mapped executable any more".into());
        let offset = elf.offset_of(vaddr).ok_or_else(unmapped)?;
        let known = module.mappings.first().ok_or_else(unmapped)?;
        // Every mapping of these bytes, not only the executable ones that we knew of.
        let here: Vec<&Mapping> = self
            .maps
            .iter()
            .filter(|m| m.inode == known.inode && m.device == known.device && m.exec)
            .filter(|m| (m.offset..m.offset + (m.end - m.start)).contains(&offset))
            .collect();
        if here.is_empty() {
            return Err(unmapped());
        }
        for map in here {
            if map.write || map.shared {
                let how = if map.write { "writable" } else { "shared" };
                return Err(TraceRefusal::BadMapping(how.into()));
            }
            let len = len.min(map.end - map.start - (offset - map.offset)) as usize;
            let file = elf.read_at(offset, len).map_err(|e| TraceRefusal::Unverified(e.to_string()))?;
            let mut memory = vec![0; len];
            self.memory
                .read_exact_at(&mut memory, map.start + (offset - map.offset))
                .map_err(|e| TraceRefusal::Unverified(e.to_string()))?;
            if file != memory {
                self.explain(origin, vaddr, map.start + (offset - map.offset), &file, &memory, remarks)?;
            }
        }
        Ok(())
    }

    /// A difference is harmless if breakpoints of other tracers explain all of it.
    fn explain(
        &self,
        origin: u64,
        vaddr: u64,
        address: u64,
        file: &[u8],
        memory: &[u8],
        remarks: &mut Vec<String>,
    ) -> Result<(), TraceRefusal> {
        let region = Region::decode_bytes(vaddr, file.to_vec());
        let mut explained = memory.to_vec();
        for insn in &region.insns {
            let at = (insn.ip() - vaddr) as usize;
            let bytes = &file[at..at + insn.len()];
            let now = &memory[at..at + insn.len()];
            if bytes == now {
                continue;
            }
            let breakpoint = now[0] == 0xcc && now[1..] == bytes[1..] && !self.debugged();
            let optimised = bytes.len() == 5 && now[0] == 0xe8 && {
                let rel = i32::from_le_bytes([now[1], now[2], now[3], now[4]]);
                let target = (address + at as u64 + 5).wrapping_add_signed(i64::from(rel));
                self.maps.iter().any(|m| {
                    m.contains(target) && m.backing == Backing::Special("[uprobes-trampoline]".into())
                })
            };
            if breakpoint || optimised {
                explained[at..at + insn.len()].copy_from_slice(bytes);
                remarks.push(format!(
                    "another tracer has a breakpoint at +{:#x}",
                    insn.ip().wrapping_sub(origin)
                ));
            }
        }
        match explained.iter().zip(file).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => Err(TraceRefusal::Patched((vaddr + at as u64).wrapping_sub(origin))),
        }
    }

    /// A debugger's `int3` is no uprobe: the process must not be touched there.
    fn debugged(&self) -> bool {
        super::process::Status::read(self.inspection.pid()).is_ok_and(|s| s.tracer != 0)
    }
}
