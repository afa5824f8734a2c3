//! From a parsed command line to the work.

use crate::cli::{Cli, Command};
use crate::failure::Failure;
use clap::CommandFactory;

/// Runs the command.
///
/// # Errors
/// A [`Failure`] with its exit code.
pub fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "tithe", &mut std::io::stdout());
            Ok(())
        }
        _ => Err(Failure::usage("this command is not in this build")),
    }
}
