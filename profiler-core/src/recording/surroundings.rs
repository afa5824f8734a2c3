//! What attaching did to the target's memory and to other processes.

use crate::surroundings::private_pages::Headroom;
use serde::{Deserialize, Serialize};

/// Pages of the target's text that probes made private, against what its memory cgroups left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrivateMemory {
    /// Distinct pages that hold or held a probe.
    pub pages: u64,
    /// What they take with their page tables, bytes.
    pub bytes: u64,
    /// Least headroom at an attachment, without what probes had taken, bytes.
    pub headroom_bytes: u64,
    /// Where that was: the folder of a memory cgroup, or `/proc/meminfo`. Empty: nothing was attached.
    pub headroom_path: String,
    /// Functions that were not attached because the pages of all would have been more than half of it.
    pub refused: u64,
}

impl PrivateMemory {
    /// Takes note of an attachment after which `pages` take `bytes`; `taken_bytes` of what is used were theirs when the headroom was
    /// read.
    pub fn note(&mut self, pages: u64, bytes: u64, headroom: &Headroom, taken_bytes: u64) {
        self.pages = self.pages.max(pages);
        self.bytes = self.bytes.max(bytes);
        let left = headroom.bytes().saturating_add(taken_bytes);
        if self.headroom_path.is_empty() || left < self.headroom_bytes {
            self.headroom_bytes = left;
            self.headroom_path.clone_from(&headroom.path);
        }
    }
}

/// What other processes paid for attaching to files that they map: their forks waited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForksHeld {
    /// Most other processes that mapped a file that was attached to.
    pub mappers: u32,
    /// Which file that was, as the target sees it.
    pub module: String,
    /// Sites registered and unregistered in files that others map.
    pub registrations: u64,
    /// Time for which forks were held up because others map those files, ns.
    pub held_ns: u64,
    /// The longest at once, ns.
    pub longest_ns: u64,
    /// Functions that were refused because registering one alone would have held up forks for too long.
    pub refused: u64,
}

impl ForksHeld {
    /// Takes note of a link of so many sites that was made or closed.
    pub fn note(&mut self, module: &str, mappers: u32, sites: u64, held_ns: u64) {
        if mappers > self.mappers {
            self.mappers = mappers;
            module.clone_into(&mut self.module);
        }
        self.registrations += sites;
        self.held_ns += held_ns;
        self.longest_ns = self.longest_ns.max(held_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_pages_and_least_headroom_are_kept() {
        let headroom = |path: &str, limit_bytes| Headroom {
            path: path.into(),
            limit_file: "memory.max".into(),
            limit_bytes,
            usage_bytes: 0,
            reclaimable_bytes: 0,
        };
        let mut memory = PrivateMemory::default();
        memory.note(5, 50, &headroom("/a", 1_000), 0);
        memory.note(3, 30, &headroom("/b", 800), 100);
        memory.note(4, 40, &headroom("/c", 950), 0);
        let expected = PrivateMemory {
            pages: 5,
            bytes: 50,
            headroom_bytes: 900,
            headroom_path: "/b".into(),
            refused: 0,
        };
        assert_eq!(memory, expected);
    }

    #[test]
    fn holds_add_up_and_the_file_that_most_map_is_named() {
        let mut held = ForksHeld::default();
        held.note("/lib/a.so", 10, 5, 100);
        held.note("/lib/c.so", 1_500, 2, 900);
        held.note("/lib/a.so", 10, 5, 100);
        let expected = ForksHeld {
            mappers: 1_500,
            module: "/lib/c.so".into(),
            registrations: 12,
            held_ns: 1_100,
            longest_ns: 900,
            refused: 0,
        };
        assert_eq!(held, expected);
    }
}
