//! From rates to a plan, and from a plan to orders for the controller and rows of the recording.

use super::loads::{load, too_much, traced};
use super::problem::Known;
use super::rate::Rates;
use crate::burst::{self, BurstClass, BurstOrder};
use crate::class::ClassId;
use crate::controller::ClassOrder;
use crate::plan::{self, Decision, Options, Plan, PlanError, Problem, Strategy};
use crate::recording::PlanRow;
use std::collections::BTreeMap;

/// Classes at most that are taken out of a plan for the sake of single threads.
const MOST_HEAVY: usize = 32;

/// Classes looked at in all subproblems together before the search for a better plan ends: some 20 ms. The event loop
/// must turn; the plan that is returned then has a valid bound and an honest gap.
const LIVE_WORK: u64 = 1_000_000;

/// A plan that is ready to be put to work.
#[derive(Debug, Clone)]
pub struct Planned {
    /// What was asked.
    pub problem: Problem,
    /// The answer.
    pub plan: Plan,
    /// For the controller.
    pub orders: Vec<ClassOrder>,
    /// For the recording.
    pub rows: Vec<PlanRow>,
    /// Sample once per so much CPU time of the target, ns; 0: not at all.
    pub period_ns: u64,
    /// What its bursts are to take, CPU s/s.
    pub bursts: f64,
}

impl Planned {
    /// Its number and what it predicts, for people.
    #[must_use]
    pub fn in_words(&self, number: u32) -> String {
        let traced = self.orders.iter().filter(|o| o.trace).count();
        format!(
            "plan {number}: {traced} of {} functions traced, {:.0} samples/s, predicted {:.2} %",
            self.orders.len(),
            self.plan.sampling_hz,
            self.plan.overhead * 100.0
        )
    }
}

/// Makes the plan of this `number` from the rates.
///
/// # Errors
/// The budget does not allow what must be traced.
pub fn make(known: &Known<'_>, rates: &Rates, number: u32) -> Result<Planned, PlanError> {
    let (mut problem, ids) = known.problem(rates);
    let (plan, heavy) = known.solve_for_threads(&mut problem, &ids)?;
    let bursts = known.burst_orders(&problem, &ids, &plan, &heavy);
    let reasons = plan.explain(&problem);
    let mut orders = Vec::with_capacity(ids.len());
    let mut rows = Vec::with_capacity(ids.len());
    for (i, id) in ids.iter().enumerate() {
        let reason = if let Some(tid) = heavy.get(&i) {
            format!("all of its calls would take more from thread {tid} than that may lose")
        } else if problem.classes[i].never_trace {
            "its rate is not known yet: tried in bursts first".to_owned()
        } else {
            reasons.get(i).map(|r| r.reason.clone()).unwrap_or_default()
        };
        orders.push(known.order(&problem, &plan, (i, *id), bursts[i]));
        let row = row(&problem, &plan, (i, *id), bursts[i], reason);
        rows.push(PlanRow { time_ns: known.view.now_ns, plan: number, ..row });
    }
    let period_ns = if plan.sampling_hz > 0.0 { (1e9 / plan.sampling_hz) as u64 } else { 0 };
    let bursts = bursts.iter().flatten().map(BurstOrder::cost_per_s).sum();
    Ok(Planned { problem, plan, orders, rows, period_ns, bursts })
}

impl Known<'_> {
    /// The plan, made again without what one thread could not bear: by index of the class, that thread.
    fn solve_for_threads(
        &self,
        problem: &mut Problem,
        ids: &[ClassId],
    ) -> Result<(Plan, BTreeMap<usize, u32>), PlanError> {
        let options = Options { work_limit: Some(LIVE_WORK), ..Options::default() };
        let must = |id: ClassId| self.view.class(id).traits.must;
        let mut heavy = BTreeMap::new();
        loop {
            let plan = plan::solve(problem, Strategy::Auto, &options)?;
            let found = self.bounds.and_then(|b| too_much(b, problem, &plan, ids, must));
            let Some((index, tid)) = found.filter(|_| heavy.len() < MOST_HEAVY) else {
                return Ok((plan, heavy));
            };
            problem.classes[index].must_trace = false;
            problem.classes[index].never_trace = true;
            heavy.insert(index, tid);
            // Bursts of it may be possible, which need room then.
            self.keep_for_bursts(problem);
        }
    }

    /// The bursts of what `plan` does not trace, from what it leaves: by class of the problem.
    fn burst_orders(
        &self,
        problem: &Problem,
        ids: &[ClassId],
        plan: &Plan,
        heavy: &BTreeMap<usize, u32>,
    ) -> Vec<Option<BurstOrder>> {
        if !self.settings.may_burst() {
            return vec![None; ids.len()];
        }
        let classes: Vec<BurstClass> = (0..ids.len())
            .map(|i| {
                let class = &problem.classes[i];
                // What is traced, or not known, is not a matter of bursts: no rate, no order.
                let known = !class.never_trace || heavy.contains_key(&i);
                let wanted = plan.classes[i].decision == Decision::Sample && known;
                let of_class = self.burst_class(ids[i], class);
                BurstClass { rate_hz: if wanted { of_class.rate_hz } else { 0.0 }, ..of_class }
            })
            .collect();
        let left = self.budget() - plan.cost;
        // What the bucket holds above the part that bursts leave to others is enough for one.
        let limit_s = self.arbiter.plan_burst_s();
        let mut orders = burst::schedule(&classes, &self.settings.prices, left, limit_s);
        if let Some(bounds) = self.bounds {
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

    /// What the controller is told of class `i` of the problem.
    fn order(
        &self,
        problem: &Problem,
        plan: &Plan,
        (i, id): (usize, ClassId),
        burst: Option<BurstOrder>,
    ) -> ClassOrder {
        let class = &problem.classes[i];
        let traced = matches!(plan.classes[i].decision, Decision::Trace | Decision::Burst { .. });
        ClassOrder {
            class: id,
            tau_ns: class.tau_s * 1e9,
            weight: class.weight,
            rate_hz: (class.rate_hz.low, class.rate_hz.value, class.rate_hz.high),
            rho: class.rho.value,
            must: class.must_trace,
            trace: traced,
            // What was asked for by name and is too dear is still looked at now and then.
            trial: !traced
                && burst.is_none()
                && !self.settings.slow_links
                && (self.view.class(id).traits.named || class.never_trace),
            burst,
        }
    }
}

/// Class `i` of the problem as a row of the recording, without number and time of the plan.
fn row(
    problem: &Problem,
    plan: &Plan,
    (i, id): (usize, ClassId),
    burst: Option<BurstOrder>,
    reason: String,
) -> PlanRow {
    let (class, decision) = (&problem.classes[i], plan.classes[i].decision);
    PlanRow {
        time_ns: 0,
        plan: 0,
        class_id: id.0,
        decision: burst.map_or(decision.name(), |_| "burst").to_owned(),
        duty: burst.map_or(decision.duty(), |b| b.duty),
        rate_hz: class.rate_hz.value,
        rate_low_hz: class.rate_hz.low,
        rate_high_hz: class.rate_hz.high,
        rho: class.rho.value,
        weight: class.weight,
        tau_s: class.tau_s,
        cost: plan.classes[i].cost + burst.map_or(0.0, |b| b.cost_per_s()),
        reason: match burst {
            Some(burst) => format!("{reason}; {}", in_words(&burst)),
            None => reason,
        },
        sampling_hz: plan.sampling_hz,
        value: plan.value,
        upper_bound: plan.upper_bound,
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
