//! The house rules, format, clippy, rustdoc, the source invariants, and README's first screen.

use crate::{house, readme, shell};
use anyhow::Result;

/// Which of them run.
#[derive(Debug, Default, clap::Args)]
pub struct Options {
    /// The house rules only: sizes, circles of imports, what may stand where (builds nothing, under 5 s)
    #[arg(long)]
    pub house: bool,
}

/// Runs all of them; the first that fails ends it.
///
/// # Errors
///
/// If one finds something.
pub fn run(options: &Options) -> Result<()> {
    house::run()?;
    if options.house {
        println!("house rules: kept");
        return Ok(());
    }
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))?;
    // Not a member of the workspace, and built by another compiler: only its format can be checked here.
    shell::run(shell::cargo().args(["fmt", "--manifest-path", "profiler-ebpf/Cargo.toml", "--check"]))?;
    shell::run(shell::cargo().args([
        "clippy",
        "--locked",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    shell::run(
        shell::cargo()
            .args(["doc", "--locked", "--workspace", "--no-deps", "--document-private-items"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    shell::run(shell::cargo().args([
        "test",
        "--locked",
        "--quiet",
        // As the tests are built: another selection has other features, and compiles anew.
        "--workspace",
        "--test",
        "offline",
    ]))?;
    readme::run(&readme::Options { check: true })?;
    println!("lint: clean");
    Ok(())
}
