//! Whose turn it is: each target has a queue of groups, and the opener serves the targets in turn.
//!
//! What one target waits for (forks of others that were held up enough, a class that is to trip first) holds up no other one.

use super::super::clock::now_ns;
use super::watched::TargetId;
use super::{Attachments, Group, NotOpened};
use crate::agent::class::LinkState;
use profiler_core::class::ClassId;
use std::collections::VecDeque;

/// Between two tries while forks of others have been held up enough, and between two looks at classes that are to trip first, ns.
const RETRY_NS: (u64, u64) = (2_000_000, 500_000);

/// Groups of one target that wait for the opener.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    groups: VecDeque<Group>,
    /// Classes of which one is to trip before the next link is made, and until when, ktime ns.
    alone: Option<(Vec<ClassId>, u64)>,
    retry_ns: u64,
}

impl Waiting {
    /// A group waits from now on.
    pub fn push(&mut self, group: Group) {
        self.groups.push_back(group);
    }

    /// A group waits again, before all others, until forks of others may be held up again.
    pub fn push_back_in(&mut self, group: Group, now: u64) {
        self.retry_ns = now + RETRY_NS.0;
        self.groups.push_front(group);
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// When the next group is to be looked at again, ktime ns; none where nothing waits.
    fn retry_at(&self) -> Option<u64> {
        (!self.groups.is_empty()).then_some(self.retry_ns)
    }

    /// The next link waits until one of these has tripped, for so long at most. None: it does not wait.
    pub fn wait_for(&mut self, ids: Vec<ClassId>, until_ns: u64) {
        self.alone = (!ids.is_empty()).then_some((ids, until_ns));
    }

    /// The classes of which one is to trip before the next link is made; none where that has waited long enough.
    fn take_alone(&mut self, now: u64) -> Option<(Vec<ClassId>, u64)> {
        self.alone.take().filter(|(_, until_ns)| now < *until_ns)
    }

    /// None has tripped yet.
    fn wait_on(&mut self, alone: (Vec<ClassId>, u64), now: u64) {
        self.alone = Some(alone);
        self.retry_ns = now + RETRY_NS.1;
    }

    /// Nobody waits any more.
    pub fn clear(&mut self) {
        self.groups.clear();
        self.alone = None;
    }
}

impl Attachments {
    /// The next group for the opener, if that is idle and a target has one that does not have to wait.
    pub fn next_group(&mut self, now: u64) -> Option<Group> {
        if self.is_making() {
            return None;
        }
        let (served, count) = (self.served, self.targets.len());
        for target in turns(served, count) {
            if let Some(group) = self.next_group_of(target, now) {
                self.served = target;
                return Some(group);
            }
        }
        None
    }

    fn next_group_of(&mut self, target: TargetId, now: u64) -> Option<Group> {
        let waiting = &mut self.targets.get_mut(target).waiting;
        if now < waiting.retry_ns {
            return None;
        }
        if let Some(alone) = waiting.take_alone(now)
            && alone.0.iter().all(|id| self.is_hit_on(*id))
        {
            self.targets.get_mut(target).waiting.wait_on(alone, now);
            return None;
        }
        while let Some(mut group) = self.targets.get_mut(target).waiting.groups.pop_front() {
            // Those that were closed meanwhile may have been asked for anew.
            let waits = |id: &ClassId| matches!(&self.class(*id).state, LinkState::Waiting(p) if p.number == group.number);
            let classes = group.classes.iter().copied().filter(waits).collect();
            group.classes = classes;
            if group.classes.is_empty() {
                continue;
            }
            if self.must_wait(group.kind, &group.classes) {
                if now < group.patient_until_ns {
                    self.targets.get_mut(target).waiting.push_back_in(group, now);
                    return None;
                }
                self.put_back(&group.classes, NotOpened::NotNow);
                continue;
            }
            return Some(group);
        }
        None
    }

    /// Its window is open and has a quota left.
    fn is_hit_on(&self, id: ClassId) -> bool {
        match &self.class(id).state {
            LinkState::Open(window) => {
                self.kernel().classes().counters(id).since(&window.base).kept < window.quota
            }
            _ => false,
        }
    }

    /// Those of a group that do not get their link now: what only has to wait until forks of others may be held up again goes on waiting
    /// where there is time.
    pub(super) fn leave_out(&mut self, group: &Group, ready: &[ClassId]) {
        let waits = |id: &ClassId| matches!(self.class(*id).state, LinkState::Waiting(_));
        let left: Vec<ClassId> =
            group.classes.iter().copied().filter(|id| !ready.contains(id) && waits(id)).collect();
        let (refused, later): (Vec<ClassId>, Vec<ClassId>) =
            left.into_iter().partition(|id| self.class(*id).refused.is_some());
        self.put_back(&refused, NotOpened::Refused);
        let now = now_ns();
        if later.is_empty() || now >= group.patient_until_ns {
            self.put_back(&later, NotOpened::NotNow);
            let gone: Vec<ClassId> = group.classes.iter().copied().filter(|id| !ready.contains(id)).collect();
            self.stop_waiting(&gone);
            return;
        }
        let Group { kind, patient_until_ns, once, number, .. } = *group;
        // The one that comes last says how long the next link waits.
        let alone = group.alone.clone();
        let waiting = &mut self.targets.owner_mut(later[0]).waiting;
        waiting.push_back_in(Group { kind, classes: later, patient_until_ns, alone, once, number }, now);
        self.stop_waiting(&refused);
    }

    /// Nothing waits to be attached, and nothing is being attached.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.asked.in_flight.is_none() && self.targets.all().iter().all(|target| target.waiting.is_empty())
    }

    /// When the next group is to be looked at again, ktime ns; none where nothing waits, or the next report will tell.
    #[must_use]
    pub fn retry_at(&self) -> Option<u64> {
        if self.is_making() {
            return None;
        }
        self.targets.all().iter().filter_map(|target| target.waiting.retry_at()).min()
    }
}

/// The targets in the order of their turns: first the one after that which was served last.
fn turns(served: TargetId, count: u32) -> impl Iterator<Item = TargetId> {
    (1..=count).map(move |step| TargetId((served.0 + step) % count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_core::recording::WindowKind;

    fn group(classes: &[u32]) -> Group {
        let classes = classes.iter().copied().map(ClassId).collect();
        Group { kind: WindowKind::Trace, classes, patient_until_ns: 0, alone: None, once: false, number: 1 }
    }

    fn order(served: u32, count: u32) -> Vec<u32> {
        turns(TargetId(served), count).map(|target| target.0).collect()
    }

    #[test]
    fn every_target_has_its_turn_and_who_was_served_is_the_last() {
        assert_eq!(order(0, 1), [0]);
        assert_eq!(order(0, 4), [1, 2, 3, 0]);
        assert_eq!(order(3, 4), [0, 1, 2, 3]);
        // One was added meanwhile.
        assert_eq!(order(3, 5), [4, 0, 1, 2, 3]);
    }

    #[test]
    fn what_waits_again_comes_first_and_has_a_time() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.retry_at(), None);
        waiting.push(group(&[1]));
        assert_eq!(waiting.retry_at(), Some(0), "at once");
        waiting.push_back_in(group(&[2]), 1_000);
        assert_eq!(waiting.retry_at(), Some(1_000 + RETRY_NS.0));
        let classes: Vec<_> = waiting.groups.iter().map(|group| group.classes[0].0).collect();
        assert_eq!(classes, [2, 1]);
        waiting.clear();
        assert!(waiting.is_empty() && waiting.retry_at().is_none());
    }

    #[test]
    fn a_class_that_is_to_trip_first_is_waited_for_until_its_time_is_up() {
        let mut waiting = Waiting::default();
        waiting.wait_for(Vec::new(), 500);
        assert_eq!(waiting.take_alone(1), None, "of none that is open nobody trips");
        waiting.wait_for(vec![ClassId(3)], 500);
        let alone = waiting.take_alone(100).unwrap();
        waiting.wait_on(alone, 100);
        assert_eq!(waiting.retry_ns, 100 + RETRY_NS.1);
        assert_eq!(waiting.take_alone(500), None);
        assert_eq!(waiting.take_alone(100), None, "it is not waited for again");
    }
}
