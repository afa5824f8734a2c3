//! Processes that may have inherited breakpoints of the target: what it forked while the agent ran, and what these forked.
//!
//! A child may outlive its parent, so that it is not found by its ancestors. It runs the program that the target ran, and
//! began after the agent. Others that do so, too, are found as well: where no breakpoint is left in them nothing is done.

use crate::target::Target;
use std::os::unix::fs::MetadataExt;

/// A file by device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
}

/// The program that a process runs, also one whose file was deleted; `None`: the process is gone.
#[must_use]
pub fn program(pid: u32) -> Option<FileId> {
    let metadata = std::fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some(FileId { device: metadata.dev(), inode: metadata.ino() })
}

/// Processes that run one of these programs and did not begin before this process, `pid` and this process left out.
pub(super) fn heirs(pid: u32, programs: &[FileId]) -> Vec<u32> {
    let Some(begun) = own_start_ticks() else { return Vec::new() };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|heir| *heir != pid && *heir != std::process::id())
        .filter(|heir| program(*heir).is_some_and(|program| programs.contains(&program)))
        .filter(|heir| {
            let process = i32::try_from(*heir).ok().and_then(|heir| Target::attach(heir).ok());
            process.is_some_and(|process| process.start_ticks() >= begun)
        })
        .collect()
}

/// When this process began, in clock ticks since boot; `execve` leaves it as it is, so that it is the watchdog's begin.
fn own_start_ticks() -> Option<u64> {
    Some(procfs::process::Process::myself().ok()?.stat().ok()?.starttime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn heirs_run_the_targets_program_and_are_younger_than_the_agent() {
        let mut younger = Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        // Until it has called exec it runs our program.
        while program(younger.id()) == program(std::process::id()) && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let sleeps = [program(younger.id()).unwrap()];
        let found = heirs(1, &sleeps);
        assert!(found.contains(&younger.id()), "{found:?}");
        assert!(!heirs(younger.id(), &sleeps).contains(&younger.id()), "the target itself is none");
        let others = [FileId { inode: sleeps[0].inode + 1, ..sleeps[0] }];
        assert!(!heirs(1, &others).contains(&younger.id()), "another program");
        // Only root sees what the first process runs.
        if let Some(init) = program(1) {
            assert!(!heirs(younger.id(), &[init]).contains(&1), "older than we are");
        }
        younger.kill().unwrap();
        younger.wait().unwrap();
    }
}
