//! A sequential test on counts of samples: the best that a sampler at a static rate can fairly be given.
//!
//! ```text
//! S <- max(S, 0) + x ln(rho) - (rho - 1) lambda m      x samples and m ended calls of a slice, lambda samples for each call while nothing is wrong
//! ```
//! The logarithm of the likelihood ratio of Poisson counts that are rho times as large, summed from its best beginning (Page 1954, CUSUM), for several rho at once: an
//! alarm if one of them reaches the threshold h, and all begin anew. With Poisson counts and `h = ln(N)` a false alarm comes after N slices or more on average (Lorden 1971), each
//! rho for itself: h is that at least. Samples of a slice are no Poisson counts, since calls differ in size and follow each other. So h is higher if redraws of the clean recording, in
//! blocks, raise more false alarms than are allowed. (Redraws alone would be too low: 40 s do not have each large call in them.)

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Times as many samples for each call that are looked for. Not fewer: 40 s with some hundred samples say how many are usual to a fifth or so, and evidence for twice as many does
/// not grow below 1.44 times as many.
const RATIOS: [f64; 3] = [2.0, 4.0, 16.0];
/// Slices in a row that are redrawn together: what follows each other stays together.
const BLOCK: usize = 20;
/// Fewest blocks that say what is usual.
const LEAST_BLOCKS: usize = 10;
/// Fewest samples that say how counts scatter.
const LEAST_SAMPLES: f64 = 20.0;
/// Redraws of the clean recording, each with a lambda of its own: it is known no better than that. And false alarms in all of them.
const REDRAWS: usize = 30;
const ALARMS: f64 = 10.0;
/// Steps in which the threshold is searched for, and the highest one.
const STEPS: usize = 14;
const HIGHEST: f64 = 400.0;

/// Samples of a function in a slice of time, and calls of it that ended there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counts {
    /// Samples.
    pub samples: f64,
    /// Calls.
    pub calls: f64,
}

/// What is usual, and the threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usual {
    /// Samples for each call.
    pub share: f64,
    /// Evidence from which an alarm is raised, ln.
    pub threshold: f64,
}

impl Usual {
    /// From a clean recording, for so many false alarms in an hour of slices of this length. `None`: it is too short, or has no call.
    pub fn learn(clean: &[Counts], slice_s: f64, false_alarms_per_hour: f64) -> Option<Usual> {
        let calls: f64 = clean.iter().map(|slice| slice.calls).sum();
        if clean.len() < LEAST_BLOCKS * BLOCK || calls <= 0.0 {
            return None;
        }
        let share = share(clean);
        let samples: f64 = clean.iter().map(|slice| slice.samples).sum();
        let slices_an_hour = 3_600.0 / slice_s;
        let least = (slices_an_hour / false_alarms_per_hour * RATIOS.len() as f64).ln();
        let threshold = if samples < LEAST_SAMPLES {
            least
        } else {
            let hours = ALARMS / false_alarms_per_hour;
            // OK because it is a number of slices.
            lowest(&redraws(clean, (hours * slices_an_hour) as usize)).max(least)
        };
        Some(Usual { share, threshold })
    }
}

/// Samples for each call. Half a sample more, so that none is not never.
fn share(slices: &[Counts]) -> f64 {
    let sum = |of: fn(&Counts) -> f64| slices.iter().map(of).sum::<f64>();
    (sum(|slice| slice.samples) + 0.5) / sum(|slice| slice.calls).max(1.0)
}

/// Slices in blocks that are drawn from the clean recording, so many of them.
fn redrawn(clean: &[Counts], length: usize, random: &mut StdRng) -> Vec<Counts> {
    let mut all = Vec::with_capacity(length + BLOCK);
    while all.len() < length {
        let first = random.random_range(0..clean.len());
        all.extend((first..first + BLOCK).map(|i| clean[i % clean.len()]));
    }
    all.truncate(length);
    all
}

/// Redraws: what one as long as the clean recording says is usual, and others that are held against it.
fn redraws(clean: &[Counts], length: usize) -> Vec<(f64, Vec<Counts>)> {
    let mut random = StdRng::seed_from_u64(18);
    let mut one = |_| {
        let usual = share(&redrawn(clean, clean.len(), &mut random));
        (usual, redrawn(clean, length / REDRAWS, &mut random))
    };
    (0..REDRAWS).map(&mut one).collect()
}

/// The lowest threshold that raises no more than [`ALARMS`] in the redraws.
fn lowest(redraws: &[(f64, Vec<Counts>)]) -> f64 {
    let (mut low, mut high) = (0.0, HIGHEST);
    for _ in 0..STEPS {
        let threshold = f64::midpoint(low, high);
        let alarms = |(share, slices): &(f64, Vec<Counts>)| {
            let mut cusum = Cusum::new(Usual { share: *share, threshold });
            slices.iter().filter(|slice| cusum.take(**slice).is_some()).count()
        };
        if redraws.iter().map(alarms).sum::<usize>() as f64 <= ALARMS {
            high = threshold;
        } else {
            low = threshold;
        }
    }
    high
}

/// The running test of a function.
#[derive(Clone, Debug)]
pub struct Cusum {
    usual: Usual,
    /// Evidence for each of [`RATIOS`], and of how many slices.
    sums: [(f64, usize); RATIOS.len()],
    logs: [f64; RATIOS.len()],
}

impl Cusum {
    /// Has seen nothing yet.
    pub fn new(usual: Usual) -> Cusum {
        Cusum { usual, sums: [(0.0, 0); RATIOS.len()], logs: RATIOS.map(f64::ln) }
    }

    /// Takes the next slice. If that raises an alarm: the number of slices in which the evidence lies.
    pub fn take(&mut self, slice: Counts) -> Option<usize> {
        let expected = self.usual.share * slice.calls;
        let mut raised = None;
        for ((sum, slices), (ratio, log)) in self.sums.iter_mut().zip(RATIOS.iter().zip(self.logs)) {
            if *sum <= 0.0 {
                (*sum, *slices) = (0.0, 0);
            }
            *sum += slice.samples * log - (ratio - 1.0) * expected;
            *slices += 1;
            let is_more = raised.is_none_or(|(most, _)| *sum > most);
            if *sum >= self.usual.threshold && *sum > 0.0 && is_more {
                raised = Some((*sum, *slices));
            }
        }
        let (_, slices) = raised?;
        self.sums = [(0.0, 0); RATIOS.len()];
        Some(slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slice in which two calls end on average, each with samples by its size; `times` as many.
    fn drawn(random: &mut StdRng, times: f64, each: f64) -> Counts {
        let calls = random.random_range(0..5_u32);
        let mut samples = 0.0;
        for _ in 0..calls {
            // Sizes over two decades, as those of the program.
            let size = 10.0_f64.powf(random.random_range(0.0..2.0)) / 21.5;
            samples += (0..20).filter(|_| random.random::<f64>() < times * each * size / 20.0).count() as f64;
        }
        Counts { samples, calls: f64::from(calls) }
    }

    fn stretch(seconds: usize, times: f64, each: f64, seed: u64) -> Vec<Counts> {
        let mut random = StdRng::seed_from_u64(seed);
        (0..seconds * 10).map(|_| drawn(&mut random, times, each)).collect()
    }

    /// Alarms an hour of recordings that are clean, by what others that are clean say is usual, where twelve are allowed.
    fn false_alarms_an_hour(each: f64, seeds: u64) -> f64 {
        let of = |seed: u64| {
            let usual = Usual::learn(&stretch(40, 1.0, each, seed), 0.1, 12.0).unwrap();
            let mut cusum = Cusum::new(usual);
            stretch(600, 1.0, each, 900 + seed).iter().filter(|slice| cusum.take(**slice).is_some()).count()
        };
        (0..seeds).map(of).sum::<usize>() as f64 * 6.0 / seeds as f64
    }

    #[test]
    fn of_clean_recordings_about_as_many_alarms_come_as_are_allowed() {
        let many = false_alarms_an_hour(0.3, 40);
        assert!((1.0..24.0).contains(&many), "{many}");
        // Of two samples in a recording nobody knows how they scatter.
        let few = false_alarms_an_hour(0.003, 20);
        assert!(few < 12.0, "{few}");
    }

    #[test]
    fn three_times_as_many_samples_are_found_within_seconds_and_many_more_in_a_slice_or_two() {
        let usual = Usual::learn(&stretch(40, 1.0, 0.3, 1), 0.1, 1.0).unwrap();
        assert!((usual.share / 0.3 - 1.0).abs() < 0.3, "{usual:?}");
        let found = |times: f64| {
            let mut cusum = Cusum::new(usual);
            let before = stretch(10, 1.0, 0.3, 2).iter().filter(|s| cusum.take(**s).is_some()).count();
            assert_eq!(before, 0);
            stretch(10, times, 0.3, 3).iter().position(|slice| cusum.take(*slice).is_some())
        };
        assert!(found(3.0).is_some_and(|slices| slices < 50), "{:?} {usual:?}", found(3.0));
        assert!(found(30.0).is_some_and(|slices| slices < 5), "{:?} {usual:?}", found(30.0));
    }

    #[test]
    fn a_call_that_goes_on_is_evidence_before_it_ends() {
        let usual = Usual { share: 0.1, threshold: 10.0 };
        let mut cusum = Cusum::new(usual);
        let waits = Counts { samples: 30.0, calls: 0.0 };
        assert_eq!(cusum.take(Counts { samples: 0.0, calls: 3.0 }), None);
        assert_eq!(cusum.take(waits), Some(1));
        // It begins anew.
        assert_eq!(cusum.take(Counts { samples: 1.0, calls: 0.0 }), None);
    }

    #[test]
    fn what_has_no_calls_or_is_short_says_nothing_of_what_is_usual() {
        let none = vec![Counts { samples: 3.0, calls: 0.0 }; 400];
        assert_eq!(Usual::learn(&none, 0.1, 1.0), None);
        assert_eq!(Usual::learn(&stretch(19, 1.0, 0.3, 1), 0.1, 1.0), None);
        assert!(Usual::learn(&stretch(20, 1.0, 0.3, 1), 0.1, 1.0).is_some());
    }
}
