//! The virtual machine: QEMU with a kernel, an archive of files, and two serial lines.
//!
//! The kernel's log goes to a file; the guest's programs write to the other line, which is our pipe.

use super::Accelerator;
use super::guest::{self, Results};
use crate::shell;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// What to boot.
pub struct Boot<'a> {
    /// Root of the unpacked emulator.
    pub qemu: &'a Path,
    /// Kernel image.
    pub kernel: &'a Path,
    /// Archive of the guest's files.
    pub initrd: &'a Path,
    /// MiB.
    pub memory_mib: u32,
    /// The kernel's log.
    pub console: &'a Path,
}

/// A running machine; ended on drop.
pub struct Machine {
    child: Child,
    lines: Receiver<String>,
    accel: &'static str,
    /// Lines that were read while it was waited for.
    first: Vec<String>,
}

/// With hardware a kernel speaks within a second or two. Some hosts have a /dev/kvm that runs no ordinary kernel: then it never does.
const FIRST_WORD: Duration = Duration::from_secs(20);
/// In software: unpacking some hundred MiB of files takes most of it.
const FIRST_WORD_SOFTWARE: Duration = Duration::from_secs(300);

/// Boots, and waits for the guest's first word.
///
/// # Errors
///
/// If it does not come.
pub fn start(boot: &Boot<'_>, accel: Accelerator) -> Result<Machine> {
    if accel != Accelerator::Tcg {
        let tried = spawn(boot, "kvm").and_then(|mut machine| {
            machine.wait_console(boot.console, FIRST_WORD)?;
            machine.wait_first(FIRST_WORD_SOFTWARE)?;
            Ok(machine)
        });
        match tried {
            Ok(machine) => return Ok(machine),
            Err(error) if accel == Accelerator::Auto => {
                eprintln!(
                    "KVM does not run this kernel here ({error:#}): in software, which is 10 to 30 times slower"
                );
            }
            Err(error) => return Err(error),
        }
    }
    let mut machine = spawn(boot, "tcg")?;
    machine.wait_first(FIRST_WORD_SOFTWARE)?;
    Ok(machine)
}

fn spawn(boot: &Boot<'_>, accel: &'static str) -> Result<Machine> {
    let library = |folder: &str| boot.qemu.join(folder).display().to_string();
    let libraries = [library("usr/lib/x86_64-linux-gnu"), library("lib/x86_64-linux-gnu")].join(":");
    File::create(boot.console)?;
    let mut command = Command::new(boot.qemu.join("usr/bin/qemu-system-x86_64"));
    command
        .env("LD_LIBRARY_PATH", libraries)
        .args(["-accel", if accel == "tcg" { "tcg,thread=multi" } else { accel }])
        .args(["-machine", "q35", "-cpu", "max", "-smp", "2", "-m", &format!("{}M", boot.memory_mib)])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none"])
        .arg("-L")
        .arg(boot.qemu.join("usr/share/qemu"))
        .arg("-L")
        .arg(boot.qemu.join("usr/share/seabios"))
        .args(["-serial", &format!("file:{}", boot.console.display()), "-serial", "stdio"])
        .arg("-kernel")
        .arg(boot.kernel)
        .arg("-initrd")
        .arg(boot.initrd)
        .args(["-append", "console=ttyS0 panic=-1 loglevel=6 no_timer_check lpj=10000000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    shell::say(&command);
    let mut child = command.spawn().context("cannot start QEMU")?;
    let output = child.stdout.take().context("stdout was piped")?;
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
            // The receiver goes first only when the machine is given up.
            if send.send(line).is_err() {
                return;
            }
        }
    });
    Ok(Machine { child, lines, accel, first: Vec::new() })
}

impl Machine {
    /// "kvm" or "tcg".
    pub fn accel(&self) -> &'static str {
        self.accel
    }

    /// Reads what the guest says to its end, which is its own power-off.
    ///
    /// # Errors
    ///
    /// If it falls silent, or ends without its last word.
    pub fn follow(mut self, folder: &Path, silence: Duration) -> Result<Results> {
        let mut results = Results::new(folder);
        for line in std::mem::take(&mut self.first) {
            results.line(&line)?;
        }
        loop {
            match self.lines.recv_timeout(silence) {
                Ok(line) => results.line(&line)?,
                Err(RecvTimeoutError::Timeout) => {
                    results.cut(&format!("the guest said nothing for {} s", silence.as_secs()));
                    return Ok(results);
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if !results.is_complete() {
            results.cut("the guest ended early; its kernel's log may say why");
        }
        Ok(results)
    }

    /// Waits until the kernel has written something.
    fn wait_console(&mut self, console: &Path, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if std::fs::metadata(console).is_ok_and(|metadata| metadata.len() > 0) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("QEMU ended with {status}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("no word of it within {} s", limit.as_secs())
    }

    /// Waits for the guest's first line.
    fn wait_first(&mut self, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    let begun = guest::is_marker(&line);
                    self.first.push(line);
                    if begun {
                        return Ok(());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the guest did not start within {} s", limit.as_secs())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    bail!("QEMU ended with {status}: {}", self.first.join(" "));
                }
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both fail only if it has ended and been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
