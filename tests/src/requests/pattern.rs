//! How many users there are: stationary, seasonal, in bursts, and a third of each, as in Mertz and Nunes (2023) §4.1.4.

use anyhow::{Result, bail};
use std::str::FromStr;

/// How the number of users goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// The typical number all the time.
    Stationary,
    /// A sine between half and twice the typical number.
    Seasonal,
    /// The typical number, and bursts of two and a half times as many (the paper's h2: 8 and 20).
    Bursty,
    /// A third of each, in this order.
    Mixed,
}

impl FromStr for Pattern {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "stationary" => Self::Stationary,
            "seasonal" => Self::Seasonal,
            "bursty" => Self::Bursty,
            "mixed" => Self::Mixed,
            _ => bail!("no pattern '{text}': choose from stationary, seasonal, bursty, mixed"),
        })
    }
}

/// Users over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phases {
    /// How it goes.
    pub pattern: Pattern,
    /// Typical users.
    pub users: u32,
    /// Length of a season, s.
    pub season_s: f64,
    /// From one burst to the next, s; a burst ends such a period.
    pub burst_every_s: f64,
    /// Length of a burst, s.
    pub burst_s: f64,
}

impl Default for Phases {
    /// As in `profiler_lab::workload`: 8 users, seasons of a minute, 5 s of burst every 45 s.
    fn default() -> Self {
        Self { pattern: Pattern::Mixed, users: 8, season_s: 60.0, burst_every_s: 45.0, burst_s: 5.0 }
    }
}

impl Phases {
    /// Users `time_s` into a run of `length_s`.
    pub fn users_at(&self, time_s: f64, length_s: f64) -> u32 {
        let typical = f64::from(self.users);
        let (pattern, time_s) = match self.pattern {
            Pattern::Mixed => {
                let third = length_s / 3.0;
                let number = (time_s / third).floor().clamp(0.0, 2.0);
                let pattern = [Pattern::Stationary, Pattern::Seasonal, Pattern::Bursty][number as usize];
                (pattern, time_s - number * third)
            }
            pattern => (pattern, time_s),
        };
        let users = match pattern {
            Pattern::Seasonal => typical * 2f64.powf((std::f64::consts::TAU * time_s / self.season_s).sin()),
            Pattern::Bursty if time_s % self.burst_every_s >= self.burst_every_s - self.burst_s => {
                2.5 * typical
            }
            _ => typical,
        };
        // OK because the number of users is small and positive.
        users.round() as u32
    }

    /// The most users that there ever are.
    pub fn most(&self) -> u32 {
        (2.5 * f64::from(self.users)).round() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixed_run_is_a_third_of_each_pattern() {
        let phases = Phases { season_s: 10.0, burst_every_s: 5.0, burst_s: 1.0, ..Phases::default() };
        let at = |time_s| phases.users_at(time_s, 30.0);
        assert_eq!([at(0.0), at(5.0), at(9.9)], [8, 8, 8]);
        assert_eq!([at(10.0), at(12.5), at(17.5)], [8, 16, 4]);
        assert_eq!([at(20.0), at(23.9), at(24.1), at(25.1), at(29.5)], [8, 8, 20, 8, 20]);
        let seen = (0..300).map(|i| at(f64::from(i) / 10.0)).max();
        assert_eq!(seen, Some(phases.most()));
    }
}
