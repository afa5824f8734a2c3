//! What counting costs now, and when that is too much.

use crate::run::arbiter::METRIC_SHARE;

/// Not judged by its cost before it has been watched for so long, ns.
const JUDGED_NS: f64 = 500e6;
/// Time constant of the cost by which it is judged, ns: a quiet hour before must not excuse what it costs now.
const RECENT_NS: f64 = 2e9;

/// What counting has cost.
#[derive(Debug, Default)]
pub(super) struct Cost {
    /// CPU time taken from the target and from others, ns: over the run, and since the last interval of the ledger.
    total_ns: (f64, f64),
    fresh_ns: (f64, f64),
    /// The same per ns of wall time, smoothed; over the same time what the target used by itself; and the weight of what went into them.
    rate: (f64, f64),
    cpu: f64,
    weight: f64,
    pub(super) watched_ns: f64,
}

impl Cost {
    /// CPU time that it took from the target so far, ns.
    pub(super) fn own_ns(&self) -> f64 {
        self.total_ns.0
    }

    pub(super) fn add(&mut self, own_ns: f64, others_ns: f64) {
        for account in [&mut self.total_ns, &mut self.fresh_ns] {
            account.0 += own_ns;
            account.1 += others_ns;
        }
    }

    /// An interval ends in which the target used `used_ns` of CPU time by itself.
    pub(super) fn close_interval(&mut self, elapsed_ns: u64, used_ns: f64) {
        let elapsed = elapsed_ns.max(1) as f64;
        let share = 1.0 - (-elapsed / RECENT_NS).exp();
        let fresh = std::mem::take(&mut self.fresh_ns);
        self.rate.0 += share * (fresh.0 / elapsed - self.rate.0);
        self.rate.1 += share * (fresh.1 / elapsed - self.rate.1);
        self.cpu += share * (used_ns / elapsed - self.cpu);
        self.weight += share * (1.0 - self.weight);
        self.watched_ns += elapsed;
    }

    /// What it costs now, CPU s/s: the target, others. The sum started from 0, hence the weight.
    pub(super) fn recent(&self) -> (f64, f64) {
        let weight = self.weight.max(1e-9);
        (self.rate.0 / weight, self.rate.1 / weight)
    }

    /// CPU s/s that the target used by itself, in the time of [`Cost::recent`] and weighted as that is: the two can be
    /// compared also where a target has just begun to work.
    pub(super) fn recent_cpu(&self) -> f64 {
        self.cpu / self.weight.max(1e-9)
    }

    /// It is judged by its cost.
    pub(super) fn is_settled(&self) -> bool {
        self.watched_ns > JUDGED_NS
    }

    /// In the middle of an interval of the ledger, in which it took `fresh_ns` so far, and `left_ns` were left of the second at its begin: that
    /// is spent, and a good part of it on the metric, whatever the target turns out to use. `most`: what a target all of whose
    /// threads work allows, CPU s/s.
    pub(super) fn takes_it_all(&self, fresh_ns: f64, left_ns: f64, most: f64) -> bool {
        fresh_ns >= left_ns && self.own_ns() + fresh_ns > at_once_ns(most)
    }

    /// More than it may cost, where a target that uses so many CPU s/s `allows` so much, CPU s/s. `most_cpu`: what it uses when all of
    /// its threads work. `left_ns`: what the budget leaves of the present second.
    pub(super) fn is_too_expensive(&self, most_cpu: f64, left_ns: f64, allows: impl Fn(f64) -> f64) -> bool {
        let (own, _) = self.recent();
        // The CPU time of the first intervals has to settle. What by then has taken half of all that the half second would bring to a
        // target that works as much as it can is not waited for; a target that idles at first may yet be worth its metric. Nor is what takes
        // more than its share of a second that has nothing left.
        let settled = self.is_settled();
        let at_once = at_once_ns(allows(most_cpu));
        own > METRIC_SHARE * allows(self.recent_cpu())
            && (settled || self.own_ns() > at_once || left_ns <= 0.0)
    }
}

/// What a metric may take before it is judged, where the budget is so much, CPU s/s: half of what that time brings, ns.
fn at_once_ns(allowed: f64) -> f64 {
    5.0 * METRIC_SHARE * allowed * JUDGED_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_costs_now_counts_and_not_a_quiet_past() {
        let mut cost = Cost::default();
        cost.add(1e5, 0.0);
        cost.close_interval(10_000_000, 0.0);
        // The first interval already tells the rate: 1 % of a CPU.
        assert!((cost.recent().0 - 0.01).abs() < 1e-12, "{:?}", cost.recent());
        for _ in 0..100_000 {
            cost.close_interval(10_000_000, 0.0);
        }
        assert!(cost.recent().0 < 1e-12);
        for _ in 0..500 {
            cost.add(2e5, 1e5);
            cost.close_interval(10_000_000, 0.0);
        }
        let (own, others) = cost.recent();
        // 5 s of 2 % with a time constant of 2 s: 1 - e^-2.5.
        assert!((own - 0.02 * 0.918).abs() < 1e-4 && (others - 0.01 * 0.918).abs() < 1e-4, "{own} {others}");
    }

    /// 2 % of what the target uses, at least of the floor.
    fn two_percent(cpu: f64) -> f64 {
        0.02 * cpu.max(0.05)
    }

    /// A metric that takes `share` of a target on `most` CPUs that uses (CPU s/s, for so many intervals of 10 ms): the interval in which it
    /// is given up.
    fn given_up(share: f64, most: f64, load: &[(f64, usize)]) -> Option<usize> {
        given_up_with(f64::INFINITY, share, most, load)
    }

    /// The same where so much is left of the second, ns, while it is counted.
    fn given_up_with(left_ns: f64, share: f64, most: f64, load: &[(f64, usize)]) -> Option<usize> {
        let mut cost = Cost::default();
        let cpus = load.iter().flat_map(|(cpu, n)| std::iter::repeat_n(*cpu, *n));
        cpus.enumerate().find_map(|(i, cpu)| {
            cost.add(share * cpu * 1e7, 0.0);
            cost.close_interval(10_000_000, cpu * 1e7);
            cost.is_too_expensive(most, left_ns, two_percent).then_some(i)
        })
    }

    #[test]
    fn a_target_that_idles_at_first_keeps_its_metric() {
        // 0.1 %, half of what is allowed, however long it idles before it works.
        for idle in [0, 1, 10, 40, 60, 300] {
            assert_eq!(given_up(0.001, 2.0, &[(0.001, idle), (2.0, 1_000)]), None, "idle for {idle}");
        }
        // An idle one may pay for what 50 ms/s of CPU time allow.
        assert_eq!(given_up(0.05, 2.0, &[(0.001, 1_000)]), None);
    }

    #[test]
    fn what_is_too_expensive_goes_when_it_is_judged_and_what_is_far_too_expensive_at_once() {
        // 0.4 %, twice what is allowed: after half a second, also when the target worked only then.
        assert_eq!(given_up(0.004, 2.0, &[(2.0, 100)]), Some(50));
        assert_eq!(given_up(0.004, 2.0, &[(0.001, 10), (2.0, 100)]), Some(50));
        // 20 % of 2 CPUs: 10 ms, half of what half a second of 2 CPUs brings, are spent within three intervals.
        assert_eq!(given_up(0.2, 2.0, &[(2.0, 100)]), Some(2));
        assert_eq!(given_up(0.2, 2.0, &[(0.001, 10), (2.0, 100)]), Some(12));
    }

    #[test]
    fn what_takes_more_than_its_share_of_a_second_that_is_spent_goes_at_once() {
        // 0.4 %, twice what is allowed.
        assert_eq!(given_up_with(0.0, 0.004, 2.0, &[(2.0, 100)]), Some(0));
        assert_eq!(given_up_with(1.0, 0.004, 2.0, &[(2.0, 100)]), Some(50));
        // 0.1 %: others spent it.
        assert_eq!(given_up_with(0.0, 0.001, 2.0, &[(0.001, 10), (2.0, 1_000)]), None);
    }

    #[test]
    fn a_trial_ends_within_an_interval_that_it_spends() {
        let cost = Cost::default();
        // Half of what half a second of 20 ms/s brings: 5 ms.
        assert!(cost.takes_it_all(5.1e6, 5e6, 0.02));
        assert!(!cost.takes_it_all(5.1e6, 6e6, 0.02), "there is something left");
        assert!(!cost.takes_it_all(4.9e6, 0.0, 0.02), "others spent it");
        let mut cost = Cost::default();
        cost.add(1e6, 0.0);
        assert!(cost.takes_it_all(4.1e6, 3e6, 0.02));
    }
}
