//! Slices as sampling units, simulated: operations of one moment are alike by the intra-slice correlation rho.

use super::{ClassEstimator, MeanEstimate};
use crate::class::Source;
use crate::stats::Interval;
use crate::stats::sim::{Coverage, normal, poisson, rng, unit_gamma};
use rand::RngExt as _;

/// Moments in a period, of which one is the slice.
const MOMENTS: usize = 20;
/// Operations in a moment, on average.
const OPERATIONS: f64 = 12.0;
const MEAN: f64 = 100.0;
const DEVIATION: f64 = 20.0;

#[derive(Clone, Copy)]
struct Run {
    rho: f64,
    /// Part of the operations of a slice that is recorded.
    draw: f64,
    /// Periods, and how many of them have the same rate.
    periods: usize,
    stretch: usize,
}

impl Run {
    /// Each period has a slice at a random moment. Moments differ in their number of operations, as bursts do.
    fn simulate(self, seed: u64) -> Outcome {
        let mut rng = rng(seed);
        let (mut slices, mut one_by_one) = (ClassEstimator::default(), ClassEstimator::default());
        let (mut sum, mut operations) = (0.0, 0.0);
        for period in 0..self.periods {
            let slice = rng.random_range(0..MOMENTS);
            for moment in 0..MOMENTS {
                let busy = unit_gamma(&mut rng, 3);
                let n = poisson(&mut rng, OPERATIONS * busy) as u64;
                let shared = MEAN + DEVIATION * self.rho.sqrt() * normal(&mut rng);
                let own = DEVIATION * (1.0 - self.rho).sqrt();
                operations += n as f64;
                if moment == slice {
                    for _ in 0..n {
                        let x = shared + own * normal(&mut rng);
                        sum += x;
                        let recorded = (rng.random::<f64>() < self.draw).then_some(x);
                        slices.push(recorded);
                        one_by_one.push(recorded);
                    }
                    slices.end_slice();
                } else {
                    sum += n as f64 * shared + (n as f64).sqrt() * own * normal(&mut rng);
                    slices.pass(n);
                    (0..n).for_each(|_| one_by_one.push(None));
                }
            }
            if (period + 1) % self.stretch == 0 {
                slices.end_stretch();
                one_by_one.end_stretch();
            }
        }
        let held = |e: &ClassEstimator| e.mean(0.95).expect("something was recorded");
        Outcome { truth: sum / operations, slices: held(&slices), one_by_one: held(&one_by_one) }
    }

    /// Coverage with slices as units and with operations drawn one by one, and the median of the first's width over the second's.
    fn compare(self, seeds: std::ops::Range<u64>) -> (Coverage, Coverage, f64) {
        let (mut ours, mut old, mut ratios) = (Coverage::default(), Coverage::default(), Vec::new());
        for seed in seeds {
            let o = self.simulate(seed);
            assert_eq!(
                (o.slices.observed, o.slices.unobserved),
                (o.one_by_one.observed, o.one_by_one.unobserved)
            );
            ours.note(interval(&o.slices), o.truth);
            old.note(interval(&o.one_by_one), o.truth);
            ratios.push(width(&o.slices) / width(&o.one_by_one));
        }
        ratios.sort_by(f64::total_cmp);
        (ours, old, ratios[ratios.len() / 2])
    }
}

struct Outcome {
    truth: f64,
    slices: MeanEstimate,
    one_by_one: MeanEstimate,
}

fn interval(m: &MeanEstimate) -> Interval {
    Interval { low: m.estimate.low, high: m.estimate.high }
}

fn width(m: &MeanEstimate) -> f64 {
    m.estimate.high - m.estimate.low
}

/// Of 1,000 intervals that hold the truth with 95 %, 99 of 100 times a part between these does.
const LEAST: f64 = 0.932;
const MOST: f64 = 0.968;
const SEEDS: std::ops::Range<u64> = 0..1_000;

#[test]
fn intervals_hold_where_operations_of_a_moment_are_alike() {
    // What intervals held that took operations as drawn one by one, at most: all of a slice is recorded, or three in ten.
    for (draw, before) in [(1.0, [0.80, 0.61, 0.51]), (0.3, [0.93, 0.85, 0.76])] {
        for (periods, stretch) in [(40, 40), (60, 5)] {
            for (rho, most) in [0.1, 0.3, 0.5].into_iter().zip(before) {
                let run = Run { rho, draw, periods, stretch };
                let (ours, old, _) = run.compare(SEEDS);
                let what = format!("rho {rho}, {draw} drawn, {periods} slices, {stretch} a stretch");
                ours.check(LEAST, MOST, &what);
                old.check(0.0, most, &format!("one by one: {what}"));
            }
        }
    }
}

/// Where operations of a moment are no more alike than others, as many draws would have done: what slices cost is the larger quantile of Student's t.
#[test]
fn intervals_hardly_grow_where_operations_of_a_moment_are_not_alike() {
    for draw in [1.0, 0.3] {
        let run = Run { rho: 0.0, draw, periods: 40, stretch: 40 };
        let (ours, old, ratio) = run.compare(SEEDS);
        ours.check(LEAST, MOST, "rho 0");
        old.check(LEAST, MOST, "rho 0, one by one");
        assert!((1.0..=1.1).contains(&ratio), "{draw} drawn: {ratio} times as wide");
    }
}

/// Stretches with a single slice are collapsed in pairs.
#[test]
fn stretches_of_a_slice_each_are_told_from_one_another() {
    for rho in [0.0, 0.5] {
        let run = Run { rho, draw: 1.0, periods: 40, stretch: 1 };
        run.compare(SEEDS).0.check(LEAST, 0.985, &format!("rho {rho}"));
    }
}

#[test]
fn neighbours_are_collapsed_and_a_single_slice_bounds_nothing() {
    let estimator = |stretches: &[&[f64]]| {
        let mut e = ClassEstimator::default();
        for slices in stretches {
            for x in *slices {
                e.push(Some(*x));
                e.end_slice();
                e.pass(9);
            }
            e.end_stretch();
        }
        e.mean(0.95).expect("something was recorded").estimate
    };
    // All are as heavy: pairs of 1 and 3, and of 6, 8 and 7, in strata of their own or not.
    let together = estimator(&[&[1.0, 3.0], &[6.0, 8.0, 7.0]]);
    let parts: [[&[f64]; 4]; 2] =
        [[&[1.0], &[3.0], &[6.0, 8.0], &[7.0]], [&[1.0], &[3.0], &[6.0], &[8.0, 7.0]]];
    for parted in parts {
        let parted = estimator(&parted);
        assert!((parted.value - 5.0).abs() < 1e-12 && parted.high < f64::INFINITY, "{parted:?}");
        assert!((parted.high - together.high).abs() < 1e-9, "{parted:?} {together:?}");
    }
    let one = estimator(&[&[1.0]]);
    assert_eq!((one.value, one.low, one.high), (1.0, f64::NEG_INFINITY, f64::INFINITY));
    // Where nothing began between them, operations are drawn one by one, however often functions inside were attached anew.
    let (mut often, mut once) = (ClassEstimator::default(), ClassEstimator::default());
    for x in [1.0, 1.0, 7.0, 7.0, 4.0] {
        for e in [&mut often, &mut once] {
            e.push(Some(x));
            e.push(None);
        }
        often.end_slice();
    }
    let high = |e: &ClassEstimator| e.mean(0.95).expect("five were recorded").estimate.high;
    assert!((high(&often) - high(&once)).abs() < 1e-9 && high(&once) < f64::INFINITY);
    // Where all were recorded nothing is left to chance, whatever the number of slices.
    let mut all = ClassEstimator::default();
    all.push(Some(1.0));
    all.end_slice();
    all.push(Some(2.0));
    let all = all.mean(0.95).expect("two were recorded").estimate;
    assert_eq!((all.low, all.high, all.source), (1.5, 1.5, Source::Exact));
}
