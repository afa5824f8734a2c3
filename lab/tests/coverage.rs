//! The promise of an interval: 95 of 100 hold the truth. Cells of the table of docs/benchmarks-coverage.md, fixed seeds.

use profiler_lab::coverage;

/// Cells that are known to hold the truth too rarely; docs/benchmarks-coverage.md says why.
const TOO_NARROW: [(&str, &str); 3] = [
    ("mean", "alike in a window, 3 of 50"),
    ("share, long run", "phases of 100 periods"),
    ("mean, cut off", "the same, alike in a window"),
];

/// Enough for a standard error of 0.5 points.
const RUNS: u32 = 2_000;

/// Cells whose intervals are known to be wide, with the most that they may be; docs/benchmarks-coverage.md says why.
const WIDE: [(&str, &str, f64); 16] = [
    ("rate", "phases, 80 bursts", 2.1),
    ("rate", "steady, 3 bursts", 2.5),
    ("rate", "bursty, 3 bursts", 2.3),
    ("total", "phases, 80 of 400", 1.9),
    ("total", "bursty, 3 of 400", 2.3),
    ("total, by time", "5 times from some time on", 1.65),
    ("total, by time", "20 times from some time on", 2.2),
    ("total, by time", "100 times from some time on", 2.3),
    ("total, by time", "a tenth from some time on", 1.6),
    ("total, by time", "10 times, slowly", 1.7),
    ("total, by time", "100 times, slowly", 3.4),
    ("total, by time", "5 times and back", 1.7),
    ("mean", "alike in a window, 3 of 50", 1.7),
    ("quantile 0.99", "independent, 20 windows of 50", 1.75),
    ("quantile 0.9", "alike in a window, 20 of 50", 1.9),
    // Most have no upper end.
    ("mean, cut off", "exponential 0.4, drained 1", f64::INFINITY),
];

/// Of every cell: an interval that is too wide does not pass for one that holds, nor one that is narrow for a good one.
#[test]
fn intervals_hold_the_truth_as_often_as_they_say_and_are_as_wide_as_that_takes() {
    let mut bad = Vec::new();
    let mut wide = 0;
    for cell in coverage::cells() {
        let known = TOO_NARROW.contains(&(cell.estimator, cell.regime));
        let result = cell.simulate(RUNS);
        // Three standard errors below 95 %; or, where it is known to be bad, no worse than it was.
        let least = if known { 0.87 } else { 0.93 };
        if result.coverage < least {
            bad.push(format!("{}, {}: {:.1} %", cell.estimator, cell.regime, result.coverage * 100.0));
        }
        let most =
            WIDE.iter().find(|(estimator, regime, _)| (*estimator, *regime) == (cell.estimator, cell.regime));
        wide += u32::from(most.is_some());
        let widths = if known { 0.8 } else { 0.9 }..=most.map_or(1.5, |(.., most)| *most);
        if !widths.contains(&result.width) {
            bad.push(format!("{}, {}: {:.2} times the oracle's", cell.estimator, cell.regime, result.width));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
    assert_eq!(wide as usize, WIDE.len(), "a cell of another name");
}

/// Totals of runs whose rate rises while bursts get rarer; seen without it: 0.52 to 0.81 of the truth.
#[test]
fn totals_of_a_rate_that_rises_are_not_those_of_the_time_before() {
    let (mut bad, mut before) = (Vec::new(), Vec::new());
    let by_time = coverage::cells().into_iter().filter(|c| c.estimator == "total, by time");
    for (cell, alike) in by_time.zip(coverage::alike_cells()) {
        assert_eq!(cell.regime, alike.regime);
        let (with, without) = (cell.simulate(RUNS).ratio, alike.simulate(RUNS).ratio);
        if !(0.9..1.05).contains(&with) {
            bad.push(format!("{}: {with:.3} of the truth", cell.regime));
        }
        before.push(without);
    }
    assert!(bad.is_empty(), "{bad:#?}");
    let worse = before.iter().filter(|ratio| **ratio < 0.83).count();
    assert!(worse >= 6, "nothing to mend: {before:?}");
}

/// Functions that learn from one another, by decade of their rates: the least coverage, and the widths over the oracle's between which the median lies, from the
/// lowest rate to the highest.
const POOLED: [(&str, f64, (f64, f64)); 9] = [
    ("pooled, calm, 4 bursts", 0.94, (0.95, 1.25)),
    ("pooled, own drift, 4 bursts", 0.93, (0.95, 1.25)),
    ("pooled, own drift, 12 bursts", 0.925, (0.9, 1.6)),
    // Of functions that differ the oracle knows the mean width, and most are narrower.
    ("pooled, unlike drifts, 4 bursts", 0.925, (0.6, 1.25)),
    // Bursts that happen to look alike do not show the clusters, so these do not hold as often as they say; by the others alone they held in 52 and in 42 %.
    ("pooled, one clustered, 4 bursts", 0.76, (0.45, 1.1)),
    ("pooled, one clustered, 2 bursts", 0.58, (0.3, 1.15)),
    ("pooled, a third clustered, 4 bursts", 0.82, (0.6, 1.15)),
    ("pooled, same 4 moments", 0.915, (0.95, 1.5)),
    // The course says that moments differ, and not that they differ once.
    ("pooled, load doubles, 12 bursts", 0.94, (1.05, 4.9)),
];

#[test]
fn functions_that_learn_from_one_another_hold_the_truth_and_are_as_wide_as_that_takes() {
    let mut bad = Vec::new();
    for cell in coverage::pooled_cells() {
        let limits = POOLED.iter().find(|(name, ..)| *name == cell.estimator);
        let (_, least, widths) = limits.unwrap_or_else(|| panic!("no limits for {}", cell.estimator));
        let result = cell.simulate(RUNS);
        if result.coverage < *least || !(widths.0..=widths.1).contains(&result.width) {
            let held = result.coverage * 100.0;
            bad.push(format!("{}, {}: {held:.1} %, {:.2} wide", cell.estimator, cell.regime, result.width));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}
