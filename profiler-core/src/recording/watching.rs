//! What the watching itself took: the agent, and samples in our own traps.

use crate::cost::Price;
use serde::{Deserialize, Serialize};

/// What the agent itself used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentUse {
    /// CPU time of the agent, its governor and its watchdog, ns.
    pub cpu_ns: u64,
    /// Largest resident set, bytes.
    pub max_rss_bytes: u64,
    /// Of the CPU time, what was used before the run began, and until it ended (before stacks were named and the report was made), ns; `None`: not
    /// known.
    #[serde(default)]
    pub until_begin_ns: Option<u64>,
    /// See there.
    #[serde(default)]
    pub until_end_ns: Option<u64>,
    /// The same until the limit began to hold, ns; `None`: the run ended before.
    #[serde(default)]
    pub until_limit_ns: Option<u64>,
    /// What it may use from then on, CPU s/s; `None`: an older recording.
    #[serde(default)]
    pub limit: Option<f64>,
    /// Samples that were planned and not taken for the limit's sake.
    #[serde(default)]
    pub samples_cut: u64,
    /// Bursts, likewise.
    #[serde(default)]
    pub bursts_cut: u64,
    /// CPU time of the target while samples were taken, monitoring included, ns; `None`: not known.
    #[serde(default)]
    pub sampled_cpu_ns: Option<u64>,
    /// Prices measured at the end; `None`: no samples were taken, they could not be had, or the agent died.
    #[serde(default)]
    pub prices_at_end: Option<PricesAtEnd>,
}

/// Prices that were measured when the run ended, on a child of the agent: on this machine, under the load that is there when everything is detached (that
/// of the target is not, where it has ended).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PricesAtEnd {
    /// A sample as the run took them.
    pub sample: Price,
    /// What a context switch costs more of a thread that is sampled.
    pub switch: Price,
}

impl AgentUse {
    /// CPU time that the agent used while the run lasted, ns; of older recordings all.
    #[must_use]
    pub fn in_run_ns(&self) -> u64 {
        self.until_end_ns.unwrap_or(self.cpu_ns).saturating_sub(self.until_begin_ns.unwrap_or(0))
    }
}

/// Table `trap_samples`: one periodic observation that found the thread in one of our own traps. It is monitoring, not work, and is in no other table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TrapSampleRow {
    /// When, ktime ns.
    pub time_ns: u64,
    /// Thread.
    pub tid: u32,
    /// CPU.
    pub cpu: u32,
    /// Class whose site it was; `None`: that cannot be told (single-stepping, a return whose call is not known).
    pub class_id: Option<u32>,
    /// The thread was in the kernel.
    pub in_kernel: bool,
    /// It was a trap. Else something else of the kernel may have found the thread behind a call whose return is seen.
    pub is_sure: bool,
    /// CPU time that this sample stands for, ns.
    pub period_ns: u64,
}
