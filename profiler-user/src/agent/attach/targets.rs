//! Several targets: which class belongs to which, and how a target comes and goes.
//!
//! ```text
//! add_target ─► watched ─ remove_target, or its death ─► leaving ─ its last link is closed ─► gone
//! ```
//! A target has of its own what [`WatchedTarget`] lists: process, CPU time, queue, memory, what others pay for it, held return links, its place in the
//! watchdog's page. All targets share the opener, which makes one link at a time, the governor, and the account of the time for which forks of others
//! are held up, and one scan of who maps which files.

use super::watched::{TargetId, WatchedTarget};
use super::{Attachments, LiveClass};
use crate::agent::class::Ending;
use crate::prober::KernelError;
use crate::target::Target;
use crate::watchdog::{MOST_TARGETS, WatchSlot};
use profiler_core::class::{ClassId, Tier};
use std::sync::Arc;

/// Why a process cannot be watched beside others.
#[derive(Debug, thiserror::Error)]
pub enum AddTargetError {
    /// It is a target already.
    #[error("process {pid} is watched already")]
    Twice {
        /// Its PID.
        pid: u32,
    },
    /// There is no such process any more.
    #[error("process {pid} has ended")]
    Ended {
        /// Its PID.
        pid: u32,
    },
    /// Tier C, where the kernel runs every program for every process, and a class does not know its own.
    #[error(
        "this kernel (Linux 6.6 to 6.9) cannot keep a probe to one process, so that calls of several would be mixed up: watch one at a time"
    )]
    OneAtATime,
    /// The watchdog could not mend it.
    #[error(
        "{} processes are watched already: the watchdog keeps no more to mend, should the agent be killed",
        MOST_TARGETS
    )]
    Full,
    /// The kernel side does not take it.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// The targets, and whose each class is.
#[derive(Debug, Default)]
pub(super) struct Targets {
    all: Vec<WatchedTarget>,
    of_class: Vec<TargetId>,
}

impl Targets {
    pub fn add(&mut self, target: WatchedTarget) -> TargetId {
        // OK because there are fewer than 2^32 processes in a run.
        let id = TargetId(self.all.len() as u32);
        self.all.push(target);
        id
    }

    /// The next class belongs to this one.
    pub fn add_class(&mut self, target: TargetId) {
        self.of_class.push(target);
    }

    pub fn all(&self) -> &[WatchedTarget] {
        &self.all
    }

    pub fn len(&self) -> u32 {
        // OK as in `add`.
        self.all.len() as u32
    }

    pub fn get(&self, id: TargetId) -> &WatchedTarget {
        &self.all[id.0 as usize]
    }

    pub fn get_mut(&mut self, id: TargetId) -> &mut WatchedTarget {
        &mut self.all[id.0 as usize]
    }

    /// Whose a class is.
    pub fn of(&self, class: ClassId) -> TargetId {
        self.of_class[class.0 as usize]
    }

    pub fn owner(&self, class: ClassId) -> &WatchedTarget {
        self.get(self.of(class))
    }

    pub fn owner_mut(&mut self, class: ClassId) -> &mut WatchedTarget {
        self.get_mut(self.of(class))
    }

    /// The classes of one target among these, in their order.
    pub fn only(&self, target: TargetId, classes: &[ClassId]) -> Vec<ClassId> {
        classes.iter().copied().filter(|id| self.of(*id) == target).collect()
    }

    /// Classes by target, in their order; the target of the first one first.
    pub fn parted(&self, classes: Vec<ClassId>) -> Vec<(TargetId, Vec<ClassId>)> {
        let mut parts: Vec<(TargetId, Vec<ClassId>)> = Vec::new();
        for id in classes {
            let target = self.of(id);
            match parts.iter_mut().find(|(of, _)| *of == target) {
                Some((_, part)) => part.push(id),
                None => parts.push((target, vec![id])),
            }
        }
        parts
    }

    /// CPU time of each target, ns, as [`WatchedTarget::cpu_ns`].
    pub fn cpu_ns(&mut self) -> Vec<u64> {
        self.all.iter_mut().map(WatchedTarget::cpu_ns).collect()
    }

    /// The process with this PID, as long as it lives, is a target.
    fn has(&self, pid: u32) -> bool {
        self.all.iter().any(|target| target.pid() == pid && !target.is_gone() && !target.has_ended())
    }

    fn ids(&self) -> impl Iterator<Item = TargetId> + use<> {
        (0..self.len()).map(TargetId)
    }
}

impl Attachments {
    /// One target.
    ///
    /// # Panics
    /// The id is not of this run.
    #[must_use]
    pub fn target(&self, id: TargetId) -> &WatchedTarget {
        self.targets.get(id)
    }

    /// One target.
    ///
    /// # Panics
    /// The id is not of this run.
    pub fn target_mut(&mut self, id: TargetId) -> &mut WatchedTarget {
        self.targets.get_mut(id)
    }

    /// Whose a class is.
    ///
    /// # Panics
    /// The id is not of this run.
    #[must_use]
    pub fn target_of(&self, class: ClassId) -> TargetId {
        self.targets.of(class)
    }

    /// Links are in a target, are being made there, or are being closed.
    #[must_use]
    pub fn is_linked(&self, id: TargetId) -> bool {
        self.classes_of(id).any(LiveClass::is_linked)
    }

    /// Classes may be attached in a further process from now on. Its samples, births and deaths are seen; those of the children that it forks,
    /// if they are adopted.
    ///
    /// # Errors
    /// [`AddTargetError`]; nothing has changed then.
    pub fn add_target(
        &mut self,
        process: Arc<Target>,
        adopt_children: bool,
    ) -> Result<TargetId, AddTargetError> {
        // OK because PIDs are positive.
        let pid = process.pid() as u32;
        if self.targets.has(pid) {
            return Err(AddTargetError::Twice { pid });
        }
        if !process.is_alive() {
            return Err(AddTargetError::Ended { pid });
        }
        if self.kernel().tier() == Tier::C && self.targets.all().iter().any(|target| !target.is_gone()) {
            return Err(AddTargetError::OneAtATime);
        }
        // Before anything can be attached, so that nothing is that would not be mended.
        let slot = self.guard(pid)?;
        if let Err(error) = self.kernel().add_target(pid, adopt_children) {
            self.let_unguarded(slot);
            return Err(error.into());
        }
        let others = self.forks.others_of(pid);
        Ok(self.targets.add(WatchedTarget::new(process, pid, slot, others)))
    }

    /// Nothing is attached in a target from now on: what waits is given up, and its windows end. Where its process has ended no call is waited for, but
    /// forks of others are: they may not be held up for longer because a target has died. It is gone when [`Attachments::collect`] has seen
    /// its last link closed. Nothing changes for other targets.
    ///
    /// # Panics
    /// The id is not of this run.
    pub fn remove_target(&mut self, id: TargetId, ending: Ending) {
        let target = self.targets.get_mut(id);
        if target.is_gone() {
            return;
        }
        let pid = target.pid();
        if target.ends_now() {
            // At once: its number may soon be another's.
            self.kernel().remove_target(pid);
        }
        let target = self.targets.get_mut(id);
        target.leave();
        let ending = if target.has_ended() && ending == Ending::Drain { Ending::Soon } else { ending };
        let classes: Vec<ClassId> = self.classes_of(id).map(|class| class.id).collect();
        for class in &classes {
            self.close(*class, ending);
        }
        self.targets.get_mut(id).waiting.clear();
        self.forks.forget(&classes);
    }

    /// Looks which processes have ended since the last call; their targets are removed.
    ///
    /// # Cost
    /// One system call for each target that lives.
    pub fn note_deaths(&mut self) -> Vec<TargetId> {
        let mut ended = Vec::new();
        for id in self.targets.ids() {
            if self.targets.get_mut(id).ends_now() {
                let pid = self.targets.get(id).pid();
                // As in `remove_target`.
                self.kernel().remove_target(pid);
                self.remove_target(id, Ending::Soon);
                ended.push(id);
            }
        }
        ended
    }

    /// Lets go of targets that were removed and whose last link is closed.
    pub(super) fn let_go(&mut self) {
        if !self.targets.all().iter().any(WatchedTarget::is_leaving) {
            return;
        }
        for id in self.targets.ids() {
            let target = self.targets.get(id);
            if !target.is_leaving() || self.classes_of(id).any(|class| !class.is_off()) {
                continue;
            }
            if !target.has_ended() {
                self.kernel().remove_target(target.pid());
            }
            let slot = self.targets.get_mut(id).let_go();
            self.let_unguarded(slot);
        }
    }

    fn classes_of(&self, id: TargetId) -> impl Iterator<Item = &LiveClass> {
        self.classes().iter().filter(move |class| self.targets.of(class.id) == id)
    }

    /// Has the watchdog mend a process, should the agent be killed while something is attached. `None`: there is no watchdog.
    pub(super) fn guard(&self, pid: u32) -> Result<Option<WatchSlot>, AddTargetError> {
        let Some(heartbeat) = self.governor().heartbeat() else { return Ok(None) };
        heartbeat.watch(pid).map(Some).ok_or(AddTargetError::Full)
    }

    /// Nothing is attached in a process any more.
    fn let_unguarded(&self, slot: Option<WatchSlot>) {
        if let (Some(heartbeat), Some(slot)) = (self.governor().heartbeat(), slot) {
            heartbeat.forget(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(classes: &[u32]) -> Vec<ClassId> {
        classes.iter().copied().map(ClassId).collect()
    }

    /// Three targets; classes 0 to 5 are of the first, the second, the first, the third, the second, the first.
    fn three() -> (Targets, [TargetId; 3]) {
        let mut targets = Targets::default();
        let all = [10, 11, 12].map(|pid| targets.add(WatchedTarget::unbound(pid)));
        for target in [0, 1, 0, 2, 1, 0] {
            targets.add_class(all[target]);
        }
        (targets, all)
    }

    #[test]
    fn each_class_belongs_to_one_target() {
        let (mut targets, [a, b, c]) = three();
        assert_eq!(a, TargetId::FIRST);
        assert_eq!((targets.of(ClassId(2)), targets.of(ClassId(3)), targets.of(ClassId(4))), (a, c, b));
        assert_eq!(targets.owner(ClassId(4)).pid(), 11);
        targets.owner_mut(ClassId(4)).link_changes += 2;
        let changes: Vec<u64> = targets.all().iter().map(|target| target.link_changes).collect();
        assert_eq!(changes, [0, 2, 0]);
    }

    #[test]
    fn a_group_is_parted_by_target_and_keeps_its_order() {
        let (targets, [a, b, c]) = three();
        // The hottest first.
        let parts = targets.parted(ids(&[4, 0, 5, 3, 1, 2]));
        assert_eq!(parts, [(b, ids(&[4, 1])), (a, ids(&[0, 5, 2])), (c, ids(&[3]))]);
        assert_eq!(targets.parted(ids(&[5, 0, 2])), [(a, ids(&[5, 0, 2]))], "of one target it is as it was");
        assert!(targets.parted(Vec::new()).is_empty());
        assert_eq!(targets.only(b, &ids(&[3, 1, 0, 4])), ids(&[1, 4]));
    }

    #[test]
    fn a_number_may_come_again_when_its_process_is_gone() {
        let (mut targets, [a, ..]) = three();
        assert!(targets.has(10) && targets.has(12) && !targets.has(13));
        targets.get_mut(a).leave();
        assert!(targets.has(10), "links of ours may still be in it");
        assert!(targets.get_mut(a).let_go().is_none());
        assert!(!targets.has(10));
        let again = targets.add(WatchedTarget::unbound(10));
        assert!(targets.has(10) && again != a);
        // What was its is still the earlier one's.
        assert_eq!(targets.of(ClassId(0)), a);
    }
}
