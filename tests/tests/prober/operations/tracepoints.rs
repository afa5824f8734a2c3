//! Tracepoints as bounds: signals that this process sends itself, and names that its threads take.

use super::*;
use profiler_user::prober::{KernelError, TracepointBound};
use std::sync::atomic::{AtomicU64, Ordering};

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// A signal that nothing else here uses.
fn signal() -> i32 {
    libc::SIGRTMIN() + 3
}

/// Signals, each followed by a new name of the thread.
fn raise(signals: u64) {
    for _ in 0..signals {
        // SAFETY: the signal has a handler; the name ends with a NUL byte.
        unsafe {
            libc::raise(signal());
            libc::prctl(libc::PR_SET_NAME, c"raises".as_ptr());
        }
    }
}

fn bound(name: &str, operation: u32, ends: bool, argument: Option<u32>) -> TracepointBound {
    TracepointBound { name: name.to_owned(), operation, ends, argument }
}

/// Both are passed by the thread itself.
fn signals(argument: Option<u32>) -> [TracepointBound; 2] {
    [bound("signal_deliver", 0, false, argument), bound("task_rename", 0, true, None)]
}

#[test]
fn tracepoints_bound_operations_of_one_process_by_their_argument() {
    // SAFETY: a handler that only counts.
    unsafe { libc::signal(signal(), handler as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    let kernel = load(&options(16));
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, ARGUMENT_INT, 0, OPERATION_MONITORING | OPERATION_BY_THREAD, 16, 1.0);
    let watch = kernel.watch_tracepoints(&signals(Some(0)), std::process::id()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| raise(400));
        }
    });
    let before = kernel.operations().counters(BASE);
    // Another process, its signals, and its name.
    let status = std::process::Command::new("sh")
        .args(["-c", "trap : USR1; for i in 1 2 3 4 5; do kill -USR1 $$; done"])
        .status()
        .unwrap();
    assert!(status.success());
    let others = kernel.operations().counters(BASE).since(&before);
    drop(watch);
    raise(50);
    assert_eq!(HANDLED.load(Ordering::Relaxed), 1_250);
    assert_eq!(populations(&kernel, &mut reader)[&signal().to_string()], 1_200);
    let records = drain(&mut reader);
    assert_eq!(records.len(), 1_200);
    assert!(records.iter().all(|r| r.pid == std::process::id() && r.duration_ns < 1_000_000_000));
    assert!(before.screened == 2_400 && others.screened_other >= 6, "{before:?}, {others:?}");
    assert_eq!(kernel.operations().counters(BASE).unmatched, 0);
}

#[test]
fn tracepoints_and_arguments_that_do_not_exist_are_refused() {
    let kernel = load(&options(16));
    let errno = |bounds: &[TracepointBound]| match kernel.watch_tracepoints(bounds, std::process::id()) {
        Err(KernelError::TracepointLink { name, source }) => (name, source.raw_os_error().unwrap()),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{bounds:?} can be attached"),
    };
    let none = bound("no_such_tracepoint", 0, true, None);
    assert_eq!(errno(&[signals(None)[0].clone(), none]), ("no_such_tracepoint".to_owned(), libc::ENOENT));
    // TP_PROTO(int sig, struct kernel_siginfo *info, struct k_sigaction *ka)
    assert_eq!(errno(&signals(Some(3))), ("signal_deliver".to_owned(), libc::EINVAL));
    for k in 0..3 {
        assert!(kernel.watch_tracepoints(&signals(Some(k)), std::process::id()).is_ok(), "argument {k}");
    }
    let error = kernel.watch_tracepoints(&[bound("a\0b", 0, true, None)], std::process::id()).err();
    let text = error.expect("there is no such name").to_string();
    assert!(text.contains("cannot attach to the tracepoint"), "{text}");
}
