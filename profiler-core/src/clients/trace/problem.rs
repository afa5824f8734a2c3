//! From what is known to the question that the planner is asked.

use super::datapoints;
use super::loads::worth_of_call;
use super::rate::Rates;
use super::spread::Spreads;
use super::timed::TimedClasses;
use crate::burst::{self, BurstPrices, CLOSEST_WINDOWS_S, MOST_WINDOWS_HZ};
use crate::class::{ClassId, ExitMode, RecordKind};
use crate::controller::PlanShares;
use crate::ledger::{FLOOR_CPU_PER_S, ThreadBounds};
use crate::plan::{
    self, ClassWindows, Objective, Options, PlanClass, PlanError, Problem, Range, Strategy, WindowRules,
};
use crate::run::arbiter::{Arbiter, Claims, LEAST_SAMPLING_SHARE, OPERATIONS_SHARE, bystanders};
use crate::run::view::{ClassView, View};
use crate::stats::{Interval, counts::wilson, z_quantile};
use crate::survey::RateEstimate;
use std::collections::BTreeMap;

/// The sampler runs at least so often, if half of the budget pays for it, and at most so often, Hz of target CPU time.
pub const SAMPLING_HZ: (f64, f64) = (19.0, 199.0);

/// Of what a plan can still give away, kept for bursts of what was named for its durations.
const NAMED_PART: f64 = 0.5;

/// Of the weight of a function, so much is added to its reference's: their errors add by their squares. With a half, which is what more windows of a reference bring where both errors are alike, references had a fifth of all
/// windows each, and functions too few to be told at all (log.md, M55).
const HANGS: f64 = 0.2;
/// A reference of a smaller share of the CPU time has its own weight only: plans take none to be less than about that.
const RAREST: f64 = 1e-3;

/// What does not change during a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Nothing but what was named is traced: no survey, no bursts, no samples.
    pub only_named: bool,
    /// Samples per second of target CPU time that the user asked for.
    pub fixed_rate_hz: Option<f64>,
    /// Links are slow to detach, and the target waits for it (perf-event uprobes, tier D): no bursts, no trials.
    pub slow_links: bool,
    /// The run is long enough for links to wait until the price of timing was measured.
    pub links_wait: bool,
    /// What bursts cost beside their hits.
    pub prices: BurstPrices,
    /// What plans are to bring.
    pub objective: Objective,
    /// How long the run is to take, s: intervals are to be narrow at its end.
    pub horizon_s: f64,
}

impl Settings {
    /// What is not traced may be looked at in bursts.
    #[must_use]
    pub fn may_burst(&self) -> bool {
        !self.only_named && !self.slow_links
    }
}

/// What a plan is made from beside the rates.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// What can be seen.
    pub view: &'a View,
    /// Names of the classes, by id.
    pub names: &'a [&'a str],
    /// What may be spent.
    pub arbiter: Arbiter<'a>,
    /// What is spent at present.
    pub claims: &'a Claims,
    /// Operations are followed: their part is reserved.
    pub operations: bool,
    /// What each thread may lose to hits. `None`: there is one thread, or nothing is known of them.
    pub bounds: Option<&'a ThreadBounds<'a>>,
    /// What the run was asked for.
    pub settings: &'a Settings,
    /// The parts of the budget that a plan may count on.
    pub shares: PlanShares,
    /// Whose durations are known well enough.
    pub timed: &'a TimedClasses,
    /// How unlike windows are.
    pub spreads: &'a Spreads,
    /// Functions whose rates hang on those of others, each with that.
    pub hung: &'a [(ClassId, ClassId)],
}

/// What the classes cost that must be traced, CPU s/s.
fn must_cost(problem: &Problem) -> f64 {
    problem.classes.iter().filter(|c| c.must_trace).map(PlanClass::trace_cost).sum()
}

impl Known<'_> {
    /// The planning problem from the rates known, and the classes in its order. Classes that were refused are left out.
    #[must_use]
    pub fn problem(&self, rates: &Rates) -> (Problem, Vec<ClassId>) {
        let cpu = self.view.target.own_cpu.max(FLOOR_CPU_PER_S);
        let price = self.view.samples.price_s * self.arbiter.factor();
        let mut problem = Problem::new(self.budget().max(1e-9), cpu, price);
        (problem.objective, problem.horizon_s) = (self.settings.objective, self.settings.horizon_s);
        problem.windows = self.settings.may_burst().then(|| WindowRules {
            prices: self.settings.prices,
            // What the bucket holds above the part that bursts leave to others is enough for one.
            limit_s: Some(self.arbiter.plan_burst_s().max(1e-9)),
            closest_s: CLOSEST_WINDOWS_S,
            most_per_s: MOST_WINDOWS_HZ * self.shares.windows,
            ..WindowRules::default()
        });
        problem.kept = self.kept(&problem);
        let spreads = self.spreads.all(problem.window_rules().brief_s);
        let mut ids = Vec::new();
        for class in &self.view.classes {
            let traits = &class.traits;
            if traits.refused || traits.dormant || traits.apart {
                continue;
            }
            let mut entry = self.entry(class, rates, cpu);
            entry.windows.spread = spreads.get(&class.id).copied().unwrap_or(entry.windows.spread);
            problem.classes.push(entry);
            ids.push(class.id);
        }
        self.set_sampling(&mut problem, price * cpu);
        self.prefer_named(&mut problem);
        if problem.objective == Objective::Precision {
            weigh_references(&mut problem, &ids, self.hung);
        }
        self.keep_for_bursts(&mut problem);
        (problem, ids)
    }

    /// The durations of a class were asked for by name, and are not known well enough yet. Of one whose calls are recorded each call is wanted: a mean that is known says
    /// nothing of its inputs, nor of the call that will hang.
    pub(super) fn wants_durations(&self, id: ClassId) -> bool {
        let traits = &self.view.class(id).traits;
        let asked = traits.named && traits.kind != RecordKind::Count && traits.exit != ExitMode::None;
        asked && (traits.kind == RecordKind::Record || !self.timed.is_known(id))
    }

    /// Where durations were asked for by name and cannot be traced all the time, at most half of what they leave is traced of others: the rest
    /// is for their bursts. Nothing is kept where no burst of theirs is possible.
    ///
    /// Only with the objective *information*: with *precision* bursts are a part of what is planned.
    pub(super) fn keep_for_bursts(&self, problem: &mut Problem) {
        problem.kept = self.kept(problem);
        let Some(rules) = problem.windows.filter(|_| problem.objective == Objective::Information) else {
            return;
        };
        let bounds = |class: &PlanClass| {
            (0.0, class.windows.limit_s.unwrap_or(f64::INFINITY).min(rules.limit_s.unwrap_or(f64::INFINITY)))
        };
        let bursts = |class: &PlanClass| {
            let rate_hz = class.rate_hz.value;
            let is_first = class.windows.first && !class.must_trace;
            is_first && !burst::lengths(rate_hz, class.tau_s, true, &rules.prices, bounds(class)).is_empty()
        };
        if !problem.classes.iter().any(bursts) {
            return;
        }
        let sampled = problem.sampling.min_hz * problem.sample_cost();
        let free = (problem.room() - sampled - must_cost(problem)).max(0.0);
        problem.kept += NAMED_PART * free;
    }

    /// What is kept for bursts of any class, CPU s/s.
    fn kept(&self, problem: &Problem) -> f64 {
        let is_split = problem.objective == Objective::Information && problem.windows.is_some();
        if is_split { self.shares.bursts * problem.budget } else { 0.0 }
    }

    /// What windows of a class are for.
    fn windows(&self, class: &ClassView) -> ClassWindows {
        let limit_s = self.bounds.map(|b| b.burst_limit_s(class.id)).filter(|s| s.is_finite());
        // A count that was asked for is a count, and so is a call; a duration is known well enough some time.
        let counted = class.traits.named && class.traits.kind == RecordKind::Count;
        let is_precise = self.settings.objective == Objective::Precision;
        let first = self.wants_durations(class.id) || is_precise && counted;
        ClassWindows { first, limit_s, ..ClassWindows::default() }
    }

    /// What the planner would decide at these rates, class by class.
    #[must_use]
    pub fn decisions(&self, rates: &[RateEstimate]) -> Vec<&'static str> {
        let known: Rates = rates.iter().map(|r| (r.class, r.into())).collect();
        let (mut problem, ids) = self.problem(&known);
        // Trace or sample: bursts are for what is neither.
        if problem.objective == Objective::Precision {
            // Samples count no calls.
            let worths: Vec<f64> =
                problem.classes.iter().map(|class| worth_of_call(&problem, class)).collect();
            for (class, worth) in problem.classes.iter_mut().zip(worths) {
                (class.weight, class.rho) = (worth, Range::from(0.0));
            }
        }
        (problem.objective, problem.windows) = (Objective::Information, None);
        // Asked twice per class and round of a survey: the paper's approximation, which takes microseconds.
        let Ok(plan) = plan::solve(&problem, Strategy::Approximation, &Options::default()) else {
            return vec!["sample"; rates.len()];
        };
        let by_id: BTreeMap<ClassId, &'static str> =
            ids.iter().zip(&plan.classes).map(|(id, c)| (*id, c.decision.name())).collect();
        rates.iter().map(|r| by_id.get(&r.class).copied().unwrap_or("sample")).collect()
    }

    /// What plan and bursts may spend, CPU s/s: the budget less the reserve, the price of context switches and that of the
    /// progress metric.
    pub(super) fn budget(&self) -> f64 {
        self.arbiter.planned(self.shares.planned, self.claims, self.operations)
    }

    /// That what must be traced costs more than `problem` has room for, in terms of the budget that was given: with what is taken off before the plan.
    ///
    /// ```text
    /// room = ((planned - reserved) B - claims) (1 - kept) >= must,   so   B = (must / (1 - kept) + claims) / (planned - reserved)
    /// ```
    /// planned, kept: parts of plans; reserved: part for operations, where they are followed.
    pub(super) fn in_terms_of_the_budget(&self, error: PlanError, problem: &Problem) -> PlanError {
        let PlanError::Infeasible { what, unit, .. } = error else { return error };
        let budget = self.arbiter.allowed();
        let reserved = if self.operations { OPERATIONS_SHARE } else { 0.0 };
        let claims = self.claims.switches + self.claims.metric + self.claims.activities;
        let kept = self.kept(problem) / problem.budget;
        let needed = (must_cost(problem) / (1.0 - kept) + claims) / (self.shares.planned - reserved);
        let operations = if self.operations { ", operations" } else { "" };
        let what = format!("{what}, context switches{operations} and the reserve");
        PlanError::Infeasible { what, needed, budget, unit }
    }

    /// What functions that were asked for by name may cost beside what must be traced, CPU s/s: all of their calls, or as many as their models need. As
    /// much as there is while a rate is not known: nobody can tell whether they fit.
    fn named_cost(&self, problem: &Problem) -> f64 {
        let is_named =
            |class: &PlanClass| class.id.is_some_and(|id| self.view.class(ClassId(id)).traits.named);
        let mut together = Together::default();
        for class in problem.classes.iter().filter(|class| !class.must_trace && is_named(class)) {
            if class.calls_seen.is_none() && class.never_trace {
                return f64::INFINITY;
            }
            together = together.with(class, class.windows.most_duty.unwrap_or(1.0));
        }
        together.most()
    }

    /// `sample_cost`: CPU s/s that one sample per second of target CPU time takes.
    fn set_sampling(&self, problem: &mut Problem, sample_cost: f64) {
        if self.view.samples.off {
            problem.sampling.min_hz = 0.0;
            problem.sampling.max_hz = 0.0;
            return;
        }
        // What must be traced is traced, whatever samples would take.
        let room = (problem.room() - must_cost(problem)).max(0.0);
        let payable_hz = room / sample_cost.max(1e-12);
        let half_hz = LEAST_SAMPLING_SHARE * payable_hz;
        let payable_hz = payable_hz.min(self.bearable_hz());
        let half_hz = half_hz.min(payable_hz);
        let (least, most) = match self.settings.fixed_rate_hz {
            // A rate that was asked for beside functions that were is what these leave, half at the least.
            Some(hz) => {
                // A little more, or rounding may leave one function too little.
                let named = self.named_cost(problem) * (1.0 + 1e-9);
                let left_hz = (room - named) / sample_cost.max(1e-12);
                let hz = hz.min(half_hz.max(left_hz)).min(payable_hz);
                (hz, hz)
            }
            None => (SAMPLING_HZ.0.min(half_hz), SAMPLING_HZ.1.min(self.bearable_hz())),
        };
        (problem.sampling.min_hz, problem.sampling.max_hz) = (least, most);
    }

    /// Samples per CPU second that others may be made to pay for: events per CPU interrupt whatever runs there, and stay for good.
    fn bearable_hz(&self) -> f64 {
        if !self.view.samples.per_cpu {
            return f64::INFINITY;
        }
        let cpus = self.view.target.cpus;
        let foreign = (f64::from(cpus) - self.view.target.own_cpu).max(0.0);
        bystanders(cpus) / (foreign * self.view.samples.price_s).max(1e-12)
    }

    /// One class as the planner sees it, with prices as the ledger charges them.
    fn entry(&self, class: &ClassView, rates: &Rates, cpu: f64) -> PlanClass {
        let traits = &class.traits;
        // A rate that is none would refuse the whole plan.
        let known = rates.get(&class.id).copied().filter(|rate| rate.hz.is_valid());
        let hz = known.map_or(Range::from(0.0), |rate| rate.hz);
        let tau_s = class.tau_ns(cpu / hz.value) * 1e-9 * self.arbiter.hit_factor();
        let name = self.names.get(class.id.0 as usize).copied().unwrap_or_default();
        let mut entry = PlanClass::new(name, hz, self.rho(class), tau_s).weight(traits.weight);
        entry.id = Some(class.id.0);
        entry.calls_seen = known.map(|rate| rate.calls);
        entry.windows = self.windows(class);
        // What could not be surveyed may be anything: it is tried in bursts first.
        // Not by perf-event uprobes, whose detaching stalls the target: what was named is traced under its quota.
        let slow = self.settings.slow_links;
        // What is attached before the program runs has no rate: it begins with what the bucket lends.
        let may_be_traced =
            known.is_some() || self.settings.only_named || self.view.target.is_held || slow && traits.named;
        let unknown = !may_be_traced;
        entry.never_trace = unknown;
        entry.must_trace = traits.must && !unknown;
        let most_duty = datapoints::most_duty(class.points, hz.value);
        if let Some(duty) = most_duty.filter(|_| !traits.must && !unknown && self.settings.may_burst()) {
            (entry.windows.most_duty, entry.windows.only, entry.never_trace) = (Some(duty), true, true);
            entry.windows.first = false;
        }
        entry
    }

    /// Classes that the user named for counting or timing are traced as long as they fit together, those that were seen to be called
    /// first, the cheapest first: who asks for a count wants a count, whatever the samples would be worth.
    fn prefer_named(&self, problem: &mut Problem) {
        let reserved = problem.sampling.min_hz * problem.sample_cost();
        let left = problem.room() - reserved - must_cost(problem);
        let mut named: Vec<usize> = (0..problem.classes.len())
            .filter(|&i| {
                let class = &problem.classes[i];
                !class.must_trace
                    && !class.never_trace
                    && class.id.is_some_and(|id| self.view.class(ClassId(id)).traits.named)
            })
            .collect();
        let cost = |i: usize| problem.classes[i].trace_cost();
        named.sort_by(|&a, &b| {
            let [a_unseen, b_unseen] = [a, b].map(|i| is_unseen(&problem.classes[i]));
            a_unseen.cmp(&b_unseen).then(cost(a).total_cmp(&cost(b)))
        });
        let mut together = Together::default();
        for i in named {
            let with = together.with(&problem.classes[i], 1.0);
            if with.most() <= left {
                together = with;
                problem.classes[i].must_trace = true;
            }
        }
    }

    /// `rho_i`: on-CPU s per wall s with the class on the stack, from the samples so far.
    fn rho(&self, class: &ClassView) -> Range {
        let (samples, cpu) = (&self.view.samples, self.view.target.own_cpu);
        if samples.n == 0 {
            return Range { value: 0.0, low: 0.0, high: cpu };
        }
        let value = cpu * class.sampled_ns as f64 / samples.cpu_ns.max(1) as f64;
        let Interval { low, high } = wilson(class.samples as f64, samples.n as f64, z_quantile(0.95));
        Range { value, low: (cpu * low).min(value), high: (cpu * high).max(value) }
    }
}

/// A reference that bursts are for counts for what it is itself, and for the functions whose rates hang on its own:
/// ```text
/// W_r = w_r + HANGS sum w_f,   w: share of the CPU time, times --weight
/// ```
/// What is traced, or comes first because it was named, has all that it can use.
fn weigh_references(problem: &mut Problem, ids: &[ClassId], hung_on: &[(ClassId, ClassId)]) {
    let index: BTreeMap<ClassId, usize> = ids.iter().enumerate().map(|(i, id)| (*id, i)).collect();
    let share = |i: usize| problem.classes[i].weight * problem.classes[i].rho.value;
    let mut hung: BTreeMap<usize, f64> = BTreeMap::new();
    for (function, reference) in hung_on {
        if let Some((function, reference)) = index.get(function).zip(index.get(reference)) {
            *hung.entry(*reference).or_default() += HANGS * share(*function);
        }
    }
    let may = |i: usize| {
        let class = &problem.classes[i];
        !class.must_trace
            && !class.windows.first
            && class.weight > 0.0
            && class.rho.value >= RAREST * problem.target_cpu
    };
    let more: Vec<(usize, f64)> = hung.into_iter().filter(|(i, _)| may(*i)).collect();
    for (i, hung) in more {
        let class = &mut problem.classes[i];
        class.weight += hung / class.rho.value;
    }
}

/// No call of it was seen.
fn is_unseen(class: &PlanClass) -> bool {
    class.calls_seen.unwrap_or(0) == 0
}

/// What functions cost together, with the upper end of it: a plan that must be taken back tomorrow is no plan. Rates that were seen rise together, with
/// the load; what was never called is chance, and errors of chance add by squares: each at its most, hundreds of them would leave no room.
#[derive(Clone, Copy, Default)]
struct Together {
    /// CPU s/s.
    sum: f64,
    /// Of what may be more by chance, (CPU s/s)^2.
    squares: f64,
}

impl Together {
    /// With this one for that part of the time.
    fn with(self, class: &PlanClass, part: f64) -> Self {
        let most = class.rate_hz.high.max(class.rate_hz.value) * class.tau_s * part;
        let value = class.trace_cost() * part;
        if is_unseen(class) {
            Self { sum: self.sum + value, squares: self.squares + (most - value).powi(2) }
        } else {
            Self { sum: self.sum + most, ..self }
        }
    }

    fn most(self) -> f64 {
        self.sum + self.squares.sqrt()
    }
}
