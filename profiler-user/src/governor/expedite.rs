//! Short grace periods while the target pays for a class that has tripped.
//!
//! What: before the kernel takes a breakpoint out of the text it waits for a grace period of RCU (the semaphore
//! `dup_mmap_sem` in kernel/events/uprobes.c is taken for writing, `rcu_sync_enter` in kernel/rcu/sync.c). Until then each call
//! pays the trap, though nobody counts it any more: 4 to 67 ms measured. While `/sys/kernel/rcu_expedited` is 1 it is 0.2 to 0.4 ms.
//!
//! That switch is the whole machine's: each grace period then interrupts every CPU once. So it is set only while links of a class that
//! has exploded are being closed, milliseconds each time; not where somebody else has set it, nor where `rcu_normal` makes the kernel
//! ignore it; and not for bursts that end by their quota soon after they began, whose breakpoints go at once anyway. Should the
//! agent die meanwhile, the watchdog sets it back.
//!
//! Of two agents that take classes off at the same moment one may do without.

use crate::watchdog::{EXPEDITE_SWITCH, Heartbeat};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// While this is 1 the kernel ignores the switch. See `rcu_normal` in `Documentation/admin-guide/kernel-parameters.txt` of the kernel.
const IGNORED: &str = "/sys/kernel/rcu_normal";

/// The switch, and how many links want it on.
#[derive(Debug, Default)]
pub(super) struct Expedite {
    file: Option<File>,
    wanted: AtomicU32,
    /// It is on, and that by us.
    ours: AtomicBool,
    heartbeat: OnceLock<Heartbeat>,
}

impl Expedite {
    /// Ready to be used, if the kernel has the switch and heeds it, and we may turn it.
    pub fn new() -> Self {
        let ignored = std::fs::read_to_string(IGNORED).is_ok_and(|text| text.trim() != "0");
        let path = OsStr::from_bytes(EXPEDITE_SWITCH.to_bytes());
        let open = || OpenOptions::new().read(true).write(true).open(path).ok();
        let mut new = Self::default();
        if !ignored {
            new.file = open();
        }
        new
    }

    #[cfg(test)]
    pub(super) fn of(file: File) -> Self {
        let mut new = Self::default();
        new.file = Some(file);
        new
    }

    /// Who tells the watchdog while it is on.
    pub fn guard(&self, heartbeat: Heartbeat) {
        // Set once, with the governor.
        let _ = self.heartbeat.set(heartbeat);
    }

    /// What a closer with a table of its own must keep to be able to turn the switch.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// A link is about to be closed in a hurry. `true`: grace periods are short now, and [`Expedite::end`] is due when it
    /// is closed. A read and a write of some microseconds, by the closer and not by the governor.
    pub fn begin(&self) -> bool {
        let Some(file) = &self.file else { return false };
        // Whoever else has set it wants it so, and will set it back.
        if !self.ours.load(Ordering::SeqCst) && !is_off(file) {
            return false;
        }
        self.wanted.fetch_add(1, Ordering::SeqCst);
        self.settle(|on| self.turn(file, on));
        let on = self.ours.load(Ordering::SeqCst);
        if !on {
            self.end();
        }
        on
    }

    /// See [`Expedite::begin`].
    pub fn end(&self) {
        let Some(file) = &self.file else { return };
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        self.settle(|on| self.turn(file, on));
    }

    /// Sets it as wanted. Whoever writes looks again afterwards, so that the last write is what is wanted, whoever was
    /// interrupted before it.
    fn settle(&self, mut turn: impl FnMut(bool)) {
        loop {
            let on = self.wanted.load(Ordering::SeqCst) > 0;
            if on != self.ours.load(Ordering::SeqCst) || !on {
                turn(on);
            }
            if (self.wanted.load(Ordering::SeqCst) > 0) == on {
                return;
            }
        }
    }

    fn turn(&self, file: &File, on: bool) {
        let tell = |on| self.heartbeat.get().inspect(|heartbeat| heartbeat.note_expedited(on));
        if on {
            tell(true);
        }
        let written = file.write_all_at(if on { b"1" } else { b"0" }, 0).is_ok();
        // Where it cannot be written it stays off.
        self.ours.store(on && written, Ordering::SeqCst);
        if !on && written {
            tell(false);
        }
    }
}

impl Drop for Expedite {
    fn drop(&mut self) {
        // Links that nobody closed.
        if let Some(file) = self.file.take().filter(|_| *self.ours.get_mut()) {
            self.turn(&file, false);
        }
    }
}

fn is_off(file: &File) -> bool {
    let mut text = [0; 8];
    file.read_at(&mut text, 0).is_ok_and(|length| text[..length].trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(before: &str) -> (tempfile::NamedTempFile, Expedite) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), before).unwrap();
        let open = OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
        let expedite = Expedite::of(open);
        (file, expedite)
    }

    fn state(file: &tempfile::NamedTempFile) -> char {
        std::fs::read_to_string(file.path()).unwrap().chars().next().unwrap()
    }

    #[test]
    fn it_is_on_from_the_first_begin_to_the_last_end() {
        let (file, expedite) = switch("0\n");
        assert!(expedite.begin() && expedite.begin());
        assert_eq!(state(&file), '1');
        expedite.end();
        assert_eq!(state(&file), '1');
        expedite.end();
        assert_eq!(state(&file), '0');
    }

    #[test]
    fn what_somebody_else_has_set_is_left_alone() {
        let (file, expedite) = switch("0\n");
        std::fs::write(file.path(), "1\n").unwrap();
        assert!(!expedite.begin());
        assert_eq!(state(&file), '1');
        std::fs::write(file.path(), "0\n").unwrap();
        assert!(expedite.begin());
        expedite.end();
        assert_eq!(state(&file), '0');
    }

    /// Somebody is interrupted between looking and writing, and meanwhile what is wanted changes.
    #[test]
    fn whoever_writes_looks_again() {
        for on in [true, false] {
            let (file, expedite) = switch("0\n");
            let handle = expedite.file.as_ref().unwrap();
            let want = |on| expedite.wanted.store(u32::from(on), Ordering::SeqCst);
            want(on);
            let mut written = Vec::new();
            expedite.settle(|now| {
                if written.is_empty() {
                    want(!on);
                }
                expedite.turn(handle, now);
                written.push(now);
            });
            assert_eq!(written, [on, !on]);
            assert_eq!((state(&file) == '1', expedite.ours.load(Ordering::SeqCst)), (!on, !on));
        }
    }

    #[test]
    fn it_ends_off_whoever_was_interrupted() {
        let (file, expedite) = switch("0\n");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        if expedite.begin() {
                            expedite.end();
                        }
                    }
                });
            }
        });
        assert_eq!(state(&file), '0');
        // One that is dropped while it is on.
        assert!(expedite.begin());
        drop(expedite);
        assert_eq!(state(&file), '0');
    }
}
