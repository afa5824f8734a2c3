//! Which functions that a file takes from others are those of the system's C and C++ libraries, by their versions.
//!
//! A file may take a function of a standard name from anywhere. Only of the GNU libraries it asks by a version that names them.

use super::super::elf::{ElfInfo, MAX_TABLE_BYTES};
use crate::target_file::Headers;
use object::read::elf::FileHeader;
use object::{Endianness, SymbolIndex, elf};
use std::collections::HashSet;

/// How versions of the C library, the C++ library and the compiler's library begin.
const STANDARD: [&[u8]; 4] = [b"GLIBC_", b"GLIBCXX_", b"CXXABI_", b"GCC_"];

/// Numbers of the dynamic symbols that are asked for in a version of these libraries; none where that cannot be read.
pub(super) fn standard_imports(elf: &ElfInfo) -> HashSet<usize> {
    of(elf).unwrap_or_default()
}

fn of(elf: &ElfInfo) -> object::read::Result<HashSet<usize>> {
    let headers = Headers::up_to(&elf.file, MAX_TABLE_BYTES);
    let data = &headers;
    let header = elf::FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let Some(versions) = header.sections(endian, data)?.versions(endian, data)? else {
        return Ok(HashSet::new());
    };
    let symbols = elf.dynsym.map_or(0, |range| range.size / 24) as usize;
    let is_standard = |number: &usize| {
        let index = versions.version_index(endian, SymbolIndex(*number)).index();
        // Versions that the file defines itself name no file.
        let asked = versions.version(index).ok().flatten().filter(|version| version.file().is_some());
        asked.is_some_and(|version| STANDARD.iter().any(|begin| version.name().starts_with(begin)))
    };
    Ok((0..symbols).filter(is_standard).collect())
}
