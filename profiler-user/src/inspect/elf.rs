//! The part of an ELF file that inspection needs: segments, sections, build id, where the symbol tables are.
//!
//! Files are read with `pread` as needed and never mapped: a library that is truncated under us must not kill the
//! agent with SIGBUS, and a binary of gigabytes must not end up in memory. DWARF is not read here.

use super::error::InspectError;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadCache, SectionFlags, SymbolKind, elf};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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
    /// The path it was opened by.
    pub path: PathBuf,
    /// The open file.
    pub file: File,
    /// Loaded at a fixed address (`ET_EXEC`), so that code and data may hold absolute addresses.
    pub fixed_address: bool,
    /// Loadable segments.
    pub segments: Vec<Segment>,
    /// Allocated sections, by address.
    pub sections: Vec<Section>,
    /// GNU build id.
    pub build_id: Option<Vec<u8>>,
    /// `.gnu_debuglink`: file name of the separate debug file.
    pub debug_link: Option<String>,
    /// `.symtab`, if not stripped.
    pub symtab: Option<SymbolRange>,
    /// `.dynsym`.
    pub dynsym: Option<SymbolRange>,
    /// A program with an interpreter, that is, dynamically linked.
    pub dynamic: bool,
}

impl ElfInfo {
    /// Reads the headers of an x86-64 ELF file.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a 64-bit x86-64 ELF file.
    pub fn open(path: &Path) -> Result<Self, InspectError> {
        let read = |source| InspectError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(read)?;
        let bad = |why: String| InspectError::Elf { path: path.to_owned(), why };
        let cache = ReadCache::new(file.try_clone().map_err(read)?);
        let elf: ElfFile64<'_, Endianness, _> = ElfFile64::parse(&cache).map_err(|e| bad(e.to_string()))?;
        let endian = elf.endian();
        let header = elf.elf_header();
        if header.e_machine(endian) != elf::EM_X86_64 {
            return Err(bad(format!("made for machine {}, not x86-64", header.e_machine(endian).0)));
        }
        let mut segments = Vec::new();
        let mut dynamic = false;
        for ph in elf.elf_program_headers() {
            let kind = ph.p_type(endian);
            dynamic |= kind == elf::PT_INTERP;
            if kind == elf::PT_LOAD {
                segments.push(Segment {
                    vaddr: ph.p_vaddr(endian),
                    offset: ph.p_offset(endian),
                    file_size: ph.p_filesz(endian),
                    exec: ph.p_flags(endian).contains(elf::PF_X),
                });
            }
        }
        let mut sections = Vec::new();
        let mut symtab = None;
        let mut dynsym = None;
        for section in elf.sections() {
            let SectionFlags::Elf { sh_type, sh_flags, .. } = section.flags() else { continue };
            let (offset, size) = section.file_range().unwrap_or((0, section.size()));
            if sh_type == elf::SHT_SYMTAB || sh_type == elf::SHT_DYNSYM {
                let link = section.elf_section_header().sh_link.get(endian) as usize;
                if let Ok(strings) = elf.section_by_index(object::SectionIndex(link))
                    && let Some((names_offset, names_size)) = strings.file_range()
                {
                    let range = SymbolRange { offset, size, names_offset, names_size };
                    if sh_type == elf::SHT_SYMTAB { symtab = Some(range) } else { dynsym = Some(range) }
                }
            }
            if sh_flags.contains(elf::SHF_ALLOC) {
                sections.push(Section {
                    name: section.name().unwrap_or("").to_owned(),
                    vaddr: section.address(),
                    offset,
                    size: section.size(),
                    exec: sh_flags.contains(elf::SHF_EXECINSTR),
                    nobits: sh_type == elf::SHT_NOBITS,
                });
            }
        }
        sections.sort_by_key(|s| s.vaddr);
        let build_id = elf.build_id().ok().flatten().map(<[u8]>::to_vec);
        let debug_link =
            elf.gnu_debuglink().ok().flatten().map(|(name, _)| String::from_utf8_lossy(name).into_owned());
        let fixed_address = header.e_type(endian) == elf::ET_EXEC;
        Ok(Self {
            path: path.to_owned(),
            file,
            fixed_address,
            segments,
            sections,
            build_id,
            debug_link,
            symtab,
            dynsym,
            dynamic,
        })
    }

    /// Link-time address and size of a global or static variable, by its symbol.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<(u64, u64)> {
        let cache = ReadCache::new(self.file.try_clone().ok()?);
        let elf: ElfFile64<'_, Endianness, _> = ElfFile64::parse(&cache).ok()?;
        elf.symbols()
            .chain(elf.dynamic_symbols())
            .find(|s| s.kind() == SymbolKind::Data && s.is_definition() && s.name() == Ok(name))
            .map(|s| (s.address(), s.size()))
    }

    /// Reads `len` bytes at a file offset.
    ///
    /// # Errors
    /// The file cannot be read, or ends before.
    pub fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Reads `len` bytes at a link-time address.
    ///
    /// # Errors
    /// No segment holds them, or the file cannot be read.
    pub fn read_vaddr(&self, vaddr: u64, len: usize) -> io::Result<Vec<u8>> {
        let offset = self.offset_of(vaddr).ok_or(io::ErrorKind::NotFound)?;
        self.read_at(offset, len)
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
        let (Ok(table), Ok(names)) = (
            self.read_at(range.offset, range.size as usize),
            self.read_at(range.names_offset, range.names_size as usize),
        ) else {
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
        let len = range.names_size.checked_sub(name)?.min(4096);
        Some(nul_terminated(&self.read_at(range.names_offset + name, len as usize).ok()?, 0))
    }
}

fn nul_terminated(bytes: &[u8], at: u32) -> String {
    let rest = bytes.get(at as usize..).unwrap_or(&[]);
    let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
    String::from_utf8_lossy(&rest[..end]).into_owned()
}
