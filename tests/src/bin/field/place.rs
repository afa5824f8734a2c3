//! Where things lie: what `cargo xtask field` fetched and built, what runs leave behind, and the agent.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

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
        /// Tests have several in one process.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let scratch = std::env::temp_dir().join(format!("tithe-field-{}-{number}", std::process::id()));
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

/// Finished runs, each of them a line; none if there is no such file. A last line that was torn when the suite was ended is left out, and that is said.
///
/// # Errors
///
/// If the file cannot be read, or another line is no run.
pub fn finished<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (whole, torn) = bytes.split_at(bytes.len() - torn(&bytes));
    if !torn.is_empty() {
        eprintln!("{}: its last line is torn, and left out", path.display());
    }
    let whole = String::from_utf8_lossy(whole);
    let parse = |(index, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| {
            format!("line {} of {} is no run; --fresh begins anew", index + 1, path.display())
        })
    };
    whole.lines().enumerate().map(parse).collect()
}

/// Keeps a finished run as the last line. What stands there of a torn one is removed.
///
/// # Errors
///
/// If the line cannot be written.
pub fn keep<T: Serialize>(path: &Path, run: &T) -> Result<()> {
    // There may be none.
    let bytes = std::fs::read(path).unwrap_or_default();
    let torn = torn(&bytes);
    let mut line = serde_json::to_string(run)? + "\n";
    if torn == 0 && bytes.last().is_some_and(|last| *last != b'\n') {
        line.insert(0, '\n');
    }
    let written = (|| {
        let mut file = File::options().create(true).append(true).open(path)?;
        if torn > 0 {
            file.set_len((bytes.len() - torn) as u64)?;
        }
        file.write_all(line.as_bytes())
    })();
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Bytes after the last end of a line that are no whole one.
fn torn(bytes: &[u8]) -> usize {
    let last = &bytes[bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)..];
    let is_whole = serde_json::from_slice::<serde::de::IgnoredAny>(last).is_ok();
    if is_whole { 0 } else { last.len() }
}

/// Sets the finished runs of a suite aside: `NAME.jsonl` becomes `NAME.before.jsonl`, or `NAME.before-2.jsonl` and so on if there is one.
///
/// # Errors
///
/// If the file cannot be renamed.
pub fn set_aside(base: &Path, name: &str) -> Result<()> {
    let lines = base.join(format!("{name}.jsonl"));
    if !lines.exists() {
        return Ok(());
    }
    let place = |number: u32| match number {
        1 => base.join(format!("{name}.before.jsonl")),
        _ => base.join(format!("{name}.before-{number}.jsonl")),
    };
    let free = (1..).map(place).find(|path| !path.exists()).context("no name is free")?;
    eprintln!("the finished runs are kept in {}", free.display());
    std::fs::rename(&lines, free).context("cannot keep the old runs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_line_is_left_out_and_does_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        assert!(finished::<Vec<u32>>(&path).unwrap().is_empty());
        keep(&path, &[1, 2]).unwrap();
        keep(&path, &[3, 4]).unwrap();
        let torn = text_of(&path) + "[5, ";
        std::fs::write(&path, torn).unwrap();
        assert_eq!(finished::<Vec<u32>>(&path).unwrap(), [[1, 2], [3, 4]]);
        keep(&path, &[7, 8]).unwrap();
        assert_eq!(text_of(&path), "[1,2]\n[3,4]\n[7,8]\n");
        // Whole but for the end of the line, as some editors leave it.
        std::fs::write(&path, "[1,2]\n[3,4]").unwrap();
        keep(&path, &[7, 8]).unwrap();
        assert_eq!(finished::<Vec<u32>>(&path).unwrap(), [[1, 2], [3, 4], [7, 8]]);
        std::fs::write(&path, "[1,2]\n[3,\n[5,6]\n").unwrap();
        let error = finished::<Vec<u32>>(&path).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn runs_that_were_set_aside_before_stay() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path();
        set_aside(base, "runs").unwrap();
        for text in ["first", "second", "third"] {
            std::fs::write(base.join("runs.jsonl"), text).unwrap();
            set_aside(base, "runs").unwrap();
            assert!(!base.join("runs.jsonl").exists());
        }
        let kept =
            ["before", "before-2", "before-3"].map(|name| text_of(&base.join(format!("runs.{name}.jsonl"))));
        assert_eq!(kept, ["first", "second", "third"]);
    }
}
