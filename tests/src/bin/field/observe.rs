//! One run of the agent on a process, with a hard time limit, and what its report says.

use crate::place::text_of;
use crate::process::{die_with_us, tail};
use crate::program::Mode;
use anyhow::{Context, Result};
use profiler_core::report::Report;
use profiler_tests::support::changed_text;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What the agent may take beside the run itself: calibration, symbols, the report.
const BESIDE: Duration = Duration::from_secs(60);

/// How a run of the agent went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Observation {
    /// Its exit status, in words.
    pub status: String,
    /// Why it counts as failed, if it does.
    pub failed: Option<String>,
    /// From its start to its end, s.
    pub took_s: f64,
    /// Time of the run that the report covers, s.
    pub covered_s: f64,
    /// Predicted overhead.
    pub predicted: f64,
    /// Largest overhead of any one second.
    pub worst_second: f64,
    /// Functions that were hit while attached.
    pub traced: usize,
    /// Calls that were seen.
    pub hits: u64,
    /// Operations that were counted.
    pub operations: u64,
    /// The agent's CPU time over run time.
    pub agent_cpu: f64,
    /// What it refused or warned of.
    pub remarks: Vec<String>,
}

/// Kills and reaps the agent on drop.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // Both fail only if it has ended and been reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Watches a process for so many seconds. The recording and the report are left in `folder`.
///
/// # Errors
///
/// If the agent cannot be started. That it failed is in the observation.
pub fn observe(
    agent: &Path,
    pid: u32,
    mode: &Mode,
    seconds: f64,
    folder: &Path,
) -> Result<(Observation, Option<Report>)> {
    let (report, log) = (folder.join("report.json"), folder.join("tithe.log"));
    let start = Instant::now();
    let mut command = Command::new(agent);
    die_with_us(&mut command, libc::SIGINT);
    let child = command
        .args(["record", "--pid", &pid.to_string(), "--duration", &format!("{seconds}s")])
        .args(["--format", "json", "--rows", "200", "--force", "-o"])
        .arg(folder.join("run.tithe"))
        .args(&mode.arguments)
        .stdin(Stdio::null())
        .stdout(File::create(&report)?)
        .stderr(File::create(&log)?)
        .spawn()
        .with_context(|| format!("cannot start {}", agent.display()))?;
    let mut agent = Agent(child);
    let limit = Duration::from_secs_f64(seconds) + BESIDE;
    let status = wait(&mut agent.0, limit)?;
    let messages = text_of(&log);
    let mut observation = Observation { took_s: start.elapsed().as_secs_f64(), ..Observation::default() };
    let report: Option<Report> = serde_json::from_str(&text_of(&report)).ok();
    match status {
        None => observation.failed = Some(format!("it did not end within {limit:?}: {}", tail(&messages))),
        Some(status) => {
            observation.status = status.to_string();
            if !status.success() {
                observation.failed = Some(format!("{status}: {}", tail(&messages)));
            } else if report.is_none() {
                observation.failed = Some(format!("no report: {}", tail(&messages)));
            }
        }
    }
    if let Some(report) = &report {
        observation.read(report);
    }
    Ok((observation, report))
}

impl Observation {
    fn read(&mut self, report: &Report) {
        let receipt = &report.receipt;
        self.covered_s = report.duration_s;
        self.predicted = receipt.predicted;
        self.worst_second = receipt.worst_second;
        self.traced = report.rows.iter().filter(|row| row.attempted > 0).count();
        self.hits = receipt.hits_attempted;
        self.operations = report.operations.iter().map(|operation| operation.population).sum();
        self.agent_cpu = receipt.agent_cpu;
        self.remarks.clone_from(&report.warnings);
        self.remarks.extend(receipt.not_observed.iter().map(|what| format!("{}: {}", what.what, what.why)));
    }
}

/// `None`: it went on for longer than `limit`, also after Ctrl-C.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            // One that had to be told has failed, whatever it says.
            return Ok((!told).then_some(status));
        }
        if Instant::now() > end && !told {
            // SAFETY: kill takes plain numbers; the child has not been reaped, so that the pid is its own.
            unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
            told = true;
        }
        if Instant::now() > end + Duration::from_secs(15) {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where the process's text is not that of its files any more, two seconds after the agent's end; nothing if it has gone.
pub fn left_behind(pid: u32) -> Option<String> {
    let end = Instant::now() + Duration::from_secs(2);
    loop {
        match changed_text(pid) {
            Ok(changes) if changes.is_empty() => return None,
            // Ended, or a mapping that went meanwhile.
            Err(_) => return None,
            Ok(changes) if Instant::now() > end => return Some(changes.join(", ")),
            Ok(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in the agent's place.
    fn observed(script: &str) -> Observation {
        let folder = tempfile::tempdir().unwrap();
        let agent = folder.path().join("agent");
        std::fs::write(&agent, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&agent, mode).unwrap();
        observe(&agent, 1, &Mode::plain("5%"), 0.1, folder.path()).unwrap().0
    }

    #[test]
    fn an_agent_that_fails_or_prints_no_report_has_failed() {
        let failed = observed("echo no such process >&2; exit 3").failed.unwrap();
        assert!(failed.contains("exit status: 3") && failed.contains("no such process"), "{failed}");
        let failed = observed("echo '{}'").failed.unwrap();
        assert!(failed.starts_with("no report"), "{failed}");
    }
}
