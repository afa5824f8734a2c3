//! ELF files that claim what they do not have: nothing that reads them takes memory or time for it.

use super::TargetFile;
use super::tests::{Claim, elf_that_claims};
use crate::inspect::{Budget, Inspection, KernelRules, Module, TextIndex};
use crate::unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const PROGBITS: u32 = 1;
const RELA: u32 = 4;
const NOTE: u32 = 7;
const DYNSYM: u32 = 11;
const ALLOC: u64 = 2;
const ALLOC_EXEC: u64 = 6;
const GIB: u64 = 1 << 30;

/// Most memory that this process has had, KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Runs `read` on a file that `make` has made; panics if that takes long or much memory.
fn is_harmless<T: Send + 'static>(
    what: &str,
    make: impl FnOnce(&Path),
    read: impl FnOnce(PathBuf) -> T + Send + 'static,
) -> T {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hostile");
    make(&path);
    let before = peak_kib();
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(read(path)));
    let answer = receiver.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let grown = peak_kib().saturating_sub(before) >> 10;
    assert!(grown < 256, "{what}: the peak of memory grew by {grown} MiB");
    answer
}

/// All that the inspector reads of a module: why it cannot, or the number of functions.
fn inspect(path: PathBuf) -> Result<usize, String> {
    let module = Module::offline(&path).map_err(|e| e.to_string())?;
    let _ = (
        module.text(),
        module.sequences(),
        module.build_id(),
        module.symbols_missing(),
        module.stack_switch(),
    );
    let _ = Inspection::callers_offline(&module, KernelRules::for_version(6, 18));
    let elf = module.elf()?;
    let _ = (elf.imports(), elf.variables("runtime.buildVersion"));
    for function in module.functions_step(0, 1) {
        assert!(function.size <= 4096, "{function:?}");
    }
    module.symbols().map(|s| s.entries().len()).map_err(str::to_owned)
}

#[test]
fn a_sparse_symbol_table_of_gigabytes_is_refused() {
    for kind in [SYMTAB, DYNSYM] {
        let claims = [Claim(".symtab", kind, 4096, 8 * GIB, 2), Claim(".strtab", STRTAB, 4096, 8 * GIB, 0)];
        let make = move |path: &Path| elf_that_claims(path, 16 * GIB, ALLOC, &claims);
        let error = is_harmless("sparse", make, inspect).unwrap_err();
        assert!(error.contains("takes on disk"), "{error}");
    }
    // The names alone.
    let claims = [Claim(".symtab", SYMTAB, 4096, 240, 2), Claim(".strtab", STRTAB, 4096, 8 * GIB, 0)];
    let make = |path: &Path| elf_that_claims(path, 16 * GIB, ALLOC, &claims);
    let error = is_harmless("names", make, inspect).unwrap_err();
    assert!(error.contains("takes on disk can hold: its file system (type 0x"), "{error}");
}

#[test]
fn tables_behind_the_end_of_the_file_are_no_tables() {
    for (offset, size) in [(4096, 8 * GIB), (u64::MAX - 8, 4096), (4096, u64::MAX), (64 * GIB, 24)] {
        let claims = [
            Claim(".symtab", SYMTAB, offset, size, 2),
            Claim(".strtab", STRTAB, 4096, 16, 0),
            Claim(".eh_frame_hdr", PROGBITS, offset, size, 0),
            Claim(".text", PROGBITS, offset, size, 0),
        ];
        let make = move |path: &Path| elf_that_claims(path, 0, ALLOC_EXEC, &claims);
        assert_eq!(is_harmless("truncated", make, inspect), Ok(0), "{offset:#x} {size:#x}");
    }
}

#[test]
fn functions_end_with_their_section() {
    let claims = [
        Claim(".text", PROGBITS, 0, 4096, 0),
        Claim(".symtab", SYMTAB, 8192, 48, 3),
        Claim(".strtab", STRTAB, 12288, 4096, 0),
    ];
    let make = |path: &Path| {
        use std::os::unix::fs::FileExt;
        elf_that_claims(path, 0, ALLOC_EXEC, &claims);
        let file = std::fs::File::options().write(true).open(path).unwrap();
        // A global function at 0x1010 that is as large as the address space, its name without an end.
        let mut symbol = vec![1, 0, 0, 0, 0x12, 0, 1, 0];
        symbol.extend(0x1010_u64.to_le_bytes());
        symbol.extend((u64::MAX - 5).to_le_bytes());
        file.write_all_at(&symbol, 8192 + 24).unwrap();
        file.write_all_at(&[b'x'; 4096], 12288).unwrap();
    };
    let (size, name) = is_harmless("endless", make, |path| {
        let module = Module::offline(&path).unwrap();
        let symbols = module.symbols().unwrap();
        let entry = symbols.entries()[0];
        (entry.size, symbols.name(&entry))
    });
    assert_eq!((size, name.len()), (4096 - 0x10, 4095));
}

#[test]
fn more_sections_than_a_program_has_are_not_looked_through() {
    let make = |path: &Path| {
        use std::os::unix::fs::FileExt;
        elf_that_claims(path, 2 * GIB, ALLOC, &[]);
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        // e_shnum 0: the number stands in the size of the first section header.
        let mut at = [0; 8];
        file.read_exact_at(&mut at, 40).unwrap();
        file.write_all_at(&[0, 0], 60).unwrap();
        file.write_all_at(&(1_u64 << 24).to_le_bytes(), u64::from_le_bytes(at) + 32).unwrap();
    };
    assert!(is_harmless("sections", make, inspect).is_err());
}

#[test]
fn sections_that_overlap_are_not_read_over_and_over() {
    let claims: Vec<Claim> = (0..12_000).map(|_| Claim(".data", PROGBITS, 0, 15 << 20, 0)).collect();
    let make = |path: &Path| elf_that_claims(path, 16 << 20, ALLOC, &claims);
    let error = is_harmless("overlapping", make, |path| {
        let module = Module::offline(&path).unwrap();
        TextIndex::scan(module.elf().unwrap()).map(|index| index.scanned_bytes).unwrap_err().to_string()
    });
    assert!(error.contains("takes on disk"), "{error}");
}

/// Gives a file other program headers, at 1 MiB: flags, offset and address, size.
fn with_loads(path: &Path, loads: &[(u64, u64, u64)]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let words = loads.iter().flat_map(|&(flags, at, size)| [1 | flags << 32, at, at, at, size, size, 4096]);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    file.write_all_at(&bytes, 1 << 20).unwrap();
    // e_phoff, e_phnum.
    file.write_all_at(&(1_u64 << 20).to_le_bytes(), 32).unwrap();
    file.write_all_at(&(loads.len() as u16).to_le_bytes(), 56).unwrap();
}

#[test]
fn holes_in_segments_are_not_scanned() {
    // No section is loaded, so that the segments count; data segment over the hole.
    let claims = [Claim(".symtab", SYMTAB, 8192, 48, 2), Claim(".strtab", STRTAB, 12288, 16, 0)];
    for sizes in [vec![1 << 40], vec![12 << 20; 1000]] {
        let make = |path: &Path| {
            elf_that_claims(path, 2 << 40, 0, &claims);
            let holes = sizes.iter().map(|size| (4, 16 << 20, *size));
            with_loads(path, &[(5, 0x1000, 0x1000)].into_iter().chain(holes).collect::<Vec<_>>());
        };
        let error = is_harmless("hole", make, |path| {
            let module = Module::offline(&path).unwrap();
            TextIndex::scan(module.elf().unwrap()).map(|index| index.scanned_bytes).unwrap_err().to_string()
        });
        assert!(error.contains("takes on disk"), "{error}");
    }
}

#[test]
fn thousands_of_segments_are_refused() {
    let make = |path: &Path| {
        elf_that_claims(path, 0, ALLOC, &[]);
        with_loads(path, &vec![(5, 0x1000, 0x1000); 1025]);
    };
    assert!(is_harmless("segments", make, inspect).unwrap_err().contains("more than 1024 loadable segments"));
    let unwinder =
        |path: PathBuf| unwind::ElfInfo::read(&TargetFile::named_by_user(&path).unwrap()).map(drop);
    assert!(
        is_harmless("segments", make, unwinder).unwrap_err().contains("more than 1024 loadable segments")
    );
}

#[test]
fn relocations_are_read_once_for_all_sequences() {
    // Behind the section headers there is a hole.
    let hole = |at: u64| ((1 << 20) + at, (14 << 20) - at);
    let text = [Claim(".text", PROGBITS, 0, 4096, 0)];
    let sequences = (0..500).map(|_| Claim("__rseq_cs", PROGBITS, 1 << 20, 32, 0));
    let tables = (0..500).map(|at| Claim(".rela", RELA, hole(at).0, hole(at).1, 0));
    let claims: Vec<Claim> = text.into_iter().chain(sequences).chain(tables).collect();
    let make = |path: &Path| elf_that_claims(path, 16 << 20, ALLOC_EXEC, &claims);
    let index = |path: PathBuf| {
        let module = Module::offline(&path).unwrap();
        module.sequences().map(<[_]>::len).map_err(str::to_owned)
    };
    let error = is_harmless("relocations", make, index).unwrap_err();
    assert!(error.contains("bytes of relocations are more than this file takes on disk"), "{error}");
    // One table, which is read.
    let claims = &claims[..502];
    let make = |path: &Path| elf_that_claims(path, 16 << 20, ALLOC_EXEC, claims);
    assert_eq!(is_harmless("one table", make, index), Ok(0));
}

/// A file with 4 KiB of code, and some more `distance` behind it.
fn spread(path: &Path, distance: u64) {
    let claims = [Claim(".text", PROGBITS, 0, 4096, 0)];
    elf_that_claims(path, 0, ALLOC_EXEC, &claims);
    let mut bytes = std::fs::read(path).unwrap();
    // A second section of code far away: the string table becomes one.
    let table = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    let last = table + 2 * 64;
    bytes[last + 4..last + 8].copy_from_slice(&PROGBITS.to_le_bytes());
    bytes[last + 8..last + 16].copy_from_slice(&ALLOC_EXEC.to_le_bytes());
    bytes[last + 16..last + 24].copy_from_slice(&distance.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn bitmaps_of_all_modules_have_one_budget() {
    static BUDGET: Budget = Budget::new(100 << 20);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spread");
    // 15 MiB each.
    spread(&path, 60 << 20);
    let elf = Module::offline(&path).unwrap();
    let scan = || TextIndex::scan_within(elf.elf().unwrap(), &BUDGET).map_err(|e| e.to_string());
    let mut all: Vec<_> = (0..30).map(|_| scan()).collect();
    assert_eq!(all.iter().filter(|index| index.is_ok()).count(), 6);
    let error = all.last().unwrap().as_ref().unwrap_err();
    assert!(error.contains("do not fit beside those of other modules"), "{error}");
    // The room of one that is gone is another's.
    all.remove(0).unwrap();
    assert!(scan().is_ok());
    drop(all);
    let all: Vec<_> = (0..6).map(|_| scan()).collect();
    assert!(all.iter().all(Result::is_ok));
}

#[test]
fn code_spread_over_the_address_space_takes_no_bitmap() {
    let make = |path: &Path| spread(path, 500 << 20);
    let error = is_harmless("spread", make, |path| {
        let module = Module::offline(&path).unwrap();
        TextIndex::scan(module.elf().unwrap()).map(|index| index.scanned_bytes).unwrap_err().to_string()
    });
    assert!(error.contains("too much to scan"), "{error}");
}

#[test]
fn huge_notes_are_not_read() {
    let claims = [
        Claim(".note.gnu.build-id", NOTE, 4096, 4 * GIB, 0),
        Claim(".note.stapsdt", NOTE, 4096, 4 * GIB, 0),
        Claim(".gnu_debuglink", PROGBITS, 4096, 4 * GIB, 0),
    ];
    let make = |path: &Path| elf_that_claims(path, 8 * GIB, ALLOC, &claims);
    let found = is_harmless("notes", make, |path| {
        let module = Module::offline(&path).unwrap();
        let file = TargetFile::named_by_user(&path).unwrap();
        let probes = crate::inspect::semaphores_of(&std::sync::Arc::new(file));
        (module.build_id(), probes.len(), module.symbols().map(|s| s.entries().len()).ok())
    });
    assert_eq!(found, (None, 0, Some(0)));
}

#[test]
fn the_unwinder_reads_no_sparse_tables() {
    let claims = [
        Claim(".eh_frame", PROGBITS, 4096, 100 << 20, 0),
        Claim(".eh_frame_hdr", PROGBITS, 4096, 8 * GIB, 0),
        Claim(".debug_frame", PROGBITS, 4096, u64::MAX, 0),
        Claim(".gnu_debuglink", PROGBITS, 4096, 8 * GIB, 0),
    ];
    let make = |path: &Path| elf_that_claims(path, 16 * GIB, ALLOC, &claims);
    let bytes = is_harmless("tables", make, |path| {
        unwind::ElfInfo::read(&TargetFile::named_by_user(&path).unwrap()).map(|elf| elf.bytes())
    });
    assert_eq!(bytes, Ok(0));
}
