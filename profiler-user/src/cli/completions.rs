//! `tithe completions`: prints a completion script for a shell.

use super::Cli;
use clap::{Args, CommandFactory};

const EXAMPLES: &str = "Examples:
  tithe completions bash
  tithe completions zsh
  tithe completions fish";

/// `tithe completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// Runs the command.
pub(super) fn run(args: &CompletionsArgs) {
    clap_complete::generate(args.shell, &mut Cli::command(), "tithe", &mut std::io::stdout());
}
