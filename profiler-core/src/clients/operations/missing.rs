//! Classes that were to be attached and were not: what is said of them, and when they are tried again.

use super::Operations;
use super::keep::TRIP_NS;
use super::kept::Slot;
use super::moment::Moment;
use super::quotas::RENEW_NS;
use crate::recording::ChangeKind;
use crate::run::order::Order;
use crate::run::order::operations::OperationOrder;

/// So often a function is not there, one time after the other, before it is left out.
pub(super) const MOST_MISSES: u32 = 5;

impl Operations {
    /// Those that are postponed are not missing: they come when forks of others may be held up again, or return links are known to be safe.
    pub(super) fn without_postponed(&mut self, at: &Moment<'_>, missed: Vec<Slot>) -> Vec<Slot> {
        let (postponed, missed): (Vec<Slot>, Vec<Slot>) = missed.into_iter().partition(|slot| {
            let obstacle = at.class(*slot).obstacle;
            obstacle.postponed || obstacle.held
        });
        if at.seen().inner.iter().any(|class| class.obstacle.postponed) {
            self.inner.slices.hold_back();
        }
        for slot in postponed {
            self.kept_mut(slot).next_ns = at.now() + RENEW_NS;
        }
        missed
    }

    /// These were to be attached just now and were not. Where nothing is known against one, its library is not mapped: that is said. An
    /// inner function is tried again every two seconds, and left out in the end, so that the others are recorded; not where it makes the
    /// measure.
    pub(super) fn note_missing(&mut self, at: &mut Moment<'_>, missed: &[Slot]) {
        if !at.grant.suspension.may_ask() {
            return;
        }
        let (mut said, mut left_out) = (Vec::new(), Vec::new());
        let inner = (0..self.inner.kept.len()).map(Slot::Inner);
        for slot in inner.chain((0..self.bounds.len()).map(Slot::Bound)) {
            let kept = self.kept_mut(slot);
            // One that has tripped meanwhile says so itself.
            if !missed.contains(&slot) || !at.stands(slot).may_open() || kept.tripped {
                continue;
            }
            kept.missed = kept.missed.saturating_add(1);
            if let Slot::Bound(_) = slot {
                if kept.missed == MOST_MISSES {
                    said.push((slot, "its operation is not watched until it can".to_owned()));
                }
                continue;
            }
            kept.next_ns = at.now() + 2 * TRIP_NS;
            let measures = kept.measures();
            if kept.missed >= MOST_MISSES && !measures {
                left_out.push((slot, std::mem::replace(&mut kept.is_left_out, true)));
            } else if kept.missed == 1 {
                let then = if measures { "" } else { ", or has been left out" };
                said.push((slot, format!("nothing is recorded until it can{then}")));
            }
        }
        for (slot, then) in said {
            let name = &self.kept(slot).class.name;
            let text = format!("{name} cannot be attached now (is its library mapped?): {then}");
            at.note_change(ChangeKind::Refused, Some(slot), text);
        }
        for (slot, was_said) in left_out {
            // The report lists it as not observed.
            let why = "its library was not mapped any more when it was to be attached again";
            at.refuse(slot, why);
            if !was_said {
                let name = &self.kept(slot).class.name;
                let text = format!("{name} is left out: {why}; operations are recorded without its calls");
                at.note_change(ChangeKind::Refused, Some(slot), text);
            }
        }
    }

    /// Modules came or went: what was left out may be there again, and is tried once.
    pub(super) fn try_left_out(&mut self, orders: &mut Vec<Order>) {
        let mut again = Vec::new();
        for kept in self.inner.kept.iter_mut().filter(|kept| kept.is_left_out) {
            (kept.missed, kept.next_ns) = (MOST_MISSES - 1, 0);
            again.push(kept.class.id);
        }
        if again.is_empty() {
            return;
        }
        // Operations in flight lack its calls.
        self.hold(orders);
        orders.extend(again.into_iter().map(|id| Order::Operation(OperationOrder::Allow(id))));
    }
}
