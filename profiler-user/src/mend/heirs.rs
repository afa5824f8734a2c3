//! Processes that may have inherited breakpoints of the target: what it forked while the agent ran, and what these forked.
//!
//! A child may outlive its parent, so that it is not found by its ancestors alone. Such a process
//! - runs the program that the target ran, in the same image: `fork` keeps where code and stack lie, and each `execve`
//!   places them anew (where the system places them by chance, and may be asked);
//! - began after the agent;
//! - descends from the target, or from a process that has lost its parent since. That one's parent is now the first process
//!   of its PID namespace or an ancestor of the target: nothing tells the latter's own children from those that it was given.
//!
//! A stranger that is all of this is found as well: of it only the pages that are its own are compared
//! ([`super::mend`]).

use procfs::process::{Process, Stat};
use std::os::unix::fs::MetadataExt;

/// Longest line of ancestors that is followed.
const MAX_DEPTH: usize = 128;

/// A file by device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
}

/// Where `execve` has placed a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Begin of its code.
    pub code: u64,
    /// Begin of its stack.
    pub stack: u64,
}

/// What was known of the target when it was attached to: it may be gone, or run another program by now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// The program that it ran, also one whose file was deleted.
    pub program: Option<FileId>,
    /// Where that was.
    pub image: Option<Image>,
    /// Its parent.
    pub parent: Option<u32>,
    /// When it began, clock ticks since boot: its number may be another process's by now.
    pub start_ticks: Option<u64>,
}

impl Known {
    /// What is known of a process now.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let stat = stat(pid);
        Self {
            program: program(pid),
            image: stat.as_ref().and_then(image),
            parent: stat.as_ref().and_then(parent),
            start_ticks: stat.map(|stat| stat.starttime),
        }
    }

    /// The process that has this number now is another one. False if that cannot be told.
    pub(super) fn is_another_than(&self, now: &Self) -> bool {
        self.start_ticks.zip(now.start_ticks).is_some_and(|(then, now)| then != now)
    }
}

fn program(pid: u32) -> Option<FileId> {
    let metadata = std::fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some(FileId { device: metadata.dev(), inode: metadata.ino() })
}

fn stat(pid: u32) -> Option<Stat> {
    Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()
}

/// The kernel says 0 or 1 to those who may not know.
fn image(stat: &Stat) -> Option<Image> {
    (stat.startcode > 1 && stat.startstack > 1)
        .then_some(Image { code: stat.startcode, stack: stat.startstack })
}

fn parent(stat: &Stat) -> Option<u32> {
    u32::try_from(stat.ppid).ok()
}

/// The target as its heirs are looked for.
pub(super) struct Target {
    /// 0: it is gone.
    pid: u32,
    programs: Vec<FileId>,
    /// Empty: not known.
    images: Vec<Image>,
    ancestors: Option<Vec<u32>>,
}

impl Target {
    /// By what was known of it, and what is known now. Of a process that has been given its number since nothing is taken.
    pub(super) fn new(pid: u32, known: Known) -> Self {
        let now = Known::of(pid);
        let (pid, now) = if known.is_another_than(&now) { (0, Known::default()) } else { (pid, now) };
        let both = |then: Option<Image>, now| then.into_iter().chain(now).collect();
        Self {
            pid,
            programs: known.program.into_iter().chain(now.program).collect(),
            images: both(known.image, now.image),
            ancestors: now.parent.or(known.parent).and_then(ancestors),
        }
    }

    /// Processes that may have its breakpoints, itself and this process left out.
    pub(super) fn heirs(&self) -> Vec<u32> {
        // When this process began; `execve` leaves that as it is, so that it is the watchdog's begin.
        let Some(begun) = stat(std::process::id()).map(|stat| stat.starttime) else { return Vec::new() };
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .filter(|heir| *heir != self.pid && *heir != std::process::id())
            .filter(|heir| program(*heir).is_some_and(|program| self.programs.contains(&program)))
            .filter(|heir| self.has_image(stat(*heir).as_ref().and_then(image)))
            .filter(|heir| self.may_descend(*heir, begun, &Relative::of))
            .collect()
    }

    fn has_image(&self, image: Option<Image>) -> bool {
        self.images.is_empty() || image.is_none_or(|image| self.images.contains(&image))
    }

    /// Whether a process was forked by the target or by what it forked, since `begun` (clock ticks), as far as can be told.
    fn may_descend(&self, heir: u32, begun: u64, relative: &dyn Fn(u32) -> Option<Relative>) -> bool {
        let mut at = heir;
        for _ in 0..MAX_DEPTH {
            // A parent that has ended meanwhile: what it forked is orphaned.
            let Some(one) = relative(at) else { return at != heir };
            if one.start_ticks < begun {
                let given = one.is_reaper || self.ancestors.as_ref().is_none_or(|all| all.contains(&at));
                return at != heir && given;
            }
            if one.parent == self.pid || one.parent == 0 {
                return true;
            }
            at = one.parent;
        }
        true
    }
}

/// The ancestors of a process, and itself; `None`: it is gone.
fn ancestors(pid: u32) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    let mut next = Some(pid);
    while let Some(pid) = next.filter(|pid| *pid != 0 && all.len() < MAX_DEPTH) {
        next = Some(parent(&stat(pid)?)?);
        all.push(pid);
    }
    Some(all)
}

/// What is to be known of a process in a line of ancestors.
#[derive(Debug, Clone, Copy)]
struct Relative {
    parent: u32,
    start_ticks: u64,
    /// The first process of its PID namespace: it is given those that have lost their parents.
    is_reaper: bool,
}

impl Relative {
    fn of(pid: u32) -> Option<Self> {
        let process = Process::new(i32::try_from(pid).ok()?).ok()?;
        let stat = process.stat().ok()?;
        let numbers = process.status().ok()?.nspid;
        let is_reaper = pid == 1 || numbers.is_some_and(|numbers| numbers.last() == Some(&1));
        Some(Self { parent: parent(&stat)?, start_ticks: stat.starttime, is_reaper })
    }
}

#[cfg(test)]
mod tests;
