//! Does the interval hold the truth, under loads that drift, that remember, and that have wild windows?

use super::*;
use crate::stats::sim::{self, Coverage};
use rand::RngExt as _;
use rand::rngs::StdRng;

/// How the cost of a unit wanders.
#[derive(Debug, Clone, Copy)]
struct Noise {
    /// Standard deviation of a window's own error.
    white: f64,
    /// Step of the random walk from window to window.
    walk: f64,
    /// Stationary deviation and memory of an autoregressive part.
    red: (f64, f64),
    /// Share of windows that cost more by an exponential amount, and its mean.
    wild: (f64, f64),
    /// Linear drift per window.
    trend: f64,
}

const QUIET: Noise = Noise { white: 0.01, walk: 0.0, red: (0.0, 0.0), wild: (0.0, 0.0), trend: 0.0 };

/// `n` comparisons; between two of them twelve windows pass.
fn comparisons(rng: &mut StdRng, noise: Noise, overhead: f64, n: usize) -> Vec<Comparison> {
    let (mut level, mut red) = (0.0, noise.red.0 * sim::normal(rng));
    let mut window = |factor: f64| {
        level += noise.trend + noise.walk * sim::normal(rng);
        let memory = noise.red.1;
        red = memory * red + (1.0 - memory * memory).sqrt() * noise.red.0 * sim::normal(rng);
        let wild = if rng.random::<f64>() < noise.wild.0 { sim::exponential(rng, noise.wild.1) } else { 0.0 };
        let log = level + red + wild + noise.white * sim::normal(rng);
        ProgressWindow { progress: 10_000, cpu_ns: (1e8 * factor * log.exp()) as u64, wall_ns: 0 }
    };
    (0..n)
        .map(|_| {
            let one = Comparison {
                before: window(1.0 + overhead),
                off: window(1.0),
                after: window(1.0 + overhead),
            };
            (0..12).for_each(|_| _ = window(1.0));
            one
        })
        .collect()
}

fn coverage(noise: Noise, overhead: f64, n: usize, runs: u64) -> (f64, f64) {
    let mut coverage = Coverage::default();
    let mut bias = 0.0;
    for seed in 0..runs {
        let mut rng = sim::rng(1_000 * n as u64 + seed);
        let m = measured("operations", &comparisons(&mut rng, noise, overhead, n)).unwrap();
        coverage.note(Interval { low: m.low, high: m.high }, overhead);
        bias += (m.value - overhead) / runs as f64;
    }
    (coverage.share(), bias)
}

#[test]
fn the_interval_holds_the_truth_under_drift_memory_and_wild_windows() {
    let loads = [
        ("quiet", QUIET),
        ("random walk", Noise { walk: 0.02, ..QUIET }),
        ("trend", Noise { trend: 0.003, ..QUIET }),
        ("memory", Noise { red: (0.05, 0.8), ..QUIET }),
        ("long memory", Noise { red: (0.05, 0.97), ..QUIET }),
        ("wild windows", Noise { wild: (0.1, 0.2), ..QUIET }),
        ("all", Noise { walk: 0.01, red: (0.04, 0.8), wild: (0.05, 0.3), trend: 0.001, ..QUIET }),
    ];
    for (name, noise) in loads {
        for (overhead, n) in [(0.0, 24), (0.02, 85)] {
            let (share, bias) = coverage(noise, overhead, n, 1_000);
            // 1,000 runs: the standard deviation of a share of 0.95 is 0.7 points.
            assert!((0.93..=0.97).contains(&share), "{name}, n = {n}: {share}");
            assert!(bias.abs() < 0.002, "{name}, n = {n}: bias {bias}");
        }
    }
}

#[test]
fn wild_windows_cost_less_width_than_a_mean_would() {
    let noise = Noise { wild: (0.1, 0.2), ..QUIET };
    let (mut ours, mut mean) = (0.0, 0.0);
    for seed in 0..200 {
        let all = comparisons(&mut sim::rng(seed), noise, 0.01, 60);
        let m = measured("x", &all).unwrap();
        ours += m.high - m.low;
        let d: crate::stats::moments::Moments =
            all.iter().filter_map(|c| c.differences(Clock::Cpu).map(|[b, a]| f64::midpoint(b, a))).collect();
        let interval = d.mean_interval(LEVEL).unwrap();
        mean += interval.high - interval.low;
    }
    assert!(ours < 0.5 * mean, "{ours} against {mean}");
}

#[test]
fn the_half_width_is_foretold_from_windows_in_which_nothing_is_switched() {
    let noise = Noise { walk: 0.005, red: (0.02, 0.8), ..QUIET };
    let (mut told, mut had) = (Vec::new(), Vec::new());
    for seed in 0..200 {
        let mut rng = sim::rng(seed);
        let pilot: Vec<ProgressWindow> =
            comparisons(&mut rng, noise, 0.0, 6).iter().flat_map(|c| [c.before, c.off, c.after]).collect();
        // The windows of a comparison are neighbours; those of different ones are not.
        let alone: Vec<f64> = pilot.chunks(3).filter_map(|c| c[1].log_cost()).collect();
        assert_eq!(alone.len(), 6);
        let in_a_row = comparisons_in_a_row(&mut rng, noise, 15);
        told.push(reachable(&in_a_row, 1, 85).unwrap());
        let m = measured("x", &comparisons(&mut rng, noise, 0.0, 85)).unwrap();
        had.push((m.high - m.low) / 2.0);
    }
    told.sort_by(f64::total_cmp);
    had.sort_by(f64::total_cmp);
    let ratio = told[100] / had[100];
    assert!((0.8..1.25).contains(&ratio), "foretold over had: {ratio}");
}

fn comparisons_in_a_row(rng: &mut StdRng, noise: Noise, n: usize) -> Vec<ProgressWindow> {
    let (mut level, mut red) = (0.0, noise.red.0 * sim::normal(rng));
    (0..n)
        .map(|_| {
            level += noise.walk * sim::normal(rng);
            let memory = noise.red.1;
            red = memory * red + (1.0 - memory * memory).sqrt() * noise.red.0 * sim::normal(rng);
            let log: f64 = level + red + noise.white * sim::normal(rng);
            ProgressWindow { progress: 10_000, cpu_ns: (1e8 * log.exp()) as u64, wall_ns: 0 }
        })
        .collect()
}

#[test]
fn too_few_windows_and_windows_without_progress_measure_nothing() {
    let w = |progress, cpu_ns| ProgressWindow { progress, cpu_ns, wall_ns: 0 };
    let good = Comparison { before: w(10, 1_000), off: w(10, 1_000), after: w(10, 1_000) };
    let empty = Comparison { before: w(10, 1_000), off: w(0, 1_000), after: w(10, 0) };
    assert_eq!(measured("x", &[good, good]), None);
    assert_eq!(measured("x", &[good, good, empty]), None);
    let m = measured("x", &[good, good, empty, good]).unwrap();
    assert_eq!((m.pairs, m.value), (3, 0.0));
}

#[test]
fn windows_are_joined_until_they_hold_enough_progress() {
    let windows = |progress| vec![ProgressWindow { progress, cpu_ns: 1_000, wall_ns: 0 }; 40];
    assert_eq!(windows_to_join(&windows(20), 16), Some(1));
    assert_eq!(windows_to_join(&windows(6), 16), Some(4));
    assert_eq!(windows_to_join(&windows(1), 16), None);
    assert_eq!(windows_to_join(&[], 16), None);
    assert!(reachable(&windows(20), 1, 50).is_some_and(|half| half == 0.0));
    assert_eq!(reachable(&windows(20)[..6], 1, 50), None);
}

#[test]
fn the_trimmed_mean_is_smooth_and_ignores_what_is_wild() {
    assert_eq!(trimmed_mean(vec![1.0]), 1.0);
    assert_eq!(trimmed_mean(vec![3.0, 1.0, 2.0, 1e9, -1e9]), 2.0);
    // n = 4: 0.8 of a value is left out at each end.
    assert!((trimmed_mean(vec![0.0, 1.0, 2.0, 10.0]) - (1.0 + 2.0 + 0.2 * 10.0) / 2.4).abs() < 1e-12);
    assert_eq!(trimmed_mean(Vec::new()), 0.0);
}

/// Hits inside a lock: each unit takes 1 % more CPU time and 6 % more wall time. Of a target that works by the clock
/// only CPU time grows.
#[test]
fn what_others_wait_for_shows_in_wall_time() {
    let noise = [0.004, -0.003, 0.001, -0.005, 0.002, 0.003, -0.001];
    let window = |i: usize, cpu: f64, wall: f64| {
        // The host's speed shows in both, the rest in one.
        let (both, one) = (1.0 + 5.0 * noise[i % 7], 1.0 + noise[(i * 3 + 1) % 7]);
        ProgressWindow {
            progress: 10_000,
            cpu_ns: (1e8 * cpu * both) as u64,
            wall_ns: (1e8 * wall * both * one) as u64,
        }
    };
    let run = |wall: f64| -> Vec<Comparison> {
        (0..40)
            .map(|i| Comparison {
                before: window(3 * i, 1.01, wall),
                off: window(3 * i + 1, 1.0, 1.0),
                after: window(3 * i + 2, 1.01, wall),
            })
            .collect()
    };
    let locked = waiting(&run(1.06)).unwrap();
    assert!((locked.value - (1.06_f64 / 1.01).ln()).abs() < 0.002 && locked.low > 0.04, "{locked:?}");
    let paced = waiting(&run(1.0)).unwrap();
    assert!(paced.high < 0.0, "{paced:?}");
    let alone = waiting(&run(1.01)).unwrap();
    assert!(alone.low < 0.0 && alone.high > 0.0, "{alone:?}");
}
