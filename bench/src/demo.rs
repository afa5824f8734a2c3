//! The agent on real SQLite at 2 %: the target's own throughput with and without it, what it says of its own cost, and
//! what it uses itself.

use crate::measure::{Series, Table};
use crate::scratch;
use anyhow::{Context, Result, ensure};
use profiler_core::report::Report;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Length of one stretch with or without the agent, s.
const STRETCH_S: u64 = 10;
/// The run whose receipt is read, s.
const RECEIPT_S: u64 = 120;

/// SQLite under load; ended on drop.
pub struct Load(Child);

impl Load {
    /// Starts it, and waits until it works.
    pub fn start() -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("sqlite-load");
        let mut child = Command::new(&program)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let out = child.stdout.take().context("no output of the load")?;
        let mut lines = BufReader::new(out).lines();
        let ready = lines.by_ref().map_while(Result::ok).any(|line| line == "ready");
        ensure!(ready, "the load did not get ready");
        // Its reports have to be read, or it blocks.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(Self(child))
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    fn operations(&self) -> Result<u64> {
        profiler_user::inspect::Inspection::of(i32::try_from(self.0.id())?)
            .map_err(anyhow::Error::new)?
            .variable("SQLITE_LOAD_OPERATIONS")
            .ok()
            .and_then(|(address, _)| read_u64(self.0.id(), address))
            .context("cannot read the load's counter")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read_u64(pid: u32, address: u64) -> Option<u64> {
    use std::os::unix::fs::FileExt;
    let mut bytes = [0; 8];
    std::fs::File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut bytes, address).ok()?;
    Some(u64::from_le_bytes(bytes))
}

fn record(load: &Load, folder: &Path, seconds: u64, more: &[&str]) -> Result<Report> {
    let output = Command::new(profiler_tests::program("tithe"))
        .args(["record", "--pid", &load.0.id().to_string(), "--budget", "2%", "--format", "json", "--force"])
        .args(["--duration", &format!("{seconds}s")])
        .args(more)
        .arg("-o")
        .arg(folder.join("run.tithe"))
        .output()
        .context("cannot start the agent")?;
    ensure!(output.status.success(), "the agent failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Operations per second over a stretch.
fn stretch(load: &Load, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let (begin, start) = (Instant::now(), load.operations()?);
    work()?;
    Ok((load.operations()? - start) as f64 / begin.elapsed().as_secs_f64())
}

/// The cell.
pub fn sqlite(rounds: u32) -> Result<String> {
    let scratch = scratch::new()?;
    let load = Load::start()?;
    std::thread::sleep(Duration::from_secs(2));
    let (mut off, mut on, mut again) = (Series::default(), Series::default(), Series::default());
    for round in 0..rounds {
        let idle = || {
            stretch(&load, || {
                std::thread::sleep(Duration::from_secs(STRETCH_S));
                Ok(())
            })
        };
        let watched = || stretch(&load, || record(&load, scratch.path(), STRETCH_S, &[]).map(drop));
        if round % 2 == 0 {
            off.push(idle()?);
            on.push(watched()?);
            again.push(idle()?);
        } else {
            again.push(idle()?);
            on.push(watched()?);
            off.push(idle()?);
        }
    }
    let report = record(&load, scratch.path(), RECEIPT_S, &["--progress", "SQLITE_LOAD_OPERATIONS"])?;
    drop(load);
    let mut table = Table::new(&["figure", "value", "aim"]);
    let mut row = |name: &str, value: String, aim: &str| table.row(&[name.to_owned(), value, aim.to_owned()]);
    row("operations/s, not watched", off.show(0), "");
    row("operations/s, watched at 2 %", on.show(0), "");
    row("watched / not watched, paired", on.over(&off).show(3), ">= 0.975");
    row("not watched / not watched (A/A)", again.over(&off).show(3), "holds 1");
    let receipt = &report.receipt;
    row("receipt: predicted overhead", format!("{:.2} %", receipt.predicted * 100.0), "<= 2 %");
    let measured = receipt.in_place.as_ref().map_or("not measured".to_owned(), |m| {
        let e = &m.overhead;
        format!("{:.2} % ({:.2} to {:.2}), n = {}", e.value * 100.0, e.low * 100.0, e.high * 100.0, m.samples)
    });
    row("receipt: measured overhead, 95 % interval", measured, "half-width <= 0.7 points");
    let check = receipt.measured.as_ref().map_or("no check".to_owned(), |m| {
        format!("{:.2} % ({:.2} to {:.2}), n = {}", m.value * 100.0, m.low * 100.0, m.high * 100.0, m.pairs)
    });
    row("receipt: check by the progress metric", check, "");
    row("worst second", format!("{:.2} %", receipt.worst_second * 100.0), "");
    row("agent CPU", format!("{:.2} % of one CPU", receipt.agent_cpu * 100.0), "<= 2 %");
    row("agent RSS", format!("{:.0} MB", receipt.agent_rss_bytes as f64 / 1e6), "<= 100 MB");
    Ok(format!(
        "{table}\nn = {rounds} rounds of {STRETCH_S} s per arm, arms in turn; the receipt is that of one run of {RECEIPT_S} s.\n"
    ))
}
