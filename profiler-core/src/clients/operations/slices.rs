//! When functions inside operations are attached, where that is for a part of the time only ([`crate::adapt::attach`]): one slice
//! a period, at a random place in it. The clock stands still while no operation is watched: nothing could be recorded.
//!
//! ```text
//! Off --begin--> Opening --all attached--> Recording --end: recording off--> Off, and after `linger` they are detached
//!                 Opening --one cannot be attached--> Off, until the next period
//! ```

use crate::adapt::attach::{InnerCost, Slices};
use crate::adapt::spending::{SPAN_S, slice_plan};
use crate::run::arbiter::SLICE_SHARE;
use crate::stats::moments::Moments;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Weight of a new window in what is known of costs.
const NEW: f64 = 0.5;
/// Standard deviations above the mean that nearly no operation exceeds; of a window's longest that much is kept in the next.
const DEVIATIONS: f64 = 3.0;
const KEPT: f64 = 0.8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Inner functions are detached, or about to be.
    Off,
    /// They are being attached.
    Opening,
    /// They are attached, and operations are recorded.
    Recording,
}

/// The clock of slices.
#[derive(Debug)]
pub struct SliceClock {
    plan: Slices,
    state: State,
    /// Time in which operations were watched, and until when it was looked at (ktime), ns.
    clock_ns: u64,
    turned_ns: u64,
    /// Begin of the present period, and of its slice, by that clock, ns; false: that one has begun already.
    period_ns: u64,
    begin_ns: u64,
    is_due: bool,
    /// End of the present slice while it records, by that clock, ns.
    end_ns: u64,
    random: StdRng,
    seen: Seen,
    counts: Counts,
    /// A slice was given up since the last revision: what was attached for it was paid for in vain.
    gave_up: bool,
    /// A function of the present slice waits until forks of others may be held up again.
    is_held_back: bool,
}

/// What windows showed of functions inside operations.
#[derive(Debug, Default)]
struct Seen {
    /// For how long they were attached since the last revision, ns, when that was looked at, and whether they were then.
    attached_ns: u64,
    looked_ns: u64,
    are_attached: bool,
    /// CPU s/s that they cost while attached, and about the longest response time, s; 0: unknown.
    attached: f64,
    longest_s: f64,
}

/// Slices so far.
#[derive(Debug, Default)]
struct Counts {
    /// Whose time had come, and those of them that recorded.
    due: u64,
    begun: u64,
    /// That were given up because forks of others may not be held up for longer.
    held_back: u64,
}

/// What may be spent on functions inside operations.
#[derive(Debug, Clone, Copy)]
pub struct InnerAllowed {
    /// On average, CPU s/s.
    pub inner: f64,
    /// By operations in all, CPU s/s.
    pub all: f64,
    /// On one slice, so that bounds ever leave it, CPU s.
    pub slice_s: f64,
}

/// About the longest of these response times, in their unit.
pub fn longest_ns(times: &Moments) -> f64 {
    times.mean() + DEVIATIONS * times.variance().unwrap_or(0.0).sqrt()
}

/// Nanoseconds; the cast saturates.
#[must_use]
pub fn ns(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

impl SliceClock {
    /// One that attaches them always, from `now` on, ktime ns.
    #[must_use]
    pub fn new(now: u64) -> Self {
        Self {
            plan: Slices::ALWAYS,
            state: State::Recording,
            clock_ns: 0,
            turned_ns: now,
            period_ns: 0,
            begin_ns: 0,
            is_due: false,
            end_ns: u64::MAX,
            random: StdRng::seed_from_u64(now),
            seen: Seen { looked_ns: now, ..Seen::default() },
            counts: Counts::default(),
            gave_up: false,
            is_held_back: false,
        }
    }

    /// Slices whose time had come so far, and those of them that recorded.
    pub fn due_and_begun(&self) -> (u64, u64) {
        (self.counts.due, self.counts.begun)
    }

    /// What it follows.
    #[must_use]
    pub fn plan(&self) -> Slices {
        self.plan
    }

    /// Inner functions should be attached now.
    pub fn are_wanted(&self) -> bool {
        self.state != State::Off
    }

    /// They are being attached for a slice.
    #[must_use]
    pub fn is_opening(&self) -> bool {
        self.state == State::Opening
    }

    /// Operations may be recorded now.
    pub fn may_record(&self) -> bool {
        self.state == State::Recording
    }

    /// From now on slices are these.
    pub fn follow(&mut self, plan: Slices) {
        let begins = self.plan.are_always() && !plan.are_always();
        self.plan = plan;
        let now = self.clock_ns;
        if begins {
            // What records now is the first slice.
            (self.period_ns, self.is_due, self.end_ns) = (now, false, now + ns(plan.length_s()));
        } else if self.state == State::Recording && !plan.are_always() {
            self.end_ns = self.end_ns.min(now + ns(plan.length_s()));
        }
    }

    /// A turn: true if a slice ends now, so that nothing is recorded from now on. `watched`: operations are.
    pub fn turn(&mut self, now: u64, watched: bool) -> bool {
        let elapsed_ns = now.saturating_sub(std::mem::replace(&mut self.turned_ns, now));
        self.clock_ns += if watched { elapsed_ns } else { 0 };
        let now = self.clock_ns;
        if self.plan.are_always() {
            if self.state == State::Off {
                self.state = State::Opening;
            }
            return false;
        }
        let ends = self.state == State::Recording && (now >= self.end_ns || !watched);
        if ends {
            self.state = State::Off;
        }
        if self.state == State::Off && now >= self.period_ns + ns(self.plan.period_s) {
            self.period_ns = now;
            let free = (self.plan.period_s - self.plan.length_s()).max(0.0);
            self.begin_ns = now + ns(free * self.random.random::<f64>());
            self.is_due = true;
        }
        if self.state == State::Off && !ends && self.is_due && now >= self.begin_ns {
            self.is_due = false;
            self.counts.due += 1;
            self.state = State::Opening;
        }
        ends
    }

    /// They are all attached. Length and rate count from here.
    pub fn opened(&mut self) {
        self.state = State::Recording;
        self.is_held_back = false;
        self.counts.begun += u64::from(!self.plan.are_always());
        self.end_ns =
            if self.plan.are_always() { u64::MAX } else { self.clock_ns + ns(self.plan.length_s()) };
    }

    /// Nothing has been attached for this slice, and will not be.
    pub fn put_off(&mut self) {
        self.state = State::Off;
    }

    /// They cannot all be attached: not in this period.
    pub fn give_up(&mut self) {
        (self.state, self.gave_up) = (State::Off, true);
        self.counts.held_back += u64::from(std::mem::take(&mut self.is_held_back));
    }

    /// One of them waits until forks of others may be held up again.
    pub fn hold_back(&mut self) {
        self.is_held_back = true;
    }

    /// Slices that were given up for that.
    pub fn held_back(&self) -> u64 {
        self.counts.held_back
    }

    /// That happened since this was asked last.
    pub fn take_gave_up(&mut self) -> bool {
        std::mem::take(&mut self.gave_up)
    }

    /// Adds up for how long inner functions are attached.
    pub fn look(&mut self, now: u64, attached: bool) {
        if self.seen.are_attached {
            self.seen.attached_ns += now.saturating_sub(self.seen.looked_ns);
        }
        (self.seen.looked_ns, self.seen.are_attached) = (now, attached);
    }

    /// What a window showed: the cost of inner hits in it, CPU s, and the operations' response times by class, ns. One without operations
    /// shows neither how long they are nor that they are cheap.
    pub fn learn<'a>(&mut self, cost_s: f64, times: impl Iterator<Item = &'a Moments>) {
        let attached_s = std::mem::take(&mut self.seen.attached_ns) as f64 * 1e-9;
        let seen_s = times.map(longest_ns).fold(0.0, f64::max) * 1e-9;
        let seen = if attached_s > 0.005 { cost_s / attached_s } else { 0.0 };
        if attached_s > 0.005 && (seen_s > 0.0 || seen > self.seen.attached) {
            self.seen.attached = if self.seen.attached == 0.0 {
                seen
            } else {
                self.seen.attached + NEW * (seen - self.seen.attached)
            };
        }
        if seen_s > 0.0 {
            self.seen.longest_s = seen_s.max(KEPT * self.seen.longest_s);
        }
    }

    /// For how long they were attached since the last revision, by the last look, s.
    pub fn attached_s(&self) -> f64 {
        self.seen.attached_ns as f64 * 1e-9
    }

    /// CPU s/s that inner functions cost while they are attached, at calibrated prices.
    pub fn attached(&self) -> f64 {
        self.seen.attached
    }

    /// What a slice should cost, ns; `None` where they are attached all the time.
    pub fn worth_ns(&self, factor: f64) -> Option<f64> {
        let length_s = self.plan.length_s() + self.plan.linger_s;
        (!self.plan.are_always()).then_some(length_s * self.seen.attached * factor * 1e9)
    }

    /// What is known; `None` before a window showed it. `factor`: the measured on the calibrated price.
    /// `watched`: operations are for that part of the time.
    pub fn cost(&self, factor: f64, churn_s: f64, allowed: InnerAllowed, watched: f64) -> Option<InnerCost> {
        let known = self.seen.attached > 0.0 && self.seen.longest_s > 0.0;
        known.then_some(InnerCost {
            attached: self.seen.attached * factor,
            churn_s,
            longest_s: self.seen.longest_s,
            allowed: allowed.inner,
            most_s: allowed.inner.min(slice_plan(SLICE_SHARE * SPAN_S * allowed.all)).min(allowed.slice_s),
            watched,
            sliced: !self.plan.are_always(),
        })
    }

    /// Times what may be spent in `span_s` on average that may be spent in one such span: slices lie anywhere in their periods, so that two of
    /// them may fall into one, each worth what a period may cost.
    pub fn crowding(&self, span_s: f64) -> f64 {
        if self.plan.are_always() { 1.0 } else { 2.0 * (self.plan.period_s / span_s).max(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const ALLOWED: InnerAllowed = InnerAllowed { inner: 1.0, all: 9.0, slice_s: f64::INFINITY };

    /// Turns of 10 ms; attaching takes 20. Returns the part of the time that records, and where slices began in their periods.
    fn run(plan: Slices, seconds: u64) -> (f64, Vec<u64>) {
        let mut clock = SliceClock::new(0);
        clock.follow(plan);
        let (mut recording, mut opening, mut begins) = (0, 0, Vec::new());
        let turns = seconds * 100;
        for i in 0..turns {
            let now = i * 10 * MS;
            let before = clock.state;
            assert!(!clock.turn(now, true) || (before == State::Recording && clock.state == State::Off));
            if clock.is_opening() {
                opening += 1;
                if opening == 3 {
                    begins.push(now - clock.period_ns);
                    clock.opened();
                    opening = 0;
                }
            }
            recording += u64::from(clock.may_record());
        }
        (recording as f64 / turns as f64, begins)
    }

    #[test]
    fn slices_take_their_share_at_random_places() {
        for share in [0.05, 0.3, 0.5] {
            let (part, begins) = run(Slices { share, period_s: 1.0, linger_s: 0.01 }, 400);
            assert!((part / share - 1.0).abs() < 0.1, "{part} of {share}");
            let places: std::collections::BTreeSet<u64> = begins.iter().map(|ns| ns / (100 * MS)).collect();
            assert!(places.len() >= ((1.0 - share) * 9.0) as usize, "{places:?}");
        }
    }

    #[test]
    fn nothing_is_attached_while_nothing_is_watched() {
        // Bounds are attached for a quarter of each second.
        let plan = Slices { share: 0.1, period_s: 1.0, linger_s: 0.01 };
        let mut clock = SliceClock::new(0);
        clock.follow(plan);
        let (mut recorded, mut slices) = (0, 0);
        for i in 0..40_000_u64 {
            let watched = i % 100 < 25;
            clock.turn(i * 10 * MS, watched);
            if clock.is_opening() {
                clock.opened();
                slices += 1;
            }
            assert!(watched || !clock.may_record(), "{i}");
            recorded += u64::from(clock.may_record());
        }
        // A tenth of the 100 s that were watched, and what the ends of the watched quarters cut off.
        assert!((60..=101).contains(&slices) && (500..=1_050).contains(&recorded), "{slices}, {recorded}");
    }

    #[test]
    fn what_a_slice_should_cost_is_known() {
        let mut clock = SliceClock::new(0);
        assert_eq!(clock.worth_ns(1.0), None);
        clock.seen.attached = 0.5;
        clock.follow(Slices { share: 0.03, period_s: 1.0, linger_s: 0.01 });
        assert!(clock.worth_ns(2.0).is_some_and(|ns| (ns - 40e6).abs() < 1.0));
    }

    #[test]
    fn what_cannot_be_attached_waits_for_the_next_period() {
        let mut clock = SliceClock::new(0);
        clock.follow(Slices { share: 0.2, period_s: 1.0, linger_s: 0.01 });
        assert!(clock.turn(200 * MS, true) && !clock.take_gave_up());
        let mut tries = Vec::new();
        for i in 21..500 {
            clock.turn(i * 10 * MS, true);
            if clock.is_opening() {
                tries.push(i);
                // The second one waits for forks.
                if tries.len() == 2 {
                    clock.hold_back();
                }
                clock.give_up();
                assert!(!clock.are_wanted() && !clock.may_record());
            }
        }
        // One in each of the four periods, whose slices begin in the first 0.8 s.
        assert!((3..=4).contains(&tries.len()), "{tries:?}");
        assert!(clock.take_gave_up() && !clock.take_gave_up());
        assert_eq!(clock.held_back(), 1);
        // Always attached: again at once.
        clock.follow(Slices::ALWAYS);
        clock.turn(5_010 * MS, true);
        clock.give_up();
        assert!(!clock.turn(5_020 * MS, true) && clock.is_opening());
    }

    #[test]
    fn always_is_always_also_after_slices() {
        assert_eq!(run(Slices::ALWAYS, 10).0, 1.0);
        let mut clock = SliceClock::new(0);
        clock.follow(Slices { share: 0.2, period_s: 1.0, linger_s: 0.01 });
        assert!(
            clock.may_record()
                && !clock.turn(100 * MS, true)
                && clock.turn(200 * MS, true)
                && !clock.are_wanted()
        );
        clock.follow(Slices::ALWAYS);
        assert!(!clock.turn(310 * MS, true) && clock.is_opening());
        clock.opened();
        assert!(clock.may_record() && !clock.turn(10_000 * MS, true) && clock.may_record());
    }

    #[test]
    fn costs_are_those_of_the_attached_time() {
        let mut clock = SliceClock::new(0);
        assert_eq!(clock.cost(1.0, 0.0, ALLOWED, 1.0), None);
        // Attaching took from 0 to 250 ms.
        clock.look(0, false);
        clock.look(250 * MS, true);
        clock.look(750 * MS, false);
        clock.look(1_000 * MS, false);
        let times: Moments = [1e6, 1e6, 1e6].into_iter().collect();
        clock.learn(0.1, [times].iter());
        let cost = clock.cost(2.0, 1e-4, ALLOWED, 1.0).unwrap();
        assert!((cost.attached - 0.4).abs() < 1e-12 && (cost.longest_s - 1e-3).abs() < 1e-12, "{cost:?}");
        // A window without an attached moment tells nothing of the cost.
        clock.learn(0.0, [].iter());
        assert!((clock.cost(2.0, 1e-4, ALLOWED, 1.0).unwrap().attached - 0.4).abs() < 1e-12);
        // Nor do ten without an operation, of the cost or of how long operations take.
        for i in 1..=10 {
            clock.look(i * 1_000 * MS, true);
            clock.look((i * 1_000 + 200) * MS, false);
            clock.learn(0.0, [].iter());
        }
        let cost = clock.cost(2.0, 1e-4, ALLOWED, 1.0).unwrap();
        assert!((cost.attached - 0.4).abs() < 1e-12 && (cost.longest_s - 1e-3).abs() < 1e-12, "{cost:?}");
        // Unless it is dearer: 0.4 CPU s/s outside operations.
        clock.look(20_000 * MS, true);
        clock.look(20_500 * MS, false);
        clock.learn(0.2, [].iter());
        assert!((clock.cost(2.0, 1e-4, ALLOWED, 1.0).unwrap().attached - 0.6).abs() < 1e-12);
    }
}
