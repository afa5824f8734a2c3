use super::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn imports(path: &Path) -> Result<Vec<String>, String> {
    let elf = ElfInfo::open(path).map_err(|e| e.to_string())?;
    let dynamic = Dynamic::read(&elf)?.ok_or("static")?;
    let mut imports = Vec::new();
    dynamic.find(|name, import| -> Option<()> {
        if import && !name.is_empty() {
            imports.push(name.to_owned());
        }
        None
    })?;
    dynamic.check_relocations(&elf)?;
    Ok(imports)
}

/// The shell of this machine: small, dynamic, everywhere.
fn shell() -> Vec<u8> {
    std::fs::read("/bin/sh").unwrap()
}

/// Where the entry of a tag stands in the file.
fn entry(file: &[u8], tag: u64) -> usize {
    let header = program_header(file, 2);
    let offset = u64_at(file, header + 8) as usize;
    (offset..).step_by(16).find(|&at| u64_at(file, at) == tag).unwrap()
}

/// Where the program header of a kind stands.
fn program_header(file: &[u8], kind: u32) -> usize {
    let begin = u64_at(file, 32) as usize;
    (begin..).step_by(56).find(|&at| file[at..at + 4] == kind.to_le_bytes()).unwrap()
}

/// Where the section header of the dynamic symbols stands.
fn symbol_section(file: &[u8]) -> usize {
    let begin = u64_at(file, 40) as usize;
    (begin..).step_by(64).find(|&at| file[at + 4..at + 8] == 11_u32.to_le_bytes()).unwrap()
}

fn u64_at(file: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(file[at..at + 8].try_into().unwrap())
}

fn put(file: &mut [u8], at: usize, value: u64) {
    file[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn written(dir: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join("file");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn imports_of_real_files_are_what_their_section_headers_say() {
    let maps = std::fs::read("/proc/self/maps").unwrap();
    let mut seen = BTreeSet::new();
    for map in crate::inspect::maps::parse(&maps).into_iter().filter(|map| map.exec) {
        let crate::inspect::Backing::File { path, .. } = map.backing else { continue };
        let mut told = imports(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let mut by_sections = ElfInfo::open(&path).unwrap().imports();
        told.sort();
        by_sections.sort();
        assert_eq!(told, by_sections, "{}", path.display());
        seen.extend(told);
    }
    assert!(seen.contains("_Unwind_RaiseException") && seen.contains("_dl_find_object"), "{seen:?}");
}

#[test]
fn names_of_files_are_told() {
    let elf = ElfInfo::open(Path::new("/bin/sh")).unwrap();
    let dynamic = Dynamic::read(&elf).unwrap().unwrap();
    assert!(dynamic.needed.iter().any(|name| name == "libc.so.6"), "{dynamic:?}");
    assert_eq!(dynamic.soname, None);
}

#[test]
fn odd_files_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let whole = shell();
    imports(&written(&dir, &whole)).unwrap();
    let check = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut file = whole.clone();
        change(&mut file);
        let why = imports(&written(&dir, &file)).unwrap_err();
        assert!(why.contains(what), "{what}: {why}");
    };
    let table = program_header(&whole, 2);
    let offset = u64_at(&whole, table + 8);
    // Sections behind the end are left out, and so is the segment.
    check("", &|file| file.truncate(offset as usize + 24));
    check("its dynamic table has no end", &|file| put(file, table + 32, 32));
    check("its dynamic table is said to have", &|file| put(file, table + 32, 1 << 40));
    check("its dynamic table lies in no segment", &|file| put(file, table + 16, 1 << 40));
    check("its dynamic table lies in no segment", &|file| put(file, table + 8, offset + 16));
    check("names no table of names", &|file| put(file, entry(&whole, STRTAB), 0x7000_0000));
    check("its table of names lies in no segment", &|file| put(file, entry(&whole, STRTAB) + 8, u64::MAX));
    check("its table of names is said to have", &|file| put(file, entry(&whole, STRSZ) + 8, 1 << 40));
    check("outside its table of names", &|file| put(file, entry(&whole, STRSZ) + 8, 1));
    check("do not tell how many dynamic symbols", &|file| {
        let at = entry(&whole, SYMTAB) + 8;
        put(file, at, u64_at(&whole, at) + 24);
    });
    check("do not tell how many dynamic symbols", &|file| {
        put(file, 40, 0);
        file[60..64].fill(0);
    });
    check("its symbols have another size", &|file| put(file, entry(&whole, SYMENT) + 8, 16));
    check("a relocation binds symbol", &|file| put(file, symbol_section(&whole) + 32, 48));
    check("its relocations are said to have", &|file| put(file, entry(&whole, RELASZ) + 8, 1 << 40));
    check("its relocations are of another kind", &|file| put(file, entry(&whole, RELASZ), REL));
    check("outside its table of names", &|file| {
        let symbols = u64_at(&whole, symbol_section(&whole) + 24) as usize;
        file[symbols + 24..symbols + 28].fill(0xff);
    });
    check("static", &|file| file[table..table + 4].fill(0));
}

/// Nothing is believed that would lead out of the file.
#[test]
fn random_tables_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let whole = shell();
    let begin = u64_at(&whole, program_header(&whole, 2) + 8) as usize;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut refused = 0;
    for round in 0..400 {
        let mut file = whole.clone();
        for _ in 0..8 {
            let (at, value) = if round % 2 == 0 { (begin, 0x180) } else { (0x10, 0x2c0) };
            file[at + (next() % value) as usize] = next() as u8;
        }
        refused += u32::from(imports(&written(&dir, &file)).is_err());
    }
    assert!((1..400).contains(&refused), "{refused} of 400 refused");
}
