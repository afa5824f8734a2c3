//! Targets and conditions for kernel tests: start a program, command it, check that its text is untouched.
//!
//! Everything here panics on failure instead of returning errors: a test wants the backtrace.

mod agent;
mod ledger;
mod target;
mod text;
mod tiers;
mod twins;

pub use agent::{Agent, Finished, wait_text_original};
pub use ledger::worst_second_in_words;
pub use target::{Calls, Reply, Target, output_of};
pub use text::{assert_text_original, changed_text};
pub use tiers::{best_tier, linux_or_skip, tiers_here};
pub use twins::{Slices, Twins};

use std::io::Write;
use std::time::Duration;

/// How long to wait for what must happen: `normal`, or `TITHE_PATIENCE` times as long, which `cargo xtask vm` sets for CPUs in
/// software. What must happen *soon* is not to be asked with it.
pub fn patience(normal: Duration) -> Duration {
    let factor = std::env::var("TITHE_PATIENCE").ok().and_then(|text| text.parse().ok());
    normal * factor.unwrap_or(1)
}

/// A child that does not outlive the test, stopped or not.
#[derive(Debug)]
pub struct Killed(pub std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// True if this process may use BPF, uprobes and perf events: it runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// `CLOCK_MONOTONIC`, ns: the clock of recordings and of the targets.
pub fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Keeps a process's main thread on one CPU; 0 is this thread. Threads that it starts later stay with it.
///
/// # Panics
///
/// If the kernel refuses.
pub fn pin(pid: u32, cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let result = rustix::thread::sched_setaffinity(rustix::process::Pid::from_raw(pid.cast_signed()), &set);
    assert_eq!(result, Ok(()), "cannot pin {pid} to CPU {cpu}");
}

/// True if a kernel test can run here. If not, prints `SKIP <test>: <reason>` past the test harness's capture, so
/// that a skipped test is never taken for a passed one.
///
/// # Panics
///
/// If the test cannot run and `REQUIRE_KERNEL=1` is set.
///
/// # Example
///
/// ```no_run
/// if !profiler_tests::support::kernel_or_skip("counts_are_exact") {
///     return;
/// }
/// ```
pub fn kernel_or_skip(test: &str) -> bool {
    if is_root() {
        return true;
    }
    skip(test, "needs root; run `cargo xtask test`");
    false
}

/// Prints `SKIP <test>: <reason>`; with `REQUIRE_KERNEL=1` panics instead.
///
/// # Panics
///
/// With `REQUIRE_KERNEL=1`.
pub fn skip(test: &str, reason: &str) {
    let required = std::env::var("REQUIRE_KERNEL").is_ok_and(|value| value == "1");
    assert!(!required, "{test} cannot run: {reason} (REQUIRE_KERNEL=1 forbids skipping)");
    // Not eprintln!: the harness would keep it to itself.
    let _ = writeln!(std::io::stderr(), "SKIP {test}: {reason}");
}
