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
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Where breakpoints of this agent stand: link-time addresses, by the number of the module.
pub type Breakpoints = BTreeMap<usize, Vec<u64>>;

/// Compares functions with a fresh view of the process.
pub(super) struct Verifier<'a> {
    inspection: &'a Inspection,
    maps: Vec<Mapping>,
    memory: File,
}

/// Code that is compared, by link-time addresses.
struct Code<'a> {
    /// Offsets in answers are from here.
    origin: u64,
    range: Range<u64>,
    /// Where breakpoints of ours stand.
    own: &'a [u64],
}

/// What one mapping holds of the code that is compared.
struct Piece {
    /// Its distance from the code's begin, bytes.
    from: usize,
    /// In the process.
    address: u64,
    memory: Vec<u8>,
}

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

    /// Compares a function with its file.
    pub(super) fn check(
        &self,
        function: &Function,
        sites: &SiteChoice,
        own: &Breakpoints,
    ) -> Result<Vec<String>, TraceRefusal> {
        let module = self
            .inspection
            .modules()
            .get(function.module)
            .ok_or_else(|| TraceRefusal::Unverified("its module is unknown".into()))?;
        let mut remarks = Vec::new();
        let end = function.vaddr + function.size;
        let own = own.get(&function.module).map_or(&[] as &[u64], Vec::as_slice);
        let whole = Code { origin: function.vaddr, range: function.vaddr..end, own };
        self.compare(module, &whole, &mut remarks)?;
        for part in &sites.parts {
            let part = Code { range: part.clone(), ..whole };
            self.compare(module, &part, &mut remarks)?;
        }
        Ok(remarks)
    }

    /// All code that a return address was proven by. Offsets are from the caller's begin.
    pub(super) fn check_caller(&self, caller: &CallerSite) -> Result<Vec<String>, TraceRefusal> {
        let module = self
            .inspection
            .modules()
            .get(caller.module)
            .ok_or_else(|| TraceRefusal::Unverified("its module is unknown".into()))?;
        let begin = caller.proof.first().map_or(caller.call_vaddr, |code| code.start);
        let mut remarks = Vec::new();
        for code in caller.proof.iter() {
            let code = Code { origin: begin, range: code.clone(), own: &[] };
            self.compare(module, &code, &mut remarks)?;
        }
        Ok(remarks)
    }

    /// Compares some code of a module.
    fn compare(
        &self,
        module: &Module,
        asked: &Code<'_>,
        remarks: &mut Vec<String>,
    ) -> Result<(), TraceRefusal> {
        let code = asked.range.clone();
        let elf = module.elf().map_err(|e| TraceRefusal::Unverified(e.to_owned()))?;
        // Sites and names were read before: what was copied over the file since may agree with memory and not with them.
        if elf.file.is_changed().map_err(|e| TraceRefusal::Unverified(e.to_string()))? {
            let what = "its file was written to since it was read; watch the process anew";
            return Err(TraceRefusal::Unverified(what.into()));
        }
        let unmapped = || TraceRefusal::Unverified("it is not mapped executable any more".into());
        let offset = elf.offset_of(code.start).ok_or_else(unmapped)?;
        let known = module.mappings.first().ok_or_else(unmapped)?;
        let len = (code.end - code.start) as usize;
        let file = elf.read_at(offset, len).map_err(|e| TraceRefusal::Unverified(e.to_string()))?;
        let whole = offset..offset + code.end - code.start;
        // Every mapping of these bytes, not only the executable ones that we knew of.
        let mut here: Vec<(Range<u64>, &Mapping)> = self
            .maps
            .iter()
            .filter(|m| m.inode == known.inode && m.device == known.device && m.exec)
            .map(|m| (whole.start.max(m.offset)..whole.end.min(m.offset + (m.end - m.start)), m))
            .filter(|(part, _)| part.start < part.end)
            .collect();
        here.sort_by_key(|(part, _)| part.start);
        // Code may reach over the end of a mapping into the next one. Together they must hold all of it.
        let held = here.iter().fold(
            whole.start,
            |to, (part, _)| {
                if part.start <= to { to.max(part.end) } else { to }
            },
        );
        if held < whole.end {
            return Err(unmapped());
        }
        for (part, map) in here {
            if map.write || map.shared {
                let how = if map.write { "writable" } else { "shared" };
                return Err(TraceRefusal::BadMapping(how.into()));
            }
            let mut memory = vec![0; (part.end - part.start) as usize];
            self.memory
                .read_exact_at(&mut memory, map.start + (part.start - map.offset))
                .map_err(|e| TraceRefusal::Unverified(e.to_string()))?;
            let from = (part.start - offset) as usize;
            if file[from..from + memory.len()] != memory {
                // Every attach compares; decoding, which is dear beside that, is for what differs.
                let region = Region::decode_bytes(code.start, file.clone());
                let piece = Piece { from, address: map.start + (part.start - map.offset), memory };
                self.explain(asked, &region, piece, remarks)?;
            }
        }
        Ok(())
    }

    /// A difference is harmless if breakpoints of other tracers explain all of it.
    fn explain(
        &self,
        &Code { origin, own, .. }: &Code<'_>,
        region: &Region,
        Piece { from, address, mut memory }: Piece,
        remarks: &mut Vec<String>,
    ) -> Result<(), TraceRefusal> {
        let file = &region.bytes[from..from + memory.len()];
        for insn in &region.insns {
            let bytes = region.bytes_of(insn);
            // What is cut off by the piece's begin or end must not differ.
            let Some(at) = ((insn.ip() - region.start) as usize).checked_sub(from) else { continue };
            let Some(now) = memory.get_mut(at..at + bytes.len()) else { break };
            if bytes == now {
                continue;
            }
            let is_own = own.contains(&insn.ip());
            let breakpoint = now[0] == 0xcc && now[1..] == bytes[1..] && (is_own || !self.debugged());
            let optimised = bytes.len() == 5 && now[0] == 0xe8 && {
                let rel = i32::from_le_bytes([now[1], now[2], now[3], now[4]]);
                let target = (address + at as u64 + 5).wrapping_add_signed(i64::from(rel));
                self.maps.iter().any(|m| {
                    m.contains(target) && m.backing == Backing::Special("[uprobes-trampoline]".into())
                })
            };
            if breakpoint || optimised {
                now.copy_from_slice(bytes);
                if is_own {
                    continue;
                }
                let offset = insn.ip().wrapping_sub(origin);
                remarks.push(format!("another tracer has a breakpoint at +{offset:#x}"));
            }
        }
        match memory.iter().zip(file).position(|(now, of_file)| now != of_file) {
            None => Ok(()),
            Some(at) => Err(TraceRefusal::Patched((region.start + (from + at) as u64).wrapping_sub(origin))),
        }
    }

    /// A debugger's `int3` is no uprobe: the process must not be touched there.
    fn debugged(&self) -> bool {
        super::process::Status::read(self.inspection.pid()).is_ok_and(|s| s.tracer != 0)
    }
}
