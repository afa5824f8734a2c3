//! The functions of one module: symbol tables read compactly, names kept in the file.
//!
//! A table entry takes 32 bytes, names are read when they are asked for: a browser with a million symbols costs
//! 32 MB while it is inspected. Symbols at one address (aliases, identical code folded by the linker) are one
//! function; `.cold` halves belong to the function that jumps to them. Inlined functions have no symbols here.

use super::elf::{ElfInfo, MAX_NAME_BYTES, MAX_TABLE_BYTES, SymbolRange};
use super::landing;
use crate::target_file::TargetFile;
use std::io;
use std::sync::{Arc, OnceLock};

/// Symbol type of an ordinary function (ELF gABI).
const STT_FUNC: u8 = 2;
/// Symbol type of a function chosen at load time (GNU extension): the address is that of the *resolver*.
const STT_GNU_IFUNC: u8 = 10;
/// Functions without a size that are looked for in unwind data: some 20 small reads each.
const MOST_SIZELESS: usize = 4096;
/// Symbols per read.
const BATCH: usize = 4096;

/// One function symbol.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Link-time address.
    pub vaddr: u64,
    /// Size in bytes; 0 if the symbol states none.
    pub size: u64,
    name: u32,
    table: u8,
    /// `STB_WEAK` or local: a worse name than a global one.
    pub rank: u8,
    /// The symbol is an IFUNC resolver.
    pub ifunc: bool,
}

/// Where the symbols of a module come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymbolSource {
    /// `.symtab` of the module itself.
    Full,
    /// A separate debug file.
    DebugFile,
    /// `.dynsym` only: what it exports; internal functions have no names.
    ExportsOnly,
    /// Neither.
    None,
}

/// The functions of one module, sorted by address.
#[derive(Debug)]
pub struct Symbols {
    entries: Vec<Entry>,
    /// Addresses of all other labels in code (no type, no size): something may jump there.
    labels: Vec<u64>,
    tables: Vec<Names>,
    /// Where they come from.
    pub source: SymbolSource,
}

#[derive(Debug)]
struct Names {
    file: Arc<TargetFile>,
    offset: u64,
    size: u64,
    all: OnceLock<Box<[u8]>>,
    /// Of `.dynsym`.
    exported: bool,
}

impl Symbols {
    /// Reads the tables of a module, or of its separate debug file where it is stripped.
    ///
    /// # Errors
    /// A table cannot be read.
    pub fn read(elf: &ElfInfo, debug: Option<&ElfInfo>) -> io::Result<Self> {
        let mut symbols =
            Self { entries: Vec::new(), labels: Vec::new(), tables: Vec::new(), source: SymbolSource::None };
        if let Some(table) = elf.dynsym {
            symbols.add(elf, &elf.file, table, true)?;
            symbols.source = SymbolSource::ExportsOnly;
        }
        if let Some(table) = elf.symtab {
            symbols.add(elf, &elf.file, table, false)?;
            symbols.source = SymbolSource::Full;
        } else if let Some((debug, table)) = debug.and_then(|d| Some((d, d.symtab?))) {
            symbols.add(elf, &debug.file, table, false)?;
            symbols.source = SymbolSource::DebugFile;
        }
        // By address; among aliases the best name first, and the largest size.
        symbols.entries.sort_unstable_by_key(|e| (e.vaddr, e.rank, e.table, u64::MAX - e.size, e.name));
        symbols.entries.shrink_to_fit();
        symbols.size_by_unwind_data(elf);
        symbols.labels.sort_unstable();
        symbols.labels.dedup();
        Ok(symbols)
    }

    /// A function that states no size (assembly) has the one that unwind data tell of the code that begins there, if that is called
    /// and no other function begins inside.
    fn size_by_unwind_data(&mut self, elf: &ElfInfo) {
        let sizeless = |e: &Entry| e.size == 0 && !e.ifunc;
        if !self.entries.iter().any(sizeless) {
            return;
        }
        let mut starts = landing::starts(elf).unwrap_or_default();
        starts.sort_unstable();
        let mut left = MOST_SIZELESS;
        for i in 0..self.entries.len() {
            let entry = self.entries[i];
            if !sizeless(&entry) || starts.binary_search(&entry.vaddr).is_err() {
                continue;
            }
            left -= 1;
            if left == 0 {
                return;
            }
            let called = landing::is_called(elf, entry.vaddr).ok().flatten() == Some(true);
            let found = landing::function_at(elf, entry.vaddr).ok().flatten();
            let size = found.filter(|(start, _)| called && *start == entry.vaddr).map_or(0, |(_, size)| size);
            let next = self.entries[i..].iter().find(|other| other.vaddr > entry.vaddr);
            if next.is_none_or(|next| next.vaddr - entry.vaddr >= size) {
                self.entries[i].size = size;
            }
        }
    }

    fn add(
        &mut self,
        elf: &ElfInfo,
        file: &Arc<TargetFile>,
        range: SymbolRange,
        exported: bool,
    ) -> io::Result<()> {
        // A sparse file may have a table of any size.
        let most = file.most().min(MAX_TABLE_BYTES);
        if range.size > most || range.names_size > most {
            let (size, names) = (range.size, range.names_size);
            return Err(
                file.too_much(&format!("its symbol table of {size} bytes with {names} bytes of names is"))
            );
        }
        let table = self.tables.len() as u8; // OK because there are at most two
        self.tables.push(Names {
            file: Arc::clone(file),
            offset: range.names_offset,
            size: range.names_size,
            all: OnceLock::new(),
            exported,
        });
        let mut bytes = vec![0; BATCH * 24];
        let mut done = 0;
        while done < range.size {
            let len = (range.size - done).min(bytes.len() as u64) as usize;
            file.read_exact_at(&mut bytes[..len], range.offset + done)?;
            for symbol in bytes[..len].chunks_exact(24) {
                self.add_one(elf, symbol, table);
            }
            done += len as u64;
        }
        Ok(())
    }

    /// Elf64_Sym: name u32, info u8, other u8, section u16, value u64, size u64.
    fn add_one(&mut self, elf: &ElfInfo, symbol: &[u8], table: u8) {
        let (kind, bind) = (symbol[4] & 15, symbol[4] >> 4);
        let section = u16::from_le_bytes([symbol[6], symbol[7]]);
        let vaddr = u64_at(symbol, 8);
        // Section 0 is an import; types 3 (section), 4 (file), 6 (thread-local) are no addresses in code.
        if section == 0 || matches!(kind, 3 | 4 | 6) || !elf.is_code(vaddr) {
            return;
        }
        if matches!(kind, STT_FUNC | STT_GNU_IFUNC) {
            // Binding 1 is global, 2 weak, 0 local.
            let rank = match bind {
                1 => 0,
                2 => 1,
                _ => 2,
            };
            let name = u32::from_le_bytes([symbol[0], symbol[1], symbol[2], symbol[3]]);
            // No function is larger than the section that it is in.
            let size = u64_at(symbol, 16).min(elf.code_end(vaddr) - vaddr);
            self.entries.push(Entry { vaddr, size, name, table, rank, ifunc: kind == STT_GNU_IFUNC });
        } else {
            self.labels.push(vaddr);
        }
    }

    /// All function symbols, by address, aliases next to each other.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The symbols at one address (aliases); empty if none.
    #[must_use]
    pub fn at(&self, vaddr: u64) -> &[Entry] {
        let from = self.entries.partition_point(|e| e.vaddr < vaddr);
        let to = self.entries.partition_point(|e| e.vaddr <= vaddr);
        &self.entries[from..to]
    }

    /// The symbols of the innermost function whose range holds the address.
    #[must_use]
    pub fn covering(&self, vaddr: u64) -> &[Entry] {
        let mut end = self.entries.partition_point(|e| e.vaddr <= vaddr);
        // A function may hold another's start; a few steps back find the outer one.
        for _ in 0..8 {
            let Some(last) = end.checked_sub(1).and_then(|i| self.entries.get(i)) else { break };
            let class = self.at(last.vaddr);
            if class.iter().any(|e| vaddr - e.vaddr < e.size) {
                return class;
            }
            end -= class.len();
        }
        &[]
    }

    /// Around an address in no function: where the last one before it ends (or begins, without a size), and where the next begins.
    #[must_use]
    pub fn gap_around(&self, vaddr: u64) -> (u64, u64) {
        let next = self.entries.partition_point(|e| e.vaddr <= vaddr);
        // A function may hold another's start; a few steps back find the outer one.
        let end = self.entries[..next].iter().rev().take(8).map(|e| e.vaddr + e.size).max().unwrap_or(0);
        (end, self.entries.get(next).map_or(u64::MAX, |e| e.vaddr))
    }

    /// Whether any symbol, of a function or not, stands in `from ..= to`.
    #[must_use]
    pub fn any_label(&self, from: u64, to: u64) -> bool {
        let label = self.labels.partition_point(|&a| a < from);
        let entry = self.entries.partition_point(|e| e.vaddr < from);
        self.labels.get(label).is_some_and(|&a| a <= to)
            || self.entries.get(entry).is_some_and(|e| e.vaddr <= to)
    }

    /// Whether other modules may find the symbol by its name.
    #[must_use]
    pub fn is_exported(&self, entry: &Entry) -> bool {
        self.tables.get(usize::from(entry.table)).is_some_and(|names| names.exported)
    }

    /// The symbol's name as it stands in the file.
    #[must_use]
    pub fn name(&self, entry: &Entry) -> String {
        let names = &self.tables[usize::from(entry.table)];
        if let Some(all) = names.all.get() {
            return String::from_utf8_lossy(until_nul(all, entry.name as usize)).into_owned();
        }
        names.read(entry.name)
    }

    /// Calls `f` with each symbol and its name. Reads the string tables once; they are kept while small.
    pub fn for_each_name(&self, mut f: impl FnMut(usize, &Entry, &str)) {
        let transient: Vec<Option<Vec<u8>>> = self.tables.iter().map(Names::load).collect();
        for (i, entry) in self.entries.iter().enumerate() {
            let table = usize::from(entry.table);
            let names = match (&transient[table], self.tables[table].all.get()) {
                (Some(names), _) => names.as_slice(),
                (None, Some(names)) => names,
                (None, None) => continue,
            };
            if let Ok(name) = std::str::from_utf8(until_nul(names, entry.name as usize)) {
                f(i, entry, name);
            }
        }
    }
}

impl Names {
    /// String tables up to this size stay in memory.
    const KEEP_BYTES: u64 = 8 << 20;

    fn load(&self) -> Option<Vec<u8>> {
        if self.all.get().is_some() {
            return None;
        }
        let bytes = self.file.read_at(self.offset, self.size).ok()?;
        if self.size > Self::KEEP_BYTES {
            return Some(bytes);
        }
        let _ = self.all.set(bytes.into_boxed_slice());
        None
    }

    fn read(&self, at: u32) -> String {
        let mut name = Vec::new();
        let mut chunk = [0; 256];
        let mut at = u64::from(at);
        while at < self.size && name.len() < MAX_NAME_BYTES {
            let len = (self.size - at).min(256) as usize;
            if self.file.read_exact_at(&mut chunk[..len], self.offset + at).is_err() {
                break;
            }
            let part = until_nul(&chunk[..len], 0);
            name.extend_from_slice(part);
            if part.len() < len {
                break;
            }
            at += len as u64;
        }
        String::from_utf8_lossy(&name).into_owned()
    }
}

fn until_nul(bytes: &[u8], from: usize) -> &[u8] {
    let rest = bytes.get(from..).unwrap_or(&[]);
    let rest = &rest[..rest.len().min(MAX_NAME_BYTES)];
    &rest[..rest.iter().position(|&b| b == 0).unwrap_or(rest.len())]
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
