//! Keeping bounds and inner functions attached, under quotas.

use super::asked::InnerTurn;
use super::complete::Ready;
use super::kept::{KeptClass, Slot};
use super::moment::Moment;
use super::{Operation, Operations};
use crate::adapt::PolicyKind;
use crate::adapt::spending::{SPAN_S, slice_room_ns};
use crate::recording::ChangeKind;
use crate::run::arbiter::LEAST_LEFT_SHARE;
use crate::run::order::Ending;

/// Shortest pause after a quota was used up, ns.
const LEAST_PAUSE_NS: u64 = 100_000_000;
/// What was paused comes back after so long at the latest, ns.
const MOST_WAIT_NS: u64 = 5_000_000_000;
/// A function that is not there is tried again after twice so long, ns, and a class that did not trip for ten times as long is as good as
/// new.
pub(super) const TRIP_NS: u64 = 1_000_000_000;

/// Until when inner functions stay off that may come back since `until_ns`, ktime ns; 0: they come back now. `is_left`: it is worth it.
fn inner_pause(until_ns: u64, now: u64, is_left: bool) -> u64 {
    if is_left || now >= until_ns.saturating_add(MOST_WAIT_NS) { 0 } else { until_ns }
}

/// What is to be done about a class.
enum Action {
    Nothing,
    /// Its window is closed.
    Close(Ending),
    /// Its quota has ended its window.
    Tripped,
    /// It is to be attached.
    Ask,
}

impl Operations {
    /// Keeps bounds and inner functions attached, with quotas from the budget of operations.
    pub(super) fn keep(&mut self, at: &mut Moment<'_>) {
        self.end_pauses(at);
        // After a trip at once: the pause follows what was taken. Also of what stays attached while the overhead is compared.
        if self.is_renewal_due(at.now()) {
            self.renew_quotas(at);
        }
        if !at.grant.suspension.may_follow_operations() {
            self.hold(at.orders);
            return;
        }
        self.pause_tripped(at);
        if self.pause_inner(at) {
            at.stop_recording(&self.list);
        }
        let asked = self.asked.take();
        let inner = self.decide_inner(at, asked.is_some());
        let (wanted, tripped) = self.close_unwanted(at, inner.attach);
        for slot in tripped {
            let text = "more hits than operations may cost: off for a while".to_owned();
            at.change(ChangeKind::Trip, Some(slot), text);
        }
        match asked {
            Some(asked) => self.follow_asked(at, asked, inner.wanted),
            None => self.ask_for(at, wanted, inner),
        }
    }

    /// Pauses that are over.
    fn end_pauses(&mut self, at: &Moment<'_>) {
        let (now, allowed) = (at.now(), at.grant.allowed_in_second);
        // One hit each, time and again, would record nothing.
        let is_left = self.quotas.left_ns >= LEAST_LEFT_SHARE * SPAN_S * allowed * 1e9;
        let inner = &mut self.inner;
        if inner.is_paused() && now >= inner.until_ns {
            inner.until_ns = inner_pause(inner.until_ns, now, is_left);
        }
        for o in self.list.iter_mut().filter(|o| o.is_paused() && now >= o.watch.off_until_ns) {
            if is_left || now >= o.watch.off_until_ns + MOST_WAIT_NS {
                o.watch.off_until_ns = 0;
            }
        }
    }

    /// A bound of which the quota is used up takes all bounds of its operation off: begins without ends, and ends without begins, cost as
    /// much and say nothing. They come back together when a second has room for them.
    fn pause_tripped(&mut self, at: &Moment<'_>) {
        let (now, allowed) = (at.now(), at.grant.allowed_in_second);
        let all_ns = self.quotas.span.restart_at_ns(now, allowed).max(now + LEAST_PAUSE_NS);
        let Self { list, bounds, .. } = self;
        for o in list {
            let own = |kept: &&mut KeptClass| kept.bounds(o.number);
            if bounds.iter_mut().filter(own).any(|kept| kept.tripped) {
                let own_ns = o.portion.span.restart_at_ns(now, o.most_screening(allowed));
                o.watch.off_until_ns = own_ns.max(all_ns);
                // Nobody waits for those that were not attached yet.
                bounds.iter_mut().filter(own).for_each(|kept| kept.trips = kept.trips.max(1));
            }
        }
    }

    /// An inner function of which the quota is used up takes the others with it: nothing can be recorded without it, and they would be paid
    /// for. True if that was in a slice, which ends.
    fn pause_inner(&mut self, at: &Moment<'_>) -> bool {
        let inner = &mut self.inner;
        if !inner.kept.iter().any(|kept| kept.tripped) {
            return false;
        }
        let now = at.now();
        let restart_ns = self.quotas.span.restart_at_ns(now, at.grant.allowed_in_second);
        inner.tripped = true;
        inner.until_ns = restart_ns.max(now + LEAST_PAUSE_NS);
        inner.linger_ns = now;
        let in_slice = !inner.slices.plan().are_always() && inner.slices.are_wanted();
        if in_slice {
            inner.slices.put_off();
        }
        in_slice
    }

    /// What functions inside operations are to do in this turn. `asked`: some are being attached, and it is decided.
    fn decide_inner(&mut self, at: &mut Moment<'_>, asked: bool) -> InnerTurn {
        let recording = !self.begun || self.list.iter().any(|o| o.monitoring);
        let seen = !self.begun || self.is_watched();
        let wanted = recording && self.settings.policy != PolicyKind::None;
        let may = wanted && seen && !self.inner.is_paused();
        self.begin_details_anew(at);
        let opening = may && self.inner.slices.is_opening();
        let decides = opening && !asked;
        let mut ready = if decides { self.inner_ready(at) } else { Ready::Now };
        if ready == Ready::Later {
            self.inner.slices.put_off();
        }
        if decides && !self.has_room(at) {
            ready = Ready::Soon;
        }
        InnerTurn {
            wanted,
            attach: may && self.inner.slices.are_wanted() && ready == Ready::Now,
            tried: opening && ready == Ready::Now,
        }
    }

    /// A second has room for a slice.
    fn has_room(&self, at: &Moment<'_>) -> bool {
        let Some(worth_ns) = self.inner.slices.worth_ns(at.grant.factor) else { return true };
        let Self { quotas, .. } = self;
        quotas.left_ns >= slice_room_ns(worth_ns, quotas.bounds_want_ns, at.grant.allowed_in_second)
    }

    /// Closes what is not to be attached now. Returns the classes that are to be attached and those that have tripped: inner functions,
    /// then ends before begins, so that no begin is seen whose end is missed.
    fn close_unwanted(&mut self, at: &mut Moment<'_>, attach_inner: bool) -> (Vec<Slot>, Vec<Slot>) {
        let (mut wanted, mut tripped) = (Vec::new(), Vec::new());
        let mut ended = false;
        let inner = (0..self.inner.kept.len()).map(Slot::Inner);
        let slots: Vec<Slot> = inner.chain((0..self.bounds.len()).rev().map(Slot::Bound)).collect();
        for slot in slots {
            match self.action(at, slot, attach_inner) {
                Action::Nothing => {}
                Action::Ask => wanted.push(slot),
                Action::Tripped => tripped.push(slot),
                Action::Close(ending) => {
                    let inside = matches!(slot, Slot::Inner(_)) && at.stands(slot).is_open();
                    if inside && !std::mem::replace(&mut ended, true) {
                        if self.inner.slices.may_record() {
                            // Before the first of them is shut, not when all are.
                            self.hold(at.orders);
                        }
                        // What is still recorded would lack calls from here on.
                        at.details_end();
                    }
                    at.close(slot, ending);
                }
            }
        }
        (wanted, tripped)
    }

    fn action(&mut self, at: &Moment<'_>, slot: Slot, attach_inner: bool) -> Action {
        let now = at.now();
        let lingers = now < self.inner.linger_ns;
        let operation = self.operation_of(self.kept(slot));
        let is_lost = operation.is_some_and(|o| o.watch.lost);
        let pause = operation.is_some_and(Operation::is_paused);
        let attach = (operation.is_some() || attach_inner) && !pause && !is_lost;
        let closes = !attach && (pause || !lingers);
        let stands = at.stands(slot);
        let kept = self.kept_mut(slot);
        if stands.is_open() {
            (kept.missed, kept.is_left_out) = (0, false);
            if closes {
                return Action::Close(if pause { Ending::AtOnce } else { Ending::Soon });
            }
            if kept.trips > 0 && now > kept.next_ns + 10 * TRIP_NS {
                kept.trips = 0;
            }
        } else if std::mem::take(&mut kept.tripped) {
            // When they come back the operation says, or the pause of inner functions.
            kept.next_ns = now;
            kept.trips += 1;
            return Action::Tripped;
        } else if stands.is_pending() {
            if closes {
                return Action::Close(Ending::AtOnce);
            }
        } else if attach && stands.may_open() && now >= kept.next_ns {
            return Action::Ask;
        }
        Action::Nothing
    }
}
