//! A private copy of what the symbolizer reads of an ELF file of the target.
//!
//! Why a copy: blazesym maps files, follows the links to debug files that they hold by itself, and unpacks what is packed in
//! them. A file of the target could so kill the agent (cut short while it is mapped: SIGBUS), lead it to a FIFO, or make it
//! unpack gigabytes. The copy has the symbol tables and the DWARF sections alone, unpacked within a bound, in memory that
//! nobody else can write.
//!
//! In: an open file. Out: a file in memory with a path for blazesym. Debug files are looked for by the caller.

use crate::target_file::{Headers, TargetFile};
use flate2::read::ZlibDecoder;
use object::elf::{
    CompressionHeader64, ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, FileHeader64, SHF_COMPRESSED, SHT_DYNSYM,
    SHT_NOBITS, SHT_SYMTAB,
};
use object::read::elf::{CompressionHeader, FileHeader, SectionHeader};
use object::{LittleEndian, pod};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// Symbol tables and the names in them.
const SYMBOLS: [&str; 4] = [".symtab", ".strtab", ".dynsym", ".dynstr"];
/// What lines and inlined calls come from. Not where variables are (`.debug_loc`, `.debug_loclists`) and what their types are
/// (`.debug_types`): nothing here asks for that.
const DWARF: [&str; 10] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
];
/// Largest symbol table, and largest table of names, copied: as large as the inspector reads.
const MAX_SYMBOL_BYTES: u64 = 256 << 20;
/// Copied at once.
const CHUNK: usize = 1 << 20;
/// Bytes of an ELF header, and of a section header.
const HEADER: u64 = 64;
/// Bytes of a symbol: its value is at 8, its size at 16.
const SYMBOL: usize = 24;
/// What headers, names of sections and padding take of a copy at most, bytes.
const FRAME_BYTES: u64 = 4096;

/// What is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Symbol tables.
    Symbols,
    /// These, and DWARF.
    Dwarf,
}

/// A section that is to be copied.
#[derive(Debug)]
struct Wanted {
    name: &'static str,
    kind: u32,
    offset: u64,
    /// In the file, bytes.
    size: u64,
    packed: bool,
    /// In the copy, bytes. A packed section says it of itself; it gets no more.
    room: u64,
}

/// A copy that has not been made: how large it will be is known before.
#[derive(Debug)]
pub(super) struct Plan<'f> {
    file: &'f TargetFile,
    header: Vec<u8>,
    wanted: Vec<Wanted>,
}

/// The copy. It is gone when this is dropped.
#[derive(Debug)]
pub(super) struct ElfCopy {
    file: File,
    bytes: u64,
}

/// A section of the copy.
struct Copied {
    name: &'static str,
    kind: u32,
    /// The section that its names are in.
    link: &'static str,
    offset: u64,
    size: u64,
}

impl<'f> Plan<'f> {
    /// What there is to copy from a file.
    ///
    /// # Errors
    /// It is not an ELF file, or more is in it than is read; in words.
    pub(super) fn of(file: &'f TargetFile, what: What) -> Result<Self, String> {
        let e = |error: object::read::Error| error.to_string();
        let headers = Headers::of(file);
        let header = FileHeader64::<LittleEndian>::parse(&headers).map_err(e)?;
        let endian = header.endian().map_err(e)?;
        let sections = header.sections(endian, &headers).map_err(e)?;
        let mut wanted: Vec<Wanted> = Vec::new();
        // What the sections of one file have together: several that lie over each other are one's room.
        let mut left = file.most();
        for section in sections.iter() {
            let found = sections.section_name(endian, section).unwrap_or(b"");
            let dwarf = DWARF.iter().filter(|_| what == What::Dwarf);
            let Some(name) = SYMBOLS.iter().chain(dwarf).find(|name| name.as_bytes() == found) else {
                continue;
            };
            let kind = section.sh_type(endian);
            if kind == SHT_NOBITS || wanted.iter().any(|s| s.name == *name) {
                continue;
            }
            let (offset, size) = (section.sh_offset(endian), section.sh_size(endian));
            let most = if SYMBOLS.contains(name) { left.min(MAX_SYMBOL_BYTES) } else { left };
            if size > most || offset.checked_add(size).is_none_or(|end| end > file.len()) {
                return Err(format!("its section {name} of {size} bytes is more than is read of this file"));
            }
            left -= size;
            let packed = section.sh_flags(endian) & SHF_COMPRESSED == SHF_COMPRESSED;
            let room = if packed {
                let head = section.compression(endian, &headers).map_err(e)?;
                head.map_or(0, |(head, ..)| head.ch_size(endian))
            } else {
                size
            };
            wanted.push(Wanted { name, kind: kind.0, offset, size, packed, room });
        }
        Ok(Self { file, header: pod::bytes_of(header).to_vec(), wanted })
    }

    /// What the copy takes at most, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.wanted.iter().fold(FRAME_BYTES, |sum, section| sum.saturating_add(section.room))
    }

    /// Makes the copy.
    ///
    /// # Errors
    /// The file cannot be read, or a packed section has more in it than it says; in words.
    pub(super) fn copy(self) -> Result<ElfCopy, String> {
        let mut out = Writer::new().map_err(|e| e.to_string())?;
        for section in self.wanted {
            let name = section.name;
            let mut source = Source { file: self.file, at: section.offset, left: section.size };
            let start = out.begin().map_err(|e| e.to_string())?;
            let copied = if section.packed {
                unpack(source, &mut out, section.room)
            } else if [SHT_SYMTAB.0, SHT_DYNSYM.0].contains(&section.kind) {
                symbols(source, &mut out)
            } else {
                io::copy(&mut source, &mut out)
            };
            let size = copied.map_err(|e| format!("its section {name} cannot be read: {e}"))?;
            let link = match name {
                ".symtab" => ".strtab",
                ".dynsym" => ".dynstr",
                _ => "",
            };
            out.sections.push(Copied { name, kind: section.kind, link, offset: start, size });
        }
        out.finish(&self.header).map_err(|e| e.to_string())
    }
}

impl ElfCopy {
    /// What it takes, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where blazesym finds it.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// A piece of the file.
struct Source<'a> {
    file: &'a TargetFile,
    at: u64,
    left: u64,
}

impl Read for Source<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.file.read_some_at(&mut bytes[..len], self.at)?;
        if read == 0 && len > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Unpacks a section, up to `most` bytes.
fn unpack(mut source: Source<'_>, out: &mut Writer, most: u64) -> io::Result<u64> {
    let mut head = [0; size_of::<CompressionHeader64<LittleEndian>>()];
    source.read_exact(&mut head)?;
    let (head, _) = pod::from_bytes::<CompressionHeader64<LittleEndian>>(&head)
        .map_err(|()| io::Error::from(io::ErrorKind::InvalidData))?;
    let packed: Box<dyn Read + '_> = match head.ch_type(LittleEndian) {
        ELFCOMPRESS_ZLIB => Box::new(ZlibDecoder::new(source)),
        ELFCOMPRESS_ZSTD => Box::new(zstd::stream::read::Decoder::new(source)?),
        other => {
            return Err(io::Error::other(format!("it is packed in a way ({other:?}) that is not known")));
        }
    };
    let copied = io::copy(&mut packed.take(most.saturating_add(1)), out)?;
    if copied > most {
        return Err(io::Error::other(format!("unpacked it has more than the {most} bytes that it tells of")));
    }
    Ok(copied)
}

/// Copies whole symbols; a size that leads past the end of the address space becomes "unknown".
fn symbols(mut source: Source<'_>, out: &mut Writer) -> io::Result<u64> {
    source.left -= source.left % SYMBOL as u64;
    let mut copied = 0;
    let mut bytes = vec![0; CHUNK / SYMBOL * SYMBOL];
    while source.left > 0 {
        let len = bytes.len().min(usize::try_from(source.left).unwrap_or(usize::MAX));
        source.read_exact(&mut bytes[..len])?;
        for symbol in bytes[..len].chunks_exact_mut(SYMBOL) {
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| symbol[at + i]));
            if word(8).checked_add(word(16)).is_none() {
                symbol[16..].fill(0);
            }
        }
        out.write_all(&bytes[..len])?;
        copied += len as u64;
    }
    Ok(copied)
}

/// A file in memory that is being written.
struct Writer {
    file: File,
    at: u64,
    sections: Vec<Copied>,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Writer {
    fn new() -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create(c"tithe-symbols", MemfdFlags::CLOEXEC)?);
        let mut writer = Self { file, at: 0, sections: Vec::new() };
        // The header is known at the end.
        writer.write_all(&[0; HEADER as usize])?;
        Ok(writer)
    }

    /// Where the next section begins: at a multiple of 16, as symbols are read in place.
    fn begin(&mut self) -> io::Result<u64> {
        let padding = self.at.next_multiple_of(16) - self.at;
        // OK because it is less than 16.
        self.write_all(&[0; 16][..padding as usize])?;
        Ok(self.at)
    }

    /// Writes section names, section headers and the ELF header, for which `original` stands.
    fn finish(mut self, original: &[u8]) -> io::Result<ElfCopy> {
        use std::os::unix::fs::FileExt;
        const NAMES: &str = ".shstrtab";
        let mut names = vec![0];
        let mut name_at = Vec::new();
        for name in self.sections.iter().map(|s| s.name).chain([NAMES]) {
            // OK because the names have some hundred bytes.
            name_at.push(names.len() as u32);
            names.extend_from_slice(name.as_bytes());
            names.push(0);
        }
        let names_offset = self.begin()?;
        self.write_all(&names)?;
        let table = self.begin()?;
        // Section 0 is empty by the standard.
        self.write_all(&[0; HEADER as usize])?;
        let index =
            |name: &str| self.sections.iter().position(|s| s.name == name).map_or(0, |i| i as u32 + 1);
        let mut headers = Vec::new();
        for (section, name) in self.sections.iter().zip(&name_at) {
            let entry = if section.link.is_empty() { 0 } else { SYMBOL as u64 };
            headers.extend(header(
                *name,
                section.kind,
                section.offset,
                section.size,
                index(section.link),
                entry,
            ));
        }
        // Type 3 is a string table.
        let last = name_at[self.sections.len()];
        headers.extend(header(last, 3, names_offset, names.len() as u64, 0, 0));
        self.write_all(&headers)?;
        let mut head = [0; HEADER as usize];
        // e_ident, e_type, e_machine, e_version.
        head[..24].copy_from_slice(original.get(..24).unwrap_or(&[0; 24]));
        head[40..48].copy_from_slice(&table.to_le_bytes());
        // e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx. Objects (type 1) would have their relocations
        // looked for.
        head[16..18].copy_from_slice(&3_u16.to_le_bytes());
        // OK because there are 17 sections at most.
        let count = self.sections.len() as u16 + 2;
        for (at, value) in [(52, 64), (54, 56), (56, 0), (58, 64), (60, count), (62, count - 1)] {
            head[at..at + 2].copy_from_slice(&u16::to_le_bytes(value));
        }
        self.file.write_all_at(&head, 0)?;
        Ok(ElfCopy { file: self.file, bytes: self.at })
    }
}

/// Elf64_Shdr: name u32, type u32, flags, address, offset, size u64, link u32, info u32, alignment, entry size u64.
fn header(name: u32, kind: u32, offset: u64, size: u64, link: u32, entry: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend(name.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    for word in [0, 0, offset, size] {
        bytes.extend(u64::to_le_bytes(word));
    }
    bytes.extend(link.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(16_u64.to_le_bytes());
    bytes.extend(entry.to_le_bytes());
    bytes
}
