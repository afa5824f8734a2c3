//! Folders for what a run writes and nobody reads after it. They go with the value that made them, also after a failure; those of benches
//! that were killed go when the next one begins.

use anyhow::{Context, Result};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "tithe-bench-";
/// A file system in memory: what is written there waits for no disk.
const MEMORY: &str = "/dev/shm";

/// A folder of our own, `tithe-bench-PID-NUMBER`; removed with all that is in it on drop.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// In the temporary folder.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn new() -> Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    /// In memory.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn in_memory() -> Result<Self> {
        Self::new_in(Path::new(MEMORY))
    }

    fn new_in(base: &Path) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = base.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                // Of a bench that was killed and had our process id.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("cannot make {}", path.display())),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left is swept by the next bench.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes what benches have left that were killed.
pub fn sweep() {
    for base in [std::env::temp_dir().as_path(), Path::new(MEMORY)] {
        sweep_in(base);
    }
}

fn sweep_in(base: &Path) {
    // Nothing to sweep where nothing can be read.
    let Ok(own) = std::fs::metadata("/proc/self") else { return };
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(maker) else { continue };
        // Of the entry itself, not of what a link leads to: others may write there, too.
        let is_ours = entry.metadata().is_ok_and(|of| of.is_dir() && of.uid() == own.uid());
        if is_ours && !Path::new(&format!("/proc/{pid}")).exists() {
            // Best effort: the next one tries again.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The process that made a folder of that name: `tithe-bench-PID` of earlier builds, or `tithe-bench-PID-NUMBER`.
fn maker(name: &str) -> Option<u32> {
    let rest = name.strip_prefix(PREFIX)?;
    let (pid, number) = rest.split_once('-').unwrap_or((rest, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(pid) && is_number(number)).then(|| pid.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_what_is_in_it_after_a_failure_too() {
        let fails = || -> Result<()> {
            let scratch = Scratch::new()?;
            std::fs::create_dir(scratch.path().join("run.tithe"))?;
            std::fs::write(scratch.path().join("run.tithe/meta.json"), "{}")?;
            std::fs::read(scratch.path().join("no such file"))
                .with_context(|| scratch.0.display().to_string())?;
            Ok(())
        };
        let path = PathBuf::from(fails().unwrap_err().to_string());
        assert!(path.starts_with(std::env::temp_dir()) && !path.exists(), "{}", path.display());
        let (one, other) = (Scratch::new().unwrap(), Scratch::in_memory().unwrap());
        assert!(one.path().is_dir() && other.path().starts_with(MEMORY) && one.path() != other.path());
    }

    #[test]
    fn only_folders_of_benches_that_are_gone_are_swept() {
        let base = Scratch::new().unwrap();
        let make = |name: String| {
            let path = base.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("file"), "").unwrap();
            path
        };
        // The largest process id: nobody has it.
        let gone = 4_194_303;
        let (old, new) = (make(format!("{PREFIX}{gone}")), make(format!("{PREFIX}{gone}-7")));
        let alive = make(format!("{PREFIX}{}-7", std::process::id()));
        let kept = make(format!("{PREFIX}page-server-full.tithe"));
        let link = base.path().join(format!("{PREFIX}{gone}-8"));
        std::os::unix::fs::symlink(&kept, &link).unwrap();
        sweep_in(base.path());
        assert!(!old.exists() && !new.exists());
        assert!(alive.exists() && kept.join("file").exists() && link.is_symlink());
    }

    #[test]
    fn a_folder_tells_its_maker() {
        assert_eq!(maker("tithe-bench-12"), Some(12));
        assert_eq!(maker("tithe-bench-12-3"), Some(12));
        for other in [
            "tithe-bench-",
            "tithe-bench-12-",
            "tithe-bench-12-x",
            "tithe-bench-+12",
            "bench-12",
            "tithe-bench-redis-12",
        ] {
            assert_eq!(maker(other), None, "{other}");
        }
    }
}
