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
    /// Which program was watched ([`super::target::Target::version`]); empty: one from before that was kept.
    #[serde(default)]
    pub program: String,
    /// Processes that ran or waited for a CPU, average of the minute at its end.
    pub load: Option<f64>,
    /// What went wrong beside what was to go wrong.
    pub trouble: Vec<String>,
    /// Time without anything wrong from which false alarms are counted, s.
    pub clean_s: f64,
    /// Time after the anomaly in which alarms are its aftermath, s.
    #[serde(default)]
    pub aftermath_s: f64,
    /// What each arm made of it.
    pub arms: Vec<Arm>,
    /// The agent's alarms in words: s after the injection, and the text.
    #[serde(default)]
    pub told: Vec<(f64, String)>,
    /// Alarms that the agent did not tell one by one.
    #[serde(default)]
    pub untold: u64,
    /// Times of the modelled functions.
    pub times: Vec<Times>,
}

impl Record {
    /// One of which nothing is known yet. `seconds`, agent and program as in the record.
    pub fn empty(anomaly: &str, round: u32, (seconds, agent, program): (f64, &str, &str)) -> Record {
        Record {
            anomaly: anomaly.to_owned(),
            round,
            seconds,
            agent: agent.to_owned(),
            program: program.to_owned(),
            load: None,
            trouble: Vec::new(),
            clean_s: 0.0,
            aftermath_s: 0.0,
            arms: Vec::new(),
            told: Vec::new(),
            untold: 0,
            times: Vec::new(),
        }
    }
}
