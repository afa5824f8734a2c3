//! Format, clippy, rustdoc, and the source invariants.

use crate::shell;
use anyhow::Result;

/// Runs all of them; the first that fails ends it.
///
/// # Errors
///
/// If one finds something.
pub fn run() -> Result<()> {
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
        "-p",
        "profiler-tests",
        "--test",
        "offline",
    ]))?;
    println!("lint: clean");
    Ok(())
}
