//! On which stacks the threads were seen: a thread that is found on two, or outside its own, switches stacks.
//!
//! Input: stack pointers, from samples and from `/proc/PID/task/TID/syscall`, and the mappings of the process. Output: the first
//! thread that switched, in words. Does no I/O.
//!
//! The first thread's stack is `[stack]`; another's is the mapping in which it is seen first, if that is no file's and not the
//! heap. A handler on a stack of its own (`sigaltstack`) is on a second one. A stack pointer in no mapping that is known (a new
//! thread, a stack that grew) is judged when the mappings have been read again.

use super::maps::{Backing, Mapping};
use std::collections::HashMap;

/// What was seen of the threads' stacks, over time.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    /// The mapping of each thread's stack.
    seen: HashMap<i32, (u64, u64)>,
    /// Stack pointers in no known mapping: the last of each thread.
    unplaced: HashMap<i32, u64>,
    /// End of `[stack]`: it moves only when the process loads another program.
    top: u64,
    switched: Option<String>,
}

impl Stacks {
    /// One thread's stack pointer.
    pub fn note(&mut self, pid: i32, maps: &[Mapping], tid: i32, sp: u64) {
        if self.switched.is_some()
            || self.seen.get(&tid).is_some_and(|(start, end)| (*start..*end).contains(&sp))
        {
            return;
        }
        // By address.
        let after = maps.partition_point(|m| m.end <= sp);
        match maps.get(after).filter(|m| m.contains(sp)) {
            Some(map) => self.judge(pid, tid, sp, map),
            None => drop(self.unplaced.insert(tid, sp)),
        }
    }

    /// The mappings have been read again. `alive`: the threads that there are.
    pub fn remap(&mut self, pid: i32, maps: &[Mapping], alive: impl Fn(i32) -> bool) {
        let is_stack = |m: &&Mapping| matches!(&m.backing, Backing::Special(name) if name == "[stack]");
        let top = maps.iter().find(is_stack).map_or(0, |m| m.end);
        if std::mem::replace(&mut self.top, top) != top {
            // Another program: nothing of what was seen holds.
            *self = Self { top, ..Self::default() };
        }
        self.seen.retain(|tid, _| alive(*tid));
        for (tid, sp) in std::mem::take(&mut self.unplaced) {
            let after = maps.partition_point(|m| m.end <= sp);
            // Elsewhere by now: its thread has ended, and its stack with it.
            if let Some(map) = maps.get(after).filter(|m| m.contains(sp))
                && alive(tid)
            {
                self.judge(pid, tid, sp, map);
            }
        }
    }

    /// A thread that switches stacks, in words.
    pub fn switched(&self) -> Option<&str> {
        self.switched.as_deref()
    }

    fn judge(&mut self, pid: i32, tid: i32, sp: u64, map: &Mapping) {
        let stack = matches!(&map.backing, Backing::Special(name) if name == "[stack]");
        let odd = match &map.backing {
            _ if tid == pid && !stack => Some("outside its stack"),
            Backing::File { .. } => Some("in a file's mapping"),
            Backing::Special(name) if name == "[heap]" => Some("in the heap"),
            _ => None,
        };
        let before = self.seen.insert(tid, (map.start, map.end));
        // A stack may grow, so that its mapping begins lower: ranges that do not overlap are two stacks.
        let moved = before.is_some_and(|(start, end)| end <= map.start || map.end <= start);
        self.switched = match odd {
            Some(odd) => {
                Some(format!("thread {tid} has its stack pointer {odd} ({sp:#x}): it switches stacks"))
            }
            None if moved => Some(format!("thread {tid} was seen on two stacks (the second at {sp:#x})")),
            None => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::maps::parse;

    const MAPS: &str = "\
400000-401000 r-xp 00000000 08:01 1 /bin/a
600000-700000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
7f0000101000-7f0000200000 rw-p 00000000 00:00 0
7f0000300000-7f0000301000 rw-p 00000000 08:01 2 /lib/b.so
7ffff0000000-7ffff0100000 rw-p 00000000 00:00 0 [stack]
";

    fn after(sights: &[(i32, u64)]) -> Option<String> {
        let maps = parse(MAPS.as_bytes());
        let mut stacks = Stacks::default();
        stacks.remap(1, &maps, |_| true);
        for (tid, sp) in sights {
            stacks.note(1, &maps, *tid, *sp);
        }
        stacks.switched().map(str::to_owned)
    }

    #[test]
    fn a_thread_on_its_stack_is_fine() {
        assert_eq!(after(&[(1, 0x7fff_f00f_f000), (1, 0x7fff_f000_1000)]), None);
        assert_eq!(after(&[(2, 0x7f00_0000_1000), (2, 0x7f00_000f_f000), (3, 0x7f00_0010_2000)]), None);
    }

    #[test]
    fn two_stacks_and_odd_places_are_found() {
        let cases: [(&[(i32, u64)], &str); 5] = [
            (&[(2, 0x7f00_0000_1000), (2, 0x7f00_0010_2000)], "thread 2 was seen on two stacks"),
            (&[(1, 0x7f00_0000_1000)], "outside its stack"),
            (&[(1, 0x7fff_f000_1000), (1, 0x60_1000)], "outside its stack"),
            (&[(2, 0x60_1000)], "in the heap"),
            (&[(2, 0x7f00_0030_0100)], "in a file's mapping"),
        ];
        for (sights, words) in cases {
            let said = after(sights).unwrap_or_default();
            assert!(said.contains(words), "{sights:?}: {said}");
        }
    }

    #[test]
    fn what_is_unknown_is_judged_with_new_mappings() {
        let (maps, more) = (parse(MAPS.as_bytes()), "7f0000400000-7f0000500000 rw-p 00000000 00:00 0\n");
        let with_more = parse(MAPS.replace("7ffff0000000-", &format!("{more}7fffef000000-")).as_bytes());
        let mut stacks = Stacks::default();
        stacks.remap(1, &maps, |_| true);
        stacks.note(1, &maps, 1, 0x7fff_f000_1000);
        // The first thread's stack grew; a thread came and has its own.
        stacks.note(1, &maps, 1, 0x7fff_ef00_1000);
        stacks.note(1, &maps, 4, 0x7f00_0040_1000);
        assert_eq!(stacks.switched(), None);
        stacks.remap(1, &with_more, |_| true);
        assert_eq!(stacks.switched(), None);
        stacks.note(1, &with_more, 4, 0x7f00_0000_1000);
        assert!(stacks.switched().is_some_and(|said| said.contains("thread 4")), "{stacks:?}");
    }

    #[test]
    fn threads_that_ended_and_other_programs_are_forgotten() {
        let maps = parse(MAPS.as_bytes());
        let mut stacks = Stacks::default();
        stacks.remap(1, &maps, |_| true);
        stacks.note(1, &maps, 2, 0x7f00_0000_1000);
        stacks.remap(1, &maps, |tid| tid != 2);
        stacks.note(1, &maps, 2, 0x7f00_0010_2000);
        assert_eq!(stacks.switched(), None);
        stacks.note(1, &maps, 1, 0x60_1000);
        assert!(stacks.switched().is_some());
        let other = parse(MAPS.replace("7ffff0100000", "7ffff0200000").as_bytes());
        stacks.remap(1, &other, |_| true);
        assert_eq!(stacks.switched(), None);
    }
}
