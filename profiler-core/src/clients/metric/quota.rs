//! The quotas of the classes that count.

use crate::run::arbiter::METRIC_SHARE;

/// The metric may take what so long brings at once, ns.
const QUOTA_NS: f64 = 500e6;

/// What a class of the metric has taken of the hits that it may take at once, and when that was reckoned.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct TakenHits {
    hits: f64,
    time_ns: u64,
    /// The hits that were let in then; `None`: it has not been the metric's before.
    admitted: Option<u64>,
}

impl TakenHits {
    /// The quota to be given now: the `full` one less what was taken, of which as much comes back as the time since is worth. `admitted`: hits
    /// that were let in so far, in whatever windows. So a class takes what it is given per second and, once, a full quota more, however
    /// often that is given anew.
    pub(super) fn renew(&mut self, full: u64, admitted: u64, now_ns: u64) -> u64 {
        // Stripes are not read at one instant: it may be a hit or two less than before.
        let used = self.admitted.map_or(0, |before| admitted.saturating_sub(before));
        self.admitted = Some(admitted);
        let full = full as f64;
        let part = now_ns.saturating_sub(self.time_ns) as f64 / QUOTA_NS;
        let back = full * part.min(1.0);
        // Not more than all: a target that worked on many CPUs a moment ago owes nothing for them.
        self.hits = (self.hits + used as f64 - back).clamp(0.0, full);
        self.time_ns = now_ns;
        (full - self.hits).max(back).max(1.0) as u64
    }
}

/// Hits that a class of the metric may take at once, at `tau_s` each: twice what the time of [`QUOTA_NS`] may cost. The quota stops
/// what explodes, [`super::cost::Cost::is_too_expensive`] what is merely expensive.
pub(super) fn quota(allowed: f64, tau_s: f64) -> u64 {
    (2.0 * METRIC_SHARE * allowed * QUOTA_NS * 1e-9 / tau_s.max(1e-12)).max(100.0) as u64
}

/// CPU s/s by which the metric's quota is measured: what a target is allowed that uses `own_cpu` CPU s/s, or a whole CPU if that is more, so
/// that one that wakes up keeps its metric; where the last quarter of a second brought more (`income`, CPU s/s), that.
pub(super) fn quota_budget(own_cpu: f64, income: f64, allows: impl Fn(f64) -> f64) -> f64 {
    allows(own_cpu.max(1.0)).max(income)
}

#[cfg(test)]
mod tests {
    use super::super::RENEWAL_NS;
    use super::*;

    /// 2 % of what the target uses, at least of the floor.
    fn two_percent(cpu: f64) -> f64 {
        0.02 * cpu.max(0.05)
    }

    #[test]
    fn the_quota_is_that_of_what_the_target_uses_or_of_one_cpu() {
        let of = |own_cpu, income| quota(quota_budget(own_cpu, income, two_percent), 1e-6);
        // A tenth of 20 ms/s for half a second, twice, at 1 us: 2 ms, on however many CPUs the target might work.
        assert_eq!((of(0.0, 0.001), of(1.0, 0.02)), (2_000, 2_000));
        // 3 CPUs; 64 that began to work a moment ago.
        assert_eq!((of(3.0, 0.06), of(1.0, 1.28)), (6_000, 128_000));
        assert_eq!(quota(two_percent(0.0), 1e-3), 100);
    }

    /// Hits within 2 s of a class that takes all that it is given, or `wanted` in each interval.
    fn taken_in_2_s(wanted: u64) -> (u64, u64) {
        let (mut taken, mut total, mut least) = (TakenHits::default(), 0, u64::MAX);
        let mut quota = taken.renew(1_000, 0, 5_000_000_000);
        for i in 1..=20 {
            total += wanted.min(quota);
            quota = taken.renew(1_000, total, 5_000_000_000 + i * RENEWAL_NS);
            least = least.min(quota);
        }
        (total, least)
    }

    #[test]
    fn a_quota_given_anew_gives_no_more_than_the_time_brings() {
        // A full one, and 19 times a fifth of it: not 20 full ones.
        assert_eq!(taken_in_2_s(u64::MAX), (1_000 + 19 * 200, 200));
        // What the time brings can go on, and half of it leaves nothing to give back.
        assert_eq!(taken_in_2_s(200), (4_000, 1_000));
        assert_eq!(taken_in_2_s(100).1, 1_000);
        // An agent that was held up for long gives a full one and no more.
        let mut taken = TakenHits { hits: 1_000.0, ..TakenHits::default() };
        assert_eq!(taken.renew(1_000, 0, 9_000_000_000), 1_000);
    }

    #[test]
    fn what_was_taken_before_a_window_was_closed_counts_when_it_is_opened_again() {
        let mut taken = TakenHits::default();
        // Hits from before it was the metric's are not its own.
        assert_eq!(taken.renew(1_000, 5_000, 5_000_000_000), 1_000);
        // All of them within 10 ms, which bring 20.
        assert_eq!(taken.renew(1_000, 6_000, 5_010_000_000), 20);
    }

    #[test]
    fn a_quota_follows_what_the_target_may_take() {
        let mut taken = TakenHits { admitted: Some(0), ..TakenHits::default() };
        // 700 of 1,000 taken in 0.1 s, and now it works on eight CPUs: 8,000 less 700.
        assert_eq!(taken.renew(8_000, 700, 100_000_000), 8_000);
        assert_eq!(taken.renew(8_000, 8_700, 200_000_000), 1_600);
        // On one CPU again: what it took on eight does not stop it.
        assert_eq!(taken.renew(1_000, 8_700, 300_000_000), 200);
        assert_eq!(taken.renew(1_000, 8_800, 400_000_000), 200);
        assert_eq!(taken.renew(1_000, 8_800, 500_000_000), 300);
    }
}
