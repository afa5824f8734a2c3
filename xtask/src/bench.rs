//! Benchmarks: built as the caller, run as root, written into `docs/benchmarks.md`.
//!
//! The measuring is done by the program `bench` of the crate of that name; it prints Markdown, this writes the file.

use crate::{apt, shell};
use anyhow::{Context, Result, ensure};
use std::process::Stdio;

/// `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only this cell, or this part of it (repeatable); the file is then left alone and the table printed
    #[arg(long, value_name = "CELL[:PART]")]
    pub only: Vec<String>,
    /// Repetitions of each arm (default 7; `ways:mean` 3)
    #[arg(long)]
    pub repeat: Option<u32>,
    /// Length of a run of the cells that watch a whole run, s (default 10; `operations` 60, `soak` 1200)
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Its budgets in percent, in place of each target's own ('1,2')
    #[arg(long, value_name = "LIST")]
    pub budgets: Option<String>,
    /// Forget its finished rounds, which are kept in target/release/bench
    #[arg(long)]
    pub fresh: bool,
    /// Judge recordings that `durations` has kept anew, by the reports that this build makes of them
    #[arg(long, conflicts_with = "fresh")]
    pub again: bool,
    /// List the cells
    #[arg(long)]
    pub list: bool,
}

/// Runs the command.
///
/// # Errors
///
/// If the program cannot be built, is refused by the kernel, or a cell fails.
pub fn run(options: &Options) -> Result<()> {
    ensure!(shell::can_be_root(), "benchmarks trace: run them as root, or let sudo work without a password");
    shell::run(
        shell::cargo()
            .args(["build", "--locked", "--release", "-p", "profiler-user", "-p", "profiler-tests"])
            .args(["-p", "profiler-bench", "--bins"]),
    )?;
    for (program, package) in [("bpftrace", "bpftrace"), ("perf", "linux-perf")] {
        if !options.list && shell::find_in_path(program).is_none() && apt::is_here() {
            // Without it the cells that compare with it say so.
            if let Err(error) = apt::install(&[package]) {
                eprintln!("no {program} to compare with: {error:#}");
            }
        }
    }
    let mut command = shell::as_root(shell::target_dir().join("release/bench"), &[]);
    if let Some(repeat) = options.repeat {
        command.args(["--repeat", &repeat.to_string()]);
    }
    if let Some(seconds) = options.seconds {
        command.args(["--seconds", &seconds.to_string()]);
    }
    if let Some(budgets) = &options.budgets {
        command.args(["--budgets", budgets]);
    }
    if options.fresh {
        command.arg("--fresh");
    }
    if options.again {
        command.arg("--again");
    }
    for cell in &options.only {
        command.args(["--only", cell]);
    }
    if options.list {
        command.arg("--list");
    }
    shell::say(&command);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start bench")?;
    let text = String::from_utf8(output.stdout).context("bench printed no UTF-8")?;
    print!("{text}");
    ensure!(output.status.success(), "bench failed with {}", output.status);
    if options.only.is_empty() && !options.list {
        let path = shell::root().join("docs/benchmarks.md");
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}
