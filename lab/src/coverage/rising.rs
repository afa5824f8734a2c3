//! Totals of runs in which bursts do not lie evenly: a plan that answers to prices puts them farther apart where the function is called more often.

use super::{Outcome, counted, gamma, outcome, poisson};
use profiler_core::stats::LEVEL;
use profiler_core::stats::bursts::{Burst, Of, Stop, cells, rate_over, run_total};
use rand::{RngExt as _, rngs::StdRng};

/// Length of a run, s, and of a slot with a factor of its own.
const RUN_S: f64 = 30.0;
const SLOT_S: f64 = 0.05;
/// Rate at first, Hz.
const FIRST_HZ: f64 = 1_000.0;
/// Quota of a burst; shorter than a slot in any case.
const QUOTA: u64 = 500;
/// A new plan comes so long after the rate has changed, s.
const LATE_S: f64 = 2.0;
/// Time between two bursts with 1 and with [`QUOTA`] hits, s: between them in proportion.
const CLOSEST_S: f64 = 0.5;
const FARTHEST_S: f64 = 5.0;

/// How the rate moves.
#[derive(Clone, Copy)]
pub(super) enum Course {
    /// It does not.
    Steady,
    /// It does not, but after a third of the run bursts lie five times as far apart.
    SteadyRarer,
    /// At a time between a sixth and five sixths of the run it becomes so many times as large.
    Step(f64),
    /// It grows evenly, by its logarithm, to so many times.
    Slope(f64),
    /// So many times as large and back, for exponential times of 4 s in the mean.
    Phases(f64),
}

/// Those of the table.
pub(super) const COURSES: [(&str, Course); 9] = [
    ("steady", Course::Steady),
    ("steady, bursts rarer from a third on", Course::SteadyRarer),
    ("5 times from some time on", Course::Step(5.0)),
    ("20 times from some time on", Course::Step(20.0)),
    ("100 times from some time on", Course::Step(100.0)),
    ("a tenth from some time on", Course::Step(0.1)),
    ("10 times, slowly", Course::Slope(10.0)),
    ("100 times, slowly", Course::Slope(100.0)),
    ("5 times and back", Course::Phases(5.0)),
];

impl Course {
    /// Rates of the slots, without their factors.
    fn rates(self, rng: &mut StdRng) -> Vec<f64> {
        let slots = (RUN_S / SLOT_S) as usize;
        let turn = (rng.random::<f64>() * 4.0 + 1.0) / 6.0;
        let mut high = rng.random::<bool>();
        let of = |i: usize| {
            let part = i as f64 / slots as f64;
            FIRST_HZ
                * match self {
                    Self::Steady | Self::SteadyRarer => 1.0,
                    Self::Step(ratio) if part >= turn => ratio,
                    Self::Step(_) => 1.0,
                    Self::Slope(ratio) => ratio.powf(part),
                    Self::Phases(ratio) => {
                        high ^= rng.random::<f64>() < SLOT_S / 4.0;
                        if high { ratio } else { 1.0 }
                    }
                }
        };
        (0..slots).map(of).collect()
    }
}

/// One run. `by_time`: each burst counts by the time that it stands for.
pub(super) fn total(rng: &mut StdRng, course: Course, by_time: bool) -> Option<Outcome> {
    let planned = course.rates(rng);
    let real: Vec<f64> = planned.iter().map(|hz| hz * gamma(rng, 10)).collect();
    let slot = |s: f64| ((s / SLOT_S) as usize).min(planned.len() - 1);
    let (mut bursts, mut spans): (Vec<Burst>, Vec<(f64, f64)>) = (Vec::new(), Vec::new());
    let mut watch = |rng: &mut StdRng, from_s: f64, quota: u64, in_plan: bool| {
        let hz = real[slot(from_s)];
        let burst = if hz * SLOT_S < quota as f64 {
            counted(poisson(rng, hz * SLOT_S), Stop::Window, SLOT_S)
        } else {
            counted(quota, Stop::Quota, quota as f64 * gamma(rng, quota as u32) / hz)
        };
        // As the report has it: bursts of a plan weigh alike.
        bursts.push(if in_plan { Burst { quota: Some(QUOTA), window_s: Some(1e9), ..burst } } else { burst });
        spans.push((from_s, from_s + burst.time_s));
    };
    for (i, quota) in [8, 30, 40, 50].into_iter().enumerate() {
        watch(rng, 0.3 + 0.15 * i as f64, quota, false);
    }
    let mut now_s = 1.0 + rng.random::<f64>();
    while now_s < RUN_S - 2.0 * SLOT_S {
        watch(rng, now_s, QUOTA, true);
        let hits = (planned[slot((now_s - LATE_S).max(0.0))] * SLOT_S).min(QUOTA as f64);
        let every_s = CLOSEST_S + (FARTHEST_S - CLOSEST_S) * hits / QUOTA as f64;
        let rarer = matches!(course, Course::SteadyRarer) && now_s > RUN_S / 3.0;
        let every_s = if rarer { FARTHEST_S / 2.0 } else { every_s };
        now_s += every_s * rng.random_range(0.5..1.5);
    }
    let seen_s: f64 = bursts.iter().map(|b| b.time_s).sum();
    let of_run = if by_time { cells(&spans, RUN_S, |from, to| to - from) } else { Vec::new() };
    let rest = Of::Rest { unseen: 1.0 - seen_s / RUN_S };
    let rate = rate_over(&bursts, &of_run, LEVEL, None, rest)?;
    let total = run_total(rate.n, seen_s, RUN_S, &rate);
    Some(outcome(&total, real.iter().map(|hz| hz * SLOT_S).sum()))
}
