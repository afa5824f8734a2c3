//! The cost model: CPU seconds that one hit, sample, switch, attach or detach takes from the target or the
//! machine. Prices come from calibration on this host; nothing here is a constant of nature.

use crate::class::{RecordKind, SiteClass};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A measured price in nanoseconds, with its spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// Median of the runs, ns.
    pub ns: f64,
    /// Smallest run, ns.
    pub min_ns: f64,
    /// Largest run, ns.
    pub max_ns: f64,
    /// Number of runs.
    pub n: u32,
}

/// Prices on one host, one boot, one kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// Price of one hit with no exit, by site class and record kind (entry only), ns of target CPU time.
    /// Keys are `"push/count"`.
    pub hit: BTreeMap<String, Price>,
    /// Price of one entry + return pair through a return link, by site class of the entry; keys as above.
    pub pair: BTreeMap<String, Price>,
    /// Factor on a hit when as many threads hit at once as the index + 1 (index 0 is 1.0).
    pub concurrency: Vec<f64>,
    /// Price of one sample without stack, ns.
    pub sample_base: Price,
    /// Price of one KiB of copied stack, ns.
    pub sample_per_kib: Price,
    /// Price of a context switch of a thread that carries a per-task sampling event, ns.
    pub switch: Price,
    /// Price of a raw tracepoint hit (filtered by tgid, kept), ns.
    pub tracepoint: Price,
    /// Stall of the running target while a link of one class is attached or detached, ns.
    pub attach: Price,
    /// Delay from the decision to detach a link of one class to its last hit, ns.
    pub detach_delay: Price,
    /// Where the figures come from: `"calibrated"` or `"assumed"` (shown in the receipt).
    pub origin: String,
}

impl CostModel {
    /// Key of a price: site class and record kind.
    #[must_use]
    pub fn key(site: SiteClass, kind: RecordKind) -> String {
        format!("{}/{}", site.name(), kind.name())
    }
}
