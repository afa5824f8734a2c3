//! A run of the agent whose lines are taken with the time at which they appeared.

use crate::durations::truth::now_ns;
use crate::process::{die_with_us, tail};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What the agent may take after it was told to end: the last rows, symbols.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A line of the agent.
#[derive(Clone, Debug)]
pub struct Line {
    /// When it appeared, ktime ns.
    pub at_ns: u64,
    /// The line.
    pub text: String,
}

/// The running agent. Killed and reaped on drop.
pub struct Agent {
    child: Child,
    incoming: Receiver<Line>,
    lines: Vec<Line>,
}

impl Agent {
    /// Starts `tithe record --pid PID` with these arguments; the recording goes to `output`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(agent: &Path, pid: u32, arguments: &[String], output: &Path) -> Result<Agent> {
        let mut command = Command::new(agent);
        die_with_us(&mut command, libc::SIGINT);
        let mut child = command
            .args(["record", "--pid", &pid.to_string(), "--force", "-o"])
            .arg(output)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", agent.display()))?;
        let errors = child.stderr.take().context("stderr was piped")?;
        let (sender, incoming) = channel();
        // Ends with the agent's output, or when nobody listens.
        std::thread::spawn(move || {
            for line in BufReader::new(errors).split(b'\n').map_while(Result::ok) {
                let text = String::from_utf8_lossy(&line).into_owned();
                if sender.send(Line { at_ns: now_ns(), text }).is_err() {
                    return;
                }
            }
        });
        Ok(Agent { child, incoming, lines: Vec::new() })
    }

    /// Waits for a line of which `what` says something, and returns that with the line's time.
    ///
    /// # Errors
    ///
    /// If there is none within the limit, or the agent has ended.
    pub fn wait_for<T>(&mut self, what: impl Fn(&str) -> Option<T>, limit: Duration) -> Result<(u64, T)> {
        let end = Instant::now() + limit;
        loop {
            match self.incoming.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let (at_ns, found) = (line.at_ns, what(&line.text));
                    self.lines.push(line);
                    if let Some(found) = found {
                        return Ok((at_ns, found));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the agent did not say it within {limit:?}: {}", self.said())
                }
                Err(RecvTimeoutError::Disconnected) => bail!("the agent has ended: {}", self.said()),
            }
        }
    }

    /// Lets it run for so long.
    ///
    /// # Errors
    ///
    /// If it has failed meanwhile.
    pub fn sleep(&mut self, length: Duration) -> Result<()> {
        std::thread::sleep(length);
        match self.child.try_wait()? {
            Some(status) if !status.success() => {
                self.lines.extend(self.incoming.try_iter());
                bail!("the agent ended with {status}: {}", self.said())
            }
            _ => Ok(()),
        }
    }

    /// An error if it has ended, however it did.
    ///
    /// # Errors
    ///
    /// As said.
    pub fn ensure_runs(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        self.lines.extend(self.incoming.try_iter());
        bail!("the agent ended with {status}: {}", self.said())
    }

    /// Tells it to end, as Ctrl-C does.
    pub fn interrupt(&self) {
        // The child has not been reaped, so that the pid is its own. One that has ended is found by `finish`.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
    }

    /// Waits for its end with exit status 0, and returns its lines.
    ///
    /// # Errors
    ///
    /// If it goes on, or failed.
    pub fn finish(mut self) -> Result<Vec<Line>> {
        let end = Instant::now() + END_LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < end, "the agent did not end within {END_LIMIT:?}: {}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        };
        // Its output has ended with it.
        while let Ok(line) = self.incoming.recv_timeout(Duration::from_secs(2)) {
            self.lines.push(line);
        }
        ensure!(status.success(), "the agent ended with {status}: {}", self.said());
        Ok(std::mem::take(&mut self.lines))
    }

    fn said(&self) -> String {
        tail(&self.lines.iter().map(|line| line.text.as_str()).collect::<Vec<&str>>().join("\n"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Both fail only if it has ended and been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in the agent's place.
    fn started(folder: &Path, script: &str) -> Agent {
        // Each in a folder of its own: the shell of an earlier one may not have read its script yet.
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let folder = folder.join(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string());
        std::fs::create_dir(&folder).unwrap();
        let agent = folder.join("agent");
        std::fs::write(&agent, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&agent, mode).unwrap();
        // A shell traps no signal that was ignored when it began, as in what another shell runs in the background.
        // SAFETY: no handler is replaced, and an interrupt ends tests anyhow.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        Agent::start(&agent, 1, &[], &folder.join("out")).unwrap()
    }

    #[test]
    fn lines_have_their_times_and_an_interrupted_agent_ends_well() {
        let folder = tempfile::tempdir().unwrap();
        let script =
            "trap 'echo over >&2; exit 0' INT; echo one >&2; echo two >&2; while :; do sleep 0.05; done";
        let begin = now_ns();
        let mut agent = started(folder.path(), script);
        let (at_ns, length) =
            agent.wait_for(|line| (line == "two").then_some(line.len()), Duration::from_secs(20)).unwrap();
        assert!(at_ns > begin && length == 3);
        agent.interrupt();
        let lines: Vec<String> = agent.finish().unwrap().into_iter().map(|line| line.text).collect();
        assert_eq!(lines, ["one", "two", "over"]);
    }

    #[test]
    fn an_agent_that_fails_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let agent = started(folder.path(), "echo no such process >&2; exit 3");
        let end = Instant::now() + Duration::from_secs(20);
        let mut well = started(folder.path(), "exit 0");
        while well.ensure_runs().is_ok() {
            assert!(Instant::now() < end);
        }
        let error = format!("{:#}", agent.finish().unwrap_err());
        assert!(error.contains("no such process") && error.contains("exit status: 3"), "{error}");
        let mut agent = started(folder.path(), "echo no models >&2");
        let error = agent.wait_for(|_| None::<()>, Duration::from_secs(20)).unwrap_err().to_string();
        assert!(error.contains("has ended: no models"), "{error}");
    }
}
