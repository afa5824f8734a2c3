//! Where things lie: what `cargo xtask field` fetched and built, what runs leave behind, and the agent.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folders of the suite.
pub struct Place {
    /// `target/field`: fetched, built and kept things.
    pub base: PathBuf,
    /// Working folders of the programs; short, for the sake of sockets. Removed on drop.
    scratch: PathBuf,
}

impl Place {
    /// With this `target/field`.
    ///
    /// # Errors
    ///
    /// If the working folder cannot be made.
    pub fn new(base: PathBuf) -> Result<Place> {
        let scratch = std::env::temp_dir().join(format!("tithe-field-{}", std::process::id()));
        std::fs::create_dir(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
        Ok(Place { base, scratch })
    }

    /// A file of an unpacked set of packages.
    pub fn root(&self, set: &str, file: &str) -> PathBuf {
        self.base.join("root").join(set).join(file)
    }

    /// A file that was built from source.
    pub fn built(&self, file: &str) -> PathBuf {
        self.base.join("build").join(file)
    }

    /// A program of a set of packages, which finds its libraries there.
    pub fn command(&self, set: &str, file: &str) -> Command {
        let mut command = Command::new(self.root(set, file));
        command.env("LD_LIBRARY_PATH", self.root(set, "usr/lib/x86_64-linux-gnu"));
        command
    }

    /// An empty working folder.
    ///
    /// # Errors
    ///
    /// If it cannot be made anew.
    pub fn working(&self, name: &str) -> Result<PathBuf> {
        let folder = self.scratch.join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(folder)
    }

    /// The first of these files that does not exist.
    pub fn missing(files: &[PathBuf]) -> Option<String> {
        files.iter().find(|path| !path.exists()).map(|path| format!("no {}", path.display()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What cannot be removed is in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

/// The first line that a command prints.
///
/// # Errors
///
/// If it cannot be started, fails, or prints nothing.
pub fn first_line(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed with {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find(|line| !line.is_empty()).map(str::to_owned).context("no version was printed")
}

/// The text of a file, lossy; nothing if it cannot be read.
pub fn text_of(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// Sets the finished runs of a suite aside: `NAME.jsonl` becomes `NAME.before.jsonl`.
///
/// # Errors
///
/// If the file cannot be renamed.
pub fn set_aside(base: &Path, name: &str) -> Result<()> {
    let lines = base.join(format!("{name}.jsonl"));
    if lines.exists() {
        std::fs::rename(&lines, base.join(format!("{name}.before.jsonl")))
            .context("cannot keep the old runs")?;
    }
    Ok(())
}
