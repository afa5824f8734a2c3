//! What counting the progress metric costs, and the bound on it.

use super::Comparison;
use crate::session::Session;
use crate::session::attach::now_ns;
use crate::session::metric::Metric;
use crate::session::surveying::BYSTANDER_SHARE;
use profiler_core::recording::{Charge, WindowKind};

/// Share of the budget that counting the metric may cost.
const METRIC_SHARE: f64 = 0.1;
/// Not judged by its cost before it has been watched for so long, ns.
const JUDGED_NS: f64 = 500e6;
/// Time constant of the cost by which it is judged, ns: a quiet hour before must not excuse what it costs now.
const RECENT_NS: f64 = 2e9;
/// The metric's quota is given for so long, and anew at this interval, ns.
const QUOTA_NS: (f64, u64) = (500e6, 100_000_000);

/// The account of a metric.
#[derive(Debug, Default)]
pub struct MetricCost {
    /// When the metric's classes were given their quotas last.
    quota_ns: u64,
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

    /// More than it may cost, where a target that uses so many CPU s/s `allows` so much, CPU s/s. `most_cpu`: what it uses when all of
    /// its threads work.
    fn is_too_dear(&self, most_cpu: f64, allows: impl Fn(f64) -> f64) -> bool {
        let (own, _) = self.recent();
        // The CPU time of the first intervals has to settle. What by then has taken half of all that the half second would bring to a
        // target that works as much as it can is not waited for; a target that idles at first may yet be worth its metric.
        let settled = self.watched_ns > JUDGED_NS;
        let at_once = 5.0 * METRIC_SHARE * allows(most_cpu) * JUDGED_NS;
        own > METRIC_SHARE * allows(self.recent_cpu()) && (settled || self.own_ns() > at_once)
    }
}

/// Hits that a class of the metric may take until its quota is given anew, at `tau_s` each: twice what the time may cost. The quota stops
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
    pub(in crate::session) fn note_metric_trip(&mut self, id: profiler_core::class::ClassId) {
        if let Some(comparison) = self.comparison.as_mut().filter(|c| c.classes().contains(&id)) {
            comparison.cost.tripped = true;
        }
    }

    /// CPU s/s that counting takes from the target.
    pub(in crate::session) fn metric_cost(&self) -> f64 {
        self.comparison.as_ref().map_or(0.0, |c| c.cost.recent().0)
    }

    /// Bounds what counting costs, and keeps the metric's classes attached. The error says why it cannot go on.
    pub(super) fn keep_metric(&mut self) -> Result<(), String> {
        let Some(comparison) = &self.comparison else { return Ok(()) };
        let (classes, tripped) = (comparison.classes().to_vec(), comparison.cost.tripped);
        let most = self.most_cpu();
        let name = comparison.metric.name();
        let (own, others) = comparison.cost.recent();
        if comparison.cost.is_too_dear(most, |cpu| self.allowed(cpu)) {
            let cut = self.ledger.cut();
            let cut = if cut > 1.0 { format!(" (cut {cut:.1} times)") } else { String::new() };
            return Err(format!(
                "counting {name} costs {:.3} % of the target's CPU time, more than a tenth of the budget{cut}; name a rarer event \
                 or a variable with --progress",
                100.0 * own / comparison.cost.recent_cpu().max(profiler_core::ledger::FLOOR_CPU_PER_S)
            ));
        }
        if others > BYSTANDER_SHARE * f64::from(self.meta.cpus) {
            return Err(format!(
                "counting {name} takes {:.1} % of a CPU from other processes; name a variable or a function with --progress",
                100.0 * others
            ));
        }
        // In a storm of forks nothing is attached, and nothing can be compared.
        if self.own_cpu == 0.0 || self.children.is_storm() {
            return Ok(());
        }
        let now = now_ns();
        let renew = now.saturating_sub(comparison.cost.quota_ns) > QUOTA_NS.1;
        let budget = quota_budget(self.own_cpu, self.ledger.bucket().rate(), |cpu| self.allowed(cpu));
        for id in classes {
            let class = self.attach.class(id);
            let quota = quota(budget, class.hit_price.seconds());
            if class.is_open() {
                if renew {
                    self.attach.set_quota(id, quota);
                }
            } else if class.may_open() && self.rearm_wanted.is_empty() {
                if tripped {
                    return Err(format!(
                        "the breaker stopped {name}: more calls than a tenth of the budget allows"
                    ));
                }
                self.open_windows(WindowKind::Trace, &[(id, quota)]);
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
        let mut cost = MetricCost::default();
        let cpus = load.iter().flat_map(|(cpu, n)| std::iter::repeat_n(*cpu, *n));
        cpus.enumerate().find_map(|(i, cpu)| {
            cost.add(share * cpu * 1e7, 0.0);
            cost.close_interval(10_000_000, cpu * 1e7);
            cost.is_too_dear(most, two_percent).then_some(i)
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
    fn the_quota_is_that_of_what_the_target_uses_or_of_one_cpu() {
        let of = |own_cpu, income| quota(quota_budget(own_cpu, income, two_percent), 1e-6);
        // A tenth of 20 ms/s for half a second, twice, at 1 us: 2 ms, on however many CPUs the target might work.
        assert_eq!((of(0.0, 0.001), of(1.0, 0.02)), (2_000, 2_000));
        // 3 CPUs; 64 that began to work a moment ago.
        assert_eq!((of(3.0, 0.06), of(1.0, 1.28)), (6_000, 128_000));
        assert_eq!(quota(two_percent(0.0), 1e-3), 100);
    }
}
