//! `tithe`: parse, run, exit. The only place that ends the process.

use clap::Parser;
use profiler_user::cli::Cli;
use profiler_user::failure::Failure;
use profiler_user::terminal;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::process::ExitCode;

fn main() -> ExitCode {
    // What a panic says may hold a name of the target's.
    std::panic::set_hook(Box::new(|panic| {
        let trace = Backtrace::capture();
        let trace =
            if trace.status() == BacktraceStatus::Captured { trace.to_string() } else { String::new() };
        terminal::failure(format_args!("internal error, please report it: {panic}\n{trace}"));
    }));
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
