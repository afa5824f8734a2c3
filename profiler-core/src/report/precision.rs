//! How well the durations of a function are known, against what is wanted of them, and what would do.
//!
//! A half-width `h` (relative) has a part `p` that more calls do not mend, because what timing costs is known no better, and a rest that falls with
//! the root of the number of calls. So the wanted `w` takes
//! ```text
//! times = (h^2 - p^2) / (w^2 - p^2)
//! ```
//! as many timed calls, where `p < w`. Of a mean that few long calls make up this is a guess: how many of those there are is itself chance.

use crate::estimate::Estimate;
use serde::{Deserialize, Serialize};

/// What is wanted of P50 and mean: half of the interval over the value. Bursts of a function whose durations were asked for come first until both are
/// known so well, but for what timing them costs.
pub const WANTED: f64 = 0.1;

/// Why a figure is not known better.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// It is known to [`WANTED`].
    Reached,
    /// So many times as many timed calls would do.
    Calls(f64),
    /// What timing a call costs is not known well enough: more calls do not help.
    Price,
    /// The durations of some calls are not known at all, and may be anything.
    Untimed,
}

/// How well one figure is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// Half of the interval over the value; `None` where there is only a limit.
    pub half_width: Option<f64>,
    /// Why no better.
    pub limit: Limit,
}

impl Known {
    /// `price_ns`: half-width of what was taken out for probes.
    #[must_use]
    pub fn of(estimate: &Estimate, price_ns: f64) -> Self {
        if estimate.high.is_infinite() {
            return Self { half_width: None, limit: Limit::Untimed };
        }
        if estimate.at_most || estimate.value <= 0.0 {
            return Self { half_width: None, limit: Limit::Price };
        }
        let half = (estimate.high - estimate.low) / 2.0 / estimate.value;
        let price = price_ns / estimate.value;
        let limit = if half <= WANTED {
            Limit::Reached
        } else if price >= WANTED {
            Limit::Price
        } else {
            Limit::Calls(((half.powi(2) - price.powi(2)) / (WANTED.powi(2) - price.powi(2))).max(1.0))
        };
        Self { half_width: Some(half), limit }
    }
}

/// How well the durations of a function are known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Precision {
    /// Their median.
    pub p50: Known,
    /// Their mean.
    pub mean: Known,
}

impl Precision {
    /// So many times as many calls make both as good as wanted, as far as calls do; `None` where no number of calls mends anything.
    #[must_use]
    pub fn times(&self) -> Option<f64> {
        let times = |known: &Known| match known.limit {
            Limit::Calls(times) => Some(times),
            _ => None,
        };
        [&self.p50, &self.mean].into_iter().filter_map(times).reduce(f64::max)
    }

    /// Both are known to [`WANTED`].
    #[must_use]
    pub fn is_reached(&self) -> bool {
        self.p50.limit == Limit::Reached && self.mean.limit == Limit::Reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(half: f64) -> Estimate {
        Estimate {
            value: 1_000.0,
            low: 1_000.0 - half,
            high: 1_000.0 + half,
            level: 0.95,
            ..Estimate::exact(0.0, 100)
        }
    }

    #[test]
    fn four_times_the_calls_halve_what_chance_leaves() {
        assert_eq!(Known::of(&estimate(200.0), 0.0).limit, Limit::Calls(4.0));
        assert_eq!(Known::of(&estimate(100.0), 0.0), Known { half_width: Some(0.1), limit: Limit::Reached });
        // 0.06 of the price leave 0.08 for chance: (0.17^2 - 0.06^2) / 0.08^2.
        let Limit::Calls(times) = Known::of(&estimate(170.0), 60.0).limit else { panic!() };
        assert!((times - 0.0253 / 0.0064).abs() < 1e-6, "{times}");
    }

    #[test]
    fn no_number_of_calls_mends_the_price_or_what_was_not_timed() {
        assert_eq!(Known::of(&estimate(200.0), 120.0).limit, Limit::Price);
        assert_eq!(Known::of(&Estimate { at_most: true, ..estimate(200.0) }, 0.0).limit, Limit::Price);
        let open = Estimate { high: f64::INFINITY, ..estimate(0.0) };
        assert_eq!(Known::of(&open, 0.0), Known { half_width: None, limit: Limit::Untimed });
    }

    #[test]
    fn the_worse_of_the_two_says_how_many_calls_would_do() {
        let of = |half, price| Known::of(&estimate(half), price);
        let both = Precision { p50: of(200.0, 0.0), mean: of(300.0, 0.0) };
        assert!((both.times().unwrap() - 9.0).abs() < 1e-9 && !both.is_reached());
        assert_eq!(Precision { p50: of(50.0, 0.0), mean: of(300.0, 200.0) }.times(), None);
        assert!(Precision { p50: of(50.0, 0.0), mean: of(99.0, 0.0) }.is_reached());
    }
}
