//! Tithe on another kernel: boots a Debian kernel in QEMU and runs the agent and its tests there. Outside CI.
//!
//! Nothing is installed: packages are unpacked below the target folder, and the guest's files are an archive in memory,
//! made from this machine's own. Each step of the guest is judged by its exit status, and the results are written beside its output.

mod archive;
mod guest;
mod image;
mod machine;
mod packages;
mod steps;

use crate::shell;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `cargo xtask vm`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Debian package of the kernel, for example linux-image-6.1.0-56-amd64 (default: the one that linux-image-cloud-amd64 depends on)
    #[arg(long, value_name = "PACKAGE")]
    pub kernel: Option<String>,
    /// Only this step, or this test of it (repeatable)
    #[arg(long, value_name = "STEP[:TEST]")]
    pub only: Vec<String>,
    /// List the steps
    #[arg(long)]
    pub list: bool,
    /// How the guest's CPUs run
    #[arg(long, value_enum, default_value_t = Accelerator::Auto)]
    pub accel: Accelerator,
    /// Run this agent instead of the one of the debug build: in software a release build is several times faster
    #[arg(long, value_name = "FILE")]
    pub agent: Option<PathBuf>,
    /// Memory of the guest, MiB; its files take some 700 of them
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    pub memory: u32,
    /// A test or a program that takes longer has failed, s
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub limit: u64,
}

/// How the guest's CPUs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Accelerator {
    /// KVM if the kernel starts with it, else software
    Auto,
    /// This machine's virtualization
    Kvm,
    /// Software: 10 to 30 times slower
    Tcg,
}

/// Runs the command.
///
/// # Errors
///
/// If something cannot be fetched, built or booted, or a step fails.
pub fn run(options: &Options) -> Result<()> {
    let chosen = steps::choose(&options.only)?;
    if options.list {
        for step in steps::all() {
            println!("{:<12} {}", step.name, step.about);
        }
        return Ok(());
    }
    let folder = shell::target_dir().join("vm");
    let package = match &options.kernel {
        Some(package) => package.clone(),
        None => packages::dependency("linux-image-cloud-amd64", "linux-image-")?,
    };
    let fetched = packages::fetch(&folder, &package)?;
    let built = image::build()?;
    let run = folder.join("run").join(&package);
    if run.exists() {
        std::fs::remove_dir_all(&run)?;
    }
    std::fs::create_dir_all(&run)?;
    let initrd = run.join("initrd.cpio");
    let wanted = image::Wanted { steps: &chosen, limit_s: options.limit, agent: options.agent.as_deref() };
    image::write(&initrd, &fetched, &built, &wanted)?;

    let boot = machine::Boot {
        qemu: &fetched.qemu,
        kernel: &fetched.vmlinuz,
        initrd: &initrd,
        memory_mib: options.memory,
        console: &run.join("kernel.log"),
    };
    let machine = machine::start(&boot, options.accel)?;
    let accel = machine.accel();
    // A step that says nothing for longer than its guest's own limit hangs with its kernel.
    let silence = Duration::from_secs(options.limit + 120);
    let results = machine.follow(&run, silence);
    let warnings = kernel_warnings(&run.join("kernel.log"))?;
    report(&run, &package, accel, &results, &chosen, &warnings)
}

/// Lines of the kernel's log that no healthy run has.
fn kernel_warnings(console: &Path) -> Result<Vec<String>> {
    const BAD: [&str; 6] =
        ["WARNING: CPU", "BUG:", "Oops", "general protection fault", "Kernel panic", "refcount_t:"];
    let log = std::fs::read(console).with_context(|| format!("cannot read {}", console.display()))?;
    let log = String::from_utf8_lossy(&log);
    Ok(log.lines().filter(|line| BAD.iter().any(|bad| line.contains(bad))).map(str::to_owned).collect())
}

/// Prints the table, keeps it, and tells whether all is well.
fn report(
    run: &Path,
    package: &str,
    accel: &str,
    results: &Result<guest::Results>,
    chosen: &[steps::Chosen],
    warnings: &[String],
) -> Result<()> {
    let empty = guest::Results::default();
    let (results, broken) = match results {
        Ok(results) => (results, None),
        Err(error) => (&empty, Some(format!("{error:#}"))),
    };
    let table = results.table(package, accel);
    let path: PathBuf = run.join("results.md");
    std::fs::write(&path, &table)?;
    println!("{table}");
    println!("output of each step: {}", run.display());
    let mut wrong: Vec<String> = broken.into_iter().collect();
    wrong.extend(results.failures());
    wrong.extend(warnings.iter().map(|line| format!("the kernel said: {line}")));
    for step in chosen {
        if !results.has(step.step.name) {
            wrong.push(format!("the step {} did not run", step.step.name));
        }
    }
    let (passed, failed, skipped) = results.sums();
    println!(
        "test result: {}. {passed} passed; {failed} failed; 0 ignored; {skipped} skipped",
        if wrong.is_empty() { "ok" } else { "FAILED" }
    );
    if !wrong.is_empty() {
        bail!("on {package}: {}", wrong.join("; "));
    }
    ensure!(passed > 0, "no test ran on {package}");
    Ok(())
}
