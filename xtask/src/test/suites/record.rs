//! Finished runs of the suite: a line of JSON each, in the order in which they ended.

use crate::shell;
use crate::test::calm::Load;
use crate::test::timing;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

/// What was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Build {
    /// The commit's short name.
    pub(super) commit: String,
    /// Of git's names of all that is built, from sources to lock files: the same in commits that differ in documents or in the list of timing
    /// tests only.
    pub(super) tree: String,
}

impl Build {
    /// That of the checkout.
    ///
    /// # Errors
    ///
    /// If git does not know it, or a source was changed since the last commit.
    pub(super) fn here() -> Result<Self> {
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            shell::output(command.current_dir(shell::root()).args(arguments))
        };
        let changed =
            git(&["status", "--porcelain", "--untracked-files=all", "--", ".", ":!docs", ":!*.md"])?;
        ensure!(
            changed.is_empty(),
            "runs are kept by commit, and these files are in none; commit them first:\n{changed}"
        );
        Ok(Self {
            commit: git(&["rev-parse", "--short=9", "HEAD"])?.trim().to_owned(),
            tree: tree(&git(&["ls-tree", "-r", "HEAD"])?),
        })
    }
}

/// The hash of `git ls-tree -r`'s lines, `MODE TYPE NAME<tab>PATH`, without those of documents and of the list.
fn tree(listed: &str) -> String {
    let is_built = |line: &&str| {
        let path = line.split('\t').next_back().unwrap_or_default();
        let is_document = path.starts_with("docs/") || path.ends_with(".md") || path.starts_with("LICENSE");
        !is_document && path != timing::PATH
    };
    let built: Vec<&str> = listed.lines().filter(is_built).collect();
    let hash = format!("{:x}", Sha256::digest(built.join("\n")));
    hash.chars().take(12).collect()
}

/// A run that came to its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    #[serde(flatten)]
    pub(super) build: Build,
    /// Only tests whose name contains this.
    pub(super) filter: Option<String>,
    /// UTC.
    pub(super) begun: String,
    /// Its length, s.
    pub(super) seconds: f64,
    pub(super) load: Load,
    pub(super) passed: u64,
    pub(super) skipped: u64,
    /// `binary::test`.
    pub(super) failed: Vec<String>,
}

/// All runs of a file, none if it is not there. A last line without its end is that of an interrupted call.
///
/// # Errors
///
/// If the file cannot be read, or another line is no run.
pub(super) fn read(path: &Path) -> Result<Vec<Run>> {
    let text = text(path)?;
    let whole = text.get(..whole(&text)).unwrap_or_default();
    let parse = |(line, number): (&str, u32)| {
        serde_json::from_str(line).with_context(|| format!("{}, line {number}", path.display()))
    };
    whole.lines().zip(1..).map(parse).collect()
}

/// Adds a run.
///
/// # Errors
///
/// If the file cannot be written.
pub(super) fn append(path: &Path, run: &Run) -> Result<()> {
    let whole = whole(&text(path)?);
    let line = serde_json::to_string(run)? + "\n";
    let write = || {
        let mut file = File::options().create(true).truncate(false).write(true).open(path)?;
        // OK because a file's length is below 2^63 bytes.
        file.set_len(whole as u64)?;
        file.seek(SeekFrom::End(0))?;
        file.write_all(line.as_bytes())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Length of the lines that have their end, bytes.
fn whole(text: &str) -> usize {
    text.rfind('\n').map_or(0, |end| end + 1)
}

fn text(path: &Path) -> Result<String> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        other => other.with_context(|| format!("cannot read {}", path.display())),
    }
}

#[cfg(test)]
pub(super) fn sample(commit: &str, failed: &[&str]) -> Run {
    Run {
        build: Build { commit: commit.to_owned(), tree: format!("tree of {commit}") },
        filter: None,
        begun: "2026-11-26T04:14Z".to_owned(),
        seconds: 1_234.4,
        load: Load { before: 0.5, others: 0.034, stolen: 0.012 },
        passed: 250 - failed.len() as u64,
        skipped: 1,
        failed: failed.iter().map(|&name| name.to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_kept_and_an_interrupted_line_is_none() {
        let path = std::env::temp_dir().join(format!("xtask-suites-{}", std::process::id()));
        // Left by a test that was killed, if it is there.
        let _ = std::fs::remove_file(&path);
        assert_eq!(read(&path).unwrap(), []);
        let (first, second) = (sample("a", &["b::x"]), sample("b", &[]));
        append(&path, &first).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}{}", &text[..40])).unwrap();
        assert_eq!(read(&path).unwrap(), std::slice::from_ref(&first));
        append(&path, &second).unwrap();
        assert_eq!(read(&path).unwrap(), [first, second]);
        std::fs::write(&path, format!("{text}nonsense\n{text}")).unwrap();
        assert!(format!("{:#}", read(&path).unwrap_err()).contains(", line 2: "));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn documents_do_not_make_another_build() {
        let listed = |docs: &str, tests: &str| {
            format!(
                "100644 blob {docs}\tdocs/design.md\n100644 blob {docs}\tREADME.md\n100644 blob {docs}\t{}\n\
                 100644 blob {tests}\ttests/tests/page.rs\n100644 blob 7\tCargo.lock\n",
                timing::PATH
            )
        };
        assert_eq!(tree(&listed("1", "2")), tree(&listed("3", "2")));
        assert_ne!(tree(&listed("1", "2")), tree(&listed("1", "3")));
        assert_eq!(tree(&listed("1", "2")).len(), 12);
    }
}
