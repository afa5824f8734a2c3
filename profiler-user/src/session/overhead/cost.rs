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
    /// The same per ns of wall time, smoothed, and the weight of what went into it.
    rate: (f64, f64),
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

    fn close_interval(&mut self, elapsed_ns: u64) {
        let elapsed = elapsed_ns.max(1) as f64;
        let share = 1.0 - (-elapsed / RECENT_NS).exp();
        let fresh = std::mem::take(&mut self.fresh_ns);
        self.rate.0 += share * (fresh.0 / elapsed - self.rate.0);
        self.rate.1 += share * (fresh.1 / elapsed - self.rate.1);
        self.weight += share * (1.0 - self.weight);
        self.watched_ns += elapsed;
    }

    /// What it costs now, CPU s/s: the target, others. The sum started from 0, hence the weight.
    fn recent(&self) -> (f64, f64) {
        let weight = self.weight.max(1e-9);
        (self.rate.0 / weight, self.rate.1 / weight)
    }
}

impl Session {
    /// Charges what counting has cost in the interval of the ledger that ends: to the target, and to the others, who pay as well.
    pub(in crate::session) fn charge_metric(&mut self, elapsed_ns: u64) {
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
        cost.close_interval(elapsed_ns);
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
        let cpu = self.own_cpu.max(profiler_core::ledger::FLOOR_CPU_PER_S);
        let allowed = METRIC_SHARE * self.budget.cpu_per_second(cpu);
        let name = comparison.metric.name();
        let (own, others) = comparison.cost.recent();
        // The first intervals know no CPU time yet.
        // Later than the CPU time of the first intervals settles; what explodes before that meets the quota.
        // What has taken half of all that the half second brings is not waited for.
        let dear = comparison.cost.own_ns() > 5.0 * allowed * JUDGED_NS;
        if own > allowed && (comparison.cost.watched_ns > JUDGED_NS || dear) {
            return Err(format!(
                "counting {name} costs {:.3} % of the target's CPU time, more than a tenth of the budget; name a rarer event \
                 or a variable with --progress",
                100.0 * own / cpu
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
        for id in classes {
            let class = self.attach.class(id);
            let tau = class.hit_price.seconds().max(1e-12);
            // Twice what the time may cost: the quota stops what explodes, the check above what is merely dear.
            let quota = (2.0 * allowed * QUOTA_NS.0 * 1e-9 / tau).max(100.0) as u64;
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
        cost.close_interval(10_000_000);
        // The first interval already tells the rate: 1 % of a CPU.
        assert!((cost.recent().0 - 0.01).abs() < 1e-12, "{:?}", cost.recent());
        for _ in 0..100_000 {
            cost.close_interval(10_000_000);
        }
        assert!(cost.recent().0 < 1e-12);
        for _ in 0..500 {
            cost.add(2e5, 1e5);
            cost.close_interval(10_000_000);
        }
        let (own, others) = cost.recent();
        // 5 s of 2 % with a time constant of 2 s: 1 - e^-2.5.
        assert!((own - 0.02 * 0.918).abs() < 1e-4 && (others - 0.01 * 0.918).abs() < 1e-4, "{own} {others}");
    }
}
