//! The house rules, format, clippy, rustdoc, the source invariants, and README's first screen.

use crate::{house, readme, shell};
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

/// Which of them run.
#[derive(Debug, Default, clap::Args)]
pub struct Options {
    /// The house rules only: sizes, circles of imports, what may stand where (builds nothing, under 5 s)
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

/// Clippy and rustdoc, which run beside other work.
pub struct Begun(Option<JoinHandle<Result<String>>>);

/// Begins clippy and rustdoc beside other work, in the class of what runs when nobody else does (`SCHED_IDLE`); what they say is kept.
pub fn begin() -> Begun {
    let all = || {
        let mut said = String::new();
        for mut command in builds() {
            shell::say(&command);
            if let Some(chrt) = shell::find_in_path("chrt") {
                command = idle(&chrt, &command);
            }
            let output = command.stdin(Stdio::null()).output().context("cannot start cargo")?;
            said += &String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{said}\nlint failed with {}", output.status);
        }
        Ok(said)
    };
    Begun(Some(std::thread::spawn(all)))
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

impl Begun {
    /// Waits for them.
    ///
    /// # Errors
    ///
    /// If one of them finds something.
    fn finish(mut self) -> Result<()> {
        let Some(thread) = self.0.take() else { return Ok(()) };
        let said = thread.join().unwrap_or_else(|_| bail!("the thread of clippy and rustdoc panicked"))?;
        eprint!("{said}");
        Ok(())
    }
}

/// No compiler outlives the command.
impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

/// Runs all of them; the first that fails ends it.
///
/// # Errors
///
/// If one finds something.
pub fn run(options: &Options) -> Result<()> {
    house::run()?;
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

/// All of them, of which clippy and rustdoc were begun before.
///
/// # Errors
///
/// If one finds something.
pub fn finish(begun: Option<Begun>) -> Result<()> {
    let Some(begun) = begun else { return run(&Options::default()) };
    house::run()?;
    format()?;
    begun.finish()?;
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
