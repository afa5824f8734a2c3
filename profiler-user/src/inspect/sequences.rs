//! Restartable sequences: pieces of code that the kernel starts again if the thread was preempted inside.
//!
//! While it steps a probed instruction elsewhere it does not see that the thread is in one, and lets it go on after a
//! preemption that must restart it. So no function that overlaps one is probed.
//!
//! Each is described by an entry of the section `__rseq_cs`, 32 bytes (`struct rseq_cs` of linux/rseq.h): version u32,
//! flags u32, start u64, length up to the commit u64, where an abort leads u64. In a file that is loaded anywhere the
//! addresses are held by relocations. Files without section headers are not looked into.

use super::elf::{ElfInfo, MAX_TABLE_BYTES};
use std::collections::BTreeMap;
use std::ops::Range;

const ENTRY: usize = 32;
const START_AT: u64 = 8;
/// More than two thousand sequences: the libraries that have some have dozens.
const MAX_BYTES: u64 = 64 << 10;
const R_X86_64_RELATIVE: u32 = 8;

/// The link-time addresses of a module's sequences, start to commit.
///
/// # Errors
/// An entry cannot be read, or where it leads is not known before the program is loaded.
pub(super) fn of(elf: &ElfInfo) -> Result<Vec<Range<u64>>, String> {
    let mut found = Vec::new();
    for section in elf.sections.iter().filter(|s| s.name == "__rseq_cs" && !s.nobits) {
        if section.size > MAX_BYTES {
            return Err(format!("__rseq_cs has {} bytes", section.size));
        }
        let bytes =
            elf.read_at(section.offset, section.size as usize).map_err(|e| format!("__rseq_cs: {e}"))?;
        let relocated = relocated(elf, section.vaddr..section.vaddr + section.size)?;
        for (i, entry) in bytes.chunks_exact(ENTRY).enumerate() {
            let at = section.vaddr + (i * ENTRY) as u64 + START_AT;
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
    }
    Ok(found)
}

/// What the dynamic linker writes into some addresses; `None` where that depends on other files.
fn relocated(elf: &ElfInfo, within: Range<u64>) -> Result<BTreeMap<u64, Option<u64>>, String> {
    let mut values = BTreeMap::new();
    for table in elf.sections.iter().filter(|s| s.name.starts_with(".rela") && !s.nobits) {
        if table.size > MAX_TABLE_BYTES {
            return Err(format!("{} has {} bytes", table.name, table.size));
        }
        let bytes =
            elf.read_at(table.offset, table.size as usize).map_err(|e| format!("{}: {e}", table.name))?;
        // Elf64_Rela: offset u64, info u64 (symbol << 32 | type), addend i64. Relative ones of .relr.dyn are in place.
        for entry in bytes.chunks_exact(24) {
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
            if within.contains(&word(0)) {
                let relative = word(8) as u32 == R_X86_64_RELATIVE;
                values.insert(word(0), relative.then(|| word(16)));
            }
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use crate::inspect::choice::Refusal;
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
            assert!(matches!(refused("sequence"), Err(Refusal::RestartableSequence(1..))), "{kind:?}");
            assert!(refused("plain").is_ok(), "{kind:?}: {:?}", refused("plain"));
        }
    }
}
