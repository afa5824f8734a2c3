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
/// most 20 places. Mappings without a file (vdso, the kernel's uprobe pages) are left out.
///
/// # Errors
///
/// If the process is gone or one of its files cannot be read.
pub fn changed_text(pid: u32) -> io::Result<Vec<String>> {
    let mut changes = Vec::new();
    for mapping in executable_mappings(&std::fs::read_to_string(format!("/proc/{pid}/maps"))?) {
        let memory = read_memory(pid, mapping.start, (mapping.end - mapping.start) as usize)?;
        let file = File::open(format!("/proc/{pid}/root{}", mapping.path))?;
        let mut original = vec![0; memory.len()];
        read_up_to(&file, &mut original, mapping.offset)?;
        for (index, (was, is)) in original.iter().zip(&memory).enumerate().filter(|(_, (was, is))| was != is)
        {
            let offset = mapping.offset + index as u64;
            changes.push(format!("{}+{offset:#x}: {was:#04x} is {is:#04x}", mapping.path));
            if changes.len() == 20 {
                return Ok(changes);
            }
        }
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
