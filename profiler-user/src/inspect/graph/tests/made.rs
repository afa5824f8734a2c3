//! An ELF file, section by section.

use std::path::Path;

pub const WRITE: u64 = 1;
pub const ALLOC: u64 = 2;
pub const EXEC: u64 = 4;
const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const RELA: u32 = 4;
const NOTE: u32 = 7;
const NOBITS: u32 = 8;
const DYNSYM: u32 = 11;
const VERNEED: u32 = 0x6fff_fffe;
const VERSYM: u32 = 0x6fff_ffff;
/// Link-time address of the file's first byte; all of it is one segment.
const BASE: u64 = 0x40_0000;

struct Section {
    name: String,
    kind: u32,
    flags: u64,
    vaddr: u64,
    bytes: Vec<u8>,
    size: u64,
    link: u32,
}

/// A file to be written.
pub struct Made {
    /// `e_type`: 2 for a fixed address, 3 for any.
    kind: u16,
    sections: Vec<Section>,
    symbols: Vec<u8>,
    names: Vec<u8>,
}

impl Made {
    pub fn new(kind: u16) -> Self {
        Self { kind, sections: Vec::new(), symbols: vec![0; 24], names: vec![0] }
    }

    pub fn section(&mut self, name: &str, flags: u64, vaddr: u64, bytes: &[u8]) {
        self.add(name, PROGBITS, flags, vaddr, bytes, 0);
    }

    pub fn build_id(&mut self, id: &[u8; 8]) {
        let note = [&[4, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", id].concat();
        self.add(".note.gnu.build-id", NOTE, ALLOC, BASE + 0x9000, &note, 0);
    }

    pub fn without_bytes(&mut self, name: &str, flags: u64, vaddr: u64, size: u64) {
        self.add(name, NOBITS, flags, vaddr, &[], 0);
        self.sections.last_mut().unwrap().size = size;
    }

    fn add(&mut self, name: &str, kind: u32, flags: u64, vaddr: u64, bytes: &[u8], link: u32) {
        let (bytes, name) = (bytes.to_vec(), name.to_owned());
        let size = bytes.len() as u64;
        self.sections.push(Section { name, kind, flags, vaddr, bytes, size, link });
    }

    /// Functions of other modules, with numbers from 1 on.
    pub fn imports(&mut self, imported: &[&str]) {
        let symbols: Vec<_> = imported.iter().map(|name| (*name, 1, 0, "")).collect();
        self.dynamic(&symbols);
    }

    /// Functions of this and other modules, with numbers from 1 on: name, binding, address (0: of another module), version.
    pub fn dynamic(&mut self, all: &[(&str, u8, u64, &str)]) {
        let (mut symbols, mut names) = (vec![0; 24], vec![0]);
        let mut of_symbols = vec![0_u16];
        let mut versions: Vec<&str> = Vec::new();
        for (name, binding, vaddr, version) in all {
            let mut symbol = entry(&mut names, name, *vaddr, 0, 2, u16::from(*vaddr != 0));
            symbol[4] = binding << 4 | 2;
            symbols.extend(symbol);
            if !version.is_empty() && !versions.contains(version) {
                versions.push(version);
            }
            // 1 is no version.
            of_symbols.push(versions.iter().position(|known| known == version).map_or(1, |i| i as u16 + 2));
        }
        // Elf64_Verneed: version, number of Vernaux, file, distance of these, of the next. Vernaux: hash, flags, number, name, distance of the next.
        let mut needed: Vec<u8> =
            [1_u16, versions.len() as u16].into_iter().flat_map(u16::to_le_bytes).collect();
        needed.extend([1_u32, 16, 0].into_iter().flat_map(u32::to_le_bytes));
        for (i, version) in versions.iter().enumerate() {
            let next = if i + 1 == versions.len() { 0 } else { 16 };
            let words = [0, (i as u32 + 2) << 16, names.len() as u32, next];
            needed.extend(words.into_iter().flat_map(u32::to_le_bytes));
            names.extend_from_slice(version.as_bytes());
            names.push(0);
        }
        // Indices of sections begin with the null section.
        let symbols_at = self.sections.len() as u32 + 1;
        self.add(".dynsym", DYNSYM, ALLOC, BASE + 0xa000, &symbols, symbols_at + 1);
        self.add(".dynstr", STRTAB, ALLOC, BASE + 0xb000, &names, 0);
        if !versions.is_empty() {
            let of_symbols: Vec<u8> = of_symbols.into_iter().flat_map(u16::to_le_bytes).collect();
            self.add(".gnu.version", VERSYM, ALLOC, BASE + 0xd000, &of_symbols, symbols_at);
            self.add(".gnu.version_r", VERNEED, ALLOC, BASE + 0xe000, &needed, symbols_at + 1);
        }
    }

    pub fn symbol(&mut self, name: &str, vaddr: u64, size: u64, kind: u8) {
        let symbol = entry(&mut self.names, name, vaddr, size, kind, 1);
        self.symbols.extend(symbol);
    }

    /// Address, type, symbol, addend.
    pub fn relocations(&mut self, all: &[(u64, u32, u32, u64)]) {
        let words = |(at, kind, symbol, addend): &(u64, u32, u32, u64)| {
            [*at, u64::from(*symbol) << 32 | u64::from(*kind), *addend]
        };
        let bytes: Vec<u8> = all.iter().flat_map(words).flat_map(u64::to_le_bytes).collect();
        self.add(".rela.dyn", RELA, ALLOC, BASE + 0xc000, &bytes, 0);
    }

    /// Writes the file; what has an address lies at the same distance from the first byte.
    pub fn write(mut self, path: &Path) {
        let (symbols, names) = (std::mem::take(&mut self.symbols), std::mem::take(&mut self.names));
        let names_at = self.sections.len() as u32 + 2;
        self.add(".symtab", SYMTAB, 0, 0, &symbols, names_at);
        self.add(".strtab", STRTAB, 0, 0, &names, 0);
        let mut table = vec![0];
        let mut headers: Vec<[u64; 8]> = vec![[0; 8]];
        let mut end =
            self.sections.iter().map(|s| s.vaddr.saturating_sub(BASE) + s.bytes.len() as u64).max().unwrap();
        let mut bytes = vec![0; end as usize];
        self.add(".shstrtab", STRTAB, 0, 0, &[], 0);
        for section in &self.sections {
            let name = table.len() as u64;
            table.extend_from_slice(section.name.as_bytes());
            table.push(0);
            let offset = if section.vaddr == 0 { end } else { section.vaddr - BASE };
            if section.vaddr == 0 {
                bytes.extend(&section.bytes);
                end += section.bytes.len() as u64;
            } else {
                bytes[offset as usize..][..section.bytes.len()].copy_from_slice(&section.bytes);
            }
            let kind = name | u64::from(section.kind) << 32;
            headers.push([
                kind,
                section.flags,
                section.vaddr,
                offset,
                section.size,
                u64::from(section.link),
                1,
                24,
            ]);
        }
        let last = headers.len() - 1;
        headers[last][3] = end;
        headers[last][4] = table.len() as u64;
        bytes.extend(&table);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let headers_at = bytes.len() as u64;
        let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        for half in [self.kind, 62, 1, 0] {
            head.extend(half.to_le_bytes());
        }
        for word in [BASE + 0x1000, 64, headers_at] {
            head.extend(word.to_le_bytes());
        }
        head.extend([0; 4]);
        for half in [64, 56, 1, 64, headers.len() as u16, last as u16] {
            head.extend(half.to_le_bytes());
        }
        // PT_LOAD, readable and executable.
        for word in [1 | 5 << 32, 0, BASE, BASE, headers_at, headers_at, 4096] {
            head.extend(word.to_le_bytes());
        }
        bytes[..head.len()].copy_from_slice(&head);
        bytes.extend(headers.iter().flatten().flat_map(|word| word.to_le_bytes()));
        std::fs::write(path, &bytes).unwrap();
    }
}

/// An `Elf64_Sym`: global, of a type.
fn entry(names: &mut Vec<u8>, name: &str, vaddr: u64, size: u64, kind: u8, section: u16) -> Vec<u8> {
    let mut symbol = (names.len() as u32).to_le_bytes().to_vec();
    names.extend_from_slice(name.as_bytes());
    names.push(0);
    symbol.extend([1 << 4 | kind, 0]);
    symbol.extend(section.to_le_bytes());
    symbol.extend(vaddr.to_le_bytes());
    symbol.extend(size.to_le_bytes());
    symbol
}
