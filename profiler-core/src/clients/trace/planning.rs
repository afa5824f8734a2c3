//! From rates to a plan, and from a plan to orders for the controller and rows of the recording.

use super::datapoints;
use super::loads::{load, too_much, traced, worth_of_call};
use super::problem::Known;
use super::rate::Rates;
use crate::class::ClassId;
use crate::controller::ClassOrder;
use crate::plan::{self, ClassPlan, Decision, Objective, Options, Plan, PlanError, Problem, Strategy};
use crate::recording::PlanRow;
use std::collections::BTreeMap;

/// Classes at most that are taken out of a plan for the sake of single threads.
const MOST_HEAVY: usize = 32;

/// Steps of the solver (classes looked at in subproblems, lengths of windows) in all plans together until one is put to work. The event loop
/// must turn; the plan that is returned then has a valid bound and an honest gap. Half of it is for the first plan, the other half for those that spare
/// single threads. Of hundreds of functions most matter little, and all else that is done with them takes its time: [`FEW`] functions have half as many steps.
const LIVE_WORK: u64 = 2_000_000;
/// See `LIVE_WORK`.
const FEW: u64 = 1_000;
/// Plans that are made at most, each without what single threads could not bear of those before.
const MOST_PLANS: u64 = 4;

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
    /// What it takes for the spread of windows, of each class.
    pub fn spreads(&self) -> impl Iterator<Item = (ClassId, f64)> + '_ {
        self.orders.iter().map(|o| o.class).zip(self.problem.classes.iter().map(|c| c.windows.spread))
    }

    /// Its number and what it predicts, for people.
    #[must_use]
    pub fn in_words(&self, number: u32) -> String {
        let traced = self.orders.iter().filter(|o| o.trace).count();
        let bursts = self.orders.iter().filter(|o| o.burst.is_some()).count();
        format!(
            "plan {number}: {traced} of {} functions traced, {bursts} in bursts, {:.0} samples/s, predicted {:.2} %; {}",
            self.orders.len(),
            self.plan.sampling_hz,
            self.plan.overhead * 100.0,
            self.plan.worth_in_words(&self.problem)
        )
    }
}

/// Makes the plan of this `number` from the rates.
///
/// # Errors
/// The budget does not allow what must be traced.
pub fn make(known: &Known<'_>, rates: &Rates, number: u32) -> Result<Planned, PlanError> {
    let (mut problem, ids) = known.problem(rates);
    let solved = known.solve_for_threads(&mut problem, &ids);
    let (mut plan, heavy) = solved.map_err(|error| known.in_terms_of_the_budget(error, &problem))?;
    known.spare_threads(&problem, &ids, &mut plan);
    let reasons = plan.explain(&problem);
    let mut orders = Vec::with_capacity(ids.len());
    let mut rows = Vec::with_capacity(ids.len());
    for (i, id) in ids.iter().enumerate() {
        let burst = plan.classes[i].burst;
        let reason = if let Some(tid) = heavy.get(&i) {
            let bursts = burst.map(|order| format!("; {}", order.in_words())).unwrap_or_default();
            format!("all of its calls would take more from thread {tid} than that may lose{bursts}")
        } else if let Some(duty) = problem.classes[i].windows.most_duty {
            let bursts = burst.map_or_else(|| "no burst fits".to_owned(), |order| order.in_words());
            let points = known.view.class(*id).points;
            let why = if datapoints::is_shared(points) {
                format!("it shares {:.0} recorded calls a second with its group", points.shared_hz)
            } else {
                "it has the data points that its model needs".to_owned()
            };
            format!("{why}; {:.2} % of its calls keep it so: {bursts}", 100.0 * duty)
        } else if problem.classes[i].never_trace {
            "its rate is not known yet: tried in bursts first".to_owned()
        } else {
            reasons.get(i).map(|r| r.reason.clone()).unwrap_or_default()
        };
        orders.push(known.order(&problem, &plan, (i, *id)));
        let row = row(&problem, &plan, (i, *id), reason);
        rows.push(PlanRow { time_ns: known.view.now_ns, plan: number, ..row });
    }
    let period_ns = if plan.sampling_hz > 0.0 { (1e9 / plan.sampling_hz) as u64 } else { 0 };
    let bursts = plan.classes.iter().filter(|c| c.burst.is_some()).map(|c| c.cost).sum();
    Ok(Planned { problem, plan, orders, rows, period_ns, bursts })
}

/// Steps that the solver may take after so many plans of `n` functions: `LIVE_WORK / (1 + n / FEW)` for all plans.
const fn work_of(plans: u64, n: usize) -> u64 {
    let all = LIVE_WORK * FEW / (FEW + n as u64);
    all / 2 / if plans == 0 { 1 } else { MOST_PLANS - 1 }
}

impl Known<'_> {
    /// The plan, made again without what one thread could not bear: by index of the class, that thread.
    fn solve_for_threads(
        &self,
        problem: &mut Problem,
        ids: &[ClassId],
    ) -> Result<(Plan, BTreeMap<usize, u32>), PlanError> {
        let must = |id: ClassId| self.view.class(id).traits.must;
        let mut heavy = BTreeMap::new();
        let mut plans = 0;
        loop {
            let options =
                Options { work_limit: Some(work_of(plans, problem.classes.len())), ..Options::default() };
            let plan = plan::solve(problem, Strategy::Auto, &options)?;
            plans += 1;
            let most = if plans < MOST_PLANS { MOST_HEAVY - heavy.len() } else { 0 };
            let found = self.bounds.map(|b| too_much(b, problem, &plan, ids, must, most)).unwrap_or_default();
            if found.is_empty() {
                return Ok((plan, heavy));
            }
            for (index, tid) in found {
                problem.classes[index].must_trace = false;
                problem.classes[index].never_trace = true;
                problem.classes[index].windows.only = true;
                heavy.insert(index, tid);
            }
            // Bursts of them may be possible, which need room then.
            self.keep_for_bursts(problem);
        }
    }

    /// Bursts are made rarer where threads that they come to could not bear them beside what is traced.
    fn spare_threads(&self, problem: &Problem, ids: &[ClassId], plan: &mut Plan) {
        let Some(bounds) = self.bounds else { return };
        let of = |(i, planned): (usize, &ClassPlan)| {
            load(ids[i], problem, i, planned.burst.map_or(0.0, |o| o.cost_per_s()))
        };
        let bursts: Vec<_> = plan.classes.iter().enumerate().map(of).collect();
        let stretch = bounds.stretch(&traced(problem, plan, ids), &bursts);
        for (planned, factor) in plan.classes.iter_mut().zip(stretch) {
            let Some(order) = planned.burst.filter(|_| factor != 1.0) else { continue };
            planned.burst = Some(order.rarer(factor)).filter(|_| factor.is_finite());
            planned.decision = match planned.burst {
                Some(order) => Decision::Burst { duty: order.duty },
                None => Decision::Sample,
            };
            let before = std::mem::replace(&mut planned.cost, 0.0);
            planned.cost = planned.burst.map_or(0.0, |_| before / factor);
            plan.cost -= before - planned.cost;
        }
        plan.overhead = plan.cost / problem.target_cpu.max(f64::MIN_POSITIVE);
        plan::value_anew(problem, plan);
    }

    /// What the controller is told of class `i` of the problem.
    fn order(&self, problem: &Problem, plan: &Plan, (i, id): (usize, ClassId)) -> ClassOrder {
        let (class, burst) = (&problem.classes[i], plan.classes[i].burst);
        let traced = plan.classes[i].decision == Decision::Trace;
        ClassOrder {
            class: id,
            tau_ns: class.tau_s * 1e9,
            weight: worth_of_call(problem, class),
            rate_hz: (class.rate_hz.low, class.rate_hz.value, class.rate_hz.high),
            // What samples see of it is no count: it is worth nothing less for that.
            rho: if problem.objective == Objective::Precision { 0.0 } else { class.rho.value },
            must: class.must_trace,
            named: self.view.class(id).traits.named,
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
fn row(problem: &Problem, plan: &Plan, (i, id): (usize, ClassId), reason: String) -> PlanRow {
    let (class, decision) = (&problem.classes[i], plan.classes[i].decision);
    PlanRow {
        time_ns: 0,
        plan: 0,
        class_id: id.0,
        decision: decision.name().to_owned(),
        duty: decision.duty(),
        rate_hz: class.rate_hz.value,
        rate_low_hz: class.rate_hz.low,
        rate_high_hz: class.rate_hz.high,
        rho: class.rho.value,
        weight: class.weight,
        tau_s: class.tau_s,
        cost: plan.classes[i].cost,
        reason,
        sampling_hz: plan.sampling_hz,
        value: plan.value,
        upper_bound: plan.upper_bound,
        of_widths: Some(problem.objective == Objective::Precision),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_plans_together_keep_to_the_work() {
        for (n, most) in [(0, LIVE_WORK), (1_000, LIVE_WORK / 2), (5_000, LIVE_WORK / 6)] {
            let all = (0..MOST_PLANS).map(|plans| work_of(plans, n)).sum::<u64>();
            assert!((most - 3..=most).contains(&all), "{n}: {all}");
        }
    }
}
