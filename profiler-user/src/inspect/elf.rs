//! The part of an ELF file that inspection needs: segments, sections, build id, where the symbol tables are.
//!
//! Files are read with `pread` as needed and never mapped: a library that is truncated under us must not kill the
//! agent with SIGBUS, and a binary of gigabytes must not end up in memory. DWARF is read by `dwarf`.

use super::error::InspectError;
use crate::target_file::{DebugLink, Headers, TargetFile};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, Object, ObjectSymbol, SymbolKind, elf};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The upper half of the address space is the kernel's: no program is linked there, and sums of addresses below it do not
/// overflow.
const USER_END: u64 = 1 << 62;
/// Linkers merge the sections of a program into some dozens; with more than this they are looked through for too long.
const MAX_SECTIONS: usize = 1 << 14;
/// Linkers make four to a dozen loadable segments; with more than this each look-up of an address takes too long.
const MAX_SEGMENTS: usize = 1 << 10;
/// Notes and links to debug files are short; longer ones hold other things.
const MAX_NOTE_BYTES: u64 = 64 << 10;
/// Longest name of a file.
const NAME_MAX: usize = 255;
/// Largest symbol table and largest table of names that is read: five million symbols. Chromium with all its symbols has one.
pub(super) const MAX_TABLE_BYTES: u64 = 256 << 20;
/// Longest symbol name; the longest of real C++ programs have some tens of thousands of characters.
pub(super) const MAX_NAME_BYTES: usize = 1 << 16;

/// A loadable segment: file bytes `offset .. offset + file_size` appear at `vaddr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Link-time virtual address.
    pub vaddr: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Bytes in the file.
    pub file_size: u64,
    /// Loaded executable.
    pub exec: bool,
}

/// An allocated section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its name.
    pub name: String,
    /// Link-time virtual address.
    pub vaddr: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Size, bytes.
    pub size: u64,
    /// Holds code.
    pub exec: bool,
    /// Has no bytes in the file (`.bss`).
    pub nobits: bool,
}

/// Where a symbol table and its names lie in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SymbolRange {
    /// Offset of the table, bytes.
    pub offset: u64,
    /// Its size, bytes.
    pub size: u64,
    /// Offset of the string table, bytes.
    pub names_offset: u64,
    /// Its size, bytes.
    pub names_size: u64,
}

/// What is known of one ELF file.
#[derive(Debug)]
pub struct ElfInfo {
    /// The path as the target sees it, for messages.
    pub path: PathBuf,
    /// The open file.
    pub file: Arc<TargetFile>,
    /// Loaded at a fixed address (`ET_EXEC`), so that code and data may hold absolute addresses.
    pub fixed_address: bool,
    /// Loadable segments.
    pub segments: Vec<Segment>,
    /// Allocated sections, by address.
    pub sections: Vec<Section>,
    /// What it says of its separate debug file.
    pub debug: DebugLink,
    /// `.symtab`, if not stripped.
    pub symtab: Option<SymbolRange>,
    /// `.dynsym`.
    pub dynsym: Option<SymbolRange>,
    /// A program with an interpreter, that is, dynamically linked.
    pub dynamic: bool,
    /// Link-time addresses and bytes of the sections that [`ElfInfo::keep`] has read.
    kept: OnceLock<Vec<(u64, Vec<u8>)>>,
}

/// A variable in the symbols of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// Link-time address.
    pub address: u64,
    /// Size, bytes.
    pub size: u64,
    /// `static`: other files do not see it.
    pub is_local: bool,
}

impl ElfInfo {
    /// Reads the headers of an x86-64 ELF file that the user named.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a 64-bit x86-64 ELF file.
    pub fn open(path: &Path) -> Result<Self, InspectError> {
        Self::read(Arc::new(TargetFile::named_by_user(path)?))
    }

    /// Reads the headers of an x86-64 ELF file. Segments and sections that lie where no program can be, or behind the end
    /// of the file, are left out: all that is kept can be added up without overflow.
    ///
    /// # Errors
    /// It is not a 64-bit x86-64 ELF file.
    pub fn read(file: Arc<TargetFile>) -> Result<Self, InspectError> {
        let path = file.shown().to_owned();
        let bad = |why: String| InspectError::Elf { path: path.clone(), why };
        let wrong = |e: object::read::Error| bad(e.to_string());
        // Not `object`'s `ElfFile`: that one reads the symbol tables.
        let headers = Headers::of(&file);
        let data = &headers;
        let header = elf::FileHeader64::<Endianness>::parse(data).map_err(wrong)?;
        let endian = header.endian().map_err(wrong)?;
        if header.e_machine(endian) != elf::EM_X86_64 {
            return Err(bad(format!("made for machine {}, not x86-64", header.e_machine(endian).0)));
        }
        let in_file = |offset: u64, size: u64| offset.checked_add(size).is_some_and(|end| end <= file.len());
        let in_memory = |vaddr: u64, size: u64| vaddr.checked_add(size).is_some_and(|end| end <= USER_END);
        let mut segments = Vec::new();
        let mut dynamic = false;
        let mut debug = DebugLink::default();
        for ph in header.program_headers(endian, data).map_err(wrong)? {
            let kind = ph.p_type(endian);
            dynamic |= kind == elf::PT_INTERP;
            let (vaddr, offset, file_size) = (ph.p_vaddr(endian), ph.p_offset(endian), ph.p_filesz(endian));
            if kind == elf::PT_LOAD && in_file(offset, file_size) && in_memory(vaddr, file_size) {
                segments.push(Segment {
                    vaddr,
                    offset,
                    file_size,
                    exec: ph.p_flags(endian).contains(elf::PF_X),
                });
            }
            if segments.len() > MAX_SEGMENTS {
                return Err(bad(format!("it has more than {MAX_SEGMENTS} loadable segments")));
            }
            if debug.build_id.is_none() && file_size <= MAX_NOTE_BYTES {
                debug.build_id =
                    ph.notes(endian, data).ok().flatten().and_then(|notes| build_id(endian, notes));
            }
        }
        let mut sections = Vec::new();
        let mut symtab = None;
        let mut dynsym = None;
        let table = header.sections(endian, data).map_err(wrong)?;
        if table.len() > MAX_SECTIONS {
            let count = table.len();
            return Err(bad(format!("it says that it has {count} sections, more than {MAX_SECTIONS}")));
        }
        for section in table.iter() {
            let (kind, flags) = (section.sh_type(endian), section.sh_flags(endian));
            let nobits = kind == elf::SHT_NOBITS;
            let (offset, size) = section.file_range(endian).unwrap_or((0, section.sh_size(endian)));
            if !nobits && !in_file(offset, size) {
                continue;
            }
            if kind == elf::SHT_SYMTAB || kind == elf::SHT_DYNSYM {
                let link = object::SectionIndex(section.sh_link(endian) as usize);
                if let Ok(strings) = table.section(link)
                    && let Some((names_offset, names_size)) = strings.file_range(endian)
                    && in_file(names_offset, names_size)
                {
                    let range = SymbolRange { offset, size, names_offset, names_size };
                    if kind == elf::SHT_SYMTAB { symtab = Some(range) } else { dynsym = Some(range) }
                }
            }
            let name = table.section_name(endian, section).unwrap_or(b"");
            let vaddr = section.sh_addr(endian);
            if flags.contains(elf::SHF_ALLOC) && in_memory(vaddr, section.sh_size(endian)) {
                sections.push(Section {
                    name: String::from_utf8_lossy(name).into_owned(),
                    vaddr,
                    offset,
                    size: section.sh_size(endian),
                    exec: flags.contains(elf::SHF_EXECINSTR),
                    nobits,
                });
            }
            if size <= MAX_NOTE_BYTES && debug.build_id.is_none() {
                let notes = section.notes(endian, data).ok().flatten();
                debug.build_id = notes.and_then(|notes| build_id(endian, notes));
            }
            if size <= MAX_NOTE_BYTES && name == b".gnu_debuglink" {
                let link = section.data(endian, data).unwrap_or(&[]).split(|byte| *byte == 0).next();
                let link = link.filter(|name| name.len() <= NAME_MAX);
                debug.name = link.map(|name| String::from_utf8_lossy(name).into_owned());
            }
        }
        sections.sort_by_key(|s| s.vaddr);
        let (fixed_address, kept) = (header.e_type(endian) == elf::ET_EXEC, OnceLock::new());
        drop(headers);
        Ok(Self { path, file, fixed_address, segments, sections, debug, symtab, dynsym, dynamic, kept })
    }

    /// The variables of that name, global and `static` ones. A symbol that stands in both tables comes twice.
    #[must_use]
    pub fn variables(&self, name: &str) -> Vec<Variable> {
        let headers = Headers::up_to(&self.file, MAX_TABLE_BYTES);
        let Ok(elf) = ElfFile64::<Endianness, _>::parse(&headers) else { return Vec::new() };
        elf.symbols()
            .chain(elf.dynamic_symbols())
            .filter(|s| s.kind() == SymbolKind::Data && s.is_definition() && s.name() == Ok(name))
            .map(|s| Variable { address: s.address(), size: s.size(), is_local: s.is_local() })
            .collect()
    }

    /// Reads `len` bytes at a file offset.
    ///
    /// # Errors
    /// The file cannot be read, ends before, or cannot hold so much ([`TargetFile::most`]).
    pub fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.file.read_at(offset, len as u64)
    }

    /// Reads `len` bytes at a link-time address.
    ///
    /// # Errors
    /// No segment holds them, or the file cannot be read.
    pub fn read_vaddr(&self, vaddr: u64, len: usize) -> io::Result<Vec<u8>> {
        if let Some(bytes) = self.kept_at(vaddr, len) {
            return Ok(bytes.to_vec());
        }
        let offset = self.offset_of(vaddr).ok_or(io::ErrorKind::NotFound)?;
        self.read_at(offset, len)
    }

    /// Reads these sections now, so that many small pieces of them can be read without a system call each. What cannot be read, or
    /// has more than 256 MiB, is left in the file. Later calls do nothing.
    pub fn keep(&self, names: &[&str]) {
        self.kept.get_or_init(|| {
            let wanted = |s: &&Section| names.contains(&s.name.as_str()) && !s.nobits;
            let sections = self.sections.iter().filter(wanted).filter(|s| s.size <= MAX_TABLE_BYTES);
            sections.filter_map(|s| Some((s.vaddr, self.read_at(s.offset, s.size as usize).ok()?))).collect()
        });
    }

    fn kept_at(&self, vaddr: u64, len: usize) -> Option<&[u8]> {
        self.kept.get()?.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(vaddr.checked_sub(*start)?).ok()?;
            bytes.get(at..at.checked_add(len)?)
        })
    }

    /// offset = vaddr - p_vaddr + p_offset, for the segment that holds it.
    #[must_use]
    pub fn offset_of(&self, vaddr: u64) -> Option<u64> {
        self.segments
            .iter()
            .find(|s| (s.vaddr..s.vaddr + s.file_size).contains(&vaddr))
            .map(|s| vaddr - s.vaddr + s.offset)
    }

    /// vaddr = offset - p_offset + p_vaddr, for the executable segment that holds it.
    #[must_use]
    pub fn vaddr_of(&self, offset: u64) -> Option<u64> {
        self.segments
            .iter()
            .find(|s| s.exec && (s.offset..s.offset + s.file_size).contains(&offset))
            .map(|s| offset - s.offset + s.vaddr)
    }

    /// Whether code lies at this link-time address (by section, or by segment where there are no sections).
    #[must_use]
    pub fn is_code(&self, vaddr: u64) -> bool {
        if self.sections.is_empty() {
            return self.segments.iter().any(|s| s.exec && (s.vaddr..s.vaddr + s.file_size).contains(&vaddr));
        }
        self.section_at(vaddr).is_some_and(|s| s.exec)
    }

    /// Where the code around this link-time address ends: its section, or its segment in a file without sections; the
    /// address itself if it is no code.
    #[must_use]
    pub fn code_end(&self, vaddr: u64) -> u64 {
        self.code_around(vaddr).end
    }

    /// Where it begins.
    #[must_use]
    pub fn code_begin(&self, vaddr: u64) -> u64 {
        self.code_around(vaddr).start
    }

    fn code_around(&self, vaddr: u64) -> Range<u64> {
        let section = self.section_at(vaddr).filter(|s| s.exec).map(|s| s.vaddr..s.vaddr + s.size);
        let segment = || {
            let holds = |s: &&Segment| s.exec && (s.vaddr..s.vaddr + s.file_size).contains(&vaddr);
            self.segments.iter().find(holds).map(|s| s.vaddr..s.vaddr + s.file_size)
        };
        section.or_else(segment).unwrap_or(vaddr..vaddr)
    }

    /// The section that holds this link-time address.
    #[must_use]
    pub fn section_at(&self, vaddr: u64) -> Option<&Section> {
        let i = self.sections.partition_point(|s| s.vaddr <= vaddr);
        // Thread-local .tbss overlaps its neighbour: look at a few before.
        self.sections[..i].iter().rev().take(3).find(|s| vaddr - s.vaddr < s.size)
    }

    /// Whether a section of this name exists.
    #[must_use]
    pub fn has_section(&self, name: &str) -> bool {
        self.sections.iter().any(|s| s.name == name)
    }

    /// Names of the functions and objects that it takes from other modules.
    #[must_use]
    pub fn imports(&self) -> Vec<String> {
        let Some(range) = self.dynsym else { return Vec::new() };
        let table = |offset, size: u64| {
            if size > MAX_TABLE_BYTES { None } else { self.file.read_at(offset, size).ok() }
        };
        let (Some(table), Some(names)) =
            (table(range.offset, range.size), table(range.names_offset, range.names_size))
        else {
            return Vec::new();
        };
        // Elf64_Sym: name u32, info u8, other u8, section u16; section 0 is an import.
        table
            .chunks_exact(24)
            .filter(|s| s[6] == 0 && s[7] == 0)
            .map(|s| nul_terminated(&names, u32::from_le_bytes([s[0], s[1], s[2], s[3]])))
            .filter(|name| !name.is_empty())
            .collect()
    }

    /// The name of a symbol of `.dynsym`, by index.
    #[must_use]
    pub fn dynamic_symbol_name(&self, index: u32) -> Option<String> {
        let range = self.dynsym?;
        let at = u64::from(index) * 24;
        if index == 0 || at + 24 > range.size {
            return None;
        }
        let name = self.read_at(range.offset + at, 4).ok()?;
        let name = u64::from(u32::from_le_bytes([name[0], name[1], name[2], name[3]]));
        let len = range.names_size.checked_sub(name)?.min(MAX_NAME_BYTES as u64);
        Some(nul_terminated(&self.read_at(range.names_offset + name, len as usize).ok()?, 0))
    }
}

/// The build id among some notes.
fn build_id(
    endian: Endianness,
    mut notes: object::read::elf::NoteIterator<'_, elf::FileHeader64<Endianness>>,
) -> Option<Vec<u8>> {
    while let Ok(Some(note)) = notes.next() {
        if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
            return Some(note.desc().to_vec()).filter(|id| !id.is_empty() && id.len() <= NAME_MAX / 3);
        }
    }
    None
}

/// The text that begins at an offset of a table of names.
pub(super) fn nul_terminated(bytes: &[u8], at: u32) -> String {
    let rest = bytes.get(at as usize..).unwrap_or(&[]);
    let rest = &rest[..rest.len().min(MAX_NAME_BYTES)];
    let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
    String::from_utf8_lossy(&rest[..end]).into_owned()
}
