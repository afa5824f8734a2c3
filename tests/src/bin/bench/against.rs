//! This build of the agent against another one (`--only against:PATH`): time to the first output and to the first
//! sampled second, price of a sample, CPU time and memory, on SQLite under load.

use crate::Options;
use crate::demo::Load;
use crate::measure::{Series, Table};
use anyhow::{Context, Result, ensure};
use profiler_core::cost::CostModel;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Length of a watched stretch, s.
const STRETCH_S: u64 = 6;
/// Stack that a sample copies, KiB.
const SAMPLE_KIB: f64 = 8.0;

/// What one run of one agent shows.
struct Run {
    first_output_s: f64,
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
    let folder = std::env::temp_dir().join(format!("tithe-bench-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let load = Load::start()?;
    // Fills each agent's cache of prices, which a first run of the day pays for.
    for agent in &agents {
        watched(agent, &load, &folder)?;
    }
    let mut figures: [[Series; 4]; 2] = Default::default();
    for round in 0..options.rounds as usize {
        for turn in 0..2 {
            let arm = (round + turn) % 2;
            let run = watched(&agents[arm], &load, &folder)?;
            let values = [run.first_output_s * 1e3, run.sample_us, run.cpu_s, run.resident_mib];
            for (series, value) in figures[arm].iter_mut().zip(values) {
                series.push(value);
            }
        }
    }
    drop(load);
    std::fs::remove_dir_all(&folder)?;
    let [ours, others] = &figures;
    let mut table = Table::new(&["figure", "this build", "the other", "ratio [95 %]", "n"]);
    let names = [
        "time to the first output, ms".to_owned(),
        format!("price of a sample with {SAMPLE_KIB} KiB of stack, us"),
        format!("CPU time of the agent, run of {STRETCH_S} s, s"),
        "memory of the agent, most, MiB".to_owned(),
    ];
    for (name, (a, b)) in names.into_iter().zip(ours.iter().zip(others)) {
        table.row(&[name, a.show(2), b.show(2), a.over(b).show_geometric(), a.n().to_string()]);
    }
    Ok(format!("{table}\nRatios are paired within rounds: geometric mean [95 %].\n"))
}

/// Watches the load once, and calibrates once.
fn watched(agent: &Path, load: &Load, folder: &Path) -> Result<Run> {
    let begin = Instant::now();
    let mut child = Command::new(agent)
        .args(["record", "--pid", &load.pid().to_string(), "--budget", "2%", "--force"])
        .args(["--duration", &format!("{STRETCH_S}s"), "-o"])
        .arg(folder.join("run.tithe"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", agent.display()))?;
    let mut messages = BufReader::new(child.stderr.take().context("standard error was piped")?);
    let mut text = String::new();
    messages.read_line(&mut text)?;
    let first_output_s = begin.elapsed().as_secs_f64();
    messages.read_to_string(&mut text)?;
    let (status, usage) = wait(child.id())?;
    ensure!(status == 0, "{} ended with {status:#x}: {text}", agent.display());
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;

    let output = Command::new(agent)
        .args(["calibrate", "--format", "json"])
        .output()
        .with_context(|| format!("cannot start {}", agent.display()))?;
    ensure!(output.status.success(), "calibrate failed: {}", String::from_utf8_lossy(&output.stderr));
    let prices: CostModel = serde_json::from_slice(&output.stdout)?;
    // The other build's prices are not ours.
    std::thread::sleep(Duration::from_millis(200));
    Ok(Run {
        first_output_s,
        cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        resident_mib: usage.ru_maxrss as f64 / 1024.0,
        sample_us: (prices.sample_base.ns + SAMPLE_KIB * prices.sample_per_kib.ns) / 1e3,
    })
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
