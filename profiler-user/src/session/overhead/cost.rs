//! What counting the progress metric costs, and the bound on it.

use super::Comparison;
use crate::prober::ClassCounters;
use crate::session::Session;
use crate::session::attach::now_ns;
use crate::session::class::Purpose;
use crate::session::metric::Metric;
use profiler_core::class::ClassId;
use profiler_core::recording::{Charge, WindowKind};
use profiler_core::run::arbiter::{METRIC_SHARE, bystanders};
use std::collections::BTreeMap;

/// Not judged by its cost before it has been watched for so long, ns.
const JUDGED_NS: f64 = 500e6;
/// Time constant of the cost by which it is judged, ns: a quiet hour before must not excuse what it costs now.
const RECENT_NS: f64 = 2e9;
/// The metric may take what so long brings at once; what it took is given back as time passes, at this interval, ns.
const QUOTA_NS: (f64, u64) = (500e6, 100_000_000);

/// The account of a metric.
#[derive(Debug, Default)]
pub struct MetricCost {
    /// When the metric's classes were given their quotas last.
    quota_ns: u64,
    /// What they have taken.
    taken: BTreeMap<ClassId, Taken>,
    /// The breaker stopped one of them.
    tripped: bool,
    /// Counts of the kernel's probe that are charged: own, others.
    charged: (u64, u64),
    /// CPU time taken from the target and from others, ns: over the run, and since the last interval of the ledger.
    total_ns: (f64, f64),
    fresh_ns: (f64, f64),
    /// The same per ns of wall time, smoothed; over the same time what the target used by itself; and the weight of what went into them.
    rate: (f64, f64),
    cpu: f64,
    weight: f64,
    watched_ns: f64,
}

impl MetricCost {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(metric: &Metric) -> Self {
        let charged = metric.kernel_probe().map_or((0, 0), |p| (p.counts().iter().sum(), p.others()));
        Self { charged, ..Self::default() }
    }

    /// CPU time that it took from the target so far, ns.
    #[must_use]
    pub fn own_ns(&self) -> f64 {
        self.total_ns.0
    }

    fn add(&mut self, own_ns: f64, others_ns: f64) {
        for account in [&mut self.total_ns, &mut self.fresh_ns] {
            account.0 += own_ns;
            account.1 += others_ns;
        }
    }

    /// An interval ends in which the target used `used_ns` of CPU time by itself.
    fn close_interval(&mut self, elapsed_ns: u64, used_ns: f64) {
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
    fn recent(&self) -> (f64, f64) {
        let weight = self.weight.max(1e-9);
        (self.rate.0 / weight, self.rate.1 / weight)
    }

    /// CPU s/s that the target used by itself, in the time of [`MetricCost::recent`] and weighted as that is: the two can be
    /// compared also where a target has just begun to work.
    fn recent_cpu(&self) -> f64 {
        self.cpu / self.weight.max(1e-9)
    }

    /// It is judged by its cost.
    fn is_settled(&self) -> bool {
        self.watched_ns > JUDGED_NS
    }

    /// In the middle of an interval of the ledger, in which it took `fresh_ns` so far, and `left_ns` were left of the second at its begin: that
    /// is spent, and a good part of it on the metric, whatever the target turns out to use. `most`: what a target all of whose
    /// threads work allows, CPU s/s.
    fn takes_it_all(&self, fresh_ns: f64, left_ns: f64, most: f64) -> bool {
        fresh_ns >= left_ns && self.own_ns() + fresh_ns > at_once_ns(most)
    }

    /// More than it may cost, where a target that uses so many CPU s/s `allows` so much, CPU s/s. `most_cpu`: what it uses when all of
    /// its threads work. `left_ns`: what the budget leaves of the present second.
    fn is_too_dear(&self, most_cpu: f64, left_ns: f64, allows: impl Fn(f64) -> f64) -> bool {
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

/// Hits of a class that its quotas have let in so far.
fn admitted(counters: &ClassCounters) -> u64 {
    // The quota comes before the question whose hit it is.
    counters.kept.wrapping_add(counters.dropped).wrapping_add(counters.bystanders)
}

/// What a class of the metric has taken of the hits that it may take at once, and when that was reckoned.
#[derive(Debug, Default, Clone, Copy)]
struct Taken {
    hits: f64,
    time_ns: u64,
    /// [`admitted`] then; `None`: it has not been the metric's before.
    admitted: Option<u64>,
}

impl Taken {
    /// The quota to be given now: the `full` one less what was taken, of which as much comes back as the time since is worth. `admitted`: hits
    /// that were let in so far, in whatever windows. So a class takes what it is given per second and, once, a full quota more, however
    /// often that is given anew.
    fn renew(&mut self, full: u64, admitted: u64, now_ns: u64) -> u64 {
        // Stripes are not read at one instant: it may be a hit or two less than before.
        let used = self.admitted.map_or(0, |before| admitted.saturating_sub(before));
        self.admitted = Some(admitted);
        let full = full as f64;
        let part = now_ns.saturating_sub(self.time_ns) as f64 / QUOTA_NS.0;
        let back = full * part.min(1.0);
        // Not more than all: a target that worked on many CPUs a moment ago owes nothing for them.
        self.hits = (self.hits + used as f64 - back).clamp(0.0, full);
        self.time_ns = now_ns;
        (full - self.hits).max(back).max(1.0) as u64
    }
}

/// Hits that a class of the metric may take at once, at `tau_s` each: twice what the time of [`QUOTA_NS`] may cost. The quota stops
/// what explodes, [`MetricCost::is_too_dear`] what is merely dear.
fn quota(allowed: f64, tau_s: f64) -> u64 {
    (2.0 * METRIC_SHARE * allowed * QUOTA_NS.0 * 1e-9 / tau_s.max(1e-12)).max(100.0) as u64
}

/// CPU s/s by which the metric's quota is measured: what a target is allowed that uses `own_cpu` CPU s/s, or a whole CPU if that is more, so
/// that one that wakes up keeps its metric; where the last quarter of a second brought more (`income`, CPU s/s), that.
fn quota_budget(own_cpu: f64, income: f64, allows: impl Fn(f64) -> f64) -> f64 {
    allows(own_cpu.max(1.0)).max(income)
}

impl Session {
    /// Charges what counting has cost in the interval of the ledger that ends: to the target, and to the others, who pay as well.
    /// `used_ns`: CPU time that the target used in it, monitoring included.
    pub(in crate::session) fn charge_metric(&mut self, elapsed_ns: u64, used_ns: u64) {
        let used_ns = used_ns as f64 / (1.0 + self.ledger.predicted());
        let Some(Comparison { metric, cost, .. }) = &mut self.comparison else { return };
        if let Some(probe) = metric.kernel_probe() {
            let price = self.cost.tracepoint;
            let now = (probe.counts().iter().sum(), probe.others());
            let (own, others) = (now.0 - cost.charged.0, now.1 - cost.charged.1);
            cost.charged = now;
            self.ledger.charge_units(Charge::Progress, None, own, price);
            self.ledger.charge_units(Charge::Bystanders, None, others, price);
            cost.add(own as f64 * price.ns, others as f64 * price.ns);
        }
        cost.close_interval(elapsed_ns, used_ns);
    }

    /// The cost of hits of the metric's classes, charged elsewhere.
    pub(in crate::session) fn note_metric_cost(&mut self, cost_ns: f64) {
        if let Some(comparison) = &mut self.comparison {
            comparison.cost.add(cost_ns, 0.0);
        }
    }

    /// The breaker stopped a class through its own quota.
    pub(in crate::session) fn note_metric_trip(&mut self, id: ClassId) {
        if let Some(comparison) = self.comparison.as_mut().filter(|c| c.classes().contains(&id)) {
            comparison.cost.tripped = true;
        }
    }

    /// CPU s/s that counting takes from the target.
    pub(in crate::session) fn metric_cost(&self) -> f64 {
        self.comparison.as_ref().map_or(0.0, |c| c.cost.recent().0)
    }

    /// [`Taken::renew`] of a class of the metric.
    fn renewed(&mut self, id: ClassId, full: u64, now_ns: u64) -> u64 {
        let admitted = admitted(&self.attach.kernel().classes().counters(id));
        let taken = self.comparison.as_mut().map(|c| c.cost.taken.entry(id).or_default());
        taken.map_or(full, |t| t.renew(full, admitted, now_ns))
    }

    /// Bounds what counting costs, and keeps the metric's classes attached. The error says why it cannot go on.
    pub(super) fn keep_metric(&mut self) -> Result<(), String> {
        let Some(comparison) = &self.comparison else { return Ok(()) };
        let (classes, tripped) = (comparison.classes().to_vec(), comparison.cost.tripped);
        let most = self.most_cpu();
        let name = comparison.metric.name();
        let (own, others) = comparison.cost.recent();
        let left_ns = self.arbiter().left_of_second_ns();
        if comparison.cost.is_too_dear(most, left_ns, |cpu| self.allowed(cpu)) {
            let cut = self.ledger.cut();
            let cut = if cut > 1.0 { format!(" (cut {cut:.1} times)") } else { String::new() };
            return Err(format!(
                "counting {name} costs {:.3} % of the target's CPU time, more than a tenth of the budget{cut}; name a rarer event \
                 or a variable with --progress",
                100.0 * own / comparison.cost.recent_cpu().max(profiler_core::ledger::FLOOR_CPU_PER_S)
            ));
        }
        // An interval of the ledger is too long for a trial count of what happens all the time.
        if let Some(probe) = comparison.metric.kernel_probe().filter(|_| !comparison.cost.is_settled()) {
            let counted: u64 = probe.counts().iter().sum();
            let fresh_ns = counted.saturating_sub(comparison.cost.charged.0) as f64 * self.cost.tracepoint.ns;
            if comparison.cost.takes_it_all(fresh_ns, left_ns, self.allowed(most)) {
                return Err(format!(
                    "counting {name} took {:.1} ms within {:.1} s, and the budget of that second is spent; name a rarer event or a variable with --progress",
                    (comparison.cost.own_ns() + fresh_ns) * 1e-6,
                    (comparison.cost.watched_ns + 1e8) * 1e-9
                ));
            }
        }
        if others > bystanders(self.meta.cpus) {
            return Err(format!(
                "counting {name} takes {:.1} % of a CPU from other processes; name a variable or a function with --progress",
                100.0 * others
            ));
        }
        // In a storm of forks nothing is attached, and nothing can be compared.
        if self.own_cpu == 0.0 || !self.suspension().may_ask() {
            return Ok(());
        }
        let now = now_ns();
        let renew = now.saturating_sub(comparison.cost.quota_ns) > QUOTA_NS.1;
        let budget = quota_budget(self.own_cpu, self.ledger.bucket().rate(), |cpu| self.allowed(cpu));
        for id in classes {
            let class = self.attach.class(id);
            let full = quota(budget, class.hit_price.seconds());
            if class.is_open() {
                if renew {
                    let quota = self.renewed(id, full, now);
                    self.attach.set_quota(id, quota);
                }
            } else if class.may_open() && self.suspension().may_restore() {
                if tripped {
                    return Err(format!(
                        "the breaker stopped {name}: more calls than a tenth of the budget allows"
                    ));
                }
                let quota = self.renewed(id, full, now);
                self.open_windows(WindowKind::Trace, &[(id, quota, Purpose::Metric)], false);
            }
            if let Some(why) = &self.attach.class(id).refused {
                return Err(format!("{name} cannot be counted: {why}"));
            }
        }
        if renew && let Some(comparison) = &mut self.comparison {
            comparison.cost.quota_ns = now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_costs_now_counts_and_not_a_quiet_past() {
        let mut cost = MetricCost::default();
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
        let mut cost = MetricCost::default();
        let cpus = load.iter().flat_map(|(cpu, n)| std::iter::repeat_n(*cpu, *n));
        cpus.enumerate().find_map(|(i, cpu)| {
            cost.add(share * cpu * 1e7, 0.0);
            cost.close_interval(10_000_000, cpu * 1e7);
            cost.is_too_dear(most, left_ns, two_percent).then_some(i)
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
    fn what_is_too_dear_goes_when_it_is_judged_and_what_is_far_too_dear_at_once() {
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
        let cost = MetricCost::default();
        // Half of what half a second of 20 ms/s brings: 5 ms.
        assert!(cost.takes_it_all(5.1e6, 5e6, 0.02));
        assert!(!cost.takes_it_all(5.1e6, 6e6, 0.02), "there is something left");
        assert!(!cost.takes_it_all(4.9e6, 0.0, 0.02), "others spent it");
        let mut cost = MetricCost::default();
        cost.add(1e6, 0.0);
        assert!(cost.takes_it_all(4.1e6, 3e6, 0.02));
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
        let (mut taken, mut total, mut least) = (Taken::default(), 0, u64::MAX);
        let mut quota = taken.renew(1_000, 0, 5_000_000_000);
        for i in 1..=20 {
            total += wanted.min(quota);
            quota = taken.renew(1_000, total, 5_000_000_000 + i * QUOTA_NS.1);
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
        let mut taken = Taken { hits: 1_000.0, ..Taken::default() };
        assert_eq!(taken.renew(1_000, 0, 9_000_000_000), 1_000);
    }

    #[test]
    fn what_was_taken_before_a_window_was_closed_counts_when_it_is_opened_again() {
        let counters =
            ClassCounters { kept: 5_990, dropped: 8, bystanders: 2, gated: 700, ..Default::default() };
        let mut taken = Taken::default();
        // Hits from before it was the metric's are not its own.
        assert_eq!(taken.renew(1_000, 5_000, 5_000_000_000), 1_000);
        // All of them within 10 ms, which bring 20.
        assert_eq!(taken.renew(1_000, admitted(&counters), 5_010_000_000), 20);
    }

    #[test]
    fn a_quota_follows_what_the_target_may_take() {
        let mut taken = Taken { admitted: Some(0), ..Taken::default() };
        // 700 of 1,000 taken in 0.1 s, and now it works on eight CPUs: 8,000 less 700.
        assert_eq!(taken.renew(8_000, 700, 100_000_000), 8_000);
        assert_eq!(taken.renew(8_000, 8_700, 200_000_000), 1_600);
        // On one CPU again: what it took on eight does not stop it.
        assert_eq!(taken.renew(1_000, 8_700, 300_000_000), 200);
        assert_eq!(taken.renew(1_000, 8_800, 400_000_000), 200);
        assert_eq!(taken.renew(1_000, 8_800, 500_000_000), 300);
    }
}
