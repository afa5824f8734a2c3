//! The report: one type, many faces. Every number has a unit, an interval and a source.

mod build;
mod distribution;
pub mod names;
mod operations;
mod own_price;
pub mod precision;
mod printable;
pub mod sharper;
mod slices;

pub use distribution::{Bin, Counted, Distribution};
pub use operations::{OperationClassReport, OperationReport};
pub use own_price::OwnPrice;

use crate::class::{RecordKind, SiteClass, Tier};
use crate::estimate::Estimate;
use crate::recording::{
    ChangeKind, Charge, ExpectedMeta, ForksHeld, Losses, MeasuredOverhead, NotObserved, PrivateMemory,
    SlowestAnswer, WordTally,
};
use crate::units::OverheadBudget;
use precision::Precision;
use serde::{Deserialize, Serialize};
use sharper::Sharper;
use std::collections::BTreeMap;

/// What `tithe record` and `tithe report` show.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Target and run, in words for the title.
    pub target: String,
    /// PID.
    pub pid: u32,
    /// Length of the run, s.
    pub duration_s: f64,
    /// CPU seconds the target used per wall second (`U`), monitoring taken out.
    pub target_cpu: Estimate,
    /// Samples kept.
    pub samples: u64,
    /// Part of the target's CPU time that no sample saw, 0 to 1: it is taken to be the kernel's work first.
    #[serde(default)]
    pub cpu_not_sampled: f64,
    /// One row per function: those that the user named, then the others; each hottest first.
    pub rows: Vec<Row>,
    /// Operations that were followed.
    #[serde(default)]
    pub operations: Vec<OperationReport>,
    /// Words that were taken.
    #[serde(default)]
    pub words: Vec<WordTally>,
    /// Calls that were held against models of an earlier recording; `None`: none were.
    #[serde(default)]
    pub expected: Option<ExpectedMeta>,
    /// What the watching cost.
    pub receipt: Receipt,
    /// Of the rows that matter most, what a longer run or a larger budget would sharpen.
    #[serde(default)]
    pub sharper: Vec<Sharper>,
    /// What the run changed of what it does, when and why.
    #[serde(default)]
    pub log: Vec<LogEntry>,
    /// Damage, warnings.
    pub warnings: Vec<String>,
}

/// A change, or several of one kind that concern the same function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogEntry {
    /// When, s after the start; of several: the first.
    pub time_s: f64,
    /// When it happened last, s after the start.
    pub last_s: f64,
    /// How often.
    pub times: u64,
    /// What.
    pub kind: ChangeKind,
    /// Function, or number of the plan; empty: neither.
    pub subject: String,
    /// Why, in words; of several: that of the last.
    pub text: String,
}

/// One function or event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Demangled name.
    pub name: String,
    /// What tables show of it ([`names`]); empty in reports that are older: the whole name.
    #[serde(default)]
    pub short_name: String,
    /// The user named it; of recordings that do not know: no.
    #[serde(default)]
    pub named: bool,
    /// Module's file name.
    pub module: String,
    /// Class, if it was instrumented or considered.
    pub class_id: Option<u32>,
    /// `trace`, `burst`, `sample`: the last plan's decision.
    pub decision: String,
    /// Share of the target's CPU time with the function on the stack, 0 to 1; from samples. The interval is
    /// that of *this recording*: what was true while it ran.
    pub share: Option<Estimate>,
    /// The same share with the interval of the *long run*: what another recording of the same load would
    /// show; wider, because the load itself varies.
    pub share_long_run: Option<Estimate>,
    /// Share of the target's CPU time in the function itself, 0 to 1; from samples.
    pub self_share: Option<Estimate>,
    /// Calls over the whole run.
    pub calls: Option<Estimate>,
    /// Calls per second of undilated time.
    pub rate_hz: Option<Estimate>,
    /// Mean on-CPU time per call, ns: rho / F (Little's law).
    pub on_cpu_ns: Option<Estimate>,
    /// Mean wall time per call, ns, corrected for nested probe cost.
    pub mean_ns: Option<Estimate>,
    /// Probe cost taken out of `mean_ns`, ns per call.
    pub correction_ns: f64,
    /// Quantiles of wall time per call: (p, ns), corrected as `mean_ns` is. That of p = 1 is the largest duration that was seen.
    pub quantiles_ns: Vec<(f64, Estimate)>,
    /// How well the durations are known, and what would do; of functions whose calls were timed.
    #[serde(default)]
    pub precision: Option<Precision>,
    /// Calls counted while it was watched: exact, of that part of the run. Lost hits are not among them. `None`: it never was watched.
    #[serde(default)]
    pub counted: Option<u64>,
    /// Share of the run in which it was watched, 0 to 1.
    #[serde(alias = "attached")]
    pub watched_share: f64,
    /// Hits lost, of those attempted.
    pub dropped: u64,
    /// Hits attempted.
    pub attempted: u64,
    /// Price class of the site.
    pub site_class: Option<SiteClass>,
    /// What was kept.
    pub kind: Option<RecordKind>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// What a plan is worth, and what the best one could be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PlanWorth {
    /// Value by the plan's objective.
    pub value: f64,
    /// No plan is worth more.
    pub upper_bound: f64,
    /// Both are minus the mean log of the widths of intervals; else weighted events per second.
    pub of_widths: bool,
}

/// Overhead measured in place. All parts are over the target's own CPU time: 0.02 is 2 %.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InPlace {
    /// All of it: the sum of the three parts.
    pub overhead: Estimate,
    /// What traps took, by the samples that fell into them.
    pub traps: Estimate,
    /// Samples, context switches, attaching and screening, at their prices.
    pub beside: Estimate,
    /// Prices of samples and switches were measured when the run ended.
    #[serde(default)]
    pub priced_at_end: bool,
    /// What traps leave behind in caches and pipeline, which no sample shows: by calibration.
    pub behind: Estimate,
    /// CPU time that the target used by itself, by the samples outside traps, s: what the parts are shares of.
    #[serde(default)]
    pub own_s: f64,
    /// Samples, those in traps included.
    pub samples: u64,
    /// Samples that fell into traps.
    pub in_traps: u64,
    /// By class, most first, those of no known class with `None`.
    pub by_class: Vec<(Option<u32>, u64)>,
}

impl Row {
    /// The name as tables show it.
    #[must_use]
    pub fn shown_name(&self) -> &str {
        if self.short_name.is_empty() { &self.name } else { &self.short_name }
    }

    /// Nothing is known of it but its name: no call was seen, no sample shows it. Tables leave it out.
    #[must_use]
    pub fn is_unseen(&self) -> bool {
        let timed = self.mean_ns.is_some() || !self.quantiles_ns.is_empty();
        self.attempted == 0 && self.share.is_none() && self.self_share.is_none() && !timed
    }
}

impl Report {
    /// Gives each row its short name: what it takes to tell the rows of this report apart.
    pub fn shorten_names(&mut self) {
        let names: Vec<&str> = self.rows.iter().map(|row| row.name.as_str()).collect();
        let short = names::short_names(&names);
        self.rows.iter_mut().zip(short).for_each(|(row, short)| row.short_name = short);
    }
}

/// What the agent itself was allowed, and used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LimitKept {
    /// Largest use from the fifth second on, CPU s/s.
    pub limit: f64,
    /// Use from the fifth second until the end of the run, CPU s/s.
    pub used: f64,
    /// Samples that were planned and not taken for the limit's sake.
    pub samples_cut: u64,
    /// Bursts, likewise.
    #[serde(default)]
    pub bursts_cut: u64,
}

/// The budget receipt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// What was allowed.
    pub budget: OverheadBudget,
    /// Predicted overhead (ledger): monitoring CPU / the target's own CPU.
    pub predicted: f64,
    /// Overhead measured in place, by samples that found the target in our traps; `None`: no samples were taken.
    #[serde(default)]
    pub in_place: Option<InPlace>,
    /// Overhead measured by a progress metric, with interval and method: a check of `in_place`.
    pub measured: Option<MeasuredOverhead>,
    /// Target CPU time of the run without monitoring, s.
    pub target_cpu_s: f64,
    /// Monitoring CPU time by kind, s.
    pub spent_s: BTreeMap<Charge, f64>,
    /// Largest overhead of any one second.
    pub worst_second: f64,
    /// CPU time that the target had for itself in that second, s/s. Where it is far less than on average, more was spent before it fell than the
    /// budget would have allowed after.
    #[serde(default)]
    pub worst_second_own: f64,
    /// Classes that tripped the breaker.
    pub trips: u32,
    /// The breaker's slowest answer to a quota that was used up; `None`: none was.
    #[serde(default)]
    pub slowest_answer: Option<SlowestAnswer>,
    /// Losses.
    pub losses: Losses,
    /// Hits lost in classes, of those attempted.
    pub hits_dropped: u64,
    /// Hits attempted in classes.
    pub hits_attempted: u64,
    /// Agent CPU time / run time.
    pub agent_cpu: f64,
    /// The agent's own limit, and how it was kept; `None`: an older recording, or a run that ended before it began to hold.
    #[serde(default)]
    pub agent_limit: Option<LimitKept>,
    /// Agent's largest resident set, bytes.
    pub agent_rss_bytes: u64,
    /// Kernel memory, bytes.
    pub kernel_memory_bytes: u64,
    /// Pages of the target that probes made private; `None`: nothing was attached.
    #[serde(default)]
    pub private_memory: Option<PrivateMemory>,
    /// What other processes paid for attaching; `None`: nobody else maps what was attached to.
    #[serde(default)]
    pub forks_held: Option<ForksHeld>,
    /// Tier.
    pub tier: Tier,
    /// Where the prices come from.
    pub prices: String,
    /// What the last plan was worth; `None`: there was none.
    #[serde(default)]
    pub plan: Option<PlanWorth>,
    /// What was not observed and why.
    pub not_observed: Vec<NotObserved>,
}
