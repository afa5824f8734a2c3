//! Monitoring cycles (Mertz and Nunes §3.1): a cycle ends when its sample is representative, or at its time limit.

use super::evaluate::{Evaluation, level, merged};
use super::{AdaptConfig, OperationClassId, WindowSummary};
use crate::stats::moments::Moments;
use std::collections::BTreeMap;

/// One class in a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CycleClass {
    /// Response times of all operations, ns.
    pub population: Moments,
    /// Response times of the recorded ones, ns.
    pub sample: Moments,
    /// What recording them cost, ns.
    pub cost_ns: f64,
}

impl CycleClass {
    /// How much later the mean recorded operation ends than the mean operation, only because it is recorded, ns:
    /// the cost lies on the sample's n operations, which are among the population's N.
    #[must_use]
    pub fn slowed_ns(&self) -> f64 {
        slowed_ns(self.cost_ns, self.sample.n(), self.population.n())
    }
}

/// `cost / n - cost / N`; 0 without a sample.
fn slowed_ns(cost_ns: f64, sample: u64, population: u64) -> f64 {
    if sample == 0 { 0.0 } else { cost_ns / sample as f64 - cost_ns / population.max(sample) as f64 }
}

/// The cycle in progress.
#[derive(Debug, Clone, Default)]
pub struct Cycle {
    elapsed_s: f64,
    classes: BTreeMap<OperationClassId, CycleClass>,
}

/// Why a cycle ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CycleEnd {
    /// The sample is representative.
    Representative,
    /// The time limit was reached first; the sample is given out marked.
    Timeout,
}

/// A cycle that has ended: what is said of its sample.
#[derive(Debug, Clone, PartialEq)]
pub struct CycleReport {
    /// Cycles before this one.
    pub number: u64,
    /// Length, s.
    pub length_s: f64,
    /// Why it ended.
    pub end: CycleEnd,
    /// The criteria at the end, with the level z.
    pub evaluation: Evaluation,
    /// Operations in the cycle.
    pub population: u64,
    /// Operations recorded.
    pub sample: u64,
    /// Largest difference of a class's shares in sample and population; 1 without a sample.
    pub largest_share_difference: f64,
    /// Classes with operations and none of them recorded, with their operations.
    pub unobserved: Vec<(OperationClassId, u64)>,
}

impl Cycle {
    /// Adds a window. Time is the sum of window lengths: a clock that jumps cannot end a cycle.
    pub fn add(&mut self, window: &WindowSummary) {
        self.elapsed_s += window.length_s;
        for w in &window.classes {
            let class = self.classes.entry(w.class).or_default();
            class.population.merge(&w.population);
            class.sample.merge(&w.sample);
            class.cost_ns += w.cost_s * 1e9;
        }
    }

    /// Time in the cycle, s.
    #[must_use]
    pub fn elapsed_s(&self) -> f64 {
        self.elapsed_s
    }

    /// Classes in order.
    pub fn classes(&self) -> impl Iterator<Item = (OperationClassId, &CycleClass)> {
        self.classes.iter().map(|(id, c)| (*id, c))
    }

    /// Response times of population and sample over all classes, ns.
    #[must_use]
    pub fn totals(&self) -> (Moments, Moments) {
        let population = merged(self.classes.values().map(|c| &c.population));
        (population, merged(self.classes.values().map(|c| &c.sample)))
    }

    /// [`CycleClass::slowed_ns`] over all classes together.
    #[must_use]
    pub fn slowed_ns(&self) -> f64 {
        let count = |of: fn(&CycleClass) -> u64| self.classes.values().map(of).sum();
        let cost_ns = self.classes.values().map(|c| c.cost_ns).sum();
        slowed_ns(cost_ns, count(|c| c.sample.n()), count(|c| c.population.n()))
    }

    /// Largest |share in the sample - share in the population|; an empty sample has shares of 0.
    #[must_use]
    pub fn largest_share_difference(&self) -> f64 {
        let sum = |count: fn(&CycleClass) -> u64| self.classes.values().map(count).sum::<u64>().max(1) as f64;
        let (population, sample) = (sum(|c| c.population.n()), sum(|c| c.sample.n()));
        self.classes
            .values()
            .map(|c| (c.sample.n() as f64 / sample - c.population.n() as f64 / population).abs())
            .fold(0.0, f64::max)
    }

    /// Share of the population that is in classes without any recorded operation.
    #[must_use]
    pub fn unobserved_share(&self) -> f64 {
        let unobserved: u64 = self.unobserved().iter().map(|(_, n)| n).sum();
        unobserved as f64 / self.classes.values().map(|c| c.population.n()).sum::<u64>().max(1) as f64
    }

    /// Classes with operations and none of them recorded.
    #[must_use]
    pub fn unobserved(&self) -> Vec<(OperationClassId, u64)> {
        self.classes
            .iter()
            .filter(|(_, c)| c.sample.n() == 0 && c.population.n() > 0)
            .map(|(id, c)| (*id, c.population.n()))
            .collect()
    }

    /// Ends the cycle if `evaluation` says so or its time is up, and begins the next. A cycle without operations begins
    /// again in silence at its limit: there is no sample to speak of.
    pub fn end(&mut self, number: u64, evaluation: Evaluation, config: &AdaptConfig) -> Option<CycleReport> {
        let end = if evaluation.representative() {
            CycleEnd::Representative
        } else if self.elapsed_s >= config.max_cycle_s {
            CycleEnd::Timeout
        } else {
            return None;
        };
        let cycle = std::mem::take(self);
        let (population, sample) = cycle.totals();
        if population.n() == 0 {
            return None;
        }
        debug_assert!((evaluation.z - level(cycle.elapsed_s, config.max_cycle_s)).abs() < 1e-9);
        Some(CycleReport {
            number,
            length_s: cycle.elapsed_s,
            end,
            evaluation,
            population: population.n(),
            sample: sample.n(),
            largest_share_difference: cycle.largest_share_difference(),
            unobserved: cycle.unobserved(),
        })
    }
}
