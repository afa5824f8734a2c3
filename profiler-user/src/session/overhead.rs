//! What the comparison of the overhead and the counting of its metric need of the machine: marks and counts are read, orders executed.
//!
//! What is compared when, and what counting may cost, is decided in [`profiler_core::clients::overhead`] and
//! [`profiler_core::clients::metric`].

use super::attach::now_ns;
use super::metric::Metric;
use super::{Phase, Session};
use crate::prober::{ClassCounters, ProgressProbe};
use profiler_core::class::ClassId;
use profiler_core::clients::Client;
use profiler_core::clients::metric::{self, Counting, ProbeHits};
use profiler_core::clients::overhead::{self, Account, Mark, Overhead, Reading, Wanted};
use profiler_core::recording::Charge;
use profiler_core::run::arbiter::bystanders;
use profiler_core::run::order::Order;
use profiler_core::run::view::View;

/// A reading of CPU time and progress that took longer was interrupted and is taken again, ns of target CPU time.
const TORN_NS: u64 = 20_000;

/// The measurement of this run's overhead.
pub struct Measuring {
    metric: Metric,
    overhead: Overhead,
    counting: Counting,
    /// Filled for each step.
    view: View,
}

impl Measuring {
    /// A comparison whose pilot begins now.
    #[must_use]
    pub fn new(metric: Metric, now: u64) -> Self {
        let hits = metric.kernel_probe().map(hits);
        Self {
            // The seed makes runs differ; nothing has to be secret.
            overhead: Overhead::new(metric.subject(), now, now),
            counting: Counting::new(metric.name(), metric.classes().to_vec(), hits),
            metric,
            view: View::default(),
        }
    }

    /// Everything is detached, or on its way: the controller must keep its hands off.
    pub fn is_off(&self) -> bool {
        self.overhead.is_off()
    }

    /// Links were taken off in the middle of a window: it does not count.
    pub fn void(&mut self, now: u64) {
        self.overhead.void(now);
    }

    /// This class stays attached in windows off, as of the last one.
    #[must_use]
    pub fn leaves(&self, id: ClassId) -> bool {
        self.overhead.leaves(id)
    }

    /// The metric that the comparison found is the one that is counted.
    fn note_choice(&mut self) {
        if let Some(number) = self.overhead.chosen()
            && self.metric.choose(number)
        {
            self.counting.rename(&self.metric.name());
        }
    }
}

impl Session {
    /// A class that counts the progress metric.
    pub(super) fn is_metric(&self, id: ClassId) -> bool {
        self.comparison.as_ref().is_some_and(|m| m.counting.classes().contains(&id))
    }

    /// CPU s/s that counting takes from the target.
    pub(super) fn metric_cost(&self) -> f64 {
        self.comparison.as_ref().map_or(0.0, |m| m.counting.claim())
    }

    /// The cost of hits of the metric's classes, charged elsewhere.
    pub(super) fn note_metric_cost(&mut self, cost_ns: f64) {
        if let Some(measuring) = &mut self.comparison {
            measuring.counting.note_cost(cost_ns);
        }
    }

    /// The breaker stopped a class through its own quota.
    pub(super) fn note_metric_trip(&mut self, id: ClassId) {
        if let Some(measuring) = &mut self.comparison {
            measuring.counting.note_trip(id);
        }
    }

    /// Charges what counting has cost in the interval of the ledger that ends: to the target, and to the others, who pay as well.
    /// `used_ns`: CPU time that the target used in it, monitoring included.
    pub(super) fn charge_metric(&mut self, elapsed_ns: u64, used_ns: u64) {
        let used_ns = used_ns as f64 / (1.0 + self.ledger.predicted());
        let Some(Measuring { metric, counting, .. }) = &mut self.comparison else { return };
        let price = self.cost.tracepoint;
        let probed = metric.kernel_probe().map(hits);
        let new = counting.close_interval(elapsed_ns, used_ns, probed, price.ns);
        self.ledger.charge_units(Charge::Progress, None, new.own, price);
        self.ledger.charge_units(Charge::Bystanders, None, new.others, price);
    }

    /// Nothing more is counted; the result goes into the receipt.
    pub(super) fn end_comparison(&mut self) {
        self.keep_result();
        self.meta.warnings.extend(overhead::warnings(self.ledger.cut(), self.ledger.factor()));
    }

    /// Ends the measurement.
    fn keep_result(&mut self) {
        let account = self.account();
        if let Some(measuring) = self.comparison.take() {
            self.meta.measured = measuring.overhead.result(&account);
        }
    }

    /// One turn of the comparison and of the metric.
    pub(super) fn compare(&mut self) {
        let (now, suspension) = (now_ns(), self.suspension());
        let running = matches!(self.phase, Phase::Run);
        let Some(measuring) = &mut self.comparison else { return };
        let wanted = measuring.overhead.wants(now, running, suspension);
        let counts_classes = !measuring.counting.classes().is_empty();
        let mut view = std::mem::take(&mut measuring.view);
        if wanted != Wanted::Nothing || counts_classes {
            self.fill_view(&mut view);
        }
        view.now_ns = now;
        if wanted != Wanted::Nothing {
            let orders = self.compare_step(wanted, &view);
            self.follow(orders);
        }
        let orders = self.count_step(&view);
        self.follow(orders);
        if let Some(measuring) = &mut self.comparison {
            measuring.view = view;
        }
    }

    fn compare_step(&mut self, wanted: Wanted, view: &View) -> Vec<Order> {
        let input = overhead::Input {
            running: matches!(self.phase, Phase::Run),
            suspension: self.suspension(),
            reading: self.read_progress(wanted),
            staying: self.staying_bounds(),
            account: self.account(),
            end_ns: self.end_ns,
            attach_s: self.cost.attach.seconds(),
        };
        let arbiter = self.arbiter();
        let grant = overhead::Grant { allowed: arbiter.allowed(), churn: arbiter.churn() };
        let mut orders = Vec::new();
        if let Some(measuring) = &mut self.comparison {
            measuring.overhead.step(input, &grant, view, &mut orders);
            measuring.note_choice();
        }
        orders
    }

    fn count_step(&mut self, view: &View) -> Vec<Order> {
        let mut orders = Vec::new();
        let Some(Measuring { metric, counting, .. }) = &self.comparison else { return orders };
        let table = self.attach.kernel().classes();
        let probe = metric.kernel_probe().filter(|_| counting.reads_probe());
        let refused = |id: &ClassId| Some((*id, self.attach.class(*id).refused.clone()?));
        let input = metric::Input {
            suspension: self.suspension(),
            most_cpu: self.most_cpu(),
            probed: probe.map(|probe| probe.counts().iter().sum()),
            probe_ns: self.cost.tracepoint.ns,
            admitted: counting
                .reads_classes(view)
                .into_iter()
                .map(|id| (id, admitted(&table.counters(id))))
                .collect(),
            refused: counting.classes().iter().filter_map(refused).collect(),
        };
        let grant = metric::Grant {
            bucket: self.ledger.bucket().clone(),
            left_ns: self.arbiter().left_of_second_ns(),
            bystanders: bystanders(self.meta.cpus),
        };
        if let Some(measuring) = &mut self.comparison {
            measuring.counting.step(input, &grant, view, &mut orders);
            if let Some(why) = measuring.counting.take_failure() {
                measuring.overhead.give_up(why, &mut orders);
            }
        }
        orders
    }

    /// Executes what was ordered. A measurement that was given up ends before: what it had detached may be attached again.
    fn follow(&mut self, orders: Vec<Order>) {
        if self.comparison.as_ref().is_some_and(|m| m.overhead.is_over()) {
            self.keep_result();
        }
        self.execute(orders, false);
    }

    /// What the ledger says of the run so far.
    fn account(&self) -> Account {
        Account {
            own_cpu_ns: self.ledger.target_cpu_ns() - self.ledger.charged_ns(),
            metric_ns: self.comparison.as_ref().map_or(0.0, |m| m.counting.own_ns()),
            compared: self.ledger.compared(),
        }
    }

    /// What a step needs. `None`: the target is ending.
    fn read_progress(&self, wanted: Wanted) -> Option<Reading> {
        let metric = &self.comparison.as_ref()?.metric;
        match wanted {
            Wanted::Nothing | Wanted::View => None,
            Wanted::Mark => self.mark(metric).map(Reading::Mark),
            Wanted::Counts => {
                let cpu_ns = self.target.cpu_time_ns().ok()?;
                let counts = match metric {
                    Metric::Syscall(probe, None) => probe.counts(),
                    metric => metric.read(self.attach.kernel()).into_iter().collect(),
                };
                Some(Reading::Counts { cpu_ns, counts })
            }
        }
    }

    /// CPU time and progress at one moment. `None`: the target is ending.
    fn mark(&self, metric: &Metric) -> Option<Mark> {
        let mut mark = None;
        for _ in 0..4 {
            let before = self.target.cpu_time_ns().ok()?;
            let progress = metric.read(self.attach.kernel())?;
            let after = self.target.cpu_time_ns().ok()?;
            mark = Some(Mark { progress, cpu_ns: u64::midpoint(before, after), time_ns: now_ns() });
            if after - before <= TORN_NS {
                break;
            }
        }
        mark
    }
}

/// What the kernel's probe has counted.
fn hits(probe: &ProgressProbe) -> ProbeHits {
    ProbeHits { own: probe.counts().iter().sum(), others: probe.others() }
}

/// Hits of a class that its quotas have let in so far.
fn admitted(counters: &ClassCounters) -> u64 {
    // The quota comes before the question whose hit it is.
    counters.kept.wrapping_add(counters.dropped).wrapping_add(counters.bystanders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_gate_turned_away_took_no_quota() {
        let counters =
            ClassCounters { kept: 5_990, dropped: 8, bystanders: 2, gated: 700, ..Default::default() };
        assert_eq!(admitted(&counters), 6_000);
    }
}
