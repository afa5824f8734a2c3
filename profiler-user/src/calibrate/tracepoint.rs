//! Price of a raw tracepoint hit: of `sys_enter`, which makes every system call take the slow way into the kernel as well.
//!
//! Each run is a pair of the same thread: system calls with nothing attached, then with the program that counts progress.

use super::CalibrateError;
use super::worker::Worker;
use crate::prober::{Kernel, ProgressSource};
use profiler_core::cost::Price;

/// System calls of one run: some 0.5 ms, long against the clock, short against a scheduler's time slice.
const CALLS: u64 = 2_000;

/// The price.
///
/// # Errors
/// The tracepoint cannot be attached, its hits do not arrive, or the child is gone.
pub(super) fn measure(kernel: &Kernel, worker: &mut Worker) -> Result<Option<Price>, CalibrateError> {
    let mut runs = Vec::new();
    for _ in 0..super::hits::ROUNDS {
        let off = worker.syscalls(CALLS)?;
        let probe = kernel.watch_progress(&ProgressSource::Syscalls, worker.pid())?;
        // OK because the number of a system call is small and positive.
        let number = libc::SYS_getppid as usize;
        let before = probe.count(number);
        let on = worker.syscalls(CALLS)?;
        let attempted = probe.count(number) - before;
        drop(probe);
        if attempted < CALLS {
            let what = "system calls";
            return Err(CalibrateError::Hits { what, called: CALLS, attempted, kept: attempted });
        }
        runs.push((on - off).max(0.0));
    }
    Ok(Price::from_runs(&runs))
}
