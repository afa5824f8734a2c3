//! Functions inside operations.

use super::Operations;
use super::kept::KeptClass;
use super::moment::{ClassNow, Moment};
use super::slices::{InnerAllowed, SliceClock, ns};
use crate::adapt::PolicyKind;
use crate::adapt::attach::InnerCost;

/// The functions inside operations, for details and for the measure.
#[derive(Debug)]
pub(super) struct Inside {
    pub kept: Vec<KeptClass>,
    /// When they are attached, where that is not always.
    pub slices: SliceClock,
    /// They stay off, and nothing is recorded, until this time at least, ktime ns: one of them has used up its quota. 0: none has.
    pub until_ns: u64,
    /// That happened since the last revision.
    pub tripped: bool,
    /// All are attached; else nothing is recorded, because it would be recorded without them.
    pub complete: bool,
    /// That changed in the present window: the policy does not see it.
    pub mixed: bool,
    /// The policy was asked, and they were not looked at since.
    pub revised: bool,
    /// At the last revision the kernel recorded nothing because of a quota that was used up, and none was off: how often that had
    /// happened by then.
    pub lacked: Option<u64>,
    /// They stay attached until this time at least, ktime ns.
    pub linger_ns: u64,
}

impl Inside {
    pub fn new(now: u64) -> Self {
        Self {
            kept: Vec::new(),
            slices: SliceClock::new(now),
            until_ns: 0,
            tripped: false,
            complete: true,
            mixed: false,
            revised: false,
            lacked: None,
            linger_ns: 0,
        }
    }

    /// One of them has used up its quota, and they stay off.
    pub fn is_paused(&self) -> bool {
        self.until_ns > 0
    }

    /// CPU time of the target for attaching and detaching them once, s.
    fn churn_s(&self, attach_s: f64) -> f64 {
        2.0 * self.kept.len() as f64 * attach_s
    }

    /// What they cost, whatever they may; `None` before a window showed it.
    pub fn priced(&self, factor: f64, attach_s: f64) -> Option<InnerCost> {
        let most = InnerAllowed { inner: f64::INFINITY, all: f64::INFINITY, slice_s: f64::INFINITY };
        self.slices.cost(factor, self.churn_s(attach_s), most, 1.0)
    }
}

impl Operations {
    /// Which functions cost what inside operations, if attaching them in slices saves something.
    pub(super) fn inner_cost(&self, factor: f64, allowed: InnerAllowed, watched: f64) -> Option<InnerCost> {
        let sliced = self.settings.config.attach_share
            && self.settings.policy != PolicyKind::None
            && !self.inner.kept.is_empty();
        let churn_s = self.inner.churn_s(self.settings.attach_s);
        self.inner
            .slices
            .cost(factor, churn_s, allowed, watched)
            .filter(|inner| sliced && inner.is_worth_slicing())
    }

    /// Since the last time that this one was off, some inner function has used up its quota: it may be this one, and nobody has heard of it.
    pub(super) fn may_be_used_up(&self, at: &Moment<'_>) -> bool {
        let mut inner = self.inner.kept.iter().zip(at.inner());
        inner.any(|(kept, now)| now.is_open() && kept.losses != at.seen().losses)
    }

    /// Adds up for how long inner functions are attached: also while they are being detached. The target pays until the trap is gone.
    pub(super) fn look_at_inner(&mut self, at: &Moment<'_>) {
        let losses = at.seen().losses;
        for (kept, _) in self.inner.kept.iter_mut().zip(at.inner()).filter(|(_, now)| now.is_off()) {
            kept.losses = losses;
        }
        let attached = at.inner().iter().any(|now: &ClassNow| !now.is_off());
        self.inner.slices.look(at.now(), attached);
    }

    /// Begins and ends slices.
    pub(super) fn turn_slices(&mut self, at: &mut Moment<'_>) {
        self.look_at_inner(at);
        let watched = self.is_watched();
        if !self.begun || !self.inner.slices.turn(at.now(), watched) {
            return;
        }
        at.stop_recording(&self.list);
        // Operations in flight are lost with their bounds.
        let linger_s = self.inner.slices.plan().linger_s;
        let until_ns = at.now() + if watched { ns(linger_s) } else { 0 };
        self.inner.linger_ns = self.inner.linger_ns.max(until_ns);
    }
}
