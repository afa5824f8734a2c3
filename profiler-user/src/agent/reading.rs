//! Reading modules ahead, on a thread of its own: the symbols and the code of a large library take longer than the event
//! loop may be away while functions are traced (their quotas last half a second).
//!
//! In: modules to be read. Out: the same modules, read; a clone shares what was read. It looks at nothing else.

use super::Agent;
use super::journal::is_mapped;
use crate::inspect::Module;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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

/// What the thread has not begun with.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Module, Part)>,
    /// The thread is at one.
    reads: bool,
    closed: bool,
}

/// The queue, and how the thread is told of something in it.
#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // OK to go on after a panic elsewhere: entries are added and taken one by one.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one, when there is one; `None` once nobody asks any more.
    fn next(&self) -> Option<(Module, Part)> {
        let mut queue = self.queue();
        queue.reads = false;
        loop {
            if let Some(next) = queue.waiting.pop_front() {
                queue.reads = true;
                return Some(next);
            }
            if queue.closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The loop's end of the reading thread.
pub(super) struct Reader {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    pending: Vec<(Module, Part)>,
}

impl Reader {
    /// Starts the thread. Where there is none to be had, modules are read where they are needed.
    pub(super) fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("tithe-inspect".into()).spawn(move || read_all(&of_thread)).ok();
        Self { shared, thread, pending: Vec::new() }
    }

    /// True: it is read, or nobody reads it ahead. Else it is being read, and [`Reader::poll`] says when it is done.
    pub(super) fn is_read(&mut self, module: &Module, part: Part) -> bool {
        if is_read(module, part) || self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return true;
        }
        if !self.pending.iter().any(|(m, p)| m.shares_code(module) && *p == part) {
            self.pending.push((module.clone(), part));
            self.shared.queue().waiting.push_back((module.clone(), part));
            self.shared.changed.notify_one();
        }
        false
    }

    /// Whether something that was asked for has been read since the last call.
    pub(super) fn poll(&mut self) -> bool {
        let before = self.pending.len();
        if before == 0 {
            return false;
        }
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            self.pending.clear();
            self.shared.queue().waiting.clear();
        }
        self.pending.retain(|(module, part)| !is_read(module, *part));
        // Whoever could wait has read it himself.
        self.shared.queue().waiting.retain(|(module, part)| !is_read(module, *part));
        self.pending.len() < before
    }

    /// Does not read what is not among these modules, or is not mapped any more. On a busy machine the queue of a program that
    /// generates libraries is long, each file in it would be held until its turn, and those that are mapped would wait for it.
    pub(super) fn keep_mapped(&mut self, modules: &[Module]) {
        if self.pending.is_empty() {
            return;
        }
        let is_mapped = |module: &Module| modules.iter().any(|m| is_mapped(m) && m.shares_code(module));
        self.pending.retain(|(module, _)| is_mapped(module));
        self.shared.queue().waiting.retain(|(module, _)| is_mapped(module));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let reads = {
            let mut queue = self.shared.queue();
            queue.closed = true;
            queue.waiting.clear();
            queue.reads
        };
        self.shared.changed.notify_one();
        // A thread that is deep in a large file is not waited for: it ends with the process.
        if !reads && let Some(thread) = self.thread.take() {
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

fn read_all(shared: &Shared) {
    while let Some((module, part)) = shared.next() {
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
        let mapped = inspection.modules().iter().filter(|m| is_mapped(m));
        // Counted, so that all of them are asked for.
        mapped.filter(|module| !reader.is_read(module, part)).count() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::Inspection;

    #[test]
    fn what_is_unmapped_before_its_turn_is_not_read() {
        let inspection = Inspection::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        let mut modules: Vec<Module> =
            inspection.modules().iter().filter(|m| is_mapped(m)).cloned().collect();
        assert!(modules.len() >= 2, "this program and the C library: {modules:?}");
        // A thread that is deep in something else, so that nothing leaves the queue.
        let shared = Arc::new(Shared::default());
        let (release, held) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || assert!(held.recv().is_err()));
        shared.queue().reads = true;
        let mut reader = Reader { shared: Arc::clone(&shared), thread: Some(thread), pending: Vec::new() };
        for module in &modules {
            assert!(!reader.is_read(module, Part::Stacks));
            // Asked for again, it is not read twice.
            assert!(!reader.is_read(module, Part::Stacks));
        }
        assert_eq!(shared.queue().waiting.len(), modules.len());
        modules[0].mappings.clear();
        reader.keep_mapped(&modules);
        assert_eq!(reader.pending.len(), modules.len() - 1);
        let queue = shared.queue();
        assert_eq!(queue.waiting.len(), modules.len() - 1);
        assert!(!queue.waiting.iter().any(|(module, _)| module.shares_code(&modules[0])));
        drop(queue);
        // It does not wait for the thread.
        drop(reader);
        assert!(shared.queue().waiting.is_empty());
        drop(release);
    }

    #[test]
    fn the_thread_reads_what_it_is_asked_and_ends_with_its_reader() {
        let inspection = Inspection::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        let module = inspection.modules().iter().find(|m| is_mapped(m)).unwrap();
        let mut reader = Reader::start();
        while !reader.is_read(module, Part::Symbols) {
            std::thread::yield_now();
        }
        reader.poll();
        assert!(module.has_symbols() && reader.pending.is_empty());
        let shared = Arc::clone(&reader.shared);
        // Of a thread that is at a module its reader does not await the end.
        while shared.queue().reads {
            std::thread::yield_now();
        }
        drop(reader);
        // The thread's share of the queue is gone.
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}
