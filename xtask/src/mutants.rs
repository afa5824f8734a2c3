//! Mutations: is a test red when what shares the budget out is changed? By cargo-mutants, in a copy of the last commit.
//!
//! Takes an hour or more. What was found is kept in `target/mutants`: the next run tries what was not caught before.

use crate::shell;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

/// What is changed where no file is named: the arbiter, the reasons why nothing may be attached, and the controller.
const FILES: [&str; 4] = [
    "profiler-core/src/run/arbiter.rs",
    "profiler-core/src/run/suspension.rs",
    "profiler-core/src/controller.rs",
    "profiler-core/src/controller/*.rs",
];
/// Tests that are run against each change: those of all who use it.
const TESTS: [&str; 5] = ["run::", "controller::", "clients::", "engine::", "ledger::"];
/// A test that takes longer than this, s, goes on for ever.
const LONGEST_S: &str = "120";

/// `cargo xtask mutants`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Files of profiler-core to change, in place of those that share the budget out
    #[arg(value_name = "FILE")]
    pub files: Vec<String>,
    /// Begin anew, also with what was caught before
    #[arg(long)]
    pub fresh: bool,
}

/// Runs the command.
///
/// # Errors
///
/// If cargo-mutants cannot be installed, or the copy not be made. Changes that no test notices are no error: they are listed.
pub fn run(options: &Options) -> Result<()> {
    let folder = shell::target_dir().join("mutants");
    if options.fresh && folder.join("out").exists() {
        std::fs::remove_dir_all(folder.join("out")).context("target/mutants/out")?;
    }
    let program = installed(&folder)?;
    let tree = folder.join("tree");
    let git = || {
        let mut command = Command::new("git");
        command.current_dir(shell::root());
        command
    };
    if tree.exists() {
        shell::run(git().args(["worktree", "remove", "--force"]).arg(&tree))?;
    }
    shell::run(git().args(["worktree", "add", "--quiet", "--detach"]).arg(&tree).arg("HEAD"))?;
    // Unoptimised: building takes longer than the tests do. `--lib` for the build, too: integration tests are not run.
    let settings =
        ["--config", "profile.dev.package.profiler-core.opt-level=0", "--config", "profile.dev.debug=false"];
    let build = folder.join("build");
    // Where they fail unchanged, every change would count as noticed.
    let mut unchanged = shell::cargo();
    unchanged.current_dir(&tree).env("CARGO_TARGET_DIR", &build);
    shell::run(
        unchanged
            .args(["test", "--locked", "--package", "profiler-core", "--lib"])
            .args(settings)
            .arg("--")
            .args(TESTS),
    )?;
    let mut command = Command::new(program);
    command
        .current_dir(&tree)
        .env("CARGO_TARGET_DIR", &build)
        .args(["mutants", "--in-place", "--iterate", "--baseline", "skip", "--no-shuffle"])
        .args(["--package", "profiler-core", "--timeout", LONGEST_S])
        .arg("--cargo-arg=--lib")
        .args(settings.map(|word| format!("--cargo-arg={word}")))
        .arg("--output")
        .arg(folder.join("out"));
    let files: Vec<String> =
        if options.files.is_empty() { FILES.map(str::to_owned).to_vec() } else { options.files.clone() };
    command.args(files.iter().flat_map(|file| ["--file", file.as_str()]));
    command.args(["--", "--"]).args(TESTS);
    shell::say(&command);
    // Its status says whether all were caught.
    command.status().context("cargo-mutants does not start")?;
    shell::run(git().args(["worktree", "remove", "--force"]).arg(&tree))?;
    report(&folder.join("out/mutants.out"))
}

/// cargo-mutants: the one in the path, or one that is installed below the target folder.
fn installed(folder: &std::path::Path) -> Result<PathBuf> {
    if let Some(path) = shell::find_in_path("cargo-mutants") {
        return Ok(path);
    }
    let own = folder.join("bin/cargo-mutants");
    if !own.exists() {
        shell::run(shell::cargo().args(["install", "cargo-mutants", "--locked", "--root"]).arg(folder))?;
    }
    Ok(own)
}

/// Says how many changes no test notices, and which.
fn report(folder: &std::path::Path) -> Result<()> {
    let lines = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let endless = lines("timeout.txt");
    let caught = lines("caught.txt").len() + endless.len() + lines("previously_caught.txt").len();
    let missed = lines("missed.txt");
    let all = caught + missed.len();
    anyhow::ensure!(all > 0, "nothing was changed: see what cargo-mutants said above");
    println!(
        "{} of {all} changes are noticed by no test, {:.1} %",
        missed.len(),
        missed.len() as f64 * 100.0 / all as f64
    );
    missed.iter().for_each(|line| println!("  {line}"));
    if !endless.is_empty() {
        println!(
            "{} of those that are noticed, because a test took longer than {LONGEST_S} s",
            endless.len()
        );
        endless.iter().for_each(|line| println!("  {line}"));
    }
    Ok(())
}
