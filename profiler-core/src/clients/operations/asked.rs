//! Having functions of operations attached together: asked for at once, and looked at when all of them are attached or are not.

use super::Operations;
use super::kept::Slot;
use super::missing::MOST_MISSES;
use super::moment::Moment;
use super::quotas::RENEW_NS;
use crate::adapt::PolicyKind;
use crate::run::order::operations::OperationOrder;
use std::collections::BTreeSet;

/// Classes that are to be attached together.
#[derive(Debug)]
pub(super) struct Asked {
    classes: Vec<Slot>,
    /// All inner functions are, for a slice.
    tried: bool,
    /// Those that could not be attached.
    pub missed: Vec<Slot>,
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

impl Operations {
    /// Some are being attached; once they all are, or are not, it goes on.
    pub(super) fn follow_asked(&mut self, at: &mut Moment<'_>, asked: Asked, inner_wanted: bool) {
        if asked.classes.iter().any(|slot| at.stands(*slot).is_pending()) {
            self.asked = Some(asked);
            return;
        }
        for slot in &asked.classes {
            if at.stands(*slot).is_refused() {
                at.order(OperationOrder::TellRefused(self.kept(*slot).class.id));
            }
        }
        let missed = self.without_postponed(at, asked.missed);
        self.note_missing(at, &missed);
        self.go_on(at, inner_wanted, asked.tried);
        // What waited for them.
        self.record(at);
    }

    /// Has these attached; where there are none it goes on at once.
    pub(super) fn ask_for(&mut self, at: &mut Moment<'_>, mut wanted: Vec<Slot>, inner: InnerTurn) {
        let mut tried = inner.tried;
        if !wanted.is_empty() {
            // What the others were granted is divided with those that come.
            let given = self.renew_quotas(at);
            if self.quotas.lack_hits {
                // At the next turn.
                return;
            }
            if self.begun {
                tried &= !self.leave_poor(at, &mut wanted, &given.poor);
                if !self.is_watched() {
                    wanted.retain(|slot| matches!(slot, Slot::Bound(_)));
                    tried = false;
                }
            }
            if !wanted.is_empty() {
                for slot in &wanted {
                    at.open(*slot, given.hits.get(slot).copied().unwrap_or(1));
                }
                self.asked = Some(Asked { classes: wanted, tried, missed: Vec::new() });
                return;
            }
        }
        self.go_on(at, inner.wanted, tried);
    }

    /// Nothing is to be attached.
    fn go_on(&mut self, at: &mut Moment<'_>, inner_wanted: bool, tried: bool) {
        if self.begun {
            self.note_complete(at, inner_wanted, tried);
        } else {
            self.begin(at);
            if self.begun {
                // One of them may have used up its quota before recording began.
                self.note_complete(at, inner_wanted, tried);
            }
        }
    }

    /// Takes those out that were granted less than one operation costs: they would be attached and detached for nothing. They are asked for
    /// again when quotas are. An operation of which other bounds are attached pauses: they would be paid for, and say nothing. True if inner
    /// functions are among those that were granted too little.
    fn leave_poor(&mut self, at: &Moment<'_>, wanted: &mut Vec<Slot>, poor: &BTreeSet<Slot>) -> bool {
        let next_ns = self.quotas.given_ns + RENEW_NS;
        for slot in wanted.extract_if(.., |slot| poor.contains(slot)) {
            let Slot::Bound(bound) = slot else { continue };
            let Self { list, bounds, .. } = self;
            for o in list.iter_mut().filter(|o| bounds[bound].bounds(o.number)) {
                let mut own = (0..bounds.len()).filter(|other| bounds[*other].bounds(o.number));
                if own.any(|other| at.stands(Slot::Bound(other)).is_open()) {
                    o.watch.off_until_ns = o.watch.off_until_ns.max(next_ns);
                }
            }
        }
        for slot in poor {
            let kept = self.kept_mut(*slot);
            kept.next_ns = kept.next_ns.max(next_ns);
        }
        poor.iter().any(|slot| matches!(slot, Slot::Inner(_)))
    }

    /// Everything is attached: recording begins.
    fn begin(&mut self, at: &mut Moment<'_>) {
        let waits = |slot: Slot| {
            let (kept, now) = (self.kept(slot), at.stands(slot));
            // Nobody waits for what is not there.
            let most = if matches!(slot, Slot::Inner(_)) { 1 } else { MOST_MISSES };
            now.is_pending() || now.may_open() && kept.trips == 0 && kept.missed < most
        };
        // Nothing is attached inside where nothing is ever recorded.
        let inner = if self.settings.policy == PolicyKind::None { 0 } else { self.inner.kept.len() };
        let mut slots = (0..self.bounds.len()).map(Slot::Bound).chain((0..inner).map(Slot::Inner));
        // What was counted before must be known.
        if slots.any(waits) || at.seen().counts.is_empty() {
            return;
        }
        let names: Vec<&str> = self.list.iter().map(|o| o.name.as_str()).collect();
        let note = format!(
            "following operations: {}; policy {}, {} inner functions",
            names.join(", "),
            self.settings.policy,
            self.inner.kept.len()
        );
        self.first_orders(at);
        at.note(note);
    }

    /// Recording goes on as the policy begins.
    fn first_orders(&mut self, at: &mut Moment<'_>) {
        let now = at.now();
        let share = at.grant.allowed / self.live().max(1) as f64;
        for (o, counts) in self.list.iter_mut().zip(&at.view.operations.counts) {
            o.monitoring = o.adapter.orders().monitoring && !o.watch.lost;
            (o.watch.since_ns, o.watch.looked_ns, o.cycle.since_ns, o.watch.watched_ns) = (now, now, now, 0);
            // What ended before this moment was seen by nobody.
            for (last, counters) in o.tally.last.iter_mut().zip(counts) {
                *last = *counters;
            }
            // OK because the cast saturates.
            let quota_ns = (share * self.settings.config.revise_s * 1e9) as u64;
            at.order(OperationOrder::RecordingQuota { operation: o.number, quota_ns });
            at.order(OperationOrder::Monitor { operation: o.number, on: o.monitoring });
        }
        self.begun = true;
    }
}
