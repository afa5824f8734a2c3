//! Having functions of operations attached together: asked for at once, and looked at when all of them are attached or are not.

use super::super::Session;
use super::super::attach::{NotOpened, now_ns};
use super::super::class::Purpose;
use super::Operations;
use super::keep::RENEW_NS;
use profiler_core::class::ClassId;
use profiler_core::recording::WindowKind;
use std::collections::BTreeSet;

/// Classes that are to be attached together.
#[derive(Debug)]
pub(super) struct Asked {
    classes: Vec<ClassId>,
    /// All inner functions are, for a slice.
    tried: bool,
    /// Those that could not be attached.
    missed: Vec<ClassId>,
}

/// What functions inside operations do in a turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct InnerTurn {
    /// Operations are recorded with them.
    pub wanted: bool,
    /// They are to be attached now.
    pub attach: bool,
    /// All of them, for a slice.
    pub tried: bool,
}

impl Session {
    /// Some are being attached; once they all are, or are not, it goes on.
    pub(super) fn follow_asked(&mut self, now: u64, asked: Asked, inner_wanted: bool) {
        if asked.classes.iter().any(|id| self.attach.class(*id).is_pending()) {
            self.keep_asked(asked);
            return;
        }
        for id in &asked.classes {
            self.say_refused(*id);
        }
        let missed = self.without_postponed(now, asked.missed);
        self.note_missing(&missed);
        self.go_on(inner_wanted, asked.tried);
        // What waited for them.
        self.record_operations();
    }

    /// Has these attached; where there are none it goes on at once.
    pub(super) fn ask_for(&mut self, mut wanted: Vec<ClassId>, inner: InnerTurn) {
        let mut tried = inner.tried;
        if !wanted.is_empty() {
            // What the others were granted is divided with those that come.
            let given = self.renew_quotas(now_ns());
            if self.operations.as_ref().is_some_and(|o| o.begun) {
                tried &= !self.leave_poor(&mut wanted, &given.poor);
            }
            if !wanted.is_empty() {
                let quota = |id: &ClassId| given.hits.get(id).copied().unwrap_or(1);
                let with_quotas: Vec<_> =
                    wanted.iter().map(|id| (*id, quota(id), Purpose::Operation)).collect();
                self.keep_asked(Asked { classes: wanted, tried, missed: Vec::new() });
                self.open_windows(WindowKind::Trace, &with_quotas, false);
                return;
            }
        }
        self.go_on(inner.wanted, tried);
    }

    /// Nothing is to be attached.
    fn go_on(&mut self, inner_wanted: bool, tried: bool) {
        if self.operations.as_ref().is_some_and(|o| o.begun) {
            self.note_complete(inner_wanted, tried);
        } else {
            self.begin_operations();
        }
    }

    fn keep_asked(&mut self, asked: Asked) {
        if let Some(operations) = &mut self.operations {
            operations.asked = Some(asked);
        }
    }

    /// A class of operations that was asked for is not attached.
    pub(in crate::session) fn miss_operation_class(&mut self, id: ClassId, why: NotOpened) {
        // Whoever closed it knows.
        let asked = self.operations.as_mut().and_then(|o| o.asked.as_mut());
        if let Some(asked) = asked.filter(|_| why != NotOpened::Closed) {
            asked.missed.push(id);
        }
    }

    /// Takes those out that were granted less than one operation costs: they would be attached and detached for nothing. They are asked for again
    /// when quotas are. True if inner functions are among them.
    fn leave_poor(&mut self, wanted: &mut Vec<ClassId>, poor: &BTreeSet<ClassId>) -> bool {
        wanted.retain(|id| !poor.contains(id));
        let Some(operations) = &mut self.operations else { return false };
        let Operations { inner, bounds, quotas_ns, .. } = &mut **operations;
        for kept in inner.iter_mut().chain(bounds).filter(|kept| poor.contains(&kept.class)) {
            kept.next_ns = kept.next_ns.max(*quotas_ns + RENEW_NS);
        }
        inner.iter().any(|kept| poor.contains(&kept.class))
    }

    /// Those that are postponed are not missing: they come when forks of others may be held up again, or return links are known to be safe.
    fn without_postponed(&mut self, now: u64, missed: Vec<ClassId>) -> Vec<ClassId> {
        let (postponed, missed): (Vec<_>, Vec<_>) = missed
            .into_iter()
            .partition(|id| self.attach.is_postponed(*id) || self.attach.is_held(*id, WindowKind::Trace));
        let Self { operations, attach, .. } = self;
        if let Some(operations) = operations {
            let Operations { inner, bounds, slices, .. } = &mut **operations;
            if inner.iter().any(|kept| attach.is_postponed(kept.class)) {
                slices.hold_back();
            }
            for kept in inner.iter_mut().chain(bounds).filter(|kept| postponed.contains(&kept.class)) {
                kept.next_ns = now + RENEW_NS;
            }
        }
        missed
    }
}
