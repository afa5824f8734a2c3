//! Keeping bounds and inner functions attached, under quotas.

use super::super::Session;
use super::super::attach::now_ns;
use super::super::class::{Ending, LiveClass, OperationRole};
use super::asked::InnerTurn;
use super::complete::MOST_MISSES;
use super::window::switch;
use super::{Kept, Operation, Operations};
use crate::prober::operation::OPERATION_MONITORING;
use profiler_core::adapt::PolicyKind;
use profiler_core::adapt::spending::{Group, SPAN_S, grants, slice_room_ns};
use profiler_core::class::ClassId;
use profiler_core::clients::operations::complete::Ready;
use profiler_core::clients::operations::slices::SLICE_PART;
use profiler_core::cost::cold_ns;
use profiler_core::recording::{ChangeKind, Charge};
use std::collections::{BTreeMap, BTreeSet};

/// Quotas are given anew at this interval, ns.
pub(super) const RENEW_NS: u64 = 100_000_000;
/// Shortest pause after a quota was used up, ns.
const LEAST_PAUSE_NS: u64 = 100_000_000;
/// What was paused comes back when so much of a span's worth is left by all who spend, or after so long, ns.
const LEAST_LEFT: f64 = 0.2;
const MOST_WAIT_NS: u64 = 5_000_000_000;
/// A function that is not there is tried again after twice so long, ns, and a class that did not trip for ten times as long is as good as new.
pub(super) const TRIP_NS: u64 = 1_000_000_000;

/// Operations that nearly all take less, s, are cut while the overhead is compared: about one in a hundred is lost.
const LONG_S: f64 = 0.01;

/// What quotas were given.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// Hits that each class may take until quotas are given again.
    pub hits: BTreeMap<ClassId, u64>,
    /// Classes of those who were granted less than one operation costs them.
    pub poor: BTreeSet<ClassId>,
    /// What bounds should be able to take, ns.
    bounds_want_ns: f64,
}

/// Until when inner functions stay off that may come back since `until_ns`, ktime ns; 0: they come back now. `is_left`: it is worth it.
fn inner_pause(until_ns: u64, now: u64, is_left: bool) -> u64 {
    if is_left || now >= until_ns.saturating_add(MOST_WAIT_NS) { 0 } else { until_ns }
}

impl Operation {
    /// A quota of its bounds was used up, and they stay off.
    pub(super) fn is_paused(&self) -> bool {
        self.off_until_ns > 0
    }

    /// What screening it may cost, CPU s/s.
    fn most_screening(&self, allowed: f64) -> f64 {
        self.most_screening.min(allowed)
    }
}

impl Operations {
    /// A bound of which the quota is used up takes all bounds of its operation off: begins without ends, and ends without begins, cost as
    /// much and say nothing. They come back together when a second has room for them.
    fn pause_tripped(&mut self, now: u64, allowed: f64) {
        let all_ns = self.span.restart_at_ns(now, allowed).max(now + LEAST_PAUSE_NS);
        let Self { list, bounds, .. } = self;
        for o in list {
            let own = |kept: &&mut Kept| o.bounds.contains(&kept.class);
            if bounds.iter_mut().filter(own).any(|kept| kept.tripped) {
                o.off_until_ns = o.span.restart_at_ns(now, o.most_screening(allowed)).max(all_ns);
                // Nobody waits for those that were not attached yet.
                bounds.iter_mut().filter(own).for_each(|kept| kept.trips = kept.trips.max(1));
            }
        }
    }

    /// Pauses that are over.
    fn end_pauses(&mut self, now: u64, allowed: f64) {
        let is_left = self.is_left(allowed);
        // One hit each, time and again, would record nothing.
        if self.inner_until_ns > 0 && now >= self.inner_until_ns {
            self.inner_until_ns = inner_pause(self.inner_until_ns, now, is_left);
        }
        for o in self.list.iter_mut().filter(|o| o.is_paused() && now >= o.off_until_ns) {
            if is_left || now >= o.off_until_ns + MOST_WAIT_NS {
                o.off_until_ns = 0;
            }
        }
    }

    /// It is worth attaching something.
    fn is_left(&self, allowed: f64) -> bool {
        self.left_ns >= LEAST_LEFT * SPAN_S * allowed * 1e9
    }

    /// An inner function of which the quota is used up takes the others with it: nothing can be recorded without it, and they would be paid for.
    /// True if that was in a slice, which ends.
    fn pause_inner(&mut self, now: u64, allowed: f64) -> bool {
        if !self.inner.iter().any(|kept| kept.tripped) {
            return false;
        }
        self.inner_tripped = true;
        self.inner_until_ns = self.span.restart_at_ns(now, allowed).max(now + LEAST_PAUSE_NS);
        self.linger_ns = now;
        let in_slice = !self.slices.plan().are_always() && self.slices.are_wanted();
        if in_slice {
            self.slices.put_off();
        }
        in_slice
    }

    /// A second has room for a slice.
    fn has_room(&self, factor: f64, allowed: f64) -> bool {
        let Some(worth_ns) = self.slices.worth_ns(factor) else { return true };
        self.left_ns >= slice_room_ns(worth_ns, self.bounds_want_ns, allowed)
    }

    /// One of the inner functions has used up its quota, and they stay off.
    pub(super) fn is_inner_paused(&self) -> bool {
        self.inner_until_ns > 0
    }

    /// Some operation is watched, so that inner functions are worth their cost.
    pub(super) fn is_watched(&self) -> bool {
        self.list.iter().any(|o| !o.lost && !o.is_paused())
    }
}

impl Session {
    /// Keeps bounds and inner functions attached, with quotas from the budget of operations.
    pub(super) fn keep_bounds(&mut self, now: u64) {
        let allowed = self.arbiter().operations_in_second();
        if let Some(operations) = &mut self.operations {
            operations.end_pauses(now, allowed);
        }
        // After a trip at once: the pause follows what was taken. Also of what stays attached while the overhead is compared.
        let due = |o: &Operations| {
            let tripped = o.bounds.iter().chain(&o.inner).any(|kept| kept.tripped);
            now.saturating_sub(o.quotas_ns) >= RENEW_NS || tripped
        };
        if self.operations.as_deref().is_some_and(due) {
            self.renew_quotas(now);
        }
        if !self.suspension().may_follow_operations() {
            self.hold_operations();
            return;
        }
        let Some(mut operations) = self.operations.take() else { return };
        operations.pause_tripped(now, allowed);
        if operations.pause_inner(now, allowed) {
            let table = self.attach.kernel().operations();
            operations.list.iter().for_each(|o| switch(table, o.number, false));
        }
        let asked = operations.asked.take();
        let inner = self.decide_inner(&mut operations, now, allowed, asked.is_some());
        let (wanted, tripped) = self.close_unwanted(&mut operations, now, inner.attach);
        self.operations = Some(operations);
        for id in tripped {
            self.note_change(
                ChangeKind::Trip,
                Some(id),
                "more hits than operations may cost: off for a while".to_owned(),
            );
        }
        match asked {
            Some(asked) => self.follow_asked(now, asked, inner.wanted),
            None => self.ask_for(wanted, inner),
        }
    }

    /// What functions inside operations are to do in this turn. `asked`: some are being attached, and it is decided.
    fn decide_inner(&self, operations: &mut Operations, now: u64, allowed: f64, asked: bool) -> InnerTurn {
        let recording = !operations.begun || operations.list.iter().any(|o| o.monitoring);
        let seen = !operations.begun || operations.is_watched();
        let wanted = recording && operations.policy != PolicyKind::None;
        let may = wanted && seen && !operations.is_inner_paused();
        self.begin_details_anew(operations);
        let opening = may && operations.slices.is_opening();
        let decides = opening && !asked;
        let mut ready = if decides { self.inner_ready(operations, now) } else { Ready::Now };
        if ready == Ready::Later {
            operations.slices.put_off();
        }
        if decides && !operations.has_room(self.ledger.factor(), allowed) {
            ready = Ready::Soon;
        }
        InnerTurn {
            wanted,
            attach: may && operations.slices.are_wanted() && ready == Ready::Now,
            tried: opening && ready == Ready::Now,
        }
    }

    /// Closes what is not to be attached now. Returns the classes that are to be attached and those that have tripped: inner functions, then
    /// ends before begins, so that no begin is seen whose end is missed.
    fn close_unwanted(
        &mut self,
        operations: &mut Operations,
        now: u64,
        attach_inner: bool,
    ) -> (Vec<ClassId>, Vec<ClassId>) {
        let of = |off: &dyn Fn(&Operation) -> bool| -> Vec<ClassId> {
            operations.list.iter().filter(|o| off(o)).flat_map(|o| o.bounds.clone()).collect()
        };
        let closed = of(&|o| o.lost);
        let paused = of(&Operation::is_paused);
        let (mut wanted, mut tripped) = (Vec::new(), Vec::new());
        let lingers = now < operations.linger_ns;
        let mut ended = false;
        let Operations { inner, bounds, .. } = operations;
        let with_order =
            inner.iter_mut().map(|k| (k, attach_inner)).chain(bounds.iter_mut().rev().map(|k| (k, true)));
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
                // When they come back the operation says, or the pause of inner functions.
                kept.next_ns = now;
                kept.trips += 1;
                tripped.push(id);
            } else if class.is_pending() {
                if !attach && (pause || !lingers) {
                    self.attach.close(&self.target, id, Ending::AtOnce);
                }
            } else if attach && class.may_open() && now >= kept.next_ns {
                wanted.push(id);
            }
        }
        (wanted, tripped)
    }

    /// The quota of a class has ended its window.
    pub(in crate::session) fn note_operation_trip(&mut self, id: ClassId) {
        let Some(operations) = &mut self.operations else { return };
        for kept in operations.inner.iter_mut().chain(&mut operations.bounds).filter(|k| k.class == id) {
            kept.tripped = true;
        }
    }

    /// Adds up what bounds and inner functions took since quotas were given last, and gives them anew, from what the second leaves.
    pub(super) fn renew_quotas(&mut self, now: u64) -> Given {
        let Some(mut operations) = self.operations.take() else { return Given::default() };
        let factor = self.ledger.factor();
        let elapsed_ns = now.saturating_sub(std::mem::replace(&mut operations.quotas_ns, now)) as f64;
        let cpu_s = self.own_cpu * (elapsed_ns * 1e-9).min(1.0);
        let Operations { list, inner, bounds, span, screened_ns, .. } = &mut *operations;
        let mut took_ns = 0.0;
        for kept in inner.iter_mut().chain(&mut *bounds) {
            let class = self.attach.class(kept.class);
            let c = self.attach.kernel().classes().counters(kept.class);
            let here = (c.attempted, c.returns.wrapping_add(c.orphans));
            let last = std::mem::replace(&mut kept.seen, here);
            let (hits, ends) = (here.0.wrapping_sub(last.0) as f64, here.1.wrapping_sub(last.1) as f64);
            // As the ledger charges them.
            let cold_ns = cold_ns(class.cold, cpu_s / hits);
            let cost_ns = hits * class.hit_price.ns + ends * class.exit_price.ns + (hits + ends) * cold_ns;
            kept.taken.note(cost_ns * factor, class.is_open());
            took_ns += kept.taken.last_ns;
        }
        let screens_ns = self.ledger.account(Charge::Screening).cost_ns;
        took_ns += screens_ns - std::mem::replace(screened_ns, screens_ns);
        span.note(now, took_ns);
        for o in list {
            let own = bounds.iter().filter(|kept| o.bounds.contains(&kept.class));
            o.span.note(now, own.map(|kept| kept.taken.last_ns).sum());
        }
        let allowed = self.arbiter().operations_in_second();
        let others = self.arbiter().left_of_second_ns();
        operations.left_ns = operations.span.left_ns(now, allowed).min(others);
        let given = self.quotas(&operations, now, allowed);
        operations.bounds_want_ns = given.bounds_want_ns;
        self.operations = Some(operations);
        for (id, quota) in &given.hits {
            // Those that wait open with it.
            if !self.attach.class(*id).is_off() {
                self.attach.set_quota(*id, *quota);
            }
        }
        given
    }

    /// Hits that each class may take until quotas are given again: of those that are attached, or may be.
    fn quotas(&self, operations: &Operations, now: u64, allowed: f64) -> Given {
        let factor = self.ledger.factor();
        // Of a call; the caches are taken to be cold.
        let tau_ns = |class: &LiveClass| class.tau_ns(f64::INFINITY).max(1e-3) * factor;
        let want = |kept: &&Kept| kept.taken.want_ns(tau_ns(self.attach.class(kept.class)));
        let in_slices = !operations.slices.plan().are_always();
        let inside_ns = if in_slices { SLICE_PART * SPAN_S * allowed * 1e9 } else { f64::INFINITY };
        let is_open = |kept: &Kept| self.attach.class(kept.class).is_open();
        let inside = !operations.is_inner_paused() && operations.slices.are_wanted();
        let inner: Vec<&Kept> = operations.inner.iter().filter(|kept| inside || is_open(kept)).collect();
        let mut of_groups = vec![inner];
        // What one operation costs of each group.
        let recorded = operations.list.iter().filter(|o| !o.lost).map(|o| o.record_ns);
        let mut least_ns = vec![recorded.fold(0.0, f64::max) * factor];
        let mut groups = vec![Group {
            wants_ns: of_groups[0].iter().map(want).collect(),
            most_ns: inside_ns,
            bounds: false,
        }];
        for o in operations.list.iter().filter(|o| !o.lost && !o.is_paused()) {
            let own: Vec<&Kept> =
                operations.bounds.iter().filter(|kept| o.bounds.contains(&kept.class)).collect();
            groups.push(Group {
                wants_ns: own.iter().map(want).collect(),
                most_ns: o.span.left_ns(now, o.most_screening(allowed)),
                bounds: true,
            });
            of_groups.push(own);
            least_ns.push(o.screened_ns() * factor);
        }
        let given = grants(operations.left_ns, &groups);
        let bounds_want_ns = groups[1..].iter().map(Group::want_ns).sum();
        let pays = |(grants, least_ns): (&Vec<f64>, &f64)| grants.iter().sum::<f64>() >= *least_ns;
        let poor = of_groups.iter().zip(given.iter().zip(&least_ns)).filter(|(_, group)| !pays(*group));
        let poor = poor.flat_map(|(kept, _)| kept.iter().map(|kept| kept.class)).collect();
        let hits = |(kept, ns): (&Kept, f64)| {
            // OK because the cast saturates.
            (kept.class, ((ns / tau_ns(self.attach.class(kept.class))) as u64).max(1))
        };
        let each = of_groups.into_iter().zip(given).flat_map(|(kept, ns)| kept.into_iter().zip(ns));
        Given { hits: each.map(hits).collect(), poor, bounds_want_ns }
    }

    /// Functions that stay attached while the overhead is compared, because operations in flight would be lost, and the long ones most often:
    /// those of operations that take long, or of which none has ended yet, unless they are so many that what they cost matters.
    pub(in crate::session) fn staying_bounds(&self) -> Vec<ClassId> {
        let mut left = self.arbiter().staying();
        let list = self.operations.iter().flat_map(|operations| &operations.list);
        let long = list.filter(|o| o.longest_s == 0.0 || o.longest_s > LONG_S);
        let mut by_cost: Vec<_> = long.map(|o| (o.rate_hz * o.screened_ns() * 1e-9, o)).collect();
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
        self.operations.as_ref().is_some_and(|o| !o.is_inner_paused() && o.slices.are_wanted())
    }

    pub(super) fn say_refused(&mut self, id: ClassId) {
        let class = self.attach.class(id);
        if let Some(why) = &class.refused {
            self.progress.note(&format!("{} cannot be attached: {why}", class.candidate.name));
        }
    }

    /// Everything is attached: recording begins.
    pub(super) fn begin_operations(&mut self) {
        let Some(operations) = &self.operations else { return };
        let waits = |kept: &Kept| {
            let class = self.attach.class(kept.class);
            // Nobody waits for what is not there.
            let inside = matches!(class.role, Some(OperationRole::Inner { .. }));
            let is_missing = kept.missed >= if inside { 1 } else { MOST_MISSES };
            class.is_pending() || class.may_open() && kept.trips == 0 && !is_missing
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
