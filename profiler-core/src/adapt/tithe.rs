//! What the policy `tithe` knows of each class, and the rates it draws from it.

use super::allocate::{Stratum, shares};
use super::{AdaptConfig, ClassWindow, OperationClassId, WindowSummary};
use crate::stats::moments::Moments;
use std::collections::BTreeMap;

/// Share of a new window in the smoothed rates: half of the weight lies on the last seven windows.
const SMOOTHING: f64 = 0.1;

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    rate_hz: f64,
    /// This generation and the one before it; a generation is as long as the longest cycle, so that deviations follow a
    /// target that changes.
    measure: [Moments; 2],
    time: [Moments; 2],
    cost_s: f64,
    recorded: u64,
}

/// Deviations, rates and prices per class, learned window by window.
#[derive(Debug, Clone, Default)]
pub struct Allocator {
    classes: BTreeMap<OperationClassId, Known>,
    generation_s: f64,
    windows: u64,
}

impl Allocator {
    /// Takes in a window.
    pub fn learn(&mut self, window: &WindowSummary, config: &AdaptConfig) {
        self.windows += 1;
        self.generation_s += window.length_s;
        if self.generation_s > config.max_cycle_s {
            self.generation_s = 0.0;
            for known in self.classes.values_mut() {
                known.measure = [Moments::default(), known.measure[0]];
                known.time = [Moments::default(), known.time[0]];
            }
        }
        // A plain mean over the first windows, exponential smoothing from then on.
        let weight = SMOOTHING.max(1.0 / self.windows as f64);
        for known in self.classes.values_mut() {
            known.rate_hz *= 1.0 - weight;
        }
        for w in &window.classes {
            let known = self.classes.entry(w.class).or_default();
            known.rate_hz += weight * w.population.n() as f64 / window.length_s;
            known.take(w);
        }
    }

    /// Classes seen so far.
    pub fn classes(&self) -> impl Iterator<Item = OperationClassId> {
        self.classes.keys().copied()
    }

    /// Mean price of recording one operation of a class, CPU s; `None` before one was recorded.
    #[must_use]
    pub fn price_s(&self, class: OperationClassId) -> Option<f64> {
        self.classes.get(&class).filter(|k| k.recorded > 0).map(|k| k.cost_s / k.recorded as f64)
    }

    /// Rates per class, so that recording costs no more than the same share `rate` of every class would, and no more
    /// than `most_s` CPU seconds per second, at a throughput of `operations_hz`.
    #[must_use]
    pub fn rates(
        &self,
        rate: f64,
        most_s: f64,
        operations_hz: f64,
        config: &AdaptConfig,
    ) -> Vec<(OperationClassId, f64)> {
        let measured = self.classes.values().any(|k| k.deviation(true, 0.0).is_some());
        let smoothed: f64 = self.classes.values().map(|k| k.rate_hz).sum();
        // Class shares are smoothed, the total is the last window's.
        let scale = if smoothed > 0.0 { operations_hz / smoothed } else { 0.0 };
        let strata: Vec<Stratum> = self
            .classes
            .iter()
            .map(|(class, known)| Stratum {
                class: *class,
                rate_hz: known.rate_hz * scale,
                deviation: known.deviation(measured, config.allocation_relative),
                price: self.price_s(*class).unwrap_or_else(|| self.mean_price_s()),
            })
            .collect();
        let uniform: f64 = strata.iter().map(|s| s.rate_hz * s.price).sum::<f64>() * rate;
        // Prices that are all 0 (nothing charged yet) leave counting operations instead.
        let (strata, budget) = if uniform > 0.0 {
            (strata, uniform.min(most_s))
        } else {
            let counted: Vec<_> = strata.into_iter().map(|s| Stratum { price: 1.0, ..s }).collect();
            let all: f64 = counted.iter().map(|s| s.rate_hz).sum();
            (counted, all * rate)
        };
        let shares = shares(&strata, budget, config.min_rate, config.class_max_rate, config.allocation_power);
        strata.iter().zip(shares).map(|(s, share)| (s.class, share)).collect()
    }

    /// Mean cost per second of recording all operations at these rates, CPU s/s, at the smoothed mix.
    #[must_use]
    pub fn cost_of(&self, rates: &[(OperationClassId, f64)], operations_hz: f64) -> f64 {
        let smoothed: f64 = self.classes.values().map(|k| k.rate_hz).sum();
        let scale = if smoothed > 0.0 { operations_hz / smoothed } else { 0.0 };
        let mean = self.mean_price_s();
        rates
            .iter()
            .filter_map(|(class, rate)| {
                let known = self.classes.get(class)?;
                Some(known.rate_hz * scale * rate * self.price_s(*class).unwrap_or(mean))
            })
            .sum()
    }

    fn mean_price_s(&self) -> f64 {
        let (cost, n) = self.classes.values().fold((0.0, 0), |(c, n), k| (c + k.cost_s, n + k.recorded));
        if n > 0 { cost / n as f64 } else { 0.0 }
    }
}

impl Known {
    fn take(&mut self, w: &ClassWindow) {
        self.measure[0].merge(&w.measure);
        self.time[0].merge(&w.population);
        self.cost_s += w.cost_s;
        self.recorded += w.sample.n();
    }

    /// Standard deviation of the measure, or of response times where no class has one (one unit for all classes), divided
    /// by the given power of the mean: the error that the allocation counts.
    fn deviation(&self, measured: bool, relative: f64) -> Option<f64> {
        let [mut all, before] = if measured { self.measure } else { self.time };
        all.merge(&before);
        let deviation = all.variance()?.sqrt();
        // A mean of 0 has no relative error: the deviation itself stands for it.
        let mean = all.mean().abs();
        Some(if mean > 0.0 { deviation / mean.powf(relative) } else { deviation })
    }
}
