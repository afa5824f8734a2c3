//! Estimators and their intervals: counts, rates, shares, durations, combinations, tests.
//!
//! What it is: the only place where an interval is computed. Why here: an interval is a promise (95 of 100
//! hold the truth), so each estimator stands beside the simulation that checks the promise.
//! Inputs: counts, times, weights, levels; outputs: [`Interval`]s and [`crate::estimate::Estimate`]s.
//! What it does not do: it decides nothing, and reads neither recording nor clock.
//!
//! | module       | question                                                                    |
//! |--------------|-----------------------------------------------------------------------------|
//! | [`moments`]  | mean and variance on line                                                   |
//! | [`counts`]   | k of n (Wilson), k events (Garwood)                                         |
//! | [`shares`]   | share of CPU time from samples: *this recording* and *long run*             |
//! | [`bursts`]   | rates from bursts: dilation, stopping rule, spread between bursts           |
//! | [`means`]    | mean durations of calls that windows show                                   |
//! | `moderated`  | variances that learn from one another (Smyth 2004)                          |
//! | `outliers`   | classes of which the others say nothing (a mixture)                         |
//! | `polygamma`  | trigamma and its inverse                                                     |
//! | [`overhead`] | measured overhead from windows on and off                                   |
//! | [`ratio`]    | quotients: rho / F                                                          |
//! | [`quantile`] | quantiles of a histogram by order statistics                                |
//! | [`survival`] | means and quantiles where calls were cut off: Kaplan-Meier                 |
//! | [`correct`]  | losses                                                                      |
//! | [`added`]    | what is left of an estimate when others are taken out of it                 |
//! | [`tests_of`] | Welch's, paired and one-sample t-tests                                      |

pub mod added;
pub mod always;
pub mod bursts;
pub mod correct;
pub mod counts;
pub mod means;
mod moderated;
pub mod moments;
mod outliers;
pub mod overhead;
mod polygamma;
pub mod quantile;
pub mod ratio;
pub mod shares;
pub mod survival;
pub mod tests_of;

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Nominal coverage of the intervals that Tithe prints.
pub const LEVEL: f64 = 0.95;

/// A closed interval, in the unit of the estimate it belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end; may be infinite where nothing bounds the estimate from above.
    pub high: f64,
}

impl Interval {
    /// The value lies in it.
    #[must_use]
    pub fn holds(self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// Both ends multiplied by a factor >= 0.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { low: self.low * factor, high: self.high * factor }
    }
}

/// Two-sided standard normal quantile: 1.96 at level 0.95. Levels are clamped to (0, 1).
#[must_use]
pub fn z_quantile(level: f64) -> f64 {
    let p = (1.0 + clamp_level(level)) / 2.0;
    // OK because (0, 1) are valid parameters of the standard normal.
    Normal::standard().inverse_cdf(p)
}

/// Two-sided quantile of Student's t with `df` degrees of freedom (at least 1): 12.7 at level 0.95, df 1.
#[must_use]
pub fn t_quantile(level: f64, df: f64) -> f64 {
    let df = df.max(1.0);
    // Beyond 10,000 degrees of freedom t and normal agree to 4 digits.
    if !df.is_finite() || df > 1e4 {
        return z_quantile(level);
    }
    let p = (1.0 + clamp_level(level)) / 2.0;
    StudentsT::new(0.0, 1.0, df).map_or_else(|_| z_quantile(level), |t| t.inverse_cdf(p))
}

fn clamp_level(level: f64) -> f64 {
    if level.is_finite() { level.clamp(1e-6, 1.0 - 1e-9) } else { LEVEL }
}

#[cfg(test)]
pub(crate) mod sim;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_agree_with_the_tables() {
        assert!((z_quantile(0.95) - 1.959_964).abs() < 1e-5);
        for (df, t) in [(1.0, 12.706), (2.0, 4.3027), (5.0, 2.5706), (30.0, 2.0423), (1000.0, 1.9623)] {
            assert!((t_quantile(0.95, df) - t).abs() < 1e-3, "df {df}: {}", t_quantile(0.95, df));
        }
        assert!((t_quantile(0.95, 1e7) - 1.959_964).abs() < 1e-4);
        assert!(t_quantile(0.95, 2.5) < 4.3 && t_quantile(0.95, 2.5) > 3.18);
        assert!(z_quantile(f64::NAN).is_finite() && z_quantile(1.0).is_finite());
    }
}
