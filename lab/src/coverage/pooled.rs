//! Rates of functions that learn from one another how unlike moments are, by decade of rate.

use super::{Outcome, exponential, gamma, normal, outcome};
use profiler_core::stats::LEVEL;
use profiler_core::stats::bursts::{Burst, Cell, Drift, Of, Seen, Stop, cells, rate_over};
use rand::{RngExt as _, rngs::StdRng};

/// Length of a run, s.
const RUN_S: f64 = 30.0;
/// Quota of a burst, and the longest it may take, s.
const QUOTA: u64 = 500;
const LONGEST_S: f64 = 1.0;
/// Functions of each decade from 1 to 1e6 calls a second.
const OF_DECADE: usize = 3;
/// Decades.
pub(super) const DECADES: [&str; 7] = ["1/s", "10/s", "100/s", "1e3/s", "1e4/s", "1e5/s", "1e6/s"];

/// How unlike the moments of a run are.
#[derive(Clone, Copy)]
pub(super) enum World {
    /// All alike.
    Calm,
    /// Each burst meets a factor of its own, of a spread of 0.25 for all functions.
    Own,
    /// The same, and functions differ in it: its variance is drawn anew for each, 4 / chi^2(4) times as large.
    Unlike,
    /// Calls of the functions of one decade, or of a third of all, come in clusters (spread 0.7); those of others do not (0.1).
    Clustered { third: bool },
    /// All functions' bursts lie in the same moments, each of which has a speed of its own, of a spread of 0.25.
    Moments,
    /// From some time on all functions are called twice as often.
    Doubles,
}

/// Those of the table, with the bursts of each function.
pub(super) const WORLDS: [(&str, World, usize); 9] = [
    ("pooled, calm, 4 bursts", World::Calm, 4),
    ("pooled, own drift, 4 bursts", World::Own, 4),
    ("pooled, own drift, 12 bursts", World::Own, 12),
    ("pooled, unlike drifts, 4 bursts", World::Unlike, 4),
    ("pooled, one clustered, 4 bursts", World::Clustered { third: false }, 4),
    ("pooled, one clustered, 2 bursts", World::Clustered { third: false }, 2),
    ("pooled, a third clustered, 4 bursts", World::Clustered { third: true }, 4),
    ("pooled, same 4 moments", World::Moments, 4),
    ("pooled, load doubles, 12 bursts", World::Doubles, 12),
];

/// A mean-1 factor: lognormal.
fn factor(rng: &mut StdRng, spread: f64) -> f64 {
    let sigma = (1.0 + spread * spread).ln().sqrt();
    (sigma * normal(rng) - 0.5 * sigma * sigma).exp()
}

/// A burst at `hz`, `whole_hz` of which it was planned for.
fn burst(rng: &mut StdRng, whole_hz: f64, hz: f64) -> Burst {
    let window_s = (QUOTA as f64 / whole_hz).min(LONGEST_S);
    if whole_hz * LONGEST_S < QUOTA as f64 {
        let (mut hits, mut t) = (0, exponential(rng, 1.0 / hz));
        while t < window_s {
            hits += 1;
            t += exponential(rng, 1.0 / hz);
        }
        let plain = super::counted(hits, Stop::Window, window_s);
        return Burst { quota: Some(QUOTA), window_s: Some(window_s), ..plain };
    }
    // Of 500 exponential times, to far below what tests see.
    let time_s = window_s * whole_hz / hz * (1.0 + normal(rng) / (QUOTA as f64).sqrt()).max(0.5);
    super::counted(QUOTA, Stop::Quota, time_s)
}

/// Time between neighbouring bursts of a function, s.
fn apart_s(bursts: usize) -> f64 {
    RUN_S / bursts as f64
}

/// The rate of one function of `decade` after `m` bursts of each.
pub(super) fn rate(rng: &mut StdRng, world: World, decade: usize, m: usize) -> Option<Outcome> {
    let speeds: Vec<f64> = (0..m).map(|_| factor(rng, 0.25)).collect();
    let turn_s = RUN_S * (0.25 + 0.5 * rng.random::<f64>());
    let mut functions: Vec<(f64, Vec<Burst>, Vec<Cell>)> = Vec::new();
    for i in 0..OF_DECADE * DECADES.len() {
        let hz = 10f64.powi((i / OF_DECADE) as i32);
        let clustered = match world {
            World::Clustered { third: true } => i % OF_DECADE == 0,
            World::Clustered { third: false } => i == decade * OF_DECADE,
            _ => false,
        };
        let spread = match world {
            World::Calm | World::Moments | World::Doubles => 0.0,
            World::Own => 0.25,
            // gamma(2, mean 1) is chi^2(4) / 4.
            World::Unlike => 0.25 / gamma(rng, 2).sqrt(),
            World::Clustered { .. } => {
                if clustered {
                    0.7
                } else {
                    0.1
                }
            }
        };
        let (mut bursts, mut spans) = (Vec::new(), Vec::new());
        for (j, speed) in speeds.iter().enumerate() {
            let begin_s = (j as f64 + rng.random::<f64>() * 0.9) * apart_s(m);
            let common = match world {
                World::Moments => *speed,
                World::Doubles if begin_s > turn_s => 2.0,
                _ => 1.0,
            };
            let met_hz = hz * common * factor(rng, spread);
            let one = burst(rng, hz, met_hz);
            spans.push((begin_s, begin_s + one.time_s));
            bursts.push(one);
        }
        let cells = cells(&spans, RUN_S, |from, to| to - from);
        functions.push((hz, bursts, cells));
    }
    let drift = pool(&functions, m);
    let (hz, bursts, cells) = &functions[decade * OF_DECADE];
    let mean = if matches!(world, World::Doubles) { 2.0 - turn_s / RUN_S } else { 1.0 };
    Some(outcome(&rate_over(bursts, cells, LEVEL, drift.as_ref(), Of::LONG)?, hz * mean))
}

fn pool(functions: &[(f64, Vec<Burst>, Vec<Cell>)], m: usize) -> Option<Drift> {
    let classes = functions.iter().map(|(_, bursts, cells)| Seen { bursts, cells });
    Drift::pooled(classes, apart_s(m), m as f64)
}
