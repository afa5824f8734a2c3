//! Functions that switch stacks: they load the stack pointer with a value that did not come from it.
//!
//! Input: the code of one module. Output: the first function that loads `rsp` from memory or from a register, where the value
//! is neither the function's own stack pointer moved nor a word of its own frame. Compilers restore `rsp` from registers
//! and frame slots all the time (`leave`, variable-length arrays, realigned frames); those values came from `rsp`. Coroutines
//! and user-level threads load it from an argument or from a context in memory.
//!
//! Two steps, because decoding everything would take ten times as long: a pass over the bytes finds every place where such an
//! instruction can begin; only the functions that hold one are decoded, from their first instruction on. Values are followed
//! through the function's branches: a register counts as good if it does on every way that leads there.
//!
//! Not seen: `rsp` loaded through a vector register or by the kernel (`sigreturn`), code that is made at run time. Samples
//! show those ([`super::stacks`]).

mod callee;
mod ends;
mod places;
mod values;

use super::elf::ElfInfo;
use super::flow::Region;
use super::landing;
use super::symbols::Symbols;
use super::text::code_of;
use callee::Callees;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use values::{Begin, TooTangled};

/// Most code that is looked at without a symbol or an unwind table that says where it begins, bytes.
const MAX_GAP: u64 = 64 << 10;
/// Most of one function that is decoded at once, bytes; of a larger one the code around each place.
const MAX_AT_ONCE: u64 = 1 << 20;
/// So far before a place a function is looked for that begins nowhere known, bytes.
const MAX_UNKNOWN: u64 = 16 << 10;
/// Bytes that may be read and decoded beyond four times the code.
const SPARE: u64 = 16 << 20;
/// Bytes that may be read and decoded for all modules together: programs have some hundred MiB of code at most.
const MOST_OF_ALL: u64 = 1 << 30;
/// What one try to decode costs besides its bytes.
const PLACE_PRICE: u64 = 64;
/// Bytes behind the last instruction that are kept with it, to tell where ways through it lead.
const BEHIND: usize = 64;
/// Bytes that are looked at to tell whether one instruction between data is code.
const HIDDEN: usize = 256;

/// `longjmp` and its like go back to a frame of the same stack. The frames that they leave behind the kernel forgets by itself.
const SAME_STACK: [&str; 9] = [
    "longjmp",
    "_longjmp",
    "siglongjmp",
    "__longjmp",
    "__longjmp_chk",
    "____longjmp_chk",
    "__libc_longjmp",
    "__libc_siglongjmp",
    "__libc_unwind_longjmp",
];

/// A function that switches stacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackSwitch {
    /// Its name; its address where it has none.
    pub function: String,
    /// Link-time address of the instruction.
    pub vaddr: u64,
    /// Where the stack pointer comes from, in words.
    pub from: String,
}

/// Looks at all code of a module. `spent`: bytes that were read and decoded of all modules of the process so far.
///
/// # Errors
/// The file cannot be read.
///
/// # Cost
/// The pass takes 2.3 to 2.6 ns of CPU time per byte (libcrypto 6 ms, Node 67 ms, LLVM 139 ms, one run each on a busy machine); decoding comes on top.
pub fn find(elf: &ElfInfo, symbols: &Symbols, spent: &AtomicU64) -> io::Result<Option<StackSwitch>> {
    let code = code_of(elf)?;
    // Functions that overlap are decoded again and again; ordinary files need a fraction of this.
    let budget = 4 * code.iter().map(|c| c.2).sum::<u64>() + SPARE;
    let mut search =
        Search { elf, symbols, callees: Callees::of(elf), looked_at: None, read: None, budget, spent };
    for piece in code {
        let found = places::each_place(elf, piece, |vaddr| search.look_at(vaddr).transpose())?;
        if let Some(found) = found {
            return found.map(Some);
        }
    }
    Ok(None)
}

/// The same for the code of one function, whose begin is known.
///
/// # Errors
/// Its branches cannot be followed to the end.
pub fn find_in(
    elf: &ElfInfo,
    symbols: &Symbols,
    region: &Region,
    spent: &AtomicU64,
) -> io::Result<Option<StackSwitch>> {
    let callees = Callees::of(elf);
    let mut search = Search { elf, symbols, callees, looked_at: None, read: None, budget: SPARE, spent };
    let begin = search.begin_of(region.start);
    let loads = search.foreign_loads(region, begin)?;
    Ok(loads.into_iter().find_map(|i| search.named(&region.insns[i])))
}

/// The search through one module.
struct Search<'a> {
    elf: &'a ElfInfo,
    symbols: &'a Symbols,
    callees: Callees<'a>,
    /// The code that was decoded last, without a gap.
    looked_at: Option<Looked>,
    /// What was read last: its address and bytes.
    read: Option<(u64, Vec<u8>)>,
    /// Bytes that may still be read and decoded.
    budget: u64,
    /// What all modules have taken.
    spent: &'a AtomicU64,
}

/// Code that was decoded.
struct Looked {
    region: Region,
    /// One past the last instruction.
    reached: u64,
    /// A symbol or an unwind table tells that it is code.
    known: bool,
}

impl Search<'_> {
    /// The function, or the gap between functions, around one place.
    fn look_at(&mut self, vaddr: u64) -> io::Result<Option<StackSwitch>> {
        let before = self.looked_at.take();
        let looked = match before {
            Some(looked) if (looked.region.start..looked.reached).contains(&vaddr) => looked,
            before => {
                let Some(around) = function_around(self.elf, self.symbols, vaddr) else {
                    self.looked_at = before;
                    return Ok(None);
                };
                let Around { start, end, known } = around;
                // What was decoded of it already ended in bytes that are no instruction.
                let (begun, reached) = before.as_ref().map_or((0, 0), |l| (l.region.start, l.reached));
                let same = begun >= start && reached > start && reached <= vaddr;
                let from = if same { behind(reached, vaddr) } else { start };
                let Some(region) = self.decode_to(from, end, vaddr)? else {
                    self.looked_at = before;
                    return Ok(None);
                };
                let begin = if known && region.start == start { self.begin_of(start) } else { Begin::Part };
                let reached = region.insns.last().map_or(vaddr + 1, Instruction::next_ip);
                let looked = Looked { region, reached, known };
                if let Some(found) = self.switch_in(&looked, begin)? {
                    return Ok(Some(found));
                }
                looked
            }
        };
        let found = self.hidden(&looked, vaddr)?;
        self.looked_at = Some(looked);
        Ok(found)
    }

    /// The first instruction of some code that switches stacks.
    ///
    /// # Errors
    /// Its branches cannot be followed to the end.
    fn switch_in(
        &mut self,
        Looked { region, known, .. }: &Looked,
        begin: Begin,
    ) -> io::Result<Option<StackSwitch>> {
        let loads = self.foreign_loads(region, begin)?;
        Ok(loads.into_iter().find_map(|i| {
            let insn = &region.insns[i];
            // Data between functions look like instructions now and then, like short ones most of all.
            let is_code =
                *known || (self.is_unlikely_data(region, insn) && !self.begins_between(region, insn.ip()));
            is_code.then(|| self.named(insn)).flatten()
        }))
    }

    /// Between functions data can decode to instructions that reach into the code behind them, so that no instruction begins at the place
    /// with its prefix: then one that does is looked at by itself.
    ///
    /// # Errors
    /// Too much was decoded already.
    fn hidden(&mut self, looked: &Looked, vaddr: u64) -> io::Result<Option<StackSwitch>> {
        let region = &looked.region;
        let begin = vaddr.saturating_sub(1);
        if looked.known || begin < region.start || region.index_of(begin).is_some() {
            return Ok(None);
        }
        // What loads all of `rsp` in three bytes or more has a REX prefix.
        if region.bytes[(begin - region.start) as usize] & 0xf0 != 0x40 {
            return Ok(None);
        }
        self.spend(PLACE_PRICE + HIDDEN as u64)?;
        let bytes = &region.bytes[(begin - region.start) as usize..];
        let part = Region::decode_bytes(begin, bytes[..bytes.len().min(HIDDEN)].to_vec());
        let is_load = self.foreign_loads(&part, Begin::Part)?.first() == Some(&0);
        if !is_load || !self.is_unlikely_data(&part, &part.insns[0]) || self.begins_between(region, begin) {
            return Ok(None);
        }
        Ok(self.named(&part.insns[0]))
    }

    /// What is found with the name of its function; none for those that stay on their stack.
    fn named(&self, insn: &Instruction) -> Option<StackSwitch> {
        let Self { elf, symbols, .. } = *self;
        let names: Vec<String> = symbols.covering(insn.ip()).iter().map(|e| symbols.name(e)).collect();
        if names.iter().any(|name| SAME_STACK.contains(&name.as_str())) {
            return None;
        }
        let function = names.into_iter().next().or_else(|| label_before(elf, insn.ip()));
        let function = function.unwrap_or_else(|| format!("the code at {:#x}", insn.ip()));
        Some(StackSwitch { function, vaddr: insn.ip(), from: values::source(insn) })
    }

    fn spend(&mut self, bytes: u64) -> io::Result<()> {
        let left = self.budget.checked_sub(bytes);
        self.budget =
            left.ok_or_else(|| io::Error::other("its functions overlap too often to be decoded"))?;
        if self.spent.fetch_add(bytes, Ordering::Relaxed) > MOST_OF_ALL {
            return Err(io::Error::other("the modules hold too much code to be looked through"));
        }
        Ok(())
    }

    /// The code from `start` on, decoded until it holds `vaddr` and on to bytes that are no instruction; none where no instruction can be
    /// made of the place.
    ///
    /// # Errors
    /// The file cannot be read, or too much of it was decoded already.
    fn decode_to(&mut self, start: u64, end: u64, vaddr: u64) -> io::Result<Option<Region>> {
        // A piece of a function that is too large to be decoded at once.
        let mut start =
            if end - start > MAX_AT_ONCE { start.max(vaddr.saturating_sub(MAX_GAP)) } else { start };
        let end = end.min(start + MAX_AT_ONCE);
        let read = match self.read.take() {
            Some((at, bytes)) if at <= start && end == at + bytes.len() as u64 => (at, bytes),
            _ => {
                self.spend(end - start)?;
                (start, self.elf.read_vaddr(start, (end - start) as usize)?)
            }
        };
        let found = loop {
            let bytes = &read.1[(start - read.0) as usize..];
            let reached = start + decodable(bytes) as u64;
            self.spend(PLACE_PRICE + reached - start)?;
            if reached > vaddr {
                let kept = bytes.len().min((reached - start) as usize + BEHIND);
                break Some(Region::decode_bytes(start, bytes[..kept].to_vec()));
            }
            // Neither with its prefix nor without.
            if start >= vaddr {
                break None;
            }
            start = behind(reached, vaddr).max(start + 1);
        };
        self.read = Some(read);
        Ok(found)
    }

    /// As [`values::foreign_loads`].
    ///
    /// # Errors
    /// Its branches cannot be followed to the end.
    fn foreign_loads(&mut self, region: &Region, begin: Begin) -> io::Result<Vec<usize>> {
        let callees = &mut self.callees;
        let found = values::foreign_loads(region, begin, &mut |function| callees.clobbers(function));
        found.map_err(|TooTangled| {
            io::Error::other(format!(
                "the branches of the code at {:#x} cannot be followed to the end",
                region.start
            ))
        })
    }

    /// Of code that may be data: an instruction as the pass looks for and as assemblers write it, which loads all of `rsp`, and from which
    /// some way leads on.
    fn is_unlikely_data(&self, region: &Region, insn: &Instruction) -> bool {
        let rsp = insn.op0_register() == Register::RSP || insn.op1_register() == Register::RSP;
        let in_memory = insn.mnemonic() == Mnemonic::Xchg && insn.memory_base() != Register::None;
        // REX.X without an index.
        let index = insn.memory_index() != Register::None;
        let rex = region.bytes_of(insn).iter().find(|byte| **byte & 0xf0 == 0x40);
        let odd = rex.is_some_and(|rex| rex & 2 != 0) && !index;
        insn.len() >= 3 && rsp && !in_memory && !odd && ends::can_end_well(self.elf, region, insn.ip())
    }

    /// Of code whose begin is not known: whether what loads `rsp` is all right in a function that begins at an aligned address
    /// before it. Bytes before a function may have been taken for instructions that reach into it.
    fn begins_between(&mut self, region: &Region, vaddr: u64) -> bool {
        const ALIGNMENT: u64 = 16;
        let first = region.start.max(vaddr.saturating_sub(MAX_UNKNOWN)).next_multiple_of(ALIGNMENT);
        // With the instruction itself.
        let end = vaddr.saturating_add(ALIGNMENT).min(region.end());
        // The nearest one first.
        let starts = (0..MAX_UNKNOWN).map(|i| (vaddr & !(ALIGNMENT - 1)).saturating_sub(i * ALIGNMENT));
        starts.take_while(|start| *start >= first).any(|start| {
            if self.spend(end - start + PLACE_PRICE).is_err() {
                return false;
            }
            let bytes = &region.bytes[(start - region.start) as usize..(end - region.start) as usize];
            let part = Region::decode_bytes(start, bytes.to_vec());
            let Some(i) = part.index_of(vaddr) else { return false };
            self.foreign_loads(&part, Begin::Part).is_ok_and(|loads| !loads.contains(&i))
        })
    }

    /// Whether known code is called or, being a part of a function, jumped to.
    fn begin_of(&self, start: u64) -> Begin {
        let cold = || self.symbols.at(start).iter().any(|e| self.symbols.name(e).contains(".cold"));
        match landing::is_called(self.elf, start) {
            Ok(Some(true)) => Begin::Function,
            Ok(None) if !self.symbols.at(start).is_empty() && !cold() => Begin::Function,
            Ok(_) | Err(landing::Unreadable) => Begin::Part,
        }
    }
}

/// Where decoding goes on behind bytes that are no instruction: what comes after data is taken to be aligned, as assemblers do;
/// where the place itself lies before that, at its prefix.
fn behind(reached: u64, vaddr: u64) -> u64 {
    let aligned = (reached + 1).next_multiple_of(16);
    if aligned <= vaddr { aligned } else { vaddr.saturating_sub(1).max(reached) }
}

/// How many bytes from the first on are instructions.
fn decodable(bytes: &[u8]) -> usize {
    let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    let mut insn = Instruction::default();
    while decoder.can_decode() {
        let at = decoder.position();
        decoder.decode_out(&mut insn);
        if insn.is_invalid() {
            return at;
        }
    }
    decoder.position()
}

/// The last name in the symbol table at an address or before it, of a function without a size or a label.
fn label_before(elf: &ElfInfo, vaddr: u64) -> Option<String> {
    const ENTRY: usize = 24;
    let table = elf.symtab?;
    let mut best: Option<(u64, u32)> = None;
    for done in (0..table.size).step_by(ENTRY * 4096) {
        let bytes =
            elf.read_at(table.offset + done, (table.size - done).min(ENTRY as u64 * 4096) as usize).ok()?;
        // Elf64_Sym: name u32, info u8, other u8, section u16, value u64, size u64.
        for symbol in bytes.chunks_exact(ENTRY) {
            let name = u32::from_le_bytes(symbol[..4].try_into().ok()?);
            let value = u64::from_le_bytes(symbol[8..16].try_into().ok()?);
            let kind = symbol[4] & 15;
            let near = value <= vaddr && vaddr - value <= MAX_GAP;
            if near && name != 0 && matches!(kind, 0 | 2) && best.is_none_or(|(old, _)| value >= old) {
                best = Some((value, name));
            }
        }
    }
    let at = u64::from(best?.1);
    let bytes =
        elf.read_at(table.names_offset + at, table.names_size.checked_sub(at)?.min(256) as usize).ok()?;
    let name = bytes.split(|&b| b == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// A function, or code that may be one.
struct Around {
    start: u64,
    /// One past the last address.
    end: u64,
    /// A symbol or an unwind table tells; else it is the code between two functions.
    known: bool,
}

/// The function that holds an address: by symbol, by unwind table, else from the last address at which something begins or ends.
fn function_around(elf: &ElfInfo, symbols: &Symbols, vaddr: u64) -> Option<Around> {
    if let Some(entry) = symbols.covering(vaddr).iter().max_by_key(|e| e.size) {
        return Some(Around { start: entry.vaddr, end: entry.vaddr + entry.size, known: true });
    }
    let section = elf.section_at(vaddr).filter(|s| s.exec).map(|s| (s.vaddr, s.vaddr + s.size));
    let segment = || elf.segments.iter().filter(|s| s.exec).map(|s| (s.vaddr, s.vaddr + s.file_size));
    let (first, last) = section.or_else(|| segment().find(|s| (s.0..s.1).contains(&vaddr)))?;
    let table = landing::function_before(elf, vaddr).ok().flatten();
    if let Some((start, size)) = table
        && vaddr - start < size
    {
        return Some(Around { start, end: start + size, known: true });
    }
    let after_table = table.map_or(first, |(start, size)| start + size);
    let (end, next) = symbols.gap_around(vaddr);
    let start = first.max(after_table).max(end).max(vaddr.saturating_sub(MAX_GAP));
    // The same end for many places, so that what was read for one of them is there for the others.
    let near = vaddr.saturating_add(MAX_GAP).next_multiple_of(MAX_GAP);
    Some(Around { start, end: last.min(next).min(near), known: false })
}

#[cfg(test)]
#[path = "stack_switch/tests.rs"]
pub(super) mod tests;
