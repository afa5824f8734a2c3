//! Why there is no call graph of a file, each cause its own variant with what mends it.

use super::super::error::InspectError;
use crate::target_file::OpenError;
use profiler_core::text::shell_word;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// What stands in the way of a call graph.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// Nothing has this name.
    #[error(
        "cannot find '{name}': no file has this name here, no program in PATH, and no library in {directories}; give its path (`ldconfig -p \
         | grep NAME` and `command -v NAME` find one)"
    )]
    NotFound {
        /// The name as given.
        name: String,
        /// Where libraries were looked for.
        directories: String,
    },
    /// The file was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A script.
    #[error(
        "{path} is a script for '{interpreter}', not machine code: name the interpreter's program instead (`readlink -f \
         \"$(command -v {interpreter})\"`), or the library that the script loads"
    )]
    Script {
        /// The file.
        path: PathBuf,
        /// What its first line names.
        interpreter: String,
    },
    /// No ELF file.
    #[error(
        "{path} is no ELF file: it begins with {first}, not with 7f 45 4c 46; `file {shown}` says what it is; programs and shared libraries \
         for Linux on x86-64 can be read"
    )]
    NotElf {
        /// The file.
        path: PathBuf,
        /// The same as a word of a command.
        shown: String,
        /// Its first bytes, hexadecimal.
        first: String,
    },
    /// An object file, or a kernel module.
    #[error(
        "{path} is an object file that is not linked (ELF type 1): its calls lead nowhere before the linker has filled them in; name the \
         program or library that it is linked into"
    )]
    NotLinked {
        /// The file.
        path: PathBuf,
    },
    /// A core dump.
    #[error("{path} is a core dump (ELF type 4): name the program that it is of (`file {shown}` says which)")]
    CoreDump {
        /// The file.
        path: PathBuf,
        /// The same as a word of a command.
        shown: String,
    },
    /// Machine code of another kind.
    #[error("{path} is {what}, and only machine code for x86-64 is decoded; `file {shown}` says more")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The same as a word of a command.
        shown: String,
        /// What it is.
        what: String,
    },
    /// Its own header speaks of more bytes than there are.
    #[error(
        "{path} is cut or damaged: its ELF header speaks of {needed} bytes, and the file has {has}; copy or download it again"
    )]
    Cut {
        /// The file.
        path: PathBuf,
        /// Bytes that its header and the tables named there take.
        needed: u64,
        /// Bytes of the file.
        has: u64,
    },
    /// A separate debug file, or one of data alone.
    #[error(
        "{path} has no code: {why}; name the program or library itself (a debug file is read beside it where it has no symbols)"
    )]
    NoCode {
        /// The file.
        path: PathBuf,
        /// What there is in the place of code.
        why: String,
    },
    /// The ELF file cannot be used.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// Its symbols cannot be read.
    #[error("{0}")]
    Symbols(String),
}

impl GraphError {
    /// By the first bytes of a file.
    pub(super) fn of_head(path: &Path, head: &[u8]) -> Option<Self> {
        let shown = || path.to_str().and_then(shell_word).map_or("FILE".to_owned(), Cow::into_owned);
        let path = path.to_owned();
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let line = String::from_utf8_lossy(line);
            let mut words = line.split_whitespace();
            let first = words.next().unwrap_or_default();
            let by_env = first.ends_with("/env");
            let named = if by_env { words.find(|word| !word.starts_with('-')) } else { None };
            let interpreter = profiler_core::text::printable(named.unwrap_or(first)).into_owned();
            return Some(Self::Script { path, interpreter });
        }
        if !head.starts_with(b"\x7fELF") {
            let first: Vec<String> = head.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            let first = if first.is_empty() { "nothing (it is empty)".to_owned() } else { first.join(" ") };
            return Some(Self::NotElf { path, shown: shown(), first });
        }
        // e_type, behind the identification.
        match head.get(16..18)? {
            [1, 0] => Some(Self::NotLinked { path }),
            [4, 0] => Some(Self::CoreDump { shown: shown(), path }),
            _ => {
                // EI_CLASS, EI_DATA; e_machine, in the order of bytes that EI_DATA says.
                let (form, machine) = (head.get(4..6)?, head.get(18..20)?);
                let what = match (form, machine) {
                    ([2, 1], [62, 0]) => return None,
                    ([1, _], _) => "a 32-bit ELF file".to_owned(),
                    ([_, 2], [high, low]) => {
                        format!("made for ELF machine {}", u16::from_be_bytes([*high, *low]))
                    }
                    (_, [low, high]) => format!("made for ELF machine {}", u16::from_le_bytes([*low, *high])),
                    _ => return None,
                };
                Some(Self::Foreign { shown: shown(), path, what })
            }
        }
    }

    /// By the first bytes of an ELF file and its size: whether the header and the tables that it names lie within the file.
    pub(super) fn of_size(path: &Path, head: &[u8], has: u64) -> Option<Self> {
        // Elf64_Ehdr: e_phoff at 32, e_shoff at 40; from 54 on e_phentsize, e_phnum, e_shentsize, e_shnum. Another class or byte order (4, 5) is
        // refused elsewhere.
        const HEADER: u64 = 64;
        if head.get(4..6).is_some_and(|form| form != [2, 1]) {
            return None;
        }
        let number = |at: usize, len: usize| {
            let bytes = head.get(at..at + len).unwrap_or_default();
            bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let table = |offset: usize, entry: usize| {
            let size = number(entry, 2) * number(entry + 2, 2);
            if size == 0 { 0 } else { number(offset, 8).saturating_add(size) }
        };
        let needed = HEADER.max(table(32, 54)).max(table(40, 58));
        (needed > has).then(|| Self::Cut { path: path.to_owned(), needed, has })
    }
}
