//! The policies, one step a window: what was seen goes in, what the kernel program is told comes out.

use super::attach::{InnerCost, Slices};
use super::budget::OperationBudget;
use super::cycle::{Cycle, CycleReport};
use super::evaluate::{Evaluation, as_printed, equivalence};
use super::orders::{ClassOrders, Orders, PolicyKind};
use super::rate::{RateAdapter, Revision};
use super::reference::ReferenceComparison;
use super::tithe::Allocator;
use super::{AdaptConfig, OperationClassId, WindowSummary, config::ConfigError};
use std::collections::BTreeMap;

/// What a step did and decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Orders for the next window.
    pub orders: Orders,
    /// What Algorithm 2 did; `None` for policies without it.
    pub revision: Option<Revision>,
    /// What it compared.
    pub comparison: Option<ReferenceComparison>,
    /// The sample of the cycle so far.
    pub evaluation: Evaluation,
    /// The cycle that this window ended.
    pub release: Option<CycleReport>,
    /// A new cycle begins: the counts of Algorithm 1 start at 0.
    pub new_cycle: bool,
    /// The budget lowered the rate.
    pub limited: bool,
}

/// A policy with its state.
#[derive(Debug, Clone)]
pub struct Adapter {
    kind: PolicyKind,
    config: AdaptConfig,
    algorithm2: RateAdapter,
    allocator: Allocator,
    cycle: Cycle,
    cycles: u64,
    first_throughputs: Vec<f64>,
    seen_s: f64,
    orders: Orders,
    steps: u64,
    /// Rate at the begin of each class's stretch.
    anchors: BTreeMap<OperationClassId, f64>,
    /// Share of slices at which all stretches last began together.
    share_anchor: f64,
    default_anchor: f64,
    inner: Option<InnerCost>,
}

impl Adapter {
    /// A policy at its start.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn new(
        kind: PolicyKind,
        config: AdaptConfig,
        budget: Option<&OperationBudget>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let algorithm2 = RateAdapter::new(&config);
        let rate = match kind {
            PolicyKind::Full => 1.0,
            PolicyKind::None => 0.0,
            _ => config.rate,
        };
        let capped = budget.map(|b| b.cap(rate, 0.0, config.revise_s));
        let orders = Orders {
            monitoring: kind != PolicyKind::None,
            balance: kind == PolicyKind::Adp,
            default: ClassOrders { rate, stretch: 0, price_s: budget.map_or(0.0, |b| b.record_s) },
            classes: BTreeMap::new(),
            quota_s: capped.map(|c| c.quota_s),
            slices: Slices::ALWAYS,
        };
        Ok(Self {
            kind,
            config,
            algorithm2,
            allocator: Allocator::default(),
            cycle: Cycle::default(),
            cycles: 0,
            first_throughputs: Vec::new(),
            seen_s: 0.0,
            orders,
            steps: 0,
            anchors: BTreeMap::new(),
            default_anchor: rate,
            share_anchor: 1.0,
            inner: None,
        })
    }

    /// The policy.
    #[must_use]
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &AdaptConfig {
        &self.config
    }

    /// Orders in force.
    #[must_use]
    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// The cycle in progress.
    #[must_use]
    pub fn cycle(&self) -> &Cycle {
        &self.cycle
    }

    /// What the functions inside operations cost, for the next steps. `None`: unknown, or there are none; they are not attached
    /// in slices then.
    pub fn set_inner(&mut self, inner: Option<InnerCost>) {
        self.inner = inner.filter(|inner| self.config.attach_share && inner.is_worth_slicing());
    }

    /// One step after a window. A window without a usable length (a clock that jumped) changes nothing.
    pub fn step(&mut self, window: &WindowSummary, budget: Option<&OperationBudget>) -> Step {
        self.advance(window, budget, true)
    }

    /// The same after a window in which recording was on for a part of the time, for reasons of others: it belongs to the cycle, and
    /// Algorithm 2 of `adp`, which compares windows on with windows off, does not see it.
    pub fn step_apart(&mut self, window: &WindowSummary, budget: Option<&OperationBudget>) -> Step {
        self.advance(window, budget, self.kind != PolicyKind::Adp)
    }

    fn advance(
        &mut self,
        window: &WindowSummary,
        budget: Option<&OperationBudget>,
        comparable: bool,
    ) -> Step {
        if !window.is_usable() {
            return self.unchanged();
        }
        self.steps += 1;
        self.seen_s += window.length_s;
        self.allocator.learn(window, &self.config);
        self.cycle.add(window);
        let evaluation = self.evaluate();
        let release = self.cycle.end(self.cycles, evaluation, &self.config);
        let new_cycle = self.cycle.elapsed_s() == 0.0;
        self.cycles += u64::from(release.is_some());

        let (mut revision, mut comparison) = (None, None);
        let (rate, monitoring) = match self.kind {
            PolicyKind::Adp => {
                if comparable {
                    let (r, c) = self.algorithm2.revise(window, &self.config);
                    (revision, comparison) = (Some(r), c);
                }
                (self.algorithm2.rate(), self.algorithm2.monitoring())
            }
            PolicyKind::Tithe => {
                let (r, c) = self.algorithm2.follow(window, &self.config);
                (revision, comparison) = (Some(r), c);
                let share =
                    if self.inner.is_some() { self.config.tithe_attach } else { self.config.tithe_share };
                (self.algorithm2.rate() * share, true)
            }
            PolicyKind::Inv => (self.inverse(window.throughput_hz()), true),
            PolicyKind::Uni => (self.config.rate, true),
            PolicyKind::Full => (1.0, true),
            PolicyKind::None => (0.0, false),
        };
        let operations_hz = window.throughput_hz();
        let capped = budget.map(|b| b.cap(rate, operations_hz, self.config.revise_s));
        let limited = capped.is_some_and(|c| c.limited);
        let rate = capped.map_or(rate, |c| c.rate);
        let quota_s = capped.map(|c| c.quota_s);
        self.order(rate, monitoring, quota_s, operations_hz, budget);
        Step { orders: self.orders.clone(), revision, comparison, evaluation, release, new_cycle, limited }
    }

    fn evaluate(&self) -> Evaluation {
        match self.kind {
            PolicyKind::Tithe => equivalence(&self.cycle, &self.config),
            _ => as_printed(&self.cycle, &self.config),
        }
    }

    /// `clamp(max R_ref / R, min, max)`, R_ref the median throughput of the first seconds; the highest rate until then.
    fn inverse(&mut self, throughput_hz: f64) -> f64 {
        if self.seen_s <= self.config.inv_reference_s {
            // Bounded even where windows are a thousandth of what they should be.
            if self.first_throughputs.len() < 4_096 {
                self.first_throughputs.push(throughput_hz);
            }
            return self.config.max_rate;
        }
        self.first_throughputs.sort_by(f64::total_cmp);
        let reference = self.first_throughputs.get(self.first_throughputs.len() / 2).copied().unwrap_or(0.0);
        if throughput_hz <= 0.0 || reference <= 0.0 {
            return self.config.max_rate;
        }
        (self.config.max_rate * reference / throughput_hz).clamp(self.config.min_rate, self.config.max_rate)
    }

    fn unchanged(&self) -> Step {
        Step {
            orders: self.orders.clone(),
            revision: None,
            comparison: None,
            evaluation: self.evaluate(),
            release: None,
            new_cycle: false,
            limited: false,
        }
    }

    /// Writes the orders, and numbers the stretches.
    fn order(
        &mut self,
        rate: f64,
        monitoring: bool,
        quota_s: Option<f64>,
        operations_hz: f64,
        budget: Option<&OperationBudget>,
    ) {
        let step = self.steps;
        let unknown_price_s = budget.map_or(0.0, |b| b.record_s);
        let (factor, allocator) = (self.config.rate_step, &self.allocator);
        let moved = |anchor: f64, rate: f64| (rate - anchor).abs() > factor * anchor;

        let slices = self.inner.map_or(Slices::ALWAYS, |inner| inner.slices(rate));
        // A slice stands for the time around it, as far as its share of that is one; what is attached always stands for itself.
        let toggled = monitoring != self.orders.monitoring
            || slices.are_always() != self.orders.slices.are_always()
            || moved(self.share_anchor, slices.share);
        if toggled {
            self.share_anchor = slices.share;
        }
        let wanted = if self.kind == PolicyKind::Tithe && slices.are_always() {
            let most_s = budget.map_or(f64::INFINITY, |b| b.left_for_recording(operations_hz));
            let new = allocator.rates(rate, most_s, operations_hz, &self.config);
            // Rates in force stay while they are near what is wanted, unless together they cost too much.
            let hold = |class: &OperationClassId, r: f64| match self.orders.classes.get(class) {
                Some(o) if !moved(o.rate, r) => o.rate,
                _ => r,
            };
            let held: Vec<_> = new.iter().map(|&(class, r)| (class, hold(&class, r))).collect();
            let most_s = most_s.min(allocator.cost_of(&new, operations_hz) * (1.0 + 0.5 * factor));
            if allocator.cost_of(&held, operations_hz) <= most_s { held } else { new }
        } else {
            allocator.classes().map(|class| (class, rate)).collect()
        };

        let default_moved = toggled || moved(self.default_anchor, rate);
        if default_moved {
            self.default_anchor = rate;
        }
        let before = &self.orders;
        let default = ClassOrders {
            rate,
            stretch: if default_moved { step } else { before.default.stretch },
            price_s: unknown_price_s,
        };
        let mut classes = BTreeMap::new();
        for (class, rate) in wanted {
            let anchor = self.anchors.get(&class).copied().unwrap_or(self.default_anchor);
            let old = before.of(class);
            let new_stretch = toggled || moved(anchor, rate);
            self.anchors.insert(class, if new_stretch { rate } else { anchor });
            let price_s = allocator.price_s(class).unwrap_or(unknown_price_s);
            classes.insert(
                class,
                ClassOrders { rate, stretch: if new_stretch { step } else { old.stretch }, price_s },
            );
        }
        self.orders = Orders { monitoring, balance: before.balance, default, classes, quota_s, slices };
    }
}

#[cfg(test)]
mod tests {
    use super::super::ClassWindow;
    use super::*;
    use crate::stats::moments::Moments;

    fn window(counts: &[u64], length_s: f64) -> WindowSummary {
        let classes = counts
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(i, &n)| {
                let value = |k: u64| 1e6 * (1.0 + i as f64) * (1.0 + 0.01 * (k % 7) as f64);
                ClassWindow {
                    class: OperationClassId(i as u32),
                    population: (0..n).map(value).collect(),
                    sample: (0..n / 2).map(value).collect(),
                    measure: (0..n / 2).map(|k| (1.0 + i as f64) * (k % 3) as f64).collect(),
                    cost_s: (n / 2) as f64 * 1e-4,
                }
            })
            .collect();
        WindowSummary { length_s, monitoring: true, classes }
    }

    #[test]
    fn inv_is_inverse_to_the_throughput_after_its_reference() {
        let mut a = Adapter::new(PolicyKind::Inv, AdaptConfig::default(), None).unwrap();
        for _ in 0..60 {
            assert_eq!(a.step(&window(&[100], 1.0), None).orders.default.rate, 0.5);
        }
        assert_eq!(a.step(&window(&[200], 1.0), None).orders.default.rate, 0.25);
        assert_eq!(a.step(&window(&[50], 1.0), None).orders.default.rate, 0.5);
        assert_eq!(a.step(&window(&[100_000], 1.0), None).orders.default.rate, 0.01);
        assert_eq!(a.step(&window(&[], 1.0), None).orders.default.rate, 0.5);
    }

    #[test]
    fn a_window_apart_belongs_to_the_cycle_and_not_to_algorithm_2() {
        let config = AdaptConfig::default();
        let mut a = Adapter::new(PolicyKind::Adp, config.clone(), None).unwrap();
        a.step(&window(&[100], 1.0), None);
        let (state, seen) = (format!("{:?}", a.algorithm2), a.cycle().totals().0.n());
        let step = a.step_apart(&window(&[10_000], 1.0), None);
        assert_eq!(format!("{:?}", a.algorithm2), state);
        assert_eq!((step.revision, step.comparison), (None, None));
        assert_eq!((a.cycle().totals().0.n() - seen, a.cycle().elapsed_s()), (10_000, 2.0));
        // The others see it as any other.
        let mut b = Adapter::new(PolicyKind::Tithe, config, None).unwrap();
        assert!(b.step_apart(&window(&[100], 1.0), None).revision.is_some());
    }

    #[test]
    fn fixed_policies_stay_as_they_are() {
        for (kind, rate, on) in
            [(PolicyKind::Uni, 0.5, true), (PolicyKind::Full, 1.0, true), (PolicyKind::None, 0.0, false)]
        {
            let mut a = Adapter::new(kind, AdaptConfig::default(), None).unwrap();
            for n in [10, 1_000, 0, 7] {
                let o = a.step(&window(&[n, n], 1.0), None).orders;
                assert_eq!((o.default.rate, o.monitoring, o.balance), (rate, on, false));
                assert_eq!((o.of(OperationClassId(0)).stretch, o.of(OperationClassId(9)).stretch), (0, 0));
            }
        }
    }

    #[test]
    fn tithe_records_rare_classes_completely_at_the_cost_of_one_rate() {
        let mut a = Adapter::new(PolicyKind::Tithe, AdaptConfig::default(), None).unwrap();
        let counts = [1_000, 400, 4];
        let mut orders = a.orders().clone();
        for _ in 0..20 {
            orders = a.step(&window(&counts, 1.0), None).orders;
        }
        assert_eq!(orders.of(OperationClassId(2)).rate, 1.0, "{orders:?}");
        let recorded: f64 =
            (0..3).map(|i| orders.of(OperationClassId(i)).rate * counts[i as usize] as f64).sum();
        assert!((recorded / (0.45 * 0.5 * 1_404.0) - 1.0).abs() < 0.06, "{recorded}");
        assert!(!orders.balance);
    }

    #[test]
    fn the_budget_is_stronger_than_every_policy() {
        let budget = OperationBudget { cpu_per_s: 0.001, record_s: 1e-4, screen_s: 0.0 };
        for kind in PolicyKind::ALL {
            let mut a = Adapter::new(kind, AdaptConfig::default(), Some(&budget)).unwrap();
            let mut step = a.step(&window(&[900, 100], 1.0), Some(&budget));
            for _ in 0..5 {
                step = a.step(&window(&[900, 100], 1.0), Some(&budget));
            }
            let o = &step.orders;
            let cost =
                (o.of(OperationClassId(0)).rate * 900.0 + o.of(OperationClassId(1)).rate * 100.0) * 1e-4;
            assert!(cost <= 0.001 * (1.0 + 1e-9), "{kind}: {cost}");
            assert_eq!(o.quota_s, Some(0.001));
            assert!(step.limited || kind == PolicyKind::None, "{kind}");
        }
    }

    /// Functions inside operations that take a fifth of a CPU while they are attached; nothing limits slices.
    const INNER: InnerCost = InnerCost {
        attached: 0.2,
        churn_s: 1e-4,
        longest_s: 1e-4,
        allowed: f64::INFINITY,
        most_s: f64::INFINITY,
        watched: 1.0,
        sliced: false,
    };

    #[test]
    fn slices_are_a_lever_of_every_rate_and_record_what_is_paid_for_anyway() {
        let inner = INNER;
        for (kind, share) in [
            (PolicyKind::Uni, 0.5),
            (PolicyKind::Inv, 0.5),
            (PolicyKind::Adp, 0.5),
            (PolicyKind::Tithe, 0.4),
            (PolicyKind::Full, 1.0),
        ] {
            let mut a = Adapter::new(kind, AdaptConfig::default(), None).unwrap();
            a.set_inner(Some(inner));
            let stretch = a.orders().of(OperationClassId(0)).stretch;
            let o = a.step(&window(&[1_000, 400, 4], 1.0), None).orders;
            // Where slices begin another stratum does.
            assert_eq!(o.of(OperationClassId(0)).stretch != stretch, share < 1.0, "{kind}: {o:?}");
            assert!((o.slices.share - share).abs() < 1e-12, "{kind}: {o:?}");
            for class in 0..3 {
                assert!(
                    (o.slices.draw(o.of(OperationClassId(class)).rate) - 1.0).abs() < 1e-12,
                    "{kind}: {o:?}"
                );
            }
            // Unknown again, or not wanted: always attached.
            a.set_inner(None);
            assert!(a.step(&window(&[1_000, 400, 4], 1.0), None).orders.slices.are_always());
            a.config.attach_share = false;
            a.set_inner(Some(inner));
            assert!(a.step(&window(&[1_000, 400, 4], 1.0), None).orders.slices.are_always());
        }
        // The budget shortens slices.
        let budget = OperationBudget { cpu_per_s: 0.01, record_s: 2e-4, screen_s: 0.0 };
        let mut a = Adapter::new(PolicyKind::Uni, AdaptConfig::default(), Some(&budget)).unwrap();
        a.set_inner(Some(inner));
        let o = a.step(&window(&[1_000], 1.0), Some(&budget)).orders;
        assert!(
            (o.slices.share - 0.05).abs() < 1e-9 && o.slices.draw(o.of(OperationClassId(0)).rate) > 0.999,
            "{o:?}"
        );
    }

    /// Operations of one stretch are equally likely to be recorded: also where the rate stays and the share of slices goes.
    #[test]
    fn a_stretch_has_one_share_of_slices() {
        let inner = INNER;
        // With the larger step a share of a half is not far enough from 1: that slices begin is what counts.
        for (rate_step, ends) in [(0.1, true), (0.6, false)] {
            let config = AdaptConfig { rate_step, ..AdaptConfig::default() };
            let mut a = Adapter::new(PolicyKind::Uni, config, None).unwrap();
            let mut step = |allowed: Option<f64>| {
                a.set_inner(allowed.map(|allowed| InnerCost { allowed, ..inner }));
                let o = a.step(&window(&[1_000], 1.0), None).orders;
                (o.of(OperationClassId(0)).stretch, o.slices.share)
            };
            let always = step(None);
            let half = step(Some(f64::INFINITY));
            assert!(half.0 != always.0 && half.1 == 0.5, "{always:?} {half:?}");
            assert_eq!(step(Some(f64::INFINITY)), half);
            // In steps of 8 %, none of which is far.
            let mut last = half;
            for i in 1..=5 {
                last = step(Some(0.1 * 0.92f64.powi(i)));
            }
            assert!(last.1 < 0.4 && (last.0 != half.0) == ends, "{rate_step}: {half:?} {last:?}");
        }
    }

    #[test]
    fn a_window_without_length_changes_nothing() {
        let mut a = Adapter::new(PolicyKind::Adp, AdaptConfig::default(), None).unwrap();
        a.step(&window(&[10, 10], 1.0), None);
        let before = a.clone();
        for length_s in [0.0, -3.0, f64::NAN, f64::INFINITY] {
            let step = a.step(&window(&[1_000_000], length_s), None);
            assert!(step.orders == before.orders && step.release.is_none() && !step.new_cycle);
            assert_eq!(a.cycle.elapsed_s(), before.cycle.elapsed_s());
        }
    }

    #[test]
    fn cycles_end_representative_or_at_the_limit_and_list_what_is_unobserved() {
        let config = AdaptConfig { max_cycle_s: 10.0, ..AdaptConfig::default() };
        let mut a = Adapter::new(PolicyKind::Uni, config, None).unwrap();
        // Class 1 has one operation a window: none of it is in the sample.
        let reports: Vec<_> =
            (0..100).filter_map(|_| a.step(&window(&[1_000, 1], 1.0), None).release).collect();
        assert!(!reports.is_empty());
        for (i, r) in reports.iter().enumerate() {
            assert_eq!((r.number, r.unobserved[0].0), (i as u64, OperationClassId(1)));
            assert!(r.population >= r.sample && r.evaluation.z > 0.0 && r.evaluation.z <= 1.0);
        }
        let mut none = Adapter::new(PolicyKind::Uni, AdaptConfig::default(), None).unwrap();
        let mut silent = window(&[100], 1.0);
        silent.classes[0].sample = Moments::default();
        let ends: Vec<_> = (0..400).filter_map(|_| none.step(&silent, None).release).collect();
        assert_eq!(ends.len(), 2);
        assert!(ends.iter().all(|r| r.end == super::super::cycle::CycleEnd::Timeout && r.length_s == 180.0));
    }
}
