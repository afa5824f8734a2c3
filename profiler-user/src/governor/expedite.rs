//! Short grace periods while the target pays for a class that has tripped.
//!
//! What: before the kernel takes a breakpoint out of the text it waits for a grace period of RCU (the semaphore
//! `dup_mmap_sem` in kernel/events/uprobes.c is taken for writing, `rcu_sync_enter` in kernel/rcu/sync.c). Until then each call
//! pays the trap, though nobody counts it any more: 4 to 67 ms measured. While `/sys/kernel/rcu_expedited` is 1 it is 0.2 to 0.4 ms.
//!
//! That switch is the whole machine's: each grace period then interrupts every CPU once. So it is set only while links of a class that
//! has exploded are being closed, milliseconds each time, only where it was 0 before, and not for bursts that end by
//! their quota soon after they began, whose breakpoints go at once anyway. Should the agent die meanwhile, the
//! watchdog's successor sets it back.

use crate::watchdog::Heartbeat;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// See `Documentation/admin-guide/sysfs` of the kernel: `rcu_expedited`.
const SWITCH: &str = "/sys/kernel/rcu_expedited";

/// The switch, and how many links want it on.
#[derive(Debug, Default)]
pub(super) struct Expedite {
    file: Option<File>,
    wanted: AtomicU32,
    heartbeat: OnceLock<Heartbeat>,
}

impl Expedite {
    /// Ready to be used, if the kernel has the switch, it is off, and we may turn it.
    pub fn new() -> Self {
        Self { file: open(Path::new(SWITCH)), ..Self::default() }
    }

    /// Who tells the watchdog while it is on.
    pub fn guard(&self, heartbeat: Heartbeat) {
        // Set once, with the governor.
        let _ = self.heartbeat.set(heartbeat);
    }

    /// What a closer with a table of its own must keep to be able to call [`Expedite::end`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// A link is about to be closed in a hurry; [`Expedite::end`] is due when it is closed. True: so it is. One write
    /// of some microseconds, no allocation.
    pub fn begin(&self) -> bool {
        let Some(file) = &self.file else { return false };
        if self.wanted.fetch_add(1, Ordering::AcqRel) == 0 {
            self.turn(file, true);
        }
        true
    }

    /// See [`Expedite::begin`].
    pub fn end(&self) {
        let Some(file) = &self.file else { return };
        if self.wanted.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.turn(file, false);
            // Somebody began in between: theirs may have been the earlier write.
            if self.wanted.load(Ordering::Acquire) > 0 {
                self.turn(file, true);
            }
        }
    }

    fn turn(&self, file: &File, on: bool) {
        if let (Some(heartbeat), true) = (self.heartbeat.get(), on) {
            heartbeat.note_expedited(true);
        }
        // What fails here costs the target some milliseconds more, and nobody can do anything about it.
        let _ = file.write_all_at(if on { b"1" } else { b"0" }, 0);
        if let (Some(heartbeat), false) = (self.heartbeat.get(), on) {
            heartbeat.note_expedited(false);
        }
    }
}

/// The switch, if it is off.
fn open(path: &Path) -> Option<File> {
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let mut text = [0; 8];
    let length = file.read_at(&mut text, 0).ok()?;
    // Whoever has set it wants it so.
    (text[..length].trim_ascii() == b"0").then_some(file)
}

/// Sets the switch back: for the program that comes after an agent that died while it was on.
///
/// # Errors
/// It cannot be written.
pub fn turn_off() -> std::io::Result<()> {
    OpenOptions::new().write(true).open(SWITCH)?.write_all_at(b"0", 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(before: &str) -> (tempfile::NamedTempFile, Expedite) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), before).unwrap();
        let expedite = Expedite { file: open(file.path()), ..Expedite::default() };
        (file, expedite)
    }

    fn state(file: &tempfile::NamedTempFile) -> String {
        std::fs::read_to_string(file.path()).unwrap().trim().to_owned()
    }

    #[test]
    fn it_is_on_from_the_first_begin_to_the_last_end() {
        let (file, expedite) = switch("0\n");
        assert!(expedite.begin() && expedite.begin());
        assert_eq!(state(&file), "1");
        expedite.end();
        assert_eq!(state(&file), "1");
        expedite.end();
        assert_eq!(state(&file), "0");
    }

    #[test]
    fn what_somebody_else_has_set_is_left_alone() {
        let (file, expedite) = switch("1\n");
        assert!(!expedite.begin());
        expedite.end();
        assert_eq!(state(&file), "1");
    }
}
