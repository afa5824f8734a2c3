//! The BPF toolchain: a rustc that has `core` for BPF, bpf-linker, and llvm-objcopy of one LLVM.
//!
//! On Debian it is installed (packages, and bpf-linker into the target folder); with a rustup nightly that has
//! rust-src, that is used. Elsewhere there is none, and the committed object serves.

use crate::{apt, shell};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The linker's version is part of what the object is made with.
const LINKER_VERSION: &str = "0.13.0";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "libstd-rust-web-dev-bpf"];

/// Tools that can build the object.
#[derive(Debug, Clone)]
pub struct Toolchain {
    pub rustc: PathBuf,
    pub cargo: PathBuf,
    /// More arguments for `cargo build`.
    pub cargo_arguments: Vec<String>,
    pub linker: PathBuf,
    pub objcopy: PathBuf,
}

/// A toolchain, or why there is none.
pub enum Found {
    Toolchain(Toolchain),
    Missing(String),
}

/// Finds a toolchain; with `install`, brings in what is missing where that is possible.
///
/// # Errors
///
/// If an installation was tried and failed.
pub fn find(install: bool) -> Result<Found> {
    if debian_rustc_knows_bpf() {
        return complete(Path::new(DEBIAN_RUSTC).into(), Path::new(DEBIAN_CARGO).into(), vec![], install);
    }
    if let Some((rustc, cargo)) = nightly_with_source() {
        let arguments = vec!["-Z".to_owned(), "build-std=core".to_owned()];
        return complete(rustc, cargo, arguments, install);
    }
    if !apt::is_here() {
        return Ok(Found::Missing("no apt-get, and no rustup nightly with rust-src".to_owned()));
    }
    if !install {
        return Ok(Found::Missing(format!("{} are not installed", DEBIAN_PACKAGES.join(" "))));
    }
    if !shell::can_be_root() {
        return Ok(Found::Missing("not root, and sudo asks for a password".to_owned()));
    }
    eprintln!("The BPF toolchain is missing.");
    if let Err(error) = apt::install(&DEBIAN_PACKAGES) {
        return Ok(Found::Missing(format!("{error:#}: this release may not have the packages")));
    }
    ensure!(debian_rustc_knows_bpf(), "{DEBIAN_RUSTC} has no core for bpfel-unknown-none after installing");
    complete(Path::new(DEBIAN_RUSTC).into(), Path::new(DEBIAN_CARGO).into(), vec![], install)
}

/// Adds the linker and objcopy of the compiler's own LLVM.
fn complete(rustc: PathBuf, cargo: PathBuf, cargo_arguments: Vec<String>, install: bool) -> Result<Found> {
    let major = llvm_major(&rustc)?;
    let llvm = PathBuf::from(format!("/usr/lib/llvm-{major}"));
    if objcopy(major).is_none() || (linker().is_none() && !llvm.join("include/llvm-c").is_dir()) {
        if !(install && apt::is_here() && shell::can_be_root()) {
            return Ok(Found::Missing(format!(
                "LLVM {major} with its headers and llvm-objcopy is not installed"
            )));
        }
        eprintln!("{} is built on LLVM {major}: bpf-linker needs that.", rustc.display());
        let mut packages: Vec<String> =
            ["llvm-MAJOR-dev", "clang-MAJOR", "libpolly-MAJOR-dev", "libzstd-dev", "zlib1g-dev"]
                .iter()
                .map(|package| package.replace("MAJOR", &major.to_string()))
                .collect();
        packages.push("build-essential".to_owned());
        if let Err(error) = apt::install(&packages) {
            return Ok(Found::Missing(format!("{error:#}")));
        }
    }
    if linker().is_none() {
        if !install {
            return Ok(Found::Missing(format!("bpf-linker {LINKER_VERSION} is not installed")));
        }
        install_linker(major, &llvm)?;
    }
    let linker = linker().context("bpf-linker is missing after its installation")?;
    let objcopy = objcopy(major).with_context(|| format!("no llvm-objcopy of LLVM {major}"))?;
    Ok(Found::Toolchain(Toolchain { rustc, cargo, cargo_arguments, linker, objcopy }))
}

fn install_linker(major: u32, llvm: &Path) -> Result<()> {
    let folder = linker_root();
    eprintln!("Building bpf-linker {LINKER_VERSION} into {} (about a minute).", folder.display());
    shell::run(
        shell::cargo()
            .args(["install", "bpf-linker", "--version", LINKER_VERSION, "--no-default-features", "--locked"])
            .arg("--features")
            .arg(format!("llvm-{major}"))
            .arg("--root")
            .arg(&folder)
            .env("LLVM_PREFIX", llvm)
            // llvm-sys names its versions by major and minor: 22.1 is 221.
            .env(format!("LLVM_SYS_{major}1_PREFIX"), llvm),
    )
}

/// Debian's rustc, with `core` compiled for BPF beside it.
fn debian_rustc_knows_bpf() -> bool {
    let Ok(folder) = shell::output(Command::new(DEBIAN_RUSTC).args([
        "--print",
        "target-libdir",
        "--target",
        "bpfel-unknown-none",
    ])) else {
        return false;
    };
    let has_core = std::fs::read_dir(folder.trim()).is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libcore-"))
    });
    has_core && Path::new(DEBIAN_CARGO).is_file()
}

/// The rustc and cargo of a rustup nightly that has the standard library's source.
fn nightly_with_source() -> Option<(PathBuf, PathBuf)> {
    let which = |tool: &str| {
        let path =
            shell::output(Command::new("rustup").args(["which", "--toolchain", "nightly", tool])).ok()?;
        Some(PathBuf::from(path.trim()))
    };
    let rustc = which("rustc")?;
    let sysroot = shell::output(Command::new(&rustc).args(["--print", "sysroot"])).ok()?;
    let source = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core");
    source.is_dir().then_some(())?;
    Some((rustc, which("cargo")?))
}

/// The LLVM that a rustc is built on: `LLVM version: 22.1.2` is 22.
fn llvm_major(rustc: &Path) -> Result<u32> {
    let text = shell::output(Command::new(rustc).arg("-vV"))?;
    parse_llvm_major(&text).with_context(|| format!("{} -vV names no LLVM version", rustc.display()))
}

fn parse_llvm_major(text: &str) -> Option<u32> {
    let version = text.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    version.split('.').next()?.trim().parse().ok()
}

fn linker_root() -> PathBuf {
    shell::target_dir().join("bpf-toolchain")
}

/// Our own bpf-linker, or one of the right version in `PATH`.
fn linker() -> Option<PathBuf> {
    [Some(linker_root().join("bin/bpf-linker")), shell::find_in_path("bpf-linker")]
        .into_iter()
        .flatten()
        .filter(|path| path.is_file())
        .find(|path| {
            let version = Command::new(path).arg("--version").stdin(Stdio::null()).output();
            version.is_ok_and(|output| {
                String::from_utf8_lossy(&output.stdout).trim() == format!("bpf-linker {LINKER_VERSION}")
            })
        })
}

fn objcopy(major: u32) -> Option<PathBuf> {
    shell::first_file([PathBuf::from(format!("/usr/lib/llvm-{major}/bin/llvm-objcopy"))])
        .or_else(|| shell::find_in_path(&format!("llvm-objcopy-{major}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_llvm_major_is_read_from_rustc() {
        let text = "rustc 1.96.0 (abc 2026-01-01)\nhost: x86_64-unknown-linux-gnu\nLLVM version: 22.1.2\n";
        assert_eq!(parse_llvm_major(text), Some(22));
        assert_eq!(parse_llvm_major("rustc 1.96.0"), None);
    }
}
