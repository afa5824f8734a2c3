//! What people see while it runs: one line on standard error, redrawn in place; plain lines where standard error
//! is no terminal, and only for what matters.

use crate::terminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use profiler_core::text::printable;
use std::io::IsTerminal;
use std::time::Duration;

/// The progress line.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// On a terminal a spinner with a message, elsewhere silent but for [`Progress::note`].
    #[must_use]
    pub fn start() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            // OK because the template is a constant that parses.
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { bar }
    }

    /// Replaces the line.
    pub fn set(&self, message: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(printable(&message).into_owned());
        }
    }

    /// A line that stays.
    pub fn note(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| terminal::note(line)),
            None => terminal::note(line),
        }
    }

    /// Removes the line.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
