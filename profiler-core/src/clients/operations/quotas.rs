//! Hits that each class may take until quotas are given again, from what the present second leaves.

use super::Operations;
use super::kept::{KeptClass, Slot};
use super::moment::Moment;
use crate::adapt::spending::{Group, SPAN_S, Span, grants};
use crate::run::arbiter::SLICE_SHARE;
use crate::run::order::Order;
use std::collections::{BTreeMap, BTreeSet};

/// Quotas are given anew at this interval, ns.
pub(super) const RENEW_NS: u64 = 100_000_000;

/// What quotas come from.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    /// When they were given last, ktime ns.
    pub given_ns: u64,
    /// What all classes and screens took of late.
    pub span: Span,
    /// What was left of it when quotas were given last, ns, and what the screens had taken by then, ns.
    pub left_ns: f64,
    screened_ns: f64,
    /// What bounds wanted of it, ns.
    pub bounds_want_ns: f64,
    /// They could not be given when classes were to be asked for: the next view must show hits.
    pub lack_hits: bool,
}

/// What quotas were given.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// Hits that each class may take until quotas are given again.
    pub hits: BTreeMap<Slot, u64>,
    /// Classes of those who were granted less than one operation costs them.
    pub poor: BTreeSet<Slot>,
    /// What bounds should be able to take, ns.
    bounds_want_ns: f64,
}

/// Of an operation, or of what is inside.
struct Wanting {
    slots: Vec<Slot>,
    group: Group,
    /// What one operation costs of it, ns.
    least_ns: f64,
}

impl Operations {
    pub(super) fn is_renewal_due(&self, now: u64) -> bool {
        now.saturating_sub(self.quotas.given_ns) >= RENEW_NS
            || self.bounds.iter().chain(&self.inner.kept).any(|kept| kept.tripped)
    }

    /// Adds up what bounds and inner functions took since quotas were given last, and gives them anew, from what the second leaves. A view
    /// without hits says nothing of what was taken: then nothing is given.
    pub(super) fn renew_quotas(&mut self, at: &mut Moment<'_>) -> Given {
        if !at.seen().has_hits {
            self.quotas.lack_hits = true;
            return Given::default();
        }
        self.take_in(at);
        let (now, grant) = (at.now(), at.grant);
        let left_ns = self.quotas.span.left_ns(now, grant.allowed_in_second);
        self.quotas.left_ns = left_ns.min(grant.left_of_second_ns);
        let given = self.divide(at);
        self.quotas.bounds_want_ns = given.bounds_want_ns;
        for (slot, quota) in &given.hits {
            // Those that wait open with it.
            if !at.stands(*slot).is_off() {
                at.orders.push(Order::Quota(self.kept(*slot).class.id, *quota));
            }
        }
        given
    }

    /// What was taken since quotas were given last.
    fn take_in(&mut self, at: &Moment<'_>) {
        let (now, factor) = (at.now(), at.grant.factor);
        let Self { list, inner, bounds, quotas, cost, is_revised, .. } = self;
        quotas.lack_hits = false;
        let elapsed_ns = now.saturating_sub(std::mem::replace(&mut quotas.given_ns, now)) as f64;
        let cpu_s = at.view.target.own_cpu * (elapsed_ns * 1e-9).min(1.0);
        let mut took_ns = 0.0;
        let slots = (0..inner.kept.len()).map(Slot::Inner).chain((0..bounds.len()).map(Slot::Bound));
        for (slot, kept) in slots.zip(inner.kept.iter_mut().chain(&mut *bounds)) {
            let class = at.class(slot);
            let (hits, ends) = class.hits.since(std::mem::replace(&mut kept.seen, class.hits));
            // As the ledger charges them.
            let cold_ns = class.prices.cold_ns(cpu_s / hits);
            let cost_ns = hits * class.prices.hit.ns + ends * class.prices.exit.ns + (hits + ends) * cold_ns;
            kept.taken.note(cost_ns * factor, at.stands(slot).is_open());
            took_ns += kept.taken.last_ns;
        }
        let screens_ns = at.grant.screened_ns;
        took_ns += screens_ns - std::mem::replace(&mut quotas.screened_ns, screens_ns);
        quotas.span.note(now, took_ns);
        // Until a window says what they cost, others must leave them what they have taken of this second; also where that is more, until the
        // next revision: a target that wakes up does not wait for the end of a window.
        let taken = quotas.span.taken_ns(now, 1.0) * 1e-9;
        *cost = if *is_revised { cost.max(taken) } else { taken };
        for o in list {
            let own = bounds.iter().filter(|kept| kept.bounds(o.number));
            o.portion.span.note(now, own.map(|kept| kept.taken.last_ns).sum());
        }
    }

    /// Divides what is left among those that are attached, or may be.
    fn divide(&self, at: &Moment<'_>) -> Given {
        let factor = at.grant.factor;
        let tau_ns = |slot: Slot| at.class(slot).tau_ns(f64::INFINITY).max(1e-3) * factor;
        let wanting = self.wanting(at, &tau_ns);
        let groups: Vec<Group> = wanting.iter().map(|w| w.group.clone()).collect();
        let granted = grants(self.quotas.left_ns, &groups);
        let mut given =
            Given { bounds_want_ns: groups[1..].iter().map(Group::want_ns).sum(), ..Given::default() };
        for (Wanting { slots, least_ns, .. }, ns) in wanting.iter().zip(granted) {
            if ns.iter().sum::<f64>() < *least_ns {
                given.poor.extend(slots);
            }
            for (slot, ns) in slots.iter().zip(ns) {
                // OK because the cast saturates.
                given.hits.insert(*slot, ((ns / tau_ns(*slot)) as u64).max(1));
            }
        }
        given
    }

    /// Those that want something: what is inside, then each operation that may be attached. `tau_ns`: price of a call, where the caches are
    /// taken to be cold, ns.
    fn wanting(&self, at: &Moment<'_>, tau_ns: &impl Fn(Slot) -> f64) -> Vec<Wanting> {
        let (now, grant) = (at.now(), at.grant);
        let want = |(slot, kept): &(Slot, &KeptClass)| kept.taken.want_ns(tau_ns(*slot));
        let wanting = |list: Vec<(Slot, &KeptClass)>, most_ns: f64, bounds: bool, least_ns: f64| Wanting {
            group: Group { wants_ns: list.iter().map(want).collect(), most_ns, bounds },
            slots: list.into_iter().map(|(slot, _)| slot).collect(),
            least_ns,
        };
        let in_slices = !self.inner.slices.plan().are_always();
        let inside_ns =
            if in_slices { SLICE_SHARE * SPAN_S * grant.allowed_in_second * 1e9 } else { f64::INFINITY };
        let inside = self.is_inner_wanted();
        let inner = self.inner.kept.iter().enumerate().map(|(i, kept)| (Slot::Inner(i), kept));
        let inner = inner.filter(|(slot, _)| inside || at.stands(*slot).is_open()).collect();
        let recorded = self.list.iter().filter(|o| !o.watch.lost).map(|o| o.prices.record_ns);
        let recorded_ns = recorded.fold(0.0, f64::max) * grant.factor;
        let mut all = vec![wanting(inner, inside_ns, false, recorded_ns)];
        for o in self.list.iter().filter(|o| !o.watch.lost && !o.is_paused()) {
            let bounds = self.bounds.iter().enumerate().filter(|(_, kept)| kept.bounds(o.number));
            let bounds = bounds.map(|(i, kept)| (Slot::Bound(i), kept)).collect();
            let most_ns = o.portion.span.left_ns(now, o.most_screening(grant.allowed_in_second));
            all.push(wanting(bounds, most_ns, true, o.screened_ns() * grant.factor));
        }
        all
    }
}
