//! Builds the eBPF object, and checks that the committed copy is what its sources give.

use crate::lock::{self, Lock};
use crate::shell;
use crate::toolchain::{self, Found, Toolchain};
use anyhow::{Context, Result, bail, ensure};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BPF_TARGET: &str = "bpfel-unknown-none";
/// What is skipped without a toolchain.
pub const REBUILD: &str = "rebuild of the eBPF object";
const MEND: &str =
    "run `cargo xtask build-ebpf` and commit profiler-ebpf/tithe.bpf.o and profiler-ebpf/object.lock";

/// `cargo xtask build-ebpf`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Change nothing: fail if the committed object is not what its sources give
    #[arg(long)]
    pub check: bool,
    /// Use only tools that are there
    #[arg(long)]
    pub no_install: bool,
}

/// What a check found.
#[derive(Debug, PartialEq, Eq)]
pub enum Rebuilt {
    /// The same bytes from the same tools.
    Same,
    /// Other tools than the lock's: their object lies at this path.
    OtherTools(PathBuf),
    /// No toolchain here, and why.
    Skipped(String),
}

/// Runs the command.
///
/// # Errors
///
/// If the object is stale, or cannot be built.
pub fn run(options: &Options) -> Result<()> {
    if options.check {
        if let Rebuilt::Skipped(reason) = check(!options.no_install)? {
            println!("SKIP {REBUILD}: {reason}");
            ensure!(
                !shell::skips_are_forbidden(),
                "{REBUILD} was skipped, which REQUIRE_KERNEL=1 and CI forbid"
            );
        }
        return Ok(());
    }
    let tools = match toolchain::find(!options.no_install)? {
        Found::Toolchain(tools) => tools,
        Found::Missing(reason) => bail!("no BPF toolchain: {reason}"),
    };
    let built = build(&tools)?;
    let bytes = std::fs::read(&built)?;
    let lock = Lock {
        object: lock::sha256(&bytes),
        inputs: lock::hash_inputs(&shell::root())?,
        tools: lock::tool_versions(&tools)?,
    };
    std::fs::write(object_path(), &bytes)
        .with_context(|| format!("cannot write {}", object_path().display()))?;
    std::fs::write(lock_path(), lock.to_text())?;
    eprintln!("{}: {} bytes, sha256 {}", object_path().display(), bytes.len(), lock.object);
    Ok(())
}

/// Compares the inputs with what the lock says of them: builds nothing.
///
/// # Errors
///
/// If they differ; the message has the command that mends it.
pub fn check_inputs() -> Result<Lock> {
    let text = std::fs::read_to_string(lock_path())
        .with_context(|| format!("no {}; {MEND}", lock_path().display()))?;
    let lock = Lock::parse(&text)?;
    let inputs = lock::hash_inputs(&shell::root())?;
    ensure!(
        inputs == lock.inputs,
        "the committed eBPF object is stale: its inputs are {inputs}, the lock has {}; {MEND}",
        lock.inputs
    );
    Ok(lock)
}

/// Compares the committed object with its lock, its inputs, and (same tools) with what they give now.
///
/// # Errors
///
/// If it is stale or differs; the message has the command that mends it.
pub fn check(install: bool) -> Result<Rebuilt> {
    let lock = check_inputs()?;
    let committed =
        std::fs::read(object_path()).with_context(|| format!("cannot read {}", object_path().display()))?;
    let object = lock::sha256(&committed);
    ensure!(object == lock.object, "tithe.bpf.o is {object}, the lock has {}; {MEND}", lock.object);

    let tools = match toolchain::find(install)? {
        Found::Toolchain(tools) => tools,
        Found::Missing(reason) => return Ok(Rebuilt::Skipped(format!("no BPF toolchain ({reason})"))),
    };
    let built = build(&tools)?;
    let versions = lock::tool_versions(&tools)?;
    if versions != lock.tools {
        println!(
            "the committed object was built by other tools, so that the rebuilt one may differ\n  lock: {}\n  here: {versions}",
            lock.tools
        );
        return Ok(Rebuilt::OtherTools(built));
    }
    let rebuilt = std::fs::read(&built)?;
    if let Some(difference) = first_difference(&committed, &rebuilt) {
        bail!("the same sources and tools give another object ({difference}): {}; {MEND}", built.display());
    }
    println!("the committed eBPF object is byte-equal to its rebuild ({} bytes)", committed.len());
    Ok(Rebuilt::Same)
}

fn first_difference(committed: &[u8], rebuilt: &[u8]) -> Option<String> {
    let place = committed.iter().zip(rebuilt).position(|(a, b)| a != b);
    if place.is_none() && committed.len() == rebuilt.len() {
        return None;
    }
    let (a, b) = (committed.len(), rebuilt.len());
    Some(match place {
        Some(place) => format!("{a} and {b} bytes, first difference at {place:#x}"),
        None => format!("{a} and {b} bytes"),
    })
}

/// Where the committed object lies.
pub fn object_path() -> PathBuf {
    shell::root().join("profiler-ebpf/tithe.bpf.o")
}

fn lock_path() -> PathBuf {
    shell::root().join("profiler-ebpf/object.lock")
}

/// Gives every BPF crate a fixed `-C metadata` in place of cargo's, which hashes the checkout's path: it ends up in the
/// names of the functions that were not inlined. (Crate names are unique among the BPF crates; those that run on the
/// host are left alone.)
const RUSTC_WRAPPER: &str = r#"#!/bin/sh
case " $* " in
*" --target bpfel-unknown-none "*) ;;
*) exec "$@" ;;
esac
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    case $argument in
    metadata=*) argument=metadata=tithe ;;
    esac
    set -- "$@" "$argument"
    left=$((left - 1))
done
exec "$@"
"#;

/// Writes [`RUSTC_WRAPPER`] unless it stands there: a new file would make cargo build everything anew.
fn wrapper(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("rustc-wrapper");
    if std::fs::read_to_string(&path).is_ok_and(|text| text == RUSTC_WRAPPER) {
        return Ok(path);
    }
    std::fs::create_dir_all(folder)?;
    std::fs::write(&path, RUSTC_WRAPPER)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Builds the object into the target folder and strips its DWARF (BTF stays).
fn build(tools: &Toolchain) -> Result<PathBuf> {
    let folder = shell::root().join("profiler-ebpf");
    let output = shell::target_dir().join("bpf-object");
    // Sources are unpacked by fetching; their folders must be known before they can be remapped.
    shell::run(cargo(tools, &folder).args(["fetch", "--locked", "--quiet"]))?;
    let flags = rustflags(tools)?.join("\u{1f}");
    shell::run(
        cargo(tools, &folder)
            .args(["build", "--release", "--locked", "--target", BPF_TARGET])
            .args(&tools.cargo_arguments)
            .arg("--target-dir")
            .arg(&output)
            .env("CARGO_ENCODED_RUSTFLAGS", flags)
            .env("RUSTC_WRAPPER", wrapper(&output)?),
    )?;
    let linked = output.join(BPF_TARGET).join("release/tithe");
    let stripped = output.join("tithe.bpf.o");
    shell::run(Command::new(&tools.objcopy).arg("--strip-debug").arg(&linked).arg(&stripped))?;
    Ok(stripped)
}

/// The toolchain's cargo in `folder`, without what the calling cargo and the caller's shell set for other builds.
fn cargo(tools: &Toolchain, folder: &Path) -> Command {
    let mut command = Command::new(&tools.cargo);
    command.current_dir(folder).stdin(Stdio::null()).env("RUSTC", &tools.rustc).env("RUSTC_BOOTSTRAP", "1");
    for name in [
        "CARGO",
        "CARGO_BUILD_TARGET",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_TARGET_DIR",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "RUSTDOCFLAGS",
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
    ] {
        command.env_remove(name);
    }
    command
}

fn rustflags(tools: &Toolchain) -> Result<Vec<String>> {
    let mut flags = vec![
        "-C".to_owned(),
        format!("linker={}", tools.linker.display()),
        "-C".to_owned(),
        "link-arg=--btf".to_owned(),
        // Atomic instructions that fetch (Linux 5.12).
        "-C".to_owned(),
        "target-cpu=v3".to_owned(),
        // BTF is made from debug information.
        "-C".to_owned(),
        "debuginfo=2".to_owned(),
        // The same bytes from any folder.
        format!("--remap-path-prefix={}=/tithe", shell::root().display()),
    ];
    let home = cargo_home()?;
    for folder in std::fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten() {
        flags.push(format!("--remap-path-prefix={}=/registry", folder.path().display()));
    }
    Ok(flags)
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(Path::new(&home).join(".cargo"))
}
