//! CPU time that the target had used when a quota ran out: the denominator of a burst's rate.

use super::sys::{now_ns, process_cpu_ns};
use std::sync::atomic::{AtomicU64, Ordering};

/// As last noted; `cpu_ns` 0: not noted.
#[derive(Debug, Default)]
pub(super) struct TripCpu {
    cpu_ns: AtomicU64,
    at_ns: AtomicU64,
}

impl TripCpu {
    /// On the governor thread, soon after the trip.
    pub(super) fn note(&self, pid: i32) {
        if let Some(cpu_ns) = process_cpu_ns(pid) {
            self.at_ns.store(now_ns(), Ordering::Relaxed);
            self.cpu_ns.store(cpu_ns, Ordering::Release);
        }
    }

    /// Before a new attachment.
    pub(super) fn forget(&self) {
        self.cpu_ns.store(0, Ordering::Release);
    }

    /// CPU time and when it was read, ns; `None`: not noted.
    pub(super) fn get(&self) -> Option<(u64, u64)> {
        let cpu_ns = self.cpu_ns.load(Ordering::Acquire);
        (cpu_ns > 0).then(|| (cpu_ns, self.at_ns.load(Ordering::Relaxed)))
    }
}
