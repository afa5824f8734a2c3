//! Debian packages, unpacked below the target folder and never installed.

use crate::shell;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The emulator and what it depends on; a shell for the guest; two programs that nobody here wrote, as targets.
const EMULATOR: &str = "qemu-system-x86";
const GUEST: [&str; 3] = ["busybox-static", "redis-server", "sqlite3"];

/// What was unpacked.
pub struct Fetched {
    /// Root of the emulator's files.
    pub qemu: PathBuf,
    /// Root of the guest's packages.
    pub guest: PathBuf,
    /// The kernel.
    pub vmlinuz: PathBuf,
}

/// The first package that `package` depends on whose name starts so.
///
/// # Errors
///
/// If apt knows none.
pub fn dependency(package: &str, prefix: &str) -> Result<String> {
    let text = shell::output(Command::new("apt-cache").args(["depends", package]))?;
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with(prefix))
        .map(str::to_owned)
        .with_context(|| format!("apt knows no {prefix}* that {package} depends on: `sudo apt-get update`"))
}

/// Downloads and unpacks the kernel, the emulator and the guest's programs, unless they are there.
///
/// # Errors
///
/// If apt cannot get one, or it cannot be unpacked.
pub fn fetch(folder: &Path, kernel: &str) -> Result<Fetched> {
    for tool in ["apt-get", "dpkg-deb"] {
        ensure!(shell::find_in_path(tool).is_some(), "{tool} is missing: this command needs a Debian system");
    }
    let root = folder.join("kernel").join(kernel);
    unpacked(&root, &[kernel.to_owned()])?;
    let vmlinuz = std::fs::read_dir(root.join("boot"))
        .with_context(|| format!("{kernel} has no /boot"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")))
        .with_context(|| format!("{kernel} has no vmlinuz"))?;
    let qemu = folder.join("qemu");
    unpacked(&qemu, &with_dependencies(&[EMULATOR])?)?;
    let guest = folder.join("guest");
    unpacked(&guest, &with_dependencies(&GUEST)?)?;
    Ok(Fetched { qemu, guest, vmlinuz })
}

/// These packages and all that this machine lacks for them.
fn with_dependencies(packages: &[&str]) -> Result<Vec<String>> {
    let mut simulate = Command::new("apt-get");
    simulate.args(["-q", "-s", "install", "--reinstall", "--no-install-recommends"]).args(packages);
    let text = shell::output(&mut simulate)?;
    let mut names: Vec<String> = packages.iter().map(|&name| name.to_owned()).collect();
    names.extend(text.lines().filter_map(installs).map(str::to_owned));
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// The package of a line `Inst NAME (VERSION …)`.
fn installs(line: &str) -> Option<&str> {
    line.strip_prefix("Inst ")?.split(' ').next()
}

/// Downloads packages and unpacks them into `root`; the mark is written last.
fn unpacked(root: &Path, packages: &[String]) -> Result<()> {
    let mark = root.join(".unpacked");
    let wanted = packages.join(" ");
    if std::fs::read_to_string(&mark).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    if root.exists() {
        std::fs::remove_dir_all(root)?;
    }
    let archives = root.join(".archives");
    std::fs::create_dir_all(&archives)?;
    shell::run(
        Command::new("apt-get")
            // As root apt would hand the work to a user that cannot write here, and say so.
            .args(["-q", "-o", "APT::Sandbox::User=root", "download"])
            .args(packages)
            .current_dir(&archives),
    )
    .context("cannot download; `sudo apt-get update` renews apt's lists")?;
    for entry in std::fs::read_dir(&archives)? {
        let path = entry?.path();
        shell::output(Command::new("dpkg-deb").arg("-x").arg(&path).arg(root))?;
    }
    std::fs::remove_dir_all(&archives)?;
    std::fs::write(&mark, wanted)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::installs;

    #[test]
    fn packages_are_read_from_a_simulated_installation() {
        assert_eq!(installs("Inst libfdt1 (1.6.1-4+b1 Debian:12.15/oldstable [amd64])"), Some("libfdt1"));
        assert_eq!(installs("Inst redis-server [5:7.0] (5:7.0 Debian:12 [amd64])"), Some("redis-server"));
        assert_eq!(installs("Conf libfdt1 (1.6.1-4+b1 Debian:12.15/oldstable [amd64])"), None);
    }
}
