//! The house rules, the object's lock, format, clippy, rustdoc, the source invariants, and README's first screen.

use crate::{ebpf, house, readme, shell};
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

/// Which of them run.
#[derive(Debug, Default, clap::Args)]
pub struct Options {
    /// The house rules only: sizes, circles of imports, what may stand where, the object's lock (builds nothing, under 5 s)
    #[arg(long)]
    pub house: bool,
}

/// Clippy and rustdoc: most of the time, all of it compilers'.
fn builds() -> [Command; 2] {
    let mut clippy = shell::cargo();
    clippy.args(["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    let mut doc = shell::cargo();
    doc.args(["doc", "--locked", "--workspace", "--no-deps", "--document-private-items"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    [clippy, doc]
}

/// Clippy and rustdoc beside other work, in the class of what runs when nobody else does (`SCHED_IDLE`).
#[derive(Default)]
pub struct Beside {
    thread: Option<JoinHandle<Result<String>>>,
    /// What came of it: what they said.
    done: Option<Result<String>>,
}

impl Beside {
    /// Begins them, unless that is done. Not without `chrt`; nor beside tests that sudo starts in a session of their own, since such classes
    /// rank within a session only (autogroup, sched(7)). Then [`finish`] runs them.
    pub fn begin(&mut self) {
        if self.thread.is_some() || self.done.is_some() || !shell::is_root() {
            return;
        }
        self.thread = shell::find_in_path("chrt").map(|chrt| std::thread::spawn(move || all_idle(&chrt)));
    }

    /// Waits for them: what comes now is not to run beside compilers.
    pub fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            let result = thread.join().unwrap_or_else(|_| bail!("the thread of clippy and rustdoc panicked"));
            self.done = Some(result);
        }
    }
}

/// No compiler outlives the command, and what one found is said whatever else failed.
impl Drop for Beside {
    fn drop(&mut self) {
        self.wait();
        if let Some(Err(error)) = &self.done {
            eprintln!("lint: {error:#}");
        }
    }
}

fn all_idle(chrt: &Path) -> Result<String> {
    let mut said = String::new();
    for command in builds() {
        shell::say(&command);
        let output = idle(chrt, &command).stdin(Stdio::null()).output().context("cannot start chrt")?;
        said += &String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{said}\n{command:?} failed with {}", output.status);
    }
    Ok(said)
}

/// The same command, started by `chrt`.
fn idle(chrt: &Path, command: &Command) -> Command {
    let mut idle = Command::new(chrt);
    idle.args(["--idle", "0"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => idle.env(name, value),
            None => idle.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        idle.current_dir(folder);
    }
    idle
}

/// Runs all of them; the first that fails ends it.
///
/// # Errors
///
/// If one finds something.
pub fn run(options: &Options) -> Result<()> {
    house::run()?;
    // A comment in profiler-common makes the lock stale, and nothing else would say so before CI.
    ebpf::check_inputs()?;
    if options.house {
        println!("house rules: kept");
        return Ok(());
    }
    format()?;
    for mut command in builds() {
        shell::run(&mut command)?;
    }
    rest()
}

/// All of them, of which clippy and rustdoc may have run before.
///
/// # Errors
///
/// If one finds something.
pub fn finish(mut beside: Beside) -> Result<()> {
    beside.wait();
    match beside.done.take() {
        None => return run(&Options::default()),
        Some(said) => eprint!("{}", said?),
    }
    house::run()?;
    format()?;
    rest()
}

fn format() -> Result<()> {
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))?;
    // Not a member of the workspace, and built by another compiler: only its format can be checked here.
    shell::run(shell::cargo().args(["fmt", "--manifest-path", "profiler-ebpf/Cargo.toml", "--check"]))
}

/// The source invariants, and README's first screen.
fn rest() -> Result<()> {
    // As the tests are built: another selection has other features, and compiles anew.
    let offline = ["test", "--locked", "--quiet", "--workspace", "--test", "offline"];
    shell::run(shell::cargo().args(offline))?;
    readme::run(&readme::Options { check: true })?;
    println!("lint: clean");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_beside_other_work_is_the_same_command() {
        let [_, doc] = builds();
        let idle = idle(Path::new("/usr/bin/chrt"), &doc);
        let words: Vec<_> = idle.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(words[..2], ["--idle", "0"]);
        assert_eq!(words[2], doc.get_program().to_string_lossy());
        assert!(words[3..].iter().map(String::as_str).eq(doc.get_args().map(|a| a.to_str().unwrap())));
        assert!(idle.get_envs().eq(doc.get_envs()) && idle.get_current_dir() == doc.get_current_dir());
    }
}
