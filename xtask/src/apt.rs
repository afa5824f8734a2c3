//! Debian packages: installing them while others use apt, too.
//!
//! apt has four locks. `DPkg::Lock::Timeout` waits for dpkg's two; the ones of the package lists (`apt-get update`)
//! and of the downloaded archives make apt 2.6 fail at once. After such a failure the command runs again, until
//! [`LOCK_LIMIT`] is over. It does not remove packages, and it ends no process that holds a lock.

use crate::shell;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Once;
use std::time::{Duration, Instant};

/// Longest wait for another package manager. unattended-upgrades takes minutes.
const LOCK_LIMIT: Duration = Duration::from_secs(600);
/// Time between two tries.
const PAUSE: Duration = Duration::from_secs(2);

/// True where apt-get can bring packages.
pub fn is_here() -> bool {
    Path::new("/etc/debian_version").exists() && shell::find_in_path("apt-get").is_some()
}

/// Installs packages as root. It says which, renews the lists once in this process, and removes no package.
///
/// # Errors
///
/// If apt-get cannot be started or fails, or a lock is held for longer than ten minutes.
pub fn install<P: AsRef<str>>(packages: &[P]) -> Result<()> {
    eprintln!("Installing {} (Debian packages).", words(packages));
    renew_lists();
    waiting(|left| {
        let mut command = as_root(left);
        // --no-remove: rather no package of ours than one of the user's gone.
        command.args(["install", "-y", "-q", "--no-install-recommends", "--no-remove"]);
        command.args(packages.iter().map(AsRef::as_ref));
        command
    })
}

/// `apt-get update`, once in this process. Where it fails (no network) the lists that are there serve.
fn renew_lists() {
    static RENEWED: Once = Once::new();
    RENEWED.call_once(|| {
        let renewed = waiting(|left| {
            let mut command = as_root(left);
            command.args(["update", "-q"]);
            command
        });
        if let Err(error) = renewed {
            eprintln!("apt-get update failed ({error:#}): the package lists may be old");
        }
    });
}

fn as_root(left: Duration) -> Command {
    // LC_ALL: the messages about locks are read.
    let mut command = shell::as_root("apt-get", &[("DEBIAN_FRONTEND", "noninteractive"), ("LC_ALL", "C")]);
    command.args(options(left));
    command
}

fn options(left: Duration) -> [String; 2] {
    ["-o".to_owned(), format!("DPkg::Lock::Timeout={}", left.as_secs().max(1))]
}

fn words<P: AsRef<str>>(packages: &[P]) -> String {
    packages.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ")
}

/// Runs a command, made for the time that is left, until no lock is in its way.
fn waiting(mut command: impl FnMut(Duration) -> Command) -> Result<()> {
    let start = Instant::now();
    let left = || LOCK_LIMIT.saturating_sub(start.elapsed());
    until_unlocked(left, || shell::run_teed(&mut command(left())), std::thread::sleep)
}

/// Repeats `run` while another process holds a lock and time is `left`. It says once who holds which lock.
fn until_unlocked(
    left: impl Fn() -> Duration,
    mut run: impl FnMut() -> Result<(ExitStatus, Vec<String>)>,
    sleep: impl Fn(Duration),
) -> Result<()> {
    let mut told = None;
    loop {
        let (status, lines) = run()?;
        if status.success() {
            return Ok(());
        }
        let Some(lock) = held_lock(&lines) else { bail!("apt-get failed with {status}") };
        if left().is_zero() {
            bail!(
                "apt-get waited {} s and its lock is still held ({lock}); run the command again when that process has ended",
                LOCK_LIMIT.as_secs()
            );
        }
        if told.as_ref() != Some(&lock) {
            println!("waiting up to {} s for another package manager: {lock}", left().as_secs());
            told = Some(lock);
        }
        sleep(PAUSE);
    }
}

/// What apt-get says about a lock that made it fail: `Could not get lock FILE. It is held by process PID (NAME)`.
fn held_lock(lines: &[String]) -> Option<String> {
    let errors = || lines.iter().filter_map(|line| line.strip_prefix("E: "));
    let named = errors().find(|error| error.starts_with("Could not get lock "));
    named.or_else(|| errors().find(|error| error.contains("is another process using it"))).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::os::unix::process::ExitStatusExt;

    const LISTS: &str = "Reading package lists...\nE: Could not get lock /var/lib/apt/lists/lock. It is held by process 18080 (python3)\nE: Unable to lock directory /var/lib/apt/lists/";
    const WAITED: &str = "Waiting for cache lock: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (dpkg)...\nE: Unable to locate package no-such";

    /// Answers of apt-get in turn (exit status, text), and what came of them: the result, runs and pauses.
    fn after(answers: &[(i32, &str)], limit: u64) -> (Result<()>, usize, Duration) {
        let (runs, slept) = (Cell::new(0), RefCell::new(Duration::ZERO));
        let result = until_unlocked(
            || Duration::from_secs(limit).saturating_sub(*slept.borrow()),
            || {
                let (code, text) = answers[runs.get().min(answers.len() - 1)];
                runs.set(runs.get() + 1);
                Ok((ExitStatus::from_raw(code << 8), text.lines().map(str::to_owned).collect()))
            },
            |pause| *slept.borrow_mut() += pause,
        );
        (result, runs.get(), slept.into_inner())
    }

    #[test]
    fn a_held_lock_is_waited_for() {
        let (result, runs, slept) = after(&[(100, LISTS), (100, LISTS), (0, "")], 60);
        assert!(result.is_ok());
        assert_eq!((runs, slept), (3, 2 * PAUSE));
    }

    #[test]
    fn a_lock_that_is_held_for_ever_fails_and_is_named() {
        let (result, runs, slept) = after(&[(100, LISTS)], 5);
        let error = result.unwrap_err().to_string();
        assert!(error.contains("/var/lib/apt/lists/lock. It is held by process 18080 (python3)"), "{error}");
        assert_eq!((runs, slept), (4, 3 * PAUSE));
    }

    #[test]
    fn another_failure_is_not_repeated() {
        // It waited for dpkg's lock by itself, and got it.
        let (result, runs, _) = after(&[(100, WAITED), (0, "")], 60);
        assert!(result.unwrap_err().to_string().contains("exit status: 100"));
        assert_eq!(runs, 1);
    }

    #[test]
    fn older_words_for_a_held_lock_are_known() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let frontend = "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?";
        assert!(held_lock(&lines(frontend)).is_some_and(|lock| lock.contains("lock-frontend")));
        assert_eq!(held_lock(&lines(WAITED)), None);
        assert_eq!(held_lock(&lines("")), None);
    }
}
