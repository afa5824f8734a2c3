//! The problem in the form that the solvers work on: one item per free choice, everything else summed up.
//!
//! A class that must be traced, or cannot be, is no choice: it goes into the base. Classes whose counts follow
//! from one another (§4.3.1) are one item: the cheapest is traced, the others are derived.
//! With `t_i(s)` the value of item `i` traced and `u_i(s)` sampled,
//!
//! ```text
//! value(T, s) = base(s) + sum_{i in T} t_i(s) + sum_{i not in T} u_i(s)
//! t_i(s) = W F (of the traced class) + sum_{derived j} max(W_j F_j, s W_j rho_j)      u_i(s) = s sum W rho
//! s sample_cost + base_cost + sum_{i in T} c_i <= b
//! ```
//!
//! Both `t_i` and `u_i` grow with `s`, so for a fixed `T` the best `s` is the largest that fits.

use super::least::{Minimum, Ruled, Rules};
use super::solution::PlanError;
use super::{ClassPlan, Decision, Plan, Problem, Strategy};
use std::collections::HashMap;

/// Relative slack when a cost is compared with the budget: sums of prices are floating-point, and a set of
/// classes that fits exactly must not be lost to the last bit. No price is known to 12 digits.
pub(super) const SLACK: f64 = 1e-12;

/// A sampling rate without a limit: products with weights and shares stay finite.
const LARGEST_HZ: f64 = 1e30;

/// One free choice.
#[derive(Debug, Clone)]
pub(super) struct Item {
    /// The class that is traced if the item is.
    pub rep: u32,
    /// `c_i`, CPU s/s.
    pub cost: f64,
    /// `W F` of the traced class.
    pub full: f64,
    /// Sum of `W rho` over the item's classes.
    pub slope: f64,
    /// Sampling rate from which the classes' minimum rates are met by samples alone; 0 if they have none.
    pub min_s: f64,
    /// Classes derived when the item is traced.
    pub derived: Vec<Derived>,
}

impl Item {
    /// Sum of `W rho` of the derived classes.
    pub fn derived_slope(&self) -> f64 {
        self.derived.iter().map(|d| d.slope).sum()
    }

    /// Value that tracing adds whatever `s` is: `W F` of the traced class and of the derived counts.
    pub fn full_at_least(&self) -> f64 {
        self.full + self.derived.iter().map(|d| d.full).sum::<f64>()
    }

    /// `t_i(s)`.
    pub fn traced_value(&self, s: f64) -> f64 {
        self.full + self.derived.iter().map(|d| d.value(s)).sum::<f64>()
    }

    /// `p_i(s) = t_i(s) - u_i(s)`: what tracing adds over sampling.
    pub fn profit(&self, s: f64) -> f64 {
        self.traced_value(s) - s * self.slope
    }
}

/// A class whose count is derived: it is worth its events, or its samples if those are more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Derived {
    /// The class.
    pub class: u32,
    /// `W F`.
    pub full: f64,
    /// `W rho`.
    pub slope: f64,
}

impl Derived {
    pub fn value(self, s: f64) -> f64 {
        self.full.max(s * self.slope)
    }
}

/// A solution on items.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub value: f64,
    pub s: f64,
    /// Traced items, ascending.
    pub traced: Vec<u32>,
}

/// A problem without free choices of `s` below `s_min` or of the `forced` items: see [`Model::cases`].
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub s_min: f64,
    /// Items that must be traced, because samples at less than their `min_s` do not do.
    pub forced: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Model<'a> {
    pub problem: &'a Problem,
    pub budget: f64,
    /// `tau_s U`.
    pub sample_cost: f64,
    pub s_min: f64,
    pub s_max: f64,
    /// Cost of the must-trace classes.
    pub base_cost: f64,
    /// `W F` of the must-trace classes.
    pub base_full: f64,
    /// Sum of `W rho` of the classes that are only sampled.
    pub base_slope: f64,
    /// Classes derived from must-trace classes: (class, source).
    pub base_derived: Vec<(Derived, u32)>,
    pub items: Vec<Item>,
}

impl<'a> Model<'a> {
    pub fn new(problem: &'a Problem) -> Result<Self, PlanError> {
        problem.validate()?;
        let mut model = Model {
            problem,
            budget: problem.room(),
            sample_cost: problem.sample_cost(),
            s_min: problem.sampling.min_hz,
            s_max: problem.sampling.max_hz,
            base_cost: 0.0,
            base_full: 0.0,
            base_slope: 0.0,
            base_derived: Vec::new(),
            items: Vec::with_capacity(problem.classes.len()),
        };
        if problem.classes.iter().all(|class| class.derived_from.is_none()) {
            for index in 0..problem.classes.len() {
                #[expect(clippy::cast_possible_truncation, reason = "class indexes are below 2^32")]
                model.add_group(&[index as u32])?;
            }
        } else {
            for group in groups(problem) {
                model.add_group(&group)?;
            }
        }
        if model.sample_cost == 0.0 && model.s_max == f64::INFINITY {
            let anything = problem.classes.iter().any(|c| c.weight * c.rho.value > 0.0);
            if anything {
                return Err(PlanError::Unbounded);
            }
            model.s_max = model.s_min;
        }
        model.s_max = model.s_max.min(LARGEST_HZ).max(model.s_min);
        Ok(model)
    }

    fn add_group(&mut self, group: &[u32]) -> Result<(), PlanError> {
        let class = |index: u32| &self.problem.classes[index as usize];
        let weighted = |index: u32| {
            let c = class(index);
            Derived { class: index, full: c.weight * c.traced_hz(), slope: c.weight * c.rho.value }
        };
        let musts: Vec<u32> = group.iter().copied().filter(|&i| class(i).must_trace).collect();
        if let Some(&source) = musts.first() {
            for &index in group {
                let w = weighted(index);
                if class(index).must_trace {
                    self.base_cost += class(index).trace_cost();
                    self.base_full += w.full;
                } else {
                    self.base_derived.push((w, source));
                }
            }
            return Ok(());
        }
        // The paper wants `F_red,i >= F_min,i`; more than all events cannot be asked for.
        let min_s = |index: u32| {
            let c = class(index);
            let wanted = c.min_rate_hz.min(c.traced_hz());
            if wanted > 0.0 { wanted / c.rho.value } else { 0.0 }
        };
        let slope = group.iter().map(|&i| weighted(i).slope).sum();
        let dearest = group.iter().map(|&i| min_s(i)).fold(0.0, f64::max);
        let cheapest = group
            .iter()
            .copied()
            .filter(|&i| !class(i).never_trace)
            .min_by(|&a, &b| class(a).trace_cost().total_cmp(&class(b).trace_cost()));
        if let Some(rep) = cheapest {
            let derived = group.iter().copied().filter(|&i| i != rep).map(weighted).collect();
            let (cost, full) = (class(rep).trace_cost(), weighted(rep).full);
            self.items.push(Item { rep, cost, full, slope, min_s: dearest, derived });
            return Ok(());
        }
        self.base_slope += slope;
        if dearest > self.s_max || dearest == f64::INFINITY {
            let worst = group.iter().copied().max_by(|&a, &b| min_s(a).total_cmp(&min_s(b)));
            // OK because a group has at least one class.
            let name = worst.map(|i| class(i).name.clone()).unwrap_or_default();
            return Err(PlanError::MinRate { class: name, needed_hz: dearest, max_hz: self.s_max });
        }
        self.s_min = self.s_min.max(dearest);
        Ok(())
    }

    /// The same split with the first of identical items traced.
    pub fn canonical(traced: &[u32], twins: &[u32]) -> Vec<u32> {
        let mut count: HashMap<u32, usize> = HashMap::new();
        for &i in traced {
            *count.entry(twins[i as usize]).or_default() += 1;
        }
        let mut chosen = Vec::with_capacity(traced.len());
        for (index, twin) in (0u32..).zip(twins) {
            if let Some(left) = count.get_mut(twin).filter(|left| **left > 0) {
                *left -= 1;
                chosen.push(index);
            }
        }
        chosen
    }

    /// Whether a cost is within the budget.
    pub fn fits(&self, cost: f64) -> bool {
        cost <= self.budget * (1.0 + SLACK)
    }

    /// The rules cost more than the budget: the plan needs at least `needed`.
    pub fn infeasible(&self, needed: f64) -> PlanError {
        PlanError::infeasible(self.problem, needed)
    }

    /// What the rules cost; with bursts or without them.
    pub fn rules(&self, bursts: Option<(f64, f64)>) -> Rules {
        let minimum = |index: u32| {
            let class = &self.problem.classes[index as usize];
            let all_hz = class.traced_hz();
            Minimum { all_hz, wanted_hz: class.min_rate_hz.min(all_hz), rho: class.rho.value }
        };
        let ruled = self.items.iter().filter(|item| item.min_s > self.s_min).map(|item| {
            let members = std::iter::once(item.rep).chain(item.derived.iter().map(|d| d.class));
            Ruled { cost: item.cost, minima: members.map(minimum).collect() }
        });
        Rules {
            base: self.base_cost,
            sample_cost: self.sample_cost,
            s_min: self.s_min,
            s_max: self.s_max,
            bursts,
            ruled: ruled.collect(),
        }
    }

    /// The best sampling rate when everything else costs `cost`; `slope` tells if sampling is worth anything: the
    /// largest that fits, or the least. `cost + s_min sample_cost` must fit.
    pub fn best_s(&self, cost: f64, slope: f64, s_min: f64) -> f64 {
        if slope <= 0.0 {
            return s_min;
        }
        let room = (self.budget - cost).max(0.0);
        let largest = if self.sample_cost > 0.0 { room / self.sample_cost } else { f64::INFINITY };
        largest.min(self.s_max).max(s_min)
    }

    /// Sum of `W rho` with nothing traced but the base.
    pub fn total_slope(&self) -> f64 {
        self.base_slope + self.items.iter().map(|i| i.slope).sum::<f64>()
    }

    /// Value of the base's must-trace classes and of what is derived from them, at `s`.
    pub fn base_value(&self, s: f64) -> f64 {
        self.base_full + self.base_derived.iter().map(|(d, _)| d.value(s)).sum::<f64>()
    }

    /// Whether derived classes might be worth sampling.
    pub fn derived_slope(&self) -> f64 {
        self.base_derived.iter().map(|(d, _)| d.slope).sum()
    }

    /// The solution that traces these items, or `None` if it breaks a rule. Sums in index order, so that a set
    /// has one value however it was found.
    pub fn candidate(&self, mut traced: Vec<u32>) -> Option<Candidate> {
        traced.sort_unstable();
        let mut cost = self.base_cost;
        let mut full = 0.0;
        let mut slope = self.base_slope;
        let mut s_min = self.s_min;
        let mut derived_slope = self.derived_slope();
        let mut next = traced.iter().copied().peekable();
        for (index, item) in (0u32..).zip(&self.items) {
            if next.next_if_eq(&index).is_some() {
                cost += item.cost;
                full += item.full;
                derived_slope += item.derived_slope();
            } else {
                slope += item.slope;
                s_min = s_min.max(item.min_s);
            }
        }
        // Three times the slack: a set that a solver found to fit, summing in its own order, must pass.
        let fits = cost + s_min * self.sample_cost <= self.budget * (1.0 + 3.0 * SLACK);
        if s_min > self.s_max || !fits {
            return None;
        }
        let s = self.best_s(cost, slope + derived_slope, s_min);
        let derived: f64 =
            traced.iter().flat_map(|&i| &self.items[i as usize].derived).map(|d| d.value(s)).sum();
        let value = self.base_value(s) + full + derived + s * slope;
        Some(Candidate { value, s, traced })
    }

    /// For each item, the first item that it could be exchanged with.
    pub fn twins(&self) -> Vec<u32> {
        let mut first: HashMap<[u64; 4], u32> = HashMap::with_capacity(self.items.len());
        let twin = |(index, item): (u32, &Item)| {
            if !item.derived.is_empty() {
                return index;
            }
            let key = [item.cost, item.full, item.slope, item.min_s].map(f64::to_bits);
            *first.entry(key).or_insert(index)
        };
        (0u32..).zip(&self.items).map(twin).collect()
    }

    /// The ways to meet the minimum rates of a binary problem: with the items ordered by `min_s`, trace the first
    /// `k` and sample at `min_s` of the next one at least. Every solution belongs to one of these cases.
    ///
    /// # Errors
    /// [`PlanError::Infeasible`] when none fits.
    pub fn cases(&self) -> Result<Vec<Case>, PlanError> {
        let mut ruled: Vec<u32> =
            (0u32..).zip(&self.items).filter(|(_, item)| item.min_s > self.s_min).map(|(i, _)| i).collect();
        let min_s = |i: u32| self.items[i as usize].min_s;
        ruled.sort_by(|&a, &b| min_s(b).total_cmp(&min_s(a)));
        let mut cases = Vec::new();
        let mut cost = self.base_cost;
        let mut least = f64::INFINITY;
        for k in 0..=ruled.len() {
            if k > 0 {
                cost += self.items[ruled[k - 1] as usize].cost;
            }
            let s_min = ruled.get(k).map_or(self.s_min, |&i| min_s(i));
            if k > 0 && s_min == min_s(ruled[k - 1]) || s_min > self.s_max {
                continue;
            }
            let needed = cost + s_min * self.sample_cost;
            least = least.min(needed);
            if self.fits(needed) {
                cases.push(Case { s_min, forced: ruled[..k].to_vec() });
            }
        }
        if cases.is_empty() {
            return Err(self.infeasible(least));
        }
        Ok(cases)
    }

    /// The plan of a candidate.
    pub fn plan(&self, candidate: &Candidate, strategy: Strategy, upper_bound: f64) -> Plan {
        let duties: Vec<(u32, f64)> = candidate.traced.iter().map(|&i| (i, 1.0)).collect();
        self.plan_with_duties(&duties, candidate.s, strategy, upper_bound)
    }

    /// The plan that attaches these items for these shares of time. The charge of a burst is added to its cost.
    pub fn plan_with_duties(
        &self,
        duties: &[(u32, f64)],
        s: f64,
        strategy: Strategy,
        upper_bound: f64,
    ) -> Plan {
        let classes = &self.problem.classes;
        let sampled = |c: &super::PlanClass| ClassPlan {
            decision: Decision::Sample,
            cost: 0.0,
            value: s * c.weight * c.rho.value,
            burst: None,
        };
        let mut plans: Vec<ClassPlan> = classes.iter().map(sampled).collect();
        for (class, plan) in classes.iter().zip(&mut plans) {
            if class.must_trace {
                let value = class.weight * class.traced_hz();
                *plan = ClassPlan { decision: Decision::Trace, cost: class.trace_cost(), value, burst: None };
            }
        }
        let derive = |plans: &mut Vec<ClassPlan>, d: &Derived, from: u32, duty: f64| {
            let value = duty * d.value(s) + (1.0 - duty) * s * d.slope;
            let decision = Decision::Derived { from: from as usize };
            plans[d.class as usize] = ClassPlan { decision, cost: 0.0, value, burst: None };
        };
        for (d, from) in &self.base_derived {
            derive(&mut plans, d, *from, 1.0);
        }
        for &(index, duty) in duties {
            let item = &self.items[index as usize];
            let own = plans[item.rep as usize].value;
            let (decision, charge) = if duty < 1.0 {
                (Decision::Burst { duty }, self.problem.burst_rules().charge())
            } else {
                (Decision::Trace, 0.0)
            };
            let value = duty * item.full + (1.0 - duty) * own;
            plans[item.rep as usize] =
                ClassPlan { decision, cost: duty * item.cost + charge, value, burst: None };
            for d in &item.derived {
                derive(&mut plans, d, item.rep, duty);
            }
        }
        // Summed in class order: the caller can check both sums from the parts.
        let value: f64 = plans.iter().map(|p| p.value).sum();
        let cost = plans.iter().map(|p| p.cost).sum::<f64>() + s * self.sample_cost;
        finish(self.problem, plans, s, cost, value, strategy, upper_bound)
    }
}

/// Puts a plan together: a cost within the slack of the budget is the budget, a bound is never below the value.
pub(super) fn finish(
    problem: &Problem,
    classes: Vec<ClassPlan>,
    sampling_hz: f64,
    cost: f64,
    value: f64,
    strategy: Strategy,
    upper_bound: f64,
) -> Plan {
    let cost = cost.min(problem.room());
    let upper_bound = upper_bound.max(value);
    let gap = if upper_bound > value { (upper_bound - value) / upper_bound } else { 0.0 };
    let overhead = if problem.target_cpu > 0.0 { cost / problem.target_cpu } else { 0.0 };
    Plan { strategy, classes, sampling_hz, cost, overhead, value, upper_bound, gap, exact_counts: 0.0 }
}

/// Classes connected by `derived_from`, each group in index order.
fn groups(problem: &Problem) -> Vec<Vec<u32>> {
    fn root(parent: &mut [u32], mut i: u32) -> u32 {
        while parent[i as usize] != i {
            parent[i as usize] = parent[parent[i as usize] as usize];
            i = parent[i as usize];
        }
        i
    }
    // OK because a table of 2^32 classes does not fit in memory.
    #[expect(clippy::cast_possible_truncation, reason = "class indexes are below 2^32")]
    let n = problem.classes.len() as u32;
    let mut parent: Vec<u32> = (0..n).collect();
    for (index, class) in (0u32..).zip(&problem.classes) {
        if let Some(from) = class.derived_from {
            #[expect(clippy::cast_possible_truncation, reason = "class indexes are below 2^32")]
            let (a, b) = (root(&mut parent, index), root(&mut parent, from as u32));
            parent[a.max(b) as usize] = a.min(b);
        }
    }
    // The root is the least index of its group, so it is met first.
    let mut place = vec![u32::MAX; n as usize];
    let mut groups: Vec<Vec<u32>> = Vec::with_capacity(n as usize);
    for index in 0..n {
        let r = root(&mut parent, index) as usize;
        if place[r] == u32::MAX {
            #[expect(clippy::cast_possible_truncation, reason = "not more groups than classes")]
            let next = groups.len() as u32;
            place[r] = next;
            groups.push(Vec::new());
        }
        groups[place[r] as usize].push(index);
    }
    groups
}
