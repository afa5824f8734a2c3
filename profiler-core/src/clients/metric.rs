//! Counting the progress metric: what it costs, the quotas of the classes that count, and when it is too expensive.
//!
//! ```text
//! hits of the kernel's probe, cost of the classes' hits ─► cost now ─► too expensive for its share: given up, with the reason
//! hits that the quotas let in ─► quota: what half a second brings, less what was taken of it lately
//! ```
//! The metric may take [`METRIC_SHARE`](crate::run::arbiter::METRIC_SHARE) of the budget. Nothing is read here: the agent gives counts when [`Counting::reads_probe`] and
//! [`Counting::reads_classes`] ask for them.

mod cost;
mod quota;

use super::Client;
use crate::class::ClassId;
use crate::ledger::{FLOOR_CPU_PER_S, TokenBucket};
use crate::recording::WindowKind;
use crate::run::order::{Order, Purpose};
use crate::run::suspension::Suspension;
use crate::run::view::{ClassView, View};
use cost::Cost;
use quota::{TakenHits, quota, quota_budget};
use std::collections::BTreeMap;

/// What it took is given back as time passes, at this interval, ns.
const RENEWAL_NS: u64 = 100_000_000;

/// Hits that the kernel's probe has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProbeHits {
    /// Of the target.
    pub own: u64,
    /// Of other processes, which pay and are not counted.
    pub others: u64,
}

/// What the client is told.
#[derive(Debug, Clone, Default)]
pub struct Input {
    /// What holds attaching up.
    pub suspension: Suspension,
    /// CPU s/s that the target uses when all of its threads work.
    pub most_cpu: f64,
    /// Hits of the target that the kernel's probe has counted, where [`Counting::reads_probe`] asks for them.
    pub probed: Option<u64>,
    /// What one of them costs, ns.
    pub probe_ns: f64,
    /// Hits that the quotas have let in, of the classes that [`Counting::reads_classes`] names: it counts what is kept, dropped, and of
    /// bystanders.
    pub admitted: Vec<(ClassId, u64)>,
    /// Why classes that count cannot be attached.
    pub refused: Vec<(ClassId, String)>,
}

/// What the arbiter grants.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The budget; [`METRIC_SHARE`](crate::run::arbiter::METRIC_SHARE) of what it allows is the metric's.
    pub bucket: TokenBucket,
    /// What the budget leaves of the present second, ns.
    pub left_ns: f64,
    /// What may be taken from other processes, CPU s/s.
    pub bystanders: f64,
}

/// Counting the metric, as long as it is counted.
#[derive(Debug, Default)]
pub struct Counting {
    /// The metric in words.
    name: String,
    classes: Vec<ClassId>,
    /// What they have taken.
    taken: BTreeMap<ClassId, TakenHits>,
    /// When they were given their quotas last, ktime ns.
    renewed_ns: u64,
    /// The breaker stopped one of them.
    tripped: bool,
    /// Hits of the kernel's probe that are charged; `None`: there is no probe.
    charged: Option<ProbeHits>,
    cost: Cost,
    /// Why it cannot go on.
    failure: Option<String>,
}

impl Counting {
    /// Counting by `classes`, by a `probe` of the kernel that has counted so much, or by the target itself.
    #[must_use]
    pub fn new(name: String, classes: Vec<ClassId>, probe: Option<ProbeHits>) -> Self {
        Self { name, classes, charged: probe, ..Self::default() }
    }

    /// The metric was found.
    pub fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// The metric's own classes: neither planned nor detached in windows off.
    #[must_use]
    pub fn classes(&self) -> &[ClassId] {
        &self.classes
    }

    /// CPU time that it took from the target so far, ns.
    #[must_use]
    pub fn own_ns(&self) -> f64 {
        self.cost.own_ns()
    }

    /// Hits of its classes cost so much, ns of the target's CPU time.
    pub fn note_cost(&mut self, cost_ns: f64) {
        self.cost.add(cost_ns, 0.0);
    }

    /// The breaker stopped a class through its own quota.
    pub fn note_trip(&mut self, id: ClassId) {
        self.tripped |= self.classes.contains(&id);
    }

    /// An interval of the ledger ends in which the target used `used_ns` of CPU time by itself. `probed`: what the kernel's probe has
    /// counted so far; `price_ns`: what a hit of it costs. Returns the hits that are to be charged.
    pub fn close_interval(
        &mut self,
        elapsed_ns: u64,
        used_ns: f64,
        probed: Option<ProbeHits>,
        price_ns: f64,
    ) -> ProbeHits {
        let mut hits = ProbeHits::default();
        if let (Some(charged), Some(now)) = (&mut self.charged, probed) {
            // Stripes are not read at one instant.
            hits.own = now.own.saturating_sub(charged.own);
            hits.others = now.others.saturating_sub(charged.others);
            *charged = now;
            self.cost.add(hits.own as f64 * price_ns, hits.others as f64 * price_ns);
        }
        self.cost.close_interval(elapsed_ns, used_ns);
        hits
    }

    /// A step has to know what the kernel's probe has counted: an interval of the ledger is too long for a trial count of what happens
    /// all the time.
    #[must_use]
    pub fn reads_probe(&self) -> bool {
        self.charged.is_some() && !self.cost.is_settled()
    }

    /// Classes of which a step has to know what their quotas have let in.
    #[must_use]
    pub fn reads_classes(&self, view: &View) -> Vec<ClassId> {
        let renews = self.renews(view.now_ns);
        let reads = |class: &ClassView| if class.is_open() { renews } else { class.may_open() };
        self.classes.iter().copied().filter(|id| reads(view.class(*id))).collect()
    }

    /// Why it cannot go on, once it cannot.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    fn renews(&self, now: u64) -> bool {
        // A clock that went back renews at once.
        now < self.renewed_ns || now - self.renewed_ns > RENEWAL_NS
    }

    /// It costs no more than it may; or why it does.
    fn check_cost(&self, input: &Input, grant: &Grant) -> Result<(), String> {
        let (name, cost) = (&self.name, &self.cost);
        let allows = |cpu: f64| grant.bucket.allowed(cpu);
        let (own, others) = cost.recent();
        if cost.is_too_expensive(input.most_cpu, grant.left_ns, allows) {
            let cut = grant.bucket.cut_by();
            let cut = if cut > 1.0 { format!(" (cut {cut:.1} times)") } else { String::new() };
            return Err(format!(
                "counting {name} costs {:.3} % of the target's CPU time, more than a tenth of the budget{cut}; name a rarer event \
                 or a variable with --progress",
                100.0 * own / cost.recent_cpu().max(FLOOR_CPU_PER_S)
            ));
        }
        if self.reads_probe()
            && let (Some(charged), Some(counted)) = (self.charged, input.probed)
        {
            let fresh_ns = counted.saturating_sub(charged.own) as f64 * input.probe_ns;
            if cost.takes_it_all(fresh_ns, grant.left_ns, allows(input.most_cpu)) {
                return Err(format!(
                    "counting {name} took {:.1} ms within {:.1} s, and the budget of that second is spent; name a rarer event or a variable with --progress",
                    (cost.own_ns() + fresh_ns) * 1e-6,
                    (cost.watched_ns + 1e8) * 1e-9
                ));
            }
        }
        if others > grant.bystanders {
            return Err(format!(
                "counting {name} takes {:.1} % of a CPU from other processes; name a variable or a function with --progress",
                100.0 * others
            ));
        }
        Ok(())
    }

    /// Gives quotas anew and has classes attached that are off. The error says why one cannot be counted.
    fn keep_classes(
        &mut self,
        input: &Input,
        grant: &Grant,
        view: &View,
        orders: &mut Vec<Order>,
    ) -> Result<(), String> {
        // In a storm of forks nothing is attached, and nothing can be compared.
        if view.target.own_cpu == 0.0 || !input.suspension.may_ask() {
            return Ok(());
        }
        let now = view.now_ns;
        let renews = self.renews(now);
        let allows = |cpu: f64| grant.bucket.allowed(cpu);
        let budget = quota_budget(view.target.own_cpu, grant.bucket.rate(), allows);
        for id in self.classes.clone() {
            let class = view.class(id);
            let full = quota(budget, class.prices.hit.seconds());
            if class.is_open() {
                if renews {
                    orders.push(Order::Quota(id, self.renewed(input, id, full, now)));
                }
            } else if class.may_open() && input.suspension.may_restore() {
                if self.tripped {
                    let name = &self.name;
                    return Err(format!(
                        "the breaker stopped {name}: more calls than a tenth of the budget allows"
                    ));
                }
                let quota = self.renewed(input, id, full, now);
                let (kind, purpose) = (WindowKind::Trace, Purpose::Metric);
                orders.push(Order::Open { class: id, kind, quota, purpose });
            }
            if let Some((_, why)) = input.refused.iter().find(|(other, _)| *other == id) {
                return Err(format!("{} cannot be counted: {why}", self.name));
            }
        }
        if renews {
            self.renewed_ns = now;
        }
        Ok(())
    }

    /// [`TakenHits::renew`] of a class; all of it where the hits are not known.
    fn renewed(&mut self, input: &Input, id: ClassId, full: u64, now: u64) -> u64 {
        let admitted = input.admitted.iter().find(|(other, _)| *other == id);
        let taken = self.taken.entry(id).or_default();
        admitted.map_or(full, |(_, admitted)| taken.renew(full, *admitted, now))
    }
}

impl Client for Counting {
    type Input = Input;
    type Grant = Grant;

    fn claim(&self) -> f64 {
        self.cost.recent().0
    }

    fn step(&mut self, input: Input, grant: &Grant, view: &View, orders: &mut Vec<Order>) {
        let verdict =
            self.check_cost(&input, grant).and_then(|()| self.keep_classes(&input, grant, view, orders));
        if let Err(why) = verdict {
            self.failure = Some(why);
        }
    }
}

#[cfg(test)]
mod tests;
