//! Is the text of a process still that of its files? A breakpoint that was left behind shows as a changed byte.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// One executable mapping of a file, as a line of `/proc/PID/maps`.
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    path: String,
}

/// How much is compared at a time.
const PIECE: usize = 1 << 20;
const PAGE: usize = 4096;

impl Mapping {
    /// Its file: by the kernel's own link, which also leads to one that was deleted or never had a name; else by its path.
    fn open(&self, pid: u32) -> io::Result<File> {
        let file = File::open(format!("/proc/{pid}/map_files/{:x}-{:x}", self.start, self.end))
            .or_else(|_| File::open(format!("/proc/{pid}/root{}", self.path)))?;
        // What a device gives is not what was mapped.
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("no regular file")) }
    }

    /// Adds what differs from the file. Pages that cannot be read (past the end of the file) are left out. Returns how
    /// many bytes were compared.
    fn compare(&self, memory: &File, file: &File, changes: &mut Vec<String>) -> io::Result<usize> {
        let (mut compared, mut at, mut step) = (0, self.start, PIECE);
        while at < self.end {
            let mut is = vec![0; step.min((self.end - at) as usize)];
            if memory.read_exact_at(&mut is, at).is_err() {
                if step == PAGE {
                    at += PAGE as u64;
                }
                step = PAGE;
                continue;
            }
            let offset = self.offset + (at - self.start);
            let mut was = vec![0; is.len()];
            read_up_to(file, &mut was, offset)?;
            if was != is {
                for (index, (byte, now)) in was.iter().zip(&is).enumerate().filter(|(_, (was, is))| was != is)
                {
                    let offset = offset + index as u64;
                    changes.push(format!("{}+{offset:#x}: {byte:#04x} is {now:#04x}", self.path));
                    if changes.len() == 20 {
                        return Ok(compared + is.len());
                    }
                }
            }
            compared += is.len();
            at += is.len() as u64;
        }
        Ok(compared)
    }
}

/// Bytes of another process's memory.
pub(super) fn read_memory(pid: u32, address: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut bytes, address)?;
    Ok(bytes)
}

/// The file (as `/proc/PID/root/...`) and the offset in it that an executable address is mapped from.
pub(super) fn file_offset(pid: u32, address: u64) -> io::Result<(PathBuf, u64)> {
    let mappings = executable_mappings(&std::fs::read_to_string(format!("/proc/{pid}/maps"))?);
    let mapping = mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address));
    let mapping =
        mapping.ok_or_else(|| io::Error::other(format!("{address:#x} is in no executable file")))?;
    let path = PathBuf::from(format!("/proc/{pid}/root{}", mapping.path));
    Ok((path, address - mapping.start + mapping.offset))
}

/// Where the executable mappings of a process differ from their files: `path+offset: file byte, memory byte`, at
/// most 20 places. Mappings without a file (vdso, the kernel's uprobe pages), and single ones whose file cannot be read,
/// are left out.
///
/// # Errors
///
/// If the process is gone, or nothing of its text can be compared.
pub fn changed_text(pid: u32) -> io::Result<Vec<String>> {
    let mappings = executable_mappings(&std::fs::read_to_string(format!("/proc/{pid}/maps"))?);
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut changes = Vec::new();
    let (mut compared, mut failed) = (0, None);
    for mapping in &mappings {
        match mapping.open(pid).and_then(|file| mapping.compare(&memory, &file, &mut changes)) {
            Ok(bytes) => compared += bytes,
            Err(error) => failed = Some(error),
        }
        if changes.len() == 20 {
            return Ok(changes);
        }
    }
    if compared == 0 && !mappings.is_empty() {
        return Err(failed.unwrap_or_else(|| io::Error::other("none of its text can be read")));
    }
    Ok(changes)
}

/// Every byte of the process's executable mappings is that of its file.
///
/// # Panics
///
/// If not, or if the process cannot be read.
pub fn assert_text_original(pid: u32) {
    let changes = changed_text(pid).unwrap_or_else(|error| panic!("cannot read the text of {pid}: {error}"));
    assert!(changes.is_empty(), "text of {pid} differs from its files:\n{}", changes.join("\n"));
}

/// The last page of a mapping may reach past the end of its file: the rest stays zero.
fn read_up_to(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.read_at(bytes, offset)? {
            0 => return Ok(()),
            read => {
                bytes = &mut bytes[read..];
                offset += read as u64;
            }
        }
    }
    Ok(())
}

fn executable_mappings(maps: &str) -> Vec<Mapping> {
    maps.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let permissions = words.next()?;
            let offset = words.next()?;
            let path = words.nth(2)?;
            (permissions.contains('x') && path.starts_with('/')).then_some(())?;
            Some(Mapping {
                start: u64::from_str_radix(start, 16).ok()?,
                end: u64::from_str_radix(end, 16).ok()?,
                offset: u64::from_str_radix(offset, 16).ok()?,
                path: path.to_owned(),
            })
        })
        .collect()
}
