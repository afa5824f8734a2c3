//! Folders for what a run writes and nobody reads after it. They go with the value that made them, also after a failure; that of a bench
//! that was killed stays.

use anyhow::{Context, Result};
use std::path::Path;
use tempfile::{Builder, TempDir};

/// A file system in memory: what is written there waits for no disk.
const MEMORY: &str = "/dev/shm";

/// In the temporary folder.
///
/// # Errors
///
/// If it cannot be made.
pub fn new() -> Result<TempDir> {
    new_in(&std::env::temp_dir())
}

/// In memory.
///
/// # Errors
///
/// If it cannot be made.
pub fn in_memory() -> Result<TempDir> {
    new_in(Path::new(MEMORY))
}

fn new_in(base: &Path) -> Result<TempDir> {
    let made = Builder::new().prefix("tithe-bench-").tempdir_in(base);
    made.with_context(|| format!("cannot make a folder in {}", base.display()))
}
