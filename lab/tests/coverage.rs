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

#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    let mut bad = Vec::new();
    for cell in coverage::cells() {
        let known = TOO_NARROW.contains(&(cell.estimator, cell.regime));
        let result = cell.simulate(RUNS);
        // Three standard errors below 95 %; or, where it is known to be bad, no worse than it was.
        let least = if known { 0.87 } else { 0.93 };
        if result.coverage < least {
            bad.push(format!("{}, {}: {:.1} %", cell.estimator, cell.regime, result.coverage * 100.0));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn intervals_are_not_wide_instead() {
    // The plain cells: no phases, no few bursts, no bucket wider than the error.
    let plain = [
        ("rate", "steady, 20 bursts of 100"),
        ("rate", "bursty, 20 bursts"),
        ("rate", "quota of 100, bursty, 20"),
        ("total", "steady, 200 of 400 slots"),
        ("total, by time", "steady"),
        ("total, by time", "steady, bursts rarer from a third on"),
        ("mean", "independent, 20 windows of 50"),
        ("share, this recording", "short calls, 10 %"),
        ("share, long run", "phases of 10 periods"),
        ("on-CPU per call", "bursty, 20 bursts"),
        ("mean, cut off", "0 to 1 window, drained half"),
        ("median, cut off", "0 to 1 window, drained half"),
    ];
    let cells = coverage::cells();
    for (estimator, regime) in plain {
        let cell = cells.iter().find(|c| (c.estimator, c.regime) == (estimator, regime)).unwrap();
        let width = cell.simulate(RUNS).width;
        assert!((0.9..1.5).contains(&width), "{estimator}, {regime}: {width} times the oracle's");
    }
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
/// lowest rate to the highest; of the regimes that docs/benchmarks-coverage.md has figures of. An interval that is too wide does not pass for one that holds, nor one that is narrow for a good one.
const POOLED: [(&str, f64, (f64, f64)); 6] = [
    ("pooled, calm, 4 bursts", 0.94, (0.95, 1.25)),
    ("pooled, own drift, 4 bursts", 0.93, (0.95, 1.25)),
    ("pooled, own drift, 12 bursts", 0.925, (0.9, 1.6)),
    // Of functions that differ the oracle knows the mean width, and most are narrower.
    ("pooled, unlike drifts, 4 bursts", 0.925, (0.6, 1.25)),
    // Bursts that happen to look alike do not show the clusters, so these do not hold as often as they say; by the others alone they held in 52 and in 42 %.
    ("pooled, one clustered, 4 bursts", 0.76, (0.45, 1.1)),
    ("pooled, one clustered, 2 bursts", 0.58, (0.3, 1.15)),
];

#[test]
fn functions_that_learn_from_one_another_hold_the_truth_and_are_as_wide_as_that_takes() {
    let mut bad = Vec::new();
    for cell in coverage::pooled_cells() {
        let limits = POOLED.iter().find(|(name, ..)| *name == cell.estimator);
        let Some((_, least, widths)) = limits else { continue };
        let result = cell.simulate(RUNS);
        if result.coverage < *least || !(widths.0..=widths.1).contains(&result.width) {
            let held = result.coverage * 100.0;
            bad.push(format!("{}, {}: {held:.1} %, {:.2} wide", cell.estimator, cell.regime, result.width));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}
