//! What functions inside operations cost, and slices of the time in which they are attached (`profiler_core::clients::operations::slices`).

use super::super::Session;
use super::super::attach::now_ns;
use super::Operations;
use super::window::switch;
use profiler_core::adapt::PolicyKind;
use profiler_core::adapt::attach::InnerCost;
use profiler_core::clients::operations::slices::{InnerAllowed, ns};

impl Operations {
    /// What functions inside operations cost, whatever they may; `None` before a window showed it.
    pub(super) fn inner_priced(&self, factor: f64, attach_s: f64) -> Option<InnerCost> {
        let most = InnerAllowed { inner: f64::INFINITY, all: f64::INFINITY, slice_s: f64::INFINITY };
        self.slices.cost(factor, self.churn_s(attach_s), most, 1.0)
    }

    /// CPU time of the target for attaching and detaching them once, s.
    fn churn_s(&self, attach_s: f64) -> f64 {
        2.0 * self.inner.len() as f64 * attach_s
    }

    /// Which functions cost what inside operations, if attaching them in slices saves something.
    pub(super) fn inner_cost(
        &self,
        factor: f64,
        attach_s: f64,
        allowed: InnerAllowed,
        watched: f64,
    ) -> Option<InnerCost> {
        let sliced = self.config.attach_share && self.policy != PolicyKind::None && !self.inner.is_empty();
        self.slices
            .cost(factor, self.churn_s(attach_s), allowed, watched)
            .filter(|inner| sliced && inner.is_worth_slicing())
    }
}

impl Session {
    /// Attaching takes up to 125 ms, so this is looked at before and after.
    pub(super) fn look_at_inner(&mut self) {
        let Some(operations) = &mut self.operations else { return };
        // Also while they are being detached: the target pays until the trap is gone.
        let attached = operations.inner.iter().any(|kept| !self.attach.class(kept.class).is_off());
        operations.slices.look(now_ns(), attached);
    }

    /// Begins and ends slices.
    pub(super) fn turn_slices(&mut self, now: u64) {
        self.look_at_inner();
        let Some(operations) = &mut self.operations else { return };
        let watched = operations.is_watched();
        if !operations.begun || !operations.slices.turn(now, watched) {
            return;
        }
        let table = self.attach.kernel().operations();
        for o in &operations.list {
            switch(table, o.number, false);
        }
        // Operations in flight are lost with their bounds.
        let until_ns = now + if watched { ns(operations.slices.plan().linger_s) } else { 0 };
        operations.linger_ns = operations.linger_ns.max(until_ns);
    }
}
