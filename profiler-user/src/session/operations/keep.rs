//! Keeping bounds and inner functions attached, under quotas.

use super::super::Session;
use super::super::attach::now_ns;
use super::super::class::{Ending, OperationRole};
use super::super::overhead::Comparison;
use super::window::switch;
use super::{Kept, Operations};
use crate::prober::operation::OPERATION_MONITORING;
use profiler_core::adapt::PolicyKind;
use profiler_core::class::ClassId;
use profiler_core::recording::{ChangeKind, WindowKind};

/// Quotas of bounds are worth what operations may cost in so many seconds, and are given anew at this interval, ns.
const BOUND_S: f64 = 0.25;
const RENEW_NS: u64 = 100_000_000;
/// The same of inner functions: a burst of them may take a second's worth at once.
const INNER_S: f64 = 1.0;
const INNER_RENEW_NS: u64 = 1_000_000_000;
/// After a trip a class stays off for so long, ns, twice as long each time.
const TRIP_NS: u64 = 1_000_000_000;
/// Longest time off after a trip, as a power of two of that.
const MOST_DOUBLINGS: u32 = 5;

impl Session {
    /// Keeps bounds and inner functions attached, with quotas from the budget of operations.
    pub(super) fn keep_bounds(&mut self, now: u64) {
        let off = self.comparison.as_ref().is_some_and(Comparison::is_off);
        if off || !self.rearm_wanted.is_empty() || self.children.is_storm() {
            return;
        }
        let Some(mut operations) = self.operations.take() else { return };
        let begun = operations.begun;
        let recording = !begun || operations.list.iter().any(|o| o.monitoring);
        let inner_wanted = recording && operations.inner_off == 0 && operations.policy != PolicyKind::None;
        let closed: Vec<ClassId> =
            operations.list.iter().filter(|o| o.bounds_off > 0).flat_map(|o| o.bounds.clone()).collect();
        let renew = now.saturating_sub(operations.quotas_ns) >= RENEW_NS;
        if renew {
            operations.quotas_ns = now;
        }
        let renew_inner = now.saturating_sub(operations.inner_quotas_ns) >= INNER_RENEW_NS;
        if renew_inner {
            operations.inner_quotas_ns = now;
        }
        let mut wanted = Vec::new();
        let mut tripped = Vec::new();
        // Ends before begins, so that no begin is seen whose end is missed.
        let linger_ns = operations.linger_ns;
        let Operations { inner, bounds, .. } = &mut *operations;
        let with_order =
            inner.iter_mut().map(|k| (k, inner_wanted)).chain(bounds.iter_mut().rev().map(|k| (k, true)));
        for (kept, attach) in with_order {
            let id = kept.class;
            let attach = attach && !closed.contains(&id);
            let class = self.attach.class(id);
            let inside = matches!(class.role, Some(OperationRole::Inner { .. }));
            let worth_s = if inside { INNER_S } else { BOUND_S };
            let quota = self.quota_of(worth_s, class.hit_price.seconds() + class.exit_price.seconds());
            let renew = if inside { renew_inner } else { renew };
            if class.is_open() {
                kept.open = true;
                if !attach && now >= linger_ns {
                    kept.open = false;
                    self.attach.close(&self.target, id, Ending::AtOnce);
                } else if renew {
                    self.attach.set_quota(id, quota);
                    if self.attach.class(id).charged.attempted > 0
                        && kept.trips > 0
                        && now > kept.next_ns + 10 * TRIP_NS
                    {
                        kept.trips = 0;
                    }
                }
            } else if kept.open && class.is_off() {
                // Open when we last looked, and we have not closed it.
                kept.open = false;
                // What is inside came for all that may be spent in a second: half of the budget goes on such bursts.
                let pause_ns = if inside { 2 * TRIP_NS } else { TRIP_NS << kept.trips.min(MOST_DOUBLINGS) };
                kept.next_ns = now + pause_ns;
                kept.trips += 1;
                tripped.push(id);
            } else if attach && class.may_open() && now >= kept.next_ns {
                wanted.push((id, quota));
            }
        }
        self.operations = Some(operations);
        for id in tripped {
            self.note_change(
                ChangeKind::Trip,
                Some(id),
                "more hits than operations may cost: off for a while".to_owned(),
            );
        }
        if !wanted.is_empty() {
            self.open_windows(WindowKind::Trace, &wanted);
            for (id, _) in &wanted {
                self.say_refused(*id);
            }
        }
        if begun {
            self.note_complete(inner_wanted);
        } else {
            self.begin_operations();
        }
    }

    /// Nothing is recorded while an inner function is off that should be attached: it would be recorded without its calls.
    fn note_complete(&mut self, inner_wanted: bool) {
        let Some(operations) = &mut self.operations else { return };
        let open = |k: &Kept| {
            let class = self.attach.class(k.class);
            class.is_open() || class.refused.is_some()
        };
        let complete = !inner_wanted || operations.inner.iter().all(open);
        if complete != operations.complete {
            operations.mixed = true;
            if complete {
                self.attach.kernel().operations().details_are_back();
            }
            for o in operations.list.iter().filter(|o| o.monitoring) {
                switch(self.attach.kernel().operations(), o.number, complete && o.bounds_off == 0);
            }
        }
        operations.complete = complete;
    }

    fn say_refused(&mut self, id: ClassId) {
        let class = self.attach.class(id);
        if let Some(why) = &class.refused {
            self.progress.note(&format!("{} cannot be attached: {why}", class.candidate.name));
        }
    }

    /// Hits that a class may take until quotas are given again: what all operations may cost in more than that time. What is
    /// merely dear is seen once a window, and what explodes is stopped.
    fn quota_of(&self, worth_s: f64, tau_s: f64) -> u64 {
        (self.operations_budget() * worth_s / tau_s.max(1e-12)).max(100.0) as u64
    }

    /// Everything is attached: recording begins.
    fn begin_operations(&mut self) {
        let Some(operations) = &self.operations else { return };
        let waits = |kept: &Kept| {
            let class = self.attach.class(kept.class);
            class.may_open() && !class.is_open() && kept.trips == 0
        };
        // Nothing is attached inside where nothing is ever recorded.
        let inner = if operations.policy == PolicyKind::None { &[][..] } else { &operations.inner };
        if operations.bounds.iter().chain(inner).any(waits) {
            return;
        }
        let names: Vec<&str> = operations.list.iter().map(|o| o.name.as_str()).collect();
        let note = format!(
            "following operations: {}; policy {}, {} inner functions",
            names.join(", "),
            operations.policy,
            operations.inner.len()
        );
        self.first_orders();
        self.progress.note(&note);
    }

    /// Recording goes on as the policy begins.
    fn first_orders(&mut self) {
        let budget = self.operations_budget();
        let now = now_ns();
        let kernel = self.attach.kernel().operations().clone();
        let Some(operations) = &mut self.operations else { return };
        let share = budget / operations.list.len().max(1) as f64;
        for o in &mut operations.list {
            o.monitoring = o.adapter.orders().monitoring;
            (o.since_ns, o.looked_ns, o.cycle_since_ns, o.watched_ns) = (now, now, now, 0);
            // What ended before this moment was seen by nobody.
            for (class, last) in o.classes.clone().zip(&mut o.last) {
                *last = kernel.counters(class);
            }
            kernel.set_quota(o.number, (share * operations.config.revise_s * 1e9) as u64);
            let monitoring = o.monitoring;
            kernel.adjust(o.number, |c| {
                c.flags = c.flags & !OPERATION_MONITORING | if monitoring { OPERATION_MONITORING } else { 0 };
            });
        }
        operations.begun = true;
    }
}
