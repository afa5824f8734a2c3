//! Attaching keeps to the memory that the target has left: see `profiler_core::surroundings::private_pages`.

use super::{Attachments, now_ns};
use crate::inspect::cgroup::{self, MemoryCgroups};
use crate::output::memory;
use crate::session::class::{LinkState, LiveClass};
use profiler_core::class::ClassId;
use profiler_core::recording::{PrivateMemory, WindowKind};
use profiler_core::surroundings::private_pages::{
    Headroom, Page, PrivatePages, admit, allowed_bytes, page_of,
};
use std::path::Path;

/// What was read so short ago is good enough, ns.
const RECENT_NS: u64 = 100_000_000;

/// The target's memory as last read, and what was made of it.
#[derive(Debug, Default)]
pub(super) struct MemoryWatch {
    /// When it was read, ktime ns; what was left then, and what probes had taken of it, bytes.
    read: Option<(u64, Headroom, u64)>,
    noted: PrivateMemory,
    /// A figure could not be had: why.
    trouble: Option<String>,
}

impl Attachments {
    /// Leaves out the classes of a group for whose pages the target has no room. They are refused for good, with the figures.
    pub(super) fn within_memory(
        &mut self,
        kind: WindowKind,
        group: Vec<(ClassId, u64)>,
    ) -> Vec<(ClassId, u64)> {
        let mut attached = PrivatePages::default();
        for class in &self.classes {
            if let LinkState::Open(window) | LinkState::Closing(window, _) = &class.state {
                attached.extend(pages(class, window.kind));
            }
        }
        let wanted: Vec<Vec<Page>> =
            group.iter().map(|(id, _)| pages(self.class(*id), kind).collect()).collect();
        let headroom = self.headroom(attached.bytes());
        let Some((headroom, taken_bytes)) = headroom else { return group };
        let allowed = allowed_bytes(headroom.bytes(), taken_bytes);
        let mut all = attached.clone();
        all.extend(wanted.iter().flatten().copied());
        let fits = admit(&attached, &wanted, allowed);
        let mut ready = Vec::new();
        let mut refused = Vec::new();
        for ((item, pages), fits) in group.into_iter().zip(wanted).zip(fits) {
            if fits {
                attached.extend(pages);
                ready.push(item);
            } else {
                refused.push(item.0);
            }
        }
        let noted = &mut self.memory.noted;
        noted.note(attached.len(), attached.bytes(), &headroom, taken_bytes);
        noted.refused += refused.len() as u64;
        if !refused.is_empty() {
            let why = refusal(&headroom, taken_bytes, &all, allowed);
            for id in refused {
                self.class_mut(id).refused = Some(why.clone());
            }
        }
        ready
    }

    /// What the target has left, and what of that which is used was taken by probes when it was read, bytes.
    fn headroom(&mut self, taken_bytes: u64) -> Option<(Headroom, u64)> {
        let now = now_ns();
        let recent = |(at, headroom, taken): &(u64, Headroom, u64)| {
            (now < at + RECENT_NS).then(|| (headroom.clone(), *taken))
        };
        if let Some(found) = self.memory.read.as_ref().and_then(recent) {
            return Some(found);
        }
        let read = MemoryCgroups::of(self.pid).and_then(|groups| match groups {
            Some(groups) => groups.headroom(),
            None => cgroup::machine(Path::new("/proc/meminfo")),
        });
        let headroom = match read {
            Ok(headroom) => headroom,
            Err(error) => {
                self.memory.trouble.get_or_insert_with(|| {
                    format!(
                        "what the target's memory cgroup has left is not known: {error}; pages that probes make private were held \
                         against the machine's memory alone"
                    )
                });
                // Without that figure either nothing can be said; attaching then shows what the kernel says.
                cgroup::machine(Path::new("/proc/meminfo")).ok()?
            }
        };
        self.memory.read = Some((now, headroom.clone(), taken_bytes));
        Some((headroom, taken_bytes))
    }

    /// Pages made private so far, and what could not be read.
    pub fn private_memory(&self) -> (PrivateMemory, Option<&str>) {
        (self.memory.noted.clone(), self.memory.trouble.as_deref())
    }
}

/// The pages of the sites of a class, and that of the counter that a USDT probe raises.
fn pages(class: &LiveClass, kind: WindowKind) -> impl Iterator<Item = Page> {
    // OK because a process has fewer than 2^32 modules.
    let module = class.candidate.key.module as u32;
    class.sites_of(kind).into_iter().flat_map(move |site| {
        let counter = (site.reference_counter != 0).then_some(site.reference_counter);
        std::iter::once(site.offset).chain(counter).map(move |offset| page_of(module, offset))
    })
}

fn refusal(headroom: &Headroom, taken_bytes: u64, all: &PrivatePages, allowed: u64) -> String {
    let more = all.bytes().saturating_sub(allowed).saturating_mul(2);
    format!(
        "with it probes would make {} pages of the target's text private ({}), more than half of the {} that {} leaves to it \
         (limit {}, used {}, of which {} can be given back); give it more: {}; or name fewer functions",
        all.len(),
        memory(all.bytes()),
        memory(headroom.bytes().saturating_add(taken_bytes)),
        headroom.path,
        memory(headroom.limit_bytes),
        memory(headroom.usage_bytes),
        memory(headroom.reclaimable_bytes),
        cgroup::remedy(headroom, more)
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
        // 600 pages, 2 of tables, 2 more; a quarter of a MiB was ours.
        let text = refusal(&headroom, 256 << 10, &all, allowed_bytes(1 << 20, 256 << 10));
        expect_test::expect![[""]].assert_eq(&text);
    }
}
