//! The table of instruction forms that may be probed: each form run with and without a probe on the running kernel.
//!
//! The work is done by the program `conformance` of the tests crate, as root; it writes the table.

use crate::shell;
use anyhow::{Result, ensure};

/// `cargo xtask conformance`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print what becomes of each form, and leave the committed table alone
    #[arg(long)]
    pub dry: bool,
    /// Only take from the committed table what differs on this machine, for a CPU or kernel that it was not made on
    #[arg(long, conflicts_with_all = ["dry", "list"])]
    pub narrow: bool,
    /// Also write each refused form with its reason into this file
    #[arg(long, value_name = "FILE")]
    pub list: Option<String>,
}

/// Runs the command.
///
/// # Errors
///
/// If the program cannot be built, or the kernel refuses its probes.
pub fn run(options: &Options) -> Result<()> {
    ensure!(
        shell::can_be_root(),
        "forms are run under probes: run this as root, or let sudo work without a password"
    );
    shell::run(shell::cargo().args(["build", "--locked", "-p", "profiler-tests", "--bin", "conformance"]))?;
    let mut command = shell::as_root(shell::target_dir().join("debug/conformance"), &[]);
    let table = if options.dry {
        shell::target_dir().join("forms.txt")
    } else {
        shell::root().join("profiler-user/src/inspect/forms/accepted.txt")
    };
    command.arg(if options.narrow { "--narrow" } else { "--write" }).arg(table);
    if let Some(list) = &options.list {
        command.arg("--list").arg(list);
    }
    shell::run(&mut command)
}
