//! What bursts cost and how they may be made: prices of links, bounds of one burst, and what a class's bursts are for.

use crate::burst::BurstPrices;
use serde::{Deserialize, Serialize};

/// Width that the interval of a rate is narrowed to and no further, relative: half of the 95 % interval over the value.
pub const WIDTH_FLOOR: f64 = 0.05;
/// The same of what was asked for by name: more calls are wanted for their durations.
pub const WIDTH_FLOOR_OF_FIRST: f64 = 0.005;
/// Windows of a class differ by that much beyond what chance does, where nothing is known of it: standard deviation over mean.
pub const USUAL_SPREAD: f64 = 0.25;

/// How windows are made in which a class is traced, for all classes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WindowRules {
    /// Prices of links.
    pub prices: BurstPrices,
    /// One burst may cost so much at most, CPU s: what the bucket holds for it. `None`: any.
    pub limit_s: Option<f64>,
    /// Windows of one class begin so far apart at least, s.
    pub closest_s: f64,
    /// Windows of all classes that can be made per second: links are made one after the other.
    pub most_per_s: f64,
    /// No window is shorter, s.
    pub shortest_s: f64,
    /// What short windows differ by beyond what chance does, times their length, s: relative variance of a window of t s is this over t.
    /// Single long calls and turns of the scheduler fall into one window and not into the next.
    pub brief_s: f64,
}

impl Default for WindowRules {
    /// As many windows as are wanted, twice a second for each class, and links cost nothing.
    fn default() -> Self {
        let prices = BurstPrices { attach_s: 0.0, delay_s: 0.0, fresh_delay_s: 0.0, fresh_s: 5e-3, cpus: 1 };
        Self {
            prices,
            limit_s: None,
            closest_s: 0.5,
            most_per_s: f64::INFINITY,
            shortest_s: 0.0,
            brief_s: 1e-3,
        }
    }
}

/// What windows of one class are for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClassWindows {
    /// It was asked for by name: it comes before what nobody named.
    pub first: bool,
    /// It may be traced in windows although it may not be traced all the time: one thread could not bear that.
    pub only: bool,
    /// One burst may cost so much at most, CPU s: what one thread may lose. `None`: any.
    pub limit_s: Option<f64>,
    /// It need not be traced for more than this part of the time. `None`: as much as can be.
    #[serde(default)]
    pub most_duty: Option<f64>,
    /// Windows differ by that much beyond what chance does: standard deviation over mean.
    pub spread: f64,
}

impl Default for ClassWindows {
    fn default() -> Self {
        Self { first: false, only: false, limit_s: None, most_duty: None, spread: USUAL_SPREAD }
    }
}

impl ClassWindows {
    /// The width that is aimed at.
    #[must_use]
    pub fn floor(&self) -> f64 {
        if self.first { WIDTH_FLOOR_OF_FIRST } else { WIDTH_FLOOR }
    }

    /// Most windows per second of these lengths that are wanted, where each lasts `mean_s` s on average.
    #[must_use]
    pub fn most_per_s(&self, mean_s: f64) -> f64 {
        self.most_duty.map_or(f64::INFINITY, |duty| duty / mean_s.max(f64::MIN_POSITIVE))
    }
}
