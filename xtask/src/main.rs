//! The project's own commands: `cargo xtask build-ebpf | test | lint | ci | demo | readme | dist | bench | conformance | field | mutants | vm`.
//!
//! What CI runs is what a developer runs. Everything is built as the caller; only the agent, the test binaries and the
//! package manager go through sudo, and each such command is printed before it runs.

mod apt;
mod bench;
mod conformance;
mod demo;
mod dist;
mod ebpf;
mod field;
mod house;
mod lint;
mod lock;
mod mutants;
mod readme;
mod shell;
mod test;
mod toolchain;
mod vm;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Build, test and measure Tithe.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build the eBPF object and write the committed copy and its lock
    BuildEbpf(ebpf::Options),
    /// All tests: offline, then against the running kernel (through sudo if not root)
    Test(test::Arguments),
    /// House rules, format, clippy, rustdoc, source invariants, README
    Lint(lint::Options),
    /// test, build-ebpf --check and lint: what CI runs
    Ci(test::Options),
    /// Profile a loaded SQLite by PID at 2 %, and print the report with its receipt
    Demo(demo::Options),
    /// Build a static binary, try it in an empty root, and pack it into target/dist (5 minutes)
    Dist(dist::Options),
    /// Write README's first screen anew from the recording in docs/readme and the tables of the benchmarks
    Readme(readme::Options),
    /// Measure, interleaved, and write docs/benchmarks.md
    Bench(bench::Options),
    /// Boot a Debian kernel in QEMU (by default Debian 12's 6.1) and run the agent and its tests there
    Vm(vm::Options),
    /// Watch real programs under load, judge by their own results, and write docs/field.md
    Field(field::Options),
    /// Prove instruction forms on this kernel and write the table of those that may be probed (4 minutes)
    Conformance(conformance::Options),
    /// Change what shares the budget out, and say which changes no test notices (an hour; goes on where it stopped)
    Mutants(mutants::Options),
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::BuildEbpf(options) => ebpf::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Lint(options) => lint::run(&options),
        Command::Ci(options) => {
            let mut beside = lint::Beside::default();
            let summary = test::run_all(&options, Some(&mut beside))?;
            ebpf::run(&ebpf::Options { check: true, no_install: options.no_install })?;
            lint::finish(beside)?;
            summary.finish()
        }
        Command::Demo(options) => demo::run(&options),
        Command::Dist(options) => dist::run(&options),
        Command::Readme(options) => readme::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Vm(options) => vm::run(&options),
        Command::Field(options) => field::run(&options),
        Command::Conformance(options) => conformance::run(&options),
        Command::Mutants(options) => mutants::run(&options),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
