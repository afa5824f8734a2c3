//! Having windows opened, and ending those whose time is over.

use super::Session;
use super::attach::{Gone, Group, NotOpened, Outcome, now_ns};
use crate::inspect::Refusal;
use crate::prober::Tier;
use crate::session::class::{Ending, LinkState, OperationRole, Pending, Purpose};
use profiler_core::class::ClassId;
use profiler_core::recording::{ChangeKind, WindowKind};
use profiler_core::run::links::{Need, comes_back, surplus};
use std::time::Duration;

/// A class that is to be attached: its quota in hits, and what for.
pub(super) type Wanted = (ClassId, u64, Purpose);

/// A link that is being made for so long hangs, ns.
const LATE_NS: u64 = 1_000_000_000;
/// Between two looks at the opener where nothing else is to be done.
const WAIT: Duration = Duration::from_micros(500);
/// Functions attached at a time through perf-event uprobes.
const SLOW_LINKS: usize = 8;

/// What a class with such a role is needed for.
fn need_of(role: Option<OperationRole>) -> Need {
    match role {
        None => Need::Other,
        Some(OperationRole::Inner { .. }) => Need::Inner,
        Some(_) => Need::Bound,
    }
}

impl Session {
    /// Closes the windows of bursts whose time is over.
    pub(super) fn end_bursts(&mut self, now: u64) {
        let Self { trace, attach, .. } = self;
        let mut orders = Vec::new();
        trace.end_bursts(now, |id| attach.class(id).is_open(), &mut orders);
        self.execute(orders, false);
    }

    /// Opens again what is still wanted.
    pub(super) fn open_wanted(&mut self, quotas: &[(ClassId, u64)]) {
        let mut wanted: Vec<Wanted> = quotas
            .iter()
            .filter(|(id, _)| {
                let kept = self.trace.is_attached(*id) || self.is_apart(*id);
                comes_back(need_of(self.attach.class(*id).role), kept, self.inner_is_wanted())
            })
            .map(|(id, quota)| {
                let purpose = if self.is_metric(*id) {
                    Purpose::Metric
                } else if self.is_apart(*id) {
                    Purpose::Operation
                } else {
                    Purpose::Trace
                };
                (*id, *quota, purpose)
            })
            .collect();
        // Inner functions, ends, begins: no operation begins that lacks its calls or its end.
        wanted.sort_by_key(|(id, ..)| match self.attach.class(*id).role {
            None | Some(OperationRole::Inner { .. }) => 0,
            Some(OperationRole::End(_)) => 1,
            Some(OperationRole::Begin(_) | OperationRole::Whole(_)) => 2,
        });
        self.open_windows(WindowKind::Trace, &wanted, false);
    }

    /// Has windows opened, link by link, when their turn comes ([`Session::attach_next`]); what becomes of them is heeded then. `once`: the
    /// links are not to be expected again.
    pub(super) fn open_windows(&mut self, kind: WindowKind, wanted: &[Wanted], once: bool) {
        let asked = self.may_be_asked(kind, wanted);
        let quotas: Vec<(ClassId, u64)> = asked.iter().map(|(id, quota, _)| (*id, *quota)).collect();
        for group in self.attach.groups(kind, &quotas) {
            let classes = group.into_iter().map(|(id, _)| id).collect();
            let group = Group { kind, classes, patient_until_ns: 0, alone: None, once, number: 0 };
            self.attach.ask(group, &asked);
        }
    }

    /// Has windows of the survey opened, on one link (or on as few as their modules need) or one on each. `alone`: what comes after
    /// waits until one of these classes has used up its quota, for so long at most, ns. They wait for their turn until `until_ns`, or
    /// the end of the run.
    pub(super) fn open_survey(
        &mut self,
        wanted: &[Wanted],
        together: bool,
        alone: Option<u64>,
        until_ns: u64,
    ) {
        let kind = WindowKind::Survey;
        let asked = self.may_be_asked(kind, wanted);
        let quotas: Vec<(ClassId, u64)> = asked.iter().map(|(id, quota, _)| (*id, *quota)).collect();
        let groups = if together {
            self.attach.shared(kind, &quotas)
        } else {
            quotas.iter().map(|one| vec![*one]).collect()
        };
        // A survey has no later: it waits, as long as it lasts. Whatever else is asked for comes again.
        let patient_until_ns = self.end_ns.map_or(until_ns, |end| end.min(until_ns));
        let last = groups.len().saturating_sub(1);
        let ids: Vec<ClassId> = asked.iter().map(|(id, ..)| *id).collect();
        for (i, group) in groups.into_iter().enumerate() {
            let classes = group.into_iter().map(|(id, _)| id).collect();
            let alone = alone.filter(|_| i == last).map(|ns| (ids.clone(), ns));
            self.attach.ask(Group { kind, classes, patient_until_ns, alone, once: false, number: 0 }, &asked);
        }
    }

    /// Those that can be asked for. Whoever asked for another one that is off is told at once; one that is attached, or waits, is left alone.
    fn may_be_asked(&mut self, kind: WindowKind, wanted: &[Wanted]) -> Vec<Wanted> {
        let off = |w: &&Wanted| self.attach.class(w.0).is_off();
        let mut rest: Vec<Wanted> = wanted.iter().filter(off).copied().collect();
        let mut asked: Vec<Wanted> =
            rest.iter().filter(|(id, ..)| self.attach.class(*id).may_open()).copied().collect();
        let before: Vec<ClassId> = asked.iter().map(|(id, ..)| *id).collect();
        self.keep_to_slow_links(kind, &mut asked);
        let slow: Vec<ClassId> =
            before.into_iter().filter(|id| !asked.iter().any(|(other, ..)| other == id)).collect();
        let suspension = self.suspension();
        if !suspension.may_ask() {
            asked.clear();
        }
        rest.retain(|(id, ..)| !asked.iter().any(|(other, ..)| other == id));
        let why = |class: ClassId| {
            if !suspension.may_ask() {
                NotOpened::NotNow
            } else if slow.contains(&class) {
                NotOpened::Refused
            } else {
                NotOpened::KnownRefused
            }
        };
        let outcomes = rest
            .into_iter()
            .map(|(class, _, purpose)| Outcome { class, purpose, opened: Err(why(class)) })
            .collect();
        self.heed(outcomes);
        asked
    }

    /// Heeds what the opener has done, and gives it the next group. A link is made after a last look at the code in memory: since the
    /// class was made it may have been patched, and a breakpoint would then end the target.
    ///
    /// # Errors
    /// The opener is gone.
    pub(super) fn attach_next(&mut self) -> Result<(), Gone> {
        self.attach.take_reports(&self.target)?;
        loop {
            let outcomes = self.attach.take_outcomes();
            self.heed(outcomes);
            if !self.suspension().may_attach() {
                return Ok(());
            }
            let Some(mut group) = self.attach.next_group(now_ns()) else {
                // Groups that were given up without a link.
                let outcomes = self.attach.take_outcomes();
                self.heed(outcomes);
                return Ok(());
            };
            self.drop_stale(&mut group);
            let (ready, unmapped) = self.verified(&group.classes);
            self.attach.request(group, &ready, &unmapped);
        }
    }

    /// What was given up while it waited has no tokens any more.
    fn drop_stale(&mut self, group: &mut Group) {
        let Self { attach, trace, target, .. } = self;
        group.classes.retain(|id| {
            let LinkState::Waiting(Pending { quota, purpose, .. }) = attach.class(*id).state else {
                return false;
            };
            let wanted = trace.still_wants(*id, quota, purpose);
            if !wanted {
                attach.close(target, *id, Ending::AtOnce);
            }
            wanted
        });
    }

    /// Waits until all that was asked for is attached or given up: before a program is let go, when nothing else is to be done.
    ///
    /// # Errors
    /// The opener is gone.
    pub(super) fn attach_all(&mut self) -> Result<(), Gone> {
        loop {
            self.attach_next()?;
            if self.attach.is_settled() {
                return Ok(());
            }
            self.pulse();
            std::thread::sleep(WAIT);
        }
    }

    /// The event loop is alive, and so is the opener: one that hangs has the pulse of when it began to.
    pub(super) fn pulse(&self) {
        match self.attach.making_since_ns() {
            Some(since_ns) if now_ns().saturating_sub(since_ns) > LATE_NS => {
                self.attach.governor().pulse_at(since_ns);
            }
            _ => self.attach.governor().pulse(),
        }
    }

    /// Heeds what the opener has done, without giving it anything new: in the middle of long work.
    pub(super) fn note_opened(&mut self) {
        // That it is gone is for the next turn.
        let _ = self.attach.take_reports(&self.target);
        let outcomes = self.attach.take_outcomes();
        self.heed(outcomes);
    }

    /// Tells those who asked what became of it.
    fn heed(&mut self, outcomes: Vec<Outcome>) {
        let mut refused = Vec::new();
        for outcome in outcomes {
            let Outcome { class, purpose, opened } = outcome;
            if opened == Err(NotOpened::Refused) {
                refused.push(class);
            }
            match (purpose, opened) {
                (Purpose::Trace | Purpose::Burst(_) | Purpose::Trial, _) => {
                    self.trace.heed(&outcome, now_ns());
                }
                (Purpose::Survey(_), _) => self.survey.heed(&outcome),
                // One whose link tripped meanwhile ends as any other window.
                (_, Ok(_) | Err(NotOpened::Tripped)) => {}
                (Purpose::Operation, Err(why)) => self.miss_operation_class(class, why),
                // Asked for again at the next turn.
                (Purpose::Metric, Err(_)) => {}
            }
        }
        self.note_refused(&refused);
    }

    /// Records why classes could not be attached, each reason once.
    fn note_refused(&self, ids: &[ClassId]) {
        let refused = |id: &ClassId| self.attach.class(*id).refused.as_deref();
        let mut said: Vec<&str> = Vec::new();
        for (id, why) in ids.iter().filter_map(|id| Some((id, refused(id)?))) {
            if said.contains(&why) {
                continue;
            }
            said.push(why);
            let others = ids.iter().filter(|id| refused(id) == Some(why)).count() - 1;
            let text =
                if others == 0 { why.to_owned() } else { format!("{why}; so it is with {others} more") };
            self.note_change(ChangeKind::Refused, Some(*id), text);
        }
    }

    /// Those of these classes whose code in memory is as it was, and those whose code is not there now. What is known against the rest
    /// is noted in the class.
    fn verified(&mut self, ids: &[ClassId]) -> (Vec<ClassId>, Vec<ClassId>) {
        let code: Vec<_> = ids
            .iter()
            .map(|id| {
                let class = self.attach.class(*id);
                (&class.function, &class.sites)
            })
            .collect();
        let verdicts = self.inspection.verify_all(&code);
        let (mut ready, mut unmapped) = (Vec::new(), Vec::new());
        for (id, verdict) in ids.iter().zip(verdicts) {
            match verdict {
                Ok(_) => ready.push(*id),
                // Not mapped now: a library that was closed may come back.
                Err(Refusal::Unverified(_)) => unmapped.push(*id),
                Err(refusal) => self.attach.class_mut(*id).refused = Some(refusal.to_string()),
            }
        }
        (ready, unmapped)
    }

    /// Perf-event uprobes (before Linux 6.6) take 0.1 to 0.3 s each to detach, one after the other, and stall the target
    /// at each attach and detach: only few at a time, and no short bursts to learn rates.
    fn keep_to_slow_links(&mut self, kind: WindowKind, ready: &mut Vec<Wanted>) {
        if self.attach.kernel().tier() != Tier::D {
            return;
        }
        if kind == WindowKind::Survey {
            ready.clear();
            return;
        }
        let busy = self.attach.classes().iter().filter(|c| !c.is_off()).count();
        let need = |id: ClassId| need_of(self.attach.class(id).role);
        let asked: Vec<(ClassId, Need)> = ready.iter().map(|(id, ..)| (*id, need(*id))).collect();
        let waiting: Vec<Need> = self
            .operations_waiting()
            .into_iter()
            .filter(|id| !asked.iter().any(|(other, _)| other == id))
            .map(need)
            .collect();
        let surplus = surplus(&asked, SLOW_LINKS.saturating_sub(busy), &waiting);
        ready.retain(|(id, ..)| !surplus.contains(id));
        for id in surplus {
            self.attach.class_mut(id).refused = Some(format!(
                "uprobes of this kernel are slow to detach, so at most {SLOW_LINKS} functions are traced at a time; \
                 Linux 6.6 brought better ones"
            ));
        }
    }
}
