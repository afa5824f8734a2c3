//! `/proc/PID/maps`: what the process has mapped, and from which file.
//!
//! Input: the text of the file. Output: [`Mapping`]s in address order. Does no other I/O and knows no ELF.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// What backs a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// A file; `deleted` when its last name is gone (it can still be read through `map_files`).
    File {
        /// The path as the target sees it.
        path: PathBuf,
        /// The kernel marked it ` (deleted)`.
        deleted: bool,
    },
    /// Anonymous memory (heap, stacks, JIT code).
    Anonymous,
    /// A mapping the kernel names in brackets: `[stack]`, `[vdso]`, `[uprobes-trampoline]`, …
    Special(String),
}

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub exec: bool,
    /// `MAP_SHARED`: uprobes skip such mappings (`valid_vma` in kernel/events/uprobes.c).
    pub shared: bool,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Device (major, minor) of the file.
    pub device: (u32, u32),
    /// Inode of the file; 0 for none.
    pub inode: u64,
    /// What backs it.
    pub backing: Backing,
}

impl Mapping {
    /// Whether the address lies inside.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The name of this mapping in `/proc/PID/map_files`.
    #[must_use]
    pub fn map_files_name(&self) -> String {
        format!("{:x}-{:x}", self.start, self.end)
    }
}

/// Parses the whole file; lines that do not look like mappings are left out.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<Mapping> {
    text.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    // start-end perms offset major:minor inode   path
    let mut rest = line;
    let mut field = || {
        let begin = rest.iter().position(|&b| b != b' ')?;
        let len = rest[begin..].iter().position(|&b| b == b' ').unwrap_or(rest.len() - begin);
        let (head, tail) = rest[begin..].split_at(len);
        rest = tail;
        std::str::from_utf8(head).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    let perms = field()?.as_bytes();
    let offset = field()?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?;
    let path = rest.trim_ascii_start();
    if perms.len() < 4 {
        return None;
    }
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        read: perms[0] == b'r',
        write: perms[1] == b'w',
        exec: perms[2] == b'x',
        shared: perms[3] == b's',
        offset: u64::from_str_radix(offset, 16).ok()?,
        device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode: inode.parse().ok()?,
        backing: backing(path),
    })
}

fn backing(path: &[u8]) -> Backing {
    match path {
        [] => Backing::Anonymous,
        [b'[', ..] => Backing::Special(String::from_utf8_lossy(path).into_owned()),
        [b'/', ..] => {
            let (path, deleted) = match path.strip_suffix(b" (deleted)") {
                Some(name) => (name, true),
                None => (path, false),
            };
            Backing::File { path: PathBuf::from(OsString::from_vec(unescape(path))), deleted }
        }
        // `anon_inode:[perf_event]`, `//anon`, and the like.
        other => Backing::Special(String::from_utf8_lossy(other).into_owned()),
    }
}

/// The kernel writes a newline in a path as `\012` (`seq_file_path(…, "\n")` in fs/proc/task_mmu.c).
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut i = 0;
    while i < path.len() {
        if path[i..].starts_with(b"\\012") {
            out.push(b'\n');
            i += 4;
        } else {
            out.push(path[i]);
            i += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_kind_of_line() {
        let text = b"5589d3a00000-5589d3a2f000 r-xp 0002f000 fe:01 1311 /usr/bin/a b (deleted)\n\
            7ffc0000-7ffd0000 rw-p 00000000 00:00 0                          [stack]\n\
            7f1200000000-7f1200021000 rwxs 00000000 00:00 0 \n\
            7f1300000000-7f1300021000 r--p 00001000 08:02 77                 /lib/x\\012y\n";
        let maps = parse(text);
        assert_eq!(maps.len(), 4);
        assert_eq!(maps[0].backing, Backing::File { path: "/usr/bin/a b".into(), deleted: true });
        assert!(maps[0].exec && !maps[0].write && !maps[0].shared);
        assert_eq!(
            (maps[0].offset, maps[0].device, maps[0].inode, maps[0].map_files_name().as_str()),
            (0x2f000, (0xfe, 1), 1311, "5589d3a00000-5589d3a2f000")
        );
        assert_eq!(maps[1].backing, Backing::Special("[stack]".into()));
        assert_eq!(maps[2].backing, Backing::Anonymous);
        assert!(maps[2].write && maps[2].exec && maps[2].shared);
        assert_eq!(maps[3].backing, Backing::File { path: "/lib/x\ny".into(), deleted: false });
    }
}
