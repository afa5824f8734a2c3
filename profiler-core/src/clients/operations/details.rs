//! Operations are recorded with all their calls or not at all: whether all inner functions are attached, and what follows from it.

use super::Operations;
use super::complete::{Inner, Ready, ready};
use super::kept::Slot;
use super::moment::{ClassNow, Moment};
use crate::run::order::Order;
use crate::run::order::operations::OperationOrder;

impl Operations {
    /// Before a slice.
    pub(super) fn inner_ready(&self, at: &Moment<'_>) -> Ready {
        // What is still attached from the slice before lacks one of which nobody has heard yet.
        if at.lacks_details {
            return Ready::Later;
        }
        // A bound that has used up its quota, of which nobody has heard yet: the slice begins when the bounds come back.
        let is_used_up = |i: usize| at.stands(Slot::Bound(i)).is_open() && at.seen().bounds[i].left <= 0;
        if (0..self.bounds.len()).any(is_used_up) {
            return Ready::Soon;
        }
        ready(self.inner.kept.iter().zip(at.inner()).map(|(kept, stands)| {
            let is_open = stands.is_open();
            Inner {
                is_open,
                is_closing: !is_open && !stands.is_off(),
                pauses: kept.tripped || (!is_open && at.now() < kept.next_ns),
                is_refused: stands.is_refused(),
            }
        }))
    }

    /// Between slices, when no inner function is attached, calls can no longer be missing: the next slice begins anew. Not before, because
    /// a quota may have been used up of which nobody has heard yet.
    pub(super) fn begin_details_anew(&mut self, at: &mut Moment<'_>) {
        let all_off = at.inner().iter().all(|now| now.is_off());
        if !self.inner.slices.may_record() && at.lacks_details && all_off {
            // In this order, so that nothing is recorded that is open and lacks calls.
            at.details_end();
            at.details_back();
            self.inner.lacked = None;
        }
    }

    /// What is inside operations is about to be detached, or is: no operation is recorded, also none of those that are open.
    pub(super) fn hold(&mut self, orders: &mut Vec<Order>) {
        if !self.begun || !self.inner.complete || self.inner.kept.is_empty() {
            return;
        }
        self.inner.complete = false;
        self.mix();
        let stop = |operation| OperationOrder::Monitor { operation, on: false };
        orders.extend(self.list.iter().map(|o| Order::Operation(stop(o.number))));
        orders.push(Order::Operation(OperationOrder::DetailsLost));
    }

    /// Recording stops or goes on within a window. Where recording is off, nothing inside is attached anyway.
    fn mix(&mut self) {
        self.inner.mixed |= self.list.iter().any(|o| o.monitoring);
    }

    /// Nothing is recorded while an inner function is off that should be attached: it would be recorded without its calls. `tried`: all
    /// were to be attached for a slice just now.
    pub(super) fn note_complete(&mut self, at: &mut Moment<'_>, inner_wanted: bool, tried: bool) {
        let all = at.inner().iter().all(|now: &ClassNow| now.is_open() || now.is_refused());
        let opening = self.inner.slices.is_opening() && !self.inner.is_paused();
        if opening && inner_wanted && !(tried && all && !at.lacks_details) {
            if tried {
                // Nobody pays for the others until the next one.
                self.inner.slices.give_up();
            }
            return;
        }
        let complete = !inner_wanted || !self.inner.slices.are_wanted() || all;
        if opening {
            self.inner.slices.opened();
            if self.inner.complete {
                self.record(at);
                return;
            }
        }
        if complete == self.inner.complete {
            return;
        }
        if !complete {
            self.hold(at.orders);
            at.lacks_details = true;
            return;
        }
        self.inner.complete = true;
        self.mix();
        // A slice began with nothing missing, and between slices see `begin_details_anew`. One of them that used up its quota while others were
        // being attached is still taken for open: it takes the others with it as soon as that is heard.
        if self.inner.slices.may_record() && !(opening && inner_wanted) && !self.may_be_used_up(at) {
            self.inner.lacked = None;
            at.details_back();
        }
        self.record(at);
    }

    /// Recording goes on, where the policy wants it and inner functions are attached: not while they are being attached.
    pub(super) fn record(&self, at: &mut Moment<'_>) {
        if !self.inner.complete || self.asked.is_some() || !self.inner.slices.may_record() {
            return;
        }
        for o in self.list.iter().filter(|o| o.monitoring && !o.watch.lost) {
            at.order(OperationOrder::Monitor { operation: o.number, on: true });
        }
    }
}
