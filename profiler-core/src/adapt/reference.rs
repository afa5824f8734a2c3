//! *performanceRef* (Mertz and Nunes §3.3, Table 2): how the target normally behaves, and whether it does now.

use super::{AdaptConfig, OperationClassId, WindowSummary};
use crate::stats::moments::Moments;
use crate::stats::tests_of::{TTest, of_parts, paired};
use std::collections::VecDeque;

/// One window: a row of Table 2.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Operations per second (*RpS*).
    pub throughput_hz: f64,
    /// Response times per class, ns, sorted by class.
    pub classes: Vec<(OperationClassId, Moments)>,
    /// Monitoring was on (*ME*).
    pub monitoring: bool,
}

impl Record {
    /// The record of a window.
    #[must_use]
    pub fn of(window: &WindowSummary) -> Self {
        Self {
            throughput_hz: window.throughput_hz(),
            classes: window
                .classes
                .iter()
                .filter(|c| c.population.n() > 0)
                .map(|c| (c.class, c.population))
                .collect(),
            monitoring: window.monitoring,
        }
    }
}

/// The most recent records; the oldest goes when the bound is reached.
#[derive(Debug, Clone)]
pub struct PerformanceTable {
    records: VecDeque<Record>,
    max: usize,
}

impl PerformanceTable {
    /// A table of at most `max` records.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { records: VecDeque::new(), max: max.max(1) }
    }

    /// Adds a record. One without operations is left out: an idle window says nothing about response times, and as
    /// the median record it would leave nothing to compare with.
    pub fn push(&mut self, record: Record) {
        if record.classes.is_empty() {
            return;
        }
        if self.records.len() == self.max {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// Records held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// No record yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The normal behaviour: the record with the median throughput among those with this flag; of an even number
    /// the upper of the two in the middle (§3.3: "we select the highest"); of equal throughputs the latest.
    #[must_use]
    pub fn reference(&self, monitoring: bool) -> Option<&Record> {
        let mut same: Vec<&Record> = self.records.iter().filter(|r| r.monitoring == monitoring).collect();
        same.sort_by(|a, b| a.throughput_hz.total_cmp(&b.throughput_hz));
        same.get(same.len() / 2).copied()
    }
}

/// Which test compared two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Paired over the classes' means, as the paper says.
    Paired,
    /// Welch's over the classes' means weighted by count: few classes, or differences that do not vary.
    Welch,
}

/// The current window against the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReferenceComparison {
    /// Significantly different (the paper's `equal`, negated).
    pub different: bool,
    /// Sum of mean response times now / in the reference - 1, over common classes: above 0 is *slower*.
    pub diff: f64,
    /// Classes present in both.
    pub common: usize,
    /// The test, if there was enough for one; without one nothing counts as different.
    pub test: Option<(Method, TTest)>,
}

/// Compares response times over the classes that both records have. `None` if there is none.
#[must_use]
pub fn compare(current: &Record, reference: &Record, config: &AdaptConfig) -> Option<ReferenceComparison> {
    let pairs = common(current, reference);
    let (now, then): (Vec<f64>, Vec<f64>) = pairs.iter().map(|(a, b)| (a.mean(), b.mean())).unzip();
    let (sum_now, sum_then): (f64, f64) = (now.iter().sum(), then.iter().sum());
    if pairs.is_empty() || !sum_now.is_finite() || sum_then <= 0.0 {
        return None;
    }
    let level = 1.0 - config.alpha;
    let test = if pairs.len() >= config.paired_least_classes && differences_vary(&now, &then) {
        paired(&now, &then, level).map(|t| (Method::Paired, t))
    } else {
        weighted_welch(&pairs, level).map(|t| (Method::Welch, t))
    };
    Some(ReferenceComparison {
        different: test.is_some_and(|(_, t)| t.differs(config.alpha)),
        diff: sum_now / sum_then - 1.0,
        common: pairs.len(),
        test,
    })
}

fn common(a: &Record, b: &Record) -> Vec<(Moments, Moments)> {
    let mut theirs = b.classes.iter().peekable();
    let mut pairs = Vec::new();
    for (class, now) in &a.classes {
        while theirs.next_if(|(c, _)| c < class).is_some() {}
        if let Some((_, then)) = theirs.next_if(|(c, _)| c == class) {
            pairs.push((*now, *then));
        }
    }
    pairs
}

/// Differences that are one and the same number but for rounding have no variance to test against.
fn differences_vary(now: &[f64], then: &[f64]) -> bool {
    let differences: Moments = now.iter().zip(then).map(|(a, b)| a - b).collect();
    let scale = now.iter().chain(then).fold(0.0f64, |m, x| m.max(x.abs()));
    differences.variance().is_some_and(|v| v.sqrt() > 1e-9 * scale)
}

/// Welch's test of the two windows' means, each the mean of class means with *the same* weights (both windows'
/// counts), so that a shift of the mix between the windows is no difference:
/// ```text
/// d = sum_c w_c (a_c - b_c),  w_c = (n_ac + n_bc) / sum,  var d = sum_c w_c^2 (s_ac^2/n_ac + s_bc^2/n_bc)
/// ```
/// Classes with a single operation in either window have no variance and are left out.
fn weighted_welch(pairs: &[(Moments, Moments)], level: f64) -> Option<TTest> {
    let usable: Vec<_> =
        pairs.iter().filter_map(|(a, b)| Some((*a, *b, a.variance()?, b.variance()?))).collect();
    let total: f64 = usable.iter().map(|(a, b, ..)| (a.n() + b.n()) as f64).sum();
    let mut difference = 0.0;
    let mut parts = Vec::with_capacity(2 * usable.len());
    for (a, b, variance_a, variance_b) in &usable {
        let (na, nb) = (a.n() as f64, b.n() as f64);
        let weight = (na + nb) / total;
        difference += weight * (a.mean() - b.mean());
        parts.push((weight * weight * variance_a / na, na - 1.0));
        parts.push((weight * weight * variance_b / nb, nb - 1.0));
    }
    of_parts(difference, &parts, level)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Classes 0.. with `n` operations each that lie `spread` above and below the means.
    fn record(throughput_hz: f64, monitoring: bool, means: &[f64], n: usize, spread: f64) -> Record {
        let classes = means
            .iter()
            .enumerate()
            .map(|(i, m)| {
                let values = (0..n).map(|k| if k % 2 == 0 { m + spread } else { m - spread });
                (OperationClassId(i as u32), values.collect())
            })
            .collect();
        Record { throughput_hz, classes, monitoring }
    }

    #[test]
    fn the_table_is_bounded_and_idle_windows_are_left_out() {
        let mut table = PerformanceTable::new(3);
        for rps in 1..=10 {
            table.push(record(f64::from(rps), true, &[1.0], 2, 0.1));
            table.push(record(0.0, true, &[], 0, 0.0));
        }
        assert_eq!(table.len(), 3);
        assert_eq!(table.reference(true).unwrap().throughput_hz, 9.0);
        assert!(table.reference(false).is_none());
    }

    #[test]
    fn one_class_is_compared_by_its_operations() {
        let config = AdaptConfig::default();
        let (slow, normal) = (record(10.0, true, &[110.0], 50, 5.0), record(10.0, true, &[100.0], 50, 5.0));
        let c = compare(&slow, &normal, &config).unwrap();
        assert!(c.different && (c.diff - 0.1).abs() < 1e-12 && c.common == 1, "{c:?}");
        assert_eq!(c.test.unwrap().0, Method::Welch);
        let noisy = compare(
            &record(10.0, true, &[110.0], 50, 60.0),
            &record(10.0, true, &[100.0], 50, 60.0),
            &config,
        );
        assert!(!noisy.unwrap().different);
        // A single operation has no variance: nothing is claimed.
        let single = compare(&record(1.0, true, &[900.0], 1, 0.0), &normal, &config).unwrap();
        assert!(!single.different && single.test.is_none() && single.diff > 7.0);
    }

    #[test]
    fn a_shift_of_the_mix_is_no_slowdown() {
        // Many slow operations in one window, many fast ones in the other, each class as fast as before.
        let config = AdaptConfig::default();
        let mix = |n0: usize, n1: usize| Record {
            classes: vec![
                record(1.0, true, &[10.0], n0, 1.0).classes[0],
                (OperationClassId(1), record(1.0, true, &[1000.0], n1, 10.0).classes[0].1),
            ],
            ..record(1.0, true, &[], 0, 0.0)
        };
        let c = compare(&mix(20, 400), &mix(400, 20), &config).unwrap();
        assert!(!c.different && c.diff.abs() < 1e-9, "{c:?}");
    }

    #[test]
    fn equal_differences_have_no_variance_and_are_tested_by_welch() {
        let config = AdaptConfig::default();
        let base = [100.0, 200.0, 300.0, 400.0, 500.0, 600.0];
        let slower: Vec<f64> = base.iter().map(|x| x + 0.1).collect();
        let c = compare(&record(1.0, true, &slower, 10, 20.0), &record(1.0, true, &base, 10, 20.0), &config)
            .unwrap();
        assert!(c.test.unwrap().0 == Method::Welch && !c.different, "{c:?}");
        let scaled: Vec<f64> = base.iter().map(|x| x * 1.2).collect();
        let c = compare(&record(1.0, true, &scaled, 10, 20.0), &record(1.0, true, &base, 10, 20.0), &config)
            .unwrap();
        assert!(c.test.unwrap().0 == Method::Paired && c.different, "{c:?}");
        // Nothing varies at all, nothing differs: no NaN.
        let c =
            compare(&record(1.0, true, &base, 10, 0.0), &record(1.0, true, &base, 10, 0.0), &config).unwrap();
        assert!(!c.different && c.diff == 0.0 && c.test.unwrap().1.p == 1.0, "{c:?}");
    }

    #[test]
    fn without_common_classes_there_is_no_comparison() {
        let a = record(1.0, true, &[1.0], 2, 0.1);
        let b = Record { classes: vec![(OperationClassId(7), a.classes[0].1)], ..a.clone() };
        assert!(compare(&a, &b, &AdaptConfig::default()).is_none());
        let zero = record(1.0, true, &[0.0], 2, 0.0);
        assert!(compare(&a, &zero, &AdaptConfig::default()).is_none());
    }
}
