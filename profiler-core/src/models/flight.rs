//! Calls in flight, which are held against their models before they end.
//!
//! ```text
//! G(t) = b(p(t)),   p(t) = bound of P(D >= t),   t: the time so far,   D: the time that the call will have taken
//! ```
//! *Betting before the end.* b falls with p, and p(t) falls with t <= D: whatever the moment, a call in flight wins at most what it would win at its end,
//! G(t) <= G(D). A call that has lasted for t and is not yet bet on counts 1, which is at most what it wins on average from there on over what it wins on average
//! from its begin: `E[G(D) | D >= t] / E[G(D)] >= 1`, because G grows with D. So the detectors of [`super::bets`] stay below processes that do not win on average, whoever
//! looks when; each call is bet on once, and counts for what was born before it began alone. The moment is the first look at which the call has taken longer than any call behind the model, after what is granted
//! ([`super::Calibration`]): then p can fall no further, and nothing is given away by not waiting. A call in flight that is not that long is bet on at its end; so is each of a function in
//! bursts. A call that was there when others ended that are not known ([`super::Watch::missed`]), and that goes on behind that step, counts 1 for good: long calls would be bet on
//! more often than the others, and not to bet on a call that is still open needs no reason.
//!
//! *The call alone* ([`super::alone`]): it is told when its time passes a limit that is fixed at the first look at which it is that long. A call that has passed it in flight has passed it at its
//! end, too: looking earlier tells the same calls, and no more.
//!
//! Calls that were judged in flight are known by function, thread and begin until they end; of ends that never come (the thread is gone) those that were not seen for
//! longest are forgotten.

use super::watch::Call;
use std::collections::BTreeMap;

/// Calls in flight that are known: a call that is forgotten before it ends would be bet on a second time. 56 bytes each.
const MOST: usize = 4_096;

/// Function, thread, begin.
type Id = (u32, u32, u64);

/// What became of a call in flight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Flight {
    /// What it may spend of the alarms of single calls, hours ([`super::alone`]).
    pub spent_h: f64,
    /// Change of the machine that was known then: ln.
    pub drift: f64,
    /// It was bet on, and is not again when it ends.
    pub is_bet: bool,
    /// It was told alone.
    pub is_told: bool,
    /// Steps in which it was not, because others of its function were told together.
    pub held_back: u32,
    /// Step in which it was seen last.
    seen: u64,
}

/// See the [module](self).
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Flights {
    of: BTreeMap<Id, Flight>,
    step: u64,
}

fn id(call: &Call) -> Id {
    (call.seen.kernel, call.tid, call.seen.time_ns)
}

impl Flights {
    /// The next step begins.
    pub fn next_step(&mut self) {
        self.step += 1;
    }

    /// It was judged in flight.
    pub fn has(&self, call: &Call) -> bool {
        self.of.contains_key(&id(call))
    }

    /// A call that was judged is seen again; `None`: it was not.
    pub fn again(&mut self, call: &Call) -> Option<&mut Flight> {
        let step = self.step;
        let flight = self.of.get_mut(&id(call))?;
        flight.seen = step;
        Some(flight)
    }

    /// There is room for one more, or for one that was not seen for long.
    pub fn make_room(&mut self) -> bool {
        if self.of.len() >= MOST {
            let gone = self.of.iter().filter(|(_, flight)| flight.seen < self.step);
            let oldest = gone.min_by_key(|(_, flight)| flight.seen).map(|(id, _)| *id);
            oldest.map(|id| self.of.remove(&id));
        }
        self.of.len() < MOST
    }

    /// It is judged for the first time: what it spends, the change of the machine, and whether it is bet on.
    pub fn begin(&mut self, call: &Call, (spent_h, drift, is_bet): (f64, f64, bool)) {
        let flight = Flight { spent_h, drift, is_bet, is_told: false, held_back: 0, seen: self.step };
        self.of.entry(id(call)).or_insert(flight);
    }

    /// It has ended; `None`: it was not judged in flight.
    pub fn end(&mut self, call: &Call) -> Option<Flight> {
        if self.of.is_empty() { None } else { self.of.remove(&id(call)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::Seen;

    fn call(tid: u32, time_ns: u64) -> Call {
        Call {
            seen: Seen { kernel: 1, time_ns, predicted_ns: 1e6, own_ns: 1e9 },
            tid,
            waits: false,
            missed_ns: 0,
        }
    }

    #[test]
    fn what_is_known_is_bounded_and_calls_that_are_still_there_stay() {
        let mut flights = Flights::default();
        for i in 0..MOST as u64 {
            flights.next_step();
            assert!(flights.make_room());
            flights.begin(&call(7, i), (0.0, 0.0, true));
        }
        flights.next_step();
        assert!(flights.again(&call(7, 0)).is_some() && flights.make_room());
        flights.begin(&call(8, 0), (0.0, 0.0, true));
        // The first is still there, the second was not seen for longest.
        assert!(flights.has(&call(7, 0)) && !flights.has(&call(7, 1)) && flights.has(&call(7, 2)));
        assert_eq!(flights.of.len(), MOST);
        assert!(flights.end(&call(8, 0)).is_some() && flights.end(&call(8, 0)).is_none());
        // Where all are there, a further one waits for its end.
        flights.next_step();
        (0..MOST as u64).for_each(|i| {
            flights.again(&call(7, i));
        });
        flights.begin(&call(8, 1), (0.0, 0.0, true));
        assert!(!flights.make_room());
    }
}
