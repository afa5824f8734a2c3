//! Class tables: a planning problem as a TOML file, for `tithe plan --classes FILE` and for solving a recording's
//! plan again.
//!
//! Pure: text in, [`PlanTable`] or *all* errors out, each with its line, the value seen and what is accepted.
//! [`to_toml`] writes a problem so that reading it back gives the same numbers to the last bit.
//!
//! ```toml
//! budget = "5%"              # or "5ms/s", or budget_cpu = 0.05 (CPU s/s), or max_frequency = 925 (MaxF, Hz)
//! cpus = 1                   # U: CPU seconds that the target uses per second
//! report_time_us = 1.0       # price of a traced event where the class says nothing
//! sample_time_us = 20.0      # price of a sample; as report_time_us if left out
//! kept_for_bursts_cpu = 0    # part of the budget (CPU s/s) that the plan leaves to bursts of its own
//! min_sampling_hz = 0        # of target CPU time
//! max_sampling_hz = 1000
//! min_burst_ms = 50          # bursts are used if this or attach_cost_us is given
//! attach_cost_us = 20
//! burst_cycle_ms = 1000
//! objective = "information"  # or "precision" or "variance", over horizon_s = 30
//! link_cost_us = 60          # making or closing a link: bursts are planned with these prices
//! detach_delay_us = 8000     # so long the breakpoint outlives a window
//! fresh_detach_delay_us = 100  # the same of a window that was opened less than fresh_ms = 5 ago
//! host_cpus = 4
//! burst_limit_us = 2500      # one burst may cost so much
//! closest_windows_ms = 500   # from the begin of one window of a class to the next
//! most_windows_hz = 10       # of all classes
//! shortest_window_ms = 0
//! brief_windows_us = 1000    # relative variance of a window beyond chance, times its length
//!
//! [[class]]
//! name = "commit"
//! rate_hz = 300              # rate_low_hz and rate_high_hz: its interval
//! duration_us = 40           # mean on-CPU time; or share = 0.012 (of U); or rho = 0.012 (CPU s/s), rho_low, rho_high
//! weight = 2                 # these and the following may be left out
//! cost_us = 0.7
//! detect_us = 0
//! must_trace = false
//! never_trace = false
//! min_rate_hz = 0
//! interruptions_hz = 0
//! derived_from = "begin"     # its count is `ratio` times that of class "begin"
//! ratio = 1
//! sigma_us = 12              # standard deviation of the time per call
//! dispersion = 1             # variance between bursts / that of independent calls
//! estimand = "mean"          # or "total", "rate"
//! id = 7                     # class of the recording
//! calls_seen = 0             # while the rate was measured; for the reason only
//! first = false              # named: its windows come first
//! bursts_only = false        # with never_trace: in windows it may be traced
//! burst_limit_us = 1000      # one burst of this class
//! spread = 0.25              # of its windows' rates beyond chance, over the mean
//! ```

mod number;
mod read;
mod windows;
mod write;

use super::Problem;
pub use read::parse;
pub use write::to_toml;

/// A class table as read.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanTable {
    /// The problem it states.
    pub problem: Problem,
}

/// One thing wrong with a class table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {key} is {value}; accepted: {accepted}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// The key, or what else is wrong.
    pub key: String,
    /// The value seen.
    pub value: String,
    /// What would be accepted.
    pub accepted: String,
}
