//! Attaching keeps to the memory that the target has left: see `profiler_core::surroundings::private_pages`.
//!
//! Targets that the same memory cgroup limits share what it has left: what probes took of it in one is not to be had in another.

use super::super::clock::now_ns;
use super::watched::{TargetId, WatchedTarget};
use super::{Attachments, Targets};
use crate::agent::class::LiveClass;
use crate::agent::known_callers::ReturnGroup;
use crate::inspect::cgroup::{self, MemoryCgroups};
use crate::output::memory;
use profiler_core::class::ClassId;
use profiler_core::recording::{PrivateMemory, WindowKind};
use profiler_core::surroundings::private_pages::{
    HEADROOM_PART, Headroom, Page, PrivatePages, admit, allowed_bytes, page_of,
};
use std::path::Path;

/// Why a function is not attached; the figures are in a warning.
const NO_ROOM: &str = "no room: its pages would become private memory of the target, which has too little left (see the warnings)";
/// What was read so short ago is good enough, ns.
const RECENT_NS: u64 = 100_000_000;
/// The same where no page is wanted that holds or held no probe: windows come back to the same sites, many times a second.
const RECENT_OF_SAME_NS: u64 = 1_000_000_000;

/// What a target has left, and what probes have taken of it.
#[derive(Debug, Clone)]
struct Left {
    headroom: Headroom,
    /// What probes had taken of it when it was read, in this target and in others that share it, bytes.
    taken_bytes: u64,
    /// What they have taken by now in the others, bytes.
    beside_bytes: u64,
}

impl Left {
    /// What probes may take in this target, bytes: half of what there would be without any, less what they take in others.
    fn allowed_bytes(&self) -> u64 {
        allowed_bytes(self.headroom.bytes(), self.taken_bytes).saturating_sub(self.beside_bytes)
    }
}

/// The target's memory as last read, and what was made of it.
#[derive(Debug, Default)]
pub(super) struct MemoryWatch {
    /// When it was read, ktime ns; what was left then, and what probes had taken of it, bytes.
    read: Option<(u64, Headroom, u64)>,
    /// Pages that hold or held a probe: a kernel may keep the copy when the probe is gone.
    taken: PrivatePages,
    /// The same, with those of functions for which there was no room.
    wanted: PrivatePages,
    /// What was left, and what probes had taken of it, bytes, when there was no room.
    tightest: Option<(Headroom, u64)>,
    noted: PrivateMemory,
    /// A figure could not be had: why.
    trouble: Option<String>,
}

impl Attachments {
    /// Leaves out the classes of a group for whose pages the target has no room. They are refused for good, with the figures.
    pub(super) fn within_memory(&mut self, kind: WindowKind, group: Vec<ClassId>) -> Vec<ClassId> {
        let wanted: Vec<Vec<Page>> = group.iter().map(|id| pages(self.class(*id), kind).collect()).collect();
        let Some(target) = group.first().map(|id| self.targets.of(*id)) else { return group };
        let recent_ns = self.targets.get(target).memory.recent_ns(wanted.iter().flatten());
        let Some(left) = self.targets.left(target, recent_ns) else { return group };
        let watch = &mut self.targets.get_mut(target).memory;
        let fits = admit(&watch.taken, &wanted, left.allowed_bytes());
        let Left { headroom, taken_bytes, .. } = left;
        watch.wanted.extend(wanted.iter().flatten().copied());
        let (mut ready, mut refused) = (Vec::new(), Vec::new());
        for ((item, pages), fits) in group.into_iter().zip(wanted).zip(fits) {
            if fits {
                watch.taken.extend(pages);
                ready.push(item);
            } else {
                refused.push(item);
            }
        }
        watch.noted.note(watch.taken.len(), watch.taken.bytes(), &headroom, taken_bytes);
        watch.noted.refused += refused.len() as u64;
        if !refused.is_empty() {
            watch.tightest = Some((headroom, taken_bytes));
        }
        for id in refused {
            // Without its callers' sites it may have room when it is asked for again.
            if !self.without_callers(id, kind, NO_ROOM) {
                self.class_mut(id).refused = Some(NO_ROOM.to_owned());
            }
        }
        ready
    }

    /// The target of a class has room for the pages of these sites in callers, which are taken.
    pub(super) fn has_room(&mut self, id: ClassId, groups: &[ReturnGroup]) -> bool {
        let wanted: Vec<Page> = groups.iter().flat_map(pages_of).collect();
        let target = self.targets.of(id);
        let recent_ns = self.targets.get(target).memory.recent_ns(wanted.iter());
        let Some(left) = self.targets.left(target, recent_ns) else { return true };
        let watch = &mut self.targets.get_mut(target).memory;
        let fits = admit(&watch.taken, std::slice::from_ref(&wanted), left.allowed_bytes());
        if fits.first() != Some(&true) {
            return false;
        }
        watch.taken.extend(wanted);
        watch.noted.note(watch.taken.len(), watch.taken.bytes(), &left.headroom, left.taken_bytes);
        true
    }
}

impl Targets {
    /// What a target has left, as read within `recent_ns` or now. `None`: that cannot be had.
    fn left(&mut self, id: TargetId, recent_ns: u64) -> Option<Left> {
        let target = self.get_mut(id);
        let now = now_ns();
        let recent = |(at, headroom, taken): &(u64, Headroom, u64)| {
            (now < at + recent_ns).then(|| (headroom.clone(), *taken))
        };
        if let Some((headroom, taken_bytes)) = target.memory.read.as_ref().and_then(recent) {
            let beside_bytes = self.beside_bytes(id, &headroom.path);
            return Some(Left { headroom, taken_bytes, beside_bytes });
        }
        let pid = target.pid();
        let headroom = target.memory.headroom_of(pid)?;
        let own_bytes = target.memory.taken.bytes();
        let beside_bytes = self.beside_bytes(id, &headroom.path);
        let taken_bytes = own_bytes.saturating_add(beside_bytes);
        self.get_mut(id).memory.read = Some((now, headroom.clone(), taken_bytes));
        Some(Left { headroom, taken_bytes, beside_bytes })
    }

    /// What probes take in other targets that the same memory cgroup limits, or the machine alone, bytes.
    fn beside_bytes(&self, id: TargetId, path: &str) -> u64 {
        let shares = |target: &WatchedTarget| {
            let read = target.memory.read.as_ref();
            !target.is_gone() && read.is_some_and(|(_, headroom, _)| headroom.path == path)
        };
        let others = self.all().iter().zip(0..).filter(|(target, other)| *other != id.0 && shares(target));
        others.map(|(target, _)| target.memory.taken.bytes()).fold(0, u64::saturating_add)
    }
}

impl MemoryWatch {
    /// How old a figure may be for a group that wants these pages, ns.
    fn recent_ns<'a>(&self, mut wanted: impl Iterator<Item = &'a Page>) -> u64 {
        if wanted.all(|page| self.taken.contains(*page)) { RECENT_OF_SAME_NS } else { RECENT_NS }
    }

    /// What a process has left now.
    fn headroom_of(&mut self, pid: u32) -> Option<Headroom> {
        let read = MemoryCgroups::of(pid).and_then(|groups| match groups {
            Some(groups) => groups.headroom(),
            None => cgroup::machine(Path::new("/proc/meminfo")),
        });
        match read {
            Ok(headroom) => Some(headroom),
            Err(error) => {
                self.trouble.get_or_insert_with(|| {
                    format!(
                        "what the target's memory cgroup has left is not known: {error}; pages that probes make private were held \
                         against the machine's memory alone"
                    )
                });
                // Without that figure either nothing can be said; attaching then shows what the kernel says.
                cgroup::machine(Path::new("/proc/meminfo")).ok()
            }
        }
    }
}

impl WatchedTarget {
    /// Pages made private so far, and warnings: what could not be read, and the figures of what was refused.
    #[must_use]
    pub fn private_memory(&self) -> (PrivateMemory, Vec<String>) {
        let watch = &self.memory;
        let refusal =
            watch.tightest.as_ref().map(|(headroom, taken)| refusal(headroom, *taken, &watch.wanted));
        (watch.noted.clone(), watch.trouble.clone().into_iter().chain(refusal).collect())
    }
}

/// The pages of the sites of a class, and that of the counter that a USDT probe raises.
fn pages(class: &LiveClass, kind: WindowKind) -> impl Iterator<Item = Page> {
    // OK because a process has fewer than 2^32 modules.
    let module = class.candidate.key.module as u32;
    let own = class.sites_of(kind).into_iter().flat_map(move |site| {
        let counter = (site.reference_counter != 0).then_some(site.reference_counter);
        std::iter::once(site.offset).chain(counter).map(move |offset| page_of(module, offset))
    });
    own.chain(class.return_groups(kind).into_iter().flat_map(|group| pages_of(&group)))
}

/// The pages of sites in callers.
fn pages_of(group: &ReturnGroup) -> Vec<Page> {
    // OK as above.
    let module = group.module as u32;
    group.sites.iter().map(|(_, site)| page_of(module, site.offset)).collect()
}

/// The figures behind [`NO_ROOM`].
fn refusal(headroom: &Headroom, taken_bytes: u64, wanted: &PrivatePages) -> String {
    let left_bytes = headroom.bytes().saturating_add(taken_bytes);
    let more = wanted.bytes().saturating_sub(allowed_bytes(headroom.bytes(), taken_bytes));
    format!(
        "probes on all functions would make {} pages of the target's text private ({}), more than half of the {} that {} leaves to \
         it (limit {}, used {}, of which {} can be given back): those without room were not attached; give it more: {}; or name fewer \
         functions",
        wanted.len(),
        memory(wanted.bytes()),
        memory(left_bytes),
        headroom.path,
        memory(headroom.limit_bytes),
        memory(headroom.usage_bytes),
        memory(headroom.reclaimable_bytes),
        cgroup::remedy(headroom, more.saturating_mul(HEADROOM_PART))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_figures_and_a_command() {
        let headroom = Headroom {
            path: "/sys/fs/cgroup/memory/web".into(),
            limit_file: "memory.limit_in_bytes".into(),
            limit_bytes: 64 << 20,
            usage_bytes: (63 << 20) + (512 << 10),
            reclaimable_bytes: 512 << 10,
        };
        let mut all = PrivatePages::default();
        all.extend((0..600).map(|i| (0, i)));
        // 600 pages, 2 of tables, 2 more: 2,473,984 bytes, of which 655,360 are allowed; a quarter of a MiB was ours.
        assert_eq!(
            refusal(&headroom, 256 << 10, &all),
            "probes on all functions would make 600 pages of the target's text private (2.36 MiB), more than half of the 1.25 MiB that \
             /sys/fs/cgroup/memory/web leaves to it (limit 64 MiB, used 63.5 MiB, of which 512 KiB can be given back): those without \
             room were not attached; give it more: echo 70746112 > /sys/fs/cgroup/memory/web/memory.limit_in_bytes; or name fewer \
             functions"
        );
    }

    fn headroom(path: &str, left_bytes: u64) -> Headroom {
        Headroom {
            path: path.into(),
            limit_file: "memory.max".into(),
            limit_bytes: left_bytes,
            usage_bytes: 0,
            reclaimable_bytes: 0,
        }
    }

    /// Sets what was read of a target just now.
    fn read(targets: &mut Targets, id: TargetId, path: &str, left_bytes: u64, taken_bytes: u64) {
        let read = (now_ns() + 3_600_000_000_000, headroom(path, left_bytes), taken_bytes);
        targets.get_mut(id).memory.read = Some(read);
    }

    #[test]
    fn a_new_page_wants_a_fresh_figure() {
        let mut watch = MemoryWatch::default();
        watch.taken.extend([(0, 7), (0, 8)]);
        assert_eq!(watch.recent_ns([(0, 8), (0, 7)].iter()), RECENT_OF_SAME_NS);
        assert_eq!(watch.recent_ns([(0, 8), (1, 8)].iter()), RECENT_NS);
    }

    #[test]
    fn targets_of_one_cgroup_share_half_of_what_it_has_left() {
        const MIB: u64 = 1 << 20;
        let mut targets = Targets::default();
        let [a, b, c] = [10, 11, 12].map(|pid| targets.add(WatchedTarget::unbound(pid)));
        read(&mut targets, a, "/web", 8 * MIB, 0);
        read(&mut targets, b, "/web", 8 * MIB, 0);
        read(&mut targets, c, "/db", 8 * MIB, 0);
        let allowed = |targets: &mut Targets, id| targets.left(id, RECENT_NS).unwrap().allowed_bytes();
        assert_eq!(allowed(&mut targets, a), 4 * MIB);
        // 97 pages, a table and two for stepping.
        targets.get_mut(a).memory.taken.extend((0..97).map(|page| (0, page)));
        let taken = targets.get_mut(a).memory.taken.bytes();
        assert_eq!(taken, 100 * 4096);
        assert_eq!(allowed(&mut targets, a), 4 * MIB, "its own are held against it by whoever admits");
        assert_eq!(allowed(&mut targets, b), 4 * MIB - taken);
        assert_eq!(allowed(&mut targets, c), 4 * MIB, "another cgroup");
        // Read again, what is left is less by that, and half of the whole is the same.
        read(&mut targets, b, "/web", 8 * MIB - taken, taken);
        assert_eq!(allowed(&mut targets, b), 4 * MIB - taken);
        // What is gone has given its memory back.
        targets.get_mut(a).let_go();
        read(&mut targets, b, "/web", 8 * MIB, 0);
        assert_eq!(allowed(&mut targets, b), 4 * MIB);
    }
}
