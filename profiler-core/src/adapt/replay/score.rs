//! How well a sample tells the independent measure of each class, against the full trace.

use super::{Operation, Run};
use crate::adapt::OperationClassId;
use crate::adapt::strata::{ClassEstimator, MeanEstimate};
use crate::stats::LEVEL;
use crate::stats::moments::Moments;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeMap;

/// One class: truth and estimates of its mean measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassScore {
    /// The class.
    pub class: OperationClassId,
    /// Its operations.
    pub population: u64,
    /// Those recorded.
    pub sample: u64,
    /// Mean measure of all operations (the paper's mu_FUM).
    pub truth: f64,
    /// Plain mean of those recorded (the paper's mu_S); `None` if there is none.
    pub plain: Option<f64>,
    /// Post-stratified mean with interval; it speaks of the observed stretches.
    pub weighted: Option<MeanEstimate>,
    /// Mean measure of all operations of the observed stretches: what the interval is to hold.
    pub truth_observed: f64,
}

/// A run against the full trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// Per class, sorted.
    pub classes: Vec<ClassScore>,
    /// Root mean square over observed classes of plain mean less truth, in the measure's unit: the paper's RMSE.
    pub rmse_plain: f64,
    /// The same of the post-stratified means.
    pub rmse_weighted: f64,
    /// Root mean square of the relative errors of plain means.
    pub relative_plain: f64,
    /// Intervals that hold the truth of the observed stretches / intervals.
    pub coverage: f64,
    /// Classes with operations and none recorded; they are in no RMSE.
    pub unobserved: Vec<OperationClassId>,
    /// Largest difference of a class's shares in all samples and in the population (§4.3).
    pub largest_share_difference: f64,
}

/// Scores a run; `None` if it is of another trace.
#[must_use]
pub fn score(trace: &[Operation], run: &Run) -> Option<Score> {
    score_of(trace, &run.recorded, Some(&run.stretches))
}

/// Scores a selection of a trace's operations. Without stretches each class is one stratum.
#[must_use]
pub fn score_of(trace: &[Operation], recorded: &[bool], stretches: Option<&[u64]>) -> Option<Score> {
    if recorded.len() != trace.len() || stretches.is_some_and(|s| s.len() != trace.len()) {
        return None;
    }
    #[derive(Default)]
    struct Sums {
        all: Moments,
        sample: Moments,
        estimator: ClassEstimator,
        stretch: u64,
        stretch_all: Moments,
        stretch_recorded: bool,
        observed: Moments,
    }
    impl Sums {
        fn end_stretch(&mut self) {
            self.estimator.end_stretch();
            let all = std::mem::take(&mut self.stretch_all);
            if std::mem::take(&mut self.stretch_recorded) {
                self.observed.merge(&all);
            }
        }
    }
    let mut sums: BTreeMap<OperationClassId, Sums> = BTreeMap::new();
    for (i, o) in trace.iter().enumerate() {
        let class = sums.entry(o.class).or_default();
        let stretch = stretches.map_or(0, |s| s[i]);
        if stretch != class.stretch {
            class.end_stretch();
            class.stretch = stretch;
        }
        class.all.push(o.measure);
        if recorded[i] {
            class.sample.push(o.measure);
        }
        class.stretch_all.push(o.measure);
        class.stretch_recorded |= recorded[i];
        class.estimator.push(recorded[i].then_some(o.measure));
    }
    sums.values_mut().for_each(Sums::end_stretch);
    let classes: Vec<ClassScore> = sums
        .iter()
        .map(|(class, s)| ClassScore {
            class: *class,
            population: s.all.n(),
            sample: s.sample.n(),
            truth: s.all.mean(),
            plain: (s.sample.n() > 0).then(|| s.sample.mean()),
            weighted: s.estimator.mean(LEVEL),
            truth_observed: s.observed.mean(),
        })
        .collect();
    Some(summarise(classes))
}

fn summarise(classes: Vec<ClassScore>) -> Score {
    let root = |errors: &Moments| {
        // Moments of squared errors: their mean is the mean square.
        errors.mean().max(0.0).sqrt()
    };
    let plain: Moments = classes.iter().filter_map(|c| Some((c.plain? - c.truth).powi(2))).collect();
    let weighted: Moments =
        classes.iter().filter_map(|c| Some((c.weighted?.estimate.value - c.truth).powi(2))).collect();
    let relative: Moments = classes
        .iter()
        .filter(|c| c.truth != 0.0)
        .filter_map(|c| Some((c.plain? / c.truth - 1.0).powi(2)))
        .collect();
    let held: Moments = classes
        .iter()
        .filter_map(|c| {
            let e = c.weighted?.estimate;
            // Means of the same values in another order differ by rounding.
            let slack = 1e-9 * c.truth_observed.abs();
            let holds = e.low - slack <= c.truth_observed && c.truth_observed <= e.high + slack;
            Some(f64::from(u8::from(holds)))
        })
        .collect();
    let population = classes.iter().map(|c| c.population).sum::<u64>().max(1) as f64;
    let sample = classes.iter().map(|c| c.sample).sum::<u64>().max(1) as f64;
    let largest_share_difference = classes
        .iter()
        .map(|c| (c.sample as f64 / sample - c.population as f64 / population).abs())
        .fold(0.0, f64::max);
    Score {
        rmse_plain: root(&plain),
        rmse_weighted: root(&weighted),
        relative_plain: root(&relative),
        coverage: held.mean(),
        unobserved: classes.iter().filter(|c| c.sample == 0).map(|c| c.class).collect(),
        largest_share_difference,
        classes,
    }
}

/// Keeps `keep` of the recorded operations, chosen at random without replacement (selection sampling, Knuth 3.4.2 S):
/// policies are then compared at equal sampled counts.
#[must_use]
pub fn thin(recorded: &[bool], keep: u64, seed: u64) -> Vec<bool> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut left = recorded.iter().filter(|r| **r).count() as u64;
    let mut wanted = keep.min(left);
    recorded
        .iter()
        .map(|&r| {
            if !r {
                return false;
            }
            let chosen = rng.random::<f64>() * (left as f64) < wanted as f64;
            left -= 1;
            wanted -= u64::from(chosen);
            chosen
        })
        .collect()
}
