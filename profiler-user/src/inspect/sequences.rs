//! Restartable sequences: pieces of code that the kernel starts again if the thread was preempted inside.
//!
//! While it steps a probed instruction elsewhere it does not see that the thread is in one, and lets it go on after a
//! preemption that must restart it. So no function that overlaps one is probed.
//!
//! Each is described by an entry of the section `__rseq_cs`, 32 bytes (`struct rseq_cs` of linux/rseq.h): version u32,
//! flags u32, start u64, length up to the commit u64, where an abort leads u64. In a file that is loaded anywhere the
//! addresses are held by relocations. Files without section headers are not looked into.

use super::elf::{ElfInfo, MAX_TABLE_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const ENTRY: usize = 32;
const START_AT: u64 = 8;
/// More than two thousand sequences: the libraries that have some have dozens.
const MAX_BYTES: u64 = 64 << 10;
const R_X86_64_RELATIVE: u32 = 8;

/// Relocations read at once, bytes: whole entries of 24 (`Elf64_Rela`).
const CHUNK: u64 = 24 << 15;

/// The link-time addresses of a module's sequences, start to commit. The sum of what is read is what one table of the file
/// may have, however many sections say that they have it.
///
/// # Errors
/// An entry cannot be read, or where it leads is not known before the program is loaded.
pub(super) fn of(elf: &ElfInfo) -> Result<Vec<Range<u64>>, String> {
    let mut entries = Vec::new();
    let mut total = 0_u64;
    for section in elf.sections.iter().filter(|s| s.name == "__rseq_cs" && !s.nobits) {
        total = total.saturating_add(section.size);
        if total > MAX_BYTES {
            return Err(format!("__rseq_cs has {total} bytes"));
        }
        let bytes =
            elf.read_at(section.offset, section.size as usize).map_err(|e| format!("__rseq_cs: {e}"))?;
        let (whole, _) = bytes.as_chunks::<ENTRY>();
        entries.extend((0..).zip(whole).map(|(i, entry): (u64, _)| {
            (section.vaddr.wrapping_add(i * ENTRY as u64).wrapping_add(START_AT), *entry)
        }));
    }
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    let relocated = relocated(elf, &entries.iter().map(|(at, _)| *at).collect())?;
    let mut found = Vec::new();
    for (at, entry) in entries {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
        let start = match relocated.get(&at) {
            Some(&address) => address.ok_or("a sequence begins at a symbol of another file")?,
            // Room between entries.
            None if entry.iter().all(|byte| *byte == 0) => continue,
            None => word(START_AT as usize),
        };
        if !elf.is_code(start) {
            return Err(format!("a sequence begins at {start:#x}, which is no code"));
        }
        found.push(start..start.saturating_add(word(16)));
    }
    Ok(found)
}

/// What the dynamic linker writes to these addresses; `None` where that depends on other files.
fn relocated(elf: &ElfInfo, wanted: &BTreeSet<u64>) -> Result<BTreeMap<u64, Option<u64>>, String> {
    let mut values = BTreeMap::new();
    let tables = || elf.sections.iter().filter(|s| s.name.starts_with(".rela") && !s.nobits);
    let total = tables().map(|table| table.size).fold(0, u64::saturating_add);
    if total > elf.file.most().min(MAX_TABLE_BYTES) {
        return Err(elf.file.too_much(&format!("{total} bytes of relocations are")).to_string());
    }
    for table in tables() {
        let whole = table.size - table.size % 24;
        for from in (0..whole).step_by(CHUNK as usize) {
            let len = CHUNK.min(whole - from) as usize;
            let bytes = elf
                .read_at(table.offset.saturating_add(from), len)
                .map_err(|e| format!("{}: {e}", table.name))?;
            // Elf64_Rela: offset u64, info u64 (symbol << 32 | type), addend i64. Relative ones of .relr.dyn are in place.
            for entry in bytes.as_chunks::<24>().0 {
                let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
                if wanted.contains(&word(0)) {
                    let relative = word(8) as u32 == R_X86_64_RELATIVE;
                    values.insert(word(0), relative.then(|| word(16)));
                }
            }
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use crate::inspect::choice::TraceRefusal;
    use crate::inspect::module::Module;
    use crate::inspect::{Inspection, KernelRules};
    use std::process::Command;

    /// Both functions hold addresses of their own in data; one has a sequence at `begin`.
    const PROGRAM: &str = r#"
        __attribute__((noinline)) int plain(int n) {
            static const void *const to[] = { &&a, &&b, &&c };
            goto *to[n];
            a: return 5;
            b: n = n * 3 + 1; goto *to[n & 1];
            c: return n * n;
        }
        __attribute__((noinline)) int sequence(int *x) {
            __asm__ volatile("nop\n begin: incl %0\n commit: nop\n"
                ".pushsection __rseq_cs, \"aw\"\n .balign 32\n"
                ".long 0, 0\n .quad begin, commit - begin, abort_at\n"
                ".balign 32\n .zero 32\n .popsection\n abort_at: nop" : "+m"(*x));
            return *x;
        }
        int main(int n, char **v) { (void)v; return plain(n) + sequence(&n); }
    "#;

    #[test]
    fn only_functions_that_overlap_a_sequence_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("a.c");
        std::fs::write(&source, PROGRAM).unwrap();
        for kind in [&["-no-pie"][..], &["-pie", "-fPIE"], &["-shared", "-fPIC"]] {
            let path = dir.path().join(kind[0]);
            let built = Command::new("cc").args(kind).arg("-O1").arg(&source).arg("-o").arg(&path).status();
            if !built.is_ok_and(|status| status.success()) {
                assert!(std::env::var_os("REQUIRE_KERNEL").is_none(), "REQUIRE_KERNEL is set and cc failed");
                eprintln!(
                    "SKIP only_functions_that_overlap_a_sequence_are_refused: needs cc (build-essential)"
                );
                return;
            }
            let module = Module::offline(&path).unwrap();
            let functions = module.functions(0);
            let refused = |name: &str| {
                let function = functions.iter().find(|f| f.symbol == name).expect("it has a symbol");
                Inspection::sites_offline(&module, function, KernelRules::for_version(6, 18)).trace
            };
            assert!(matches!(refused("sequence"), Err(TraceRefusal::RestartableSequence(1..))), "{kind:?}");
            assert!(refused("plain").is_ok(), "{kind:?}: {:?}", refused("plain"));
        }
    }
}
