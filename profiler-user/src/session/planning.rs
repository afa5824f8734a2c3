//! From what is known to a plan, and from a plan to orders for the controller.

use super::Session;
use super::attach::now_ns;
use super::threads::{load, too_much, traced};
use crate::prober::Tier;
use profiler_core::burst::{self, BurstClass, BurstOrder, BurstPrices};
use profiler_core::class::ClassId;
use profiler_core::controller::ClassOrder;
use profiler_core::plan::{self, Decision, Options, Plan, PlanClass, Problem, Range, Strategy};
use profiler_core::recording::{Charge, PlanRow};
use profiler_core::run::arbiter::LEAST_SAMPLING_SHARE;
use profiler_core::stats::{Interval, counts::wilson, z_quantile};
use profiler_core::survey::RateEstimate;
use std::collections::{BTreeMap, HashMap};

/// The sampler runs at least so often, if half of the budget pays for it, and at most so often, Hz of target CPU time.
const SAMPLING_HZ: (f64, f64) = (19.0, 199.0);

/// Classes at most that are taken out of a plan for the sake of single threads.
const MOST_HEAVY: usize = 32;

/// Classes looked at in all subproblems together before the search for a better plan ends: some 20 ms. The event loop
/// must turn; the plan that is returned then has a valid bound and an honest gap.
const LIVE_WORK: u64 = 1_000_000;

/// A rate and its interval, and the calls seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    hz: Range,
    calls: u64,
}

impl From<&RateEstimate> for Rate {
    fn from(r: &RateEstimate) -> Self {
        // The windows behind the rate may have none where another, too rough for a rate, has.
        Self { hz: r.rate_hz.into(), calls: if r.seen { r.rate_hz.n.max(1) } else { 0 } }
    }
}

impl Session {
    /// The planning problem from the rates known. Classes that were refused are left out.
    pub(super) fn problem_of(&self, rates: &HashMap<ClassId, Rate>) -> (Problem, Vec<ClassId>) {
        let cpu = self.own_cpu.max(profiler_core::ledger::FLOOR_CPU_PER_S);
        let kept = if self.bursts_possible() { self.controller.shares().bursts } else { 0.0 };
        let budget = (self.planned_budget() * (1.0 - kept)).max(1e-9);
        // As the ledger charges them.
        let factor = self.ledger.factor();
        let price = self.sampling.price(&self.cost).seconds() * factor;
        let mut problem = Problem::new(budget, cpu, price);
        let (least, most) = self.fixed_rate_hz.map_or(SAMPLING_HZ, |hz| (hz, hz));
        let affordable = LEAST_SAMPLING_SHARE * budget / (price * cpu).max(1e-12);
        problem.sampling.min_hz = if self.fixed_rate_hz.is_some() { least } else { least.min(affordable) };
        problem.sampling.max_hz = most.max(problem.sampling.min_hz);
        if self.sampling.is_off_for_good() {
            problem.sampling.min_hz = 0.0;
            problem.sampling.max_hz = 0.0;
        }
        let mut ids = Vec::new();
        for class in self.attach.classes() {
            if class.refused.is_some() || class.dormant || self.is_apart(class.id) {
                continue;
            }
            // A rate that is none would refuse the whole plan.
            let known = rates.get(&class.id).copied().filter(|rate| rate.hz.is_valid());
            let hz = known.map_or(Range::from(0.0), |rate| rate.hz);
            let rho = self.rho(class.id);
            let mut entry = PlanClass::new(
                class.candidate.name.clone(),
                hz,
                rho,
                class.tau_ns(cpu / hz.value) * 1e-9 * factor,
            )
            .weight(class.wish.weight);
            entry.id = Some(class.id.0);
            entry.calls_seen = known.map(|rate| rate.calls);
            // What could not be surveyed may be anything: it is tried in bursts first.
            // Not by perf-event uprobes, whose detaching stalls the target: what was named is traced under its quota.
            let slow = self.attach.kernel().tier() == Tier::D;
            // What is attached before the program runs has no rate: it begins with what the bucket lends.
            let unknown =
                known.is_none() && !self.only_named && self.loading.is_none() && !(slow && class.wish.named);
            entry.never_trace = unknown;
            entry.must_trace = class.wish.must && !unknown;
            problem.classes.push(entry);
            ids.push(class.id);
        }
        self.prefer_named(&mut problem);
        (problem, ids)
    }

    /// What plan and bursts may spend, CPU s/s: the budget less the reserve, the price of context switches and that of the
    /// progress metric.
    fn planned_budget(&self) -> f64 {
        self.arbiter().planned(self.controller.shares().planned, &self.claims(), self.operations.is_some())
    }

    /// Perf-event uprobes (tier D) are too slow to detach for bursts.
    fn bursts_possible(&self) -> bool {
        !self.only_named && self.attach.kernel().tier() != Tier::D
    }

    /// The bursts of what `plan` does not trace, from what it leaves: by class of the problem.
    fn burst_orders(
        &self,
        problem: &Problem,
        ids: &[ClassId],
        plan: &Plan,
        heavy: &BTreeMap<usize, u32>,
    ) -> Vec<Option<BurstOrder>> {
        if !self.bursts_possible() {
            return vec![None; ids.len()];
        }
        let bounds = self.thread_bounds();
        let classes: Vec<BurstClass> = (0..ids.len())
            .map(|i| {
                let class = &problem.classes[i];
                // What is traced, or not known, is not a matter of bursts: no rate, no order.
                let known = !class.never_trace || heavy.contains_key(&i);
                let wanted = plan.classes[i].decision == Decision::Sample && known;
                BurstClass {
                    class: ids[i],
                    rate_hz: if wanted { class.rate_hz.value } else { 0.0 },
                    tau_s: class.tau_s,
                    weight: class.weight,
                    spread: 1.0,
                    limit_s: bounds.as_ref().map_or(f64::INFINITY, |b| b.burst_limit_s(ids[i])),
                }
            })
            .collect();
        let left = self.planned_budget() - plan.cost;
        // What the bucket holds above the part that bursts leave to others is enough for one.
        let limit_s = self.arbiter().plan_burst_s();
        let mut orders =
            burst::schedule(&classes, &BurstPrices::new(&self.cost, self.meta.cpus), left, limit_s);
        if let Some(bounds) = bounds {
            let of = |(i, order): (usize, &Option<BurstOrder>)| {
                load(ids[i], &problem.classes[i], order.map_or(0.0, |o| o.cost_per_s()))
            };
            let bursts: Vec<_> = orders.iter().enumerate().map(of).collect();
            let stretch = bounds.stretch(&traced(problem, plan, ids), &bursts);
            for (order, factor) in orders.iter_mut().zip(stretch) {
                *order = order.filter(|_| factor.is_finite()).map(|o| o.rarer(factor));
            }
        }
        orders
    }

    /// The plan, made again without what one thread could not bear: by index of the class, that thread.
    fn solve_for_threads(
        &self,
        problem: &mut Problem,
        ids: &[ClassId],
    ) -> Result<(Plan, BTreeMap<usize, u32>), plan::PlanError> {
        let mut heavy = BTreeMap::new();
        loop {
            let plan = Self::solve(problem)?;
            let must = |id: ClassId| self.attach.class(id).wish.must;
            let found = self.thread_bounds().and_then(|b| too_much(&b, problem, &plan, ids, must));
            let Some((index, tid)) = found.filter(|_| heavy.len() < MOST_HEAVY) else {
                return Ok((plan, heavy));
            };
            problem.classes[index].must_trace = false;
            problem.classes[index].never_trace = true;
            heavy.insert(index, tid);
        }
    }

    /// Classes that the user named for counting or timing are traced as long as they fit together, cheapest first:
    /// who asks for a count wants a count, whatever the samples would be worth.
    fn prefer_named(&self, problem: &mut Problem) {
        let reserved = problem.sampling.min_hz * problem.sample_cost();
        let mut left = problem.budget
            - reserved
            - problem.classes.iter().filter(|c| c.must_trace).map(PlanClass::trace_cost).sum::<f64>();
        let mut named: Vec<usize> = (0..problem.classes.len())
            .filter(|&i| {
                let class = &problem.classes[i];
                !class.must_trace
                    && !class.never_trace
                    && class.id.is_some_and(|id| self.attach.class(ClassId(id)).wish.named)
            })
            .collect();
        named.sort_by(|&a, &b| problem.classes[a].trace_cost().total_cmp(&problem.classes[b].trace_cost()));
        for i in named {
            // With the upper end of the rate: a plan that must be taken back tomorrow is no plan.
            let class = &problem.classes[i];
            let cost = class.rate_hz.high.max(class.rate_hz.value) * class.tau_s;
            if cost > left {
                break;
            }
            left -= cost;
            problem.classes[i].must_trace = true;
        }
    }

    /// `rho_i`: on-CPU s per wall s with the class on the stack, from the samples so far.
    fn rho(&self, id: ClassId) -> Range {
        let shares = self.sampling.shares();
        let n = shares.samples();
        let cpu = self.own_cpu;
        if n == 0 {
            return Range { value: 0.0, low: 0.0, high: cpu };
        }
        let time = shares.of(self.attach.class(id).candidate.key);
        let value = cpu * time.cpu_ns as f64 / shares.cpu_ns().max(1) as f64;
        let Interval { low, high } = wilson(time.samples as f64, n as f64, z_quantile(0.95));
        Range { value, low: (cpu * low).min(value), high: (cpu * high).max(value) }
    }

    /// Solves; must-trace classes that do not fit are an error only if the user said `--trace`.
    ///
    /// # Errors
    /// The budget does not allow what must be traced.
    pub(super) fn solve(problem: &mut Problem) -> Result<Plan, plan::PlanError> {
        plan::solve(problem, Strategy::Auto, &Options { work_limit: Some(LIVE_WORK), ..Options::default() })
    }

    /// Makes a plan from the rates, records it (and `why` it was made) and puts it to work.
    ///
    /// # Errors
    /// The budget does not allow what must be traced.
    pub(super) fn make_plan(
        &mut self,
        rates: &HashMap<ClassId, Rate>,
        why: String,
    ) -> Result<(), plan::PlanError> {
        let (mut problem, ids) = self.problem_of(rates);
        if self.plan_only {
            self.plans += 1;
            self.problem = Some(problem);
            return Ok(());
        }
        let (plan, heavy) = self.solve_for_threads(&mut problem, &ids)?;
        self.plans += 1;
        self.planned_factor = self.ledger.factor();
        self.note_plan(why);
        let now = now_ns();
        let reasons = plan.explain(&problem);
        let bursts = self.burst_orders(&problem, &ids, &plan, &heavy);
        self.planned_bursts = bursts.iter().flatten().map(BurstOrder::cost_per_s).sum();
        let mut orders = Vec::new();
        let mut rows = Vec::new();
        for (i, id) in ids.iter().enumerate() {
            let class = &problem.classes[i];
            let decision = plan.classes[i].decision;
            let traced = matches!(decision, Decision::Trace) || matches!(decision, Decision::Burst { .. });
            orders.push(ClassOrder {
                class: *id,
                tau_ns: class.tau_s * 1e9,
                weight: class.weight,
                rate_hz: (class.rate_hz.low, class.rate_hz.value, class.rate_hz.high),
                rho: class.rho.value,
                must: class.must_trace,
                trace: traced,
                // What was asked for by name and is too dear is still looked at now and then.
                trial: !traced
                    && bursts[i].is_none()
                    && self.attach.kernel().tier() != Tier::D
                    && (self.attach.class(*id).wish.named || class.never_trace),
                burst: bursts[i],
            });
            let reason = if let Some(tid) = heavy.get(&i) {
                format!("all of its calls would take more from thread {tid} than that may lose")
            } else if class.never_trace {
                "its rate is not known yet: tried in bursts first".to_owned()
            } else {
                reasons.get(i).map(|r| r.reason.clone()).unwrap_or_default()
            };
            rows.push(PlanRow {
                time_ns: now,
                plan: self.plans,
                class_id: id.0,
                decision: bursts[i].map_or(decision.name(), |_| "burst").to_owned(),
                duty: bursts[i].map_or(decision.duty(), |b| b.duty),
                rate_hz: class.rate_hz.value,
                rate_low_hz: class.rate_hz.low,
                rate_high_hz: class.rate_hz.high,
                rho: class.rho.value,
                weight: class.weight,
                tau_s: class.tau_s,
                cost: plan.classes[i].cost + bursts[i].map_or(0.0, |b| b.cost_per_s()),
                reason: bursts[i].map_or(reason.clone(), |b| format!("{reason}; {}", in_words(&b))),
                sampling_hz: plan.sampling_hz,
                value: plan.value,
                upper_bound: plan.upper_bound,
            });
        }
        self.writer.send(rows);
        self.save_problem(&problem);
        let period_ns = if plan.sampling_hz > 0.0 { (1e9 / plan.sampling_hz) as u64 } else { 0 };
        let traced = orders.iter().filter(|o| o.trace).count();
        self.warn_verbose(&format!(
            "plan {}: {traced} of {} functions traced, {:.0} samples/s, predicted {:.2} %",
            self.plans,
            orders.len(),
            plan.sampling_hz,
            plan.overhead * 100.0
        ));
        // The first plan may come before the first tokens: half of what the bucket will hold is lent to it, or every
        // busy class would trip at once. A debt is paid back before anything else is spent.
        let tokens = self.arbiter().lent_ns();
        let actions = self.controller.take_plan(now, &orders, period_ns, tokens);
        // Paid once: links closed by the survey and made for the plan say nothing about what is to come.
        let before = self.attach.take_operations();
        self.obey(actions, true);
        let closed = self.attach.take_operations();
        self.ledger.charge_units(Charge::Attach, None, before + closed, self.cost.attach);
        Ok(())
    }

    /// Rates as the controller last saw them, for a new plan: known to a third.
    pub(super) fn present_rates(&self) -> HashMap<ClassId, Rate> {
        self.attach
            .classes()
            .iter()
            // A class that was never hit is quiet if it is watched; else it is not known.
            .filter(|c| c.charged.attempted > 0 || self.controller.is_attached(c.id))
            .filter_map(|c| {
                let value = self.controller.rate_hz(c.id)?;
                let hz = Range { value, low: value / 1.3, high: value * 1.3 };
                Some((c.id, Rate { hz, calls: c.charged.attempted }))
            })
            .collect()
    }
}

/// A burst's order for the plan's reason.
fn in_words(order: &BurstOrder) -> String {
    format!(
        "bursts of at most {} calls or {:.0} ms, every {:.1} s",
        order.quota,
        order.window_ns as f64 * 1e-6,
        order.every_ns as f64 * 1e-9
    )
}
