//! One of the processes that classes are attached in: what belongs to it, and to no other.

use super::memory::MemoryWatch;
use super::others::Others;
use super::queue::Waiting;
use crate::target::Target;
use crate::watchdog::WatchSlot;
use profiler_core::recording::ForksHeld;
use std::sync::Arc;

/// Number of a target, in the order in which they were added. No number is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(pub(super) u32);

impl TargetId {
    /// The target that the attachments began with.
    pub const FIRST: Self = Self(0);
}

/// How far a target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Classes may be attached in it.
    Watched,
    /// Nothing is attached in it any more; its last links are being closed.
    Leaving,
    /// No link is left.
    Gone,
}

/// A process that classes are attached in.
#[derive(Debug)]
pub struct WatchedTarget {
    pid: u32,
    /// Bound to the process for good; none once the target is gone.
    process: Option<Arc<Target>>,
    stage: Stage,
    /// The process has ended, and that was noted.
    has_ended: bool,
    /// CPU time as last read, ns: what it had used when it ended.
    last_cpu_ns: u64,
    /// Hits are counted by thread, too.
    pub(super) by_thread: bool,
    /// Whether return links are safe is not known now: none is made.
    return_links_held: bool,
    /// Links made and closed so far, and those of them that are not to be expected again.
    pub(super) link_changes: u64,
    pub(super) links_once: u64,
    pub(super) waiting: Waiting,
    pub(super) memory: MemoryWatch,
    pub(super) others: Others,
    /// Where the watchdog has it, to be mended should the agent be killed.
    slot: Option<WatchSlot>,
}

impl WatchedTarget {
    pub(super) fn new(process: Arc<Target>, pid: u32, slot: Option<WatchSlot>, others: Others) -> Self {
        Self { process: Some(process), slot, ..Self::without_process(pid, others) }
    }

    fn without_process(pid: u32, others: Others) -> Self {
        Self {
            pid,
            process: None,
            stage: Stage::Watched,
            has_ended: false,
            last_cpu_ns: 0,
            by_thread: false,
            return_links_held: false,
            link_changes: 0,
            links_once: 0,
            waiting: Waiting::default(),
            memory: MemoryWatch::default(),
            others,
            slot: None,
        }
    }

    /// One that no process stands behind, for tests of what is kept of targets.
    #[cfg(test)]
    pub(super) fn unbound(pid: u32) -> Self {
        Self::without_process(pid, Others::default())
    }

    /// Its PID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The process; none once the target is gone.
    #[must_use]
    pub fn process(&self) -> Option<&Arc<Target>> {
        self.process.as_ref()
    }

    /// CPU time that it has used, ns; once it has ended, as it was last read.
    pub fn cpu_ns(&mut self) -> u64 {
        let read = self.process.as_ref().and_then(|process| process.cpu_time_ns().ok());
        self.last_cpu_ns = read.unwrap_or(self.last_cpu_ns);
        self.last_cpu_ns
    }

    /// CPU time as last read, ns.
    pub(super) fn last_cpu_ns(&self) -> u64 {
        self.last_cpu_ns
    }

    /// It had used so much, ns: read elsewhere, or after its end.
    pub fn note_last_cpu(&mut self, cpu_ns: u64) {
        self.last_cpu_ns = self.last_cpu_ns.max(cpu_ns);
    }

    /// Links made and closed since the last call (each stalls the target for some tens of microseconds).
    pub fn take_link_changes(&mut self) -> u64 {
        std::mem::take(&mut self.link_changes)
    }

    /// Links made since the last call that are not to be expected again.
    pub fn take_links_once(&mut self) -> u64 {
        std::mem::take(&mut self.links_once)
    }

    /// What was made and closed since the last call is not to be expected again.
    pub fn count_links_once(&mut self) {
        self.links_once += self.take_link_changes();
    }

    /// No return link is made until [`WatchedTarget::let_return_links`]. False: that was so before.
    pub fn hold_return_links(&mut self) -> bool {
        !std::mem::replace(&mut self.return_links_held, true)
    }

    /// Return links may be made again. False: that was so before.
    pub fn let_return_links(&mut self) -> bool {
        std::mem::take(&mut self.return_links_held)
    }

    /// Return links are held.
    #[must_use]
    pub fn holds_return_links(&self) -> bool {
        self.return_links_held
    }

    /// What other processes paid for attaching to it; `None`: nobody else maps what was attached to.
    #[must_use]
    pub fn forks_held(&self) -> Option<ForksHeld> {
        self.others.forks_held()
    }

    /// Classes may be attached in it.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.stage == Stage::Watched
    }

    /// It was removed, or has ended, and no link is left.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.stage == Stage::Gone
    }

    /// The process has ended, and that was noted.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// It is removed, and links may be left.
    pub(super) fn is_leaving(&self) -> bool {
        self.stage == Stage::Leaving
    }

    /// Looks whether the process has ended. True: so it has, since the last look.
    ///
    /// # Cost
    /// One system call.
    pub(super) fn ends_now(&mut self) -> bool {
        let ended = !self.has_ended && self.process.as_ref().is_some_and(|process| !process.is_alive());
        self.has_ended |= ended;
        ended
    }

    /// Nothing is attached in it from now on.
    pub(super) fn leave(&mut self) {
        if self.is_watched() {
            self.stage = Stage::Leaving;
        }
    }

    /// No link is left: lets go of the process. What the watchdog has it by.
    pub(super) fn let_go(&mut self) -> Option<WatchSlot> {
        self.stage = Stage::Gone;
        self.process = None;
        self.others.stop_counting();
        self.slot.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_one_target_holds_and_pays_another_does_not() {
        let (mut a, mut b) = (WatchedTarget::unbound(10), WatchedTarget::unbound(11));
        assert!(a.hold_return_links() && !a.hold_return_links());
        assert!(a.holds_return_links() && !b.holds_return_links());
        assert!(a.let_return_links() && !a.let_return_links() && !b.let_return_links());
        a.link_changes += 3;
        b.link_changes += 5;
        a.links_once += 1;
        a.count_links_once();
        assert_eq!((a.take_link_changes(), a.take_links_once(), a.take_links_once()), (0, 4, 0));
        assert_eq!((b.take_links_once(), b.take_link_changes(), b.take_link_changes()), (0, 5, 0));
    }

    #[test]
    fn cpu_time_at_the_end_is_what_was_read_last() {
        let mut target = WatchedTarget::unbound(10);
        assert_eq!(target.cpu_ns(), 0);
        target.note_last_cpu(70);
        target.note_last_cpu(60);
        // There is no process to ask.
        assert_eq!((target.cpu_ns(), target.last_cpu_ns()), (70, 70));
    }

    #[test]
    fn a_target_is_watched_then_leaves_then_is_gone() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Arc::new(Target::attach(child.id().cast_signed()).unwrap());
        let mut target = WatchedTarget::new(Arc::clone(&process), child.id(), None, Others::default());
        assert!(target.is_watched() && !target.ends_now() && !target.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        // Once.
        assert!(target.ends_now() && !target.ends_now() && target.has_ended());
        assert!(target.is_watched(), "who looks decides what follows");
        target.leave();
        assert!(target.is_leaving() && !target.is_watched() && !target.is_gone());
        assert!(target.let_go().is_none());
        assert!(target.is_gone() && !target.is_leaving() && target.process().is_none());
        assert_eq!(Arc::strong_count(&process), 1, "its descriptors go with the last who has them");
        target.leave();
        assert!(target.is_gone(), "there is no way back");
    }
}
