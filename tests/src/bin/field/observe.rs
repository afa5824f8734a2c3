//! One run of the agent on a process, with a hard time limit, and what its report says.

use crate::place::text_of;
use crate::process::{descendants, die_with_us, tail};
use crate::program::Mode;
use anyhow::{Context, Result};
use profiler_core::report::{Report, Row};
use profiler_tests::support::changed_text;
use profiler_user::inspect::Pattern;
use rustix::process::{Pid, Signal, kill_process};
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
    /// Calls of the functions named by `--latency` that were seen. `None`: none was named, or an older record.
    #[serde(default)]
    pub named_hits: Option<u64>,
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
        observation.named_hits = named_hits(mode, report);
    }
    Ok((observation, report))
}

impl Observation {
    /// Why it has seen nothing, if so. Operations may be system calls, which need no breakpoint.
    pub fn blind(&self, mode: &str) -> Option<String> {
        match (mode, self.named_hits) {
            ("operation", _) if self.operations == 0 => Some("it counted no operation".to_owned()),
            ("latency", Some(0)) => Some("it saw no call of the functions that were named".to_owned()),
            ("operation", _) => None,
            _ if self.hits == 0 => Some("it saw no call of any function".to_owned()),
            _ => None,
        }
    }

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

/// Calls that were seen of the functions that `--latency` names; `None`: it names none.
fn named_hits(mode: &Mode, report: &Report) -> Option<u64> {
    let named = mode.arguments.windows(2).filter(|pair| pair[0] == "--latency");
    let patterns: Vec<Pattern> = named.filter_map(|pair| Pattern::parse(&pair[1]).ok()).collect();
    let is_named =
        |row: &&Row| patterns.iter().any(|p| p.matches_symbol(&row.name) && p.matches_module(&row.module));
    let hits = report.rows.iter().filter(is_named).map(|row| row.attempted).sum();
    (!patterns.is_empty()).then_some(hits)
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
            // The child has not been reaped, so that the pid is its own. OK because the next round sees its end.
            let _ = kill_process(Pid::from_child(child), Signal::INT);
            told = true;
        }
        if Instant::now() > end + Duration::from_secs(15) {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How long the agent's breakpoints may stay after its end.
pub const LEFT_LIMIT: Duration = Duration::from_secs(2);

/// Where the text of a process, or of one below it, is not that of its files any more after `limit`. Of those that have
/// gone there is nothing.
///
/// # Errors
///
/// If the text of one that still runs cannot be compared.
pub fn left_behind(pid: u32, limit: Duration) -> Result<Vec<String>> {
    let end = Instant::now() + limit;
    loop {
        let mut left = Vec::new();
        let mut unknown = None;
        // Children inherit breakpoints.
        for pid in [pid].into_iter().chain(descendants(pid)) {
            match changed_text(pid) {
                Ok(changes) => left.extend(changes.into_iter().map(|change| format!("{pid}: {change}"))),
                Err(_) if !Path::new(&format!("/proc/{pid}/exe")).exists() => {}
                Err(error) => unknown = Some(anyhow::Error::new(error).context(format!("text of {pid}"))),
            }
        }
        match unknown {
            None if left.is_empty() => return Ok(left),
            _ if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
            Some(error) if left.is_empty() => return Err(error),
            _ => return Ok(left),
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

    #[test]
    fn an_agent_that_saw_nothing_is_blind() {
        let seen =
            |hits, named_hits, operations| Observation { hits, named_hits, operations, ..Default::default() };
        assert_eq!(seen(1, None, 0).blind("5%"), None);
        assert!(seen(0, None, 0).blind("5%").unwrap().contains("any function"));
        assert!(seen(9, Some(0), 0).blind("latency").unwrap().contains("named"));
        assert_eq!(seen(9, Some(3), 0).blind("latency"), None);
        assert_eq!(seen(9, None, 0).blind("latency"), None, "an older record");
        assert!(seen(9, None, 0).blind("operation").unwrap().contains("operation"));
        assert_eq!(seen(0, None, 5).blind("operation"), None, "system calls");
    }

    /// A shell, and `sleep` that runs below it.
    #[expect(clippy::zombie_processes, reason = "a test that fails here ends with its processes")]
    fn family() -> (Child, u32) {
        let shell = Command::new("sh").args(["-c", "sleep 600; exit"]).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(&child) = descendants(shell.id()).first()
                && text_of(Path::new(&format!("/proc/{child}/comm"))).starts_with("sleep")
            {
                return (shell, child);
            }
            assert!(Instant::now() < end, "sh started nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_breakpoint_in_a_child_is_left_behind() {
        let (mut shell, child) = family();
        assert_eq!(left_behind(shell.id(), Duration::ZERO).unwrap(), Vec::<String>::new());
        let maps = text_of(Path::new(&format!("/proc/{child}/maps")));
        let text = maps.lines().find(|line| line.contains(" r-xp ") && line.contains("/sleep")).unwrap();
        let start = u64::from_str_radix(text.split_once('-').unwrap().0, 16).unwrap();
        // Past the code that runs.
        let memory = File::options().read(true).write(true).open(format!("/proc/{child}/mem")).unwrap();
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut byte, start).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&memory, &[byte[0] ^ 0xff], start).unwrap();
        let left = left_behind(shell.id(), Duration::ZERO).unwrap();
        // The child sleeps for ten minutes, so that the pid is its own.
        kill_process(Pid::from_raw(child.cast_signed()).unwrap(), Signal::KILL).unwrap();
        shell.wait().unwrap();
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(left[0].starts_with(&format!("{child}: ")), "{left:?}");
        assert!(left_behind(shell.id(), Duration::ZERO).unwrap().is_empty(), "it has gone");
    }

    /// Maps a page of this file to run it, also for writing.
    fn mapped(file: &File) -> *mut u8 {
        use std::os::fd::AsRawFd;
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let page =
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        assert_ne!(page, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        page.cast()
    }

    #[test]
    fn a_mapping_that_cannot_be_read_does_not_hide_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let page_of = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, [0x90; 4096]).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let page = mapped(&file);
            std::fs::remove_file(&path).unwrap();
            (file, page)
        };
        let (cut, _unreadable) = page_of("cut");
        cut.set_len(0).unwrap();
        let (_whole, page) = page_of("whole");
        let me = std::process::id();
        assert_eq!(changed_text(me).unwrap(), Vec::<String>::new());
        // SAFETY: the page was mapped for writing above, and is nowhere else.
        unsafe { page.write(0xcc) };
        let changes = changed_text(me).unwrap();
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert!(changes[0].ends_with("whole+0x0: 0x90 is 0xcc"), "{changes:?}");
    }
}
