//! What other policies would have recorded of a run in which every operation was recorded.
//!
//! Only reads the recording; trace, policies, cost model and comparison are `profiler_core::adapt::replay`. Slices are not replayed:
//! functions inside operations are taken as attached whenever recording is on.

use crate::failure::Failure;
use crate::recording;
use profiler_core::adapt::PolicyKind;
use profiler_core::adapt::replay::compare::{PolicyComparison, Settings, compare};
use profiler_core::adapt::replay::recorded::full_trace;
use profiler_core::units::OverheadBudget;
use std::path::PathBuf;

/// What is compared.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayConfig {
    /// Directory of a recording that has every operation (policy `full`).
    pub recording: PathBuf,
    /// Name of the operation. `None`: the only one.
    pub operation: Option<String>,
    /// The policies.
    pub policies: Vec<PolicyKind>,
    /// Runs, each with the next seed; intervals are over them.
    pub runs: u32,
    /// Seed of the first run: the same seed gives the same answer.
    pub seed: u64,
    /// Settings of the policies other than the recording's, each `KEY=VALUE`.
    pub settings: Vec<String>,
    /// Operations that the target can work on at the same time, from 1 on. `None`: the CPUs of the recorded host.
    pub servers: Option<u32>,
    /// What the policies are kept to, CPU time per second. `None`: nothing.
    pub budget: Option<OverheadBudget>,
}

/// Replays and compares.
///
/// # Errors
/// A recording that cannot be read or replayed, or settings out of their range: all are wrong usage.
pub fn replay(config: &ReplayConfig) -> Result<PolicyComparison, Failure> {
    let path = config.recording.display();
    let recording =
        recording::open_without_events(&config.recording).map_err(|e| Failure::usage(e.to_string()))?;
    let servers = config.servers.unwrap_or(recording.meta.cpus).max(1);
    let trace = full_trace(&recording, config.operation.as_deref(), servers)
        .map_err(|e| Failure::usage(format!("cannot replay '{path}': {e}")))?;
    let settings = trace.config.with(&config.settings).map_err(|e| Failure::usage(format!("--adapt {e}")))?;
    let cpu_per_s = match config.budget {
        None => None,
        Some(OverheadBudget::CpuPerSecond(s)) => Some(s),
        Some(share @ OverheadBudget::Share(_)) => {
            return Err(Failure::usage(format!(
                "--budget {share}: a recording does not say how much CPU time the target used at each moment; write CPU time per \
                 second, like '5ms/s'"
            )));
        }
    };
    let settings = Settings {
        policies: config.policies.clone(),
        config: settings,
        runs: config.runs,
        seed: config.seed,
        cpu_per_s,
    };
    compare(&trace, &settings).map_err(|e| Failure::usage(format!("cannot replay '{path}': {e}")))
}
