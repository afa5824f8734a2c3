//! What classes that are traced all the time count while a burst of another one is open: both are counted at two moments, when its gate opens and when its quota is used up.
//!
//! The second moment is the governor's, who hears of it first: its thread reads counters in shared memory, which takes a microsecond, after the links were handed
//! to the closers. It neither allocates nor waits.

use super::links::LinkTable;
use super::sys::now_ns;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Classes that are counted beside a burst at most.
pub const MOST: usize = 4;
/// No class.
const NONE: u32 = u32::MAX;
/// Counters that were read in a longer time are of different moments, ns.
const INTERRUPTED_NS: u64 = 50_000;

/// States of a [`Slot`]: no burst has begun; one has; its end is written; is there.
const EMPTY: u8 = 0;
const BEGUN: u8 = 1;
const WRITING: u8 = 2;
const WRITTEN: u8 = 3;

/// Calls of the class that leads links, and of those that are traced beside it, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// When reading began, ktime ns.
    pub time_ns: u64,
    /// When it was over.
    pub until_ns: u64,
    /// Calls of the class.
    pub own: u64,
    /// Of those that are traced, by class.
    pub beside: [Option<(u32, u64)>; MOST],
}

/// A burst: which classes are counted beside it, and the moment at which it ended.
struct Slot {
    state: AtomicU8,
    time_ns: AtomicU64,
    until_ns: AtomicU64,
    own: AtomicU64,
    beside: [(AtomicU32, AtomicU64); MOST],
}

impl LinkTable {
    /// With `calls`, which reads how often a class was called so far, in no time: classes that are traced are counted beside bursts
    /// ([`LinkTable::begin_beside`]).
    #[must_use]
    pub fn counting(mut self, calls: impl Fn(u32) -> u64 + Send + Sync + 'static) -> Self {
        self.beside = Some(BesideCounts::new(self.drill_class() as usize, calls));
        self
    }

    /// A burst of links that this class leads has begun: what it and these, which are traced all the time, were called so far; a few are counted, the first ones. They are counted again when
    /// it ends. `None`: nobody counts ([`LinkTable::counting`]), or counting was interrupted.
    pub fn begin_beside(&self, leader: u32, traced: &[u32]) -> Option<Counted> {
        self.beside.as_ref()?.begin(leader, traced)
    }

    /// The windows on the links of this leader end at this moment.
    pub fn note_end(&self, leader: u32) {
        self.beside.iter().for_each(|counts| counts.end(leader));
    }

    /// What was counted when they ended, with a used-up quota or [`LinkTable::note_end`].
    #[must_use]
    pub fn counted_at_end(&self, leader: u32) -> Option<Counted> {
        self.beside.as_ref()?.at_end(leader)
    }
}

/// Calls of a class so far.
type Calls = dyn Fn(u32) -> u64 + Send + Sync;

/// Counts for all classes.
pub(super) struct BesideCounts {
    calls: Box<Calls>,
    slots: Box<[Slot]>,
}

impl fmt::Debug for BesideCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BesideCounts").field("classes", &self.slots.len()).finish_non_exhaustive()
    }
}

impl BesideCounts {
    fn new(classes: usize, calls: impl Fn(u32) -> u64 + Send + Sync + 'static) -> Self {
        let slot = || Slot {
            state: AtomicU8::new(EMPTY),
            time_ns: AtomicU64::new(0),
            until_ns: AtomicU64::new(0),
            own: AtomicU64::new(0),
            beside: [(); MOST].map(|()| (AtomicU32::new(NONE), AtomicU64::new(0))),
        };
        Self { calls: Box::new(calls), slots: std::iter::repeat_with(slot).take(classes).collect() }
    }

    /// All counters at this moment; `None` where reading them was interrupted.
    fn now(&self, class: u32, beside: [Option<u32>; MOST]) -> Option<Counted> {
        let time_ns = now_ns();
        let own = (self.calls)(class);
        let beside = beside.map(|id| id.map(|id| (id, (self.calls)(id))));
        let until_ns = now_ns();
        let is_one = until_ns.saturating_sub(time_ns) < INTERRUPTED_NS;
        is_one.then_some(Counted { time_ns, until_ns, own, beside })
    }

    /// Forgets the last burst of links that this class leads; not what a governor that was held up still writes.
    pub(super) fn forget(&self, class: u32) {
        if let Some(slot) = self.slots.get(class as usize) {
            let is_whole = |state| (state != WRITING).then_some(EMPTY);
            let _ = slot.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_whole);
        }
    }

    /// See [`LinkTable::begin_beside`].
    fn begin(&self, class: u32, traced: &[u32]) -> Option<Counted> {
        const TRIES: u32 = 3;
        let slot = self.slots.get(class as usize).filter(|_| !traced.is_empty())?;
        // The end of an earlier burst: what is written now would be half that one's.
        if slot.state.load(Ordering::Acquire) == WRITING {
            return None;
        }
        let ids = std::array::from_fn(|i| traced.get(i).copied());
        for (of, id) in slot.beside.iter().zip(ids) {
            of.0.store(id.unwrap_or(NONE), Ordering::Relaxed);
        }
        let counted = (0..TRIES).find_map(|_| self.now(class, ids))?;
        // From here on the governor may write it.
        slot.state.store(BEGUN, Ordering::Release);
        Some(counted)
    }

    /// A burst that has begun ends at this moment, unless it ended before.
    fn end(&self, class: u32) {
        let Some(slot) = self.slots.get(class as usize) else { return };
        if slot.state.compare_exchange(BEGUN, WRITING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return;
        }
        let ids =
            std::array::from_fn(|i| Some(slot.beside[i].0.load(Ordering::Relaxed)).filter(|id| *id != NONE));
        let Some(counted) = self.now(class, ids) else { return slot.state.store(EMPTY, Ordering::Release) };
        slot.time_ns.store(counted.time_ns, Ordering::Relaxed);
        slot.until_ns.store(counted.until_ns, Ordering::Relaxed);
        slot.own.store(counted.own, Ordering::Relaxed);
        for (of, counted) in slot.beside.iter().zip(counted.beside) {
            of.1.store(counted.map_or(0, |(_, calls)| calls), Ordering::Relaxed);
        }
        slot.state.store(WRITTEN, Ordering::Release);
    }

    /// What was counted when it ended, if that was.
    fn at_end(&self, class: u32) -> Option<Counted> {
        let slot = self.slots.get(class as usize)?;
        if slot.state.load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        let of = |(id, calls): &(AtomicU32, AtomicU64)| {
            let id = id.load(Ordering::Relaxed);
            (id != NONE).then(|| (id, calls.load(Ordering::Relaxed)))
        };
        Some(Counted {
            time_ns: slot.time_ns.load(Ordering::Relaxed),
            until_ns: slot.until_ns.load(Ordering::Relaxed),
            own: slot.own.load(Ordering::Relaxed),
            beside: std::array::from_fn(|i| of(&slot.beside[i])),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::governor::Registered;
    use std::sync::Arc;

    /// Eight classes whose calls are set by hand.
    fn counts() -> (Arc<[AtomicU64; 8]>, LinkTable) {
        let calls: Arc<[AtomicU64; 8]> = Arc::new([(); 8].map(|()| AtomicU64::new(0)));
        let read = Arc::clone(&calls);
        let table = LinkTable::new(8).unwrap();
        (calls, table.counting(move |class| read[class as usize].load(Ordering::Relaxed)))
    }

    fn set(calls: &[AtomicU64; 8], of: &[(usize, u64)]) {
        of.iter().for_each(|(class, n)| calls[*class].store(*n, Ordering::Relaxed));
    }

    #[test]
    fn the_first_end_counts_until_the_next_begin() {
        let (calls, table) = counts();
        table.begin(1);
        assert_eq!(table.counted_at_end(1), None);
        // Nothing has begun.
        table.note_end(1);
        assert_eq!(table.counted_at_end(1), None);
        set(&calls, &[(1, 1_000), (5, 7)]);
        let begin = table.begin_beside(1, &[5, 6]).unwrap();
        assert_eq!((begin.own, begin.beside), (1_000, [Some((5, 7)), Some((6, 0)), None, None]));
        set(&calls, &[(1, 2_000), (5, 9)]);
        table.note_end(1);
        set(&calls, &[(1, 3_000), (5, 11)]);
        table.note_end(1);
        let end = table.counted_at_end(1).unwrap();
        assert_eq!((end.own, end.beside), (2_000, [Some((5, 9)), Some((6, 0)), None, None]));
        assert!(begin.time_ns <= begin.until_ns && begin.until_ns <= end.time_ns, "{begin:?} {end:?}");
        table.begin(1);
        assert_eq!(table.counted_at_end(1), None);
        assert_eq!(table.counted_at_end(2), None, "another class");
    }

    /// A used-up quota of any class on the links ends the burst of the one that leads them.
    #[test]
    fn a_trip_ends_it() {
        let (calls, table) = counts();
        table.join(2, 1);
        table.begin(1);
        assert_eq!(table.register_all(1, []), Registered::Held);
        set(&calls, &[(1, 10), (2, 1), (5, 1)]);
        table.begin_beside(1, &[5]).unwrap();
        set(&calls, &[(1, 30), (2, 9), (5, 4)]);
        table.trip(2, now_ns());
        set(&calls, &[(1, 99), (5, 99)]);
        // Its time was up, too.
        table.note_end(1);
        let end = table.counted_at_end(1).map(|end| (end.own, end.beside[0]));
        assert_eq!(end, Some((30, Some((5, 4)))));
        assert_eq!(table.counted_at_end(2), None);
        // An alarm of an earlier burst.
        table.begin(1);
        table.begin_beside(1, &[5]).unwrap();
        table.trip(2, 1);
        assert_eq!(table.counted_at_end(1), None);
    }

    /// A governor that is held up while it writes the end of a burst until the next one has begun.
    #[test]
    fn an_end_that_is_still_being_written_is_no_other_bursts() {
        let has_begun = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (held, seen) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel::<()>());
        let (go, on) = (std::sync::Mutex::new(held.1), Arc::clone(&has_begun));
        let begun = seen.0;
        let table = LinkTable::new(8).unwrap().counting(move |class| {
            // The first read of the end.
            if class == 1 && on.swap(false, Ordering::Relaxed) {
                begun.send(()).unwrap();
                go.lock().unwrap().recv().unwrap();
            }
            7
        });
        table.begin(1);
        assert!(table.begin_beside(1, &[5]).is_some());
        has_begun.store(true, Ordering::Relaxed);
        let (begun, end) = std::thread::scope(|threads| {
            threads.spawn(|| table.note_end(1));
            seen.1.recv().unwrap();
            table.begin(1);
            let begun = table.begin_beside(1, &[5]);
            table.note_end(1);
            let end = table.counted_at_end(1);
            // Before anything can fail: the other one waits for it.
            held.0.send(()).unwrap();
            (begun, end)
        });
        assert_eq!((begun, end), (None, None));
        // Whatever came of it, the next one is counted.
        table.begin(1);
        assert!(table.begin_beside(1, &[5]).is_some());
        assert_eq!(table.counted_at_end(1), None);
        table.note_end(1);
        assert!(table.counted_at_end(1).is_some());
    }

    #[test]
    fn more_than_there_is_room_for_and_none_at_all() {
        let (_, table) = counts();
        assert_eq!(table.begin_beside(0, &[]), None);
        let begun = table.begin_beside(0, &[1, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(begun.beside.map(|of| of.map(|of| of.0)), [1, 2, 3, 4].map(Some));
        // Beyond the table, as the class of the self-test is.
        assert_eq!(table.begin_beside(8, &[1]), None);
        table.note_end(100);
        assert_eq!(table.counted_at_end(100), None);
        assert_eq!(LinkTable::new(8).unwrap().begin_beside(0, &[1]), None, "nobody counts");
    }
}
