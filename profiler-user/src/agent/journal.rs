//! What is said while it runs, and what goes into the recording: one line on standard error, redrawn in place; plain lines where standard
//! error is no terminal, and only for what matters; the writer, and `meta.json`.

use super::clock::now_ns;
use super::consumers::{Consumers, Rows};
use crate::inspect::Module;
use crate::recording::{self, WriterHandle};
use crate::terminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use profiler_core::class::ClassId;
use profiler_core::recording::{ChangeKind, ChangeRow, Meta, NotObserved};
use profiler_core::text::printable;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// Modules named in one row.
const NAMES: usize = 3;

/// The recording that is written, and who is told of what.
pub struct Journal {
    /// Takes rows.
    pub writer: WriterHandle,
    /// Facts of the run.
    pub meta: Meta,
    /// The progress line.
    pub progress: Progress,
    /// `--verbose`.
    pub verbose: bool,
    /// Where the recording lies.
    pub output: PathBuf,
    /// Who reads rows while they are recorded.
    pub consumers: Consumers,
}

impl Journal {
    /// Tells the user, with `--verbose`.
    pub fn detail(&self, text: &str) {
        if self.verbose {
            self.progress.note(text);
        }
    }

    /// The writer keeps up, or somebody reads rows live and needs them now. Otherwise records wait in their rings: what finds those full is marked and
    /// counted by the kernel side, by class and operation, where the writer's queue knows no more than how many rows it refused.
    pub fn takes_rows(&self) -> bool {
        self.writer.has_room() || !self.consumers.is_empty()
    }

    /// Records rows that consumers read. False: the writer had no room.
    pub fn record<R>(&mut self, rows: Vec<R>) -> bool
    where
        for<'a> Rows<'a>: From<&'a [R]>,
        recording::Rows: From<Vec<R>>,
    {
        rows.is_empty() || self.consumers.record(&self.writer, rows, now_ns())
    }

    /// Records a change of what the run does.
    pub fn change(&self, kind: ChangeKind, class: Option<ClassId>, text: String) {
        self.writer.send(vec![ChangeRow {
            time_ns: now_ns(),
            kind,
            class_id: class.map(|c| c.0),
            plan: None,
            text,
        }]);
    }

    /// A plan has been made.
    pub fn plan(&self, number: u32, why: String) {
        self.writer.send(vec![ChangeRow {
            time_ns: now_ns(),
            kind: ChangeKind::Plan,
            class_id: None,
            plan: Some(number),
            text: why,
        }]);
    }

    /// Something was not observed.
    pub fn not_observed(&mut self, what: String, why: String) {
        self.meta.not_observed.push(NotObserved { what, why });
    }

    /// Of the modules, which are mapped now, those that were not `before`, or were and are not.
    pub fn modules(&self, before: &[bool], modules: &[Module], execed: bool) {
        if execed {
            self.change(ChangeKind::Modules, None, "the target runs another program (exec)".to_owned());
        }
        let turned = |to: bool| -> Vec<&Module> {
            let was = |i: usize| before.get(i).copied().unwrap_or(false);
            let now = modules.iter().enumerate();
            now.filter(|(i, m)| is_mapped(m) == to && was(*i) != to).map(|(_, m)| m).collect()
        };
        for (list, what) in [(turned(true), "came"), (turned(false), "went")] {
            if list.is_empty() {
                continue;
            }
            let file = |m: &&Module| m.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut names: Vec<String> = list.iter().take(NAMES).map(file).collect();
            if list.len() > NAMES {
                names.push(format!("{} more", list.len() - NAMES));
            }
            self.change(ChangeKind::Modules, None, format!("{} {what}", names.join(", ")));
        }
    }
}

/// It is mapped now.
pub fn is_mapped(module: &Module) -> bool {
    !module.mappings.is_empty()
}

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

    /// A text of several lines that stay.
    pub fn tell(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| terminal::note_text(text)),
            None => terminal::note_text(text),
        }
    }

    /// Removes the line.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
