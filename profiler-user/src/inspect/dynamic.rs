//! What the dynamic linker reads of a file: which files it needs, and which names it takes from others.
//!
//! By `PT_DYNAMIC`, not by section headers, which a file may lack and which may say anything. Only the number of symbols is
//! taken from the section header (the hash tables do not count imports), and [`Dynamic::check_relocations`] shows that nothing
//! is bound beyond it. What does not fit together is an error: who asks wants to know that a name is *not* imported.

use super::elf::{ElfInfo, MAX_NAME_BYTES, MAX_TABLE_BYTES};
use crate::target_file::Headers;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};

/// Longest dynamic table, bytes: 4,096 entries. Linkers write some thirty, and one for each file that is needed.
const MAX_DYNAMIC_BYTES: u64 = 64 << 10;
/// Relocations are read in pieces of this size, bytes: a multiple of their size.
const PIECE: u64 = 24 << 15;
/// Bytes of an `Elf64_Sym` and of an `Elf64_Rela`.
const ENTRY: u64 = 24;

// Tags of the dynamic table (System V ABI, "Dynamic Section").
const NEEDED: u64 = 1;
const PLTRELSZ: u64 = 2;
const STRTAB: u64 = 5;
const SYMTAB: u64 = 6;
const RELA: u64 = 7;
const RELASZ: u64 = 8;
const STRSZ: u64 = 10;
const SYMENT: u64 = 11;
const SONAME: u64 = 14;
const REL: u64 = 17;
const JMPREL: u64 = 23;

/// The dynamic table of a file, and its symbols.
#[derive(Debug)]
pub(super) struct Dynamic {
    /// Its own name (`DT_SONAME`).
    pub soname: Option<String>,
    /// Names of the files that it needs (`DT_NEEDED`).
    pub needed: Vec<String>,
    symbols: Vec<u8>,
    names: Vec<u8>,
    /// Offset in the file and size of each table of relocations, bytes.
    relocations: Vec<(u64, u64)>,
}

impl Dynamic {
    /// Reads the tables; `None` for a file without a dynamic table (a static program).
    ///
    /// # Errors
    /// The tables cannot be read, or do not fit together; in words.
    pub fn read(elf: &ElfInfo) -> Result<Option<Self>, String> {
        let Some(entries) = entries(elf)? else { return Ok(None) };
        let value = |tag: u64| entries.iter().find(|(t, _)| *t == tag).map(|(_, value)| *value);
        let place = |tag, what: &str| {
            let vaddr = value(tag).ok_or_else(|| format!("its dynamic table names no {what}"))?;
            elf.offset_of(vaddr).ok_or_else(|| format!("its {what} lies in no segment"))
        };
        let read = |offset, size, what: &str| {
            if size > MAX_TABLE_BYTES {
                return Err(format!("its {what} is said to have {size} bytes"));
            }
            elf.read_at(offset, size as usize).map_err(|e| format!("its {what} cannot be read: {e}"))
        };
        let names = read(
            place(STRTAB, "table of names")?,
            value(STRSZ).ok_or("its dynamic table does not say how long its names are")?,
            "table of names",
        )?;
        let at = place(SYMTAB, "symbol table")?;
        if value(SYMENT).is_some_and(|size| size != ENTRY) {
            return Err("its symbols have another size".to_owned());
        }
        let range = elf.dynsym.filter(|range| range.offset == at && range.size % ENTRY == 0);
        let range = range.ok_or("its section headers do not tell how many dynamic symbols it has")?;
        let symbols = read(at, range.size, "symbol table")?;
        if value(REL).is_some() {
            return Err("its relocations are of another kind".to_owned());
        }
        let mut relocations = Vec::new();
        for (table, size) in [(RELA, RELASZ), (JMPREL, PLTRELSZ)] {
            if value(table).is_some() {
                let size = value(size).ok_or("its dynamic table does not say how many relocations it has")?;
                relocations.push((place(table, "table of relocations")?, size));
            }
        }
        let mut dynamic = Self { soname: None, needed: Vec::new(), symbols, names, relocations };
        for &(tag, at) in &entries {
            if tag == NEEDED {
                dynamic.needed.push(dynamic.name(at)?.into_owned());
            } else if tag == SONAME {
                dynamic.soname = Some(dynamic.name(at)?.into_owned());
            }
        }
        Ok(Some(dynamic))
    }

    /// Calls `f` with the name of each symbol, and whether it is taken from another file; ends when `f` gives something.
    ///
    /// # Errors
    /// A symbol has no name in the file; in words.
    pub fn find<T>(&self, mut f: impl FnMut(&str, bool) -> Option<T>) -> Result<Option<T>, String> {
        // Elf64_Sym: name u32, info u8, other u8, section u16; section 0 is an import. The first symbol is none.
        for symbol in self.symbols.chunks_exact(ENTRY as usize).skip(1) {
            let name =
                self.name(u64::from(u32::from_le_bytes([symbol[0], symbol[1], symbol[2], symbol[3]])))?;
            if let Some(found) = f(&name, symbol[6] == 0 && symbol[7] == 0) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Shows that no relocation binds a symbol that [`Dynamic::find`] does not tell.
    ///
    /// # Errors
    /// One does, or they cannot be read; in words.
    pub fn check_relocations(&self, elf: &ElfInfo) -> Result<(), String> {
        let count = (self.symbols.len() as u64 / ENTRY).max(1);
        for &(offset, size) in &self.relocations {
            if size > MAX_TABLE_BYTES || size % ENTRY != 0 {
                return Err(format!("its relocations are said to have {size} bytes"));
            }
            let mut done = 0;
            while done < size {
                let piece = (size - done).min(PIECE);
                let bytes = elf
                    .read_at(offset + done, piece as usize)
                    .map_err(|e| format!("its relocations cannot be read: {e}"))?;
                // Elf64_Rela: offset u64, type u32, symbol u32, addend i64.
                let mut bound = bytes
                    .chunks_exact(ENTRY as usize)
                    .map(|r| u64::from(u32::from_le_bytes([r[12], r[13], r[14], r[15]])));
                if let Some(symbol) = bound.find(|&symbol| symbol >= count) {
                    return Err(format!("a relocation binds symbol {symbol} of {count}"));
                }
                done += piece;
            }
        }
        Ok(())
    }

    fn name(&self, at: u64) -> Result<std::borrow::Cow<'_, str>, String> {
        let rest = usize::try_from(at).ok().and_then(|at| self.names.get(at..));
        let rest = rest.ok_or_else(|| format!("a name lies at {at:#x}, outside its table of names"))?;
        let end = rest.iter().take(MAX_NAME_BYTES).position(|&b| b == 0);
        let end = end.ok_or_else(|| format!("the name at {at:#x} has no end"))?;
        Ok(String::from_utf8_lossy(&rest[..end]))
    }
}

/// Where `PT_DYNAMIC` lies: link-time address, offset in the file and size, bytes.
///
/// # Errors
/// There are several, or it has no place where the dynamic linker would find it; in words.
pub(super) fn place(elf: &ElfInfo) -> Result<Option<(u64, u64, u64)>, String> {
    let headers = Headers::of(&elf.file);
    let data = &headers;
    let wrong = |e: object::read::Error| e.to_string();
    let header = elf::FileHeader64::<Endianness>::parse(data).map_err(wrong)?;
    let endian = header.endian().map_err(wrong)?;
    let mut found = None;
    for ph in header.program_headers(endian, data).map_err(wrong)? {
        if ph.p_type(endian) == elf::PT_DYNAMIC {
            let place = (ph.p_vaddr(endian), ph.p_offset(endian), ph.p_filesz(endian));
            if found.replace(place).is_some() {
                return Err("it has two dynamic tables".to_owned());
            }
        }
    }
    let Some((vaddr, offset, size)) = found else { return Ok(None) };
    // The linker goes by the address, the reader by the offset.
    if elf.offset_of(vaddr) != Some(offset) {
        return Err("its dynamic table lies in no segment".to_owned());
    }
    if size > MAX_DYNAMIC_BYTES {
        return Err(format!("its dynamic table is said to have {size} bytes"));
    }
    Ok(found)
}

/// Tags and values of `PT_DYNAMIC`, without the last.
fn entries(elf: &ElfInfo) -> Result<Option<Vec<(u64, u64)>>, String> {
    let Some((_, offset, size)) = place(elf)? else { return Ok(None) };
    let table =
        elf.read_at(offset, size as usize).map_err(|e| format!("its dynamic table cannot be read: {e}"))?;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let mut entries = Vec::new();
    for entry in table.chunks_exact(16) {
        let (tag, value) = (word(&entry[..8]), word(&entry[8..]));
        if tag == 0 {
            return Ok(Some(entries));
        }
        entries.push((tag, value));
    }
    Err("its dynamic table has no end".to_owned())
}

#[cfg(test)]
mod tests;
