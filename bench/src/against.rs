//! This build of the agent against another one (`--only against:PATH`): time to the first output and to the first
//! sampled second, price of a sample, CPU time and memory, on SQLite under load.

use crate::Options;
use crate::demo::Load;
use crate::measure::{Series, Table};
use crate::scratch;
use anyhow::{Context, Result, ensure};
use profiler_core::cost::CostModel;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::time::Instant;

/// Length of a watched stretch, s.
const STRETCH_S: u64 = 6;
/// Stack that a sample copies, KiB.
const SAMPLE_KIB: f64 = 8.0;
/// Begin of the live line that shows the first second's figures.
const FIRST_SECOND: &str = " 1 s: ";

/// What one run of one agent shows.
struct Run {
    first_output_s: f64,
    first_second_s: f64,
    cpu_s: f64,
    resident_mib: f64,
    sample_us: f64,
}

/// The cell.
pub fn against(options: &Options) -> Result<String> {
    let Some(other) = &options.part else {
        return Ok("SKIP: name the other agent's program: --only against:PATH\n".to_owned());
    };
    let agents = [profiler_tests::program("tithe"), PathBuf::from(other)];
    for agent in &agents {
        ensure!(agent.is_file(), "{} is no file", agent.display());
    }
    let scratch = scratch::new()?;
    let load = Load::start()?;
    // Fills each agent's cache of prices, which a first run of the day pays for.
    for agent in &agents {
        watched(agent, &load, scratch.path())?;
    }
    let mut figures: [[Series; 5]; 2] = Default::default();
    for round in 0..options.rounds as usize {
        for turn in 0..2 {
            let arm = (round + turn) % 2;
            let run = watched(&agents[arm], &load, scratch.path())?;
            let values = [
                run.first_output_s * 1e3,
                run.first_second_s * 1e3,
                run.sample_us,
                run.cpu_s,
                run.resident_mib,
            ];
            for (series, value) in figures[arm].iter_mut().zip(values) {
                series.push(value);
            }
        }
    }
    drop(load);
    let [ours, others] = &figures;
    let mut table = Table::new(&["figure", "this build", "the other", "ratio [95 %]", "n"]);
    let names = [
        "time to the first output, ms".to_owned(),
        "time to the first second's figures, ms".to_owned(),
        format!("price of a sample with {SAMPLE_KIB} KiB of stack, us"),
        format!("CPU time of the agent, run of {STRETCH_S} s, s"),
        "memory of the agent, most, MiB".to_owned(),
    ];
    for (name, (a, b)) in names.into_iter().zip(ours.iter().zip(others)) {
        table.row(&[name, a.show(2), b.show(2), a.over(b).show_geometric(), a.n().to_string()]);
    }
    Ok(format!("{table}\nRatios are paired within rounds: geometric mean [95 %].\n"))
}

/// Calibrates once, and watches the load once with those prices.
fn watched(agent: &Path, load: &Load, folder: &Path) -> Result<Run> {
    // The stored prices are the other build's, whose version differs: a run would ignore them and calibrate first.
    let output = Command::new(agent)
        .args(["calibrate", "--format", "json"])
        .output()
        .with_context(|| format!("cannot start {}", agent.display()))?;
    ensure!(output.status.success(), "calibrate failed: {}", String::from_utf8_lossy(&output.stderr));
    let prices: CostModel = serde_json::from_slice(&output.stdout)?;

    // The live line is shown on a terminal only.
    let (mut terminal, slave) = terminal()?;
    let begin = Instant::now();
    let child = Command::new(agent)
        .args(["record", "--pid", &load.pid().to_string(), "--budget", "2%", "--force"])
        .args(["--duration", &format!("{STRETCH_S}s"), "-o"])
        .arg(folder.join("run.tithe"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(slave)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", agent.display()))?;
    let mut text = String::new();
    let (mut first_output_s, mut first_second_s) = (None, None);
    let mut buffer = [0; 4096];
    // A terminal whose last writer has gone gives EIO, not the end of a file.
    while let Ok(length @ 1..) = terminal.read(&mut buffer) {
        let now = begin.elapsed().as_secs_f64();
        text.push_str(&String::from_utf8_lossy(&buffer[..length]));
        first_output_s.get_or_insert(now);
        if first_second_s.is_none() && text.contains(FIRST_SECOND) {
            first_second_s = Some(now);
        }
    }
    let (status, usage) = wait(child.id())?;
    ensure!(status == 0, "{} ended with {status:#x}: {text}", agent.display());
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(Run {
        first_output_s: first_output_s.with_context(|| format!("no output: {text}"))?,
        first_second_s: first_second_s.with_context(|| format!("no figures of the first second: {text}"))?,
        cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        resident_mib: usage.ru_maxrss as f64 / 1024.0,
        sample_us: (prices.sample_base.ns + SAMPLE_KIB * prices.sample_per_kib.ns) / 1e3,
    })
}

/// A new terminal: our end, and the end for the agent.
fn terminal() -> Result<(File, OwnedFd)> {
    let (mut ours, mut agents) = (-1, -1);
    // SAFETY: the kernel writes both descriptors; name, settings and size may be null.
    let made = unsafe {
        libc::openpty(&raw mut ours, &raw mut agents, null_mut(), std::ptr::null(), std::ptr::null())
    };
    ensure!(made == 0, "openpty: {}", std::io::Error::last_os_error());
    // SAFETY: both are new descriptors, and no one else's.
    let (ours, agents) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(agents)) };
    // The agent must not hold our end.
    // SAFETY: fcntl on a descriptor that we own.
    let set = unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    ensure!(set == 0, "fcntl: {}", std::io::Error::last_os_error());
    Ok((File::from(ours), agents))
}

/// Reaps a child: its status and what it used.
fn wait(pid: u32) -> Result<(i32, libc::rusage)> {
    let mut status = 0;
    // SAFETY: rusage is plain numbers; the kernel writes both variables, which are ours.
    let (reaped, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(pid as libc::pid_t, &raw mut status, 0, &raw mut usage), usage)
    };
    ensure!(reaped == pid as libc::pid_t, "wait4: {}", std::io::Error::last_os_error());
    Ok((status, usage))
}
