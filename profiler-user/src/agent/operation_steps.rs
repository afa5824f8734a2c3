//! Steps of the client of operations: what it sees, and what is done for it at the beginning and at the end.

use super::clock::now_ns;
use super::consumers::{Rows, SlowOperations};
use super::journal::Journal;
use super::operation_io::{OperationIo, open_of, open_rows};
use super::steps::{SeenSteps, is_stepped};
use super::{Agent, Session};
use crate::config::{DEFAULT_AGENT_CPU, OperationConfig};
use crate::failure::Failure;
use crate::prober::OpenOperation;
use profiler_core::clients::operations::Operations;
use profiler_core::engine::{Input, OperationsLook};
use profiler_core::recording::OperationRow;
use profiler_core::run::view::View;
use std::time::{Duration, Instant};

/// So long the rows at the end of a run wait for the writer.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// A look at the writer.
const LOOK: Duration = Duration::from_millis(2);
/// Threads that are asked for operations that have not ended: two system calls each.
const ASKED_THREADS: usize = 2_000;

impl Session {
    /// Follows what was named, if anything was; nothing is attached yet.
    ///
    /// # Errors
    /// Something does not exist in the target, or cannot bound an operation.
    pub(super) fn follow_operations(&mut self, asked: &OperationConfig) -> Result<(), Failure> {
        if let Some(operations) = self.agent.start_operations(asked)? {
            self.driver.run.follow_operations(operations);
        }
        Ok(())
    }

    /// Attaches what was named before a launched program runs.
    ///
    /// # Errors
    /// The opener is gone.
    pub(super) fn attach_operations(&mut self) -> Result<(), Failure> {
        if self.driver.run.operations().is_some() {
            self.tell(Input::Operations);
            self.attach_all().map_err(Failure::attach)?;
            // What became of it.
            self.tell(Input::Operations);
        }
        Ok(())
    }

    /// The run is over: everything is detached. Returns what was seen of steps.
    pub(super) fn end_run(&mut self, end_ns: u64) -> SeenSteps {
        // Before the wait for the writer, in which threads may end.
        let open = self.driver.run.operations().map(|_| self.agent.open_operations());
        self.agent.record_rest();
        if let Some(open) = open {
            self.agent.excuse_closers();
            record_patiently(&mut self.agent.journal, open_rows(open, end_ns));
        }
        // What the run has left to say of operations does not wait for room itself.
        self.agent.wait_for_writer();
        self.tell(Input::Over { end_ns });
        let agent = &mut self.agent;
        agent.send_operation_histograms();
        agent.end_consumers();
        let io = agent.operation_io.take();
        let seen = io.as_ref().map_or_else(SeenSteps::default, |io| io.seen_steps());
        let hook = io.and_then(|io| io.hook);
        if let Some(skipped) = hook.map(|hook| hook.skipped).filter(|n| *n > 0) {
            self.agent.journal.meta.warnings.push(format!(
                "--on-cycle: {skipped} cycles ended while the command still ran, and it was not run for them"
            ));
        }
        seen
    }
}

impl Agent {
    /// Registers who reads rows of operations while they are recorded: one line for each consumer.
    pub(super) fn add_consumers(&mut self, asked: &OperationConfig) {
        let now = now_ns();
        let agent_cpu = self.journal.meta.agent.limit.unwrap_or(DEFAULT_AGENT_CPU);
        if let Some(above_ns) = asked.slower_ns {
            let operations = asked.operations.iter().map(|operation| operation.name.clone()).collect();
            let stepped = self.attach.classes().iter().filter(|class| is_stepped(class));
            let functions = stepped.map(|class| (class.id.0, class.candidate.name.to_string())).collect();
            let slow = SlowOperations::new(above_ns, operations, functions);
            self.journal.consumers.register(Box::new(slow), agent_cpu, now);
        }
        // Those that have names already.
        let names = self.operation_io.as_ref().map_or_else(Vec::new, |io| io.class_names());
        self.journal.consumers.show(Rows::OperationClasses(&names), now);
    }

    /// The writer has taken most of what it was given: a few rows that nothing else can tell have room.
    pub(super) fn wait_for_writer(&self) {
        let begun = Instant::now();
        while !self.journal.writer.has_room() && begun.elapsed() < LONGEST_WAIT {
            self.pulse();
            std::thread::sleep(LOOK);
        }
        self.excuse_closers();
    }

    /// Waiting for the writer with pulses has ended the excuse of those that still detach links, if any do.
    pub(super) fn excuse_closers(&self) {
        if self.attach.busy() {
            self.attach.governor().excuse();
        }
    }

    /// Response times of all operations.
    fn send_operation_histograms(&mut self) {
        let Some(io) = &self.operation_io else { return };
        let rows = io.histograms(self.attach.kernel().operations());
        self.journal.consumers.show(Rows::OperationHistograms(&rows), now_ns());
        self.journal.writer.send_patiently(rows);
    }

    /// Operations that have not ended: recorded ones are to get a row.
    fn open_operations(&mut self) -> Vec<(i32, OpenOperation)> {
        // A target that has ended has no threads to ask, and took with them what was open.
        let threads = self.target.threads().unwrap_or_default();
        let open = self.attach.kernel().open_operations(&threads[..threads.len().min(ASKED_THREADS)]);
        if threads.len() <= ASKED_THREADS {
            for operation in &mut self.journal.meta.operations {
                operation.open_at_end = Some(open_of(&open, operation.operation));
            }
        }
        open
    }

    /// What the client sees.
    pub(super) fn look_at_operations(&mut self, look: OperationsLook, client: &Operations, view: &mut View) {
        let Self { operation_io, attach, journal, words, .. } = self;
        let Some(io) = operation_io else { return };
        let kernel = attach.kernel();
        let mut counts = matches!(look, OperationsLook::Counts | OperationsLook::Revision);
        if matches!(look, OperationsLook::Turn | OperationsLook::Revision | OperationsLook::Classes) {
            OperationIo::see_classes(client, attach, now_ns(), &mut view.operations);
            words.lists.prices_of_operations(&mut view.operations.words_ns);
        }
        if matches!(look, OperationsLook::Turn | OperationsLook::Revision) {
            let wants = client.wants(view);
            counts |= wants.counts;
            if wants.hits || look == OperationsLook::Revision {
                OperationIo::see_hits(kernel, &mut view.operations);
            }
        }
        let seen = &mut view.operations;
        if counts {
            let names = io.new_names(kernel.operations(), look == OperationsLook::Counts);
            journal.record(names);
            io.see_counts(kernel.operations(), seen);
        } else {
            io.hide_counts(seen);
        }
        if counts || look == OperationsLook::Screens {
            io.see_screens(kernel, seen);
        }
    }
}

/// Records operations when the run is over: the last turn may have filled the writer's queue, which refuses what does not wait.
fn record_patiently(journal: &mut Journal, rows: Vec<OperationRow>) {
    journal.consumers.show(Rows::Operations(&rows), now_ns());
    journal.writer.send_patiently(rows);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::consumers::Consumers;
    use crate::agent::journal::Progress;
    use crate::recording::{Overwrite, Writer, WriterHandle, WriterOptions, sample};

    fn open_row() -> OperationRow {
        OperationRow {
            operation: 0,
            class_id: 0,
            tid: 1,
            begin_ns: 1,
            duration_ns: 1,
            calls: 0,
            inner_ns: 0,
            measure: 0,
            cost_ns: 0,
            off_cpu_ns: None,
            cycle: 0,
            stretch: 0,
            censored: true,
            pid: Some(1),
            steps_before: None,
            steps_after: None,
            incomplete: None,
        }
    }

    #[test]
    fn operations_that_are_open_at_the_end_wait_for_a_full_queue() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.tithe");
        let writer = Writer::create(&path, None, Overwrite::Recording, &sample::meta()).unwrap();
        let options = WriterOptions { room_bytes: 2048, queue_bytes: 4096, ..WriterOptions::default() };
        let mut journal = Journal {
            writer: WriterHandle::spawn(writer, options).unwrap(),
            meta: sample::meta(),
            progress: Progress::start(),
            verbose: false,
            output: path,
            consumers: Consumers::default(),
        };
        // More than the queue holds is taken where it is empty, and encoding it takes a while.
        assert!(journal.writer.send(vec![open_row(); 100_000]));
        record_patiently(&mut journal, vec![open_row(); 10]);
        assert_eq!(journal.writer.rows_not_written(), 0);
        let finished = journal.writer.finish(&journal.meta).unwrap();
        assert_eq!((finished.rows, finished.rows_not_written), (100_010, 0));
    }
}
