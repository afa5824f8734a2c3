//! `profiler-ebpf/object.lock`: what the committed object is, what it was made of, and with which tools.
//!
//! The inputs are everything in `profiler-ebpf` (its lock file too) but the object, the lock and built files, and
//! everything in `profiler-common`.

use crate::shell;
use crate::toolchain::Toolchain;
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The contents of the lock file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// SHA-256 of `tithe.bpf.o`.
    pub object: String,
    /// SHA-256 over the inputs' names and contents.
    pub inputs: String,
    /// The versions of rustc, its LLVM, bpf-linker and llvm-objcopy.
    pub tools: String,
}

impl Lock {
    /// The text of the file.
    pub fn to_text(&self) -> String {
        format!(
            "# What tithe.bpf.o is, was made of (SHA-256), and with. Written by `cargo xtask build-ebpf`.\n\
             object = \"{}\"\ninputs = \"{}\"\ntools = \"{}\"\n",
            self.object, self.inputs, self.tools
        )
    }

    /// Reads the file's text.
    ///
    /// # Errors
    ///
    /// If one of the three values is missing.
    pub fn parse(text: &str) -> Result<Lock> {
        let value = |name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(" = "))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.trim_matches('"').to_owned())
                .with_context(|| format!("object.lock has no {name}; run `cargo xtask build-ebpf`"))
        };
        Ok(Lock { object: value("object")?, inputs: value("inputs")?, tools: value("tools")? })
    }
}

/// Hexadecimal SHA-256.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 over the names and contents of all inputs, in the order of their names.
///
/// # Errors
///
/// If one cannot be read.
pub fn hash_inputs(root: &Path) -> Result<String> {
    let mut files = Vec::new();
    for folder in ["profiler-common", "profiler-ebpf"] {
        collect(&root.join(folder), &mut files)?;
    }
    let mut named: Vec<(String, PathBuf)> = files
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            (name, path)
        })
        .filter(|(name, _)| !matches!(&**name, "profiler-ebpf/tithe.bpf.o" | "profiler-ebpf/object.lock"))
        // Words for people do not go into the object.
        .filter(|(name, _)| !name.ends_with(".md") && !name.contains("/LICENSE"))
        .collect();
    named.sort();
    let mut hash = Sha256::new();
    for (name, path) in named {
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        // Lengths keep one file's end apart from the next one's start.
        hash.update(format!("{name}\n{}\n", bytes.len()));
        hash.update(&bytes);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let kind = entry.file_type()?;
        // Built files, and what editors leave behind.
        let skipped = name == "target" || name.to_string_lossy().starts_with('.');
        if kind.is_dir() && !skipped {
            collect(&entry.path(), files)?;
        } else if kind.is_file() && !skipped {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// One line with the versions of all tools that shape the object.
///
/// # Errors
///
/// If one does not say its version.
pub fn tool_versions(tools: &Toolchain) -> Result<String> {
    let rustc = shell::output(Command::new(&tools.rustc).arg("-vV"))?;
    let llvm = rustc.lines().find(|line| line.starts_with("LLVM version")).unwrap_or("LLVM version unknown");
    let rustc = rustc.lines().next().unwrap_or("rustc unknown");
    let linker = shell::output(Command::new(&tools.linker).arg("--version"))?;
    let objcopy = shell::output(Command::new(&tools.objcopy).arg("--version"))?;
    let objcopy = objcopy.lines().find(|line| line.contains("LLVM version")).unwrap_or("unknown").trim();
    Ok(format!("{rustc}; {llvm}; {}; objcopy {objcopy}", linker.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_reads_back_as_written() {
        let lock = Lock { object: "ab".into(), inputs: "cd".into(), tools: "rustc 1.2 (x); y".into() };
        assert_eq!(Lock::parse(&lock.to_text()).unwrap(), lock);
        assert!(Lock::parse("object = \"ab\"\n").unwrap_err().to_string().contains("no inputs"));
    }

    #[test]
    fn sha256_is_the_standard_one() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn every_input_counts_and_nothing_else() {
        let root = std::env::temp_dir().join(format!("xtask-lock-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("profiler-common/src/lib.rs", "one");
        write("profiler-ebpf/Cargo.lock", "two");
        let first = hash_inputs(&root).unwrap();
        write("profiler-ebpf/tithe.bpf.o", "object");
        write("profiler-ebpf/object.lock", "lock");
        write("profiler-ebpf/target/debug/x", "built");
        write("profiler-ebpf/README.md", "words");
        write("profiler-ebpf/LICENSE-GPL2", "words");
        assert_eq!(hash_inputs(&root).unwrap(), first);
        write("profiler-common/src/lib.rs", "onetwo");
        write("profiler-ebpf/Cargo.lock", "");
        let second = hash_inputs(&root).unwrap();
        assert_ne!(second, first);
        write("profiler-ebpf/src/new.rs", "");
        assert_ne!(hash_inputs(&root).unwrap(), second);
        std::fs::remove_dir_all(root).unwrap();
    }
}
