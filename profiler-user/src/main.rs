//! `tithe`: parse, run, exit. The only place that ends the process.

use clap::Parser;
use profiler_user::cli::Cli;
use profiler_user::failure::Failure;
use profiler_user::terminal;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match profiler_user::run(cli) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => report(&failure),
    }
}

fn report(failure: &Failure) -> ExitCode {
    // A reader that closed the pipe ('tithe report x | head') is no failure to talk about.
    if failure.is_broken_pipe() {
        return ExitCode::SUCCESS;
    }
    terminal::failure(failure);
    ExitCode::from(failure.exit_code())
}
