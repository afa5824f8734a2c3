//! The program `decades` under the agent: 100 functions whose rates lie over 7 decades, and what it says of itself.

use crate::scratch;
use anyhow::{Context, Result, ensure};
use profiler_core::plan::{Problem, table};
use profiler_core::recording::Recording;
use profiler_core::report::Report;
use profiler_tests::support::Target;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Name of a recording that is kept.
const RECORDING: &str = "run.tithe";

/// Functions `dec00` to `dec99`.
pub const CLASSES: usize = 100;

/// The target. One thread works; ended on drop.
pub struct Decades(Target);

/// What the target did in whole slots of 10 ms.
pub struct Done {
    /// Begin of the first and end of the last slot, ktime ns.
    pub from_ns: u64,
    /// See `from_ns`.
    pub to_ns: u64,
    /// Calls of each function.
    pub calls: Vec<f64>,
    /// CPU time in each function, ns.
    pub spent_ns: Vec<f64>,
}

impl Done {
    /// Length, s.
    pub fn seconds(&self) -> f64 {
        (self.to_ns - self.from_ns) as f64 * 1e-9
    }
}

impl Decades {
    /// Started and idle.
    pub fn start() -> Self {
        Self(Target::start("decades"))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// It works from now on; with `phases` the rates swing.
    pub fn work(&mut self, phases: bool) {
        self.0.command(&format!("start {}", u8::from(phases)));
    }

    /// It works from now on, and no function takes time: calls come evenly from millisecond to millisecond.
    pub fn work_evenly(&mut self) {
        self.0.command("start 2");
    }

    /// What it did between two instants.
    pub fn between(&mut self, from_ns: u64, to_ns: u64) -> Done {
        let reply = self.0.command(&format!("between {from_ns} {to_ns}"));
        let list = |key: &str| {
            reply.text(key).unwrap_or("").split(',').map(|n| n.parse().unwrap_or(f64::NAN)).collect()
        };
        Done {
            from_ns: reply.number("from_ns"),
            to_ns: reply.number("to_ns"),
            calls: list("calls"),
            spent_ns: list("spent_ns"),
        }
    }

    /// Calls per second of each function, undisturbed: the rates that are drawn, scaled to what the busier half did between two
    /// instants (the machine's speed changes from second to second), without the part of its CPU time that watching took.
    pub fn true_rates(&mut self, from_ns: u64, to_ns: u64, overhead: f64) -> Vec<f64> {
        let reply = self.0.command("rates");
        let drawn: Vec<f64> =
            reply.text("rates").unwrap_or("").split(',').map(|n| n.parse().unwrap_or(f64::NAN)).collect();
        let done = self.between(from_ns, to_ns);
        let busy = CLASSES / 2..;
        let made: f64 = done.calls[busy.clone()].iter().sum();
        let factor = made / done.seconds() / drawn[busy].iter().sum::<f64>() * (1.0 + overhead);
        drawn.iter().map(|rate| rate * factor).collect()
    }
}

/// Number of a function of the target by its name.
pub fn index_of(name: &str) -> Option<usize> {
    name.strip_prefix("dec")?.parse().ok().filter(|i| *i < CLASSES)
}

/// Runs the agent on a process and reads what it wrote.
pub fn record(pid: u32, budget: f64, seconds: u64, more: &[String]) -> Result<(Report, Recording)> {
    let (report, recording, _) = run_agent(pid, budget, seconds, more)?;
    Ok((report, recording))
}

/// The same; the recording stays, in a folder in which nothing else may be.
pub fn record_into(
    folder: &Path,
    pid: u32,
    budget: f64,
    seconds: u64,
    more: &[String],
) -> Result<(Report, Recording)> {
    let (report, recording, scratch) = run_agent(pid, budget, seconds, more)?;
    std::fs::create_dir_all(folder)?;
    // The temporary folder may be on another file system.
    let moved = Command::new("mv").arg(scratch.path().join(RUN)).arg(folder.join(RECORDING)).status()?;
    ensure!(moved.success(), "cannot move {} to {}", scratch.path().display(), folder.display());
    Ok((report, recording))
}

/// What this build says of a recording of `record_into`.
pub fn told_again(folder: &Path) -> Result<(Report, Recording)> {
    let path = folder.join(RECORDING);
    let output = Command::new(profiler_tests::program("tithe"))
        .args(["report", "--format", "json"])
        .arg(&path)
        .output()
        .context("cannot start the agent")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "no report of {}: {said}", path.display());
    Ok((serde_json::from_slice(&output.stdout)?, profiler_user::recording::open(&path)?))
}

/// The same with the problem of the first plan, if one was made.
pub fn record_planned(
    pid: u32,
    budget: f64,
    seconds: u64,
    more: &[String],
) -> Result<(Report, Recording, Option<Problem>)> {
    let (report, recording, scratch) = run_agent(pid, budget, seconds, more)?;
    let first = match std::fs::read_to_string(scratch.path().join(RUN).join("plan-0001.toml")) {
        Ok(text) => Some(table::parse(&text).map_err(|e| anyhow::anyhow!("plan-0001.toml: {e:?}"))?.problem),
        Err(_) => None,
    };
    Ok((report, recording, first))
}

/// The recording's name in the folder of [`run_agent`].
const RUN: &str = "run.tithe";

/// Report, recording, and the folder that holds it.
fn run_agent(pid: u32, budget: f64, seconds: u64, more: &[String]) -> Result<(Report, Recording, TempDir)> {
    let scratch = scratch::new()?;
    let path = scratch.path().join(RUN);
    let output = Command::new(profiler_tests::program("tithe"))
        .args(["record", "--pid", &pid.to_string(), "--format", "json", "--no-ab", "--force"])
        .args(["--budget", &format!("{budget}%"), "--duration", &format!("{seconds}s")])
        .args(std::env::var_os("TITHE_BENCH_CLASSES").map(|_| "-v"))
        .args(more)
        .arg("-o")
        .arg(&path)
        .output()
        .context("cannot start the agent")?;
    if std::env::var_os("TITHE_BENCH_CLASSES").is_some() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    ensure!(
        output.status.success(),
        "the agent failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let recording = profiler_user::recording::open(&path)?;
    Ok((serde_json::from_slice(&output.stdout)?, recording, scratch))
}

/// `--count` for each of the functions.
pub fn count_all() -> Vec<String> {
    (0..CLASSES).flat_map(|i| ["--count".to_owned(), format!("dec{i:02}")]).collect()
}
