//! What is done when the kernel side lost records that the agent acts upon.
//!
//! In: the counters of lost records, as often as they are read. Out: what has to be looked at again. A lost record of a
//! birth or death hides a thread or a child, a lost alarm hides a used-up quota: both are found by looking.

use crate::recording::Losses;

/// Least time between two looks at the processes, ns.
const PAUSE_NS: u64 = 1_000_000_000;
/// A look at the processes comes no sooner than so many times what the last one took: losses last where the agent is too
/// slow already.
const PAUSE_OF_COST: u64 = 20;

/// The losses as they were at the last look.
#[derive(Debug, Default)]
pub struct LossWatch {
    seen: Losses,
    /// Births or deaths were lost since the processes were looked at.
    owed: bool,
    /// When the processes were looked at, ns, and what that took, ns.
    looked: Option<(u64, u64)>,
    /// The next slow turn is a part of the last look.
    turn_is_asked: bool,
}

/// What has to be looked at again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lookup {
    /// Threads and children of the target: births or deaths were lost.
    pub processes: bool,
    /// Quotas of all classes: alarms were lost.
    pub quotas: bool,
}

impl LossWatch {
    /// Takes note of the losses since the start of the run, at `now_ns`. A look at the processes that is owed but comes
    /// too soon is asked for later.
    pub fn look(&mut self, now: &Losses, now_ns: u64) -> Lookup {
        let seen = std::mem::replace(&mut self.seen, *now);
        self.owed |= now.lifecycle_dropped != seen.lifecycle_dropped;
        let processes = self.owed
            && self.looked.is_none_or(|(at, took)| {
                now_ns.saturating_sub(at) >= PAUSE_NS.max(took.saturating_mul(PAUSE_OF_COST))
            });
        if processes {
            self.owed = false;
            self.turn_is_asked = true;
            self.looked = Some((now_ns, 0));
        }
        Lookup { processes, quotas: now.alarms_dropped != seen.alarms_dropped }
    }

    /// The next look comes at once, if one is owed: the run ends.
    pub fn end_pause(&mut self) {
        self.looked = None;
    }

    /// A slow turn took so long, ns. The first one after a look at the processes is a part of it; others come for other reasons.
    pub fn turn_took(&mut self, ns: u64) {
        if std::mem::take(&mut self.turn_is_asked) {
            self.took(ns);
        }
    }

    /// A part of the last look at the processes took so long, ns.
    pub fn took(&mut self, ns: u64) {
        if let Some((_, took)) = &mut self.looked {
            *took = took.saturating_add(ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn each_new_loss_asks_for_one_look() {
        let mut watch = LossWatch::default();
        let none = Lookup::default();
        assert_eq!(watch.look(&Losses::default(), S), none);
        let births = Losses { lifecycle_dropped: 3, ..Losses::default() };
        assert_eq!(watch.look(&births, 2 * S), Lookup { processes: true, ..none });
        assert_eq!(watch.look(&births, 3 * S), none, "nothing new");
        let alarms = Losses { alarms_dropped: 1, ..births };
        assert_eq!(watch.look(&alarms, 4 * S), Lookup { quotas: true, ..none });
        let more = Losses { lifecycle_dropped: 4, alarms_dropped: 2, ..Losses::default() };
        assert_eq!(watch.look(&more, 5 * S), Lookup { processes: true, quotas: true });
        // Lost samples are gone: nothing can be looked up.
        let samples = Losses { samples_ring_full: 9, samples_short_stack: 9, no_thread_state: 9, ..more };
        assert_eq!(watch.look(&samples, 6 * S), none);
    }

    #[test]
    fn only_the_slow_turn_that_a_look_asked_for_is_its_cost() {
        let mut watch = LossWatch::default();
        let lost = |n| Losses { lifecycle_dropped: n, ..Losses::default() };
        watch.turn_took(S);
        assert!(watch.look(&lost(1), S).processes);
        watch.turn_took(S / 10);
        // Symbols came, three times.
        for _ in 0..3 {
            watch.turn_took(S);
        }
        // 20 times 0.1 s, and not 3.1.
        assert!(!watch.look(&lost(2), 3 * S - 1).processes);
        assert!(watch.look(&lost(2), 3 * S).processes);
    }

    #[test]
    fn lasting_loss_asks_for_a_look_once_a_second_or_20_times_its_cost() {
        let lost = |n| Losses { lifecycle_dropped: n, ..Losses::default() };
        // A new loss each 0.1 s for 10 s.
        let looks = |cost_ns: u64| {
            let mut watch = LossWatch::default();
            (1..=100)
                .filter(|&turn| {
                    let looked = watch.look(&lost(turn), turn * S / 10).processes;
                    if looked {
                        watch.took(cost_ns / 2);
                        watch.took(cost_ns / 2);
                    }
                    looked
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(looks(0), [1, 11, 21, 31, 41, 51, 61, 71, 81, 91]);
        assert_eq!(looks(S / 5), [1, 41, 81]);
        // One that was too soon is owed.
        let mut watch = LossWatch::default();
        assert!(watch.look(&lost(1), S).processes);
        assert!(!watch.look(&lost(2), S + S / 2).processes);
        assert!(!watch.look(&lost(2), 2 * S - 1).processes);
        assert!(watch.look(&lost(2), 2 * S).processes);
        assert!(!watch.look(&lost(2), 9 * S).processes);
        // Unless there is no later.
        assert!(watch.look(&lost(3), 10 * S).processes);
        assert!(!watch.look(&lost(4), 10 * S).processes);
        watch.end_pause();
        assert!(watch.look(&lost(4), 10 * S).processes);
    }
}
