//! What was mapped where while the run went on, so that a return address is looked up in the code that was there at its time.
//!
//! A library may be closed and another one opened at the same place. The mappings are looked at once a second. What was mapped at one look and is not at the next
//! holds for steps up to the first; what came to a place where something else was before holds from the second on. In between nothing is known. What comes and goes
//! between two looks is not seen.

use crate::inspect::{Backing, Mapping};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Places that something was unmapped from, at most: a program may make and drop code for days.
const MOST_PLACES: usize = 2_000;

/// Code of a file that was unmapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gone {
    /// Its addresses.
    pub range: Range<u64>,
    /// What was mapped there holds for steps from then on, ktime ns; `None`: from the beginning.
    pub since_ns: Option<u64>,
    /// And up to then: the last look at which it was there.
    pub until_ns: u64,
}

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(super) struct CodeHistory {
    /// What is executable, and since when it holds.
    mapped: Vec<(Mapping, Option<u64>)>,
    /// Where something was unmapped.
    places: BTreeSet<(u64, u64)>,
    /// The last look, ktime ns; 0: none yet.
    looked_ns: u64,
}

impl CodeHistory {
    /// Looks at the mappings, which were read between two times, ktime ns. Says which files' code has gone since the last look.
    pub fn look(&mut self, maps: &[Mapping], (from_ns, to_ns): (u64, u64)) -> Vec<Gone> {
        let code: HashMap<u64, &Mapping> =
            maps.iter().filter(|map| map.exec).map(|map| (map.start, map)).collect();
        let is_first = self.looked_ns == 0;
        let until_ns = std::mem::replace(&mut self.looked_ns, from_ns.max(1));
        let mut known: HashMap<u64, Option<u64>> = HashMap::new();
        let mut gone = Vec::new();
        for (map, since_ns) in std::mem::take(&mut self.mapped) {
            if code.get(&map.start).is_some_and(|now| **now == map) {
                known.insert(map.start, since_ns);
                continue;
            }
            self.add_place(map.start, map.end);
            if matches!(map.backing, Backing::File { .. }) {
                gone.push(Gone { range: map.start..map.end, since_ns, until_ns });
            }
        }
        for (start, map) in code {
            let since_ns = match known.get(&start) {
                Some(since_ns) => *since_ns,
                None if is_first || !self.was_unmapped(map) => None,
                None => Some(to_ns),
            };
            self.mapped.push((map.clone(), since_ns));
        }
        gone
    }

    /// Nobody has looked yet.
    pub fn is_new(&self) -> bool {
        self.looked_ns == 0
    }

    /// What is mapped at an address holds for steps from then on; `None`: from the beginning.
    pub fn since(&self, address: u64) -> Option<u64> {
        self.mapped.iter().find(|(map, _)| map.contains(address)).and_then(|(_, since_ns)| *since_ns)
    }

    fn was_unmapped(&self, map: &Mapping) -> bool {
        // Where more were unmapped than are known, everything that comes may have come to one of them.
        self.places.len() >= MOST_PLACES
            || self.places.iter().any(|(start, end)| *start < map.end && map.start < *end)
    }

    fn add_place(&mut self, start: u64, end: u64) {
        if self.places.len() < MOST_PLACES {
            self.places.insert((start, end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(start: u64, inode: u64) -> Mapping {
        let backing = match inode {
            0 => Backing::Anonymous,
            _ => Backing::File { path: format!("/lib/{inode}.so").into(), deleted: false },
        };
        Mapping {
            start,
            end: start + 0x1000,
            read: true,
            write: false,
            exec: true,
            shared: false,
            offset: 0,
            device: (8, 1),
            inode,
            backing,
        }
    }

    #[test]
    fn what_holds_when_a_library_takes_the_place_of_another() {
        let mut history = CodeHistory::default();
        assert_eq!(history.look(&[code(0x1000, 1), code(0x8000, 2)], (100, 105)), []);
        assert_eq!(history.look(&[code(0x1000, 1), code(0x8000, 2)], (200, 205)), []);
        // Another one at its place, a second one where nothing was.
        let gone = history.look(&[code(0x1000, 1), code(0x8000, 3), code(0xa000, 4)], (300, 305));
        assert_eq!(gone, [Gone { range: 0x8000..0x9000, since_ns: None, until_ns: 200 }]);
        assert_eq!(
            [0x1800, 0x8800, 0xa800, 0xf000].map(|address| history.since(address)),
            [None, Some(305), None, None]
        );
        // It goes, and the first one comes back.
        let gone = history.look(&[code(0x1000, 1), code(0xa000, 4)], (400, 405));
        assert_eq!(gone, [Gone { range: 0x8000..0x9000, since_ns: Some(305), until_ns: 300 }]);
        assert_eq!(history.look(&[code(0x1000, 1), code(0x8000, 2), code(0xa000, 4)], (500, 505)), []);
        assert_eq!(history.since(0x8800), Some(505));
    }

    #[test]
    fn code_made_at_run_time_is_something_else_too() {
        let mut history = CodeHistory::default();
        history.look(&[code(0x8000, 0)], (100, 105));
        let gone = history.look(&[code(0x8000, 7)], (200, 205));
        assert_eq!(gone, [], "there is no file to look into");
        assert_eq!(history.since(0x8000), Some(205));
        // One that overlaps it.
        history.look(&[], (300, 305));
        history.look(&[Mapping { start: 0x7000, end: 0x8800, ..code(0x7000, 9) }], (400, 405));
        assert_eq!(history.since(0x7100), Some(405));
    }
}
