//! A finished repetition, as it is kept.

use super::arms::Arm;
use super::times::Times;
use serde::{Deserialize, Serialize};

/// A finished repetition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The anomaly's name.
    pub anomaly: String,
    /// Number of the round, from 0.
    pub round: u32,
    /// Length of the clean recording, s.
    pub seconds: f64,
    /// The agent's version.
    pub agent: String,
    /// Processes that ran or waited for a CPU, average of the minute at its end.
    pub load: Option<f64>,
    /// What went wrong beside what was to go wrong.
    pub trouble: Vec<String>,
    /// Time without anything wrong from which false alarms are counted, s.
    pub clean_s: f64,
    /// What each arm made of it.
    pub arms: Vec<Arm>,
    /// The agent's alarms in words: s after the injection, and the text.
    #[serde(default)]
    pub told: Vec<(f64, String)>,
    /// Times of the modelled functions.
    pub times: Vec<Times>,
}
