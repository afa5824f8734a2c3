//! What is done when the kernel side lost records that the agent acts upon.
//!
//! In: the counters of lost records, as often as they are read. Out: what has to be looked at again. A lost record of a
//! birth or death hides a thread or a child, a lost alarm hides a used-up quota: both are found by looking.

use crate::recording::Losses;

/// The losses as they were at the last look.
#[derive(Debug, Default)]
pub struct LossWatch {
    seen: Losses,
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
    /// Takes note of the losses since the start of the run.
    pub fn look(&mut self, now: &Losses) -> Lookup {
        let seen = std::mem::replace(&mut self.seen, *now);
        Lookup {
            processes: now.lifecycle_dropped != seen.lifecycle_dropped,
            quotas: now.alarms_dropped != seen.alarms_dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_new_loss_asks_for_one_look() {
        let mut watch = LossWatch::default();
        let none = Lookup::default();
        assert_eq!(watch.look(&Losses::default()), none);
        let births = Losses { lifecycle_dropped: 3, ..Losses::default() };
        assert_eq!(watch.look(&births), Lookup { processes: true, ..none });
        assert_eq!(watch.look(&births), none, "nothing new");
        let alarms = Losses { alarms_dropped: 1, ..births };
        assert_eq!(watch.look(&alarms), Lookup { quotas: true, ..none });
        let more = Losses { lifecycle_dropped: 4, alarms_dropped: 2, ..Losses::default() };
        assert_eq!(watch.look(&more), Lookup { processes: true, quotas: true });
        // Lost samples are gone: nothing can be looked up.
        let samples = Losses { samples_ring_full: 9, samples_short_stack: 9, no_thread_state: 9, ..more };
        assert_eq!(watch.look(&samples), none);
    }
}
