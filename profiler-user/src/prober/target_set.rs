//! The set of processes whose samples and lifecycle are watched.

use super::{Kernel, KernelError};
use std::sync::PoisonError;

impl Kernel {
    /// Enters a process into the set whose samples and lifecycle are watched (and, in tier C, whose hits count).
    ///
    /// # Errors
    /// The set is full (1,024 processes).
    pub fn add_target(&self, pid: u32, adopt_children: bool) -> Result<(), KernelError> {
        use profiler_common::settings::{TARGET_ADOPT_CHILDREN, TARGET_WATCHED};
        let flags = TARGET_WATCHED | if adopt_children { TARGET_ADOPT_CHILDREN } else { 0 };
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.insert(pid, flags, 0).map_err(|source| KernelError::AyaMap { name: "TARGETS", source })
    }

    /// Removes a process from the set. One that is not there is no error.
    pub fn remove_target(&self, pid: u32) {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        // OK to ignore: the only error is that it is not there.
        let _ = targets.remove(&pid);
    }

    /// The processes in the set, also those that the kernel side entered at a fork whose record was lost. Entries that
    /// change meanwhile may be missing.
    ///
    /// # Cost
    /// One system call for each process.
    #[must_use]
    pub fn targets(&self) -> Vec<u32> {
        let targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        // OK to leave out an error: an entry that went while the table was walked.
        targets.keys().filter_map(Result::ok).collect()
    }
}
