//! Reading modules ahead, on a thread of its own: the symbols and the code of a large library take longer than the event
//! loop may be away while functions are traced (their quotas last half a second).
//!
//! In: modules to be read. Out: the same modules, read; a clone shares what was read. It looks at nothing else.

use super::Agent;
use crate::inspect::Module;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// What is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The symbols.
    Symbols,
    /// The symbols, and the index of branch targets.
    Text,
    /// The dynamic table and all code, for what makes return links unsafe.
    Stacks,
}

/// The loop's end of the reading thread.
pub(super) struct Reader {
    sender: Option<Sender<(Module, Part)>>,
    thread: Option<JoinHandle<()>>,
    pending: Vec<(Module, Part)>,
}

impl Reader {
    /// Starts the thread. Where there is none to be had, modules are read where they are needed.
    pub(super) fn start() -> Self {
        let (sender, receiver) = channel();
        let thread =
            std::thread::Builder::new().name("tithe-inspect".into()).spawn(move || read_all(&receiver)).ok();
        Self { sender: Some(sender), thread, pending: Vec::new() }
    }

    /// True: it is read, or nobody reads it ahead. Else it is being read, and [`Reader::poll`] says when it is done.
    pub(super) fn is_read(&mut self, module: &Module, part: Part) -> bool {
        if is_read(module, part) || self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return true;
        }
        if !self.pending.iter().any(|(m, p)| m.shares_code(module) && *p == part) {
            let sent = self.sender.as_ref().is_some_and(|s| s.send((module.clone(), part)).is_ok());
            if !sent {
                return true;
            }
            self.pending.push((module.clone(), part));
        }
        false
    }

    /// Whether something that was asked for has been read since the last call.
    pub(super) fn poll(&mut self) -> bool {
        let before = self.pending.len();
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            self.pending.clear();
        }
        self.pending.retain(|(module, part)| !is_read(module, *part));
        self.pending.len() < before
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.sender = None;
        // A thread that is deep in a large file is not waited for: it ends with the process.
        if self.pending.is_empty()
            && let Some(thread) = self.thread.take()
        {
            // A panic there has been shown by the panic hook.
            drop(thread.join());
        }
    }
}

fn is_read(module: &Module, part: Part) -> bool {
    match part {
        Part::Symbols => module.has_symbols(),
        Part::Text => module.has_symbols() && module.has_text(),
        Part::Stacks => module.was_looked_at_for_return_links(),
    }
}

fn read_all(receiver: &Receiver<(Module, Part)>) {
    while let Ok((module, part)) = receiver.recv() {
        // An error is kept in the module, for who asks.
        let _ = module.symbols();
        match part {
            Part::Symbols => {}
            Part::Text => drop(module.text()),
            Part::Stacks => module.look_for_return_links(),
        }
    }
}

impl Agent {
    /// Whether the loop may be away now: nothing is attached whose quota could run out meanwhile, or nothing runs.
    pub(super) fn may_wait(&self) -> bool {
        self.catalog.loading.is_some() || !self.attach.classes().iter().any(super::class::LiveClass::is_open)
    }

    /// Whether the symbols of all modules that are mapped are there; those that are not are asked for.
    pub(super) fn all_symbols_read(&mut self) -> bool {
        self.all_read(Part::Symbols)
    }

    /// Whether all modules that are mapped were looked at for what makes return links unsafe; those that were not are asked for.
    pub(super) fn all_stacks_read(&mut self) -> bool {
        self.all_read(Part::Stacks)
    }

    fn all_read(&mut self, part: Part) -> bool {
        let Self { catalog, inspection, .. } = self;
        let reader = &mut catalog.reader;
        let mapped = inspection.modules().iter().filter(|m| !m.mappings.is_empty());
        // Counted, so that all of them are asked for.
        mapped.filter(|module| !reader.is_read(module, part)).count() == 0
    }
}
