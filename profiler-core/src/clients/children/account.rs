//! What children used, and what of it is charged.

use crate::class::ClassId;
use crate::run::view::View;

/// Time constant of what children cost, as others count on it, ns.
const CLAIM_TIME_NS: f64 = 5e9;

/// What children cost in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ChildCost {
    /// Hits, at most.
    pub hits: u64,
    /// ns of CPU time, at most.
    pub cost_ns: f64,
}

/// Moves `rate`, CPU s/s, towards what an interval showed.
pub fn smooth(rate: &mut f64, cost_ns: f64, elapsed_ns: u64, time_ns: f64) {
    let weight = 1.0 - (-(elapsed_ns as f64) / time_ns).exp();
    *rate += weight * (cost_ns / elapsed_ns.max(1) as f64 - *rate);
}

/// CPU time of children that is not charged yet, ns.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used {
    /// Of children that ran the target's program.
    pub running_ns: u64,
    /// Before an exec.
    pub before_exec_ns: u64,
}

/// What the target calls, as children are taken to call before an exec.
#[derive(Debug, Clone, Copy)]
struct Calls {
    /// Hits per ns of CPU time.
    rate: f64,
    /// What they cost, ns per ns of CPU time.
    price: f64,
    /// Cost of the cheapest hit, ns.
    cheapest_ns: f64,
}

/// What children used and what of it was charged.
#[derive(Debug, Default)]
pub struct ChildAccount {
    /// CPU time of the target while children were charged, ns.
    target_cpu_ns: u64,
    /// What was used while links may have been there.
    pub exposed: Used,
    /// What was used while none was.
    pub clean: Used,
    /// As of the last interval at whose end something was attached.
    calls: Option<Calls>,
    /// Of the last interval, not taken yet.
    pub cost: ChildCost,
    /// CPU s/s, smoothed.
    pub smoothed: f64,
}

impl ChildAccount {
    /// Something is not charged yet.
    pub fn owes(&self) -> bool {
        [self.exposed, self.clean].iter().any(|used| used.running_ns > 0 || used.before_exec_ns > 0)
    }

    /// What a storm would cost, ns.
    pub fn running_ns(&self) -> u64 {
        self.exposed.running_ns + self.clean.running_ns
    }

    /// Closes an interval: what it cost lies in `cost` from now on.
    pub fn close(&mut self, elapsed_ns: u64, target_cpu_ns: u64, hits: &[(ClassId, u64)], view: &View) {
        self.cost = self.charge(hits, target_cpu_ns, view);
        smooth(&mut self.smoothed, self.cost.cost_ns, elapsed_ns, CLAIM_TIME_NS);
    }

    /// `cost = CPU_child + min(CPU before exec, CPU before exec x sum tau max(hits / CPU now, hits / CPU of the run))`
    ///
    /// Where nothing is attached any more, what was used before all links were gone is charged, at the last rates.
    fn charge(&mut self, hits: &[(ClassId, u64)], target_cpu_ns: u64, view: &View) -> ChildCost {
        let exposed = std::mem::take(&mut self.exposed);
        let clean = std::mem::take(&mut self.clean);
        self.target_cpu_ns += target_cpu_ns;
        let (mut running, mut before_exec) = (exposed.running_ns as f64, exposed.before_exec_ns as f64);
        if !hits.is_empty() {
            running += clean.running_ns as f64;
            before_exec += clean.before_exec_ns as f64;
        }
        if running + before_exec == 0.0 {
            return ChildCost::default();
        }
        if !hits.is_empty() {
            self.calls = Some(self.calls(hits, target_cpu_ns, view));
        }
        let Some(Calls { rate, price, cheapest_ns }) = self.calls else {
            return ChildCost { hits: 0, cost_ns: running };
        };
        ChildCost {
            hits: (running / cheapest_ns.max(1.0) + before_exec * rate) as u64,
            cost_ns: running + before_exec * price.min(1.0),
        }
    }

    fn calls(&self, hits: &[(ClassId, u64)], target_cpu_ns: u64, view: &View) -> Calls {
        let per_cpu = |hits: u64, cpu_ns: u64| if cpu_ns == 0 { 0.0 } else { hits as f64 / cpu_ns as f64 };
        let mut calls = Calls { rate: 0.0, price: 0.0, cheapest_ns: f64::INFINITY };
        for (id, n) in hits {
            let class = view.class(*id);
            let now = per_cpu(*n, target_cpu_ns);
            let often = now.max(per_cpu(class.attempted, self.target_cpu_ns));
            calls.rate += often;
            calls.price += often * class.prices.hit.ns;
            calls.cheapest_ns = calls.cheapest_ns.min(class.prices.hit.ns);
        }
        calls
    }
}
