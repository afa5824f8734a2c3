//! Algorithm 2 (Mertz and Nunes §3.3): the sampling rate follows the target's response times.
//!
//! Our reading: a longer response time is worse. The paper's lines 7 and 13 read `diff > 0` as better and
//! `diff < 0` as worse, which is the sign of a throughput, while line 5 divides response times; the text ("slower")
//! decides. The reference is taken from the records before the current one, so that no window is its own norm.

use super::reference::{PerformanceTable, Record, ReferenceComparison, compare};
use super::{AdaptConfig, WindowSummary};

/// What a revision did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revision {
    /// Nothing to compare with: the rate stays.
    NoReference,
    /// With monitoring on, no worse than normal: raised, up to the highest rate (line 8).
    Raised,
    /// With monitoring on, worse than normal: a baseline begins (line 10).
    BaselineBegun,
    /// With monitoring off and still worse: lowered, down to the lowest rate (line 14).
    Lowered,
    /// With monitoring off, not worse: the rate stays (the slowdown was the monitoring's, or is over).
    Kept,
}

/// State of Algorithm 2.
#[derive(Debug, Clone)]
pub struct RateAdapter {
    rate: f64,
    baseline_left_s: f64,
    table: PerformanceTable,
}

impl RateAdapter {
    /// Starts at the configured rate, monitoring on.
    #[must_use]
    pub fn new(config: &AdaptConfig) -> Self {
        Self { rate: config.rate, baseline_left_s: 0.0, table: PerformanceTable::new(config.table_records) }
    }

    /// Recorded / all operations that is aimed at.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Recording is on in the next window; off during a baseline.
    #[must_use]
    pub fn monitoring(&self) -> bool {
        self.baseline_left_s <= 0.0
    }

    /// Time until the baseline ends, s; 0 outside one.
    #[must_use]
    pub fn baseline_left_s(&self) -> f64 {
        self.baseline_left_s
    }

    /// Revises the rate after a window.
    pub fn revise(
        &mut self,
        window: &WindowSummary,
        config: &AdaptConfig,
    ) -> (Revision, Option<ReferenceComparison>) {
        let current = Record::of(window);
        let comparison = self.table.reference(window.monitoring).and_then(|r| compare(&current, r, config));
        self.table.push(current);
        let revision = match comparison {
            None => Revision::NoReference,
            Some(c) => self.apply(c, window.monitoring, config),
        };
        if !window.monitoring {
            // Rounding must not leave a sliver of a window.
            self.baseline_left_s -= window.length_s;
            if self.baseline_left_s < 1e-3 * config.revise_s {
                self.baseline_left_s = 0.0;
            }
        }
        (revision, comparison)
    }

    /// The revision of `tithe`: no baselines. Turning recording off says what it costs; `tithe` knows that from prices, and
    /// a target is off the record exactly while it is slow, which no weights mend. So the rate is the highest, divided by
    /// how many times slower than normal the target is, if it is.
    pub fn follow(
        &mut self,
        window: &WindowSummary,
        config: &AdaptConfig,
    ) -> (Revision, Option<ReferenceComparison>) {
        let current = Record::of(window);
        let comparison = self.table.reference(window.monitoring).and_then(|r| compare(&current, r, config));
        self.table.push(current);
        let (revision, rate) = match comparison {
            None => (Revision::NoReference, self.rate),
            Some(c) if c.different && c.diff > 0.0 => (Revision::Lowered, config.max_rate / (1.0 + c.diff)),
            Some(_) => (Revision::Raised, config.max_rate),
        };
        self.rate = rate.clamp(config.min_rate, config.max_rate);
        (revision, comparison)
    }

    fn apply(&mut self, c: ReferenceComparison, monitoring: bool, config: &AdaptConfig) -> Revision {
        let worse = c.different && c.diff > 0.0;
        match (monitoring, worse) {
            (true, false) => {
                self.rate = (self.rate * (1.0 + c.diff.abs())).min(config.max_rate);
                Revision::Raised
            }
            (true, true) => {
                self.baseline_left_s = config.baseline_s;
                Revision::BaselineBegun
            }
            (false, true) => {
                self.rate = (self.rate * (1.0 - c.diff.abs())).max(config.min_rate);
                Revision::Lowered
            }
            (false, false) => Revision::Kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClassWindow, OperationClassId};
    use super::*;
    use crate::stats::moments::Moments;

    /// A second with 100 operations in each of `classes` classes, means around `mean_ns`, and a little spread.
    fn window(monitoring: bool, mean_ns: f64, classes: u32) -> WindowSummary {
        let classes = (0..classes)
            .map(|c| {
                let m = mean_ns * (1.0 + f64::from(c) + 0.01 * f64::from(c * c % 7));
                let population: Moments =
                    (0..100).map(|i| m * (1.0 + 0.001 * f64::from(i % 11 - 5))).collect();
                ClassWindow {
                    class: OperationClassId(c),
                    population,
                    sample: Moments::default(),
                    measure: Moments::default(),
                    cost_s: 0.0,
                }
            })
            .collect();
        WindowSummary { length_s: 1.0, monitoring, classes }
    }

    #[test]
    fn the_first_record_decides_nothing_whatever_the_number_of_classes() {
        let config = AdaptConfig::default();
        for classes in [1, 2, 5, 100] {
            let mut a = RateAdapter::new(&config);
            assert_eq!(a.revise(&window(true, 1e6, classes), &config), (Revision::NoReference, None));
            assert_eq!((a.rate(), a.monitoring()), (0.5, true));
        }
    }

    #[test]
    fn slower_takes_a_baseline_then_lowers_then_rises_again() {
        let config = AdaptConfig::default();
        for classes in [1, 2, 5, 100] {
            let mut a = RateAdapter::new(&config);
            for _ in 0..10 {
                a.revise(&window(true, 1e6, classes), &config);
            }
            // An early slow spell gives the baseline its reference.
            assert_eq!(
                a.revise(&window(true, 1.2e6, classes), &config).0,
                Revision::BaselineBegun,
                "{classes}"
            );
            for left in [2.0, 1.0, 0.0] {
                assert!(!a.monitoring());
                a.revise(&window(false, 1e6, classes), &config);
                assert!((a.baseline_left_s() - left).abs() < 1e-9);
            }
            assert!(a.monitoring() && a.rate() == 0.5);
            // Slow with monitoring off as well: the load, so the rate goes down in proportion, thrice.
            a.revise(&window(true, 1.2e6, classes), &config);
            let (revision, comparison) = a.revise(&window(false, 1.2e6, classes), &config);
            assert_eq!(revision, Revision::Lowered, "{classes}");
            assert!((comparison.unwrap().diff - 0.2).abs() < 1e-3);
            assert!((a.rate() - 0.4).abs() < 1e-3, "{}", a.rate());
            a.revise(&window(false, 1e6, classes), &config);
            a.revise(&window(false, 1e6, classes), &config);
            // Faster than the norm raises it, never above the highest.
            for _ in 0..20 {
                a.revise(&window(true, 0.8e6, classes), &config);
            }
            assert_eq!(a.rate(), 0.5, "{classes}");
        }
    }

    #[test]
    fn tithes_rate_is_divided_by_the_slowdown_and_never_off() {
        let config = AdaptConfig::default();
        let mut a = RateAdapter::new(&config);
        for _ in 0..10 {
            a.follow(&window(true, 1e6, 5), &config);
        }
        assert_eq!(a.follow(&window(true, 2e6, 5), &config).0, Revision::Lowered);
        assert!((a.rate() - 0.25).abs() < 1e-3 && a.monitoring(), "{}", a.rate());
        a.follow(&window(true, 1e9, 5), &config);
        assert!(a.rate() == config.min_rate && a.monitoring());
        a.follow(&window(true, 1e6, 5), &config);
        assert_eq!(a.rate(), config.max_rate);
    }

    #[test]
    fn the_rate_never_leaves_its_range() {
        let config = AdaptConfig::default();
        let mut a = RateAdapter::new(&config);
        for step in 0..500u32 {
            let mean = 1e6 * 1.5f64.powi((step % 40) as i32);
            let on = a.monitoring();
            a.revise(&window(on, mean, 5), &config);
            assert!((config.min_rate..=config.max_rate).contains(&a.rate()), "{}", a.rate());
        }
        assert!(a.table.len() <= config.table_records);
    }
}
