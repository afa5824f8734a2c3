//! `--on-cycle`: a command of the user's for each sample that is complete.

use crate::target::LaunchUser;
use profiler_core::recording::{OperationCycleEnd, OperationCycleRow};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Runs the command, one at a time.
#[derive(Debug)]
pub struct CycleHook {
    command: String,
    user: Option<LaunchUser>,
    recording: PathBuf,
    running: Option<Child>,
    /// Cycles that ended while the command was still running for an earlier one.
    pub skipped: u64,
}

impl CycleHook {
    /// A hook that runs `command` in a shell as `user` (`None`: as we are).
    #[must_use]
    pub fn new(command: String, user: Option<LaunchUser>, recording: &Path) -> Self {
        Self { command, user, recording: recording.to_owned(), running: None, skipped: 0 }
    }

    /// Starts it for a cycle, unless it still runs for another. Returns what the user should know.
    pub fn run(&mut self, operation: &str, row: &OperationCycleRow) -> Option<String> {
        let note = self.poll();
        if self.running.is_some() {
            self.skipped += 1;
            return note;
        }
        let end = match row.end {
            OperationCycleEnd::Representative => "representative",
            OperationCycleEnd::Timeout => "timeout",
            OperationCycleEnd::RunEnd => "run_end",
        };
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &self.command])
            .env("TITHE_OPERATION", operation)
            .env("TITHE_CYCLE", row.number.to_string())
            .env("TITHE_END", end)
            .env("TITHE_LENGTH_S", format!("{:.3}", row.end_ns.saturating_sub(row.start_ns) as f64 * 1e-9))
            .env("TITHE_POPULATION", row.population.to_string())
            .env("TITHE_SAMPLE", row.sample.to_string())
            .env("TITHE_Z", format!("{:.4}", row.z))
            .env("TITHE_UNOBSERVED", row.unobserved.len().to_string())
            .env("TITHE_RECORDING", &self.recording)
            .stdin(Stdio::null())
            // Standard output is the report's.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        if let Some(user) = &self.user {
            // The standard library clears the other groups when root sets a user.
            command.uid(user.uid).gid(user.gid).env("HOME", &user.home).env("USER", &user.name);
        }
        match command.spawn() {
            Ok(child) => {
                self.running = Some(child);
                note
            }
            Err(error) => Some(format!("--on-cycle: cannot run '{}': {error}", self.command)),
        }
    }

    /// Collects it when it has ended. Returns what the user should know.
    pub fn poll(&mut self) -> Option<String> {
        let child = self.running.as_mut()?;
        match child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => {
                self.running = None;
                (!status.success()).then(|| format!("--on-cycle: '{}' ended with {status}", self.command))
            }
            Err(error) => {
                self.running = None;
                Some(format!("--on-cycle: '{}': {error}", self.command))
            }
        }
    }
}
