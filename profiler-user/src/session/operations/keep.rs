//! Keeping bounds and inner functions attached, under quotas.

use super::super::Session;
use super::super::attach::now_ns;
use super::super::class::{Ending, OperationRole};
use super::super::overhead::Comparison;
use super::complete::{MOST_MISSES, Ready};
use super::{Kept, Operation, Operations, spending};
use crate::prober::operation::OPERATION_MONITORING;
use profiler_core::adapt::PolicyKind;
use profiler_core::class::ClassId;
use profiler_core::recording::{ChangeKind, WindowKind};
use std::collections::BTreeMap;

/// Quotas of bounds are worth what operations may cost in so many seconds, and are given anew at this interval, ns, as long as all together have
/// not taken `SECOND` times what they may in the present second.
const BOUND_S: f64 = 0.25;
const SECOND: f64 = 1.5;
const RENEW_NS: u64 = 100_000_000;
/// What all of them take is added up over so many seconds: a burst inside may take that much at once.
const SPENDING_S: f64 = 1.0;
/// Hits that every quota lets through.
const LEAST_HITS: u64 = 100;
/// The same of bounds that are many: they divide those.
const LEAST_OF_MANY: u64 = 4;
/// After a trip what is inside stays off for twice so long, ns, and a class that did not trip for ten times as long is as good as new.
pub(super) const TRIP_NS: u64 = 1_000_000_000;

/// Operations that nearly all take less, s, are cut while the overhead is compared: about one in a hundred is lost.
const LONG_S: f64 = 0.01;
/// The functions of others stay attached meanwhile, up to this part of what operations may cost together: it is not compared.
const STAYING_SHARE: f64 = 0.1;

impl Operations {
    /// A bound of which the quota is used up takes all bounds of its operation off: begins without ends, and ends without begins, cost as
    /// much and say nothing. They come back together when on average they took half of what their operation may.
    fn pause_tripped(&mut self, now: u64, allowed_ns: f64) {
        let equal_ns = allowed_ns / self.live().max(1) as f64;
        let Self { list, bounds, .. } = self;
        for o in list {
            let each_ns = equal_ns.max(o.part * 1e9).min(allowed_ns);
            let own = |kept: &&mut Kept| o.bounds.contains(&kept.class);
            let (mut took_ns, mut tripped) = (0.0, false);
            for kept in bounds.iter_mut().filter(own) {
                took_ns += kept.took_ns;
                tripped |= kept.tripped;
            }
            if tripped {
                o.off_until_ns = now + spending::pause_ns(took_ns, each_ns, BOUND_S);
                // Nobody waits for those that were not attached yet.
                bounds.iter_mut().filter(own).for_each(|kept| kept.trips = kept.trips.max(1));
            }
        }
    }
}

impl Session {
    /// Keeps bounds and inner functions attached, with quotas from the budget of operations.
    pub(super) fn keep_bounds(&mut self, now: u64) {
        // After a trip at once: the pause follows what was taken. Also of what stays attached while the overhead is compared.
        let due = |o: &Operations| {
            now.saturating_sub(o.quotas_ns) >= RENEW_NS || o.bounds.iter().any(|kept| kept.tripped)
        };
        if self.operations.as_deref().is_some_and(due) {
            self.renew_quotas(now);
        }
        let off = self.comparison.as_ref().is_some_and(Comparison::is_off);
        if off || !self.rearm_wanted.is_empty() || self.children.is_storm() {
            self.hold_operations();
            return;
        }
        let Some(mut operations) = self.operations.take() else { return };
        let begun = operations.begun;
        let recording = !begun || operations.list.iter().any(|o| o.monitoring);
        // While all bounds pause for long nothing can be recorded: what is inside comes back a little before them.
        let may_see = |o: &Operation| !o.lost && o.bounds_off == 0 && now + TRIP_NS >= o.off_until_ns;
        let seen = !begun || operations.list.iter().any(may_see);
        let inner_wanted = recording && seen && operations.policy != PolicyKind::None;
        self.begin_details_anew(&mut operations);
        let opening = inner_wanted && operations.inner_off == 0 && operations.slices.is_opening();
        let ready = if opening { self.inner_ready(&operations, now) } else { Ready::Now };
        if ready == Ready::Later {
            operations.slices.put_off();
        }
        let tried = opening && ready == Ready::Now;
        let inner_attached = inner_wanted
            && operations.inner_off == 0
            && operations.slices.are_wanted()
            && ready == Ready::Now;
        let allowed_ns = self.operations_budget() * 1e9;
        operations.pause_tripped(now, allowed_ns);
        let of = |off: &dyn Fn(&Operation) -> bool| -> Vec<ClassId> {
            operations.list.iter().filter(|o| off(o)).flat_map(|o| o.bounds.clone()).collect()
        };
        let closed = of(&|o| o.bounds_off > 0 || o.lost);
        let paused = of(&|o| now < o.off_until_ns);
        let mut wanted = Vec::new();
        let mut tripped = Vec::new();
        // Ends before begins, so that no begin is seen whose end is missed.
        let lingers = now < operations.linger_ns;
        let mut ended = false;
        let quotas = self.quotas(&operations);
        let Operations { inner, bounds, .. } = &mut *operations;
        let with_order =
            inner.iter_mut().map(|k| (k, inner_attached)).chain(bounds.iter_mut().rev().map(|k| (k, true)));
        for (kept, attach) in with_order {
            let id = kept.class;
            let pause = paused.contains(&id);
            let attach = attach && !pause && !closed.contains(&id);
            let class = self.attach.class(id);
            let inside = matches!(class.role, Some(OperationRole::Inner { .. }));
            if class.is_open() {
                (kept.missed, kept.is_left_out) = (0, false);
                if !attach && (pause || !lingers) {
                    if inside && !std::mem::replace(&mut ended, true) {
                        // What is still recorded would lack calls from here on.
                        self.attach.kernel().operations().details_end();
                    }
                    let ending = if pause { Ending::AtOnce } else { Ending::Soon };
                    self.attach.close(&self.target, id, ending);
                } else if kept.trips > 0 && now > kept.next_ns + 10 * TRIP_NS {
                    kept.trips = 0;
                }
            } else if std::mem::take(&mut kept.tripped) {
                // What is inside came for all that may be spent in a second: half of the budget goes on such bursts. When bounds come back their
                // operation says.
                kept.next_ns = if inside { now + 2 * TRIP_NS } else { now };
                kept.trips += 1;
                tripped.push(id);
            } else if attach && class.may_open() && now >= kept.next_ns {
                wanted.push((id, quotas.get(&id).copied().unwrap_or(LEAST_HITS)));
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
            let opened = self.open_windows(WindowKind::Trace, &wanted);
            for (id, _) in &wanted {
                self.say_refused(*id);
            }
            // One that was opened and is off again was taken off with a neighbour on its link.
            let missed: Vec<ClassId> =
                wanted.iter().map(|(id, _)| *id).filter(|id| !opened.contains(id)).collect();
            let missed = self.without_postponed(now, missed);
            self.note_missing(&missed);
        }
        if begun {
            self.note_complete(inner_wanted, tried);
        } else {
            self.begin_operations();
        }
    }

    /// Those that are postponed are not missing: they come when forks of others may be held up again.
    fn without_postponed(&mut self, now: u64, missed: Vec<ClassId>) -> Vec<ClassId> {
        let (postponed, missed): (Vec<_>, Vec<_>) =
            missed.into_iter().partition(|id| self.attach.is_postponed(*id));
        if let Some(operations) = &mut self.operations {
            let Operations { inner, bounds, .. } = &mut **operations;
            for kept in inner.iter_mut().chain(bounds).filter(|kept| postponed.contains(&kept.class)) {
                kept.next_ns = now + RENEW_NS;
            }
        }
        missed
    }

    /// The quota of a class has ended its window.
    pub(in crate::session) fn note_operation_trip(&mut self, id: ClassId) {
        let Some(operations) = &mut self.operations else { return };
        for kept in operations.inner.iter_mut().chain(&mut operations.bounds).filter(|k| k.class == id) {
            kept.tripped = true;
        }
    }

    /// Adds up what bounds and inner functions took since quotas were given last, and gives them anew. Where that is more than
    /// the share of operations, inner functions are closed at once: the quotas of single classes do not see the sum.
    fn renew_quotas(&mut self, now: u64) {
        let factor = self.ledger.factor();
        let allowed_ns = self.operations_budget() * SPENDING_S * 1e9;
        let Some(mut operations) = self.operations.take() else { return };
        operations.quotas_ns = now;
        let fresh = now.saturating_sub(operations.second_ns) as f64 * 1e-9 >= SPENDING_S;
        if fresh {
            operations.second_ns = now;
        }
        // Of an operation of which a bound has tripped nothing is forgotten until its pause is known.
        let trips =
            |o: &&Operation| operations.bounds.iter().any(|k| k.tripped && o.bounds.contains(&k.class));
        let keeps: Vec<ClassId> =
            operations.list.iter().filter(trips).flat_map(|o| o.bounds.iter().copied()).collect();
        let Operations { inner, bounds, .. } = &mut *operations;
        if fresh && inner.iter().any(|kept| kept.took_ns > 0.0) {
            inner.iter_mut().chain(&mut *bounds).for_each(|kept| kept.before_ns = kept.took_ns);
        }
        for kept in inner.iter_mut().chain(bounds) {
            let class = self.attach.class(kept.class);
            let c = self.attach.kernel().classes().counters(kept.class);
            let here = (c.attempted, c.returns.wrapping_add(c.orphans));
            let last = std::mem::replace(&mut kept.seen, here);
            let cost_ns = here.0.wrapping_sub(last.0) as f64 * class.hit_price.ns
                + here.1.wrapping_sub(last.1) as f64 * class.exit_price.ns;
            let forget = fresh && !kept.tripped && !keeps.contains(&kept.class);
            kept.took_ns = cost_ns * factor + if forget { 0.0 } else { kept.took_ns };
        }
        let inside_ns: f64 = operations.inner.iter().map(|k| k.took_ns).sum();
        let spent_ns = inside_ns + operations.bounds.iter().map(|k| k.took_ns).sum::<f64>();
        let most_ns = allowed_ns * operations.slices.crowding(SPENDING_S);
        let pause_s = spending::pause_spans((spent_ns, inside_ns), most_ns, allowed_ns) * SPENDING_S;
        let stop = pause_s > 0.0 && operations.inner_off == 0 && operations.begun;
        if stop {
            // The present window is one of them. OK because the cast saturates.
            operations.inner_off = 1 + (pause_s / operations.config.revise_s).ceil() as u32;
        }
        let quotas = self.quotas(&operations);
        self.operations = Some(operations);
        if stop {
            self.stop_inner(spent_ns, most_ns, pause_s);
        }
        for (id, quota) in quotas {
            if self.attach.class(id).is_open() {
                self.attach.set_quota(id, quota);
            }
        }
    }

    /// Inner functions and bounds together took more than may fall into such a span.
    fn stop_inner(&mut self, spent_ns: f64, most_ns: f64, pause_s: f64) {
        self.hold_operations();
        let Some(operations) = &self.operations else { return };
        for kept in &operations.inner {
            if self.attach.class(kept.class).is_open() {
                self.attach.close(&self.target, kept.class, Ending::AtOnce);
            }
        }
        let text = format!(
            "inner functions and bounds took {:.1} ms in {SPENDING_S} s, more than {} times the {:.1} ms that were to fall into it: inner functions are off for {pause_s:.0} s, and nothing is recorded meanwhile",
            spent_ns * 1e-6,
            spending::TOLERANCE,
            most_ns * 1e-6
        );
        self.note_change(ChangeKind::Trip, None, text);
    }

    /// Hits that each class may take until quotas are given again.
    fn quotas(&self, operations: &Operations) -> BTreeMap<ClassId, u64> {
        let allowed_ns = self.operations_budget() * 1e9;
        let factor = self.ledger.factor();
        let outside: Vec<f64> = operations.bounds.iter().map(|kept| kept.took_ns).collect();
        // Bounds come first, whatever is inside took.
        let left_ns = SECOND * SPENDING_S * allowed_ns - outside.iter().sum::<f64>();
        let bounds_ns = left_ns.clamp(0.0, allowed_ns * BOUND_S);
        let least = (LEAST_HITS / outside.len().max(1) as u64).max(LEAST_OF_MANY);
        let hits = |(kept, worth_ns, least): (&Kept, f64, u64)| {
            let class = self.attach.class(kept.class);
            let tau_ns = (class.hit_price.ns + class.exit_price.ns).max(1e-3) * factor;
            // OK because the cast saturates.
            (kept.class, ((worth_ns / tau_ns) as u64).max(least))
        };
        // What is attached in slices takes nothing between them.
        let all: Vec<f64> = operations
            .inner
            .iter()
            .chain(&operations.bounds)
            .map(|kept| kept.took_ns + kept.before_ns)
            .collect();
        let most_ns = SPENDING_S * allowed_ns * operations.slices.crowding(SPENDING_S);
        let worth = spending::parts(&all).into_iter().map(|part| part * most_ns);
        let inner = operations.inner.iter().zip(worth).map(|(kept, ns)| (kept, ns, LEAST_HITS));
        let bounds = operations.bounds.iter().zip(spending::parts(&outside));
        inner.chain(bounds.map(|(kept, part)| (kept, part * bounds_ns, least))).map(hits).collect()
    }

    /// Functions that stay attached while the overhead is compared, because operations in flight would be lost, and the long ones most often:
    /// those of operations that take long, or of which none has ended yet, unless they are so many that what they cost matters.
    pub(in crate::session) fn staying_bounds(&self) -> Vec<ClassId> {
        let mut left = STAYING_SHARE * self.operations_budget();
        let list = self.operations.iter().flat_map(|operations| &operations.list);
        let long = list.filter(|o| o.longest_s == 0.0 || o.longest_s > LONG_S);
        let mut by_cost: Vec<_> = long.map(|o| (o.rate_hz * o.screen_ns * 1e-9, o)).collect();
        by_cost.sort_by(|a, b| a.0.total_cmp(&b.0));
        let fits = |(cost, _): &(f64, &Operation)| {
            left -= cost;
            left >= 0.0
        };
        by_cost.into_iter().take_while(fits).flat_map(|(_, o)| o.bounds.clone()).collect()
    }

    /// Bounds and inner functions that are off and will be attached again.
    pub(in crate::session) fn operations_waiting(&self) -> Vec<ClassId> {
        let Some(operations) = &self.operations else { return Vec::new() };
        let bounds = operations.list.iter().filter(|o| !o.lost).flat_map(|o| o.bounds.iter().copied());
        let inner = if operations.policy == PolicyKind::None { &[][..] } else { &operations.inner };
        bounds
            .chain(inner.iter().map(|kept| kept.class))
            .filter(|id| self.attach.class(*id).may_open())
            .collect()
    }

    /// Functions inside operations are to be attached now.
    pub(in crate::session) fn inner_is_wanted(&self) -> bool {
        self.operations.as_ref().is_some_and(|o| o.inner_off == 0 && o.slices.are_wanted())
    }

    fn say_refused(&mut self, id: ClassId) {
        let class = self.attach.class(id);
        if let Some(why) = &class.refused {
            self.progress.note(&format!("{} cannot be attached: {why}", class.candidate.name));
        }
    }

    /// Everything is attached: recording begins.
    fn begin_operations(&mut self) {
        let Some(operations) = &self.operations else { return };
        let waits = |kept: &Kept| {
            let class = self.attach.class(kept.class);
            // Nobody waits for what is not there.
            let inside = matches!(class.role, Some(OperationRole::Inner { .. }));
            let is_missing = kept.missed >= if inside { 1 } else { MOST_MISSES };
            class.may_open() && !class.is_open() && kept.trips == 0 && !is_missing
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
        let share = budget / operations.live().max(1) as f64;
        for o in &mut operations.list {
            o.monitoring = o.adapter.orders().monitoring && !o.lost;
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
