//! Running commands: where the checkout is, as whom, and with which part of the environment.

use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// The root of the checkout: the folder above this package.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("xtask lies in the checkout").to_owned()
}

/// Where cargo puts what it builds, and where xtask keeps its own things.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |path| root().join(path))
}

/// The cargo that runs this xtask, in the root of the checkout.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).stdin(Stdio::null());
    // Set by the `cargo run` that started us; the packages we build are others.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// True if this process runs as root.
pub fn is_root() -> bool {
    // The owner of /proc/self is the effective user.
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// True if sudo works without asking: nothing here may wait for a password.
pub fn has_sudo() -> bool {
    Command::new("sudo")
        .args(["-n", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Root, or a way to become it.
pub fn can_be_root() -> bool {
    is_root() || has_sudo()
}

/// A command that runs as root: itself if we are root, else through sudo. `environment` is passed on by name, for
/// sudo drops it.
pub fn as_root(program: impl AsRef<OsStr>, environment: &[(&str, &str)]) -> Command {
    let mut command = if is_root() {
        Command::new("env")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "env"]);
        sudo
    };
    command.args(environment.iter().map(|(name, value)| format!("{name}={value}")));
    command.arg(program).current_dir(root()).stdin(Stdio::null());
    command
}

/// True where what cannot run is a failure: with `REQUIRE_KERNEL=1`, and in CI unless `REQUIRE_KERNEL` says otherwise.
pub fn skips_are_forbidden() -> bool {
    let value = |name| std::env::var(name).ok();
    forbids_skips(value("REQUIRE_KERNEL").as_deref(), value("CI").as_deref())
}

/// True in CI.
pub fn is_ci() -> bool {
    says_ci(std::env::var("CI").ok().as_deref())
}

fn says_ci(ci: Option<&str>) -> bool {
    ci.is_some_and(|value| !matches!(value, "" | "0" | "false"))
}

fn forbids_skips(require_kernel: Option<&str>, ci: Option<&str>) -> bool {
    match require_kernel {
        Some(value) => value == "1",
        None => says_ci(ci),
    }
}

/// Prints a command as one would type it.
pub fn say(command: &Command) {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    eprintln!("$ {}", words.join(" "));
}

/// Prints and runs a command.
///
/// # Errors
///
/// If it cannot be started or fails.
pub fn run(command: &mut Command) -> Result<()> {
    say(command);
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "{program} failed with {status}");
    Ok(())
}

/// Runs a command quietly and returns its standard output.
///
/// # Errors
///
/// If it cannot be started, fails (the message has its standard error), or prints no UTF-8.
pub fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {program}"))?;
    ensure!(
        output.status.success(),
        "{program} failed with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed no UTF-8"))
}

/// Prints and runs a command; its output is shown as it comes and returned line by line.
///
/// # Errors
///
/// If it cannot be started. A failure is in the returned status.
pub fn run_teed(command: &mut Command) -> Result<(ExitStatus, Vec<String>)> {
    say(command);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let stdout = child.stdout.take().context("stdout was piped")?;
    let stderr = child.stderr.take().context("stderr was piped")?;
    let lines = std::thread::scope(|scope| {
        let errors = scope.spawn(|| tee(stderr, std::io::stderr()));
        let mut lines = tee(stdout, std::io::stdout());
        lines.extend(errors.join().unwrap_or_default());
        lines
    });
    Ok((child.wait()?, lines))
}

fn tee(from: impl Read, mut to: impl Write) -> Vec<String> {
    let mut lines = Vec::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        // If our reader has gone the command goes on all the same.
        let _ = writeln!(to, "{line}").and_then(|()| to.flush());
        lines.push(line);
    }
    lines
}

/// The first of these that is a file.
pub fn first_file<I: IntoIterator<Item = PathBuf>>(candidates: I) -> Option<PathBuf> {
    candidates.into_iter().find(|path| path.is_file())
}

/// Where a program lies in `PATH`.
pub fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    first_file(std::env::split_paths(&path).map(|folder| folder.join(program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ci_forbids_skips_unless_it_says_otherwise() {
        assert!(forbids_skips(Some("1"), None) && forbids_skips(None, Some("true")));
        assert!(!forbids_skips(None, None) && !forbids_skips(None, Some("false")));
        assert!(!forbids_skips(Some("0"), Some("true")));
    }
}
