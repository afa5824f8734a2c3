//! Operations are recorded with all their calls or not at all: whether all inner functions are attached, and what follows from it.

use super::super::Session;
use super::super::attach::now_ns;
use super::super::class::OperationRole;
use super::keep::TRIP_NS;
use super::window::switch;
use super::{Kept, Operations};
use crate::prober::operation::MEASURE_NONE;
use profiler_core::class::ClassId;
use profiler_core::clients::operations::complete::{Inner, Ready, ready};
use profiler_core::recording::ChangeKind;

/// So often a function is not there, one time after the other, before it is left out.
pub(super) const MOST_MISSES: u32 = 5;

impl Session {
    /// Before a slice.
    pub(super) fn inner_ready(&self, operations: &Operations, now: u64) -> Ready {
        // What is still attached from the slice before lacks one of which nobody has heard yet.
        if self.attach.kernel().operations().lacks_details() {
            return Ready::Later;
        }
        // A bound that has used up its quota, of which nobody has heard yet: the slice begins when the bounds come back.
        let classes = self.attach.kernel().classes();
        let is_used_up =
            |kept: &Kept| self.attach.class(kept.class).is_open() && classes.remaining_quota(kept.class) <= 0;
        if operations.bounds.iter().any(is_used_up) {
            return Ready::Soon;
        }
        ready(operations.inner.iter().map(|kept| {
            let class = self.attach.class(kept.class);
            let is_open = class.is_open();
            Inner {
                is_open,
                is_closing: !is_open && !class.is_off(),
                pauses: kept.tripped || (!is_open && now < kept.next_ns),
                is_refused: class.refused.is_some(),
            }
        }))
    }

    /// Between slices, when no inner function is attached, calls can no longer be missing: the next slice begins anew. Not before, because a
    /// quota may have been used up of which nobody has heard yet.
    pub(super) fn begin_details_anew(&self, operations: &mut Operations) {
        let table = self.attach.kernel().operations();
        let off = |k: &Kept| self.attach.class(k.class).is_off();
        if !operations.slices.may_record() && table.lacks_details() && operations.inner.iter().all(off) {
            // In this order, so that nothing is recorded that is open and lacks calls.
            table.details_end();
            table.details_are_back();
            operations.lacked = false;
        }
    }

    /// What is inside operations is about to be detached, or is: no operation is recorded, also none of those that are open.
    pub(in crate::session) fn hold_operations(&mut self) {
        let held = |o: &&mut Box<Operations>| o.begun && o.complete && !o.inner.is_empty();
        let Some(operations) = self.operations.as_mut().filter(held) else { return };
        operations.complete = false;
        // Where recording is off, nothing inside is attached anyway.
        operations.mixed |= operations.list.iter().any(|o| o.monitoring);
        let table = self.attach.kernel().operations();
        for o in &operations.list {
            switch(table, o.number, false);
        }
        table.details_are_lost();
    }

    /// Nothing is recorded while an inner function is off that should be attached: it would be recorded without its calls. `tried`: all were to
    /// be attached for a slice just now.
    pub(super) fn note_complete(&mut self, inner_wanted: bool, tried: bool) {
        let Some(operations) = &mut self.operations else { return };
        let open = |k: &Kept| {
            let class = self.attach.class(k.class);
            class.is_open() || class.refused.is_some()
        };
        let all = operations.inner.iter().all(open);
        let table = self.attach.kernel().operations();
        let opening = operations.slices.is_opening() && !operations.is_inner_paused();
        if opening && inner_wanted && !(tried && all && !table.lacks_details()) {
            if tried {
                // Nobody pays for the others until the next one.
                operations.slices.give_up();
            }
            return;
        }
        let complete = !inner_wanted || !operations.slices.are_wanted() || all;
        if opening {
            operations.slices.opened();
            if operations.complete {
                self.record_operations();
                return;
            }
        }
        if complete == operations.complete {
            return;
        }
        if !complete {
            self.hold_operations();
            return;
        }
        operations.complete = true;
        operations.mixed |= operations.list.iter().any(|o| o.monitoring);
        // A slice began with nothing missing, and between slices see `begin_details_anew`.
        if operations.slices.may_record() && !(opening && inner_wanted) {
            operations.lacked = false;
            table.details_are_back();
        }
        self.record_operations();
    }

    /// These were to be attached just now and were not. Where nothing is known against one, its library is not mapped: that is said. An inner
    /// function is tried again every two seconds, and left out in the end, so that the others are recorded; not where it makes the
    /// measure.
    pub(super) fn note_missing(&mut self, missed: &[ClassId]) {
        let now = now_ns();
        let may = self.suspension().may_ask();
        let Some(operations) = self.operations.as_mut().filter(|_| may) else { return };
        let attach = &self.attach;
        let missing = |k: &&mut Kept| {
            // One that has tripped meanwhile says so itself.
            missed.contains(&k.class) && attach.class(k.class).may_open() && !k.tripped
        };
        let has_measure = operations.has_measure;
        let measures = |id: ClassId| {
            let role = attach.class(id).role;
            has_measure
                && matches!(role, Some(OperationRole::Inner { measure, .. }) if measure != MEASURE_NONE)
        };
        let (mut said, mut left_out) = (Vec::new(), Vec::new());
        for kept in operations.inner.iter_mut().filter(missing) {
            kept.next_ns = now + 2 * TRIP_NS;
            kept.missed = kept.missed.saturating_add(1);
            let measures = measures(kept.class);
            if kept.missed >= MOST_MISSES && !measures {
                left_out.push((kept.class, std::mem::replace(&mut kept.is_left_out, true)));
            } else if kept.missed == 1 {
                let then = if measures { "" } else { ", or has been left out" };
                said.push((kept.class, format!("nothing is recorded until it can{then}")));
            }
        }
        for kept in operations.bounds.iter_mut().filter(missing) {
            kept.missed = kept.missed.saturating_add(1);
            if kept.missed == MOST_MISSES {
                said.push((kept.class, "its operation is not watched until it can".to_owned()));
            }
        }
        for (id, then) in said {
            let name = &self.attach.class(id).candidate.name;
            let text = format!("{name} cannot be attached now (is its library mapped?): {then}");
            self.progress.note(&text);
            self.note_change(ChangeKind::Refused, Some(id), text);
        }
        for (id, was_said) in left_out {
            // The report lists it as not observed.
            let why = "its library was not mapped any more when it was to be attached again";
            self.attach.class_mut(id).refused = Some(why.to_owned());
            if !was_said {
                let name = &self.attach.class(id).candidate.name;
                let text = format!("{name} is left out: {why}; operations are recorded without its calls");
                self.progress.note(&text);
                self.note_change(ChangeKind::Refused, Some(id), text);
            }
        }
    }

    /// Modules came or went: what was left out may be there again, and is tried once.
    pub(in crate::session) fn try_left_out(&mut self) {
        let Some(operations) = &mut self.operations else { return };
        let mut again = Vec::new();
        for kept in operations.inner.iter_mut().filter(|kept| kept.is_left_out) {
            (kept.missed, kept.next_ns) = (MOST_MISSES - 1, 0);
            again.push(kept.class);
        }
        if again.is_empty() {
            return;
        }
        // Operations in flight lack its calls.
        self.hold_operations();
        for id in again {
            self.attach.class_mut(id).refused = None;
        }
    }

    /// Recording goes on, where the policy wants it and inner functions are attached: not while they are being attached.
    pub(super) fn record_operations(&self) {
        let ready = |o: &&Operations| o.complete && o.asked.is_none() && o.slices.may_record();
        let Some(operations) = self.operations.as_deref().filter(ready) else {
            return;
        };
        let table = self.attach.kernel().operations();
        for o in operations.list.iter().filter(|o| o.monitoring && !o.lost) {
            switch(table, o.number, true);
        }
    }
}
