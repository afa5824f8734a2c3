//! Whose durations were asked for and are known well enough, so that their bursts need not come first any more.
//!
//! Of each class that is timed in windows: the sums of these give the mean with the spread between windows, the kernel's histogram the median. What
//! lies between the time stamps is taken out at the host's price; what that price is known to is left out here, because more calls do not mend
//! it. The report's interval holds it.

use crate::class::ClassId;
use crate::estimate::Estimate;
use crate::recording::{HistogramRow, WindowRow};
use crate::report::precision::WANTED;
use crate::stats::LEVEL;
use crate::stats::means::{WindowSum, WindowSums};
use crate::stats::quantile::{Bucket, quantile};
use std::collections::BTreeMap;

/// Windows that must have calls: of fewer, their spread is a guess.
const FEWEST_WINDOWS: f64 = 5.0;
/// What was known to [`WANTED`] is so up to this many times that: figures at the edge would make plan after plan.
const SLACK: f64 = 1.3;

/// Calls of one class.
#[derive(Debug, Default)]
struct Timed {
    windows: WindowSums,
    median: Option<Estimate>,
    is_known: bool,
}

impl Timed {
    /// Half of the interval over the value, the larger one of mean and median, with `stamps_ns` taken out of both.
    fn half_width(&self, stamps_ns: f64) -> f64 {
        let enough = self.windows.windows() >= FEWEST_WINDOWS;
        let Some(median) = self.median.filter(|_| enough) else { return f64::INFINITY };
        let over = |half: f64, value: f64| {
            if value > stamps_ns { half / (value - stamps_ns) } else { f64::INFINITY }
        };
        over(self.windows.half_width(LEVEL), self.windows.mean()).max(over(median.half_width(), median.value))
    }
}

/// Median of durations, ns, with its interval.
#[must_use]
pub fn median(durations: &[HistogramRow]) -> Option<Estimate> {
    let bucket = |h: &HistogramRow| Bucket { low: h.low_ns as f64, high: h.high_ns as f64, count: h.count };
    quantile(&durations.iter().map(bucket).collect::<Vec<_>>(), 0.5, LEVEL, 0.0)
}

/// All classes that are timed in windows.
#[derive(Debug, Default)]
pub struct TimedClasses(BTreeMap<ClassId, Timed>);

impl TimedClasses {
    /// A window has ended; `median`: of all calls of the class so far, with its interval. True: its durations are known well enough, and were not
    /// before.
    pub fn note(&mut self, row: &WindowRow, median: Option<Estimate>, stamps_ns: f64) -> bool {
        let timed = self.0.entry(ClassId(row.class_id)).or_default();
        timed.windows.push(WindowSum { n: row.returns, sum: row.sum_ns as f64 });
        timed.median = median.or(timed.median);
        let half = timed.half_width(stamps_ns);
        let was = timed.is_known;
        timed.is_known = half <= if was { SLACK * WANTED } else { WANTED };
        timed.is_known && !was
    }

    /// Mean and median of its calls are known to [`WANTED`], but for what timing them costs.
    #[must_use]
    pub fn is_known(&self, class: ClassId) -> bool {
        self.0.get(&class).is_some_and(|timed| timed.is_known)
    }
}

#[cfg(test)]
mod tests {
    use super::super::client_tests::timed_row;
    use super::*;

    fn median(half: f64) -> Option<Estimate> {
        Some(Estimate {
            value: 1_500.0,
            low: 1_500.0 - half,
            high: 1_500.0 + half,
            ..Estimate::exact(0.0, 500)
        })
    }

    /// Notes windows of 100 calls with these means; the last answer.
    fn known(means_ns: &[u64], half: f64) -> bool {
        let mut classes = TimedClasses::default();
        means_ns
            .iter()
            .map(|mean| classes.note(&timed_row(ClassId(0), 100, *mean), median(half), 500.0))
            .last()
            .unwrap()
    }

    #[test]
    fn windows_that_agree_and_a_narrow_median_are_enough() {
        assert!(known(&[1_480, 1_500, 1_510, 1_520, 1_490], 40.0));
        assert!(!known(&[1_480, 1_500, 1_510, 1_520], 40.0), "four windows");
        // +-9 % of what was seen, but 13 % of what is left without the price.
        assert!(!known(&[1_480, 1_500, 1_510, 1_520, 1_490], 130.0), "the median");
        assert!(!known(&[1_000, 2_000, 1_500, 1_200, 1_800], 40.0), "the mean");
    }

    #[test]
    fn it_is_said_once_and_taken_back_with_slack() {
        let mut classes = TimedClasses::default();
        let class = ClassId(0);
        let mut note = |half| {
            (classes.note(&timed_row(class, 100, 1_500), median(half), 500.0), classes.is_known(class))
        };
        for _ in 0..4 {
            assert_eq!(note(50.0), (false, false));
        }
        assert_eq!(note(50.0), (true, true));
        assert_eq!(note(120.0), (false, true), "1.2 times the wanted");
        assert_eq!(note(140.0), (false, false));
        assert_eq!(note(120.0), (false, false));
        assert_eq!(note(90.0), (true, true));
    }

    #[test]
    fn what_is_no_longer_than_the_price_is_never_known() {
        let mut classes = TimedClasses::default();
        assert!(!(0..20).any(|_| classes.note(&timed_row(ClassId(0), 100, 450), median(1.0), 500.0)));
    }
}
