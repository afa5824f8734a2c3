//! The guest's files: our binaries at the paths where this machine has them (the tests know them by those), the libraries
//! that they need, and the unpacked packages.

use super::archive::Archive;
use super::packages::Fetched;
use super::steps::{self, Chosen};
use crate::{shell, test};
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Programs of this machine that the tests start. The guest has busybox for the rest.
const TOOLS: [&str; 10] = ["sh", "true", "sleep", "dd", "cat", "env", "id", "unshare", "setpriv", "mount"];
/// Where the tests' own binaries are listed.
const INIT: &str = include_str!("init.sh");

/// What cargo built.
pub struct Built {
    /// Test executables by name.
    tests: BTreeMap<String, PathBuf>,
    /// Binaries of the workspace.
    bins: Vec<PathBuf>,
    /// The output folder of the tests crate's build script: the target programs.
    programs: PathBuf,
}

/// What is asked of the guest.
pub struct Wanted<'a> {
    pub steps: &'a [Chosen],
    /// Seconds that a test may take.
    pub limit_s: u64,
    /// In place of the agent that was built.
    pub agent: Option<&'a Path>,
}

/// Builds the agent, the tests and their programs.
///
/// # Errors
///
/// If it does not compile.
pub fn build() -> Result<Built> {
    let mut bins = shell::cargo();
    bins.args(["build", "--locked", "-p", "profiler-user", "-p", "profiler-tests", "--bins"]);
    let mut tests = shell::cargo();
    tests.args(["test", "--locked", "-p", "profiler-tests", "--tests", "--no-run"]);
    let mut said = Vec::new();
    for command in [&mut bins, &mut tests] {
        command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
        shell::say(command);
        said.push(shell::output(command)?);
    }
    let mut built =
        Built { tests: test::test_binaries(&said[1])?, bins: Vec::new(), programs: PathBuf::new() };
    for line in said[0].lines().filter(|line| line.starts_with('{')) {
        let message: serde_json::Value = serde_json::from_str(line).context("cargo printed no JSON")?;
        if let Some(path) = message["executable"].as_str() {
            built.bins.push(PathBuf::from(path));
        }
        let of_tests = message["package_id"].as_str().is_some_and(|id| id.contains("/tests#"));
        if let (true, Some(out)) = (of_tests, message["out_dir"].as_str()) {
            built.programs = PathBuf::from(out);
        }
    }
    ensure!(built.programs.is_dir(), "cargo named no output folder of the tests crate's build script");
    Ok(built)
}

/// Writes the archive.
///
/// # Errors
///
/// If a file or a library is missing.
pub fn write(path: &Path, fetched: &Fetched, built: &Built, wanted: &Wanted<'_>) -> Result<()> {
    let agent = built.bins.iter().find(|bin| bin.ends_with("tithe")).context("cargo built no tithe")?;
    let mut archive = Archive::create(path)?;
    for folder in ["bin", "sbin", "lib", "lib64"] {
        archive.folder(Path::new("/usr").join(folder).as_path())?;
        archive.link(Path::new(&format!("/{folder}")), &format!("usr/{folder}"))?;
    }
    // Before the host's: where both have a file, the guest's packages win.
    archive.tree(&fetched.guest, Path::new("/"))?;

    let mut programs: Vec<PathBuf> = built.bins.clone();
    programs.extend(built.tests.values().cloned());
    let mut plain: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(&built.programs)? {
        plain.push(entry?.path());
    }
    for tool in TOOLS {
        plain.push(shell::find_in_path(tool).with_context(|| format!("{tool} is not in PATH"))?);
    }
    let guest_programs = ["redis-server", "redis-benchmark", "redis-cli", "sqlite3"];
    let needed: Vec<PathBuf> = programs
        .iter()
        .map(PathBuf::as_path)
        .chain(wanted.agent)
        .map(Path::to_owned)
        .chain(plain.iter().cloned())
        .chain(guest_programs.map(|name| fetched.guest.join("usr/bin").join(name)))
        .collect();
    for library in libraries(&needed, &fetched.guest)? {
        archive.copy(&library, &library)?;
    }
    let staged = path.with_extension("stripped");
    for program in &programs {
        // The tests know it by that path.
        if let Some(other) = wanted.agent.filter(|_| program == agent) {
            archive.copy(other, program)?;
            continue;
        }
        archive.copy(&stripped(program, &staged), program)?;
    }
    for program in &plain {
        archive.copy(program, program)?;
    }

    for name in ["passwd", "group", "nsswitch.conf", "os-release", "debian_version"] {
        let file = Path::new("/etc").join(name);
        archive.copy(&file, &file)?;
    }
    archive.bytes(Path::new("/etc/hosts"), 0o644, b"127.0.0.1 localhost\n")?;
    archive.folder(Path::new("/root"))?;
    archive.folder(&shell::root().join("tests"))?;
    let bins = agent.parent().context("an executable lies in a folder")?;
    let mut script = format!(
        "export LIMIT={} TITHE={} BIN={} CARGO_MANIFEST_DIR={} TITHE_PATIENCE={PATIENCE}\n",
        wanted.limit_s,
        agent.display(),
        bins.display(),
        shell::root().join("tests").display()
    );
    script.push_str(&steps::script(wanted.steps, |name| {
        let path = built.tests.get(name).with_context(|| format!("no test binary {name}"))?;
        Ok(path.display().to_string())
    })?);
    archive.bytes(Path::new("/vm/steps.sh"), 0o644, script.as_bytes())?;
    archive.bytes(Path::new("/init"), 0o755, INIT.as_bytes())?;
    archive.finish()?;
    Ok(())
}

/// The tests wait so many times longer for what must happen: a CPU in software is slow.
const PATIENCE: u32 = 10;

/// The shared libraries that these programs need, by their paths in the guest.
fn libraries(programs: &[PathBuf], guest: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for program in programs {
        let output = Command::new("ldd")
            .arg(program)
            .env("LD_LIBRARY_PATH", guest.join("usr/lib/x86_64-linux-gnu"))
            .stdin(Stdio::null())
            .output()
            .context("cannot start ldd")?;
        // It fails on what is no dynamic program: that needs nothing.
        let text = String::from_utf8_lossy(&output.stdout);
        for line in text.lines() {
            ensure!(
                !line.contains("not found"),
                "{} needs a library that is not here: {line}",
                program.display()
            );
            if let Some(path) = library(line).filter(|path| !path.starts_with(guest)) {
                found.insert(path);
            }
        }
    }
    Ok(found)
}

/// The path in a line of ldd: `name => /path (address)` or `/path (address)`.
fn library(line: &str) -> Option<PathBuf> {
    let path = line.split_once("=> ").map_or(line, |(_, path)| path).trim().split(" (").next()?;
    path.starts_with('/').then(|| PathBuf::from(path))
}

/// A copy without debug information, which is most of a debug build; the file itself where that cannot be made.
fn stripped(program: &Path, folder: &Path) -> PathBuf {
    let copy = folder.join(program.file_name().unwrap_or_default());
    let made = std::fs::create_dir_all(folder).is_ok()
        && Command::new("objcopy")
            .arg("--strip-debug")
            .args([program, &copy])
            .stdin(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
    if made { copy } else { program.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::library;
    use std::path::PathBuf;

    #[test]
    fn libraries_are_read_from_ldd() {
        let path = |line| library(line);
        assert_eq!(
            path("\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)"),
            Some(PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6"))
        );
        assert_eq!(
            path("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)"),
            Some(PathBuf::from("/lib64/ld-linux-x86-64.so.2"))
        );
        assert_eq!(path("\tlinux-vdso.so.1 (0x00007ffd)"), None);
        assert_eq!(path("\tstatically linked"), None);
    }
}
