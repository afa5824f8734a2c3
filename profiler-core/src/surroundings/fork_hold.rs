//! How long registering sites may hold up the forks of other processes.
//!
//! The kernel registers a site with `dup_mmap_sem` held for writing, and visits every process that maps the file meanwhile
//! (`register_for_each_vma` in kernel/events/uprobes.c): no process of the machine can fork in that time. Unregistering does the same. The
//! time grows with the number of processes that map the file, and the sites of one link follow each other without a pause.
//!
//! The rule: forks are held up for at most [`SHARE`] of the time, in pieces. A stranger that forks at any instant then meets it
//! with a probability below one per cent, so that the 99th percentile of its fork and wait stays about where it was.
//!
//! Time that the one who has waited longest needs is kept for it: many small links would otherwise take each piece before a large one can have
//! enough.

use std::collections::VecDeque;

/// Part of the time for which forks may be held up, and what may be saved of it, ns. In any one second that is at most 8 ms.
pub const SHARE: f64 = 0.004;
const CAPACITY_NS: f64 = 4e6;
/// Sites are put together on a link as long as registering them takes no longer, ns.
const LINK_NS: f64 = 1e6;
/// What cannot be divided, all sites of one function, may take so long, ns: all that is allowed in a second.
const LONGEST_NS: f64 = 8e6;
/// Price of one visit to a process until one was measured, ns: 140 to 270 with 1,500 processes.
const FIRST_VISIT_NS: f64 = 250.0;
/// Measured prices are believed between these, ns.
const VISIT_NS: (f64, f64) = (50.0, 2_000.0);
/// Below so many mappers the price of a site itself, which cold caches make thrice as high, hides that of the visits.
const LEAST_MAPPERS: u32 = 100;
/// Price of registering a site that nobody else maps, ns: 5,200 (135 sites in 708 us).
const SITE_NS: f64 = 6_000.0;
/// Who has not asked for so long does not wait any more, ns.
const FORGOTTEN_NS: u64 = 2_000_000_000;
/// Weight of a new measurement below the present price; a higher one counts at once.
const WEIGHT: f64 = 0.1;

/// Whether a link may be made now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HoldVerdict {
    /// It may.
    Now,
    /// In some time.
    Later,
    /// Not at all: it would hold up forks for so long, ns.
    Never(f64),
}

/// Somebody who asks for time again and again: a group of classes that is to be attached or detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiter {
    /// Its sites are to be registered; the first class of the group.
    Attach(u32),
    /// Its sites are to be unregistered; the first class of the group.
    Detach(u32),
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    who: Waiter,
    needs_ns: f64,
    asked_ns: u64,
}

/// The account of the time for which forks were held up.
#[derive(Debug, Clone)]
pub struct ForkHold {
    tokens_ns: f64,
    last_ns: u64,
    visit_ns: f64,
    /// The one that has waited longest first.
    waiting: VecDeque<Waiting>,
}

impl Default for ForkHold {
    fn default() -> Self {
        Self { tokens_ns: CAPACITY_NS, last_ns: 0, visit_ns: FIRST_VISIT_NS, waiting: VecDeque::new() }
    }
}

impl ForkHold {
    /// Time for which others cannot fork because of `mappers` other processes while so many sites are registered or unregistered, ns.
    #[must_use]
    pub fn hold_ns(&self, sites: usize, mappers: u32) -> f64 {
        sites as f64 * f64::from(mappers) * self.visit_ns
    }

    /// Sites that may be put on one link of a file that `mappers` other processes map.
    #[must_use]
    pub fn sites_at_once(&self, mappers: u32) -> usize {
        if mappers == 0 {
            return usize::MAX;
        }
        // OK because the cast saturates.
        ((LINK_NS / self.hold_ns(1, mappers)) as usize).max(1)
    }

    /// How long registering so many sites would hold up forks, where that is too long at any time, ns.
    #[must_use]
    pub fn too_long_ns(&self, sites: usize, mappers: u32) -> Option<f64> {
        let hold_ns = self.hold_ns(sites, mappers);
        (hold_ns > LONGEST_NS).then_some(hold_ns)
    }

    /// Whether a link of so many sites may be made, or closed, at `now_ns`. Until it is charged `who` keeps its place among those who wait.
    pub fn verdict(&mut self, now_ns: u64, who: Waiter, sites: usize, mappers: u32) -> HoldVerdict {
        let hold_ns = self.hold_ns(sites, mappers);
        if hold_ns <= 0.0 {
            return HoldVerdict::Now;
        }
        if let Some(ns) = self.too_long_ns(sites, mappers) {
            return HoldVerdict::Never(ns);
        }
        self.earn(now_ns);
        let needs_ns = hold_ns.min(CAPACITY_NS);
        self.waiting.retain(|w| w.who == who || now_ns.saturating_sub(w.asked_ns) <= FORGOTTEN_NS);
        match self.waiting.iter_mut().find(|w| w.who == who) {
            Some(waiting) => (waiting.needs_ns, waiting.asked_ns) = (needs_ns, now_ns),
            None => self.waiting.push_back(Waiting { who, needs_ns, asked_ns: now_ns }),
        }
        let kept_ns = self.waiting.front().filter(|first| first.who != who).map_or(0.0, |w| w.needs_ns);
        if self.tokens_ns >= needs_ns + kept_ns { HoldVerdict::Now } else { HoldVerdict::Later }
    }

    /// Forks were held up for so long, for this one, which waits no longer.
    pub fn charge(&mut self, now_ns: u64, who: Waiter, hold_ns: f64) {
        self.earn(now_ns);
        self.tokens_ns -= hold_ns;
        self.leave(who);
    }

    /// It does not wait any more.
    pub fn leave(&mut self, who: Waiter) {
        self.waiting.retain(|w| w.who != who);
    }

    /// Registering so many sites took `cpu_ns` of CPU time: what that says about the next, and how long it held up forks, ns.
    pub fn measured(&mut self, sites: usize, mappers: u32, cpu_ns: u64) -> f64 {
        let visits = sites as f64 * f64::from(mappers);
        let of_visits = (cpu_ns as f64 - sites as f64 * SITE_NS).max(0.0);
        if mappers >= LEAST_MAPPERS {
            let seen = (of_visits / visits).clamp(VISIT_NS.0, VISIT_NS.1);
            let weight = if seen > self.visit_ns { 1.0 } else { WEIGHT };
            self.visit_ns += weight * (seen - self.visit_ns);
            return seen * visits;
        }
        self.hold_ns(sites, mappers)
    }

    /// Time until so much more has been earned than is owed, ns.
    #[must_use]
    pub fn wait_ns(&self, hold_ns: f64) -> u64 {
        ((hold_ns - self.tokens_ns).max(0.0) / SHARE) as u64
    }

    fn earn(&mut self, now_ns: u64) {
        let elapsed = if self.last_ns == 0 { 0 } else { now_ns.saturating_sub(self.last_ns) };
        self.last_ns = now_ns.max(self.last_ns);
        self.tokens_ns = (self.tokens_ns + elapsed as f64 * SHARE).min(CAPACITY_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const A: Waiter = Waiter::Attach(1);

    #[test]
    fn a_file_that_nobody_else_maps_is_not_held_back() {
        let mut hold = ForkHold::default();
        for at in 0..10_000 {
            assert_eq!(hold.verdict(at, A, 200, 0), HoldVerdict::Now);
            let ns = hold.measured(200, 0, 1_000_000);
            hold.charge(at, A, ns);
        }
        assert_eq!(hold.sites_at_once(0), usize::MAX);
    }

    #[test]
    fn links_are_small_where_many_map_the_file() {
        let hold = ForkHold::default();
        // 1,500 visits of 250 ns: 0.375 ms a site.
        assert_eq!(hold.sites_at_once(1_500), 2);
        assert_eq!(hold.sites_at_once(20), 200);
        assert_eq!(hold.sites_at_once(100_000), 1);
    }

    #[test]
    fn no_second_holds_forks_for_more_than_eight_milliseconds() {
        for (sites, mappers) in [(2, 1_500), (1, 1_500), (1, 30_000), (10, 400)] {
            let mut hold = ForkHold::default();
            let mut held: Vec<(u64, f64)> = Vec::new();
            // Somebody who asks every millisecond, for a minute.
            for now in (1..60_000).map(|ms| ms * MS) {
                if hold.verdict(now, A, sites, mappers) == HoldVerdict::Now {
                    let ns = hold.hold_ns(sites, mappers);
                    hold.charge(now, A, ns);
                    held.push((now, ns));
                }
            }
            assert!(held.len() > 10, "{sites} sites, {mappers} mappers: {} links", held.len());
            for (from, _) in &held {
                let second = held.iter().filter(|(at, _)| (*from..from + 1_000 * MS).contains(at));
                let ns: f64 = second.map(|(_, ns)| ns).sum();
                assert!(ns <= 8.1e6, "{sites} sites, {mappers} mappers: {ns} ns in a second");
            }
            let all: f64 = held.iter().map(|(_, ns)| ns).sum();
            assert!(
                all >= 0.9 * SHARE * 60e9,
                "{sites} sites, {mappers} mappers: {all} ns of what is allowed"
            );
        }
    }

    #[test]
    fn what_would_take_a_whole_second_s_part_alone_is_refused() {
        let mut hold = ForkHold::default();
        assert_eq!(hold.verdict(1, A, 1, 31_000), HoldVerdict::Now);
        assert_eq!(hold.verdict(1, A, 1, 40_000), HoldVerdict::Never(10e6));
        // One function of many exit sites.
        assert_eq!(hold.verdict(1, A, 30, 1_500), HoldVerdict::Never(11.25e6));
    }

    #[test]
    fn the_price_of_a_visit_follows_what_was_measured() {
        let mut hold = ForkHold::default();
        // Higher at once: 3,000 visits in 1.512 ms.
        assert_eq!(hold.measured(2, 1_500, 1_512_000), 1_500_000.0);
        assert_eq!(hold.hold_ns(1, 1_000), 500_000.0);
        // Lower slowly.
        hold.measured(2, 1_500, 312_000);
        assert_eq!(hold.hold_ns(1, 1_000), 460_000.0);
        // Of few mappers nothing is learned: page faults may have taken that time.
        assert_eq!(hold.measured(1, 10, 50_000_000), 4_600.0);
        assert_eq!(hold.hold_ns(1, 1_000), 460_000.0);
    }

    #[test]
    fn waiting_pays_debts_back() {
        let mut hold = ForkHold::default();
        hold.charge(1, A, 12e6);
        assert_eq!(hold.verdict(2, A, 1, 1_000), HoldVerdict::Later);
        let wait = hold.wait_ns(hold.hold_ns(1, 1_000));
        assert!(wait.abs_diff((8.25e6 / SHARE) as u64) < 10, "{wait}");
        assert_eq!(hold.verdict(2 + wait + MS, A, 1, 1_000), HoldVerdict::Now);
    }

    #[test]
    fn a_large_link_gets_its_turn_beside_many_small_ones() {
        let mut hold = ForkHold::default();
        let (mut small, mut large) = (0, 0);
        // Three who take whatever there is, and one that needs 4.125 ms; all ask every 2 ms, for a minute.
        for now in (1..30_000).map(|step| 2 * step * MS) {
            for (who, sites) in [(2, 1), (3, 1), (4, 2), (5, 11)] {
                let who = if who == 3 { Waiter::Detach(who) } else { Waiter::Attach(who) };
                if hold.verdict(now, who, sites, 1_500) == HoldVerdict::Now {
                    hold.charge(now, who, hold.hold_ns(sites, 1_500));
                    *(if sites == 11 { &mut large } else { &mut small }) += 1;
                }
            }
        }
        assert!(large >= 5 && small >= 100, "{large} large ones, {small} small ones");
    }

    #[test]
    fn nothing_is_kept_for_one_that_asks_no_more() {
        let mut hold = ForkHold::default();
        hold.charge(1, A, 2e6);
        assert_eq!(hold.verdict(2, Waiter::Attach(2), 11, 1_500), HoldVerdict::Later);
        assert_eq!(hold.verdict(3, A, 1, 1_500), HoldVerdict::Later);
        assert_eq!(hold.verdict(3 + 3_000 * MS, A, 1, 1_500), HoldVerdict::Now);
        // Or that says so.
        hold.charge(3 + 3_000 * MS, A, 4e6);
        let later = 3 + 3_300 * MS;
        assert_eq!(hold.verdict(later, Waiter::Attach(2), 11, 1_500), HoldVerdict::Later);
        assert_eq!(hold.verdict(later, A, 1, 1_500), HoldVerdict::Later);
        hold.leave(Waiter::Attach(2));
        assert_eq!(hold.verdict(later, A, 1, 1_500), HoldVerdict::Now);
    }
}
