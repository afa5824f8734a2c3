//! CPU time that the target had used when a quota ran out: the denominator of a burst's rate.

use super::sys::{now_ns, process_cpu_ns};
use std::sync::atomic::{AtomicU64, Ordering};

/// As last noted; 0: not noted.
#[derive(Debug, Default)]
pub(super) struct TripCpu(AtomicU64);

impl TripCpu {
    /// On the governor thread, soon after the trip: what the target has used by now, less the time since, in which the thread
    /// that tripped ran on.
    pub(super) fn note(&self, pid: i32, trip_ns: u64) {
        if let Some(cpu_ns) = process_cpu_ns(pid) {
            self.0.store(cpu_ns.saturating_sub(now_ns().saturating_sub(trip_ns)), Ordering::Release);
        }
    }

    /// Before a new attachment.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// ns; `None`: not noted.
    pub(super) fn ns(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|ns| *ns > 0)
    }
}
