//! Stops the thread of the agent that writes, and no other: signals stop a process, `ptrace` stops one thread.

use anyhow::{Context, Result, ensure};
use std::io::Error;
use std::path::Path;
use std::ptr::null_mut;
use std::time::Duration;

/// Name of the thread.
const WRITER: &str = "tithe-writer";

/// Stops the writer of the agent for a while. The kernel lets it go on, too, if this thread ends.
///
/// # Errors
///
/// If there is no such thread, or the kernel refuses.
pub fn stop_writer(agent: u32, length: Duration) -> Result<()> {
    stop_named(agent, WRITER, length)
}

fn stop_named(process: u32, name: &str, length: Duration) -> Result<()> {
    let thread = thread_named(process, name)?;
    trace(libc::PTRACE_SEIZE, thread, 0).context("cannot trace the thread")?;
    hold(thread, length).context("cannot stop the thread")
}

/// Stops a thread that this one traces for a while, and lets go of it.
fn hold(thread: libc::pid_t, length: Duration) -> Result<()> {
    let stopped = trace(libc::PTRACE_INTERRUPT, thread, 0).and_then(|()| wait_stopped(thread));
    if matches!(stopped, Ok(0)) {
        std::thread::sleep(length);
    }
    // A signal that it was to get is not ours to keep.
    let signal = *stopped.as_ref().unwrap_or(&0);
    let detached = trace(libc::PTRACE_DETACH, thread, signal);
    stopped.and(detached)?;
    ensure!(signal == 0, "it stopped for signal {signal}");
    Ok(())
}

fn thread_named(process: u32, name: &str) -> Result<libc::pid_t> {
    let tasks = Path::new("/proc").join(process.to_string()).join("task");
    for task in std::fs::read_dir(&tasks).with_context(|| tasks.display().to_string())? {
        let path = task?.path();
        // A thread that has just ended has no name.
        let its = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        if its.trim_end() == name {
            let number = path.file_name().and_then(|number| number.to_str());
            return number.and_then(|number| number.parse().ok()).context("a thread has no number");
        }
    }
    anyhow::bail!("process {process} has no thread {name}")
}

/// `number`: a signal to hand on, or 0.
fn trace(request: libc::c_uint, thread: libc::pid_t, number: libc::c_int) -> Result<()> {
    // SAFETY: these requests take no memory of ours; a thread that is gone is an error.
    let result = unsafe { libc::ptrace(request, thread, null_mut::<u8>(), libc::c_long::from(number)) };
    ensure!(result == 0, "ptrace: {}", Error::last_os_error());
    Ok(())
}

/// The signal for which it has stopped; 0: none, we have stopped it.
fn wait_stopped(thread: libc::pid_t) -> Result<libc::c_int> {
    let mut status = 0;
    // SAFETY: `status` is ours.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    ensure!(waited == thread, "waitpid: {}", Error::last_os_error());
    ensure!(libc::WIFSTOPPED(status), "it has ended");
    match status >> 16 {
        libc::PTRACE_EVENT_STOP => Ok(0),
        0 => Ok(libc::WSTOPSIG(status)),
        _ => anyhow::bail!("it stopped for something else, status {status:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::Instant;

    fn state(process: u32) -> Option<char> {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        text.rsplit(") ").next()?.chars().next()
    }

    fn wait_state(process: u32, wanted: char) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            if state(process) == Some(wanted) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Before that it is this program.
    fn wait_named(process: u32, name: &str) -> bool {
        (0..5_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            thread_named(process, name).is_ok()
        })
    }

    #[test]
    fn a_thread_is_stopped_for_a_while_and_goes_on() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = child.id();
        let is_there = wait_named(id, "sleep");
        let stopping = std::thread::spawn(move || stop_named(id, "sleep", Duration::from_millis(200)));
        let was_stopped = wait_state(id, 't');
        let stopped = stopping.join().unwrap();
        let goes_on = wait_state(id, 'S');
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_there && was_stopped && goes_on, "{stopped:?}");
        stopped.unwrap();
        assert!(stop_writer(id, Duration::ZERO).is_err(), "it is gone");
    }

    #[test]
    fn a_signal_that_comes_meanwhile_is_handed_on() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = child.id();
        let is_there = wait_named(id, "sleep");
        let thread = id.cast_signed();
        trace(libc::PTRACE_SEIZE, thread, 0).unwrap();
        // SAFETY: the child is ours and was not waited for.
        let sent = unsafe { libc::kill(thread, libc::SIGTERM) };
        let was_stopped = wait_state(id, 't');
        let held = hold(thread, Duration::ZERO);
        let begun = Instant::now();
        let mut ended = None;
        while ended.is_none() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
            ended = child.try_wait().unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_there && sent == 0 && was_stopped);
        assert_eq!(ended.and_then(|status| status.signal()), Some(libc::SIGTERM));
        assert!(held.unwrap_err().to_string().contains("signal 15"));
    }
}
