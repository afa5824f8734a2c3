//! Many runs of one function: error, coverage and half-width, and whether they are good enough.

use super::run::{DURATIONS_NS, Pair, Seen};
use crate::measure::Series;

/// Nominal coverage of an interval, and how often a row that has it may be called bad by chance.
const NOMINAL: f64 = 0.95;
const CHANCE: f64 = 0.01;
/// Half-widths that are aimed at: of an entry that is single-stepped, ns.
const STEPPED_NS: f64 = 200.0;
/// Timed calls that the aim is for.
pub const AIMED_AT: u64 = 1_000;

/// What the runs say of one figure.
#[derive(Debug, Default)]
pub struct Figure {
    /// Point estimate over truth, less 1, of the runs that have one.
    pub error: Series,
    /// Half of the interval's width, in the unit of the figure; infinite where it is open.
    pub half: Series,
    /// The same over the truth.
    pub relative: Series,
    /// Runs in which it was told, as estimate or limit.
    pub told: usize,
    /// Of these, those with a limit.
    pub limits: usize,
    /// Of these, those whose interval holds the truth.
    pub held: usize,
    /// The half-width of the truth's own interval over that of the estimate.
    pub own: Series,
}

impl Figure {
    /// The figure that `of` takes from each run.
    pub fn of(runs: &[&Seen], of: fn(&Seen) -> Pair) -> Self {
        Self::of_pairs(runs.iter().map(|seen| of(seen)))
    }

    /// The figure with its truth of each run.
    pub fn of_pairs(pairs: impl Iterator<Item = impl std::borrow::Borrow<Pair>>) -> Self {
        let mut figure = Self::default();
        pairs.for_each(|pair| figure.note(pair.borrow()));
        figure
    }

    fn note(&mut self, pair: &Pair) {
        let Some(told) = pair.told else { return };
        self.told += 1;
        self.held += usize::from(holds(pair));
        self.limits += usize::from(told.at_most);
        if !told.at_most {
            self.error.push(told.value / pair.truth.value - 1.0);
        }
        let half = (told.high.unwrap_or(f64::INFINITY) - told.low) / 2.0;
        self.half.push(half);
        self.relative.push(half / pair.truth.value);
        if half > 0.0 {
            self.own.push(pair.truth.half / half);
        }
    }

    /// Intervals hold the truth too seldom.
    pub fn misses(&self) -> bool {
        is_too_few(self.held, self.told)
    }

    /// `183 of 200`, bold where that is too few.
    pub fn show_held(&self) -> String {
        let text = format!("{} of {}", self.held, self.told);
        if self.misses() { format!("**{text}**") } else { text }
    }

    /// Median error, %.
    pub fn show_error(&self) -> String {
        let limits = if self.limits > 0 { format!(" ({} ≤)", self.limits) } else { String::new() };
        match self.error.n() {
            0 => format!("none{limits}"),
            _ => format!("{:+.1}{limits}", self.error.median() * 100.0),
        }
    }
}

/// The interval holds the truth, whose own uncertainty is added by squares.
pub fn holds(pair: &Pair) -> bool {
    let (Some(told), truth) = (pair.told, pair.truth) else { return false };
    let high = told.high.unwrap_or(f64::INFINITY);
    if truth.value < told.value && !told.at_most {
        told.value - truth.value <= (told.value - told.low).hypot(truth.half)
    } else {
        truth.value - told.value <= (high - told.value).hypot(truth.half)
    }
}

/// So few of `n` intervals that hold the truth would be seen in less than 1 % of the times, were each to hold it with 95 %.
pub fn is_too_few(held: usize, n: usize) -> bool {
    // P(k) of the binomial distribution, from k = n downwards.
    let mut p = NOMINAL.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let mut above = 0.0;
    for k in (held + 1..=n).rev() {
        above += p;
        p *= k as f64 / (n - k + 1) as f64 * (1.0 - NOMINAL) / NOMINAL;
    }
    n > 0 && 1.0 - above < CHANCE
}

/// The half-width that is aimed at, ns.
pub fn aim_ns(duration: usize, stepped: bool, true_ns: f64) -> f64 {
    if stepped {
        return STEPPED_NS;
    }
    true_ns
        * match DURATIONS_NS[duration] {
            ..300 => 0.5,
            300..2_000 => 0.2,
            _ => 0.05,
        }
}

#[cfg(test)]
mod tests {
    use super::super::run::Told;
    use super::super::truth::Truth;
    use super::*;

    #[test]
    fn of_200_runs_181_are_too_few() {
        assert!(is_too_few(181, 200) && !is_too_few(182, 200));
        assert!(is_too_few(0, 200) && !is_too_few(200, 200));
        // 0.05^2 < 1 % < 0.05.
        assert!(is_too_few(0, 2) && !is_too_few(0, 1) && !is_too_few(1, 2));
        assert!(!is_too_few(0, 0));
        // P(Bin(20, 0.95) <= 15) = 0.26 %, <= 16: 1.6 %.
        assert!(is_too_few(15, 20) && !is_too_few(16, 20));
    }

    fn pair(value: f64, low: f64, high: Option<f64>, truth: f64, half: f64) -> Pair {
        let told = Told { value, low, high, at_most: false };
        Pair { told: Some(told), truth: Truth { value: truth, half } }
    }

    #[test]
    fn intervals_hold_the_truth_or_not() {
        assert!(holds(&pair(100.0, 90.0, Some(120.0), 118.0, 0.0)));
        assert!(!holds(&pair(100.0, 90.0, Some(120.0), 89.0, 0.0)));
        // Half-widths of 10 and 5: 11.2.
        assert!(holds(&pair(100.0, 90.0, Some(120.0), 89.0, 5.0)));
        assert!(!holds(&pair(100.0, 90.0, Some(120.0), 88.0, 5.0)));
        assert!(holds(&pair(100.0, 90.0, None, 1e9, 0.0)));
        assert!(!holds(&Pair { told: None, truth: Truth { value: 1.0, half: 1.0 } }));
        let limit = Told { value: 0.0, low: 0.0, high: Some(100.0), at_most: true };
        assert!(holds(&Pair { told: Some(limit), truth: Truth { value: 99.0, half: 0.0 } }));
        assert!(!holds(&Pair { told: Some(limit), truth: Truth { value: 101.0, half: 0.0 } }));
    }

    #[test]
    fn figures_count_what_was_told() {
        let mut figure = Figure::default();
        figure.note(&pair(110.0, 90.0, Some(130.0), 100.0, 1.0));
        figure.note(&pair(200.0, 190.0, None, 100.0, 1.0));
        figure.note(&Pair { told: None, truth: Truth { value: 100.0, half: 1.0 } });
        assert_eq!((figure.told, figure.held, figure.limits), (2, 1, 0));
        assert_eq!(figure.show_held(), "1 of 2");
        assert_eq!(figure.show_error(), "+55.0");
        assert_eq!((figure.half.n(), figure.half.median()), (2, f64::INFINITY));
        figure.note(&pair(110.0, 90.0, Some(130.0), 100.0, 1.0));
        assert_eq!(figure.relative.median(), 0.2);
    }

    #[test]
    fn aims_are_those_of_the_issue() {
        assert_eq!(aim_ns(0, false, 110.0), 55.0);
        assert_eq!(aim_ns(1, false, 300.0), 60.0);
        assert_eq!(aim_ns(2, false, 1_000.0), 200.0);
        assert_eq!(aim_ns(3, false, 10_000.0), 500.0);
        assert_eq!(aim_ns(0, true, 110.0), 200.0);
    }
}
