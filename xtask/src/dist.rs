//! A prebuilt `tithe` that needs no library of the host: built, tried in an empty root, packed.
//!
//! Output, in `target/dist`: `tithe-VERSION-x86_64-linux.tar.gz` and its SHA-256. What is packed was tried before: a folder with the binary, `/proc`
//! and `/sys` and nothing else is its root there. It publishes nothing.
//!
//! glibc, linked statically, and not musl: the same code as in every other build, and no second C compiler. glibc's name service
//! (accounts) still loads the host's modules where `/etc/nsswitch.conf` names some; INSTALL says what that means.

use crate::{lock, shell};
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// `cargo xtask dist`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Do not try the binary (no root)
    #[arg(long)]
    pub no_trial: bool,
}

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A static program finds no symbols by name, so that the crate `getrandom` would take glibc for one without that call and read `/dev/urandom`, which
/// an empty root has not: it is told to use the call.
const FLAGS: &str = "-C target-feature=+crt-static --cfg getrandom_backend=\"linux_getrandom\"";

const INSTALL: &str = "Tithe, a profiler for running processes that keeps to a budget.

    sudo install -m755 tithe /usr/local/bin/
    sudo tithe doctor
    sudo tithe record --pid 1234 --budget 2% --duration 30s

Linux 5.15 or later (all promises from 6.10 on), x86-64, root. The program needs no library, and no file but itself, /proc and /sys.
Prices of this machine are measured at the first run, for some seconds, and kept in /var/cache/tithe, with what its kernel was found to
be able to do. `tithe doctor` finds that out again.

Under sudo, `tithe record -- COMMAND` starts the command as the account that called sudo. Accounts that do not stand in /etc/passwd (LDAP, systemd)
are looked up through the host's own modules, which may not fit a static program: then start the command yourself and use --pid.
";

/// Builds, tries and packs.
///
/// # Errors
///
/// If it cannot be built, is not static, or does not work in an empty root.
pub fn run(options: &Options) -> Result<()> {
    ensure!(
        options.no_trial || shell::can_be_root(),
        "the binary is tried as root: run it as root, let sudo work without a password, or use --no-trial"
    );
    // With --target the flags are not those of build scripts, which load plug-ins.
    shell::run(
        shell::cargo()
            .args([
                "build",
                "--locked",
                "--release",
                "-p",
                "profiler-user",
                "--bin",
                "tithe",
                "--target",
                TARGET,
            ])
            .env("RUSTFLAGS", FLAGS),
    )?;
    let built = shell::target_dir().join(TARGET).join("release/tithe");
    let folder = shell::target_dir().join("dist");
    let name = format!("tithe-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let stage = folder.join(&name);
    let root = folder.join("root");
    if root.exists() && shell::can_be_root() {
        // A trial that was killed could not remove its files, which are root's.
        remove_as_root(&root)?;
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| {
            format!("cannot remove {}; if root's files are in it: sudo rm -rf {0}", folder.display())
        })?;
    }
    std::fs::create_dir_all(&stage)?;
    let binary = stage.join("tithe");
    // Symbols stay: calibration finds its own functions by them.
    shell::run(Command::new("strip").arg("--strip-debug").arg("-o").arg(&binary).arg(&built))?;
    let bytes = std::fs::read(&binary)?;
    ensure!(!wants_interpreter(&bytes)?, "{} wants a dynamic linker", binary.display());
    if !options.no_trial {
        and_removed(&root, |root| trial(&binary, root), remove_as_root)?;
    }
    std::fs::write(stage.join("INSTALL"), INSTALL)?;
    for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
        std::fs::copy(shell::root().join(license), stage.join(license))?;
    }
    let archive = format!("{name}.tar.gz");
    // The same files give the same archive, but for gzip's version.
    shell::run(Command::new("tar").current_dir(&folder).args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mtime=@0",
        "-czf",
        &archive,
        &name,
    ]))?;
    let sum = lock::sha256(&std::fs::read(folder.join(&archive))?);
    std::fs::write(folder.join(format!("{archive}.sha256")), format!("{sum}  {archive}\n"))?;
    println!("{}: {sum}", folder.join(&archive).display());
    Ok(())
}

/// True if the kernel would look for a dynamic linker (ELF, 64 bits: a program header `PT_INTERP`).
fn wants_interpreter(elf: &[u8]) -> Result<bool> {
    const PT_INTERP: u32 = 3;
    let bytes = |at: usize, n: usize| elf.get(at..at + n).context("the binary is cut off");
    ensure!(bytes(0, 5)? == b"\x7fELF\x02", "the binary is no ELF file of 64 bits");
    let half = |at| Ok::<_, anyhow::Error>(usize::from(u16::from_le_bytes(bytes(at, 2)?.try_into()?)));
    // e_phoff, e_phentsize, e_phnum.
    let (start, size, n) =
        (usize::try_from(u64::from_le_bytes(bytes(32, 8)?.try_into()?))?, half(54)?, half(56)?);
    for i in 0..n {
        if u32::from_le_bytes(bytes(start + i * size, 4)?.try_into()?) == PT_INTERP {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What is watched in the trial; ended on every way out.
struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        // Both fail only if it has ended and been reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Root's files below a folder that is ours.
fn remove_as_root(root: &Path) -> Result<()> {
    shell::run(shell::as_root("rm", &[]).arg("-rf").arg(root))
        .with_context(|| format!("cannot remove {}", root.display()))
}

/// Does `work` in `root` and removes that folder, whatever came of it; the error of `work` goes first.
fn and_removed(
    root: &Path,
    work: impl FnOnce(&Path) -> Result<()>,
    remove: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let done = work(root);
    let removed = remove(root);
    done.and(removed)
}

/// Runs the binary with `root`, made anew, as its root: nothing there but itself, `/proc` and `/sys`.
fn trial(binary: &Path, root: &Path) -> Result<()> {
    for folder in ["proc", "sys"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    std::fs::copy(binary, root.join("tithe"))?;
    let busy = Busy(Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn()?);
    // Mounts of a mount namespace of its own end with it.
    let inside = |arguments: &str| -> Result<String> {
        let root = root.display();
        let script = format!(
            "mount --rbind /proc '{root}/proc' && mount --rbind /sys '{root}/sys' && exec chroot '{root}' /tithe {arguments}"
        );
        let mut command = shell::as_root("unshare", &[]);
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        let (status, lines) = shell::run_teed(&mut command)?;
        ensure!(status.success(), "in an empty root, tithe {arguments} failed with {status}");
        Ok(lines.join("\n"))
    };
    let version = inside("--version")?;
    ensure!(version.contains(env!("CARGO_PKG_VERSION")), "another version: {version}");
    inside("doctor")?;
    let report =
        inside(&format!("record --pid {} --budget 2% --duration 5s --force -o /run.tithe", busy.0.id()))?;
    let samples = report.lines().find_map(|line| {
        let before = line.split(" samples, budget").next().filter(|before| before.len() < line.len())?;
        before.rsplit(' ').next()?.replace(',', "").parse::<u64>().ok()
    });
    if samples.is_none_or(|n| n == 0) || !report.contains("Budget receipt") {
        bail!("in an empty root, record saw nothing");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_that_fails_leaves_nothing_behind() {
        let folder = shell::target_dir().join(format!("tmp-dist-{}", std::process::id()));
        let make = |root: &Path| Ok(std::fs::create_dir_all(root.join("proc"))?);
        let remove = |root: &Path| Ok(std::fs::remove_dir_all(root)?);
        let failed = |root: &Path| make(root).and_then(|()| bail!("the trial failed"));
        let error = and_removed(&folder, failed, remove).unwrap_err();
        assert_eq!((error.to_string().as_str(), folder.exists()), ("the trial failed", false));
        and_removed(&folder, make, remove).unwrap();
        assert!(!folder.exists());
        // What cannot be removed is said, but not instead of why the trial failed.
        let stuck = |_: &Path| bail!("stuck");
        assert_eq!(and_removed(&folder, |_| Ok(()), stuck).unwrap_err().to_string(), "stuck");
        let error = and_removed(&folder, |_| bail!("the trial failed"), stuck).unwrap_err();
        assert_eq!(error.to_string(), "the trial failed");
    }

    #[test]
    fn a_dynamic_linker_is_seen() {
        let mut elf = vec![0_u8; 64 + 2 * 56];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        (elf[32], elf[54], elf[56]) = (64, 56, 2);
        assert!(!wants_interpreter(&elf).unwrap());
        elf[64 + 56] = 3;
        assert!(wants_interpreter(&elf).unwrap());
        assert!(wants_interpreter(&elf[..100]).is_err());
        assert!(wants_interpreter(b"#!/bin/sh").is_err());
        // This test is linked as programs usually are.
        assert!(wants_interpreter(&std::fs::read("/proc/self/exe").unwrap()).unwrap());
    }
}
