//! USDT probes: what `<sys/sdt.h>` and its like leave in the section `.note.stapsdt` of a file. `strip` keeps it.
//!
//! A note says where a one-byte nop stands in the code, which counter (*semaphore*) must be raised for the program to come
//! by, and in which registers the arguments lie. A probe that was inlined has a note, and its own registers, at each place.
//!
//! A breakpoint in the middle of a function is safe on a one-byte nop alone: nothing can lead into its middle, and the
//! kernel emulates it without touching the stack. A five-byte nop would become a call, which overwrites the red zone.
//! Input: files of others, so that every length is checked. Does not attach.

use super::choice::{ExitObstacle, Site, SiteChoice, SiteObstacle, TraceRefusal};
use super::elf::ElfInfo;
use super::flow::{Region, Unknown};
use super::insn::{self, Treatment};
use super::maps::{Backing, Mapping};
use super::resolve::{self, Function};
use super::{Inspection, Module, landing, pattern};
use crate::target_file::{Headers, TargetFile};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader};
use profiler_core::class::SiteClass;
use profiler_core::text::printable;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The note's type (`NT_STAPSDT`), and its owner.
const NOTE_TYPE: u32 = 3;
const NOTE_OWNER: &[u8] = b"stapsdt\0";
/// More notes than this are no program's.
const MOST_BYTES: u64 = 64 << 20;
/// Similar names shown at most.
const SUGGESTIONS: usize = 5;
const UNKNOWN_FUNCTION: &str = "may be inside an instruction: neither a symbol nor the unwind table (.eh_frame_hdr) says where \
    its function begins; use a build with symbols";

/// One note: one place of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub provider: String,
    pub name: String,
    /// Link-time address of the nop.
    pub vaddr: u64,
    /// Link-time address of the semaphore; 0: none.
    pub semaphore: u64,
    /// As written: `8@%rdi -4@$1`.
    pub arguments: String,
}

/// Where a probe can be attached.
#[derive(Debug, Clone)]
pub struct ProbeSite {
    /// The nop, as if it were a function of its own.
    pub function: Function,
    /// What can be done there.
    pub sites: SiteChoice,
    /// Offset in the file of the semaphore that must be raised; 0: none.
    pub semaphore_offset: u64,
    /// The arguments, as the note has them.
    pub arguments: Vec<String>,
}

/// An argument that lies in a general register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterArgument {
    /// Offset of the register in the kernel's `pt_regs`, bytes.
    pub offset: u8,
    /// How much of the register it takes: 1, 2, 4 or 8 bytes.
    pub bytes: u8,
    /// It has a sign.
    pub signed: bool,
}

/// `pt_regs` of x86-64, part of the ABI (ptrace): 64, 32, 16 and 8 bit names.
const REGISTERS: [(u8, [&str; 4]); 16] = [
    (0, ["r15", "r15d", "r15w", "r15b"]),
    (8, ["r14", "r14d", "r14w", "r14b"]),
    (16, ["r13", "r13d", "r13w", "r13b"]),
    (24, ["r12", "r12d", "r12w", "r12b"]),
    (32, ["rbp", "ebp", "bp", "bpl"]),
    (40, ["rbx", "ebx", "bx", "bl"]),
    (48, ["r11", "r11d", "r11w", "r11b"]),
    (56, ["r10", "r10d", "r10w", "r10b"]),
    (64, ["r9", "r9d", "r9w", "r9b"]),
    (72, ["r8", "r8d", "r8w", "r8b"]),
    (80, ["rax", "eax", "ax", "al"]),
    (88, ["rcx", "ecx", "cx", "cl"]),
    (96, ["rdx", "edx", "dx", "dl"]),
    (104, ["rsi", "esi", "si", "sil"]),
    (112, ["rdi", "edi", "di", "dil"]),
    (152, ["rsp", "esp", "sp", "spl"]),
];

/// Reads one argument of a note, like `-4@%eax`.
///
/// # Errors
/// It lies in memory, is a constant, or in no general register: in words.
pub fn register_argument(text: &str) -> Result<RegisterArgument, String> {
    let refused = |what: &str| format!("'{text}' {what}: only arguments in general registers are read");
    let (size, operand) = text.split_once('@').ok_or_else(|| refused("is not written SIZE@PLACE"))?;
    if operand.starts_with('$') {
        return Err(refused("is a constant"));
    }
    if operand.contains('(') {
        return Err(refused("lies in memory"));
    }
    let register = operand.strip_prefix('%').ok_or_else(|| refused("lies in memory"))?;
    let found = REGISTERS.iter().find(|(_, names)| names.contains(&register));
    let Some((offset, _)) = found else { return Err(refused("lies in no general register")) };
    let bytes = match size.trim_start_matches('-') {
        "1" => 1,
        "2" => 2,
        "4" => 4,
        "8" => 8,
        _ => return Err(refused("is no integer of 1, 2, 4 or 8 bytes")),
    };
    Ok(RegisterArgument { offset: *offset, bytes, signed: size.starts_with('-') })
}

/// The arguments of a note, one by one: they are parted by blanks, and an operand in memory may hold none.
fn split_arguments(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

/// All notes of a section that are whole. `base`: address of `.stapsdt.base` in the file, which tells by how much a
/// prelinker has moved it since.
pub(super) fn parse(bytes: &[u8], base: Option<u64>) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut rest = bytes;
    while let Some((head, body)) = rest.split_at_checked(12) {
        let (owner_len, len, kind) = (word(head, 0), word(head, 4), word(head, 8));
        let Some((owner, body)) = padded(body, owner_len) else { break };
        let Some((description, body)) = padded(body, len) else { break };
        rest = body;
        if kind == NOTE_TYPE && owner == NOTE_OWNER {
            notes.extend(note(description, base));
        }
    }
    notes
}

/// The first `len` bytes, and what follows their padding to 4 (which the last may lack).
fn padded(bytes: &[u8], len: u32) -> Option<(&[u8], &[u8])> {
    let len = len as usize;
    let data = bytes.get(..len)?;
    Some((data, bytes.get(len.next_multiple_of(4)..).unwrap_or(&[])))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

fn note(description: &[u8], base: Option<u64>) -> Option<Note> {
    let (addresses, names) = description.split_at_checked(24)?;
    let address = |at: usize| u64::from(word(addresses, at)) | u64::from(word(addresses, at + 4)) << 32;
    let (pc, linked_base, semaphore) = (address(0), address(8), address(16));
    let mut texts = names.split(|b| *b == 0);
    let mut text = || texts.next().map(|t| String::from_utf8_lossy(t).into_owned());
    let (provider, name, arguments) = (text()?, text()?, text().unwrap_or_default());
    if provider.is_empty() || name.is_empty() {
        return None;
    }
    let moved = base.map_or(0, |now| now.wrapping_sub(linked_base));
    let semaphore = if semaphore == 0 { 0 } else { semaphore.wrapping_add(moved) };
    Some(Note { provider, name, vaddr: pc.wrapping_add(moved), semaphore, arguments })
}

/// The notes of a file.
fn read(elf: &ElfInfo) -> Result<Vec<Note>, String> {
    let unreadable = |why: String| format!("{}: its notes cannot be read: {why}", elf.path.display());
    let headers = Headers::of(&elf.file);
    let wrong = |e: object::read::Error| unreadable(e.to_string());
    let header = FileHeader64::<Endianness>::parse(&headers).map_err(wrong)?;
    let endian = header.endian().map_err(wrong)?;
    let sections = header.sections(endian, &headers).map_err(wrong)?;
    let named = |name: &[u8]| sections.section_by_name(endian, name).map(|(_, section)| section);
    let Some((offset, size)) = named(b".note.stapsdt").and_then(|s| s.file_range(endian)) else {
        return Ok(Vec::new());
    };
    if size > MOST_BYTES {
        return Err(unreadable(format!("{size} bytes of them are too many")));
    }
    let bytes = elf.read_at(offset, size as usize).map_err(|e| unreadable(e.to_string()))?;
    Ok(parse(&bytes, named(b".stapsdt.base").map(|s| s.sh_addr(endian))))
}

/// The probes of a file that have a semaphore: offset in the file of the nop, and of the semaphore. Of a file that cannot be
/// read, none.
pub(crate) fn semaphores_of(file: &Arc<TargetFile>) -> BTreeMap<u64, u64> {
    let Ok(elf) = ElfInfo::read(Arc::clone(file)) else { return BTreeMap::new() };
    let notes = read(&elf).unwrap_or_default();
    let guarded = notes.iter().filter(|note| note.semaphore != 0);
    guarded.filter_map(|note| Some((elf.offset_of(note.vaddr)?, elf.offset_of(note.semaphore)?))).collect()
}

/// Every place of a probe, in all modules.
pub(super) fn find(inspection: &Inspection, provider: &str, name: &str) -> Result<Vec<ProbeSite>, String> {
    let mut found: Vec<(usize, Note)> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut others: BTreeSet<(String, String)> = BTreeSet::new();
    let mut unreadable = Vec::new();
    for (index, module) in inspection.modules().iter().enumerate().filter(|(_, m)| m.is_held()) {
        // Modules that cannot be read are told of only where the probe is nowhere else.
        let both = module.elf().map_err(str::to_owned).and_then(|elf| Ok((elf, read(elf)?)));
        let (elf, notes) = match both {
            Ok(both) => both,
            Err(why) => {
                unreadable.push(why);
                continue;
            }
        };
        // The kernel attaches to a file, and a file may be mapped by several of its names.
        let file = module.mappings.first().map(|m| (m.device, m.inode)).ok_or(index);
        for note in notes {
            if (note.provider.as_str(), note.name.as_str()) != (provider, name) {
                others.insert((note.provider, note.name));
            } else if seen.insert((file, elf.offset_of(note.vaddr).ok_or(note.vaddr))) {
                found.push((index, note));
            }
        }
    }
    if found.is_empty() {
        return Err(unknown(provider, name, &others, &unreadable));
    }
    let several = found.len() > 1;
    found.iter().map(|(index, note)| site(inspection, *index, note, several)).collect()
}

/// Why there is no such probe, with what there is.
fn unknown(provider: &str, name: &str, others: &BTreeSet<(String, String)>, unreadable: &[String]) -> String {
    let mut text = if others.is_empty() {
        "no module of the target has USDT probes (a section .note.stapsdt)".to_owned()
    } else {
        let wanted = format!("{provider}:{name}");
        let limit = (wanted.len() / 3).clamp(1, 8);
        let mut similar: Vec<(usize, String)> = others
            .iter()
            .filter_map(|(p, n)| {
                let shown = printable(&format!("{p}:{n}")).into_owned();
                let near = pattern::distance(&wanted, &shown, limit)
                    .or_else(|| (p == provider).then_some(limit + 1))
                    .or_else(|| (n == name).then_some(limit + 2))?;
                Some((near, shown))
            })
            .collect();
        similar.sort();
        similar.truncate(SUGGESTIONS);
        if similar.is_empty() {
            let providers: BTreeSet<&str> = others.iter().map(|(p, _)| p.as_str()).collect();
            let providers: Vec<_> = providers.into_iter().take(SUGGESTIONS).map(printable).collect();
            format!("there is no such USDT probe; providers in the target: {}", providers.join(", "))
        } else {
            let similar: Vec<String> = similar.into_iter().map(|(_, n)| format!("usdt:{n}")).collect();
            format!("there is no such USDT probe; similar: {}", similar.join(", "))
        }
    };
    for why in unreadable {
        text.push_str("; ");
        text.push_str(why);
    }
    text
}

/// Judges one place. `several`: its name must say which.
fn site(inspection: &Inspection, index: usize, note: &Note, several: bool) -> Result<ProbeSite, String> {
    let module = &inspection.modules()[index];
    let elf = module.elf().map_err(str::to_owned)?;
    let at = format!("its place {:#x} in {}", note.vaddr, module.name);
    let offset = elf
        .offset_of(note.vaddr)
        .filter(|_| elf.is_code(note.vaddr))
        .ok_or_else(|| format!("{at} is no code"))?;
    let owner = owner(module, index, note.vaddr);
    check_nop(inspection, elf, owner.as_ref(), note.vaddr, offset).map_err(|why| format!("{at} {why}"))?;
    let semaphore_offset = match note.semaphore {
        0 => 0,
        vaddr => semaphore(inspection.maps(), module, elf, vaddr).map_err(|why| format!("{at}: {why}"))?,
    };
    let (place, stands) = match &owner {
        Some(f) => {
            let place = format!("{}+{:#x}", f.name, note.vaddr - f.vaddr);
            (place.clone(), format!("it stands at {place}"))
        }
        None => (
            format!("{:#x}", note.vaddr),
            format!("it stands at {:#x}, in no function with a name", note.vaddr),
        ),
    };
    let mut name = format!("usdt:{}:{}", note.provider, note.name);
    if several {
        name = format!("{name} at {place}");
    }
    let function = Function {
        symbol: name.clone(),
        name,
        aliases: Vec::new(),
        module: index,
        module_name: module.name.clone(),
        attach_path: module.attach_path(),
        build_id: module.build_id(),
        vaddr: note.vaddr,
        size: 1,
        file_offset: offset,
        address: module.address_of_offset(offset),
        ifunc: false,
        cold: false,
        remarks: vec![stands],
    };
    let no_end = || SiteObstacle("a probe is a point and has no return".to_owned());
    let entry = Site {
        vaddr: note.vaddr,
        file_offset: offset,
        offset: 0,
        class: SiteClass::Nop,
        arguments: 0,
        unread: 0,
        at_entry_stack: false,
        return_slot: None,
        keeps_frame: false,
    };
    let sites = SiteChoice {
        entry,
        entries: vec![entry],
        why: "the one-byte nop of a USDT probe is cheap and safe".to_owned(),
        iterations: false,
        exits: Err(ExitObstacle::NoCalls(no_end().0)),
        parts: Vec::new(),
        return_link: Err(no_end()),
        return_link_override: None,
        trace: Ok::<(), TraceRefusal>(()),
        notes: function.remarks.clone(),
    };
    Ok(ProbeSite { function, sites, semaphore_offset, arguments: split_arguments(&note.arguments) })
}

/// The function with a symbol that holds an address; cold parts are functions here.
fn owner(module: &Module, index: usize, vaddr: u64) -> Option<Function> {
    let start = module.symbols().ok()?.covering(vaddr).first()?.vaddr;
    resolve::function_of(module, index, start)
}

/// A note of a program that was edited, or of one made by other means, may point anywhere: a byte `90` may be part of a
/// constant, or of `f3 90`. So the function is decoded from its begin.
fn check_nop(
    inspection: &Inspection,
    elf: &ElfInfo,
    owner: Option<&Function>,
    vaddr: u64,
    offset: u64,
) -> Result<(), String> {
    let bytes = elf.read_at(offset, 1).map_err(|e| format!("cannot be read: {e}"))?;
    if !matches!(insn::treatment(&bytes, vaddr, inspection.rules()), Treatment::Probe(SiteClass::Nop)) {
        let mut code = elf.read_at(offset, 5).unwrap_or(bytes);
        code.truncate(5);
        let code: Vec<String> = code.iter().map(|b| format!("{b:02x}")).collect();
        return Err(format!(
            "holds the code {} and not a nop of one byte: inside a function only that can carry a breakpoint safely",
            code.join(" ")
        ));
    }
    let (start, size, name) = match owner {
        Some(owner) => (owner.vaddr, owner.size, owner.name.clone()),
        // Without symbols: what unwinders know.
        None => match landing::function_at(elf, vaddr) {
            Ok(Some((start, size))) => (start, size, format!("the function without a name at {start:#x}")),
            _ => return Err(UNKNOWN_FUNCTION.to_owned()),
        },
    };
    let region = Region::decode(elf, start, size);
    if region.index_of(vaddr).is_some() {
        return match &region.unknown {
            // A jump into the middle of what was decoded: all of it may be out of step.
            Some(why @ Unknown::MidInstruction(_)) => {
                Err(format!("may be inside an instruction of {name}: {why}"))
            }
            _ => Ok(()),
        };
    }
    match &region.unknown {
        Some(why) if region.insns.last().is_none_or(|last| last.next_ip() <= vaddr) => {
            Err(format!("may be inside an instruction of {name}, which is not decoded up to there: {why}"))
        }
        _ => Err(format!("is inside an instruction of {name}: a breakpoint there would break it")),
    }
}

/// Offset of a semaphore in the file. The kernel raises it in a private writable mapping of that part of the file, and
/// nowhere else.
fn semaphore(maps: &[Mapping], module: &Module, elf: &ElfInfo, vaddr: u64) -> Result<u64, String> {
    let offset = elf.offset_of(vaddr).filter(|offset| *offset != 0).ok_or_else(|| {
        format!("its semaphore {vaddr:#x} has no bytes in the file, so it cannot be raised")
    })?;
    let Some(code) = module.mappings.first() else { return Err("it is not mapped any more".to_owned()) };
    let raised = maps.iter().any(|m| {
        m.inode == code.inode
            && m.device == code.device
            && m.write
            && !m.shared
            && matches!(m.backing, Backing::File { .. })
            && (m.offset..m.offset + (m.end - m.start)).contains(&offset)
    });
    if raised {
        Ok(offset)
    } else {
        Err(format!(
            "its semaphore {vaddr:#x} is not mapped writable, so it cannot be raised and the probe would never be passed"
        ))
    }
}

#[cfg(test)]
mod tests;
