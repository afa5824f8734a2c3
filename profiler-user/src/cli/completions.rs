//! `tithe completions`: prints a completion script for a shell.

use super::Cli;
use clap::{Args, CommandFactory};

/// `tithe completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// Runs the command.
pub(super) fn run(args: &CompletionsArgs) {
    clap_complete::generate(args.shell, &mut Cli::command(), "tithe", &mut std::io::stdout());
}
