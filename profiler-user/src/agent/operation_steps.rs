//! Steps of the client of operations: what it sees, and what is done for it at the beginning and at the end.

use super::clock::now_ns;
use super::operation_io::{OperationIo, open_rows};
use super::steps::SeenSteps;
use super::{Agent, Session};
use crate::config::OperationConfig;
use crate::failure::Failure;
use profiler_core::clients::operations::Operations;
use profiler_core::engine::{Input, OperationsLook};
use profiler_core::run::view::View;

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
        if self.driver.run.operations().is_some() {
            self.agent.drain_operations();
            self.agent.send_open_operations(end_ns);
        }
        self.tell(Input::Over { end_ns });
        let agent = &mut self.agent;
        let io = agent.operation_io.take();
        let seen = io.as_ref().map_or_else(SeenSteps::default, |io| io.seen_steps());
        if let Some(io) = &io {
            agent.journal.writer.send_patiently(io.histograms(agent.attach.kernel().operations()));
        }
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
    /// Takes what was recorded out of the ring.
    pub(super) fn drain_operations(&mut self) {
        let rows = self.operation_io.as_mut().map_or_else(Vec::new, |io| io.drain());
        if !rows.is_empty() {
            self.journal.writer.send(rows);
        }
        let steps = self.operation_io.as_mut().map_or_else(Vec::new, |io| io.drain_steps());
        if !steps.is_empty() {
            self.journal.writer.send(steps);
        }
    }

    /// Operations that have not ended: recorded ones get a row.
    fn send_open_operations(&mut self, end_ns: u64) {
        // A target that has ended has no threads to ask.
        let Ok(threads) = self.target.threads() else { return };
        let open = self.attach.kernel().open_operations(&threads[..threads.len().min(ASKED_THREADS)]);
        self.journal.writer.send(open_rows(open, end_ns));
    }

    /// What the client sees.
    pub(super) fn look_at_operations(&mut self, look: OperationsLook, client: &Operations, view: &mut View) {
        let Self { operation_io, attach, journal, .. } = self;
        let Some(io) = operation_io else { return };
        let kernel = attach.kernel();
        let mut counts = matches!(look, OperationsLook::Counts | OperationsLook::Revision);
        if matches!(look, OperationsLook::Turn | OperationsLook::Revision | OperationsLook::Classes) {
            OperationIo::see_classes(client, attach, now_ns(), &mut view.operations);
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
            if !names.is_empty() {
                journal.writer.send(names);
            }
            io.see_counts(kernel.operations(), seen);
        } else {
            io.hide_counts(seen);
        }
        if counts || look == OperationsLook::Screens {
            io.see_screens(kernel, seen);
        }
    }
}
