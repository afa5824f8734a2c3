//! Entry and return of a function as events of perf: `perf probe -x` makes them, `perf record` or `perf stat` watches them.
//!
//! perf wants tracefs. It gets one in a mount namespace of its own, so that the machine's mounts stay what they are. The events are of
//! the whole kernel: they have a name with our pid, and are taken away on drop.

use crate::scratch;
use crate::watch::interrupt;
use anyhow::{Context, Result, bail, ensure};
use profiler_tests::support::Target;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Of each CPU, so that no event of an arm is lost: some 100,000 of 70 bytes.
const BUFFER: &str = "16M";
/// Calls of a trial.
const TRIED: u64 = 10;

fn perf() -> Command {
    let mut command = Command::new("perf");
    let own_tracefs = || {
        let none = std::ptr::null();
        // SAFETY: the texts end in zero and outlive the calls; other pointers may be null.
        let made = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
                && libc::mount(
                    c"tracefs".as_ptr(),
                    c"/sys/kernel/tracing".as_ptr(),
                    c"tracefs".as_ptr(),
                    0,
                    none.cast(),
                ) == 0
        };
        let error = std::io::Error::last_os_error();
        // Busy: it is there already.
        if made || error.raw_os_error() == Some(libc::EBUSY) { Ok(()) } else { Err(error) }
    };
    // SAFETY: the closure makes system calls only.
    unsafe { command.pre_exec(own_tracefs) };
    command.stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Result<()> {
    let output = perf().args(arguments).output().context("perf does not start with a tracefs")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = said.split_whitespace().collect();
    ensure!(output.status.success(), "perf {}: {}", arguments.join(" "), said.join(" "));
    Ok(())
}

/// The events of a function.
pub struct Events {
    path: PathBuf,
    function: String,
    group: String,
}

impl Events {
    /// Makes them, and tries them on a target.
    ///
    /// # Errors
    ///
    /// If there is no perf, or the kernel has no such events.
    pub fn add(target: &mut Target, path: &Path, function: &str) -> Result<Events> {
        let group = format!("tithe_bench_{}", std::process::id());
        let events = Events { path: path.to_path_buf(), function: function.to_owned(), group };
        let file = path.to_string_lossy();
        run(&["probe", "-x", &file, "--add", &format!("{}:begin={function}", events.group)])?;
        run(&["probe", "-x", &file, "--add", &format!("{}:end={function}%return", events.group)])?;
        let perf = Perf::start(&events, target, Use::Count)?;
        // A program that does not run is not counted.
        target.call(function, TRIED, 1);
        let seen = perf.finish()?;
        ensure!(seen == 2 * TRIED, "perf saw {seen} events of {TRIED} calls of {function}");
        Ok(events)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Err(error) = run(&["probe", "--del", &format!("{}:*", self.group)]) {
            eprintln!("events of {} in {} stay: {error:#}", self.function, self.path.display());
        }
    }
}

/// What perf does with the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Writes each down: durations are what `perf script` is good for, afterwards.
    Record,
    /// Counts: no duration is to be had.
    Count,
}

/// A perf that watches.
pub struct Perf {
    child: Child,
    what: Use,
    /// Of `perf record`.
    _data: TempDir,
}

impl Perf {
    /// Watches the events in a target, and waits until the breakpoint stands.
    pub fn start(events: &Events, target: &mut Target, what: Use) -> Result<Perf> {
        let original = target.function_bytes(&events.function, 1);
        let scratch = scratch::in_memory()?;
        let data = scratch.path().join("perf.data");
        let mut command = perf();
        match what {
            Use::Record => command.args(["record", "-m", BUFFER, "-o"]).arg(&data),
            Use::Count => command.args(["stat", "-x,"]),
        };
        let child = command
            .args([
                "-e",
                &format!("{0}:begin,{0}:end__return", events.group),
                "-p",
                &target.pid().to_string(),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start perf")?;
        let mut perf = Perf { child, what, _data: scratch };
        let end = Instant::now() + Duration::from_secs(20);
        while target.function_bytes(&events.function, 1) == original {
            ensure!(Instant::now() < end, "perf did not attach within 20 s");
            if perf.child.try_wait()?.is_some() {
                bail!("perf has ended: {}", perf.said()?);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // The events come after the breakpoint, one after the other.
        std::thread::sleep(Duration::from_millis(500));
        Ok(perf)
    }

    fn said(&mut self) -> Result<String> {
        let mut text = String::new();
        self.child.stderr.take().context("no standard error of perf")?.read_to_string(&mut text)?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Ends it: entries and returns that it saw.
    pub fn finish(mut self) -> Result<u64> {
        interrupt(&self.child);
        let text = self.said()?;
        self.child.wait()?;
        let seen = match self.what {
            Use::Record => recorded(&text),
            Use::Count => counted(&text),
        };
        seen.with_context(|| format!("perf said no number of events: {text}"))
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            interrupt(&self.child);
        }
        // Fails only if it has been reaped.
        let _ = self.child.wait();
    }
}

/// `[ perf record: Captured and wrote 0.162 MB x.data (2000 samples) ]`
fn recorded(text: &str) -> Option<u64> {
    text.rsplit_once(" samples)")?.0.rsplit('(').next()?.parse().ok()
}

/// `1000,,GROUP:begin,1010470,100.00,,` for each event.
fn counted(text: &str) -> Option<u64> {
    let counts: Vec<u64> =
        text.split_whitespace().filter_map(|line| line.split_once(",,")?.0.trim().parse().ok()).collect();
    (counts.len() == 2).then(|| counts.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted_from_the_last_line() {
        let said = "[ perf record: Woken up 1 times to write data ]\n[ perf record: Captured and wrote 0.162 MB a (b).data (2000 samples) ]\n";
        assert_eq!(recorded(said), Some(2_000));
        assert_eq!(recorded("Failed to open"), None);
    }

    #[test]
    fn both_events_are_counted() {
        let said = "1000,,g:begin,1010470,100.00,,\n999,,g:end__return,1010470,100.00,,\n";
        assert_eq!(counted(said), Some(1_999));
        assert_eq!(counted("1000,,g:begin,1010470,100.00,,\n<not counted>,,g:end__return,0,0.00,,\n"), None);
    }
}
