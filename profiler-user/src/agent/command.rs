//! The end of a command that we launched. It ends as the run ended; a program that shuts down in its own time is not cut
//! short.
//!
//! ```text
//! it ends by itself ────────────────────────────────────────────────────► its status
//! Ctrl-C ─ the terminal tells it (else we do) ─ 10 s, or Ctrl-C again ─► SIGTERM ─ 3 s, or Ctrl-C again ─► it goes on
//! --duration, SIGTERM to us ───────────────────────────────────────────► SIGTERM ─ 3 s ─► it goes on
//! ```
//! Nothing is attached to it any more while it is waited for.

use super::{Agent, EndReason};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// So long a command may take to end by itself after Ctrl-C.
const INTERRUPT_GRACE: Duration = Duration::from_secs(10);
/// A command that ends within this time is waited for without a word.
const SILENT: Duration = Duration::from_millis(300);
/// So long a command is waited for after our SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(3);

/// Interrupts since [`count_interrupts`].
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

extern "C" fn interrupted(_signal: libc::c_int) {
    INTERRUPTS.fetch_add(1, Ordering::Relaxed);
}

/// From now on Ctrl-C is counted and does nothing else. After the event loop, which catches it while it runs.
pub(super) fn count_interrupts() {
    let handler: extern "C" fn(libc::c_int) = interrupted;
    // SAFETY: the handler only adds to an atomic, which a signal handler may do.
    unsafe { libc::signal(libc::SIGINT, handler as libc::sighandler_t) };
}

/// There was a Ctrl-C since.
pub(super) fn is_interrupted() -> bool {
    INTERRUPTS.load(Ordering::Relaxed) > 0
}

impl Agent {
    /// Ends the command as the run ended, waits for it a while, and returns its exit status as `env` and the shell give
    /// it: 128 + n for signal n. `None`: there is no command, or it goes on.
    pub(super) fn end_command(&mut self, reason: Option<EndReason>) -> Option<u8> {
        let mut child = self.child.take()?;
        let id = child.id();
        let status = match reason {
            Some(EndReason::TargetExited) => wait(&mut child, END_LIMIT, u32::MAX),
            Some(EndReason::Interrupted) => self.after_interrupt(&mut child),
            Some(EndReason::Duration | EndReason::Terminated) | None => wait(&mut child, Duration::ZERO, 0),
        };
        if let Some(status) = status {
            return Some(code(status));
        }
        if reason.is_none() {
            // We failed, and the command has not.
            self.journal.progress.note(&format!("the command goes on as process {id}"));
            return None;
        }
        let interrupts = INTERRUPTS.load(Ordering::Relaxed);
        send(&child, libc::SIGTERM);
        let Some(status) = wait(&mut child, END_LIMIT, interrupts) else {
            self.journal
                .progress
                .note(&format!("the command goes on as process {id}: it has not ended on SIGTERM"));
            return None;
        };
        // Ended by us, at the time that the user named: that is success.
        let asked = reason == Some(EndReason::Duration) && status.signal() == Some(libc::SIGTERM);
        Some(if asked { 0 } else { code(status) })
    }

    /// The run was interrupted, and so was the command, by the terminal or now by us: what it does about it is its own
    /// business for a while.
    fn after_interrupt(&self, child: &mut Child) -> Option<ExitStatus> {
        if !terminal_tells_all() {
            send(child, libc::SIGINT);
        }
        if let Some(status) = wait(child, SILENT, 0) {
            return Some(status);
        }
        let (id, limit) = (child.id(), INTERRUPT_GRACE.as_secs());
        self.journal.progress.note(&format!(
            "nothing is traced any more; waiting up to {limit} s for the command (process {id}) to end, which was interrupted, \
             too; Ctrl-C again sends it SIGTERM"
        ));
        let status = wait(child, INTERRUPT_GRACE, 0);
        if status.is_none() {
            self.journal.progress.note(&format!("the command (process {id}) gets SIGTERM"));
        }
        status
    }
}

/// Whether a Ctrl-C at our terminal goes to the command as well: it is in our process group, and that is the terminal's.
fn terminal_tells_all() -> bool {
    let Ok(terminal) = File::open("/dev/tty") else { return false };
    // SAFETY: both take no memory; the descriptor is open.
    unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) == libc::getpgrp() }
}

fn send(child: &Child, signal: libc::c_int) {
    // A process that we have not waited for keeps its number.
    if let Ok(pid) = i32::try_from(child.id()) {
        // SAFETY: kill takes integers; the child is ours and not collected.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Waits for its end, at most so long, or until there are more than so many interrupts.
fn wait(child: &mut Child, limit: Duration, interrupts: u32) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        // An error means that somebody else has collected it: its status is lost.
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begun.elapsed() >= limit => return None,
            Ok(None) if INTERRUPTS.load(Ordering::Relaxed) > interrupts => return None,
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(_) => return None,
        }
    }
}

/// Exit status for the shell.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    // OK because exit codes are bytes and signals are below 65.
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::code;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn exit_statuses_are_those_of_the_shell() {
        // wait(2): the code in the second byte, the signal in the first.
        assert_eq!(code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code(ExitStatus::from_raw(libc::SIGTERM)), 143);
        assert_eq!(code(ExitStatus::from_raw(0)), 0);
    }
}
