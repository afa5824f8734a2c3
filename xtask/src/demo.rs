//! The demo: a real SQLite under load, profiled by PID under a budget.

use crate::shell;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// `cargo xtask demo`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// What the watching may cost
    #[arg(long, default_value = "2%")]
    pub budget: String,
    /// Seconds to watch
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
}

/// Seconds of undisturbed load before the agent comes, to compare with.
const BEFORE_S: u64 = 5;

/// The target; ended on every way out.
struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        // Both fail only if it has ended and been reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command.
///
/// # Errors
///
/// If something cannot be built or the agent fails.
pub fn run(options: &Options) -> Result<()> {
    ensure!(
        shell::can_be_root(),
        "the demo attaches to a process: run it as root, or let sudo work without a password"
    );
    shell::run(
        shell::cargo()
            .args(["build", "--locked", "--release", "-p", "profiler-user", "-p", "profiler-tests"])
            .args(["--bin", "tithe", "--bin", "sqlite-load"]),
    )?;
    let built = shell::target_dir().join("release");
    let folder = shell::target_dir().join("demo");
    std::fs::create_dir_all(&folder)?;

    let log = folder.join("sqlite-load.log");
    let mut load = Command::new(built.join("sqlite-load"));
    load.stdin(Stdio::null()).stdout(File::create(&log)?);
    shell::say(&load);
    let load = Load(load.spawn().context("cannot start sqlite-load")?);
    wait_until_ready(&log)?;
    eprintln!("SQLite runs as process {}; {BEFORE_S} s alone", load.0.id());
    std::thread::sleep(Duration::from_secs(BEFORE_S));
    let alone = rates(&log)?;

    let tithe = built.join("tithe");
    let recording = folder.join("run.tithe");
    shell::run(
        shell::as_root(&tithe, &[])
            .args(["record", "--pid", &load.0.id().to_string()])
            .args(["--budget", &options.budget, "--duration", &format!("{}s", options.seconds), "--force"])
            .arg("-o")
            .arg(&recording)
            // The report comes once, at the end.
            .stdout(File::create(folder.join("record.txt"))?),
    )?;
    let watched = rates(&log)?.split_off(alone.len());
    drop(load);

    let mut convert = Command::new(&tithe);
    convert.arg("report").arg(&recording).stdout(Stdio::null());
    for name in ["flame.svg", "profile.pb.gz", "stacks.folded"] {
        convert.arg("-o").arg(folder.join(name));
    }
    shell::run(&mut convert)?;
    shell::run(Command::new(&tithe).arg("report").arg(&recording))?;
    println!();
    println!("SQLite's own count, operations/s (median of whole seconds, min to max):");
    println!("  alone    {}", describe(&alone));
    println!("  watched  {}", describe(&watched));
    println!("Recording and pictures: {}", folder.display());
    Ok(())
}

fn wait_until_ready(log: &Path) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        if std::fs::read_to_string(log)?.lines().any(|line| line == "ready") {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    anyhow::bail!("sqlite-load was not ready within a minute; see {}", log.display())
}

/// What the target printed so far, one number a second.
fn rates(log: &Path) -> Result<Vec<f64>> {
    Ok(std::fs::read_to_string(log)?
        .lines()
        .filter_map(|line| line.strip_prefix("operations_per_second ")?.parse().ok())
        .collect())
}

fn describe(rates: &[f64]) -> String {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.first(), sorted.last()) {
        (Some(least), Some(most)) => {
            format!("{:.0} ({least:.0} to {most:.0}), n = {}", sorted[sorted.len() / 2], sorted.len())
        }
        _ => "no whole second".to_owned(),
    }
}
