//! Ending windows: gates shut, draining, links closed, and what the windows saw.

use super::super::class::{Closing, Ending, LinkState, LiveClass, OpenWindow};
use super::super::clock::now_ns;
use super::super::window::{closing, row};
use super::answer::read_steal;
use super::{Attachments, Ended, TargetId};
use crate::governor::{CloseReason, ClosedLink};
use crate::prober::OpenCall;
use profiler_core::class::ClassId;
use profiler_core::recording::{OpenCallRow, WindowKind, WindowRow};
use std::collections::BTreeMap;

/// So long the links of a window that has ended wait for the calls in flight, ns.
const DRAIN_NS: u64 = 50_000_000;
/// Part of a window's calls above which those in flight at its end are worth waiting for longer.
const IN_FLIGHT_PART: f64 = 0.01;
/// Waiting ends when so many entries have been turned away, ...
const DRAIN_HITS: u64 = 64;
/// ... or one for so many calls that the window saw, whichever is more.
const DRAIN_PART: u64 = 10;
/// The same where few of the calls are in flight: one that is cut off says that any call may take any time.
const SHORT_DRAIN: (u64, u64) = (16, 50);
/// Threads that are asked for their open calls at most: two system calls each.
const ASKED_THREADS: usize = 2_000;

impl Attachments {
    /// Ends the windows of a class and of all that share its links. With [`Ending::AtOnce`] draining ends, too.
    pub fn close(&mut self, id: ClassId, ending: Ending) {
        let group = match &self.class(id).state {
            LinkState::Open(window) => window.group,
            // Whatever it waits for is not worth what the links may do.
            LinkState::Closing(window, _) if ending == Ending::AtOnce => {
                let group = window.group;
                self.end_drain(group);
                return;
            }
            LinkState::Waiting(_) | LinkState::Opening(..) => return self.close_pending(id, ending),
            LinkState::Closing(..) | LinkState::Off => return,
        };
        self.cancel_extending(group);
        let members: Vec<ClassId> = self.members(group);
        for member in &members {
            self.kernel.classes().set_quota(*member, 0);
        }
        self.governor.table().note_end(group.0);
        let end_ns = now_ns();
        let end_cpu_ns = self.targets.owner_mut(id).cpu_ns();
        let drain = ending == Ending::Drain && self.in_flight(&members);
        let stays = drain || (ending != Ending::AtOnce && self.must_stay(group));
        let links = if stays { self.group_links(group) } else { self.release(group) };
        for member in members {
            let ended = closing(end_ns, end_cpu_ns, links, false);
            // Where only others are waited for: until then, or later.
            let draining_until_ns = stays.then_some(if drain { end_ns + DRAIN_NS } else { end_ns });
            self.end(member, Closing { draining_until_ns, ..ended });
        }
    }

    /// Has the links of a group closed. How many will come back.
    pub(super) fn release(&mut self, group: ClassId) -> usize {
        self.note_unregistered(group);
        let links = match self.governor.table().release(group.0) {
            // The governor was faster: they are tripped and come back all the same, each of them.
            0 => self.group_links(group),
            links => links,
        };
        self.targets.owner_mut(group).link_changes += links as u64;
        links
    }

    /// It is worth to wait for timed calls of these classes that the present windows saw begin: what came after the end of the window cost
    /// little beside it.
    fn in_flight(&self, members: &[ClassId]) -> bool {
        let (mut wait, mut dear) = (false, false);
        for id in members {
            let class = self.class(*id);
            let (LinkState::Open(window) | LinkState::Closing(window, _)) = &class.state else { continue };
            let counters = self.kernel.classes().counters(*id);
            let seen = counters.since(&window.attached);
            wait |= class.is_timed(window.kind) && seen.open() > 0;
            let many = seen.open() as f64 > IN_FLIGHT_PART * seen.kept as f64;
            let (hits, part) = if many { (DRAIN_HITS, DRAIN_PART) } else { SHORT_DRAIN };
            dear |= seen.gated > hits.max(seen.kept / part);
        }
        wait && !dear
    }

    /// Closes the links of which no call is in flight any more, or that have waited long enough.
    fn end_drains(&mut self) {
        let now = now_ns();
        let waiting: BTreeMap<ClassId, u64> = self
            .classes
            .iter()
            .filter_map(|c| match &c.state {
                LinkState::Closing(window, Closing { draining_until_ns: Some(until), .. }) => {
                    Some((window.group, *until))
                }
                _ => None,
            })
            .collect();
        for (group, until) in waiting {
            let members = self.members(group);
            if (now >= until || !self.in_flight(&members)) && !self.must_stay(group) {
                self.end_drain(group);
            }
        }
    }

    /// Has the links of a group that is draining closed. Of one that is not, they are being closed already.
    fn end_drain(&mut self, group: ClassId) {
        let members = self.members(group);
        if !members.iter().any(|id| self.class(*id).is_draining()) {
            return;
        }
        let links = self.release(group);
        for member in members {
            if let LinkState::Closing(_, closing) = &mut self.class_mut(member).state
                && closing.draining_until_ns.take().is_some()
            {
                closing.links_left = links;
            }
        }
    }

    /// Ends every window.
    pub fn close_all(&mut self, ending: Ending) {
        let all: Vec<ClassId> = self.classes.iter().filter(|c| !c.is_off()).map(|c| c.id).collect();
        for id in all {
            self.close(id, ending);
        }
    }

    /// Takes note of the links that have been closed since the last call; returns the windows that ended with them.
    pub fn collect(&mut self) -> Vec<Ended> {
        self.end_drains();
        self.answers.watch(now_ns(), read_steal);
        let mut ended = Vec::new();
        let mut closed = std::mem::take(&mut self.asked.early);
        closed.extend(self.governor.table().drain_closed());
        for closed in closed {
            if self.is_making_for(closed.class) {
                // The breaker was faster than the report of their making, which is to come first.
                self.asked.early.push(closed);
            } else {
                self.note_closed(&closed, &mut ended);
            }
        }
        self.note_open_calls(&mut ended);
        // Also the call that used up the quota, which does not count as open.
        for of in &ended {
            self.kernel.classes().forget_open(ClassId(of.row.class_id));
        }
        self.let_go();
        ended
    }

    /// What the calls that had not ended had taken so far. Their links are closed, so nothing ends them any more.
    fn note_open_calls(&self, ended: &mut [Ended]) {
        let timed = |e: &Ended| e.row.open > 0 && self.class(ClassId(e.row.class_id)).is_timed(e.row.kind);
        let mut asked: BTreeMap<TargetId, Vec<OpenCall>> = BTreeMap::new();
        for e in ended.iter_mut().filter(|e| timed(e)) {
            let target = self.targets.of(ClassId(e.row.class_id));
            let calls = asked.entry(target).or_insert_with(|| self.open_calls(target));
            // The call that used up the quota: the breaker often takes the CPU before it returns. Which call that is has nothing to do with
            // how long it takes, so that it can be left out. It would say that any call may take any time.
            let last = |c: &&OpenCall| e.tripped_itself && c.begin_ns >= e.row.end_ns;
            let of_class = calls.iter().filter(|c| c.class.0 == e.row.class_id && c.begin_ns < e.watched_ns);
            let (last, of_class): (Vec<&OpenCall>, Vec<&OpenCall>) = of_class.partition(last);
            e.row.open = e.row.open.saturating_sub(last.len() as u64);
            e.open_calls = of_class
                .into_iter()
                .map(|c| OpenCallRow {
                    time_ns: e.watched_ns,
                    class_id: e.row.class_id,
                    // OK because thread ids are positive.
                    tid: c.tid as u32,
                    elapsed_ns: e.watched_ns - c.begin_ns,
                })
                .collect();
        }
    }

    /// The calls that are open in a target; none in one that has ended, which has no threads to ask.
    fn open_calls(&self, target: TargetId) -> Vec<OpenCall> {
        let threads = self.targets.get(target).process().and_then(|process| process.threads().ok());
        let threads = threads.unwrap_or_default();
        self.kernel.open_calls(&threads[..threads.len().min(ASKED_THREADS)])
    }

    fn note_closed(&mut self, closed: &ClosedLink, ended: &mut Vec<Ended>) {
        let group = ClassId(closed.class);
        let tripped = closed.reason != CloseReason::Released;
        let answer = self.answers.note(closed, now_ns(), read_steal);
        let members = self.members(group);
        // Those that the breaker takes off stall the target as much as those that we release.
        if tripped && members.iter().any(|id| is_uncounted(&self.class(*id).state)) {
            let links = self.group_links(group) as u64;
            self.targets.owner_mut(group).link_changes += links;
            self.note_unregistered(group);
        }
        let others_ns = self.others_ended_ns(closed);
        for member in members {
            if tripped && let LinkState::Open(window) = &self.class(member).state {
                let end_ns = trip_end_ns(window, closed, member.0 == closed.tripped_by, others_ns);
                let links = self.group_links(group);
                let end_cpu_ns = self.targets.owner_mut(member).cpu_ns();
                self.end(member, closing(end_ns, end_cpu_ns, links, true));
            }
            let class = &mut self.classes[member.0 as usize];
            let LinkState::Closing(window, state) = &mut class.state else { continue };
            // Closing takes a grace period, so the trip of a window may be heard of after its time was up: it
            // ended with the trip all the same, or a hot class would look as slow as its quota is small.
            let end_ns = trip_end_ns(window, closed, member.0 == closed.tripped_by, others_ns);
            if closed.reason == CloseReason::Tripped && end_ns < state.end_ns {
                state.tripped = true;
                state.end_ns = end_ns;
            }
            // The governor took them while the window drained: nobody releases them again.
            state.draining_until_ns = None;
            state.links_left = state.links_left.saturating_sub(1);
            if state.links_left > 0 {
                continue;
            }
            let (window, state) = (window.clone(), state.clone());
            class.state = LinkState::Off;
            class.last_span = (window.opened_ns, state.end_ns);
            let beside = self.counted_beside(member, &window, closed.close_began_ns);
            let class = &mut self.classes[member.0 as usize];
            let counters = self.kernel.classes().counters(member);
            let tripped_itself = state.tripped && closed.tripped_by == member.0;
            ended.push(Ended {
                row: WindowRow {
                    ran_ns: self.kernel.classes().ran_ns(member).filter(|_| tripped_itself),
                    ran_tid: self.kernel.classes().ran_tid(member).filter(|_| tripped_itself),
                    link: window.is_reference.then_some(window.group.0),
                    ..row(class, &window, &state, &counters, tripped_itself)
                },
                tripped_itself,
                watched_ns: closed.close_began_ns,
                closed_ns: closed.closed_ns,
                age_ns: closed.close_began_ns.saturating_sub(closed.attached_ns),
                expedited: closed.expedited,
                answer,
                open_calls: Vec::new(),
                beside,
                number: window.number,
                counters,
                seen: counters.since(&window.attached),
            });
        }
    }

    /// When the others of a link for short windows had seen as much of the target as they did, where one of them tripped; ktime ns. From the trip to
    /// the closing the target often does not run: those who take the link off are real-time threads, and may sit on its CPU. The hits
    /// of the one that tripped that were turned away tell how much of it there still was:
    /// ```text
    /// end = trip + (trip - begin) gated / kept
    /// ```
    fn others_ended_ns(&self, closed: &ClosedLink) -> Option<u64> {
        let class = ClassId(closed.tripped_by);
        if closed.reason != CloseReason::Tripped || closed.tripped_by as usize >= self.classes.len() {
            return None;
        }
        let (LinkState::Open(window) | LinkState::Closing(window, _)) = &self.class(class).state else {
            return None;
        };
        let seen = self.kernel.classes().counters(class).since(&window.base);
        let length_ns = closed.trip_ns.checked_sub(window.start_ns)?;
        (window.kind != WindowKind::Trace && seen.kept > 0).then(|| {
            closed.trip_ns
                + beyond_ns(length_ns, seen.gated.saturating_sub(seen.bystanders), seen.kept)
                    .min(closed.closed_ns - closed.trip_ns)
        })
    }

    pub(super) fn members(&self, group: ClassId) -> Vec<ClassId> {
        let of = |c: &LiveClass| match &c.state {
            LinkState::Open(w) | LinkState::Closing(w, _) => Some(w.group),
            LinkState::Off | LinkState::Waiting(_) | LinkState::Opening(..) => None,
        };
        self.classes.iter().filter(|c| of(c) == Some(group)).map(|c| c.id).collect()
    }

    fn group_links(&self, group: ClassId) -> usize {
        self.members(group)
            .iter()
            .map(|id| match &self.class(*id).state {
                LinkState::Open(w) | LinkState::Closing(w, _) => w.links,
                LinkState::Off | LinkState::Waiting(_) | LinkState::Opening(..) => 0,
            })
            .max()
            .unwrap_or(1)
            .max(1)
    }

    fn end(&mut self, id: ClassId, closing: Closing) {
        let class = self.class_mut(id);
        if let LinkState::Open(window) = std::mem::replace(&mut class.state, LinkState::Off) {
            class.state = LinkState::Closing(window, closing);
        }
    }
}

/// Nobody has released the links of this window yet, which counts them as closed.
fn is_uncounted(state: &LinkState) -> bool {
    match state {
        LinkState::Open(_) => true,
        LinkState::Closing(_, closing) => closing.draining_until_ns.is_some(),
        LinkState::Off | LinkState::Waiting(_) | LinkState::Opening(..) => false,
    }
}

/// Time that `gated` further hits took at the rate of the `kept` ones, ns.
fn beyond_ns(length_ns: u64, gated: u64, kept: u64) -> u64 {
    // OK because a window is shorter than 2^53 ns.
    (length_ns as f64 * gated as f64 / kept.max(1) as f64) as u64
}

/// When a trip of its group ended a window, ktime ns. `own`: the quota that was used up is that of the window's class; `others_ns`: see
/// [`Attachments::others_ended_ns`].
fn trip_end_ns(window: &OpenWindow, closed: &ClosedLink, own: bool, others_ns: Option<u64>) -> u64 {
    let known = own && closed.reason == CloseReason::Tripped && closed.trip_ns >= window.start_ns;
    // The others of the group counted on until the link was gone. So did this class, where the alarm was from before its window: then it
    // was raised by hits that were turned away while the link was being made.
    let end_ns = if known { closed.trip_ns } else { others_ns.unwrap_or(closed.close_began_ns) };
    end_ns.max(window.start_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prober::ClassCounters;
    use profiler_core::recording::WindowKind;

    fn window(start_ns: u64) -> OpenWindow {
        OpenWindow {
            kind: WindowKind::Survey,
            start_ns,
            opened_ns: start_ns,
            base: ClassCounters::default(),
            attached: ClassCounters::default(),
            base_cpu_ns: 0,
            quota: 10,
            links: 1,
            group: ClassId(3),
            callers: Vec::new(),
            number: 1,
            is_reference: false,
            beside: None,
        }
    }

    fn closed(reason: CloseReason, trip_ns: u64, close_began_ns: u64) -> ClosedLink {
        let taken_ns = close_began_ns;
        ClosedLink {
            class: 3,
            reason,
            tripped_by: 3,
            trip_ns,
            attached_ns: 0,
            taken_ns,
            close_began_ns,
            closed_ns: 9_000,
            expedited: false,
        }
    }

    #[test]
    fn links_that_the_breaker_takes_off_are_counted_once() {
        let ended = super::closing(2_000, 0, 2, false);
        let draining = Closing { draining_until_ns: Some(3_000), ..ended.clone() };
        assert!(is_uncounted(&LinkState::Open(window(1_000))));
        assert!(is_uncounted(&LinkState::Closing(window(1_000), draining)));
        // The second link of the same trip, or one that was released before the governor had it.
        assert!(!is_uncounted(&LinkState::Closing(window(1_000), ended)));
        assert!(!is_uncounted(&LinkState::Off));
    }

    #[test]
    fn a_window_ends_with_its_own_quota_or_with_its_link() {
        let trip = closed(CloseReason::Tripped, 1_500, 1_600);
        assert_eq!(trip_end_ns(&window(1_000), &trip, true, None), 1_500);
        // Another class of its group tripped.
        assert_eq!(trip_end_ns(&window(1_000), &trip, false, None), 1_600);
        // In a survey: when the target had last been seen to run.
        assert_eq!(trip_end_ns(&window(1_000), &trip, false, Some(1_516)), 1_516);
        assert_eq!(beyond_ns(500, 1, 31), 16);
        assert_eq!(trip_end_ns(&window(1_000), &trip, true, Some(1_516)), 1_500);
        // The alarm was from before the window: it lasted until the link went, and has no length if that was before, too.
        assert_eq!(trip_end_ns(&window(1_550), &trip, true, None), 1_600);
        assert_eq!(trip_end_ns(&window(2_000), &trip, true, None), 2_000);
        let while_attaching = closed(CloseReason::TrippedWhileAttaching, 1_500, 1_600);
        assert_eq!(trip_end_ns(&window(1_550), &while_attaching, true, None), 1_600);
    }
}
