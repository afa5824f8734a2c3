//! What the run asks of the agent.

use super::Agent;
use super::attach::{Gone, NotOpened, Outcome, TargetId};
use super::class::{Ending, LinkState, Pending};
use super::clock::now_ns;
use crate::inspect::TraceRefusal;
use crate::prober::histogram;
use profiler_core::class::ClassId;
use profiler_core::clients::children::{Event, Look};
use profiler_core::clients::operations::Operations;
use profiler_core::clients::overhead::{Reading, Wanted};
use profiler_core::clients::survey::Links;
use profiler_core::engine::driver::StillWanted;
use profiler_core::engine::input::{Counted, Ended, Interval, SlowLook, ThreadHits};
use profiler_core::engine::{Command, CountWanted, Input, Machine, OperationsLook, Sees, WantedThreads};
use profiler_core::recording::{ChangeKind, HistogramRow, WindowKind};
use profiler_core::run::suspension::Suspension;
use profiler_core::run::view::View;
use std::collections::VecDeque;

/// Records taken from a ring in one turn, so that a flood does not hold up the rest.
pub(super) const DRAIN_LIMIT: usize = 100_000;
/// A link that is being made for so long hangs, ns.
const LATE_NS: u64 = 1_000_000_000;

impl Machine for Agent {
    type Error = Gone;

    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn fill(&mut self, what: Sees, view: &mut View) {
        self.fill_view(what, view);
    }

    fn see_operations(&mut self, look: OperationsLook, client: &Operations, view: &mut View) {
        self.look_at_operations(look, client, view);
    }

    fn execute(&mut self, commands: Vec<Command>, view: &View, told: &mut VecDeque<Input>) {
        self.execute_all(commands, view, told);
    }

    fn take_outcomes(&mut self) -> Result<Vec<Outcome>, Gone> {
        self.attach.take_reports()?;
        let outcomes = self.attach.take_outcomes();
        let refused = |outcome: &&Outcome| outcome.opened == Err(NotOpened::Refused);
        let refused: Vec<ClassId> = outcomes.iter().filter(refused).map(|outcome| outcome.class).collect();
        self.note_refused(&refused);
        Ok(outcomes)
    }

    /// A link is made after a last look at the code in memory: since the class was made it may have been patched, and a breakpoint would
    /// then end the target.
    fn attach_next(&mut self, still_wanted: StillWanted<'_>) -> bool {
        let Some(mut group) = self.attach.next_group(now_ns()) else { return self.extend_next() };
        let attach = &mut self.attach;
        // What was given up while it waited has no tokens any more.
        group.classes.retain(|id| {
            let LinkState::Waiting(Pending { quota, purpose, .. }) = attach.class(*id).state else {
                return false;
            };
            let wanted = still_wanted(*id, quota, purpose);
            if !wanted {
                attach.close(*id, Ending::AtOnce);
            }
            wanted
        });
        let (ready, unmapped) = self.verified(&group.classes);
        for id in &ready {
            if !self.attach.class(*id).return_groups(group.kind).is_empty() {
                self.verify_callers_of(*id);
            }
        }
        self.attach.request(group, &ready, &unmapped);
        true
    }

    fn is_settled(&self) -> bool {
        self.attach.is_settled()
    }

    fn drain(&mut self) -> Vec<Event> {
        self.pulse();
        let ahead = if self.may_wait() { None } else { Some(&mut self.catalog.reader) };
        self.sampling.drain(DRAIN_LIMIT, &self.inspection, self.attach.classes(), ahead);
        if self.journal.takes_rows() {
            self.record_rings();
        }
        self.serve_consumers();
        let mut told = Vec::new();
        while let Some(event) = self.rings.lifecycle.try_next() {
            // A record that we do not know is a record of a newer object: counted by the reader, nothing to do.
            if let Ok(event) = event {
                told.extend(self.processes.note(&event, &mut self.sampling.events, self.journal.meta.pid));
            }
        }
        told
    }

    fn collect(&mut self, _view: &View) -> Vec<Ended> {
        let ended = self.attach.collect();
        self.end_learning(&ended);
        ended.into_iter().map(|ended| self.window_ended(ended)).collect()
    }

    fn look_at(&mut self, pids: &[u32]) -> Look {
        self.processes.look(pids.iter().copied(), self.attach.busy())
    }

    fn interval(&mut self, pids: &[u32], told: &mut VecDeque<Input>) -> Interval {
        self.read_interval(pids, told)
    }

    fn thread_hits(&mut self, wanted: WantedThreads) -> ThreadHits {
        self.read_thread_hits(wanted)
    }

    fn is_look_due(&mut self) -> bool {
        if self.catalog.reader.poll() {
            self.sampling.symbols_came();
            // What waited for them is looked at now.
            self.meters.look_now = true;
        }
        std::mem::take(&mut self.meters.look_now)
    }

    fn slow_look(&mut self, suspension: Suspension, told: &mut VecDeque<Input>) -> SlowLook {
        let begun = now_ns();
        let look = self.look_at_threads();
        self.look_at_modules(suspension, told);
        self.write_pieces();
        self.meters.look_took(now_ns().saturating_sub(begun));
        look
    }

    fn survey_links(&self) -> Links {
        Links { waits: self.attach.survey_waits(), any: self.attach.surveying() }
    }

    fn read_progress(&mut self, wanted: Wanted) -> Option<Reading> {
        self.read_reading(wanted)
    }

    fn count(&mut self, wanted: CountWanted, classes: &[ClassId]) -> Counted {
        self.read_count(wanted, classes)
    }

    fn work(&mut self, view: &View, told: &mut VecDeque<Input>) {
        self.heed_switched_stacks(told);
        if !told.is_empty() {
            // At once: such a link would end the target.
            return;
        }
        let hook = self.operation_io.as_mut().and_then(|io| io.hook.as_mut());
        if let Some(note) = hook.and_then(|hook| hook.poll()) {
            self.journal.progress.note(&note);
        }
        self.watch_callers();
        self.go_on_searching(view, told);
    }
}

impl Agent {
    /// The event loop is alive, and so is the opener: one that hangs has the pulse of when it began to.
    pub(super) fn pulse(&self) {
        match self.attach.making_since_ns() {
            Some(since_ns) if now_ns().saturating_sub(since_ns) > LATE_NS => {
                self.attach.governor().pulse_at(since_ns);
            }
            _ => self.attach.governor().pulse(),
        }
    }

    /// A window that has ended, as the run is told of it; its rows are written.
    fn window_ended(&mut self, ended: super::attach::Ended) -> Ended {
        let id = ClassId(ended.row.class_id);
        let is_survey = ended.row.kind == WindowKind::Survey;
        self.attach.class_mut(id).counters = ended.counters;
        self.add_pair_for_rate(&ended.row);
        let class = self.view_of(self.attach.class(id));
        if !ended.open_calls.is_empty() {
            self.journal.writer.send(ended.open_calls);
        }
        if !ended.beside.is_empty() {
            self.journal.writer.send(ended.beside);
        }
        self.journal.writer.send(vec![ended.row.clone()]);
        Ended {
            row: ended.row,
            number: ended.number,
            tripped_itself: ended.tripped_itself,
            watched_ns: ended.watched_ns,
            closed_ns: ended.closed_ns,
            age_ns: ended.age_ns,
            expedited: ended.expedited,
            remark: ended.answer.and_then(|answer| answer.remark()),
            durations: if is_survey { Vec::new() } else { self.durations(id) },
            class,
        }
    }

    /// The durations so far of a class that was named for them.
    fn durations(&self, id: ClassId) -> Vec<HistogramRow> {
        let class = self.attach.class(id);
        let Some(lease) = class.lease.as_ref().filter(|_| class.wish.named) else { return Vec::new() };
        let counts = self.attach.kernel().classes().histogram(lease);
        let buckets = (0u32..).zip(counts.iter().copied()).filter(|(_, count)| *count > 0);
        buckets
            .map(|(bucket, count)| {
                let (low_ns, high_ns) = histogram::bounds(bucket);
                HistogramRow { class_id: id.0, low_ns, high_ns, count }
            })
            .collect()
    }

    /// Rows of long windows so far, and what the writer has to say.
    fn write_pieces(&mut self) {
        for line in self.rings.log.as_mut().map(crate::prober::KernelLog::take).unwrap_or_default() {
            self.journal.progress.note(&format!("kernel side: {line}"));
        }
        let pieces = self.attach.cut();
        if !pieces.is_empty() {
            self.journal.writer.send(pieces);
        }
        for notice in self.journal.writer.take_notices() {
            self.journal.progress.note(&notice);
        }
    }

    /// Records why classes could not be attached, each reason once.
    fn note_refused(&self, ids: &[ClassId]) {
        let refused = |id: &ClassId| self.attach.class(*id).refused.as_deref();
        let mut said: Vec<&str> = Vec::new();
        for (id, why) in ids.iter().filter_map(|id| Some((id, refused(id)?))) {
            if said.contains(&why) {
                continue;
            }
            said.push(why);
            let others = ids.iter().filter(|id| refused(id) == Some(why)).count() - 1;
            let text =
                if others == 0 { why.to_owned() } else { format!("{why}; so it is with {others} more") };
            self.journal.change(ChangeKind::Refused, Some(*id), text);
        }
    }

    /// Those of these classes whose code in memory is as it was, and those whose code is not there now. What is known against the rest
    /// is noted in the class.
    fn verified(&mut self, ids: &[ClassId]) -> (Vec<ClassId>, Vec<ClassId>) {
        let code: Vec<_> = ids
            .iter()
            .map(|id| {
                let class = self.attach.class(*id);
                (&class.code.function, &class.code.sites)
            })
            .collect();
        let own = self.attach.breakpoints(TargetId::FIRST, |_| true);
        let verdicts = self.inspection.verify_all(&code, &own);
        let (mut ready, mut unmapped) = (Vec::new(), Vec::new());
        for (id, verdict) in ids.iter().zip(verdicts) {
            match verdict {
                Ok(_) => ready.push(*id),
                // Not mapped now: a library that was closed may come back.
                Err(TraceRefusal::Unverified(_)) => unmapped.push(*id),
                Err(refusal) => self.attach.class_mut(*id).refused = Some(refusal.to_string()),
            }
        }
        (ready, unmapped)
    }
}
