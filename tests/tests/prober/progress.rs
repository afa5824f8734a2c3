//! Progress metrics: what a process does is counted exactly, and what others do apart from it.

use crate::support::*;
use profiler_user::prober::{KernelError, ProgressSource};

fn getppids(calls: u64) {
    for _ in 0..calls {
        // SAFETY: getppid has no arguments and cannot fail.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
}

const GETPPID: usize = libc::SYS_getppid as usize;

#[test]
fn system_calls_of_the_target_are_counted_by_number_and_those_of_others_apart() {
    let kernel = kernel(None);
    let probe = kernel.watch_progress(&ProgressSource::Syscalls, std::process::id()).unwrap();
    let (before, others) = (probe.counts(), probe.others());
    getppids(1_000);
    let after = probe.counts();
    assert_eq!(after[GETPPID] - before[GETPPID], 1_000);
    assert_eq!(probe.count(GETPPID), after[GETPPID]);
    assert_eq!(after[libc::SYS_getsid as usize], before[libc::SYS_getsid as usize]);
    assert!(std::process::Command::new("true").status().unwrap().success());
    assert!(probe.others() > others, "another program makes system calls, too");
    drop(probe);
    getppids(1_000);
    let probe = kernel.watch_progress(&ProgressSource::Syscalls, 1).unwrap();
    getppids(1_000);
    assert_eq!(probe.count(GETPPID) - after[GETPPID], 0, "not attached, or another process is wanted");
}

#[test]
fn a_tracepoint_is_counted_by_name_and_one_that_does_not_exist_is_refused() {
    let kernel = kernel(None);
    let source = ProgressSource::Tracepoint("sys_exit".to_owned());
    let probe = kernel.watch_progress(&source, std::process::id()).unwrap();
    let before = probe.count(0);
    getppids(500);
    assert!(probe.count(0) - before >= 500);
    drop(probe);
    let source = ProgressSource::Tracepoint("no_such_tracepoint".to_owned());
    let error = kernel.watch_progress(&source, std::process::id()).err().expect("there is none");
    assert!(matches!(error, KernelError::Tracepoint { .. }), "{error}");
    assert!(error.to_string().contains("no_such_tracepoint"), "{error}");
}
