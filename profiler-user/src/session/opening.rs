//! Opening windows, and ending those whose time is over.

use super::attach::now_ns;
use super::{Phase, Session};
use crate::inspect::Refusal;
use crate::prober::Tier;
use crate::session::class::{Ending, OperationRole};
use profiler_core::class::ClassId;
use profiler_core::recording::{ChangeKind, WindowKind};
use std::collections::BTreeSet;
use std::time::Duration;

/// Between two tries while forks of others have been held up enough.
const PAUSE: Duration = Duration::from_millis(2);
/// Functions attached at a time through perf-event uprobes.
const SLOW_LINKS: usize = 8;

/// Who goes first where links are few: an operation without its bounds is nothing, one with some of its details is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    Bound,
    Inner,
    Other,
}

impl Need {
    fn of(role: Option<OperationRole>) -> Self {
        match role {
            None => Self::Other,
            Some(OperationRole::Inner { .. }) => Self::Inner,
            Some(_) => Self::Bound,
        }
    }
}

/// Whether a class is attached again that was taken off for a while. `kept`: somebody still wants it; `inner`: functions inside
/// operations are wanted now. Between slices they would be attached to be detached at once.
fn comes_back(role: Option<OperationRole>, kept: bool, inner: bool) -> bool {
    kept && (inner || Need::of(role) != Need::Inner)
}

/// Those of `asked` for which `free` links are not enough. `waiting` are off now and will be asked for: they are not pushed out by
/// what is needed less.
fn surplus(asked: &[(ClassId, Need)], free: usize, waiting: &[Need]) -> Vec<ClassId> {
    let mut asked = asked.to_vec();
    asked.sort_by_key(|(_, need)| *need);
    let mut left = free;
    asked.retain(|(_, need)| {
        let fits = left > waiting.iter().filter(|other| *other < need).count();
        left -= usize::from(fits);
        !fits
    });
    asked.into_iter().map(|(id, _)| id).collect()
}

impl Session {
    /// Opens windows of the plan's bursts: class, quota in hits, length in ns. Their clocks run from when they are open.
    pub(super) fn open_bursts(&mut self, bursts: &[(ClassId, u64, u64)]) {
        if bursts.is_empty() {
            return;
        }
        let quotas: Vec<(ClassId, u64)> = bursts.iter().map(|(id, quota, _)| (*id, *quota)).collect();
        let opened = self.open_windows(WindowKind::Burst, &quotas);
        let now = now_ns();
        for (id, _, window_ns) in bursts {
            if opened.contains(id) {
                self.burst_windows.push((*id, now + window_ns));
            } else if self.attach.class(*id).is_off() {
                // One whose link tripped meanwhile ends as any other window.
                self.not_opened(*id, WindowKind::Burst);
            }
        }
    }

    /// The controller learns that a window could not be opened.
    pub(super) fn not_opened(&mut self, id: ClassId, kind: WindowKind) {
        if self.attach.is_held(id, kind) {
            self.controller.held_back(id, now_ns());
        } else {
            self.controller.lost(id, now_ns());
        }
    }

    /// Closes the windows of bursts whose time is over.
    pub(super) fn end_bursts(&mut self, now: u64) {
        let Self { burst_windows, attach, target, .. } = self;
        burst_windows.retain(|(id, until_ns)| {
            if now >= *until_ns {
                attach.close(target, *id, Ending::Drain);
            }
            now < *until_ns && attach.class(*id).is_open()
        });
    }

    /// Opens trace windows; the controller forgets what cannot be attached.
    pub(super) fn open_traces(&mut self, quotas: &[(ClassId, u64)]) {
        let opened = self.open_windows(WindowKind::Trace, quotas);
        for (class, _) in quotas {
            // One that was opened and is off again has tripped, which the controller knows; one that is postponed is asked for again.
            if !opened.contains(class)
                && self.attach.class(*class).is_off()
                && !self.attach.is_postponed(*class)
                && !self.attach.is_held(*class, WindowKind::Trace)
            {
                self.controller.lost(*class, now_ns());
            }
        }
    }

    /// Opens again what the controller still wants open.
    pub(super) fn open_wanted(&mut self, quotas: &[(ClassId, u64)]) {
        let mut wanted: Vec<_> = quotas
            .iter()
            .copied()
            .filter(|(id, _)| {
                let kept = self.controller.is_attached(*id) || self.is_apart(*id);
                comes_back(self.attach.class(*id).role, kept, self.inner_is_wanted())
            })
            .collect();
        // Inner functions, ends, begins: no operation begins that lacks its calls or its end.
        wanted.sort_by_key(|(id, _)| match self.attach.class(*id).role {
            None | Some(OperationRole::Inner { .. }) => 0,
            Some(OperationRole::End(_)) => 1,
            Some(OperationRole::Begin(_) | OperationRole::Whole(_)) => 2,
        });
        self.open_traces(&wanted);
    }

    /// Opens windows, link by link, each after a last look at the code in memory: since the class was made it may have been
    /// patched, and a breakpoint would then end the target. Returns what was opened. Making a link takes 10 to 50 ms;
    /// between two of them the classes that run already get new quotas.
    pub(super) fn open_windows(&mut self, kind: WindowKind, quotas: &[(ClassId, u64)]) -> BTreeSet<ClassId> {
        let mut asked: Vec<(ClassId, u64)> =
            quotas.iter().copied().filter(|(id, _)| self.attach.class(*id).may_open()).collect();
        let ids: Vec<ClassId> = asked.iter().map(|(id, _)| *id).collect();
        self.keep_to_slow_links(kind, &mut asked);
        if self.children.is_storm() {
            asked.clear();
        }
        let groups = self.attach.groups(kind, &asked);
        let opened = self.open_groups(kind, groups);
        self.note_refused(&ids);
        opened
    }

    /// The same with the links as given.
    fn open_groups(&mut self, kind: WindowKind, groups: Vec<Vec<(ClassId, u64)>>) -> BTreeSet<ClassId> {
        let outer = std::mem::replace(&mut self.opening, true);
        let mut opened = BTreeSet::new();
        for group in groups {
            // A survey has no later: it waits, as long as it lasts. Whatever else is asked for comes again.
            let until_ns = self.survey_until(kind);
            loop {
                if !self.attach.must_wait(kind, &group) {
                    let ready = self.verified(&group);
                    self.attach.open_group(&self.target, kind, &ready, &mut opened);
                    self.attach.stop_waiting(&group);
                }
                self.breathe();
                let is_left = group.iter().any(|(id, _)| self.attach.is_postponed(*id));
                if !is_left || now_ns() >= until_ns {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
        self.opening = outer;
        opened
    }

    /// Until when links of such windows are waited for, ktime ns; 0: not at all.
    fn survey_until(&self, kind: WindowKind) -> u64 {
        match &self.phase {
            Phase::Survey { until_ns, .. } if kind == WindowKind::Survey => {
                self.end_ns.map_or(*until_ns, |end| end.min(*until_ns))
            }
            _ => 0,
        }
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

    /// Opens windows of the survey on one link (or on as few as their modules need). `together`: on shared ones.
    pub(super) fn open_survey(&mut self, quotas: &[(ClassId, u64)], together: bool) -> BTreeSet<ClassId> {
        let mut asked: Vec<(ClassId, u64)> =
            quotas.iter().copied().filter(|(id, _)| self.attach.class(*id).may_open()).collect();
        self.keep_to_slow_links(WindowKind::Survey, &mut asked);
        if self.children.is_storm() {
            asked.clear();
        }
        let groups = if together {
            self.attach.shared(WindowKind::Survey, &asked)
        } else {
            asked.iter().map(|one| vec![*one]).collect()
        };
        let ids: Vec<ClassId> = asked.iter().map(|(id, _)| *id).collect();
        let opened = self.open_groups(WindowKind::Survey, groups);
        self.note_refused(&ids);
        opened
    }

    fn verified(&mut self, group: &[(ClassId, u64)]) -> Vec<(ClassId, u64)> {
        let code: Vec<_> = group
            .iter()
            .map(|(id, _)| {
                let class = self.attach.class(*id);
                (&class.function, &class.sites)
            })
            .collect();
        let verdicts = self.inspection.verify_all(&code);
        let mut ready = Vec::new();
        for (item, verdict) in group.iter().zip(verdicts) {
            match verdict {
                Ok(_) => ready.push(*item),
                // Not mapped now: a library that was closed may come back.
                Err(Refusal::Unverified(_)) => {}
                Err(refusal) => self.attach.class_mut(item.0).refused = Some(refusal.to_string()),
            }
        }
        ready
    }

    /// Perf-event uprobes (before Linux 6.6) take 0.1 to 0.3 s each to detach, one after the other, and stall the target
    /// at each attach and detach: only few at a time, and no short bursts to learn rates.
    fn keep_to_slow_links(&mut self, kind: WindowKind, ready: &mut Vec<(ClassId, u64)>) {
        if self.attach.kernel().tier() != Tier::D {
            return;
        }
        if kind == WindowKind::Survey {
            ready.clear();
            return;
        }
        let busy = self.attach.classes().iter().filter(|c| !c.is_off()).count();
        let need = |id: ClassId| Need::of(self.attach.class(id).role);
        let asked: Vec<(ClassId, Need)> = ready.iter().map(|(id, _)| (*id, need(*id))).collect();
        let waiting: Vec<Need> = self
            .operations_waiting()
            .into_iter()
            .filter(|id| !asked.iter().any(|(other, _)| other == id))
            .map(need)
            .collect();
        let surplus = surplus(&asked, SLOW_LINKS.saturating_sub(busy), &waiting);
        ready.retain(|(id, _)| !surplus.contains(id));
        for id in surplus {
            self.attach.class_mut(id).refused = Some(format!(
                "uprobes of this kernel are slow to detach, so at most {SLOW_LINKS} functions are traced at a time; \
                 Linux 6.6 brought better ones"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_inside_come_back_with_their_slice() {
        let inner = Some(OperationRole::Inner { measure: 0, counts: true });
        for role in [None, Some(OperationRole::Whole(0)), Some(OperationRole::End(0)), inner] {
            assert!(comes_back(role, true, true) && !comes_back(role, false, true));
            assert_eq!(comes_back(role, true, false), role != inner, "{role:?}");
        }
    }

    fn of(needs: &[Need], free: usize, waiting: &[Need]) -> Vec<u32> {
        let asked: Vec<_> = (0u32..).map(ClassId).zip(needs.iter().copied()).collect();
        surplus(&asked, free, waiting).into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn few_links_go_to_the_bounds_of_operations_first() {
        use Need::{Bound, Inner, Other};
        // Inner functions are asked for first: no operation begins that lacks its calls.
        assert_eq!(of(&[Inner, Inner, Inner, Bound, Bound], 4, &[]), [2]);
        assert_eq!(of(&[Other, Inner, Bound], 1, &[]), [1, 0]);
        assert_eq!(of(&[Other, Other], 2, &[]), [0u32; 0]);
        // What is off for a while keeps its place.
        assert_eq!(of(&[Other, Inner], 2, &[Bound]), [0]);
        assert_eq!(of(&[Other, Bound], 2, &[Inner, Other]), [0]);
        assert_eq!(of(&[Bound, Bound], 1, &[Inner]), [1]);
    }
}
