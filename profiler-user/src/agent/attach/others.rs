//! Attaching and detaching keep to the time for which they may hold up the forks of other processes: see
//! `profiler_core::surroundings::fork_hold`.
//!
//! That time is the machine's: all targets share one account of it, and one scan of who maps which files. What those paid that map a target's files is
//! the target's own.

use super::super::clock::now_ns;
use super::Attachments;
use crate::agent::class::{LinkState, LiveClass};
use crate::inspect::mappers::{FileKey, Mappers};
use crate::output::{count, duration_ns};
use profiler_core::class::{ClassId, ExitMode};
use profiler_core::recording::{ForksHeld, WindowKind};
use profiler_core::surroundings::fork_hold::{ForkHold, HoldVerdict, Waiter};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The account of the time for which forks are held up, and who waits for some.
#[derive(Debug, Default)]
pub(super) struct ForkAccount {
    hold: ForkHold,
    /// Classes that are to be attached, and not yet.
    postponed: BTreeSet<ClassId>,
    /// Who maps which files of the machine: kept by the targets that count.
    mappers: Weak<Mappers>,
}

impl ForkAccount {
    /// What others pay for a further target. Only where no other target counts is there a scan to wait for.
    pub fn others_of(&mut self, pid: u32) -> Others {
        let mappers = match self.mappers.upgrade() {
            Some(mappers) => {
                mappers.again();
                mappers
            }
            None => Arc::new(Mappers::start()),
        };
        self.mappers = Arc::downgrade(&mappers);
        Others { mappers: Some((mappers, pid)), noted: ForksHeld::default() }
    }

    /// These classes are not attached any more.
    pub fn forget(&mut self, classes: &[ClassId]) {
        for id in classes {
            self.postponed.remove(id);
            self.hold.leave(Waiter::Attach(id.0));
        }
    }
}

/// What other processes pay for attaching to a target and detaching from it.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// All targets', and the PID of this one, which it leaves out; other targets are others, too. None: nobody counts, because nothing is attached
    /// any more.
    mappers: Option<(Arc<Mappers>, u32)>,
    noted: ForksHeld,
}

impl Others {
    /// Nothing is attached to the target any more.
    pub fn stop_counting(&mut self) {
        self.mappers = None;
    }

    fn mappers_of(&self, file: FileKey) -> u32 {
        self.mappers.as_ref().map_or(0, |(mappers, own)| mappers.others(file, *own))
    }

    /// What they paid; `None`: nobody else maps what was attached to.
    pub fn forks_held(&self) -> Option<ForksHeld> {
        let noted = &self.noted;
        (noted.registrations > 0 || noted.refused > 0).then(|| noted.clone())
    }
}

/// Sites that are to be registered, and other processes that map a file that they lie in: of several files the most.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Registration {
    sites: usize,
    mappers: u32,
}

impl Registration {
    /// Both at once.
    fn and(self, other: Self) -> Self {
        Self { sites: self.sites + other.sites, mappers: self.mappers.max(other.mappers) }
    }
}

impl Attachments {
    /// Those of a group whose sites may be registered now. The rest is to be asked for again, which [`Attachments::is_postponed`] says;
    /// what would hold up forks for too long all by itself is refused.
    pub(super) fn within_fork_hold(&mut self, kind: WindowKind, group: Vec<ClassId>) -> Vec<ClassId> {
        // As `must_wait` has called it.
        let Some(who) = group.first().map(|id| Waiter::Attach(id.0)) else { return group };
        let (mut ready, mut all) = (Vec::new(), Registration::default());
        for item in group {
            let mut own = self.registration(item, kind);
            let why = "so many other processes map its file, or that of another caller, that its site would hold up every fork of the machine";
            if self.too_long_ns(own).is_some() && self.without_callers(item, kind, why) {
                // The files of its callers do not count any more.
                own = self.registration(item, kind);
            }
            let with = all.and(own);
            if let Some(hold_ns) = self.too_long_ns(own) {
                let class = self.class_mut(item);
                class.refused = Some(refusal(class, own.sites, own.mappers, hold_ns));
                self.targets.owner_mut(item).others.noted.refused += 1;
            } else if ready.is_empty() || with.sites <= self.forks.hold.sites_at_once(with.mappers) {
                ready.push(item);
                all = with;
            } else {
                self.forks.postponed.insert(item);
            }
        }
        if ready.is_empty() || all.mappers == 0 {
            self.forks.hold.leave(who);
        } else if self.forks.hold.verdict(now_ns(), who, all.sites, all.mappers) == HoldVerdict::Later {
            self.forks.postponed.extend(ready.drain(..));
        }
        ready
    }

    fn too_long_ns(&self, of: Registration) -> Option<f64> {
        self.forks.hold.too_long_ns(of.sites, of.mappers)
    }

    /// What such a window of a class takes.
    fn registration(&self, id: ClassId, kind: WindowKind) -> Registration {
        let class = self.class(id);
        let returns = class.return_groups(kind);
        let others = |file| self.targets.owner(id).others.mappers_of(file);
        let own = class.candidate.file.map_or(0, others);
        let at_returns = if returns.is_empty() { None } else { class.code.callers.files().map(others).max() };
        let sites = class.sites_of(kind).len() + returns.iter().map(|group| group.sites.len()).sum::<usize>();
        Registration { sites, mappers: own.max(at_returns.unwrap_or(0)) }
    }

    /// No link of this group can be made now: to be asked before its code is looked at.
    pub fn must_wait(&mut self, kind: WindowKind, group: &[ClassId]) -> bool {
        for id in group {
            self.forks.postponed.remove(id);
        }
        let Some(&first) = group.first() else { return false };
        let Registration { sites, mappers } = self.registration(first, kind);
        let who = Waiter::Attach(first.0);
        let waits = self.forks.hold.verdict(now_ns(), who, sites, mappers) == HoldVerdict::Later;
        if waits {
            self.forks.postponed.extend(group);
        }
        waits
    }

    /// Those of a group that was just tried and that are not to be asked for again keep no time from those who wait: also what code, memory or
    /// the kernel refused.
    pub fn stop_waiting(&mut self, group: &[ClassId]) {
        for id in group {
            if !self.is_postponed(*id) {
                self.forks.hold.leave(Waiter::Attach(id.0));
            }
        }
    }

    /// It is to be attached, and forks of others have been held up enough for now.
    #[must_use]
    pub fn is_postponed(&self, id: ClassId) -> bool {
        self.forks.postponed.contains(&id) && self.class(id).may_open()
    }

    /// Classes that were never attached because their turn had not come, and why.
    #[must_use]
    pub fn never_attached(&self) -> Vec<(&str, String)> {
        let never = |id: &&ClassId| self.is_postponed(**id) && self.class(**id).last_span == (0, 0);
        let why = |id: &ClassId| {
            let candidate = &self.class(*id).candidate;
            let module = &candidate.module;
            (
                &*candidate.name,
                format!(
                    "many other processes map {module}, so it is attached to in pauses, and the run ended before its turn; run for longer, \
                     or name fewer functions"
                ),
            )
        };
        self.forks.postponed.iter().filter(never).map(why).collect()
    }

    /// The sites of these classes were registered, which took so much CPU time.
    pub(super) fn note_registered(&mut self, leader: ClassId, sites: usize, cpu_ns: u64) {
        let mappers = self.mappers(leader);
        if mappers == 0 {
            return;
        }
        let hold_ns = self.forks.hold.measured(sites, mappers, cpu_ns);
        self.note_held(Waiter::Attach(leader.0), leader, sites, mappers, hold_ns);
    }

    /// The links of a group are being closed.
    pub(super) fn note_unregistered(&mut self, group: ClassId) {
        let (sites, mappers) = (self.group_sites(group), self.mappers(group));
        if mappers > 0 {
            let hold_ns = self.forks.hold.hold_ns(sites, mappers);
            self.note_held(Waiter::Detach(group.0), group, sites, mappers, hold_ns);
        }
    }

    fn note_held(&mut self, who: Waiter, leader: ClassId, sites: usize, mappers: u32, hold_ns: f64) {
        self.forks.hold.charge(now_ns(), who, hold_ns);
        let module = &self.classes[leader.0 as usize].candidate.module;
        let noted = &mut self.targets.owner_mut(leader).others.noted;
        // OK because the casts saturate.
        noted.note(module, mappers, sites as u64, hold_ns as u64);
    }

    /// The links of a group stay until forks of others may be held up again.
    pub(super) fn must_stay(&mut self, group: ClassId) -> bool {
        let (sites, mappers) = (self.group_sites(group), self.mappers(group));
        self.forks.hold.verdict(now_ns(), Waiter::Detach(group.0), sites, mappers) == HoldVerdict::Later
    }

    /// How long it takes to close all that is attached.
    #[must_use]
    pub fn closing_time(&self) -> Duration {
        let hold_ns = |class: &LiveClass| {
            let sites = attached_sites(class);
            if sites == 0 { 0.0 } else { self.forks.hold.hold_ns(sites, self.mappers(class.id)) }
        };
        let all: f64 = self.classes.iter().map(hold_ns).sum();
        if all > 0.0 { Duration::from_nanos(self.forks.hold.wait_ns(all)) } else { Duration::ZERO }
    }

    /// Other processes that map a file that sites of the class lie in: of several files the most.
    fn mappers(&self, id: ClassId) -> u32 {
        let class = self.class(id);
        let others = |file| self.targets.owner(id).others.mappers_of(file);
        let own = class.candidate.file.map_or(0, others);
        let at_returns = class.exit == ExitMode::ReturnSites;
        let callers = class.code.callers.files().filter(|_| at_returns).map(others).max();
        own.max(callers.unwrap_or(0))
    }

    /// Whether more sites may be registered now for a class whose window is open. It keeps no place in the queue.
    pub(super) fn may_extend(&mut self, id: ClassId, sites: usize) -> HoldVerdict {
        let (who, mappers) = (Waiter::Attach(id.0), self.mappers(id));
        let verdict = self.forks.hold.verdict(now_ns(), who, sites, mappers);
        if verdict != HoldVerdict::Now {
            self.forks.hold.leave(who);
        }
        verdict
    }

    fn group_sites(&self, group: ClassId) -> usize {
        self.members(group).iter().map(|id| attached_sites(self.class(*id))).sum()
    }
}

/// Its sites in its own module and in its callers.
fn all_sites(class: &LiveClass, kind: WindowKind) -> usize {
    let returns: usize = class.return_groups(kind).iter().map(|group| group.sites.len()).sum();
    class.sites_of(kind).len() + returns
}

fn attached_sites(class: &LiveClass) -> usize {
    match &class.state {
        LinkState::Open(window) | LinkState::Closing(window, _) => all_sites(class, window.kind),
        LinkState::Off | LinkState::Waiting(_) | LinkState::Opening(..) => 0,
    }
}

fn refusal(class: &LiveClass, sites: usize, mappers: u32, hold_ns: f64) -> String {
    format!(
        "{} other processes map {}: registering its {sites} {} would hold up every fork of the machine for {}; name functions that fewer \
         processes map, or count it instead of timing it (--count)",
        count(f64::from(mappers)),
        class.candidate.module,
        if sites == 1 { "site" } else { "sites" },
        duration_ns(hold_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_share_one_scan_until_the_last_is_gone() {
        let mut forks = ForkAccount::default();
        let scan = |others: &Others| Arc::as_ptr(&others.mappers.as_ref().unwrap().0);
        let (mut first, mut second) = (forks.others_of(10), forks.others_of(11));
        assert_eq!(scan(&first), scan(&second));
        first.stop_counting();
        assert_eq!(first.mappers_of(((0, 0), 1)), 0, "it does not count any more");
        let third = forks.others_of(12);
        assert_eq!(scan(&second), scan(&third));
        second.stop_counting();
        drop(third);
        assert!(forks.mappers.upgrade().is_none(), "nobody counts, and nobody scans");
        assert!(forks.others_of(13).mappers.is_some());
    }
}
