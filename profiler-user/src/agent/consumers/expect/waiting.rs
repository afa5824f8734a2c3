//! Calls whose inputs are words, until these are there. Pure: it reads no clock.
//!
//! Words at the begin of a call come before its row or with it, those at its end with it or a turn later. A call waits for them at most two turns: what has not
//! come by then was lost. A call may take minutes, and of some no row comes at all: words that no call has used are kept up to a number, and then those of
//! the calls that began first are forgotten.

use profiler_core::recording::{EventRow, WordRow};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Calls that wait.
const MOST_CALLS: usize = 8_192;
/// Calls that are looked at in a turn, some 0.5 ms: windows have to end on time.
const PER_TURN: usize = 512;
/// Words that are kept, of all calls together: some 8 MiB where each call has one.
const MOST_WORDS: usize = 65_536;
/// Turns that a call waits.
const TURNS: u32 = 2;

/// A call: begin, thread, class. So the first of all is the oldest.
type Key = (u64, u32, u32);

/// The values of the words of a call, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Words(Vec<(Arc<str>, Option<u64>)>);

impl Words {
    /// The value of a word; `None`: it was not read.
    pub fn value(&self, name: &str) -> Option<u64> {
        self.0.iter().filter(|(its, _)| **its == *name).find_map(|(_, value)| *value)
    }

    /// It was taken, whether it could be read or not.
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(its, _)| **its == *name)
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Names of the words that functions of this run have, by number.
    names: HashMap<u32, Arc<str>>,
    taken: BTreeMap<Key, Words>,
    /// Words in `taken`.
    pub kept: usize,
    /// With the turns that each has waited.
    calls: VecDeque<(EventRow, u32)>,
}

fn key(row: &EventRow) -> Key {
    (row.time_ns, row.tid, row.class_id)
}

impl Waiting {
    /// For words of these numbers and names, as functions of this run have them.
    pub fn new(words: impl IntoIterator<Item = (u32, String)>) -> Self {
        let names = words.into_iter().map(|(word, name)| (word, Arc::from(name))).collect();
        Self { names, ..Self::default() }
    }

    /// A word has come. `is_input`: calls of its class are held against a model of which a word of that name is an input, or may be.
    pub fn word(&mut self, row: &WordRow, is_input: impl Fn(&str) -> bool) {
        let (None, Some(name)) = (row.operation, self.names.get(&row.word)) else { return };
        if !is_input(name) {
            return;
        }
        let words = self.taken.entry((row.begin_ns, row.tid, row.class_id));
        // Most calls have one.
        words.or_insert_with(|| Words(Vec::with_capacity(1))).0.push((Arc::clone(name), row.value));
        self.kept += 1;
        while self.kept > MOST_WORDS
            && let Some((_, oldest)) = self.taken.pop_first()
        {
            self.kept -= oldest.0.len();
        }
    }

    /// Forgets the words that are inputs of no model, by class and name.
    pub fn keep(&mut self, is_input: impl Fn(u32, &str) -> bool) {
        self.taken.retain(|(_, _, class_id), words| {
            words.0.retain(|(name, _)| is_input(*class_id, name));
            !words.0.is_empty()
        });
        self.kept = self.taken.values().map(|words| words.0.len()).sum();
    }

    /// The words of a call are used, or come too late.
    fn remove(&mut self, key: &Key) -> Words {
        let words = self.taken.remove(key).unwrap_or_default();
        self.kept -= words.0.len();
        words
    }

    /// The words of a call in flight; `None`: they have not all come.
    pub fn so_far(&self, row: &EventRow, wanted: &[&str]) -> Option<Words> {
        self.taken.get(&key(row)).filter(|words| wanted.iter().all(|name| words.has(name))).cloned()
    }

    /// A call has come whose inputs are words. False: too many wait.
    pub fn call(&mut self, row: &EventRow) -> bool {
        let has_room = self.calls.len() < MOST_CALLS;
        if has_room {
            self.calls.push_back((row.clone(), 0));
        }
        has_room
    }

    /// A turn is over: the calls whose words are there, and those that have waited in vain. `wanted`: the names of a call's words; `is_last`: nothing more
    /// comes.
    pub fn turn<'w>(
        &mut self,
        is_last: bool,
        wanted: impl Fn(&EventRow) -> Vec<&'w str>,
    ) -> (Vec<(EventRow, Words)>, Vec<EventRow>) {
        let (mut ready, mut in_vain) = (Vec::new(), Vec::new());
        let at_most = if is_last { self.calls.len() } else { PER_TURN.min(self.calls.len()) };
        for (row, turns) in self.calls.drain(..at_most).collect::<Vec<_>>() {
            let key = key(&row);
            let is_here = |words: &Words| wanted(&row).iter().all(|name| words.has(name));
            if self.taken.get(&key).is_some_and(is_here) {
                ready.push((row, self.remove(&key)));
            } else if is_last || turns >= TURNS {
                self.remove(&key);
                in_vain.push(row);
            } else {
                self.calls.push_back((row, turns + 1));
            }
        }
        (ready, in_vain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_core::recording::{CallContext, CallPlace, WordStatus};

    fn word(word: u32, begin_ns: u64, value: Option<u64>) -> WordRow {
        WordRow {
            begin_ns,
            class_id: 3,
            operation: None,
            pid: 1,
            tid: 7,
            at_end: false,
            word,
            from_ns: begin_ns,
            until_ns: begin_ns,
            value,
            status: if value.is_some() { WordStatus::Read } else { WordStatus::Null },
            depth: 0,
        }
    }

    fn call(time_ns: u64) -> EventRow {
        EventRow {
            time_ns,
            class_id: 3,
            pid: 1,
            tid: 7,
            duration_ns: Some(10),
            args: [None; 6],
            nested_cost_ns: Some(0),
            place: CallPlace::default(),
            context: CallContext::default(),
        }
    }

    /// What a turn gives: begin of each call, with the values of `n` and `m`, and how many waited in vain.
    /// When a call began, and its words.
    type Judged = (u64, Option<u64>, Option<u64>);

    fn turn(waiting: &mut Waiting, is_last: bool) -> (Vec<Judged>, u64) {
        let (ready, in_vain) = waiting.turn(is_last, |_| vec!["n", "m"]);
        let seen = |(row, words): (EventRow, Words)| (row.time_ns, words.value("n"), words.value("m"));
        (ready.into_iter().map(seen).collect(), in_vain.len() as u64)
    }

    #[test]
    fn a_call_is_judged_as_soon_as_its_words_are_there() {
        // Two places have a word 'n'; word 9 belongs to nobody.
        let names = [(0, "n"), (1, "m"), (2, "n")].map(|(word, name)| (word, name.to_owned()));
        let mut waiting = Waiting::new(names);
        waiting.word(&word(0, 100, Some(5)), |_| true);
        waiting.word(&word(9, 100, Some(6)), |_| true);
        waiting.word(&WordRow { operation: Some(0), ..word(1, 100, Some(8)) }, |_| true);
        assert_eq!(turn(&mut waiting, false), (vec![], 0));
        assert!(waiting.call(&call(100)) && waiting.call(&call(200)));
        // What could not be read is there as well.
        waiting.word(&word(2, 200, None), |_| true);
        assert!(waiting.so_far(&call(200), &["n", "m"]).is_none());
        waiting.word(&word(1, 200, Some(4)), |_| true);
        assert_eq!(waiting.so_far(&call(200), &["n", "m"]).and_then(|words| words.value("m")), Some(4));
        assert_eq!(turn(&mut waiting, false), (vec![(200, None, Some(4))], 0));
        waiting.word(&word(1, 100, Some(3)), |_| true);
        assert_eq!(turn(&mut waiting, false), (vec![(100, Some(5), Some(3))], 0));
        assert!(waiting.calls.is_empty() && waiting.taken.is_empty() && waiting.kept == 0);
    }

    #[test]
    fn what_has_not_come_in_two_turns_was_lost() {
        let mut waiting = Waiting::new([(0, "n".to_owned()), (1, "m".to_owned())]);
        waiting.word(&word(0, 100, Some(5)), |_| true);
        assert!(waiting.call(&call(100)));
        assert_eq!(turn(&mut waiting, false), (vec![], 0));
        assert_eq!(turn(&mut waiting, false), (vec![], 0));
        assert_eq!(turn(&mut waiting, false), (vec![], 1));
        assert!(waiting.call(&call(300)));
        assert_eq!(turn(&mut waiting, true), (vec![], 1));
        assert!(waiting.calls.is_empty() && waiting.taken.is_empty() && waiting.kept == 0);
    }

    #[test]
    fn what_is_kept_is_bounded_by_words() {
        let mut waiting = Waiting::new([(0, "n".to_owned()), (1, "m".to_owned())]);
        let calls = MOST_WORDS as u64 / 2;
        for i in 0..calls + 10 {
            waiting.word(&word(0, i, Some(i)), |_| true);
            waiting.word(&word(1, i, Some(i)), |_| true);
        }
        assert_eq!((waiting.kept, waiting.taken.len() as u64), (MOST_WORDS, calls));
        let calls = (0..MOST_CALLS as u64 + 10).filter(|i| waiting.call(&call(*i))).count();
        assert_eq!(calls, MOST_CALLS);
        // The ten oldest are forgotten.
        let (seen, _) = turn(&mut waiting, true);
        assert_eq!((seen.len(), seen[0].0), (MOST_CALLS - 10, 10));
        assert_eq!(waiting.kept, MOST_WORDS - 2 * (MOST_CALLS - 10));
    }

    #[test]
    fn calls_that_are_judged_meanwhile_take_no_room_from_one_that_goes_on() {
        let mut waiting = Waiting::new([(0, "n".to_owned()), (1, "m".to_owned())]);
        // It lasts 20 s, at 10,000 calls a second.
        waiting.word(&word(0, 0, Some(5)), |_| true);
        for i in 1..200_000 {
            waiting.word(&word(0, i, Some(i)), |_| true);
            waiting.word(&word(1, i, Some(i)), |_| true);
            assert!(waiting.call(&call(i)));
            if i % 100 == 0 {
                assert_eq!(turn(&mut waiting, false).0.len(), 100);
            }
        }
        assert!(
            waiting.taken.len() <= 100 && waiting.kept <= 201,
            "{} of {}",
            waiting.kept,
            waiting.taken.len()
        );
        waiting.word(&word(1, 0, Some(3)), |_| true);
        assert!(waiting.call(&call(0)));
        assert!(turn(&mut waiting, true).0.contains(&(0, Some(5), Some(3))));
    }

    #[test]
    fn words_that_are_no_inputs_are_not_kept() {
        let mut waiting = Waiting::new([(0, "n".to_owned()), (1, "m".to_owned())]);
        for i in 0..10 {
            waiting.word(&word(0, i, Some(i)), |name| name == "n");
            waiting.word(&word(1, i, Some(i)), |name| name == "n");
        }
        assert_eq!((waiting.kept, waiting.taken.len()), (10, 10));
        // Before there are models any may be.
        waiting.word(&word(1, 3, None), |_| true);
        waiting.word(&WordRow { class_id: 4, ..word(0, 3, None) }, |_| true);
        waiting.keep(|class_id, name| (class_id, name) == (3, "n"));
        assert_eq!((waiting.kept, waiting.taken.len()), (10, 10));
        waiting.keep(|_, _| false);
        assert_eq!((waiting.kept, waiting.taken.len()), (0, 0));
    }
}
