//! What is to be attached: groups of classes of one target, of which the opener gets one at a time (`queue.rs` says which).
//!
//! ```text
//! Off ─ask─► Waiting ─request─► Opening ─report─► Open        (or Closing, where the breaker was faster)
//!              │ close            │ close: as soon as the report is there
//!              ▼                  ▼
//!             Off                Closing
//! ```
//! Whoever asked learns what became of it from the [`Outcome`]s.

use super::super::clock::now_ns;
use super::Attachments;
use super::beside::Beside;
use super::extend::returns_of;
use super::opener::{Failure, Gone, Made, Member, Report, Request};
use crate::agent::class::{Ending, LinkState, LiveClass, OpenWindow, Pending, Purpose};
use crate::agent::known_callers::ReturnGroup;
use crate::agent::window::closing;
use crate::prober::{AttachGroup, ClassControl, FLAG_BY_THREAD, Site};
use profiler_core::class::ClassId;
use profiler_core::recording::WindowKind;
pub use profiler_core::run::outcome::{NotOpened, Outcome};

/// Classes whose links are made together.
#[derive(Debug)]
pub struct Group {
    /// Of which kind their windows are.
    pub kind: WindowKind,
    /// Hottest first.
    pub classes: Vec<ClassId>,
    /// Until when what has no room waits where forks of others have been held up enough, ktime ns; then, or at once, it is given up
    /// for now.
    pub patient_until_ns: u64,
    /// When it is open, the next one waits until one of these classes has used up its quota, for so long at most, ns.
    pub alone: Option<(Vec<ClassId>, u64)>,
    /// Links that are not to be expected again (those of a new plan).
    pub once: bool,
    /// Which asking it was.
    pub number: u64,
}

/// What is being made, for whichever target.
#[derive(Default)]
pub(super) struct Asked {
    /// What the opener has.
    pub(super) in_flight: Option<Group>,
    /// More sites for windows that are open, which the opener has: the class that leads the links, and the one that gets them.
    pub(super) extending: Option<(ClassId, ClassId)>,
    /// The class that got some last, and when the next one may be tried, ktime ns.
    pub(super) extended: Option<ClassId>,
    pub(super) extend_ns: u64,
    /// Links that the governor has closed before the report of their making was there.
    pub(super) early: Vec<crate::governor::ClosedLink>,
    outcomes: Vec<Outcome>,
}

impl Attachments {
    /// Has the classes attached that are off, each with a quota in hits; the others are left alone. Those of several targets are parted: a
    /// link is in one.
    pub fn ask(&mut self, group: Group, wanted: &[(ClassId, u64, Purpose)]) {
        let Group { kind, classes, patient_until_ns, alone, once, number } = group;
        let mut taken = Vec::with_capacity(classes.len());
        for (id, quota, purpose) in wanted.iter().filter(|(id, ..)| classes.contains(id)) {
            if !self.class(*id).may_open() {
                continue;
            }
            let pending = Pending { kind, quota: *quota, purpose: *purpose, number };
            if self.targets.owner(*id).is_watched() {
                self.class_mut(*id).state = LinkState::Waiting(pending);
                taken.push(*id);
            } else {
                self.note_outcome(*id, &pending, Err(NotOpened::Closed));
            }
        }
        for (target, classes) in self.targets.parted(taken) {
            let of_target = |ids: &[ClassId]| self.targets.only(target, ids);
            let alone = alone.as_ref().map(|(ids, most_ns)| (of_target(ids), *most_ns));
            let group = Group { kind, classes, patient_until_ns, alone, once, number };
            self.targets.get_mut(target).waiting.push(group);
        }
    }

    /// Gives a group to the opener, of which `ready` are those whose code is as it was; `unmapped` those whose code is not there now.
    pub fn request(&mut self, group: Group, ready: &[ClassId], unmapped: &[ClassId]) {
        let kind = group.kind;
        let refused: Vec<ClassId> = group
            .classes
            .iter()
            .copied()
            .filter(|id| !ready.contains(id) && !unmapped.contains(id))
            .collect();
        self.put_back(unmapped, NotOpened::Unmapped);
        self.put_back(&refused, NotOpened::Refused);
        let (held, ready): (Vec<ClassId>, Vec<ClassId>) =
            ready.iter().partition(|id| self.is_held(**id, kind));
        self.put_back(&held, NotOpened::NotNow);
        let ready = self.of_one_kind(kind, ready);
        let ready = self.within_fork_hold(kind, ready);
        let ready = self.within_memory(kind, ready);
        self.leave_out(&group, &ready);
        let Some(&leader) = ready.first() else { return };
        let target = self.targets.owner(leader);
        let by_thread = if target.by_thread { FLAG_BY_THREAD } else { 0 };
        let (pid, last_cpu_ns) = (target.pid(), target.last_cpu_ns());
        let Some(target) = target.process().cloned() else {
            return self.put_back(&ready, NotOpened::Closed);
        };
        let (mut sites, mut returns): (Vec<Site>, Vec<ReturnGroup>) = (Vec::new(), Vec::new());
        let mut members = Vec::with_capacity(ready.len());
        for id in &ready {
            let Beside { function, bounds } = self.beside_of(*id);
            let class = &mut self.classes[id.0 as usize];
            let LinkState::Waiting(pending) = &class.state else { continue };
            let pending = pending.clone();
            let control = class.control(kind);
            let control = ClassControl { flags: control.flags | by_thread, function, bounds, ..control };
            sites.extend(class.sites_of(kind));
            returns.extend(class.return_groups(kind));
            members.push(Member { class: *id, control, quota: pending.quota });
            class.state = LinkState::Opening(pending, None);
        }
        let traced = if kind == WindowKind::Burst { self.traced_with(leader) } else { Vec::new() };
        let request = Request {
            kind,
            leader,
            members,
            attach: Some(AttachGroup {
                module: self.class(leader).candidate.module_path.clone(),
                pid,
                kind: self.class(leader).link_kind(kind),
                sites,
            }),
            returns: returns_of(returns, pid),
            traced,
            target,
            last_cpu_ns,
        };
        let group = Group { classes: ready, ..group };
        // That the thread is gone is found out by who takes its reports.
        self.opener.send(request);
        self.asked.in_flight = Some(group);
    }

    /// What is on one link needs the same programs: a class that has changed since it was asked for is asked for again.
    fn of_one_kind(&mut self, kind: WindowKind, ids: Vec<ClassId>) -> Vec<ClassId> {
        let Some(link) = ids.first().map(|id| self.class(*id).link_kind(kind)) else { return ids };
        let (same, others): (Vec<ClassId>, Vec<ClassId>) =
            ids.into_iter().partition(|id| self.class(*id).link_kind(kind) == link);
        self.put_back(&others, NotOpened::NotNow);
        same
    }

    /// These are off again.
    pub(super) fn put_back(&mut self, ids: &[ClassId], why: NotOpened) {
        for id in ids {
            let class = self.class_mut(*id);
            let state = std::mem::replace(&mut class.state, LinkState::Off);
            if matches!(state, LinkState::Opening(..)) {
                // What was hit while its link was made is charged, too.
                let counters = self.kernel.classes().counters(*id);
                self.class_mut(*id).counters = counters;
            }
            if let LinkState::Waiting(pending) | LinkState::Opening(pending, _) = state {
                self.note_outcome(*id, &pending, Err(why));
            }
        }
    }

    fn note_outcome(&mut self, class: ClassId, pending: &Pending, opened: Result<u64, NotOpened>) {
        let Pending { number, purpose, .. } = *pending;
        self.asked.outcomes.push(Outcome { number, class, purpose, opened });
    }

    /// Ends what is to be opened: at once where the opener has not begun; else as soon as its link is there.
    pub(super) fn close_pending(&mut self, id: ClassId, ending: Ending) {
        match &mut self.class_mut(id).state {
            LinkState::Waiting(_) => self.put_back(&[id], NotOpened::Closed),
            LinkState::Opening(_, closed) => {
                if *closed != Some(Ending::AtOnce) {
                    *closed = Some(ending);
                }
                // As with links that are there: with it go all that share its link.
                self.opener.cancel();
            }
            LinkState::Off | LinkState::Open(_) | LinkState::Closing(..) => {}
        }
    }

    /// Takes note of what the opener has done.
    ///
    /// # Errors
    /// Its thread is gone.
    pub fn take_reports(&mut self) -> Result<(), Gone> {
        loop {
            match self.opener.take() {
                Ok(Some(report)) => self.note_report(report),
                Ok(None) => return Ok(()),
                Err(gone) => {
                    self.give_up_asking();
                    return Err(gone);
                }
            }
        }
    }

    /// Nobody makes links any more: nothing is waited for.
    fn give_up_asking(&mut self) {
        let pending: Vec<ClassId> = self.classes.iter().filter(|c| c.is_pending()).map(|c| c.id).collect();
        self.asked.in_flight = None;
        self.asked.extending = None;
        self.put_back(&pending, NotOpened::Closed);
    }

    /// The same for a report that was waited for.
    pub fn note_report(&mut self, report: Report) {
        if self.asked.extending.is_some() {
            self.note_extended(report);
            return;
        }
        let Some(group) = self.asked.in_flight.take() else { return };
        let Report { kind, leader, made } = report;
        let made = match made {
            Ok(made) => made,
            Err(failure) => return self.note_failure(&group, leader, failure),
        };
        let beside = made.beside;
        let Made {
            refused, sites, registration_ns, links, tripped, base_cpu_ns, gates, armed, unarmed, ..
        } = made;
        self.note_unarmed(unarmed);
        self.targets.owner_mut(leader).note_last_cpu(base_cpu_ns);
        for (id, why) in refused {
            self.class_mut(id).refused = Some(why);
            self.put_back(&[id], NotOpened::Refused);
        }
        self.note_registered(leader, sites, registration_ns);
        self.stop_waiting(&group.classes);
        // Those that the breaker has taken off again count twice.
        let operations = links as u64 * if tripped { 2 } else { 1 };
        let target = self.targets.owner_mut(leader);
        *(if group.once { &mut target.links_once } else { &mut target.link_changes }) += operations;
        // Where the leader was refused, the group's links still have to be waited for: the first of the others stands for them.
        let keeper = gates.first().map(|gate| gate.class);
        let mut closed_before = Vec::new();
        for gate in gates {
            let window = OpenWindow {
                kind,
                start_ns: gate.start_ns,
                opened_ns: gate.start_ns,
                base: gate.base,
                attached: gate.base,
                base_cpu_ns,
                quota: gate.quota,
                links: if Some(gate.class) == keeper { links } else { 0 },
                group: leader,
                callers: armed.iter().filter(|(id, _)| *id == gate.class).map(|(_, at)| *at).collect(),
                number: group.number,
                is_reference: false,
                beside: beside.filter(|_| gate.class == leader),
            };
            let class = self.class_mut(gate.class);
            let state = std::mem::replace(&mut class.state, LinkState::Off);
            let LinkState::Opening(pending, closed) = state else { continue };
            let window = OpenWindow { is_reference: pending.purpose == Purpose::Reference, ..window };
            let start_ns = window.start_ns;
            class.state = if tripped {
                LinkState::Closing(window, closing(start_ns, base_cpu_ns, links, true))
            } else {
                LinkState::Open(window)
            };
            closed_before.extend(closed.map(|ending| (gate.class, ending)));
            let opened = if tripped { Err(NotOpened::Tripped) } else { Ok(start_ns) };
            self.note_outcome(gate.class, &pending, opened);
            // So may have the quota: one that was lowered holds, one that was raised is given at the next tick.
            if !tripped && pending.quota < gate.quota {
                self.set_quota(gate.class, pending.quota);
            }
            // It may have changed since the request.
            self.adjust(gate.class);
        }
        for (id, ending) in closed_before {
            self.close(id, ending);
        }
        if let Some((mut ids, most_ns)) = group.alone {
            ids.retain(|id| self.class(*id).is_open());
            self.targets.owner_mut(leader).waiting.wait_for(ids, now_ns() + most_ns);
        }
    }

    /// No link of a group was made, or none is wanted any more.
    fn note_failure(&mut self, group: &Group, leader: ClassId, failure: Failure) {
        let why = match failure {
            Failure::Refused(why) => {
                for id in &group.classes {
                    self.class_mut(*id).refused = Some(why.clone());
                }
                NotOpened::Refused
            }
            Failure::Cancelled { sites, registration_ns, links } => {
                self.note_registered(leader, sites, registration_ns);
                // Made and closed.
                self.targets.owner_mut(leader).link_changes += 2 * links as u64;
                NotOpened::Closed
            }
        };
        self.put_back(&group.classes, why);
        self.stop_waiting(&group.classes);
    }

    /// What became of what was asked for, since the last call.
    pub fn take_outcomes(&mut self) -> Vec<Outcome> {
        std::mem::take(&mut self.asked.outcomes)
    }

    /// Windows of a survey wait to be opened, or are being opened.
    #[must_use]
    pub fn survey_waits(&self) -> bool {
        self.classes.iter().any(|class| match &class.state {
            LinkState::Waiting(pending) | LinkState::Opening(pending, _) => {
                pending.kind == WindowKind::Survey
            }
            LinkState::Off | LinkState::Open(_) | LinkState::Closing(..) => false,
        })
    }

    /// The time of a survey is up: what it waits for is not opened any more.
    pub fn give_up_survey(&mut self) {
        let waits = |class: &&LiveClass| match &class.state {
            LinkState::Waiting(pending) | LinkState::Opening(pending, None) => {
                pending.kind == WindowKind::Survey
            }
            _ => false,
        };
        let ids: Vec<ClassId> = self.classes.iter().filter(waits).map(|class| class.id).collect();
        for id in ids {
            self.close(id, Ending::Soon);
        }
    }

    /// The opener has something to do.
    pub(super) fn is_making(&self) -> bool {
        self.asked.in_flight.is_some() || self.asked.extending.is_some()
    }

    /// Gives a request to the opener.
    pub(super) fn send(&self, request: Request) {
        self.opener.send(request);
    }

    /// What the opener makes for this group is not wanted any more.
    pub(super) fn cancel_extending(&self, group: ClassId) {
        if self.asked.extending.is_some_and(|(leader, _)| leader == group) {
            self.opener.cancel();
        }
    }

    /// The links of this group are being made: what the governor says of them is for later.
    pub(super) fn is_making_for(&self, leader: u32) -> bool {
        let leads = |group: &Group| group.classes.first().is_some_and(|id| id.0 == leader);
        self.asked.in_flight.as_ref().is_some_and(leads)
            || self.asked.extending.is_some_and(|(id, _)| id.0 == leader)
    }

    /// Since when the opener makes the link that it makes now, ktime ns; none while it has nothing to do.
    #[must_use]
    pub fn making_since_ns(&self) -> Option<u64> {
        self.opener.busy_since_ns()
    }

    /// Waits for the next report of the opener; none where its thread is gone.
    pub async fn report(&mut self) -> Option<Report> {
        self.opener.report().await
    }
}
