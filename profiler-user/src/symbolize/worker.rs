//! The symbolizer on a thread of its own: opening a large program takes longer than the agent's loop may be away.

use super::{ClassIndex, Detail, Symbolizer};
use crate::unwind::{Frame, Modules};
use profiler_core::recording::FrameRow;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

/// Stacks to be named: number and frames, innermost first.
pub type Job = Vec<(u64, Box<[Frame]>)>;

enum Message {
    Classes(ClassIndex),
    Stacks(Job, Detail),
}

/// The agent's end.
pub struct Worker {
    sender: Option<Sender<Message>>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
    waiting: usize,
}

/// Rows of one job, and what could not be looked up, in words.
pub type Answer = (Vec<FrameRow>, Vec<String>);

impl Worker {
    /// Starts the thread, for the modules in `modules`.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn spawn(modules: Modules) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let (answer, answers) = channel();
        let thread = std::thread::Builder::new()
            .name("tithe-symbols".into())
            .spawn(move || run(&modules, &receiver, &answer))?;
        Ok(Self { sender: Some(sender), answers, thread: Some(thread), waiting: 0 })
    }

    /// The classes of the session, from now on.
    pub fn set_classes(&self, classes: ClassIndex) {
        if let Some(sender) = &self.sender {
            // A thread that is gone answers nothing either; `finish` ends then.
            let _ = sender.send(Message::Classes(classes));
        }
    }

    /// Hands stacks over; the rows come back through [`Worker::poll`] in the same order.
    pub fn submit(&mut self, job: Job, detail: Detail) {
        if job.is_empty() {
            return;
        }
        if let Some(sender) = &self.sender
            && sender.send(Message::Stacks(job, detail)).is_ok()
        {
            self.waiting += 1;
        }
    }

    /// An answer, if one is ready. Never waits.
    pub fn poll(&mut self) -> Option<Answer> {
        match self.answers.try_recv() {
            Ok(answer) => {
                self.waiting -= 1;
                Some(answer)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.waiting = 0;
                None
            }
        }
    }

    /// Jobs whose answer is still to come.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Waits for an answer until `deadline`; `None` if none is coming.
    pub fn wait(&mut self, deadline: std::time::Instant) -> Option<Answer> {
        if self.waiting == 0 {
            return None;
        }
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let answer = self.answers.recv_timeout(left).ok()?;
        self.waiting -= 1;
        Some(answer)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.sender = None;
        // A thread that is deep in somebody's DWARF is not waited for: it ends with the process.
        if self.waiting == 0
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn run(modules: &Modules, receiver: &Receiver<Message>, answers: &Sender<Answer>) {
    let mut symbolizer = Symbolizer::new(modules.clone(), Detail::Names);
    let mut classes = ClassIndex::default();
    while let Ok(message) = receiver.recv() {
        match message {
            Message::Classes(new) => {
                classes = new.clone();
                symbolizer.set_classes(new);
            }
            Message::Stacks(job, detail) => {
                if detail != symbolizer.detail {
                    // The old one's memory goes before the new one's comes.
                    drop(symbolizer);
                    symbolizer = Symbolizer::new(modules.clone(), detail);
                    symbolizer.set_classes(classes.clone());
                }
                symbolizer.prepare(job.iter().flat_map(|(_, frames)| frames.iter().copied()));
                let rows = job.iter().flat_map(|(id, frames)| symbolizer.rows(*id, frames)).collect();
                if answers.send((rows, symbolizer.take_notes())).is_err() {
                    return;
                }
            }
        }
    }
}
