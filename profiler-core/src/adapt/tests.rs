//! Worked examples of Mertz and Nunes (JSS 2023), each as `docs/design.md` reads it.

use super::decision::{ClassNumbers, Decision, Switch, Totals, decide, threshold};
use super::reference::{Method, PerformanceTable, Record, compare};
use super::*;
use crate::stats::tests_of::{paired, welch};

/// Table 1: (population, sample) of /home, /vets, /pets, /owners.
const TABLE1: [(u32, u32); 4] = [(105, 53), (43, 22), (62, 31), (10, 5)];
/// Table 2: (RpS, mean response times of /home, /vets, /pets, /owners in ms, ME).
const TABLE2: [(f64, [f64; 4], bool); 6] = [
    (500.0, [325.0, 450.0, 800.0, 1200.0], true),
    (1500.0, [400.0, 550.0, 900.0, 1500.0], true),
    (2500.0, [600.0, 780.0, 1050.0, 1100.0], false),
    (550.0, [350.0, 400.0, 650.0, 900.0], true),
    (325.0, [430.0, 420.0, 480.0, 700.0], false),
    (200.0, [270.0, 200.0, 235.0, 500.0], true),
];
/// Expression (1): the current performance, ms.
const CURRENT: [f64; 4] = [500.0, 720.0, 950.0, 1020.0];

/// A record whose classes have 100 operations each, within `spread` of the mean.
fn record(rps: f64, means_ms: &[f64], monitoring: bool, spread: f64) -> Record {
    let classes = means_ms
        .iter()
        .enumerate()
        .map(|(i, m)| {
            let values = (0..100).map(|k| 1e6 * m * (1.0 + spread * f64::from(k % 5 - 2)));
            (OperationClassId(i as u32), values.collect())
        })
        .collect();
    Record { throughput_hz: rps, classes, monitoring }
}

#[test]
fn mertz2023_table1_shares() {
    let population: u32 = TABLE1.iter().map(|c| c.0).sum();
    let sample: u32 = TABLE1.iter().map(|c| c.1).sum();
    assert_eq!((population, sample), (220, 111));
    let percent = |part: u32, whole: u32| (1_000.0 * f64::from(part) / f64::from(whole)).round() / 10.0;
    // Printed 55.5 % and 28.3 %: neither follows from the counts.
    assert_eq!((percent(111, 220), percent(62, 220)), (50.5, 28.2));
    let shares: Vec<_> = TABLE1.iter().map(|c| (percent(c.0, 220), percent(c.1, 111))).collect();
    assert_eq!(shares, [(47.7, 47.7), (19.5, 19.8), (28.2, 27.9), (4.5, 4.5)]);
}

#[test]
fn mertz2023_table1_sampling_decision_of_vets() {
    let mut switch = Switch { monitoring: true, balance: true, slack_q16: 0, quota_ns: u64::MAX };
    let vets = |population| ClassNumbers { threshold: threshold(0.5), price_ns: 0, population, sample: 22 };
    // The table shows the state after line 1: the request that is decided on is its 220th.
    let (mut totals, mut class) = (Totals { population: 219, sample: 111 }, vets(42));
    assert_eq!(decide(&mut switch, &mut totals, &mut class, 0), Decision::Balanced);
    assert_eq!((totals.population, class.population, class.sample), (220, 43, 22));
    // Read as the state before line 1 the same request would be recorded, against the text.
    let (mut totals, mut class) = (Totals { population: 220, sample: 111 }, vets(43));
    assert_eq!(decide(&mut switch, &mut totals, &mut class, 0), Decision::Record);
}

#[test]
fn mertz2023_table1_who_else_would_be_recorded() {
    for (i, expected) in
        [Decision::Balanced, Decision::Balanced, Decision::Record, Decision::Record].iter().enumerate()
    {
        let mut switch = Switch { monitoring: true, balance: true, slack_q16: 0, quota_ns: u64::MAX };
        let (population, sample) = TABLE1[i];
        let mut class =
            ClassNumbers { threshold: threshold(0.5), price_ns: 0, population: population - 1, sample };
        // /home: 105/220 = 0.47727 against 53/111 = 0.47748; /owners: 10/220 = 0.04545 against 5/111 = 0.04505.
        let mut totals = Totals { population: 219, sample: 111 };
        assert_eq!(decide(&mut switch, &mut totals, &mut class, 0), *expected, "row {i}");
    }
}

#[test]
fn mertz2023_table2_reference_records() {
    let mut table = PerformanceTable::new(180);
    for (rps, means, me) in TABLE2 {
        table.push(record(rps, &means, me, 0.01));
    }
    // Upper median of 200, 500, 550, 1500: row 4. The text says row 2.
    assert_eq!(table.reference(true).unwrap().throughput_hz, 550.0);
    // Upper median of 325, 2500: row 3, as the text says.
    assert_eq!(table.reference(false).unwrap().throughput_hz, 2500.0);
}

#[test]
fn mertz2023_ttest_example_is_different_when_paired_and_equal_when_not() {
    let normal = TABLE2[2].1;
    let t = paired(&CURRENT, &normal, 0.95).unwrap();
    // The paper compares (normal, current), so its t is positive.
    assert!((t.t - -8.878).abs() < 1e-3 && t.df == 3.0 && (t.p - 0.0030).abs() < 1e-4, "{t:?}");
    assert!(t.differs(0.05));
    let unpaired = welch(&CURRENT.into_iter().collect(), &normal.into_iter().collect(), 0.95).unwrap();
    assert!(!unpaired.differs(0.05) && unpaired.p > 0.5, "{unpaired:?}");
}

#[test]
fn mertz2023_expression3_diff() {
    let config = AdaptConfig::default();
    let c = compare(&record(1.0, &CURRENT, false, 0.01), &record(1.0, &TABLE2[2].1, false, 0.01), &config)
        .unwrap();
    assert!((c.diff - -0.0963).abs() < 1e-4 && c.common == 4, "{c:?}");
    // Four classes are fewer than five: Welch's over the operations. They vary by 1 %, so 9.6 % is a difference.
    assert!(c.test.unwrap().0 == Method::Welch && c.different, "{c:?}");
    let noisy =
        compare(&record(1.0, &CURRENT, false, 0.5), &record(1.0, &TABLE2[2].1, false, 0.5), &config).unwrap();
    assert!(!noisy.different, "{noisy:?}");
    // By the paired test that the paper names it is different as well.
    let config = AdaptConfig { paired_least_classes: 4, ..config };
    let c = compare(&record(1.0, &CURRENT, false, 0.01), &record(1.0, &TABLE2[2].1, false, 0.01), &config)
        .unwrap();
    assert!(c.test.unwrap().0 == Method::Paired && c.different, "{c:?}");
}

#[test]
fn mertz2023_example_leaves_the_rate_because_the_target_is_faster() {
    // Monitoring off, significantly different, diff = -9.6 %: response times are lower, so nothing is lowered. By the
    // printed sign (line 13: diff < 0) a *faster* target would lose 9.6 % of its rate.
    use super::rate::{RateAdapter, Revision};
    let config = AdaptConfig { baseline_s: 10.0, ..AdaptConfig::default() };
    let window = |means: &[f64], monitoring| WindowSummary {
        length_s: 1.0,
        monitoring,
        classes: record(1.0, means, monitoring, 0.01)
            .classes
            .into_iter()
            .map(|(class, population)| ClassWindow {
                class,
                population,
                sample: Moments::default(),
                measure: Moments::default(),
                cost_s: 0.0,
            })
            .collect(),
    };
    let mut a = RateAdapter::new(&config);
    a.revise(&window(&TABLE2[2].1, false), &config);
    let (revision, comparison) = a.revise(&window(&CURRENT, false), &config);
    assert_eq!((revision, a.rate()), (Revision::Kept, 0.5));
    assert!(comparison.unwrap().different);
}
