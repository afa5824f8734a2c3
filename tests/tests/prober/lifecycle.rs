//! Births and deaths of the target's threads and processes.

use crate::support::*;
use profiler_user::prober::{LifecycleEvent, LifecycleReader};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

pub(super) fn collect(reader: &mut LifecycleReader) -> Vec<LifecycleEvent> {
    let mut events = Vec::new();
    while let Some(event) = reader.try_next() {
        events.push(event.unwrap());
    }
    events
}

#[test]
fn forks_execs_threads_and_exits_of_targets_are_seen() {
    let kernel = kernel(None);
    let mut reader = kernel.watch_lifecycle().unwrap();
    // A shell of our own that waits for a line, forks a copy of itself that runs `true`, and then becomes `cat`.
    let mut shell = Command::new("/bin/sh")
        .args(["-c", "read x; (:); /bin/true; read x; exec /bin/cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = shell.id();
    kernel.add_target(pid, true).unwrap();
    let mut stdin = shell.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"go\n").unwrap();
    assert!(readable(reader.as_raw_fd(), 2000), "lifecycle records wake their reader");
    std::thread::sleep(std::time::Duration::from_millis(300));
    std::io::Write::write_all(&mut stdin, b"go\n").unwrap();
    drop(stdin);
    shell.wait().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let events = collect(&mut reader);

    let children: Vec<u32> = events
        .iter()
        .filter_map(|e| match e {
            LifecycleEvent::Forked { parent, child, .. } if *parent == pid => Some(*child),
            _ => None,
        })
        .collect();
    assert_eq!(children.len(), 2, "the subshell and /bin/true: {events:?}");
    assert!(children.iter().all(|c| *c != pid && *c != 0));
    // The exec of the shell itself may or may not come in.
    let first_fork = events.iter().position(|e| matches!(e, LifecycleEvent::Forked { .. })).unwrap();
    let execs = |p: u32| {
        events[first_fork..]
            .iter()
            .filter(|e| matches!(e, LifecycleEvent::Execed { pid, .. } if *pid == p))
            .count()
    };
    assert_eq!(
        (execs(children[0]), execs(children[1]), execs(pid)),
        (0, 1, 1),
        "adopted children are watched: {events:?}"
    );
    let exits = |p: u32| {
        events
            .iter()
            .filter(|e| matches!(e, LifecycleEvent::ThreadExited { pid, tid, .. } if *pid == p && *tid == p))
            .count()
    };
    assert_eq!((exits(children[0]), exits(children[1]), exits(pid)), (1, 1, 1));
    let times: Vec<u64> = events
        .iter()
        .map(|e| match e {
            LifecycleEvent::ThreadBorn { time_ns, .. }
            | LifecycleEvent::Forked { time_ns, .. }
            | LifecycleEvent::Execed { time_ns, .. }
            | LifecycleEvent::ThreadExited { time_ns, .. } => *time_ns,
        })
        .collect();
    assert!(times.iter().all(|t| *t > 0 && *t <= ktime_ns()));
    assert_eq!(kernel.classes().global_counters().lifecycle_unread, 0);
}

#[test]
fn threads_of_the_target_are_seen_and_others_are_not() {
    let kernel = kernel(None);
    let mut reader = kernel.watch_lifecycle().unwrap();
    std::thread::spawn(|| ()).join().unwrap();
    assert_eq!(collect(&mut reader), [], "this process is no target yet");
    kernel.add_target(std::process::id(), false).unwrap();
    let tid = std::thread::spawn(|| rustix::thread::gettid().as_raw_pid().cast_unsigned()).join().unwrap();
    // join() returns when the thread has cleared its id, a little before it is gone.
    std::thread::sleep(std::time::Duration::from_millis(20));
    kernel.remove_target(std::process::id());
    let events = collect(&mut reader);
    let me = std::process::id();
    assert!(
        events
            .iter()
            .any(|e| matches!(e, LifecycleEvent::ThreadBorn { pid, tid: t, .. } if (*pid, *t) == (me, tid))),
        "{events:?}"
    );
    assert!(
        events.iter().any(
            |e| matches!(e, LifecycleEvent::ThreadExited { pid, tid: t, .. } if (*pid, *t) == (me, tid))
        ),
        "{events:?}"
    );
}
